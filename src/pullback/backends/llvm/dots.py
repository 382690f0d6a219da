"""Sums of the products of words, an instruction each.

``Dot(a[x], b[y])  ->  vdpbf16ps acc, a[x], b[y]``
"""

from __future__ import annotations

from collections.abc import Callable

from pullback.backends.llvm.memory import Memory
from pullback.backends.llvm.scope import Scope
from pullback.backends.llvm.text import Builder, Val, const
from pullback.backends.nests.words import Dot
from pullback.ir.expr import Const, Expr
from pullback.ir.nest import Load

Evaluate = Callable[[Expr, Scope], Val]


def words(b: Builder, memory: Memory, side: Load | Const, at: Scope, get: Evaluate) -> Val:
    """A word for each lane, or one for all."""
    if isinstance(side, Const):
        byte = int(side.value) & 0xFF
        return const(byte * 0x01010101, "i32")
    array, offset = side.array, side.offset
    stride = memory.stride(offset, at)
    home = at.uniform if stride == 0 else at
    key = ("words", array, offset)
    known = home.find(key)
    if known is not None:
        return known
    for need, scope in memory.needs(offset, at):
        get(need, scope)
    pointer = memory.pointer(array, offset, at, get)
    lanes = 0 if stride == 0 or at.lanes is None else at.lanes.count
    value = memory.whole(pointer, "i32", lanes, array.dtype.itemsize, at)
    return home.keep(key, value, memory.facts.reads(side))


def emit(b: Builder, dot: Dot, sides: tuple[Val, Val], old: Val) -> Val:
    """``old + sum of products``, in lanes."""
    lanes = old.lanes
    bits = 32 * lanes
    each, short, name = (2, "bfloat", "avx512bf16.dpbf16ps") if dot.floats else (
        4, "i8", "avx512.vpdpbusd")  # fmt: skip
    wide = f"<{each * lanes} x {short}>"
    args = [old.typed]
    for side in sides:
        spread = b.splat(side, lanes)
        args.append(f"{wide} {b.value(f'bitcast {spread.typed} to {wide}', short).text}")
    call = f"llvm.x86.{name}.{bits}"
    b.declare(call, [old.type, wide, wide], old.type)
    return b.value(f"call {old.type} @{call}({', '.join(args)})", old.kind, lanes)
