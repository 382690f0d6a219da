"""The error function's family and the normal distribution.

``ndtr(x) = erfc(-x / sqrt 2) / 2``, ``erfcx(x) = exp(x^2) erfc(x)``
"""

from __future__ import annotations

import math
from typing import Any

from pullback.ir import expr as E
from pullback.ir import functions as F
from pullback.ir.expr import Add, Div, Expr, If, Less, Mul
from pullback.special import single_tables as S
from pullback.special import tables as T
from pullback.special.parts import Special, bell, pieces, ratio
from pullback.tensor.library import maths as M

HALF = math.sqrt(0.5)
SINGLE_END = 10.25  # erfc rounds to 0 in float32 from 10.1 on


def _erf_near(x: Expr) -> Expr:
    return Mul(x, ratio(F.square(x), T.ERF_NEAR[0]))


def positive_erfcx(a: Expr) -> Expr:
    """Of ``a >= 0``: rationals, from 5 on ``r(1 / a^2) / (a sqrt(pi))``."""
    u = F.reciprocal(E.maximum(a, F.like(5, a)))
    series = ratio(F.square(u), T.ERFCX_FAR[0])
    far = Mul(Mul(series, F.like(1 / math.sqrt(math.pi), a)), u)
    return pieces(a, T.ERFCX, T.ERFCX_ENDS, far)


def _erfcx(x: Expr) -> Expr:
    a = F.absolute(x)
    right = positive_erfcx(a)
    grown = Div(F.like(2, x), bell(E.minimum(a, F.like(27, a))))
    below = If(Less(F.like(26.7, a), a), F.like(math.inf, x), E.subtract(grown, right))
    return If(Less(x, F.like(0, x)), below, right)


def _erfc(x: Expr) -> Expr:
    a = F.absolute(x)
    far: Expr = Mul(bell(a), positive_erfcx(a))
    far = If(Less(x, F.like(0, x)), E.subtract(F.like(2, x), far), far)
    near = E.subtract(F.like(1, x), _erf_near(x))
    return If(Less(a, F.like(0.5, x)), near, far)


def _single_erfc(x: Expr) -> Expr:
    """``exp(-a^2) r(a)``, below 0 two less that; the square of a float32 is exact in float64."""
    a = E.minimum(F.absolute(x), F.like(SINGLE_END, x))
    far = Mul(E.Exp(E.negate(F.square(a))), ratio(a, S.ERFCX[0]))
    return If(Less(x, F.like(0, x)), E.subtract(F.like(2, x), far), far)


def _mills(a: Expr) -> Expr:
    """``erfcx(a / sqrt 2) / 2``, far out of ``2 / a^2``, which keeps a digit more."""
    near = Mul(positive_erfcx(Mul(a, F.like(HALF, a))), F.like(0.5, a))
    u = F.reciprocal(E.maximum(a, F.like(7.5, a)))
    series = ratio(Mul(F.square(u), F.like(2, a)), T.ERFCX_FAR[0])
    far = Mul(Mul(series, F.like(1 / math.sqrt(2 * math.pi), a)), u)
    return If(Less(a, F.like(7.5, a)), near, far)


def _ndtr(x: Expr) -> Expr:
    a = F.absolute(x)
    tail = Mul(bell(a, 0.5), _mills(a))
    far = If(Less(x, F.like(0, x)), tail, E.subtract(F.like(1, x), tail))
    middle = Mul(_erf_near(Mul(x, F.like(HALF, x))), F.like(0.5, x))
    return If(Less(a, F.like(0.7, x)), Add(middle, F.like(0.5, x)), far)


def _log_ndtr(x: Expr) -> Expr:
    a = F.absolute(x)
    part = E.Log(_mills(a))
    low = E.subtract(part, Mul(F.square(x), F.like(0.5, x)))
    high = F.log1p(E.negate(_ndtr(E.negate(x))))
    value = If(Less(x, F.like(-1, x)), low, high)
    return If(E.Equal(x, F.like(-math.inf, x)), F.like(-math.inf, x), value)


def _quantile(p: Expr) -> Expr:
    """``-ndtri(p)`` of small p: rationals in ``r = sqrt(-log p)``, far out and ``sqrt(2) r``."""
    r = E.Sqrt(E.negate(E.Log(p)))
    far = Add(Mul(r, F.like(math.sqrt(2), r)), pieces(r, T.NDTRI_FAR, T.NDTRI_FAR_ENDS))
    return pieces(r, T.NDTRI_TAIL, T.NDTRI_TAIL_ENDS, far)


def _ends(x: Expr, at: Expr, low: float, high: float) -> Expr:
    """`x` inside of low..high, infinite at both, NaN outside."""
    below, above = F.like(low, at), F.like(high, at)
    value = If(E.Equal(at, below), F.like(-math.inf, at), x)
    value = If(E.Equal(at, above), F.like(math.inf, at), value)
    inside = E.And(F.less_equal(below, at), F.less_equal(at, above))
    return If(inside, value, F.like(math.nan, at))


def _erfinv(x: Expr) -> Expr:
    a = F.absolute(x)
    near = Mul(x, ratio(F.square(x), T.ERFINV_NEAR[0]))
    p = Mul(E.subtract(F.like(1, x), a), F.like(0.5, x))
    open_ = E.And(Less(F.like(0, p), p), Less(p, F.like(0.2, p)))
    far = Mul(_quantile(If(open_, p, F.like(0.1, p))), F.like(HALF, x))
    signed = If(Less(x, F.like(0, x)), E.negate(far), far)
    return _ends(If(Less(a, F.like(0.75, x)), near, signed), x, -1.0, 1.0)


def _single_erfinv(x: Expr) -> Expr:
    """``x r(x^2)``, from 0.75 on a rational in ``sqrt(-log p)``, ``p = (1 - |x|) / 2``."""
    a = F.absolute(x)
    p = Mul(E.subtract(F.like(1, x), a), F.like(0.5, x))
    root = E.Sqrt(E.negate(E.Log(If(Less(F.like(0, p), p), p, F.like(0.1, p)))))
    side = If(Less(x, F.like(0, x)), F.like(-HALF, x), F.like(HALF, x))
    near = Mul(x, ratio(F.square(x), S.ERFINV_NEAR[0]))
    far = Mul(side, ratio(root, S.NDTRI_TAIL[0]))
    return _ends(If(Less(a, F.like(0.75, x)), near, far), x, -1.0, 1.0)


def _ndtri(p: Expr) -> Expr:
    half = F.like(0.5, p)
    q = E.subtract(p, half)
    twice = Mul(q, F.like(2, p))
    near = Mul(Mul(twice, ratio(F.square(twice), T.ERFINV_NEAR[0])), F.like(math.sqrt(2), p))
    low = Less(p, half)
    tail = If(low, p, E.subtract(F.like(1, p), p))
    open_ = E.And(Less(F.like(0, p), tail), Less(tail, F.like(0.2, p)))
    far = _quantile(If(open_, tail, F.like(0.1, p)))
    signed = If(low, E.negate(far), far)
    return _ends(If(Less(F.absolute(q), F.like(0.375, p)), near, signed), p, 0.0, 1.0)


def _bell_of(x: Any, scale: float) -> Any:
    return M.exp(M.square(x) * -scale)


TWO = 2 / math.sqrt(math.pi)
_erfc_of = Special("erfc", _erfc, (lambda x: _bell_of(x, 1.0) * -TWO,), _single_erfc)
_erfcx_of = Special("erfcx", _erfcx, (lambda x: erfcx(x) * x * 2.0 - TWO,))
_erfinv_of = Special(
    "erfinv", _erfinv, (lambda x: _bell_of(erfinv(x), -1.0) / TWO,), _single_erfinv
)
_ndtr_of = Special("ndtr", _ndtr, (lambda x: _bell_of(x, 0.5) / math.sqrt(2 * math.pi),))
_log_ndtr_of = Special(
    "log_ndtr", _log_ndtr, (lambda x: math.sqrt(2 / math.pi) / erfcx(x * -HALF),)
)
_ndtri_of = Special("ndtri", _ndtri, (lambda p: _bell_of(ndtri(p), -0.5) * math.sqrt(2 * math.pi),))


def erfc(x: Any) -> Any:
    """``1 - erf(x)``, with all its digits far out.

    ``pb.special.erfc(pb.tensor(10.0, "float64"))`` is ``2.09e-45``.

    Example:
        >>> pb.special.erfc(pb.tensor([0.0, 1.0]))
        Tensor([1.       , 0.1572992], dtype=float32)
    """
    return _erfc_of(x)


def erfcx(x: Any) -> Any:
    """``exp(x^2) erfc(x)``; infinite below -26.6.

    Example:
        >>> pb.special.erfcx(pb.tensor([0.0, 1.0]))
        Tensor([1.        , 0.42758358], dtype=float32)
    """
    return _erfcx_of(x)


def erfinv(x: Any) -> Any:
    """The inverse of erf: ``erf(erfinv(x)) = x``; infinite at -1 and 1, NaN beyond.

    Example:
        >>> pb.special.erfinv(pb.tensor([0.0, 0.5]))
        Tensor([0.        , 0.47693628], dtype=float32)
    """
    return _erfinv_of(x)


def ndtr(x: Any) -> Any:
    """The normal distribution function, ``erfc(-x / sqrt 2) / 2``.

    Example:
        >>> pb.special.ndtr(pb.tensor([0.0, 1.0]))
        Tensor([0.5      , 0.8413448], dtype=float32)
    """
    return _ndtr_of(x)


def log_ndtr(x: Any) -> Any:
    """``log ndtr(x)``, with all its digits far out.

    Example:
        >>> pb.special.log_ndtr(pb.tensor([0.0, 1.0]))
        Tensor([-0.6931472 , -0.17275378], dtype=float32)
    """
    return _log_ndtr_of(x)


def ndtri(p: Any) -> Any:
    """The inverse of ndtr, the normal quantile; infinite at 0 and 1, NaN beyond.

    Example:
        >>> pb.special.ndtri(pb.tensor([0.5, 0.75]))
        Tensor([0.        , 0.67448974], dtype=float32)
    """
    return _ndtri_of(p)
