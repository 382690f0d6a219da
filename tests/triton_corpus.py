"""Kernels of users: those of Triton's tutorials, written anew, and one for each construct."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gelu(x):
    return 0.5 * x * (1 + tl.math.erf(x * 0.70710678118))


@triton.jit
def tanh(x):
    return 1 - 2 / (tl.exp(2 * x) + 1)


@triton.jit
def silu(x):
    return x * tl.sigmoid(x)


@triton.jit
def softplus(x):
    return tl.maximum(x, 0.0) + tl.log(1 + tl.exp(-tl.abs(x)))


@triton.jit
def mish(x):
    return x * tanh(tl.log(1 + tl.exp(x)))


@triton.jit
def elu(x):
    return tl.where(x > 0, x, tl.exp(x) - 1)


@triton.jit
def relu6(x):
    return tl.minimum(tl.maximum(x, 0.0), 6.0)


@triton.jit
def softsign(x):
    return x / (1 + tl.abs(x))


@triton.jit
def leaky_relu(x):
    return tl.where(x >= 0, x, 0.01 * x)


@triton.jit
def hardswish(x):
    return x * tl.clamp(x + 3.0, 0.0, 6.0) / 6


@triton.jit
def add_kernel(X, Y, OUT, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(OUT + at, tl.load(X + at, mask=mask) + tl.load(Y + at, mask=mask), mask=mask)


@triton.jit
def softmax_kernel(X, OUT, stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    x = tl.load(X + row * stride + at, mask=at < columns, other=-float("inf"))
    top = tl.exp(x - tl.max(x, 0))
    tl.store(OUT + row * columns + at, top / tl.sum(top, 0), mask=at < columns)


@triton.jit
def matmul_kernel(
    A, B, C, M, N, K, sam, sak, sbk, sbn,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ACTIVATE: tl.constexpr,
):  # fmt: skip
    program, columns = tl.program_id(0), tl.cdiv(N, BN)
    rows = (program // columns) * BM + tl.arange(0, BM)
    cols = (program % columns) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    a = A + rows[:, None] * sam + inner[None, :] * sak
    b = B + inner[:, None] * sbk + cols[None, :] * sbn
    total = tl.zeros((BM, BN), tl.float32)
    for k in range(tl.cdiv(K, BK)):
        left = K - k * BK
        x = tl.load(a, mask=(rows[:, None] < M) & (inner[None, :] < left), other=0.0)
        y = tl.load(b, mask=(inner[:, None] < left) & (cols[None, :] < N), other=0.0)
        total = tl.dot(x, y, total, input_precision="ieee")
        a += BK * sak
        b += BK * sbk
    if ACTIVATE:
        total = gelu(total)
    mask = (rows[:, None] < M) & (cols[None, :] < N)
    tl.store(C + rows[:, None] * N + cols[None, :], total.to(C.dtype.element_ty), mask=mask)


@triton.jit
def dropout_kernel(X, OUT, n, p, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < n)
    keep = tl.rand(seed, at) > p
    tl.store(OUT + at, tl.where(keep, x / (1 - p), 0.0), mask=at < n)


@triton.jit
def layer_norm_kernel(X, W, B, OUT, MEAN, N, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, N, BLOCK):
        at = first + tl.arange(0, BLOCK)
        total += tl.load(X + row * N + at, mask=at < N, other=0.0).to(tl.float32)
    mean = tl.sum(total, 0) / N
    square = tl.zeros((BLOCK,), tl.float32)
    for first in range(0, N, BLOCK):
        at = first + tl.arange(0, BLOCK)
        x = tl.load(X + row * N + at, mask=at < N, other=0.0).to(tl.float32)
        x = tl.where(at < N, x - mean, 0.0)
        square += x * x
    scale = 1 / tl.sqrt(tl.sum(square, 0) / N + eps)
    tl.store(MEAN + row, mean)
    for first in range(0, N, BLOCK):
        at = first + tl.arange(0, BLOCK)
        x = tl.load(X + row * N + at, mask=at < N, other=0.0).to(tl.float32)
        w = tl.load(W + at, mask=at < N)
        b = tl.load(B + at, mask=at < N)
        tl.store(OUT + row * N + at, (x - mean) * scale * w + b, mask=at < N)


@triton.jit
def attention_kernel(
    Q, K, V, OUT, T, scale,
    BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    block, head = tl.program_id(0), tl.program_id(1)
    rows, dims, cols = block * BM + tl.arange(0, BM), tl.arange(0, D), tl.arange(0, BN)
    base = head * T * D
    q = tl.load(Q + base + rows[:, None] * D + dims[None, :])
    top = tl.full((BM,), -1e30, tl.float32)
    weight = tl.zeros((BM,), tl.float32)
    total = tl.zeros((BM, D), tl.float32)
    end = (block + 1) * BM if CAUSAL else T
    for first in range(0, end, BN):
        at = first + cols
        k = tl.load(K + base + at[None, :] * D + dims[:, None])
        score = tl.dot(q, k, input_precision="ieee") * scale
        if CAUSAL:
            score = tl.where(rows[:, None] >= at[None, :], score, -1e30)
        higher = tl.maximum(top, tl.max(score, 1))
        p = tl.exp(score - higher[:, None])
        shrink = tl.exp(top - higher)
        weight = weight * shrink + tl.sum(p, 1)
        v = tl.load(V + base + at[:, None] * D + dims[None, :])
        total = tl.dot(p.to(v.dtype), v, total * shrink[:, None], input_precision="ieee")
        top = higher
    out = total / weight[:, None]
    tl.store(OUT + base + rows[:, None] * D + dims[None, :], out)


# --- a construct each: X of float32, OUT like it, n elements in one block -------------------------


@triton.jit
def clamp_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < n, other=0.0)
    tl.store(OUT + at, tl.clamp(x, -0.5, 0.7) * x, mask=at < n)


@triton.jit
def branch_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < n, other=0.0)
    if tl.sum(x) > 0:
        y = x * tl.sum(x)
    else:
        y = tl.exp(x)
    tl.store(OUT + at, y, mask=at < n)


@triton.jit
def while_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < n, other=0.0)
    y = x
    step = 0
    while (tl.sum(y * y) > 0.1) & (step < 20):
        y = y * 0.5 + tl.sin(y) * 0.25
        step += 1
    tl.store(OUT + at, y, mask=at < n)


@triton.jit
def nested_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < n, other=0.0)
    y = x
    for i in range(3):
        z = y
        for _ in range(i + 1):
            z = tl.sin(z) + 0.1 * x
        y = y * z + 0.5
    tl.store(OUT + at, y, mask=at < n)


@triton.jit
def branch_in_loop_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < n, other=0.0)
    y = x
    for i in range(6):
        if i % 2 == 0:
            y = tl.sin(y) * x
        else:
            y = y + tl.cos(y)
    tl.store(OUT + at, y, mask=at < n)


@triton.jit
def cumsum_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < n, other=0.0)
    tl.store(OUT + at, tl.cumsum(x * x, 0) * x, mask=at < n)


@triton.jit
def cumsum_back_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < n, other=0.0)
    tl.store(OUT + at, tl.cumsum(x, 0, reverse=True) * x, mask=at < n)


@triton.jit
def join_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < n, other=0.0)
    even, odd = tl.split(tl.reshape(x, (BLOCK // 2, 2)))
    y = tl.reshape(tl.join(odd * odd, even * odd), (BLOCK,))
    tl.store(OUT + at, y, mask=at < n)


@triton.jit
def one_half_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < n, other=0.0)
    even, _ = tl.split(tl.reshape(x, (BLOCK // 2, 2)))
    tl.store(OUT + at, x * tl.sum(even * even), mask=at < n)


@triton.jit
def cat_kernel(X, OUT, n, BLOCK: tl.constexpr):
    half = tl.arange(0, BLOCK // 2)
    a = tl.load(X + half)
    b = tl.load(X + BLOCK // 2 + half)
    tl.store(OUT + tl.arange(0, BLOCK), tl.cat(a * b, tl.sin(a)))


@triton.jit
def gather_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < n, other=0.0)
    tl.store(OUT + at, tl.gather(x * x, (at * 3) % n, 0) * x, mask=at < n)


@triton.jit
def flip_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < n, other=0.0)
    tl.store(OUT + at, tl.load(X + (n - 1) - at, mask=at < n) * x, mask=at < n)


@triton.jit
def argmax_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < n, other=-float("inf"))
    value, place = tl.max(x, 0, return_indices=True)
    tl.store(OUT + at, x * value + place, mask=at < n)


@triton.jit
def min_max_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    low = tl.load(X + at, mask=at < n, other=float("inf"))
    high = tl.load(X + at, mask=at < n, other=-float("inf"))
    x = (high - tl.min(low, 0)) / (tl.max(high, 0) - tl.min(low, 0))
    tl.store(OUT + at, x * x, mask=at < n)


@triton.jit
def twice_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < n, other=0.0)
    tl.store(OUT + at, tl.exp(x), mask=at < n)
    tl.debug_barrier()
    tl.store(OUT + at, x * x, mask=(at < n) & (at % 2 == 0))


@triton.jit
def half_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < n, other=0.0)
    y = x.to(tl.float64)
    tl.store(OUT + at, (y * y).to(tl.float32) * x, mask=at < n)


@triton.jit
def table_kernel(X, OUT, n, BLOCK: tl.constexpr):
    row = tl.arange(0, 8)[:, None]
    column = tl.arange(0, 8)[None, :]
    x = tl.load(X + tl.arange(0, 8))
    pairs = x[:, None] * tl.sin(x)[None, :] + tl.trans(x[:, None] - x[None, :])
    tl.store(OUT + row * 8 + column, pairs / (1.0 + x[None, :] * x[None, :]))


@triton.jit
def rsqrt_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < n, other=1.0)
    y = tl.rsqrt(x * x + 1) + tl.abs(x) + tl.fma(x, x, tl.floor(x)) + tl.sigmoid(x) + tl.exp2(x)
    tl.store(OUT + at, y + tl.log2(x * x + 2) + tl.sqrt(x * x + 1) / (2 + tl.cos(x)), mask=at < n)


@triton.jit
def atomic_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < n, other=0.0)
    tl.atomic_add(OUT + at % 4, x * x, mask=at < n)


@triton.jit
def walking_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    place = X + at
    total = tl.zeros((BLOCK,), tl.float32)
    step = 1
    for _ in range(4):
        total += tl.load(place, mask=at < n - 8, other=0.0) * step
        place += step
        step += 1
    tl.store(OUT + at, total * total, mask=at < n)


@triton.jit
def recurrence_kernel(A, X, OUT, T, D: tl.constexpr):
    at = tl.arange(0, D)
    a = tl.load(A + at)
    h = tl.zeros((D,), tl.float32)
    for t in range(T):
        h = tl.sin(a * h + tl.load(X + t * D + at))
        tl.store(OUT + t * D + at, h)


@triton.jit
def typed_kernel(X, W, OUT, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    x = tl.load(X + row * n + at, mask=at < n)
    w = tl.load(W + at, mask=at < n)
    wide = x if x.dtype == tl.float64 else x.to(tl.float32)
    tl.store(OUT + row * n + at, (tl.sin(wide) * w).to(OUT.dtype.element_ty), mask=at < n)


# --- what has no derivative here ------------------------------------------------------------------


@triton.jit
def bits_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    bits = tl.load(X + at).to(tl.int32, bitcast=True) & -2
    tl.store(OUT + at, bits.to(tl.float32, bitcast=True))


@triton.jit
def largest_atomic_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.atomic_max(OUT + at % 2, tl.load(X + at))


@triton.jit
def assembly_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(X + at)
    y = tl.inline_asm_elementwise(
        "neg.f32 $0, $1;", "=r,r", [x], dtype=tl.float32, is_pure=True, pack=1
    )
    tl.store(OUT + at, y)
