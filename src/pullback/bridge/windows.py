"""Windows over symbolic axes: convolutions and pools, of the extents that a graph promises.

    y[n, o, i] = sum[c, k] x[n, c, i stride + k dilation - padding] w[o, c, k]   where that is in x

How many places a window has is a symbol of its own; what it meets is read where it is in bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from torch.fx import Node

import pullback as pb
from pullback.bridge.aten.pools import chained, row_major
from pullback.bridge.aten.table import aten, pulled
from pullback.ir.dtype import is_short
from pullback.ir.expr import Dim, Extent
from pullback.nn.base.space import Taps, Window, each, padded
from pullback.nn.spatial.convolution import finished, slid, slid_back

Shape = tuple[Extent, ...]
Count = Callable[[Any], Any]


def _open(*shapes: Sequence[Extent]) -> bool:
    """Whether an axis of space is symbolic, in tensors that have samples."""
    return all(len(s) > 2 for s in shapes) and any(
        isinstance(e, Dim) for s in shapes for e in s[2:]
    )


def _convolved(
    made: Shape, stride: Any, padding: Any, dilation: Any, transposed: bool, groups: int
) -> Callable[..., Any]:
    """The convolution whose result is of `made`, but for its channels."""

    def run(x: Any, w: Any, b: Any = None) -> Any:
        space = w.ndim - 2
        s, p, d = (_told(v, space) for v in (stride, padding, dilation))
        rows = zip(x.shape[2:], w.shape[2:], s, p, d, strict=True)
        ends = (made[0], *made[2:])
        if transposed:
            taps = [Taps(e, k, s, p, 0, d) for e, k, s, p, d in rows]
            y = slid_back(x, w, taps, ends, groups)
        else:
            windows = [Window(e, k, s, p, p, d) for e, k, s, p, d in rows]
            y = slid(x, w, windows, ends, groups)
        return finished(y, b, groups, space)

    return run


def convolution(
    shape: Shape, count: Count, node: Node, x: Any, w: Any, b: Any, stride: Any, padding: Any,
    dilation: Any, transposed: bool, extra: Any, groups: int,
) -> Any:  # fmt: skip
    """None where space has no symbol."""
    if not _open(x.shape, shape):
        return None
    return _convolved(shape, stride, padding, dilation, transposed, groups)(x, w, b)


def convolution_backward(
    shapes: Any, count: Count, node: Node, head: Any, x: Any, w: Any, bias_sizes: Any, stride: Any,
    padding: Any, dilation: Any, transposed: bool, extra: Any, groups: int, mask: Sequence[bool],
) -> Any:  # fmt: skip
    """Of input, weight and bias, those that `mask` wants; None where space has no symbol."""
    if not _open(x.shape, head.shape):
        return None
    run = _convolved(head.shape, stride, padding, dilation, transposed, groups)
    dx = pulled(lambda t: run(t, w), [x], head)[0] if mask[0] else None
    dw = pulled(lambda t: run(x, t), [w], head)[0] if mask[1] else None
    rest = tuple([n for n in range(head.ndim) if n != 1])
    return dx, dw, pb.sum(head, axis=rest) if mask[2] else None


def _windows(x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any) -> list[Window]:
    space = x.ndim - 2
    told = (_told(v, space) for v in (kernel, stride or kernel, padding, padding, dilation))
    return [Window(*row) for row in zip(x.shape[2:], *told, strict=True)]


def _told(value: Any, space: int) -> tuple[int, ...]:
    listed: list[int] = [value] if isinstance(value, int) else list(value)
    return each(listed, space, "windows")


def max_pool(
    shapes: Any, count: Count, node: Node, x: Any, kernel: Any, stride: Any = (),
    padding: Any = 0, dilation: Any = 1, ceil: bool = False,
) -> Any:  # fmt: skip
    """The largest elements, and their places; None where space has no symbol."""
    if not _open(x.shape, shapes[0]) or not x.dtype.is_float:
        return None
    return chained(x, _windows(x, kernel, stride, padding, dilation), shapes[0])


def max_pool_backward(
    shape: Shape, count: Count, node: Node, head: Any, x: Any, kernel: Any, stride: Any,
    padding: Any, dilation: Any, ceil: bool, places: Any,
) -> Any:  # fmt: skip
    """At each element the heads of those windows whose place it is; None as in `max_pool`."""
    if not _open(x.shape, head.shape):
        return None
    space = x.ndim - 2
    told = (_told(v, space) for v in (kernel, stride or kernel, padding))
    rows = zip(head.shape[2:], *told, _told(dilation, space), strict=True)
    windows = [Taps(e, k, s, p, 0, d) for e, k, s, p, d in rows]
    steps = [pb.axis(w.steps) for w in windows]

    def body(*i: Any) -> Any:
        met = [w.meet(t, j) for w, t, j in zip(windows, i[2:], steps, strict=True)]
        at = (*i[:2], *(m.place for m in met))
        term = pb.where(places[at] == row_major(shape[2:], i[2:]), head[at], 0.0)
        return pb.sum(padded([t for m in met for t in m.tests], term), over=steps)

    return pb.compute(shape, body, name="max_pool_back")


def avg_pool(
    shape: Shape, count: Count, node: Node, x: Any, kernel: Any, stride: Any = (),
    padding: Any = 0, ceil: bool = False, counted: bool = True, divisor: Any = None,
) -> Any:  # fmt: skip
    """None where space has no symbol, or where padding that a window leaves counts."""
    windows = _windows(x, kernel, stride, padding, 1)
    padding_counts = counted and any(w.before for w in windows)
    if not _open(x.shape, shape) or (ceil and padding_counts and divisor is None):
        return None
    return _averaged(windows, shape, counted and not ceil, divisor)(x)


def avg_pool_backward(
    shape: Shape, count: Count, node: Node, head: Any, x: Any, kernel: Any, stride: Any,
    padding: Any, ceil: bool, counted: bool, divisor: Any,
) -> Any:  # fmt: skip
    """None as in `avg_pool`."""
    windows = _windows(x, kernel, stride, padding, 1)
    padding_counts = counted and any(w.before for w in windows)
    if not _open(x.shape, head.shape) or (ceil and padding_counts and divisor is None):
        return None
    return pulled(_averaged(windows, head.shape, counted and not ceil, divisor), [x], head)[0]


def _averaged(
    windows: Sequence[Window], made: Shape, whole: bool, divisor: Any
) -> Callable[[Any], Any]:
    """Means of windows. `whole`: each counts all of its taps, else those that meet something."""

    def run(given: Any) -> Any:
        x = given if not is_short(given.dtype) else pb.astype(given, pb.float32)
        taps = [pb.axis(w.size) for w in windows]

        def total(*i: Any) -> Any:
            met = list(zip(windows, i[2:], taps, strict=True))
            tests = [t for w, y, k in met for t in w.inside(y, k)]
            return pb.sum(
                padded(tests, x[(*i[:2], *(w.place(y, k) for w, y, k in met))]), over=taps
            )

        sums = pb.compute(made, total, name="avg_pool")
        if whole or divisor is not None:
            return sums / float(divisor or math.prod(w.size for w in windows))
        for n, (w, extent) in enumerate(zip(windows, made[2:], strict=True)):
            k = pb.axis(w.size)
            times = pb.compute(
                (extent,), lambda y, w=w, k=k: pb.sum(padded(w.inside(y, k), 1.0), over=k)
            )
            rest = tuple([extent if d == n else 1 for d in range(len(windows))])
            sums = sums / pb.astype(pb.reshape(times, rest), sums.dtype)
        return sums

    return run


def _times(window: Window) -> Callable[[Any], Any]:
    """How many elements a window meets."""
    k = pb.axis(window.size)
    return lambda y: pb.sum(padded(window.inside(y, k), 1.0), over=k)


RULES: dict[Any, Callable[..., Any]] = {
    aten.convolution.default: convolution,
    aten.convolution_backward.default: convolution_backward,
    aten.max_pool2d_with_indices.default: max_pool,
    aten.max_pool2d_with_indices_backward.default: max_pool_backward,
    aten.max_pool3d_with_indices.default: max_pool,
    aten.max_pool3d_with_indices_backward.default: max_pool_backward,
    aten.avg_pool2d.default: avg_pool,
    aten.avg_pool2d_backward.default: avg_pool_backward,
    aten.avg_pool3d.default: avg_pool,
    aten.avg_pool3d_backward.default: avg_pool_backward,
}
