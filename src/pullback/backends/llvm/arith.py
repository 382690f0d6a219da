"""Arithmetic that LLVM does not have in one instruction: floors, casts, short floats, extrema.

Floats of 16 and 8 bits are computed with as float32; they are rounded, to nearest even, where a
value is cast or stored.
"""

from __future__ import annotations

import numpy as np

from pullback.backends.llvm import quotients
from pullback.backends.llvm.floats import Floats
from pullback.backends.llvm.text import BITS, Builder, Val, const
from pullback.ir.dtype import DType, bfloat16, float8_e5m2, float16, is_short

COMPUTE = {
    "bool": "i1", "int8": "i8", "uint8": "i8", "int16": "i16", "uint16": "i16", "int32": "i32",
    "uint32": "i32", "int64": "i64", "uint64": "i64",
    "float8_e4m3fn": "float", "float8_e5m2": "float", "float16": "float", "bfloat16": "float",
    "float32": "float", "float64": "double",
}  # fmt: skip
MEMORY = COMPUTE | {
    "bool": "i8", "float8_e4m3fn": "i8", "float8_e5m2": "i8", "float16": "i16", "bfloat16": "i16",
}  # fmt: skip


def from_memory(b: Builder, a: Val, dtype: DType) -> Val:
    """The value computed with, of an element as it lies in memory."""
    if dtype.is_bool:
        return b.compare("ne", a, const(0, "i8"))
    if not is_short(dtype):
        return a
    if dtype == bfloat16:
        wide = b.binary("shl", b.convert("zext", a, "i32"), const(16, "i32"))
        widened = b.convert("bitcast", wide, "float")
    else:
        widened = _from_half(b, a) if dtype == float16 else _from_eighth(b, a, dtype)
    b.narrow[widened.text, dtype.name] = a
    return widened


def to_memory(b: Builder, a: Val, dtype: DType) -> Val:
    """The element as it lies in memory; of a value that was rounded before, that one's bits."""
    if dtype.is_bool:
        return b.convert("zext", a, "i8")
    known = b.narrow.get((a.text, dtype.name))
    if known is not None:
        return known
    if dtype == bfloat16:
        return _round_bfloat(b, a)
    if is_short(dtype):
        return _to_half(b, a) if dtype == float16 else _to_eighth(b, a, dtype)
    if a.kind == "i32" and dtype.bits == 64:
        return b.convert("sext", a, "i64")
    return a


def _round_bfloat(b: Builder, a: Val) -> Val:
    bits = b.convert("bitcast", a, "i32")
    high = b.binary("lshr", bits, const(16, "i32"))
    odd = b.binary("and", high, const(1, "i32"))
    rounded = b.binary("add", b.binary("add", bits, const(0x7FFF, "i32")), odd)
    rounded = b.binary("lshr", rounded, const(16, "i32"))
    quiet = b.binary("or", high, const(0x40, "i32"))
    half_bits = b.select(b.compare("uno", a, a), quiet, rounded)
    return b.convert("trunc", half_bits, "i16")


def _from_half(b: Builder, a: Val) -> Val:
    """float16 -> float32; in integers where the processor does not: ``(h << 13) * 2**112``."""
    if b.module.target.halves:
        return b.convert("fpext", b.convert("bitcast", a, "half"), "float")
    wide = b.convert("zext", a, "i32")
    sign = b.binary("shl", b.binary("and", wide, const(0x8000, "i32")), const(16, "i32"))
    size = b.binary("and", wide, const(0x7FFF, "i32"))
    small = b.convert("bitcast", b.binary("shl", size, const(13, "i32")), "float")
    bits = b.convert("bitcast", b.binary("fmul", small, const(2.0**112, "float")), "i32")
    infinite = b.binary("or", bits, const(0x7F800000, "i32"))
    quiet = b.binary("or", bits, const(0x7FC00000, "i32"))
    bits = b.select(b.compare("uge", size, const(0x7C00, "i32")), infinite, bits)
    bits = b.select(b.compare("ugt", size, const(0x7C00, "i32")), quiet, bits)
    return b.convert("bitcast", b.binary("or", bits, sign), "float")


def _to_half(b: Builder, a: Val) -> Val:
    """float32 -> float16, to the nearest, ties to even; by an addition of 0.5 below ``2**-14``."""
    if b.module.target.halves:
        return b.convert("bitcast", b.convert("fptrunc", a, "half"), "i16")
    bits = b.convert("bitcast", a, "i32")
    sign = b.binary("and", b.binary("lshr", bits, const(16, "i32")), const(0x8000, "i32"))
    size = b.binary("and", bits, const(0x7FFFFFFF, "i32"))
    tiny = b.binary("fadd", b.convert("bitcast", size, "float"), const(0.5, "float"))
    tiny = b.binary("sub", b.convert("bitcast", tiny, "i32"), const(0x3F000000, "i32"))
    odd = b.binary("and", b.binary("lshr", size, const(13, "i32")), const(1, "i32"))
    half = b.binary("add", b.binary("sub", size, const((112 << 23) - 0xFFF, "i32")), odd)
    half = b.binary("lshr", half, const(13, "i32"))
    half = b.select(b.compare("ult", size, const(0x38800000, "i32")), tiny, half)
    half = b.select(b.compare("uge", size, const(0x47800000, "i32")), const(0x7C00, "i32"), half)
    payload = b.binary("and", b.binary("lshr", size, const(13, "i32")), const(0x3FF, "i32"))
    quiet = b.binary("or", payload, const(0x7E00, "i32"))
    half = b.select(b.compare("ugt", size, const(0x7F800000, "i32")), quiet, half)
    return b.convert("trunc", b.binary("or", half, sign), "i16")


def _from_eighth(b: Builder, a: Val, dtype: DType) -> Val:
    """By way of float16, which holds it: its upper byte is e5m2; e4m3fn is ``2**8`` times that."""
    if dtype == float8_e5m2:
        return _from_half(b, b.binary("shl", b.convert("zext", a, "i16"), const(8, "i16")))
    moved = b.binary("shl", b.convert("sext", a, "i16"), const(7, "i16"))
    half = b.binary("and", moved, const(~0x4000, "i16"))
    void = b.compare("eq", b.binary("and", half, const(0x3F80, "i16")), const(0x3F80, "i16"))
    exponent = b.binary("and", b.convert("sext", void, "i16"), const(0x7C00, "i16"))
    half = b.binary("or", half, exponent)
    return b.binary("fmul", _from_half(b, half), const(2.0**8, "float"))


def _to_eighth(b: Builder, a: Val, dtype: DType) -> Val:
    """float32 -> a float of 8 bits, to the nearest, ties to even; below its normal numbers by an
    addition to what has its last bit as its own. What is too large is infinite; of e4m3fn, which
    has no infinity, NaN.
    """
    digits, bias, above = (2, 15, 65536.0) if dtype == float8_e5m2 else (3, 7, 480.0)
    dropped, anchor = 23 - digits, 2.0 ** (24 - bias - digits)
    bits = b.convert("bitcast", a, "i32")
    size = b.binary("and", bits, const(0x7FFFFFFF, "i32"))
    size = b.intrinsic("umin", size, const(_bits(above), "i32"))
    odd = b.binary("and", b.binary("lshr", size, const(dropped, "i32")), const(1, "i32"))
    less = ((127 - bias) << 23) - (1 << (dropped - 1)) + 1
    byte = b.binary("add", b.binary("sub", size, const(less, "i32")), odd)
    byte = b.binary("lshr", byte, const(dropped, "i32"))
    tiny = b.binary("fadd", b.convert("bitcast", size, "float"), const(anchor, "float"))
    tiny = b.binary("sub", b.convert("bitcast", tiny, "i32"), const(_bits(anchor), "i32"))
    byte = b.select(b.compare("ult", size, const((128 - bias) << 23, "i32")), tiny, byte)
    if dtype == float8_e5m2:
        byte = b.select(b.compare("uno", a, a), const(0x7E, "i32"), byte)
    sign = b.binary("and", b.binary("lshr", bits, const(24, "i32")), const(0x80, "i32"))
    return b.convert("trunc", b.binary("or", byte, sign), "i8")


def _bits(value: float) -> int:
    """The bits of a float32."""
    return int(np.float32(value).view(np.int32))


def flushed(b: Builder, a: Val) -> Val:
    """A float32 vector as bfloat16, denormals as zeros: one instruction."""
    wide, half = 32 * a.lanes, f"<{a.lanes} x bfloat>"
    name = f"llvm.x86.avx512bf16.cvtneps2bf16.{wide}"
    b.declare(name, [a.type], half)
    narrowed = b.value(f"call {half} @{name}({a.typed})", "bfloat", a.lanes)
    return from_memory(b, b.convert("bitcast", narrowed, "i16"), bfloat16)


def cast(b: Builder, a: Val, source: DType, to: DType, narrow: bool) -> Val:
    """`a` as type `to`; an int64 result may be held in 32 bits where `narrow`."""
    kind = "i32" if narrow and to.bits == 64 and not to.is_float else COMPUTE[to.name]
    if to.is_bool:
        return _to_bool(b, a, source)
    if source.is_bool:
        one, zero = const(1, kind, a.lanes), const(0, kind, a.lanes)
        return b.select(a, one, zero)
    if to.is_float:
        return _to_float(b, a, source, to)
    if source.is_float:
        sign = "fptosi.sat" if to.kind == "i" else "fptoui.sat"
        return b.intrinsic(sign, a, kind=COMPUTE[to.name])
    if BITS[kind] <= BITS[a.kind]:
        return b.convert("trunc", a, kind)
    return b.convert("sext" if source.kind == "i" else "zext", a, kind)


def _to_bool(b: Builder, a: Val, source: DType) -> Val:
    if source.is_bool:
        return a
    return b.compare("une" if source.is_float else "ne", a, const(0, a.kind))


def _to_float(b: Builder, a: Val, source: DType, to: DType) -> Val:
    kind = COMPUTE[to.name]
    if source.is_integer:
        converted = b.convert("sitofp" if source.kind == "i" else "uitofp", a, kind)
    elif a.kind == kind:
        converted = a
    elif is_short(to):
        converted = _odd(b, a)
    else:
        converted = b.convert("fpext" if kind == "double" else "fptrunc", a, kind)
    if is_short(to) and source != to:
        return from_memory(b, to_memory(b, converted, to), to)
    return converted


def _odd(b: Builder, a: Val) -> Val:
    """A float64 as the float32 that rounds to fewer bits as it does: odd at its end if inexact.

    Source: Boldo and Melquiond, "When double rounding is odd", 2005.
    """
    near = b.convert("fptrunc", a, "float")
    back, bits = b.convert("fpext", near, "double"), b.convert("bitcast", near, "i32")
    even = b.compare("eq", b.binary("and", bits, const(1, "i32")), const(0, "i32"))
    moves = b.binary("and", b.compare("one", back, a), even)
    below = b.compare("olt", b.intrinsic("fabs", back), b.intrinsic("fabs", a))
    step = b.select(below, const(1, "i32", a.lanes), const(-1, "i32", a.lanes))
    moved = b.select(moves, b.binary("add", bits, step), bits)
    return b.convert("bitcast", moved, "float")


def extremum(b: Builder, name: str, a: Val, c: Val, dtype: DType) -> Val:
    """``max(a, c)`` or ``min(a, c)``; NaN if either is."""
    a, c = b.unify(a, c)
    if dtype.is_bool:
        return b.binary("or" if name == "max" else "and", a, c)
    if dtype.is_integer:
        return b.intrinsic(("s" if dtype.kind == "i" else "u") + name, a, c)
    order = "ogt" if name == "max" else "olt"
    # the form of one x86 instruction: the second operand where either is NaN
    extreme = b.select(b.compare(order, c, a), c, a)
    return b.select(b.compare("uno", c, c), c, extreme)


def floor_divide(b: Builder, a: Val, c: Val, dtype: DType, positive: bool) -> Val:
    """``floor(a / c)``; of integers 0 where `c` is 0. `positive`: `a` is known to be >= 0."""
    if dtype.is_float:
        return quotients.floor_divide(b, a, c)
    if dtype.is_bool:
        return b.binary("and", a, c)
    if c.literal is not None and c.literal > 0:
        return _divide_literal(b, a, int(c.literal), dtype, positive)
    return _divide(b, a, c, dtype)[0]


def modulo(b: Builder, a: Val, c: Val, dtype: DType, positive: bool) -> Val:
    """``a - floor(a / c) c``, exact; of integers 0 where `c` is 0."""
    if dtype.is_float:
        return quotients.modulo(b, a, c)
    if dtype.is_bool:
        return const(False, "i1", max(a.lanes, c.lanes))
    if c.literal is not None and c.literal > 0:
        return _modulo_literal(b, a, int(c.literal), dtype, positive)
    return _divide(b, a, c, dtype)[1]


def _unsigned(dtype: DType, positive: bool) -> bool:
    return dtype.kind == "u" or positive


def _exact(a: Val, dtype: DType) -> int:
    """The value of an integer literal; literals are kept as signed."""
    value = int(a.literal or 0)
    return value % (1 << dtype.bits) if dtype.kind == "u" else value


def _divide_literal(b: Builder, a: Val, d: int, dtype: DType, positive: bool) -> Val:
    if d == 1:
        return a
    if a.literal is not None:
        return const(_exact(a, dtype) // d, a.kind, a.lanes)
    if _unsigned(dtype, positive):
        return b.binary("udiv", a, const(d, a.kind))
    if d & (d - 1) == 0:
        return b.binary("ashr", a, const(d.bit_length() - 1, a.kind))
    # floor(a / d) = ~(~a / d) for a < 0
    sign = b.binary("ashr", a, const(BITS[a.kind] - 1, a.kind))
    flipped = b.binary("xor", a, sign)
    return b.binary("xor", b.binary("udiv", flipped, const(d, a.kind)), sign)


def _modulo_literal(b: Builder, a: Val, d: int, dtype: DType, positive: bool) -> Val:
    if d & (d - 1) == 0:
        return b.binary("and", a, const(d - 1, a.kind))
    if a.literal is not None:
        return const(_exact(a, dtype) % d, a.kind, a.lanes)
    if _unsigned(dtype, positive):
        return b.binary("urem", a, const(d, a.kind))
    floor = _divide_literal(b, a, d, dtype, positive)
    return b.binary("sub", a, b.binary("mul", floor, const(d, a.kind)))


def _divide(b: Builder, a: Val, c: Val, dtype: DType) -> tuple[Val, Val]:
    """Quotient and remainder by any divisor; nothing traps."""
    a, c = b.unify(a, c)
    zero, one = const(0, a.kind, a.lanes), const(1, a.kind, a.lanes)
    void = b.compare("eq", c, zero)
    if dtype.kind == "u":
        safe = b.select(void, one, c)
        quotient, rest = b.binary("udiv", a, safe), b.binary("urem", a, safe)
        return b.select(void, zero, quotient), b.select(void, zero, rest)
    minus = b.compare("eq", c, const(-1, a.kind, a.lanes))
    safe = b.select(b.binary("or", void, minus), one, c)
    quotient, rest = b.binary("sdiv", a, safe), b.binary("srem", a, safe)
    inexact = b.compare("ne", rest, zero)
    unlike = b.compare("slt", b.binary("xor", rest, c), zero)
    below = b.binary("and", inexact, unlike)
    quotient = b.binary("sub", quotient, b.select(below, one, zero))
    rest = b.binary("add", rest, b.select(below, c, zero))
    quotient = b.select(minus, b.binary("sub", zero, a), quotient)
    return b.select(void, zero, quotient), b.select(void, zero, rest)


def absolute(b: Builder, a: Val, dtype: DType) -> Val:
    """``|a|``"""
    if dtype.is_float:
        return b.intrinsic("fabs", a)
    if dtype.kind != "i":
        return a
    negative = b.compare("slt", a, const(0, a.kind))
    return b.select(negative, b.binary("sub", const(0, a.kind, a.lanes), a), a)


def multiply(b: Builder, a: Val, c: Val, dtype: DType) -> Val:
    """``a * c``; -1 negates."""
    if dtype.is_bool:
        return b.binary("and", a, c)
    if not dtype.is_float:
        return b.binary("mul", a, c)
    for one, other in ((a, c), (c, a)):
        if one.literal == -1.0 and other.lanes >= one.lanes:
            return Floats(b, other).neg(other)
    return b.binary("fmul", a, c)


def add(b: Builder, a: Val, c: Val, dtype: DType) -> Val:
    """``a + c``"""
    if dtype.is_bool:
        return b.binary("or", a, c)
    if dtype.is_float:
        return b.binary("fadd", a, c)
    return b.binary("add", a, c)
