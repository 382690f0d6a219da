"""Derivatives of named composites, in terms of their own value where that is smaller.

A composite is recognised by its canonical form: from its argument at a known place the form is
built again and compared (nodes are interned). Without these rules the primitives' rules hold, but
differentiate the rational approximations and rounding corrections inside, term by term.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from pullback.config import frozen
from pullback.grad import fold
from pullback.ir import expr as E
from pullback.ir import functions as F
from pullback.ir.expr import Expr, Exprs
from pullback.ir.node import Node, postorder

Shares = tuple[tuple[Expr, Expr], ...]
"""Operands, each with what is its own of a derivative."""


@frozen
class Composite:
    """``y = function(x)``, with x found at `path`; ``slope(x, y) = dy / dx``.

    `tame`: the slope is finite everywhere.
    """

    function: F.Scalar
    path: F.Path
    slope: Callable[[Expr, Expr], Expr]
    tame: bool = False


def _side(x: Expr, y: Expr) -> Expr:
    """1 or -1, 0 at 0 and at NaN."""
    zero = fold.zero(x.dtype)
    below = E.If(E.Less(x, zero), F.like(-1, x), zero)
    return E.If(E.Less(zero, x), fold.one(x.dtype), below)


def _root(x: Expr) -> Expr:
    """``sqrt(1 - x^2)``"""
    return E.Sqrt(E.Mul(F.one_minus(x), F.plus(x, 1)))


def _asinh(x: Expr, y: Expr) -> Expr:
    """``1 / sqrt(1 + x^2)``; of a large x ``1 / |x|``, whose square may overflow."""
    size = F.absolute(x)
    far = E.Less(F.like(F.LARGE, x), size)
    near = F.rsqrt(F.plus(F.square(x), 1))
    return E.If(far, F.reciprocal(size), near)


def _acosh(x: Expr, y: Expr) -> Expr:
    """``1 / (sqrt(x - 1) sqrt(x + 1))``"""
    below = E.Sqrt(F.plus(x, -1))
    above = E.Sqrt(F.plus(x, 1))
    return F.reciprocal(E.Mul(below, above))


def _erf(x: Expr, y: Expr) -> Expr:
    """``2 / sqrt(pi) * exp(-x^2)``"""
    bell = E.Exp(E.negate(F.square(x)))
    return fold.mul(bell, F.like(2 / math.sqrt(math.pi), x))


def _normal(x: Expr, y: Expr) -> Expr:
    """``exp(-x^2 / 2) / sqrt(2 pi)``"""
    bell = E.Exp(E.Mul(F.square(x), F.like(-0.5, x)))
    return fold.mul(bell, F.like(1 / math.sqrt(2 * math.pi), x))


def _rsqrt(x: Expr, y: Expr) -> Expr:
    """``-y^3 / 2``"""
    return fold.mul(E.Mul(F.square(y), y), F.like(-0.5, x))


ACOS = ("left", "left", "condition", "left", "otherwise", "value", "left", "right", "left")
COS = ("right", "left", "right", "left", "value", "left")
NORMAL = ("left", "left", "then", "left", "left")
TESTED = ("condition", "left", "left")
SIGNED = ("otherwise", "condition", "left")
COMPOSITES: dict[type[Expr], tuple[Composite, ...]] = {
    E.If: (
        Composite(
            F.sigmoid, ("condition", "left"), lambda x, y: E.Mul(y, F.one_minus(y)), tame=True
        ),
        Composite(F.sinh, ("then", "left"), lambda x, y: F.cosh(x)),
        Composite(F.tanh, ("then", "left"), lambda x, y: F.one_minus(F.square(y)), tame=True),
        Composite(F.erf, ("then", "left"), _erf, tame=True),
        Composite(F.log1p, ("then",), lambda x, y: F.reciprocal(F.plus(x, 1))),
        Composite(F.expm1, ("otherwise", "left", "value"), lambda x, y: F.plus(y, 1)),
        Composite(F.tan, ("otherwise", "left", "value"), lambda x, y: F.plus(F.square(y), 1)),
        Composite(F.atan, SIGNED, lambda x, y: F.reciprocal(F.plus(F.square(x), 1)), tame=True),
        Composite(F.asin, SIGNED, lambda x, y: F.reciprocal(_root(x))),
        Composite(F.asinh, SIGNED, _asinh, tame=True),
        Composite(F.acosh, ("then", "left", "value"), _acosh),
        Composite(F.absolute, ("condition", "left"), _side, tame=True),
        Composite(F.atanh, SIGNED, lambda x, y: F.reciprocal(E.Mul(F.one_minus(x), F.plus(x, 1)))),
    ),
    E.Add: (
        Composite(F.softplus, ("left", "then"), lambda x, y: F.sigmoid(x), tame=True),
        Composite(F.cos, COS, lambda x, y: fold.negate(E.Sin(x)), tame=True),
    ),
    E.Mul: (
        Composite(F.acos, ACOS, lambda x, y: fold.negate(F.reciprocal(_root(x)))),
        Composite(F.normal_cdf, NORMAL, _normal, tame=True),
    ),
    E.Div: (Composite(F.rsqrt, ("right", "value"), _rsqrt),),
}


def slopes(node: Expr) -> Shares | None:
    """(argument, derivative) pairs of a named composite; None where `node` is none."""
    composite = _named(node)
    if composite is None:
        return _power(node) or _whole(node) or _angle(node)
    known, x = composite
    return ((x, known.slope(x, node)),)


def _named(node: Expr) -> tuple[Composite, Expr] | None:
    """The composite of one argument that `node` is, and its argument."""
    for known in COMPOSITES.get(type(node), ()):
        args = F.arguments(node, known.function, known.path)
        if args is not None:
            return known, args[0]
    return None


def tame(node: Expr) -> Exprs | None:
    """The argument of a named composite whose slope is finite everywhere; else None."""
    composite = _named(node)
    return (composite[1],) if composite is not None and composite[0].tame else None


def arguments(node: Expr) -> Exprs | None:
    """What a named composite is a function of; None where `node` is none."""
    pairs = slopes(node) if node.dtype.is_float else None
    return None if pairs is None else tuple(x for x, _ in pairs)


def _power(node: Expr) -> Shares | None:
    """``x ** y -> y x ** (y - 1), x ** y log x``: 0 where y is 0; where x is 0, y not negative."""
    args = F.arguments(node, F.power, ("condition", "right", "left"), TESTED)
    if args is None:
        return None
    x, y = args
    zero = fold.zero(x.dtype)
    slope = fold.mul(y, F.power(x, F.plus(y, -1)))
    by_base = E.If(E.Equal(y, zero), zero, slope)
    flat = E.And(E.Equal(x, zero), F.less_equal(zero, y))
    by_exponent = E.If(flat, zero, E.Mul(node, E.Log(x)))
    return (x, by_base), (y, by_exponent)


def _whole(node: Expr) -> Shares | None:
    """``y = 1 / x^n -> -n y / x``, n whole: of ``-y^2 n x^(n - 1)`` one factor may be infinite."""
    if not isinstance(node, E.Div) or not E.is_const(node.left, 1):
        return None
    power = node.right
    x = node.right
    slope = None
    while isinstance(x, E.Mul):
        x = x.right
        n = _factors(power, x)
        if n > 1 and F.integer_power(x, n) is power:
            slope = ((x, fold.mul(E.Div(node, x), F.like(-n, x))),)
    return slope


def _factors(power: Expr, x: Expr) -> int:
    """How many times `power` has the factor `x`; 0 where it is no product of them alone."""
    known: dict[Node, int] = {x: 1}
    for e in postorder([power], lambda e: e.children if isinstance(e, E.Mul) else ()):
        if e is not x:
            sides = [known[c] for c in e.children] if isinstance(e, E.Mul) else [0]
            known[e] = 0 if 0 in sides else sum(sides)
    return known[power]


def _angle(node: Expr) -> Shares | None:
    """``atan2(y, x) -> x / (x^2 + y^2), -y / (x^2 + y^2)``"""
    args = F.arguments(node, F.atan2, ("left", *TESTED), ("right", "right", *TESTED))
    if args is None:
        return None
    y, x = args
    size = E.Add(F.square(x), F.square(y))
    by_y = E.Div(x, size)
    by_x = fold.negate(E.Div(y, size))
    return (y, by_y), (x, by_x)
