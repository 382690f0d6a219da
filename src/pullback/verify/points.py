"""What intervals cannot prove is tried: an index at every point of a small box."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

import numpy as np

from pullback.algebra.bounds import bounds
from pullback.ir import expr as E
from pullback.ir.dtype import int64
from pullback.ir.expr import Axis, Expr, upper
from pullback.ir.meaning import Array, holds, work_out
from pullback.ir.nest import Load, Peek, Var
from pullback.ir.node import Node, walk

POINTS = 1 << 14  # points of the largest box that is tried


def has_data(e: Expr) -> bool:
    """Whether an expression depends on what is read."""
    return any(map(_is_data, walk(e)))


def _is_data(node: object) -> bool:
    return isinstance(node, Load | Peek) or (isinstance(node, Node) and E.is_data(node))


def inside(position: Expr, extent: int, guards: Sequence[Expr]) -> bool | None:
    """Whether an index lies in ``0..extent - 1`` wherever all guards hold; those on data are
    left out. None for an index that is data (but for parts with bounds), or a larger box.

    First under the guards that limit it, whose box is small; then under all: one may never hold.
    """
    exact = [g for g in guards if not has_data(g)]
    leaves = [n for n in walk(position) if _range(n) is not None]
    near = _near(leaves, exact)
    proved = _tried(position, extent, near)
    return proved if proved or len(near) == len(exact) else _tried(position, extent, exact)


def _tried(position: Expr, extent: int, guards: Sequence[Expr]) -> bool | None:
    ranges = {n: r for n in walk(position) if (r := _range(n)) is not None}
    if any(map(_is_data, walk(position, skip=ranges))):
        return None
    ranges |= {n: r for n in walk(guards) if (r := _range(n)) is not None}
    box = tuple(max(0, hi - lo + 1) for lo, hi in ranges.values())
    if prod(box) > POINTS:
        return None
    grid = np.indices(box, dtype=np.int64)
    known: dict[Node, Array] = {
        n: lo + values for (n, (lo, _)), values in zip(ranges.items(), grid, strict=True)
    }
    held = holds(guards, known, box)
    work_out((position,), known)
    outside = (known[position] < 0) | (known[position] >= extent)
    return not bool((outside & held).any())


def _near(leaves: Iterable[Node], guards: Sequence[Expr]) -> list[Expr]:
    """The guards that limit any of `leaves`, themselves or by what they share with others."""
    known = set(leaves)
    parts = {g: {n for n in walk(g) if _range(n) is not None} for g in guards}
    near: list[Expr] = []
    while linked := [g for g in parts if g not in near and parts[g] & known]:
        near += linked
        known.update(n for g in linked for n in parts[g])
    return near


class _Data:
    def __contains__(self, node: object) -> bool:
        return _is_data(node)


def _range(leaf: Node) -> tuple[int, int] | None:
    if isinstance(leaf, Axis):
        return 0, upper(leaf.extent) - 1
    if isinstance(leaf, Var):
        return leaf.lo, leaf.hi
    if isinstance(leaf, E.Mod | E.If) and leaf.dtype == int64 and has_data(leaf):
        lo, hi = (0, POINTS) if _moves(leaf) and isinstance(leaf, E.If) else bounds(leaf)
        return (lo, hi) if hi - lo < POINTS else None
    return (leaf.dim.hi, leaf.dim.hi) if isinstance(leaf, E.Size) else None


def _moves(e: Expr) -> bool:
    """Whether more than data decides: ``x[i] < j ? x[i] : j``."""
    return any(isinstance(n, Axis | Var) for n in walk(e, skip=_Data()))
