"""Symbolic extents, and what arithmetic makes of them.

    loss / x.shape[0]            n: as the float that the loss is
    x * x.shape[1] ** -0.5       a float of no type of its own, as -0.5 is

An extent is a number that the program knows when it runs. Beside a tensor it counts as Python's
numbers do, so does what is made of extents and numbers alone; neither is an extent of a shape.
"""

from __future__ import annotations

from typing import Any

from pullback.ir.expr import Dim
from pullback.tensor.face.handles import SCALARS, ScalarHandle, combine, of_extents, typed
from pullback.tensor.record.trace import Handle
from pullback.tensor.values import elementwise as W
from pullback.tensor.values.elementwise import Scalar
from pullback.tensor.values.operands import operand
from pullback.tensor.values.rules import Arithmetic, left_to

OPEN = (ScalarHandle, Dim)


class Symbol(Arithmetic[Any], Dim):
    """A symbolic extent that a user made."""

    __slots__ = ()
    __array_ufunc__ = None
    __eq__ = Dim.__eq__
    __ne__ = object.__ne__
    __hash__ = Dim.__hash__
    # A choice by it, or a number for Python, would be one for all sizes.
    __lt__ = __le__ = __gt__ = __ge__ = Dim._no_number
    __and__ = __or__ = __xor__ = __lshift__ = __rshift__ = Dim._no_number
    __rand__ = __ror__ = __rxor__ = __rlshift__ = __rrshift__ = Dim._no_number

    def _apply(self, name: str, *operands: Any) -> Any:
        if all(isinstance(o, SCALARS) and not isinstance(o, Handle) for o in operands):
            return combine(name, *operands)
        return left_to(name, self, operands)

    def __float__(self) -> float:
        return float(self._no_number(0))

    def __int__(self) -> int:
        return int(self._no_number(0))

    def __index__(self) -> int:
        return int(self._no_number(0))


def beside(operands: tuple[Any, ...]) -> tuple[Any, ...]:
    """Operands: beside a tensor, what is made of extents as a tensor without axes."""
    if not any(isinstance(o, OPEN) for o in operands):  # most operations
        return operands
    own = [of_extents(o) for o in operands]
    others = [o for o, sized in zip(operands, own, strict=True) if not sized]
    if all(not isinstance(o, Handle) for o in others) or any(isinstance(o, OPEN) for o in others):
        return operands  # scalars of a definition
    known = [_weak(o) if sized else operand(o) for o, sized in zip(operands, own, strict=True)]
    kind = W.common_dtype(known)
    return tuple(
        Handle(W.make("size", (), typed(o, kind))) if sized else o
        for o, sized in zip(operands, own, strict=True)
    )


def _weak(operand: Any) -> Scalar:
    """The number of Python's that it counts as where types meet."""
    return 0.0 if isinstance(operand, ScalarHandle) and operand.dtype.is_float else 1
