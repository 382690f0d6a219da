"""What a kernel costs: time predicted from flops, vector work and bytes. Only a guide."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from heapq import heapreplace
from itertools import accumulate

from pullback.config import Ints, Pair
from pullback.cost.facts import elements, size_bytes
from pullback.ir import expr as E
from pullback.ir.expr import Expr
from pullback.ir.graph import Accumulate, Scan
from pullback.ir.kernel import Kernel, Stage
from pullback.ir.node import walk
from pullback.ir.target import Target
from pullback.schedule import contraction

# What a node of a body costs, by the machine's names; what is not here is `plain`.
_WEIGHTS: dict[type[Expr], str] = {
    E.Exp: "exp",
    E.Log: "log",
    E.Sin: "sin",
    E.Sqrt: "root",
    E.Div: "divide",
    E.FloorDiv: "divide",
    E.Mod: "divide",
}


@dataclass(slots=True)
class Model:
    """Prices kernels for one target; stages seen before cost a look-up.

    `blocks`: by stage, the outer axes that its body divides, with the divisors.
    """

    target: Target
    blocks: dict[Stage, list[Pair]] = field(default_factory=dict)
    _stages: dict[Stage, float] = field(default_factory=dict)

    def stage_ns(self, stage: Stage) -> float:
        """Nanoseconds of arithmetic of one stage over its whole box, on one thread."""
        if stage not in self._stages:
            self._stages[stage] = stage_ns(stage, self.target)
        return self._stages[stage]

    def work_us(self, kernel: Kernel) -> float:
        """Predicted microseconds of one launch of `kernel` on one thread."""
        traffic = traffic_bytes(kernel)
        rates = self.target.profile.tables["whole"]
        speed = rates["memory_sweep" if traffic > self.target.l2 else "cache_sweep"]
        return (sum(map(self.stage_ns, kernel.every)) + traffic / speed) / 1000


def stage_ns(stage: Stage, target: Target) -> float:
    """Arithmetic of one stage: a contraction by its multiplications, anything else by its nodes."""
    count = elements(stage.extents)
    rates = target.profile.tables["whole"]
    if contraction.can(stage) and len(stage.extents) > 2:
        return count * rates["multiply_add"] / contraction.word_size(stage, target)
    width = stage.body.dtype.itemsize / 4
    counted = (n for n in walk(stage.body) if not isinstance(n, E.Const | E.Axis))
    each = sum(rates[_WEIGHTS.get(type(n), "plain")] for n in counted if isinstance(n, Expr))
    if isinstance(stage.form, Scan | Accumulate):
        return count * max(each * width, rates["scalar"])
    return count * max(each, rates["plain"]) * width


def traffic_bytes(kernel: Kernel) -> int:
    """Bytes of variables read and written, each once."""
    return sum(size_bytes(v) * n for v, n in Counter(kernel.reads + kernel.writes).items())


def task_count(kernel: Kernel, work_us: float, target: Target) -> int:
    """How many tasks share a launch, a power of two: a function of shapes only."""
    coordinates = elements(kernel.outer)
    least, each = _shared(target)
    if work_us < least or coordinates < 2:
        return 1
    return _power(min(most_tasks(kernel, target), int(work_us / each), coordinates))


def most_tasks(kernel: Kernel, target: Target) -> int:
    """How many tasks a launch is dealt to at most: fewer where each keeps sums of its own, as those
    do that share what the axes in front of these sums select.
    """
    most, few = (int(target.profile.rate("launch", n)) for n in ("tasks", "partial_tasks"))
    whole = whole_axes(kernel)
    if whole == len(kernel.outer):
        return most
    return max(few, min(most, elements(kernel.outer[:whole])))


def whole_axes(kernel: Kernel) -> int:
    """How many outer axes stand in front of the first that a sum goes over."""
    spread = (o for s in kernel.stages for o, axis in enumerate(s.outer) if axis in s.over)
    return min(spread, default=len(kernel.outer))


def _shared(target: Target) -> tuple[float, float]:
    """Microseconds of work below which a launch stays on one thread, and of one task."""
    rates = target.profile.tables["whole"]
    return rates["parallel_sweep"] / 1e3, rates["task"] / 1e3


def _power(wanted: int) -> int:
    return 1 << (max(1, wanted).bit_length() - 1)


def longest(tiles: int, tasks: int, threads: int) -> float:
    """The part of a launch that its busiest thread has: each takes the next task when it is done.

    ``7 tiles in 4 tasks (1, 2, 2, 2), 2 threads  ->  4 / 7``
    """
    tasks = min(tiles, tasks)
    busy = [0] * min(threads, tasks)
    for task in range(tasks):
        heapreplace(busy, busy[0] + (task + 1) * tiles // tasks - task * tiles // tasks)
    return max(busy) / tiles


def shares(kernel: Kernel, tasks: Sequence[int], target: Target) -> Ints:
    """Where the tasks of a kernel's parts, counted as one row, are cut into equal work.

    ``tasks (1, 2, 1) of 10, 60, 10 us, in two  ->  (0, 2, 4)``
    """
    model = Model(target)
    least, most = _shared(target)
    works = [model.work_us(part) for part in kernel.parts]
    each = [w / n for w, n in zip(works, tasks, strict=True) for _ in range(n)]
    total = sum(each)
    wide = int(max(target.profile.tables["launch"][name] for name in ("tasks", "processors")))
    count = 1 if total < least else _power(min(wide, int(total / most), len(each)))
    ends = list(accumulate(each))
    inner = [bisect_left(ends, total * n / count) + 1 for n in range(1, count)]
    return (0, *inner, len(each))
