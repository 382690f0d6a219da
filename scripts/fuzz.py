"""Random index maps and random programs, checked by brute force and by every mode of derivative.

`python scripts/fuzz.py [--maps N] [--programs N] [--start SEED] [--jobs N] [--interpreted]`

Each number is one map or one program, the same in every run. Fails with the number and the
definitions of what was wrong. A map is compared with its adjoint by enumeration. A program is run
forward, differentiated in both modes and twice (dot products, differences), compiled and compared
with the interpreter. `--jobs` processes share the work.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from random_programs import Checked, check_map, check_native, check_program

TOGETHER = 10  # programs compiled as one


def maps(seeds: Sequence[int]) -> list[str]:
    """What went wrong, with a line that says how the adjoints were had."""
    began, wrong, scatters, worst = time.perf_counter(), [], 0, 0.0
    for seed in seeds:
        try:
            found = check_map(seed)
        except Exception as problem:  # a fault of any kind is found, and the run goes on
            wrong.append(f"map {seed}: {type(problem).__name__}: {problem}")
            continue
        scatters += found.scatters
        worst = max(worst, found.ratio)
    print(
        f"{len(seeds)} maps, {len(wrong)} wrong, {scatters} accumulate, at most {worst:.1f} times"
        f" the work of the read, {time.perf_counter() - began:.0f} s",
        flush=True,
    )
    return wrong


def programs(compiled: bool, seeds: Sequence[int]) -> list[str]:
    """What went wrong; `compiled`: on native code too."""
    began, wrong = time.perf_counter(), []
    waiting: list[Checked] = []
    for seed in seeds:
        try:
            waiting.append(check_program(seed))
        except Exception as problem:  # a fault of any kind is found, and the run goes on
            wrong.append(f"program {seed}: {type(problem).__name__}: {problem}")
        if len(waiting) == TOGETHER or seed == seeds[-1]:
            wrong += native(waiting) if compiled else []
            waiting = []
            print(f"program {seed}, {len(wrong)} wrong", end="\r", flush=True)
    spent = time.perf_counter() - began
    print(f"{len(seeds)} programs, {len(wrong)} wrong, {spent:.0f} s", flush=True)
    return wrong


def native(checked: list[Checked]) -> list[str]:
    """What compiled code gives otherwise; a program that does not compile is found alone."""
    try:
        return check_native(checked)
    except Exception as problem:
        if len(checked) == 1:
            return [f"program {checked[0].seed}: {type(problem).__name__}: {problem}"]
        return [w for c in checked for w in native([c])]


def shared(
    check: Callable[[Sequence[int]], list[str]], seeds: Sequence[int], jobs: int
) -> list[str]:
    """`check` of all seeds, every process a part of them."""
    parts = [p for n in range(jobs) if (p := seeds[n::jobs])]
    if len(parts) < 2:
        return [w for p in parts for w in check(p)]
    with multiprocessing.get_context("spawn").Pool(len(parts)) as pool:
        return [w for found in pool.map(check, parts) for w in found]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--maps", type=int, default=0)
    parser.add_argument("--programs", type=int, default=0)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--interpreted", action="store_true", help="compile no program")
    given = parser.parse_args()
    wrong = shared(maps, range(given.start, given.start + given.maps), given.jobs)
    check = partial(programs, not given.interpreted)
    wrong += shared(check, range(given.start, given.start + given.programs), given.jobs)
    for text in wrong:
        print(text, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
