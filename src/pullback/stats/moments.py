"""Moments: of numbers alone, in pairs, between variables.

``cov(x)[i, j] = sum[k] (x[i, k] - m[i]) (x[j, k] - m[j]) / (n - correction)``
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from pullback.errors import ShapeError
from pullback.ir import dtype as D
from pullback.ir.expr import Const, highest, lowest
from pullback.tensor.face.dialect import spelled
from pullback.tensor.face.tensor import Axes, Tensor
from pullback.tensor.library import creation as C
from pullback.tensor.library import maths as M
from pullback.tensor.library import ops as O
from pullback.tensor.library.scalars import value_tensor
from pullback.tensor.library.shapes import diagonal
from pullback.tensor.shaped import shaped
from pullback.tensor.values import elementwise as W
from pullback.tensor.values import views as V
from pullback.tensor.values.answers import answered
from pullback.tensor.values.precise import in_float32


def _numbers(x: Any) -> tuple[Tensor, Tensor]:
    """`x` with 0 for NaN, and where it is a number."""
    value = value_tensor(x)
    if not value.dtype.is_float:
        return value, O.astype(M.isfinite(value), D.bool_)
    real: Tensor = M.logical_not(M.isnan(value))
    return O.where(real, value, 0.0), real


@spelled
def nansum(x: Any, axis: Axes = None, *, dtype: Any = None, keepdims: bool = False) -> Tensor:
    """Sum of the elements that are numbers; 0 where none is.

    Example:
        >>> pb.nansum(pb.tensor([float("nan"), 1.0, 3.0]))
        Tensor(4., dtype=float32)
    """
    total: Tensor = O.sum(_numbers(x)[0], axis=axis, dtype=dtype, keepdims=keepdims)
    return total


@spelled
def nanmean(x: Any, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """Mean of the elements that are numbers; NaN where none is.

    Example:
        >>> pb.nanmean(pb.tensor([float("nan"), 1.0, 3.0]))
        Tensor(2., dtype=float32)
    """
    value, real = _numbers(x)
    kind = W.as_float(value.dtype)
    wide = D.float32 if D.is_short(kind) else kind
    total = O.sum(O.astype(value, wide), axis=axis, keepdims=keepdims)
    count = O.sum(O.astype(real, wide), axis=axis, keepdims=keepdims)
    mean: Tensor = O.astype(M.divide(total, count), kind)
    return mean


@spelled
def nanvar(x: Any, axis: Axes = None, *, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """``sum((x - mean)^2) / (n - correction)`` of the n elements that are numbers.

    Example:
        >>> pb.nanvar(pb.tensor([float("nan"), 1.0, 3.0]))
        Tensor(1., dtype=float32)
    """
    value, real = _numbers(x)
    kind = W.as_float(value.dtype)
    wide = D.float32 if D.is_short(kind) else kind
    value, counted = O.astype(value, wide), O.astype(real, wide)
    count = O.sum(counted, axis=axis, keepdims=True)
    centered = (value - O.sum(value, axis=axis, keepdims=True) / count) * counted
    total = O.sum(centered * centered, axis=axis, keepdims=keepdims)
    kept = count if keepdims else O.sum(counted, axis=axis)
    spread: Tensor = O.astype(total / M.maximum(kept - correction, 0.0), kind)
    return spread


@spelled
def nanstd(x: Any, axis: Axes = None, *, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """The root of `nanvar`.

    Example:
        >>> pb.nanstd(pb.tensor([float("nan"), 1.0, 3.0]))
        Tensor(1., dtype=float32)
    """
    root: Tensor = M.sqrt(nanvar(x, axis, correction=correction, keepdims=keepdims))
    return root


@spelled
def nanmax(x: Any, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """The largest element that is a number, NaN where none is; equal ones share the gradient.

    Raises: ShapeError for no elements.

    Example:
        >>> pb.nanmax(pb.tensor([float("nan"), 1.0, 3.0]))
        Tensor(3., dtype=float32)
    """
    return _extreme(x, axis, keepdims, O.amax, lowest)


@spelled
def nanmin(x: Any, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """The smallest element that is a number, NaN where none is; equal ones share the gradient.

    Raises: ShapeError for no elements.

    Example:
        >>> pb.nanmin(pb.tensor([float("nan"), 1.0, 3.0]))
        Tensor(1., dtype=float32)
    """
    return _extreme(x, axis, keepdims, O.amin, highest)


def _extreme(
    x: Any,
    axis: Axes,
    keepdims: bool,
    extreme: Callable[..., Tensor],
    nothing: Callable[[D.DType], Const],
) -> Tensor:
    value = value_tensor(x)
    if not value.dtype.is_float:
        return extreme(value, axis, keepdims=keepdims)
    hole = M.isnan(value)
    best = extreme(O.where(hole, nothing(value.dtype).value, value), axis, keepdims=keepdims)
    none = O.all(hole, axis=axis, keepdims=keepdims)
    holed: Tensor = O.where(none, math.nan, best)
    return holed


@spelled
def ptp(x: Any, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """The largest less the smallest element, NaN if any is; equal ones share the gradient.

    Raises: ShapeError for no elements.

    Example:
        >>> pb.ptp(pb.tensor([3.0, 1.0, 2.0]))
        Tensor(2., dtype=float32)
    """
    most, least = O.amax(x, axis, keepdims=keepdims), O.amin(x, axis, keepdims=keepdims)
    span: Tensor = M.subtract(most, least)
    return span


@spelled
@shaped("x[...], weights[...]")
@in_float32
def average(x: Any, axis: Axes = None, *, weights: Any = None, keepdims: bool = False) -> Tensor:
    """``sum(x weights) / sum(weights)``; without weights the mean.

    Weights are as many as `x` has elements, or one for each place of `axis`.

    Raises: ShapeError for weights that do not fit.

    Example:
        >>> pb.average(pb.tensor([1.0, 4.0]), weights=pb.tensor([2.0, 1.0]))
        Tensor(2., dtype=float32)
    """
    value = value_tensor(x)
    if weights is None:
        mean: Tensor = O.mean(value, axis, keepdims=keepdims)
        return mean
    counts = value_tensor(weights)
    if counts.shape != value.shape:
        place = V.normal_axis(axis, value.ndim) if isinstance(axis, int) else None
        if place is None or counts.shape != (value.shape[place],):
            what = f"average: weights of shape {W.show(counts.shape)} for {W.show(value.shape)}"
            raise ShapeError(what, code="E178")
        counts = O.reshape(counts, (-1, *[1] * (value.ndim - 1 - place)))
    total = O.sum(value * counts, axis=axis, keepdims=keepdims)
    each: Tensor = O.sum(O.broadcast_to(counts, value.shape), axis=axis, keepdims=keepdims)
    mean_of: Tensor = total / each
    return mean_of


@answered
@spelled
def count_nonzero(x: Any, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """How many elements are not 0; int64.

    Example:
        >>> pb.count_nonzero(pb.tensor([0.0, 2.0, 3.0]))
        Tensor(2, dtype=int64)
    """
    value = value_tensor(x)
    hit = M.not_equal(value, False if value.dtype.is_bool else 0)
    counted: Tensor = O.sum(O.astype(hit, D.int64), axis=axis, keepdims=keepdims)
    return counted


@spelled
def var_mean(
    x: Any, axis: Axes = None, *, correction: float = 0.0, keepdims: bool = False
) -> tuple[Tensor, Tensor]:
    """``sum((x - mean)^2) / (n - correction)``, and the mean.

    Example:
        >>> pb.var_mean(pb.tensor([1.0, 3.0]))
        (Tensor(1., dtype=float32), Tensor(2., dtype=float32))
    """
    spread = O.var(x, axis, correction=correction, keepdims=keepdims)
    return spread, O.mean(x, axis, keepdims=keepdims)


@spelled
def std_mean(
    x: Any, axis: Axes = None, *, correction: float = 0.0, keepdims: bool = False
) -> tuple[Tensor, Tensor]:
    """The root of the variance, and the mean.

    Example:
        >>> pb.std_mean(pb.tensor([1.0, 3.0]))
        (Tensor(1., dtype=float32), Tensor(2., dtype=float32))
    """
    spread: Tensor = O.std(x, axis, correction=correction, keepdims=keepdims)
    return spread, O.mean(x, axis, keepdims=keepdims)


@spelled
def aminmax(x: Any, axis: Axes = None, *, keepdims: bool = False) -> tuple[Tensor, Tensor]:
    """The smallest and the largest element, NaN if any is; equal ones share the gradient.

    Raises: ShapeError for no elements.

    Example:
        >>> pb.aminmax(pb.tensor([3.0, 1.0, 2.0]))
        (Tensor(1., dtype=float32), Tensor(3., dtype=float32))
    """
    return O.amin(x, axis, keepdims=keepdims), O.amax(x, axis, keepdims=keepdims)


@shaped("x[v, n] or [n] or [], fweights: int[n], aweights[n] -> [v, v] or []")
@in_float32
def cov(
    x: Any,
    *,
    correction: float = 1.0,
    rowvar: bool = True,
    fweights: Any = None,
    aweights: Any = None,
) -> Tensor:
    """``out[i, j] = sum[k] w[k] (x[i, k] - m[i]) (x[j, k] - m[j]) / (sum w - correction)``

    ``pb.cov(x)`` of one variable is ``pb.var(x, correction=1)``.

    Rows are variables and columns observations (with ``rowvar=False`` the other way round).
    `fweights` says how often each was observed, `aweights` how much it counts; with these the
    denominator is ``sum w - correction sum(w aweights) / sum w``.

    Raises: ShapeError for more than two axes.

    Example:
        >>> pb.cov(pb.tensor([[1.0, 2.0, 3.0], [6.0, 4.0, 2.0]])).tolist()
        [[1.0, -2.0], [-2.0, 4.0]]
    """
    value = value_tensor(x)
    rows = value if value.ndim == 2 else O.reshape(value, (1, -1))
    if value.ndim == 2 and not rowvar:
        rows = rows.T
    rows = O.astype(rows, W.as_float(rows.dtype))
    kind = rows.dtype
    weights = [O.astype(w, kind) for w in (fweights, aweights) if w is not None]
    if not weights:
        centered = rows - O.mean(rows, axis=1, keepdims=True)
        count = float(rows.shape[1]) if isinstance(rows.shape[1], int) else None
        total: Any = O.sum(C.ones((rows.shape[1],), dtype=kind)) if count is None else count
        product = O.matmul(centered, centered.T)
        return _shaped(product / _positive(total - correction), value)
    both = weights[0] if len(weights) == 1 else weights[0] * weights[1]
    total = O.sum(both)
    centered = rows - O.sum(rows * both, axis=1, keepdims=True) / total
    lost = correction if aweights is None else correction * O.sum(both * weights[-1]) / total
    product = O.matmul(centered * both, centered.T)
    return _shaped(product / _positive(total - lost), value)


def _positive(number: Any) -> Any:
    return max(number, 0.0) if isinstance(number, float) else M.maximum(number, 0.0)


def _shaped(covariance: Tensor, x: Tensor) -> Tensor:
    """A covariance of one variable is a number."""
    return O.reshape(covariance, ()) if x.ndim < 2 else covariance


@shaped("x[v, n] or [n] or [] -> [v, v] or []")
@in_float32
def corrcoef(x: Any, *, rowvar: bool = True) -> Tensor:
    """``cov[i, j] / sqrt(cov[i, i] cov[j, j])``, within -1..1.

    Raises: ShapeError for more than two axes.

    Example:
        >>> pb.corrcoef(pb.tensor([[1.0, 2.0, 3.0], [6.0, 4.0, 2.0]])).shape
        (2, 2)
    """
    covariance = cov(x, rowvar=rowvar)
    if covariance.ndim == 0:
        return covariance / covariance
    size = M.sqrt(diagonal(covariance))
    scaled = covariance / O.expand_dims(size, 1) / O.expand_dims(size, 0)
    clipped: Tensor = O.clip(scaled, -1.0, 1.0)
    return clipped
