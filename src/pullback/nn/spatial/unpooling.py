"""Unpooling, and pooling over windows that are drawn, under torch's names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pullback.errors import ShapeError
from pullback.ir.dtype import int64
from pullback.ir.graph import SUM, Accumulate
from pullback.nn.base.build import at, common, written
from pullback.nn.base.layer import Layer
from pullback.nn.base.module import Module
from pullback.nn.base.space import Ints, each, of_space, split
from pullback.nn.loss.losses import same_shape
from pullback.nn.spatial.pooling import wins
from pullback.tensor.define.compute import axis
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.library import maths as M
from pullback.tensor.library import random
from pullback.tensor.library.ops import astype, stop_gradient, where
from pullback.tensor.library.ops import max as max_of
from pullback.tensor.library.ops import min as min_of
from pullback.tensor.shaped import shaped
from pullback.tensor.values.elementwise import axes_of, make


@shaped(
    "input[n, c, _ * space] or [c, _ * space], indices: int[n, c, _ * space] or [c, _ * space]",
    where="int(kernel_size) >= 1, int(stride) >= 1, int(padding) >= 0",
)
def max_unpool(
    space: int,
    input: Tensor,
    indices: Tensor,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    output_size: Sequence[int] | None = None,
) -> Tensor:
    """Every element at the place that `max_pool` found it at, and 0 elsewhere.

    ``y[c, indices[c, i]] = x[c, i]``. Raises: ShapeError.

    Example:
        >>> y, where = F.max_pool1d(pb.ones((1, 2, 8)), 2, return_indices=True)
        >>> F.max_unpool1d(y, where, 2).shape
        (1, 2, 8)
        >>> y, where = F.max_pool2d(pb.ones((1, 2, 8, 8)), 2, return_indices=True)
        >>> F.max_unpool2d(y, where, 2).shape
        (1, 2, 8, 8)
        >>> y, where = F.max_pool3d(pb.ones((1, 2, 4, 4, 4)), 2, return_indices=True)
        >>> F.max_unpool3d(y, where, 2).shape
        (1, 2, 4, 4, 4)
    """
    common(input)
    lead, room = split("max_unpool", input, space)
    same_shape("max_unpool", input, indices)
    sizes = each(kernel_size, space, "kernel_size")
    steps = sizes if stride is None else each(stride, space, "stride")
    ends = each(padding, space, "padding")
    rows = zip(room, sizes, steps, ends, strict=True)
    plain = tuple((n - 1) * s - 2 * p + k for n, k, s, p in rows)
    new = plain if output_size is None else tuple(output_size)[-space:]
    if any(abs(n - m) >= s for n, m, s in zip(new, plain, steps, strict=True)):
        raise ShapeError(f"output_size {new}: {plain} or near", code="E126")
    shape = (*lead, math.prod(new))
    summed = _sent(input, indices, shape)
    if any(k > s for k, s in zip(sizes, steps, strict=True)):
        # Windows that overlap may send one element several times: it stands there once.
        times = _sent(input * 0.0 + 1.0, indices, shape)
        summed = summed + stop_gradient(summed / M.maximum(times, 1.0) - summed)
    return summed.reshape(*lead, *new)


def _sent(input: Tensor, indices: Tensor, shape: Sequence[Any]) -> Tensor:
    """``y[c, i[c, n]] += x[c, n]``, the places of space as one axis."""
    whole = input.value.shape
    axes = axes_of(whole)
    place = (*axes[: len(shape) - 1], at(indices.value, *axes, to=int64))
    body = at(input.value, *axes)
    return Tensor(make("max_unpool", shape, body, Accumulate(SUM, tuple(whole), place)))


@shaped(
    "input[n, c, _ * space] or [c, _ * space]",
    where="int(kernel_size) >= 1, int(output_size) >= 1, output_ratio > 0, output_ratio <= 1",
)
def fractional_max_pool(
    space: int,
    input: Tensor,
    kernel_size: Ints,
    output_size: Ints | None = None,
    output_ratio: Any = None,
    return_indices: bool = False,
    _random_samples: Tensor | None = None,
) -> Any:
    """The largest element of windows that start at places drawn for every channel.

    With ``a = (n - k) / (m - 1)`` window i starts at ``floor((i + u) a) - floor(u a)``, the last
    one at ``n - k``. Source: Graham, Fractional Max-Pooling, 2014. Raises: ShapeError.

    Example:
        >>> F.fractional_max_pool2d(pb.ones((1, 2, 8, 8)), 2, output_size=3).shape
        (1, 2, 3, 3)
        >>> F.fractional_max_pool3d(pb.ones((1, 2, 4, 4, 4)), 2, output_size=3).shape
        (1, 2, 3, 3, 3)
    """
    kind = common(input)
    lead, room = split("fractional_max_pool", input, space)
    sizes = each(kernel_size, space, "kernel_size")
    new = _counts(room, sizes, output_size, output_ratio)
    drawn = _random_samples
    if drawn is None:
        drawn = random.uniform((*(1,) * (2 - len(lead)), *lead, space), dtype=kind)
    share = drawn.reshape(*lead, space)
    # PyTorch draws for width first in two dimensions, and for depth first in three.
    order = (1, 0) if space == 2 else range(space)
    rows = zip(room, new, sizes, order, strict=True)
    starts = [_starts(lead, share, n, m, k, d) for n, m, k, d in rows]
    taps = [axis(k) for k in sizes]
    before = len(lead)

    def element(i: Sequence[Any]) -> Any:
        return input[(*i[:before], *places(i))]

    def places(i: Sequence[Any]) -> list[Any]:
        own, outer = i[before:], i[:before]
        pairs = zip(starts, own, taps, strict=True)
        return [first[(*outer, y)] + k for first, y, k in pairs]

    shape = (*lead, *new)
    best = written(shape, lambda *i: max_of(element(i), over=taps), name="fractional_max_pool")
    if not return_indices:
        return best

    def place(*i: Any) -> Any:
        flat: Any = 0
        for n, p in zip(room, places(i), strict=True):
            flat = flat * n + p
        return min_of(where(wins(element(i), best[i]), flat, math.prod(room)), over=taps)

    return best, written(shape, place, name="max_place")


def _counts(room: Sequence[int], sizes: Sequence[int], size: Any, ratio: Any) -> tuple[int, ...]:
    """How many windows. Raises: ShapeError where they do not fit."""
    space = len(room)
    if (size is None) == (ratio is None):
        raise ShapeError(
            "fractional_max_pool takes either output_size or output_ratio", code="E124"
        )
    if size is None:
        ratios = each(ratio, space, "output_ratio")
        new = tuple(int(n * r) for n, r in zip(room, ratios, strict=True))
    else:
        new = each(size, space, "output_size")
    if any(m < 1 or m + k - 1 > n for n, m, k in zip(room, new, sizes, strict=True)):
        raise ShapeError(f"{new} windows of {sizes} in {room}", code="E126")
    return new


def _starts(lead: Sequence[Any], share: Tensor, n: int, m: int, k: int, d: int) -> Tensor:
    """Where `m` windows of `k` elements start along an axis of `n`; `d`: which draw."""

    def start(*i: Any) -> Any:
        *c, y = i
        if m == 1:
            return y * 0 + (n - k)
        step, u = (n - k) / (m - 1), share[(*c, d)]
        place = M.floor((astype(y, share.dtype) + u) * step) - M.floor(u * step)
        return where(y == m - 1, n - k, astype(place, int64))

    return written((*lead, m), start, name="start")


max_unpool1d, max_unpool2d, max_unpool3d = (of_space(max_unpool, n) for n in (1, 2, 3))
fractional_max_pool2d, fractional_max_pool3d = (of_space(fractional_max_pool, n) for n in (2, 3))


# --- modules -------------------------------------------------------------------------------------


class _MaxUnpool(Module):
    def __init__(self, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding = padding

    space = 0

    def forward(
        self, input: Tensor, indices: Tensor, output_size: Sequence[int] | None = None
    ) -> Tensor:
        settings = (self.kernel_size, self.stride, self.padding, output_size)
        return max_unpool(self.space, input, indices, *settings)

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class MaxUnpool1d(_MaxUnpool):
    """`max_unpool1d`

    Example:
        >>> y, where = nn.MaxPool1d(2, return_indices=True)(pb.ones((1, 2, 8)))
        >>> nn.MaxUnpool1d(2)(y, where).shape
        (1, 2, 8)
    """

    space = 1


class MaxUnpool2d(_MaxUnpool):
    """`max_unpool2d`

    Example:
        >>> y, where = nn.MaxPool2d(2, return_indices=True)(pb.ones((1, 2, 8, 8)))
        >>> nn.MaxUnpool2d(2)(y, where).shape
        (1, 2, 8, 8)
    """

    space = 2


class MaxUnpool3d(_MaxUnpool):
    """`max_unpool3d`

    Example:
        >>> y, where = nn.MaxPool3d(2, return_indices=True)(pb.ones((1, 2, 4, 4, 4)))
        >>> nn.MaxUnpool3d(2)(y, where).shape
        (1, 2, 4, 4, 4)
    """

    space = 3


class FractionalMaxPool2d(Layer, function=fractional_max_pool2d):
    """Example:
    >>> nn.FractionalMaxPool2d(2, output_size=3)(pb.ones((1, 2, 8, 8))).shape
    (1, 2, 3, 3)
    """


class FractionalMaxPool3d(Layer, function=fractional_max_pool3d):
    """Example:
    >>> nn.FractionalMaxPool3d(2, output_size=3)(pb.ones((1, 2, 4, 4, 4))).shape
    (1, 2, 3, 3, 3)
    """
