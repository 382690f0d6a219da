"""Composites over 16-bit floats: every step in float32, what comes out rounded once.

mean(x: float16)  ->  float16(sum(float32(x)) / n)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce, wraps
from typing import Any, ParamSpec, TypeVar, cast

from pullback.ir.dtype import DType, float32, is_short, promote
from pullback.ir.graph import Definition, Variable
from pullback.tensor.record.trace import Handle
from pullback.tensor.values import elementwise as W

P = ParamSpec("P")
R = TypeVar("R")
KINDS = Handle, Variable, Definition


def in_float32(function: Callable[P, R]) -> Callable[P, R]:
    """`function` of tensors or values, whose inner definitions are of float32, not of 16 bits.

    What it gives has the type that the floats among its arguments have in common.
    """
    inner: Callable[..., Any] = function

    @wraps(function)
    def call(*args: Any, **settings: Any) -> Any:
        given = _kinds((*args, *settings.values()))
        if not any(map(is_short, given)):
            return inner(*args, **settings)
        common = reduce(promote, (kind for kind in given if kind.is_float))
        wide = inner(*map(widened, args), **{n: widened(x) for n, x in settings.items()})
        return narrowed(wide, common)

    return cast(Callable[P, R], call)


def widened(x: Any) -> Any:
    """Tensors or values of 16-bit floats, also within sequences, as float32; the rest stays."""
    if isinstance(x, tuple | list):
        return _alike(x, [widened(item) for item in x])
    return _cast(x, float32) if isinstance(x, KINDS) and is_short(x.dtype) else x


def narrowed(wide: Any, kind: DType) -> Any:
    """What was computed in float32 for 16-bit floats `kind` as that; of several, each."""
    if isinstance(wide, tuple | list):
        return _alike(wide, [narrowed(item, kind) for item in wide])
    own = is_short(kind) and isinstance(wide, KINDS) and wide.dtype == float32
    return _cast(wide, kind) if own else wide


def _kinds(items: Iterable[Any]) -> list[DType]:
    """The types of tensors and values, also within sequences."""
    kinds: list[DType] = []
    for x in items:
        if isinstance(x, KINDS):
            kinds.append(x.dtype)
        elif isinstance(x, tuple | list):
            kinds += _kinds(x)
    return kinds


def _alike(old: Any, items: list[Any]) -> Any:
    """A sequence of the type of `old`; what is the same stays the same."""
    if all(a is b for a, b in zip(old, items, strict=True)):
        return old
    return old._make(items) if hasattr(old, "_make") else type(old)(items)


def _cast(x: Any, kind: DType) -> Any:
    tensor: Any = x
    return tensor.astype(kind) if isinstance(x, Handle) else W.astype(x, kind)
