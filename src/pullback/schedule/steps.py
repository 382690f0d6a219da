"""Which stages share a loop, and which axis runs in lanes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import log2
from types import MappingProxyType

from pullback.algebra.linear import Linear, row_major, stepped
from pullback.config import Cap, Ints, frozen
from pullback.ir.expr import Axis, Extent, Take, upper
from pullback.ir.graph import Accumulate, Map, Reduce, Scan
from pullback.ir.kernel import Stage, Stages, stage_reads
from pullback.ir.target import MOST_PICKED, Target
from pullback.schedule.contraction import address, recognise, volume
from pullback.schedule.schedule import Numbers, Step, Steps, Way

# Stages of one loop: each that is added is compared with every other. None of the goldens' loops
# has more.
MOST_STAGES: Cap = 12

Rates = Mapping[str, float]
Space = tuple[tuple[int, Extent], ...]

NOTHING: Numbers = MappingProxyType({})


def space(stage: Stage) -> Space:
    """The box a stage runs over: per axis the outer axis it is bound to (or -1) and its extent."""
    bound = stage.bound
    return tuple((bound.get(n, -1), e) for n, e in enumerate(stage.extents))


def identical(take: Take, rank: int) -> bool:
    """Whether a read is at exactly the loop's own coordinates, in order."""
    if len(take.indices) != rank:
        return False
    return all(isinstance(i, Axis) and i.number == n for n, i in enumerate(take.indices))


@frozen
class SharedLoop:
    """Consecutive stages over one space, with the axis chosen for the lanes and its cost."""

    stages: Ints
    vector: int | None
    cost: float


def steps(stages: Stages, target: Target, given: Numbers = NOTHING) -> Steps:
    """Stages in steps, in order: neighbours over one space share a loop where that is legal.

    `given`: what is chosen by name (`choices`).
    """
    ordered: list[Step] = []
    group: SharedLoop | None = None
    for number, stage in enumerate(stages):
        apart = f"apart.{number}" in given
        if not apart and group is None and ordered and follows(ordered[-1], number, stages):
            ordered[-1] = replace(ordered[-1], stages=(*ordered[-1].stages, number))
            continue
        alone = special(number, stage, target, given)
        if alone is None:
            near = None if apart else group
            wider = None if near is None else joined(near, number, stages, target)
            if wider is not None:
                group = wider
                continue
        if group is not None:
            ordered.append(_sweep(group, stages))
            group = None
        if alone is not None:
            ordered.append(alone)
        else:
            group = SharedLoop((number,), *lanes([stage], target))
    if group is not None:
        ordered.append(_sweep(group, stages))
    return tuple(ordered)


def follows(step: Step, number: int, stages: Stages) -> bool:
    """Whether a map may run on each block of a contraction right after it, while it is near."""
    stage = stages[number]
    lead = stages[step.lead]
    if step.product is None or not isinstance(stage.form, Map) or lead.partial:
        return False
    if len(step.stages) >= MOST_STAGES or space(stage) != space(lead)[: len(lead.shape)]:
        return False
    if upper(lead.shape[step.product.row]) <= step.product.dots:
        return False
    if any(t.source is not lead.target and t.is_data for t in stage_reads(stage)):
        return False
    return meets(lead, stage, True) and all(meets(stages[n], stage) for n in step.stages[1:])


def level(stage: Stage) -> int:
    """How many outer loops a stage needs around it."""
    return 1 + max(stage.bound.values(), default=-1)


def special(number: int, stage: Stage, target: Target, given: Numbers = NOTHING) -> Step | None:
    """The step of a stage that is not a plain sweep."""
    if isinstance(stage.form, Scan):
        return Step((number,), Way.SCAN, level(stage), _scan_lanes(stage, target))
    if isinstance(stage.form, Accumulate):
        return Step((number,), Way.SCATTER, level(stage), scatter_lanes(stage))
    product = recognise(stage, target, given.get(f"column.{number}"))
    if product is None:
        return None
    product = replace(product, dots=given.get(f"dots.{number}", product.dots))
    return Step((number,), Way.TILES, level(stage), product.column, product)


def _sweep(group: SharedLoop, stages: Stages) -> Step:
    depth = max(level(stages[n]) for n in group.stages)
    return Step(group.stages, Way.SWEEP, depth, group.vector)


def joined(group: SharedLoop, number: int, stages: Stages, target: Target) -> SharedLoop | None:
    """`group` with one more stage, where that is legal and no slower."""
    stage, members = stages[number], [stages[n] for n in group.stages]
    if len(members) >= MOST_STAGES or not sweeps_together(members, stage):
        return None
    vector, cost = lanes([*members, stage], target)
    if cost > (group.cost + lanes([stage], target)[1]) * 1.05:
        return None
    return SharedLoop((*group.stages, number), vector, cost)


def sweeps_together(members: Sequence[Stage], stage: Stage) -> bool:
    """Whether a stage may join the sweep of others: one box, and values at one coordinate."""
    ranks = {len(m.shape) for m in (*members, stage) if isinstance(m.form, Reduce)}
    one = len(ranks) <= 1 and all(space(m) == space(stage) for m in members)
    return one and all(meets(m, stage) for m in members)


def meets(earlier: Stage, later: Stage, block: bool = False) -> bool:
    """Whether `later` may run in the iteration of `earlier`: shared values at one coordinate.

    `block`: right after a block of `earlier`, which may then be a reduction.
    """
    rank = len(later.extents)
    for take in stage_reads(later):
        if take.source is earlier.target and not (
            (block or isinstance(earlier.form, Map)) and identical(take, rank)
        ):
            return False
        if take.source is earlier.store:
            return False
    if later.store is None:
        return True
    if later.store is earlier.store:
        return False
    at_home = isinstance(later.form, Map)
    return all(
        t.source is not later.store or (at_home and identical(t, rank))
        for t in stage_reads(earlier)
    )


def lanes(stages: Iterable[Stage], target: Target) -> tuple[int | None, float]:
    """The axis to run in lanes, and the cost of one element along it."""
    return _lanes(tuple(stages), target)


@lru_cache(maxsize=256)
def _lanes(stages: Stages, target: Target) -> tuple[int | None, float]:
    return _cheapest(stages, range(len(stages[0].extents)), target) or (None, 0.0)


def _cheapest(stages: Stages, axes: Iterable[int], target: Target) -> tuple[int, float] | None:
    """Of axes with several elements the cheapest in lanes, the last of equals, and its cost."""
    internal = {s.target for s in stages}
    reads = dict.fromkeys(t for s in stages for t in stage_reads(s) if t.source not in internal)
    forms = list(map(address, reads))
    wide = (axis for axis in axes if upper(stages[0].extents[axis]) > 1)
    costs = [(_lane_ns(stages, forms, axis, target), -axis) for axis in wide]
    cost, axis = min(costs, default=(0.0, 0))
    return (-axis, cost) if costs else None


def _lane_ns(stages: Stages, reads: list[Linear], axis: int, target: Target) -> float:
    """Nanoseconds of a vector of elements, but for arithmetic, when `axis` runs in lanes."""
    lead = stages[0]
    extent = upper(lead.extents[axis])
    width = target.lanes(lead.body.dtype.itemsize)
    unit = target.profile.tables["unit"]
    at = Axis(axis, lead.extents[axis])
    total = sum(_read_ns(form, at, width, unit) for form in reads)
    total += sum(_write_ns(s, axis, width, target, unit) for s in stages)
    waste = -(-extent // width) * width / extent
    return total * waste + (unit["enter"] + unit["turn"]) / extent


def _read_ns(form: Linear, at: Axis, width: int, unit: Rates) -> float:
    """A vector of elements: one value for all, whole vectors and what is picked from them, or one
    element at a time. Of rows that go on elsewhere the last vector of each is another one.
    """
    stride, run = stepped(form, at) or (None, 0)
    extent = upper(at.extent)
    apart = run < width or (run < extent and extent % run > 0)
    if stride is None or apart or not -1 <= stride <= MOST_PICKED:
        return width * unit["gather"]
    if stride == 0:
        return unit["load"] / width
    picked = stride - 1 if stride > 0 else 1
    ends = 1 + (run % width > 0) * width / run
    return (abs(stride) * unit["load"] + picked * unit["shuffle"]) * ends


def _write_ns(stage: Stage, axis: int, width: int, target: Target, unit: Rates) -> float:
    """Once for all terms, as long as a read; or lanes that are added up."""
    if axis in stage.over:
        added = log2(width) * (unit["shuffle"] + unit["chain"])
        return added / upper(stage.extents[axis])
    stride = row_major(upper(e) for e in stage.shape)[axis]
    each = width * unit["gather"]
    if stride == 1 or (target.masks and stride <= MOST_PICKED):
        each = stride * unit["load"] + (stride - 1) * unit["shuffle"]
    return each / volume(stage, stage.over)


def _scan_lanes(stage: Stage, target: Target) -> int | None:
    """The axis beside the scanned one with the best access, or None."""
    assert isinstance(stage.form, Scan)
    axes = (axis for axis in range(len(stage.shape)) if axis != stage.form.axis)
    best = _cheapest((stage,), axes, target)
    gather = target.lanes(stage.body.dtype.itemsize) * target.profile.rate("unit", "gather")
    return best[0] if best is not None and best[1] <= gather else None


def scatter_lanes(stage: Stage) -> int | None:
    """The plain axis with unit stride in the target, or None."""
    assert isinstance(stage.form, Accumulate)
    at = stage.form.at
    if not at or not isinstance(at[-1], Axis) or upper(at[-1].extent) <= 1:
        return None
    axis = at[-1].number
    return axis if sum(axis in index.axes for index in at) == 1 else None
