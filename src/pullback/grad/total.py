"""Sums over what is left of a domain, made as small as they can be.

sum[t] f(x) g(x, t)      -> f(x) * sum[t] g(x, t)
(y == 2) ? sum[t] g(x, t) : 0   is summed once for every x, not for every (x, y)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pullback.algebra.bounds import all_inside, in_bounds
from pullback.cost.facts import elements
from pullback.grad import fold
from pullback.ir import expr as E
from pullback.ir.dtype import DType
from pullback.ir.expr import Axis, Expr, Extent, Shape, Take
from pullback.ir.graph import SUM, Label, Reduce, read, substitute
from pullback.simplify import guards as G
from pullback.simplify.product import Quotient
from pullback.simplify.triangle import triangle


def summed(
    shape: Sequence[Extent],
    over: Shape,
    guards: Sequence[Expr],
    value: Expr,
    label: Label,
    limit: int,
) -> Expr | None:
    """``sum[over] (guards ? value : 0)`` over axes of `shape`; None above `limit` iterations."""
    loops = frozenset(range(len(shape), len(shape) + len(over)))
    kind = value.dtype
    while isinstance(value, E.Cast) and value.value.dtype.bits > value.dtype.bits:
        value = value.value
    factored = triangle(shape, over, guards, value)
    if factored is not None:
        end = factored.end(factored.running(label))
        total = fold.mul(end, factored.outer.expression())
        return fold.cast(G.guarded(factored.guards, total), kind)
    product = Quotient.of(value)
    varying = [g for g in guards if not g.axes.isdisjoint(loops)]
    # Where a guard may fail in every iteration, 0 must not meet an infinite factor.
    outer, inner = product.literal() if varying else product.split(loops)
    if inner.trivial and not varying:
        count = _count(over, value.dtype)
        return fold.cast(G.guarded(guards, fold.mul(outer.expression(), count)), kind)
    body = value if outer.trivial else inner.expression()
    kept, own = _narrow(shape, loops, guards, varying, body)
    every = E.axes(over, len(shape))
    used = body.axes.union(*(g.axes for g in varying))
    inside = [a for a in every if a.number in used]
    if elements(a.extent for a in (*kept, *inside)) > limit:
        return None
    total = _define(kept, inside, G.guarded(own, body), label)
    total = fold.mul(total, _count([a.extent for a in every if a not in inside], value.dtype))
    if not outer.trivial:
        total = fold.mul(total, outer.expression())
    # Outside the guards of the sum neither a factor nor an index of a condition need exist.
    bare = [g for g in guards if g not in own]
    exposed = bool(outer.above or outer.below) or any(G.reads_data(g) for g in bare)
    # A condition on data that stays inside may read outside of its tensor where no term is.
    inside_only = [g for g in own if not exposed or (varying and G.reads_data(g))]
    rest = [g for g in guards if g.axes.isdisjoint(loops) and g not in inside_only]
    return fold.cast(G.guarded(rest, total), kind)


def _narrow(
    shape: Sequence[Extent],
    loops: frozenset[int],
    guards: Sequence[Expr],
    varying: Sequence[Expr],
    body: Expr,
) -> tuple[list[Axis], list[Expr]]:
    """The axes of `shape` that the sum needs, and the guards that stay inside it."""
    axes = [*E.axes(shape)]
    used = body.axes.union(*(g.axes for g in varying))
    kept = [a for a in axes if a.number in used]
    own = [g for g in guards if g.axes <= used | loops]
    if elements(a.extent for a in kept) == elements(shape):
        return axes, list(guards)
    # What a condition on data reads may be inside its tensor only where the sum has terms.
    plain = [g for g in guards if g.axes.isdisjoint(loops) and not G.reads_data(g)]
    if not all(all_inside(g, plain) for g in guards if g not in own):
        return axes, list(guards)
    return kept, [*own, *_kept_inside((body, *own), own)]


def _kept_inside(roots: Sequence[Expr], given: Sequence[Expr]) -> list[Expr]:
    """Conditions that keep reads inside their tensors, as a guard left outside may have done.

    ``x[i] -> -1 < i, i < n``; ``c ? x[i] : y -> not c or -1 < i and i < n``
    """
    conditions: list[Expr] = []
    # The index of an index comes first.
    for node, paths in reversed(G.contexts(roots).items()):
        if not isinstance(node, Take):
            continue
        for path in paths:
            fits = _fits(node, (*given, *path))
            taken = G.every(path)
            if fits and taken is not None:
                whole = reduce(G.both, fits)
                fits = [E.Or(G.negated(taken), E.If(taken, whole, G.FALSE))]
            conditions += fits
    return conditions


def _fits(take: Take, guards: Sequence[Expr]) -> list[Expr]:
    """``x[i] -> -1 < i, i < n``: those of the conditions that `guards` do not imply."""
    bounds: list[Expr] = []
    sure = in_bounds(take, guards)
    for (index, extent), inside in zip(take.places, sure, strict=True):
        if not inside:
            bounds += [E.Less(E.index(-1), index), E.Less(index, E.extent_expr(extent))]
    return bounds


def _define(kept: Sequence[Axis], inside: Sequence[Axis], body: Expr, label: Label) -> Take:
    """The sum over the axes `inside` as a definition over the kept ones, read at them."""
    renamed = {a.number: Axis(new, a.extent) for new, a in enumerate((*kept, *inside))}
    form = Reduce(SUM, tuple(a.extent for a in inside))
    whole = label.define((a.extent for a in kept), substitute(body, renamed), form)
    return read(whole, *kept)


def _count(over: Sequence[Extent], kind: DType) -> Expr:
    """The number of iterations, as a float."""
    total: Expr = fold.one(kind)
    for extent in over:
        total = fold.mul(total, fold.cast(E.extent_expr(extent), kind))
    return total
