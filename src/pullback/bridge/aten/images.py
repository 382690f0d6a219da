"""Pools of volumes, pads, samplers, patches: forward, and adjoints by derivation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pullback as pb
import pullback.nn.functional as F
from pullback.bridge.aten.pools import largest
from pullback.bridge.aten.table import aten, placed, pulled, rule

Run = Callable[[Any], Any]


def _batched(rank: int, run: Run) -> Run:
    """As PyTorch calls it: with the axis of a batch, or without."""

    def call(x: Any) -> Any:
        if x.ndim == rank + 2:
            return run(x)
        y = run(pb.expand_dims(x, axis=0))
        return tuple([part[0] for part in y]) if isinstance(y, tuple) else y[0]

    return call


def _three(value: Any) -> tuple[int, ...]:
    whole = [value] if isinstance(value, int) else list(value)
    return tuple(whole * 3 if len(whole) == 1 else whole)


# --- pools ----------------------------------------------------------------------------------------


def _most(kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool) -> Run:
    own = (_three(kernel), _three(stride or kernel), _three(padding), _three(dilation))
    return _batched(3, lambda x: largest(x, *own, ceil))


@rule(aten.max_pool3d_with_indices.default)
def max_pool3d(
    x: Any, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
) -> Any:
    return _most(kernel, stride, padding, dilation, ceil)(x)


@rule(aten.max_pool3d_with_indices_backward.default)
def max_pool3d_backward(
    head: Any, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool,
    places: Any,
) -> Any:  # fmt: skip
    del kernel, stride, padding, dilation, ceil
    return placed(head, x, places, 3)


def _mean(kernel: Any, stride: Any, padding: Any, ceil: bool, counted: bool, divisor: Any) -> Run:
    own = (_three(kernel), _three(stride or kernel), _three(padding), ceil, counted, divisor)
    return _batched(3, lambda x: F.avg_pool3d(x, *own))


@rule(aten.avg_pool3d.default)
def avg_pool3d(
    x: Any, kernel: Any, stride: Any = (), padding: Any = 0, ceil: bool = False,
    counted: bool = True, divisor: Any = None,
) -> Any:  # fmt: skip
    return _mean(kernel, stride, padding, ceil, counted, divisor)(x)


@rule(aten.avg_pool3d_backward.default)
def avg_pool3d_backward(
    head: Any, x: Any, kernel: Any, stride: Any, padding: Any, ceil: bool, counted: bool,
    divisor: Any,
) -> Any:  # fmt: skip
    return pulled(_mean(kernel, stride, padding, ceil, counted, divisor), [x], head)[0]


@rule(aten._adaptive_avg_pool3d.default)
def adaptive_avg_pool3d(x: Any, size: Sequence[int]) -> Any:
    return F.adaptive_avg_pool3d(x, tuple(size))


@rule(aten._adaptive_avg_pool3d_backward.default)
def adaptive_avg_pool3d_backward(head: Any, x: Any) -> Any:
    size = tuple(head.shape[-3:])
    return pulled(lambda t: F.adaptive_avg_pool3d(t, size), [x], head)[0]


_ADAPTIVE = {2: F.adaptive_max_pool2d, 3: F.adaptive_max_pool3d}


def _adaptive(rank: int, size: Sequence[int]) -> Run:
    return _batched(rank, lambda x: _ADAPTIVE[rank](x, tuple(size), True))


@rule(aten.adaptive_max_pool2d.default)
def adaptive_max_pool2d(x: Any, size: Sequence[int]) -> Any:
    return _adaptive(2, size)(x)


@rule(aten.adaptive_max_pool2d_backward.default)
def adaptive_max_pool2d_backward(head: Any, x: Any, places: Any) -> Any:
    return placed(head, x, places, 2)


@rule(aten.adaptive_max_pool3d.default)
def adaptive_max_pool3d(x: Any, size: Sequence[int]) -> Any:
    return _adaptive(3, size)(x)


@rule(aten.adaptive_max_pool3d_backward.default)
def adaptive_max_pool3d_backward(head: Any, x: Any, places: Any) -> Any:
    return placed(head, x, places, 3)


@rule(aten.fractional_max_pool2d.default, aten.fractional_max_pool3d.default)
def fractional_max_pool(x: Any, kernel: Sequence[int], size: Sequence[int], samples: Any) -> Any:
    """Windows that start where PyTorch drew."""
    run = F.fractional_max_pool2d if len(kernel) == 2 else F.fractional_max_pool3d
    return run(x, tuple(kernel), tuple(size), None, True, samples)


@rule(aten.fractional_max_pool2d_backward.default, aten.fractional_max_pool3d_backward.default)
def fractional_max_pool_backward(
    head: Any, x: Any, kernel: Sequence[int], size: Sequence[int], places: Any
) -> Any:
    del size
    lead = tuple(x.shape[: x.ndim - len(kernel)])
    blank = pb.zeros((*lead, math.prod(x.shape[len(lead) :])), dtype=head.dtype)
    flat = (pb.reshape(t, (*lead, -1)) for t in (places, head))
    return pb.reshape(pb.scatter_add(blank, *flat, axis=-1), tuple(x.shape))


# --- pads -----------------------------------------------------------------------------------------

PADS = {"reflection": "reflect", "replication": "replicate"}


def _padded(name: str, mode: str, rank: int) -> None:
    """The rules of a pad of `rank` axes."""

    def run(padding: Sequence[int]) -> Run:
        return _batched(rank, lambda x: F.pad(x, list(padding), mode))

    def forward(x: Any, padding: Sequence[int]) -> Any:
        return run(padding)(x)

    def backward(head: Any, x: Any, padding: Sequence[int]) -> Any:
        return pulled(run(padding), [x], head)[0]

    rule(getattr(aten, f"{name}_pad{rank}d").default)(forward)
    rule(getattr(aten, f"{name}_pad{rank}d_backward").default)(backward)


for _name, _mode in PADS.items():
    for _rank in (1, 2, 3):
        _padded(_name, _mode, _rank)


# --- samplers -------------------------------------------------------------------------------------

MODES = ("bilinear", "nearest", "bicubic")
EDGES = ("zeros", "border", "reflection")


@rule(aten.grid_sampler_2d.default, aten.grid_sampler_3d.default)
def grid_sampler(x: Any, grid: Any, mode: int, edge: int, aligned: bool) -> Any:
    return F.grid_sample(x, grid, MODES[mode], EDGES[edge], aligned)


@rule(aten.grid_sampler_2d_backward.default, aten.grid_sampler_3d_backward.default)
def grid_sampler_backward(
    head: Any, x: Any, grid: Any, mode: int, edge: int, aligned: bool, mask: Sequence[bool]
) -> Any:
    own = (mode, edge, aligned)
    dx = pulled(lambda t: grid_sampler(t, grid, *own), [x], head)[0] if mask[0] else None
    dg = pulled(lambda t: grid_sampler(x, t, *own), [grid], head)[0] if mask[1] else None
    return dx, dg


def _unlike(*args: Any, **_: Any) -> str | None:
    """Scales that are not those of the sizes."""
    sizes, scales = (args[1], args[2]), [s for s in args[3:] if isinstance(s, float)]
    if not scales:
        return None
    pairs = zip(sizes[0], sizes[1][2:], scales, strict=True)
    return None if all(big == small * s for big, small, s in pairs) else "a scale of its own"


def _resized(overload: Any, mode: str, *, aligned: bool) -> None:
    """The rule of the adjoint of a resize."""

    def backward(head: Any, size: Sequence[int], shape: Sequence[int], *rest: Any) -> Any:
        corners = bool(rest[0]) if aligned else None
        blank = pb.zeros(tuple(shape), dtype=head.dtype)

        def run(t: Any) -> Any:
            return F.interpolate(t, tuple(size), None, mode, corners)

        return pulled(run, [blank], head)[0]

    rule(overload, refuses=_unlike)(backward)


_resized(aten.upsample_nearest1d_backward.default, "nearest", aligned=False)
_resized(aten.upsample_nearest2d_backward.default, "nearest", aligned=False)
_resized(aten.upsample_nearest3d_backward.default, "nearest", aligned=False)
_resized(aten.upsample_linear1d_backward.default, "linear", aligned=True)
_resized(aten.upsample_bilinear2d_backward.default, "bilinear", aligned=True)
_resized(aten.upsample_trilinear3d_backward.default, "trilinear", aligned=True)
_resized(aten.upsample_bicubic2d_backward.default, "bicubic", aligned=True)


# --- patches --------------------------------------------------------------------------------------


@rule(aten.im2col.default)
def im2col(x: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    own = [tuple(v) for v in (kernel, dilation, padding, stride)]
    return F.unfold(x, *own) if x.ndim == 4 else F.unfold(pb.expand_dims(x, axis=0), *own)[0]


@rule(aten.col2im.default)
def col2im(x: Any, size: Any, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Any:
    own = [tuple(v) for v in (size, kernel, dilation, padding, stride)]
    return F.fold(x, *own) if x.ndim == 3 else F.fold(pb.expand_dims(x, axis=0), *own)[0]
