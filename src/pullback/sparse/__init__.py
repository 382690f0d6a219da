"""Sparse matrices as arrays of values and places, times dense ones, with derivatives.

CSR: row i has the values ``pointers[i] .. pointers[i + 1]``, their columns stand in `indices`. COO:
`rows` and `columns` say where each value stands; what is named several times is added up.
"""

from __future__ import annotations

from pullback.sparse.products import coo_matmul, csr_matmul, csr_rows, csr_transposed_matmul
from pullback.tensor.face.boundary import bounded as _bounded
from pullback.tensor.face.dialect import shown as _shown
from pullback.tensor.face.dialect import unknown as _unknown

__all__ = ["coo_matmul", "csr_matmul", "csr_rows", "csr_transposed_matmul"]


def __getattr__(name: str) -> object:
    raise _unknown("pullback.sparse", name, __all__)


__dir__ = _shown(__all__)
_bounded(globals(), __all__)
