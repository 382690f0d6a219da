"""Numbers that are the sum of two floats: about 75 bits, for what an exponential would magnify.

``(high, low)``, ``|low| <= ulp(high) / 2``. Products are made of parts of 24 bits, whose products
are exact: a multiply-add in their place rounds nothing away and nothing twice.

Source: Dekker 1971, A floating-point technique for extending the available precision.
"""

from __future__ import annotations

import math
from fractions import Fraction

from pullback.ir import expr as E
from pullback.ir import functions as F
from pullback.ir.dtype import float32, float64
from pullback.ir.expr import Add, Cast, Div, Expr, If, Less, Mul

Two = tuple[Expr, Expr]
TERMS = 12  # of atanh from t^5 on, |t| < 0.172: the next is 1e-21
LN2 = Fraction("0.693147180559945309417232121458176568075500134360255254120680009")
LN2_HIGH = float(Fraction(int(LN2 * 2**40), 2**40))  # times a power's exponent, exact
LN2_LOW = float(LN2 - Fraction(LN2_HIGH))
THIRDS = (2 / 3, float(Fraction(2, 3) - Fraction(2 / 3)))
FURTHER = [2 / (2 * k + 5) for k in range(TERMS)]


def total(a: Expr, b: Expr) -> Two:
    """``a + b``, exactly."""
    high = Add(a, b)
    part = E.subtract(high, a)
    return high, Add(E.subtract(a, E.subtract(high, part)), E.subtract(b, part))


def _ordered(a: Expr, b: Expr) -> Two:
    """``a + b`` where b is the smaller."""
    high = Add(a, b)
    return high, E.subtract(b, E.subtract(high, a))


def plus(a: Two, b: Two) -> Two:
    high, low = total(a[0], b[0])
    return _ordered(high, Add(low, Add(a[1], b[1])))


def minus(a: Two) -> Two:
    return E.negate(a[0]), E.negate(a[1])


def _parts(x: Expr) -> Two:
    """24 bits and the rest."""
    high = Cast(Cast(x, float32), float64)
    return high, E.subtract(x, high)


def product(a: Expr, b: Expr) -> Two:
    """``a b`` of sizes that float32 has."""
    (first, rest), (second, other) = _parts(a), _parts(b)
    low = Add(Add(Mul(first, other), Mul(rest, second)), Mul(rest, other))
    return _ordered(Mul(first, second), low)


def times(a: Two, b: Two) -> Two:
    high, low = product(a[0], b[0])
    return _ordered(high, Add(low, Add(Mul(a[0], b[1]), Mul(a[1], b[0]))))


def quotient(a: Two, b: Two) -> Two:
    first = Div(a[0], b[0])
    high, low = product(first, b[0])
    rest = E.subtract(E.subtract(E.subtract(a[0], high), low), Mul(first, b[1]))
    return _ordered(first, Div(Add(rest, a[1]), b[0]))


def number(high: float, low: float, like: Expr) -> Two:
    return F.like(high, like), F.like(low, like)


def _halved(x: Expr) -> tuple[Expr, Expr]:
    """The whole number next to ``log2 x``, as a sum of two halves."""
    k = F.floor(Add(Mul(E.Log(x), F.like(1 / math.log(2), x)), F.like(0.5, x)))
    half = F.floor(Mul(k, F.like(0.5, x)))
    return half, E.subtract(k, half)


def deviance(a: Expr, x: Expr) -> Two:
    """``x - a - a log(x / a)`` of x, a > 0: not negative, 0 where they are the same.

    With ``t = (x - b) / (x + b)``, b being a times a power of two next to x / a, the logarithm is
    ``k log 2 + 2 atanh t``. For k = 0 what would cancel is left out:
    ``(x - a) t - 2 a (t^3 / 3 + t^5 / 5 + ..)``.

    Source: Loader 2000, Fast and accurate computation of binomial probabilities.
    """
    halves = _halved(Div(x, a))
    scaled = x
    for half in halves:
        scaled = Mul(scaled, F.power(F.like(2, x), E.negate(half)))
    k = Add(*halves)
    away = total(scaled, E.negate(a))
    t = quotient(away, total(scaled, a))
    square = times(t, t)
    cube = times(times(t, square), number(*THIRDS, x))
    series: Expr = F.like(FURTHER[-1], x)
    for c in reversed(FURTHER[:-1]):
        series = Add(Mul(series, square[0]), F.like(c, x))
    fifth = Mul(Mul(t[0], Mul(square[0], square[0])), series)
    rest = times(_ordered(cube[0], Add(cube[1], fifth)), (a, F.like(0, x)))
    near = plus(times(away, t), minus(rest))
    shift = product(a, Mul(k, F.like(LN2_HIGH, x)))
    shift = _ordered(shift[0], Add(shift[1], Mul(a, Mul(k, F.like(LN2_LOW, x)))))
    whole = plus(plus(times((Add(a, a), F.like(0, x)), t), rest), shift)
    far = plus(total(x, E.negate(a)), minus(whole))
    still = E.Equal(k, F.like(0, x))
    return If(still, near[0], far[0]), If(still, near[1], far[1])


def exp_minus(x: Two) -> tuple[Expr, Expr]:
    """``exp(-x)`` as a float, and the rest of x, that has still to be taken away."""
    most = E.minimum(x[0], F.like(800, x[0]))
    return E.Exp(E.negate(most)), If(Less(x[0], F.like(800, x[0])), x[1], F.like(0, x[0]))
