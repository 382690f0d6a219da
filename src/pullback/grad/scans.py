"""Adjoints and tangents of running combinations along an axis.

sum     out[t] = sum[u <= t] b(u)      db(u) = sum[t >= u] dout[t]
prod    out[t] = prod[u <= t] b(u)     db(u) = (product of those before u) * r[u],
                                       r[u] = dout[u] + b(u + 1) * r[u + 1]
max     out[t] = max[u <= t] b(u)      db(u) = sum of dout[t] where u was the last to win at t

A first-order recurrence is a scan over pairs, without a division, so that zeros are exact and it
has derivatives itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pullback.errors import UnsupportedError
from pullback.grad import fold
from pullback.ir import expr as E
from pullback.ir.associative import scanned
from pullback.ir.expr import Axis, Expr, Exprs, Extent, If, Less
from pullback.ir.graph import (
    MAX,
    PROD,
    SUM,
    Accumulate,
    Definition,
    Map,
    Scan,
    beside,
    identity,
    read,
    substitute,
)

ONE = E.index(1)


def refusal(definition: Definition) -> UnsupportedError:
    """The error for a form without a derivative, by name."""
    form = definition.form
    kind = type(form).__name__.lower()
    combiner = "" if isinstance(form, Map) else f" with {form.combiner.name}"
    return UnsupportedError(
        f"no gradient of a {kind}{combiner} ({definition.name})",
        origin=definition.origin,
        help="mark it stop=True where no gradient should pass",
        code="E214",
    )


def adjoint(
    definition: Definition, form: Scan, at: Callable[[Sequence[Expr]], Expr], first: bool = False
) -> Expr:
    """The adjoint of the body of a scan; `first`: of equal winners the first has it.

    Raises: UnsupportedError by name.
    """
    name = form.combiner.name
    back = _flipped(definition.axes, form.axis)
    if name == "sum":
        turned = beside(definition, f"d{definition.name}", at(back), form)
        return read(turned, *back)
    if name == "prod":
        before, _ = products(definition, definition.shape, definition.body, form.axis)
        after = _shifted(definition.body, back, form.axis, ONE)
        rest = _recurrence(definition, form.axis, after, at(back))
        return fold.mul(before, read(rest, *back))
    if name in ("max", "min"):
        at_place = Accumulate(SUM, definition.shape, _winners(definition, form, first))
        return identity(beside(definition, f"d{definition.name}", at(definition.axes), at_place))
    raise refusal(definition)


def tangent(definition: Definition, form: Scan, body: Expr, first: bool = False) -> Definition:
    """The tangent of a scan from that of its body; `first`: see `adjoint`.

    Raises: UnsupportedError by name.
    """
    name = form.combiner.name
    new = f"t{definition.name}"
    if name == "sum":
        return beside(definition, new, body, form)
    if name == "prod":
        before, _ = products(definition, definition.shape, definition.body, form.axis)
        return _recurrence(definition, form.axis, definition.body, fold.mul(before, body))
    if name in ("max", "min"):
        moved = beside(definition, new, body, Map())
        return beside(definition, new, read(moved, *_winners(definition, form, first)), Map())
    raise refusal(definition)


def products(
    definition: Definition, shape: Sequence[Extent], body: Expr, number: int
) -> tuple[Expr, Expr]:
    """The products of `body` before and after each place along axis `number`."""
    axes: list[Expr] = [*E.axes(shape)]
    back = _flipped(axes, number)
    sides = []
    for name, order in (("before", axes), ("after", back)):
        factor = _shifted(body, order, number, ONE if order is back else E.index(-1))
        start = If(Less(E.index(0), axes[number]), factor, fold.one(body.dtype))
        form = Scan(PROD, number)
        whole = beside(definition, f"{definition.name}_{name}", start, form, shape)
        sides.append(read(whole, *order))
    return sides[0], sides[1]


def _flipped(axes: Sequence[Expr], number: int) -> list[Expr]:
    """``t -> n - 1 - t`` along one axis."""
    flipped = list(axes)
    axis = flipped[number]
    assert isinstance(axis, Axis)
    last = fold.add(E.extent_expr(axis.extent), E.index(-1))
    flipped[number] = fold.add(last, E.negate(axis))
    return flipped


def _shifted(body: Expr, axes: Sequence[Expr], number: int, by: Expr) -> Expr:
    """`body` at `axes`, the place along `number` moved."""
    return substitute(body, {number: fold.add(axes[number], by)})


def _recurrence(definition: Definition, number: int, factor: Expr, start: Expr) -> Definition:
    """``y[t] = start(t) + factor(t) y[t - 1]``, a scan over pairs; `factor` is not asked for at 0.

    ``(f, s) . (g, t) = (f g, s g + t)``
    """
    zero = fold.zero(start.dtype)
    step = If(Less(E.index(0), definition.axes[number]), factor, zero)
    pair = [
        beside(definition, f"{definition.name}_step", step, Map()),
        beside(definition, f"{definition.name}_part", start, Map()),
    ]

    def join(earlier: Sequence[Expr], later: Sequence[Expr]) -> tuple[Expr, Expr]:
        (f, s), (g, t) = earlier, later
        return E.Mul(f, g), E.Add(E.Mul(s, g), t)

    return scanned(pair, number, join)[1]


def _winners(definition: Definition, form: Scan, first: bool) -> Exprs:
    """The axes, along the scan the last place that reached the best so far; NaN counts as best.

    `first`: the first such place, where the best so far changed.
    """
    axes: list[Expr] = list(definition.axes)
    body = definition.body
    best = identity(definition)
    here = axes[form.axis]
    start = E.index(0)
    is_float = body.dtype.is_float
    if first:
        axes[form.axis] = fold.add(here, E.index(-1))
        last = read(definition, *axes)
        fresh: Expr = E.logical_not(E.Equal(best, last))
        fresh = E.And(fresh, E.Equal(last, last)) if is_float else fresh
        reached = If(Less(start, here), If(fresh, here, start), start)
    else:
        fresh = E.Equal(body, best)
        reached = If(E.Or(fresh, E.is_nan(body)) if is_float else fresh, here, start)
    place = beside(definition, f"{definition.name}_arg", reached, Scan(MAX, form.axis))
    axes[form.axis] = identity(place)
    return tuple(axes)
