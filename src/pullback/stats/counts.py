"""Counting: how often each number, how many in each bin.

``bincount(x, w)[n] = sum[k] (x[k] == n ? w[k] : 0)``
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pullback.errors import ShapeError
from pullback.ir import dtype as D
from pullback.ir import expr as E
from pullback.ir.expr import Axis
from pullback.ir.graph import SUM, Accumulate, read
from pullback.stats.places import diff, searchsorted
from pullback.tensor.face.tensor import Tensor, value_of
from pullback.tensor.library import creation as C
from pullback.tensor.library import maths as M
from pullback.tensor.library import ops as O
from pullback.tensor.library.scalars import value_tensor
from pullback.tensor.record.trace import bind
from pullback.tensor.shaped import shaped
from pullback.tensor.values import elementwise as W
from pullback.tensor.values import views as V


@shaped("x: int[n], weights[n] -> [length]")
def bincount(x: Any, length: int | None = None, *, weights: Any = None) -> Tensor:
    """``out[n] = sum[k] (x[k] == n ? weights[k] : 0)``: how often each number is there; int64.

    `length` says how many numbers are counted; larger ones raise. Without it the largest number
    decides, which has to be looked at: inside a compiled function `length` must be given.

    Raises: ShapeError for a negative length; IndexRangeError, when it runs, for a number outside.

    Example:
        >>> pb.bincount(pb.tensor([0, 2, 2]), 4)
        Tensor([1, 0, 2, 0], dtype=int64)
    """
    value = value_of(x)
    if length is None:
        length = int(O.max(x).item()) + 1 if value.shape[0] else 0
    length = V.whole(length, "bincount: the length", 0)
    place = W.cast(read(value, Axis(0, value.shape[0])), D.int64)
    if weights is None:
        part: E.Expr = E.index(1)
    else:
        given = value_of(weights)
        part = read(given, Axis(0, given.shape[0]))
        part = part if part.dtype.is_float else W.cast(part, D.float64)
    return Tensor(W.make("bincount", (length,), part, Accumulate(SUM, value.shape, (place,))))


def _edges(x: Tensor, bins: int, low: Any, high: Any, kind: D.DType) -> Tensor:
    """Even edges from the lowest to the highest; one wider to each side where they are equal."""
    low, high = (O.astype(value_tensor(e), kind) for e in (low, high))
    one = M.equal(low, high)
    low, high = O.where(one, low - 0.5, low), O.where(one, high + 0.5, high)
    step = (high - low) / float(bins)
    inner = low + step * C.arange(bins + 1, dtype=kind)
    last = M.equal(C.arange(bins + 1), bins)
    edges: Tensor = O.where(last, high, inner)
    return edges


@shaped("x[...], weights[...] -> [n], [n + 1]")
def histogram(
    x: Any,
    bins: Any = 10,
    *,
    range: tuple[float, float] | None = None,
    weights: Any = None,
    density: bool = False,
) -> tuple[Tensor, Tensor]:
    """How many elements, or how much weight, lie in each bin, and the edges of the bins.

    ``edges[n] <= x < edges[n + 1]``, in the last bin ``<=`` too. `bins` is a number of even bins
    within `range` (of the data by default), or increasing edges. `density`: the integral is 1.

    Raises: ShapeError for no bins, or a range in the wrong order.

    Example:
        >>> pb.histogram(pb.tensor([1.0, 2.0, 2.0]), 2, range=(0.0, 4.0))
        (Tensor([1, 2], dtype=int64), Tensor([0., 2., 4.], dtype=float32))
    """
    flat = O.reshape(value_tensor(x), (-1,))
    kind = W.as_float(flat.dtype) if flat.dtype.is_float else D.float64
    kind = D.float32 if D.is_short(kind) else kind
    if isinstance(bins, int | np.integer):
        count = V.whole(bins, "histogram: the number of bins", 1)
        if range is not None and not (len(range) == 2 and range[0] <= range[1]):
            raise ShapeError(f"a histogram from and to {tuple(range)}", code="E123")
        if range is None:
            low, high = (O.min(flat), O.max(flat)) if flat.shape[0] else (0.0, 1.0)
        else:
            low, high = range
        edges = O.stop_gradient(_edges(flat, count, low, high, kind))
    else:
        edges = (
            value_tensor(bins)
            if isinstance(bins, Tensor)
            else Tensor(bind(np.array(bins), "edges"))
        )
        first = edges.shape[0] if edges.ndim == 1 else 0
        count = first - 1 if isinstance(first, int) else 0
        if count < 1:
            raise ShapeError(f"edges of bins of shape {W.show(edges.shape)}", code="E111")
    counts = _binned(flat, edges, count, weights)
    if density:
        counts = O.astype(counts, kind) / diff(edges) / O.astype(O.sum(counts), kind)
    return counts, edges


def _binned(flat: Tensor, edges: Tensor, count: int, weights: Any) -> Tensor:
    place = searchsorted(edges, flat, side="right")
    last = edges[count]
    place = O.where(M.equal(flat, last), count, place)
    # what lies outside is counted beyond the last bin
    place = O.where(M.equal(place, 0), count + 1, place) - 1
    place = O.where(M.greater(place, count), count, place)
    given = None if weights is None else O.reshape(value_tensor(weights), (-1,))
    counts: Tensor = bincount(place, count + 1, weights=given)[:count]
    return counts


@shaped("x[...] -> [bins]", where="int(bins) >= 1, min <= max")
def histc(x: Any, bins: int = 100, *, min: float = 0.0, max: float = 0.0) -> Tensor:
    """How many elements lie in each of even bins from `min` to `max`, as floats.

    Equal bounds stand for those of the data. Elements outside, and NaN, are not counted.

    Raises: ShapeError for no bins or bounds in the wrong order.

    Example:
        >>> pb.histc(pb.tensor([1.0, 2.0, 2.0]), 2, min=0.0, max=4.0)
        Tensor([1., 2.], dtype=float32)
    """
    value = value_tensor(x)
    limits = None if min == max else (min, max)
    counts = histogram(x, bins, range=limits)[0]
    kind = W.as_float(value.dtype)
    counted: Tensor = O.astype(counts, kind)
    return counted
