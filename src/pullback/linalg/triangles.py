"""Cholesky, LU and triangular systems as loops: rows one by one, large matrices in blocks.

    A = L L^T      P A = L U, the largest pivot of each column      L X = B

A matrix of more than `ROWS` rows is cut into blocks of `BLOCK`. A loop over blocks takes away what
the blocks before contribute, a product of matrices; a block itself is factored row by row. Blocks
are not yet computed hold zeros, so each product has the full extent: twice to six times the
multiplications, in one program text for every size.

What has no such factors gives NaN (Cholesky), or infinities and NaN (a solution).
Source: Golub, Van Loan, Matrix Computations, 2013, 3.4, 4.2.
"""

from __future__ import annotations

from typing import Any

from pullback.ir.graph import read
from pullback.linalg.operation import size, written
from pullback.tensor.face.handles import ScalarHandle
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.forms.control import loop
from pullback.tensor.library import maths as M
from pullback.tensor.library import ops as O
from pullback.tensor.library.creation import arange, eye, ones, zeros

ROWS = 64  # the largest matrix that is taken row by row
BLOCK = 32


def here(k: Tensor) -> ScalarHandle:
    """A number of the program, as part of an index expression."""
    return ScalarHandle(read(k.value))


# --- cholesky ------------------------------------------------------------------------------------


def cholesky(a: Tensor) -> tuple[Tensor]:
    """The triangle L with ``L L^T = a``; only the lower triangle of `a` is read."""
    n = size(a.shape[-1])
    if n == 0:
        return (a,)
    if n <= ROWS:
        return (_cholesky_rows(a),)
    return (_cholesky_blocks(_padded(a))[..., :n, :n],)


def _cholesky_rows(a: Tensor) -> Tensor:
    """Column by column: what a column contributes is taken from all to its right."""

    def step(k: Tensor, a: Tensor) -> Tensor:
        now = here(k)
        *lead, n, _ = a.shape

        def column(*at: Any) -> Any:
            *b, i = at
            root = M.sqrt(a[(*b, now, now)])
            return O.where(i == now, root, O.where(i > now, a[(*b, i, now)] / root, 0.0))

        own = written("column", (*lead, n), column)

        def rest(*at: Any) -> Any:
            *b, i, j = at
            left = a[(*b, i, j)] - own[(*b, i)] * own[(*b, j)]
            return O.where(j == now, own[(*b, i)], O.where(j > now, left, a[(*b, i, j)]))

        return written("rest", a.shape, rest)

    factor: Tensor = loop(size(a.shape[-1]), step, O.tril(a))
    return O.tril(factor)


def _cholesky_blocks(a: Tensor) -> Tensor:
    """Blocks of columns: ``P = A - L L[block]^T``, ``L = P inv(chol(P[block]))^T``"""
    *lead, n, _ = a.shape

    def step(k: Tensor, done: Tensor) -> Tensor:
        now = here(k)
        rows = written(
            "rows", (*lead, BLOCK, n), lambda *at: done[(*at[:-2], now * BLOCK + at[-2], at[-1])]
        )
        taken = O.matmul(done, rows.mT)
        left = written(
            "panel",
            (*lead, n, BLOCK),
            lambda *at: a[(*at[:-1], now * BLOCK + at[-1])] - taken[tuple(at)],
        )
        own, inverse = _cholesky_pair(block_of(left, k))
        panel = O.matmul(left, inverse.mT)

        def joined(*at: Any) -> Any:
            *b, i, j = at
            below = O.where(i // BLOCK > now, panel[(*b, i, j % BLOCK)], 0.0)
            inside = O.where(i // BLOCK == now, own[(*b, i % BLOCK, j % BLOCK)], below)
            return O.where(j // BLOCK == now, inside, done[(*b, i, j)])

        return written("joined", a.shape, joined)

    factor: Tensor = loop(size(n) // BLOCK, step, zeros(a.shape, dtype=a.dtype))
    return factor


def _cholesky_pair(a: Tensor) -> tuple[Tensor, Tensor]:
    """L and its inverse: elimination turns ``[A | 1]`` into ``[L^T | L^-1]``."""
    *lead, n, _ = a.shape
    count = size(n)

    def begin(*at: Any) -> Any:
        *b, i, j = at
        return O.where(j < count, a[(*b, i, j % count)], O.where(j - count == i, 1.0, 0.0))

    def step(k: Tensor, m: Tensor) -> Tensor:
        now = here(k)

        factor = written(
            "factor", (*lead, count), lambda *at: m[(*at, now)] / m[(*at[:-1], now, now)]
        )

        def scaled(*at: Any) -> Any:
            *b, j = at
            return m[(*b, now, j)] / M.sqrt(m[(*b, now, now)])

        own = written("scaled", (*lead, 2 * count), scaled)

        def eliminated(*at: Any) -> Any:
            *b, i, j = at
            later = m[at] - factor[(*b, i)] * m[(*b, now, j)]
            return O.where(i == now, own[(*b, j)], O.where(i > now, later, m[at]))

        return written("eliminated", m.shape, eliminated)

    both: Tensor = loop(count, step, written("begin", (*lead, count, 2 * count), begin))
    return O.tril(both[..., :count].mT), both[..., count:]


# --- triangular systems --------------------------------------------------------------------------


def solve_lower(a: Tensor, b: Tensor) -> tuple[Tensor]:
    """``X`` with ``tril(a) X = b``, batches of the same extents."""
    n = size(a.shape[-1])
    if n == 0:
        return (b,)
    if n <= ROWS:
        return (_solve_rows(a, b),)
    rows = -n % BLOCK
    width = [(0, 0)] * (len(b.shape) - 2) + [(0, rows), (0, 0)]
    return (_solve_blocks(_padded(a), O.pad(b, width))[..., :n, :],)


def _solve_rows(a: Tensor, b: Tensor) -> Tensor:
    n = size(a.shape[-1])

    def step(k: Tensor, x: Tensor) -> Tensor:
        now = here(k)
        *lead, _, m = x.shape
        row = written("row", (*lead, n), lambda *at: a[(*at[:-1], now, at[-1])])
        known = O.matmul(O.expand_dims(row, -2), x)

        def solved(*at: Any) -> Any:
            *batch, j = at
            return (b[(*batch, now, j)] - known[(*batch, 0, j)]) / a[(*batch, now, now)]

        own = written("own", (*lead, m), solved)

        def joined(*at: Any) -> Any:
            *batch, i, j = at
            return O.where(i == now, own[(*batch, j)], x[at])

        return written("solved", (*lead, n, m), joined)

    solution: Tensor = loop(n, step, zeros(b.shape, dtype=b.dtype))
    return solution


def _solve_blocks(a: Tensor, b: Tensor) -> Tensor:
    """``X[block] = inv(L[block, block]) (B[block] - L[block] X)``"""
    *lead, n, m = b.shape
    blocks = size(n) // BLOCK
    own = written(
        "diagonal",
        (*lead, blocks, BLOCK, BLOCK),
        lambda *at: a[(*at[:-3], at[-3] * BLOCK + at[-2], at[-3] * BLOCK + at[-1])],
    )
    inverse = _solve_rows(own, O.broadcast_to(eye(BLOCK, dtype=a.dtype), own.shape))

    def step(k: Tensor, x: Tensor) -> Tensor:
        now = here(k)
        rows = written(
            "rows", (*lead, BLOCK, n), lambda *at: a[(*at[:-2], now * BLOCK + at[-2], at[-1])]
        )
        left = block_of(b, k) - O.matmul(rows, x)
        turned = written(
            "inverse", (*lead, BLOCK, BLOCK), lambda *at: inverse[(*at[:-2], now, at[-2], at[-1])]
        )
        block = O.matmul(turned, left)

        def joined(*at: Any) -> Any:
            *batch, i, j = at
            return O.where(i // BLOCK == now, block[(*batch, i % BLOCK, j)], x[(*batch, i, j)])

        return written("solved", (*lead, n, m), joined)

    solution: Tensor = loop(blocks, step, zeros(b.shape, dtype=b.dtype))
    return solution


# --- LU ------------------------------------------------------------------------------------------

Factors = tuple[Tensor, Tensor, Tensor]


def lu(a: Tensor) -> Factors:
    """L and U in one matrix, which row of `a` stands where, and the sign of that permutation."""
    n = size(a.shape[-1])
    *lead, _, _ = a.shape
    order = O.broadcast_to(arange(n), (*lead, n))
    start = (a, order, ones(tuple(lead), dtype=a.dtype))
    if n == 0:
        return start
    if n <= ROWS:
        factors: Factors = loop(n, _pivoted, start)
        return factors
    wide = _padded(a)
    count = size(wide.shape[-1])
    order = O.broadcast_to(arange(count), (*lead, count))
    whole, order, sign = loop(count // BLOCK, _lu_block, (wide, order, start[2]))
    return whole[..., :n, :n], order[..., :n], sign


def _pivoted(k: Tensor, state: Factors, first: Tensor | None = None) -> Factors:
    """One column: its largest element goes up, multiples of that row are taken from those below.

    `first`: where the columns begin among the rows.
    """
    a, order, sign = state
    now = here(k)
    row = now if first is None else now + here(first)
    *lead, n, _ = a.shape
    sizes = written(
        "pivots",
        (*lead, n),
        lambda *at: O.where(at[-1] >= row, M.abs(a[(*at, now)]), -1.0),
    )
    best = O.argmax(sizes, axis=-1)

    top = written(
        "top", (*lead, a.shape[-1]), lambda *at: a[(*at[:-1], best[tuple(at[:-1])], at[-1])]
    )

    def swapped(read: Any, first: Any, b: Any, i: Any) -> Any:
        """What stands at row i once the best is up; `first` is that."""
        return O.where(i == row, first, O.where(i == best[tuple(b)], read(row), read(i)))

    def multiple(*at: Any) -> Any:
        *b, i = at
        pivot = top[(*b, now)]
        own = swapped(lambda r: a[(*b, r, now)], pivot, b, i)
        return O.where(pivot == 0.0, 0.0, own / O.where(pivot == 0.0, 1.0, pivot))

    factor = written("factor", (*lead, n), multiple)

    def reduced(*at: Any) -> Any:
        *b, i, j = at
        own = swapped(lambda r: a[(*b, r, j)], top[(*b, j)], b, i)
        left = own - factor[(*b, i)] * top[(*b, j)]
        below = O.where(j == now, factor[(*b, i)], O.where(j > now, left, own))
        return O.where(i > row, below, own)

    def moved(*at: Any) -> Any:
        *b, i = at
        return swapped(lambda r: order[(*b, r)], order[(*b, best[tuple(b)])], b, i)

    flips = written(
        "sign",
        tuple(lead),
        lambda *b: O.where(best[tuple(b)] == row, sign[tuple(b)], -sign[tuple(b)]),
    )
    return written("reduced", a.shape, reduced), written("order", order.shape, moved), flips


def _lu_block(k: Tensor, state: Factors) -> Factors:
    """One block of columns: itself column by column, then what is right of it, by a product."""
    a, order, sign = state
    now = here(k)
    *lead, n, _ = a.shape
    first = k * BLOCK
    panel = written("panel", (*lead, n, BLOCK), lambda *at: a[(*at[:-1], now * BLOCK + at[-1])])
    places = O.broadcast_to(arange(size(n)), order.shape)

    def step(j: Tensor, part: Factors) -> Factors:
        return _pivoted(j, part, first)

    panel, places, sign = loop(BLOCK, step, (panel, places, sign))
    rows = written("rows", a.shape, lambda *at: a[(*at[:-2], places[tuple(at[:-1])], at[-1])])
    unit = O.tril(block_of(panel, k), k=-1) + eye(BLOCK, dtype=a.dtype)
    right = _solve_rows(unit, block_of(rows, k))
    below = written(
        "below",
        panel.shape,
        lambda *at: O.where(at[-2] // BLOCK > now, panel[tuple(at)], 0.0),
    )
    taken = O.matmul(below, right)

    def joined(*at: Any) -> Any:
        *b, i, j = at
        inside = O.where(i // BLOCK == now, right[(*b, i % BLOCK, j)], rows[(*b, i, j)])
        later = O.where(i // BLOCK > now, rows[(*b, i, j)] - taken[(*b, i, j)], inside)
        past = O.where(j // BLOCK > now, later, rows[(*b, i, j)])
        return O.where(j // BLOCK == now, panel[(*b, i, j % BLOCK)], past)

    moved = written("order", order.shape, lambda *at: order[(*at[:-1], places[tuple(at)])])
    return written("joined", a.shape, joined), moved, sign


# --- blocks --------------------------------------------------------------------------------------


def block_of(x: Tensor, k: Tensor) -> Tensor:
    """The k-th `BLOCK` rows of `x`."""
    *lead, _, columns = x.shape
    now = here(k)
    return written(
        "block",
        (*lead, BLOCK, columns),
        lambda *at: x[(*at[:-2], now * BLOCK + at[-2], at[-1])],
    )


def _padded(a: Tensor) -> Tensor:
    """``[[a, 0], [0, 1]]`` of whole blocks."""
    n = size(a.shape[-1])
    count = n + -n % BLOCK
    if count == n:
        return a
    *lead, _, _ = a.shape

    def body(*at: Any) -> Any:
        i, j = at[-2:]
        return O.where((i < n) & (j < n), a[tuple(at)], O.where(i == j, 1.0, 0.0))

    return written("padded", (*lead, count, count), body)
