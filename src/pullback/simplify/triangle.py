"""Sums over a triangle as one running sum: n steps, not n squared.

``sum[t < n] (a <= t ? f(t) g(a) : 0) -> g(a) * s[n - 1 - a], s[u] = s[u - 1] + f(n - 1 - u)``
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pullback.ir import expr as E
from pullback.ir.expr import Axis, Expr, Extent, If, Less, Take
from pullback.ir.graph import (
    SUM,
    Definition,
    Map,
    Reduce,
    Scan,
    beside,
    read,
    replace_reads,
    substitute,
)
from pullback.ir.node import walk
from pullback.simplify.affine import affine, to_expr
from pullback.simplify.bounds import bounds, in_bounds
from pullback.simplify.guards import conjuncts, negated
from pullback.simplify.product import Product
from pullback.simplify.rules import Simplifier

LEAST = 16  # a shorter sum is as quick


@dataclass(frozen=True, slots=True)
class Triangle:
    """``outer * sum of body``, a running sum over `axes`, the last one scanned, read at `place`.

    Zero where a guard fails.
    """

    outer: Product
    axes: tuple[Axis, ...]
    body: Expr
    place: Expr
    guards: tuple[Expr, ...]

    def running(self, like: Definition) -> Definition:
        """The running sum, a companion of `like`."""
        renamed: dict[int, Expr] = {a.number: Axis(n, a.extent) for n, a in enumerate(self.axes)}
        shape = tuple(a.extent for a in self.axes)
        form = Scan(SUM, len(shape) - 1)
        return beside(like, like.name, substitute(self.body, renamed), form, shape)

    def total(self, running: Definition) -> Take:
        """The running sum where it ends."""
        return read(running, *self.axes[:-1], self.place)


def triangle(
    shape: Sequence[Extent], over: Sequence[Extent], guards: Sequence[Expr], value: Expr
) -> Triangle | None:
    """``sum[over] (guards ? value : 0)`` as a running sum; None where it is none."""
    if len(over) != 1 or not isinstance(over[0], int) or over[0] < LEAST:
        return None
    loop = Axis(len(shape), over[0])
    varying = [g for g in guards if loop.number in g.axes]
    edge = _edge(varying[0], loop) if len(varying) == 1 else None
    if edge is None:
        return None
    if edge.skewed:
        loop = edge.loop
        value = _unskewed(value, loop, edge.axis)
    outer, inner = Product.of(value).split(frozenset((loop.number,)))
    if edge.axis.number in inner.expression().axes:
        return None
    assert isinstance(loop.extent, int)
    place, last = edge.place, loop.extent - 1
    low, high = bounds(place)
    rest = [g for g in guards if g not in varying]
    if low < 0:
        rest.append(Less(E.index(-1), place))
    if high > last:
        place = E.minimum(place, E.index(last))
    used = inner.expression().axes
    axes = (*(Axis(n, e) for n, e in enumerate(shape) if n in used), loop)
    back = E.Add(E.index(last), E.negate(loop)) if edge.turned else loop
    body = substitute(inner.expression(), {loop.number: back})
    return Triangle(outer, axes, body, place, tuple(rest))


@dataclass(frozen=True, slots=True)
class _Edge:
    """Where a running sum over `loop` ends for each value of `axis`.

    `turned`: it runs backwards; `skewed`: its terms are those at ``t = loop - axis``.
    """

    loop: Axis
    axis: Axis
    place: Expr
    turned: bool = False
    skewed: bool = False


def _edge(guard: Expr, loop: Axis) -> _Edge | None:
    """``t <= a + c``, ``t >= a - c``, or ``t + a <= c`` where that alone bounds t."""
    inner = negated(guard)
    less = inner if isinstance(guard, E.Xor) else guard
    if not isinstance(less, Less) or not less.left.dtype.is_integer:
        return None
    form = affine(less.right).minus(affine(less.left)).shifted(-1)
    if less is not guard:
        form = form.scaled(-1).shifted(-1)
    axes = [a for a in form.atoms if isinstance(a, Axis) and a is not loop]
    if len(axes) != 1 or len(form.atoms) != 2 or not isinstance(loop.extent, int):
        return None
    axis, rest = axes[0], form.without(loop)
    signs = form.coefficient(loop), form.coefficient(axis)
    if signs == (-1, 1):
        return _Edge(loop, axis, to_expr(rest))
    if signs == (1, -1):
        return _Edge(loop, axis, to_expr(rest.shifted(loop.extent - 1)), turned=True)
    if signs == (-1, -1) and 0 <= form.const < loop.extent:
        whole = Axis(loop.number, form.const + 1)
        return _Edge(whole, axis, to_expr(rest), turned=True, skewed=True)
    return None


def _unskewed(value: Expr, loop: Axis, axis: Axis) -> Expr:
    """`value` at ``loop - axis``, the indices of its reads in normal form."""
    moved = substitute(value, {loop.number: E.subtract(loop, axis)})
    simplify = Simplifier()

    def change(take: Take) -> Expr:
        return Take(take.source, tuple(simplify(i) for i in take.indices))

    return replace_reads(moved, change)
