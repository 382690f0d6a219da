"""Connectionist temporal classification: a sum over all alignments, as a scan."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pullback.errors import ShapeError
from pullback.ir.dtype import int64
from pullback.nn.base.build import common, written
from pullback.nn.base.layer import Layer
from pullback.nn.base.space import literal
from pullback.nn.loss.losses import known_reduction, reduced
from pullback.tensor.face.tensor import Tensor, value_of
from pullback.tensor.forms.control import scan
from pullback.tensor.library import maths as M
from pullback.tensor.library.creation import arange
from pullback.tensor.library.ops import astype, cumulative_sum, expand_dims, logsumexp, stack, where
from pullback.tensor.shaped import shaped
from pullback.tensor.values.elementwise import show
from pullback.tensor.values.precise import in_float32
from pullback.tensor.values.views import reshape


@shaped(
    "log_probs: float[t, n, c] or [t, c], targets: int[n, s] or [s], input_lengths: int[n] or "
    "[1] or [], target_lengths: int[n] or [1] or [] -> [n] or []",
    where="int(blank) >= 0",
)
@in_float32
def ctc_loss(
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """``-log sum over alignments of prod[t] p[t, a(t)]``, infinite where there is none.

    With l the targets between blanks, ``alpha[t, s] = p[t, l(s)] (alpha[t-1, s] + alpha[t-1, s-1]
    + (alpha[t-1, s-2] if l(s) is no blank and not l(s-2)))``, in logarithms. `log_probs` is
    (T, N, C) or (T, C), `targets` (N, S) or all of them in one row (as many as `target_lengths` has
    in all; not checked where those are data); "mean" divides each loss by
    the length of its target first. Source: Graves et al., 2006. Raises: ShapeError.

    Example:
        >>> F.ctc_loss(F.log_softmax(pb.zeros((5, 2, 3))), pb.tensor([[1, 2], [2, 1]]), (5, 5), (2,
        ... 2)).shape
        ()
    """
    kind = common(log_probs)
    alone = len(log_probs.shape) == 2
    if len(log_probs.shape) not in (2, 3):
        raise ShapeError(f"ctc_loss of {show(log_probs.value.shape)}", code="E111")
    known_reduction(reduction)
    logs = expand_dims(log_probs, axis=1) if alone else log_probs
    batch = logs.shape[1]
    counts, sizes = (_lengths(n) for n in (input_lengths, target_lengths))
    for name, lengths in (("input_lengths", counts), ("target_lengths", sizes)):
        if lengths.shape[0] != batch:
            raise ShapeError(f"ctc_loss: {lengths.shape[0]} {name} for {batch} rows", code="E175")
    if len(targets.shape) == 2 and targets.shape[0] != batch:
        raise ShapeError(f"ctc_loss: {targets.shape[0]} targets for {batch} rows", code="E175")
    _check_row(targets, target_lengths)
    labels = _labels(targets, sizes, batch, blank)
    alpha = _alphas(logs, labels, counts, blank)

    def last(n: Any) -> Any:
        end = alpha[n, sizes[n] * 2]
        before = where(sizes[n] > 0, alpha[n, M.maximum(sizes[n] * 2 - 1, 0)], -math.inf)
        return end, before

    ends = [written((batch,), lambda n, k=k: last(n)[k], name="end") for k in range(2)]
    losses: Tensor = -logsumexp(stack(ends), axis=0)
    if zero_infinity:
        losses = where(losses == math.inf, 0.0, losses)
    if reduction == "mean":
        losses = losses / astype(M.maximum(sizes, 1), kind)
    loss = reduced(losses, reduction)
    return Tensor(reshape(loss.value, ())) if alone and reduction == "none" else loss


def _check_row(targets: Tensor, lengths: Any) -> None:
    """Raises: ShapeError where a row of all targets has more or fewer than `lengths` say.

    Lengths that are data are not known yet.
    """
    if len(targets.shape) != 1 or isinstance(lengths, Tensor):
        return
    wanted, has = int(np.sum(lengths)), targets.shape[0]
    if has != wanted:
        raise ShapeError(
            f"ctc_loss: {has} targets in one row",
            help=f"target_lengths has {wanted} in all; padded targets are (N, S)",
            code="E175",
        )


def _lengths(given: Any) -> Tensor:
    """One length for each of the batch, int64."""
    array = given if isinstance(given, Tensor) else Tensor(value_of(np.asarray(given, np.int64)))
    lengths: Tensor = astype(array.reshape(-1), int64)
    return lengths


def _labels(targets: Tensor, sizes: Tensor, batch: Any, blank: int) -> Tensor:
    """``blank, l0, blank, l1, .., blank`` for each of the batch."""
    joined = len(targets.shape) == 1
    longest = literal("ctc_loss", targets.shape)[-1]
    starts = cumulative_sum(sizes) - sizes

    def body(n: Any, s: Any) -> Any:
        place = s // 2
        inside = (s % 2 == 1) & (place < sizes[n])
        index = (starts[n] + place,) if joined else (n, place)
        return where(inside, astype(targets[index], int64), blank)

    return written((batch, longest * 2 + 1), body, name="labels")


def _checked(counts: Tensor, steps: Any) -> Tensor:
    """The lengths themselves, of 0 to `steps`; a length beyond is an index out of range."""
    numbers = arange(0, steps)

    def body(n: Any) -> Any:
        return where(counts[n] == 0, 0, numbers[counts[n] - 1] + 1)

    return written(counts.shape, body, name="input_lengths")


def _alphas(logs: Tensor, labels: Tensor, counts: Tensor, blank: int) -> Tensor:
    """The last row of alpha for each of the batch."""
    shape = labels.shape
    counts = _checked(counts, logs.shape[0])

    def emitted(row: Tensor) -> Tensor:
        return written(shape, lambda n, s: row[n, labels[n, s]], name="emitted")

    first = emitted(logs[0])
    start = written(shape, lambda n, s: where(s < 2, first[n, s], -math.inf), name="alpha")

    def skips(n: Any, s: Any) -> Any:
        return (s >= 2) & (labels[n, s] != blank) & (labels[n, s] != labels[n, M.maximum(s - 2, 0)])

    def step(alpha: Tensor, x: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[()]]:
        row, t = x

        def one(n: Any, s: Any) -> Any:
            return where(s >= 1, alpha[n, M.maximum(s - 1, 0)], -math.inf)

        def two(n: Any, s: Any) -> Any:
            return where(skips(n, s), alpha[n, M.maximum(s - 2, 0)], -math.inf)

        reached = [alpha, *(written(shape, f, name="reached") for f in (one, two))]
        moved = logsumexp(stack(reached), axis=0) + emitted(row)
        live = t < counts
        following = written(
            shape, lambda n, s: where(live[n], moved[n, s], alpha[n, s]), name="alpha"
        )
        return following, ()

    last, _ = scan(step, start, (logs[1:], arange(1, logs.shape[0])))
    alphas: Tensor = last
    return alphas


class CTCLoss(Layer, function=ctc_loss, inputs=4):
    """Example:
    >>> nn.CTCLoss()(F.log_softmax(pb.zeros((5, 2, 3))), pb.tensor([[1, 2], [2, 1]]), (5, 5),
    ... (2, 2)).shape
    ()
    """
