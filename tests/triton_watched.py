"""Kernels that read an array and write over it, at places that only their elements say."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def chosen_kernel(X, AT, LOSS, columns, ignored, BLOCK: tl.constexpr):
    """Of each row the loss at one element; the row becomes its gradient, of two passes."""
    row = tl.program_id(0)
    place = tl.load(AT + row)
    X += row * columns
    if place == ignored:
        for i in range(0, columns, BLOCK):
            at = i + tl.arange(0, BLOCK)
            tl.store(X + at, 0.0, mask=at < columns)
        return
    own = tl.load(X + place)
    most = float("-inf")
    total = 0.0
    for i in range(0, columns, BLOCK):
        at = i + tl.arange(0, BLOCK)
        x = tl.load(X + at, mask=at < columns, other=float("-inf"))
        larger = tl.maximum(most, tl.max(x, 0))
        total = total * tl.exp(most - larger) + tl.sum(tl.exp(x - larger), 0)
        most = larger
    for i in range(0, columns, BLOCK):
        at = i + tl.arange(0, BLOCK)
        x = tl.load(X + at, mask=at < columns, other=float("-inf"))
        tl.store(X + at, tl.exp(x - most) / total, mask=at < columns)
    tl.debug_barrier()
    tl.store(X + place, tl.exp(own - most) / total - 1.0)
    tl.store(LOSS + row, most + tl.log(total) - own)


@triton.jit
def heads_kernel(Q, K, C, rows, steps, heads, row, HEADS: tl.constexpr, FEW: tl.constexpr):
    """Pairs turned in place, of all heads of one array and a few of another."""
    at, head = tl.program_id(0), tl.program_id(1)
    if at // steps >= rows:
        return
    pair = tl.arange(0, 4)
    c = tl.load(C + (at % steps) * 4 + pair)
    if head < HEADS:
        q = Q + at * row + head * heads + pair * 2
        one, two = tl.load(q), tl.load(q + 1)
        tl.store(q, one * c - two)
        tl.store(q + 1, two * c + one)
    if head < FEW:
        k = K + at * FEW * heads + head * heads + pair * 2
        one, two = tl.load(k), tl.load(k + 1)
        tl.store(k, one * c + two)
        tl.store(k + 1, two * c - one)


@triton.jit
def moved_kernel(X, FROM, TO, BLOCK: tl.constexpr):
    """``X[to] = sin(X[from])`` by each program, of places that are given."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + tl.load(FROM + at))
    tl.store(X + tl.load(TO + at), tl.sin(x))


@triton.jit
def twice_kernel(X, AT, n):
    """A loop of elements, each by a place that is given."""
    for i in range(n):
        x = tl.load(X + tl.load(AT + i))
        tl.store(X + i, x * x)


@triton.jit
def added_kernel(X, AT, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(X + tl.load(AT + at))
    tl.atomic_add(X + at, x * x)


@triton.jit
def cleared_kernel(X, OUT, BLOCK: tl.constexpr):
    """The first elements of what is written are cleared."""
    at = tl.arange(0, BLOCK)
    tl.store(OUT + at, tl.sin(tl.load(X + at)))
    tl.debug_barrier()
    tl.store(OUT + at, 0.0, mask=at < 3)
