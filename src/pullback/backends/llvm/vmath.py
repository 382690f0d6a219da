"""Elementary functions as polynomials, the same for scalars and for any number of lanes.

Each is correct at NaN, infinities, zeros and subnormal numbers. Accuracy in units in the last
place (float32): exp 1, log 1, tanh 1.5, erf 1.2, sin 1.2, sigmoid 2.5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

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


class Floats:
    """Arithmetic on values of one floating type; Python numbers become literals."""

    def __init__(self, builder: Builder, like: Val) -> None:
        self.b = builder
        self.kind = like.kind
        self.lanes = like.lanes
        self.integer = "i32" if like.kind == "float" else "i64"

    def real(self, a: Val | float) -> Val:
        return a if isinstance(a, Val) else const(a, self.kind, self.lanes)

    def add(self, a: Val | float, b: Val | float) -> Val:
        return self.b.binary("fadd", self.real(a), self.real(b))

    def sub(self, a: Val | float, b: Val | float) -> Val:
        return self.b.binary("fsub", self.real(a), self.real(b))

    def mul(self, a: Val | float, b: Val | float) -> Val:
        return self.b.binary("fmul", self.real(a), self.real(b))

    def div(self, a: Val | float, b: Val | float) -> Val:
        return self.b.binary("fdiv", self.real(a), self.real(b))

    def fma(self, a: Val | float, b: Val | float, c: Val | float) -> Val:
        return self.b.intrinsic("fma", self.real(a), self.real(b), self.real(c))

    def abs(self, a: Val) -> Val:
        return self.b.intrinsic("fabs", a)

    def neg(self, a: Val) -> Val:
        return self.b.value(f"fneg {a.typed}", a.kind, a.lanes)

    def copysign(self, a: Val, sign: Val) -> Val:
        return self.b.intrinsic("copysign", a, sign)

    def is_(self, op: str, a: Val, b: Val | float) -> Val:
        return self.b.compare(op, a, self.real(b))

    def select(self, condition: Val, yes: Val | float, no: Val | float) -> Val:
        return self.b.select(condition, self.real(yes), self.real(no))

    def at_most(self, a: Val, limit: float) -> Val:
        """``min(a, limit)``; NaN stays."""
        return self.select(self.is_("ogt", a, limit), limit, a)

    def at_least(self, a: Val, limit: float) -> Val:
        """``max(a, limit)``; NaN stays."""
        return self.select(self.is_("olt", a, limit), limit, a)

    def bits(self, a: Val) -> Val:
        return self.b.convert("bitcast", a, self.integer)

    def unbits(self, a: Val) -> Val:
        return self.b.convert("bitcast", a, self.kind)

    def whole(self, op: str, a: Val, b: Val | int) -> Val:
        """Integer arithmetic."""
        other = b if isinstance(b, Val) else const(b, a.kind, a.lanes)
        return self.b.binary(op, a, other)

    def poly(self, x: Val, coefficients: Sequence[float]) -> Val:
        """Horner's rule, highest power first."""
        found = self.real(coefficients[0])
        for c in coefficients[1:]:
            found = self.fma(found, x, c)
        return found

    def power(self, n: Val) -> Val:
        """``2 ** n`` of an integer well inside the exponent's range."""
        bias, shift = (127, 23) if self.kind == "float" else (1023, 52)
        return self.unbits(self.whole("shl", self.whole("add", n, bias), shift))

    def scale(self, p: Val, n: Val) -> Val:
        """``p * 2**n`` of an integer `n`, in two steps: subnormals and infinity are right."""
        half = self.whole("ashr", n, 1)
        rest = self.whole("sub", n, half)
        return self.mul(self.mul(p, self.power(half)), self.power(rest))


def exp(b: Builder, x: Val) -> Val:
    """``e ** x = 2**n * e**r, n = round(x / ln 2)``"""
    if x.kind == "double":
        return b.intrinsic("exp", x)
    f = Floats(b, x)
    bounded = f.at_least(f.at_most(x, 89.0), -104.0)
    shifted = f.fma(bounded, LOG2E, ROUND32)
    n = f.sub(shifted, ROUND32)
    p = _exp_tail(f, bounded, n)
    if x.lanes == 16:
        return _scalef(b, p, n)
    return f.scale(p, f.whole("sub", f.bits(shifted), 0x4B400000))


def _exp_tail(f: Floats, x: Val, n: Val) -> Val:
    """``e ** (x - n ln 2)``"""
    r = f.fma(n, -0.693359375, x)
    r = f.fma(n, 2.12194440e-4, r)
    p = f.poly(r, EXP32)
    return f.add(f.fma(p, f.mul(r, r), r), 1.0)


def _scalef(b: Builder, p: Val, n: Val) -> Val:
    """``p * 2**n`` by the AVX-512 instruction."""
    wide = p.type
    name = "llvm.x86.avx512.mask.scalef.ps.512"
    b.declare(name, [wide, wide, wide, "i16", "i32"], wide)
    args = f"{p.typed}, {n.typed}, {wide} zeroinitializer, i16 -1, i32 4"
    return b.value(f"call {wide} @{name}({args})", p.kind, p.lanes)


def log(b: Builder, x: Val) -> Val:
    """``ln x = e ln 2 + ln m, m in [sqrt 1/2, sqrt 2)``"""
    if x.kind == "double":
        return b.intrinsic("log", x)
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
        return b.intrinsic("tanh", x)
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
        return by_lane(b, "erf", x)
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
        return b.intrinsic("sin", x)
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
    return _sin_of_huge(b, x, found)


def _sin_of_huge(b: Builder, x: Val, fast: Val) -> Val:
    """`fast`; but the C library's sine in lanes beyond 1e9, where float64 reduces too coarsely."""
    f = Floats(b, x)
    huge = f.is_("ogt", f.abs(x), 1e9)
    before, slow, join = b.block, b.name("slow"), b.name("join")
    b.branch(b.any(huge), slow, join)
    b.label(slow)
    exact = b.select(huge, by_lane(b, "sinf", x), fast)
    b.jump(join)
    b.label(join)
    return b.merge(fast, before, exact, slow)


def by_lane(b: Builder, function: str, x: Val) -> Val:
    """A function of the C library on each lane."""
    scalar = x.kind
    b.declare(function, [scalar], scalar)
    if not x.lanes:
        return b.value(f"call {scalar} @{function}({x.typed})", scalar)
    name = f"lanes.{function}.{x.lanes}"
    b.module.helpers[name] = LANES.format(
        name=name, wide=x.type, scalar=scalar, function=function, lanes=x.lanes
    )
    return b.value(f"call {x.type} @{name}({x.typed})", scalar, x.lanes)


LANES = """define internal {wide} @{name}({wide} %x) noinline nounwind {{
entry:
  %a = alloca {wide}
  store {wide} %x, ptr %a
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %p = getelementptr {scalar}, ptr %a, i64 %i
  %v = load {scalar}, ptr %p
  %r = call {scalar} @{function}({scalar} %v)
  store {scalar} %r, ptr %p
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, {lanes}
  br i1 %more, label %loop, label %done
done:
  %y = load {wide}, ptr %a
  ret {wide} %y
}}"""
