"""The extension `linalg`: what `pullback.linalg` has by the standard's names."""

from pullback.linalg import (
    QR,
    SVD,
    Eigen,
    SLogDet,
    cholesky,
    cross,
    det,
    diagonal,
    eigh,
    eigvalsh,
    inv,
    matmul,
    matrix_norm,
    matrix_power,
    matrix_rank,
    matrix_transpose,
    outer,
    pinv,
    qr,
    slogdet,
    solve,
    svd,
    svdvals,
    tensordot,
    trace,
    vecdot,
    vector_norm,
)
from pullback.tensor.dialect import shown as _shown

__all__ = [
    "QR", "SVD", "Eigen", "SLogDet", "cholesky", "cross", "det", "diagonal", "eigh", "eigvalsh",
    "inv", "matmul", "matrix_norm", "matrix_power", "matrix_rank", "matrix_transpose", "outer",
    "pinv", "qr", "slogdet", "solve", "svd", "svdvals", "tensordot", "trace", "vecdot",
    "vector_norm",
]  # fmt: skip
__dir__ = _shown(__all__)
