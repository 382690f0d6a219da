"""The incomplete gamma functions: a series below ``a + 1``, a continued fraction above.

``gammainc(a, x) = integral[0..x] t^(a - 1) exp(-t) dt / gamma(a)``, ``gammaincc = 1 - gammainc``
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pullback.ir import expr as E
from pullback.ir import functions as F
from pullback.ir.dtype import float64
from pullback.ir.expr import Add, Div, Expr, If, Less, Mul
from pullback.ir.graph import Rule, Value, read
from pullback.special.gamma import STIRLING, digamma, gammaln
from pullback.special.parts import Special, horner
from pullback.tensor import elementwise as W
from pullback.tensor import maths as M
from pullback.tensor import ops as O
from pullback.tensor.scalars import repeated
from pullback.tensor.shaped import shaped
from pullback.tensor.tensor import Tensor, operand

SMALL = 2.0**-54  # a term that changes no sum
TINY = 1e-300  # stands for 0 in a continued fraction
NEAR = 0.4  # |x / a - 1| below which log(x / a) is a series
TERMS = 14


def _log_rest(m: Expr) -> Expr:
    """``log(1 + m) - m``, near 0 ``-m t + 2 (t^3 / 3 + ..)``, ``t = m / (2 + m)``."""
    near = Less(F.absolute(m), F.like(NEAR, m))
    inside = If(near, m, F.like(0, m))
    t = Div(inside, Add(inside, F.like(2, m)))
    s = F.square(t)
    series = horner(s, [2 / (2 * k + 3) for k in reversed(range(TERMS))])
    close = Add(Mul(E.negate(inside), t), Mul(Mul(t, s), series))
    return If(near, close, E.subtract(F.log1p(m), m))


def _far_weight(a: Expr, x: Expr) -> Expr:
    """``x^a exp(-x) / gamma(a)`` of a large a: Stirling's series, ``m = (x - a) / a``."""
    u = F.reciprocal(a)
    series = Mul(horner(F.square(u), STIRLING[::-1]), u)
    power = E.subtract(Mul(a, _log_rest(Div(E.subtract(x, a), a))), series)
    return Mul(E.Sqrt(Mul(a, F.like(1 / (2 * math.pi), a))), E.Exp(power))


_weight_far = Special("weight", _far_weight)


def _weight(a: Tensor, x: Tensor) -> Tensor:
    """``x^a exp(-x) / gamma(a)``"""
    large = a >= 10.0
    far = _weight_far(O.where(large, a, 10.0), O.where(large, x, 10.0))
    b, y = O.where(large, 1.0, a), O.where(large, 1.0, x)
    near = M.exp(b * M.log(y) - y - gammaln(b))
    found: Tensor = O.where(large, far, near)
    return found


def _series(a: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """``S = sum[n] x^n / (a (a + 1) .. (a + n))``, and dS / da."""

    def step(carry: Any) -> Any:
        term, total, harmonic, slope, n = carry
        at = a + n
        term = term * x / at
        harmonic = harmonic + 1.0 / at
        return term, total + term, harmonic, slope - term * harmonic, n + 1.0

    first = 1.0 / a
    start = (first, first, first, -first * first, a * 0.0 + 1.0)
    found = repeated(lambda c: O.any(c[0] * c[2] > M.abs(c[3]) * SMALL), step, start)
    return found[1], found[3]


def _fraction(a: Tensor, x: Tensor) -> Tensor:
    """``1 / (x + 1 - a - 1 (1 - a) / (x + 3 - a - ..))``, by Lentz's method."""

    def step(carry: Any) -> Any:
        b, c, d, h, n, _ = carry
        part = n * (a - n)
        b = b + 2.0
        d, c = part * d + b, b + part / c
        d = 1.0 / O.where(M.abs(d) < TINY, TINY, d)
        c = O.where(M.abs(c) < TINY, TINY, c)
        grown = d * c
        return b, c, d, h * grown, n + 1.0, M.abs(grown - 1.0)

    b = x + 1.0 - a
    d = 1.0 / b
    start = (b, b * 0.0 + 1.0 / TINY, d, d, a * 0.0 + 1.0, a * 0.0 + 1.0)
    found: Tensor = repeated(lambda c: O.any(c[5] > 2.0**-51), step, start)[3]
    return found


def _values(a: Tensor, x: Tensor, upper: bool) -> Tensor:
    """P or Q of float64 arguments, special points included."""
    ends = M.logical_or(x <= 0.0, M.logical_or(M.isinf(x), M.logical_or(a <= 0.0, M.isinf(a))))
    ends = M.logical_or(ends, M.logical_or(M.isnan(a), M.isnan(x)))
    b, y = O.where(ends, 1.0, a), O.where(ends, 0.5, x)
    below = y < b + 1.0
    weight = _weight(b, y)
    low = weight * _series(O.where(below, b, 1.0), O.where(below, y, 0.5))[0]
    high = weight * _fraction(O.where(below, 1.0, b), O.where(below, 3.0, y))
    inside = O.where(below, 1.0 - low, high) if upper else O.where(below, low, 1.0 - high)
    wrong = M.logical_or(x < 0.0, M.logical_or(a < 0.0, M.logical_and(x == 0.0, a == 0.0)))
    wrong = M.logical_or(wrong, M.logical_and(M.isinf(x), M.isinf(a)))
    wrong = M.logical_or(wrong, M.logical_or(M.isnan(a), M.isnan(x)))
    empty = M.logical_or(x == 0.0, M.isinf(a))
    edge = O.where(empty, 1.0 if upper else 0.0, 0.0 if upper else 1.0)
    found: Tensor = O.where(wrong, math.nan, O.where(ends, edge, inside))
    return found


def _slopes(a: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """dP / da and dP / dx: the first by the series, in absolute terms to about 1e-15."""
    b, y = O.where(a > 0.0, a, 1.0), O.where(x > 0.0, x, 1.0)
    weight = _weight(b, y)
    total, by_a = _series(b, y)
    first = weight * (by_a + total * (M.log(y) - digamma(b)))
    edge = O.where(a > 1.0, 0.0, O.where(a == 1.0, 1.0, math.inf))
    first, second = O.where(x > 0.0, first, 0.0), O.where(x > 0.0, weight / y, edge)
    return O.where(a > 0.0, first, math.nan), O.where(a > 0.0, second, 0.0)


def _incomplete(name: str, a: Any, x: Any, upper: bool) -> Tensor:
    operands = [operand(a), operand(x)]
    kind = W.as_float(W.common_dtype(operands))
    shape = W.broadcast_shapes([W.operand_shape(o) for o in operands])
    axes = W.axes_of(shape)
    args = [W.make("argument", shape, W.lifted(o, kind, shape, axes)) for o in operands]
    wide = [O.stop_gradient(Tensor(W.astype(v, float64))) for v in args]
    result = W.make(name, shape, W.cast(read(_values(wide[0], wide[1], upper).value, *axes), kind))
    sign = -1.0 if upper else 1.0

    def slopes() -> list[Tensor]:
        whole = [Tensor(W.astype(v, float64)) for v in args]
        return [O.astype(s * sign, kind) for s in _slopes(whole[0], whole[1])]

    def pull(heads: Sequence[Value]) -> Sequence[Value | None]:
        return [M.multiply(Tensor(heads[0]), s).value for s in slopes()]

    def push(tangents: Sequence[Value]) -> Sequence[Value]:
        first, second = (M.multiply(s, Tensor(t)) for s, t in zip(slopes(), tangents, strict=True))
        return (M.add(first, second).value,)

    result.rule = Rule(name, (result,), tuple(args), pull, push)
    return Tensor(result)


@shaped("a[*s], x[*s] -> [*s]")
def gammainc(a: Any, x: Any) -> Tensor:
    """``integral[0..x] t^(a - 1) exp(-t) dt / gamma(a)``, of a > 0 and x >= 0; NaN elsewhere.

    ``pb.special.gammainc(1.0, x)`` is ``1 - exp(-x)``.

    First derivatives by both; that by `a` is exact to about 1e-15 in absolute terms.

    Example:
        >>> pb.special.gammainc(pb.tensor([1.0, 2.0]), 1.0)
        Tensor([0.63212055, 0.26424113], dtype=float32)
    """
    return _incomplete("gammainc", a, x, upper=False)


@shaped("a[*s], x[*s] -> [*s]")
def gammaincc(a: Any, x: Any) -> Tensor:
    """``1 - gammainc(a, x)``, with all its digits far out.

    Example:
        >>> pb.special.gammaincc(pb.tensor([1.0, 2.0]), 1.0)
        Tensor([0.36787945, 0.7357589 ], dtype=float32)
    """
    return _incomplete("gammaincc", a, x, upper=True)
