"""What a kernel costs: time predicted from flops, vector work and bytes. Only a guide."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import prod

from pullback.ir import expr as E
from pullback.ir.expr import Expr, upper
from pullback.ir.graph import Reduce, Variable
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


@dataclass(frozen=True, slots=True)
class Estimate:
    """Predicted cost of one launch. `work_us`: on one thread."""

    work_us: float
    flops: int
    bytes: int
    scratch_bytes: int
    tasks: int


@dataclass(frozen=True, slots=True)
class StageCost:
    """One stage: nanoseconds of arithmetic on one thread, floating-point operations."""

    ns: float
    flops: int


@dataclass(slots=True)
class Model:
    """Prices kernels for one target; stages seen before cost a look-up."""

    target: Target
    _stages: dict[Stage, StageCost] = field(default_factory=dict)

    def stage(self, stage: Stage) -> StageCost:
        """The cost of one stage over its whole box."""
        found = self._stages.get(stage)
        if found is None:
            found = self._stages[stage] = stage_cost(stage, self.target)
        return found

    def estimate(self, kernel: Kernel) -> Estimate:
        """The cost of one launch of `kernel`."""
        costs = [self.stage(s) for s in kernel.stages + kernel.finish]
        traffic = traffic_bytes(kernel)
        rates = self.target.profile.tables["whole"]
        speed = rates["memory_sweep" if traffic > self.target.l2 else "cache_sweep"]
        work = sum(c.ns for c in costs) + traffic / speed
        tasks = task_count(kernel, work / 1000, self.target)
        flops = sum(c.flops for c in costs)
        scratch = sum(inner_bytes(s) for s in kernel.stages if s.store is None)
        return Estimate(work / 1000, flops, traffic, scratch, tasks)


def estimate(kernel: Kernel, target: Target) -> Estimate:
    """The predicted cost of `kernel`; keep a `Model` to price many."""
    return Model(target).estimate(kernel)


def stage_cost(stage: Stage, target: Target) -> StageCost:
    """Arithmetic of one stage: a contraction by its multiplications, anything else by its nodes."""
    count = prod(upper(e) for e in stage.extents)
    rates = target.profile.tables["whole"]
    if contraction.can(stage) and len(stage.extents) > 2:
        ns = count * rates["multiply_add"] / contraction.word_size(stage, target)
        return StageCost(ns, 2 * count)
    width = stage.body.dtype.itemsize / 4
    each = 0.0
    operations = int(isinstance(stage.form, Reduce))
    for node in walk(stage.body):
        if isinstance(node, Expr):
            free = isinstance(node, E.Const | E.Axis)
            each += 0.0 if free else rates[_WEIGHTS.get(type(node), "plain")]
            operations += node.dtype.is_float and not isinstance(node, E.Const | E.Take)
    if stage_is_sequential(stage):
        return StageCost(count * max(each * width, rates["scalar"]), count * operations)
    return StageCost(count * max(each, rates["plain"]) * width, count * operations)


def stage_is_sequential(stage: Stage) -> bool:
    """Whether the stage is a scan or an accumulating write."""
    return not isinstance(stage.form, Reduce) and hasattr(stage.form, "combiner")


def traffic_bytes(kernel: Kernel) -> int:
    """Bytes of variables read and written, each once."""
    touched: dict[Variable, int] = {}
    for variable in kernel.reads + kernel.writes:
        touched[variable] = touched.get(variable, 0) + size_bytes(variable)
    return sum(touched.values())


def size_bytes(variable: Variable) -> int:
    """Size at the upper bounds, bytes."""
    return prod(upper(e) for e in variable.shape) * variable.dtype.itemsize


def inner_bytes(stage: Stage) -> int:
    """Scratch of a stage for a tile of one coordinate, bytes."""
    bound = {a for a in stage.outer if a is not None}
    shape = stage.shape
    local = prod(upper(e) for n, e in enumerate(shape) if n not in bound)
    return local * stage.body.dtype.itemsize


def task_count(kernel: Kernel, work_us: float, target: Target) -> int:
    """How many tasks share a launch, a power of two: a function of shapes only."""
    coordinates = prod(upper(e) for e in kernel.outer)
    least, each = _shared(target)
    if work_us < least or coordinates < 2:
        return 1
    return _power(min(most_tasks(kernel, target), int(work_us / each), coordinates))


def most_tasks(kernel: Kernel, target: Target) -> int:
    """How many tasks a launch is dealt to at most: fewer where each keeps sums of its own."""
    partial = any(s.partial for s in kernel.stages)
    return int(target.profile.rate("launch", "partial_tasks" if partial else "tasks"))


def _shared(target: Target) -> tuple[float, float]:
    """Microseconds of work below which a launch stays on one thread, and of one task."""
    rates = target.profile.tables["whole"]
    return rates["parallel_sweep"] / 1e3, rates["task"] / 1e3


def _power(wanted: int) -> int:
    return 1 << (max(1, wanted).bit_length() - 1)


def shares(kernel: Kernel, tasks: Sequence[int], target: Target) -> tuple[int, ...]:
    """Where the tasks of a kernel's parts, counted as one row, are cut into equal work.

    ``tasks (1, 2, 1) of 10, 60, 10 us, in two  ->  (0, 2, 4)``
    """
    model = Model(target)
    least, most = _shared(target)
    works = [model.estimate(part).work_us for part in kernel.parts]
    each = [w / n for w, n in zip(works, tasks, strict=True) for _ in range(n)]
    total = sum(each)
    wide = int(target.profile.rate("launch", "tasks"))
    count = 1 if total < least else _power(min(wide, int(total / most), len(each)))
    ends = list(accumulate(each))
    inner = [bisect_left(ends, total * n / count) + 1 for n in range(1, count)]
    return (0, *inner, len(each))
