"""Reductions over what lies between places that are data, as accumulating writes.

    y[n, c] = sum[e](ptr[n] <= e and e < ptr[n + 1] ? m[e, c] : 0)
    ->  y[n, c] sum= ptr[n] <= e and e < ptr[n + 1] ? m[e, c] : 0    for n: for e: for c

Loops of such writes run between what their guards leave (`ranges`): each n goes over its own e, and
an adjoint, which asks the same of an e that is not summed, over those of each n.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

from pullback.algebra.guards import test_of
from pullback.algebra.linear import linear
from pullback.backends.nests.segments import POINTS, Finish, Known, guarded, whole, wins
from pullback.ir import expr as E
from pullback.ir.dtype import int64
from pullback.ir.expr import Axis, Expr, If
from pullback.ir.graph import (
    MIN,
    Accumulate,
    Definition,
    Map,
    Moves,
    Reduce,
    read,
    substitute,
)
from pullback.simplify.guards import conjuncts, every, reads_data
from pullback.simplify.rules import simplify


def spanned(d: Definition) -> Definition:
    """`d` over spans of an axis, where its guard bounds that by data of other axes."""
    form = d.form
    if not isinstance(form, Reduce | Accumulate) or not isinstance(d.body, If) or not whole(d):
        return d
    nothing = form.combiner.identity(d.body.dtype)
    conditions, value = guarded(d.body, nothing)
    if isinstance(form, Accumulate) and not _asked(form, conditions):
        return d
    for axis in d.axes:
        bounds = {c: b for c in conditions if (b := _bound(c, axis)) is not None}
        data = frozenset[int]().union(*(b.axes for b in bounds.values())) - {axis.number}
        if len(bounds) > 1 and data and E.upper(axis.extent) >= POINTS:
            rest = every([c for c in conditions if c not in bounds])
            if rest is not None and isinstance(form, Accumulate):
                return d
            value = value if rest is None else If(rest, value, nothing)
            guard = reduce(E.And, bounds.values())
            return _written(d, axis, data, guard, If(guard, value, nothing))
    return d


def span_winners(d: Definition, known: Known, finish: Finish) -> Definition:
    """The first point that is the largest of a span, as `segments` has it of a group."""
    form, body = d.form, d.body
    if not isinstance(form, Reduce) or form.combiner is not MIN or not isinstance(body, If):
        return d
    home, last = d.axes[: len(d.shape)], body.otherwise
    for best in d.sources:
        old = known.get(best)
        if old is None or best.shape != d.shape or not isinstance(old.form, Reduce):
            continue
        nothing = old.form.combiner.identity(old.dtype)
        conditions, value = guarded(old.body, nothing)
        top = read(best, *home)
        expected = simplify(If(wins(old.body, top), body.then, last))
        if expected is not body or last is not E.highest(d.dtype) or old.form.over != form.over:
            continue
        point: Expr = If(wins(value, top), body.then, last)
        for condition in reversed(conditions):
            point = If(condition, point, last)
        first = spanned(replace(d, body=point))
        chosen = If(E.Equal(top, nothing), E.const(0, d.dtype), read(finish(first), *home))
        return replace(d, body=chosen, form=Map())
    return d


def _asked(form: Accumulate, conditions: list[Expr]) -> bool:
    """Whether places ask nothing but what the guards of the body do."""
    own = [i for i in form.at if isinstance(i, If)]
    return all(set(conjuncts(i.condition)) <= set(conditions) for i in own)


def _written(
    d: Definition, axis: Axis, data: frozenset[int], guard: Expr, body: Expr
) -> Definition:
    """The write: over what the bounds are read at, the axis, other axes, and lanes."""
    form = d.form
    assert isinstance(form, Reduce | Accumulate)
    at: tuple[Expr, ...] = d.axes[: len(d.shape)]
    if isinstance(form, Accumulate):  # nobody looks at the place of a point that is not let through
        at = tuple(If(guard, i.then, E.index(0)) if isinstance(i, If) else i for i in form.at)
    last = at[-1] if at else None
    free = isinstance(last, Axis) and last.number not in data and last is not axis
    lane = last.number if free and isinstance(last, Axis) else None
    order = sorted(
        range(len(d.extents)), key=lambda n: (n == lane, n not in data, n != axis.number)
    )
    if order == list(range(len(d.extents))) and body is d.body:
        return d
    moves: Moves = {n: Axis(k, d.extents[n]) for k, n in enumerate(order)}
    domain = tuple(d.extents[n] for n in order)
    places = tuple(substitute(i, moves) for i in at)
    body = substitute(body, moves)
    if last is not axis:
        return replace(d, body=body, form=Accumulate(form.combiner, domain, places))
    # Lanes would be those of the span, which then has no bounds: an axis of one element for them.
    home = Accumulate(form.combiner, domain, (*places, E.index(0)))
    rows = replace(d, name=f"{d.name}_spans", shape=(*d.shape, 1), body=body, form=home)
    return replace(d, body=read(rows, *d.axes[: len(d.shape)], E.index(0)), form=Map())


def _bound(condition: Expr, axis: Axis) -> Expr | None:
    """A bound of an axis by data, as ``less < more``; None for what is none."""
    test, holds = test_of(condition)
    if not isinstance(test, E.Less) or test.left.dtype != int64 or not reads_data(test):
        return None
    less, more = test.left, test.right
    if not holds:  # not a < b is b < a + 1; the places of an axis are far from the last integer
        less, more = (more, E.Add(less, E.index(1))) if axis.number in less.axes else (more, less)
        if axis.number not in test.left.axes:
            less = E.Add(less, E.index(-1))
    gap = linear(more).minus(linear(less))
    if gap.of(axis) not in (1, -1) or axis.number in gap.without(axis).expr().axes:
        return None
    return E.Less(simplify(less), simplify(more))
