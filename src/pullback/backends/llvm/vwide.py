"""Functions of float32 in float64 lanes, rounded once: what float32 steps would lose bits in.

Sums that cancel, arguments that are scaled and powers need digits that float32 does not have;
float64 with short polynomials (35 to 45 bits) has them, and cannot overflow. All are within 0.6
units in the last place, correct at NaN, infinities, zeros and subnormal numbers.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable

from pullback.backends.llvm.floats import Floats
from pullback.backends.llvm.text import Builder, Val
from pullback.backends.llvm.vmath64 import HALF_PI, ROUND, ROUND_BITS, parts

FAR = 150.0  # e**FAR is infinite and e**-FAR zero in float32
EXP = (
    2.4887594090230387e-05, 0.00019909233502932627, 0.0013888796459552337, 0.008333281286455968,
    0.04166666705396995, 0.16666666786575374, 0.4999999999951997,
)  # fmt: skip
LOG = (
    0.055335247768875245, -0.09976162490662566, 0.09975358881890214, -0.09898775570303699,
    0.11013117244580795, -0.12500381726362553, 0.14290409291446363, -0.1666678420936473,
    0.1999990275906217, -0.24999997893097575, 0.3333333397944422,
)  # fmt: skip
ATAN = (
    -0.03795729819244609, 0.06993178307679128, -0.08997295901128817, 0.11104055978214636,
    -0.14285426633618165, 0.1999999440637623, -0.33333333296434703,
)  # fmt: skip
ASIN = (
    0.03196007389470111, -0.002859129995662211, 0.018630812106987703, 0.0164776248539891,
    0.02247132612803605, 0.03037523138131444, 0.04464311255007903, 0.07499999525425648,
    0.16666666669697014,
)  # fmt: skip
SIN = (
    -2.476143232738994e-08, 2.75553547259335e-06, -0.00019841263808967777, 0.00833333332524705,
    -0.16666666666631474,
)  # fmt: skip
COS = (
    -2.717973694606448e-07, 2.479903610755213e-05, -0.0013888881055909804, 0.0416666665616669,
    -0.499999999995428,
)  # fmt: skip


def _grown(f: Floats, x: Val) -> tuple[Val, Val]:
    """``2**n`` and ``2**n (e**r - 1)``, ``x = n ln 2 + r``"""
    bounded = f.at_least(f.at_most(x, FAR), -FAR)
    shifted = f.fma(bounded, math.log2(math.e), ROUND)
    r = f.fma(f.sub(shifted, ROUND), -math.log(2.0), bounded)
    power = f.power(f.whole("sub", f.bits(shifted), ROUND_BITS))
    return power, f.mul(power, f.fma(f.poly(r, EXP), f.mul(r, r), r))


def _exp(f: Floats, x: Val) -> Val:
    """``e ** x``"""
    return f.add(*_grown(f, x))


def _expm1(f: Floats, x: Val) -> Val:
    """``e ** x - 1``"""
    power, rest = _grown(f, x)
    return f.add(f.sub(power, 1.0), rest)


def _log(f: Floats, x: Val) -> Val:
    """``ln x = e ln 2 + ln(1 + m)``, of a number that is not subnormal in float64."""
    m, power = parts(f, f.bits(x))
    m = f.sub(m, 1.0)
    square = f.mul(m, m)
    small = f.fma(f.mul(square, m), f.poly(m, LOG), f.fma(square, -0.5, m))
    y = f.fma(power, math.log(2.0), small)
    y = f.select(f.is_("olt", x, math.inf), y, x)
    y = f.select(f.is_("oeq", x, 0.0), -math.inf, y)
    return f.select(f.is_("olt", x, 0.0), math.nan, y)


def _log1p(f: Floats, x: Val) -> Val:
    """``ln u + (x - (u - 1))``, ``u = 1 + x``: what u lost counts where u is near 1."""
    u = f.add(x, 1.0)
    lost = f.sub(x, f.sub(u, 1.0))
    return f.add(_log(f, u), f.select(f.is_("olt", u, 2.0), lost, 0.0))


def _sqrt(f: Floats, x: Val) -> Val:
    return f.b.intrinsic("sqrt", x)


def _log2(f: Floats, x: Val) -> Val:
    return f.mul(_log(f, x), math.log2(math.e))


def _log10(f: Floats, x: Val) -> Val:
    return f.mul(_log(f, x), math.log10(math.e))


def _sinh(f: Floats, x: Val) -> Val:
    """``(t + t / (t + 1)) / 2``, ``t = e**x - 1``, of a size."""
    t = _expm1(f, x)
    return f.mul(f.add(t, f.div(t, f.add(t, 1.0))), 0.5)


def _cosh(f: Floats, x: Val) -> Val:
    """``(y + 1 / y) / 2``, ``y = e**x``"""
    y = _exp(f, x)
    return f.mul(f.add(y, f.div(1.0, y)), 0.5)


def _asinh(f: Floats, x: Val) -> Val:
    """``log1p(x + x**2 / (1 + sqrt(1 + x**2)))`` of a size."""
    square = f.mul(x, x)
    root = _sqrt(f, f.add(f.at_most(square, 1e200), 1.0))
    return _log1p(f, f.add(x, f.div(square, f.add(root, 1.0))))


def _acosh(f: Floats, x: Val) -> Val:
    """``log1p(t + sqrt(t (t + 2)))``, ``t = x - 1``"""
    t = f.sub(x, 1.0)
    grown = f.add(t, _sqrt(f, f.mul(t, f.add(t, 2.0))))
    return f.select(f.is_("olt", t, 0.0), math.nan, _log1p(f, grown))


def _atanh(f: Floats, x: Val) -> Val:
    """``log1p(2 x / (1 - x)) / 2`` of a size."""
    return f.mul(_log1p(f, f.div(f.add(x, x), f.sub(1.0, x))), 0.5)


def _atan(f: Floats, x: Val) -> Val:
    """``c + atan t`` of a size: t is x, ``(x - 1) / (x + 1)`` or ``-1 / x``; c 0, pi/4, pi/2."""
    middle = f.is_("ogt", x, math.tan(math.pi / 8))
    large = f.is_("ogt", x, math.tan(3 * math.pi / 8))
    over = f.select(large, -1.0, f.select(middle, f.sub(x, 1.0), x))
    under = f.select(large, x, f.select(middle, f.add(x, 1.0), 1.0))
    corner = f.select(large, math.pi / 2, f.select(middle, math.pi / 4, 0.0))
    t = f.div(over, under)
    square = f.mul(t, t)
    return f.add(corner, f.fma(f.mul(f.poly(square, ATAN), square), t, t))


def _half_asin(f: Floats, size: Val) -> tuple[Val, Val]:
    """``asin y`` and where y is not `size` but ``sqrt((1 - size) / 2)``: beyond a half."""
    far = f.is_("ogt", size, 0.5)
    square = f.select(far, f.mul(f.sub(1.0, size), 0.5), f.mul(size, size))
    y = f.select(far, _sqrt(f, square), size)
    return f.fma(f.mul(f.poly(square, ASIN), square), y, y), far


def _asin(f: Floats, x: Val) -> Val:
    """Of a size; beyond a half ``pi/2 - 2 asin y``."""
    near, far = _half_asin(f, x)
    return f.select(far, f.fma(near, -2.0, math.pi / 2), near)


def _acos(f: Floats, x: Val) -> Val:
    """``pi/2 - asin x``; beyond a half ``2 asin y``, from pi where x is negative."""
    near, far = _half_asin(f, f.abs(x))
    double = f.add(near, near)
    beyond = f.select(f.is_("olt", x, 0.0), f.sub(math.pi, double), double)
    return f.select(far, beyond, f.sub(math.pi / 2, f.copysign(near, x)))


def reduced(f: Floats, x: Val) -> tuple[Val, Val]:
    """``x - n pi/2`` and an integer with the last bits of n, for sizes up to 1e9."""
    shifted = f.fma(x, 2.0 / math.pi, ROUND)
    n = f.sub(shifted, ROUND)
    r = f.exact(n, -HALF_PI[1], f.exact(n, -HALF_PI[0], x))
    return r, f.bits(shifted)


def _tan(f: Floats, x: Val) -> Val:
    """``sin r / cos r``, of an odd multiple of pi/2 ``-cos r / sin r``."""
    r, count = reduced(f, x)
    square = f.mul(r, r)
    sine = f.fma(f.mul(f.poly(square, SIN), square), r, r)
    cosine = f.fma(f.poly(square, COS), square, 1.0)
    odd = f.b.compare("ne", f.whole("and", count, 1), f.whole("and", count, 0))
    over, under = f.select(odd, f.neg(cosine), sine), f.select(odd, sine, cosine)
    return f.div(over, under)


Wide = Callable[[Floats, Val], Val]
ANY: dict[str, Wide] = {
    "acos": _acos, "acosh": _acosh, "cosh": _cosh, "log10": _log10, "log2": _log2,
    "tan": _tan,
}  # fmt: skip
SIGNED: dict[str, Wide] = {"expm1": _expm1}
"""Functions with the sign of their argument, of -0.0 too."""
ODD: dict[str, Wide] = {
    "asin": _asin, "asinh": _asinh, "atan": _atan, "atanh": _atanh, "sinh": _sinh,
}  # fmt: skip
"""Functions that are computed of a size and given the sign."""
NAMES = (*ANY, *SIGNED, *ODD)


def call(b: Builder, name: str, x: Val) -> Val:
    """``name(x)`` of float32."""
    wide = b.convert("fpext", x, "double")
    f = Floats(b, wide)
    if name in ODD:
        value = f.copysign(ODD[name](f, f.abs(wide)), wide)
    elif name in SIGNED:
        value = f.copysign(SIGNED[name](f, wide), wide)
    else:
        value = ANY[name](f, wide)
    return b.convert("fptrunc", value, "float")


def power(b: Builder, x: Val, y: Val) -> Val:
    """``e ** (y ln x)`` of float32."""
    literal = x.literal
    base, exponent = (b.convert("fpext", a, "double") for a in b.unify(x, y))
    f = Floats(b, base)
    if literal is not None and 2.0**-126 <= literal < 2.0**127:
        log = f.real(math.log(struct.unpack("<f", struct.pack("<f", literal))[0]))
    else:
        log = _log(f, base)
    return b.convert("fptrunc", _exp(f, f.mul(exponent, log)), "float")
