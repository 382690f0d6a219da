"""The extension `fft`: `pullback.fft` under the standard's signatures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pullback import fft as F
from pullback.ir import dtype as D
from pullback.tensor.complex.pairs import Complex
from pullback.tensor.face.dialect import shown
from pullback.tensor.face.tensor import Tensor, check_device

__all__ = [
    "fft", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifftn", "ifftshift", "ihfft", "irfft",
    "irfftn", "rfft", "rfftfreq", "rfftn",
]  # fmt: skip
__dir__ = shown(__all__)

Axes = int | Sequence[int] | None


def fft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Complex:
    """The transform of complex numbers.

    Example:
        >>> xp.fft.fft(xp.asarray(np.ones(4, "complex64"))).shape
        (4,)
    """
    return F.fft(x, n, axis, norm)


def ifft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Complex:
    """The inverse of `fft`.

    Example:
        >>> xp.fft.ifft(xp.asarray(np.ones(4, "complex64"))).shape
        (4,)
    """
    return F.ifft(x, n, axis, norm)


def rfft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Complex:
    """`fft` of real numbers: the first ``n // 2 + 1`` elements.

    Example:
        >>> xp.fft.rfft(xp.ones(4)).shape
        (3,)
    """
    return F.rfft(x, n, axis, norm)


def irfft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The inverse of `rfft`.

    Example:
        >>> xp.fft.irfft(xp.asarray(np.ones(3, "complex64"))).shape
        (4,)
    """
    return F.irfft(x, n, axis, norm)


def hfft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """`fft`, real, of what is its own conjugate backwards, from the first half.

    Example:
        >>> xp.fft.hfft(xp.asarray(np.ones(3, "complex64"))).shape
        (4,)
    """
    return F.hfft(x, n, axis, norm)


def ihfft(x: Any, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Complex:
    """The inverse of `hfft`.

    Example:
        >>> xp.fft.ihfft(xp.ones(4)).shape
        (3,)
    """
    return F.ihfft(x, n, axis, norm)


def fftn(
    x: Any,
    /,
    *,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str = "backward",
) -> Complex:
    """`fft` along several axes.

    Example:
        >>> xp.fft.fftn(xp.asarray(np.ones((2, 4), "complex64"))).shape
        (2, 4)
    """
    return F.fftn(x, s, axes, norm)


def ifftn(
    x: Any,
    /,
    *,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str = "backward",
) -> Complex:
    """The inverse of `fftn`.

    Example:
        >>> xp.fft.ifftn(xp.asarray(np.ones((2, 4), "complex64"))).shape
        (2, 4)
    """
    return F.ifftn(x, s, axes, norm)


def rfftn(
    x: Any,
    /,
    *,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str = "backward",
) -> Complex:
    """`rfft` along the last of several axes, `fft` along the others.

    Example:
        >>> xp.fft.rfftn(xp.ones((2, 4))).shape
        (2, 3)
    """
    return F.rfftn(x, s, axes, norm)


def irfftn(
    x: Any,
    /,
    *,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str = "backward",
) -> Tensor:
    """The inverse of `rfftn`.

    Example:
        >>> xp.fft.irfftn(xp.asarray(np.ones((2, 3), "complex64"))).shape
        (2, 4)
    """
    return F.irfftn(x, s, axes, norm)


def fftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Tensor:
    """The frequencies of `fft`.

    Example:
        >>> xp.fft.fftfreq(4)
        Tensor([ 0.  ,  0.25, -0.5 , -0.25], dtype=float32)
    """
    check_device(device)
    return F.fftfreq(n, d, dtype=D.float32 if dtype is None else dtype)


def rfftfreq(n: int, /, *, d: float = 1.0, dtype: Any = None, device: Any = None) -> Tensor:
    """The frequencies of `rfft`.

    Example:
        >>> xp.fft.rfftfreq(4)
        Tensor([0.  , 0.25, 0.5 ], dtype=float32)
    """
    check_device(device)
    return F.rfftfreq(n, d, dtype=D.float32 if dtype is None else dtype)


def fftshift(x: Any, /, *, axes: Axes = None) -> Any:
    """Frequency 0 in the middle.

    Example:
        >>> xp.fft.fftshift(xp.asarray([0, 1, 2, 3]))
        Tensor([2, 3, 0, 1], dtype=int64)
    """
    return F.fftshift(x, axes)


def ifftshift(x: Any, /, *, axes: Axes = None) -> Any:
    """The inverse of `fftshift`.

    Example:
        >>> xp.fft.ifftshift(xp.asarray([0, 1, 2, 3]))
        Tensor([2, 3, 0, 1], dtype=int64)
    """
    return F.ifftshift(x, axes)
