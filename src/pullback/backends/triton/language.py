"""Words of Triton: types, functions, combiners, what stands before the kernels of a file."""

from __future__ import annotations

import builtins
import keyword
import math
import re
from pathlib import Path

from pullback.ir import expr as E
from pullback.ir.dtype import DType, float32, is_short
from pullback.ir.expr import Dim, Expr, Extent

PRELUDE = Path(__file__).with_name("prelude.txt").read_text()
# Names that values may not take: those that the text uses, and Python's.
RESERVED = ("tl", "triton", "wrong", *re.findall(r"^def (\w+)", PRELUDE, re.MULTILINE))
RESERVED += (*keyword.kwlist, *dir(builtins))
# Names of element types in the signature of a kernel; truth and floats of 8 bits lie in bytes.
SIGNATURES = {
    "bool": "u8", "int8": "i8", "uint8": "u8", "int16": "i16", "uint16": "u16",
    "int32": "i32", "uint32": "u32", "int64": "i64", "uint64": "u64",
    "float8_e4m3fn": "u8", "float8_e5m2": "u8",
    "float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64",
}  # fmt: skip
SIGNS: dict[type[Expr], str] = {
    E.Add: "+", E.Mul: "*", E.Less: "<", E.Equal: "==", E.And: "&", E.Or: "|", E.Xor: "^",
}  # fmt: skip
CALLS: dict[type[Expr], str] = {E.Exp: "tl.exp", E.Log: "tl.log", E.Sin: "tl.sin"}
JOINS = {
    "sum": "{} + {}", "prod": "{} * {}", "any": "{} | {}", "all": "{} & {}",
    "max": "tl.maximum({}, {}, propagate_nan=tl.PropagateNan.ALL)",
    "min": "tl.minimum({}, {}, propagate_nan=tl.PropagateNan.ALL)",
}  # fmt: skip

# Functions of two values that scans of whole rows combine by.
SCANS = {"sum": "added", "prod": "product", "max": "largest", "min": "smallest"}


def word(name: str) -> str:
    """A name as Python takes it."""
    text = re.sub(r"\W", "_", name, flags=re.ASCII)
    return text if text[:1].isalpha() else f"v_{text}"


def spelled(kind: DType) -> str:
    """Triton's name of a type."""
    return "tl.int1" if kind.is_bool else f"tl.{kind.name}"


def held(kind: DType) -> DType:
    """The type that values of `kind` are computed in."""
    return float32 if is_short(kind) else kind


def number(value: int | float | bool) -> str:
    """A literal."""
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def typed(node: E.Const) -> str:
    """A literal that is of its type wherever it stands."""
    return f"tl.full((), {number(node.value)}, {spelled(held(node.dtype))})"


def extent_text(extent: Extent) -> str:
    """An extent: a number, or the argument that brings it."""
    return f"size_{word(extent.name)}" if isinstance(extent, Dim) else str(extent)


def times(extents: tuple[Extent, ...]) -> str:
    """The product of extents."""
    whole = math.prod(e for e in extents if isinstance(e, int))
    names = [extent_text(e) for e in extents if isinstance(e, Dim)]
    return " * ".join([*names, str(whole)] if whole != 1 or not names else names)


def parts(extents: tuple[Extent, ...], size: int | str) -> str:
    """How many parts of a size cover extents; `//` of what a run brings rounds towards zero."""
    return f"({times(extents)} + {size} - 1) // {size}"


def rounded(text: str, kind: DType) -> str:
    """A value of a short float, computed in float32, as it is where it is stored."""
    if not is_short(kind):
        return text
    return computed(
        f"({text}).to({spelled(kind)})" if kind.bits == 16 else stored(text, kind), kind
    )


def computed(text: str, kind: DType) -> str:
    """An element of memory as it is computed with."""
    if kind.is_bool:
        return f"({text} != 0)"
    if not is_short(kind):
        return text
    return f"{text if kind.bits == 16 else f'half_of_{kind.name}({text})'}.to(tl.float32)"


def stored(text: str, kind: DType) -> str:
    """A value as it lies in memory, where it has to be said."""
    if kind.is_bool:
        return f"({text}).to(tl.uint8)"
    return f"bits_of_{kind.name}({text})" if is_short(kind) and kind.bits == 8 else text


def collapsed(name: str, text: str, axis: int, kind: DType) -> str:
    """A block combined along one of its axes; NaN makes the largest and the smallest NaN."""
    if name in ("any", "all"):
        least = "max" if name == "any" else "min"
        return f"tl.{least}(({text}).to(tl.int32), {axis}) != 0"
    if name == "prod":
        return f"tl.reduce({text}, {axis}, product)"
    made = f"tl.{name}({text}, {axis})"
    if name != "sum" and kind.is_float:
        nan = f"tl.max(({text} != {text}).to(tl.int32), {axis}) != 0"
        return f'tl.where({nan}, float("nan"), {made}).to({spelled(held(kind))})'
    return f"({made}).to({spelled(kind)})" if kind.bits < 32 and kind.is_integer else made
