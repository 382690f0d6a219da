"""Composites over 16-bit floats: every step in float32, what comes out rounded once.

mean(x: float16)  ->  float16(sum(float32(x)) / n)
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterable
from functools import reduce, wraps
from typing import Any, ParamSpec, Protocol, TypeVar

from pullback.ir.dtype import DType, float32, is_half, promote
from pullback.ir.graph import Definition, Variable
from pullback.tensor import elementwise as W

P = ParamSpec("P")
R = TypeVar("R")


class Decorator(Protocol):
    """What leaves a signature as it is."""

    def __call__(self, function: Callable[P, R], /) -> Callable[P, R]: ...


def computing(classes: tuple[type[Any], ...], cast: Callable[[Any, DType], Any]) -> Decorator:
    """The decorator of functions that take and give instances of `classes`, cast by `cast`.

    Inner definitions are of float32 where arguments are of 16 bits. What comes out has the type
    that the floats among the arguments have in common.
    """

    def widened(x: Any) -> Any:
        return cast(x, float32) if isinstance(x, classes) and is_half(x.dtype) else x

    def narrowed(found: Any, kind: DType) -> Any:
        if isinstance(found, tuple | list):
            return type(found)(narrowed(x, kind) for x in found)
        own = isinstance(found, classes) and found.dtype == float32
        return cast(found, kind) if own else found

    def decorate(function: Callable[P, R], /) -> Callable[P, R]:
        inner: Callable[..., Any] = function

        @wraps(function)
        def call(*args: Any, **settings: Any) -> Any:
            kinds = [x.dtype for x in (*args, *settings.values()) if isinstance(x, classes)]
            if not any(map(is_half, kinds)):
                return inner(*args, **settings)
            wide = {name: widened(x) for name, x in settings.items()}
            found = inner(*map(widened, args), **wide)
            common = _common(kinds)
            return narrowed(found, common) if is_half(common) else found

        return typing.cast(Callable[P, R], call)

    return decorate


def _common(kinds: Iterable[DType]) -> DType:
    return reduce(promote, (k for k in kinds if k.is_float))


in_float32 = computing((Variable, Definition), W.astype)
"""Of values."""
