"""The extension `linalg`: `pullback.linalg` under the standard's names, complex matrices too."""

from pullback import linalg as _linalg
from pullback.array_api.complex_linalg import both as _both
from pullback.linalg import QR, SVD, Eigen, SLogDet, matmul, matrix_transpose, tensordot, vecdot
from pullback.tensor.face.dialect import shown as _shown

cholesky = _both(_linalg.cholesky)
cross = _linalg.cross
det = _both(_linalg.det)
diagonal = _both(_linalg.diagonal)
eigh = _both(_linalg.eigh)
eigvalsh = _both(_linalg.eigvalsh)
inv = _both(_linalg.inv)
matrix_norm = _both(_linalg.matrix_norm)
matrix_power = _both(_linalg.matrix_power)
matrix_rank = _both(_linalg.matrix_rank)
outer = _both(_linalg.outer)
pinv = _both(_linalg.pinv)
qr = _both(_linalg.qr)
slogdet = _both(_linalg.slogdet)
solve = _both(_linalg.solve)
svd = _both(_linalg.svd)
svdvals = _both(_linalg.svdvals)
trace = _both(_linalg.trace)
vector_norm = _both(_linalg.vector_norm)

__all__ = [
    "QR", "SVD", "Eigen", "SLogDet", "cholesky", "cross", "det", "diagonal", "eigh", "eigvalsh",
    "inv", "matmul", "matrix_norm", "matrix_power", "matrix_rank", "matrix_transpose", "outer",
    "pinv", "qr", "slogdet", "solve", "svd", "svdvals", "tensordot", "trace", "vecdot",
    "vector_norm",
]  # fmt: skip
__dir__ = _shown(__all__)
