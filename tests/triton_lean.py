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


# --- maxima that cancel, and those that do not ----------------------------------------------------


@triton.jit
def _row(X, n, at):
    x = tl.load(X + at, mask=at < n, other=-float("inf"))
    return x, tl.max(x, 0)


@triton.jit
def log_softmax_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x, m = _row(X, n, at)
    total = tl.sum(tl.where(at < n, tl.exp(x - m), 0.0), 0)
    _stored(X, OUT, n, at, x - m - tl.log(total))


@triton.jit
def exp2_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x, m = _row(X, n, at)
    powers = tl.exp2((x - m) * 1.44269504)
    _stored(X, OUT, n, at, powers * (1 / tl.sum(powers, 0)))


@triton.jit
def log_sum_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x, m = _row(X, n, at)
    _stored(X, OUT, n, at, x * (m + tl.log(tl.sum(tl.exp(x - m), 0))))


@triton.jit
def rows_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, 4)[:, None] * 4 + tl.arange(0, 4)[None, :]
    x = tl.load(X + at)
    powers = tl.exp(x - tl.max(x, 1)[:, None])
    tl.store(OUT + at, powers / tl.sum(powers, 1)[:, None])


@triton.jit
def powers_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x, m = _row(X, n, at)
    _stored(X, OUT, n, at, tl.exp(x - m))


@triton.jit
def squares_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x, m = _row(X, n, at)
    _stored(X, OUT, n, at, tl.exp(x - m) / tl.sum(tl.exp(2 * (x - m)), 0))


@triton.jit
def one_more_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x, m = _row(X, n, at)
    _stored(X, OUT, n, at, tl.exp(x - m) / (1 + tl.sum(tl.exp(x - m), 0)))


@triton.jit
def turned_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, 4)[:, None] * 4 + tl.arange(0, 4)[None, :]
    x = tl.load(X + at)
    m = tl.max(x, 1)
    other = tl.sum(tl.exp(x - m[None, :]), 0)
    tl.store(OUT + at, tl.exp(x - m[:, None]) / other[None, :])


@triton.jit
def columns_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, 4)[:, None] * 4 + tl.arange(0, 4)[None, :]
    x = tl.load(X + at)
    powers = tl.exp(x - tl.max(x, 1)[:, None])
    tl.store(OUT + at, powers / tl.sum(powers, 0)[:, None])


@triton.jit
def threshold_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x, m = _row(X, n, at)
    powers = tl.exp(x - m)
    kept = tl.where(x - m > -1.0, powers, 0.5)
    _stored(X, OUT, n, at, kept / tl.sum(powers, 0))


# --- what is loaded again -------------------------------------------------------------------------


@triton.jit
def norm_kernel(X, OUT, MEAN, SCALE, n, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(X + row * n + at, mask=at < n, other=0.0)
    mean = tl.sum(x, 0) / n
    off = tl.where(at < n, x - mean, 0.0)
    scale = tl.rsqrt(tl.sum(off * off, 0) / n + 1e-5)
    tl.store(MEAN + row, mean)
    tl.store(SCALE + row, scale)
    tl.store(OUT + row * n + at, off * scale, mask=at < n)


@triton.jit
def growth_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < n, other=0.0)
    tl.store(OUT + at, tl.exp(tl.sin(x) * x), mask=at < n)


@triton.jit
def root_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < n, other=2.0)
    w = tl.load(X + n)
    tl.store(OUT + at, tl.sqrt(x * w), mask=at < n)


@triton.jit
def overlap_kernel(X, OUT, n, BLOCK: tl.constexpr):
    for k in range(2):
        at = k * 8 + tl.arange(0, BLOCK)
        x = tl.load(X + at, mask=at < n, other=0.0)
        tl.store(OUT + at, tl.exp(x * (1 + k)), mask=at < n)


@triton.jit
def masked_sum_kernel(X, W, OUT, SUM, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < n, other=0.3)
    y = tl.exp(x)
    tl.store(OUT + at, y, mask=at < n)
    tl.store(SUM, tl.sum(y * y, 0) * tl.load(W))


# --- functions ------------------------------------------------------------------------------------


@triton.jit
def polar(r, angle):
    return r * tl.cos(angle), r * tl.sin(angle), r


@triton.jit
def broken(x):
    return x + tl.no_such_function(x)


# --- what no load reads ---------------------------------------------------------------------------


@triton.jit
def former_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    before = tl.atomic_add(X + at, 1.0)
    tl.store(OUT + at, before + 1.0)


@triton.jit
def ordered_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(OUT + at, tl.atomic_load(X + at) + 1.0)


@triton.jit
def published_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.atomic_store(OUT + at, tl.load(X + at) + 1.0)


@triton.jit
def log_sigmoid_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    _stored(X, OUT, n, at, tl.log(1 / (1 + tl.exp(-_loaded(X, n, at)))))


@triton.jit
def hard_sigmoid_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = _loaded(X, n, at)
    _stored(X, OUT, n, at, tl.maximum(0, tl.minimum(1, x / 6 + 0.5)))


@triton.jit
def hard_swish_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = _loaded(X, n, at)
    _stored(X, OUT, n, at, x * tl.minimum(tl.maximum(x + 3, 0), 6) / 6)


@triton.jit
def selu_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = _loaded(X, n, at)
    low = tl.minimum(0, 1.6732632 * (tl.exp(x) - 1))
    _stored(X, OUT, n, at, 1.050701 * (tl.maximum(0, x) + low))


@triton.jit
def celu_kernel(X, OUT, n, BLOCK: tl.constexpr):
    """Its parameter is a number of any sign that nothing is known of."""
    at = tl.arange(0, BLOCK)
    x, a = _loaded(X, n, at), n * 0.05
    y = tl.maximum(0, x) + tl.minimum(0, a * (tl.exp(x / a) - 1))
    _stored(X, OUT, n, at, y)


@triton.jit
def soft_sign_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = _loaded(X, n, at)
    _stored(X, OUT, n, at, x / (1 + tl.abs(x)))


@triton.jit
def smooth_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = _loaded(X, n, at)
    _stored(X, OUT, n, at, tl.where(tl.abs(x) < 2, 0.5 * x * x / 2, tl.abs(x) - 1))


@triton.jit
def falling_kernel(X, OUT, n, BLOCK: tl.constexpr):
    """Bounds of what falls, of factors of any sign and of numbers that are not exact."""
    at = tl.arange(0, BLOCK)
    x = _loaded(X, n, at)
    y = tl.maximum(2 - x, 0.5) + tl.minimum(-4 * x, 1) + tl.maximum(x / 3 - 0.1, 0.7)
    y += tl.maximum(x * (n * -0.02), 0)
    _stored(X, OUT, n, at, y + tl.minimum(tl.log(tl.exp(x) + 1) - 1, 0) * x)


@triton.jit
def powers_of_one_kernel(X, OUT, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = _loaded(X, n, at)
    _stored(X, OUT, n, at, x * x * 0.25 / x * 3 - (x + 2) / (x + 2) * x)


@triton.jit
def soft_kernel(X, OUT, stride, columns, LOG: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * stride + tl.arange(0, BLOCK)[None, :]
    kept = tl.arange(0, BLOCK)[None, :] < columns
    x = tl.load(X + at, mask=kept, other=float("-inf"))
    x -= tl.max(x, 1)[:, None]
    e = tl.exp(x)
    s = tl.sum(e, 1)[:, None]
    tl.store(OUT + at, x - tl.log(s) if LOG else e / s, mask=kept)


@triton.jit
def soft_beyond_kernel(X, W, OUT, n, BLOCK: tl.constexpr):
    """Lanes that are left out where it is stored take part in the sum."""
    at = tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < n, other=0.0)
    e = tl.exp(x + at * tl.load(W) * 0.1)
    tl.store(OUT + at, e / tl.sum(e, 0), mask=at < n)


@triton.jit
def running_kernel(X, OUT, n, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    """Two values that a loop carries, crosswise; a step's result is the next one's beginning."""
    at = tl.arange(0, BLOCK)
    x = _loaded(X, n, at)
    a, b = x, 0.5 * x
    for i in range(STEPS):
        a, b = b + tl.sin(a * x), tl.exp(-0.3 * a * b) / (i + 1)
        b = tl.exp(-b)
    _stored(X, OUT, n, at, a * b)


@triton.jit
def crossed_kernel(X, OUT, n, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    """Values that change places at each step, and nothing else."""
    at = tl.arange(0, BLOCK)
    a, b, c = _loaded(X, n, at), _loaded(X, n, at) * 2, _loaded(X, n, at) * 3
    for _ in range(STEPS):
        a, b, c = b, c, a
    _stored(X, OUT, n, at, a * b + tl.sin(c))


@triton.jit
def soft_fewer_kernel(X, OUT, n, BLOCK: tl.constexpr):
    """Fewer lanes are stored than are loaded."""
    at = tl.arange(0, BLOCK)
    e = tl.exp(tl.load(X + at, mask=at < n, other=float("-inf")))
    tl.store(OUT + at, e / tl.sum(e, 0), mask=at < n - 3)


@triton.jit
def branch_ratio_kernel(X, OUT, Z, n, few, BLOCK: tl.constexpr):
    """A quotient that is there in a branch alone, of what does not vary."""
    at = tl.arange(0, BLOCK)
    above, below = at * 0.5 + 1, n * 0.25
    if n > few:
        tl.store(Z + at, tl.where(above / below > 2, 1.0, 0.0), mask=at < n)
    _stored(X, OUT, n, at, _loaded(X, n, at) * above / below)
