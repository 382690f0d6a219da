"""The extension `linalg`. Sums of products are pullback's; what factors a matrix runs in NumPy."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from pullback.array_api.hosted import hosted
from pullback.errors import Origin, ShapeError
from pullback.tensor import maths as M
from pullback.tensor import ops as O
from pullback.tensor.creation import eye
from pullback.tensor.ops import matmul, matrix_transpose, outer, tensordot, vecdot
from pullback.tensor.precise import in_float32
from pullback.tensor.tensor import Axes, Tensor

__all__ = [
    "cholesky", "cross", "det", "diagonal", "eigh", "eigvalsh", "inv", "matmul", "matrix_norm",
    "matrix_power", "matrix_rank", "matrix_transpose", "outer", "pinv", "qr", "slogdet", "solve",
    "svd", "svdvals", "tensordot", "trace", "vecdot", "vector_norm",
]  # fmt: skip


class Eigen(NamedTuple):
    """Eigenvalues, and eigenvectors as columns."""

    eigenvalues: Tensor
    eigenvectors: Tensor


class QR(NamedTuple):
    """Orthonormal columns, and an upper triangle."""

    Q: Tensor
    R: Tensor


class SLogDet(NamedTuple):
    """The sign of a determinant, and the logarithm of its magnitude."""

    sign: Tensor
    logabsdet: Tensor


class SVD(NamedTuple):
    """Left singular vectors, singular values, and right singular vectors as rows."""

    U: Tensor
    S: Tensor
    Vh: Tensor


def _hosted(name: str, function: Callable[..., Any], *given: Any) -> tuple[Tensor, ...]:
    return hosted(f"linalg.{name}", lambda *a: _plain(function(*a)), *given)


def _plain(found: Any) -> Any:
    return tuple(found) if isinstance(found, tuple) else found


def cholesky(x: Any, /, *, upper: bool = False) -> Tensor:
    """The triangle L with ``L L^T = x``. In NumPy."""
    return _hosted("cholesky", partial(np.linalg.cholesky, upper=upper), x)[0]


def det(x: Any, /) -> Tensor:
    """The determinant. In NumPy."""
    return _hosted("det", np.linalg.det, x)[0]


def eigh(x: Any, /) -> Eigen:
    """Eigenvalues and eigenvectors of a symmetric matrix. In NumPy."""
    return Eigen(*_hosted("eigh", np.linalg.eigh, x))


def eigvalsh(x: Any, /) -> Tensor:
    """Eigenvalues of a symmetric matrix. In NumPy."""
    return _hosted("eigvalsh", np.linalg.eigvalsh, x)[0]


def inv(x: Any, /) -> Tensor:
    """The inverse. In NumPy."""
    return _hosted("inv", np.linalg.inv, x)[0]


def matrix_rank(x: Any, /, *, rtol: Any = None) -> Tensor:
    """How many singular values are above ``rtol`` times the largest. In NumPy."""
    return _hosted("matrix_rank", partial(np.linalg.matrix_rank, rtol=_number(rtol)), x)[0]


def pinv(x: Any, /, *, rtol: Any = None) -> Tensor:
    """The pseudoinverse. In NumPy."""
    return _hosted("pinv", partial(np.linalg.pinv, rtol=_number(rtol)), x)[0]


def qr(x: Any, /, *, mode: str = "reduced") -> QR:
    """Orthonormal columns times an upper triangle. In NumPy."""
    return QR(*_hosted("qr", partial(np.linalg.qr, mode=mode), x))


def slogdet(x: Any, /) -> SLogDet:
    """The sign of the determinant, and the logarithm of its magnitude. In NumPy."""
    return SLogDet(*_hosted("slogdet", np.linalg.slogdet, x))


def solve(x1: Any, x2: Any, /) -> Tensor:
    """The solution of ``x1 y = x2``, a vector or a stack of matrices. In NumPy."""
    return _hosted("solve", np.linalg.solve, x1, x2)[0]


def svd(x: Any, /, *, full_matrices: bool = True) -> SVD:
    """``x = U diag(S) Vh``. In NumPy."""
    return SVD(*_hosted("svd", partial(np.linalg.svd, full_matrices=full_matrices), x))


def svdvals(x: Any, /) -> Tensor:
    """Singular values, the largest first. In NumPy."""
    return _hosted("svdvals", np.linalg.svdvals, x)[0]


def _number(rtol: Any) -> Any:
    return rtol.numpy() if isinstance(rtol, Tensor) else rtol


@in_float32
def cross(x1: Any, x2: Any, /, *, axis: int = -1) -> Tensor:
    """``out[i] = x1[i + 1] x2[i + 2] - x1[i + 2] x2[i + 1]``, i modulo 3."""
    if any(x.shape[axis] != 3 for x in (x1, x2)):
        raise ShapeError("cross of vectors that have not 3 elements", origin=Origin.of_caller())
    first, second = (O.roll(x, -1, axis=axis) for x in (x1, x2))
    third, fourth = (O.roll(x, -2, axis=axis) for x in (x1, x2))
    return first * fourth - third * second


def diagonal(x: Any, /, *, offset: int = 0) -> Any:
    """``out[.., i] = x[.., i, i + offset]``"""
    rows, columns = x.shape[-2:]
    count = max(0, min(rows, columns - offset) if offset >= 0 else min(rows + offset, columns))
    flat = O.reshape(x, (*x.shape[:-2], rows * columns))
    start = offset if offset >= 0 else -offset * columns
    return flat[..., start : start + count * (columns + 1) : columns + 1]


def trace(x: Any, /, *, offset: int = 0, dtype: Any = None) -> Tensor:
    """The sum of a diagonal."""
    found: Tensor = O.sum(diagonal(x, offset=offset), axis=-1, dtype=dtype)
    return found


@in_float32
def vector_norm(x: Any, /, *, axis: Axes = None, keepdims: bool = False, ord: Any = 2) -> Any:
    """``sum(|x|^ord)^(1 / ord)``; the largest, smallest, or the number of what is not 0."""
    size = M.abs(x)
    if abs(ord) == math.inf:
        return (O.max if ord > 0 else O.min)(size, axis=axis, keepdims=keepdims)
    if ord == 0:
        return O.sum(O.astype(M.not_equal(x, 0), x.dtype), axis=axis, keepdims=keepdims)
    powers = M.square(size) if ord == 2 else M.pow(size, ord)
    total = O.sum(powers, axis=axis, keepdims=keepdims)
    return M.sqrt(total) if ord == 2 else M.pow(total, 1 / ord)


@in_float32
def matrix_norm(x: Any, /, *, keepdims: bool = False, ord: Any = "fro") -> Any:
    """Of the last two axes: "fro", 1, -1, inf and -inf; 2, -2 and "nuc" by singular values."""
    if ord == "fro":
        return vector_norm(x, axis=(-2, -1), keepdims=keepdims)
    if ord in (2, -2, "nuc"):
        values = svdvals(x)
        found = {2: O.max, -2: O.min, "nuc": O.sum}[ord](values, axis=-1)
        return O.expand_dims(found, (-2, -1)) if keepdims else found
    over, along = (-2, -1) if abs(ord) == 1 else (-1, -2)
    sums = O.sum(M.abs(x), axis=over, keepdims=True)
    best = (O.max if ord > 0 else O.min)(sums, axis=along, keepdims=True)
    return best if keepdims else O.squeeze(best, axis=(-2, -1))


def matrix_power(x: Any, n: int, /) -> Tensor:
    """``x @ x @ ..``, by squaring; of negative `n` the inverse (in NumPy) to that power."""
    base = inv(x) if n < 0 else x
    found: Tensor = eye(x.shape[-1], dtype=x.dtype)
    for bit in bin(abs(n))[:1:-1]:
        found = O.matmul(found, base) if bit == "1" else found
        base = O.matmul(base, base)
    return O.broadcast_to(found, x.shape)
