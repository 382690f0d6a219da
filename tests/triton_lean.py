"""Kernels whose derivatives are as short as one writes them by hand: one function of elements."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _stored(X, OUT, n, at, y):
    tl.store(OUT + at, y, mask=at < n)


@triton.jit
def _loaded(X, n, at):
    return tl.load(X + at, mask=at < n, other=0.0)


@triton.jit
def sigmoid_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    _stored(X, OUT, n, at, 1 / (1 + tl.exp(-_loaded(X, n, at))))


@triton.jit
def relu_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    _stored(X, OUT, n, at, tl.maximum(_loaded(X, n, at), 0.0))


@triton.jit
def relu6_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    _stored(X, OUT, n, at, tl.minimum(tl.maximum(_loaded(X, n, at), 0.0), 6.0))


@triton.jit
def leaky_relu_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = _loaded(X, n, at)
    _stored(X, OUT, n, at, tl.maximum(x, 0.0) + 0.01 * tl.minimum(x, 0.0))


@triton.jit
def elu_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = _loaded(X, n, at)
    _stored(X, OUT, n, at, tl.where(x > 0, x, tl.exp(x) - 1))


@triton.jit
def safe_sqrt_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = _loaded(X, n, at)
    _stored(X, OUT, n, at, tl.where(x > 0, tl.sqrt(x), 0.0) - x)


@triton.jit
def larger_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = _loaded(X, n, at)
    _stored(X, OUT, n, at, tl.maximum(-x, tl.sin(x)) - tl.where(x > 0, -x, 3 * x))


@triton.jit
def stairs_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = _loaded(X, n, at)
    _stored(X, OUT, n, at, tl.maximum(x, 0.0) + tl.maximum(x - 1, 0.0))
