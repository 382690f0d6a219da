"""Loops in lanes cut where tests over the lanes change, so that no lane computes both sides.

``for j < 96: y[j] = if(j < 64, f(j), g(j))  ->  for j in 0..64: y[j] = f(j); for j in 64..96: ..``
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from pullback.algebra.linear import linear
from pullback.config import Cap, frozen
from pullback.ir import expr as E
from pullback.ir.dtype import int64
from pullback.ir.expr import Axis, Expr
from pullback.ir.node import walk

# Each piece is code of its own, which takes time to compile.
MOST_PIECES: Cap = 4


@frozen
class Piece:
    """``first <= j < end``, where the tests of `known` are decided."""

    first: int
    end: int
    known: dict[Expr, bool]


def pieces(bodies: Iterable[Expr], axis: Axis, extent: int, width: int) -> list[Piece]:
    """The pieces of `axis`, none shorter than `width` elements; one where nothing is gained."""
    limits = _limits(bodies, axis)
    cuts = [0, extent]
    for limit, _ in limits.values():
        if len(cuts) <= MOST_PIECES and all(abs(limit - cut) >= width for cut in cuts):
            cuts = sorted((*cuts, limit)) if 0 < limit < extent else cuts
    return [Piece(a, b, _known(limits, a, b)) for a, b in pairwise(cuts)]


def _known(limits: dict[Expr, tuple[int, bool]], first: int, end: int) -> dict[Expr, bool]:
    """Tests with one value in ``first..end``."""
    decided = {}
    for test, (limit, below) in limits.items():
        if end <= limit or limit <= first:
            decided[test] = below == (end <= limit)
    return decided


def _limits(bodies: Iterable[Expr], axis: Axis) -> dict[Expr, tuple[int, bool]]:
    """Tests of `axis` against numbers: the first coordinate past which each has its other value,
    and its value before. ``j < 64 -> 64, True; 15 < j -> 16, False``
    """
    limits: dict[Expr, tuple[int, bool]] = {}
    for node in walk(tuple(bodies)):
        if not isinstance(node, E.Less) or node.left.dtype != int64:
            continue
        form = linear(node.right).minus(linear(node.left))
        factor = form.of(axis)
        if len(form.terms) != 1 or factor == 0:
            continue
        # Holds where factor * j + constant > 0.
        below = factor < 0
        limit = -(-form.const // -factor) if below else -form.const // factor + 1
        limits[node] = limit, below
    return limits
