"""Operators that pack what a mask picks into a given number of places; ranks, and histograms."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pullback as pb
from pullback.bridge.aten.table import aten, rule


def _packed(mask: Any, values: Any, count: int, fill: Any) -> Any:
    """The values where a flat `mask` is true, in order: the first `count`, then `fill`."""
    places = pb.cumulative_sum(pb.astype(mask, pb.int64), axis=0) - 1
    places = pb.where(mask & (places < count), places, count)
    blank = pb.full((count + 1,), fill, dtype=values.dtype)
    return pb.index_put(blank, [places], values)[:count]


@rule(aten.masked_scatter_backward.default)
def masked_scatter_backward(head: Any, mask: Any, shape: Sequence[int]) -> Any:
    """The adjoint of what was scattered: the heads that `mask` picks, in order."""
    whole = pb.reshape(pb.broadcast_to(mask, tuple(head.shape)), (-1,))
    picked = _packed(whole, pb.reshape(head, (-1,)), math.prod(shape), 0)
    return pb.reshape(picked, tuple(shape))


@rule(aten.nonzero_static.default)
def nonzero_static(x: Any, *, size: int, fill_value: int = -1) -> Any:
    """The first `size` places of what is not 0, a row each."""
    if not x.ndim:
        return pb.zeros((size, 0), dtype=pb.int64)
    mask = pb.reshape(x != 0, (-1,))
    flat = pb.arange(math.prod(x.shape), dtype=pb.int64)
    columns, rest = [], flat
    for extent in reversed(x.shape):
        columns.append(_packed(mask, rest % max(1, extent), size, fill_value))
        rest = rest // max(1, extent)
    return pb.stack(columns[::-1], axis=1)


@rule(aten.nanmedian.dim)
def nanmedian_dim(x: Any, dim: int, keepdim: bool = False) -> Any:
    """The lower one of two in the middle of what is a number, and its place."""
    if not x.ndim:
        return x, pb.zeros((), dtype=pb.int64)
    order = pb.argsort(x, axis=dim)
    count = pb.sum(pb.astype(~pb.isnan(x), pb.int64), axis=dim, keepdims=True)
    place = pb.take_along_axis(order, pb.maximum(count - 1, 0) // 2, axis=dim)
    value = pb.take_along_axis(x, place, axis=dim)
    return (value, place) if keepdim else (pb.squeeze(value, dim), pb.squeeze(place, dim))


@rule(aten.nanmedian.default)
def nanmedian(x: Any) -> Any:
    return nanmedian_dim(pb.reshape(x, (-1,)), 0)[0]


def _edges(flat: Any, bins: int, range: Sequence[float] | None) -> Any:
    """Of bins of equal width over a range, or from the least to the largest."""
    if range is None:
        low, high = (pb.amin(flat), pb.amax(flat)) if flat.shape[0] else (0.0, 1.0)
    else:
        low, high = range
    same = pb.where(pb.tensor(0.0, dtype=flat.dtype) + low == high, 0.5, 0.0)
    low, high = low - same, high + same
    steps = pb.arange(bins + 1, dtype=flat.dtype) / bins
    return pb.where(steps < 0.5, low + (high - low) * steps, high - (high - low) * (1 - steps))


def _binned(flat: Any, edges: Any) -> tuple[Any, Any]:
    """The bin of each element, the last one with its right edge; whether there is one."""
    bins = edges.shape[0] - 1
    place = pb.searchsorted(edges, flat, side="right") - 1
    place = pb.where(flat == edges[bins], bins - 1, place)
    return pb.clip(place, 0, bins - 1), (flat >= edges[0]) & (flat <= edges[bins])


@rule(aten.histogram.bin_ct)
def histogram(
    x: Any, bins: int = 100, *, range: Sequence[float] | None = None, weight: Any = None,
    density: bool = False,
) -> Any:  # fmt: skip
    """How much lies between edges, the last one included."""
    flat = pb.reshape(x, (-1,))
    edges = _edges(flat, bins, range)
    return _counted(pb.reshape(x, (-1, 1)), [edges], weight, density), edges


def _counted(points: Any, edges: Sequence[Any], weight: Any, density: bool) -> Any:
    """How much lies in each box between edges: a row of numbers a point."""
    counts = [e.shape[0] - 1 for e in edges]
    kind = points.dtype
    mass = pb.ones((points.shape[0],), dtype=kind) if weight is None else pb.reshape(weight, (-1,))
    where = pb.zeros((points.shape[0],), dtype=pb.int64)
    for n, (edge, count) in enumerate(zip(edges, counts, strict=True)):
        place, inside = _binned(points[:, n], edge)
        where = where * count + place
        mass = pb.where(inside, mass, 0)
    flat = pb.index_add(pb.zeros((math.prod(counts),), dtype=kind), where, mass, axis=0)
    boxes = pb.reshape(flat, tuple(counts))
    if density:
        boxes = boxes / pb.sum(flat)
        for n, edge in enumerate(edges):
            width = [-1 if n == k else 1 for k in range(len(counts))]
            boxes = boxes / pb.reshape(edge[1:] - edge[:-1], width)
    return boxes


@rule(aten._histogramdd_bin_edges.default)
def histogramdd_edges(
    x: Any, bins: Sequence[int], *, range: Sequence[float] | None = None, weight: Any = None,
    density: bool = False,
) -> Any:  # fmt: skip
    del weight, density
    points = pb.reshape(x, (-1, x.shape[-1]))
    ends = [None if range is None else range[2 * n : 2 * n + 2] for n, _ in enumerate(bins)]
    return tuple(
        [_edges(points[:, n], b, e) for n, (b, e) in enumerate(zip(bins, ends, strict=True))]
    )


@rule(aten._histogramdd_from_bin_cts.default)
def histogramdd(
    x: Any, bins: Sequence[int], *, range: Sequence[float] | None = None, weight: Any = None,
    density: bool = False,
) -> Any:  # fmt: skip
    edges = histogramdd_edges(x, bins, range=range)
    return _counted(pb.reshape(x, (-1, x.shape[-1])), edges, weight, density)


@rule(aten._histogramdd_from_bin_tensors.default)
def histogramdd_between(
    x: Any, bins: Sequence[Any], *, weight: Any = None, density: bool = False
) -> Any:
    return _counted(pb.reshape(x, (-1, x.shape[-1])), bins, weight, density)
