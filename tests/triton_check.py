"""Kernels of three kinds for certificates: of elements, of rows, a product."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rows_kernel(X, W, OUT, row, n, BLOCK: tl.constexpr):
    part, at = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(X + part * row + at, mask=at < n, other=0.0)
    w = tl.load(W + at, mask=at < n, other=0.0)
    tl.store(OUT + part * 12 + at, tl.sin(x) * w, mask=at < n)


@triton.jit
def softmax_kernel(X, OUT, row, n, BLOCK: tl.constexpr):
    part, at = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(X + part * row + at, mask=at < n, other=-float("inf"))
    powers = tl.exp(x - tl.max(x, 0))
    tl.store(OUT + part * 12 + at, powers / tl.sum(powers, 0), mask=at < n)


@triton.jit
def product_kernel(A, B, OUT, k, D: tl.constexpr):
    row, column = tl.arange(0, D)[:, None], tl.arange(0, D)[None, :]
    a = tl.load(A + row * D + column, mask=column < k, other=0.0)
    b = tl.load(B + row * D + column, mask=row < k, other=0.0)
    tl.store(OUT + row * D + column, tl.dot(a, b, input_precision="ieee"))
