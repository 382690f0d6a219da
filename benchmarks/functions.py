"""Accuracy and time of the elementary functions: the table of docs/accuracy.md.

Run: ``python benchmarks/functions.py [POINTS]``
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import pullback as pb
from accuracy import WANTED, points, powers, ulps

SIZE, TURNS, ROUNDS = 16384, 100, 9


def nanoseconds(name: str) -> float:
    """Best time of an element in cache, on one thread."""
    lo, hi = (1.1, 9.0) if name == "acosh" else (0.1, 0.9)
    x = pb.tensor(np.random.default_rng(0).uniform(lo, hi, SIZE).astype(np.float32))
    if name == "pow":
        run = pb.jit(lambda t: pb.pow(t, t))
    else:
        run = pb.jit(lambda t: getattr(pb, name)(t))
    run(x).numpy()
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.thread_time()
        for _ in range(TURNS):
            run(x)
        best = min(best, time.thread_time() - start)
    return best / TURNS / SIZE * 1e9


def worst(name: str, x: np.ndarray) -> float:
    """The largest error, units in the last place."""
    found = getattr(pb, name)(pb.tensor(x)).numpy()
    return float(ulps(found, WANTED[name](x.astype(np.float64))).max())


def main() -> None:
    """Write the table."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10**6
    os.environ["PULLBACK_THREADS"] = "1"
    x = points(count)
    print("| function | worst ulp | ns / element |\n|---|---|---|")
    with np.errstate(all="ignore"):
        for name in WANTED:
            print(f"| `{name}` | {worst(name, x):.2f} | {nanoseconds(name):.2f} |", flush=True)
        base, exponent = powers(count // 2)
        found = pb.pow(pb.tensor(base), pb.tensor(exponent)).numpy()
        error = ulps(found, np.power(base.astype(np.float64), exponent.astype(np.float64)))
    print(f"| `pow` | {error.max():.2f} | {nanoseconds('pow'):.2f} |")


if __name__ == "__main__":
    main()
