"""Element types of the standard: facts, kinds, promotion that refuses what it leaves undefined."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from inspect import Parameter, signature
from typing import Any

import ml_dtypes
import numpy as np

from pullback.errors import DTypeError, Origin
from pullback.ir import dtype as D
from pullback.ir.dtype import DType
from pullback.tensor.complex.pairs import Complex, ComplexType, complex64, complex128, complex_type
from pullback.tensor.library import ops as O
from pullback.tensor.record.trace import Handle

STANDARD = (
    D.bool_, D.int8, D.int16, D.int32, D.int64, D.uint8, D.uint16, D.uint32, D.uint64,
    D.float32, D.float64, complex64, complex128,
)  # fmt: skip
AnyType = DType | ComplexType
ARRAYS = (Handle, Complex, np.ndarray, np.generic)
KINDS = {
    "bool": "b",
    "signed integer": "i",
    "unsigned integer": "u",
    "integral": "iu",
    "real floating": "f",
    "complex floating": "c",
    "numeric": "iufc",
}
_PYTHON = {bool: "b", int: "if", float: "f", complex: "f"}  # what a Python number goes with


@dataclass(frozen=True, slots=True)
class FInfo:
    """Facts about a float type."""

    bits: int
    eps: float
    max: float
    min: float
    smallest_normal: float
    dtype: DType


@dataclass(frozen=True, slots=True)
class IInfo:
    """Facts about an integer type."""

    bits: int
    max: int
    min: int
    dtype: DType


def type_of(given: Any) -> AnyType:
    """A type by any of its names, or the type of an array."""
    spec: Any = given.dtype if isinstance(given, ARRAYS) else given
    return complex_type(spec) or D.dtype(spec)


def finfo(type: Any, /) -> FInfo:
    """Facts about a float type, or the type of a tensor. Raises: DTypeError of another.

    Example:
        >>> xp.finfo(xp.float32).bits
        32
    """
    kind = type_of(type)
    kind = kind.part if isinstance(kind, ComplexType) else kind
    if not kind.is_float:
        raise DTypeError(f"finfo of {kind}", origin=Origin.of_caller())
    own: Any = ml_dtypes.finfo(kind.numpy)  # type: ignore[no-untyped-call]  # it has no types
    facts = [float(x) for x in (own.eps, own.max, own.min, own.smallest_normal)]
    return FInfo(kind.bits, facts[0], facts[1], facts[2], facts[3], kind)


def iinfo(type: Any, /) -> IInfo:
    """Facts about an integer type, or the type of a tensor. Raises: DTypeError of another.

    Example:
        >>> xp.iinfo(xp.int8).max
        127
    """
    kind = type_of(type)
    if isinstance(kind, ComplexType) or not kind.is_integer:
        raise DTypeError(f"iinfo of {kind}", origin=Origin.of_caller())
    low, high = kind.range()
    return IInfo(kind.bits, high, low, kind)


def isdtype(dtype: Any, kind: Any) -> bool:
    """Whether a type is of a kind, or one of several kinds and types.

    Example:
        >>> xp.isdtype(xp.float32, "real floating")
        True
    """
    if isinstance(kind, tuple):
        return any(isdtype(dtype, k) for k in kind)
    if isinstance(kind, str):
        if kind not in KINDS:
            raise DTypeError(
                f"no kind {kind!r}",
                origin=Origin.of_caller(),
                help=f"one of {', '.join(KINDS)}",
                code="E140",
            )
        return type_of(dtype).kind in KINDS[kind]
    return type_of(dtype) == type_of(kind)


def can_cast(from_: Any, to: Any, /) -> bool:
    """Whether promotion leads from one type to the other.

    Example:
        >>> xp.can_cast(xp.int32, xp.int64)
        True
    """
    own, other = type_of(from_), type_of(to)
    if _group(own) != _group(other) or ({own, other} & {D.uint64} and "i" in own.kind + other.kind):
        return False
    return O.result_type(own, other) == other


def result_type(*arrays_and_dtypes: Any) -> DType:
    """The type that operands promote to. Raises: DTypeError for mixed kinds.

    Example:
        >>> xp.result_type(xp.int8, xp.int32)
        int32
    """
    check_kinds("result_type", arrays_and_dtypes)
    return O.result_type(*arrays_and_dtypes)


def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Any:
    """Another element type. Float to integer truncates and saturates, NaN gives 0.

    Example:
        >>> xp.astype(xp.asarray([1.7, -1.7]), xp.int32)
        Tensor([ 1, -1], dtype=int32)
    """
    return O.astype(x.to_device(device), dtype, copy=copy)


def _group(kind: AnyType) -> str:
    """Types that the standard promotes with one another: integers; floats, complex or not."""
    return {"u": "i", "c": "f"}.get(kind.kind, kind.kind)


def check_kinds(name: str, operands: Any) -> None:
    """Raises: DTypeError where booleans, integers and floats meet: the standard says nothing."""
    strong = [o for o in operands if isinstance(o, (*ARRAYS, DType, ComplexType))]
    kinds = [o if isinstance(o, DType | ComplexType) else type_of(o.dtype) for o in strong]
    groups = {_group(k): None for k in kinds}
    weak = [_PYTHON[type(o)] for o in operands if type(o) in _PYTHON]
    if len(groups) <= 1 and all(g in w for g in groups for w in weak):
        return
    listed = [str(k) for k in kinds] + [type(o).__name__ for o in operands if type(o) in _PYTHON]
    raise DTypeError(
        f"{name} of {' and '.join(listed)}: the standard leaves kinds that mix undefined",
        origin=Origin.of_caller(),
        help="cast with astype, or use pb's function, which promotes",
    )


def strict(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` of two operands, which must be of one kind."""

    @wraps(function)
    def call(x1: Any, x2: Any, /) -> Any:
        check_kinds(function.__name__, (x1, x2))
        if all(isinstance(x, bool | int | float | complex) for x in (x1, x2)):
            raise DTypeError(
                f"{function.__name__} of two Python numbers",
                origin=Origin.of_caller(),
                code="E143",
            )
        return function(x1, x2)

    made = signature(function)
    own = [p.replace(kind=Parameter.POSITIONAL_ONLY) for p in made.parameters.values()]
    call.__signature__ = made.replace(parameters=own)  # type: ignore[attr-defined]  # for `help`
    return call
