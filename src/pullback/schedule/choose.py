"""Choose a schedule: a function of the kernel's structure, its shapes and the target alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from math import prod

from pullback.ir.dtype import DType
from pullback.ir.expr import Dim, Take, upper
from pullback.ir.graph import Map, Value, Variable
from pullback.ir.kernel import Kernel, Stage, stage_reads
from pullback.ir.target import Target
from pullback.schedule.contraction import dotted
from pullback.schedule.cost import Model
from pullback.schedule.schedule import Place, Residence, Schedule, Slot, Step, Way
from pullback.schedule.steps import identical, level, steps

# Rows up to which a contraction with two operands contiguous along k runs without packing: a panel
# copy costs about as much as four rows of multiplications (probes/cpu/gemm.py, 2x255x255).
DOT_ROWS = 8

# Tiles whose working set leaves the second-level cache run at memory speed.
WORKING_SHARE = 2


def choose(kernel: Kernel, target: Target) -> Schedule:
    """The schedule of `kernel`."""
    body = steps(kernel.stages, target)
    finish = steps(kernel.finish, target)
    body = _with_levels(kernel, body)
    homes = residences(kernel, body, finish)
    work = Model(target).estimate(kernel)
    tile = choose_tile(kernel, body, homes, work.tasks, target)
    body = tuple(_with_way(kernel.stages, step, tile) for step in body)
    finish = tuple(_with_way(kernel.finish, step, ()) for step in finish)
    tasks, split = deal(kernel, tile, work.tasks)
    slots, homes = assign_slots(kernel, body, finish, homes, tile)
    return Schedule(tile, tasks, split, body, finish, homes, slots)


def scratch_bytes(kernel: Kernel, target: Target) -> int:
    """Scratch that a task of `kernel` needs at its smallest tile, without packed panels, bytes."""
    body = steps(kernel.stages, target)
    finish = steps(kernel.finish, target)
    homes = residences(kernel, body, finish)
    smallest = (1,) * len(kernel.outer)
    slots, _ = assign_slots(kernel, body, finish, homes, smallest)
    return sum(s.bytes for s in slots)


def _with_levels(kernel: Kernel, body: tuple[Step, ...]) -> tuple[Step, ...]:
    """Steps at their loop level; one that cannot move before the inner loops stays innermost."""
    full = len(kernel.outer)
    found = []
    for step in body:
        members = [kernel.stages[n] for n in step.stages]
        deep = any(s.partial for s in members) or any(s.store in kernel.reads for s in members)
        found.append(replace(step, level=full) if deep else step)
    return tuple(found)


def residences(
    kernel: Kernel, body: tuple[Step, ...], finish: tuple[Step, ...]
) -> tuple[Residence, ...]:
    """Where each stage lives: in registers if only its own loop reads it."""
    every = kernel.stages + kernel.finish
    ahead = len(kernel.stages)
    groups = [s.stages for s in body] + [tuple(n + ahead for n in s.stages) for s in finish]
    company = {n: frozenset(g) for g in groups for n in g}
    users: dict[int, set[int]] = {n: set() for n in range(len(every))}
    numbers: dict[Value, int] = {s.target: n for n, s in enumerate(every)}
    for number, stage in enumerate(every):
        for take in stage_reads(stage):
            source = numbers.get(take.source)
            if source is not None:
                users[source].add(number)
    return tuple(_residence(s, users[n] <= company[n]) for n, s in enumerate(every))


def _residence(stage: Stage, private: bool) -> Residence:
    if stage.partial:
        return Residence(Place.SHARED)
    if stage.store is not None:
        return Residence(Place.SCRATCH if overwrites_itself(stage) else Place.MEMORY)
    if private and isinstance(stage.form, Map):
        return Residence(Place.REGISTER)
    return Residence(Place.SCRATCH)


def overwrites_itself(stage: Stage) -> bool:
    """Whether a stage reads its own target variable where it has not yet, or already, written."""
    rank = len(stage.extents)
    at_home = isinstance(stage.form, Map)
    return any(
        t.source is stage.store and not (at_home and identical(t, rank)) for t in stage_reads(stage)
    )


def tile_shape(stage: Stage, tile: tuple[int, ...]) -> tuple[int, ...]:
    """Extents of the part of a stage that one tile holds."""
    bound = {a: o for o, a in enumerate(stage.outer) if a is not None}
    return tuple(
        min(upper(e), tile[bound[n]]) if n in bound else upper(e) for n, e in enumerate(stage.shape)
    )


def revisited_bytes(kernel: Kernel, body: Iterable[Step], tile: tuple[int, ...]) -> int:
    """Bytes of variables that change from tile to tile and are read by several steps of a tile."""
    sizes: dict[Variable, int] = {}
    users: dict[Variable, set[int]] = {}
    for number, step in enumerate(body):
        for stage in (kernel.stages[n] for n in step.stages):
            bound = {a: o for o, a in enumerate(stage.outer) if a is not None}
            extents = [upper(e) for e in stage.extents]
            for axis, outer in bound.items():
                extents[axis] = tile[outer]
            for take in takes(stage):
                axes = frozenset[int]().union(*(i.axes for i in take.indices))
                if not isinstance(take.source, Variable) or axes.isdisjoint(bound):
                    continue
                size = prod(extents[a] for a in axes) * take.source.dtype.itemsize
                sizes[take.source] = max(sizes.get(take.source, 0), size)
                users.setdefault(take.source, set()).add(number)
    return sum(size for source, size in sizes.items() if len(users[source]) > 1)


def takes(stage: Stage) -> tuple[Take, ...]:
    """The reads of a stage that have indices."""
    return tuple(t for t in stage_reads(stage) if t.indices)


def budget(kernel: Kernel, body: Iterable[Step], target: Target) -> int:
    """Bytes of scratch a task may use: more where a contraction reads an earlier stage."""
    inner = {s.target for s in kernel.stages}
    for step in body:
        reads = [t for n in step.stages for t in stage_reads(kernel.stages[n])]
        if step.product is not None and any(t.source in inner for t in reads):
            return target.l2 // 4
    if any(step.product is not None for step in body):
        return 2 * target.scratch
    return target.scratch


def choose_tile(
    kernel: Kernel,
    body: tuple[Step, ...],
    homes: tuple[Residence, ...],
    tasks: int,
    target: Target,
) -> tuple[int, ...]:
    """Tile extents: inner axes first, as wide as scratch and the number of tasks allow."""
    limit = budget(kernel, body, target)
    revisits = len(body) > 1 and all(step.product is None for step in body)
    extents = [upper(e) for e in kernel.outer]
    tile = [1] * len(extents)
    for axis in reversed(range(len(extents))):
        before = prod(extents[:axis])
        most = extents[axis]
        if before < tasks:
            most = max(1, most * before // tasks)

        def used(extent: int, axis: int = axis) -> int:
            trial = (*tile[:axis], extent, *tile[axis + 1 :])
            slots, _ = assign_slots(kernel, body, (), homes, trial)
            again = revisited_bytes(kernel, body, trial) if revisits else 0
            return again + sum(s.bytes for s in slots)

        tile[axis] = round_tile(_widest(most, limit, used), kernel.outer[axis])
        if tile[axis] < extents[axis]:
            break
    return tuple(tile)


def _widest(most: int, limit: int, used: Callable[[int], int]) -> int:
    """The largest extent up to `most` whose scratch fits; it grows about in proportion."""
    extent = most
    while extent > 1 and (bytes_used := used(extent)) > limit:
        extent = max(1, min(extent - 1, extent * limit // bytes_used))
    return extent


def round_tile(most: int, extent: int | Dim) -> int:
    """A tile extent up to `most`: all, or a divisor (of whole vectors, if any).

    Example: ``most=20, extent=64 -> 16``
    """
    size = upper(extent)
    if most >= size:
        return size
    if isinstance(extent, int):
        divisors = [d for d in range(max(1, -(-most // 2)), most + 1) if size % d == 0]
        for step in (16, 8, 1):
            even = [d for d in divisors if d % step == 0]
            if even:
                return max(even)
    for step in (16, 8):
        if most >= step:
            return most // step * step
    return most


def _with_way(stages: tuple[Stage, ...], step: Step, tile: tuple[int, ...]) -> Step:
    """A contraction of few rows with both operands contiguous along k goes by dot products."""
    if step.product is None or step.product.direct:
        return step
    stage = stages[step.stages[0]]
    product = step.product
    if tile_shape_row(stage, product.row, tile) > DOT_ROWS:
        return step
    if not dotted(stage, product):
        return step
    return replace(step, way=Way.DOTS, vector=stage.over[-1])


def tile_shape_row(stage: Stage, row: int, tile: tuple[int, ...]) -> int:
    """Extent of output axis `row` inside a tile."""
    return tile_shape(stage, tile)[row] if tile else upper(stage.extents[row])


def deal(kernel: Kernel, tile: tuple[int, ...], wanted: int) -> tuple[int, int]:
    """How many tasks, and over how many leading axes their tiles are counted."""
    counts = [-(-upper(e) // t) for e, t in zip(kernel.outer, tile, strict=True)]
    tasks = max(1, min(wanted, prod(counts)))
    if not counts:
        return 1, 0
    total = 1
    for split, count in enumerate(counts, start=1):
        total *= count
        if total >= tasks and (total % tasks == 0 or total >= 4 * tasks):
            return tasks, split
    return tasks, len(counts)


@dataclass(slots=True)
class _Open:
    """A slot while slots are dealt out: when its present value dies."""

    dtype: DType
    size: int
    until: int


def assign_slots(
    kernel: Kernel,
    body: tuple[Step, ...],
    finish: tuple[Step, ...],
    homes: tuple[Residence, ...],
    tile: tuple[int, ...],
) -> tuple[tuple[Slot, ...], tuple[Residence, ...]]:
    """Scratch slots, shared by stages that are not alive together in one tile."""
    every = kernel.stages + (kernel.finish if finish else ())
    ahead = len(kernel.stages)
    order = sorted(body, key=lambda s: s.level)
    sequence = [s.stages for s in order]
    sequence += [tuple(n + ahead for n in s.stages) for s in finish]
    when = {n: time for time, stages in enumerate(sequence) for n in stages}
    last = {n: _last_use(n, every, when) for n in when}
    full = len(kernel.outer)
    levels = {n: s.level for s in body for n in s.stages}
    slots: list[_Open] = []
    found = list(homes)
    for time, stages in enumerate(sequence):
        for number in stages:
            if homes[number].place is not Place.SCRATCH:
                continue
            stage = every[number]
            extents = tile_shape(stage, tile) if number < ahead else _whole(stage)
            hoisted = levels.get(number, full) < full
            until = len(sequence) if hoisted else last[number]
            slot = _take_slot(slots, stage.body.dtype, prod(extents), time, until, hoisted)
            found[number] = Residence(Place.SCRATCH, slot)
    return tuple(Slot(s.dtype, s.size) for s in slots), tuple(found)


def _whole(stage: Stage) -> tuple[int, ...]:
    return tuple(upper(e) for e in stage.shape)


def _last_use(number: int, every: tuple[Stage, ...], when: dict[int, int]) -> int:
    target = every[number].target
    uses = [when[n] for n, s in enumerate(every) if any(t.source is target for t in stage_reads(s))]
    return max([when[number], *uses])


def _take_slot(
    slots: list[_Open], kind: DType, size: int, time: int, until: int, hoisted: bool
) -> int:
    """A free slot of the same type, grown if need be, or a new one."""
    if not hoisted:
        free = [n for n, s in enumerate(slots) if s.until < time and s.dtype == kind]
        if free:
            best = min(free, key=lambda n: (abs(slots[n].size - size), n))
            slots[best].size = max(slots[best].size, size)
            slots[best].until = until
            return best
    slots.append(_Open(kind, size, until))
    return len(slots) - 1


__all__ = ["choose", "level", "scratch_bytes"]
