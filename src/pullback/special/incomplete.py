"""The incomplete gamma functions: of the two tails the one below a half, the other is 1 less it.

``gammainc(a, x) = integral[0..x] t^(a - 1) exp(-t) dt / gamma(a)``, ``gammaincc = 1 - gammainc``

Near ``x = a`` of large a by Temme's uniform expansion; else below the median by the series of
positive terms, above by one of ``(a - 1) (a - 2) .. / x^k``, which ends in a continued fraction.
What all are multiplied by, ``x^a exp(-x) / gamma(a)``, has its exponent in two floats.

Source: DiDonato, Morris 1986, Computation of the incomplete gamma function ratios; Temme 1979, The
asymptotic expansion of the incomplete gamma functions; Gautschi 1979, A computational procedure for
incomplete gamma functions (small a and x).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

from pullback.ir import expr as E
from pullback.ir import functions as F
from pullback.ir.dtype import float64
from pullback.ir.expr import Add, Div, Expr, If, Less, Mul
from pullback.ir.graph import Rule, Value, read
from pullback.special import gamma_tables as T
from pullback.special.gamma import digamma
from pullback.special.normal import positive_erfcx
from pullback.special.parts import Special, horner, pieces, ratio
from pullback.special.twofold import deviance, exp_minus, minus, plus, times, total
from pullback.tensor.face.tensor import Tensor, operand
from pullback.tensor.library import maths as M
from pullback.tensor.library import ops as O
from pullback.tensor.library.scalars import repeated
from pullback.tensor.record.held import computable
from pullback.tensor.record.trace import compiled, current, written_out
from pullback.tensor.run.program import jit
from pullback.tensor.shaped import shaped
from pullback.tensor.values import elementwise as W

SMALL = 2.0**-54  # a term that changes no sum
HUGE = 1e34  # of a or x: from there on a step at x = a
UNIFORM, BAND = 20.0, 0.3  # from this a on, and for |x / a - 1| up to this, Temme's expansion
LITTLE, LESS = 0.5, 0.7  # x of a < 1 up to which Q and P are of series without a continued fraction
SMALL_TERMS = 17  # of those: 0.7^17 / 17! is 7e-18
FACTORS = 150.0  # of the sum above: by ratios up to 1 / (1 + BAND), at most 1e-17
MEDIAN = 1 / 3  # the median is a - 1/3 + 8 / (405 a) ..


def _growth(x: Expr) -> Expr:
    """``exp(x) - 1`` of |x| < 0.1."""
    return Mul(x, horner(x, [1 / math.factorial(k) for k in range(10, 0, -1)]))


def _reciprocal_gamma(a: Expr) -> Expr:
    """``1 / gamma(1 + a) - 1`` of a below 1."""
    return Mul(Mul(ratio(a, T.GAMMA_REST[0]), a), E.subtract(F.like(1, a), a))


def _weight_of(a: Expr, x: Expr) -> Expr:
    """``x^a exp(-x) / gamma(a)``: ``exp(-deviance - r(a)) sqrt(a / (2 pi))``, r Stirling's rest.

    Below 1 ``a exp(a log x - x) / gamma(1 + a)``, whose logarithm is the deviance from 1.
    """
    one, zero = F.like(1, a), F.like(0, a)
    large = F.less_equal(one, a)
    b = If(large, a, one)
    apart = deviance(b, x)
    log = plus(total(x, E.negate(one)), minus(apart))  # for a below 1
    near = plus((x, zero), minus(times(log, (a, zero))))
    high, low = exp_minus((If(large, apart[0], near[0]), If(large, apart[1], near[1])))
    v = F.reciprocal(b)
    rest = Mul(v, pieces(v, T.STIRLING_REST, T.STIRLING_REST_ENDS))
    root = If(large, E.Sqrt(Mul(a, F.like(1 / (2 * math.pi), a))), a)
    small = E.subtract(_reciprocal_gamma(If(large, zero, a)), low)
    grown = If(large, _growth(E.negate(Add(low, rest))), small)
    return Mul(high, Add(root, Mul(root, grown)))


def _uniform_of(a: Expr, x: Expr) -> Expr:
    """The tail beyond x on its side of a: ``exp(-y^2) (erfcx(y) / 2 + s T / sqrt(2 pi a))``.

    s is the sign of x - a, ``y^2 = deviance = a eta^2 / 2``, ``T = sum[k] C[k](eta) a^-k``
    """
    of = deviance(a, x)
    high, low = exp_minus(of)
    y = E.Sqrt(E.maximum(of[0], F.like(0, a)))
    size = Mul(y, E.Sqrt(Div(F.like(2, a), a)))
    below = Less(x, a)
    eta = If(below, E.negate(size), size)
    v = F.reciprocal(a)
    series = horner(eta, T.TEMME[-1])
    for row in reversed(T.TEMME[:-1]):
        series = Add(Mul(series, v), horner(eta, row))
    series = Div(series, E.Sqrt(Mul(a, F.like(2 * math.pi, a))))
    inside = Add(Mul(positive_erfcx(y), F.like(0.5, a)), If(below, E.negate(series), series))
    return Mul(high, E.subtract(inside, Mul(inside, low)))


def _alternating(a: Expr, x: Expr) -> Expr:
    """``sum[k >= 1] (-1)^(k - 1) x^k / (k! (a + k))``"""
    partial: Expr = F.like(0, x)
    for k in range(SMALL_TERMS, 0, -1):
        scale = (-1.0) ** (k - 1) / math.factorial(k)
        partial = Mul(Add(partial, Div(F.like(scale, x), Add(a, F.like(k, a)))), x)
    return partial


def _small_lower_of(a: Expr, x: Expr) -> Expr:
    """P of a < 1: ``x^a / gamma(1 + a) (1 - a sum)``"""
    power = F.power(x, a)
    rest = Mul(a, _alternating(a, x))
    gamma = _reciprocal_gamma(a)
    return Add(power, Mul(power, E.subtract(E.subtract(gamma, rest), Mul(gamma, rest))))


def _small_upper_of(a: Expr, x: Expr) -> Expr:
    """Q of a < 1, ``-m + (1 + m) a sum``, ``m = x^a / gamma(1 + a) - 1``, an expm1."""
    slope = Mul(ratio(a, T.GAMMA_SLOPE[0]), E.subtract(F.like(1, a), a))
    m = F.expm1(Mul(a, Add(E.Log(x), slope)))
    rest = Mul(a, _alternating(a, x))
    return E.subtract(Mul(Add(m, F.like(1, a)), rest), m)


_weight = Special("gamma_weight", _weight_of)
_uniform = Special("gamma_uniform", _uniform_of)
_small_lower = Special("gamma_small_lower", _small_lower_of)
_small_upper = Special("gamma_small_upper", _small_upper_of)


def _lower(a: Tensor, x: Tensor, active: Tensor) -> Any:
    """P, small, is ``weight / a (1 + x / (a + 1) (1 + x / (a + 2) (1 + ..)))``: that sum."""
    a, x = O.where(active, a, 1.0), O.where(active, x, 0.5)

    def step(carry: Any) -> Any:
        fraction, n = carry
        fraction = O.where(n > 0.0, 1.0 + x / (a + n) * fraction, fraction)
        return fraction, n - 1.0

    count = O.where(active, 24.0 + M.floor(M.minimum(a, 50.0) * 2.2), 0.0)
    start = (a * 0.0 + 1.0, count)
    return repeated(lambda c: O.any(c[1] > 0.0), step, start)[0]


def _upper(a: Tensor, x: Tensor, active: Tensor) -> Any:
    """Q, small, is ``weight G(a)``, ``x G(a) = 1 + (a - 1) G(a - 1)`` down to an a in (0, 1].

    ``G(a) = 1 / f(1)``, ``f(k) = x + (k - a) f(k + 1) / (f(k + 1) + k)``: all terms are positive.
    """
    a, x = O.where(active, a, 1.0), O.where(active, x, 2.0)
    factors = M.minimum(M.ceil(a) - 1.0, FACTORS)
    b = a - factors

    def inner(carry: Any) -> Any:
        f, k = carry
        return O.where(k > 0.0, x + (k - b) * (f / (f + k)), f), k - 1.0

    count = O.where(active, M.ceil(95.0 / x) + 8.0, 0.0)
    away = x - b
    guess = (away + M.sqrt(away * away + 4.0 * x * count)) * 0.5
    f, _ = repeated(lambda c: O.any(c[1] > 0.0), inner, (guess, count))

    def outer(carry: Any) -> Any:
        g, j = carry
        return O.where(j > 0.0, (1.0 + (a - j) * g) / x, g), j - 1.0

    start = (1.0 / f, O.where(active, factors, 0.0))
    return repeated(lambda c: O.any(c[1] > 0.0), outer, start)[0]


def _both(a: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """P and Q inside: of a > 0, x > 0, both finite."""
    small = a < 1.0
    step = M.logical_or(a > HUGE, x > HUGE)
    band = M.logical_and(a >= UNIFORM, M.abs(x - a) <= BAND * a)
    band = M.logical_and(band, M.logical_not(step))
    below = O.where(band, x < a, O.where(small, x < LESS, x < a - MEDIAN))
    plain = M.logical_not(M.logical_or(M.logical_or(band, small), step))
    sides = (
        M.logical_and(plain, below),
        M.logical_not(M.logical_or(M.logical_or(band, step), below)),
    )
    middle = _uniform(O.where(band, a, UNIFORM), O.where(band, x, UNIFORM))
    tiny = M.logical_and(small, x < LESS)
    b, y = O.where(tiny, a, 0.5), O.where(tiny, x, LITTLE)
    weight = _weight(O.where(band, 1.0, a), O.where(band, 1.0, x))
    series = weight / a * _lower(a, x, sides[0])
    p = O.where(band, middle, O.where(tiny, _small_lower(b, y), series))
    least = M.logical_and(small, x < LITTLE)
    above = M.logical_or(sides[1], M.logical_and(tiny, M.logical_not(least)))
    fraction = weight * _upper(a, x, above)
    q = O.where(band, middle, O.where(least, _small_upper(b, y), fraction))
    p = O.where(step, O.where(x < a, 0.0, O.where(x > a, 1.0, 0.5)), p)
    own = M.logical_or(below, step)
    lower = O.where(own, p, 1.0 - q)
    upper = O.where(M.logical_or(least, above), q, O.where(own, 1.0 - p, q))
    return lower, upper


def _values(a: Tensor, x: Tensor, upper: bool) -> Tensor:
    """P or Q of float64 arguments, special points included."""
    ends = M.logical_or(x <= 0.0, M.logical_or(M.isinf(x), M.logical_or(a <= 0.0, M.isinf(a))))
    ends = M.logical_or(ends, M.logical_or(M.isnan(a), M.isnan(x)))
    inside = _both(O.where(ends, 1.0, a), O.where(ends, 0.5, x))[1 if upper else 0]
    wrong = M.logical_or(x < 0.0, M.logical_or(a < 0.0, M.logical_and(x == 0.0, a == 0.0)))
    wrong = M.logical_or(wrong, M.logical_and(M.isinf(x), M.isinf(a)))
    wrong = M.logical_or(wrong, M.logical_or(M.isnan(a), M.isnan(x)))
    empty = M.logical_or(x == 0.0, M.isinf(a))
    edge = O.where(empty, 1.0 if upper else 0.0, 0.0 if upper else 1.0)
    value: Tensor = O.where(wrong, math.nan, O.where(ends, edge, inside))
    return value


def series(a: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """``S = sum[n] x^n / (a (a + 1) .. (a + n))``, and dS / da."""

    def step(carry: Any) -> Any:
        term, total, harmonic, slope, n = carry
        at = a + n
        term = term * x / at
        harmonic = harmonic + 1.0 / at
        return term, total + term, harmonic, slope - term * harmonic, n + 1.0

    first = 1.0 / a
    start = (first, first, first, -first * first, a * 0.0 + 1.0)
    sums = repeated(lambda c: O.any(c[0] * c[2] > M.abs(c[3]) * SMALL), step, start)
    return sums[1], sums[3]


_LOWER = jit(functools.partial(_values, upper=False))
_UPPER = jit(functools.partial(_values, upper=True))


def _computed(a: Tensor, x: Tensor, upper: bool) -> Tensor:
    """Outside of programs by one of their own, so that no step of a loop runs alone."""
    if current() is None and not written_out() and computable(a.value) and computable(x.value):
        value: Tensor = compiled(_UPPER if upper else _LOWER, a, x)
        return value
    return _values(a, x, upper)


def _slopes(a: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """dP / da and dP / dx: the first by the series, in absolute terms to about 1e-15."""
    b, y = O.where(a > 0.0, a, 1.0), O.where(x > 0.0, x, 1.0)
    weight = _weight(b, y)
    total, by_a = series(b, y)
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
    result = W.make(
        name, shape, W.cast(read(_computed(wide[0], wide[1], upper).value, *axes), kind)
    )
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
