"""`pb.triton`: derivatives of users' Triton kernels, out of what Triton's own compiler makes."""

from __future__ import annotations

from pullback.tensor.face.dialect import shown as _shown
from pullback.triton.check import check
from pullback.triton.functions import grad
from pullback.triton.operator import op

__all__ = ["check", "grad", "op"]
__dir__ = _shown(__all__)
