"""Orthogonal factors as loops: QR by reflections, eigenvalues and singular values by rotations.

QR takes a column a step: ``R - tau v (v^T R)``. A round of Jacobi's method turns n / 2 pairs of
rows (and columns) at once, each so that what couples it becomes 0; rows i and i + n / 2 are a
pair, and after a round all but the first move on by one place, so that n - 1 rounds meet every
pair. Rounds are repeated until nothing couples.

Source: Brent, Luk, The solution of singular-value and symmetric eigenvalue problems on
multiprocessor arrays, 1985; Demmel, Veselic, Jacobi's method is more accurate than QR, 1992.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pullback.linalg.operation import size, written
from pullback.linalg.triangles import here
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.forms.control import loop, while_loop
from pullback.tensor.library import maths as M
from pullback.tensor.library import ops as O
from pullback.tensor.library.creation import eye, full, zeros
from pullback.tensor.library.sorting import argsort

SWEEPS = 30  # at most; 6 to 10 are usual

# --- reflections ---------------------------------------------------------------------------------


def qr(a: Tensor, *, complete: bool = False) -> tuple[Tensor, Tensor]:
    """Q with orthonormal columns and an upper triangle R; signs are LAPACK's."""
    *lead, rows, columns = a.shape
    m, n = size(rows), size(columns)
    count = min(m, n)
    width = m if complete else count
    start = (a, zeros((*lead, m, count), dtype=a.dtype), zeros((*lead, count), dtype=a.dtype))
    if count:
        reduced, vectors, factors = loop(count, _reflected, start)
    else:
        reduced, vectors, factors = start

    def step(k: Tensor, q: Tensor) -> Tensor:
        now = count - 1 - here(k)
        v = written("v", (*lead, m), lambda *at: vectors[(*at, now)])
        row = O.matmul(O.expand_dims(v, -2), q)

        def turned(*at: Any) -> Any:
            *b, i, j = at
            return q[tuple(at)] - factors[(*b, now)] * v[(*b, i)] * row[(*b, 0, j)]

        return written("turned", q.shape, turned)

    q = O.broadcast_to(eye(m, width, dtype=a.dtype), (*lead, m, width))
    q = loop(count, step, q) if count else q
    return q, O.triu(reduced[..., :width, :])


def _reflected(k: Tensor, state: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Column k goes to a multiple of ``e_k``; where it is one already, nothing happens."""
    a, vectors, factors = state
    *lead, m, _ = a.shape
    now = here(k)
    column = written("column", (*lead, m), lambda *at: O.where(at[-1] >= now, a[(*at, now)], 0.0))
    below = written("below", (*lead, m), lambda *at: O.where(at[-1] > now, column[at], 0.0))
    largest = O.max(M.abs(column), axis=-1)
    scale = O.where(largest > 0.0, largest, 1.0)
    length = M.sqrt(O.sum(M.square(column / O.expand_dims(scale, -1)), axis=-1))
    first = written("first", tuple(lead), lambda *b: a[(*b, now, now)]) / scale
    flat = O.max(M.abs(below), axis=-1) == 0.0
    end = O.where(first > 0.0, -length, length)
    factor = O.where(flat, 0.0, 1.0 / (length * (length + M.abs(first))))

    def vector(*at: Any) -> Any:
        *b, i = at
        own = column[at] / scale[tuple(b)]
        return O.where(i == now, own - end[tuple(b)], own)

    v = written("v", (*lead, m), vector)
    row = O.matmul(O.expand_dims(v, -2), a)

    def reduced(*at: Any) -> Any:
        *b, i, j = at
        return a[at] - factor[tuple(b)] * v[(*b, i)] * row[(*b, 0, j)]

    def kept(*at: Any) -> Any:
        return O.where(at[-1] == now, v[tuple(at[:-1])], vectors[at])

    def known(*at: Any) -> Any:
        return O.where(at[-1] == now, factor[tuple(at[:-1])], factors[at])

    return (
        written("reduced", a.shape, reduced),
        written("vectors", vectors.shape, kept),
        written("factors", factors.shape, known),
    )


# --- rotations -----------------------------------------------------------------------------------


def _turns(one: Tensor, two: Tensor, couple: Tensor) -> tuple[Tensor, Tensor]:
    """Sine and tangent of half the angle that uncouple ``[[one, couple], [couple, two]]``."""
    ratio = (two - one) / (2.0 * O.where(couple == 0.0, 1.0, couple))
    size_of = M.abs(ratio) + M.sqrt(M.square(ratio) + 1.0)
    tangent = O.where(couple == 0.0, 0.0, O.where(ratio < 0.0, -1.0, 1.0) / size_of)
    cosine = 1.0 / M.sqrt(M.square(tangent) + 1.0)
    sine = tangent * cosine
    return sine, sine / (cosine + 1.0)


def _moved(x: Tensor, sine: Tensor, half_tangent: Tensor) -> Tensor:
    """Rows i and i + n / 2 turned, and every row but the first moved on by one place.

    ``c x - s y = x - s (y + t x)``, t the tangent of half the angle: small angles round little.
    """
    half = size(x.shape[-2]) // 2

    def turned(*at: Any) -> Any:
        *b, i, j = at
        row = _round_table(i, half)
        above = row < half
        pair = (*b, O.where(above, row, row - half))
        own, mate = x[(*b, row, j)], x[(*b, O.where(above, row + half, row - half), j)]
        s, t = sine[pair], half_tangent[pair]
        return own - O.where(above, s, -s) * (mate + O.where(above, t, -t) * own)

    return written("turned", x.shape, turned)


def _round_table(i: Any, half: int) -> Any:
    """Which row moves to place i: 0 stays, the others go along the top and back below."""
    last = 2 * half - 1
    below = O.where(i == last, half - 1, M.minimum(i + 1, last))
    above = O.where(i == 1, half, M.maximum(i - 1, 0))
    return O.where(i < half, above, below) if half > 1 else i


def _sweeps(sweep: Callable[[Any], Any], state: tuple[Tensor, ...], going: Tensor) -> Any:
    """``state, going = sweep(state)`` while anything is going."""

    def step(carry: Any) -> Any:
        state, going = sweep(carry[0])
        return state, going, carry[2] + 1

    def more(carry: Any) -> Tensor:
        again: Tensor = O.any(carry[1]) & (carry[2] < SWEEPS)
        return again

    start = (state, going, full((), 0, dtype="int64"))
    return while_loop(more, step, start, max_steps=SWEEPS)[0]


def _rows_at(order: Tensor, x: Tensor) -> Tensor:
    """Rows in another order."""
    places = O.broadcast_to(O.expand_dims(order, -1), x.shape)
    rows: Tensor = O.take_along_axis(x, places, axis=-2)
    return rows


def _diagonal(x: Tensor, count: int) -> Tensor:
    return written("diagonal", (*x.shape[:-2], count), lambda *at: x[(*at, at[-1])])


def _unit(count: int, x: Tensor) -> Tensor:
    """Identities of the batch and type of `x`."""
    return O.broadcast_to(eye(count, dtype=x.dtype), (*x.shape[:-2], count, count))


# --- eigenvalues ---------------------------------------------------------------------------------

Two = tuple[Tensor, Tensor]


def eigh(a: Tensor) -> Two:
    """Eigenvalues, the smallest first, and eigenvectors as columns, of a symmetric matrix.

    Rows of ``M = a + c`` are turned until they are orthogonal: then they are eigenvectors, each as
    long as its eigenvalue of M. c makes M far from singular, so their directions are exact.
    """
    n = size(a.shape[-1])
    if n == 0:
        return O.sum(a, axis=-1), a
    odd = n % 2 if n > 1 else 0
    bound = O.max(O.sum(M.abs(a), axis=-1), axis=-1)
    shift = O.where(bound == 0.0, 1.0, bound * 1.5)

    def begin(*at: Any) -> Any:
        *b, i, j = at
        return a[at] + O.where(i == j, shift[tuple(b)], 0.0)

    shifted = written("shifted", a.shape, begin)
    start = O.pad(shifted, [(0, 0)] * (len(a.shape) - 2) + [(0, odd), (0, 0)])
    turned = _turned_rows(start, ())[0] if n > 1 else start
    length = M.sqrt(O.sum(M.square(turned), axis=-1, keepdims=True))
    rows = turned / O.where(length == 0.0, 1.0, length)
    values = O.sum(rows * O.matmul(rows, a), axis=-1)
    if odd:  # the row that was added is 0, and goes last
        values = O.where(O.squeeze(length, -1) == 0.0, float("inf"), values)
    order = argsort(values, axis=-1)
    return O.take_along_axis(values, order, axis=-1)[..., :n], _rows_at(order, rows)[..., :n, :].mT


# --- singular values -----------------------------------------------------------------------------

Three = tuple[Tensor, Tensor, Tensor]


def svd(a: Tensor, *, complete: bool = False) -> Three:
    """Left singular vectors, values, the largest first, and right singular vectors as rows.

    Rows of the transpose are turned until they are orthogonal; QR of what they have become, in
    order of length, has orthonormal columns also where a value is 0.
    """
    *lead, rows, columns = a.shape
    m, n = size(rows), size(columns)
    if m < n:
        left, values, right = svd(a.mT, complete=complete)
        return right.mT, values, left.mT
    if n == 0:
        wide = m if complete else 0
        unit = O.broadcast_to(eye(m, wide, dtype=a.dtype), (*lead, m, wide))
        return unit, O.sum(a, axis=-2), zeros((*lead, 0, 0), dtype=a.dtype)
    largest = O.max(M.abs(a), axis=(-2, -1), keepdims=True)
    scale = O.where(largest > 0.0, largest, 1.0)
    orthogonal, vectors = _orthogonal_rows((a / scale).mT)
    left, upper = qr(orthogonal.mT, complete=complete)
    corner = _diagonal(upper, n)
    sign = O.where(corner < 0.0, -1.0, 1.0).astype(a.dtype)
    whole = O.pad(sign, [(0, 0)] * len(lead) + [(0, m - n if complete else 0)], 1.0)
    values = M.abs(corner) * O.squeeze(scale, -1)
    return left * O.expand_dims(whole, -2), values, vectors


def _orthogonal_rows(a: Tensor) -> Two:
    """``V^T a`` with orthogonal rows, the longest first, and ``V^T``."""
    n = size(a.shape[-2])
    odd = n % 2 if n > 1 else 0
    width = [(0, 0)] * (len(a.shape) - 2)
    start = O.pad(a, [*width, (0, odd), (0, 0)])
    vectors = _unit(n + odd, a)
    orthogonal, vectors = _turned_rows(start, (vectors,)) if n > 1 else (start, vectors)
    lengths = M.sqrt(O.sum(M.square(orthogonal), axis=-1))
    if odd:  # the row that was added is the last
        lengths = O.where(vectors[..., :, n] == 0.0, lengths, -1.0)
    order = argsort(lengths, axis=-1, descending=True)
    return _rows_at(order, orthogonal)[..., :n, :], _rows_at(order, vectors)[..., :n, :n]


def _turned_rows(start: Tensor, others: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """`start` with its rows turned until they are orthogonal, and `others` turned with them."""
    n = size(start.shape[-2])
    half = n // 2
    eps = float(np.finfo(start.dtype.numpy).eps)
    least = O.expand_dims(O.sum(M.square(start), axis=(-2, -1)), -1) * eps

    def turn(_: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        w, *rest, going = state
        top, bottom = w[..., :half, :], w[..., half:, :]
        one, two = O.sum(M.square(top), axis=-1), O.sum(M.square(bottom), axis=-1)
        couple = O.sum(top * bottom, axis=-1)
        large = M.abs(couple) > 4.0 * eps * M.maximum(M.sqrt(one * two), least)
        sine, half_tangent = _turns(one, two, O.where(large, couple, 0.0))
        going = M.logical_or(going, O.any(large, axis=-1))
        return (*(_moved(x, sine, half_tangent) for x in (w, *rest)), going)

    def sweep(state: tuple[Tensor, ...]) -> tuple[tuple[Tensor, ...], Tensor]:
        done = full(start.shape[:-2], False, dtype="bool")
        *swept, going = loop(n - 1, turn, (*state, done))
        return tuple(swept), going

    going = full(start.shape[:-2], True, dtype="bool")
    turned: tuple[Tensor, ...] = _sweeps(sweep, (start, *others), going)
    return turned
