"""Totals over the lanes of several vectors at once, side by side in one vector.

    [a0 a1 a2 a3], [b0 b1 b2 b3]  ->  [a0+a2 a1+a3 b0+b2 b1+b3]  ->  [a b]

A vector by itself takes two instructions a step; together they take three for two. Every total is
joined in the order in which halving its own vector would, however many go together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pullback.backends.llvm.text import BITS, Builder, Val

PART = 128  # bits: shuffles inside of such parts of a vector need no table of places

Join = Callable[[Val, Val], Val]


def across(b: Builder, join: Join, vectors: Sequence[Val]) -> Val:
    """The total of each vector, in their order; as many of them at most as they have lanes."""
    wide = 1 << (len(vectors) - 1).bit_length()
    rows = list(vectors)
    while rows[0].lanes > wide:
        rows = [_halved(b, join, row) for row in rows]
    rows += rows[-1:] * (wide - len(rows))
    part = max(1, PART // BITS[rows[0].kind])
    order = _order(wide, part)
    rows = [rows[order.index(n)] for n in range(wide)]
    half = wide // 2
    while half:
        low, high = (_picks(wide, half, part, start) for start in (0, half))
        pairs = zip(rows[::2], rows[1::2], strict=True)
        rows = [join(b.shuffle(x, y, low), b.shuffle(x, y, high)) for x, y in pairs]
        half //= 2
    return rows[0]


def _halved(b: Builder, join: Join, a: Val) -> Val:
    half = a.lanes // 2
    low, high = (b.shuffle(a, a, range(start, start + half)) for start in (0, half))
    return join(low, high)


def _picks(lanes: int, half: int, part: int, start: int) -> list[int]:
    """The lanes from `start` on of each block of twice `half` lanes, of two vectors.

    Within each part of a vector first those of the one, then those of the other.
    """
    span = lanes if 2 * half > part else min(part, lanes)
    return [
        source + block + start + n
        for first in range(0, lanes, span)
        for source in (0, lanes)
        for block in range(first, first + span, 2 * half)
        for n in range(half)
    ]


def _order(lanes: int, part: int) -> list[int]:
    """Which of as many vectors as lanes has its total in each lane."""
    rows = [[n] * lanes for n in range(lanes)]
    half = lanes // 2
    while half:
        picks = _picks(lanes, half, part, 0)
        rows = [[(x + y)[p] for p in picks] for x, y in zip(rows[::2], rows[1::2], strict=True)]
        half //= 2
    return rows[0]
