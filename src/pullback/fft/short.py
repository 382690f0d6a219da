"""Spectra of short windows, and the signal back from them, as PyTorch has both."""

from __future__ import annotations

from typing import Any

from pullback.errors import Origin, ShapeError, UnsupportedError
from pullback.fft.transforms import fft, ifft, irfft, literal, operand, rfft
from pullback.ir.expr import Extent
from pullback.tensor.complex.pairs import Complex
from pullback.tensor.define.compute import axis, compute
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.library import maths as M
from pullback.tensor.library import ops as O
from pullback.tensor.library.creation import ones
from pullback.tensor.shaped import shaped
from pullback.tensor.values.elementwise import show

MODES = ("constant", "reflect", "replicate", "circular")


SETTINGS = "int(n_fft) >= 1, int(hop_length) >= 1, 1 <= int(win_length) <= n_fft"


@shaped("x[..., m], window[w]", where=SETTINGS)
def stft(
    x: Any,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Any = None,
    *,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
) -> Complex:
    """``X[f, t] = sum[n] w[n] x[t hop + n] e^(-2 pi i f n / n_fft)``

    `center` continues `x` by half a window on both sides first. Of `x`, real or complex
    numbers, come [.., n_fft // 2 + 1, frames], or all `n_fft` frequencies.

    Raises: ShapeError where the window is longer than the signal.

    Example:
        >>> pb.fft.stft(pb.ones(16), 8).shape
        (5, 9)
    """
    own = operand(x)
    taper, hop = _settings(own, n_fft, hop_length, win_length, window)
    half = isinstance(own, Tensor) if onesided is None else onesided
    if isinstance(own, Complex):
        if half:
            raise UnsupportedError("stft of complex numbers with onesided=True", code="E312")
        parts = [_frames(p, n_fft, hop, taper, center, pad_mode) for p in (own.real, own.imag)]
        spectra = fft(Complex(*parts))
    else:
        frames = _frames(own, n_fft, hop, taper, center, pad_mode)
        spectra = rfft(frames) if half else fft(frames)
    turned = Complex(O.moveaxis(spectra.real, -1, -2), O.moveaxis(spectra.imag, -1, -2))
    return turned * float(n_fft**-0.5) if normalized else turned


@shaped("x[..., f, t], window[w]", where=SETTINGS)
def istft(
    x: Complex,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Any = None,
    *,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: int | None = None,
) -> Tensor:
    """The signal that `stft` of these settings brings nearest to `x`, in the least squares sense.

    ``y[s] = sum[t] w[s - t hop] v[t, s - t hop] / sum[t] w[s - t hop]^2``, v the inverse
    transforms. Where no window reaches, the quotient is 0 / 0, NaN.
    Raises: ShapeError where `x` has not the frequencies of `n_fft`.

    Example:
        >>> pb.fft.istft(pb.fft.stft(pb.ones(16), 8), 8).shape
        (16,)
    """
    half = x.shape[-2] != n_fft if onesided is None else onesided
    if len(x.shape) < 2 or x.shape[-2] != (n_fft // 2 + 1 if half else n_fft):
        raise ShapeError(
            f"istft of {show(x.shape)} with n_fft={n_fft}",
            origin=Origin.of_caller(),
            help="axes are (.., frequencies, frames), n_fft // 2 + 1 frequencies of real signals",
            code="E351",
        )
    taper, hop = _settings(x.real, n_fft, hop_length, win_length, window)
    turned = O.moveaxis(x, -2, -1)
    turned = turned * float(n_fft**0.5) if normalized else turned
    frames = irfft(turned, n_fft) if half else ifft(turned).real
    count = literal(frames.shape[-2])
    total = n_fft + hop * (count - 1)
    start = n_fft // 2 if center else 0
    end = total - start if length is None else start + length
    signal = _overlapped(frames * taper, total, hop)
    weight = _overlapped(O.broadcast_to(M.square(taper), (count, n_fft)), total, hop)
    kept = (signal / weight)[..., start : min(end, total)]
    short = end - total
    return O.pad(kept, [*[(0, 0)] * (len(kept.shape) - 1), (0, short)]) if short > 0 else kept


def _settings(
    x: Any, n_fft: int, hop: int | None, length: int | None, window: Any
) -> tuple[Tensor, int]:
    """The window of `n_fft` elements, and the hop. Raises: ShapeError for a window of others."""
    hop = max(n_fft // 4, 1) if hop is None else hop
    width = n_fft if length is None else length
    real = x.real if isinstance(x, Complex) else x
    taper = ones((width,), dtype=real.dtype) if window is None else window
    if taper.shape != (width,):
        raise ShapeError(
            f"a window of shape {show(taper.shape)} with win_length={width}",
            origin=Origin.of_caller(),
            code="E351",
        )
    before = (n_fft - width) // 2
    return O.pad(O.astype(taper, real.dtype), [(before, n_fft - width - before)]), hop


def _frames(x: Tensor, n_fft: int, hop: int, taper: Tensor, center: bool, mode: str) -> Tensor:
    """``v[.., t, n] = w[n] x[.., t hop + n]``"""
    own = _around(x, n_fft // 2, mode) if center else x
    size = literal(own.shape[-1])
    if size < n_fft:
        raise ShapeError(
            f"windows of {n_fft} in a signal of {size}", origin=Origin.of_caller(), code="E351"
        )
    lead: tuple[Extent, ...] = own.shape[:-1]

    def frame(*at: Any) -> Any:
        return own[(*at[:-2], at[-2] * hop + at[-1])] * taper[at[-1]]

    frames = compute((*lead, 1 + (size - n_fft) // hop, n_fft), frame, name="frames")
    assert isinstance(frames, Tensor)
    return frames


def _around(x: Tensor, width: int, mode: str) -> Tensor:
    """`x` continued by `width` elements on both sides of its last axis."""
    if mode not in MODES:
        raise UnsupportedError(f"pad_mode={mode!r}", help=f"one of {', '.join(MODES)}", code="E312")
    size = literal(x.shape[-1])
    most = {"reflect": size - 1, "circular": size}.get(mode, width)
    if width > most:
        raise ShapeError(
            f"{size} elements are continued by {width} on each side, pad_mode={mode!r}",
            origin=Origin.of_caller(),
            code="E351",
        )
    if mode == "constant" or width == 0:
        return O.pad(x, [*[(0, 0)] * (len(x.shape) - 1), (width, width)])
    if mode == "reflect":
        parts = [O.flip(x[..., 1 : width + 1], axis=-1), x]
        parts.append(O.flip(x[..., size - width - 1 : size - 1], axis=-1))
    elif mode == "circular":
        parts = [x[..., size - width :], x, x[..., :width]]
    else:
        shape = (*x.shape[:-1], width)
        parts = [O.broadcast_to(x[..., :1], shape), x, O.broadcast_to(x[..., -1:], shape)]
    return O.concat(parts, axis=-1)


def _overlapped(frames: Tensor, total: int, hop: int) -> Tensor:
    """``y[s] = sum[t] v[t, s - t hop]``, t from the last frame that begins at or before s."""
    lead = frames.shape[:-2]
    count, n_fft = map(literal, frames.shape[-2:])
    back = axis(-(-n_fft // hop))

    def added(*at: Any) -> Any:
        t = at[-1] // hop - back
        n = at[-1] - t * hop
        inside = (t >= 0) & (t < count) & (n < n_fft)
        return O.sum(O.where(inside, frames[(*at[:-1], t, n)], 0.0), over=back)

    signal = compute((*lead, total), added, name="overlapped")
    assert isinstance(signal, Tensor)
    return signal
