"""What a module owns: parameters, which are trained, and buffers, which are not."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from pullback.errors import DTypeError, Origin, ShapeError, StateError
from pullback.ir import dtype as D
from pullback.tensor.face.tensor import State, Tensor
from pullback.tensor.record.trace import Cell, bind


class Buffer(State):
    """State of a module or optimiser. It may be assigned; no gradient is collected in it.

    Example:
        >>> mean = nn.Buffer(pb.zeros(2))
        >>> mean.requires_grad
        False
    """

    __slots__ = ()

    def __init__(self, data: Any) -> None:
        super().__init__(as_tensor(data).value)

    def copy(self) -> Buffer:
        """Another buffer with the same contents."""
        return Buffer(Tensor(self.value))


class Parameter(State):
    """A trained tensor: `backward` adds to its `grad`.

    Example:
        >>> w = nn.Parameter(pb.ones(2))
        >>> w.requires_grad
        True
    """

    __slots__ = ("_part",)
    _part: weakref.ref[Parameter] | None

    def __init__(self, data: Any, requires_grad: bool = True) -> None:
        super().__init__(as_tensor(data).value, requires_grad)
        self._part = None  # of a `distributed.sharded` optimiser, which has the gradient

    def requires_grad_(self, requires_grad: bool = True) -> Parameter:
        """Say whether `backward` collects a gradient here."""
        self.requires_grad = requires_grad
        return self

    def copy(self) -> Parameter:
        """Another parameter with the same contents."""
        return Parameter(Tensor(self.value), self.requires_grad)


def check_whole(parameters: Iterable[Parameter]) -> None:
    """Raises: StateError for gradients that lie in parts on several ranks."""
    for parameter in parameters:
        if parameter._part is not None and parameter._part() is not None:
            raise StateError(
                "a parameter whose gradient lies in parts on several ranks",
                origin=Origin.of_caller(),
                help="step, clip and load by what pb.distributed.sharded gave",
                code="E623",
            )


def as_tensor(data: Any) -> Tensor:
    """Anything array-like as a tensor; NumPy arrays are copied."""
    if isinstance(data, Tensor):
        return data
    return Tensor(bind(np.asarray(data), "data"))


def label(cell: Cell, name: str) -> None:
    """Say what people call the cell; kernels print it."""
    cell.outside().name = name


def put(cells: Mapping[str, Cell], arrays: Mapping[str, Any]) -> None:
    """Copy the contents of anything array-like into the cells of these names, as the cells' types:
    into all of them or, where one does not fit, into none.

    Raises: ShapeError, naming both shapes; DTypeError.
    """
    arrays = {name: fitted(cell, arrays[name], name) for name, cell in cells.items()}
    for name, cell in cells.items():
        cell.assign(bind(arrays[name], name))


def fitted(cell: Cell, array: Any, name: str) -> np.ndarray[Any, Any]:
    """An array of a cell's shape, as its type. Raises: ShapeError, DTypeError."""
    given = host_array(array)
    if given.shape != cell.shape:
        raise ShapeError(f"`{name}` has shape {given.shape}, {cell.shape} is wanted", code="E138")
    kind = cell.dtype.numpy
    if D.dtype(given.dtype).is_float and not cell.dtype.is_float:
        raise DTypeError(f"`{name}` is {given.dtype}, {cell.dtype} is wanted", code="E142")
    return given if given.dtype == kind else given.astype(kind)


def host_array(array: Any) -> np.ndarray[Any, Any]:
    """The elements of a tensor of pullback, NumPy or torch."""
    if not isinstance(array, Tensor) and hasattr(array, "detach"):
        array = array.detach().cpu()
    return np.asarray(array)
