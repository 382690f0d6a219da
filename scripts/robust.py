"""Threads, forks, kills, damaged files, texts that nobody meant, growth: what must not hurt.

`python scripts/robust.py [CHECK ..] [--count N] [--seed SEED]`

Runs the named checks, or all, as often as the issue of each asks, and prints a line for each: how
much was tried, what was wrong, seconds. Exit code 1 where anything was. `tests/test_robust.py` runs
the same checks a few times each.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import robust_damage
import robust_growth
import robust_kills
import robust_texts
import robust_threads
from robust_support import Found, Tell, clock

Check = Callable[[int, int, Tell], Found]
SHOWN = 10  # of what was wrong
OFTEN = 2.0  # seconds between two words on progress
# What is checked, and how often: of threads by each, of pools by each kind, of growth by each.
CHECKS: dict[str, tuple[Check, int]] = {
    "threads": (robust_threads.compiles, 200),
    "forks": (robust_threads.forks, 100),
    "pools": (robust_threads.pools, 50),
    "texts": (robust_texts.lines, 50_000),
    "weights": (robust_damage.weights, 1000),
    "entries": (robust_damage.entries, 1000),
    "programs": (robust_damage.programs, 2000),
    "trainings": (robust_kills.trainings, 200),
    "compilations": (robust_kills.compilations, 200),
    "writes": (robust_kills.writes, 200),
    "growth": (robust_growth.steps, 10_000),
}


def run(name: str, count: int, seed: int) -> Found:
    """One check, with its progress on standard error."""
    check, _ = CHECKS[name]
    began, told = time.perf_counter(), [time.perf_counter()]

    def tell(done: int) -> None:
        if time.perf_counter() - told[0] > OFTEN:
            told[0] = time.perf_counter()
            print(f"{name}: {clock(done, began)}", end="\r", file=sys.stderr, flush=True)

    found = check(count, seed, tell)
    print(f"{name}: {found}; {time.perf_counter() - began:.0f} s", flush=True)
    for wrong in found.wrong[:SHOWN]:
        print(f"  {wrong}", file=sys.stderr)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=", ".join(CHECKS))
    parser.add_argument("--count", type=int, help="how often, instead of the check's own number")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    unknown = [name for name in given.checks if name not in CHECKS]
    if unknown:
        parser.error(f"no check {unknown[0]!r}: there are {', '.join(CHECKS)}")
    names = given.checks or list(CHECKS)
    results = [run(name, given.count or CHECKS[name][1], given.seed) for name in names]
    return 1 if any(found.wrong for found in results) else 0


if __name__ == "__main__":
    sys.exit(main())
