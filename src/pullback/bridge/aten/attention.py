"""Attention: the pair of operators that PyTorch has for processors."""

from __future__ import annotations

from typing import Any

import pullback as pb
from pullback.bridge.aten.table import aten, rule
from pullback.nn.sequence.attention import Mask, adjoints, attended, with_mask


def _shared(x: Any, q: Any) -> Any:
    """Keys or values, each for the heads of queries that share it."""
    batch, heads, *rest = x.shape
    if heads == q.shape[1]:
        return x
    each = (batch, heads, q.shape[1] // heads, *rest)
    return pb.reshape(pb.broadcast_to(pb.expand_dims(x, axis=2), each), (batch, -1, *rest))


def _joined(dx: Any, x: Any) -> Any:
    """The adjoint of keys or values that several heads of queries share."""
    batch, heads, *rest = x.shape
    if heads == dx.shape[1]:
        return dx
    return pb.sum(pb.reshape(dx, (batch, heads, -1, *rest)), axis=2)


def _no_dropout(*args: Any, **kwargs: Any) -> str | None:
    share = args[3] if len(args) > 3 else kwargs.get("dropout_p", 0.0)
    return "dropout inside of attention" if share else None


@rule(aten._scaled_dot_product_flash_attention_for_cpu.default, refuses=_no_dropout)
def attention(
    q: Any, k: Any, v: Any, dropout_p: float = 0.0, is_causal: bool = False, *,
    attn_mask: Any = None, scale: float | None = None,
) -> Any:  # fmt: skip
    """Attention, and the logarithm of each row's sum of exponentials."""
    del dropout_p
    made = attended(q, _shared(k, q), _shared(v, q), attn_mask, 0.0, is_causal, scale)
    return made.output, pb.reshape(made.logs, q.shape[:-1])


@rule(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def attention_backward(
    head: Any, q: Any, k: Any, v: Any, y: Any, logsumexp: Any, dropout_p: float,
    is_causal: bool, *, attn_mask: Any = None, scale: float | None = None,
) -> Any:  # fmt: skip
    """The adjoints of queries, keys and values."""
    del dropout_p
    mask = with_mask(Mask(causal=is_causal), attn_mask)
    every = _shared(k, q), _shared(v, q)
    dq, dk, dv = adjoints(head, q, *every, y, logsumexp, mask, scale)
    return dq, _joined(dk, k), _joined(dv, v)
