"""Results of a model that was called by itself: `backward` is told that it ends there."""

from __future__ import annotations

from collections.abc import Iterable, MutableMapping
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

from pullback.errors import GradientError
from pullback.ir.graph import Value
from pullback.tensor.face.leaves import register
from pullback.tensor.face.tensor import Tensor


class End(Tensor):
    """A leaf in place of a result, which it does not hold: whoever asks what it wants is told."""

    __slots__ = ()

    def __init__(self) -> None:
        """It has no value: nobody reads one."""

    @property
    def _requires_grad(self) -> NoReturn:  # type: ignore[override]
        raise GradientError(
            "backward through a model of ONNX that was called outside of a program", code="E579"
        )


_ENDS: MutableMapping[Value, End] = WeakKeyDictionary()


def watched(results: Iterable[Any]) -> None:
    """Let `backward` raise where it comes to one of these."""
    for result in results:
        if result.dtype.is_float:
            value = result.value
            register(value, _ENDS.setdefault(value, End()))
