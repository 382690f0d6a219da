"""Resizes: along each axis an element is a few of the input's by weights, both known ahead.

``y[t] = sum[k] w[t, k] x[i[t, k]]``
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import pullback as pb
from pullback.config import frozen
from pullback.ir.dtype import is_short
from pullback.onnx.rules.table import axis_of, demand, rule
from pullback.onnx.values import constant

_ROUNDS: dict[str, Callable[[Any], Any]] = {
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


@frozen
class How:
    """What the attributes say, and one axis: extents before and after, its scale, its region."""

    mode: str
    places: str
    nearest: str = "round_prefer_floor"
    slope: float = -0.75
    exclude: bool = False
    antialias: bool = False
    extent: int = 1
    size: int = 1
    scale: float = 1.0
    region: tuple[float, float] = (0.0, 1.0)

    def origins(self) -> Any:
        """Where in the input each element lies."""
        t = np.arange(self.size, dtype=np.float64)
        wide, extent = self.scale * self.extent, self.extent
        half = (t + 0.5) / self.scale - 0.5
        start, end = self.region
        if self.places == "asymmetric":
            return t / self.scale
        if self.places == "align_corners":
            return t * 0.0 if wide == 1 else t * (extent - 1) / (wide - 1)
        if self.places == "tf_crop_and_resize":
            own = t * 0 + 0.5 if wide == 1 else t / (wide - 1)
            return (start * (wide != 1) + own * (end - start) + start * (wide == 1)) * (extent - 1)
        if self.places == "pytorch_half_pixel":
            return t * 0.0 - 0.5 if wide == 1 else half
        if self.places == "half_pixel_symmetric":
            return extent / 2 * (1 - self.size / wide) + half
        demand(self.places == "half_pixel", f"coordinate_transformation_mode={self.places!r}")
        return half

    def taps(self) -> tuple[Any, Any]:
        """Elements that are read, and their weights."""
        origins = self.origins()
        if self.mode == "nearest":
            demand(self.nearest in _ROUNDS, f"nearest_mode={self.nearest!r}")
            places = _ROUNDS[self.nearest](origins)[:, None]
            return places.astype(np.int64).clip(0, self.extent - 1), np.ones_like(places)
        low = np.floor(origins)
        reach = 1 if self.mode == "linear" else 2
        shrunk = min(self.scale, 1.0) if self.antialias else 1.0
        start = math.floor(-reach / shrunk) + 1
        offsets = np.arange(start, 2 - start)
        away = np.abs(offsets[None] - (origins - low)[:, None]) * shrunk
        weights = np.clip(1 - away, 0, 1) if self.mode == "linear" else _cubic(away, self.slope)
        if self.antialias:
            weights = weights / weights.sum(axis=1, keepdims=True)
        places = low[:, None].astype(np.int64) + offsets[None]
        if self.exclude:
            weights = weights * ((places >= 0) & (places < self.extent))
            weights = weights / weights.sum(axis=1, keepdims=True)
        return places.clip(0, self.extent - 1), weights

    def outside(self) -> Any:
        """Which elements lie beyond the input, and are what is said."""
        origins = self.origins()
        return (origins < 0) | (origins > self.extent - 1)


def _cubic(d: Any, a: float) -> Any:
    """Keys' kernel at distance d."""
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


def _along(x: Any, axis: int, how: How) -> Any:
    """One axis at another size."""
    if how.size == how.extent and how.scale == 1.0 and how.places != "tf_crop_and_resize":
        return x
    places, weights = how.taps()
    if how.mode == "nearest":
        times, rest = divmod(how.size, how.extent)
        if not rest and (places[:, 0] == np.arange(how.size) // times).all():
            return pb.repeat(x, times, axis=axis)
        return pb.take(x, constant(places[:, 0]), axis=axis)
    table, shares = constant(places), constant(weights.astype(np.float32))
    k = pb.axis(places.shape[1])
    shape = (*x.shape[:axis], how.size, *x.shape[axis + 1 :])

    def body(*i: Any) -> Any:
        at = (*i[:axis], table[i[axis], k], *i[axis + 1 :])
        return pb.sum(x[at] * shares[i[axis], k], over=k)

    return pb.compute(shape, body, name="resize")


def resized(
    x: Any,
    sizes: Sequence[int],
    scales: Sequence[float],
    how: How,
    region: Sequence[float] | None = None,
    beyond: float = 0.0,
) -> Any:
    """Every axis at another size. Raises: Refused for modes that are not there."""
    demand(how.mode in ("nearest", "linear", "cubic"), f"mode={how.mode!r}")
    demand(how.mode == "nearest" or x.dtype.is_float, f"{how.mode} of {x.dtype}")
    demand(min(sizes, default=1) > 0 and 0 not in x.shape, f"sizes {tuple(sizes)}")
    demand(all(s > 0 for s in scales), f"scales {tuple(scales)}")
    kind, rank = x.dtype, x.ndim
    demand(len(sizes) == rank == len(scales), f"{len(sizes)} sizes for {rank} axes")
    rows = []
    for axis in range(rank):
        ends = (0.0, 1.0) if region is None else (region[axis], region[axis + rank])
        facts = {"extent": x.shape[axis], "size": sizes[axis], "scale": scales[axis]}
        rows.append(replace(how, **facts, region=ends))
    y = pb.astype(x, pb.float32) if how.mode != "nearest" and is_short(kind) else x
    for axis, one in enumerate(rows):
        y = _along(y, axis, one)
    if how.places == "tf_crop_and_resize":
        for axis, one in enumerate(rows):
            shape = [1] * rank
            shape[axis] = one.size
            y = pb.where(pb.reshape(constant(one.outside()), tuple(shape)), beyond, y)
    return pb.astype(y, kind)


def _floats(array: Any) -> list[float]:
    return [] if array is None else [float(v) for v in array.reshape(-1)]


def _by_scales(x: Any, scales: Sequence[float], how: How) -> Any:
    demand(len(scales) == x.ndim, f"{len(scales)} scales for {x.ndim} axes")
    sizes = [math.floor(e * s) for e, s in zip(x.shape, scales, strict=True)]
    return resized(x, sizes, scales, how)


@rule("Upsample", 7)
def upsample_7(x: Any, *, mode: str, scales: Sequence[float]) -> Any:
    return _by_scales(x, scales, How(mode, "asymmetric", "floor"))


@rule("Upsample Resize", 10, known=(1,))
@rule("Upsample", 9, known=(1,))
def upsample(x: Any, scales: Any, *, mode: str) -> Any:
    return _by_scales(x, _floats(scales), How(mode, "asymmetric", "floor"))


@rule("Resize", 11, 13, known=(1, 2, 3))
def resize_11(
    x: Any, roi: Any = None, scales: Any = None, sizes: Any = None, *,
    coordinate_transformation_mode: str, cubic_coeff_a: float, exclude_outside: int,
    extrapolation_value: float, mode: str, nearest_mode: str,
) -> Any:  # fmt: skip
    places = coordinate_transformation_mode
    demand(places != "tf_half_pixel_for_nn", f"coordinate_transformation_mode={places!r}")
    how = How(mode, places, nearest_mode, cubic_coeff_a, bool(exclude_outside))
    return _resize(x, roi, scales, sizes, how, extrapolation_value, None, "stretch")


@rule("Resize", 18, 19, known=(1, 2, 3))
def resize(
    x: Any, roi: Any = None, scales: Any = None, sizes: Any = None, *, antialias: int,
    axes: Sequence[int] | None, coordinate_transformation_mode: str, cubic_coeff_a: float,
    exclude_outside: int, extrapolation_value: float, keep_aspect_ratio_policy: str, mode: str,
    nearest_mode: str,
) -> Any:  # fmt: skip
    how = How(
        mode, coordinate_transformation_mode, nearest_mode, cubic_coeff_a,
        bool(exclude_outside), bool(antialias),
    )  # fmt: skip
    policy = keep_aspect_ratio_policy
    return _resize(x, roi, scales, sizes, how, extrapolation_value, axes, policy)


def _resize(
    x: Any, roi: Any, scales: Any, sizes: Any, how: How, beyond: float,
    axes: Sequence[int] | None, policy: str,
) -> Any:  # fmt: skip
    own = range(x.ndim) if axes is None else [axis_of(a, x.ndim) for a in axes]
    factors, whole = [1.0] * x.ndim, [int(e) for e in x.shape]
    region = [0.0] * x.ndim + [1.0] * x.ndim
    ends = _floats(roi)
    if ends and how.places == "tf_crop_and_resize":
        demand(len(ends) == 2 * len(own), f"a region of {len(ends)} numbers")
        for n, axis in enumerate(own):
            region[axis], region[axis + x.ndim] = ends[n], ends[n + len(own)]
    given = _floats(scales) or _floats(sizes)
    demand(len(given) == len(own), f"{len(given)} sizes or scales for {len(own)} axes")
    if scales is not None and scales.size:
        for axis, factor in zip(own, given, strict=True):
            factors[axis], whole[axis] = factor, math.floor(x.shape[axis] * factor)
        return resized(x, whole, factors, how, region, beyond)
    wanted = [g / max(1, x.shape[a]) for g, a in zip(given, own, strict=True)]
    demand(policy in ("stretch", "not_larger", "not_smaller"), f"policy {policy!r}")
    if policy != "stretch":
        wanted = [(min if policy == "not_larger" else max)(wanted)] * len(wanted)
        given = [math.floor(f * x.shape[a] + 0.5) for f, a in zip(wanted, own, strict=True)]
    for axis, factor, size in zip(own, wanted, given, strict=True):
        factors[axis], whole[axis] = factor, int(size)
    return resized(x, whole, factors, how, region, beyond)
