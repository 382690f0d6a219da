"""Discrete Fourier transforms along the last axis, in stages of small dense ones.

    n = r m, n1 < r, n2 < m, k1 < r, k2 < m
    X[k1 + r k2] = sum[n2] w(m)^(n2 k2) (w(n)^(n2 k1) sum[n1] w(r)^(n1 k1) x[m n1 + n2])

The inner sum is a product of matrices, real and imaginary parts stacked: ``[2 r, 2 r] @ [2 r, m]``.
The outer one is the same again on every row k1. Digits k1, k2, .. become axes, the latest first,
so that the last stage leaves the result in order. Lengths with a prime factor above `DENSE` go
through a circular convolution (Bluestein).

Source: Cooley, Tukey, An algorithm for the machine calculation of complex Fourier series, 1965;
Bluestein, A linear filtering approach to the computation of discrete Fourier transform, 1970.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from pullback.ir.dtype import DType
from pullback.tensor.define.compute import axis, compute
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.library import ops as O
from pullback.tensor.record.trace import bind, suspended

DENSE = 64  # the longest transform that is one product with a matrix
RADIX = 32  # the largest stage of a longer one
STAGE = 24  # what a stage costs beside its products, in rows of a matrix

Array = np.ndarray[Any, Any]


def transform(pair: Tensor, n: int, *, forward: bool) -> Tensor:
    """``X[c, .., k]`` of ``x[c, .., n]``: real and imaginary parts along the first axis.

    A real `x` has an extent of 1 there. Nothing is scaled.
    """
    stages = radices(n)
    if stages is None:
        return _bluestein(pair, n, forward=forward)
    lead = len(pair.shape) - 2
    state = pair
    left = n
    for radix in stages:
        left //= radix
        state = _stage(state, lead, radix, left, forward)
    return O.reshape(state, (2, *pair.shape[1:-1], n))


def _stage(state: Tensor, lead: int, radix: int, left: int, forward: bool) -> Tensor:
    """One digit of the frequency: ``[c, lead, digits, n] -> [c, lead, digit, digits, left]``."""
    parts, *middle, _ = state.shape
    kind = state.dtype
    matrix = _matrix(radix, parts, kind, forward)
    d, q = axis(parts), axis(radix)

    def product(c: Any, *at: Any) -> Any:
        k, j = at[lead], at[-1]
        source = state[(d, *at[:lead], *at[lead + 1 : -1], q * left + j)]
        return O.sum(matrix[c, k, d, q] * source, over=(d, q))

    shape = (2, *middle[:lead], radix, *middle[lead:], left)
    turned = _written(shape, product, "fourier")
    if left == 1:
        return turned
    twiddle = _twiddles(radix, left, kind, forward)

    def times(c: Any, *at: Any) -> Any:
        k, j = at[lead], at[-1]
        return turned[(0, *at)] * twiddle[c, 0, k, j] + turned[(1, *at)] * twiddle[c, 1, k, j]

    return _written(shape, times, "twiddle")


def _bluestein(pair: Tensor, n: int, *, forward: bool) -> Tensor:
    """``X[k] = c[k] sum[n] (x[n] c[n]) conj(c[k - n])``, ``c[n] = w^(n^2 / 2)``: a convolution."""
    lead = pair.shape[1:-1]
    size = smooth(2 * n - 1)
    chirp, spectrum = _chirp(n, size, pair.dtype, forward)
    lifted = _rotated(pair, chirp)
    padded = O.pad(lifted, [(0, 0)] * (len(lead) + 1) + [(0, size - n)])
    product = _rotated(transform(padded, size, forward=True), spectrum)
    convolved = transform(product, size, forward=False)
    return _rotated(convolved[..., :n], chirp)


def _rotated(pair: Tensor, factor: Tensor) -> Tensor:
    """The complex product with ``factor[c, d, n]``, real matrices of two rows, along the last."""

    def times(c: Any, *at: Any) -> Any:
        first = pair[(0, *at)] * factor[c, 0, at[-1]]
        return first if pair.shape[0] == 1 else first + pair[(1, *at)] * factor[c, 1, at[-1]]

    return _written((2, *pair.shape[1:]), times, "rotated")


def _written(shape: tuple[Any, ...], body: Any, name: str) -> Tensor:
    tensor = compute(shape, body, name=name)
    assert isinstance(tensor, Tensor)
    return tensor


# --- lengths -------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def radices(n: int) -> tuple[int, ...] | None:
    """The stages of a transform of length `n`, the largest first; None for a large prime factor."""
    if n <= DENSE:
        return (n,)
    rows = _cheapest(n)
    return None if rows is None else tuple(sorted(rows[1], reverse=True))


@lru_cache(maxsize=4096)
def _cheapest(n: int) -> tuple[int, tuple[int, ...]] | None:
    """The stages with the fewest rows for each element in all, and how many rows."""
    if n == 1:
        return 0, ()
    options = [r for r in range(2, min(n, RADIX) + 1) if n % r == 0]
    prime = not options and n <= DENSE
    options = [n] if prime else options or [p for p in range(RADIX + 1, DENSE) if n % p == 0][:1]
    factorings = [(r, rest) for r in options if (rest := _cheapest(n // r)) is not None]
    priced = [(r + STAGE + rest[0], (r, *rest[1])) for r, rest in factorings]
    return min(priced, default=None)


def smooth(least: int) -> int:
    """The smallest ``2^a 3^b 5^c`` that is not less than `least`."""
    best = 1 << (least - 1).bit_length()
    five = 1
    while five < best:
        three = five
        while three < best:
            two = three
            while two < least:
                two *= 2
            best = min(best, two)
            three *= 3
        five *= 5
    return best


# --- tables --------------------------------------------------------------------------------------


def _roots(numerator: Array, n: int, forward: bool) -> Array:
    """``e^(-2 pi i numerator / n)``, the angle reduced exactly; conjugates backward."""
    quarter, rest = np.divmod(4 * (numerator % n), n)
    angle = (np.pi / 2 / n) * rest
    roots: Array = (np.cos(angle) - 1j * np.sin(angle)) * np.array([1, -1j, -1, 1j])[quarter]
    return roots if forward else roots.conj()


def _table(values: Array, kind: DType) -> Tensor:
    """``t[c, d, ..]``, the real matrices of complex numbers: ``[[x, -y], [y, x]]``"""
    rows = np.stack([np.stack([values.real, -values.imag]), np.stack([values.imag, values.real])])
    with suspended():
        return Tensor(bind(np.ascontiguousarray(rows, kind.numpy), "roots"))


@lru_cache(maxsize=256)
def _matrix(radix: int, parts: int, kind: DType, forward: bool) -> Tensor:
    """``t[c, k, d, q]``: the matrix of a small transform, for real input its first column."""
    place = np.arange(radix)
    values = _roots(np.outer(place, place), radix, forward)
    rows = np.stack([np.stack([values.real, -values.imag]), np.stack([values.imag, values.real])])
    matrix = np.moveaxis(rows, 1, 2)[:, :, :parts]
    with suspended():
        return Tensor(bind(np.ascontiguousarray(matrix, kind.numpy), "roots"))


@lru_cache(maxsize=256)
def _twiddles(radix: int, left: int, kind: DType, forward: bool) -> Tensor:
    """``t[c, d, k, j] = w(radix * left)^(k j)``"""
    turns = np.outer(np.arange(radix), np.arange(left))
    return _table(_roots(turns, radix * left, forward), kind)


@lru_cache(maxsize=64)
def _chirp(n: int, size: int, kind: DType, forward: bool) -> tuple[Tensor, Tensor]:
    """``w(2 n)^(j^2)``, and the transform of its conjugate over both signs of j, over `size`."""
    place = np.arange(n, dtype=np.int64)
    chirp = _roots(place * place % (2 * n), 2 * n, forward)
    around = np.zeros(size, np.complex128)
    around[:n] = chirp.conj()
    around[size - n + 1 :] = chirp.conj()[:0:-1]
    return _table(chirp, kind), _table(np.fft.fft(around) / size, kind)
