"""Operators that write by indices, look up, or pick by rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pullback as pb
from pullback.bridge.aten.shapes import slice_
from pullback.bridge.aten.table import aten, cast, of_numbers, rule
from pullback.bridge.complexes import ELEMENTS

REDUCES = {"add": "sum", "multiply": "prod"}


@rule(aten.scatter_reduce.two)
@of_numbers
def scatter_reduce(
    x: Any, dim: int, indices: Any, values: Any, reduce: str, *, include_self: bool = True
) -> Any:
    return pb.scatter_reduce(x, indices, values, reduce, axis=dim, include_self=include_self)


@rule(aten.scatter.reduce)
@of_numbers
def scatter_by(x: Any, dim: int, indices: Any, values: Any, *, reduce: str) -> Any:
    return pb.scatter_reduce(x, indices, values, REDUCES[reduce], axis=dim)


@rule(aten.scatter.value_reduce)
@of_numbers
def scatter_value_by(x: Any, dim: int, indices: Any, value: Any, *, reduce: str) -> Any:
    return scatter_by(x, dim, indices, pb.full(indices.shape, value, dtype=x.dtype), reduce=reduce)


@rule(aten.index_reduce.default)
@of_numbers
def index_reduce(
    x: Any, dim: int, indices: Any, values: Any, reduce: str, *, include_self: bool = True
) -> Any:
    return pb.index_reduce(x, indices, values, reduce, axis=dim, include_self=include_self)


@rule(aten.index_fill.int_Scalar, aten.index_fill.int_Tensor)
def index_fill(x: Any, dim: int, indices: Any, value: Any) -> Any:
    return pb.index_fill(x, indices, value, axis=dim)


@rule(aten.index_copy.default)
@of_numbers
def index_copy(x: Any, dim: int, indices: Any, values: Any) -> Any:
    return pb.index_copy(x, indices, values, axis=dim)


@rule(aten.put.default)
def put(x: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
    return pb.put(x, indices, values, accumulate=accumulate)


@rule(aten.take.default)
def take(x: Any, indices: Any) -> Any:
    return pb.reshape(x, (-1,))[indices]


@rule(aten.masked_scatter.default)
def masked_scatter(x: Any, mask: Any, source: Any) -> Any:
    return pb.masked_scatter(x, mask, source)


@rule(aten.diagonal_scatter.default)
def diagonal_scatter(x: Any, values: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    return pb.diagonal_scatter(x, values, offset=offset, axis1=dim1, axis2=dim2)


@rule(aten.diagonal_backward.default)
def diagonal_backward(head: Any, shape: Sequence[int], offset: int, dim1: int, dim2: int) -> Any:
    blank = pb.zeros(tuple(shape), dtype=head.dtype)
    return diagonal_scatter(blank, head, offset, dim1, dim2)


@rule(aten.bucketize.Tensor)
def bucketize(x: Any, boundaries: Any, *, out_int32: bool = False, right: bool = False) -> Any:
    del out_int32  # the type stands in the graph
    return pb.bucketize(x, boundaries, right=right)


@rule(aten.searchsorted.Tensor)
def searchsorted(
    boundaries: Any, x: Any, *, out_int32: bool = False, right: bool = False,
    side: str | None = None, sorter: Any = None,
) -> Any:  # fmt: skip
    del out_int32
    where = side or ("right" if right else "left")
    return pb.searchsorted(boundaries, x, side=where, sorter=sorter)


@rule(aten.kthvalue.default)
def kthvalue(x: Any, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    if not x.ndim:
        return x, pb.zeros((), dtype=pb.int64)
    return pb.kthvalue(x, k, dim, keepdims=keepdim)


@rule(aten.median.default)
def median(x: Any) -> Any:
    """The lower one of two in the middle; NaN where there is one."""
    flat = pb.reshape(x, (-1,))
    middle, _ = pb.kthvalue(flat, (flat.shape[0] + 1) // 2)
    return middle if "int" in x.dtype.name else pb.where(pb.any(pb.isnan(x)), pb.nan, middle)


@rule(aten.median.dim)
def median_dim(x: Any, dim: int, keepdim: bool = False) -> Any:
    """The lower one of two in the middle and its place; the first NaN where there is one."""
    if not x.ndim:
        return x, pb.zeros((), dtype=pb.int64)
    order = pb.argsort(x, axis=dim)
    middle = slice_(order, dim, (x.shape[dim] - 1) // 2, (x.shape[dim] - 1) // 2 + 1)
    return middles(x, middle, dim, keepdim)


def middles(x: Any, middle: Any, dim: int, keepdim: bool) -> Any:
    """The elements at places, or NaN where there is one; and the places."""
    if x.dtype.is_float:
        missing = pb.isnan(x)
        first = pb.argmax(pb.astype(missing, pb.int32), axis=dim, keepdims=True)
        middle = pb.where(pb.any(missing, axis=dim, keepdims=True), first, middle)
    value = pb.take_along_axis(x, middle, axis=dim)
    return (value, middle) if keepdim else (pb.squeeze(value, dim), pb.squeeze(middle, dim))


@rule(aten.mode.default)
def mode(x: Any, dim: int = -1, keepdim: bool = False) -> Any:
    if not x.ndim:
        return x, pb.zeros((), dtype=pb.int64)
    return pb.mode(x, dim, keepdims=keepdim)


@rule(aten.cummax.default)
def cummax(x: Any, dim: int) -> Any:
    if not x.ndim:
        return x, pb.zeros((), dtype=pb.int64)
    return pb.cumulative_max(x, dim), pb.cumulative_argmax(x, dim)


@rule(aten.cummin.default)
def cummin(x: Any, dim: int) -> Any:
    if not x.ndim:
        return x, pb.zeros((), dtype=pb.int64)
    return pb.cumulative_min(x, dim), pb.cumulative_argmin(x, dim)


@rule(aten.aminmax.default)
def aminmax(x: Any, *, dim: int | None = None, keepdim: bool = False) -> Any:
    axis = None if not x.ndim else dim
    return pb.amin(x, axis=axis, keepdims=keepdim), pb.amax(x, axis=axis, keepdims=keepdim)


@rule(aten.histc.default)
def histc(x: Any, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    return pb.histc(x, bins, min=min, max=max)


@rule(aten.trace.default)
def trace(x: Any) -> Any:
    return pb.trace(x)


@rule(aten.tril_indices.default)
def tril_indices(rows: int, columns: int, offset: int = 0, **_: Any) -> Any:
    return pb.stack(list(pb.tril_indices(rows, columns, k=offset)))


@rule(aten.triu_indices.default)
def triu_indices(rows: int, columns: int, offset: int = 0, **_: Any) -> Any:
    return pb.stack(list(pb.triu_indices(rows, columns, k=offset)))


# --- tensors of nothing in particular: zeros ------------------------------------------------------


@rule(aten.empty.memory_format, aten.empty_permuted.default, aten.empty_strided.default)
def empty(shape: Sequence[int], *_: Any, dtype: Any = None, **__: Any) -> Any:
    return pb.zeros(tuple(shape), dtype=pb.float32 if dtype is None else ELEMENTS[dtype])


@rule(aten.new_empty.default, aten.new_empty_strided.default)
def new_empty(x: Any, shape: Sequence[int], *_: Any, dtype: Any = None, **__: Any) -> Any:
    return pb.zeros(tuple(shape), dtype=x.dtype if dtype is None else ELEMENTS[dtype])


@rule(aten.empty_like.default)
def empty_like(x: Any, *, dtype: Any = None, **_: Any) -> Any:
    return pb.zeros(tuple(x.shape), dtype=x.dtype if dtype is None else ELEMENTS[dtype])


@rule(aten.new_full.default)
def new_full(x: Any, shape: Sequence[int], value: Any, *, dtype: Any = None, **_: Any) -> Any:
    return pb.full(tuple(shape), value, dtype=x.dtype if dtype is None else ELEMENTS[dtype])


@rule(aten.fill.Scalar, aten.fill.Tensor)
def fill(x: Any, value: Any) -> Any:
    if hasattr(value, "shape"):
        return pb.broadcast_to(cast(value, x.dtype), tuple(x.shape))
    return pb.full(tuple(x.shape), value, dtype=x.dtype)


@rule(aten.linspace.default)
def linspace(start: Any, end: Any, steps: int, *, dtype: Any = None, **_: Any) -> Any:
    return pb.linspace(start, end, steps, dtype=None if dtype is None else ELEMENTS[dtype])


@rule(aten.logspace.default)
def logspace(
    start: Any, end: Any, steps: int, base: float = 10.0, *, dtype: Any = None, **_: Any
) -> Any:
    kind = None if dtype is None else ELEMENTS[dtype]
    return pb.logspace(start, end, steps, base=base, dtype=kind)


@rule(aten.native_dropout.default)
def dropout(x: Any, share: float, train: bool | None) -> Any:
    """Where nothing is dropped: what drops is written by a seed, see `bridge.draws`."""
    del share, train
    return x, pb.ones(tuple(x.shape), dtype=pb.bool_)
