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


def coin(x: Expr) -> Expr:
    """0 or 1: the top bit of a hash of one word."""
    x = Mul(x, word(0x7FEB352D))
    x = Mul(Xor(x, FloorDiv(x, word(1 << 15))), word(0x846CA68B))
    return FloorDiv(x, word(1 << 31))


def swap_or_not(x: Expr, size: int, turn: Expr, salt: Expr) -> Expr:
    """One round of a random permutation of ``0 <= x < size``.

    The partner of x is ``turn - x`` modulo `size`; a coin tossed for the pair (known by its
    product) says whether the two change places. Without branches, as the rounds are nested.
    Hoang, Morris, Rogaway, "An enciphering scheme based on a card shuffle" (2012).
    """
    below = Cast(Less(turn, x), uint32)
    partner = Add(E.subtract(turn, x), Mul(below, word(size)))
    toss = coin(Xor(Mul(x, partner), salt))
    return Add(x, Mul(E.subtract(partner, x), toss))
