"""Small programs without the tensor library: maps, sums and states from definitions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pullback.ir import dtype as D
from pullback.ir import expr as E
from pullback.ir.graph import Variable, define, read
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.record.trace import Cell, Handle, array_of, bind, realize, wrap


def tensor(data: Any, kind: str = "float32") -> Tensor:
    """A tensor that exists."""
    return Tensor(bind(np.array(data, kind), "t"))


def cell(data: Any, kind: str = "float32") -> Cell:
    """A state."""
    return Cell(bind(np.array(data, kind), "state"))


def value(handle: Handle) -> np.ndarray[Any, Any]:
    """A copy of what a handle stands for."""
    realize([handle])
    return np.array(array_of(handle))


def variable(handle: Handle) -> Variable:
    """The variable of a handle that has been computed."""
    found = handle.value
    assert isinstance(found, Variable)
    return found


def apply(body: Callable[..., E.Expr], *handles: Handle, shape: Sequence[Any] = ()) -> Tensor:
    """``out[i] = body(a[i], b[i])``; operands of fewer axes are broadcast."""
    values = [h.value for h in handles]
    shape = tuple(shape) or max((v.shape for v in values), key=len)

    def at(*axes: E.Axis) -> E.Expr:
        return body(*(read(v, *axes[len(axes) - len(v.shape) :]) for v in values))

    return Tensor(wrap(define("map", shape, at)))


def add(a: Handle, b: Handle | float) -> Tensor:
    """``a + b``"""
    if isinstance(b, Handle):
        return apply(E.Add, a, b)
    return apply(lambda x: E.Add(x, E.const(b, x.dtype)), a)


def mul(a: Handle, b: Handle | float) -> Tensor:
    """``a * b``"""
    if isinstance(b, Handle):
        return apply(E.Mul, a, b)
    return apply(lambda x: E.Mul(x, E.const(b, x.dtype)), a)


def less(a: Handle, b: float) -> Tensor:
    """``a < b``"""
    return apply(lambda x: E.Less(x, E.const(b, x.dtype)), a)


def total(a: Handle) -> Tensor:
    """The sum of all elements."""
    found = a.value
    return Tensor(wrap(define("total", (), lambda *k: read(found, *k), over=found.shape)))


def product(a: Handle, b: Handle) -> Tensor:
    """``a @ b``"""
    left, right = a.value, b.value
    (rows, inner), (_, columns) = left.shape, right.shape
    found = define(
        "product",
        (rows, columns),
        lambda i, j, k: E.Mul(read(left, i, k), read(right, k, j)),
        over=(inner,),
    )
    return Tensor(wrap(found))


def floats(number: Handle) -> Tensor:
    """An integer scalar as float32."""
    return apply(lambda x: E.Cast(x, D.float32), number)


class Batches:
    """A feeder that hands out 0, 1, 2, ... and remembers how often it was called."""

    def __init__(self, shape: tuple[int, ...] = (4,), stop: int | None = None) -> None:
        self.shape = shape
        self.stop = stop
        self.calls = 0

    def __call__(self) -> np.ndarray[Any, Any]:
        number = self.calls
        if self.stop is not None and number >= self.stop:
            raise StopIteration
        self.calls += 1
        return np.full(self.shape, number, np.float32)
