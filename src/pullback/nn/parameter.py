"""What a module owns: parameters, which are trained, and buffers, which are not."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.errors import ShapeError
from pullback.tensor.tensor import State, Tensor
from pullback.tensor.trace import Cell, bind


class Buffer(State):
    """State of a module or optimiser. It may be assigned; no gradient is collected in it."""

    __slots__ = ()

    def __init__(self, data: Any) -> None:
        super().__init__(as_tensor(data).value)

    def copy(self) -> Buffer:
        """Another buffer with the same contents."""
        return Buffer(Tensor(self.value))


class Parameter(State):
    """A trained tensor: `backward` adds to its `grad`."""

    __slots__ = ()

    def __init__(self, data: Any, requires_grad: bool = True) -> None:
        super().__init__(as_tensor(data).value, requires_grad)

    def requires_grad_(self, requires_grad: bool = True) -> Parameter:
        """Say whether `backward` collects a gradient here."""
        self.requires_grad = requires_grad
        return self

    def copy(self) -> Parameter:
        """Another parameter with the same contents."""
        return Parameter(Tensor(self.value), self.requires_grad)


def as_tensor(data: Any) -> Tensor:
    """Anything array-like as a tensor; NumPy arrays are copied."""
    if isinstance(data, Tensor):
        return data
    return Tensor(bind(np.asarray(data), "data"))


def label(cell: Cell, name: str) -> None:
    """Say what people call the cell; kernels print it."""
    cell.outside().name = name


def put(cell: Cell, array: Any, name: str) -> None:
    """Copy the contents of anything array-like into a cell, as the cell's type.

    Raises: ShapeError, naming both shapes.
    """
    found = host_array(array)
    if found.shape != cell.shape:
        raise ShapeError(f"`{name}` has shape {found.shape}, {cell.shape} is wanted", code="E138")
    kind = cell.dtype.numpy
    cell.assign(bind(found if found.dtype == kind else found.astype(kind), name))


def host_array(array: Any) -> np.ndarray[Any, Any]:
    """The elements of a tensor of pullback, NumPy or torch."""
    if not isinstance(array, Tensor) and hasattr(array, "detach"):
        array = array.detach().cpu()
    return np.asarray(array)
