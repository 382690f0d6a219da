"""Losses as functions, under torch's names: composites of maps and sums."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from pullback.errors import ShapeError, UnsupportedError
from pullback.ir.expr import Div, Expr
from pullback.nn.base.build import at, count, make, pointwise, total
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.library import maths as M
from pullback.tensor.library.creation import full_like
from pullback.tensor.library.ops import broadcast_to, expand_dims, stop_gradient, where
from pullback.tensor.shaped import shaped
from pullback.tensor.values.elementwise import show
from pullback.tensor.values.precise import in_float32


@shaped("input[b...], target[b...], weight[b...?] -> [b...] or []")
@in_float32
def mse_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", weight: Tensor | None = None
) -> Tensor:
    """``(x - t)^2``

    Example:
        >>> F.mse_loss(pb.tensor([0.25, 0.5]), pb.tensor([0.0, 1.0]))
        Tensor(0.15625, dtype=float32)
    """
    return _between("squared_error", input, target, reduction, lambda d: d * d, weight)


@shaped("input[b...], target[b...], weight[b...?] -> [b...] or []")
@in_float32
def l1_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", weight: Tensor | None = None
) -> Tensor:
    """``|x - t|``

    Example:
        >>> F.l1_loss(pb.tensor([0.25, 0.5]), pb.tensor([0.0, 1.0]))
        Tensor(0.375, dtype=float32)
    """
    return _between("absolute_error", input, target, reduction, distance, weight)


def distance(x: Any) -> Any:
    """``|x|`` with derivative 0 at 0."""
    return where(x < 0.0, -x, where(x == 0.0, 0.0, x))  # NaN stays


@shaped("input[b...], target[b...] -> [b...] or []", where="beta >= 0")
@in_float32
def smooth_l1_loss(
    input: Tensor, target: Tensor, reduction: str = "mean", beta: float = 1.0
) -> Tensor:
    """``d^2 / (2 beta) if |d| < beta else |d| - beta / 2``, ``d = x - t``

    Example:
        >>> F.smooth_l1_loss(pb.tensor([0.25, 0.5]), pb.tensor([0.0, 1.0]))
        Tensor(0.078125, dtype=float32)
    """
    if beta == 0.0:
        return l1_loss(input, target, reduction)

    def body(d: Any) -> Any:
        near = d * d * (0.5 / beta)
        return where(abs(d) < beta, near, abs(d) - 0.5 * beta)

    return _between("smooth_error", input, target, reduction, body)


@shaped("input[b...], target[b...], weight[b...?] -> [b...] or []", where="delta > 0")
@in_float32
def huber_loss(
    input: Tensor,
    target: Tensor,
    reduction: str = "mean",
    delta: float = 1.0,
    weight: Tensor | None = None,
) -> Tensor:
    """``d^2 / 2 if |d| <= delta else delta (|d| - delta / 2)``, ``d = x - t``

    Example:
        >>> F.huber_loss(pb.tensor([0.25, 0.5]), pb.tensor([0.0, 1.0]))
        Tensor(0.078125, dtype=float32)
    """

    def body(d: Any) -> Any:
        far = (abs(d) - 0.5 * delta) * delta
        return where(abs(d) <= delta, d * d * 0.5, far)

    return _between("huber", input, target, reduction, body, weight)


def _between(
    name: str,
    input: Tensor,
    target: Tensor,
    reduction: str,
    function: Callable[[Any], Any],
    weight: Tensor | None = None,
) -> Tensor:
    """A loss of the difference; with weights the mean is over their sum."""
    losses = pointwise(name, lambda x, t: function(x - t), input, target)
    if weight is None:
        return reduced(losses, reduction)
    heavy = weighted(losses, weight)
    if reduction != "mean":
        return reduced(heavy, reduction)
    return total(heavy) / total(broadcast_to(weight, losses.shape))


def weighted(losses: Tensor, weight: Tensor | None) -> Tensor:
    """``weight * loss``, the weight broadcast."""
    return losses if weight is None else losses * weight


@shaped("input[b...], target[b...], weight[b...?] -> [b...] or []")
@in_float32
def binary_cross_entropy(
    input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """``-t log(x) - (1 - t) log(1 - x)``, logarithms no less than -100.

    Example:
        >>> F.binary_cross_entropy(pb.tensor([0.25, 0.5]), pb.tensor([0.0, 1.0]))
        Tensor(0.49041462, dtype=float32)
    """

    def body(x: Any, t: Any) -> Any:
        return -t * _log(x) - (1.0 - t) * _log(1.0 - x)

    losses = pointwise("binary_cross_entropy", body, input, target)
    return reduced(weighted(losses, weight), reduction)


def _log(x: Any) -> Any:
    return M.maximum(M.log(x), -100.0)


@shaped("input[b...], target[b...], weight[b...?], pos_weight[b...?] -> [b...] or []")
@in_float32
def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """``-t log(sigmoid(x)) - (1 - t) log(1 - sigmoid(x))``, stable for large |x|.

    Example:
        >>> F.binary_cross_entropy_with_logits(pb.tensor([0.25, 0.5]), pb.tensor([0.0, 1.0]))
        Tensor(0.6500082, dtype=float32)
    """

    def body(x: Any, t: Any, *heavy: Any) -> Any:
        gate = M.softplus(-x)
        factor = 1.0 + (heavy[0] - 1.0) * t if heavy else 1.0
        return (1.0 - t) * x + factor * gate

    tensors = (input, target) if pos_weight is None else (input, target, pos_weight)
    losses = pointwise("binary_cross_entropy", body, *tensors)
    return reduced(weighted(losses, weight), reduction)


@shaped("input[b...], target[b...] -> [b...] or []")
@in_float32
def soft_margin_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """``log(1 + exp(-t x))``

    Example:
        >>> F.soft_margin_loss(pb.tensor([0.25, 0.5]), pb.tensor([-1.0, 1.0]))
        Tensor(0.6500082, dtype=float32)
    """
    losses = pointwise("soft_margin", lambda x, t: M.softplus(-t * x), input, target)
    return reduced(losses, reduction)


@shaped("input[*b], target[*b] -> [*b] or []")
@in_float32
def kl_div(
    input: Tensor, target: Tensor, reduction: str = "mean", log_target: bool = False
) -> Tensor:
    """``t (log(t) - x)`` of log-probabilities x; "batchmean" divides the sum by the rows.

    Example:
        >>> F.kl_div(pb.log(pb.tensor([[0.5, 0.5]])), pb.tensor([[0.25, 0.75]]),
        ... reduction="batchmean")
        Tensor(0.13081202, dtype=float32)
    """

    def body(x: Any, t: Any) -> Any:
        if log_target:
            return M.exp(t) * (t - x)
        return where(t == 0.0, 0.0, t * M.log(t)) - t * x

    losses = pointwise("divergence", body, input, target)
    if reduction != "batchmean":
        return reduced(losses, reduction)
    return divided(total(losses), count(losses.value.shape[:1], losses.dtype))


@shaped("input[*b], target[*b] -> [*b] or []", where="eps >= 0")
@in_float32
def poisson_nll_loss(
    input: Tensor,
    target: Tensor,
    log_input: bool = True,
    full: bool = False,
    eps: float = 1e-8,
    reduction: str = "mean",
) -> Tensor:
    """``exp(x) - t x``, or ``x - t log(x + eps)``; `full` adds Stirling's ``log(t!)``.

    Example:
        >>> F.poisson_nll_loss(pb.tensor([0.25, 0.5]), pb.tensor([0.0, 1.0]))
        Tensor(1.2163734, dtype=float32)
    """

    def body(x: Any, t: Any) -> Any:
        loss = M.exp(x) - t * x if log_input else x - t * M.log(x + eps)
        if not full:
            return loss
        rest = t * M.log(t) - t + 0.5 * M.log(2.0 * math.pi * t)
        return loss + where(t > 1.0, rest, 0.0)

    return reduced(pointwise("poisson", body, input, target), reduction)


@shaped(
    "input[b..., n] or [], target[b..., n?] or [], var[b..., n?] or [b...] -> [b..., n] or []",
    where="eps > 0",
)
@in_float32
def gaussian_nll_loss(
    input: Tensor,
    target: Tensor,
    var: Tensor | float,
    full: bool = False,
    eps: float = 1e-6,
    reduction: str = "mean",
) -> Tensor:
    """``(log(v) + (x - t)^2 / v) / 2``, ``v = max(var, eps)`` with the derivative of `var`.

    `var` has the shape of the input, with its last axis 1 or left out.

    Example:
        >>> F.gaussian_nll_loss(pb.tensor([0.25, 0.5]), pb.tensor([0.0, 1.0]), pb.ones(2))
        Tensor(0.078125, dtype=float32)
    """
    spread = var if isinstance(var, Tensor) else full_like(input, var)
    if len(spread.shape) == len(input.shape) - 1:
        spread = expand_dims(spread, -1)
    bound = stop_gradient(pointwise("lift", lambda v: M.maximum(eps - v, 0.0), spread))
    share = 0.5 * math.log(2.0 * math.pi) if full else 0.0

    def body(x: Any, t: Any, v: Any, lift: Any) -> Any:
        v = v + lift
        return 0.5 * (M.log(v) + (x - t) * (x - t) / v) + share

    return reduced(pointwise("gaussian", body, input, target, spread, bound), reduction)


def same_shape(name: str, input: Tensor, target: Tensor) -> None:
    """Raises: ShapeError where the two differ."""
    if input.shape != target.shape:
        raise ShapeError(
            f"{name}: input {show(input.shape)}, target {show(target.shape)}",
            help="both must have one shape",
        )


def reduced(losses: Tensor, reduction: str) -> Tensor:
    """The losses themselves ("none"), their "sum" or their "mean"."""
    known_reduction(reduction)
    if reduction == "none":
        return losses
    if reduction == "sum" or not losses.shape:
        return total(losses)
    return divided(total(losses), count(losses.value.shape, losses.dtype))


def divided(losses: Tensor, by: Expr) -> Tensor:
    """``loss / by``"""
    value = losses.value
    return make("mean_loss", (), lambda: Div(at(value), by))


def known_reduction(reduction: str) -> None:
    """Raises: UnsupportedError for an unknown reduction."""
    if reduction not in ("none", "mean", "sum"):
        raise UnsupportedError(
            f"reduction={reduction!r}", help='use "none", "mean" or "sum"', code="E312"
        )
