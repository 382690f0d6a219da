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
from torch.utils._sympy.functions import FloorDiv

from pullback.bridge import ordered, windows
from pullback.bridge.programs import TYPES
from pullback.ir.expr import Dim, Extent
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.library.creation import arange
from pullback.tensor.library.maths import equal, greater_equal, less, logical_and, remainder
from pullback.tensor.library.ops import astype, broadcast_to, clip, reshape, take, where

aten = torch.ops.aten
Count = Callable[[Any], Any]
"""A size as a number: itself, or a tensor of none but it."""


def sums(nodes: Sequence[Node], of: Callable[[Any], Any]) -> list[Any]:
    """The sizes of a graph that are sums of symbols, numbers, and wholes of these by a number,
    each once; so are multiples of a symbol that are joined or cut.
    """
    seen: dict[Any, None] = {}
    for node in nodes:
        seen |= dict.fromkeys(s for s in _whole(node, of) if _is_sum(s))
        if node.target in JOINED:
            every = [s for one in (node, *node.all_input_nodes) for s in _whole(one, of)]
            seen |= dict.fromkeys(s for s in every if s.is_Mul and _linear(s))
    return list(seen)


def _whole(node: Node, of: Callable[[Any], Any]) -> list[Any]:
    """The symbolic sizes of what a node gives."""
    value = node.meta.get("val")
    every = value if isinstance(value, list | tuple) else [value]
    sizes = [s for v in every for s in (v.shape if isinstance(v, torch.Tensor) else [v])]
    return [of(s) for s in sizes if isinstance(s, torch.SymInt)]


def _is_sum(own: Any) -> bool:
    return (own.is_Add or isinstance(own, FloorDiv)) and _linear(own)


def _linear(own: Any) -> bool:
    """Whether it is a sum of symbols, of numbers, and of wholes of such sums by a number."""
    terms = own.as_coefficients_dict()
    return all(_term(t) for t in terms) and all(c.is_Integer for c in terms.values())


def _term(own: Any) -> bool:
    if isinstance(own, FloorDiv):
        whole, by = own.args
        return bool(by.is_Integer and by > 0) and _linear(whole)
    return bool(own.is_Symbol or own == 1)


def bounds(own: Any, ranges: Mapping[Any, tuple[int, int]]) -> tuple[int, int]:
    """What a sum may be: ``s + 1, s in 2..16  ->  3..17``"""
    low, high = _bounds(own, ranges)
    return max(1, low), max(1, high)


def _bounds(own: Any, ranges: Mapping[Any, tuple[int, int]]) -> tuple[int, int]:
    if own.is_Symbol:
        return ranges[own]
    if isinstance(own, FloorDiv):
        low, high = _bounds(own.args[0], ranges)
        return low // int(own.args[1]), high // int(own.args[1])
    low = high = 0
    for term, times in own.as_coefficients_dict().items():
        ends = (1, 1) if term == 1 else _bounds(term, ranges)
        least, most = sorted(int(times) * end for end in ends)
        low, high = low + least, high + most
    return low, high


def valued(own: Any, sizes: Mapping[Any, int]) -> int:
    """A sum, at sizes of a call."""
    if own.is_Symbol:
        return sizes[own]
    if isinstance(own, FloorDiv):
        return valued(own.args[0], sizes) // int(own.args[1])
    terms = own.as_coefficients_dict().items()
    return sum(int(c) * (1 if term == 1 else valued(term, sizes)) for term, c in terms)


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
    if own is made and step == 1:
        return x
    plain = isinstance(own, int) and isinstance(made, int) and isinstance(start, int | None)
    if plain:
        return None
    size = count(own)
    places = arange(made) if step == 1 else arange(made) * step
    return _taken(x, axis, places + _first(start, size, count), size)


def _first(start: Any, size: Any, count: Count) -> Any:
    """Where a slice begins; what is negative counts from the end."""
    first = 0 if start is None else count(start)
    return size + first if isinstance(first, int) and first < 0 else first


def put(
    shape: tuple[Extent, ...], count: Count, node: Node,
    x: Any, source: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1,
) -> Any:  # fmt: skip
    """``y[start + i step] = source[i], y[j] = x[j]`` elsewhere; None where it is plain."""
    axis = dim % len(shape)
    own, part = shape[axis], source.shape[axis]
    if isinstance(own, int) and isinstance(part, int) and isinstance(start, int | None):
        return None
    behind = arange(own) - _first(start, count(own), count)
    places = behind if step == 1 else behind // step
    inside = logical_and(greater_equal(behind, 0), less(places, count(part)))
    if step != 1:
        inside = logical_and(inside, equal(behind - places * step, 0))
    taken = _taken(source, axis, places, count(part))
    return where(_along(inside, axis, len(shape)), taken, x)


def parted(
    shapes: Sequence[tuple[Extent, ...]], count: Count, node: Node, x: Any, sizes: Any, dim: int = 0
) -> Any:
    """Slices, one behind the other; None along an axis of fixed size."""
    axis = dim % x.ndim
    if not any(isinstance(e, Dim) for e in (x.shape[axis], *(s[axis] for s in shapes))):
        return None
    size, begin, made = count(x.shape[axis]), 0, []
    for shape in shapes:
        made.append(_taken(x, axis, arange(shape[axis]) + begin, size))
        begin = begin + count(shape[axis])
    return tuple(made)


def cut_back(
    shape: tuple[Extent, ...], count: Count, node: Node,
    head: Any, sizes: Any, dim: int, start: Any, end: Any, step: int,
) -> Any:  # fmt: skip
    """The adjoint of a slice: the head at its places, 0 elsewhere."""
    return put(shape, count, node, 0, head, dim, start, end, step)


def picked_back(
    shape: tuple[Extent, ...], count: Count, node: Node, head: Any, sizes: Any, dim: int, index: Any
) -> Any:
    """The adjoint of one place: the head there, 0 elsewhere."""
    axis = dim % len(shape)
    row = reshape(head, (*shape[:axis], 1, *shape[axis + 1 :]))
    return put(shape, count, node, 0, row, axis, index, None, 1)


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


def filled(shape: tuple[Extent, ...], count: Count, node: Node, *given: Any, **_: Any) -> Any:
    """A size everywhere, which is the last argument; None for what is a number."""
    value = given[-1]
    number = count(value)
    kind = TYPES[node.meta["val"].dtype]
    return None if number is value else astype(broadcast_to(number, shape), kind)


def repeated(
    shape: tuple[Extent, ...], count: Count, node: Node, x: Any, times: Sequence[Any]
) -> Any:
    """``y[i] = x[i mod n]``; None where no axis that is repeated is symbolic."""
    own = (1,) * (len(shape) - x.ndim) + tuple(x.shape)
    moved = [n for n, e in enumerate(shape) if e is not own[n] and e != own[n]]
    if not any(isinstance(e, Dim) for n in moved for e in (own[n], shape[n])):
        return None
    made = reshape(x, own)
    for axis in moved:
        places = remainder(arange(shape[axis]), count(own[axis]))
        made = take(made, places, axis=axis)
    return made


def _taken(x: Any, axis: int, places: Any, size: Any) -> Any:
    """``x[.., places, ..]``, at the nearest place that there is."""
    if isinstance(size, int) and size == 1:
        return x
    return take(x, clip(places, 0, size - 1), axis=axis)


def _along(x: Tensor, axis: int, rank: int) -> Tensor:
    return reshape(x, tuple([x.shape[0] if n == axis else 1 for n in range(rank)]))


JOINED = {
    aten.cat.default,
    aten.repeat.default,
    aten.slice.Tensor,
    aten.slice_backward.default,
    *windows.RULES,
}
RULES: dict[Any, Callable[..., Any]] = {
    **ordered.RULES,
    **windows.RULES,
    aten.cat.default: joined,
    aten.slice.Tensor: cut,
    aten.select.int: picked,
    aten.split.Tensor: parted,
    aten.split_with_sizes.default: parted,
    aten.slice_backward.default: cut_back,
    aten.select_backward.default: picked_back,
    aten.slice_scatter.default: put,
    aten.constant_pad_nd.default: padded,
    aten.full.default: filled,
    aten.scalar_tensor.default: filled,
    aten.repeat.default: repeated,
    aten.arange.default: counted_from,
    aten.arange.start: counted_from,
    aten.arange.start_step: counted_from,
}
