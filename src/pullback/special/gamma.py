"""The gamma function's family: logarithm, derivatives, beta, zeta.

``gammaln(x) = log |gamma(x)|``, ``digamma = gammaln'``, ``polygamma(n) = digamma^(n)``
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from pullback.ir import expr as E
from pullback.ir import functions as F
from pullback.ir.expr import Add, And, Div, Equal, Expr, If, Less, Mul
from pullback.special import single_tables as S
from pullback.special import tables as T
from pullback.special.parts import Special, cospi, horner, is_whole, pieces, sinpi
from pullback.tensor.library import maths as M
from pullback.tensor.shaped import shaped
from pullback.tensor.values.functions import is_inf

TERMS = 12  # of Euler and Maclaurin's correction
SHIFT = 10  # terms summed one by one before it
HIGHEST = 100  # derivative of digamma
MULTIPLIED = 3  # powers up to it are products, whose roundings add up


def _bernoulli(count: int) -> list[Fraction]:
    """B(2), B(4), .. as fractions."""
    known: list[Fraction] = []
    for m in range(2 * count + 1):
        total = sum((math.comb(m + 1, k) * b for k, b in enumerate(known)), Fraction(0))
        known.append(Fraction(1) if m == 0 else -total / (m + 1))
    return [known[2 * k] for k in range(1, count + 1)]


BERNOULLI = _bernoulli(TERMS)
STIRLING = [float(b / (2 * k * (2 * k - 1))) for k, b in enumerate(BERNOULLI[:10], 1)]
STIRLING_SINGLE = 3  # terms of it that float32 sees from 8 on
DIGAMMA_SERIES = [float(b / (2 * k)) for k, b in enumerate(BERNOULLI[:9], 1)]


def _positive_lgamma(a: Expr, single: bool = False) -> Expr:
    """Of ``a > 0``: rationals times the zeros at 1 and 2, from 8 on Stirling's series."""
    tables = S if single else T
    terms = STIRLING[:STIRLING_SINGLE] if single else STIRLING
    small = Less(a, F.like(0.5, a))
    y = If(small, Add(a, F.like(1, a)), a)
    first = If(small, a, Add(a, F.like(-1, a)))
    zeros = Mul(first, Add(y, F.like(-2, a)))
    near: Expr = Mul(zeros, pieces(y, tables.LGAMMA_NEAR, tables.LGAMMA_NEAR_ENDS))
    near = If(small, E.subtract(near, E.Log(a)), near)
    u = F.reciprocal(a)
    series = Mul(horner(F.square(u), terms[::-1]), u)
    constant = F.like(0.5 * math.log(2 * math.pi) - 0.5, a)
    main = Mul(Add(a, F.like(-0.5, a)), Add(E.Log(a), F.like(-1, a)))
    far = Add(main, Add(series, constant))
    middle = pieces(a, tables.LGAMMA, tables.LGAMMA_ENDS, far)
    return If(Less(a, F.like(3, a)), near, middle)


def _lgamma(x: Expr, single: bool = False) -> Expr:
    """Below 0 by reflection: ``log(pi / |x sin(pi x)|) - lgamma(-x)``."""
    a = F.absolute(x)
    value = _positive_lgamma(a, single)
    tiny = Less(a, F.like(1e-17, a))
    circle = Mul(a, F.absolute(sinpi(a)))
    mirrored = E.subtract(E.Log(Div(F.like(math.pi, a), circle)), value)
    below = If(tiny, E.negate(E.Log(a)), mirrored)
    value = If(Less(x, F.like(0, x)), below, value)
    return If(is_inf(x), F.like(math.inf, x), value)


def _digamma(x: Expr) -> Expr:
    """Below 0 by reflection: ``digamma(1 - x) - pi cot(pi x)``; below 1 of x + 1."""
    one = F.like(1, x)
    negative = Less(x, F.like(0, x))
    y = If(negative, E.subtract(one, x), x)
    low = Less(y, one)
    z = If(low, Add(y, one), y)
    u = F.reciprocal(z)
    s = F.square(u)
    series = Mul(horner(s, DIGAMMA_SERIES[::-1]), s)
    half = Mul(u, F.like(0.5, x))
    far = E.subtract(E.subtract(E.Log(z), half), series)
    middle = pieces(z, T.DIGAMMA, T.DIGAMMA_ENDS, far)
    high, rest = T.DIGAMMA_ROOT
    away = Add(Add(z, F.like(-high, z)), F.like(-rest, z))
    near = Mul(away, pieces(z, T.DIGAMMA_NEAR, T.DIGAMMA_NEAR_ENDS))
    value = If(Less(z, F.like(2, z)), near, middle)
    value = If(low, E.subtract(value, F.reciprocal(y)), value)
    circle = Mul(F.like(math.pi, x), Div(cospi(x), sinpi(x)))
    value = If(negative, E.subtract(value, circle), value)
    return If(And(negative, is_whole(x)), F.like(math.nan, x), value)


def _power(base: Expr, exponent: Expr | int) -> Expr:
    if not isinstance(exponent, int):
        return F.power(base, E.negate(exponent))
    if exponent > MULTIPLIED:
        return F.power(base, F.like(-exponent, base))
    return F.reciprocal(F.integer_power(base, exponent))


def _shifted_power(q: Expr, k: int, s: Expr | int) -> Expr:
    """``(q + k)^-s``; what the sum loses, times a large s, is given back to first order."""
    if not k:
        return _power(q, s)
    a = Add(q, F.like(k, q))
    power = _power(a, s)
    if not isinstance(s, int) or s <= MULTIPLIED:
        return power
    lost = E.subtract(q, Add(a, F.like(-k, q)))
    return E.subtract(power, Mul(power, Div(Mul(lost, F.like(s, q)), a)))


def _hurwitz(s: Expr | int, q: Expr) -> Expr:
    """``sum[k >= 0] (q + k)^-s`` for s > 1, q > 0, by Euler and Maclaurin's formula."""

    def plus(number: float) -> Expr:
        return F.like(s + number, q) if isinstance(s, int) else Add(s, F.like(number, q))

    near = Less(q, F.like(2 * SHIFT, q))
    a = If(near, Add(q, F.like(SHIFT, q)), q)
    power = If(near, _shifted_power(q, SHIFT, s), _power(q, s))
    u = F.reciprocal(F.square(a))
    series: Expr = F.like(0, q)
    for j in reversed(range(1, TERMS + 1)):
        scale = BERNOULLI[j - 1] / math.factorial(2 * j)
        series = Add(series, F.like(float(scale), q))
        if j > 1:
            series = Mul(series, Mul(u, Mul(plus(2 * j - 2), plus(2 * j - 3))))
    tail = Mul(Mul(series, plus(0)), F.reciprocal(a))
    whole = Add(Add(Div(a, plus(-1)), F.like(0.5, q)), tail)
    far = Mul(power, whole)
    total: Expr = far
    for k in reversed(range(SHIFT)):
        total = Add(total, _shifted_power(q, k, s))
    return If(is_inf(q), F.like(0, q), If(near, total, far))


def _zeta(s: Expr, q: Expr) -> Expr:
    zero, one = F.like(0, q), F.like(1, q)
    good = And(Less(one, s), Less(zero, q))
    value = _hurwitz(If(good, s, F.like(2, s)), If(good, q, one))
    pole = E.Or(Equal(s, one), And(F.less_equal(q, zero), is_whole(q)))
    outside = If(And(pole, F.less_equal(one, s)), F.like(math.inf, q), F.like(math.nan, q))
    return If(good, value, outside)


def _cotangent(n: int) -> list[int]:
    """The polynomial of cot(pi x), lowest power first, that ``d^n cot(pi x) / (-pi)^n`` is."""
    known = [0, 1]
    for _ in range(n):
        slope = [k * c for k, c in enumerate(known)][1:]
        known = [0] * (len(slope) + 2)
        for k, c in enumerate(slope):
            known[k] += c
            known[k + 2] += c
    return known


def _polygamma(n: int) -> Callable[[Expr], Expr]:
    """``(-1)^(n + 1) n! zeta(n + 1, x)``; below 0 by reflection, of cotangents."""
    sign = -1.0 if n % 2 == 0 else 1.0

    def body(x: Expr) -> Expr:
        negative = Less(x, F.like(0, x))
        y = If(negative, E.subtract(F.like(1, x), x), x)
        value = Mul(_hurwitz(n + 1, y), F.like(sign * math.factorial(n), x))
        cotangent = Div(cospi(x), sinpi(x))
        circle = horner(cotangent, [float(c) for c in reversed(_cotangent(n))])
        circle = Mul(circle, F.like(math.pi * (-math.pi) ** n, x))
        mirrored = E.subtract(Mul(value, F.like((-1.0) ** n, x)), circle)
        pole = F.like(math.inf if n % 2 else math.nan, x)
        mirrored = If(is_whole(x), pole, mirrored)
        return If(negative, mirrored, value)

    return body


@functools.cache
def _derivative(n: int) -> Special:
    """polygamma of order n, as a function whose slope is the next one."""
    body = _digamma if n == 0 else _polygamma(n)
    name = "digamma" if n == 0 else f"polygamma_{n}"
    return Special(name, body, (lambda x: _derivative(n + 1)(x),))


_gammaln = Special(
    "gammaln", _lgamma, (lambda x: digamma(x),), functools.partial(_lgamma, single=True)
)
_zeta_of = Special("zeta", _zeta)


def gammaln(x: Any) -> Any:
    """``log |gamma(x)|``; infinite at 0 and the negative whole numbers. Also called `lgamma`.

    Example:
        >>> pb.special.gammaln(pb.tensor([1.0, 4.0]))
        Tensor([-0.       ,  1.7917595], dtype=float32)
    """
    return _gammaln(x)


def digamma(x: Any) -> Any:
    """``d gammaln(x) / dx``; NaN at the negative whole numbers. Also called `psi`.

    ``pb.special.digamma(pb.tensor(1.0))`` is ``-0.5772`` (Euler's constant).

    Example:
        >>> pb.special.digamma(pb.tensor([1.0, 2.0]))
        Tensor([-0.5772157 ,  0.42278433], dtype=float32)
    """
    return _derivative(0)(x)


@shaped("x[s...] -> [s...]", where=f"0 <= int(n) <= {HIGHEST}")
def polygamma(n: int, x: Any) -> Any:
    """``d^n digamma(x) / dx^n``

    ``pb.special.polygamma(1, pb.tensor(1.0))`` is ``pi^2 / 6``.

    Example:
        >>> pb.special.polygamma(1, pb.tensor([1.0, 2.0]))
        Tensor([1.644934  , 0.64493406], dtype=float32)
    """
    return _derivative(int(n))(x)


@shaped("x[s...] -> [s...]", where="1 <= int(d) <= 1000")
def multigammaln(x: Any, d: int) -> Any:
    """``d (d - 1) / 4 log pi + sum[i < d] gammaln(x - i / 2)``, whose terms are written out.

    Example:
        >>> pb.special.multigammaln(pb.tensor([3.0, 4.0]), 2)
        Tensor([1.550195 , 3.5650978], dtype=float32)
    """
    total = gammaln(x)
    for i in range(1, d):
        total = total + gammaln(M.subtract(x, i / 2))
    return total + d * (d - 1) / 4 * math.log(math.pi)


@shaped("a[*s], b[*s] -> [*s]")
def betaln(a: Any, b: Any) -> Any:
    """``log |beta(a, b)| = gammaln(a) + gammaln(b) - gammaln(a + b)``

    Example:
        >>> pb.special.betaln(pb.tensor([1.0, 2.0]), 3.0)
        Tensor([-1.0986123, -2.4849067], dtype=float32)
    """
    return gammaln(a) + gammaln(b) - gammaln(M.add(a, b))


@shaped("a[*s], b[*s] -> [*s]")
def beta(a: Any, b: Any) -> Any:
    """``gamma(a) gamma(b) / gamma(a + b)`` of positive arguments.

    Example:
        >>> pb.special.beta(pb.tensor([1.0, 2.0]), 3.0)
        Tensor([0.33333334, 0.08333334], dtype=float32)
    """
    return M.exp(betaln(a, b))


@shaped("x[*s], q[*s] -> [*s]")
def zeta(x: Any, q: Any = 1.0) -> Any:
    """``sum[k >= 0] (q + k)^-x``, Hurwitz's zeta function of q > 0; NaN for x < 1, infinite at 1.

    ``pb.special.zeta(pb.tensor(2.0))`` is ``pi^2 / 6``.

    Example:
        >>> pb.special.zeta(pb.tensor([2.0, 4.0]))
        Tensor([1.644934 , 1.0823232], dtype=float32)
    """
    return _zeta_of(x, q)
