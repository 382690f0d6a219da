"""Distances between vectors, and losses that ask for a margin, under torch's names."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from pullback.errors import ArgumentError
from pullback.nn.base.build import common, pointwise, written
from pullback.nn.base.space import literal
from pullback.nn.loss.losses import distance, reduced, weighted
from pullback.tensor.define.compute import axis
from pullback.tensor.face.dialect import spelled
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.library import maths as M
from pullback.tensor.library.ops import any as any_of
from pullback.tensor.library.ops import broadcast_arrays, expand_dims, where
from pullback.tensor.library.ops import sum as sum_of
from pullback.tensor.shaped import shaped
from pullback.tensor.values import views as V
from pullback.tensor.values.precise import in_float32


def norm(x: Tensor, p: float, dim: int, keepdim: bool = False) -> Tensor:
    """``(sum |x|^p)^(1 / p)`` along `dim`; its derivative at 0 is 0. p 0: how many are not 0."""
    if abs(p) == math.inf:
        sizes = pointwise("size", distance, x)
        return (sizes.max if p > 0 else sizes.min)(dim, keepdims=keepdim)
    if p == 0:
        return pointwise("present", lambda v: where(v == 0.0, 0.0, 1.0), x).sum(
            dim, keepdims=keepdim
        )
    powers = pointwise("power", lambda v: v * v if p == 2 else distance(v) ** p, x)
    sums = powers.sum(dim, keepdims=keepdim)
    if p == 1:
        return sums
    root = 1.0 / p
    return pointwise("norm", lambda s: where(s == 0.0, 0.0, s**root), sums)


@spelled
@shaped("input[b...] -> [b...]", where="eps >= 0, -inf <= p <= inf")
@in_float32
def normalize(input: Tensor, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Tensor:
    """``x / max(|x|_p, eps)`` along `dim`.

    Example:
        >>> F.normalize(pb.tensor([[3.0, 4.0]]))
        Tensor([[0.6, 0.8]], dtype=float32)
    """
    return input / _at_least(norm(input, p, dim, True), eps)


@spelled
@shaped("x1[*b], x2[*b]", where="eps >= 0")
@in_float32
def cosine_similarity(x1: Tensor, x2: Tensor, dim: int = 1, eps: float = 1e-8) -> Tensor:
    """``sum(x1 x2) / (max(|x1|, eps) max(|x2|, eps))`` along `dim` of both, broadcast.

    Example:
        >>> F.cosine_similarity(pb.tensor([[3.0, 4.0]]), pb.tensor([[4.0, 3.0]]))
        Tensor([0.96000004], dtype=float32)
    """
    x1, x2 = broadcast_arrays(x1, x2)
    a, b = (x / _at_least(norm(x, 2, dim, True), eps) for x in (x1, x2))
    return (a * b).sum(dim)


def _at_least(x: Tensor, low: float) -> Tensor:
    return pointwise("at_least", lambda v: M.maximum(v, low), x)


@spelled
@shaped("x1[*b, d?], x2[*b, d?]", where="eps >= 0")
@in_float32
def pairwise_distance(
    x1: Tensor, x2: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    """``|x1 - x2 + eps|_p`` along the last axis.

    Example:
        >>> F.pairwise_distance(pb.tensor([[3.0, 4.0]]), pb.zeros((1, 2)))
        Tensor([5.0000014], dtype=float32)
    """
    return norm(x1 - x2 + eps, p, -1, keepdim)


def _hinge(x: Any) -> Any:
    """``max(x, 0)`` with derivative 1 at 0."""
    return where(x < 0.0, 0.0, x)


@shaped("input[*b], target[*b] -> [*b] or []")
@in_float32
def hinge_embedding_loss(
    input: Tensor, target: Tensor, margin: float = 1.0, reduction: str = "mean"
) -> Tensor:
    """``x`` where the target is 1, ``max(0, margin - x)`` where it is -1.

    Example:
        >>> F.hinge_embedding_loss(pb.tensor([0.25, 0.5]), pb.tensor([-1.0, 1.0]))
        Tensor(0.625, dtype=float32)
    """

    def body(x: Any, t: Any) -> Any:
        return where(t != -1.0, x, 0.0) + where(t != 1.0, _hinge(margin - x), 0.0)

    return reduced(pointwise("hinge", body, input, target), reduction)


@shaped("input1[*b], input2[*b], target[*b] -> [*b] or []")
@in_float32
def margin_ranking_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """``max(0, margin - t (x1 - x2))``

    Example:
        >>> F.margin_ranking_loss(pb.tensor([0.25, 0.5]), pb.tensor([0.0, 1.0]), pb.tensor([-1.0,
        ... 1.0]), margin=0.5)
        Tensor(0.875, dtype=float32)
    """

    def body(a: Any, b: Any, t: Any) -> Any:
        return _hinge(margin - t * (a - b))

    return reduced(pointwise("ranking", body, input1, input2, target), reduction)


@shaped("input1[n..., d], input2[n..., d], target[n...] -> [n...] or []", where="-1 <= margin <= 1")
@in_float32
def cosine_embedding_loss(
    input1: Tensor, input2: Tensor, target: Tensor, margin: float = 0.0, reduction: str = "mean"
) -> Tensor:
    """``1 - cos`` where the target is 1, ``max(0, cos - margin)`` where it is -1.

    Example:
        >>> F.cosine_embedding_loss(pb.tensor([[3.0, 4.0]]), pb.tensor([[4.0, 3.0]]),
        ... pb.tensor([1.0]))
        Tensor(0.04000002, dtype=float32)
    """
    small = 1e-12
    pairs = ((input1, input2), (input1, input1), (input2, input2))
    products = [(a * b).sum(-1) for a, b in pairs]

    def body(ab: Any, aa: Any, bb: Any, t: Any) -> Any:
        cos = ab / M.sqrt((aa + small) * (bb + small))
        far = where(t == -1.0, _hinge(cos - margin), 0.0)
        return where(t == 1.0, 1.0 - cos, far)

    return reduced(pointwise("cosine", body, *products, target), reduction)


@shaped(
    "anchor[*b, d?], positive[*b, d?], negative[*b, d?] -> [*b] or []",
    where="margin > 0, eps >= 0",
)
@in_float32
def triplet_margin_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    margin: float = 1.0,
    p: float = 2.0,
    eps: float = 1e-6,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """``max(0, margin + |a - p| - |a - n|)``; `swap` takes the nearer of a and p to n.

    Example:
        >>> F.triplet_margin_loss(pb.zeros((1, 2)), pb.tensor([[3.0, 4.0]]), pb.tensor([[4.0,
        ... 3.0]]))
        Tensor(1., dtype=float32)
    """

    def apart(a: Tensor, b: Tensor) -> Tensor:
        return pairwise_distance(a, b, p, eps)

    return triplet_margin_with_distance_loss(
        anchor,
        positive,
        negative,
        distance_function=apart,
        margin=margin,
        swap=swap,
        reduction=reduction,
    )


@shaped("anchor[*b, d?], positive[*b, d?], negative[*b, d?] -> [*b] or []", where="margin > 0")
def triplet_margin_with_distance_loss(
    anchor: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    distance_function: Callable[[Tensor, Tensor], Tensor] | None = None,
    margin: float = 1.0,
    swap: bool = False,
    reduction: str = "mean",
) -> Tensor:
    """`triplet_margin_loss` with a distance of the user's.

    Example:
        >>> F.triplet_margin_with_distance_loss(pb.zeros((1, 2)), pb.tensor([[3.0, 4.0]]),
        ... pb.tensor([[4.0, 3.0]]), margin=2.0)
        Tensor(2., dtype=float32)
    """
    apart = distance_function or pairwise_distance
    near, far = apart(anchor, positive), apart(anchor, negative)
    if swap:
        far = M.minimum(far, apart(positive, negative))
    wrong = next((d for d in (near, far) if not isinstance(d, Tensor)), None)
    if wrong is not None:
        raise ArgumentError(f"a distance is {wrong!r}, no tensor", code="E213")
    return _farther(near, far, margin, reduction)


@in_float32
def _farther(near: Tensor, far: Tensor, margin: float, reduction: str) -> Tensor:
    """``max(0, margin + near - far)``, reduced."""
    losses = pointwise("triplet", lambda a, b: _hinge(margin + a - b), near, far)
    return reduced(losses, reduction)


@shaped(
    "input[n, c] or [c], target: int[n] or [], weight[c] -> [n] or []",
    where="1 <= int(p) <= 2",
)
@in_float32
def multi_margin_loss(
    input: Tensor,
    target: Tensor,
    p: int = 1,
    margin: float = 1.0,
    weight: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """``sum[c != t] max(0, margin - x[t] + x[c])^p w[t] / C`` of each row.

    Example:
        >>> F.multi_margin_loss(pb.tensor([[0.0, 1.0]]), pb.tensor([1]))
        Tensor(0., dtype=float32)
    """
    x, t, classes = _rows(input, target, 0)
    c = axis(classes)

    def body(n: Any) -> Any:
        gap = _hinge(margin - x[n, t[n]] + x[n, c]) ** p
        heavy = gap if weight is None else gap * weight[t[n]]
        return sum_of(where(c == t[n], 0.0, heavy), over=c) / float(classes)

    return _per_row(written(x.shape[:1], body, name="multi_margin"), input, reduction)


@shaped("input[n, c] or [c], target: int[n, c] or [c] -> [n] or []")
@in_float32
def multilabel_margin_loss(input: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """``sum[j, c] max(0, 1 - x[t[j]] + x[c]) / C`` over the labels j and the c that are none.

    Labels of a row end at the first -1.

    Example:
        >>> F.multilabel_margin_loss(pb.tensor([[0.0, 1.0]]), pb.tensor([[1, -1]]))
        Tensor(0., dtype=float32)
    """
    x, t, classes = _rows(input, target, 1)
    j, c = axis(classes), axis(classes)
    ended = written(x.shape, lambda n, i: any_of((t[n, j] < 0) & (j <= i), over=j))

    def chosen(n: Any, i: Any) -> Any:
        return any_of((t[n, j] == i) & ~ended[n, j], over=j)

    labels = written(x.shape, chosen)

    def body(n: Any) -> Any:
        counts = ~ended[n, j] & ~labels[n, c]
        gap = where(counts, _hinge(1.0 - x[n, t[n, j]] + x[n, c]), 0.0)
        return sum_of(gap, over=(j, c)) / float(classes)

    return _per_row(written(x.shape[:1], body, name="multilabel"), input, reduction)


@shaped("input[b..., c], target[b..., c], weight[b...?, c?] -> [b...] or []")
@in_float32
def multilabel_soft_margin_loss(
    input: Tensor, target: Tensor, weight: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """``-t log(sigmoid(x)) - (1 - t) log(sigmoid(-x))``, the mean over classes of each row.

    Example:
        >>> F.multilabel_soft_margin_loss(pb.tensor([[0.0, 1.0]]), pb.tensor([[0.0, 1.0]]))
        Tensor(0.50320446, dtype=float32)
    """

    def body(x: Any, t: Any) -> Any:
        return t * M.softplus(-x) + (1.0 - t) * M.softplus(x)

    losses = weighted(pointwise("soft_margin", body, input, target), weight)
    return reduced(losses.mean(-1), reduction)


def _rows(input: Tensor, target: Tensor, labels: int) -> tuple[Tensor, Tensor, int]:
    """Scores as ``(N, C)``, targets with `labels` axes after N, and C; one row may come alone."""
    common(input)
    rank = len(input.shape)
    if rank not in (1, 2) or len(target.shape) != rank - 1 + labels:
        raise V.fail(f"scores {input.shape} and targets {target.shape}", "one row, or rows")
    classes = literal("a margin", input.shape[-1:])[0]
    if rank == 2:
        return input, target, classes
    return expand_dims(input, 0), expand_dims(target, 0), classes


def _per_row(losses: Tensor, input: Tensor, reduction: str) -> Tensor:
    """Losses of rows, reduced; of a row that came alone the loss."""
    if len(input.shape) == 1:
        return losses.reshape()
    return reduced(losses, reduction)
