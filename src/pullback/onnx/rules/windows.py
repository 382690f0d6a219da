"""Convolutions and pools: windows over the axes behind batch and channels.

Ends may be padded unlike each other: then zeros, or what no maximum is, are put there first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import pullback as pb
import pullback.nn.functional as F
from pullback.config import frozen
from pullback.onnx.rules.table import demand, rule

Ints = Sequence[int] | None
_CONVS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_TURNED = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}
_POOLS = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}


@frozen
class Windows:
    """Windows over axes of space: sizes, steps, spread, and widths (before, after) of padding."""

    sizes: tuple[int, ...]
    steps: tuple[int, ...]
    spread: tuple[int, ...]
    ends: tuple[tuple[int, int], ...]

    @property
    def reach(self) -> tuple[int, ...]:
        """How many elements a window spans, by axis."""
        pairs = zip(self.sizes, self.spread, strict=True)
        return tuple([d * (k - 1) + 1 for k, d in pairs])

    @property
    def even(self) -> bool:
        """Whether both ends of every axis are padded alike."""
        return all(a == b for a, b in self.ends)

    def counts(self, room: Sequence[int], ceil: bool) -> tuple[int, ...]:
        """How many windows there are; with `ceil` a last one may hang over, but starts inside."""
        made = []
        for extent, reach, step, (before, after) in zip(
            room, self.reach, self.steps, self.ends, strict=True
        ):
            free = extent + before + after - reach
            count = (-(-free // step) if ceil else free // step) + 1
            if ceil and (count - 1) * step >= extent + before:
                count -= 1
            demand(count > 0, f"a window of {reach} over {extent} elements")
            made.append(count)
        return tuple(made)


def windows(
    x: Any,
    sizes: Sequence[int],
    strides: Ints,
    dilations: Ints,
    pads: Ints,
    auto_pad: str,
    ceil: bool = False,
) -> Windows:
    """Raises: Refused for another way to pad."""
    space = x.ndim - 2
    demand(space == len(sizes) >= 1, f"a kernel of {len(sizes)} axes over {space}")
    steps, spread = tuple(strides or (1,) * space), tuple(dilations or (1,) * space)
    demand(min(steps) > 0 and min(spread) > 0 and min(sizes) > 0, "sizes below 1")
    demand(auto_pad in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"), f"auto_pad={auto_pad!r}")
    both = tuple(pads or (0,) * 2 * space)
    demand(len(both) == 2 * space and min(both) >= 0, f"pads={both}")
    ends = tuple(zip(both[:space], both[space:], strict=True))
    if auto_pad != "NOTSET":
        ends = ((0, 0),) * space
    plain = Windows(tuple(sizes), steps, spread, ends)
    if not auto_pad.startswith("SAME"):
        return plain
    needs = [max(0, (-(-e // s) - 1) * s + r - e)
             for e, s, r in zip(x.shape[2:], steps, plain.reach, strict=True)]  # fmt: skip
    less, more = ([n // 2 for n in needs], [n - n // 2 for n in needs])
    lower = auto_pad == "SAME_LOWER"
    own = zip(more, less, strict=True) if lower else zip(less, more, strict=True)
    return Windows(tuple(sizes), steps, spread, tuple(own))


def padded(x: Any, ends: Sequence[tuple[int, int]], value: Any = 0) -> Any:
    """Widths around the axes of space."""
    return pb.pad(x, [(0, 0), (0, 0), *ends], value) if any(map(any, ends)) else x


# --- convolutions ---------------------------------------------------------------------------------


@rule("Conv", 1, 11, 22)
def conv(
    x: Any, w: Any, b: Any = None, *, auto_pad: str, dilations: Ints, group: int,
    kernel_shape: Ints, pads: Ints, strides: Ints,
) -> Any:  # fmt: skip
    demand(tuple(kernel_shape or w.shape[2:]) == tuple(w.shape[2:]), f"kernel_shape={kernel_shape}")
    own = windows(x, w.shape[2:], strides, dilations, pads, auto_pad)
    demand(x.ndim - 2 in _CONVS, f"{x.ndim - 2} axes of space")
    ends: Any = tuple([a for a, _ in own.ends])
    if not own.even:
        x, ends = padded(x, own.ends), 0
    return _CONVS[x.ndim - 2](x, w, b, own.steps, ends, own.spread, group)


@rule("ConvTranspose", 1, 11, 22)
def conv_transpose(
    x: Any, w: Any, b: Any = None, *, auto_pad: str, dilations: Ints, group: int,
    kernel_shape: Ints, output_padding: Ints, output_shape: Ints, pads: Ints, strides: Ints,
) -> Any:  # fmt: skip
    """What of the whole is inside of the ends; more at the end is zeros, before the bias."""
    del kernel_shape
    space = x.ndim - 2
    demand(space in _TURNED, f"{space} axes of space")
    steps, spread = tuple(strides or (1,) * space), tuple(dilations or (1,) * space)
    more = tuple(output_padding or (0,) * space)
    reach = [d * (k - 1) + 1 for k, d in zip(w.shape[2:], spread, strict=True)]
    whole = [(e - 1) * s + r for e, s, r in zip(x.shape[2:], steps, reach, strict=True)]
    ends = _ends(x, whole, more, steps, pads, auto_pad, output_shape)
    y = _TURNED[space](x, w, None, steps, 0, 0, group, spread)
    cuts, widths = [], []
    for full, extra, (before, after) in zip(whole, more, ends, strict=True):
        last = full + extra - after
        demand(last > before, f"a result of {last - before} elements")
        cuts.append(slice(before, min(last, full)))
        widths.append((0, max(0, last - full)))
    y = padded(y[(slice(None), slice(None), *cuts)], widths)
    return y if b is None else y + pb.reshape(b, (1, -1, *[1] * space))


def _ends(
    x: Any, whole: Sequence[int], more: Sequence[int], steps: Sequence[int], pads: Ints,
    auto_pad: str, output_shape: Ints,
) -> list[tuple[int, int]]:  # fmt: skip
    """What is cut off before and after."""
    space = len(whole)
    wanted = None if output_shape is None else list(output_shape)[-space:]
    if wanted is None and auto_pad.startswith("SAME"):
        wanted = [e * s for e, s in zip(x.shape[2:], steps, strict=True)]
    if wanted is None:
        both = list(pads or [0] * 2 * space) if auto_pad == "NOTSET" else [0] * 2 * space
        return list(zip(both[:space], both[space:], strict=True))
    cut = [f + m - n for f, m, n in zip(whole, more, wanted, strict=True)]
    halves = [(c // 2, c - c // 2) for c in cut]
    ends = halves if auto_pad == "SAME_UPPER" else [(b, a) for a, b in halves]
    demand(min(a for a, _ in ends) >= 0, f"a result of {tuple(wanted)}, which begins before it")
    return ends


@rule("ConvInteger", 10)
def conv_integer(
    x: Any, w: Any, x_zero: Any = None, w_zero: Any = None, *, auto_pad: str, dilations: Ints,
    group: int, kernel_shape: Ints, pads: Ints, strides: Ints,
) -> Any:  # fmt: skip
    """``(x - zero) * (w - zero)`` in whole numbers."""
    x = pb.astype(x, pb.int32) - (0 if x_zero is None else pb.astype(x_zero, pb.int32))
    zero = 0 if w_zero is None else pb.astype(w_zero, pb.int32)
    if w_zero is not None and w_zero.ndim == 1 and w_zero.shape[0] > 1:
        zero = pb.reshape(zero, (-1, *[1] * (w.ndim - 1)))
    w = pb.astype(w, pb.int32) - zero
    demand(tuple(kernel_shape or w.shape[2:]) == tuple(w.shape[2:]), f"kernel_shape={kernel_shape}")
    own = windows(x, w.shape[2:], strides, dilations, pads, auto_pad)
    return whole_conv(padded(x, own.ends), w, own, group)


def whole_conv(x: Any, w: Any, own: Windows, groups: int) -> Any:
    """A convolution of integers: ``y[n, o, t] = sum[c, k] x[n, c, t s + k d] w[o, c, k]``"""
    outer, inner = w.shape[0] // groups, w.shape[1]
    counts = Windows(own.sizes, own.steps, own.spread, ((0, 0),) * len(own.sizes))
    shape = (x.shape[0], w.shape[0], *counts.counts(x.shape[2:], False))
    c, taps = pb.axis(inner), [pb.axis(k) for k in own.sizes]

    def body(n: Any, o: Any, *t: Any) -> Any:
        at = [i * s + k * d for i, s, k, d in zip(t, own.steps, taps, own.spread, strict=True)]
        return pb.sum(x[(n, o // outer * inner + c, *at)] * w[(o, c, *taps)], over=(c, *taps))

    return pb.astype(pb.compute(shape, body, name="conv"), pb.int32)


# --- pools ----------------------------------------------------------------------------------------


@rule("MaxPool", 1)
def max_pool_1(
    x: Any, *, auto_pad: str, kernel_shape: Sequence[int], pads: Ints, strides: Ints
) -> Any:
    own = windows(x, kernel_shape, strides, None, pads, auto_pad)
    return _largest(x, own, False, False, 0)


@rule("MaxPool", 8)
def max_pool_8(
    x: Any, *, auto_pad: str, kernel_shape: Sequence[int], pads: Ints, storage_order: int,
    strides: Ints, outputs: Sequence[bool],
) -> Any:  # fmt: skip
    own = windows(x, kernel_shape, strides, None, pads, auto_pad)
    return _largest(x, own, False, len(outputs) > 1, storage_order)


@rule("MaxPool", 10, 11, 12, 22)
def max_pool(
    x: Any, *, auto_pad: str, ceil_mode: int, dilations: Ints, kernel_shape: Sequence[int],
    pads: Ints, storage_order: int, strides: Ints, outputs: Sequence[bool],
) -> Any:  # fmt: skip
    """The largest of each window and its place in the whole tensor."""
    own = windows(x, kernel_shape, strides, dilations, pads, auto_pad)
    return _largest(x, own, bool(ceil_mode), len(outputs) > 1, storage_order)


def _largest(x: Any, own: Windows, ceil: bool, places: bool, by_column: int) -> Any:
    space = x.ndim - 2
    demand(space in _POOLS, f"{space} axes of space")
    if x.dtype.is_integer and x.dtype.bits == 8:  # each is a float32
        y = _largest(pb.astype(x, pb.float32), own, ceil, places, by_column)
        return (pb.astype(y[0], x.dtype), y[1]) if places else pb.astype(y, x.dtype)
    room = tuple(x.shape[2:])
    counts = own.counts(room, ceil)
    needs = zip(counts, own.steps, own.reach, room, own.ends, strict=True)
    ends = [(a, (n - 1) * s + r - e - a) for n, s, r, e, (a, _) in needs]
    lowest = -math.inf if x.dtype.is_float else x.dtype.range()[0]
    widths = [(a, max(0, b)) for a, b in ends]
    whole = padded(x, widths, lowest)
    whole = whole[(slice(None), slice(None), *[slice(0, e + a + b) for e, (a, b)
                                               in zip(room, ends, strict=True)])]  # fmt: skip
    if not places:
        return _POOLS[space](whole, own.sizes, own.steps, 0, own.spread)
    y, at = _POOLS[space](whole, own.sizes, own.steps, 0, own.spread, False, True)
    return y, _in_whole(at, x, tuple(whole.shape[2:]), [a for a, _ in ends], by_column)


def _in_whole(at: Any, x: Any, grown: Sequence[int], before: Sequence[int], by_column: int) -> Any:
    """Places in padded planes as places in the whole tensor."""
    room = tuple(x.shape[2:])
    parts = []
    for extent, low in zip(grown[::-1], before[::-1], strict=True):
        parts.append(at % extent - low)
        at = at // extent
    order = list(zip(parts, room[::-1], strict=True))  # the last axis first
    flat: Any = 0
    for part, extent in order if by_column else order[::-1]:
        flat = flat * extent + part
    planes = pb.reshape(pb.arange(x.shape[0] * x.shape[1], dtype=pb.int64),
                        (x.shape[0], x.shape[1], *[1] * len(room)))  # fmt: skip
    return pb.astype(flat, pb.int64) + planes * math.prod(room)


def _summed(x: Any, own: Windows, counts: Sequence[int]) -> Any:
    """The sum of each window, of what is not there 0."""
    needs = zip(counts, own.steps, own.reach, x.shape[2:], own.ends, strict=True)
    ends = [(a, max(0, (n - 1) * s + r - e - a)) for n, s, r, e, (a, _) in needs]
    whole, taps = padded(x, ends), [pb.axis(k) for k in own.sizes]

    def body(n: Any, c: Any, *t: Any) -> Any:
        at = [i * s + k * d for i, s, k, d in zip(t, own.steps, taps, own.spread, strict=True)]
        return pb.sum(whole[(n, c, *at)], over=tuple(taps))

    return pb.compute((*x.shape[:2], *counts), body, name="pool")


def _divisors(own: Windows, room: Sequence[int], counts: Sequence[int], pads: bool) -> Any:
    """How many elements each window counts."""
    rows = []
    for extent, size, step, spread, (before, after), count in zip(
        room, own.sizes, own.steps, own.spread, own.ends, counts, strict=True
    ):
        at = np.arange(count)[:, None] * step + np.arange(size)[None] * spread - before
        low, high = (-before, extent + after) if pads else (0, extent)
        rows.append(((at >= low) & (at < high)).sum(axis=1))
    whole: Any = np.ones((), np.int64)
    for row in rows:
        whole = whole[..., None] * row
    return whole


def _averaged(x: Any, own: Windows, ceil: bool, pads: bool) -> Any:
    counts = own.counts(x.shape[2:], ceil)
    divisors = _divisors(own, x.shape[2:], counts, pads)
    sums = _summed(x, own, counts)
    if divisors.size and (divisors == divisors.flat[0]).all():
        return pb.astype(sums / float(divisors.flat[0]), x.dtype)
    return pb.astype(sums / _table(divisors, x.dtype), x.dtype)


def _table(array: Any, kind: Any) -> Any:
    """Numbers that a program holds, as an outer product of small ones where they are large."""
    axes = [np.unique(array, axis=n).shape[n] for n in range(array.ndim)]
    del axes
    from_axes = [array[tuple([slice(None) if n == m else 0 for n in range(array.ndim)])]
                 for m in range(array.ndim)]  # fmt: skip
    corner = float(array.flat[0])
    y: Any = corner
    for m, row in enumerate(from_axes):
        shape = [1] * array.ndim
        shape[m] = len(row)
        y = pb.reshape(pb.tensor((row / corner).astype(kind.numpy)), tuple(shape)) * y
    return y


@rule("AveragePool", 1)
def average_pool_1(
    x: Any, *, auto_pad: str, kernel_shape: Sequence[int], pads: Ints, strides: Ints
) -> Any:
    return _averaged(x, windows(x, kernel_shape, strides, None, pads, auto_pad), False, False)


@rule("AveragePool", 7)
def average_pool_7(
    x: Any, *, auto_pad: str, count_include_pad: int, kernel_shape: Sequence[int], pads: Ints,
    strides: Ints,
) -> Any:  # fmt: skip
    own = windows(x, kernel_shape, strides, None, pads, auto_pad)
    return _averaged(x, own, False, bool(count_include_pad))


@rule("AveragePool", 10, 11)
def average_pool_10(
    x: Any, *, auto_pad: str, ceil_mode: int, count_include_pad: int,
    kernel_shape: Sequence[int], pads: Ints, strides: Ints,
) -> Any:  # fmt: skip
    own = windows(x, kernel_shape, strides, None, pads, auto_pad)
    return _averaged(x, own, bool(ceil_mode), bool(count_include_pad))


@rule("AveragePool", 19, 22)
def average_pool(
    x: Any, *, auto_pad: str, ceil_mode: int, count_include_pad: int, dilations: Ints,
    kernel_shape: Sequence[int], pads: Ints, strides: Ints,
) -> Any:  # fmt: skip
    own = windows(x, kernel_shape, strides, dilations, pads, auto_pad)
    return _averaged(x, own, bool(ceil_mode), bool(count_include_pad))


@rule("LpPool", 2, 11)
def lp_pool_2(
    x: Any, *, auto_pad: str, kernel_shape: Sequence[int], p: int, pads: Ints, strides: Ints
) -> Any:
    own = windows(x, kernel_shape, strides, None, pads, auto_pad)
    return _normed(x, own, p, False)


@rule("LpPool", 18, 22)
def lp_pool(
    x: Any, *, auto_pad: str, ceil_mode: int, dilations: Ints, kernel_shape: Sequence[int],
    p: int, pads: Ints, strides: Ints,
) -> Any:  # fmt: skip
    own = windows(x, kernel_shape, strides, dilations, pads, auto_pad)
    return _normed(x, own, p, bool(ceil_mode))


def _normed(x: Any, own: Windows, p: int, ceil: bool) -> Any:
    sums = _summed(_power(x, p), own, own.counts(x.shape[2:], ceil))
    return pb.astype(_root(sums, p), x.dtype)


def _power(x: Any, p: int) -> Any:
    return pb.abs(x) if p == 1 else x * x if p == 2 else pb.pow(pb.abs(x), float(p))


def _root(x: Any, p: int) -> Any:
    return x if p == 1 else pb.sqrt(x) if p == 2 else pb.pow(x, 1.0 / p)


@rule("GlobalAveragePool", 1, 22)
def global_average_pool(x: Any) -> Any:
    return pb.mean(x, axis=tuple(range(2, x.ndim)), keepdims=True)


@rule("GlobalMaxPool", 1, 22)
def global_max_pool(x: Any) -> Any:
    return pb.max(x, axis=tuple(range(2, x.ndim)), keepdims=True)


@rule("GlobalLpPool", 2, 22)
def global_lp_pool(x: Any, *, p: int) -> Any:
    return _root(pb.sum(_power(x, p), axis=tuple(range(2, x.ndim)), keepdims=True), p)


@rule("MaxUnpool", 9, 11, 22, known=(2,))
def max_unpool(
    x: Any, places: Any, shape: Any = None, *, kernel_shape: Sequence[int], pads: Ints,
    strides: Ints,
) -> Any:  # fmt: skip
    """Each element at its place, which is of the tensor that was pooled; zeros elsewhere."""
    own = windows(x, kernel_shape, strides, None, pads, "NOTSET")
    sizes = zip(x.shape[2:], own.steps, own.sizes, own.ends, strict=True)
    pooled = (*x.shape[:2], *[(e - 1) * s + k - a - b for e, s, k, (a, b) in sizes])
    whole = pooled if shape is None else tuple(int(e) for e in shape)
    parts, left = [], places
    for extent in pooled[::-1]:
        parts.append(left % extent)
        left = left // extent
    flat: Any = 0
    for part, extent in zip(parts[::-1], whole, strict=True):
        flat = flat * extent + part
    zeros = pb.zeros((math.prod(whole),), dtype=x.dtype)
    y = pb.scatter(zeros, pb.reshape(flat, (-1,)), pb.reshape(x, (-1,)), axis=0)
    return pb.reshape(y, whole)


@rule("Col2Im", 18, known=(1, 2))
def col2im(x: Any, image: Any, block: Any, *, dilations: Ints, pads: Ints, strides: Ints) -> Any:
    """Windows added where they were cut: each tap at its places, one after the other."""
    room, sizes = tuple(map(int, image)), tuple(map(int, block))
    space = len(room)
    n, channels = x.shape[0], x.shape[1] // math.prod(sizes)
    steps, spread = tuple(strides or (1,) * space), tuple(dilations or (1,) * space)
    both = tuple(pads or (0,) * 2 * space)
    ends = tuple(zip(both[:space], both[space:], strict=True))
    counts = Windows(sizes, steps, spread, ends).counts(room, False)
    grown = [e + a + b for e, (a, b) in zip(room, ends, strict=True)]
    columns = pb.reshape(x, (n, channels, *sizes, *counts))
    places = np.zeros((*sizes, *counts), np.int64)
    for taps in itertools.product(*map(range, sizes)):
        at = [
            np.arange(c) * s + k * d for c, s, k, d in zip(counts, steps, taps, spread, strict=True)
        ]
        places[taps] = np.ravel_multi_index(np.meshgrid(*at, indexing="ij"), grown)
    flat = pb.reshape(columns, (n, channels, places.size))
    own = pb.broadcast_to(pb.reshape(pb.tensor(places), (1, 1, -1)), tuple(flat.shape))
    zeros = pb.zeros((n, channels, math.prod(grown)), dtype=x.dtype)
    y = pb.reshape(pb.scatter_add(zeros, own, flat, axis=2), (n, channels, *grown))
    cuts = [slice(a, a + e) for e, (a, _) in zip(room, ends, strict=True)]
    return y[(slice(None), slice(None), *cuts)]
