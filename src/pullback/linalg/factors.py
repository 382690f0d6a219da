"""Factors of square matrices and what is solved with them, with derivatives.

    A = L L^T:  dL = L F(L^-1 dA L^-T), F the lower triangle with half of the diagonal
    A X = B:    dX = A^-1 (dB - dA X)
    det A:      d det = <cof A, dA>, cof A = det(A) A^-T
Source: Murray, Differentiation of the Cholesky decomposition, 2016; Giles, An extended collection
of matrix derivative results, 2008.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import numpy as np

from pullback.errors import ShapeError, SingularError
from pullback.linalg import triangles as T
from pullback.linalg.operation import (
    FIRST,
    SECOND,
    Found,
    Operation,
    Price,
    Tensors,
    back,
    has_value,
    matrix,
    numbers,
    size,
    written,
)
from pullback.linalg.rotations import svd
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.library import maths as M
from pullback.tensor.library import ops as O
from pullback.tensor.library.creation import eye
from pullback.tensor.library.scattering import scatter_add
from pullback.tensor.record.trace import current, written_out
from pullback.tensor.shaped import shaped
from pullback.tensor.values.elementwise import broadcast_shapes, show


class SLogDet(NamedTuple):
    """The sign of a determinant, and the logarithm of its magnitude.

    Example:
        >>> pb.linalg.slogdet(pb.eye(2)).sign
        Tensor(1., dtype=float32)
    """

    sign: Tensor
    logabsdet: Tensor


class LU(NamedTuple):
    """``P @ L @ U`` is the matrix: a permutation, a lower triangle of ones, an upper triangle.

    Example:
        >>> pb.linalg.lu(pb.eye(2)).L.shape
        (2, 2)
    """

    P: Tensor
    L: Tensor
    U: Tensor


# --- cholesky ------------------------------------------------------------------------------------


def half_lower(x: Tensor) -> Tensor:
    """The lower triangle with half of the diagonal."""
    return (O.tril(x) + O.tril(x, k=-1)) * 0.5


def _cholesky_pull(inputs: Tensors, outputs: Tensors, heads: Tensors) -> Found:
    """``L^-T F(L^T dL) L^-1``"""
    (factor,) = outputs
    inner = half_lower(O.matmul(factor.mT, heads[0]))
    left = _upper(factor.mT, inner)
    return [_upper(factor.mT, left.mT).mT]


def _cholesky_push(inputs: Tensors, outputs: Tensors, tangents: Tensors) -> Tensors:
    (factor,) = outputs
    left = LOWER(factor, tangents[0])[0]
    return [O.matmul(factor, half_lower(LOWER(factor, left.mT)[0].mT))]


CHOLESKY = Operation(
    "cholesky",
    np.linalg.cholesky,
    T.cholesky,
    _cholesky_pull,
    _cholesky_push,
    FIRST,
    price=Price(12, 40),
)


@shaped("a[*b, n, n] -> [*b, n, n]")
def cholesky(a: Tensor, *, upper: bool = False, method: str = "auto") -> Tensor:
    """The lower triangle L with ``L L^T = a``, or with `upper` its transpose.

    `a` is taken as ``(a + a^T) / 2``. Raises: SingularError E352 where it is not positive definite;
    in a program that gives NaN.

    Example:
        >>> pb.linalg.cholesky(pb.tensor([[4.0, 2.0], [2.0, 5.0]])).tolist()
        [[2.0, 0.0], [1.0, 2.0]]
    """
    own = matrix(a)
    (lower,) = CHOLESKY(symmetric(own), method=method)
    return back(lower.mT if upper else lower, a.dtype)


def symmetric(a: Tensor) -> Tensor:
    """``(a + a^T) / 2``"""
    return (a + a.mT) * 0.5


# --- triangular systems --------------------------------------------------------------------------


def _lower_pull(inputs: Tensors, outputs: Tensors, heads: Tensors) -> Found:
    a, _ = inputs
    right = _upper(a.mT, heads[0])
    return [-O.tril(O.matmul(right, outputs[0].mT)), right]


def _lower_push(inputs: Tensors, outputs: Tensors, tangents: Tensors) -> Tensors:
    a, _ = inputs
    return LOWER(a, tangents[1] - O.matmul(O.tril(tangents[0]), outputs[0]))


class _Lower(Operation):
    """``tril(a)^-1 b``; of a known `a` and a `b` to come, outside of a program, by the inverse."""

    def __call__(self, *inputs: Tensor, method: str = "auto") -> tuple[Tensor, ...]:
        a, b = inputs
        if current() is None and has_value(a) and not has_value(b):
            unit = O.broadcast_to(eye(size(a.shape[-1]), dtype=a.dtype), a.shape)
            return (O.matmul(super().__call__(a, unit, method=method)[0], b),)
        return super().__call__(a, b, method=method)


LOWER = _Lower("solve_triangular", None, T.solve_lower, _lower_pull, _lower_push)


def _upper(a: Tensor, b: Tensor, method: str = "auto") -> Tensor:
    """``triu(a)^-1 b``: backwards it is a lower triangle."""
    flipped = LOWER(O.flip(a, axis=(-2, -1)), O.flip(b, axis=-2), method=method)[0]
    return O.flip(flipped, axis=-2)


@shaped("a[*b, n, n], b[*b, _, _]")
def solve_triangular(
    a: Tensor,
    b: Tensor,
    *,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
    method: str = "auto",
) -> Tensor:
    """``a X = b``, or with ``left=False`` ``X a = b``; only one triangle of `a` is read.

    A diagonal with a 0 gives infinities and NaN, as in PyTorch.

    Example:
        >>> pb.linalg.solve_triangular(pb.tensor([[2.0, 0.0], [2.0, 1.0]]), pb.ones((2, 1)),
        ... upper=False).tolist()
        [[0.5], [0.0]]
    """
    own, given = _same_type(matrix(a), matrix(b))
    if not left:
        own, given, upper = own.mT, given.mT, not upper
    if unitriangular:
        side = O.triu(own, k=1) if upper else O.tril(own, k=-1)
        own = side + eye(size(own.shape[-1]), dtype=own.dtype)
    if own.shape[-1] != given.shape[-2]:
        raise ShapeError(
            f"solve_triangular of {show(a.shape)} with {show(b.shape)}, left={left}", code="E175"
        )
    own, given = together(own, given)
    solution = _upper(own, given, method) if upper else LOWER(own, given, method=method)[0]
    return back(solution if left else solution.mT, O.result_type(a, b))


def together(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Matrices with batches of one shape."""
    lead = broadcast_shapes([a.shape[:-2], b.shape[:-2]])
    return O.broadcast_to(a, (*lead, *a.shape[-2:])), O.broadcast_to(b, (*lead, *b.shape[-2:]))


def _same_type(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    kind = O.result_type(a, b)
    return a.astype(kind), b.astype(kind)


# --- LU ------------------------------------------------------------------------------------------


FACTORS = Operation("lu", None, T.lu)
Four = tuple[Tensor, Tensor, Tensor, Tensor]


def _solved(a: Tensor, factors: Tensor, order: Tensor, b: Tensor) -> tuple[Tensor]:
    """``U^-1 L^-1 b[order]``"""
    rows = O.take_along_axis(b, O.broadcast_to(O.expand_dims(order, -1), b.shape), axis=-2)
    return (_upper(factors, LOWER(_unit(factors), rows)[0]),)


def _solved_across(a: Tensor, factors: Tensor, order: Tensor, b: Tensor) -> tuple[Tensor]:
    """Of ``a^T x = b``: ``x[order] = L^-T U^-T b``"""
    rows = _upper(_unit(factors).mT, LOWER(factors.mT, b)[0])
    places = O.broadcast_to(O.expand_dims(order, -1), b.shape)
    return (scatter_add(rows * 0.0, places, rows, axis=-2),)


def _unit(factors: Tensor) -> Tensor:
    """L, whose diagonal is not stored."""
    return O.tril(factors, k=-1) + eye(size(factors.shape[-1]), dtype=factors.dtype)


def _with_pull(inputs: Tensors, outputs: Tensors, heads: Tensors) -> Found:
    a, factors, order, _ = inputs
    (right,) = ACROSS(a, factors, order, heads[0])
    return [-O.matmul(right, outputs[0].mT), None, None, right]


def _with_push(inputs: Tensors, outputs: Tensors, tangents: Tensors) -> Tensors:
    a, factors, order, _ = inputs
    return WITH(a, factors, order, tangents[3] - O.matmul(tangents[0], outputs[0]))


def _across_pull(inputs: Tensors, outputs: Tensors, heads: Tensors) -> Found:
    a, factors, order, _ = inputs
    (right,) = WITH(a, factors, order, heads[0])
    return [-O.matmul(outputs[0], right.mT), None, None, right]


def _across_push(inputs: Tensors, outputs: Tensors, tangents: Tensors) -> Tensors:
    a, factors, order, _ = inputs
    return ACROSS(a, factors, order, tangents[3] - O.matmul(tangents[0].mT, outputs[0]))


WITH = Operation("solve", None, _solved, _with_pull, _with_push)
ACROSS = Operation("solve", None, _solved_across, _across_pull, _across_push)


def _solve_pull(inputs: Tensors, outputs: Tensors, heads: Tensors) -> Found:
    right = solved(inputs[0].mT, heads[0])
    return [-O.matmul(right, outputs[0].mT), right]


def _solve_push(inputs: Tensors, outputs: Tensors, tangents: Tensors) -> Tensors:
    return [solved(inputs[0], tangents[1] - O.matmul(tangents[0], outputs[0]))]


def _generated_solve(a: Tensor, b: Tensor) -> tuple[Tensor]:
    factors, order, _ = FACTORS(O.stop_gradient(a))
    (solution,) = WITH(a, factors, order, b)
    return (solution,)


SOLVE = Operation(
    "solve", np.linalg.solve, _generated_solve, _solve_pull, _solve_push, SECOND, price=Price(8, 20)
)


def solved(a: Tensor, b: Tensor, method: str = "auto") -> Tensor:
    """``a^-1 b`` of matrices whose batches have one shape.

    In a program the factors of `a` are shared with what derivatives solve.
    """
    if written_out():
        factors, order, _ = FACTORS(a)
        return _solved(a, factors, order, b)[0]
    known = current() is None and has_value(a)
    if known and not has_value(b):
        return O.matmul(INV(a, method=method)[0], b)
    if known or method == "host" or current() is None or SOLVE.called((a, b), method):
        return SOLVE(a, b, method=method)[0]
    return _generated_solve(a, b)[0]


@shaped("a[*b, n, n], b[n] or [*b, n, m]")
def solve(a: Tensor, b: Tensor, *, method: str = "auto") -> Tensor:
    """``X`` with ``a X = b``, `b` one vector or a stack of matrices (as in the array API).

    Raises: SingularError E352 for a singular matrix; in a program that gives infinities or NaN.

    Example:
        >>> pb.linalg.solve(pb.tensor([[2.0, 0.0], [0.0, 4.0]]), pb.tensor([2.0, 2.0]))
        Tensor([1. , 0.5], dtype=float32)
    """
    own, given = _same_type(matrix(a), matrix(b))
    vector = len(given.shape) == 1
    given = O.expand_dims(given, -1) if vector else given
    solution = solved(*together(own, given), method)
    solution = O.squeeze(solution, -1) if vector else solution
    return back(solution, O.result_type(a, b))


# --- inverse and determinant ---------------------------------------------------------------------


def _inv_pull(inputs: Tensors, outputs: Tensors, heads: Tensors) -> Found:
    (inverse,) = outputs
    return [-O.matmul(inverse.mT, O.matmul(heads[0], inverse.mT))]


def _inv_push(inputs: Tensors, outputs: Tensors, tangents: Tensors) -> Tensors:
    (inverse,) = outputs
    return [-O.matmul(inverse, O.matmul(tangents[0], inverse))]


def _generated_inv(a: Tensor) -> tuple[Tensor]:
    unit = O.broadcast_to(eye(size(a.shape[-1]), dtype=a.dtype), a.shape)
    factors, order, _ = FACTORS(a)
    return _solved(a, factors, order, unit)


INV = Operation(
    "inv", np.linalg.inv, _generated_inv, _inv_pull, _inv_push, FIRST, price=Price(8, 20)
)


@shaped("a[*b, n, n] -> [*b, n, n]")
def inv(a: Tensor, *, method: str = "auto") -> Tensor:
    """The inverse. Raises: SingularError E352; in a program infinities or NaN.

    Example:
        >>> pb.linalg.inv(pb.tensor([[2.0, 0.0], [0.0, 4.0]])).tolist()
        [[0.5, 0.0], [0.0, 0.25]]
    """
    return back(INV(matrix(a), method=method)[0], a.dtype)


def _diagonal(a: Tensor) -> Tensor:
    """``out[.., i] = a[.., i, i]``"""
    return written("diagonal", a.shape[:-1], lambda *at: a[(*at, at[-1])])


def _generated_det(a: Tensor) -> tuple[Tensor]:
    factors, _, sign = FACTORS(a)
    return (sign * O.prod(_diagonal(factors), axis=-1),)


def _generated_slogdet(a: Tensor) -> tuple[Tensor, Tensor]:
    factors, _, sign = FACTORS(a)
    own = _diagonal(factors)
    return sign * O.prod(M.sign(own), axis=-1), O.sum(M.log(M.abs(own)), axis=-1)


def _generated_cofactors(a: Tensor) -> tuple[Tensor]:
    """``det(A) A^-T``, pivots of 0 replaced by one that is lost in rounding."""
    factors, order, sign = FACTORS(a)
    own = _diagonal(factors)
    least = O.max(M.abs(own), axis=-1, keepdims=True) * float(np.finfo(a.dtype.numpy).eps)
    own = O.where(own == 0.0, O.where(least == 0.0, 1.0, least), own)
    n = size(a.shape[-1])

    def pivots(*at: Any) -> Any:
        return O.where(at[-1] == at[-2], own[tuple(at[:-1])], factors[tuple(at)])

    unit = O.broadcast_to(eye(n, dtype=a.dtype), a.shape)
    turned = _solved_across(a, written("pivots", a.shape, pivots), order, unit)[0]
    whole = sign * O.prod(own, axis=-1)
    return (O.expand_dims(whole, (-2, -1)) * turned,)


def _host_cofactors(a: Any) -> Any:
    """``det(A) A^-T``, whose errors meet near a singular matrix; of one, by singular values."""
    wide = a.astype(np.float64)
    try:
        inverse = np.linalg.inv(wide)
    except np.linalg.LinAlgError:
        return _cofactors_by_values(a)
    whole = np.linalg.det(wide)
    if not np.all(np.isfinite(whole) & (np.abs(whole) >= np.finfo(np.float64).tiny)):
        return _cofactors_by_values(a)
    return (whole[..., None, None] * np.swapaxes(inverse, -1, -2)).astype(a.dtype)


def _cofactors_by_values(a: Any) -> Any:
    """``det(U) det(V) U cof(S) V^T``, exact where one of the singular values S is 0."""
    left, values, right = np.linalg.svd(a)
    n = values.shape[-1]
    rest = np.where(np.eye(n, dtype=bool), 1.0, values[..., None, :]).prod(-1)
    sign = np.linalg.det(left) * np.linalg.det(right)
    return (sign[..., None, None] * (left * rest[..., None, :]) @ right).astype(a.dtype)


def _cofactors_pull(inputs: Tensors, outputs: Tensors, heads: Tensors) -> Found:
    return [ALONG(inputs[0], heads[0])[0]]


def _cofactors_push(inputs: Tensors, outputs: Tensors, tangents: Tensors) -> Tensors:
    return [ALONG(inputs[0], tangents[0])[0]]


def _host_along(a: Any, g: Any) -> Any:
    """``d cof(A) / dA`` along G, by singular values: of singular matrices too.

    ``U M V^T det(U) det(V)``, with ``B = U^T G V`` and p[i, k] the product of all values but two:
    ``M[i, i] = sum over k != i of p[i, k] B[k, k]``, ``M[i, j] = -p[i, j] B[j, i]``.
    """
    left, values, right = np.linalg.svd(a)
    n = values.shape[-1]
    one = np.eye(n, dtype=bool)
    others = np.where(one[:, None] | one, 1.0, values[..., None, None, :]).prod(-1)
    turned = np.swapaxes(left, -1, -2) @ g @ np.swapaxes(right, -1, -2)
    own = np.diagonal(turned, axis1=-2, axis2=-1)
    across = np.where(one, 0.0, others)
    inner = one * (across @ own[..., None]) - across * np.swapaxes(turned, -1, -2)
    sign = np.linalg.det(left) * np.linalg.det(right)
    return (sign[..., None, None] * left @ inner @ right).astype(a.dtype)


def _generated_along(a: Tensor, g: Tensor) -> tuple[Tensor]:
    left, values, right = svd(a)
    n = size(a.shape[-1])

    def other(*at: Any) -> Any:
        """The values but i and j; their product is that of the others."""
        *lead, i, j, k = at
        return O.where((k == i) | (k == j), 1.0, values[(*lead, k)])

    others = O.prod(written("others", (*a.shape, n), other), axis=-1)
    turned = O.matmul(left.mT, O.matmul(g, right.mT))
    across = others * (1.0 - eye(n, dtype=a.dtype))
    own = O.matmul(across, O.expand_dims(_diagonal(turned), -1))
    inner = own * eye(n, dtype=a.dtype) - across * turned.mT
    sign = O.expand_dims(_generated_det(O.matmul(left, right))[0], (-2, -1))
    return (sign * O.matmul(left, O.matmul(inner, right)),)


def _third(a: Tensor, g: Tensor, k: Tensor) -> Tensor:
    """The third derivative of det along G and K, of a regular matrix; P is its inverse.

    ``det A ((g k - <PG, PK>) P - k PGP - g PKP + PGPKP + PKPGP)^T``, g and k the traces of PG, PK.
    """
    inverse = REGULAR(a)[0]
    left, right = O.matmul(inverse, g), O.matmul(inverse, k)
    first = O.expand_dims(O.sum(_diagonal(left), axis=-1), (-2, -1))
    second = O.expand_dims(O.sum(_diagonal(right), axis=-1), (-2, -1))
    both = O.sum(left * right.mT, axis=(-2, -1), keepdims=True)
    inner = O.matmul(left, right) + O.matmul(right, left) - second * left - first * right
    whole = (first * second - both) * inverse + O.matmul(inner, inverse)
    third: Tensor = O.expand_dims(DET(a)[0], (-2, -1)) * whole.mT
    return third


def _along_pull(inputs: Tensors, outputs: Tensors, heads: Tensors) -> Found:
    (a, g), (head,) = inputs, heads
    return [_third(a, g, head), ALONG(a, head)[0]]


def _along_push(inputs: Tensors, outputs: Tensors, tangents: Tensors) -> Tensors:
    (a, g), (along, other) = inputs, tangents
    return [_third(a, g, along) + ALONG(a, other)[0]]


def _host_regular(a: Any) -> Any:
    """The inverse. Raises: SingularError where the matrix has not full rank, rounding left out."""
    if a.size and (np.linalg.matrix_rank(a) < a.shape[-1]).any():
        raise SingularError("the third derivative of det at a singular matrix", code="E352")
    return np.linalg.inv(a)


def _det_pull(inputs: Tensors, outputs: Tensors, heads: Tensors) -> Found:
    return [O.expand_dims(heads[0], (-2, -1)) * COFACTORS(inputs[0])[0]]


def _det_push(inputs: Tensors, outputs: Tensors, tangents: Tensors) -> Tensors:
    return [O.sum(COFACTORS(inputs[0])[0] * tangents[0], axis=(-2, -1))]


def _slogdet_pull(inputs: Tensors, outputs: Tensors, heads: Tensors) -> Found:
    return [O.expand_dims(heads[1], (-2, -1)) * INV(inputs[0])[0].mT]


def _slogdet_push(inputs: Tensors, outputs: Tensors, tangents: Tensors) -> Tensors:
    share = O.sum(INV(inputs[0])[0].mT * tangents[0], axis=(-2, -1))
    return [share * 0.0, share]


COFACTORS = Operation(
    "cofactors",
    _host_cofactors,
    _generated_cofactors,
    _cofactors_pull,
    _cofactors_push,
    FIRST,
    price=Price(8, 20),
)
DET = Operation(
    "det", np.linalg.det, _generated_det, _det_pull, _det_push, numbers, price=Price(8, 20)
)
ALONG = Operation("cofactors", _host_along, _generated_along, _along_pull, _along_push, FIRST)
REGULAR = Operation("det", _host_regular, INV.generated, INV.pull, INV.push, FIRST)
SLOGDET = Operation(
    "slogdet",
    lambda a: tuple(np.linalg.slogdet(a)),
    _generated_slogdet,
    _slogdet_pull,
    _slogdet_push,
    partial(numbers, count=2),
    price=Price(8, 20),
)


def _written_det(a: Tensor) -> Tensor:
    """The determinant of up to three rows, as the sum that it is."""
    n = size(a.shape[-1])

    def body(*b: Any) -> Any:
        m = [[a[(*b, i, j)] for j in range(n)] for i in range(n)]
        if n == 1:
            return m[0][0]
        if n == 2:
            return m[0][0] * m[1][1] - m[0][1] * m[1][0]
        turns = [(0, 1, 2), (1, 2, 0), (2, 0, 1)]
        parts = [m[0][i] * (m[1][j] * m[2][k] - m[1][k] * m[2][j]) for i, j, k in turns]
        return parts[0] + parts[1] + parts[2]

    return written("det", a.shape[:-2], body)


@shaped("a[*b, n, n] -> [*b]")
def det(a: Tensor, *, method: str = "auto") -> Tensor:
    """The determinant.

    Up to three rows are written out, with derivatives of every order at singular matrices too; of
    larger ones there are two, the third is of regular matrices.

    Raises:
        SingularError: E352, its third derivative at a singular matrix outside of programs.

    Example:
        >>> pb.linalg.det(pb.tensor([[4.0, 2.0], [2.0, 5.0]]))
        Tensor(16., dtype=float32)
    """
    own = matrix(a)
    if 1 <= size(own.shape[-1]) <= 3 and method == "auto":
        return back(_written_det(own), a.dtype)
    return back(DET(own, method=method)[0], a.dtype)


@shaped("a[*b, n, n] -> [*b], [*b]")
def slogdet(a: Tensor, *, method: str = "auto") -> SLogDet:
    """The sign of the determinant, and the logarithm of its magnitude; singular: 0 and -inf.

    Example:
        >>> pb.linalg.slogdet(pb.tensor([[1.0, 0.0], [0.0, -1.0]]))
        SLogDet(sign=Tensor(-1., dtype=float32), logabsdet=Tensor(0., dtype=float32))
    """
    parts = SLOGDET(matrix(a), method=method)
    return SLogDet(*(back(f, a.dtype) for f in parts))


@shaped("a[*b, n, n] -> [*b, n, n], [*b, n, n], [*b, n, n]")
def lu(a: Tensor) -> LU:
    """``P L U = a`` with the largest pivots. P has no gradient; it is a program everywhere.

    Example:
        >>> pb.linalg.lu(pb.tensor([[2.0, 1.0], [4.0, 5.0]])).U.tolist()
        [[4.0, 5.0], [0.0, -1.5]]
    """
    own = matrix(a)
    factors, order, _ = FACTORS(own if written_out() else O.stop_gradient(own))
    permuted = O.take_along_axis(own, O.broadcast_to(O.expand_dims(order, -1), own.shape), axis=-2)
    lower, upper = PLU(permuted, factors)
    n = size(own.shape[-1])

    def place(*at: Any) -> Any:
        return O.where(order[(*at[:-2], at[-1])] == at[-2], 1.0, 0.0)

    whole = written("permutation", own.shape, place).astype(own.dtype) if n else own
    return LU(*(back(x, a.dtype) for x in (whole, lower, upper)))


def _parts(a: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
    return _unit(factors), O.triu(factors)


def _parts_pull(inputs: Tensors, outputs: Tensors, heads: Tensors) -> Found:
    """``L^-T (tril(L^T dL, -1) + triu(dU U^T)) U^-T``"""
    lower, upper = outputs
    inner = O.tril(O.matmul(lower.mT, heads[0]), k=-1) + O.triu(O.matmul(heads[1], upper.mT))
    return [_upper(lower.mT, _upper(upper, inner.mT).mT), None]


def _parts_push(inputs: Tensors, outputs: Tensors, tangents: Tensors) -> Tensors:
    lower, upper = outputs
    inner = LOWER(upper.mT, LOWER(lower, tangents[0])[0].mT)[0].mT
    return [O.matmul(lower, O.tril(inner, k=-1)), O.matmul(O.triu(inner), upper)]


PLU = Operation("lu", None, _parts, _parts_pull, _parts_push)
