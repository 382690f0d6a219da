"""Attention and encoder layers that PyTorch has as one operator each, without gradients."""

from __future__ import annotations

from typing import Any

import pullback as pb
import pullback.nn.functional as F
from pullback.bridge.aten.table import aten, rule

PLACES, KEYS = range(2)  # kinds of masks: of places by places, of samples by keys; else of all axes


def _hidden(mask: Any, kind: int | None, scores: Any) -> Any:
    """Where a score is not looked at, which PyTorch takes of a mask of any type."""
    n, _, _, keys = scores.shape
    mask = mask != 0
    return pb.reshape(mask, (n, 1, 1, keys)) if kind == KEYS else mask


@rule(aten._native_multi_head_attention.default)
def attention(
    q: Any, k: Any, v: Any, size: int, heads: int, w: Any, b: Any, out_w: Any, out_b: Any,
    mask: Any = None, wanted: bool = True, averaged: bool = True, kind: int | None = None,
) -> Any:  # fmt: skip
    """``softmax(q k^T / sqrt(d)) v`` of projections by heads, and the weights where wanted."""
    parts = []
    for n, x in enumerate((q, k, v)):
        own = slice(n * size, (n + 1) * size)
        y = F.linear(x, w[own], b[own])
        y = pb.reshape(y, (*y.shape[:2], heads, size // heads))
        parts.append(pb.permute_dims(y, (0, 2, 1, 3)))
    q, k, v = parts
    scores = (q * q.shape[-1] ** -0.5) @ pb.permute_dims(k, (0, 1, 3, 2))
    if mask is not None:
        scores = pb.where(_hidden(mask, kind, scores), -float("inf"), scores)
    weights = pb.softmax(scores, axis=-1)
    y = pb.permute_dims(weights @ v, (0, 2, 1, 3))
    y = F.linear(pb.reshape(y, (*y.shape[:2], size)), out_w, out_b)
    if not wanted:
        return y, None
    return y, pb.mean(weights, axis=1) if averaged else weights


@rule(aten._transformer_encoder_layer_fwd.default)
def encoder_layer(
    x: Any, size: int, heads: int, w: Any, b: Any, out_w: Any, out_b: Any, gelu: bool,
    norm_first: bool, eps: float, scale1: Any, shift1: Any, scale2: Any, shift2: Any,
    w1: Any, b1: Any, w2: Any, b2: Any, mask: Any = None, kind: int | None = None,
) -> Any:  # fmt: skip
    """``x = x + attention(norm(x)); x + mlp(norm(x))``, or each norm after its sum."""

    def first(x: Any) -> Any:
        return attention(x, x, x, size, heads, w, b, out_w, out_b, mask, False, True, kind)[0]

    def second(x: Any) -> Any:
        y = F.linear(x, w1, b1)
        return F.linear(F.gelu(y) if gelu else F.relu(y), w2, b2)

    def norm1(x: Any) -> Any:
        return F.layer_norm(x, (size,), scale1, shift1, eps=eps)

    def norm2(x: Any) -> Any:
        return F.layer_norm(x, (size,), scale2, shift2, eps=eps)

    if norm_first:
        x = x + first(norm1(x))
        return x + second(norm2(x))
    x = norm1(x + first(x))
    return norm2(x + second(x))
