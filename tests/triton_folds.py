"""Kernels with combiners of users, with gathers of several axes, with functions of a library."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def times(a, b):
    return a * b


@triton.jit
def larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def welford(mean, square, weight, other_mean, other_square, other_weight):
    change = other_mean - mean
    total = weight + other_weight
    share = tl.where(total == 0, 0.0, other_weight / total)
    square = square + other_square + change * change * weight * share
    return mean + change * share, square, total


@triton.jit
def linear(a, b, c, d):
    return a * c, c * b + d


@triton.jit
def log_sum(m, s, n, t):
    top = tl.maximum(m, n)
    return top, s * tl.exp(m - top) + t * tl.exp(n - top)


@triton.jit
def within(x, first, y, other):
    return tl.where(other != 0, y, x + y * x), first | other


@triton.jit
def affine_of_two(a, b, c, d, p, q, r, s):
    return a * p + b * r, a * q + b * s, c * p + d * r, c * q + d * s


@triton.jit
def product_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < n, other=1.0)
    tl.store(OUT + at, tl.reduce(x, 0, times) * x, mask=at < n)


@triton.jit
def rows_product_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.reshape(tl.load(X + at), (4, 4))
    made = tl.reduce(x, 1, times)[:, None] + tl.reduce(x, 0, times, keep_dims=True) * x
    tl.store(OUT + at, tl.reshape(made, (BLOCK,)))


@triton.jit
def prefix_product_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < n, other=1.0)
    tl.store(OUT + at, tl.associative_scan(x, 0, times), mask=at < n)


@triton.jit
def suffix_product_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < n, other=1.0)
    tl.store(OUT + at, tl.associative_scan(x, 0, times, reverse=True) * x, mask=at < n)


@triton.jit
def columns_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.reshape(tl.load(X + at), (8, 2))
    made = tl.associative_scan(x, 0, times) + tl.cumprod(x, 1)
    tl.store(OUT + at, tl.reshape(made, (BLOCK,)))


@triton.jit
def welford_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < n, other=0.0)
    weight = tl.where(at < n, 1.0, 0.0)
    mean, square, total = tl.reduce((x, tl.zeros((BLOCK,), tl.float32), weight), 0, welford)
    tl.store(OUT + at, (x - mean) * tl.rsqrt(square / total + 1e-3), mask=at < n)


@triton.jit
def weighted(mean, weight, other_mean, other_weight):
    total = weight + other_weight
    share = tl.where(total == 0, 0.0, other_weight / total)
    return mean + (other_mean - mean) * share, total


@triton.jit
def weighted_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < n, other=0.0)
    weight = tl.where((at < n) & (at > 4), x * x, 0.0)
    mean, _ = tl.associative_scan((x, weight), 0, weighted)
    tl.store(OUT + at, mean, mask=at < n)


@triton.jit
def recurrence_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < n, other=0.0)
    _, h = tl.associative_scan((tl.sin(x), x * x), 0, linear)
    tl.store(OUT + at, h, mask=at < n)


@triton.jit
def recurrence_back_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < n, other=0.0)
    a, h = tl.associative_scan((tl.sin(x), x * x), 0, linear, reverse=True)
    tl.store(OUT + at, h + a, mask=at < n)


@triton.jit
def log_sum_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < n, other=-1e30)
    top, total = tl.associative_scan((x, x * 0.0 + 1.0), 0, log_sum)
    tl.store(OUT + at, top + tl.log(total), mask=at < n)


@triton.jit
def segments_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < n, other=0.0)
    made, _ = tl.associative_scan((x, (at % 5 == 0).to(tl.int32)), 0, within)
    tl.store(OUT + at, made, mask=at < n)


@triton.jit
def matrices_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < n, other=0.0)
    a, b, c, d = tl.reduce((x, x * x, tl.sin(x), x + 1), 0, affine_of_two)
    tl.store(OUT + at, x * (a + 2 * b) + c * d, mask=at < n)


@triton.jit
def running_max_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < n, other=-float("inf"))
    tl.store(OUT + at, tl.associative_scan(x, 0, larger) * x, mask=at < n)


@triton.jit
def gather_rows_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.reshape(tl.load(X + at), (4, 4))
    place = tl.reshape((at * 7) % 3, (4, 4))
    made = tl.gather(x * x, place, 0) + tl.gather(x, place, 1) * x
    tl.store(OUT + at, tl.reshape(made, (BLOCK,)))


@triton.jit
def tanh_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < n, other=0.0)
    tl.store(OUT + at, libdevice.tanh(x) * libdevice.pow(x, 2.0), mask=at < n)


@triton.jit
def early_kernel(X, OUT, n, BLOCK: tl.constexpr):
    part = tl.program_id(0)
    if part * 4 >= n:
        return
    at = part * 4 + tl.arange(0, 4)
    x = tl.load(X + at, mask=at < n)
    if part == 1:
        tl.store(OUT + at, x * x * x, mask=at < n)
        return
    tl.store(OUT + at, tl.sin(x), mask=at < n)


@triton.jit
def meeting_kernel(X, OUT, n, BLOCK: tl.constexpr):
    part = tl.program_id(0)
    at = part * 4 + tl.arange(0, 4)
    x = tl.load(X + at, mask=at < n)
    y, scale = x, 2.0
    if part > 0:
        y, scale = x * 3, 3.0
        if n > 5:
            if part == 3:
                tl.store(OUT + at, x * x, mask=at < n)
                return
            y = y + x * y
    else:
        y = tl.exp(y) * part
        scale = 5.0
    y = y * scale
    total = y * 0.0
    for k in range(part + 1):
        total += y * tl.sin(y) * k
    tl.store(OUT + at, total * x, mask=at < n)


@triton.jit
def blocks_kernel(X, OUT, rows, columns, BLOCK: tl.constexpr):
    x_of = tl.make_tensor_descriptor(X, [rows, columns], [columns, 1], [BLOCK, BLOCK])
    out_of = tl.make_tensor_descriptor(OUT, [rows, columns], [columns, 1], [BLOCK, BLOCK])
    row = tl.program_id(0) * BLOCK
    for column in range(0, columns, BLOCK):
        x = x_of.load([row, column])
        out_of.store([row, column], x * tl.sin(x))


@triton.jit
def persistent_kernel(A, B, C, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    a_of = tl.make_tensor_descriptor(A, [M, K], [K, 1], [BM, BK])
    b_of = tl.make_tensor_descriptor(B, [K, N], [N, 1], [BK, BN])
    c_of = tl.make_tensor_descriptor(C, [M, N], [N, 1], [BM, BN])
    wide = tl.cdiv(N, BN)
    for tile in range(tl.program_id(0), tl.cdiv(M, BM) * wide, tl.num_programs(0)):
        row, column = tile // wide * BM, tile % wide * BN
        total = tl.zeros((BM, BN), tl.float32)
        for k in range(0, K, BK):
            a, b = a_of.load([row, k]), b_of.load([k, column])
            total = tl.dot(a, b, total, input_precision="ieee")
        c_of.store([row, column], total / (1 + tl.exp(-total)))


@triton.jit
def rows_kernel(X, OUT, rows, columns, BLOCK: tl.constexpr):
    x_of = tl.make_tensor_descriptor(X, [rows, columns], [columns, 1], [1, BLOCK])
    out_of = tl.make_tensor_descriptor(OUT, [8, columns], [columns, 1], [1, BLOCK])
    at = tl.arange(0, 8)
    x = x_of.gather((at * 3) % 5, 4)
    out_of.scatter(x * x, at, 0)


@triton.jit
def host_kernel(X, OUT, scale, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK
    x = X.load([row, 0])
    OUT.store([row, 0], x * x * scale)


@triton.jit
def sorted_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < n, other=float("inf"))
    tl.store(OUT + at, tl.sort(x) * at, mask=at < n)


@triton.jit
def sorted_rows_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.reshape(tl.load(X + at), (2, BLOCK // 2))
    made = tl.sort(x * x, descending=True) + tl.flip(x) * x + tl.flip(x, 0)
    tl.store(OUT + at, tl.reshape(made, (BLOCK,)))


@triton.jit
def largest_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < n, other=-float("inf"))
    tl.store(OUT + at, x * tl.sum(tl.topk(x, 4) * (tl.arange(0, 4) + 1)), mask=at < n)


@triton.jit
def truths_kernel(X, OUT, n, BLOCK: tl.constexpr):
    part = tl.program_id(0) + tl.arange(0, 1)
    at = tl.arange(0, BLOCK)
    mask = (part < n)[:, None] & (at < n)[None, :]
    x = tl.load(X + at[None, :] + part[:, None] * n, mask=mask, other=0.0)
    scale = tl.load(X + part, mask=part < n)
    total = tl.sum(x, 1) * scale
    tl.store(OUT + at[None, :] + part[:, None] * n, x * total[:, None], mask=mask)


@triton.jit
def turned_kernel(X, C, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * n + tl.arange(0, BLOCK)
    first, c = tl.load(X + at), tl.load(C + tl.arange(0, BLOCK))
    second = tl.load(X + at + BLOCK)
    tl.store(X + at, first * tl.cos(c) - second * tl.sin(c))
    tl.store(X + at + BLOCK, second * tl.cos(c) + first * tl.sin(c))


@triton.jit
def shifting_kernel(X, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * n + tl.arange(0, BLOCK)
    tl.store(X + at + 1, tl.load(X + at))
