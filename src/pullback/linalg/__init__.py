"""Linear algebra, batched over leading axes, with derivatives of every order.

On values factorisations are LAPACK's, through NumPy; inside programs they are loops of
definitions: ``method="generated"`` asks for those everywhere, ``method="host"`` refuses them.
"""

from __future__ import annotations

from pullback.linalg.factors import (
    LU,
    SLogDet,
    cholesky,
    det,
    inv,
    lu,
    slogdet,
    solve,
    solve_triangular,
)
from pullback.linalg.general import ComplexEigen, eig, eigvals
from pullback.linalg.norms import cond, matrix_norm, norm, vector_norm
from pullback.linalg.products import (
    cross,
    diagonal,
    matrix_exp,
    matrix_power,
    multi_dot,
    outer,
    trace,
)
from pullback.linalg.spectral import (
    QR,
    SVD,
    Eigen,
    Lstsq,
    eigh,
    eigvalsh,
    lstsq,
    matrix_rank,
    pinv,
    qr,
    svd,
    svdvals,
)
from pullback.tensor.face.boundary import bounded as _bounded
from pullback.tensor.face.dialect import shown as _shown
from pullback.tensor.face.dialect import unknown as _unknown
from pullback.tensor.library.ops import matmul, matrix_transpose, tensordot, vecdot

__all__ = [
    "LU", "QR", "SVD", "ComplexEigen", "Eigen", "Lstsq", "SLogDet", "cholesky", "cond", "cross",
    "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh", "inv", "lstsq", "lu", "matmul",
    "matrix_exp", "matrix_norm", "matrix_power", "matrix_rank", "matrix_transpose", "multi_dot",
    "norm", "outer", "pinv", "qr", "slogdet", "solve", "solve_triangular", "svd", "svdvals",
    "tensordot", "trace", "vecdot", "vector_norm",
]  # fmt: skip


def __getattr__(name: str) -> object:
    raise _unknown("pullback.linalg", name, __all__)


__dir__ = _shown(__all__)
_bounded(globals(), __all__)
