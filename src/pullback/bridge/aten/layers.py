"""Softmax, norms, pools, embeddings, losses: composites that are kept whole."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pullback as pb
import pullback.nn.functional as F
from pullback.bridge.aten.pools import largest
from pullback.bridge.aten.table import aten, of_numbers, once, placed, pulled, rule
from pullback.ir.expr import upper


@rule(aten._softmax.default)
def softmax(x: Any, dim: int, half_to_float: bool) -> Any:
    if 0 in x.shape:
        return x
    return pb.softmax(pb.astype(x, pb.float32) if half_to_float else x, axis=dim)


@rule(aten._log_softmax.default)
def log_softmax(x: Any, dim: int, half_to_float: bool) -> Any:
    if 0 in x.shape:
        return x
    return pb.log_softmax(pb.astype(x, pb.float32) if half_to_float else x, axis=dim)


@rule(aten._softmax_backward_data.default)
def softmax_backward(head: Any, y: Any, dim: int, dtype: Any) -> Any:
    del dtype
    return y * (head - pb.sum(head * y, axis=dim, keepdims=True))


@rule(aten._log_softmax_backward_data.default)
def log_softmax_backward(head: Any, y: Any, dim: int, dtype: Any) -> Any:
    del dtype
    return head - pb.exp(y) * pb.sum(head, axis=dim, keepdims=True)


# --- norms ----------------------------------------------------------------------------------------


@rule(aten.native_layer_norm.default)
@once
def layer_norm(x: Any, shape: Sequence[int], w: Any, b: Any, eps: float) -> Any:
    over = tuple(range(x.ndim - len(shape), x.ndim))
    mean = pb.mean(x, axis=over, keepdims=True)
    rstd = pb.rsqrt(pb.var(x, axis=over, keepdims=True) + eps)
    y = (x - mean) * rstd
    y = y if w is None else y * w
    return (y if b is None else y + b), mean, rstd


@rule(aten.native_layer_norm_backward.default)
@once
def layer_norm_backward(
    head: Any, x: Any, shape: Sequence[int], mean: Any, rstd: Any, w: Any, b: Any,
    mask: Sequence[bool],
) -> Any:  # fmt: skip
    del b
    over = tuple(range(x.ndim - len(shape), x.ndim))
    rest = tuple(range(x.ndim - len(shape)))
    normal = (x - mean) * rstd
    dx = dw = db = None
    if mask[0]:
        own = head if w is None else head * w
        first = pb.mean(own, axis=over, keepdims=True)
        second = pb.mean(own * normal, axis=over, keepdims=True)
        dx = (own - first - normal * second) * rstd
    if mask[1] and w is not None:
        dw = pb.sum(head * normal, axis=rest) if rest else head * normal
    if mask[2]:
        db = pb.sum(head, axis=rest) if rest else head
    return dx, dw, db


@rule(aten.native_group_norm.default)
@once
def group_norm(x: Any, w: Any, b: Any, n: int, c: int, inner: int, groups: int, eps: float) -> Any:
    rows = pb.reshape(x, (n, groups, c // groups * inner))
    mean = pb.mean(rows, axis=2, keepdims=True)
    rstd = pb.rsqrt(pb.var(rows, axis=2, keepdims=True) + eps)
    y = pb.reshape((rows - mean) * rstd, tuple(x.shape))
    y = y if w is None else y * _by_channel(w, x)
    y = y if b is None else y + _by_channel(b, x)
    return y, pb.reshape(mean, (n, groups)), pb.reshape(rstd, (n, groups))


def _by_channel(values: Any, x: Any) -> Any:
    return pb.reshape(values, (1, x.shape[1], *[1] * (x.ndim - 2)))


@rule(aten.native_group_norm_backward.default)
@once
def group_norm_backward(
    head: Any, x: Any, mean: Any, rstd: Any, w: Any, n: int, c: int, inner: int, groups: int,
    mask: Sequence[bool],
) -> Any:  # fmt: skip
    rows = pb.reshape(x, (n, groups, c // groups * inner))
    normal = (rows - pb.reshape(mean, (n, groups, 1))) * pb.reshape(rstd, (n, groups, 1))
    dx = dw = db = None
    if mask[0]:
        own = pb.reshape(head if w is None else head * _by_channel(w, x), rows.shape)
        first = pb.mean(own, axis=2, keepdims=True)
        second = pb.mean(own * normal, axis=2, keepdims=True)
        own = (own - first - normal * second) * pb.reshape(rstd, (n, groups, 1))
        dx = pb.reshape(own, tuple(x.shape))
    channels = pb.reshape(head, (n, c, inner))
    if mask[1]:
        dw = pb.sum(channels * pb.reshape(normal, (n, c, inner)), axis=(0, 2))
    if mask[2]:
        db = pb.sum(channels, axis=(0, 2))
    return dx, dw, db


@rule(aten._native_batch_norm_legit_functional.default)
@once
def batch_norm(
    x: Any, w: Any, b: Any, running_mean: Any, running_var: Any, training: bool,
    momentum: float, eps: float,
) -> Any:  # fmt: skip
    """The result, what was saved, and the running statistics after it."""
    if not training:
        y, mean, rstd = _by_statistics(x, w, b, running_mean, running_var, eps)
        del mean, rstd
        nothing = pb.zeros((0,), dtype=running_mean.dtype)
        return y, nothing, nothing, running_mean, running_var
    rest = _rest(x)
    count = _count(x, rest)
    mean, var = pb.mean(x, axis=rest), pb.var(x, axis=rest)
    y, mean, rstd = _by_statistics(x, w, b, mean, var, eps)
    one_less = max(1, count - 1) if isinstance(count, int) else pb.maximum(count - 1, 1)
    unbiased = var * (count / one_less)
    new_mean = running_mean * (1 - momentum) + mean * momentum
    new_var = running_var * (1 - momentum) + unbiased * momentum
    return y, mean, rstd, new_mean, new_var


@rule(aten._batch_norm_with_update_functional.default)
@once
def batch_norm_updated(
    x: Any, w: Any, b: Any, running_mean: Any, running_var: Any, momentum: float, eps: float
) -> Any:
    own = batch_norm(x, w, b, running_mean, running_var, True, momentum, eps)
    return (*own[:3], pb.zeros((0,), dtype=pb.uint8), *own[3:])


def _count(x: Any, axes: Sequence[int]) -> Any:
    """Elements along axes; of symbolic extents as a tensor."""
    sizes = [x.shape[a] for a in axes]
    known = math.prod(s for s in sizes if isinstance(s, int))
    more = [pb.sum(pb.ones((s,))) for s in sizes if not isinstance(s, int)]
    return math.prod(more, start=known)


def _rest(x: Any) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


def _by_statistics(x: Any, w: Any, b: Any, mean: Any, var: Any, eps: float) -> Any:
    rstd = pb.rsqrt(var + eps)
    y = (x - _by_channel(mean, x)) * _by_channel(rstd, x)
    y = y if w is None else y * _by_channel(w, x)
    return (y if b is None else y + _by_channel(b, x)), mean, rstd


@rule(aten._native_batch_norm_legit_no_training.default)
@once
def batch_norm_evaluated(
    x: Any, w: Any, b: Any, mean: Any, var: Any, momentum: float, eps: float
) -> Any:
    del momentum
    y, _, _ = _by_statistics(x, w, b, mean, var, eps)
    nothing = pb.zeros((0,), dtype=mean.dtype)
    return y, nothing, nothing


@rule(aten._native_batch_norm_legit.no_stats)
@once
def batch_norm_without(x: Any, w: Any, b: Any, training: bool, momentum: float, eps: float) -> Any:
    del training, momentum
    rest = _rest(x)
    return _by_statistics(x, w, b, pb.mean(x, axis=rest), pb.var(x, axis=rest), eps)


@rule(aten.native_batch_norm_backward.default)
@once
def batch_norm_backward(
    head: Any, x: Any, w: Any, running_mean: Any, running_var: Any, mean: Any, rstd: Any,
    train: bool, eps: float, mask: Sequence[bool],
) -> Any:  # fmt: skip
    if not train:
        mean, rstd = running_mean, pb.rsqrt(running_var + eps)
    rest = _rest(x)
    normal = (x - _by_channel(mean, x)) * _by_channel(rstd, x)
    by = rstd if w is None else rstd * w
    dw, db = pb.sum(head * normal, axis=rest), pb.sum(head, axis=rest)
    dx = None
    if mask[0] and not train:
        dx = head * _by_channel(by, x)
    elif mask[0]:
        count = _count(x, rest)
        middle = _by_channel(db / count, x) + normal * _by_channel(dw / count, x)
        dx = (head - middle) * _by_channel(by, x)
    return dx, dw if mask[1] else None, db if mask[2] else None


@rule(aten.batch_norm_backward.default)
@once
def batch_norm_updated_backward(
    head: Any, x: Any, w: Any, running_mean: Any, running_var: Any, mean: Any, rstd: Any,
    update: bool, eps: float, mask: Sequence[bool], reserve: Any,
) -> Any:  # fmt: skip
    del reserve
    own = (running_mean, running_var, mean, rstd, update, eps, mask)
    return batch_norm_backward(head, x, w, *own)


# --- pools ----------------------------------------------------------------------------------------


def _pair(value: Any) -> tuple[int, int]:
    both = [value, value] if isinstance(value, int) else [*value] * (3 - len(value))
    return both[0], both[1]


@rule(aten.max_pool2d_with_indices.default)
def max_pool(
    x: Any, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> Any:
    one = pb.expand_dims(x, axis=0) if x.ndim == 3 else x
    told = _pair(kernel), _pair(stride or kernel), _pair(padding), _pair(dilation)
    y, places = largest(one, *told, ceil)
    return (y[0], places[0]) if x.ndim == 3 else (y, places)


@rule(aten.max_pool2d_with_indices_backward.default)
def max_pool_backward(
    head: Any, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool,
    places: Any,
) -> Any:  # fmt: skip
    """Each head at the place that was largest."""
    del kernel, stride, padding, dilation, ceil
    return placed(head, x, places, 2)


def _averaged(
    kernel: Any, stride: Any, padding: Any, ceil: bool, counted: bool, divisor: Any
) -> Callable[..., Any]:
    def run(x: Any) -> Any:
        one = pb.expand_dims(x, axis=0) if x.ndim == 3 else x
        y = F.avg_pool2d(
            one, _pair(kernel), _pair(stride or kernel), _pair(padding), ceil, counted, divisor
        )
        return y[0] if x.ndim == 3 else y

    return run


@rule(aten.avg_pool2d.default)
def avg_pool(
    x: Any, kernel: Any, stride: Any = (), padding: Any = 0, ceil: bool = False,
    counted: bool = True, divisor: Any = None,
) -> Any:  # fmt: skip
    return _averaged(kernel, stride, padding, ceil, counted, divisor)(x)


@rule(aten.avg_pool2d_backward.default)
def avg_pool_backward(
    head: Any, x: Any, kernel: Any, stride: Any, padding: Any, ceil: bool, counted: bool,
    divisor: Any,
) -> Any:  # fmt: skip
    return pulled(_averaged(kernel, stride, padding, ceil, counted, divisor), [x], head)[0]


@rule(aten._adaptive_avg_pool2d.default)
def adaptive_avg_pool(x: Any, size: Sequence[int]) -> Any:
    return F.adaptive_avg_pool2d(x, tuple(size))


@rule(aten._adaptive_avg_pool2d_backward.default)
def adaptive_avg_pool_backward(head: Any, x: Any) -> Any:
    size = tuple(head.shape[-2:])
    return pulled(lambda t: F.adaptive_avg_pool2d(t, size), [x], head)[0]


# --- embeddings, indices, losses ------------------------------------------------------------------


def counted(indices: Any, x: Any, dim: int = 0) -> Any:
    """Indices that count from the start: a negative one is out of range, as it is in eager."""
    extent = upper(x.shape[dim]) if x.ndim else 1
    return pb.where(indices < 0, indices - extent, indices)


@rule(aten.embedding.default)
def embedding(
    w: Any, indices: Any, padding_idx: int = -1, by_frequency: bool = False, sparse: bool = False
) -> Any:
    del padding_idx, by_frequency, sparse
    return pb.take(w, counted(indices, w), axis=0)


@rule(aten.embedding_renorm.default)
def embedding_renorm(w: Any, indices: Any, max_norm: float, norm_type: float) -> Any:
    """Rows that are named, and longer than `max_norm`, are made as long."""
    norm = pb.linalg.vector_norm(w, axis=1, ord=norm_type)
    longer = (_times(indices, w.shape[0]) > 0) & (norm > max_norm)
    return w * pb.expand_dims(pb.where(longer, max_norm / (norm + 1e-7), 1.0), axis=1)


def _times(indices: Any, rows: int) -> Any:
    """How often each row is named."""
    flat = pb.reshape(indices, (-1,))
    return pb.index_add(pb.zeros((rows,), dtype=flat.dtype), flat, pb.ones_like(flat), axis=0)


@rule(aten.embedding_dense_backward.default)
def embedding_backward(
    head: Any, indices: Any, rows: int, padding_idx: int, by_frequency: bool
) -> Any:
    flat = pb.reshape(indices, (-1,))
    values = pb.reshape(head, (flat.shape[0], head.shape[-1]))
    if padding_idx >= 0:
        values = pb.where(pb.expand_dims(flat == padding_idx, axis=1), 0, values)
    y = pb.index_add(pb.zeros((rows, head.shape[-1]), dtype=head.dtype), flat, values, axis=0)
    if not by_frequency:
        return y
    times = pb.maximum(_times(flat, rows), 1)
    return y / pb.expand_dims(pb.astype(times, head.dtype), axis=1)


@rule(aten.gather.default)
def gather(x: Any, dim: int, indices: Any, *, sparse_grad: bool = False) -> Any:
    del sparse_grad
    if not x.ndim or 0 in indices.shape:
        return pb.broadcast_to(pb.reshape(x, (-1,))[:1] if x.ndim else x, tuple(indices.shape))
    return pb.gather(x, counted(indices, x, dim), dim)


@rule(aten.index_select.default)
def index_select(x: Any, dim: int, indices: Any) -> Any:
    return pb.take(x, counted(indices, x, dim), axis=dim) if x.ndim else x


@rule(aten.scatter.src)
@of_numbers
def scatter(x: Any, dim: int, indices: Any, values: Any) -> Any:
    return pb.scatter(x, counted(indices, x, dim), values, axis=dim)


@rule(aten.scatter.value)
@of_numbers
def scatter_value(x: Any, dim: int, indices: Any, value: Any) -> Any:
    values = pb.full(indices.shape, value, dtype=x.dtype)
    return pb.scatter(x, counted(indices, x, dim), values, axis=dim)


@rule(aten.scatter_add.default)
@of_numbers
def scatter_add(x: Any, dim: int, indices: Any, values: Any) -> Any:
    return pb.scatter_add(x, counted(indices, x, dim), values, axis=dim)


@rule(aten.index_add.default)
@of_numbers
def index_add(x: Any, dim: int, indices: Any, values: Any, *, alpha: Any = 1) -> Any:
    return pb.index_add(x, counted(indices, x, dim), values, axis=dim, alpha=alpha)


def _no_masks(*args: Any, **_: Any) -> str | None:
    masks = any(str(getattr(i, "dtype", "")) in ("torch.bool", "torch.uint8") for i in args[1])
    return "a mask as an index: the shape depends on data" if masks else None


@rule(aten.index.Tensor, aten._unsafe_index.Tensor, refuses=_no_masks)
def index(x: Any, indices: Sequence[Any]) -> Any:
    return x[tuple([slice(None) if i is None else i for i in indices])]


@rule(aten.index_put.default, aten._unsafe_index_put.default, refuses=_no_masks)
def index_put(x: Any, indices: Sequence[Any], values: Any, accumulate: bool = False) -> Any:
    whole = [slice(None) if i is None else i for i in indices]
    return pb.index_put(x, whole, values, accumulate=accumulate)


REDUCTIONS = ("none", "mean", "sum")


@rule(aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss(x: Any, target: Any, weight: Any, reduction: int, ignored: int) -> Any:
    y = F.nll_loss(x, target, weight, ignored, REDUCTIONS[reduction])
    if REDUCTIONS[reduction] == "none":
        return y, pb.zeros((), dtype=x.dtype)
    return y, pb.sum(_weights(x, target, weight, ignored))


def _weights(x: Any, target: Any, weight: Any, ignored: int) -> Any:
    """The weight of each target."""
    counted = target != ignored
    if weight is None:
        return pb.astype(counted, x.dtype)
    return pb.where(counted, pb.take(weight, pb.where(counted, target, 0), axis=0), 0)


@rule(aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def nll_loss_backward(
    head: Any, x: Any, target: Any, weight: Any, reduction: int, ignored: int, total: Any
) -> Any:
    by = _weights(x, target, weight, ignored)
    by = by * head
    if REDUCTIONS[reduction] == "mean":
        by = by / total
    axis = 0 if x.ndim == 1 else 1
    classes = pb.reshape(pb.arange(x.shape[axis]), _along(axis, x.ndim, x.shape[axis]))
    mine = pb.expand_dims(target, axis=axis) == classes
    return pb.where(mine, -pb.expand_dims(by, axis=axis), 0)


def _along(axis: int, rank: int, extent: int) -> tuple[int, ...]:
    return tuple([extent if n == axis else 1 for n in range(rank)])


@rule(aten.mse_loss.default)
def mse_loss(x: Any, y: Any, reduction: int = 1) -> Any:
    return _reduced((x - y) * (x - y), reduction)


@rule(aten.mse_loss_backward.default)
def mse_loss_backward(head: Any, x: Any, y: Any, reduction: int) -> Any:
    by = 2 / math.prod(x.shape) if REDUCTIONS[reduction] == "mean" else 2.0
    return (x - y) * head * by


def _reduced(x: Any, reduction: int) -> Any:
    kind = REDUCTIONS[reduction]
    return x if kind == "none" else pb.mean(x) if kind == "mean" else pb.sum(x)


@rule(aten.smooth_l1_loss_backward.default)
def smooth_l1_loss_backward(head: Any, x: Any, y: Any, reduction: int, beta: float) -> Any:
    """A slope of 1 beyond `beta`, ``(x - y) / beta`` within; of NaN NaN."""
    part = 1 / math.prod(x.shape) if REDUCTIONS[reduction] == "mean" else 1.0
    apart = x - y
    within = head * apart * (part / beta) if beta else head * apart
    return pb.where(apart <= -beta, -head * part, pb.where(apart >= beta, head * part, within))


@rule(aten._weight_norm_interface.default)
def weight_norm(v: Any, g: Any, dim: int = 0) -> Any:
    """``w = g v / |v|``, norms over all axes but `dim`; and those norms."""
    norms = pb.sqrt(pb.sum(v * v, axis=_but(v, dim), keepdims=True))
    return v * (g / norms), norms


@rule(aten._weight_norm_interface_backward.default)
def weight_norm_backward(head: Any, v: Any, g: Any, norms: Any, dim: int) -> Any:
    along = pb.sum(head * v, axis=_but(v, dim), keepdims=True) / norms
    return (g / norms) * (head - v * (along / norms)), along


def _but(x: Any, dim: int) -> tuple[int, ...]:
    return tuple([n for n in range(x.ndim) if n != dim % x.ndim])
