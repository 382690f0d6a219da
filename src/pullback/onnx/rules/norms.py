"""Norms by batch, channels and rows; dropout as it is at inference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pullback as pb
import pullback.nn.functional as F
from pullback.onnx.rules.table import axis_of, demand, rule


def _by_channel(values: Any, x: Any) -> Any:
    return pb.reshape(values, (1, -1, *[1] * (x.ndim - 2)))


def _scaled(x: Any, scale: Any, bias: Any, mean: Any, var: Any, epsilon: float) -> Any:
    by = pb.rsqrt(var + epsilon) * scale
    return pb.astype(
        (x - _by_channel(mean, x)) * _by_channel(by, x) + _by_channel(bias, x), x.dtype
    )


@rule("BatchNormalization", 7)
def batch_norm_7(
    x: Any, scale: Any, bias: Any, mean: Any, var: Any, *, epsilon: float, momentum: float,
    spatial: int, outputs: Sequence[bool],
) -> Any:  # fmt: skip
    del momentum
    demand(spatial == 1 and not any(outputs[1:]), "statistics of a batch")
    return _scaled(x, scale, bias, mean, var, epsilon)


@rule("BatchNormalization", 9)
def batch_norm_9(
    x: Any, scale: Any, bias: Any, mean: Any, var: Any, *, epsilon: float, momentum: float,
    outputs: Sequence[bool],
) -> Any:  # fmt: skip
    del momentum
    demand(not any(outputs[1:]), "statistics of a batch")
    return _scaled(x, scale, bias, mean, var, epsilon)


@rule("BatchNormalization", 14, 15)
def batch_norm(
    x: Any, scale: Any, bias: Any, mean: Any, var: Any, *, epsilon: float, momentum: float,
    training_mode: int,
) -> Any:  # fmt: skip
    """By the statistics given; in training by those of the batch, which move the ones given."""
    if not training_mode:
        return _scaled(x, scale, bias, mean, var, epsilon)
    rest = (0, *range(2, x.ndim))
    own, spread = pb.mean(x, axis=rest), pb.var(x, axis=rest)
    moved = [pb.astype(old * momentum + new * (1.0 - momentum), old.dtype)
             for old, new in ((mean, own), (var, spread))]  # fmt: skip
    return _scaled(x, scale, bias, own, spread, epsilon), *moved


@rule("InstanceNormalization", 6, 22)
def instance_norm(x: Any, scale: Any, bias: Any, *, epsilon: float) -> Any:
    return F.instance_norm(x, None, None, scale, bias, eps=epsilon)


@rule("LRN", 1, 13)
def response_norm(x: Any, *, alpha: float, beta: float, bias: float, size: int) -> Any:
    """Of an even size one channel more behind than before: turned round."""
    if size % 2:
        return F.local_response_norm(x, size, alpha, beta, bias)
    y = F.local_response_norm(pb.flip(x, axis=1), size, alpha, beta, bias)
    return pb.flip(y, axis=1)


@rule("LayerNormalization", 17)
def layer_norm(
    x: Any, scale: Any, bias: Any = None, *, axis: int, epsilon: float, stash_type: int,
    outputs: Sequence[bool],
) -> Any:  # fmt: skip
    """Rows in float32; their mean and the inverse of their deviation where they are wanted."""
    at = axis_of(axis, x.ndim)
    demand(stash_type == 1, f"stash_type={stash_type}")
    over = tuple(range(at, x.ndim))
    plain = tuple(scale.shape) == tuple(x.shape[at:]) and x.dtype != pb.float64
    if plain and (bias is None or bias.shape == scale.shape) and not any(outputs[1:]):
        return F.layer_norm(x, tuple(x.shape[at:]), scale, bias, epsilon)
    wide = pb.astype(x, pb.float32)
    mean = pb.mean(wide, axis=over, keepdims=True)
    inverse = pb.rsqrt(pb.var(wide, axis=over, keepdims=True) + epsilon)
    y = pb.astype((wide - mean) * inverse, x.dtype) * scale
    return (y if bias is None else y + bias), mean, inverse


@rule("Dropout", 7, 10)
def dropout_at_inference(x: Any, *, ratio: float) -> Any:
    del ratio
    return x, pb.full(tuple(x.shape), True, dtype=pb.bool_)


@rule("Dropout", 12, 13, 22, known=(1, 2))
def dropout(x: Any, ratio: Any = None, training: Any = None, *, seed: int | None) -> Any:
    """As it is at inference."""
    del seed
    active = training is not None and bool(training.reshape(-1)[0])
    share = 0.5 if ratio is None else float(ratio.reshape(-1)[0])
    demand(not (active and share), "training_mode: which numbers it draws is not defined")
    return x, pb.full(tuple(x.shape), True, dtype=pb.bool_)
