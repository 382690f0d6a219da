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

# Nanoseconds per element of one thread, float32 in 64-byte vectors (cpu-backend.md, "Vector math";
# arithmetic: a fused chain of 15 operations on 2x64 elements takes 0.17 us, "Elementwise").
EXP_NS = 0.35
LOG_NS = 0.45
SIN_NS = 0.60
ROOT_NS = 0.15
DIVIDE_NS = 0.10
PLAIN_NS = 0.02
SCALAR_NS = 0.8

# Nanoseconds per multiply-add of a contraction (100 GF/s a core, cpu-backend.md, "GEMM") and of a
# reduction that is one but too small for register tiles.
FMA_NS = 0.02

# Bytes per nanosecond and thread (cpu-backend.md, softmax 4096x1024: 33 MB in 1.1 ms, 2 threads).
CACHE_BYTES_PER_NS = 30.0
MEMORY_BYTES_PER_NS = 12.0

# Below this much work a kernel stays on one thread (cpu-backend.md: parallel above 10 to 20 us).
PARALLEL_US = 15.0
TASK_US = 8.0
MOST_TASKS = 8
MOST_PARTIAL_TASKS = 4

_WEIGHTS: dict[type[Expr], float] = {
    E.Exp: EXP_NS,
    E.Log: LOG_NS,
    E.Sin: SIN_NS,
    E.Sqrt: ROOT_NS,
    E.Div: DIVIDE_NS,
    E.FloorDiv: DIVIDE_NS,
    E.Mod: DIVIDE_NS,
    E.Const: 0.0,
    E.Axis: 0.0,
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
        speed = MEMORY_BYTES_PER_NS if traffic > self.target.l2 else CACHE_BYTES_PER_NS
        work = sum(c.ns for c in costs) + traffic / speed
        tasks = task_count(kernel, work / 1000)
        flops = sum(c.flops for c in costs)
        scratch = sum(inner_bytes(s) for s in kernel.stages if s.store is None)
        return Estimate(work / 1000, flops, traffic, scratch, tasks)


def estimate(kernel: Kernel, target: Target) -> Estimate:
    """The predicted cost of `kernel`; keep a `Model` to price many."""
    return Model(target).estimate(kernel)


def stage_cost(stage: Stage, target: Target) -> StageCost:
    """Arithmetic of one stage: a contraction by its multiplications, anything else by its nodes."""
    count = prod(upper(e) for e in stage.extents)
    if contraction.can(stage) and len(stage.extents) >= 3:
        return StageCost(count * FMA_NS / contraction.word_size(stage, target), 2 * count)
    width = stage.body.dtype.itemsize / 4
    each = 0.0
    operations = int(isinstance(stage.form, Reduce))
    for node in walk(stage.body):
        if isinstance(node, Expr):
            each += _WEIGHTS.get(type(node), PLAIN_NS)
            operations += node.dtype.is_float and not isinstance(node, E.Const | E.Take)
    if stage_is_sequential(stage):
        return StageCost(count * max(each * width, SCALAR_NS), count * operations)
    return StageCost(count * max(each, PLAIN_NS) * width, count * operations)


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


def task_count(kernel: Kernel, work_us: float) -> int:
    """How many tasks share a launch, a power of two: a function of shapes only."""
    coordinates = prod(upper(e) for e in kernel.outer)
    if work_us < PARALLEL_US or coordinates < 2:
        return 1
    most = MOST_PARTIAL_TASKS if any(s.partial for s in kernel.stages) else MOST_TASKS
    return _power(min(most, int(work_us / TASK_US), coordinates))


def _power(wanted: int) -> int:
    return 1 << (max(1, wanted).bit_length() - 1)


def shares(kernel: Kernel, tasks: Sequence[int], target: Target) -> tuple[int, ...]:
    """Where the tasks of a kernel's parts, counted as one row, are cut into equal work.

    ``tasks (1, 2, 1) of 10, 60, 10 us, in two  ->  (0, 2, 4)``
    """
    model = Model(target)
    works = [model.estimate(part).work_us for part in kernel.parts]
    each = [w / n for w, n in zip(works, tasks, strict=True) for _ in range(n)]
    total = sum(each)
    count = 1 if total < PARALLEL_US else _power(min(MOST_TASKS, int(total / TASK_US), len(each)))
    ends = list(accumulate(each))
    inner = [bisect_left(ends, total * n / count) + 1 for n in range(1, count)]
    return (0, *inner, len(each))
