"""Bags of embeddings: sums, means and largest of rows, by where each bag begins."""

from __future__ import annotations

import math
from typing import Any

import pullback as pb
from pullback.bridge.aten.layers import counted
from pullback.bridge.aten.table import aten, rule

SUM, MEAN, MOST = range(3)
QUICK = pb.float32, pb.float16  # types whose sums PyTorch has in one loop


def _bags(offsets: Any, count: int, bags: int) -> tuple[Any, Any]:
    """Which bag each place is of, and whether it is of any."""
    places = pb.arange(count, dtype=offsets.dtype)
    bag = pb.searchsorted(offsets, places, side="right") - 1
    return pb.clip(bag, 0, max(0, bags - 1)), (bag >= 0) & (bag < bags)


def _kept(indices: Any, inside: Any, padding: int) -> Any:
    return inside & (indices != padding) if padding >= 0 else inside


def _sums(bag: Any, values: Any, bags: int) -> Any:
    """The sum of each bag."""
    return pb.index_add(
        pb.zeros((bags, *values.shape[1:]), dtype=values.dtype), bag, values, axis=0
    )


def _column(x: Any) -> Any:
    return pb.expand_dims(x, axis=1)


@rule(aten._embedding_bag.default, aten._embedding_bag_forward_only.default)
def embedding_bag(
    w: Any, indices: Any, offsets: Any, by_frequency: bool = False, mode: int = SUM,
    sparse: bool = False, weights: Any = None, last: bool = False, padding: int = -1,
) -> Any:  # fmt: skip
    """The bags, which bag each index is of, their sizes, and whose rows are largest."""
    del by_frequency, sparse
    count, bags = indices.shape[0], offsets.shape[0] - int(last)
    bag, inside = _bags(offsets, count, bags)
    kept = _kept(indices, inside, padding)
    rows = pb.take(w, counted(indices, w), axis=0)
    rows = rows if weights is None else rows * _column(weights)
    sizes = _sums(bag, pb.astype(kept, offsets.dtype), bags)
    most = pb.zeros(sizes.shape, dtype=offsets.dtype)
    if mode == MOST:
        y, most = _largest(rows, bag, kept, indices, sizes)
        return y, bag, sizes, most
    y = _sums(bag, pb.where(_column(kept), rows, 0), bags)
    if mode == MEAN:
        return y / _column(pb.maximum(sizes, 1)), bag, sizes, most
    quick = padding < 0 and w.dtype in QUICK  # PyTorch then says so, and has none
    return y, pb.zeros((0,), dtype=offsets.dtype) if quick else bag, sizes, most


def _largest(rows: Any, bag: Any, kept: Any, indices: Any, sizes: Any) -> tuple[Any, Any]:
    """Of each bag and column the largest, and the row of the table that it is from."""
    bags, width, count = sizes.shape[0], rows.shape[1], rows.shape[0]
    low = pb.full((bags, width), -math.inf, dtype=rows.dtype)
    y = pb.index_reduce(low, bag, pb.where(_column(kept), rows, -math.inf), "amax", axis=0)
    mine = _column(kept) & (rows == pb.take(y, bag, axis=0))
    places = pb.where(mine, _column(pb.arange(count)), count)
    none = pb.full((bags, width), count, dtype=places.dtype)
    first = pb.index_reduce(none, bag, places, "amin", axis=0)
    whole = pb.concat([indices, pb.zeros((1,), dtype=indices.dtype)], axis=0)
    return pb.where(_column(sizes == 0), 0, y), pb.take(whole, first, axis=0)


def _counted_backward(*args: Any, **_: Any) -> str | None:
    """By frequency PyTorch 2.13 divides rows by how often others are named: those are its own."""
    return "gradients by frequency, which PyTorch counts in another way" if args[7] else None


@rule(aten._embedding_bag_backward.default, refuses=_counted_backward)
def embedding_bag_backward(
    head: Any, indices: Any, offsets: Any, bag: Any, sizes: Any, most: Any, rows: int,
    by_frequency: bool, mode: int, sparse: bool, weights: Any, padding: int = -1,
) -> Any:  # fmt: skip
    """The adjoint of the table."""
    del by_frequency, sparse, bag
    bags, width = head.shape
    table = pb.zeros((rows, width), dtype=head.dtype)
    if mode == MOST:
        own = pb.where(_column(sizes[:bags] == 0), 0, head)
        return pb.scatter_add(table, most, own, axis=0)
    if mode == MEAN:
        head = head / pb.astype(_column(pb.maximum(sizes[:bags], 1)), head.dtype)
    place, inside = _bags(offsets, indices.shape[0], bags)
    values = pb.take(head, place, axis=0)
    values = values if weights is None else values * _column(weights)
    kept = _kept(indices, inside, padding)
    return pb.index_add(table, counted(indices, table), pb.where(_column(kept), values, 0), axis=0)


@rule(aten._embedding_bag_per_sample_weights_backward.default)
def embedding_bag_weights_backward(
    head: Any, w: Any, indices: Any, offsets: Any, bag: Any, mode: int, padding: int = -1
) -> Any:
    """The adjoint of the weight of each index."""
    del bag, mode
    place, inside = _bags(offsets, indices.shape[0], head.shape[0])
    values = pb.sum(pb.take(head, place, axis=0) * pb.take(w, counted(indices, w), axis=0), axis=1)
    return pb.where(_kept(indices, inside, padding), values, 0)
