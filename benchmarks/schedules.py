"""Schedules by hand, by the model and by measuring: a product and its two gradients.

    python benchmarks/schedules.py [--size 1024] [--seconds 20]

Each row is GF/s of one kernel on one thread, from processor time, the best of a few runs. "same
bits": the order of sums is that of the model's schedule, and the bits are compared; else the
largest difference is shown beside the largest result, in units of float32's epsilon.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import pullback as pb
from pullback.errors import OptionError
from pullback.tensor.run.schedules import UserSchedule
from pullback.tensor.run.tune import Bench

OPTIONS = pb.Options(threads=1, cache=None)
RUNS = 5
EPSILON = 2.0**-23


def gradients(a: Any, b: Any, head: Any) -> Any:
    """A product and the gradients by both operands."""
    c, back = pb.vjp(lambda a, b: a @ b, a, b)
    return (c, *back(head))


STEPS: dict[str, Callable[[UserSchedule], UserSchedule]] = {
    "plain": lambda s: s.plain(),
    "lanes": lambda s: s.plain().vectorize("j").unroll(4),
    "and tiles": lambda s: s.plain().vectorize("j").unroll(4).tile(i=32, j=128),
    "register tiles": lambda s: s.plain().tile(i=512).block(rows=8, vectors=2),
    "packed": lambda s: s.plain().tile(i=512).block(rows=8, vectors=2).pack(),
    "the model's": lambda s: s,
}


def gflops(bench: Bench, s: UserSchedule, work: float) -> tuple[float, Any]:
    """GF/s of a schedule, and its results."""
    timed = bench.compiled(s.choices)
    found = bench.results(timed)
    spent = []
    start = time.process_time()
    for _ in range(RUNS):
        before = time.process_time()
        timed.machine.run(bench.arrays, bench.sizes)
        spent.append(time.process_time() - before)
        if time.process_time() - start > 2.0:
            break
    return work / min(spent) / 1e9, found


def told(bench: Bench, s: UserSchedule, own: UserSchedule, found: Any) -> str:
    """How the results compare with the model's."""
    (value,), (wanted,) = found, bench.wanted
    if s.same_sums(own):
        assert np.array_equal(value, wanted), s
        return "same bits"
    error = np.max(np.abs(value.astype(np.float64) - wanted)) / np.max(np.abs(wanted)) / EPSILON
    return f"{error:.1f} eps"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each search")
    given = parser.parse_args()
    n = given.size
    rng = np.random.default_rng(0)
    operands = [rng.uniform(0.1, 1.0, (n, n)).astype(np.float32) for _ in range(3)]
    compiled = pb.jit(gradients, options=OPTIONS)
    compiled(*operands)
    for number, kernel in enumerate(compiled.program.distinct()):
        own = pb.schedule(compiled, kernel=number)
        bench = Bench(kernel, OPTIONS)
        print(f"\n{own}\n", flush=True)
        rows = list(STEPS.items())
        for search in ("beam", "random"):
            outcome = bench.tuned(given.seconds, [search])
            best = UserSchedule(own.kernel, own.target, outcome.choices)
            rows.append((f"{search}, {outcome.tries} tries", lambda s, best=best: best))
        for name, step in rows:
            try:
                s = step(own)
            except OptionError as refused:
                print(f"| {name} | refused: {refused.what} |", flush=True)
                continue
            speed, found = gflops(bench, s, 2.0 * n**3)
            print(
                f"| {name} | {speed:.2f} | {told(bench, s, own, found)} | {s.choices} |", flush=True
            )


if __name__ == "__main__":
    main()
