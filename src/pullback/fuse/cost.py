"""What a group costs as one launch: a roofline over its best outer axes and tile."""

from __future__ import annotations

import math
from collections.abc import Iterable

from pullback.config import Ints, Pair, frozen
from pullback.cost.roof import Demand, far_rate, tiles, times
from pullback.fuse.emit import Emitter
from pullback.fuse.groups import FINISH, Group, class_extent, is_axis, is_partial, odd, stored
from pullback.fuse.problem import Problem
from pullback.ir.expr import upper
from pullback.ir.target import Target


@frozen
class GroupCost:
    """Predicted nanoseconds, the chosen classes, scratch bytes a thread."""

    ns: float
    outer: Ints
    scratch: int


def estimate(problem: Problem, group: Group, target: Target) -> GroupCost:
    """The best schedule of a group: by a machine that prices kernels, or a roofline."""
    priced = target.profile.priced
    if priced is not None:
        whole = [
            (
                priced(Emitter(problem).kernel(group, tuple(group.classes[n] for n in outer), ())),
                outer,
            )
            for outer in outer_choices(problem, group)
        ]
        return GroupCost(*min(whole, key=lambda way: (way[0], -len(way[1]))), 0)
    demand = _measure(problem, group, target.l2)
    rate = far_rate(problem.footprint, target)
    budget = scratch_budget(problem, group, target)
    ways = []
    for outer in outer_choices(problem, group):
        for tile in tiles(demand.sizes, outer):
            for ns, scratch in times(demand, outer, tile, rate, target):
                ways.append(GroupCost(ns, outer, scratch))

    def rank(way: GroupCost) -> tuple[bool, float]:
        return way.scratch > budget, way.ns * (1 + 0.01 * min(1.0, way.scratch / budget))

    return min(ways, key=rank)


def scratch_budget(problem: Problem, group: Group, target: Target) -> int:
    """Bytes a tile may keep: more where a contraction reads an earlier stage."""
    mine = set(group.stages)
    for stage in group.stages:
        product = problem.products[stage] is not None
        if product and any(source in mine for source, _ in problem.reads[stage]):
            return max(target.scratch, target.l2 // 4)
    return target.scratch


def outer_choices(problem: Problem, group: Group) -> list[Ints]:
    """Class sets that agree: each alone, all that spread the same stages, and all that end nothing
    where some spread the terms of products.
    """
    kinds: dict[Ints, list[int]] = {}
    for number, one in enumerate(group.classes):
        kinds.setdefault(odd(problem, group, one), []).append(number)
    choices: dict[Ints, None] = dict.fromkeys((n,) for n in range(len(group.classes)))
    for numbers in (*kinds.values(), _mixed(problem, group, kinds)):
        chosen: list[int] = []
        for number in numbers:
            if not any(_collides(group, number, c) for c in chosen):
                chosen.append(number)
        if len(chosen) > 1:
            choices[tuple(chosen)] = None
    return list(choices) or [()]


def _mixed(problem: Problem, group: Group, kinds: dict[Ints, list[int]]) -> list[int]:
    """The classes in which no stage runs at the end, where some spread the terms of products."""
    if not any(problem.products[s] for spread in kinds for s in spread):
        return []
    classes = enumerate(group.classes)
    return [n for n, one in classes if FINISH not in one.values()]


def _collides(group: Group, a: int, b: int) -> bool:
    """Whether two classes bind one axis of a stage twice."""
    one = group.classes[a]
    two = group.classes[b]
    return any(is_axis(one[s]) and one[s] == two[s] for s in group.stages)


def _measure(problem: Problem, group: Group, l2: int) -> Demand:
    demand = Demand([upper(class_extent(problem, c)) for c in group.classes])
    outside = set(stored(problem, group))
    kept = _kept(problem, group)
    for s in group.stages:
        on = [c[s] for c in group.classes]
        mask = bits(a is not None for a in on)
        definition = problem.definition(s)
        last = len(definition.shape) - 1
        count = problem.sizes[s]
        size = definition.dtype.itemsize * count
        groups = problem.products[s]
        if groups is not None:
            rows = [_rows(problem, s, g, on) for g in (groups.rows, groups.columns)]
            demand.products.append((2 * problem.points[s], rows, mask))
        else:
            work = problem.points[s] * max(1, problem.flops[s])
            demand.vector[mask] += work
            if problem.is_map(s):
                demand.narrow.update({(n, mask): work for n, axis in enumerate(on) if axis == last})
        if s in outside:
            demand.written += size
            if size > l2:
                demand.cut(on, last, count)
        elif s in kept:
            demand.near[mask] += size
        spread = bits(is_partial(problem, s, one) for one in group.classes)
        if spread:
            demand.partial[spread, mask & ~spread] += size
    for source, uses in group.external.items():
        masks = [bits(c[s] is not None and c[s] in bind for c in group.classes) for s, bind in uses]
        count = problem.sizes[source]
        size = count * problem.values[source].dtype.itemsize
        demand.reads.append((size, min(masks, key=int.bit_count)))
        for s, bind in uses[:1]:
            if size > l2 and len(bind) > 1 and bind[-1] is not None:
                on = [c[s] for c in group.classes]
                demand.cut(on, bind[-1], count)
    return demand


def bits(flags: Iterable[bool]) -> int:
    """A number whose bits are `flags`, the lowest first."""
    return sum(1 << n for n, flag in enumerate(flags) if flag)


def _kept(problem: Problem, group: Group) -> set[int]:
    """Stages whose value a tile holds in scratch, not in registers."""
    mine = set(group.stages)
    kept: set[int] = set()
    for s in group.stages:
        size = problem.sizes[s] if problem.is_map(s) else None
        sources = {source for source, _ in problem.reads[s]}
        kept |= {n for n in sources & mine if problem.sizes[n] != size}
    return kept


def _rows(problem: Problem, stage: int, axes: Ints, on: list[int | None]) -> Pair:
    """The classes that cut a contraction's rows, as a mask, and the rows of the other axes."""
    extents = problem.definition(stage).extents
    mask = bits(a in axes for a in on)
    return mask, math.prod(upper(extents[a]) for a in axes if a not in on)
