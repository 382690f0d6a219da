"""Elementary functions as polynomials, the same for scalars and for any number of lanes.

Each is correct at NaN, infinities, zeros and subnormal numbers. Accuracy in units in the last
place (float32): exp, exp2, log, log1p, tanh, erf 1; sin, cos, sigmoid 1.5; softplus 1.7;
normal_cdf 2 of those of 1, above 0 and near it, far below 0 as `exp` of a rounded square; others in
`vwide`, `vmath64`.
"""

from __future__ import annotations

import math

from pullback.backends.llvm import vmath64, vwide
from pullback.backends.llvm.floats import Floats, by_lane, where_rare
from pullback.backends.llvm.text import Builder, Val, const
from pullback.backends.nests.polynomials import (
    COS32,
    ERF32_LOG,
    ERF32_SMALL,
    EXP2_32,
    EXP32,
    LOG1P32,
    LOG2E,
    LOG32,
    NORMAL32_BELOW,
    NORMAL32_TOP,
    ROUND32,
    SIN32,
    TANH32,
)

NORMAL_NONE = 15.0  # exp(-x^2 / 2) rounds to 0 in float32 from 14.5 on
NEAR_RECIPROCAL = (0.943, -1.075)  # of (1 / (1 + m) - 1) / m, to 0.013 of 1 / (1 + m)
ONE_BITS, SQRT_HALF_BITS, ROUND32_BITS = 0x3F800000, 0x3F3504F3, 0x4B400000


def exp(b: Builder, x: Val) -> Val:
    """``e ** x = 2**n * e**r, n = round(x / ln 2)``"""
    if x.kind == "double":
        return vmath64.exp(b, x)
    f = Floats(b, x)
    bounded = f.at_least(f.at_most(x, 89.0), -104.0)
    shifted = f.fma(bounded, LOG2E, ROUND32)
    n = f.sub(shifted, ROUND32)
    p = _exp_tail(f, bounded, n)
    return _scaled(f, p, n, shifted)


def _scaled(f: Floats, p: Val, n: Val, shifted: Val) -> Val:
    """``p * 2**n``, ``shifted = n + ROUND32``; subnormals and infinity are right."""
    if f.powers:
        return f.scalef(p, n)
    return f.scale(p, f.whole("sub", f.bits(shifted), ROUND32_BITS))


def _exp_within(f: Floats, x: Val) -> Val:
    """``e ** x`` of an argument below 87 in size: no subnormals. Of NaN any number."""
    shifted = f.fma(x, LOG2E, ROUND32)
    n = f.sub(shifted, ROUND32)
    p = _exp_tail(f, x, n)
    if f.powers:
        return f.scalef(p, n)
    return f.unbits(f.whole("add", f.bits(p), f.whole("shl", f.bits(shifted), 23)))


def _exp_tail(f: Floats, x: Val, n: Val) -> Val:
    """``e ** (x - n ln 2)``"""
    r = f.fma(n, -0.693359375, x)
    r = f.fma(n, 2.12194440e-4, r)
    p = f.poly(r, EXP32)
    return f.add(f.fma(p, f.mul(r, r), r), 1.0)


def exp2(b: Builder, x: Val) -> Val:
    """``2 ** x = 2**n (1 + r q(r))``, ``n = round x``, of float32; exact of whole numbers."""
    f = Floats(b, x)
    bounded = f.at_least(f.at_most(x, 129.0), -151.0)
    shifted = f.add(bounded, ROUND32)
    n = f.sub(shifted, ROUND32)
    r = f.sub(bounded, n)
    p = f.fma(r, f.poly(r, EXP2_32), 1.0)
    return _scaled(f, p, n, shifted)


def log(b: Builder, x: Val) -> Val:
    """``ln x = e ln 2 + ln m, m in [sqrt 1/2, sqrt 2)``"""
    if x.kind == "double":
        return vmath64.log(b, x)
    f = Floats(b, x)
    tiny = f.is_("olt", x, 1.17549435e-38)
    normal = f.select(tiny, f.mul(x, 2.0**23), x)
    bits = f.bits(normal)
    e = f.whole("ashr", f.whole("sub", bits, SQRT_HALF_BITS), 23)
    m = f.sub(f.unbits(f.whole("sub", bits, f.whole("shl", e, 23))), 1.0)
    power = b.convert("sitofp", e, x.kind)
    power = f.add(power, f.select(tiny, -23.0, 0.0))
    y = _log_tail(f, m, power)
    y = f.select(f.is_("olt", x, math.inf), y, x)
    y = f.select(f.is_("oeq", x, 0.0), -math.inf, y)
    return f.select(f.is_("olt", x, 0.0), math.nan, y)


def _log_tail(f: Floats, m: Val, power: Val, rest: Val | None = None) -> Val:
    """``power ln 2 + ln(1 + m) + rest``, m in [sqrt 1/2 - 1, sqrt 2 - 1), a small rest."""
    square = f.mul(m, m)
    y = f.mul(f.mul(m, square), f.poly(m, LOG32))
    y = f.fma(power, -2.12194440e-4, y if rest is None else f.add(y, rest))
    y = f.fma(square, -0.5, y)
    return f.fma(power, 0.693359375, f.add(m, y))


def log1p(b: Builder, x: Val) -> Val:
    """``ln u + lost / u``, ``u = 1 + x``, of float32: the quotient to a tenth is enough."""
    f = Floats(b, x)
    u = f.add(x, 1.0)
    lost = f.sub(x, f.sub(u, 1.0))
    e = f.whole("ashr", f.whole("sub", f.bits(u), SQRT_HALF_BITS), 23)
    field = f.whole("shl", e, 23)
    m = f.sub(f.unbits(f.whole("sub", f.bits(u), field)), 1.0)
    share = b.binary("sub", const(ONE_BITS, field.kind, x.lanes), field)
    none = const(0, field.kind, x.lanes)
    share = b.select(b.compare("sgt", share, none), share, none)  # 2**-128 is no such number
    lost = f.mul(lost, f.unbits(share))
    rest = f.fma(f.mul(f.poly(m, NEAR_RECIPROCAL), m), lost, lost)
    y = _log_tail(f, m, b.convert("sitofp", e, x.kind), rest)
    y = f.select(f.is_("olt", u, math.inf), y, u)
    y = f.select(f.is_("oeq", u, 0.0), -math.inf, y)
    y = f.select(f.is_("olt", u, 0.0), math.nan, y)
    return f.copysign(y, x)


def sqrt(b: Builder, x: Val) -> Val:
    """Square root."""
    return b.intrinsic("sqrt", x)


def tanh(b: Builder, x: Val) -> Val:
    """``1 - 2 / (e**2|x| + 1)``, near 0 a polynomial; odd."""
    if x.kind == "double":
        return vmath64.tanh(b, x)
    f = Floats(b, x)
    size = f.at_most(f.abs(x), 10.0)  # tanh 10 is 1 - 4e-9
    big = f.sub(1.0, f.div(2.0, f.add(_exp_within(f, f.mul(size, 2.0)), 1.0)))
    square = f.mul(x, x)
    small = f.fma(f.mul(f.poly(square, TANH32), square), size, size)
    near = f.select(f.is_("ogt", size, 0.9375), big, small)  # of NaN the one that stays so
    return f.copysign(near, x)


def erf(b: Builder, x: Val) -> Val:
    """``1 - e**q(|x|)``, near 0 a polynomial; odd."""
    if x.kind == "double":
        return vmath64.erf(b, x)
    f = Floats(b, x)
    size, square = f.at_most(f.abs(x), 6.0), f.mul(x, x)  # erf 6 is 1 - 2e-17
    slope = f.poly(size, ERF32_LOG)
    r = f.fma(slope, size, f.neg(size))
    lost = f.fma(slope, size, f.neg(f.add(size, r)))
    power = _exp_within(f, r)
    big = f.sub(1.0, f.fma(power, lost, power))
    small = f.fma(f.poly(square, ERF32_SMALL), x, x)
    return f.select(f.is_("ogt", size, 0.92), f.copysign(big, x), small)


def sigmoid(b: Builder, x: Val) -> Val:
    """``(x < 0 ? z : 1) / (1 + z)``, ``z = e**-|x|``; the quotient with what its steps lost."""
    f = Floats(b, x)
    z = exp(b, f.neg(f.abs(x)))
    below = f.add(z, 1.0)
    lost = f.sub(z, f.sub(below, 1.0))
    r = f.div(1.0, below)
    rest = f.mul(r, f.fma(f.neg(r), lost, f.fma(f.neg(r), below, 1.0)))
    over = f.select(f.is_("olt", x, 0.0), z, 1.0)
    return f.fma(over, r, f.mul(over, rest))


def normal_cdf(b: Builder, x: Val) -> Val:
    """``x < 0 ? tail : 1 - tail, tail = exp(-x^2 / 2) r(|x|)``, a rational to 6e-9.

    Its derivative has that power too: of both LLVM computes one.
    """
    f = Floats(b, x)
    if x.kind == "double":
        inner = vmath64.erf(b, f.mul(x, math.sqrt(0.5)))
        return f.mul(f.add(inner, 1.0), 0.5)
    size = f.at_most(f.abs(x), NORMAL_NONE)
    ratio = f.div(f.poly(size, NORMAL32_TOP), f.poly(size, NORMAL32_BELOW))
    tail = f.mul(exp(b, f.mul(f.mul(x, x), -0.5)), ratio)
    return f.select(f.is_("olt", x, 0.0), tail, f.sub(1.0, tail))


def softplus(b: Builder, x: Val) -> Val:
    """``max(x, 0) + log1p(z), z = e**-|x|``, of float32: the logarithm is ``z + z**2 p(z)``."""
    f = Floats(b, x)
    z = exp(b, f.neg(f.abs(x)))
    rest = f.fma(f.mul(z, z), f.poly(z, LOG1P32), z)
    return f.add(f.at_least(x, 0.0), rest)


def sin(b: Builder, x: Val) -> Val:
    """Sine, radians."""
    return vmath64.sin(b, x) if x.kind == "double" else _circular(b, x, 0, "sinf")


def cos(b: Builder, x: Val) -> Val:
    """Cosine, radians: the sine of a quarter more."""
    return vmath64.cos(b, x) if x.kind == "double" else _circular(b, x, 1, "cosf")


def _circular(b: Builder, x: Val, quarters: int, exact: str) -> Val:
    """``+- sin r or cos r, r = x - n pi/2`` reduced in float64; huge arguments by the C library."""
    f = Floats(b, x)
    wide = b.convert("fpext", x, "double")
    rest, count = vwide.reduced(Floats(b, wide), wide)
    r = b.convert("fptrunc", rest, "float")
    quadrant = b.convert("trunc", count, "i32")
    if quarters:
        quadrant = f.whole("add", quadrant, quarters)
    square = f.mul(r, r)
    sine = f.fma(f.mul(f.poly(square, SIN32), square), r, r)
    cosine = f.fma(f.poly(square, COS32), square, 1.0)
    odd = b.compare("ne", f.whole("and", quadrant, 1), const(0, "i32", x.lanes))
    flip = f.whole("shl", f.whole("and", quadrant, 2), 30)
    turned = f.unbits(f.whole("xor", f.bits(f.select(odd, cosine, sine)), flip))
    if not quarters:
        turned = f.select(f.is_("oeq", x, 0.0), x, turned)
    # beyond 1e9 float64 reduces too coarsely
    huge = f.is_("ogt", f.abs(x), 1e9)
    return where_rare(b, huge, turned, lambda: by_lane(b, exact, x))


def tan(b: Builder, x: Val) -> Val:
    """Tangent, radians; huge arguments by the C library."""
    f = Floats(b, x)
    tangent = vwide.call(b, "tan", x)
    tangent = f.select(f.is_("oeq", x, 0.0), x, tangent)
    huge = f.is_("ogt", f.abs(x), 1e9)
    return where_rare(b, huge, tangent, lambda: by_lane(b, "tanf", x))
