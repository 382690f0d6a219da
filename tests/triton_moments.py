"""Kernels with a mean that a loop moves on, and with products that are stored before they lead on.

Of some of them no closed form holds: what counts is wrong, weights vary, or a step's mean is read.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def batch_kernel(X, OUT, MEAN, STD, batch, n, B: tl.constexpr, N: tl.constexpr):
    """A norm of the columns of a feature, by blocks; what it kept of them is stored."""
    own = tl.program_id(0)
    rows = tl.arange(0, B)[:, None]
    count, mean, around = 0, 0.0, 0.0
    for k in range(tl.cdiv(n, N)):
        at = k * N + tl.arange(0, N)[None, :]
        held = (rows < batch) & (at < n)
        x = tl.load(X + (own * batch + rows) * n + at, mask=held).to(tl.float32)
        more = min(N, n - k * N) * batch
        count += more
        before = mean
        mean += (tl.sum(x) - more * mean) / count
        around += tl.sum(tl.where(held, (x - mean) * (x - before), 0.0))
    scale = tl.rsqrt(around / count + 1e-5)
    tl.store(MEAN + own, mean)
    tl.store(STD + own, scale)
    for k in range(tl.cdiv(n, N)):
        at = k * N + tl.arange(0, N)[None, :]
        held = (rows < batch) & (at < n)
        x = tl.load(X + (own * batch + rows) * n + at, mask=held).to(tl.float32)
        tl.store(OUT + (own * batch + rows) * n + at, (x - mean) * scale, mask=held)


@triton.jit
def rows_kernel(X, OUT, n, R: tl.constexpr, N: tl.constexpr):
    """Of each of several rows; how many a block has is added up of its mask."""
    rows = tl.arange(0, R)
    mean, around, count = tl.zeros((R,), tl.float32), tl.zeros((R,), tl.float32), 0.0
    for k in range(tl.cdiv(n, N)):
        at = k * N + tl.arange(0, N)
        held = (at < n)[None, :]
        x = tl.load(X + rows[:, None] * n + at[None, :], mask=held, other=0.0)
        more = tl.sum((at < n).to(tl.float32), 0)
        own = tl.sum(x, 1) / more
        inside = tl.sum(tl.where(held, (x - own[:, None]) * (x - own[:, None]), 0.0), 1)
        apart = own - mean
        around += inside + apart * apart * count * more / (count + more)
        mean += apart * more / (count + more)
        count += more
    tl.store(OUT + rows, mean * tl.log(around + 1.0))


@triton.jit
def wide_kernel(X, OUT, n, R: tl.constexpr, N: tl.constexpr, OF: tl.constexpr = ""):
    """The same by a count that is a number of the kernel's."""
    rows = tl.arange(0, R)
    mean, around, count = tl.zeros((R,), tl.float32), tl.zeros((R,), tl.float32), 0
    for k in range(tl.cdiv(n, N)):
        at = k * N + tl.arange(0, N)
        held = (at < n)[None, :]
        x = tl.load(X + rows[:, None] * n + at[None, :], mask=held, other=0.0)
        more = min(n - k * N, N)
        count += more
        before = mean
        mean += (tl.sum(x, 1) - more * mean) / count
        moved = (x - mean[:, None]) * (x - before[:, None])
        around += tl.sum(tl.where(held, moved, 0.0), 1)
    if OF == "mean":
        tl.store(OUT + rows, mean * mean)
    elif OF == "squares":
        tl.store(OUT + rows, around)
    else:
        tl.store(OUT + rows, mean * tl.log(around + 1.0))


@triton.jit
def lanes_kernel(
    X, OUT, n, R: tl.constexpr, N: tl.constexpr, MORE: tl.constexpr = 1, OF: tl.constexpr = ""
):
    """Each lane by itself, an element a step; of `MORE` each counts more than once."""
    rows = tl.arange(0, R)
    mean, around, count = tl.zeros((R,), tl.float32), tl.zeros((R,), tl.float32), 0
    for k in range(n):
        x = tl.load(X + rows * n + k)
        count += MORE
        before = mean
        mean += (x - mean) / count
        around += (x - mean) * (x - before)
    if OF == "mean":
        tl.store(OUT + rows, mean * mean)
    elif OF == "squares":
        tl.store(OUT + rows, around)
    else:
        tl.store(OUT + rows, mean * tl.log(around + 1.0))


@triton.jit
def fading_kernel(X, OUT, n, R: tl.constexpr, N: tl.constexpr):
    """Earlier elements count less."""
    rows = tl.arange(0, R)
    mean, around, count = tl.zeros((R,), tl.float32), tl.zeros((R,), tl.float32), 0.0
    for k in range(n):
        x = tl.load(X + rows * n + k)
        count = 0.9 * count + 1.0
        before = mean
        mean += (x - mean) / count
        around = around + (x - mean) * (x - before)
    tl.store(OUT + rows, mean * tl.log(around + 1.0))


@triton.jit
def weighted_kernel(X, OUT, n, R: tl.constexpr, N: tl.constexpr):
    """By weights that vary themselves."""
    rows = tl.arange(0, R)
    mean, around = tl.zeros((R,), tl.float32), tl.zeros((R,), tl.float32)
    count = tl.zeros((R,), tl.float32)
    for k in range(n):
        x = tl.load(X + rows * n + k)
        weight = 1.0 + x * x
        count += weight
        before = mean
        mean += weight * (x - mean) / count
        around += weight * (x - mean) * (x - before)
    tl.store(OUT + rows, mean * tl.log(around + 1.0))


@triton.jit
def read_kernel(X, OUT, n, R: tl.constexpr, N: tl.constexpr):
    """The mean of each step is part of another sum."""
    rows = tl.arange(0, R)
    mean, around, count = tl.zeros((R,), tl.float32), tl.zeros((R,), tl.float32), 0
    for k in range(n):
        x = tl.load(X + rows * n + k)
        count += 1  # noqa: SIM113  # it is carried
        mean += (x - mean) / count
        around += mean * mean
    tl.store(OUT + rows, mean * tl.log(around + 1.0))


@triton.jit
def bounded_kernel(X, OUT, n, R: tl.constexpr, N: tl.constexpr):
    """It stops to take in elements once it has five."""
    rows = tl.arange(0, R)
    mean, around, count = tl.zeros((R,), tl.float32), tl.zeros((R,), tl.float32), 0
    for k in range(n):
        x = tl.load(X + rows * n + k)
        if count < 5:
            count += 1
            before = mean
            mean += (x - mean) / count
            around += (x - mean) * (x - before)
    tl.store(OUT + rows, mean * tl.log(around + 1.0))


@triton.jit
def less_kernel(X, OUT, n, R: tl.constexpr, N: tl.constexpr):
    """What it counts is one more than what it loads."""
    rows = tl.arange(0, R)
    mean, around, count = tl.zeros((R,), tl.float32), tl.zeros((R,), tl.float32), 0
    for k in range(tl.cdiv(n, N)):
        at = k * N + tl.arange(0, N)
        held = (at < n - 1)[None, :]
        x = tl.load(X + rows[:, None] * n + at[None, :], mask=held, other=0.0)
        more = min(n - k * N, N)
        count += more
        before = mean
        mean += (tl.sum(x, 1) - more * mean) / count
        moved = (x - mean[:, None]) * (x - before[:, None])
        around += tl.sum(tl.where(held, moved, 0.0), 1)
    tl.store(OUT + rows, mean * tl.log(around + 1.0))


# --- products that are stored before they lead on -------------------------------------------------


@triton.jit
def product_kernel(
    X, W, KEPT, OUT, m, n, k, HOW: tl.constexpr, B: tl.constexpr, GROUP: tl.constexpr = 2
):
    """Programs in groups, as tutorial 03 has them: no sum says where each stores."""
    pid = tl.program_id(0)
    across = tl.cdiv(n, B)
    first = pid // (GROUP * across) * GROUP
    size = min(tl.cdiv(m, B) - first, GROUP)
    rows = (first + pid % size) * B + tl.arange(0, B)
    columns = pid % (GROUP * across) // size * B + tl.arange(0, B)
    total = tl.zeros((B, B), tl.float32)
    for at in range(0, k, B):
        inner = at + tl.arange(0, B)
        held = (rows < m)[:, None] & (inner < k)[None, :]
        x = tl.load(X + rows[:, None] * k + inner[None, :], mask=held, other=0.0)
        held = (inner < k)[:, None] & (columns < n)[None, :]
        w = tl.load(W + inner[:, None] * n + columns[None, :], mask=held, other=0.0)
        total = tl.dot(x, w, total, input_precision="ieee")
    held = (rows < m)[:, None] & (columns < n)[None, :]
    at = rows[:, None] * n + columns[None, :]
    tl.store(KEPT + at, total, mask=held)
    if HOW == "silu":
        y = total / (1.0 + tl.exp(-total))
    elif HOW == "pole":
        y = tl.log((total - 1.0) * (total - 1.0))
    elif HOW == "log":
        y = tl.log(total * total)
    else:
        y = total * tl.sum(total, 1)[:, None]
    tl.store(OUT + at, y, mask=held)
