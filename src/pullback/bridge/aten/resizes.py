"""Resizes that average what they leave out (``antialias=True``): two products with weights.

``y = H x W^T``, rows of H and W the filter around where a pixel comes from
Source: PyTorch, aten/src/ATen/native/cpu/UpSampleKernel.cpp, as Pillow's resize.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import pullback as pb
from pullback.bridge.aten.table import aten, rule

SHARPNESS = -0.5  # of the cubic filter: Pillow's, where PyTorch's other resizes have -0.75


def _triangle(x: Any) -> Any:
    return np.maximum(0.0, 1.0 - np.abs(x))


def _cubic(x: Any) -> Any:
    """Keys' cubic of radius 2."""
    a, t = SHARPNESS, np.abs(x)
    inner = ((a + 2) * t - (a + 3)) * t * t + 1
    outer = ((t - 5) * t + 8) * t * a - 4 * a
    return np.where(t < 1, inner, np.where(t < 2, outer, 0.0))


FILTERS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "bilinear": (_triangle, 1),
    "bicubic": (_cubic, 2),
}


def _weights(mode: str, big: int, small: int, aligned: bool, factor: float | None) -> Any:
    """The share of each of `small` inputs in each of `big` results."""
    shape, radius = FILTERS[mode]
    scale = small / big if not factor else 1 / factor
    if aligned:
        scale = (small - 1) / (big - 1) if big > 1 else 0.0
    wide = max(scale, 1.0)
    rows = np.zeros((big, small))
    for n in range(big):
        center = scale * (n + 0.5)
        first = max(int(center - radius * wide + 0.5), 0)
        last = min(int(center + radius * wide + 0.5), small)
        own = shape((np.arange(first, last) - center + 0.5) / wide)
        rows[n, first:last] = own / own.sum() if own.sum() else own
    return rows


def _resized(
    mode: str, size: Sequence[int], shape: Sequence[int], aligned: bool, factors: Sequence[Any]
) -> tuple[Any, Any]:
    """The weights of rows and of columns."""
    pairs = zip(size, shape[-2:], factors, strict=True)
    high, wide = (_weights(mode, big, small, aligned, f) for big, small, f in pairs)
    return high, wide


def _rules(mode: str) -> None:
    """A resize, and its adjoint."""

    def forward(
        x: Any, size: Sequence[int], aligned: bool, high: Any = None, wide: Any = None
    ) -> Any:
        rows, columns = _resized(mode, size, x.shape, aligned, (high, wide))
        kind = x.dtype.numpy
        return pb.matmul(pb.tensor(rows.astype(kind)), x) @ pb.tensor(columns.T.astype(kind))

    def backward(
        head: Any, size: Sequence[int], shape: Sequence[int], aligned: bool, high: Any = None,
        wide: Any = None,
    ) -> Any:  # fmt: skip
        rows, columns = _resized(mode, size, shape, aligned, (high, wide))
        kind = head.dtype.numpy
        return pb.matmul(pb.tensor(rows.T.astype(kind)), head) @ pb.tensor(columns.astype(kind))

    rule(getattr(aten, f"_upsample_{mode}2d_aa").default)(forward)
    rule(getattr(aten, f"_upsample_{mode}2d_aa_backward").default)(backward)


for _mode in FILTERS:
    _rules(_mode)
