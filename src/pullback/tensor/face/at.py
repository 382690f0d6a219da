"""``x.at[index].set(v)``: the tensor with some elements changed, as JAX writes it.

y = x.at[2:, ids].add(v)         x stays as it is
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from pullback.ir.graph import Value
from pullback.tensor.face import keys as K
from pullback.tensor.record.trace import Handle

T = TypeVar("T", bound=Handle)


class At(Generic[T]):
    """What ``x.at`` is: an index in brackets names the elements."""

    __slots__ = ("_make", "_x")

    def __init__(self, x: T, make: Callable[[Value], T]) -> None:
        self._x = x
        self._make = make

    def __getitem__(self, key: Any) -> Elements[T]:
        return Elements(self._x, self._make, key)

    def __repr__(self) -> str:
        return f"{self._x!r}.at"


class Elements(Generic[T]):
    """Elements of a tensor that are read, or replaced in a new tensor.

    Where an index names an element several times, `set` takes the last value and the others
    combine all of them, in order.

    Shapes: the values broadcast to ``x[key]``.

    Raises: IndexRangeError, ShapeError, DTypeError for values of a wider kind than the tensor.

    Example:
        >>> x = pb.zeros(4)
        >>> x.at[pb.tensor([1, 1, 3])].add(1.0).tolist()
        [0.0, 2.0, 0.0, 1.0]
    """

    __slots__ = ("_key", "_make", "_x")

    def __init__(self, x: T, make: Callable[[Value], T], key: Any) -> None:
        self._x = x
        self._make = make
        self._key = key

    def get(self) -> T:
        """``x[key]``"""
        return self._make(K.chosen(self._x, self._key))

    def set(self, values: Any) -> T:
        """``x[key] = values``"""
        return self._changed("set", values)

    def add(self, values: Any) -> T:
        """``x[key] += values``"""
        return self._changed("add", values)

    def subtract(self, values: Any) -> T:
        """``x[key] -= values``"""
        return self._changed("subtract", values)

    def multiply(self, values: Any) -> T:
        """``x[key] *= values``"""
        return self._changed("multiply", values)

    def divide(self, values: Any) -> T:
        """``x[key] /= values``; of several values for one element, by their product."""
        return self._changed("divide", values)

    def power(self, values: Any) -> T:
        """``x[key] **= values``; of several values for one element, by their product."""
        return self._changed("power", values)

    def max(self, values: Any) -> T:
        """``x[key] = maximum(x[key], values)``"""
        return self._changed("max", values)

    def min(self, values: Any) -> T:
        """``x[key] = minimum(x[key], values)``"""
        return self._changed("min", values)

    def _changed(self, reduce: str, values: Any) -> T:
        return self._make(K.changed(self._x, self._key, values, reduce))
