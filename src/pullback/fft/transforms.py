"""The transforms by name: which axes, how long, how scaled.

fft:   X[k] = sum[n] x[n] e^(-2 pi i k n / N)        ifft: its inverse, with 1/N
rfft:  of a real x, k = 0 .. N/2                     irfft: its inverse, real
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar, cast

from pullback.errors import DTypeError, Origin, ShapeError, UnsupportedError
from pullback.fft.plan import transform
from pullback.ir.dtype import float32
from pullback.tensor.complex.pairs import Complex
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.library import ops as O
from pullback.tensor.library.creation import asarray
from pullback.tensor.values.elementwise import show
from pullback.tensor.values.views import normal_axis

NORMS = ("backward", "ortho", "forward")
Operand = Tensor | Complex
Form = TypeVar("Form", Tensor, Complex, Operand)


def fft(x: Any, n: int | None = None, axis: int = -1, norm: str = "backward") -> Complex:
    """``X[k] = sum[j] x[j] e^(-2 pi i j k / n)``; `x` is cut or continued by zeros to length `n`.

    Shapes: x [.., m, ..] -> [.., n, ..]. Raises: ShapeError E350 for a length below 1.

    Example:
        >>> pb.fft.fft(pb.ones(4)).real
        Tensor([4., 0., 0., 0.], dtype=float32)
    """
    return _turned(x, n, axis, norm, forward=True)


def ifft(x: Any, n: int | None = None, axis: int = -1, norm: str = "backward") -> Complex:
    """``x[j] = 1/n sum[k] X[k] e^(2 pi i j k / n)``, the inverse of `fft`.

    Example:
        >>> pb.fft.ifft(pb.fft.fft(pb.ones(4))).real
        Tensor([1., 1., 1., 1.], dtype=float32)
    """
    return _turned(x, n, axis, norm, forward=False)


def rfft(x: Any, n: int | None = None, axis: int = -1, norm: str = "backward") -> Complex:
    """`fft` of a real `x`, its first ``n // 2 + 1`` elements; the others are their conjugates.

    Raises: DTypeError for a complex `x`.

    Example:
        >>> pb.fft.rfft(pb.ones(4)).shape
        (3,)
    """
    whole = _turned(_real(x, "rfft"), n, axis, norm, forward=True)
    place = normal_axis(axis, len(whole.shape))
    return _cut(whole, place, whole.shape[place] // 2 + 1)


def irfft(x: Any, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """The real `y` of `n` elements, ``2 (m - 1)`` of m unless said, with ``rfft(y) == x``.

    The imaginary parts of element 0, and for an even `n` of element n / 2, are not looked at.

    Example:
        >>> pb.fft.irfft(pb.fft.rfft(pb.ones(4)))
        Tensor([1., 1., 1., 1.], dtype=float32)
    """
    own = operand(x)
    place = normal_axis(axis, len(own.shape))
    count = 2 * (literal(own.shape[place]) - 1) if n is None else n
    whole = _whole(_sized(own, _length(count) // 2 + 1, place), count, place)
    return _turned(whole, count, axis, norm, forward=False).real


def hfft(x: Any, n: int | None = None, axis: int = -1, norm: str = "backward") -> Tensor:
    """`fft`, real, of an `x` whose second half is the conjugate of its first, which is given.

    Example:
        >>> pb.fft.hfft(pb.fft.rfft(pb.ones(4)))
        Tensor([4., 4., 4., 4.], dtype=float32)
    """
    own = operand(x)
    return irfft(own.conj() if isinstance(own, Complex) else own, n, axis, _swapped(norm))


def ihfft(x: Any, n: int | None = None, axis: int = -1, norm: str = "backward") -> Complex:
    """The inverse of `hfft`: of a real `x` the first ``n // 2 + 1`` elements.

    Example:
        >>> pb.fft.ihfft(pb.ones(4)).shape
        (3,)
    """
    return rfft(_real(x, "ihfft"), n, axis, _swapped(norm)).conj()


Axes = Sequence[int] | None
Lengths = Sequence[int | None] | None


def fftn(x: Any, s: Lengths = None, axes: Axes = None, norm: str = "backward") -> Complex:
    """`fft` along each of `axes`, all unless said, of lengths `s`.

    Example:
        >>> pb.fft.fftn(pb.ones((2, 4))).shape
        (2, 4)
    """
    return _each(x, s, axes, norm, forward=True)


def ifftn(x: Any, s: Lengths = None, axes: Axes = None, norm: str = "backward") -> Complex:
    """The inverse of `fftn`.

    Example:
        >>> pb.fft.ifftn(pb.fft.fftn(pb.ones((2, 4)))).shape
        (2, 4)
    """
    return _each(x, s, axes, norm, forward=False)


def rfftn(x: Any, s: Lengths = None, axes: Axes = None, norm: str = "backward") -> Complex:
    """`rfft` along the last of `axes`, `fft` along the others.

    Example:
        >>> pb.fft.rfftn(pb.ones((2, 4))).shape
        (2, 3)
    """
    lengths, places = _places(_real(x, "rfftn"), s, axes)
    if not places:
        raise _no_axes("rfftn")
    last = rfft(x, lengths[-1], places[-1], norm)
    return _each(last, lengths[:-1], places[:-1], norm, forward=True)


def irfftn(x: Any, s: Lengths = None, axes: Axes = None, norm: str = "backward") -> Tensor:
    """The inverse of `rfftn`; the last length is ``2 (m - 1)`` unless said.

    Example:
        >>> pb.fft.irfftn(pb.fft.rfftn(pb.ones((2, 4)))).shape
        (2, 4)
    """
    lengths, places = _places(operand(x), s, axes)
    if not places:
        raise _no_axes("irfftn")
    rest = _each(x, lengths[:-1], places[:-1], norm, forward=False)
    return irfft(rest, lengths[-1], places[-1], norm)


def fft2(x: Any, s: Lengths = None, axes: Axes = (-2, -1), norm: str = "backward") -> Complex:
    """`fftn` along the last two axes.

    Example:
        >>> pb.fft.fft2(pb.ones((2, 4))).shape
        (2, 4)
    """
    return fftn(x, s, axes, norm)


def ifft2(x: Any, s: Lengths = None, axes: Axes = (-2, -1), norm: str = "backward") -> Complex:
    """`ifftn` along the last two axes.

    Example:
        >>> pb.fft.ifft2(pb.fft.fft2(pb.ones((2, 4)))).shape
        (2, 4)
    """
    return ifftn(x, s, axes, norm)


def rfft2(x: Any, s: Lengths = None, axes: Axes = (-2, -1), norm: str = "backward") -> Complex:
    """`rfftn` along the last two axes.

    Example:
        >>> pb.fft.rfft2(pb.ones((2, 4))).shape
        (2, 3)
    """
    return rfftn(x, s, axes, norm)


def irfft2(x: Any, s: Lengths = None, axes: Axes = (-2, -1), norm: str = "backward") -> Tensor:
    """`irfftn` along the last two axes.

    Example:
        >>> pb.fft.irfft2(pb.fft.rfft2(pb.ones((2, 4)))).shape
        (2, 4)
    """
    return irfftn(x, s, axes, norm)


# --- one axis ------------------------------------------------------------------------------------


def operand(x: Any) -> Operand:
    """A float tensor, or a pair of them; integers become float32, halves are computed in it."""
    if isinstance(x, Complex):
        return x
    own = x if isinstance(x, Tensor) else _given(x)
    if isinstance(own, Complex) or own.dtype.name in ("float32", "float64"):
        return own
    return own.astype(float32)


def _given(x: Any) -> Operand:
    whole = Complex.of(x)
    array = x if hasattr(x, "dtype") else None
    return whole if array is None or array.dtype.kind == "c" else asarray(x)


def _real(x: Any, name: str) -> Tensor:
    own = operand(x)
    if isinstance(own, Complex):
        raise DTypeError(
            f"{name} of complex numbers", help="pb.fft.fft, or the real part: z.real", code="E149"
        )
    return own


def _turned(x: Any, n: int | None, axis: int, norm: str, *, forward: bool) -> Complex:
    own = operand(x)
    rank = len(own.shape)
    place = normal_axis(axis, rank)
    if rank == 0:
        raise _no_axes("a Fourier transform")
    count = _length(literal(own.shape[place]) if n is None else n)
    factor = _scale(norm, count, forward)
    own = O.moveaxis(_sized(own, count, place), place, -1)
    parts = [own.real, own.imag] if isinstance(own, Complex) else [own]
    pair = transform(O.stack(parts), count, forward=forward)
    pair = pair if factor == 1.0 else pair * factor
    return Complex(*(O.moveaxis(pair[c], -1, place) for c in range(2)))


def _each(x: Any, s: Lengths, axes: Axes, norm: str, *, forward: bool) -> Complex:
    turned = operand(x)
    lengths, places = _places(turned, s, axes)
    for length, place in zip(reversed(lengths), reversed(places), strict=True):
        turned = _turned(turned, length, place, norm, forward=forward)
    return turned if isinstance(turned, Complex) else Complex.of(turned)


def _places(x: Operand, s: Lengths, axes: Axes) -> tuple[list[int | None], list[int]]:
    """Lengths and axes. Raises: ShapeError where there are more of one than of the other."""
    rank = len(x.shape)
    if axes is None:
        axes = range(rank) if s is None else range(rank - len(s), rank)
    places = [normal_axis(a, rank) for a in axes]
    lengths: list[int | None] = [None] * len(places)
    lengths = lengths if s is None else [None if n == -1 else n for n in s]
    if len(lengths) != len(places) or len(set(places)) != len(places):
        raise ShapeError(
            f"{len(lengths)} lengths for axes {tuple(axes)} of {show(x.shape)}",
            origin=Origin.of_caller(),
            code="E134",
        )
    return lengths, places


def _sized(x: Operand, count: int, place: int) -> Operand:
    """`x` cut or continued by zeros to `count` elements along an axis."""
    extent = literal(x.shape[place])
    if extent >= count:
        return _cut(x, place, count)
    width = [(0, count - extent if n == place else 0) for n in range(len(x.shape))]
    if isinstance(x, Complex):
        return Complex(O.pad(x.real, width), O.pad(x.imag, width))
    return O.pad(x, width)


def _cut(x: Form, place: int, count: int) -> Form:
    """The first `count` elements along an axis."""
    part: Any = x
    if x.shape[place] != count:
        part = x[(*[slice(None)] * place, slice(0, count))]
    return cast(Form, part)


def _whole(half: Operand, count: int, place: int) -> Operand:
    """All `count` elements of what is its own conjugate backwards, from the first half."""
    last = count - literal(half.shape[place])
    later = half[(*[slice(None)] * place, slice(1, last + 1))]
    turned = O.flip(later, axis=place)
    return O.concat([half, turned.conj() if isinstance(turned, Complex) else turned], axis=place)


def _scale(norm: str, count: int, forward: bool) -> float:
    """What a transform is multiplied by. Raises: UnsupportedError for a norm that is none."""
    if norm not in NORMS:
        raise UnsupportedError(f"norm={norm!r}", help=f"one of {', '.join(NORMS)}", code="E312")
    if norm == "ortho":
        return float(count**-0.5)
    return 1.0 / count if (norm == "forward") == forward else 1.0


def _swapped(norm: str) -> str:
    return {"backward": "forward", "forward": "backward"}.get(norm, norm)


def _length(n: Any) -> int:
    """A length. Raises: ShapeError below 1."""
    if not isinstance(n, int) or isinstance(n, bool) or n < 1:
        raise ShapeError(f"a Fourier transform of {n} points", code="E350")
    return n


def literal(extent: Any) -> int:
    """An extent that is a number. Raises: UnsupportedError for a symbolic one."""
    if not isinstance(extent, int):
        raise UnsupportedError(f"a Fourier transform along the symbolic axis {extent}", code="E315")
    return extent


def _no_axes(name: str) -> ShapeError:
    return ShapeError(f"{name} of no axes", origin=Origin.of_caller(), code="E350")
