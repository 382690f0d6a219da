"""Elementary functions of float64 as polynomials, for scalars and for any number of lanes.

Correct at NaN, infinities, zeros and subnormal numbers. Accuracy in units in the last place:
exp 1.2, log 0.9, tanh 2.4, erf 1.2, sin 1. Coefficients interpolate the exact functions at
Chebyshev points; with them the polynomials themselves are within 0.2 units.
"""

from __future__ import annotations

import math

from pullback.backends.llvm.floats import Floats, by_lane, where_rare
from pullback.backends.llvm.text import Builder, Val, const

ROUND = 1.5 * 2.0**52  # adding it rounds a float64 to an integer
ROUND_BITS = 0x4338000000000000
ONE_BITS, SQRT_HALF_BITS = 0x3FF0000000000000, 0x3FE6A09E667F3BCD
LOG2E = math.log2(math.e)
LN2, LN2_REST = 0.6931471805599453, 2.3190468138462996e-17
HALF_PI = 1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33
EXP = (
    2.510038549551032e-08, 2.7620088445409746e-07, 2.7557268459997064e-06, 2.4801521295954376e-05,
    0.00019841269863053618, 0.0013888888917213717, 0.008333333333330062, 0.04166666666662413,
    0.16666666666666669, 0.5,
)  # fmt: skip
LOG = (
    0.14616449685043406, 0.15331721600556042, 0.18182889125261723, 0.2222221113479508,
    0.28571428625975487, 0.39999999999899505, 0.666666666666667,
)  # fmt: skip
SIN = (
    1.5917988979397435e-10, -2.5051129896450185e-08, 2.7557316093198404e-06,
    -0.00019841269836740532, 0.008333333333330936, -0.16666666666666666,
)  # fmt: skip
COS = (
    -1.138254464534925e-11, 2.087614504941318e-09, -2.755731726587808e-07, 2.48015872987544e-05,
    -0.0013888888888887389, 0.041666666666666664,
)  # fmt: skip
ERF_SMALL = (
    5.957176147748911e-11, -1.1372848856791674e-09, 1.4659775274047436e-08,
    -1.6350312701054695e-07, 1.6461000484121368e-06, -1.4925595266831182e-05,
    0.0001205533111164271, -0.000854832698083379, 0.0052239776248180145, -0.026866170645076792,
    0.11283791670954879, -0.3761263890318375, 0.1283791670955126,
)  # fmt: skip
ERFCX = (
    -2.0355575642200858e-07, -2.6915157592850126e-07, 1.2459620847174093e-06,
    2.1124428949403864e-06, -7.977696579644072e-06, -1.2859347351455289e-05,
    6.405657794051666e-05, 4.525520140579536e-05, -0.0005970619531815352, 0.0007077464435611972,
    0.004269136333077869, -0.024392499318790735, 0.07166583719797331, -0.15011593650077582,
    0.24560380171233093, -0.3262335600430372, 0.17900115118138996,
)  # fmt: skip


def exp(b: Builder, x: Val, rest: Val | None = None) -> Val:
    """``e ** x = 2**n * e**r, n = round(x / ln 2)``; `rest`: what is lost of x."""
    f = Floats(b, x)
    shifted, p = _less_one(f, f.at_least(f.at_most(x, 710.0), -746.0), rest)
    p = f.add(p, 1.0)
    if f.powers:
        return f.scalef(p, f.sub(shifted, ROUND))
    return f.scale(p, f.whole("sub", f.bits(shifted), ROUND_BITS))


def _less_one(f: Floats, x: Val, rest: Val | None = None) -> tuple[Val, Val]:
    """``n + ROUND`` and ``e ** (x - n ln 2) - 1`` of the whole number n nearest to x / ln 2."""
    shifted = f.fma(x, LOG2E, ROUND)
    n = f.sub(shifted, ROUND)
    r = f.exact(n, -LN2_REST, f.exact(n, -LN2, x))
    r = r if rest is None else f.add(r, rest)
    return shifted, f.fma(f.poly(r, EXP), f.mul(r, r), r)


def tanh(b: Builder, x: Val) -> Val:
    """``t / (t + 2)`` with ``t = e**2|x| - 1 = 2**n (e**r - 1) + (2**n - 1)``; odd."""
    f = Floats(b, x)
    size = f.at_most(f.abs(x), 20.0)
    shifted, p = _less_one(f, f.add(size, size))
    power = f.power(f.whole("sub", f.bits(shifted), ROUND_BITS))
    t = f.fma(power, p, f.sub(power, 1.0))
    return f.copysign(f.div(t, f.add(t, 2.0)), x)


def parts(f: Floats, bits: Val) -> tuple[Val, Val]:
    """m and e of ``x = m 2**e``, m in [sqrt 1/2, sqrt 2), from the bits of a normal x."""
    biased = f.whole("lshr", f.whole("add", bits, ONE_BITS - SQRT_HALF_BITS), 52)
    power = f.sub(f.unbits(f.whole("or", biased, ROUND_BITS)), ROUND + 1023)
    down = f.whole("shl", f.whole("sub", biased, 1023), 52)
    return f.unbits(f.whole("sub", bits, down)), power


def parts_of_any(f: Floats, x: Val) -> tuple[Val, Val]:
    """The same of a subnormal x too."""
    tiny = f.is_("olt", x, 2.0**-1022)
    m, power = parts(f, f.bits(f.select(tiny, f.mul(x, 2.0**54), x)))
    return m, f.sub(power, f.select(tiny, 54.0, 0.0))


def log(b: Builder, x: Val) -> Val:
    """``ln x = e ln 2 + ln(1 + m)``, 1 + m in [sqrt 1/2, sqrt 2)"""
    f = Floats(b, x)
    m, power = parts_of_any(f, x)
    y = _log_sum(f, f.sub(m, 1.0), power)
    y = f.select(f.is_("olt", x, math.inf), y, x)
    y = f.select(f.is_("oeq", x, 0.0), -math.inf, y)
    return f.select(f.is_("olt", x, 0.0), math.nan, y)


def _log_sum(f: Floats, m: Val, power: Val) -> Val:
    """``power ln 2 + m - s (m - s**2 p(s**2))``, ``s = m / (2 + m)``; small parts come last."""
    s = f.div(m, f.add(m, 2.0))
    square = f.mul(s, s)
    small = f.mul(s, f.fma(square, f.poly(square, LOG), f.neg(m)))
    large = f.exact(power, LN2, m)
    lost = f.add(m, f.exact(power, LN2, f.neg(large)))
    return f.add(large, f.add(lost, f.fma(power, LN2_REST, small)))


def sin(b: Builder, x: Val) -> Val:
    """Sine, radians."""
    f = Floats(b, x)
    return f.select(f.is_("oeq", x, 0.0), x, _circular(b, x, 0, "sin"))


def cos(b: Builder, x: Val) -> Val:
    """Cosine, radians: the sine of a quarter more."""
    return _circular(b, x, 1, "cos")


def _circular(b: Builder, x: Val, quarters: int, exact: str) -> Val:
    """``+- sin r or cos r``, ``r = x - n pi/2``; beyond 1e5 by the C library."""
    f = Floats(b, x)
    shifted = f.fma(x, 2.0 / math.pi, ROUND)
    n = f.sub(shifted, ROUND)
    r, rest = _less_quarters(f, x, n)
    square = f.mul(r, r)
    sine = f.add(r, f.fma(f.mul(f.poly(square, SIN), square), r, rest))
    cosine = _cosine(f, r, square, rest)
    quadrant = f.whole("add", f.bits(shifted), quarters)
    odd = b.compare("ne", f.whole("and", quadrant, 1), const(0, "i64", x.lanes))
    flip = f.whole("shl", f.whole("and", quadrant, 2), 62)
    turned = f.unbits(f.whole("xor", f.bits(f.select(odd, cosine, sine)), flip))
    huge = f.is_("ogt", f.abs(x), 1e5)
    return where_rare(b, huge, turned, lambda: by_lane(b, exact, x))


def _less_quarters(f: Floats, x: Val, n: Val) -> tuple[Val, Val]:
    """``x - n pi/2`` as a sum of two: near a multiple of pi/2 one has too few digits left."""
    near = f.exact(n, -HALF_PI[0], x)  # exact
    step = f.mul(n, HALF_PI[1])
    r = f.sub(near, step)
    back = f.sub(r, near)
    lost = f.sub(f.sub(near, f.sub(r, back)), f.add(step, back))
    rest = f.sub(lost, f.exact(n, HALF_PI[1], f.neg(step)))
    return r, f.fma(n, -HALF_PI[2], rest)


def _cosine(f: Floats, r: Val, square: Val, rest: Val) -> Val:
    """``cos(r + rest) = w + ((1 - w) - r**2/2 + r**4 p(r**2) - r rest)``, ``w = 1 - r**2/2``"""
    half = f.mul(square, 0.5)
    w = f.sub(1.0, half)
    lost = f.sub(f.sub(1.0, w), half)
    tail = f.mul(f.poly(square, COS), f.mul(square, square))
    return f.add(w, f.add(lost, f.fma(f.neg(r), rest, tail)))


def erf(b: Builder, x: Val) -> Val:
    """``x + x p(x**2)`` up to 1; beyond ``1 - e**-x**2 q(u)``, ``u = (|x|-3) / (|x|+3)``; odd."""
    f = Floats(b, x)
    square = f.mul(x, x)
    small = f.fma(f.poly(square, ERF_SMALL), x, x)
    size = f.at_most(f.abs(x), 6.0)
    u = f.div(f.sub(size, 3.0), f.add(size, 3.0))
    power = exp(b, f.neg(f.mul(size, size)))
    large = f.sub(1.0, f.mul(power, f.poly(u, ERFCX)))
    return f.select(f.is_("ogt", size, 1.0), f.copysign(large, x), small)
