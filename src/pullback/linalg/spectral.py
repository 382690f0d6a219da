"""Orthogonal factors, eigenvalues and singular values, with derivatives, and what is made of them.

    S = V diag(w) V^T:  dw = diag(V^T dS V),  dV = V ((V^T dS V) / E),  E[i, j] = w[j] - w[i]
    A = U diag(s) V^T:  ds = diag(U^T dA V),  E[i, j] = s[j]^2 - s[i]^2

Where two eigenvalues (or singular values) are equal, their vectors are not defined, and neither is
the derivative of what depends on them: it is infinite or NaN, as PyTorch's. Derivatives of the
values alone are finite. So are those of the pseudoinverse, while the rank does not change.

Source: Giles, 2008; Townsend, Differentiating the singular value decomposition, 2016; Golub,
Pereyra, The differentiation of pseudo-inverses, 1973; PyTorch's formulas for QR.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from pullback.errors import GradientError, UnsupportedError
from pullback.linalg import rotations as R
from pullback.linalg.factors import LOWER, symmetric
from pullback.linalg.factors import _upper as upper_solve
from pullback.linalg.operation import (
    Found,
    Operation,
    Price,
    Tensors,
    back,
    matrix,
    nothing,
    size,
    written,
)
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.forms.hosted import Kind
from pullback.tensor.library import maths as M
from pullback.tensor.library import ops as O
from pullback.tensor.shaped import shaped


class Eigen(NamedTuple):
    """Eigenvalues, and eigenvectors as columns.

    Example:
        >>> pb.linalg.eigh(pb.eye(2)).eigenvalues
        Tensor([1., 1.], dtype=float32)
    """

    eigenvalues: Tensor
    eigenvectors: Tensor


class QR(NamedTuple):
    """Orthonormal columns, and an upper triangle.

    Example:
        >>> pb.linalg.qr(pb.eye(2)).R.shape
        (2, 2)
    """

    Q: Tensor
    R: Tensor


class SVD(NamedTuple):
    """Left singular vectors, singular values, and right singular vectors as rows.

    Example:
        >>> pb.linalg.svd(pb.eye(2)).S
        Tensor([1., 1.], dtype=float32)
    """

    U: Tensor
    S: Tensor
    Vh: Tensor


class Lstsq(NamedTuple):
    """What comes nearest, the squared distances, the rank, and the singular values.

    Example:
        >>> pb.linalg.lstsq(pb.eye(2), pb.ones((2, 1))).solution.shape
        (2, 1)
    """

    solution: Tensor
    residuals: Tensor
    rank: Tensor
    singular_values: Tensor


# --- QR ------------------------------------------------------------------------------------------


def _over(x: Tensor, upper: Tensor) -> Tensor:
    """``x R^-T``"""
    return upper_solve(upper, x.mT).mT


def _qr_pull(inputs: Tensors, outputs: Tensors, heads: Tensors) -> Found:
    """``(dQ + Q sym(triu(dR R^T - Q^T dQ))) R^-T``, sym(X) = X + X^T with the diagonal of X"""
    q, r = outputs
    inner = O.triu(O.matmul(heads[1], r.mT) - O.matmul(q.mT, heads[0]))
    whole = inner + O.triu(inner, k=1).mT
    return [_over(heads[0] + O.matmul(q, whole), r)]


def _qr_push(inputs: Tensors, outputs: Tensors, tangents: Tensors) -> Tensors:
    """``dR = T R, dQ = dA R^-1 - Q T``, T = triu(X + X^T) with half of its diagonal"""
    q, r = outputs
    along = LOWER(r.mT, tangents[0].mT)[0].mT
    inner = O.matmul(q.mT, along)
    both = inner + inner.mT
    turn = (O.triu(both) + O.triu(both, k=1)) * 0.5
    return [along - O.matmul(q, turn), O.matmul(turn, r)]


def _qr_kinds(kinds: Sequence[Kind], *, complete: bool = False) -> Sequence[Kind]:
    ((*lead, m, n), kind) = kinds[0]
    wide = m if complete else min(size(m), size(n))
    return [((*lead, m, wide), kind), ((*lead, wide, n), kind)]


_QR = Operation(
    "qr", lambda a: tuple(np.linalg.qr(a)), R.qr, _qr_pull, _qr_push, _qr_kinds, price=Price(32, 56)
)
_COMPLETE = Operation(
    "qr with mode='complete'",
    lambda a: tuple(np.linalg.qr(a, mode="complete")),
    partial(R.qr, complete=True),
    results=partial(_qr_kinds, complete=True),
    price=Price(32, 56),
)


@shaped("a[*b, m, n]")
def qr(a: Tensor, *, mode: str = "reduced", method: str = "auto") -> QR:
    """``Q R = a``: orthonormal columns (m of them with "complete") times an upper triangle.

    With "r" Q is empty, as in PyTorch. Signs are LAPACK's. The first columns, as many as there are
    rows, must be independent for a derivative; of "complete" with m > n there is none.

    Example:
        >>> pb.linalg.qr(pb.ones((3, 2))).Q.shape
        (3, 2)
    """
    if mode not in ("reduced", "complete", "r"):
        raise UnsupportedError(f"mode={mode!r}", help="reduced, complete or r", code="E312")
    own = matrix(a)
    m, n = map(size, own.shape[-2:])
    if mode == "complete" and m > n:
        q, r = _COMPLETE(own, method=method)
    elif m >= n:
        q, r = _QR(own, method=method)
    else:
        q, first = _QR(own[..., :m], method=method)
        r = O.concat([first, O.matmul(q.mT, own[..., m:])], axis=-1)
    q = q[..., :0, :0] if mode == "r" else q
    return QR(back(q, a.dtype), back(r, a.dtype))


# --- eigenvalues ---------------------------------------------------------------------------------


def _diagonal(x: Tensor) -> Tensor:
    return written("diagonal", x.shape[:-1], lambda *at: x[(*at, at[-1])])


def _gaps(numerator: Tensor, values: Tensor) -> Tensor:
    """``numerator[i, j] / (values[j] - values[i])``, 0 on the diagonal."""

    def body(*at: Any) -> Any:
        *b, i, j = at
        quotient = numerator[at] / (values[(*b, j)] - values[(*b, i)])
        return O.where(i == j, 0.0, quotient)

    return written("gaps", numerator.shape, body)


def _scaled(x: Tensor) -> Tensor:
    """For columns: ``x[.., None, :]``"""
    return O.expand_dims(x, -2)


def _with_diagonal(x: Tensor, values: Tensor) -> Tensor:
    """``x + diag(values)``"""

    def body(*at: Any) -> Any:
        return O.where(at[-1] == at[-2], x[at] + values[tuple(at[:-1])], x[at])

    return written("with_diagonal", x.shape, body)


def _eigh_pull(inputs: Tensors, outputs: Tensors, heads: Tensors) -> Found:
    values, vectors = outputs
    if nothing(heads[1]):
        return [O.matmul(vectors * _scaled(heads[0]), vectors.mT)]
    inner = _gaps(O.matmul(vectors.mT, heads[1]), values)
    inner = _with_diagonal(inner, heads[0])
    return [O.matmul(O.matmul(vectors, inner), vectors.mT)]


def _eigh_push(inputs: Tensors, outputs: Tensors, tangents: Tensors) -> Tensors:
    values, vectors = outputs
    inner = O.matmul(O.matmul(vectors.mT, tangents[0]), vectors)
    return [_diagonal(inner), O.matmul(vectors, _gaps(inner, values))]


def _eigh_kinds(kinds: Sequence[Kind]) -> Sequence[Kind]:
    shape, kind = kinds[0]
    return [(shape[:-1], kind), kinds[0]]


EIGH = Operation(
    "eigh",
    lambda a: tuple(np.linalg.eigh(a)),
    R.eigh,
    _eigh_pull,
    _eigh_push,
    _eigh_kinds,
    price=Price(18, 24),
)


@shaped("a[*b, n, n] -> [*b, n], [*b, n, n]")
def eigh(a: Tensor, *, method: str = "auto") -> Eigen:
    """Eigenvalues, the smallest first, and eigenvectors of ``(a + a^T) / 2``.

    Each eigenvector's sign is arbitrary; where eigenvalues are equal, so is their basis, and
    derivatives through eigenvectors are not finite.

    Example:
        >>> pb.linalg.eigh(pb.tensor([[2.0, 1.0], [1.0, 2.0]])).eigenvalues
        Tensor([1., 3.], dtype=float32)
    """
    parts = EIGH(symmetric(matrix(a)), method=method)
    return Eigen(*(back(f, a.dtype) for f in parts))


@shaped("a[*b, n, n] -> [*b, n]")
def eigvalsh(a: Tensor, *, method: str = "auto") -> Tensor:
    """Eigenvalues of ``(a + a^T) / 2``, the smallest first.

    Example:
        >>> pb.linalg.eigvalsh(pb.tensor([[2.0, 1.0], [1.0, 2.0]]))
        Tensor([1., 3.], dtype=float32)
    """
    return back(EIGH(symmetric(matrix(a)), method=method)[0], a.dtype)


# --- singular values -----------------------------------------------------------------------------


def _skew(x: Tensor) -> Tensor:
    return x - x.mT


def _svd_pull(inputs: Tensors, outputs: Tensors, heads: Tensors) -> Found:
    left, values, right = outputs
    if nothing(heads[0]) and nothing(heads[2]):
        return [O.matmul(left * _scaled(heads[1]), right)]
    m, n = map(size, inputs[0].shape[-2:])
    k = min(m, n)
    squares = M.square(values)
    one = _gaps(_skew(O.matmul(left.mT, heads[0])), squares) * _scaled(values)
    two = O.expand_dims(values, -1) * _gaps(_skew(O.matmul(right, heads[2].mT)), squares)
    inner = _with_diagonal(one + two, heads[1])
    adjoint = O.matmul(left, inner)
    if m > k:
        across = heads[0] / _scaled(values)
        adjoint = adjoint + across - O.matmul(left, O.matmul(left.mT, across))
    adjoint = O.matmul(adjoint, right)
    if n > k:
        across = heads[2] / O.expand_dims(values, -1)
        rest = across - O.matmul(O.matmul(across, right.mT), right)
        adjoint = adjoint + O.matmul(left, rest)
    return [adjoint]


def _svd_push(inputs: Tensors, outputs: Tensors, tangents: Tensors) -> Tensors:
    left, values, right = outputs
    (along,) = tangents
    m, n = map(size, along.shape[-2:])
    k = min(m, n)
    inner = O.matmul(O.matmul(left.mT, along), right.mT)
    squares = M.square(values)
    by_right = inner * _scaled(values)
    by_left = O.expand_dims(values, -1) * inner
    turned = O.matmul(left, _gaps(by_right + by_right.mT, squares))
    moved = O.matmul(_gaps(by_left + by_left.mT, squares).mT, right)
    if m > k:
        across = O.matmul(along, right.mT)
        turned = turned + (across - O.matmul(left, inner)) / _scaled(values)
    if n > k:
        across = O.matmul(left.mT, along)
        moved = moved + (across - O.matmul(inner, right)) / O.expand_dims(values, -1)
    return [turned, _diagonal(inner), moved]


def _full_pull(inputs: Tensors, outputs: Tensors, heads: Tensors) -> Found:
    """By the values alone. Raises: GradientError, some of the vectors being arbitrary."""
    if not nothing(heads[0]) or not nothing(heads[2]):
        raise GradientError(
            "the derivative of svd with full_matrices=True by vectors of a matrix that is not"
            " square: some of them are arbitrary",
            origin=outputs[0].value.origin,
            help="full_matrices=False",
            code="E355",
        )
    left, _, right = _SVD(inputs[0])
    return [O.matmul(left * _scaled(heads[1]), right)]


def _full_push(inputs: Tensors, outputs: Tensors, tangents: Tensors) -> Tensors:
    """The values alone have a tangent."""
    left, _, right = _SVD(inputs[0])
    moved = _diagonal(O.matmul(O.matmul(left.mT, tangents[0]), right.mT))
    nan = float("nan")
    return [outputs[0] * nan, moved, outputs[2] * nan]


def _host_svd(a: Any, full: bool) -> Any:
    return tuple(np.linalg.svd(a, full_matrices=full))


def _svd_kinds(kinds: Sequence[Kind], *, full: bool = False) -> Sequence[Kind]:
    ((*lead, m, n), kind) = kinds[0]
    k = min(size(m), size(n))
    left, right = (m, n) if full else (k, k)
    return [((*lead, m, left), kind), ((*lead, k), kind), ((*lead, right, n), kind)]


_SVD = Operation(
    "svd",
    partial(_host_svd, full=False),
    R.svd,
    _svd_pull,
    _svd_push,
    _svd_kinds,
    price=Price(18, 22),
)
_FULL = Operation(
    "svd",
    partial(_host_svd, full=True),
    partial(R.svd, complete=True),
    _full_pull,
    _full_push,
    partial(_svd_kinds, full=True),
    price=Price(18, 22),
)


@shaped("a[*b, m, n]")
def svd(a: Tensor, *, full_matrices: bool = True, method: str = "auto") -> SVD:
    """``a = U diag(S) Vh``, the largest value first.

    Signs of vectors are arbitrary; derivatives through vectors of equal values are not finite, and
    of those that only `full_matrices` adds there are none.

    Example:
        >>> pb.linalg.svd(pb.tensor([[3.0, 0.0], [0.0, 4.0]])).S
        Tensor([4., 3.], dtype=float32)
    """
    own = matrix(a)
    full = full_matrices and own.shape[-1] != own.shape[-2]
    parts = (_FULL if full else _SVD)(own, method=method)
    return SVD(*(back(f, a.dtype) for f in parts))


@shaped("a[*b, m, n]")
def svdvals(a: Tensor, *, method: str = "auto") -> Tensor:
    """Singular values, the largest first.

    Example:
        >>> pb.linalg.svdvals(pb.tensor([[3.0, 0.0], [0.0, 4.0]]))
        Tensor([4., 3.], dtype=float32)
    """
    return back(_SVD(matrix(a), method=method)[1], a.dtype)


# --- what is made of singular values -------------------------------------------------------------


def _cut(own: Tensor, values: Tensor, rtol: Any) -> Tensor:
    """Below what a singular value counts as 0: ``rtol`` times the largest."""
    largest = O.max(values, axis=-1) if size(values.shape[-1]) else O.sum(values, axis=-1)
    if rtol is None:
        eps = float(np.finfo(own.dtype.numpy).eps)
        rtol = max(map(size, own.shape[-2:])) * eps
    return O.expand_dims(largest * rtol, -1)


def _generated_pinv(a: Tensor, cut: Tensor) -> tuple[Tensor]:
    left, values, right = R.svd(a)
    return (_inverted(left, values, right, cut),)


def _inverted(left: Tensor, values: Tensor, right: Tensor, cut: Tensor) -> Tensor:
    """``V diag(1 / s) U^T``, values up to `cut` left out."""
    kept = values > cut
    factors = O.where(kept, 1.0 / O.where(kept, values, 1.0), 0.0)
    return O.matmul(right.mT * _scaled(factors), left.mT)


def _host_pinv(a: Any, cut: Any) -> Any:
    left, values, right = np.linalg.svd(a, full_matrices=False)
    factors = np.where(values > cut, 1.0 / np.where(values > cut, values, 1.0), 0.0)
    return (np.swapaxes(right, -1, -2) * factors[..., None, :]) @ np.swapaxes(left, -1, -2)


def _pinv_push(inputs: Tensors, outputs: Tensors, tangents: Tensors) -> Tensors:
    """``-P dA P + P P^T dA^T (1 - A P) + (1 - P A) dA^T P^T P``"""
    a, (p,), along = inputs[0], outputs, tangents[0]
    one = -O.matmul(p, O.matmul(along, p))
    two = O.matmul(p, O.matmul(p.mT, along.mT))
    three = O.matmul(O.matmul(along.mT, p.mT), p)
    rest = two - O.matmul(O.matmul(two, a), p)
    return [one + rest + three - O.matmul(p, O.matmul(a, three))]


def _pinv_pull(inputs: Tensors, outputs: Tensors, heads: Tensors) -> Found:
    a, (p,), (head,) = inputs[0], outputs, heads
    one = -O.matmul(p.mT, O.matmul(head, p.mT))
    rest = head - O.matmul(O.matmul(head, p.mT), a.mT)
    two = O.matmul(O.matmul(rest.mT, p), p.mT)
    left = head - O.matmul(a.mT, O.matmul(p.mT, head))
    three = O.matmul(p.mT, O.matmul(p, left.mT))
    return [one + two + three, None]


def _pinv_kinds(kinds: Sequence[Kind]) -> Sequence[Kind]:
    ((*lead, m, n), kind) = kinds[0]
    return [((*lead, n, m), kind)]


PINV = Operation(
    "pinv", _host_pinv, _generated_pinv, _pinv_pull, _pinv_push, _pinv_kinds, price=Price(18, 22)
)


@shaped("a[*b, m, n] -> [*b, n, m]")
def pinv(a: Tensor, *, rtol: Any = None, method: str = "auto") -> Tensor:
    """The pseudoinverse; singular values up to `rtol` times the largest count as 0.

    `rtol` is ``max(m, n) eps`` unless said. Its derivative takes the rank as constant.

    Example:
        >>> pb.linalg.pinv(pb.ones((2, 3))).shape
        (3, 2)
    """
    own = matrix(a)
    return back(_pinv(own, rtol, method)[0], a.dtype)


def _pinv(own: Tensor, rtol: Any, method: str) -> tuple[Tensor, Tensor, Tensor]:
    """The pseudoinverse, the singular values, and the cut."""
    values = _SVD(O.stop_gradient(own), method=method)[1]
    cut = _cut(own, values, rtol)
    return PINV(own, O.stop_gradient(cut), method=method)[0], values, cut


@shaped("a[*b, m, n], b[m] or [*b, m, k]")
def lstsq(a: Tensor, b: Tensor, *, rtol: Any = None, method: str = "auto") -> Lstsq:
    """The shortest X that makes ``|a X - b|`` least: ``pinv(a) b``.

    `residuals` are the squared distances of the columns of b, for every rank.

    Example:
        >>> pb.linalg.lstsq(pb.tensor([[1.0], [1.0]]), pb.tensor([[1.0], [3.0]])).solution.tolist()
        [[1.9999998807907104]]
    """
    own, given = matrix(a), matrix(b)
    kind = O.result_type(own, given)
    own, given = own.astype(kind), given.astype(kind)
    vector = len(given.shape) == 1
    given = O.expand_dims(given, -1) if vector else given
    inverse, values, cut = _pinv(own, rtol, method)
    solution = O.matmul(inverse, given)
    squares = O.sum(M.square(O.matmul(own, solution) - given), axis=-2)
    if vector:
        solution, squares = O.squeeze(solution, -1), O.squeeze(squares, -1)
    rank = O.sum((values > cut).astype("int64"), axis=-1)
    wide = O.result_type(a, b)
    return Lstsq(back(solution, wide), back(squares, wide), rank, back(values, wide))


@shaped("a[*b, m, n] -> [*b]")
def matrix_rank(a: Tensor, *, rtol: Any = None, method: str = "auto") -> Tensor:
    """How many singular values are above `rtol` (``max(m, n) eps``) times the largest.

    Example:
        >>> pb.linalg.matrix_rank(pb.ones((2, 2)))
        Tensor(1, dtype=int64)
    """
    own = matrix(a)
    values = _SVD(O.stop_gradient(own), method=method)[1]
    rank: Tensor = O.sum((values > _cut(own, values, rtol)).astype("int64"), axis=-1)
    return rank
