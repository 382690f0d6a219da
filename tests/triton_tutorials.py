"""Kernels as those of Triton's tutorials 07 and 08: a library's function, products of a group."""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def library_kernel(X, Y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + at, mask=at < n)
    tl.store(Y + at, libdevice.asin(x), mask=at < n)


@triton.jit
def group_kernel(
    A, B, C, SIZES, AT, group, PROGRAMS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
    BK: tl.constexpr, ADDRESSES: tl.constexpr,
):  # fmt: skip
    """Products of several sizes by a fixed number of programs.

    `AT` has for each product its places in `A`, `B` and `C`; with `ADDRESSES` those are tables of
    addresses.
    """
    tile = tl.program_id(0)
    end = 0
    for g in range(group):
        m, n, k = tl.load(SIZES + g * 3), tl.load(SIZES + g * 3 + 1), tl.load(SIZES + g * 3 + 2)
        wide = tl.cdiv(n, BN)
        tiles = tl.cdiv(m, BM) * wide
        while tile >= end and tile < end + tiles:
            if ADDRESSES:
                a_of = tl.load(A + g).to(tl.pointer_type(tl.float32))
                b_of = tl.load(B + g).to(tl.pointer_type(tl.float32))
                c_of = tl.load(C + g).to(tl.pointer_type(tl.float32))
            else:
                a_of, b_of = A + tl.load(AT + g * 3), B + tl.load(AT + g * 3 + 1)
                c_of = C + tl.load(AT + g * 3 + 2)
            row = (tile - end) // wide * BM + tl.arange(0, BM)[:, None]
            column = (tile - end) % wide * BN + tl.arange(0, BN)[None, :]
            inner = tl.arange(0, BK)
            total = tl.zeros((BM, BN), tl.float32)
            for i in range(0, k, BK):
                at = i + inner
                left = (row < m) & (at[None, :] < k)
                right = (at[:, None] < k) & (column < n)
                a = tl.load(a_of + row * k + at[None, :], mask=left, other=0.0)
                b = tl.load(b_of + at[:, None] * n + column, mask=right, other=0.0)
                total = tl.dot(a, b, total, input_precision="ieee")
            tl.store(c_of + row * n + column, total, mask=(row < m) & (column < n))
            tile += PROGRAMS
        end = end + tiles
