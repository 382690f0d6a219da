"""Images at places that are data."""

from __future__ import annotations

from typing import Any

import pullback as pb
import pullback.nn.functional as F
from pullback.onnx.rules.table import demand, rule

_MODES = {
    "linear": "bilinear", "bilinear": "bilinear", "nearest": "nearest", "cubic": "bicubic",
    "bicubic": "bicubic",
}  # fmt: skip


@rule("GridSample", 16, 20, 22)
def grid_sample(x: Any, grid: Any, *, align_corners: int, mode: str, padding_mode: str) -> Any:
    demand(mode in _MODES, f"mode={mode!r}")
    return F.grid_sample(x, grid, _MODES[mode], padding_mode, bool(align_corners))


@rule("AffineGrid", 20, known=(1,))
def affine_grid(theta: Any, size: Any, *, align_corners: int) -> Any:
    return F.affine_grid(theta, tuple(int(e) for e in size), bool(align_corners))


@rule("TensorScatter", 24)
def tensor_scatter(cache: Any, update: Any, starts: Any = None, *, axis: int, mode: str) -> Any:
    """``y[b, .., start[b] + i, ..] = update[b, .., i, ..]``; circular: round the end."""
    demand(mode in ("linear", "circular"), f"mode={mode!r}")
    at = axis + cache.ndim if axis < 0 else axis
    shape = [1] * cache.ndim
    shape[at] = update.shape[at]
    places = pb.reshape(pb.arange(update.shape[at], dtype=pb.int64), tuple(shape))
    if starts is not None:
        own = [1] * cache.ndim
        own[0] = -1
        places = places + pb.reshape(pb.astype(starts, pb.int64), tuple(own))
    if mode == "circular":
        places = places % cache.shape[at]
    return pb.scatter(cache, pb.broadcast_to(places, tuple(update.shape)), update, axis=at)
