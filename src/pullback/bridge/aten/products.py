"""Products of matrices, convolutions, attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pullback as pb
import pullback.nn.functional as F
from pullback.bridge.aten.table import aten, once, pulled, rule


@rule(aten.mm.default, aten.bmm.default, aten.mv.default, aten.dot.default, aten.matmul.default)
def matmul(x: Any, y: Any) -> Any:
    return pb.matmul(x, y)


def _scaled(x: Any, by: Any) -> Any:
    """A factor of integers is the integer towards 0, as in eager."""
    own = by if x.dtype.is_float else int(by)
    return x if own == 1 else x * own


@rule(aten.addmm.default, aten.baddbmm.default)
@once
def addmm(x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    own = pb.matmul(a, b)
    own = _scaled(own, alpha)
    return own if beta == 0 else own + _scaled(x, beta)


@rule(aten.addmv.default)
@once
def addmv(x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    return addmm(x, a, b, beta=beta, alpha=alpha)


@rule(aten.addbmm.default)
def addbmm(x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    own = pb.sum(pb.matmul(a, b), axis=0)
    own = _scaled(own, alpha)
    return own if beta == 0 else own + _scaled(x, beta)


_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}


def _convolved(
    stride: Any, padding: Any, dilation: Any, transposed: bool, extra: Any, groups: int
) -> Callable[..., Any]:
    """The convolution of these settings, as a function of input, weight and bias."""

    def run(x: Any, w: Any, b: Any = None) -> Any:
        rank = w.ndim - 2
        lone = x.ndim == rank + 1
        x = pb.expand_dims(x, axis=0) if lone else x
        s, p, d, e = (_each(v, rank) for v in (stride, padding, dilation, extra))
        if transposed:
            y = _TRANSPOSED[rank](x, w, b, s, p, e, groups, d)
        else:
            y = _CONVOLUTIONS[rank](x, w, b, s, p, d, groups)
        return y[0] if lone else y

    return run


def _each(value: Sequence[int], rank: int) -> tuple[int, ...]:
    return tuple(value) * rank if len(value) == 1 else tuple(value)


@rule(aten.convolution.default)
def convolution(
    x: Any, w: Any, b: Any, stride: Any, padding: Any, dilation: Any, transposed: bool,
    extra: Any, groups: int,
) -> Any:  # fmt: skip
    return _convolved(stride, padding, dilation, transposed, extra, groups)(x, w, b)


@rule(aten.convolution_backward.default)
def convolution_backward(
    head: Any, x: Any, w: Any, bias_sizes: Any, stride: Any, padding: Any, dilation: Any,
    transposed: bool, extra: Any, groups: int, mask: Sequence[bool],
) -> Any:  # fmt: skip
    """Of input, weight and bias, those that `mask` wants."""
    del bias_sizes
    run = _convolved(stride, padding, dilation, transposed, extra, groups)
    dx = pulled(lambda t: run(t, w), [x], head)[0] if mask[0] else None
    dw = pulled(lambda t: run(x, t), [w], head)[0] if mask[1] else None
    channel = head.ndim - (w.ndim - 2) - 1
    rest = tuple([n for n in range(head.ndim) if n != channel])
    return dx, dw, pb.sum(head, axis=rest) if mask[2] else None


# --- attention: the pair that PyTorch has for processors ------------------------------------------


def _scores(q: Any, k: Any, mask: Any, causal: bool, scale: float | None) -> Any:
    by = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = pb.matmul(q, pb.matrix_transpose(k)) * by
    if causal:
        rows = pb.expand_dims(pb.arange(q.shape[-2]), axis=1)
        columns = pb.expand_dims(pb.arange(k.shape[-2]), axis=0)
        scores = pb.where(columns <= rows, scores, -math.inf)
    return scores if mask is None else scores + mask


def _shared(x: Any, q: Any) -> Any:
    """Keys or values, each for the heads of queries that share it."""
    batch, heads, *rest = x.shape
    if heads == q.shape[1]:
        return x
    each = (batch, heads, q.shape[1] // heads, *rest)
    return pb.reshape(pb.broadcast_to(pb.expand_dims(x, axis=2), each), (batch, -1, *rest))


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
    k, v = _shared(k, q), _shared(v, q)
    y = F.scaled_dot_product_attention(q, k, v, attn_mask, 0.0, is_causal, scale)
    return y, pb.logsumexp(_scores(q, k, attn_mask, is_causal, scale), axis=-1)


@rule(aten._scaled_dot_product_flash_attention_for_cpu_backward.default)
def attention_backward(
    head: Any, q: Any, k: Any, v: Any, y: Any, logsumexp: Any, dropout_p: float,
    is_causal: bool, *, attn_mask: Any = None, scale: float | None = None,
) -> Any:  # fmt: skip
    """The adjoints of queries, keys and values."""
    del y, logsumexp, dropout_p

    def run(q: Any, k: Any, v: Any) -> Any:
        k, v = _shared(k, q), _shared(v, q)
        return F.scaled_dot_product_attention(q, k, v, attn_mask, 0.0, is_causal, scale)

    return pulled(run, [q, k, v], head)
