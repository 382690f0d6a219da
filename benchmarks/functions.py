"""Accuracy and time of the elementary functions: the tables of docs/accuracy.md.

Run: ``python benchmarks/functions.py [POINTS]``, and for the worst errors by backends, in float32
and float64: ``python benchmarks/functions.py [POINTS] --backends llvm,c,opencl``
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import mpmath
import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import pullback as pb
from accuracy import WANTED, points, points64, powers, powers64, ulps, ulps64
from pullback.config import Options

SIZE, TURNS, ROUNDS = 16384, 100, 9
DIGITS = 40  # of mpmath, where numbers of 64 bits of mantissa have no such function


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
    computed = getattr(pb, name)(pb.tensor(x)).numpy()
    return float(ulps(computed, WANTED[name](x.astype(np.float64))).max())


def by_mpmath(name: str, x: np.ndarray) -> np.ndarray:
    """A function with `DIGITS` digits, rounded to 64 bits of mantissa."""
    function = getattr(mpmath, name)
    with mpmath.workdps(DIGITS):
        halves = []
        for value in x.tolist():
            exact = function(mpmath.mpf(value)) if np.isfinite(value) else function(value)
            high = float(exact)
            low = float(exact - high) if np.isfinite(high) else 0.0
            halves.append(np.longdouble(high) + np.longdouble(low))
    return np.array(halves, np.longdouble)


def worst_by(backend: str, count: int) -> dict[str, tuple[float, float]]:
    """The largest errors in float32 and in float64 of each function, by one program a type."""
    options = Options(backend=backend, cache=None)
    run = pb.jit(lambda t: tuple(getattr(pb, name)(t) for name in WANTED), options=options)
    x, wide = points(count), points64(count // 13)
    few = wide[np.isfinite(wide)][:: max(1, len(wide) // 20_000)]
    rows: dict[str, tuple[float, float]] = {}
    computed = [[y.numpy() for y in run(pb.tensor(v))] for v in (x, wide, few)]
    for name, narrow, double, sample in zip(WANTED, *computed, strict=True):
        single = ulps(narrow, WANTED[name](x.astype(np.float64))).max()
        if name == "erf":
            error = ulps64(sample, by_mpmath(name, few)).max()
        else:
            error = ulps64(double, WANTED[name](wide.astype(np.longdouble))).max()
        rows[name] = float(single), float(error)
    power = pb.jit(lambda a, b: pb.pow(a, b), options=options)
    base, exponent = powers(count // 2)
    single = ulps(power(base, exponent).numpy(), np.power(*map(np.float64, (base, exponent))))
    base, exponent = powers64(count // 8)
    exact = np.power(base.astype(np.longdouble), exponent.astype(np.longdouble))
    error = ulps64(power(base, exponent).numpy(), exact)
    return rows | {"pow": (float(single.max()), float(error.max()))}


def compared(backends: list[str], count: int) -> None:
    """Write the table of the worst errors by backends."""
    rows = [worst_by(backend, count) for backend in backends]
    heads = [f"{name} float{bits}" for bits in (32, 64) for name in backends]
    print(f"| function | {' | '.join(heads)} |\n|{'---|' * (len(heads) + 1)}")
    for name in rows[0]:
        cells = [f"{row[name][kind]:.2f}" for kind in (0, 1) for row in rows]
        print(f"| `{name}` | {' | '.join(cells)} |")


def main() -> None:
    """Write a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("points", type=int, nargs="?", default=10**6)
    parser.add_argument("--backends", default="", help="names, with commas between")
    given = parser.parse_args()
    os.environ["PULLBACK_THREADS"] = "1"
    with np.errstate(all="ignore"):
        if given.backends:
            compared(given.backends.split(","), given.points)
        else:
            timed(given.points)


def timed(count: int) -> None:
    """Write the table of errors in float32 and of times."""
    x = points(count)
    print("| function | worst ulp | ns / element |\n|---|---|---|")
    for name in WANTED:
        print(f"| `{name}` | {worst(name, x):.2f} | {nanoseconds(name):.2f} |", flush=True)
    base, exponent = powers(count // 2)
    computed = pb.pow(pb.tensor(base), pb.tensor(exponent)).numpy()
    error = ulps(computed, np.power(base.astype(np.float64), exponent.astype(np.float64)))
    print(f"| `pow` | {error.max():.2f} | {nanoseconds('pow'):.2f} |")


if __name__ == "__main__":
    main()
