"""Elements at places that are data: gathers, scatters, orders."""

from __future__ import annotations

from typing import Any

import numpy as np

import pullback as pb
from pullback.onnx.rules.table import axis_of, demand, numbers, rule

REDUCTIONS = {"none": "set", "add": "add", "mul": "mul", "max": "max", "min": "min"}


@rule("Gather", 1, 11, 13)
def gather(x: Any, indices: Any, *, axis: int) -> Any:
    at = axis_of(axis, x.ndim)
    return pb.take(x, indices, axis=at)


@rule("GatherElements", 11, 13)
def gather_elements(x: Any, indices: Any, *, axis: int) -> Any:
    return pb.gather(x, indices, axis_of(axis, x.ndim))


@rule("GatherND", 11)
def gather_nd_of(x: Any, indices: Any) -> Any:
    return gather_nd(x, indices, batch_dims=0)


@rule("GatherND", 12, 13)
def gather_nd(x: Any, indices: Any, *, batch_dims: int) -> Any:
    """``y[b.., i.., :] = x[b.., indices[b.., i.., 0], indices[b.., i.., 1], .., :]``"""
    count = indices.shape[-1]
    places = [indices[..., n] for n in range(count)]
    rank = indices.ndim - 1
    lead = []
    for n in range(batch_dims):
        shape = [1] * rank
        shape[n] = x.shape[n]
        lead.append(pb.reshape(pb.arange(x.shape[n], dtype=indices.dtype), tuple(shape)))
    return x[(*lead, *places)]


@rule("Scatter", 9, 11)
@rule("ScatterElements", 11, 13)
def scatter_elements(x: Any, indices: Any, updates: Any, *, axis: int) -> Any:
    return pb.scatter(x, indices, updates, axis=axis_of(axis, x.ndim))


@rule("ScatterElements", 16, 18)
def scatter_elements_by(x: Any, indices: Any, updates: Any, *, axis: int, reduction: str) -> Any:
    at = axis_of(axis, x.ndim)
    demand(reduction in REDUCTIONS, f"reduction={reduction!r}")
    names = {"add": "sum", "mul": "prod", "max": "amax", "min": "amin"}
    if reduction == "none":
        return pb.scatter(x, indices, updates, axis=at)
    return pb.scatter_reduce(x, indices, updates, names[reduction], axis=at)


@rule("ScatterND", 11, 13)
def scatter_nd(x: Any, indices: Any, updates: Any) -> Any:
    return scatter_nd_by(x, indices, updates, reduction="none")


@rule("ScatterND", 16, 18)
def scatter_nd_by(x: Any, indices: Any, updates: Any, *, reduction: str) -> Any:
    """Rows of a matrix, at places that the indices spell."""
    demand(reduction in REDUCTIONS, f"reduction={reduction!r}")
    count = indices.shape[-1]
    lead, rest = tuple(x.shape[:count]), tuple(x.shape[count:])
    flat: Any = 0
    for n, extent in enumerate(lead):
        own = indices[..., n]
        flat = flat * extent + pb.where(own < 0, own + extent, own)
    rows = int(np.prod(lead))
    width = int(np.prod(rest))
    places = pb.reshape(pb.astype(flat, pb.int64), (-1, 1))
    many = pb.broadcast_to(places, (places.shape[0], width))
    table, values = pb.reshape(x, (rows, width)), pb.reshape(updates, (places.shape[0], width))
    y = scatter_elements_by(table, many, values, axis=0, reduction=reduction)
    return pb.reshape(y, tuple(x.shape))


@rule("OneHot", 9, 11, 28, known=(1,))
def one_hot(indices: Any, depth: Any, values: Any, *, axis: int) -> Any:
    """``y = on where the index is there, else off``; an index out of range is nowhere."""
    size = int(depth.reshape(-1)[0])
    at = axis_of(axis, indices.ndim + 1)
    shape = [1] * (indices.ndim + 1)
    shape[at] = size
    whole = indices
    if not indices.dtype.is_integer or indices.dtype.kind == "u":
        whole = pb.astype(indices, pb.int64)
    here = pb.reshape(pb.arange(size, dtype=whole.dtype), tuple(shape))
    counted = pb.where(whole < 0, whole + size, whole)
    return pb.where(pb.expand_dims(counted, axis=at) == here, values[1], values[0])


@rule("TopK", 10, known=(1,))
def top_k(x: Any, k: Any, *, axis: int) -> Any:
    return top_k_by(x, k, axis=axis, largest=1, sorted=1)


@rule("TopK", 11, 24, known=(1,))
def top_k_by(x: Any, k: Any, *, axis: int, largest: int, sorted: int) -> Any:
    """In order always; of equal ones the first."""
    del sorted
    at = axis_of(axis, x.ndim)
    order = pb.argsort(x, axis=at, descending=bool(largest), stable=True)
    places = order[(*[slice(None)] * at, slice(0, numbers(k)[0]))]
    return pb.take_along_axis(x, places, axis=at), pb.astype(places, pb.int64)


@rule("Compress", 9, 11, 28, known=(1,))
def compress(x: Any, condition: Any, *, axis: int | None) -> Any:
    """Where the condition holds, which is known: it decides the shape."""
    chosen = np.flatnonzero(condition.reshape(-1))
    x = pb.reshape(x, (-1,)) if axis is None else x
    at = 0 if axis is None else axis_of(axis, x.ndim)
    return pb.take(x, pb.tensor(chosen), axis=at)


@rule("ReverseSequence", 10, 28)
def reverse_sequence(x: Any, lengths: Any, *, batch_axis: int, time_axis: int) -> Any:
    """``y[t, b] = x[len[b] - 1 - t, b] where t < len[b]``"""
    shapes = [[1] * x.ndim for _ in range(2)]
    shapes[0][time_axis], shapes[1][batch_axis] = x.shape[time_axis], x.shape[batch_axis]
    time = pb.reshape(pb.arange(x.shape[time_axis], dtype=pb.int64), tuple(shapes[0]))
    own = pb.reshape(pb.astype(lengths, pb.int64), tuple(shapes[1]))
    places = pb.where(time < own, own - 1 - time, time)
    return pb.take_along_axis(x, pb.broadcast_to(places, tuple(x.shape)), axis=time_axis)
