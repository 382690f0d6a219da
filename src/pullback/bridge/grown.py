"""Axes whose size is a sum of symbols: extents of their own, and what is joined or cut along them.

    cat((past (s, d), new (1, d)))  ->  (t, d): past[min(i, s - 1)] where i < s, else new[i - s]

A compiler that knows no ``s + 1`` takes it for another symbol `t`, whose value each call tells.
Which element lies at a place is then data: it is read at a place within bounds, and chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node

from pullback.bridge.programs import TYPES
from pullback.ir.expr import Dim, Extent
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.library.creation import arange
from pullback.tensor.library.maths import greater_equal, less, logical_and
from pullback.tensor.library.ops import astype, clip, reshape, take, where

aten = torch.ops.aten
Count = Callable[[Any], Any]
"""A size as a number: itself, or a tensor of none but it."""


def sums(nodes: Sequence[Node], of: Callable[[Any], Any]) -> list[Any]:
    """The sizes of a graph that are sums of symbols and numbers, each once."""
    seen: dict[Any, None] = {}
    for node in nodes:
        value = node.meta.get("val")
        for each in value if isinstance(value, list | tuple) else [value]:
            sizes = each.shape if isinstance(each, torch.Tensor) else [each]
            whole = [of(s) for s in sizes if isinstance(s, torch.SymInt)]
            seen |= dict.fromkeys(s for s in whole if s.is_Add and _linear(s))
    return list(seen)


def _linear(own: Any) -> bool:
    terms = own.as_coefficients_dict()
    return all(t.is_Symbol or t == 1 for t in terms) and all(c.is_Integer for c in terms.values())


def bounds(own: Any, ranges: Mapping[Any, tuple[int, int]]) -> tuple[int, int]:
    """What a sum may be: ``s + 1, s in 2..16  ->  3..17``"""
    low = high = int(own.as_coeff_Add()[0])
    for symbol, (least, most) in ranges.items():
        factor = int(own.coeff(symbol))
        low += min(factor * least, factor * most)
        high += max(factor * least, factor * most)
    return max(1, low), max(1, high)


def valued(own: Any, sizes: Mapping[Any, int]) -> int:
    """A sum, at sizes of a call."""
    return int(own.as_coeff_Add()[0]) + sum(int(own.coeff(s)) * n for s, n in sizes.items())


def joined(shape: tuple[Extent, ...], count: Count, node: Node, pieces: Any, dim: int = 0) -> Any:
    """``cat``; None where it is along an axis of fixed size."""
    axis = dim % len(shape)
    if not isinstance(shape[axis], Dim):
        return None
    places, begin, made = arange(shape[axis]), 0, None
    for piece in pieces:
        size = count(piece.shape[axis])
        part = _taken(piece, axis, places - begin, size)
        made = (
            part
            if made is None
            else where(_along(less(places, begin), axis, len(shape)), made, part)
        )
        begin = begin + size
    return made


def cut(
    shape: tuple[Extent, ...], count: Count, node: Node,
    x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1,
) -> Any:  # fmt: skip
    """A slice of a symbolic axis, or to a symbolic size; None where it is plain."""
    axis = dim % len(shape)
    own, made = x.shape[axis], shape[axis]
    if own is made:
        return x
    plain = isinstance(own, int) and isinstance(made, int) and isinstance(start, int | None)
    if step != 1 or plain:
        return None
    size = count(own)
    first = 0 if start is None else count(start)
    if isinstance(first, int) and first < 0:
        first = size + first
    return _taken(x, axis, arange(made) + first, size)


def picked(
    shape: tuple[Extent, ...], count: Count, node: Node, x: Any, dim: int, index: Any
) -> Any:
    """One place of a symbolic axis, counted from its end; None where it is plain."""
    axis = dim % x.ndim
    if not isinstance(x.shape[axis], Dim) or not isinstance(index, int) or index >= 0:
        return None
    size = count(x.shape[axis])
    return reshape(_taken(x, axis, arange(1) + (size + index), size), shape)


def padded(
    shape: tuple[Extent, ...], count: Count, node: Node, x: Any, pad: Sequence[Any], value: Any = 0
) -> Any:
    """``y[i] = x[i - before] where 0 <= i - before < n, else value``; None for fixed axes."""
    widths = {x.ndim - 1 - n // 2: (pad[n], pad[n + 1]) for n in range(0, len(pad), 2)}
    befores = {axis: width[0] for axis, width in widths.items() if width != (0, 0)}
    if not any(isinstance(e, Dim) for axis in befores for e in (x.shape[axis], shape[axis])):
        return None
    made = x
    for axis, before in befores.items():
        size = count(x.shape[axis])
        places = arange(shape[axis]) - count(before)
        inside = logical_and(greater_equal(places, 0), less(places, size))
        part = _taken(made, axis, places, size)
        made = where(_along(inside, axis, len(shape)), part, value)
    return made


def counted_from(shape: tuple[Extent, ...], count: Count, node: Node, *given: Any, **_: Any) -> Any:
    """``start, start + 1, ..``, a size the start or the end; None for numbers, and other steps."""
    fixed = isinstance(shape[0], int) and all(isinstance(n, int | float) for n in given)
    if fixed or (len(given) > 2 and given[2] != 1):
        return None
    places = arange(shape[0])
    if len(given) > 1:
        places = places + count(given[0])
    return astype(places, TYPES[node.meta["val"].dtype])


def _taken(x: Any, axis: int, places: Any, size: Any) -> Any:
    """``x[.., places, ..]``, at the nearest place that there is."""
    if isinstance(size, int) and size == 1:
        return x
    return take(x, clip(places, 0, size - 1), axis=axis)


def _along(x: Tensor, axis: int, rank: int) -> Tensor:
    return reshape(x, tuple([x.shape[0] if n == axis else 1 for n in range(rank)]))


RULES: dict[Any, Callable[..., Any]] = {
    aten.cat.default: joined,
    aten.slice.Tensor: cut,
    aten.select.int: picked,
    aten.constant_pad_nd.default: padded,
    aten.arange.default: counted_from,
    aten.arange.start: counted_from,
    aten.arange.start_step: counted_from,
}
