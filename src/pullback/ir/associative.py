"""Combinations of tuples by any associative function, as trees of maps: linear work, every order.

    reduced   t[j] = x[2 j] . x[2 j + 1]                     half as long, until one is left
    scanned   s = scan of t,  y[2 j + 1] = s[j],  y[2 j] = s[j - 1] . x[2 j]

Nothing is divided and nothing is assumed but associativity: terms keep their order. The levels are
plain maps, so derivatives need no rule of their own. Source: Blelloch 1990, Prefix sums and their
applications.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pullback.ir.expr import (
    Add,
    Const,
    Equal,
    Expr,
    Extent,
    FloorDiv,
    If,
    Less,
    Mod,
    Mul,
    Shape,
    axes,
    const,
    extent_expr,
    index,
    upper,
)
from pullback.ir.graph import Definition, Map, beside, read

Tuple = Sequence[Expr]
Join = Callable[[Tuple, Tuple], Tuple]
"""The combination of an earlier and a later tuple."""

ONE = index(1)
TWO = index(2)


def reduced(elements: Sequence[Definition], axis: int, join: Join) -> list[Definition]:
    """The combination along `axis`, whose extent becomes 1 (or stays 0)."""
    level = list(elements)
    length = _length(elements, axis)
    while upper(level[0].shape[axis]) > 1:
        level = _paired(level, axis, length, join, ONE)
        length = _halved(length, ONE)
    return level


def scanned(elements: Sequence[Definition], axis: int, join: Join) -> list[Definition]:
    """The combination of all up to each place along `axis`."""
    levels = [list(elements)]
    length = _length(elements, axis)
    while upper(levels[-1][0].shape[axis]) > 1:
        levels.append(_paired(levels[-1], axis, length, join, index(0)))
        length = _halved(length, index(0))
    scan = levels.pop()
    while levels:
        scan = _filled(levels.pop(), scan, axis, join)
    return scan


def _length(elements: Sequence[Definition], axis: int) -> Expr:
    return extent_expr(elements[0].shape[axis])


def _halved(length: Expr, rest: Expr) -> Expr:
    """``(n + rest) // 2``"""
    if isinstance(length, Const) and isinstance(rest, Const):
        return index((int(length.value) + int(rest.value)) // 2)
    return FloorDiv(Add(length, rest), TWO)


def _paired(
    level: Sequence[Definition], axis: int, length: Expr, join: Join, rest: Expr
) -> list[Definition]:
    """``t[j] = x[2 j] . x[2 j + 1]`` where there are both; with `rest`, ``x[2 j]`` if there is one.

    A symbolic axis has levels of literal extents: what lies beyond its `length` is 0 and not used.
    """
    whole = upper(level[0].shape[axis])
    extent = (whole + int(rest is ONE)) // 2
    shape = _with(level[0].shape, axis, extent)
    here: list[Expr] = [*axes(shape)]
    left = Mul(here[axis], TWO) if extent > 1 else index(0)
    right = Add(left, ONE) if extent > 1 else ONE
    first = [_at(x, here, axis, left) for x in level]
    pairs = join(first, [_at(x, here, axis, right) for x in level])
    literal = isinstance(length, Const)
    if literal and whole == 2 * extent:
        return _maps(level, pairs, shape)
    zeros = [const(0, x.dtype) for x in level]
    alone: Tuple = first if rest is ONE else zeros
    if not literal and rest is ONE:
        alone = _chosen(Less(left, length), first, zeros)
    return _maps(level, _chosen(Less(right, length), pairs, alone), shape)


def _chosen(condition: Expr, then: Tuple, otherwise: Tuple) -> Tuple:
    return [If(condition, a, b) for a, b in zip(then, otherwise, strict=True)]


def _maps(level: Sequence[Definition], bodies: Tuple, shape: Sequence[Extent]) -> list[Definition]:
    return [beside(x, x.name, e, Map(), shape) for x, e in zip(level, bodies, strict=True)]


def _filled(
    level: Sequence[Definition], pairs: Sequence[Definition], axis: int, join: Join
) -> list[Definition]:
    """The scan of `level` from that of its pairs."""
    here: list[Expr] = list(level[0].axes)
    place = here[axis]
    half = FloorDiv(place, TWO)
    own = [read(x, *here) for x in level]
    odd = Equal(Mod(place, TWO), ONE)
    even: Tuple = own
    if upper(level[0].shape[axis]) > 2:
        last = Add(half, index(-1))
        until = join([_at(p, here, axis, last) for p in pairs], own)
        even = _chosen(Less(index(0), place), until, own)
    bodies = _chosen(odd, [_at(p, here, axis, half) for p in pairs], even)
    return _maps(level, bodies, level[0].shape)


def _at(value: Definition, axes: Sequence[Expr], axis: int, place: Expr) -> Expr:
    indices = list(axes)
    indices[axis] = place
    return read(value, *indices)


def _with(shape: Sequence[Extent], axis: int, extent: int) -> Shape:
    return (*shape[:axis], extent, *shape[axis + 1 :])
