"""The order of a sum of several factors: what a summed axis is not in stands outside its sum.

    m[e, u, k] = sum[i, j](w[e, u] * x[e, u, i] * y[e, j] * t[i, j, k])
    -> a[e, i, k] = sum[j](y[e, j] * t[i, j, k])
       m[e, u, k] = sum[i](w[e, u] * x[e, u, i] * a[e, i, k])

Axes are taken one by one, the one that saves most first; where that costs less.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import prod

from pullback.backends.nests.views import Prices, is_product
from pullback.ir import expr as E
from pullback.ir.expr import Axis, Expr, Exprs, takes
from pullback.ir.graph import SUM, Definition, Keep, Map, Moves, Reduce, read, substitute
from pullback.ir.node import walk
from pullback.simplify.product import Quotient
from pullback.simplify.rules import simplify

LEAST = 0.5  # of the work of a sum, that an inner one must save: it is one more pass over memory


def ordered(ns: Prices, d: Definition) -> Definition:
    """`d` with inner sums of its own, as long as those save work."""
    if not is_product(d) or not isinstance(d.form, Reduce):
        return d
    quotient = Quotient.of(d.body)
    if len(quotient.above) < 3 or quotient.below:
        return d
    rank = len(d.shape)
    ways = [(_work(d, quotient.above, n), n) for n in range(rank, len(d.extents))]
    work, axis = min(ways)
    before = _points(d, range(len(d.extents))) * len(quotient.above)
    if work > (1 - LEAST) * before or (before - work) * ns["neighbour"] < ns["kernel"]:
        return d
    inner, at = _inner(d, quotient, axis)
    rest = [f for f in quotient.above if axis not in f.axes]
    body = replace(quotient, above=(*rest, read(ordered(ns, inner), *at))).expression()
    left = [n for n in range(len(d.extents)) if n != axis]
    moves: Moves = {n: Axis(k, d.extents[n]) for k, n in enumerate(left)}
    over = tuple(d.extents[n] for n in left if n >= rank)
    form = Reduce(SUM, over) if over else Map()
    return ordered(ns, replace(d, body=simplify(substitute(body, moves)), form=form))


def _points(d: Definition, axes: Iterable[int]) -> int:
    return prod(E.upper(d.extents[n]) for n in axes)


def _work(d: Definition, factors: Exprs, axis: int) -> float:
    """Multiplications where `axis` is summed first; as many as ever where it is in all factors."""
    own = [f for f in factors if axis in f.axes]
    if len(own) == len(factors):
        return float("inf")
    inner = _points(d, frozenset[int]().union(*(f.axes for f in own))) * len(own)
    outer = [n for n in range(len(d.extents)) if n != axis]
    return inner + _points(d, outer) * (len(factors) - len(own) + 1)


def _inner(d: Definition, quotient: Quotient, axis: int) -> tuple[Definition, list[Axis]]:
    """The sum over `axis` of the factors that it is in: long axes first, others as they are read;
    equal sums are one, whatever the order of their factors.
    """
    own = [f for f in quotient.above if axis in f.axes]
    own.sort(key=lambda f: [t.source.name for t in takes((f,))])
    seen = [n for f in own for t in takes((f,)) for n in walk(t.indices) if isinstance(n, Axis)]
    axes = list(dict.fromkeys(n.number for n in seen if n.number != axis))
    axes.sort(key=lambda n: -E.upper(d.extents[n]))
    moves: Moves = {n: Axis(k, d.extents[n]) for k, n in enumerate([*axes, axis])}
    body: Expr = own[0]
    for factor in own[1:]:
        body = E.Mul(body, factor)
    shape = tuple(d.extents[n] for n in axes)
    body = simplify(substitute(body, moves))
    form = Reduce(SUM, (d.extents[axis],))
    made = Definition(f"{d.name}_inner", shape, body, form, keep=Keep.ALWAYS, origin=d.origin)
    return made, [d.axes[n] for n in axes]
