"""What memory the programs of the goldens take: bytes of their arenas, and the least possible.

`python scripts/plans.py`: a table.  `--save FILE`: for another version to be held against.
`--against FILE`: the ratio of each program to that; 1 if one is larger by more than 2 %.
`--only WORD`: the programs whose name contains WORD.
"""

from __future__ import annotations

import argparse
import json
import sys
from math import exp, log
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from golden_programs import programs, traced
from pullback.config import Options
from pullback.pipeline import compile_program

OPTIONS = Options(threads=2, cache=None)
MORE = 1.02  # a plan may be larger by this factor


def planned(only: str) -> dict[str, tuple[int, int]]:
    """Bytes of the arena of each program, and a bound from below, on this processor."""
    sizes = {}
    for name, make in programs().items():
        if only in name:
            plan = compile_program(traced(make()), OPTIONS).plan
            sizes[name] = (0, 0) if plan is None else (plan.arena_bytes, plan.lower_bound_bytes)
    return sizes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--save", type=Path)
    parser.add_argument("--against", type=Path)
    parser.add_argument("--only", default="")
    given = parser.parse_args()
    sizes = planned(given.only)
    before = json.loads(given.against.read_text()) if given.against else {}
    ratios = []
    for name, (arena, least) in sizes.items():
        old = before.get(name, (0, 0))[0]
        ratio = arena / old if old else 1.0 if arena == old or name not in before else float("inf")
        ratios.append(ratio)
        told = f"{ratio:8.3f}" if before else ""
        print(f"{arena:>12,} {arena / max(1, least):6.3f} {told} {name}")
    if before:
        middle = exp(sum(map(log, ratios)) / max(1, len(ratios)))
        most = max(ratios, default=1.0)
        print(f"{len(ratios)} programs: ratio {middle:.4f} (geometric mean), {most:.3f} at most")
    if given.save:
        given.save.write_text(json.dumps(sizes))
    return int(max(ratios, default=1.0) > MORE)


if __name__ == "__main__":
    sys.exit(main())
