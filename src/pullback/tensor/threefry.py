"""Threefry-2x32 (20 rounds) and a small integer hash, as scalar expressions over uint32.

A rotation is ``x * 2^r | x // 2^(32 - r)``.
"""

from __future__ import annotations

from pullback.ir import expr as E
from pullback.ir.dtype import uint32
from pullback.ir.expr import Add, Cast, Expr, FloorDiv, Less, Mul, Or, Xor

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
PARITY = 0x1BD11BDA


def word(value: int) -> E.Const:
    """A uint32 literal."""
    return E.const(value, uint32)


def rotate(x: Expr, distance: int) -> Expr:
    """`x` turned left by `distance` bits."""
    return Or(Mul(x, word(1 << distance)), FloorDiv(x, word(1 << (32 - distance))))


def threefry(key: tuple[Expr, Expr], counter: tuple[Expr, Expr]) -> tuple[Expr, Expr]:
    """Two random words for a counter under a key.

    Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011).
    """
    keys = (*key, Xor(Xor(*key), word(PARITY)))
    a: Expr = Add(counter[0], keys[0])
    b: Expr = Add(counter[1], keys[1])
    for group in range(5):
        for distance in ROTATIONS[group % 2]:
            a = Add(a, b)
            b = Xor(rotate(b, distance), a)
        a = Add(a, keys[(group + 1) % 3])
        b = Add(b, Add(keys[(group + 2) % 3], word(group + 1)))
    return a, b


def mixed(x: Expr) -> Expr:
    """A hash of one word (lowbias32)."""
    x = Mul(Xor(x, FloorDiv(x, word(1 << 16))), word(0x7FEB352D))
    x = Mul(Xor(x, FloorDiv(x, word(1 << 15))), word(0x846CA68B))
    return Xor(x, FloorDiv(x, word(1 << 16)))


def flag(condition: Expr) -> Expr:
    """1 where `condition` holds, else 0."""
    return Cast(condition, uint32)


def swap_or_not(x: Expr, size: int, turn: Expr, salt: Expr) -> Expr:
    """One round of a random permutation of ``0 <= x < size``.

    The partner of x is ``turn - x`` modulo `size`; a coin tossed for the pair says whether the two
    change places. Hoang, Morris, Rogaway, "An enciphering scheme based on a card shuffle" (2012).
    """
    n = word(size)
    far = Add(E.subtract(turn, x), n)
    partner = E.subtract(far, Mul(n, E.subtract(word(1), flag(Less(far, n)))))
    gap = E.subtract(partner, x)
    larger = Add(x, Mul(gap, flag(Less(x, partner))))
    coin = FloorDiv(mixed(Xor(larger, salt)), word(1 << 31))
    return Add(x, Mul(gap, coin))
