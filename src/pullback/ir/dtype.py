"""Element types: names, sizes, promotion (the array API standard's table)."""

from __future__ import annotations

from dataclasses import field
from typing import Any

import ml_dtypes
import numpy as np

from pullback.config import Pair, entity
from pullback.errors import DTypeError


@entity
class DType:
    """One element type: one object each. `kind` is b(ool), i(nt), u(nsigned) or f(loat).

    Example:
        >>> pb.float32.kind, pb.float32.bits
        ('f', 32)
    """

    name: str
    kind: str
    bits: int
    itemsize: int = field(init=False)  # bytes
    is_float: bool = field(init=False)
    is_integer: bool = field(init=False)
    is_bool: bool = field(init=False)
    python: type[bool | int | float] = field(init=False)  # of its literals

    def __post_init__(self) -> None:
        facts = {
            "itemsize": max(1, self.bits // 8),
            "is_float": self.kind == "f",
            "is_integer": self.kind in "iu",
            "is_bool": self.kind == "b",
            "python": {"b": bool, "f": float}.get(self.kind, int),
        }
        for name, value in facts.items():
            object.__setattr__(self, name, value)

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy type with the same bytes; those that NumPy lacks come from ml_dtypes."""
        return _NUMPY[self.name]

    def range(self) -> Pair:
        """Smallest and largest value of an integer (or boolean) type."""
        if self.kind == "b":
            return 0, 1
        if self.kind == "u":
            return 0, 2**self.bits - 1
        if self.kind == "i":
            return -(2 ** (self.bits - 1)), 2 ** (self.bits - 1) - 1
        raise DTypeError(f"{self.name} has no integer range")

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> tuple[Any, ...]:
        return dtype, (self.name,)


bool_ = DType("bool", "b", 8)
int8 = DType("int8", "i", 8)
uint8 = DType("uint8", "u", 8)
int16 = DType("int16", "i", 16)
uint16 = DType("uint16", "u", 16)
int32 = DType("int32", "i", 32)
uint32 = DType("uint32", "u", 32)
int64 = DType("int64", "i", 64)
uint64 = DType("uint64", "u", 64)
float8_e4m3fn = DType("float8_e4m3fn", "f", 8)
float8_e5m2 = DType("float8_e5m2", "f", 8)
float16 = DType("float16", "f", 16)
bfloat16 = DType("bfloat16", "f", 16)
float32 = DType("float32", "f", 32)
float64 = DType("float64", "f", 64)

ALL: tuple[DType, ...] = (
    bool_, int8, uint8, int16, uint16, int32, uint32, int64, uint64,
    float8_e4m3fn, float8_e5m2, float16, bfloat16, float32, float64,
)  # fmt: skip
BY_NAME: dict[str, DType] = {d.name: d for d in ALL}
_NUMPY: dict[str, np.dtype[Any]] = {
    d.name: np.dtype(getattr(ml_dtypes, d.name, d.name)) for d in ALL
}
_FROM_NUMPY: dict[np.dtype[Any], DType] = {n: BY_NAME[name] for name, n in _NUMPY.items()}


def dtype(spec: Any) -> DType:
    """The type named by a `DType`, a string, a NumPy type or Python's bool, int, float.

    Raises: DTypeError for anything else.

    Example:
        >>> pb.dtype("float32")
        float32
    """
    if isinstance(spec, DType):
        return spec
    if isinstance(spec, str) and spec in BY_NAME:
        return BY_NAME[spec]
    python = {bool: bool_, int: int64, float: float32}
    if isinstance(spec, type) and spec in python:
        return python[spec]
    try:
        kind = _FROM_NUMPY.get(np.dtype(spec))
    except TypeError:
        kind = None
    if kind is None:
        raise DTypeError(
            f"no element type {spec!r}", help=f"use one of {', '.join(BY_NAME)}", code="E140"
        )
    return kind


def is_short(kind: DType) -> bool:
    """Whether values of `kind` are stored in 16 or 8 bits and computed with in float32."""
    return kind.is_float and kind.bits <= 16


def is_extended(kind: DType) -> bool:
    """Whether the NumPy type comes from ml_dtypes: what NumPy itself hands over has no such one."""
    return kind.numpy.isbuiltin != 1


def promote(a: DType, b: DType) -> DType:
    """The type of `a + b`: within a kind the wider; int with float is refused by the standard,
    here it gives the float; unlike floats of one size give float32; signed with unsigned widens.

    Raises: DTypeError for uint64 with a signed type: no integer type holds both.
    """
    if a == b:
        return a
    if a.is_bool:
        return b
    if b.is_bool:
        return a
    if a.is_float != b.is_float:
        return a if a.is_float else b
    if a.is_float:
        if a.bits == b.bits:
            return float32
        return a if a.bits > b.bits else b
    if a.kind == b.kind:
        return a if a.bits > b.bits else b
    signed, unsigned = (a, b) if a.kind == "i" else (b, a)
    if signed.bits > unsigned.bits:
        return signed
    if unsigned == uint64:
        raise DTypeError(f"no integer type holds {a} and {b}", code="E370")
    return BY_NAME[f"int{2 * unsigned.bits}"]
