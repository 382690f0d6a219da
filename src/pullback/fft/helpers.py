"""Which frequencies a transform has, and their order."""

from __future__ import annotations

from typing import Any

from pullback.errors import ShapeError
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.library import ops as O
from pullback.tensor.library.creation import arange
from pullback.tensor.library.ops import concat
from pullback.tensor.values.views import normal_axes


def fftfreq(n: int, d: float = 1.0, *, dtype: Any = "float32") -> Tensor:
    """The frequencies of `fft`: ``[0, 1, .., -2, -1] / (n d)``, negative ones last.

    Example:
        >>> pb.fft.fftfreq(4)
        Tensor([ 0.  ,  0.25, -0.5 , -0.25], dtype=float32)
    """
    count = _points(n)
    half = (count + 1) // 2
    whole = concat([arange(0, half), arange(-(count // 2), 0)]) if count > 1 else arange(0, 1)
    return whole.astype(dtype) / float(count * d)


def rfftfreq(n: int, d: float = 1.0, *, dtype: Any = "float32") -> Tensor:
    """The frequencies of `rfft`: ``[0, 1, .., n // 2] / (n d)``.

    Example:
        >>> pb.fft.rfftfreq(4)
        Tensor([0.  , 0.25, 0.5 ], dtype=float32)
    """
    return arange(0, _points(n) // 2 + 1).astype(dtype) / float(n * d)


def fftshift(x: Any, axes: Any = None) -> Any:
    """Frequency 0 in the middle: each of `axes` rolled by half of it.

    Example:
        >>> pb.fft.fftshift(pb.arange(4))
        Tensor([2, 3, 0, 1], dtype=int64)
    """
    return _shifted(x, axes, lambda n: n // 2)


def ifftshift(x: Any, axes: Any = None) -> Any:
    """The inverse of `fftshift`.

    Example:
        >>> pb.fft.ifftshift(pb.arange(4))
        Tensor([2, 3, 0, 1], dtype=int64)
    """
    return _shifted(x, axes, lambda n: -(n // 2))


def _shifted(x: Any, axes: Any, by: Any) -> Any:
    for place in normal_axes(axes, len(x.shape)):
        x = O.roll(x, by(x.shape[place]), axis=place)
    return x


def _points(n: Any) -> int:
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise ShapeError(f"the frequencies of {n} points", code="E350")
    return n
