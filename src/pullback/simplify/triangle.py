"""Reductions over a triangle as one running combination: n steps, not n squared.

``sum[t < n] (a <= t ? f(t) g(a) : 0) -> g(a) * s[n - 1 - a], s[u] = s[u - 1] + f(n - 1 - u)``
``max[t < n] (t <= a ? f(t) : least) -> s[a], s[u] = max(s[u - 1], f(u))``
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from pullback.algebra.affine import Affine, affine, to_expr
from pullback.algebra.bounds import all_inside, bounds
from pullback.algebra.guards import demands, test_of
from pullback.config import frozen
from pullback.ir import expr as E
from pullback.ir.dtype import int64
from pullback.ir.expr import Axis, Expr, Exprs, Extent, If, Less, Take
from pullback.ir.graph import (
    SUM,
    Combiner,
    Definition,
    Keep,
    Label,
    Map,
    Moves,
    Reduce,
    Scan,
    read,
    replace_reads,
    substitute,
)
from pullback.simplify.guards import conjuncts, negated
from pullback.simplify.product import Quotient
from pullback.simplify.rules import Simplifier

LEAST = 16  # a shorter sum is as quick


@frozen
class Triangle:
    """``outer * sum of body``, a running sum over `axes` along `loop`, read at `place`.

    Zero, or what `combiner` has for nothing, where a guard fails. `turned`: it runs backwards.
    """

    outer: Quotient
    axes: tuple[Axis, ...]
    loop: Axis
    body: Expr
    place: Expr
    guards: Exprs
    combiner: Combiner
    turned: bool

    def running(self, label: Label) -> Definition:
        """The running sum as a definition."""
        renamed: Moves = {a.number: Axis(n, a.extent) for n, a in enumerate(self.axes)}
        shape = tuple(a.extent for a in self.axes)
        form = Scan(self.combiner, self.axes.index(self.loop))
        return label.define(shape, substitute(self.body, renamed), form)

    def end(self, running: Definition) -> Take:
        """The running sum where it ends."""
        return read(running, *(self.place if a is self.loop else a for a in self.axes))


def triangle(
    shape: Sequence[Extent],
    over: Sequence[Extent],
    guards: Sequence[Expr],
    value: Expr,
    combiner: Combiner = SUM,
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
    outer = Quotient((), (), 1, value.dtype)
    terms = value
    if combiner is SUM:
        outer, inner = Quotient.of(value).taken_apart().split(frozenset((loop.number,)))
        terms = inner.expression()
    if edge.axis.number in terms.axes:
        return None
    assert isinstance(loop.extent, int)
    place = edge.place
    last = loop.extent - 1
    low, high = bounds(place)
    rest = [g for g in guards if g not in varying]
    if low < 0:
        rest.append(Less(E.index(-1), place))
    if high > last:
        place = E.minimum(place, E.index(last))
    # The running sum looks at all places, those that the guards leave out too.
    if not all_inside(terms):
        return None
    every = [loop if a.number == edge.axis.number else a for a in E.axes(shape)]
    axes = tuple(a for a in every if a is loop or a.number in terms.axes)
    back = E.Add(E.index(last), E.negate(loop)) if edge.turned else loop
    body = substitute(terms, {loop.number: back})
    return Triangle(outer, axes, loop, body, place, tuple(rest), combiner, edge.turned)


def reduced(d: Definition) -> Triangle | None:
    """The running combination that a reduction is read from; None where there is none."""
    form = d.form
    body = d.body
    if not isinstance(form, Reduce) or not isinstance(body, If):
        return None
    if form.combiner is SUM and not d.dtype.is_float:
        return None
    nothing = form.combiner.identity(d.dtype)
    guard = body.condition
    value = body.then
    if value is nothing:
        guard = negated(guard)
        value = body.otherwise
    elif body.otherwise is not nothing:
        return None
    return triangle(d.shape, form.over, conjuncts(guard), value, form.combiner)


def running(
    d: Definition, share: Callable[[Definition], Definition] | None = None
) -> tuple[Definition, Definition, bool] | None:
    """``y[i] = sum[k] (k <= i ? f(i) g(k) : 0) -> y[i] = f(i) * s[i], s``; None where it is none.

    Also whether `s` runs from the last term to the first. `share` gives the definition to read
    for `s`.
    """
    split = reduced(d)
    if split is None:
        return None
    inner = split.running(Label(d.name, Keep.AUTO, d.origin))
    inner = inner if share is None else share(inner)
    total: Expr = split.end(inner)
    if not split.outer.trivial:
        total = E.Mul(total, split.outer.expression())
    nothing = split.combiner.identity(d.dtype)
    for guard in reversed(split.guards):
        total = If(guard, total, nothing)
    return replace(d, body=total, form=Map()), inner, split.turned


@frozen
class _Edge:
    """Where a running sum over `loop` ends for each value of `axis`.

    `turned`: it runs backwards; `skewed`: its terms are those at ``t = loop - axis``.
    """

    loop: Axis
    axis: Axis
    place: Expr
    turned: bool = False
    skewed: bool = False


def gap(guard: Expr) -> Affine | None:
    """The form that is 0 or more where a comparison of indices holds: ``a < b -> b - a - 1``."""
    less, holds = test_of(guard)
    if not isinstance(less, Less) or less.left.dtype != int64:
        return None
    return demands(less, holds, affine)[0]


def _edge(guard: Expr, loop: Axis) -> _Edge | None:
    """``t <= a + c``, ``t >= a - c``, or ``t + a <= c`` where that alone bounds t."""
    form = gap(guard)
    if form is None:
        return None
    axes = [a for a in form.atoms if isinstance(a, Axis) and a is not loop]
    if len(axes) != 1 or len(form.atoms) != 2 or not isinstance(loop.extent, int):
        return None
    axis = axes[0]
    rest = form.without(loop)
    signs = form.of(loop), form.of(axis)
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
    return with_indices(moved, Simplifier())


def with_indices(e: Expr, change: Callable[[Expr], Expr]) -> Expr:
    """`e` with the indices of its reads changed."""

    def read_at(take: Take) -> Expr:
        return take.with_children(tuple(map(change, take.indices)))

    return replace_reads(e, read_at)
