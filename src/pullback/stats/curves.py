"""Curves through samples: between them, their slopes, convolved; polynomials, angles that go on.

``interp(x, xp, fp) = fp[k] + (fp[k + 1] - fp[k]) (x - xp[k]) / (xp[k + 1] - xp[k])``
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from pullback.errors import OptionError, ShapeError
from pullback.stats.places import diff, searchsorted
from pullback.tensor.face.dialect import spelled
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.library import maths as M
from pullback.tensor.library import ops as O
from pullback.tensor.library.creation import zeros, zeros_like
from pullback.tensor.library.scalars import value_tensor
from pullback.tensor.library.shapes import narrow, unfold
from pullback.tensor.library.sorting import argsort
from pullback.tensor.shaped import shaped
from pullback.tensor.values import elementwise as W
from pullback.tensor.values import views as V
from pullback.tensor.values.precise import in_float32

MODES = ("full", "same", "valid")


def _floats(*given: Any) -> list[Tensor]:
    """The arguments as floats of one type."""
    values = [value_tensor(x) for x in given]
    kind = W.as_float(W.common_dtype([v.value for v in values]))
    return [O.astype(v, kind) for v in values]


def _extent(x: Tensor, axis: int, what: str, least: int) -> int:
    """How many samples lie along an axis. Raises: ShapeError for fewer than `least`."""
    extent = x.shape[axis]
    if not isinstance(extent, int):
        raise ShapeError(f"{what} along the symbolic axis {extent}", code="E120")
    if extent < least:
        raise ShapeError(f"{what} of {extent} samples: {least} are needed", code="E178")
    return extent


@shaped("x[...], xp[n], fp[n], left[], right[] -> [...]", where="period > 0")
@in_float32
def interp(
    x: Any, xp: Any, fp: Any, left: Any = None, right: Any = None, period: float | None = None
) -> Tensor:
    """The line between the two samples ``(xp, fp)`` around each x; `xp` rises.

    Below the first sample it is `left` (``fp[0]``), above the last `right` (``fp[-1]``). With a
    `period` samples, in any order, go on around it, and nothing is left or right of them.

    Raises: ShapeError for no samples.

    Example:
        >>> pb.interp(pb.tensor([0.5, 3.0]), pb.tensor([0.0, 1.0]), pb.tensor([10.0, 20.0]))
        Tensor([15., 20.], dtype=float32)
    """
    at, places, heights = _floats(x, xp, fp)
    count = _extent(places, 0, "interp", 1)
    if period is not None:
        at, places = M.remainder(at, period), M.remainder(places, period)
        order = argsort(places)
        places, heights = O.take(places, order, axis=0), O.take(heights, order, axis=0)
        before, after = narrow(places, 0, count - 1, 1) - period, narrow(places, 0, 0, 1) + period
        places = O.concat([before, places, after])
        ends = narrow(heights, 0, count - 1, 1), narrow(heights, 0, 0, 1)
        heights, count = O.concat([ends[0], heights, ends[1]]), count + 2
    first, last = O.take(places, 0, axis=0), O.take(places, count - 1, axis=0)
    low = O.take(heights, 0, axis=0) if left is None or period is not None else left
    high = O.take(heights, count - 1, axis=0) if right is None or period is not None else right
    line = _line(at, places, heights, count)
    inner = O.where(M.greater(at, last), high, line)
    whole: Tensor = O.where(M.less(at, first), low, inner)
    return whole


def _line(at: Tensor, places: Tensor, heights: Tensor, count: int) -> Tensor:
    """Of samples that two places share the later one; NaN where `at` is."""
    above = O.clip(searchsorted(places, at, side="right"), 1, max(count - 1, 1))
    below = above - 1
    above = O.clip(above, 0, count - 1)
    near, far = (O.take(places, k, axis=0) for k in (below, above))
    base, top = (O.take(heights, k, axis=0) for k in (below, above))
    width = far - near
    flat = M.equal(width, 0.0)
    slope = O.where(flat, 0.0, (top - base) / O.where(flat, 1.0, width))
    line: Tensor = base + slope * (at - near)
    return line


@spelled
@shaped("f[...], *spacing[_] or []", where="1 <= int(edge_order) <= 2")
@in_float32
def gradient(
    f: Any, *spacing: Any, axis: int | Sequence[int] | None = None, edge_order: int = 1
) -> Any:
    """``(f[i + 1] - f[i - 1]) / (2 h)``: slopes of samples, by central differences.

    `spacing` is a step for all axes, or for each of them a step or the places of its samples; at
    the edges differences are of `edge_order`. A list of tensors for several axes. (The derivative
    of a function is `pb.grad`.)

    Raises: ShapeError for too few samples, or places that do not fit.

    Example:
        >>> pb.gradient(pb.tensor([1.0, 2.0, 4.0, 7.0]))
        Tensor([1. , 1.5, 2.5, 3. ], dtype=float32)
    """
    (samples,) = _floats(f)
    listed = range(samples.ndim) if axis is None else [axis] if isinstance(axis, int) else axis
    axes = [V.normal_axis(a, samples.ndim) for a in listed]
    if len(spacing) > 1 and len(spacing) != len(axes):
        raise ShapeError(f"gradient: {len(spacing)} spacings of {len(axes)} axes", code="E178")
    steps = list(spacing) if len(spacing) > 1 else [*(spacing or (1.0,))] * len(axes)
    slopes = [_slope(samples, a, h, edge_order) for a, h in zip(axes, steps, strict=True)]
    return slopes[0] if len(slopes) == 1 else slopes


def _slope(f: Tensor, axis: int, step: Any, edge_order: int) -> Tensor:
    count = _extent(f, axis, "gradient", edge_order + 1)
    places = value_tensor(step)
    if places.ndim == 0:
        return _even_slope(f, axis, step, edge_order, count)
    if places.shape != (count,):
        what = f"gradient: places of shape {W.show(places.shape)} along an axis of {count}"
        raise ShapeError(what, code="E178")
    trailing = [1] * (f.ndim - 1 - axis)
    gaps = O.astype(O.reshape(diff(places), (-1, *trailing)), f.dtype)
    rise = diff(f, axis=axis) / gaps  # between neighbours
    if count == 2:
        return O.concat([rise, rise], axis=axis)
    inner = count - 2
    before, after = (narrow(gaps, 0, k, inner) for k in (0, 1))
    left, right = (narrow(rise, axis, k, inner) for k in (0, 1))
    middle = (left * after + right * before) / (before + after)
    first, last = (narrow(rise, axis, k, 1) for k in (0, inner))
    if edge_order == 2:
        gap = [narrow(gaps, 0, k, 1) for k in (0, 1, inner - 1, inner)]
        second, other = (narrow(rise, axis, k, 1) for k in (1, inner - 1))
        first = first + (first - second) * gap[0] / (gap[0] + gap[1])
        last = last + (last - other) * gap[3] / (gap[2] + gap[3])
    return O.concat([first, middle, last], axis=axis)


def _even_slope(f: Tensor, axis: int, step: Any, edge_order: int, count: int) -> Tensor:
    def at(place: int, extent: int = 1) -> Tensor:
        return narrow(f, axis, place, extent)

    first, last = (at(1) - at(0)) / step, (at(count - 1) - at(count - 2)) / step
    if edge_order == 2:
        first = (at(0) * -1.5 + at(1) * 2.0 - at(2) * 0.5) / step
        last = (at(count - 1) * 1.5 - at(count - 2) * 2.0 + at(count - 3) * 0.5) / step
    middle = (at(2, count - 2) - at(0, count - 2)) / (step * 2.0)
    return O.concat([first, middle, last], axis=axis)


@shaped("a[n], v[m]")
@in_float32
def convolve(a: Any, v: Any, mode: str = "full") -> Tensor:
    """``out[k] = sum[j] a[k - j] v[j]``: all ``n + m - 1`` of them, the middle ones (`same`, as
    many as the longer has), or those where the shorter lies upon the longer (`valid`).

    Raises: ShapeError for no elements, OptionError for another mode.

    Example:
        >>> pb.convolve(pb.tensor([1.0, 2.0, 3.0]), pb.tensor([0.0, 1.0, 0.5]))
        Tensor([0. , 1. , 2.5, 4. , 1.5], dtype=float32)
    """
    return _convolved(a, O.flip(v), mode, "convolve")


@shaped("a[n], v[m]")
@in_float32
def correlate(a: Any, v: Any, mode: str = "valid") -> Tensor:
    """``out[k] = sum[j] a[k + j] v[j]``: `convolve` with `v` from its end, of the same modes.

    Raises: ShapeError for no elements, OptionError for another mode.

    Example:
        >>> pb.correlate(pb.tensor([1.0, 2.0, 3.0]), pb.tensor([0.0, 1.0, 0.5]))
        Tensor([3.5], dtype=float32)
    """
    return _convolved(a, v, mode, "correlate")


def _convolved(a: Any, v: Any, mode: str, name: str) -> Tensor:
    """``out[k] = sum[j] a[k + j - (m - 1)] v[j]`` of what the mode asks for."""
    if mode not in MODES:
        raise OptionError(f"{name}: mode {mode!r} is none of {', '.join(MODES)}", code="E124")
    signal, kernel = value_tensor(a), value_tensor(v)
    n, m = (_extent(x, 0, name, 1) for x in (signal, kernel))
    less, more = min(n, m), max(n, m)
    halves = (less - 1) // 2 if name == "convolve" or n >= m else less // 2
    start, count = {
        "full": (0, n + m - 1),
        "same": (halves, more),
        "valid": (less - 1, more - less + 1),
    }[mode]
    before, after = m - 1 - start, start + count - n
    padded = narrow(signal, 0, max(-before, 0), n - max(-before, 0) - max(-after, 0))
    ends = [zeros((max(extra, 0),), dtype=signal.dtype) for extra in (before, after)]
    windows = unfold(O.concat([ends[0], padded, ends[1]]), 0, m, 1)
    return O.matmul(windows, kernel)


@shaped("p[n], x[...] -> [...]")
@in_float32
def polyval(p: Any, x: Any) -> Tensor:
    """``p[0] x^(n - 1) + .. + p[n - 2] x + p[n - 1]``, by Horner's rule.

    Example:
        >>> pb.polyval(pb.tensor([3.0, 0.0, 1.0]), 5.0)
        Tensor(76., dtype=float32)
    """
    coefficients, at = value_tensor(p), value_tensor(x)
    kind = W.common_dtype([coefficients.value, at.value])
    coefficients, at = O.astype(coefficients, kind), O.astype(at, kind)
    total: Tensor = zeros_like(at)
    for k in range(_extent(coefficients, 0, "polyval", 0)):
        total = total * at + O.take(coefficients, k, axis=0)
    return total


@spelled
@shaped("p[s..., _ @ axis] -> [s..., _ @ axis]", where="discont >= 0, period > 0")
@in_float32
def unwrap(
    p: Any, discont: float | None = None, axis: int = -1, *, period: float = 2 * math.pi
) -> Tensor:
    """Angles that go on: periods are added where neighbours jump by more than `discont` (a half).

    Example:
        >>> pb.unwrap(pb.tensor([0.0, 3.0, -3.0]))
        Tensor([0.       , 3.       , 3.2831855], dtype=float32)
    """
    (angles,) = _floats(p)
    axis = V.normal_axis(axis, angles.ndim)
    if _extent(angles, axis, "unwrap", 0) < 2:
        return angles
    jump = diff(angles, axis=axis)
    half = period / 2
    near = M.remainder(jump + half, period) - half
    near = O.where(M.logical_and(M.equal(near, -half), M.greater(jump, 0.0)), half, near)
    small = M.less(M.abs(jump), half if discont is None else max(discont, half))
    turns = O.cumulative_sum(O.where(small, 0.0, near - jump), axis=axis)
    first = narrow(angles, axis, 0, 1)
    rest = narrow(angles, axis, 1, angles.shape[axis] - 1)
    return O.concat([first, rest + turns], axis=axis)
