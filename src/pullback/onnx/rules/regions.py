"""Images at fractional places: regions of one size, convolutions whose taps are moved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pullback as pb
from pullback.onnx.rules.table import demand, rule
from pullback.onnx.rules.windows import windows

Ints = Sequence[int] | None


def _near(place: Any, extent: int) -> tuple[Any, Any, Any]:
    """The elements on either side of a place, and the share of the second."""
    low = pb.floor(place)
    first = pb.astype(low, pb.int64)
    return first, first + 1, place - low


def _zeroed(x: Any, n: Any, c: Any, y: Any, z: Any) -> Any:
    """An element, 0 outside."""
    inside = (y >= 0) & (y < x.shape[2]) & (z >= 0) & (z < x.shape[3])
    return pb.where(inside, x[n, c, y, z], 0.0)


def _between(x: Any, n: Any, c: Any, place: tuple[Any, Any]) -> Any:
    """Of four elements by their shares; what is outside is 0."""
    (y0, y1, fy), (z0, z1, fz) = (_near(p, e) for p, e in zip(place, x.shape[2:], strict=True))
    above = _zeroed(x, n, c, y0, z0) * (1.0 - fz) + _zeroed(x, n, c, y0, z1) * fz
    below = _zeroed(x, n, c, y1, z0) * (1.0 - fz) + _zeroed(x, n, c, y1, z1) * fz
    return above * (1.0 - fy) + below * fy


@rule("DeformConv", 19, 22)
def deform_conv(
    x: Any, w: Any, offset: Any, b: Any = None, mask: Any = None, *, dilations: Ints, group: int,
    kernel_shape: Ints, offset_group: int, pads: Ints, strides: Ints,
) -> Any:  # fmt: skip
    """``y[n, o, t] = sum[c, k] x[n, c, t s + k d + offset] mask w[o, c, k]``"""
    demand(x.ndim == 4, f"{x.ndim - 2} axes of space")
    demand(tuple(kernel_shape or w.shape[2:]) == tuple(w.shape[2:]), f"kernel_shape={kernel_shape}")
    own = windows(x, w.shape[2:], strides, dilations, pads, "NOTSET")
    high, wide = own.counts(x.shape[2:], False)
    rows, columns = own.sizes
    taps, each = rows * columns, x.shape[1] // offset_group
    outer, inner = w.shape[0] // group, w.shape[1]

    def sampled(n: Any, c: Any, k: Any, i: Any, j: Any) -> Any:
        part = c // each * taps + k
        start = [e[0] for e in own.ends]
        y = i * own.steps[0] + k // columns * own.spread[0] - start[0]
        z = j * own.steps[1] + k % columns * own.spread[1] - start[1]
        place = tuple(
            pb.astype(p, x.dtype) + offset[n, part * 2 + m, i, j] for m, p in enumerate((y, z))
        )
        value = _between(x, n, c, (place[0], place[1]))
        return value if mask is None else value * mask[n, part, i, j]

    moved = pb.compute((x.shape[0], x.shape[1], taps, high, wide), sampled, name="moved")
    flat = pb.reshape(w, (w.shape[0], inner, taps))
    c, k = pb.axis(inner), pb.axis(taps)

    def body(n: Any, o: Any, i: Any, j: Any) -> Any:
        return pb.sum(moved[n, o // outer * inner + c, k, i, j] * flat[o, c, k], over=(c, k))

    y = pb.compute((x.shape[0], w.shape[0], high, wide), body, name="deform_conv")
    return y if b is None else y + pb.reshape(b, (1, -1, 1, 1))


@rule("RoiAlign", 10)
def roi_align_10(
    x: Any, rois: Any, batch: Any, *, mode: str, output_height: int, output_width: int,
    sampling_ratio: int, spatial_scale: float,
) -> Any:  # fmt: skip
    size = (output_height, output_width)
    return _aligned(x, rois, batch, mode, size, sampling_ratio, spatial_scale, False)


@rule("RoiAlign", 16, 22)
def roi_align(
    x: Any, rois: Any, batch: Any, *, coordinate_transformation_mode: str, mode: str,
    output_height: int, output_width: int, sampling_ratio: int, spatial_scale: float,
) -> Any:  # fmt: skip
    demand(
        coordinate_transformation_mode in ("half_pixel", "output_half_pixel"),
        f"coordinate_transformation_mode={coordinate_transformation_mode!r}",
    )
    half = coordinate_transformation_mode == "half_pixel"
    size = (output_height, output_width)
    return _aligned(x, rois, batch, mode, size, sampling_ratio, spatial_scale, half)


def _aligned(
    x: Any, rois: Any, batch: Any, mode: str, size: tuple[int, int], samples: int, scale: float,
    half: bool,
) -> Any:  # fmt: skip
    """The mean, or the largest, of samples in each part of a region."""
    demand(samples > 0, "sampling_ratio=0: how many samples there are is data")
    demand(mode in ("avg", "max"), f"mode={mode!r}")
    by = pb.astype(rois, x.dtype) * scale - (0.5 if half else 0.0)
    room = [by[:, 3] - by[:, 1], by[:, 2] - by[:, 0]]
    room = room if half else [pb.maximum(r, 1.0) for r in room]
    s, t = pb.axis(samples), pb.axis(samples)

    def place(r: Any, axis: int, i: Any, k: Any) -> Any:
        part = room[axis][r] / size[axis]
        step = (pb.astype(k, x.dtype) + 0.5) * (1.0 / samples)
        return by[r, 1 - axis] + (pb.astype(i, x.dtype) + step) * part

    def body(r: Any, c: Any, i: Any, j: Any) -> Any:
        value = _weighed(x, batch[r], c, (place(r, 0, i, s), place(r, 1, j, t)), mode)
        if mode == "max":
            return pb.max(value, over=(s, t))
        return pb.sum(value, over=(s, t)) * (1.0 / samples**2)

    return pb.compute((rois.shape[0], x.shape[1], *size), body, name="roi_align")


def _weighed(x: Any, n: Any, c: Any, place: tuple[Any, Any], mode: str) -> Any:
    """Of four elements by their shares, or the largest share; beyond the image 0, at its end the
    last element.
    """
    inside, parts = None, []
    for p, extent in zip(place, x.shape[2:], strict=True):
        here = (p >= -1.0) & (p <= float(extent))
        inside = here if inside is None else inside & here
        own = pb.clip(p, 0.0, extent - 1.0)
        low = pb.floor(own)
        first = pb.astype(low, pb.int64)
        parts.append((first, pb.minimum(first + 1, extent - 1), own - low))
    (y0, y1, fy), (z0, z1, fz) = parts
    corners = [
        (y0, z0, (1.0 - fy) * (1.0 - fz)), (y0, z1, (1.0 - fy) * fz),
        (y1, z0, fy * (1.0 - fz)), (y1, z1, fy * fz),
    ]  # fmt: skip
    values = [x[n, c, y, z] * share for y, z, share in corners]
    joined = values[0]
    for value in values[1:]:
        joined = pb.maximum(joined, value) if mode == "max" else joined + value
    return pb.where(inside, joined, 0.0)
