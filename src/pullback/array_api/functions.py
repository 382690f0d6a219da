"""Functions of the standard that `pb` has not, or has with other parameters. Composites all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pullback.array_api.dtypes import check_kinds
from pullback.bridge.dispatch import diff as _diff
from pullback.errors import Origin, ShapeError
from pullback.ir import dtype as D
from pullback.tensor import creation as C
from pullback.tensor import maths as M
from pullback.tensor import ops as O
from pullback.tensor.tensor import Axes, Tensor, check_device


def zeros(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """``out[i] = 0``"""
    return C.zeros(shape, dtype=dtype, device=device)


def ones(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """``out[i] = 1``"""
    return C.ones(shape, dtype=dtype, device=device)


def empty(shape: Any, *, dtype: Any = None, device: Any = None) -> Tensor:
    """A tensor whose elements mean nothing: zeros."""
    return C.zeros(shape, dtype=dtype, device=device)


def real(x: Any, /) -> Any:
    """`x`: every type here is real."""
    return M.positive(x)


def conj(x: Any, /) -> Any:
    """`x`: every type here is real."""
    return M.positive(x)


def imag(x: Any, /) -> Any:
    """Zeros: every type here is real."""
    return C.zeros_like(x)


def clip(x: Any, /, min: Any = None, max: Any = None) -> Any:
    """``minimum(maximum(x, min), max)``, of the type of `x`."""
    check_kinds("clip", [b for b in (x, min, max) if b is not None])
    return M.positive(x) if min is None and max is None else O.clip(x, min, max)


def where(condition: Any, x1: Any, x2: Any, /) -> Any:
    """``x1 if condition else x2``"""
    check_kinds("where", (x1, x2))
    return O.where(condition, x1, x2)


def concat(arrays: Sequence[Any], /, *, axis: int | None = 0) -> Tensor:
    """Pieces of one kind one after the other."""
    check_kinds("concat", arrays)
    return O.concat(arrays, axis=axis)


def stack(arrays: Sequence[Any], /, *, axis: int = 0) -> Tensor:
    """Pieces of one kind side by side along a new axis."""
    check_kinds("stack", arrays)
    return O.stack(arrays, axis=axis)


def take(x: Any, indices: Any, /, *, axis: int | None = None) -> Tensor:
    """``out[a, i, b] = x[a, indices[i], b]``; the axis is to be said where there are several."""
    if axis is None and len(x.shape) != 1:
        raise ShapeError("take of several axes: along which?", origin=Origin.of_caller())
    return O.take(x, indices, axis=0 if axis is None else axis)


def count_nonzero(x: Any, /, *, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """How many elements are not 0."""
    hit = M.not_equal(x, False if x.dtype.is_bool else 0)
    counted: Tensor = O.sum(O.astype(hit, D.int64), axis=axis, keepdims=keepdims)
    return counted


def diff(x: Any, /, *, axis: int = -1, n: int = 1, prepend: Any = None, append: Any = None) -> Any:
    """``out[i] = x[i + 1] - x[i]``, `n` times, of `x` between `prepend` and `append`."""
    return _diff(x, n, axis, prepend, append)


def searchsorted(x1: Any, x2: Any, /, *, side: str = "left", sorter: Any = None) -> Any:
    """How many elements of the sorted `x1` are below (`right`: not above) each of `x2`."""
    rows = x1 if sorter is None else O.take(x1, sorter, axis=0)
    below = M.less if side == "left" else M.less_equal
    return O.sum(O.astype(below(rows, O.expand_dims(x2, -1)), D.int64), axis=-1)


def from_dlpack(x: Any, /, *, device: Any = None, copy: bool | None = None) -> Tensor:
    """A tensor that shares the memory of another library's array."""
    if isinstance(device, tuple):  # as `__dlpack_device__` names it: (1, 0) is the processor
        device = None if device == (1, 0) else device
    check_device(device)
    return C.from_dlpack(x, copy=copy)
