"""Reductions over what belongs to a place that is data, as accumulating writes.

    y[n] = max[e](dst[e] == n ? m[e] : -inf)    ->    y[dst[e]] max= m[e]
    s[e] = sum[n](dst[e] == n ? x[n] : 0)    ->    s[e] = x[dst[e]]
    t[dst[e], c] sum= m[e, o] * w[o, c]    ->    s[e, c] = sum[o](..); t[dst[e], c] sum= s[e, c]

What looks at every point for every place looks at each once. A place outside is nobody's at the
left, so nothing is written there, and read, at the right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod

from pullback.algebra.bounds import DIVIDED, Prover
from pullback.config import frozen
from pullback.ir import expr as E
from pullback.ir.dtype import int32, int64
from pullback.ir.expr import Axis, Expr, If, takes
from pullback.ir.graph import (
    MIN,
    SUM,
    Accumulate,
    Definition,
    Map,
    Moves,
    Reduce,
    Value,
    read,
    substitute,
)
from pullback.ir.node import walk
from pullback.simplify.guards import conjuncts, every, reads_data
from pullback.simplify.product import Quotient
from pullback.simplify.rules import simplify

# A point of an accumulating write takes as long as so many of a reduction, which run in lanes:
# 4096 x 32 into 512 rows 0.2 ms, looked through 2.1e9 points a second (Zen 3, one thread).
POINTS = 16


Known = dict[Value, Definition]
Finish = Callable[[Definition], Definition]


@frozen
class Grouped:
    """``body = (key == axis and rest) ? value : identity``"""

    axis: Axis
    key: Expr
    rest: tuple[Expr, ...]
    value: Expr
    nothing: Expr


def whole(d: Definition) -> bool:
    """Whether every extent is a number, and none is 0."""
    return all(isinstance(e, int) and e > 0 for e in (*d.extents, *d.shape))


def grouped(d: Definition) -> Grouped | None:
    """A reduction of what has the key of its place; None where it is none, or costs less."""
    form, body = d.form, d.body
    if not isinstance(form, Reduce) or not isinstance(body, If):
        return None
    nothing = form.combiner.identity(body.dtype)
    if body.otherwise is not nothing:
        return None
    conditions, value = guarded(body, nothing)
    for condition in conditions:
        for key, axis in _keys(condition):
            if axis.number >= len(d.shape) or axis.number in key.axes or not reads_data(key):
                continue
            if E.upper(axis.extent) < POINTS or axis.extent != d.shape[axis.number]:
                continue
            rest = tuple(c for c in conditions if c is not condition)
            return Grouped(axis, key, rest, value, nothing)
    return None


def guarded(value: Expr, nothing: Expr) -> tuple[list[Expr], Expr]:
    """The conditions under which a body is not the identity, and what it is there."""
    conditions: list[Expr] = []
    while isinstance(value, If) and value.otherwise is nothing:
        conditions += conjuncts(value.condition)
        value = value.then
    return conditions, value


def _keys(condition: Expr) -> Iterator[tuple[Expr, Axis]]:
    if isinstance(condition, E.Equal):
        for key, axis in ((condition.left, condition.right), (condition.right, condition.left)):
            if isinstance(axis, Axis):
                yield key, axis


def _inside(key: Expr, extent: E.Extent) -> tuple[Expr | None, Expr]:
    """Whether a key lies inside, None where it is proved to; and a place that does."""
    if Prover().inside(key, extent):
        return None, key
    last = E.index(E.upper(extent) - 1)
    inside = E.And(E.logical_not(E.Less(key, E.index(0))), E.logical_not(E.Less(last, key)))
    return inside, If(inside, key, E.index(0))


def selected(d: Definition) -> Definition:
    """A reduction, or a write, along an axis that one point alone counts of: that point.

    ``s[e] = sum[n](key[e] == n ? x[n] : 0)  ->  s[e] = key[e] is inside ? x[key[e]] : 0``
    """
    form, body = d.form, d.body
    if not isinstance(form, Reduce | Accumulate) or not isinstance(body, If) or not whole(d):
        return d
    conditions, value = guarded(body, form.combiner.identity(body.dtype))
    rank = len(d.shape) if isinstance(form, Reduce) else 0
    for condition in conditions:
        for key, axis in _keys(condition):
            free = axis.number < rank or axis.number in key.axes or not reads_data(key)
            if not free and len(d.extents) > 1:
                return selected(_pinned(d, conditions, value, condition, key, axis.number))
    return d


def _pinned(
    d: Definition, conditions: list[Expr], value: Expr, condition: Expr, key: Expr, number: int
) -> Definition:
    """`d` without an axis, which is the key wherever a point counts."""
    form = d.form
    assert isinstance(form, Reduce | Accumulate), "who asks knows"
    left = [n for n in range(len(d.extents)) if n != number]
    moves: Moves = {n: Axis(k, d.extents[n]) for k, n in enumerate(left)}
    inside, place = _inside(substitute(key, moves), d.extents[number])
    moves[number] = place
    guards = [substitute(c, moves) for c in conditions if c is not condition]
    guard = every(guards if inside is None else [inside, *guards])
    value = substitute(value, moves)
    value = value if guard is None else If(guard, value, form.combiner.identity(value.dtype))
    if isinstance(form, Accumulate):
        at: list[Expr] = []
        for i in form.at:
            under = isinstance(i, If) and set(conjuncts(i.condition)) <= set(conditions)
            own = substitute(i.then if under and isinstance(i, If) else i, moves)
            at.append(simplify(If(guard, own, E.index(0)) if under and guard is not None else own))
        domain = tuple(d.extents[n] for n in left)
        return replace(d, body=simplify(value), form=replace(form, domain=domain, at=tuple(at)))
    over = tuple(d.extents[n] for n in left if n >= len(d.shape))
    return replace(d, body=simplify(value), form=Reduce(form.combiner, over) if over else Map())


@frozen
class _Domain:
    """The points of a reduction without the axis that a key stands for: summed ones first."""

    shape: tuple[E.Extent, ...]
    moves: Moves
    at: tuple[Expr, ...]
    inside: Expr | None

    @classmethod
    def of(cls, d: Definition, group: Grouped) -> _Domain:
        rank, own = len(d.shape), group.axis.number
        order = [*range(rank, len(d.extents)), *(n for n in range(rank) if n != own)]
        shape = tuple(d.extents[n] for n in order)
        moves: Moves = {n: Axis(k, d.extents[n]) for k, n in enumerate(order)}
        key = substitute(group.key, moves)
        inside, key = _inside(key, d.shape[own])
        moves[own] = key
        at = tuple(moves[n] for n in range(rank))
        return cls(shape, moves, at, inside)

    def write(self, d: Definition, group: Grouped, value: Expr) -> Definition:
        """`d` as an accumulating write of `value`, an expression over its axes."""
        form = d.form
        assert isinstance(form, Reduce)
        guards = [substitute(c, self.moves) for c in group.rest]
        condition = every(guards if self.inside is None else [self.inside, *guards])
        body = substitute(value, self.moves)
        if condition is not None:
            body = If(condition, body, form.combiner.identity(body.dtype))
        home = Accumulate(form.combiner, self.shape, tuple(map(simplify, self.at)))
        return replace(d, body=simplify(body), form=home)


def segmented(d: Definition, known: Known, finish: Finish) -> Definition:
    """`d`, written where its points belong; `known`: what others were that became such."""
    if not whole(d) or not reads_data(d.body):
        return d
    group = grouped(d)
    if group is not None:
        made = finish(_Domain.of(d, group).write(d, group, group.value))
        known[made] = d
        return made
    winners = _winners(d, known, finish)
    return d if winners is None else winners


def _winners(d: Definition, known: Known, finish: Finish) -> Definition | None:
    """The first point that is the largest of a group, as `grad/forms.py` writes it.

    Of an empty group, whose largest is nothing, the very first point is: its body is nothing, too.
    """
    form = d.form
    if not isinstance(form, Reduce) or form.combiner is not MIN or d.dtype not in (int32, int64):
        return None
    if not isinstance(d.body, If):
        return None
    home = d.axes[: len(d.shape)]
    for best in d.sources:
        old = known.get(best)
        if old is None or best.shape != d.shape or not isinstance(old.form, Reduce):
            continue
        group = grouped(old) if old.form.combiner.name in ("max", "min") else None
        if group is None or old.form.over != form.over:
            continue

        top, last = read(best, *home), d.body.otherwise
        expected = simplify(If(wins(old.body, top), d.body.then, last))
        if expected is not d.body or last is not E.highest(d.dtype):
            continue
        point = If(wins(group.value, top), d.body.then, last)
        first = finish(_Domain.of(old, group).write(d, group, point))
        empty = E.Equal(top, group.nothing)
        chosen = If(empty, E.const(0, d.dtype), read(first, *home))
        return replace(d, body=chosen, form=Map())
    return None


def wins(value: Expr, best: Expr) -> Expr:
    """Whether a value is the largest, or no number."""
    won: Expr = E.Equal(value, best)
    return E.Or(won, E.is_nan(value)) if value.dtype.is_float else won


def presummed(d: Definition, finish: Finish) -> Definition:
    """An accumulating write over axes that say where: others are summed before."""
    form = d.form
    if not isinstance(form, Accumulate) or not whole(d):
        return d
    named = frozenset().union(*(i.axes for i in form.at))
    rest = [n for n in range(len(form.domain)) if n not in named and form.domain[n] != 1]
    kept = [n for n in range(len(form.domain)) if n not in rest]
    if not rest or not any(map(_looked_up, form.at)) or d.body.axes.isdisjoint(rest):
        return d
    moves: Moves = {n: Axis(k, form.domain[n]) for k, n in enumerate([*kept, *rest])}
    shape = tuple(form.domain[n] for n in kept)
    over = tuple(form.domain[n] for n in rest)
    condition, body = None, d.body
    nothing = form.combiner.identity(body.dtype)
    if isinstance(body, If) and body.condition.axes <= named and body.otherwise is nothing:
        condition, body = substitute(body.condition, moves), body.then
    moved = simplify(substitute(d.body if condition is None else body, moves))
    outside, inside = _apart(moved, frozenset(range(len(kept), len(moves))))
    if form.combiner is not SUM and outside is not None:
        outside, inside = None, moved
    if condition is not None and any(t.is_data for t in takes((inside,))):
        inside = If(condition, inside, nothing)
    inner = replace(
        d,
        name=f"{d.name}_part",
        shape=shape,
        body=inside,
        form=Reduce(form.combiner, over),
    )
    value: Expr = read(finish(inner), *E.axes(shape))
    value = value if outside is None else E.Mul(value, outside)
    if condition is not None:
        value = If(condition, value, nothing)
    at = tuple(substitute(i, moves) for i in form.at)
    return replace(d, body=value, form=Accumulate(form.combiner, shape, at))


def apart(d: Definition, finish: Finish) -> Definition:
    """A sum without the factors, and the guard, that do not depend on what is summed.

    ``s[e] = sum[j](key[e] is inside ? x[e, j] / z[key[e]] : 0)
    ->  t[e] = sum[j](key[e] is inside ? x[e, j] : 0)
        s[e] = key[e] is inside ? t[e] / z[key[e]] : 0``
    """
    form, body, condition = d.form, d.body, None
    if not isinstance(form, Reduce) or form.combiner is not SUM or not whole(d) or not d.shape:
        return d
    nothing = SUM.identity(body.dtype)
    summed = frozenset(range(len(d.shape), len(d.extents)))
    if (
        isinstance(body, If)
        and body.otherwise is nothing
        and body.condition.axes.isdisjoint(summed)
    ):
        condition, body = body.condition, body.then
    outside, inside = _apart(body, summed)
    if outside is None or not any(t.is_data for t in takes((outside,))):
        return d
    inside = inside if condition is None else If(condition, inside, nothing)
    inner = replace(d, name=f"{d.name}_part", body=inside)
    value: Expr = E.Mul(read(finish(inner), *d.axes[: len(d.shape)]), outside)
    value = value if condition is None else If(condition, value, nothing)
    return replace(d, body=simplify(value), form=Map())


def _apart(body: Expr, summed: frozenset[int]) -> tuple[Expr | None, Expr]:
    """What leaves a sum over axes, if anything: ``w[e] * x[e, k] -> w[e], x[e, k]``"""
    if not body.dtype.is_float or not isinstance(body, E.Mul | E.Div):
        return None, body
    outside, inside = Quotient.of(body).split(summed)
    if outside.trivial or inside.trivial:
        return None, body
    return simplify(outside.expression()), simplify(inside.expression())


def _looked_up(index: Expr) -> bool:
    """Whether an index is data, or a quotient."""
    return any(isinstance(n, DIVIDED) or E.is_data(n) for n in walk(index))


def is_data(d: Definition) -> bool:
    """Whether it reads or writes where data says."""
    writes = isinstance(d.form, Accumulate) and any(map(_looked_up, d.form.at))
    return writes or any(t.is_data for t in d.reads) or _asks(d)


def _asks(d: Definition) -> bool:
    """Whether a reduction compares data with where it is."""
    if not isinstance(d.form, Reduce) or prod(map(E.upper, d.form.over)) < POINTS:
        return False
    return any(
        (isinstance(n, E.Equal) and any(_keys(n)))
        or (isinstance(n, E.Less) and n.left.dtype == int64 and reads_data(n))
        for n in walk(d.body)
    )
