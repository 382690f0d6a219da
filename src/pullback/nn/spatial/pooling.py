"""Pooling under torch's names: the largest, mean or norm of a window.

``y[.., y] = max[k] x[.., y stride + k dilation - padding]``
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import mul
from typing import Any

from pullback.errors import ShapeError
from pullback.ir.dtype import DType
from pullback.ir.expr import lowest
from pullback.nn.base.build import common, pointwise, written
from pullback.nn.base.layer import Layer
from pullback.nn.base.space import Ints, Window, each, literal, of_space, padded, split
from pullback.tensor.define.compute import axis
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.library import maths as M
from pullback.tensor.library.ops import astype, where
from pullback.tensor.library.ops import max as max_of
from pullback.tensor.library.ops import min as min_of
from pullback.tensor.library.ops import sum as sum_of
from pullback.tensor.shaped import shaped
from pullback.tensor.values.precise import in_float32


@shaped(
    "input[n, c, _ * space] or [c, _ * space]",
    where="int(kernel_size) >= 1, int(stride) >= 1, int(padding) >= 0, int(dilation) >= 1",
)
def max_pool(
    space: int,
    input: Tensor,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest element of each window; the first of equal ones has the gradient.

    With `return_indices` its place in space too, row-major. Raises: ShapeError.

    Example:
        >>> F.max_pool1d(pb.ones((1, 2, 8)), 2).shape
        (1, 2, 4)
        >>> F.max_pool2d(pb.ones((1, 2, 8, 8)), 2).shape
        (1, 2, 4, 4)
        >>> F.max_pool3d(pb.ones((1, 2, 4, 4, 4)), 2).shape
        (1, 2, 2, 2, 2)
    """
    room = split("max_pool", input, space)[1]
    windows = _windows(room, kernel_size, stride, padding, dilation)
    return _largest(input, windows, [w.count(ceil_mode) for w in windows], return_indices)


@shaped("input[n, c, _ * space] or [c, _ * space]", where="int(output_size) >= 0")
def adaptive_max_pool(
    space: int, input: Tensor, output_size: Any, return_indices: bool = False
) -> Any:
    """The largest element of each of ``output_size`` parts that cover the axis.

    Example:
        >>> F.adaptive_max_pool1d(pb.ones((1, 2, 8)), 2).shape
        (1, 2, 2)
        >>> F.adaptive_max_pool2d(pb.ones((1, 2, 8, 8)), 2).shape
        (1, 2, 2, 2)
        >>> F.adaptive_max_pool3d(pb.ones((1, 2, 4, 4, 4)), 2).shape
        (1, 2, 2, 2, 2)
    """
    shares = _shares("adaptive_max_pool", space, input, output_size)
    return _largest(input, shares, [s.parts for s in shares], return_indices)


def _largest(
    input: Tensor, windows: Sequence[Window | Share], counts: Sequence[int], places: bool
) -> Any:
    """The largest element of each window and, if wanted, its place in space."""
    none = lowest(common(input)).value
    taps = [axis(w.size) for w in windows]
    before = len(input.shape) - len(windows)
    shape = (*input.shape[:before], *counts)

    def element(i: Sequence[Any]) -> Any:
        return _element(input, windows, i, taps, none)

    best = written(shape, lambda *i: max_of(element(i), over=taps), name="max_pool")
    if not places:
        return best

    def place(*i: Any) -> Any:
        flat: Any = 0
        for w, y, k in zip(windows, i[before:], taps, strict=True):
            flat = flat * w.extent + w.place(y, k)
        none = math.prod(literal("max_pool", [w.extent for w in windows]))
        tests = [
            t for w, y, k in zip(windows, i[before:], taps, strict=True) for t in w.inside(y, k)
        ]
        return min_of(padded(tests, where(wins(element(i), best[i]), flat, none), none), over=taps)

    return best, written(shape, place, name="max_place")


def wins(x: Any, best: Any) -> Any:
    """Whether an element is the largest one, which NaN is where there is one."""
    return (x == best) | (x != x) & (best != best)


def _element(
    input: Tensor,
    windows: Sequence[Window | Share],
    index: Sequence[Any],
    taps: Sequence[Any],
    other: float = 0.0,
) -> Any:
    """What taps of windows meet, `other` outside."""
    before = len(index) - len(windows)
    met = list(zip(windows, index[before:], taps, strict=True))
    tests = [t for w, y, k in met for t in w.inside(y, k)]
    return padded(tests, input[(*index[:before], *(w.place(y, k) for w, y, k in met))], other)


@shaped(
    "input[n, c, _ * space] or [c, _ * space] -> [n, c, _ * space]",
    where="int(kernel_size) >= 1, int(stride) >= 1, int(padding) >= 0, int(divisor_override) != 0",
)
@in_float32
def avg_pool(
    space: int,
    input: Tensor,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The mean of each window; `count_include_pad` counts the padding as zeros.

    What hangs over the padding in `ceil_mode` never counts. Raises: ShapeError.

    Example:
        >>> F.avg_pool1d(pb.ones((1, 2, 8)), 2).shape
        (1, 2, 4)
        >>> F.avg_pool2d(pb.ones((1, 2, 8, 8)), 2).shape
        (1, 2, 4, 4)
        >>> F.avg_pool3d(pb.ones((1, 2, 4, 4, 4)), 2).shape
        (1, 2, 2, 2, 2)
    """
    kind = common(input)
    lead, room = split("avg_pool", input, space)
    windows = _windows(room, kernel_size, stride, padding, 1)
    taps = [axis(w.size) for w in windows]

    def body(*i: Any) -> Any:
        pairs = zip(windows, i[len(lead) :], strict=True)
        counts = [_counted(w, y, count_include_pad, ceil_mode) for w, y in pairs]
        total = sum_of(_element(input, windows, i, taps), over=taps)
        return total / _number(divisor_override or reduce(mul, counts), kind)

    shape = (*lead, *(w.count(ceil_mode) for w in windows))
    return written(shape, body, name="avg_pool")


@shaped(
    "input[n, c, _ * space] or [c, _ * space] -> [n, c, _ * space]",
    where="int(output_size) >= 0",
)
@in_float32
def adaptive_avg_pool(space: int, input: Tensor, output_size: Any) -> Tensor:
    """The mean of each of ``output_size`` parts that cover the axis; None keeps it as it is.

    Example:
        >>> F.adaptive_avg_pool1d(pb.ones((1, 2, 8)), 2).shape
        (1, 2, 2)
        >>> F.adaptive_avg_pool2d(pb.ones((1, 2, 8, 8)), 2).shape
        (1, 2, 2, 2)
        >>> F.adaptive_avg_pool3d(pb.ones((1, 2, 4, 4, 4)), 2).shape
        (1, 2, 2, 2, 2)
    """
    kind = common(input)
    shares = _shares("adaptive_avg_pool", space, input, output_size)
    taps = [axis(s.size) for s in shares]
    before = len(input.shape) - space

    def body(*i: Any) -> Any:
        counts = [s.count(y) for s, y in zip(shares, i[before:], strict=True)]
        total = sum_of(_element(input, shares, i, taps), over=taps)
        return total / _number(reduce(mul, counts), kind)

    shape = (*input.shape[:before], *(s.parts for s in shares))
    return written(shape, body, name="adaptive_avg_pool")


@shaped(
    "input[n, c, _ * space] or [c, _ * space] -> [n, c, _ * space]",
    where="int(kernel_size) >= 1, int(stride) >= 1, norm_type != 0",
)
@in_float32
def lp_pool(
    space: int,
    input: Tensor,
    norm_type: float,
    kernel_size: Ints,
    stride: Ints | None = None,
    ceil_mode: bool = False,
) -> Tensor:
    """``(sum x^p)^(1 / p)`` of each window.

    Example:
        >>> F.lp_pool1d(pb.ones((1, 2, 8)), 2.0, 2).shape
        (1, 2, 4)
        >>> F.lp_pool2d(pb.ones((1, 2, 8, 8)), 2.0, 2).shape
        (1, 2, 4, 4)
        >>> F.lp_pool3d(pb.ones((1, 2, 4, 4, 4)), 2.0, 2).shape
        (1, 2, 2, 2, 2)
    """
    size = math.prod(each(kernel_size, space, "kernel_size"))
    powers = pointwise("power", lambda x: x**norm_type, input)
    means = avg_pool(space, powers, kernel_size, stride, 0, ceil_mode)

    def root(m: Any) -> Any:
        return where(m == 0.0, 0.0, (m * float(size)) ** (1.0 / norm_type))

    return pointwise("lp_pool", root, means)


def _number(count: Any, kind: DType) -> Any:
    """A count as a divisor."""
    return float(count) if isinstance(count, int) else astype(count, kind)


def _counted(window: Window, y: Any, padding: bool, ceil: bool) -> Any:
    """How many elements of a window count; a number where all windows have as many."""
    last = (window.count(ceil) - 1) * window.stride + window.size
    over = window.before if padding else 0
    start = y * window.stride - window.before
    first, end = start, start + window.size
    if last - window.before > window.extent + over:
        end = M.minimum(end, window.extent + over)
    elif padding or not window.before:
        return window.size
    if not padding and window.before:
        first = M.maximum(start, 0)
    return end - first


def _windows(
    room: Sequence[int], size: Ints, stride: Ints | None, padding: Ints, dilation: Ints
) -> list[Window]:
    """A window for each axis. Raises: ShapeError for more padding than half a window."""
    space = len(room)
    sizes = each(size, space, "kernel_size")
    steps = sizes if stride is None else each(stride, space, "stride")
    ends, spread = each(padding, space, "padding"), each(dilation, space, "dilation")
    if any(p > k // 2 for p, k in zip(ends, sizes, strict=True)):
        raise ShapeError(f"padding {padding} is more than half of kernel_size {size}", code="E126")
    rows = zip(room, sizes, steps, ends, ends, spread, strict=True)
    return [Window(*row) for row in rows]


@dataclass(frozen=True, slots=True)
class Share:
    """An axis in `parts` that cover it: part y is ``y n // parts .. ceil((y + 1) n / parts)``."""

    extent: int
    parts: int

    @property
    def _each(self) -> int:
        """What is divided by; of no part nothing is ever read."""
        return max(self.parts, 1)

    @property
    def size(self) -> int:
        """The longest part: with n = q p + r, parts begin at each multiple of gcd(r, p) / p."""
        if not self.parts:
            return 0
        whole, rest = divmod(self.extent, self.parts)
        return whole + (rest > 0) + (rest > math.gcd(rest, self.parts))

    def _end(self, y: Any) -> Any:
        return ((y + 1) * self.extent + self._each - 1) // self._each

    def place(self, y: Any, k: Any) -> Any:
        """The element that tap `k` of part `y` meets."""
        if self.extent % self._each == 0:
            return y * (self.extent // self._each) + k
        return y * self.extent // self._each + k

    def inside(self, y: Any, k: Any) -> list[Any]:
        """The condition under which that is in the part."""
        return [] if self.extent % self._each == 0 else [self.place(y, k) < self._end(y)]

    def count(self, y: Any) -> Any:
        """How many elements part `y` has."""
        if self.extent % self._each == 0:
            return self.size
        return self._end(y) - self.place(y, 0)


def _shares(name: str, space: int, input: Tensor, output_size: Any) -> list[Share]:
    """The parts of each axis. Raises: ShapeError for parts of nothing."""
    room = split(name, input, space)[1]
    parts = [
        n if p is None else p for n, p in zip(room, each(output_size, space, name), strict=True)
    ]
    if min(room) < 1 and min(parts) > 0:
        raise ShapeError(f"{name} of {room} elements into {parts} parts", code="E126")
    return [Share(n, p) for n, p in zip(room, parts, strict=True)]


max_pool1d, max_pool2d, max_pool3d = (of_space(max_pool, n) for n in (1, 2, 3))
avg_pool1d, avg_pool2d, avg_pool3d = (of_space(avg_pool, n) for n in (1, 2, 3))
lp_pool1d, lp_pool2d, lp_pool3d = (of_space(lp_pool, n) for n in (1, 2, 3))
adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = (
    of_space(adaptive_max_pool, n) for n in (1, 2, 3)
)
adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = (
    of_space(adaptive_avg_pool, n) for n in (1, 2, 3)
)


# --- modules -------------------------------------------------------------------------------------


class MaxPool1d(Layer, function=max_pool1d, last="ceil_mode"):
    """Example:
    >>> nn.MaxPool1d(2)(pb.ones((1, 2, 8))).shape
    (1, 2, 4)
    """


class MaxPool2d(Layer, function=max_pool2d, last="ceil_mode"):
    """Example:
    >>> nn.MaxPool2d(2)(pb.ones((1, 2, 8, 8))).shape
    (1, 2, 4, 4)
    """


class MaxPool3d(Layer, function=max_pool3d, last="ceil_mode"):
    """Example:
    >>> nn.MaxPool3d(2)(pb.ones((1, 2, 4, 4, 4))).shape
    (1, 2, 2, 2, 2)
    """


class AvgPool1d(Layer, function=avg_pool1d):
    """Example:
    >>> nn.AvgPool1d(2)(pb.ones((1, 2, 8))).shape
    (1, 2, 4)
    """


class AvgPool2d(Layer, function=avg_pool2d):
    """Example:
    >>> nn.AvgPool2d(2)(pb.ones((1, 2, 8, 8))).shape
    (1, 2, 4, 4)
    """


class AvgPool3d(Layer, function=avg_pool3d):
    """Example:
    >>> nn.AvgPool3d(2)(pb.ones((1, 2, 4, 4, 4))).shape
    (1, 2, 2, 2, 2)
    """


class LPPool1d(Layer, function=lp_pool1d):
    """Example:
    >>> nn.LPPool1d(2.0, 2)(pb.ones((1, 2, 8))).shape
    (1, 2, 4)
    """


class LPPool2d(Layer, function=lp_pool2d):
    """Example:
    >>> nn.LPPool2d(2.0, 2)(pb.ones((1, 2, 8, 8))).shape
    (1, 2, 4, 4)
    """


class LPPool3d(Layer, function=lp_pool3d):
    """Example:
    >>> nn.LPPool3d(2.0, 2)(pb.ones((1, 2, 4, 4, 4))).shape
    (1, 2, 2, 2, 2)
    """


class AdaptiveMaxPool1d(Layer, function=adaptive_max_pool1d):
    """Example:
    >>> nn.AdaptiveMaxPool1d(2)(pb.ones((1, 2, 8))).shape
    (1, 2, 2)
    """


class AdaptiveMaxPool2d(Layer, function=adaptive_max_pool2d):
    """Example:
    >>> nn.AdaptiveMaxPool2d(2)(pb.ones((1, 2, 8, 8))).shape
    (1, 2, 2, 2)
    """


class AdaptiveMaxPool3d(Layer, function=adaptive_max_pool3d):
    """Example:
    >>> nn.AdaptiveMaxPool3d(2)(pb.ones((1, 2, 4, 4, 4))).shape
    (1, 2, 2, 2, 2)
    """


class AdaptiveAvgPool1d(Layer, function=adaptive_avg_pool1d):
    """Example:
    >>> nn.AdaptiveAvgPool1d(2)(pb.ones((1, 2, 8))).shape
    (1, 2, 2)
    """


class AdaptiveAvgPool2d(Layer, function=adaptive_avg_pool2d):
    """Example:
    >>> nn.AdaptiveAvgPool2d(2)(pb.ones((1, 2, 8, 8))).shape
    (1, 2, 2, 2)
    """


class AdaptiveAvgPool3d(Layer, function=adaptive_avg_pool3d):
    """Example:
    >>> nn.AdaptiveAvgPool3d(2)(pb.ones((1, 2, 4, 4, 4))).shape
    (1, 2, 2, 2, 2)
    """
