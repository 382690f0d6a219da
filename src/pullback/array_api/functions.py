"""Functions of the standard that `pb` has not, or has with other parameters. Composites all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pullback.array_api.dtypes import check_kinds
from pullback.errors import Origin, ShapeError
from pullback.stats.places import searchsorted as _searchsorted
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.library import creation as C
from pullback.tensor.library import maths as M
from pullback.tensor.library import ops as O
from pullback.tensor.values.answers import answered


def zeros(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """``out[i] = 0``

    Example:
        >>> xp.zeros((2, 3)).shape
        (2, 3)
    """
    return C.zeros(shape, dtype=dtype, device=device)


def ones(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """``out[i] = 1``

    Example:
        >>> xp.ones((2, 3)).shape
        (2, 3)
    """
    return C.ones(shape, dtype=dtype, device=device)


def empty(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor whose elements mean nothing: zeros.

    Example:
        >>> xp.empty((2, 3)).shape
        (2, 3)
    """
    return C.zeros(shape, dtype=dtype, device=device)


@answered
def real(x: Any, /) -> Any:
    """`x` itself, as it is real.

    Example:
        >>> xp.real(xp.asarray([1.0, 2.0]))
        Tensor([1., 2.], dtype=float32)
    """
    return M.positive(x)


@answered
def conj(x: Any, /) -> Any:
    """`x` itself, as it is real.

    Example:
        >>> xp.conj(xp.asarray([1.0, 2.0]))
        Tensor([1., 2.], dtype=float32)
    """
    return M.positive(x)


@answered
def imag(x: Any, /) -> Any:
    """Zeros, as `x` is real.

    Example:
        >>> xp.imag(xp.asarray([1.0, 2.0]))
        Tensor([0., 0.], dtype=float32)
    """
    return C.zeros_like(x)


def clip(x: Any, /, min: Any = None, max: Any = None) -> Any:
    """``minimum(maximum(x, min), max)``, of the type of `x`.

    Example:
        >>> xp.clip(xp.asarray([-2.0, 0.5, 9.0]), 0, 1)
        Tensor([0. , 0.5, 1. ], dtype=float32)
    """
    check_kinds("clip", [b for b in (x, min, max) if b is not None])
    return M.positive(x) if min is None and max is None else O.clip(x, min, max)


def where(condition: Any, x1: Any, x2: Any, /) -> Any:
    """``x1 if condition else x2``

    Example:
        >>> xp.where(xp.asarray([True, False]), xp.asarray([1.0, 2.0]), xp.asarray([3.0, 4.0]))
        Tensor([1., 4.], dtype=float32)
    """
    check_kinds("where", (x1, x2))
    return O.where(condition, x1, x2)


def concat(arrays: Sequence[Any], /, *, axis: int | None = 0) -> Tensor:
    """Pieces of one kind one after the other.

    Example:
        >>> xp.concat([xp.zeros(1), xp.ones(2)])
        Tensor([0., 1., 1.], dtype=float32)
    """
    check_kinds("concat", arrays)
    return O.concat(arrays, axis=axis)


def stack(arrays: Sequence[Any], /, *, axis: int = 0) -> Tensor:
    """Pieces of one kind side by side along a new axis.

    Example:
        >>> xp.stack([xp.zeros(2), xp.ones(2)]).shape
        (2, 2)
    """
    check_kinds("stack", arrays)
    return O.stack(arrays, axis=axis)


def take(x: Any, indices: Any, /, *, axis: int | None = None) -> Tensor:
    """``out[a, i, b] = x[a, indices[i], b]``; the axis is to be said where there are several.

    Example:
        >>> xp.take(xp.asarray([10, 20, 30]), xp.asarray([2, 0]))
        Tensor([30, 10], dtype=int64)
    """
    if axis is None and len(x.shape) != 1:
        raise ShapeError("take of several axes: along which?", origin=Origin.of_caller())
    return O.take(x, indices, axis=0 if axis is None else axis)


def searchsorted(x1: Any, x2: Any, /, *, side: str = "left", sorter: Any = None) -> Tensor:
    """How many elements of the sorted vector `x1` are below (`right`: not above) each of `x2`.

    Raises: ShapeError for other than a vector.

    Example:
        >>> xp.searchsorted(xp.asarray([1.0, 2.0, 3.0]), xp.asarray([0.5, 2.0]))
        Tensor([0, 1], dtype=int64)
    """
    if len(x1.shape) != 1:
        what = f"searchsorted in {tuple(x1.shape)}: one axis"
        raise ShapeError(what, origin=Origin.of_caller(), code="E111")
    return _searchsorted(x1, x2, side=side, sorter=sorter)


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """A tensor that shares the memory of another library's array, on the processor or on a GPU.

    Example:
        >>> xp.from_dlpack(np.ones(2))
        Tensor([1., 1.], dtype=float64)
    """
    if isinstance(device, tuple):  # as `__dlpack_device__` names it: (1, 0) is the processor
        device = "cpu" if device == (1, 0) else f"cuda:{device[1]}" if device[0] == 2 else device
    return C.from_dlpack(x, device=device, copy=copy)
