"""Operators that reduce axes, accumulate along one, sort or pick."""

from __future__ import annotations

from typing import Any

import pullback as pb
from pullback.bridge.aten.table import aten, axes, rule
from pullback.bridge.complexes import ELEMENTS
from pullback.tensor.face.tensor import Tensor, value_of
from pullback.tensor.library.sorting import first_of, order_of


@rule(aten.sum.default, aten.sum.dim_IntList)
def sum_(x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    kind = None if dtype is None else ELEMENTS[dtype]
    return pb.sum(x, axis=axes(dim, x.ndim), keepdims=keepdim, dtype=kind)


@rule(aten.mean.default, aten.mean.dim)
def mean(x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    given = x if dtype is None else pb.astype(x, ELEMENTS[dtype])
    return pb.mean(given, axis=axes(dim, x.ndim), keepdims=keepdim)


@rule(aten.prod.default, aten.prod.dim_int)
def prod(x: Any, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> Any:
    kind = None if dtype is None else ELEMENTS[dtype]
    x = pb.astype(x, kind or pb.int64) if x.dtype == pb.bool_ else x
    return pb.prod(x, axis=axes(dim, x.ndim), keepdims=keepdim, dtype=kind)


@rule(aten.amax.default, aten.max.default)
def amax(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return pb.amax(x, axis=axes(dim, x.ndim), keepdims=keepdim)


@rule(aten.amin.default, aten.min.default)
def amin(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return pb.amin(x, axis=axes(dim, x.ndim), keepdims=keepdim)


@rule(aten.max.dim)
def max_dim(x: Any, dim: int, keepdim: bool = False) -> Any:
    if not x.ndim:
        return x, pb.zeros((), dtype=pb.int64)
    return amax(x, dim, keepdim), argmax(x, dim, keepdim)


@rule(aten.min.dim)
def min_dim(x: Any, dim: int, keepdim: bool = False) -> Any:
    if not x.ndim:
        return x, pb.zeros((), dtype=pb.int64)
    return amin(x, dim, keepdim), argmin(x, dim, keepdim)


@rule(aten.argmax.default)
def argmax(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    if not x.ndim:
        return pb.zeros((), dtype=pb.int64)
    return pb.argmax(x, axis=dim, keepdims=keepdim)


@rule(aten.argmin.default)
def argmin(x: Any, dim: int | None = None, keepdim: bool = False) -> Any:
    if not x.ndim:
        return pb.zeros((), dtype=pb.int64)
    return pb.argmin(x, axis=dim, keepdims=keepdim)


@rule(aten.any.default, aten.any.dim, aten.any.dims)
def any_(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return pb.any(x, axis=axes(dim, x.ndim), keepdims=keepdim)


@rule(aten.all.default, aten.all.dim, aten.all.dims)
def all_(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    return pb.all(x, axis=axes(dim, x.ndim), keepdims=keepdim)


@rule(aten.var.correction)
def var(x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return pb.var(x, axis=axes(dim, x.ndim), correction=_one(correction), keepdims=keepdim)


@rule(aten.std.correction)
def std(x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    return pb.std(x, axis=axes(dim, x.ndim), correction=_one(correction), keepdims=keepdim)


@rule(aten.var_mean.correction)
def var_mean(x: Any, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Any:
    over = axes(dim, x.ndim)
    return pb.var_mean(x, axis=over, correction=_one(correction), keepdims=keepdim)


def _one(correction: Any) -> Any:
    return 1 if correction is None else correction


@rule(aten.logsumexp.default)
def logsumexp(x: Any, dim: Any, keepdim: bool = False) -> Any:
    return pb.logsumexp(x, axis=axes(dim, x.ndim), keepdims=keepdim)


@rule(aten.cumsum.default)
def cumsum(x: Any, dim: int, dtype: Any = None) -> Any:
    if not x.ndim:
        return x
    return pb.cumulative_sum(x, axis=dim, dtype=None if dtype is None else ELEMENTS[dtype])


@rule(aten.cumprod.default)
def cumprod(x: Any, dim: int, dtype: Any = None) -> Any:
    if not x.ndim:
        return x
    return pb.cumulative_prod(x, axis=dim, dtype=None if dtype is None else ELEMENTS[dtype])


@rule(aten.logcumsumexp.default)
def logcumsumexp(x: Any, dim: int) -> Any:
    return pb.cumulative_logsumexp(x, axis=dim) if x.ndim else x


@rule(aten.sort.default, aten.sort.stable)
def sort(x: Any, dim: int = -1, descending: bool = False, *, stable: Any = None) -> Any:
    """Stable always, which PyTorch promises where it is asked for alone; NaN is the largest."""
    del stable
    if not x.ndim:
        return x, pb.zeros((), dtype=pb.int64)
    order = Tensor(order_of(value_of(x), dim, descending, nan_first=descending))
    return pb.take_along_axis(x, order, axis=dim), order


@rule(aten.topk.default)
def topk(x: Any, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    """NaN is the largest, as PyTorch has it."""
    del sorted
    if not x.ndim:
        return x, pb.zeros((), dtype=pb.int64)
    order = Tensor(first_of(value_of(x), dim % x.ndim, k, largest, nan_first=largest))
    return pb.take_along_axis(x, order, axis=dim), order
