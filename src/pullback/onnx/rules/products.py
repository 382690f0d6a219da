"""Products of matrices."""

from __future__ import annotations

from typing import Any

import pullback as pb
from pullback.onnx.rules.table import rule, same

same((1, 9, 13), {"MatMul": pb.matmul})
same((11, 22), {"Det": pb.linalg.det})


@rule("Gemm", 7, 9, 11, 13)
def gemm(
    a: Any, b: Any, c: Any = None, *, alpha: float, beta: float, transA: int, transB: int
) -> Any:
    """``alpha A B + beta C``"""
    a = pb.matrix_transpose(a) if transA else a
    b = pb.matrix_transpose(b) if transB else b
    y = pb.matmul(a, b)
    if alpha != 1.0:
        y = pb.astype(y * alpha, a.dtype)
    if c is None:
        return y
    return y + (c if beta == 1.0 else pb.astype(c * beta, a.dtype))


@rule("Einsum", 12, 28)
def einsum(*x: Any, equation: str) -> Any:
    return pb.einsum(equation.replace(" ", ""), *x)
