"""Indices that are data, rewritten before fusion.

    y[p, c] = sum[k](inside(p, k) ? weight(p, k) * x[c, z(p, k), r(p, k)] : 0)
    -> place[p, k] = inside(p, k) ? z(p, k) * R + r(p, k) : -1
       rows[q, c] = x[c, q // R, q % R]
       y[p, c] = sum[k](place[p, k] >= 0 ? weight[p, k] * rows[place[p, k], c] : 0)

What does not depend on the axis that the indices leave alone is computed once and kept, and that
axis lies innermost. An adjoint is written to rows and turned back; a sum along the axis is taken
before what does not depend on it. Each where it costs less.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from math import prod

from pullback.algebra.bounds import Prover, bounds
from pullback.backends.nests.orders import ordered
from pullback.backends.nests.segments import (
    Known,
    apart,
    is_data,
    presummed,
    segmented,
    selected,
    whole,
)
from pullback.backends.nests.spans import span_winners, spanned
from pullback.backends.nests.views import Prices, arithmetic, kept, with_views
from pullback.cost.facts import elements, points
from pullback.ir import expr as E
from pullback.ir.dtype import int32, int64
from pullback.ir.expr import Axis, Expr, If, Take, takes
from pullback.ir.graph import (
    SUM,
    Accumulate,
    Definition,
    Form,
    Graph,
    Keep,
    Map,
    Moves,
    Reduce,
    Value,
    read,
    replace_reads,
    substitute,
)
from pullback.machine.machine import Machine
from pullback.simplify.graph import Sources, simplify_graph
from pullback.simplify.guards import conjuncts, every, reads_data
from pullback.simplify.product import Quotient
from pullback.simplify.rules import simplify

SMALL = 8  # of an axis that shares lanes with others
LANES = 4  # elements along an axis from which it is worth being the innermost


def with_places(graph: Graph, machine: Machine) -> Graph:
    """`graph` with what is read and written at data in rows, by the prices of [places] of a
    machine; itself where nothing is.
    """
    ns = machine.tables["places"]
    graph = with_views(graph, ns)
    order = graph.definitions
    if not any(map(is_data, order)):
        return graph
    finished = partial(_finished, ns)
    sources, known, changed = Sources({}), Known(), False
    for d in order:
        own = sources.of(d)
        fresh = segmented(own, known, finished)
        if fresh is own:
            fresh = span_winners(own, known, finished)
        if fresh is own:
            spans = spanned(own)
            fresh = finished(spans)
            if spans is not own:
                known[fresh] = own
        changed |= fresh is not own
        sources.mapping[d] = fresh
    rewritten = simplify_graph(graph.of(sources.mapping)) if changed else graph
    stored = _with_factors(ns, rewritten)
    wide = _with_lanes(stored)
    return stored if wide is stored else simplify_graph(wide)


def _with_factors(ns: Prices, graph: Graph) -> Graph:
    """`graph` with the maps stored whose reads at data a sum of products would repeat."""
    order = graph.definitions
    again = {source for d in order for source in _read_again(ns, d)}
    if not again:
        return graph
    sources = Sources({})
    for d in order:
        own = sources.of(d)
        sources.mapping[d] = replace(own, keep=Keep.ALWAYS) if d in again else own
    return graph.of(sources.mapping)


def _finished(ns: Prices, d: Definition) -> Definition:
    again = partial(_finished, ns)
    summed = apart(presummed(spanned(selected(d)), again), again)
    return in_rows(ns, ordered(ns, _shared(ns, kept(ns, summed))))


def _shared(ns: Prices, d: Definition) -> Definition:
    """A sum of products whose factors that read at data are kept, where axes are not theirs.

    ``w[o, c] = sum[e](d[e, o] * x[src[e], c])  ->  u[e, c] = x[src[e], c]; .. d[e, o] * u[e, c]``
    """
    if not isinstance(d.form, Reduce) or d.form.combiner is not SUM or not whole(d):
        return d
    if not isinstance(d.body, E.Mul) or not d.dtype.is_float:
        return d
    kept: dict[Expr, Expr] = {}
    for factor in Quotient.of(d.body).above:
        own = _by_place(factor)
        if not _repeats(ns, d, factor, [t for t in takes((factor,)) if t.is_data]):
            continue
        shape = tuple(d.extents[n] for n in own)
        moves: Moves = {n: Axis(k, d.extents[n]) for k, n in enumerate(own)}
        body = simplify(substitute(factor, moves))
        name = f"{d.name}_factor"
        stored = Definition(name, shape, body, keep=Keep.ALWAYS, origin=d.origin)
        kept[factor] = read(_finished(ns, stored), *(d.axes[n] for n in own))
    if not kept:
        return d
    quotient = Quotient.of(d.body)
    above = tuple(kept.get(f, f) for f in quotient.above)
    return replace(d, body=simplify(replace(quotient, above=above).expression()))


def _repeats(ns: Prices, d: Definition, factor: Expr, gathers: list[Take]) -> bool:
    """Whether reads at data in a factor are better made once than at every point of a sum."""
    count = prod(E.upper(d.extents[n]) for n in factor.axes)
    again = points(d) // max(count, 1)
    saved = len(gathers) * (again - 1) * ns["neighbour"] - ns["kept"]
    return bool(gathers) and count * saved >= ns["kernel"]


def _read_again(ns: Prices, d: Definition) -> Iterator[Definition]:
    """The maps among the factors of a sum of products whose own reads at data it would repeat."""
    if not isinstance(d.form, Reduce) or not isinstance(d.body, E.Mul) or not whole(d):
        return
    for factor in Quotient.of(d.body).above:
        source = factor.source if isinstance(factor, Take) and not factor.is_data else None
        if not isinstance(source, Definition) or not isinstance(source.form, Map):
            continue
        if source.keep is Keep.AUTO and _repeats(ns, d, factor, list(_gathered(source))):
            yield source


def _gathered(d: Definition) -> Iterator[Take]:
    """Reads at data of a map, and of maps that may be written into it, each once."""
    pending, seen = [d], {d}
    while pending:
        for take in pending.pop().reads:
            source = take.source
            if take.is_data:
                yield take
            elif isinstance(source, Definition) and source not in seen and _written_in(source):
                seen.add(source)
                pending.append(source)


def _written_in(d: Definition) -> bool:
    """Whether a map may be written into who reads it."""
    return isinstance(d.form, Map) and d.keep is not Keep.ALWAYS


def _by_place(e: Expr) -> list[int]:
    """The axes of `e`: those that say where data is read first, so that lanes are the others."""
    named = frozenset[int]().union(
        *(i.axes for t in takes((e,)) for i in t.indices if reads_data(i))
    )
    return sorted(e.axes, key=lambda n: (n not in named, n))


def in_rows(ns: Prices, d: Definition) -> Definition:
    """`d` with the axis that its indices leave alone innermost, in lanes."""
    if not whole(d) or not is_data(d) or d.unstored:
        return d
    lane = _lane(d)
    return d if lane is None else _Rows(ns, d, lane).made()


def _lane(d: Definition) -> Axis | None:
    """The longest axis that stands alone in one place of what is read, or written, at data."""
    wide = [i.at for i in (d.form,) if isinstance(i, Accumulate) and any(map(reads_data, i.at))]
    wide += [t.indices for t in d.reads if t.is_data]
    alone: dict[Axis, None] = {}
    for indices in wide:
        alone.update({i: None for i in indices if isinstance(i, Axis) and i.extent != 1})
    free = [a for a in alone if all(_stands_alone(a, indices) for indices in wide)]
    free = [a for a in free if E.upper(a.extent) >= LANES]
    return max(free, key=lambda a: E.upper(a.extent), default=None)


def _stands_alone(axis: Axis, indices: tuple[Expr, ...]) -> bool:
    """Whether an axis is one index, and nowhere in the others."""
    uses = [i for i in indices if axis.number in i.axes]
    return not uses or (len(uses) == 1 and uses[0] is axis)


class _Rows:
    """One definition, rewritten around an axis that runs in lanes."""

    def __init__(self, ns: Prices, d: Definition, lane: Axis) -> None:
        self.ns = ns
        self.d = d
        self.lane = lane
        self.nothing: Expr = E.const(0, d.dtype)
        if isinstance(d.form, Reduce | Accumulate):
            self.nothing = d.form.combiner.identity(d.dtype)
        body, conditions = d.body, list[Expr]()
        while isinstance(body, If) and body.otherwise is self.nothing:
            own = conjuncts(body.condition)
            if any(lane.number in c.axes for c in own):
                break
            conditions += own
            body = body.then
        self.guards = tuple(dict.fromkeys(conditions))
        self.body = body
        self.prover = Prover(self.guards)
        self.condition = every(self.guards)
        self.guard = self.condition  # what stands for them: that a place is one
        self.changed = False

    def made(self) -> Definition:
        d, form = self.d, self.d.form
        at = self._target() if isinstance(form, Accumulate) else None
        moved = {t: self._gather(t) for t in self._gathers()}
        self._keep_guard()
        body = replace_reads(self.body, moved.get) if moved else self.body
        if isinstance(form, Reduce) and self.lane.number >= len(d.shape):
            apart = self._summed(form, body)
            if apart is not None:
                return apart
        if not self.changed:
            return d
        body = self._with_kept(body)
        if at is None:
            return replace(d, body=simplify(self._guarded(body)))
        return self._turned_back(at, self._guarded(body))

    def _guarded(self, body: Expr) -> Expr:
        return body if self.guard is None else If(self.guard, body, self.nothing)

    def _gathers(self) -> list[Take]:
        """Reads at data that the axis is an index of."""
        reads = [t for t in takes((self.body,)) if t.is_data]
        return [t for t in reads if any(i is self.lane for i in t.indices)]

    def _kept(self, e: Expr, name: str) -> Take:
        """An expression as a definition over the axes that it depends on, which reaches memory."""
        extents = self.d.extents
        small = [n for n in sorted(e.axes) if E.upper(extents[n]) <= SMALL]
        small = small if len(small) > 1 else []
        large = [n for n in sorted(e.axes) if n not in small]
        own: Moves = {n: Axis(k, extents[n]) for k, n in enumerate(large)}
        shape = [extents[n] for n in large]
        at: list[Expr] = [Axis(n, extents[n]) for n in large]
        if small:
            shape.append(prod(E.upper(extents[n]) for n in small))
            whole = Axis(len(large), shape[-1])
            flat: Expr = E.index(0)
            step = E.upper(shape[-1])
            for n in small:
                size = E.upper(extents[n])
                step //= size
                own[n] = E.Mod(E.FloorDiv(whole, E.index(step)), E.index(size))
                flat = E.Add(flat, E.Mul(Axis(n, size), E.index(step)))
            at.append(simplify(flat))
        body = simplify(substitute(e, own))
        name = f"{self.d.name}_{name}"
        stored = Definition(name, tuple(shape), body, keep=Keep.ALWAYS, origin=self.d.origin)
        self.changed = True
        return read(stored, *at)

    def _pays(self, e: Expr, most: int = 1) -> bool:
        """Whether an expression of places is better kept than made `most` times a point."""
        count = prod(E.upper(self.d.extents[n]) for n in e.axes)
        saved = arithmetic(e) * most * self.ns["operation"] - self.ns["kept"]
        return bool(e.axes) and count * saved > self.ns["kernel"]

    def _flat(self, indices: tuple[Expr, ...], shape: tuple[E.Extent, ...]) -> Expr | None:
        """Places but the lane's as one number, where all are proved to lie inside."""
        total: Expr = E.index(0)
        rows = 1
        for index, extent in zip(indices, shape, strict=True):
            if index is self.lane:
                continue
            if not self.prover.inside(index, extent):
                return None
            total = E.Add(E.Mul(total, E.index(E.upper(extent))), index)
            rows *= E.upper(extent)
        fits = rows <= int(E.highest(int32).value)
        return simplify(total) if fits else None

    def _place(self, flat: Expr) -> Expr:
        """A row as an index: kept, -1 where the guard does not hold."""
        if self.condition is None:
            return (
                E.Cast(self._kept(E.Cast(flat, int32), "row"), int64) if self._pays(flat) else flat
            )
        row = If(self.condition, flat, E.index(-1))
        if not self._pays(row):
            return flat
        at = E.Cast(self._kept(E.Cast(row, int32), "row"), int64)
        self.guard = E.Less(E.index(-1), at)
        return at

    def _gather(self, take: Take) -> Expr:
        """A read at data, from rows if those pay."""
        shape = take.source.shape
        last = take.indices[-1] is self.lane
        if not all(isinstance(e, int) for e in shape):
            return take
        flat = None if last else self._flat(take.indices, shape)
        if flat is None and not last and self._worth(shape):
            return self._turned(take)
        if flat is None:
            indices = tuple(self._index(i, e) for i, e in take.places)
            return Take(take.source, indices).placed(take.origin)
        if not self._worth(shape):
            return take
        place = next(n for n, i in enumerate(take.indices) if i is self.lane)
        rest = [n for n in range(len(shape)) if n != place]
        count = prod(E.upper(shape[n]) for n in rest)
        axes = E.axes((count, shape[place]))
        body = read(take.source, *_unflat(axes[0], axes[1], place, shape))
        rows = Definition(
            f"{take.source.name}_rows",
            (count, shape[place]),
            simplify(body),
            keep=Keep.ALWAYS,
            origin=take.source.origin,
        )
        self.changed = True
        return read(rows, self._place(flat), self.lane).placed(take.origin)

    def _turned(self, take: Take) -> Expr:
        """A read at places that may lie outside, of a copy whose last axis the lane is."""
        place = next(n for n, i in enumerate(take.indices) if i is self.lane)
        order = [*(n for n in range(len(take.indices)) if n != place), place]
        self.changed = True
        places = list(take.places)
        indices = tuple(self._index(*places[n]) for n in order)
        return Take(_permuted(take.source, order), indices).placed(take.origin)

    def _worth(self, shape: tuple[E.Extent, ...]) -> bool:
        """Whether to turn an axis of so many elements costs less than to read them alone."""
        turned = elements(shape) * self.ns["turned"] + self.ns["kernel"]
        return points(self.d) * self.ns["alone"] > turned

    def _index(self, index: Expr, extent: E.Extent) -> Expr:
        """An index that is data by arithmetic, kept."""
        if not reads_data(index) or isinstance(index, Take) or not self._pays(index):
            return index
        inside = bool(self.prover.inside(index, extent))
        lo, hi = bounds(index)
        least, most = int32.range()
        kind = int32 if inside or (least <= lo and hi <= most) else int64
        if inside and self.condition is not None:
            index = If(self.condition, index, E.index(0))
        kept = self._kept(index if kind is int64 else E.Cast(index, kind), "place")
        return kept if kind is int64 else E.Cast(kept, int64)

    def _keep_guard(self) -> None:
        """The guard as data, where no place stands for it."""
        own = self.condition
        plain = own is not None and self.guard is own and self.changed and reads_data(own)
        if plain and own is not None and self._pays(own):
            self.guard = self._kept(own, "inside")

    def _with_kept(self, body: Expr) -> Expr:
        """`body` with the factors that do not depend on the lane kept."""
        parts = Quotient.of(body).split(frozenset((self.lane.number,)))
        outside, inside = parts[0].expression(), parts[1].expression()
        if not self._pays(outside) or not outside.dtype.is_float:
            return body
        if self.guard is not None:
            outside = If(self.guard, outside, E.const(0, outside.dtype))
        return E.Mul(inside, self._kept(outside, "weight"))

    def _summed(self, form: Reduce, body: Expr) -> Definition | None:
        """A sum along the lane, before what does not depend on it."""
        if form.combiner is not SUM or not self.d.dtype.is_float:
            return None
        along, rest = _parted(body, self.lane.number)
        over = [n for n in range(len(self.d.shape), len(self.d.extents)) if n != self.lane.number]
        if not over or not rest or along is None:
            return None
        kept = [*range(len(self.d.shape)), *over]
        moves: Moves = {n: Axis(k, self.d.extents[n]) for k, n in enumerate(kept)}
        moves[self.lane.number] = Axis(len(kept), self.lane.extent)
        shape = tuple(self.d.extents[n] for n in kept)
        inner = Definition(
            f"{self.d.name}_along",
            shape,
            simplify(substitute(self._guarded(along), moves)),
            Reduce(SUM, (self.lane.extent,)),
            keep=Keep.ALWAYS,
            origin=self.d.origin,
        )
        total: Expr = read(inner, *E.axes(shape))
        for factor in rest:
            total = E.Mul(total, substitute(factor, moves))
        if self.guard is not None:
            total = If(substitute(self.guard, moves), total, self.nothing)
        outer: Form = Reduce(SUM, tuple(self.d.extents[n] for n in over))
        return replace(self.d, body=simplify(total), form=outer)

    def _target(self) -> tuple[Expr, ...] | None:
        """Where an accumulating write goes: a row and a lane; None: as it is."""
        form = self.d.form
        assert isinstance(form, Accumulate)
        if form.at[-1] is self.lane or not any(i is self.lane for i in form.at):
            return None
        at = tuple(self._under(i) for i in form.at)
        if not self._worth(self.d.shape):
            return None
        self.changed = True
        flat = self._flat(at, self.d.shape)
        if flat is None:
            return form.at
        place = self._place(flat)
        if self.guard is not None:
            place = If(self.guard, place, E.index(0))
        return place, self.lane

    def _under(self, index: Expr) -> Expr:
        """An index where the guards hold."""
        if isinstance(index, If) and set(conjuncts(index.condition)) <= set(self.guards):
            return index.then
        return index

    def _turned_back(self, at: tuple[Expr, ...], body: Expr) -> Definition:
        """The write to rows, and the result as a view of them."""
        d, form = self.d, self.d.form
        assert isinstance(form, Accumulate)
        place = next(n for n, i in enumerate(form.at) if i is self.lane)
        rest = [n for n in range(len(d.shape)) if n != place]
        if at is form.at:  # places that may lie outside: rows of several axes
            order = [*rest, place]
            home = replace(form, at=tuple(form.at[n] for n in order))
            shape = tuple(d.shape[n] for n in order)
            rows = replace(d, shape=shape, body=simplify(body), form=home)
            return replace(d, body=read(rows, *(E.axes(d.shape)[n] for n in order)), form=Map())
        count = prod(E.upper(d.shape[n]) for n in rest)
        rows = Definition(
            f"{d.name}_rows",
            (count, d.shape[place]),
            simplify(body),
            Accumulate(form.combiner, form.domain, at),
            origin=d.origin,
        )
        axes = E.axes(d.shape)
        flat: Expr = E.index(0)
        for n in rest:
            flat = E.Add(E.Mul(flat, E.index(E.upper(d.shape[n]))), axes[n])
        return replace(d, body=simplify(read(rows, flat, axes[place])), form=Map())


def _permuted(source: Value, order: Sequence[int]) -> Definition:
    """A copy with its axes in another order; of one name, which checks tell."""
    shape = tuple(source.shape[n] for n in order)
    axes = E.axes(shape)
    indices = [axes[order.index(n)] for n in range(len(order))]
    return Definition(
        source.name, shape, read(source, *indices), keep=Keep.ALWAYS, origin=source.origin
    )


def _with_lanes(graph: Graph) -> Graph:
    """`graph` with what is read or written beside data so that its last axis is one for lanes."""
    order = graph.definitions
    results = {value for _, value in graph.assigns}
    beside = {source for d in order if is_data(d) for source in (d, *d.sources)}
    sources, changed = Sources({}), False
    for d in order:
        own = sources.of(d)
        lane = _wide_axis(d) if d in beside and d not in results else None
        if lane is not None:
            axes = [n for n in range(len(d.shape)) if n != lane] + [lane]
            shape = tuple(d.shape[n] for n in axes)
            moves: Moves = {n: Axis(k, d.shape[n]) for k, n in enumerate(axes)}
            body = simplify(substitute(own.body, moves))
            turned = replace(own, shape=shape, body=body)
            seen = read(turned, *(d.axes[n] for n in axes))
            own = replace(own, body=seen, form=Map(), keep=Keep.AUTO)
        changed |= lane is not None
        sources.mapping[d] = own
    return graph.of(sources.mapping) if changed else graph


def _wide_axis(d: Definition) -> int | None:
    """The axis for lanes, where the last one is too short for them."""
    if not whole(d) or not isinstance(d.form, Map | Reduce) or not d.shape:
        return None
    if E.upper(d.shape[-1]) >= LANES:
        return None
    wide = [n for n in range(1, len(d.shape)) if E.upper(d.shape[n]) >= 2 * LANES]
    return wide[-1] if wide else None


def _unflat(row: Expr, lane: Expr, place: int, shape: tuple[E.Extent, ...]) -> list[Expr]:
    """The indices of a row and a lane in the source."""
    indices: list[Expr] = [lane] * len(shape)
    for n in reversed(range(len(shape))):
        if n == place:
            continue
        size = E.index(E.upper(shape[n]))
        indices[n] = E.Mod(row, size)
        row = E.FloorDiv(row, size)
    return indices


def _parted(e: Expr, lane: int) -> tuple[Expr | None, list[Expr]]:
    """``e = along * product of rest``: what depends on the lane, and factors that do not.

    A choice by what does not, between equal things along it, is one between the factors.
    """
    if lane not in e.axes:
        return None, [e]
    if isinstance(e, E.Mul):
        left, right = _parted(e.left, lane), _parted(e.right, lane)
        along = right[0] if left[0] is None else left[0]
        if left[0] is not None and right[0] is not None:
            along = E.Mul(*sorted((left[0], right[0]), key=_place))
        return along, [*left[1], *right[1]]
    if isinstance(e, If) and lane not in e.condition.axes:
        then, other = _parted(e.then, lane), _parted(e.otherwise, lane)
        if then[0] is not None and then[0] is other[0]:
            one = E.const(1, e.dtype)
            return then[0], [If(e.condition, _product(then[1], one), _product(other[1], one))]
    return e, []


def _place(e: Expr) -> tuple[int, str]:
    """An order of factors, so that equal products are one."""
    return len(e.axes), repr(e) if isinstance(e, Take) else ""


def _product(parts: Iterable[Expr], one: Expr) -> Expr:
    total: Expr | None = None
    for part in parts:
        total = part if total is None else E.Mul(total, part)
    return one if total is None else total
