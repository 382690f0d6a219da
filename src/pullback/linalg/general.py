"""Eigenvalues of matrices that are not symmetric: complex, by LAPACK alone, with derivatives.

    A V = V diag(w):  dw = diag(V^-1 dA V),  dV = X - V diag(Re(V^H X)),  X = V ((V^-1 dA V) / E)

``E[i, j] = w[j] - w[i]``, nothing on the diagonal; columns of V have length 1, and a phase that is
LAPACK's. What depends on it has no derivative, as where two eigenvalues are equal.

Source: Boeddeker, Hanebrink, Drude, Heymann, Haeb-Umbach, On the computation of complex-valued
gradients with application to statistically optimum beamforming, 2017.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np

from pullback.errors import Origin, UnsupportedError
from pullback.linalg.factors import solved
from pullback.linalg.operation import (
    Found,
    Operation,
    Price,
    Tensors,
    matrix,
    nothing,
    size,
    written,
)
from pullback.linalg.products import diagonal
from pullback.tensor.complex.pairs import Complex
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.forms.hosted import Kind
from pullback.tensor.library import ops as O
from pullback.tensor.shaped import shaped


class ComplexEigen(NamedTuple):
    """Complex eigenvalues, and eigenvectors of length 1 as columns.

    Example:
        >>> pb.linalg.eig(pb.eye(2)).eigenvalues.real
        Tensor([1., 1.], dtype=float32)
    """

    eigenvalues: Complex
    eigenvectors: Complex


def _host(a: Any) -> tuple[Any, ...]:
    """NumPy gives real numbers where no imaginary part is left."""
    values, vectors = np.linalg.eig(a)
    return tuple(
        np.ascontiguousarray(p) for x in (values, vectors) for p in (np.real(x), np.imag(x))
    )


def _nobody(a: Tensor) -> NoReturn:
    what = "eig by LAPACK, which there is nobody to call for: it has no generated form"
    raise UnsupportedError(what, origin=Origin.of_caller(), help="eigh", code="E356")


def _kinds(kinds: Sequence[Kind]) -> Sequence[Kind]:
    shape, kind = kinds[0]
    return [(shape[:-1], kind)] * 2 + [(shape, kind)] * 2


def _adjoint(z: Complex) -> Complex:
    """``z^H``"""
    return z.mT.conj()


def _divided(a: Complex, b: Complex) -> Complex:
    """``X`` with ``a X = b``: ``[[x, -y], [y, x]]`` is the same matrix, of real numbers."""
    rows = O.concat([a.real, -a.imag], axis=-1), O.concat([a.imag, a.real], axis=-1)
    both = solved(O.concat(rows, axis=-2), O.concat([b.real, b.imag], axis=-2))
    n = size(a.shape[-1])
    return Complex(both[..., :n, :], both[..., n:, :])


def _off(z: Complex, values: Complex, conjugate: bool) -> Complex:
    """``z[i, j] / (w[j] - w[i])``, or by its conjugate; 0 on the diagonal."""

    def gap(part: Tensor) -> Tensor:
        def body(*at: Any) -> Any:
            *b, i, j = at
            return part[(*b, j)] - part[(*b, i)]

        return written("gap", z.shape, body)

    real, imag = gap(values.real), gap(values.imag)
    imag = -imag if conjugate else imag
    squares = real * real + imag * imag

    def quotient(numerator: Tensor) -> Tensor:
        def body(*at: Any) -> Any:
            return O.where(at[-1] == at[-2], 0.0, numerator[at] / squares[at])

        return written("quotient", z.shape, body)

    parts = z.real * real + z.imag * imag, z.imag * real - z.real * imag
    return Complex(*map(quotient, parts))


def _matrix_of(values: Tensor) -> Tensor:
    """``diag(values)``"""
    shape = (*values.shape, values.shape[-1])
    return written("diag", shape, lambda *at: O.where(at[-1] == at[-2], values[at[:-1]], 0.0))


def _columns(z: Complex, by: Tensor) -> Complex:
    """Columns times real numbers."""
    return z * O.expand_dims(by, -2)


def _pull(inputs: Tensors, outputs: Tensors, heads: Tensors) -> Found:
    """``V^-H (diag(gw) + (V^H gV - V^H V diag(Re(V^H gV))) / E*) V^H``, its real part"""
    values, vectors = Complex(*outputs[:2]), Complex(*outputs[2:])
    turned = _adjoint(vectors)
    inner = Complex(_matrix_of(heads[0]), _matrix_of(heads[1]))
    if not (nothing(heads[2]) and nothing(heads[3])):
        along = turned @ Complex(*heads[2:])
        lengths = _columns(turned @ vectors, diagonal(along.real))
        inner = inner + _off(along - lengths, values, conjugate=True)
    return [_divided(turned, inner @ turned).real]


def _push(inputs: Tensors, outputs: Tensors, tangents: Tensors) -> Tensors:
    values, vectors = Complex(*outputs[:2]), Complex(*outputs[2:])
    inner = _divided(vectors, Complex.of(tangents[0]) @ vectors)
    moved = vectors @ _off(inner, values, conjugate=False)
    lengths = diagonal((_adjoint(vectors) @ moved).real)
    moved = moved - _columns(vectors, lengths)
    return [diagonal(inner.real), diagonal(inner.imag), moved.real, moved.imag]


EIG = Operation("eig", _host, _nobody, _pull, _push, _kinds, price=Price(0, 0))


@shaped("a[*b, n, n] -> [*b, n], [*b, n, n]")
def eig(a: Tensor, *, method: str = "auto") -> ComplexEigen:
    """Eigenvalues of a real matrix, in LAPACK's order, and eigenvectors as columns: ``A V = V w``

    Programs call LAPACK. Derivatives are of what does not depend on the vectors' phases, of
    matrices whose eigenvalues differ. Raises: SingularError where LAPACK finds none.

    Example:
        >>> pb.linalg.eig(pb.tensor([[0.0, 1.0], [-1.0, 0.0]])).eigenvalues.imag
        Tensor([ 1., -1.], dtype=float32)
    """
    parts = EIG(matrix(a), method=method)
    return ComplexEigen(Complex(*parts[:2]), Complex(*parts[2:]))


@shaped("a[*b, n, n] -> [*b, n]")
def eigvals(a: Tensor, *, method: str = "auto") -> Complex:
    """Eigenvalues of a real matrix, complex, in LAPACK's order.

    Example:
        >>> pb.linalg.eigvals(pb.tensor([[0.0, 1.0], [-1.0, 0.0]])).imag
        Tensor([ 1., -1.], dtype=float32)
    """
    return eig(a, method=method).eigenvalues
