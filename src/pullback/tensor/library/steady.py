"""Logarithm, exponential and sine as sums and products alone: the same bits on every backend.

A backend has functions of its own, each within an ulp of the others. Arithmetic is rounded in one
way by all of them, so what is drawn by these is one and the same number everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from pullback.ir import expr as E
from pullback.ir.expr import Add, Div, Expr, FloorDiv, If, Less, Mul
from pullback.ir.functions import like

# Terms until what is left out is below an ulp: of atanh(s) / s, |s| <= 0.172; of exp(r),
# |r| <= 0.347; of sin(t) / t, |t| <= pi / 2.
TERMS = {"log": {32: 5, 64: 11}, "exp": {32: 8, 64: 15}, "sin": {32: 8, 64: 13}}
SHORT = {
    32: 16,
    64: 32,
}  # bits after the point of log 2's first part: times an exponent it is exact
LOG2 = Fraction("0.693147180559945309417232121458176568075500134360255254120680009")


def _parts(x: Expr) -> tuple[float, float]:
    """log 2 as a short number and the rest."""
    bits = 2 ** SHORT[x.dtype.bits]
    short = Fraction(int(LOG2 * bits), bits)
    return float(short), float(LOG2 - short)


def _series(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Horner's rule, highest power first."""
    total: Expr = like(coefficients[0], x)
    for c in coefficients[1:]:
        total = Add(Mul(total, x), like(c, x))
    return total


def _powers(span: int) -> list[int]:
    """Powers of 2 that add up to anything from 0 to `span`, the largest first."""
    return [1 << n for n in reversed(range(span.bit_length()))]


def log(x: Expr, low: int, high: int) -> Expr:
    """The natural logarithm of ``2^low <= x < 2^high``.

    ``x = 2^n m, log x = n log 2 + 2 atanh((m - 1) / (m + 1))``
    """
    m: Expr = Mul(x, like(2.0**-low, x))
    n: Expr = like(low, x)
    for power in _powers(high - low):
        above = Less(m, like(2.0**power, x))
        n = If(above, n, Add(n, like(power, x)))
        m = If(above, m, Mul(m, like(2.0**-power, x)))
    above = Less(m, like(math.sqrt(2.0), x))
    n, m = If(above, n, Add(n, like(1, x))), If(above, m, Mul(m, like(0.5, x)))
    s = Div(Add(m, like(-1, x)), Add(m, like(1, x)))
    count = TERMS["log"][x.dtype.bits]
    rest = Mul(s, _series(Mul(s, s), [2.0 / (2 * k + 1) for k in reversed(range(count))]))
    short, left = _parts(x)
    return Add(Mul(n, like(short, x)), Add(rest, Mul(n, like(left, x))))


def exp(x: Expr) -> Expr:
    """``e^x = 2^n e^r, n = round(x / log 2)``, for any x but NaN."""
    most = 200.0 if x.dtype.bits == 32 else 1200.0  # beyond which it is 0 or infinite anyway
    size = E.minimum(E.maximum(x, like(-most, x)), like(most, x))
    turns = Add(Mul(size, like(1 / math.log(2.0), x)), like(0.5, x))
    n: Expr = FloorDiv(turns, like(1, x))
    short, left = _parts(x)
    r = Add(Add(size, Mul(n, like(-short, x))), Mul(n, like(-left, x)))
    count = TERMS["exp"][x.dtype.bits]
    value = _series(r, [1.0 / math.factorial(k) for k in reversed(range(count))])
    downwards = Less(n, like(0, x))
    n = If(downwards, E.negate(n), n)
    largest = 64 if x.dtype.bits == 32 else 512
    for power in [largest] * 3 + _powers(largest - 1):
        enough = Less(n, like(power, x))
        factor = If(downwards, like(2.0**-power, x), like(2.0**power, x))
        value = If(enough, value, Mul(value, factor))
        n = If(enough, n, Add(n, like(-power, x)))
    return value


def sine(t: Expr) -> Expr:
    """``sin(2 pi t)`` for ``0 <= t <= 1``; t is folded to ``|t| <= 1 / 4``, which is exact."""
    half = E.subtract(like(0.5, t), t)
    folded = If(Less(t, like(0.75, t)), half, Add(t, like(-1, t)))
    return _sine(If(Less(t, like(0.25, t)), t, folded))


def cosine(t: Expr) -> Expr:
    """``cos(2 pi t) = sin(2 pi (|t - 1/2| - 1/4))`` for ``0 <= t <= 1``"""
    shifted = Add(t, like(-0.5, t))
    size = If(Less(shifted, like(0, t)), E.negate(shifted), shifted)
    return _sine(Add(size, like(-0.25, t)))


def _sine(t: Expr) -> Expr:
    angle = Mul(t, like(2 * math.pi, t))
    count = TERMS["sin"][t.dtype.bits]
    terms = [(-1.0) ** k / math.factorial(2 * k + 1) for k in reversed(range(count))]
    return Mul(angle, _series(Mul(angle, angle), terms))
