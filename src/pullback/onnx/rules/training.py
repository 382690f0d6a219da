"""Steps of optimizers, several tensors at once: tensors, gradients, then states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pullback as pb
from pullback.onnx.rules.table import demand, rule

TRAINING = "ai.onnx.preview.training"


def _rows(tensors: Sequence[Any], kinds: int) -> list[tuple[Any, ...]]:
    """What belongs to each tensor."""
    count = len(tensors) // kinds
    demand(count * kinds == len(tensors), f"{len(tensors)} operands")
    return [tuple(tensors[n::count]) for n in range(count)]


def _columns(rows: Sequence[tuple[Any, ...]]) -> list[Any]:
    return [x for column in zip(*rows, strict=True) for x in column]


@rule("Momentum", 1, domain=TRAINING)
def momentum(
    rate: Any, step: Any, *tensors: Any, alpha: float, beta: float, mode: str,
    norm_coefficient: float,
) -> Any:  # fmt: skip
    """``v = alpha v + beta g, x = x - rate v``; by Nesterov ``x - rate (g + alpha v)``"""
    demand(mode in ("standard", "nesterov"), f"mode={mode!r}")
    made = []
    share = pb.where(step > 0, beta, 1.0)
    for x, g, v in _rows(tensors, 3):
        slope = g + x * norm_coefficient
        new = v * alpha + slope * pb.astype(share, x.dtype)
        way = slope + new * alpha if mode == "nesterov" else new
        made.append((x - rate * way, new))
    return _columns(made)


@rule("Adagrad", 1, domain=TRAINING)
def adagrad(
    rate: Any, step: Any, *tensors: Any, decay_factor: float, epsilon: float,
    norm_coefficient: float,
) -> Any:  # fmt: skip
    """``h = h + g^2, x = x - rate g / (sqrt(h) + eps)``"""
    own = rate / (1.0 + pb.astype(step, rate.dtype) * decay_factor)
    made = []
    for x, g, h in _rows(tensors, 3):
        slope = g + x * norm_coefficient
        new = h + slope * slope
        made.append((x - own * slope / (pb.sqrt(new) + epsilon), new))
    return _columns(made)


@rule("Adam", 1, domain=TRAINING)
def adam(
    rate: Any, step: Any, *tensors: Any, alpha: float, beta: float, epsilon: float,
    norm_coefficient: float, norm_coefficient_post: float,
) -> Any:  # fmt: skip
    """``v = alpha v + (1 - alpha) g, h = beta h + (1 - beta) g^2, x = x - r v / (sqrt(h) + eps)``

    ``r = rate sqrt(1 - beta^t) / (1 - alpha^t)``, at first the rate.
    """
    t = pb.astype(step, rate.dtype)
    later = rate * pb.sqrt(1.0 - pb.pow(beta, t)) / (1.0 - pb.pow(alpha, pb.maximum(t, 1.0)))
    own = pb.where(step > 0, later, rate)
    made = []
    for x, g, v, h in _rows(tensors, 4):
        slope = g + x * norm_coefficient
        first, second = v * alpha + slope * (1 - alpha), h * beta + slope * slope * (1 - beta)
        new = x - own * first / (pb.sqrt(second) + epsilon)
        made.append((new * (1.0 - norm_coefficient_post), first, second))
    return _columns(made)


@rule("Binarizer", 1, domain="ai.onnx.ml")
def binarizer(x: Any, *, threshold: float) -> Any:
    return pb.astype(x > threshold, x.dtype)


@rule("ArrayFeatureExtractor", 1, domain="ai.onnx.ml")
def features(x: Any, places: Any) -> Any:
    rows = pb.reshape(x, (1, -1)) if x.ndim == 1 else x
    return pb.take(rows, pb.reshape(places, (-1,)), axis=rows.ndim - 1)
