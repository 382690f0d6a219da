"""Elementary functions as polynomials, the same for scalars and for any number of lanes.

Each is correct at NaN, infinities, zeros and subnormal numbers. Accuracy in units in the last
place (float32): exp 1, log 1, tanh 1.5, erf 1.2, sin 1.2, sigmoid 2.5; float64 in `vmath64`.
"""

from __future__ import annotations

import math

from pullback.backends.llvm import vmath64
from pullback.backends.llvm.floats import Floats, by_lane, where_rare
from pullback.backends.llvm.text import Builder, Val, const

LOG2E = math.log2(math.e)
ROUND32 = 12582912.0  # 1.5 * 2**23: adding it rounds a float32 to an integer
EXP32 = (1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 0.5)
LOG32 = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
    -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip
TANH32 = (
    -5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1,
)  # fmt: skip
ERF32_SMALL = (
    -5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1,
)  # fmt: skip
SIN32 = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
COS32 = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)


def exp(b: Builder, x: Val) -> Val:
    """``e ** x = 2**n * e**r, n = round(x / ln 2)``"""
    if x.kind == "double":
        return vmath64.exp(b, x)
    f = Floats(b, x)
    bounded = f.at_least(f.at_most(x, 89.0), -104.0)
    shifted = f.fma(bounded, LOG2E, ROUND32)
    n = f.sub(shifted, ROUND32)
    p = _exp_tail(f, bounded, n)
    if x.lanes == 16:
        return f.scalef(p, n)
    return f.scale(p, f.whole("sub", f.bits(shifted), 0x4B400000))


def _exp_tail(f: Floats, x: Val, n: Val) -> Val:
    """``e ** (x - n ln 2)``"""
    r = f.fma(n, -0.693359375, x)
    r = f.fma(n, 2.12194440e-4, r)
    p = f.poly(r, EXP32)
    return f.add(f.fma(p, f.mul(r, r), r), 1.0)


def log(b: Builder, x: Val) -> Val:
    """``ln x = e ln 2 + ln m, m in [sqrt 1/2, sqrt 2)``"""
    if x.kind == "double":
        return vmath64.log(b, x)
    f = Floats(b, x)
    tiny = f.is_("olt", x, 1.17549435e-38)
    normal = f.select(tiny, f.mul(x, 2.0**23), x)
    bits = f.bits(normal)
    e = f.whole("ashr", f.whole("sub", bits, 0x3F3504F3), 23)
    m = f.sub(f.unbits(f.whole("sub", bits, f.whole("shl", e, 23))), 1.0)
    power = b.convert("sitofp", e, x.kind)
    power = f.add(power, f.select(tiny, -23.0, 0.0))
    square = f.mul(m, m)
    y = f.mul(f.mul(m, square), f.poly(m, LOG32))
    y = f.fma(power, -2.12194440e-4, y)
    y = f.fma(square, -0.5, y)
    y = f.fma(power, 0.693359375, f.add(m, y))
    y = f.select(f.is_("olt", x, math.inf), y, x)
    y = f.select(f.is_("oeq", x, 0.0), -math.inf, y)
    return f.select(f.is_("olt", x, 0.0), math.nan, y)


def tanh(b: Builder, x: Val) -> Val:
    """``1 - 2 / (e**2|x| + 1)``, near 0 a polynomial; odd."""
    if x.kind == "double":
        return vmath64.tanh(b, x)
    f = Floats(b, x)
    size = f.abs(x)
    big = f.sub(1.0, f.div(2.0, f.add(exp(b, f.mul(size, 2.0)), 1.0)))
    square = f.mul(x, x)
    small = f.fma(f.mul(f.poly(square, TANH32), square), size, size)
    found = f.select(f.is_("olt", size, 0.625), small, big)
    return f.copysign(found, x)


def erf(b: Builder, x: Val) -> Val:
    """``1 - e**q(|x|)``, near 0 a polynomial; odd."""
    if x.kind == "double":
        return vmath64.erf(b, x)
    f = Floats(b, x)
    size, square = f.abs(x), f.mul(x, x)
    r = f.fma(size, -1.72853470e-5, 3.83197126e-4)
    u = f.fma(size, -3.88396438e-3, 2.42546219e-2)
    r = f.fma(r, square, u)
    for c in (-1.06777877e-1, -6.34846687e-1, -1.28717512e-1):
        r = f.fma(r, size, c)
    r = f.fma(r, size, f.neg(size))
    big = f.sub(1.0, exp(b, f.at_least(r, -90.0)))
    small = f.fma(f.poly(square, ERF32_SMALL), x, x)
    return f.select(f.is_("ogt", size, 0.927734375), f.copysign(_saturated(f, big, size), x), small)


def _saturated(f: Floats, big: Val, size: Val) -> Val:
    """1 where the polynomial's powers overflow."""
    return f.select(f.is_("ogt", size, 6.0), 1.0, big)


def sigmoid(b: Builder, x: Val) -> Val:
    """``1 / (1 + e**-x)``"""
    f = Floats(b, x)
    return f.div(1.0, f.add(exp(b, f.neg(x)), 1.0))


def sin(b: Builder, x: Val) -> Val:
    """``+- sin r or cos r, r = x - n pi/2`` reduced in float64; huge arguments by the C library."""
    if x.kind == "double":
        return vmath64.sin(b, x)
    f = Floats(b, x)
    wide = b.convert("fpext", x, "double")
    d = Floats(b, wide)
    n = b.intrinsic("rint", d.mul(wide, 2.0 / math.pi))
    r = d.fma(n, -1.5707963267948966, wide)
    r = d.fma(n, -6.123233995736766e-17, r)
    r32 = b.convert("fptrunc", r, "float")
    quadrant = b.intrinsic("fptosi.sat", n, kind="i32")
    square = f.mul(r32, r32)
    sine = f.fma(f.mul(f.poly(square, SIN32), square), r32, r32)
    cosine = f.fma(f.poly(square, COS32), f.mul(square, square), f.fma(square, -0.5, 1.0))
    odd = b.compare("ne", f.whole("and", quadrant, 1), const(0, "i32", x.lanes))
    flip = f.whole("shl", f.whole("and", quadrant, 2), 30)
    found = f.unbits(f.whole("xor", f.bits(f.select(odd, cosine, sine)), flip))
    found = f.select(f.is_("oeq", x, 0.0), x, found)
    # beyond 1e9 float64 reduces too coarsely
    huge = f.is_("ogt", f.abs(x), 1e9)
    return where_rare(b, huge, found, lambda: by_lane(b, "sinf", x))
