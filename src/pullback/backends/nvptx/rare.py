"""What the C library computes elsewhere, for rare arguments: here it is part of the code.

Sine, cosine and tangent of huge numbers take the quadrant and the rest from a product with enough
of the digits of 2/pi, in integers of 256 bits. The remainder of floats subtracts shifted divisors.

Source: Payne and Hanek, "Radian reduction for trigonometric functions", 1983.
"""

from __future__ import annotations

import math

from pullback.backends.llvm.floats import Floats
from pullback.backends.llvm.text import Builder, Module, Val, const
from pullback.backends.llvm.vmath64 import COS, SIN

# The digits of 2/pi after the point, 64 bits each.
DIGITS = (
    0xA2F9836E4E441529,
    0xFC2757D1F534DDC0,
    0xDB6295993C439041,
    0xFE5163ABDEBBC561,
    0xB7246E3A424DD2E0,
    0x06492EEA09D1921C,
    0xFE1DEB1CB129A73E,
    0xE88235F52EBB4484,
    0xE99C7026B45F7E41,
    0x3991D639835339F4,
    0x9C845F8BBDF9283B,
    0x1FF897FFDE05980F,
    0xEF2F118B5A0A6D1F,
    0x6D367ECF27CB09B7,
    0x4F463F669E5FEA2D,
    0x7527BAC7EBE5F17B,
    0x3D0739F78A5292EA,
    0x6BFB5FB11F8D5D08,
    0x56033046FC7B6BAB,
    0xF0CFBC209AF4361D,
)
TABLE = "@pb_digits = internal constant [{count} x i64] [{words}]"
# The quadrant of |x| and the rest in quarters of a turn: digits from where they count, times the
# 53 bits of x; what is above four quarters is shifted out.
QUARTERS = """define internal {{ double, i64 }} @pb_quarters(double %x) nounwind {{
entry:
  %bits = bitcast double %x to i64
  %up = lshr i64 %bits, 52
  %field = and i64 %up, 2047
  %low = and i64 %bits, 4503599627370495
  %mantissa = or i64 %low, 4503599627370496
  %power = sub i64 %field, 1075
  %most = sub i64 %power, 2
  %skips = icmp sgt i64 %most, 0
  %skip = select i1 %skips, i64 %most, i64 0
  %word = lshr i64 %skip, 6
  %bit = and i64 %skip, 63
  %first = getelementptr i64, ptr @pb_digits, i64 %word
{reads}
  %apart = zext i64 %bit to i256
  %turned = shl i256 %all3, %apart
  %window = lshr i256 %turned, 64
  %wide = zext i64 %mantissa to i256
  %product = mul i256 %window, %wide
  %by = sub i64 %power, %skip
  %by62 = add i64 %by, 62
  %left = zext i64 %by62 to i256
  %scaled = shl i256 %product, %left
  %half = shl i256 1, 253
  %nearest = add i256 %scaled, %half
  %top = lshr i256 %nearest, 254
  %quadrant = trunc i256 %top to i64
  %rest = shl i256 %scaled, 2
  %negative = icmp slt i256 %rest, 0
  %minus = sub i256 0, %rest
  %size = select i1 %negative, i256 %minus, i256 %rest
  %upper = lshr i256 %size, 192
  %next = lshr i256 %size, 128
  %high = trunc i256 %upper to i64
  %lower = trunc i256 %next to i64
  %none = icmp eq i64 %high, 0
  %some = select i1 %none, i64 %lower, i64 %high
  %zeros = call i64 @llvm.ctlz.i64(i64 %some, i1 false)
  %zeros256 = zext i64 %zeros to i256
  %part = select i1 %none, i64 64, i64 0
  %part256 = zext i64 %part to i256
  %away = add i256 %zeros256, %part256
  %shifted = shl i256 %size, %away
  %digits256 = lshr i256 %shifted, 192
  %digits = trunc i256 %digits256 to i64
  %number = uitofp i64 %digits to double
  %gone = add i64 %zeros, %part
  %exponent = sub i64 959, %gone
  %scale64 = shl i64 %exponent, 52
  %scale = bitcast i64 %scale64 to double
  %value = fmul double %number, %scale
  %opposite = fneg double %value
  %signed = select i1 %negative, double %opposite, double %value
  %pair = insertvalue {{ double, i64 }} undef, double %signed, 0
  %both = insertvalue {{ double, i64 }} %pair, i64 %quadrant, 1
  ret {{ double, i64 }} %both
}}"""
READ = """  %at{n} = getelementptr i64, ptr %first, i64 {n}
  %w{n} = load i64, ptr %at{n}
  %z{n} = zext i64 %w{n} to i256
  %h{n} = shl i256 %all{m}, 64
  %all{n} = or i256 %h{n}, %z{n}"""
FMOD = """define internal double @fmod(double %x, double %y) nounwind {
entry:
  %a0 = call double @llvm.fabs.f64(double %x)
  %c = call double @llvm.fabs.f64(double %y)
  %far = fcmp uge double %a0, 0x7FF0000000000000
  %void = fcmp ule double %c, 0.0
  %nan = fcmp uno double %y, 0.0
  %bad0 = or i1 %far, %void
  %bad = or i1 %bad0, %nan
  %cbits = bitcast double %c to i64
  %cfield = lshr i64 %cbits, 52
  %cpower = call i64 @llvm.umax.i64(i64 %cfield, i64 1)
  br i1 %bad, label %none, label %loop
none:
  ret double 0x7FF8000000000000
loop:
  %a = phi double [ %a0, %entry ], [ %a1, %turn ]
  %more = fcmp oge double %a, %c
  br i1 %more, label %turn, label %done
turn:
  %abits = bitcast double %a to i64
  %afield = lshr i64 %abits, 52
  %apower = call i64 @llvm.umax.i64(i64 %afield, i64 1)
  %d = sub i64 %apower, %cpower
  %h = lshr i64 %d, 1
  %k = sub i64 %d, %h
  %hb = add i64 %h, 1023
  %hs = shl i64 %hb, 52
  %hf = bitcast i64 %hs to double
  %kb = add i64 %k, 1023
  %ks = shl i64 %kb, 52
  %kf = bitcast i64 %ks to double
  %t0 = fmul double %c, %hf
  %t1 = fmul double %t0, %kf
  %over = fcmp ogt double %t1, %a
  %t2 = fmul double %t1, 0.5
  %t = select i1 %over, double %t2, double %t1
  %a1 = fsub double %a, %t
  br label %loop
done:
  %r = call double @llvm.copysign.f64(double %a, double %x)
  ret double %r
}"""
INTRINSICS = (
    "declare double @llvm.fabs.f64(double)", "declare double @llvm.copysign.f64(double, double)",
    "declare i64 @llvm.umax.i64(i64, i64)", "declare i64 @llvm.ctlz.i64(i64, i1)",
)  # fmt: skip
CIRCULAR = ("sin", "cos", "tan")
NAMES = (*CIRCULAR, *(f"{name}f" for name in CIRCULAR), "fmod")


def define_rare(module: Module) -> None:
    """What the code of a module calls of the C library becomes a part of it."""
    wanted = [n for n in NAMES for d in list(module.declares) if f"@{n}(" in d]
    if not wanted:
        return
    module.declares = {d: None for d in module.declares if not any(f"@{n}(" in d for n in wanted)}
    module.declares.update(dict.fromkeys(INTRINSICS))
    if "fmod" in wanted:
        module.helpers["fmod"] = FMOD
    if wanted != ["fmod"]:
        words = ", ".join(f"i64 {word if word < 1 << 63 else word - (1 << 64)}" for word in DIGITS)
        module.helpers["pb_digits"] = TABLE.format(count=len(DIGITS), words=words)
        first = "  %w0 = load i64, ptr %first\n  %all0 = zext i64 %w0 to i256"
        reads = "\n".join([first, *(READ.format(n=n, m=n - 1) for n in range(1, 4))])
        module.helpers["pb_quarters"] = QUARTERS.format(reads=reads)
    for name in wanted:
        if name != "fmod":
            module.helpers[name] = _circular(module, name)


def _circular(module: Module, name: str) -> str:
    """The function of this name, in float64."""
    short = name.endswith("f")
    kind = "float" if short else "double"
    b, x = Builder(module), Val("%x", kind)
    wide = b.convert("fpext", x, "double")
    f = Floats(b, wide)
    pair = "{ double, i64 }"
    made = b.value(f"call {pair} @pb_quarters(double {wide.text})", pair)
    rest = b.value(f"extractvalue {pair} {made.text}, 0", "double")
    quadrant = b.value(f"extractvalue {pair} {made.text}, 1", "i64")
    r = f.mul(rest, math.pi / 2)
    square = f.mul(r, r)
    sine = f.fma(f.mul(f.poly(square, SIN), square), r, r)
    cosine = f.fma(f.mul(f.poly(square, COS), square), square, f.fma(square, -0.5, 1.0))
    odd = b.compare("ne", f.whole("and", quadrant, 1), const(0, "i64"))
    result = _of(f, name.removesuffix("f"), (sine, cosine, odd, quadrant), wide)
    result = f.select(f.is_("ueq", f.abs(wide), math.inf), math.nan, result)
    result = b.convert("fptrunc", result, kind)
    head = f"define internal {kind} @{name}({kind} %x) noinline nounwind"
    return f"{head} {{\nentry:\n{b.body()}\n  ret {result.typed}\n}}"


def _of(f: Floats, name: str, parts: tuple[Val, Val, Val, Val], x: Val) -> Val:
    """The function of a quadrant's sine and cosine, with the sign of an odd one."""
    sine, cosine, odd, quadrant = parts
    if name == "tan":
        turned = f.div(f.neg(cosine), sine)
        return _signed(f, f.select(odd, turned, f.div(sine, cosine)), x)
    if name == "cos":
        value, count = f.select(odd, sine, cosine), f.whole("add", quadrant, 1)
    else:
        value, count = f.select(odd, cosine, sine), quadrant
    flip = f.whole("shl", f.whole("and", count, 2), 62)
    value = f.unbits(f.whole("xor", f.bits(value), flip))
    return value if name == "cos" else _signed(f, value, x)


def _signed(f: Floats, value: Val, x: Val) -> Val:
    return f.select(f.is_("olt", x, 0.0), f.neg(value), value)
