"""What Triton's interpreter computes otherwise than a device: bfloat16, which it holds as its bits.

It moves, loads, stores and casts them rightly, and adds and compares whole numbers. So a kernel
that computes in bfloat16 itself, and does not cast to float32 first, has other values there.
"""

from __future__ import annotations

from pullback.errors import UnsupportedError
from pullback.triton.nodes import Function, Operation

_MOVES = (
    "arith.constant", "arith.extf", "arith.select", "math.absf", "tt.broadcast", "tt.expand_dims",
    "tt.fp_to_fp", "tt.gather", "tt.join", "tt.load", "tt.reduce", "tt.reduce.return", "tt.reshape",
    "tt.scan", "tt.scan.return", "tt.splat", "tt.split", "tt.store", "tt.trans", "scf.condition",
    "scf.for", "scf.if", "scf.while", "scf.yield",
)  # fmt: skip


def by_bits(function: Function) -> Operation | None:
    """The first operation that the interpreter does with the bits of bfloat16, where there is one.

    A bitcast is among them: what `tl.sort` is made of, whose text is another one here.
    """
    return next((o for o in function.block.walk() if _by_bits(o)), None)


def _by_bits(o: Operation) -> bool:
    types = [v.type for v in (*o.operands, *o.results) if not v.type.pointer]
    if all(type.element != "bf16" for type in types):
        return False
    exact = o.name == "arith.truncf" and o.operands[0].type.element == "f32"
    return o.name not in _MOVES and not exact


def unjudged(name: str, o: Operation) -> UnsupportedError:
    """The error of a kernel whose numbers on the interpreter are not those of a device."""
    what = f"{name}: {o.name} at {o.place} is of bfloat16, of which the interpreter takes the bits"
    return UnsupportedError(what, code="E429")


def products(function: Function) -> Operation | None:
    """The first product of bfloat16: its derivative is one of bfloat16 too, for tensor cores."""
    dots = (o for o in function.block.walk() if o.name == "tt.dot")
    return next((o for o in dots if _by_bits(o)), None)
