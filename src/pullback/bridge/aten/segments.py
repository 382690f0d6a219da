"""Reductions of segments of an axis, by their lengths or by where they begin."""

from __future__ import annotations

import math
from typing import Any

import pullback as pb
from pullback.bridge.aten.table import aten, rule

BEGINS = {"sum": 0.0, "mean": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}
WAYS = {"sum": "sum", "mean": "sum", "prod": "prod", "max": "amax", "min": "amin"}


def _no_lengths(
    x: Any, reduce: str, *, lengths: Any = None, indices: Any = None, offsets: Any = None, **_: Any
) -> str | None:
    return "segments by indices" if lengths is None and offsets is None else None


def _segments(x: Any, lengths: Any, offsets: Any, axis: int, unsafe: bool) -> tuple[Any, Any]:
    """The segment of each place along an axis (one too many beyond the last), and lengths.

    Lengths that are no whole axis give a segment that there is not, which raises while running.
    """
    if lengths is None:
        ends = offsets[..., 1:]
        lengths = ends - offsets[..., :-1]
        begin = offsets[..., :1]
    else:
        ends = pb.cumulative_sum(lengths, axis=-1)
        begin = pb.zeros((*lengths.shape[:-1], 1), dtype=lengths.dtype)
    count = lengths.shape[-1]
    places = pb.arange(x.shape[axis], dtype=pb.int64)
    passed = pb.expand_dims(ends, axis=-2) <= pb.reshape(places, (-1, 1))
    which = pb.sum(pb.astype(passed, pb.int64), axis=-1)
    which = pb.where(places < begin, count, which)
    if not unsafe and count:
        whole = (ends[..., -1:] == x.shape[axis]) & pb.all(lengths >= 0, axis=-1, keepdims=True)
        which = pb.where(whole, which, count + 1)
    return which, lengths


def _wide(value: Any, x: Any) -> Any:
    """With the axes of `x` that follow it."""
    return pb.reshape(value, (*value.shape, *(1,) * (x.ndim - value.ndim)))


def _reduced(x: Any, which: Any, count: int, way: str, begin: float) -> Any:
    axis = which.ndim - 1
    shape = (*x.shape[:axis], count + 1, *x.shape[axis + 1 :])
    places = pb.broadcast_to(_wide(which, x), x.shape)
    blank = pb.full(shape, begin, dtype=x.dtype)
    sums = pb.scatter_reduce(blank, places, x, way, axis=axis)
    return sums[(slice(None),) * axis + (slice(0, count),)]


@rule(aten.segment_reduce.default, refuses=_no_lengths)
def segment_reduce(
    x: Any, reduce: str, *, lengths: Any = None, indices: Any = None, offsets: Any = None,
    axis: int = 0, unsafe: bool = False, initial: Any = None,
) -> Any:  # fmt: skip
    """What is empty is `initial`, or what a reduction begins with; its mean is NaN."""
    del indices
    which, sizes = _segments(x, lengths, offsets, axis % x.ndim, unsafe)
    begin = BEGINS[reduce] if initial is None else float(initial)
    y = _reduced(x, which, sizes.shape[-1], WAYS[reduce], begin)
    if reduce != "mean":
        return y
    by = _wide(sizes, y)
    empty = begin if initial is not None else math.nan
    return pb.where(by == 0, empty, y / pb.astype(by, y.dtype))


@rule(aten._segment_reduce_backward.default)
def segment_reduce_backward(
    head: Any, y: Any, x: Any, reduce: str, *, lengths: Any = None, offsets: Any = None,
    axis: int = 0, initial: Any = None,
) -> Any:  # fmt: skip
    """Heads at the elements of their segments; nothing beyond them."""
    axis = axis % x.ndim
    which, sizes = _segments(x, lengths, offsets, axis, True)
    count = sizes.shape[-1]
    if not count or 0 in x.shape:
        return pb.zeros(x.shape, dtype=x.dtype)
    inside = _wide(which < count, x)
    places = pb.broadcast_to(_wide(pb.minimum(which, count - 1), x), x.shape)

    def spread(value: Any) -> Any:
        return pb.take_along_axis(value, places, axis=axis)

    given = spread(head)
    if reduce == "mean":
        given = given / spread(pb.astype(pb.broadcast_to(_wide(sizes, y), y.shape), x.dtype))
    elif reduce == "prod":
        begin = 1.0 if initial is None else float(initial)
        none = pb.astype(x == 0, x.dtype)
        zeros = _reduced(none, which, count, "sum", 0.0)
        rest = _reduced(pb.where(x == 0, 1, x), which, count, "prod", begin)
        alone = pb.where(x == 0, spread(zeros) == 1, spread(zeros) == 0)
        given = given * pb.where(alone, spread(rest) / pb.where(x == 0, 1, x), 0)
    elif reduce in ("max", "min"):
        best = (x == spread(y)) | pb.isnan(x)
        ties = spread(_reduced(pb.astype(best, x.dtype), which, count, "sum", 0.0))
        shared = pb.where(given > 0, given / ties, given)  # as eager: of what is above 0
        given = pb.where(best, shared, 0)
    return pb.where(inside, given, 0)
