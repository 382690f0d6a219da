"""Gamma numbers, by rejection, and what is made of them; gradients reach all parameters."""

from __future__ import annotations

import math
from typing import Any

from pullback.ir import dtype as D
from pullback.ir.dtype import float64
from pullback.random.draws import (
    LEAST,
    LIFT,
    Draws,
    exp_of,
    finished,
    first_turn,
    log_of,
    parameters,
)
from pullback.random.implicit import reparameterised
from pullback.tensor.face.tensor import Tensor, operand, shape_of
from pullback.tensor.library import maths as M
from pullback.tensor.library import ops as O
from pullback.tensor.library.scalars import repeated, value_tensor
from pullback.tensor.shaped import shaped
from pullback.tensor.values import elementwise as W

LARGEST = 1022  # of a shape: below 2^LARGEST


def _log_gamma(draws: Draws, shape: Tensor, first: int = 0) -> Tensor:
    """The logarithm of a gamma number, by rejection; below 1 of one more, times ``u^(1 / a)``.

    NaN of a shape that is infinite or NaN, of which no trial is ever good.

    Source: Marsaglia, Tsang 2000, A simple method for generating gamma variables.
    """
    given, shape = shape, O.stop_gradient(shape)
    small = shape < 1.0
    d = O.where(small, shape + 1.0, shape) - 1 / 3
    c, log_d = 1.0 / M.sqrt(d * 9.0), log_of(d, -1, LARGEST)

    def trial(carry: Any) -> Any:
        logs, done, turn = carry
        z = draws.normal(turn * 2 + first)
        u = draws.uniform(turn * 4 + first * 2 + 2)
        v = 1.0 + c * z
        good = v > 0.0
        v = O.where(good, v, 1.0)
        log_v = log_of(v, LEAST, 3) * 3.0  # c z is below 4
        limit = z * z * 0.5 + d - d * (v * v * v) + d * log_v
        good = M.logical_and(good, log_of(u, LEAST) < limit)
        new = M.logical_and(good, M.logical_not(done))
        kept = O.where(new, log_d + log_v, logs)
        return kept, M.logical_or(done, good), turn + 1

    ended = M.logical_or(d < 0.0, M.logical_not(d < math.inf))
    start = (log_d, O.astype(ended, D.bool_), first_turn())
    logs = repeated(lambda carry: O.any(M.logical_not(carry[1])), trial, start)[0]
    lift = log_of(draws.uniform(LIFT + first), LEAST) / shape
    return reparameterised(O.stop_gradient(O.where(small, logs + lift, logs)), given)


@shaped(
    "concentration[*shape?], rate[*shape?] -> [*shape]",
    where="concentration > 0, rate > 0",
)
def gamma(
    concentration: Any,
    rate: Any = 1.0,
    shape: Any = None,
    *,
    dtype: Any = "float32",
    key: Tensor | None = None,
    device: Any = None,
) -> Tensor:
    """Gamma-distributed: density ``x^(a - 1) exp(-rate x)``; a gradient reaches both parameters.

    That by the concentration is implicit: ``dx / da = -(dP(a, x) / da) / p(x)``, to first order.


    Example:
        >>> pb.random.gamma(2.0, 1.0, (4,)).shape
        (4,)
    """
    draws, kind, (a, scale) = parameters(shape, key, dtype, device, concentration, rate)
    return finished(exp_of(_log_gamma(draws, a)) / scale, kind)


@shaped("df[*shape?] -> [*shape]", where="df > 0")
def chisquare(
    df: Any,
    shape: Any = None,
    *,
    dtype: Any = "float32",
    key: Tensor | None = None,
    device: Any = None,
) -> Tensor:
    """The sum of `df` squared normal numbers: ``2 gamma(df / 2)``.


    Example:
        >>> pb.random.chisquare(3.0, (4,)).shape
        (4,)
    """
    draws, kind, (count,) = parameters(shape, key, dtype, device, df)
    return finished(exp_of(_log_gamma(draws, count * 0.5)) * 2.0, kind)


@shaped("df[*shape?] -> [*shape]", where="df > 0")
def student_t(
    df: Any,
    shape: Any = None,
    *,
    dtype: Any = "float32",
    key: Tensor | None = None,
    device: Any = None,
) -> Tensor:
    """``z / sqrt(chisquare(df) / df)``, z normal.


    Example:
        >>> pb.random.student_t(3.0, (4,)).shape
        (4,)
    """
    draws, kind, (count,) = parameters(shape, key, dtype, device, df)
    half = count * 0.5
    size = M.exp((M.log(half) - _log_gamma(draws, half)) * 0.5)
    return finished(draws.normal(LIFT + 7) * size, kind)


@shaped("a[*shape?], b[*shape?] -> [*shape]", where="a > 0, b > 0")
def beta(
    a: Any,
    b: Any,
    shape: Any = None,
    *,
    dtype: Any = "float32",
    key: Tensor | None = None,
    device: Any = None,
) -> Tensor:
    """``g(a) / (g(a) + g(b))`` of gamma numbers: density ``x^(a - 1) (1 - x)^(b - 1)``.


    Example:
        >>> pb.random.beta(2.0, 3.0, (4,)).shape
        (4,)
    """
    given = [operand(x) for x in (a, b)]
    common = W.broadcast_shapes([W.operand_shape(o) for o in given])
    extents = common if shape is None else shape_of(shape)
    whole = [O.broadcast_to(O.astype(value_tensor(x), float64), extents) for x in (a, b)]
    draws, kind, (pair,) = parameters(None, key, dtype, device, O.stack(whole))
    logs = _log_gamma(draws, pair)
    odds = logs[0] - logs[1]
    small = exp_of(O.where(odds < 0.0, odds, -odds))
    return finished(O.where(odds < 0.0, small, 1.0) / (1.0 + small), kind)


@shaped("concentration[s..., k] -> [*shape, s..., k]")
def dirichlet(
    concentration: Any,
    shape: Any = (),
    *,
    dtype: Any = "float32",
    key: Tensor | None = None,
    device: Any = None,
) -> Tensor:
    """Gamma numbers divided by their sum along the last axis.

    Raises: ShapeError for a concentration without axes.

    Example:
        >>> pb.random.dirichlet(pb.ones(3), (4,)).shape
        (4, 3)
    """
    weights = value_tensor(concentration)
    extents = (*shape_of(shape), *weights.shape)
    draws, kind, (a,) = parameters(extents, key, dtype, device, weights)
    return finished(O.softmax(_log_gamma(draws, a), axis=-1), kind)
