"""Fourier transforms: pairs of real and imaginary parts along the last axis."""

from __future__ import annotations

from typing import Any

import pullback as pb
from pullback.onnx.rules.table import axis_of, demand, numbers, rule


def _complex(x: Any) -> Any:
    """A signal without its last axis: real where that has one element."""
    demand(x.shape[-1] in (1, 2), f"a signal of {x.shape[-1]} parts")
    return x[..., 0] if x.shape[-1] == 1 else pb.Complex(x[..., 0], x[..., 1])


def _pairs(y: Any) -> Any:
    return pb.stack([y.real, y.imag], axis=-1)


def _forward(x: Any, length: int | None, axis: int, onesided: bool) -> Any:
    if onesided and not isinstance(x, pb.Complex):
        return _pairs(pb.fft.rfft(x, length, axis))
    y = _pairs(pb.fft.fft(x, length, axis))
    if not onesided:
        return y
    return y[(*[slice(None)] * axis, slice(0, y.shape[axis] // 2 + 1))]


def _transformed(x: Any, length: Any, axis: int, inverse: int, onesided: int) -> Any:
    at = axis_of(axis, x.ndim)
    demand(at < x.ndim - 1, "along its parts")
    own, size = _complex(x), None if length is None else numbers(length)[0]
    if not inverse:
        return _forward(own, size, at, bool(onesided))
    if onesided:
        return pb.expand_dims(pb.fft.irfft(own, size, at), axis=-1)
    return _pairs(pb.fft.ifft(own, size, at))


@rule("DFT", 17, known=(1,))
def dft_17(x: Any, length: Any = None, *, axis: int, inverse: int, onesided: int) -> Any:
    return _transformed(x, length, axis, inverse, onesided)


@rule("DFT", 20, known=(1, 2))
def dft(x: Any, length: Any = None, axis: Any = None, *, inverse: int, onesided: int) -> Any:
    """Inverse and one-sided it gives real numbers."""
    at = -2 if axis is None else numbers(axis)[0]
    return _transformed(x, length, at, inverse, onesided)


@rule("STFT", 17, known=(1, 3))
def stft(x: Any, step: Any, window: Any = None, length: Any = None, *, onesided: int) -> Any:
    """Transforms of frames, one `step` behind the other, by a window."""
    size = x.shape[1] if window is None else window.shape[0]
    size = size if length is None else numbers(length)[0]
    demand(window is None or window.shape[0] == size, "a window of another length than the frames")
    parts = [pb.unfold(x[..., n], 1, size, numbers(step)[0]) for n in range(x.shape[-1])]
    parts = [p if window is None else p * window for p in parts]
    own = _complex(pb.stack(parts, axis=-1))
    return _forward(own, None, 2, bool(onesided))
