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


@rule(aten.histogram.bin_ct)
def histogram(
    x: Any, bins: int = 100, *, range: Sequence[float] | None = None, weight: Any = None,
    density: bool = False,
) -> Any:  # fmt: skip
    """How much lies between edges, the last one included."""
    flat = pb.reshape(x, (-1,))
    if range is None:
        low, high = (pb.amin(flat), pb.amax(flat)) if flat.shape[0] else (0.0, 1.0)
    else:
        low, high = range
    same = pb.where(pb.tensor(0.0, dtype=x.dtype) + low == high, 0.5, 0.0)
    low, high = low - same, high + same
    steps = pb.arange(bins + 1, dtype=x.dtype) / bins
    edges = pb.where(steps < 0.5, low + (high - low) * steps, high - (high - low) * (1 - steps))
    place = pb.searchsorted(edges, flat, side="right") - 1
    place = pb.where(flat == high, bins - 1, place)
    inside = (flat >= low) & (flat <= high)
    mass = pb.ones(flat.shape, dtype=x.dtype) if weight is None else pb.reshape(weight, (-1,))
    blank = pb.zeros((bins,), dtype=x.dtype)
    mass = pb.where(inside, mass, 0)
    counts = pb.index_add(blank, pb.clip(place, 0, bins - 1), mass, axis=0)
    if density:
        counts = counts / (pb.sum(counts) * (edges[1:] - edges[:-1]))
    return counts, edges
