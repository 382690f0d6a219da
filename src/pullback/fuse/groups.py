"""Groups: nodes that run in one launch, with their candidate outer axes.

A *class* is one candidate outer axis: it gives every stage its own axis, None where the stage does
not have it (each tile computes it again), or FINISH where it runs once after the partials of that
class are combined. Any set of classes that agree is legal.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from typing import TypeGuard

from pullback.config import Ints, entity, frozen
from pullback.cost.facts import is_identity, split_axes
from pullback.errors import InvalidIR
from pullback.fuse.inline import FINISH_POINTS, sums_up
from pullback.fuse.problem import Bind, Problem
from pullback.ir.dtype import float32
from pullback.ir.expr import Extent, upper
from pullback.ir.graph import Accumulate, Keep
from pullback.ir.kernel import plain_places


class Late(IntEnum):
    """Where a stage runs that has no axis of a class, and is not computed again in each tile."""

    FINISH = -1


FINISH = Late.FINISH

Class = dict[int, int | None]


def is_axis(place: int | None) -> TypeGuard[int]:
    """Whether a class gives a stage an axis of its own."""
    return place is not None and place != FINISH


@entity
class Group:
    """`nodes` and `stages` by rank; `external`: source -> reads by (stage, bind).

    A group with `parts` is one launch of groups that run side by side.
    """

    nodes: Ints
    stages: Ints
    classes: tuple[Class, ...]
    external: dict[int, tuple[tuple[int, Bind], ...]]
    parts: tuple[Group, ...] = ()

    @property
    def pieces(self) -> tuple[Group, ...]:
        """The parts, or the group itself."""
        return self.parts or (self,)


def stored(problem: Problem, group: Group) -> list[int]:
    """Nodes of a group that need a buffer: assigned, marked, scattered into, or read elsewhere."""
    mine = set(group.nodes)
    return [
        n
        for n in group.nodes
        if n in problem.target
        or problem.definition(n).keep is Keep.ALWAYS
        or isinstance(problem.form(n), Accumulate)
        or not mine.issuperset(problem.readers.get(n, ()))
    ]


def single(problem: Problem, node: int) -> Group:
    """The group of one node: its own axes, and those of sums that may be cut into chunks."""
    stages = problem.closure[node]
    seeds = [(node, a) for a in split_axes(problem.definition(node), problem.form(node))]
    product = problem.products[node]
    if product is not None and product.tall:
        seeds = [(node, a) for a in problem.reduced[node]]
    for stage in stages:
        if _may_be_partial(problem, node, stage) or _shares(problem, node, stage):
            seeds += [(stage, a) for a in problem.reduced[stage]]
    spread = (
        _spread(problem, node, stages, seed, axis)
        for seed, axis in seeds
        if upper(problem.definition(seed).extents[axis]) > 1
    )
    classes = tuple(c for c in spread if c is not None)
    return Group((node,), stages, classes, _external(problem, (node,), stages))


def _may_be_partial(problem: Problem, node: int, stage: int) -> bool:
    """Whether a reduction may be summed per chunk: no product, what follows is tiny, and the sums
    of all tasks fit the first-level cache.
    """
    if problem.is_map(stage) or problem.products[stage] is not None:
        return False
    machine = problem.scene.machine
    if stage != node and not is_tiny(problem, (node,)):
        return False
    never = problem.definition(stage).unstored
    sums = problem.sizes[stage] * float32.itemsize * machine.rate("launch", "partial_tasks")
    return not never and sums <= machine.rate("whole", "first_level")


def _shares(problem: Problem, node: int, stage: int) -> bool:
    """Whether a node is a product over the result of another that is computed again for it: summed
    per tile, it shares that with products over its other axes.

    ``s[i, j] = sum[e] q[i, e] k[j, e];  dq[i, e] = sum[j] s[i, j] k[j, e]``: also over tiles of j
    """
    if stage != node or problem.products[node] is None or not problem.scene.machine.packs:
        return False
    again = problem.closure[node][:-1]
    return any(problem.definition(s).unstored and problem.products[s] is not None for s in again)


def _spread(problem: Problem, node: int, stages: Ints, seed: int, axis: int) -> Class | None:
    """One axis of a stage carried down to those it needs; what needs a partial sum is last."""
    partial = axis in problem.reduced[seed]
    last = _needs(problem, stages, seed) if partial else set()
    wanted: dict[int, list[int | None]] = {seed: [axis]}
    axes: Class = {}
    target = problem.target.get(node)
    for stage in reversed(stages):
        hopes = [FINISH] if stage in last else wanted[stage]
        mine = hopes[0] if all(h == hopes[0] for h in hopes) else None
        if mine is None and FINISH in hopes:
            return None
        axes[stage] = mine
        for source, bind in problem.reads[stage]:
            moved = mine is None or (mine != FINISH and bind[axis : axis + 1] != (mine,))
            if source == target and not partial and moved:
                return None
            if source in stages and source not in last and source != seed:
                wanted.setdefault(source, []).append(_carried(problem, source, bind, mine))
    return axes


def _needs(problem: Problem, stages: Ints, seed: int) -> set[int]:
    """Stages that read `seed`, directly or not."""
    later = {seed}
    for stage in stages:
        if any(source in later for source, _ in problem.reads[stage]):
            later.add(stage)
    return later - {seed}


def _carried(problem: Problem, source: int, bind: Bind, mine: int | None) -> int | None:
    """The axis of `source` that a reader's axis runs along."""
    if not is_axis(mine):
        return mine
    at = bind.index(mine) if mine in bind else None
    return at if at in split_axes(problem.definition(source), problem.form(source)) else None


def _external(
    problem: Problem, nodes: Ints, stages: Ints
) -> dict[int, tuple[tuple[int, Bind], ...]]:
    reads: dict[int, list[tuple[int, Bind]]] = {}
    count = len(problem.reads)
    for stage in stages:
        for source, bind in problem.reads[stage]:
            if source >= count or (problem.is_node[source] and source not in nodes):
                reads.setdefault(source, []).append((stage, bind))
    return {source: tuple(uses) for source, uses in reads.items()}


@frozen
class Edge:
    """`stage` reads what `maker` makes or overwrites, at `bind`; `forward`: maker is in `a`."""

    maker: int
    stage: int
    bind: Bind
    forward: bool
    overwrites: bool


def target_place(problem: Problem, stage: int, axis: int | None) -> int | None:
    """The axis of the result that a stage's own axis is; an accumulating write has a domain."""
    form = problem.form(stage)
    if not is_axis(axis) or not isinstance(form, Accumulate):
        return axis
    return plain_places(form, problem.definition(stage).shape).get(axis)


def merge(problem: Problem, a: Group, b: Group, why: list[Edge]) -> Group | None:
    """One group out of two: only the classes survive on which all cross reads agree.

    Where none does, only tiny groups may still join: they run as one tile.
    """
    edges = _edges(problem, a, b)
    clash = next((e for e in edges if _never_agrees(problem, e)), None)
    if clash is not None:
        why.append(clash)
        return None
    shared = [s for s in a.stages if s in b.stages]
    classes: list[Class] = []
    for ca, cb in _pairs(problem, a, b, bool(edges)):
        if any(ca[s] != cb[s] for s in shared):
            continue
        failed = next((e for e in edges if not _agrees(problem, e, *_sides(e, ca, cb))), None)
        if failed is not None:
            why.append(failed)
        elif (
            any(_ties(e, *_sides(e, ca, cb)) for e in edges)
            or any(is_axis(ca[s]) for s in shared)
            or _linked(a, b, ca, cb)
        ):
            classes.append({**ca, **cb})
    if not classes and not (edges and is_tiny(problem, a.stages) and is_tiny(problem, b.stages)):
        return None
    nodes = tuple(sorted(a.nodes + b.nodes))
    stages = tuple(sorted({*a.stages, *b.stages}))
    return Group(nodes, stages, tuple(classes), _external(problem, nodes, stages))


def _edges(problem: Problem, a: Group, b: Group) -> list[Edge]:
    edges = []
    for one, two, forward in ((a, b, True), (b, a, False)):
        for maker in one.nodes:
            for stage, bind in two.external.get(maker, ()):
                edges.append(Edge(maker, stage, bind, forward, False))
            target = problem.target.get(maker, -1)
            for stage, bind in two.external.get(target, ()):
                edges.append(Edge(maker, stage, bind, forward, True))
    return edges


def _agrees(problem: Problem, edge: Edge, maker: Class, reader: Class) -> bool:
    """Whether one read stays at the maker's coordinates in a class."""
    axis = maker[edge.maker]
    read = reader[edge.stage]
    partial = axis in problem.reduced[edge.maker]
    made = target_place(problem, edge.maker, axis)
    if partial or made == FINISH:
        late = read == FINISH
        return made == FINISH or not late if edge.overwrites else late
    if read is None or made is None or not (edge.overwrites or read >= 0):
        return False
    return edge.bind[made] == read


def _never_agrees(problem: Problem, edge: Edge) -> bool:
    """Whether a read inside a tile is never safe, whatever the outer axes.

    A map over the same box as an overwrite may share its loop, so it must read the very element.
    What is scattered into is whole in a tile of its plain axes, but such columns of all rows are
    slow to sweep: only a sum of them pays (20,000 x 64: with the update 23 ms, apart 2.8 ms).
    """
    maker = problem.definition(edge.maker)
    if isinstance(problem.form(edge.maker), Accumulate):
        return sums_up(problem.scene, problem.definition(edge.stage)) is not maker
    if not edge.overwrites or not problem.is_map(edge.stage):
        return False
    same_box = problem.definition(edge.stage).extents == maker.extents
    return same_box and not is_identity(edge.bind, maker.shape)


def _ties(edge: Edge, maker: Class, reader: Class) -> bool:
    """Whether an agreed read is a reason to share the axis: not where both run at the end."""
    return maker[edge.maker] != FINISH and not (edge.overwrites and reader[edge.stage] == FINISH)


def class_extent(problem: Problem, one: Class) -> Extent:
    """Extent of a candidate outer axis."""
    for stage, axis in one.items():
        if is_axis(axis):
            return problem.definition(stage).extents[axis]
    raise InvalidIR("a class without an axis")


def is_tiny(problem: Problem, stages: Ints) -> bool:
    """Whether stages are so little work that they may run on one thread."""
    return sum(problem.points[s] for s in stages) <= FINISH_POINTS


def _sides(edge: Edge, ca: Class, cb: Class) -> tuple[Class, Class]:
    return (ca, cb) if edge.forward else (cb, ca)


def _pairs(problem: Problem, a: Group, b: Group, dependent: bool) -> Iterator[tuple[Class, Class]]:
    """Classes to try together; a small group may also run once at the end."""
    sizes = [(class_extent(problem, cb), cb) for cb in b.classes]
    for ca in a.classes:
        extent = class_extent(problem, ca)
        yield from ((ca, cb) for size, cb in sizes if size == extent)
    last: Class
    if dependent and is_tiny(problem, b.stages):
        last = dict.fromkeys(b.stages, FINISH)
        yield from ((ca, last) for ca in a.classes if odd(problem, a, ca))
    if dependent and is_tiny(problem, a.stages):
        last = dict.fromkeys(a.stages, FINISH)
        yield from ((last, cb) for cb in b.classes if odd(problem, b, cb))


def odd(problem: Problem, group: Group, one: Class) -> Ints:
    """The stages that a class runs once at the end, or whose reduced axis it spreads."""
    return tuple(s for s in group.stages if one[s] == FINISH or is_partial(problem, s, one))


def is_partial(problem: Problem, stage: int, one: Class) -> bool:
    """Whether a class spreads a stage's reduced axis over tiles."""
    return one[stage] in problem.reduced[stage]


def _linked(a: Group, b: Group, ca: Class, cb: Class) -> bool:
    """Whether both read one value at the same outer coordinate: a reason to join, not a duty."""
    for source, uses in a.external.items():
        for other, theirs in b.external.get(source, ()):
            at = cb[other]
            if not is_axis(at) or at not in theirs:
                continue
            place = theirs.index(at)
            if any(is_axis(bind[place]) and bind[place] == ca[s] for s, bind in uses):
                return True
    return False
