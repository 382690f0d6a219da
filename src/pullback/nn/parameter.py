"""What a module owns: parameters, which are trained, and buffers, which are not."""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.errors import DTypeError, Origin, ShapeError
from pullback.tensor.tensor import Tensor
from pullback.tensor.trace import Cell, bind


class Buffer(Tensor, Cell):
    """State of a module or optimiser. It may be assigned; no gradient is collected in it."""

    def __init__(self, data: Any) -> None:
        super().__init__(_tensor(data).value)


class Parameter(Tensor, Cell):
    """A trained tensor. `backward` adds to its `grad`."""

    def __init__(self, data: Any, requires_grad: bool = True) -> None:
        tensor = _tensor(data)
        if requires_grad and not tensor.dtype.is_float:
            raise DTypeError(
                f"a parameter is a float, not {tensor.dtype}", origin=Origin.of_caller()
            )
        super().__init__(tensor.value)
        self.requires_grad = requires_grad
        self.grad: Tensor | None = None

    def requires_grad_(self, requires_grad: bool = True) -> Parameter:
        """Say whether `backward` collects a gradient here."""
        self.requires_grad = requires_grad
        return self


def _tensor(data: Any) -> Tensor:
    """Anything array-like as a tensor; NumPy arrays are copied."""
    if isinstance(data, Tensor):
        return data
    return Tensor(bind(np.asarray(data), "data"))


def put(cell: Cell, array: Any, name: str) -> None:
    """Copy the contents of anything array-like into a cell, with its type.

    Raises: ShapeError, naming both shapes.
    """
    found = np.asarray(array.detach() if hasattr(array, "detach") else array)
    if found.shape != cell.shape:
        raise ShapeError(
            f"`{name}` has shape {found.shape}, the module wants {cell.shape}",
            origin=Origin.of_caller(),
        )
    kind = cell.dtype.numpy
    cell.assign(bind(found if found.dtype == kind else found.astype(kind), name))
