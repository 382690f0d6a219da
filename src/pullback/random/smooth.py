"""Distributions that are smooth functions of uniform or normal numbers; gradients pass."""

from __future__ import annotations

import math
from typing import Any

from pullback.errors import ShapeError
from pullback.ir import dtype as D
from pullback.linalg import cholesky
from pullback.random.draws import (
    finished,
    parameters,
    unit_exponential,
)
from pullback.special.normal import ndtr, ndtri
from pullback.tensor.face.tensor import Tensor, shape_of
from pullback.tensor.library import maths as M
from pullback.tensor.library import ops as O
from pullback.tensor.library import random as R
from pullback.tensor.library.scalars import value_tensor
from pullback.tensor.shaped import shaped
from pullback.tensor.values import elementwise as W


@shaped("rate[*shape?] -> [*shape]", where="rate > 0")
def exponential(
    rate: Any = 1.0,
    shape: Any = None,
    *,
    dtype: Any = "float32",
    key: Tensor | None = None,
    device: Any = None,
) -> Tensor:
    """``-log(u) / rate``, of mean ``1 / rate``; a gradient reaches the rate.

    Example:
        >>> pb.random.exponential(2.0, (4,)).shape
        (4,)
    """
    draws, kind, (scale,) = parameters(shape, key, dtype, device, rate)
    return finished(-M.log(draws.uniform()) / scale, kind)


@shaped("loc[*shape?], scale[*shape?] -> [*shape]", where="scale > 0")
def laplace(
    loc: Any = 0.0,
    scale: Any = 1.0,
    shape: Any = None,
    *,
    dtype: Any = "float32",
    key: Tensor | None = None,
    device: Any = None,
) -> Tensor:
    """``loc - scale sign(v) log(1 - 2 |v|)``, v even in -0.5..0.5; gradients reach both.

    Example:
        >>> pb.random.laplace(shape=(4,)).shape
        (4,)
    """
    draws, kind, (middle, wide) = parameters(shape, key, dtype, device, loc, scale)
    size = -M.log(draws.uniform())
    sign = O.where(draws.uniform(1) > 0.5, 1.0, -1.0)
    return finished(middle + wide * size * sign, kind)


@shaped("loc[*shape?], scale[*shape?] -> [*shape]", where="scale > 0")
def cauchy(
    loc: Any = 0.0,
    scale: Any = 1.0,
    shape: Any = None,
    *,
    dtype: Any = "float32",
    key: Tensor | None = None,
    device: Any = None,
) -> Tensor:
    """``loc + scale tan(pi (u - 1 / 2))``; gradients reach both.

    Example:
        >>> pb.random.cauchy(shape=(4,)).shape
        (4,)
    """
    draws, kind, (middle, wide) = parameters(shape, key, dtype, device, loc, scale)
    turn = O.stop_gradient(M.tan((draws.uniform() - 0.5) * math.pi))
    return finished(middle + wide * turn, kind)


@shaped("loc[*shape?], scale[*shape?] -> [*shape]", where="scale > 0")
def gumbel(
    loc: Any = 0.0,
    scale: Any = 1.0,
    shape: Any = None,
    *,
    dtype: Any = "float32",
    key: Tensor | None = None,
    device: Any = None,
) -> Tensor:
    """``loc - scale log(-log u)``; gradients reach both.

    Example:
        >>> pb.random.gumbel(shape=(4,)).shape
        (4,)
    """
    draws, kind, (middle, wide) = parameters(shape, key, dtype, device, loc, scale)
    return finished(middle - wide * M.log(unit_exponential(draws)), kind)


@shaped("loc[*shape?], scale[*shape?] -> [*shape]", where="scale > 0")
def logistic(
    loc: Any = 0.0,
    scale: Any = 1.0,
    shape: Any = None,
    *,
    dtype: Any = "float32",
    key: Tensor | None = None,
    device: Any = None,
) -> Tensor:
    """``loc + scale log(u / (1 - u))``; gradients reach both.

    Example:
        >>> pb.random.logistic(shape=(4,)).shape
        (4,)
    """
    draws, kind, (middle, wide) = parameters(shape, key, dtype, device, loc, scale)
    odds = M.log(unit_exponential(draws) / unit_exponential(draws, 1))
    return finished(middle + wide * odds, kind)


@shaped("mean[*shape?], std[*shape?] -> [*shape]", where="std > 0")
def log_normal(
    mean: Any = 0.0,
    std: Any = 1.0,
    shape: Any = None,
    *,
    dtype: Any = "float32",
    key: Tensor | None = None,
    device: Any = None,
) -> Tensor:
    """``exp(mean + std z)``, z normal; gradients reach both.

    Example:
        >>> pb.random.log_normal(shape=(4,)).shape
        (4,)
    """
    draws, kind, (middle, wide) = parameters(shape, key, dtype, device, mean, std)
    return finished(M.exp(middle + wide * draws.normal()), kind)


@shaped(
    "scale[*shape?], concentration[*shape?] -> [*shape]",
    where="scale > 0, concentration > 0",
)
def weibull(
    scale: Any = 1.0,
    concentration: Any = 1.0,
    shape: Any = None,
    *,
    dtype: Any = "float32",
    key: Tensor | None = None,
    device: Any = None,
) -> Tensor:
    """``scale (-log u)^(1 / concentration)``; gradients reach both.

    Example:
        >>> pb.random.weibull(shape=(4,)).shape
        (4,)
    """
    draws, kind, (wide, power) = parameters(shape, key, dtype, device, scale, concentration)
    return finished(wide * M.exp(M.log(unit_exponential(draws)) / power), kind)


@shaped(
    "mean[*shape?], std[*shape?], low[*shape?], high[*shape?] -> [*shape]",
    where="std > 0, low < high",
)
def truncated_normal(
    mean: Any = 0.0,
    std: Any = 1.0,
    low: Any = -2.0,
    high: Any = 2.0,
    shape: Any = None,
    *,
    dtype: Any = "float32",
    key: Tensor | None = None,
    device: Any = None,
) -> Tensor:
    """A normal number within ``low .. high``, by inversion; gradients reach all four.

    ``mean + std ndtri(a + u (b - a))``, a and b the normal distribution at both ends.

    Example:
        >>> pb.random.truncated_normal(shape=(4,)).shape
        (4,)
    """
    given = (mean, std, low, high)
    draws, kind, (middle, wide, below, above) = parameters(shape, key, dtype, device, *given)
    left, right = ((edge - middle) / wide for edge in (below, above))
    turned = left > 0.0  # the upper tail is drawn as a lower one, where it has its digits
    a, b = ndtr(O.where(turned, -right, left)), ndtr(O.where(turned, -left, right))
    u = draws.uniform()
    unit = ndtri(a + u * (b - a))
    value = middle + wide * O.where(turned, -unit, unit)
    return finished(O.clip(value, below, above), kind)


@shaped("mean[*b, n], cov[*b, n, n]")
def multivariate_normal(
    mean: Any,
    cov: Any,
    shape: Any = None,
    *,
    dtype: Any = "float32",
    key: Tensor | None = None,
    device: Any = None,
) -> Tensor:
    """``mean + L z``, z normal, ``L L^T = cov``; gradients reach both.

    `shape`: how many vectors are drawn, ``()`` of one mean; they are a last axis of the result.

    Raises: ShapeError for means and covariances of more axes; SingularError where `cov` is not
        positive definite.

    Example:
        >>> pb.random.multivariate_normal(pb.zeros(2), pb.tensor([[4.0, 2.0], [2.0, 5.0]]), 3).shape
        (3, 2)
    """
    middle, spread = value_tensor(mean), value_tensor(cov)
    common = W.broadcast_shapes([middle.shape[:-1], spread.shape[:-2]])
    extents = common if shape is None else shape_of(shape)
    if W.broadcast_shapes([common, extents]) != tuple(extents):
        told = f"parameters of {W.show(common)} for vectors of {W.show(extents)}"
        raise ShapeError(told, code="E175")
    kind = D.dtype(dtype)
    work = D.float64 if kind == D.float64 else D.float32
    drawn = R.normal((*extents, middle.shape[-1]), dtype=work, key=key, device=device)
    lower = cholesky(O.astype(spread, work))
    moved = O.sum(lower * O.expand_dims(drawn, -2), axis=-1)
    return finished(O.astype(middle, work) + moved, kind)


@shaped("-> [*shape]")
def rademacher(
    shape: Any = (), *, dtype: Any = "float32", key: Tensor | None = None, device: Any = None
) -> Tensor:
    """1 or -1, each as often as the other.

    Example:
        >>> pb.random.rademacher((2, 3)).shape
        (2, 3)
    """
    heads = R.bernoulli(0.5, shape, key=key, device=device)
    return finished(O.where(heads, 1.0, -1.0), D.dtype(dtype))
