"""Fourier transforms of any length along any axis, with derivatives: composites of products.

Complex results are `pb.Complex`; where one goes in, a real tensor does too. ``norm`` says what is
scaled: "backward" the inverse by 1/n, "forward" the transform, "ortho" each by 1/sqrt(n).
"""

from __future__ import annotations

from pullback.fft.helpers import fftfreq, fftshift, ifftshift, rfftfreq
from pullback.fft.short import istft, stft
from pullback.fft.transforms import (
    fft,
    fft2,
    fftn,
    hfft,
    ifft,
    ifft2,
    ifftn,
    ihfft,
    irfft,
    irfft2,
    irfftn,
    rfft,
    rfft2,
    rfftn,
)
from pullback.tensor.face.boundary import bounded as _bounded
from pullback.tensor.face.dialect import shown as _shown
from pullback.tensor.face.dialect import unknown as _unknown

__all__ = [
    "fft", "fft2", "fftfreq", "fftn", "fftshift", "hfft", "ifft", "ifft2", "ifftn", "ifftshift",
    "ihfft", "irfft", "irfft2", "irfftn", "istft", "rfft", "rfft2", "rfftfreq", "rfftn", "stft",
]  # fmt: skip


def __getattr__(name: str) -> object:
    raise _unknown("pullback.fft", name, __all__)


__dir__ = _shown(__all__)
_bounded(globals(), __all__)
