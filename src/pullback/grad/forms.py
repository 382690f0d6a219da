"""The adjoint of a definition's body, from that of the definition, for every form.

map              out[i] = b(i)                     db(i) = dout[i]
sum              out[i] = sum[k] b(i, k)           db(i, k) = dout[i]
max, min         out[i] = max[k] b(i, k)           db(i, k) = dout[i] where k wins first
prod             out[i] = prod[k] b(i, k)          db(i, k) = dout[i] * (product of the others)
scan sum         out[t] = sum[u <= t] b(u)         db(u) = sum[t >= u] dout[t]
accumulate sum   out[at(v)] += b(v)                db(v) = dout[at(v)]
"""

from __future__ import annotations

from collections.abc import Sequence

from pullback.errors import UnsupportedError
from pullback.grad import fold
from pullback.ir import expr as E
from pullback.ir.dtype import int64
from pullback.ir.expr import Expr, If
from pullback.ir.graph import (
    MIN,
    PROD,
    SUM,
    Accumulate,
    Definition,
    Map,
    Reduce,
    Scan,
    Value,
    read,
)

NO_GRADIENT = ("any", "all")


def read_adjoint(adjoint: Value, indices: Sequence[Expr]) -> Expr:
    """``adjoint[indices]``; of a constant tensor the constant."""
    known = adjoint.body if isinstance(adjoint, Definition) else None
    if isinstance(known, E.Const) and isinstance(adjoint, Definition) and adjoint.form == Map():
        return known
    return read(adjoint, *indices)


def body_adjoint(definition: Definition, adjoint: Value) -> Expr | None:
    """The adjoint of the body over `definition.extents`; None where no gradient passes.

    Raises: UnsupportedError for a form or combiner without a gradient.
    """
    form = definition.form
    axes = definition.axes
    if isinstance(form, Map):
        return read_adjoint(adjoint, axes)
    if form.combiner.name in NO_GRADIENT:
        return None
    rule = (type(form), form.combiner.name)
    outer = axes[: len(definition.shape)]
    if rule == (Reduce, "sum"):
        return read_adjoint(adjoint, outer)
    if rule in ((Reduce, "max"), (Reduce, "min")):
        return _winner(definition, read_adjoint(adjoint, outer))
    if rule == (Reduce, "prod"):
        return _others(definition, read_adjoint(adjoint, outer))
    if isinstance(form, Scan) and rule == (Scan, "sum"):
        return _reversed_scan(definition, form, adjoint)
    if isinstance(form, Accumulate) and rule == (Accumulate, "sum"):
        return read_adjoint(adjoint, form.at)
    kind = type(form).__name__.lower()
    raise UnsupportedError(
        f"no gradient of a {kind} with {form.combiner.name} ({definition.name})",
        origin=definition.origin,
        help="mark it stop=True where no gradient should pass",
    )


def _beside(definition: Definition, suffix: str, body: Expr, combiner: object) -> Definition:
    """A companion of a reduction, over the same box; no gradient passes through an integer one."""
    form = definition.form
    if not isinstance(form, Reduce) or combiner not in (MIN, PROD, SUM):
        raise UnsupportedError(f"no companion of {definition.name}")
    chosen = next(c for c in (MIN, PROD, SUM) if c is combiner)
    return Definition(
        f"{definition.name}_{suffix}",
        definition.shape,
        body,
        Reduce(chosen, form.over),
        stop=not body.dtype.is_float,
        keep=definition.keep,
        origin=definition.origin,
    )


def _position(definition: Definition) -> Expr:
    """The reduced axes as one row-major number: ``k * L + l``."""
    total: Expr = E.index(0)
    for axis in definition.axes[len(definition.shape) :]:
        total = fold.add(fold.mul(total, E.extent_expr(axis.extent)), axis)
    return total


def _winner(definition: Definition, g: Expr) -> Expr:
    """``k == arg[i] ? g : 0``, ``arg[i] = min[k](b(i, k) == out[i] ? k : last)``, NaN winning."""
    body = definition.body
    position = _position(definition)
    out = read(definition, *definition.axes[: len(definition.shape)])
    wins: Expr = E.Equal(body, out)
    if body.dtype.is_float:
        wins = E.Or(wins, E.is_nan(body))
    arg = _beside(definition, "arg", If(wins, position, E.highest(int64)), MIN)
    chosen = E.Equal(position, read(arg, *definition.axes[: len(definition.shape)]))
    return If(chosen, g, fold.zero(g.dtype))


def _others(definition: Definition, g: Expr) -> Expr:
    """With P the product of the nonzero factors and z the number of zeros:
    ``z == 0 ? g P / b : z == 1 and b == 0 ? g P : 0``, exact in one pass.
    """
    body = definition.body
    outer = definition.axes[: len(definition.shape)]
    is_zero = E.Equal(body, fold.zero(body.dtype))
    factor = If(is_zero, fold.one(body.dtype), body)
    product = read(_beside(definition, "nonzero", factor, PROD), *outer)
    count = If(is_zero, E.index(1), E.index(0))
    zeros = read(_beside(definition, "zeros", count, SUM), *outer)
    whole = fold.mul(g, product)
    alone = E.And(E.Equal(zeros, E.index(1)), is_zero)
    only = fold.guarded([alone], whole)
    return If(E.Equal(zeros, E.index(0)), fold.div(whole, body), only)


def _reversed_scan(definition: Definition, form: Scan, adjoint: Value) -> Expr:
    """``flipped[s] = sum[u <= s] dout[n - 1 - u]``, ``db(u) = flipped[n - 1 - u]``."""
    axes: list[Expr] = list(definition.axes)
    last = fold.add(E.extent_expr(definition.shape[form.axis]), E.index(-1))
    axes[form.axis] = fold.add(last, E.negate(axes[form.axis]))
    flipped = Definition(
        f"d{definition.name}",
        definition.shape,
        read_adjoint(adjoint, axes),
        form,
        keep=definition.keep,
        origin=definition.origin,
    )
    return read(flipped, *axes)
