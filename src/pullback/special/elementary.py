"""Products with logarithms, odds, cube roots, the cardinal sine, modified Bessel functions."""

from __future__ import annotations

import math
from typing import Any

from pullback.ir import expr as E
from pullback.ir import functions as F
from pullback.ir.expr import Div, Equal, Expr, If, Less, Mul
from pullback.special import tables as T
from pullback.special.parts import Special, horner, ratio, sinpi, where_zero
from pullback.tensor.library import maths as M
from pullback.tensor.library import ops as O
from pullback.tensor.shaped import shaped
from pullback.tensor.values.functions import is_inf, is_nan

SINE = [(-1.0) ** k * math.pi ** (2 * k) / math.factorial(2 * k + 1) for k in range(12)]
BESSEL = [  # of (x / 2)^2, by order: 16^24 / 24!^2 is 2e-19
    [1 / (math.factorial(k) * math.factorial(k + n)) for k in range(25)] for n in (0, 1)
]


def _xlogy(x: Expr, y: Expr) -> Expr:
    none = _none(x, y, 0.0)
    return If(none, F.like(0, x), Mul(x, E.Log(If(none, F.like(1, y), y))))


def _xlog1py(x: Expr, y: Expr) -> Expr:
    none = _none(x, y, -1.0)
    return If(none, F.like(0, x), Mul(x, F.log1p(If(none, F.like(0, y), y))))


def _none(x: Expr, y: Expr, low: float) -> Expr:
    """Whether x is 0 beside a logarithm that is not finite."""
    outside = E.Or(F.less_equal(y, F.like(low, y)), is_inf(y))
    return E.And(Equal(x, F.like(0, x)), outside)


def _entr(x: Expr) -> Expr:
    zero = F.like(0, x)
    positive = Less(zero, x)
    entropy = E.negate(Mul(x, E.Log(If(positive, x, F.like(1, x)))))
    outside = If(Equal(x, zero), zero, F.like(-math.inf, x))
    return If(is_nan(x), x, If(positive, entropy, outside))


def _rel_entr(x: Expr, y: Expr) -> Expr:
    """Of near numbers ``x log1p((x - y) / y)``; where the quotient is no number, two logarithms."""
    zero, one = F.like(0, x), F.like(1, x)
    inside = E.And(Less(zero, x), Less(zero, y))
    a, b = If(inside, x, one), If(inside, y, one)
    share = Div(a, b)
    plain = E.And(Less(F.like(1e-300, x), share), Less(share, F.like(1e300, x)))
    apart = If(plain, E.Log(If(plain, share, one)), E.subtract(E.Log(a), E.Log(b)))
    near = Less(F.absolute(E.subtract(share, one)), F.like(0.5, x))
    rest = Div(E.subtract(a, b), b)
    value: Expr = Mul(x, If(near, F.log1p(If(near, rest, zero)), apart))
    outside = If(E.And(Equal(x, zero), F.less_equal(zero, y)), zero, F.like(math.inf, x))
    value = If(inside, value, outside)
    return If(E.Or(is_nan(x), is_nan(y)), F.like(math.nan, x), value)


def _kl_div(x: Expr, y: Expr) -> Expr:
    return E.subtract(_rel_entr(x, y), E.subtract(x, y))


def _cbrt(x: Expr) -> Expr:
    """``exp(log |x| / 3)`` and a step of Newton's method."""
    a = F.absolute(x)
    plain = E.And(Less(F.like(0, x), a), Less(a, F.like(math.inf, x)))
    inner = If(plain, a, F.like(1, x))
    y: Expr = E.Exp(Mul(E.Log(inner), F.like(1 / 3, x)))
    y = E.subtract(y, Mul(E.subtract(y, Div(inner, F.square(y))), F.like(1 / 3, x)))
    size = If(plain, y, a)
    return If(Less(x, F.like(0, x)), E.negate(size), If(Equal(x, F.like(0, x)), x, size))


def _logit(p: Expr) -> Expr:
    """Near a half ``2 atanh(2 p - 1)``, whose argument is exact; else ``log(p / (1 - p))``."""
    far = E.Log(Div(p, E.subtract(F.like(1, p), p)))
    twice = E.subtract(Mul(p, F.like(2, p)), F.like(1, p))
    middle = Less(F.absolute(twice), F.like(0.5, p))
    near = Mul(F.atanh(If(middle, twice, F.like(0, p))), F.like(2, p))
    return If(middle, near, far)


def _sinc(x: Expr) -> Expr:
    """Near 0 a polynomial in x^2, so that derivatives keep their digits."""
    near = horner(F.square(x), SINE[::-1])
    close = Less(F.absolute(x), F.like(0.5, x))
    apart = If(close, F.like(1, x), x)
    far = Div(sinpi(apart), Mul(apart, F.like(math.pi, x)))
    value = If(close, near, far)
    return If(is_inf(x), F.like(0, x), value)


def bessel_i(order: int, a: Expr) -> tuple[Expr, Expr, Expr]:
    """Whether ``a >= 0`` is near 0, the series there, and ``exp(-a) I(a)`` far out."""
    near = Less(a, F.like(8, a))
    half = Mul(a, F.like(0.5, a))
    series = horner(F.square(If(near, half, F.like(0, a))), BESSEL[order][::-1])
    series = Mul(series, half) if order else series
    u = F.reciprocal(E.maximum(a, F.like(8, a)))
    table = (T.I1_FAR if order else T.I0_FAR)[0]
    return near, series, Mul(ratio(u, table), E.Sqrt(u))


def _i(order: int, x: Expr) -> Expr:
    a = F.absolute(x)
    near, series, scaled = bessel_i(order, a)
    large = Less(F.like(700, a), a)
    root = E.Exp(Mul(a, F.like(0.5, a)))
    grown = If(large, Mul(Mul(scaled, root), root), Mul(scaled, E.Exp(a)))
    value = If(is_inf(x), a, If(near, series, grown))
    return If(Less(x, F.like(0, x)), E.negate(value), value) if order else value


def _ie(order: int, x: Expr) -> Expr:
    a = F.absolute(x)
    near, series, scaled = bessel_i(order, a)
    value = If(near, Mul(series, E.Exp(E.negate(a))), scaled)
    return If(Less(x, F.like(0, x)), E.negate(value), value) if order else value


_i0 = Special("i0", lambda x: _i(0, x), (lambda x: i1(x),))
_i1 = Special(
    "i1", lambda x: _i(1, x), (lambda x: i0(x) - where_zero(x, 0.5, lambda y: i1(y) / y),)
)
_i0e = Special("i0e", lambda x: _ie(0, x), (lambda x: i1e(x) - M.sign(x) * i0e(x),))
_i1e = Special(
    "i1e",
    lambda x: _ie(1, x),
    (lambda x: i0e(x) - where_zero(x, 0.5, lambda y: i1e(y) / y) - M.sign(x) * i1e(x),),
)
_logit_of = Special("logit", _logit, (lambda p: 1.0 / (p * (1.0 - p)),))
_of = {
    f.name: f
    for f in (
        Special("xlogy", _xlogy),
        Special("xlog1py", _xlog1py),
        Special("entr", _entr),
        Special("rel_entr", _rel_entr),
        Special("kl_div", _kl_div),
        Special("cbrt", _cbrt, (lambda x: 1.0 / (3.0 * M.square(cbrt(x))),)),
        Special("sinc", _sinc),
    )
}


@shaped("x[*s], y[*s] -> [*s]")
def xlogy(x: Any, y: Any) -> Any:
    """``x log y``, 0 where x is 0 and y a number.

    Example:
        >>> pb.special.xlogy(pb.tensor([0.0, 1.0]), 2.0)
        Tensor([0.       , 0.6931472], dtype=float32)
    """
    return _of["xlogy"](x, y)


@shaped("x[*s], y[*s] -> [*s]")
def xlog1py(x: Any, y: Any) -> Any:
    """``x log(1 + y)``, 0 where x is 0 and y a number.

    Example:
        >>> pb.special.xlog1py(pb.tensor([0.0, 1.0]), 1.0)
        Tensor([0.       , 0.6931472], dtype=float32)
    """
    return _of["xlog1py"](x, y)


def entr(x: Any) -> Any:
    """``-x log x``, 0 at 0, -inf below.

    Example:
        >>> pb.special.entr(pb.tensor([0.0, 0.5, 1.0]))
        Tensor([ 0.       ,  0.3465736, -0.       ], dtype=float32)
    """
    return _of["entr"](x)


@shaped("x[*s], y[*s] -> [*s]")
def rel_entr(x: Any, y: Any) -> Any:
    """``x log(x / y)``, the terms of a relative entropy: 0 where x is 0, inf where one is below 0.

    Example:
        >>> pb.special.rel_entr(pb.tensor([0.0, 1.0]), 0.5)
        Tensor([0.       , 0.6931472], dtype=float32)
    """
    return _of["rel_entr"](x, y)


@shaped("x[*s], y[*s] -> [*s]")
def kl_div(x: Any, y: Any) -> Any:
    """``x log(x / y) - x + y``, 0 where both are equal. The loss is `nn.functional.kl_div`.

    Example:
        >>> pb.special.kl_div(pb.tensor([0.0, 1.0]), 0.5)
        Tensor([0.5       , 0.19314718], dtype=float32)
    """
    return _of["kl_div"](x, y)


def cbrt(x: Any) -> Any:
    """The cube root, that of a negative number negative; its derivative at 0 is inf.

    Example:
        >>> pb.special.cbrt(pb.tensor([-8.0, 27.0]))
        Tensor([-2.,  3.], dtype=float32)
    """
    return _of["cbrt"](x)


def sinc(x: Any) -> Any:
    """``sin(pi x) / (pi x)``, 1 at 0.

    Example:
        >>> pb.special.sinc(pb.tensor([0.0, 0.5]))
        Tensor([1.        , 0.63661975], dtype=float32)
    """
    return _of["sinc"](x)


@shaped("x[s...] -> [s...]", where="0 <= eps <= 0.5")
def logit(x: Any, eps: float | None = None) -> Any:
    """``log(x / (1 - x))``, of x clipped to ``eps..1 - eps`` if that is given.

    Example:
        >>> pb.special.logit(pb.tensor([0.5, 0.75]))
        Tensor([0.       , 1.0986123], dtype=float32)
    """
    return _logit_of(x if eps is None else O.clip(x, eps, 1.0 - eps))


def expit(x: Any) -> Any:
    """``1 / (1 + exp(-x))``, the inverse of logit; `pb.sigmoid`.

    Example:
        >>> pb.special.expit(pb.tensor([0.0, 1.0]))
        Tensor([0.5      , 0.7310586], dtype=float32)
    """
    return M.sigmoid(x)


def log_expit(x: Any) -> Any:
    """``log(1 / (1 + exp(-x)))``; `pb.log_sigmoid`.

    Example:
        >>> pb.special.log_expit(pb.tensor([0.0, 1.0]))
        Tensor([-0.6931472, -0.3132617], dtype=float32)
    """
    return M.log_sigmoid(x)


def i0(x: Any) -> Any:
    """The modified Bessel function of order 0, ``sum[k] (x / 2)^2k / k!^2``.

    Example:
        >>> pb.special.i0(pb.tensor([0.0, 1.0]))
        Tensor([1.       , 1.2660658], dtype=float32)
    """
    return _i0(x)


def i1(x: Any) -> Any:
    """The modified Bessel function of order 1, the derivative of `i0`.

    Example:
        >>> pb.special.i1(pb.tensor([0.0, 1.0]))
        Tensor([0.       , 0.5651591], dtype=float32)
    """
    return _i1(x)


def i0e(x: Any) -> Any:
    """``exp(-|x|) i0(x)``

    Example:
        >>> pb.special.i0e(pb.tensor([0.0, 1.0]))
        Tensor([1.       , 0.4657596], dtype=float32)
    """
    return _i0e(x)


def i1e(x: Any) -> Any:
    """``exp(-|x|) i1(x)``

    Example:
        >>> pb.special.i1e(pb.tensor([0.0, 1.0]))
        Tensor([0.        , 0.20791042], dtype=float32)
    """
    return _i1e(x)
