"""Places and elements drawn with probabilities."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pullback.errors import ArgumentError, ShapeError
from pullback.ir.dtype import float64
from pullback.random.draws import (
    Draws,
)
from pullback.random.smooth import gumbel
from pullback.stats.places import searchsorted
from pullback.tensor.face.tensor import Tensor, check_device, shape_of
from pullback.tensor.library import maths as M
from pullback.tensor.library import ops as O
from pullback.tensor.library import random as R
from pullback.tensor.library.scalars import value_tensor
from pullback.tensor.library.sorting import topk
from pullback.tensor.shaped import shaped
from pullback.tensor.values import elementwise as W
from pullback.tensor.values import views as V


@shaped("logits[s..., _ @ axis] -> [*shape, s...]")
def categorical(
    logits: Any,
    shape: Any = None,
    *,
    axis: int = -1,
    key: Tensor | None = None,
    device: Any = None,
) -> Tensor:
    """Places along an axis with probability ``softmax(logits)``: ``argmax(logits + gumbel)``.

    `shape` goes in front of that of the logits without the axis; int64.

    Raises: ShapeError for logits without axes.

    Example:
        >>> pb.random.categorical(pb.zeros((4, 3))).shape
        (4,)
    """
    check_device(device)
    given = value_tensor(logits)
    n = V.normal_axis(axis, given.ndim)
    extra = () if shape is None else shape_of(shape)
    noise = gumbel(shape=(*extra, *given.shape), dtype=float64, key=key)
    scores = noise + O.astype(O.stop_gradient(given), float64)
    places: Tensor = O.argmax(scores, axis=n + len(extra))
    return places


@shaped("weights[s..., n] -> [s..., num_samples]", where="int(num_samples) >= 1")
def multinomial(
    weights: Any,
    num_samples: int,
    replacement: bool = False,
    *,
    key: Tensor | None = None,
    device: Any = None,
) -> Tensor:
    """`num_samples` places of each row, with probability ``weights / sum(weights)``; int64.

    Without replacement the largest of ``log(weights) + gumbel``, in the order of drawing.

    Raises: ShapeError for more samples than places without replacement, or no axes.

    Example:
        >>> pb.random.multinomial(pb.ones(5), 3).shape
        (3,)
    """
    check_device(device)
    given = O.astype(O.stop_gradient(value_tensor(weights)), float64)
    count = V.whole(num_samples, "num_samples")
    size = given.shape[-1]
    if not replacement:
        if isinstance(size, int) and count > size:
            raise ShapeError(f"{count} of {size} places without replacement", code="E123")
        noise = gumbel(shape=given.shape, dtype=float64, key=key)
        return topk(M.log(given) + noise, count)[1]
    sums = O.cumulative_sum(given, axis=-1)
    u = Draws((*given.shape[:-1], count), key).uniform() * sums[..., -1:]
    places: Tensor = searchsorted(sums, u)
    return places


@shaped("x[n, ...] or [], p[n]", where="n == x")
def choice(
    x: Any,
    shape: Any = (),
    *,
    replace: bool = True,
    p: Any = None,
    key: Tensor | None = None,
    device: Any = None,
) -> Tensor:
    """Elements of a vector, rows of a tensor, or numbers below x, drawn with probabilities `p`.

    Raises: ShapeError for more than there are without replacement.

    Example:
        >>> pb.random.choice(10, (4,)).shape
        (4,)
    """
    extents = shape_of(shape)
    if any(not isinstance(e, int) for e in extents):
        raise ShapeError(f"choice of shape {W.show(extents)}: extents are numbers", code="E120")
    count = math.prod(e for e in extents if isinstance(e, int))
    number = isinstance(x, int | np.integer)
    pool = (V.whole(x, "choice: x", 1),) if number else value_tensor(x).shape
    if not pool:
        raise ShapeError("choice of one element: a vector is needed", code="E111")
    size = pool[0]
    if not isinstance(size, int):
        raise ShapeError(f"choice of the symbolic axis {size}", code="E120")
    if not isinstance(replace, bool | np.bool_):
        raise ArgumentError(f"replace {replace!r} is neither true nor false", code="E360")
    if p is not None:
        flat = multinomial(p, max(count, 1), replace, key=key, device=device)[:count]
    elif replace:
        flat = R.integers(0, size, (count,), key=key, device=device)
    else:
        if count > size:
            raise ShapeError(f"{count} of {size} without replacement", code="E123")
        flat = R.permutation(size, key=key, device=device)[:count]
    places = O.reshape(flat, extents)
    return places if number else O.take(value_tensor(x), places, axis=0)
