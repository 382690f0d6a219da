"""Kernels that compute in bfloat16 or float16 itself, or hold floats of 8 bits."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def larger(a, b):
    return tl.where(a > b, a, b)


@triton.jit
def times(a, b):
    return a * b


@triton.jit
def chosen_kernel(X, W, OUT, n, KIND: tl.constexpr, OTHER: tl.constexpr, BLOCK: tl.constexpr):
    """What is compared is never cast; what is chosen is."""
    at = tl.arange(0, BLOCK)
    mask = at < n
    x = tl.load(X + at, mask=mask, other=-1.0)
    w = tl.load(W + at, mask=mask, other=2.0)
    big, small = x.to(tl.float32), w.to(tl.float32)
    if KIND == "relu":
        y = tl.where(x > 0, big, 0.0)
    elif KIND == "constant":
        y = tl.where(x < 0.1, big * big, 0.0)
    elif KIND == "not above":
        y = tl.where(x <= w, big * small, small)
    elif KIND == "maximum":
        y = tl.sin(tl.maximum(x, w).to(tl.float32))
    elif KIND == "minimum of a number":
        y = tl.sin(tl.minimum(x, 0.1).to(tl.float32))
    elif KIND == "clamp":
        y = tl.sin(tl.clamp(x, -0.1, 0.5).to(tl.float32))
    elif KIND == "absolute":
        y = tl.sin(tl.abs(x).to(tl.float32)) * small
    elif KIND == "product":
        y = tl.sin((x * w).to(tl.float32))
    elif KIND == "sum":
        y = tl.sin((x + w - 0.5).to(tl.float32))
    elif KIND == "minus":
        y = tl.sin((-x).to(tl.float32)) * small
    elif KIND == "fma":
        y = tl.sin(tl.fma(x, w, x).to(tl.float32))
    elif KIND == "whole numbers":
        y = tl.sin((at.to(X.dtype.element_ty) * x).to(tl.float32) / 32)
    elif KIND == "largest":
        y = tl.sin(tl.max(x, 0).to(tl.float32)) * small
    elif KIND == "place of the largest":
        y, place = tl.max(x, 0, return_indices=True)
        y = tl.sin(y.to(tl.float32)) * tl.where(at == place, small, 0.5)
    elif KIND == "larger of all":
        y = tl.sin(tl.reduce(x, 0, larger).to(tl.float32)) * small
    elif KIND == "sums":
        y = tl.sin(tl.cumsum(x, 0).to(tl.float32) * 0.1)
    elif KIND == "whole sum":
        y = tl.sin(tl.sum(x, 0).to(tl.float32) * 0.1) * small
    elif KIND == "products":
        y = tl.associative_scan(x, 0, times).to(tl.float32)
    elif KIND == "sort":
        y = tl.sort(x).to(tl.float32) * small
    elif KIND == "other half":
        y = tl.sin(x.to(OTHER).to(tl.float32) * small)
    tl.store(OUT + at, y, mask=mask)


@triton.jit
def product_kernel(A, B, OUT, D: tl.constexpr):
    at = tl.arange(0, D)
    places = at[:, None] * D + at[None, :]
    tl.store(OUT + places, tl.dot(tl.load(A + places), tl.load(B + places)))


@triton.jit
def weighted_kernel(X, W, OUT, BLOCK: tl.constexpr):
    """By weights of 8 bits."""
    at = tl.arange(0, BLOCK)
    x, w = tl.load(X + at), tl.load(W + at).to(tl.float32)
    tl.store(OUT + at, tl.sin(x * w))


@triton.jit
def rounded_kernel(X, OUT, KIND: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    """Through 8 bits, and back."""
    at = tl.arange(0, BLOCK)
    x = tl.load(X + at).to(KIND)
    if WIDE:
        x = x.to(tl.float32)
    tl.store(OUT + at, x)
