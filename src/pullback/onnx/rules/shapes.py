"""Views, cuts and joins; tensors that are made of shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

import pullback as pb
import pullback.nn.functional as F
from pullback.ir.dtype import is_short
from pullback.onnx.read import kind_of
from pullback.onnx.rules.table import axis_of, demand, numbers, rule

AXES = (13, 21, 23, 24, 25)  # since when axes are an operand


@rule("Reshape", 1)
def reshape_by(x: Any, *, shape: Sequence[int]) -> Any:
    return reshape(x, np.asarray(shape), allowzero=0)


@rule("Reshape", 5, 13, known=(1,))
def reshape_to(x: Any, shape: Any) -> Any:
    return reshape(x, shape, allowzero=0)


@rule("Reshape", 14, 19, 21, 23, 24, 25, known=(1,))
def reshape(x: Any, shape: Any, *, allowzero: int) -> Any:
    """A 0 keeps the extent there, -1 is what is left."""
    wanted = list(numbers(shape))
    wanted = [x.shape[n] if e == 0 and not allowzero else e for n, e in enumerate(wanted)]
    if -1 in wanted and 0 in x.shape:
        rest = math.prod(e for e in wanted if e != -1)
        wanted = [(0 if not rest else math.prod(x.shape) // rest) if e == -1 else e for e in wanted]
    return pb.reshape(x, tuple(wanted))


@rule("Flatten", 1, 9, 11, 13, 21, 23, 24, 25)
def flatten(x: Any, *, axis: int) -> Any:
    at = axis + x.ndim if axis < 0 else axis
    return pb.reshape(x, (math.prod(x.shape[:at]), math.prod(x.shape[at:])))


@rule("Transpose", 1, 13, 21, 23, 24, 25)
def transpose(x: Any, *, perm: Sequence[int] | None) -> Any:
    return pb.permute_dims(x, tuple(range(x.ndim))[::-1] if perm is None else tuple(perm))


@rule("Squeeze", 1, 11)
def squeeze_by(x: Any, *, axes: Sequence[int] | None) -> Any:
    return _squeezed(x, axes)


@rule("Squeeze", *AXES, known=(1,))
def squeeze(x: Any, axes: Any = None) -> Any:
    return _squeezed(x, None if axes is None else numbers(axes))


def _squeezed(x: Any, axes: Sequence[int] | None) -> Any:
    ones = [n for n, e in enumerate(x.shape) if e == 1] if axes is None else axes
    return pb.squeeze(x, axis=tuple([axis_of(a, x.ndim) for a in ones]))


@rule("Unsqueeze", 1, 11)
def unsqueeze_by(x: Any, *, axes: Sequence[int]) -> Any:
    return _unsqueezed(x, axes)


@rule("Unsqueeze", *AXES, known=(1,))
def unsqueeze(x: Any, axes: Any) -> Any:
    return _unsqueezed(x, numbers(axes))


def _unsqueezed(x: Any, axes: Sequence[int]) -> Any:
    rank = x.ndim + len(axes)
    ones = {axis_of(a, rank) for a in axes}
    demand(len(ones) == len(axes), f"axes={tuple(axes)}, one of them twice")
    rest = iter(x.shape)
    return pb.reshape(x, tuple([1 if n in ones else next(rest) for n in range(rank)]))


@rule("Concat", 4, 11, 13)
def concat(*x: Any, axis: int) -> Any:
    return pb.concat(list(x), axis=axis_of(axis, x[0].ndim)) if len(x) > 1 else x[0]


@rule("Expand", 8, 13, known=(1,))
def expand(x: Any, shape: Any) -> Any:
    return pb.broadcast_to(x, pb.broadcast_shapes(tuple(x.shape), numbers(shape)))


@rule("Tile", 6, 13, known=(1,))
def tile(x: Any, repeats: Any) -> Any:
    return pb.tile(x, numbers(repeats))


@rule("Split", 2, 11)
def split_by(x: Any, *, axis: int, split: Sequence[int] | None, outputs: Sequence[bool]) -> Any:
    return _parts(x, axis, split or _even(x.shape[axis], len(outputs)))


@rule("Split", 13, known=(1,))
def split_to(x: Any, sizes: Any = None, *, axis: int, outputs: Sequence[bool]) -> Any:
    return split(x, sizes, axis=axis, num_outputs=None, outputs=outputs)


@rule("Split", 18, known=(1,))
def split(
    x: Any, sizes: Any = None, *, axis: int, num_outputs: int | None, outputs: Sequence[bool]
) -> Any:
    """Equal parts, the last one smaller, where no sizes are given."""
    if sizes is not None:
        return _parts(x, axis, numbers(sizes))
    return _parts(x, axis, _even(x.shape[axis], num_outputs or len(outputs)))


def _even(extent: int, parts: int) -> list[int]:
    size = -(-extent // parts)
    return [max(0, min(size, extent - n * size)) for n in range(parts)]


def _parts(x: Any, axis: int, sizes: Sequence[int]) -> list[Any]:
    at = axis_of(axis, x.ndim)
    demand(sum(sizes) == x.shape[at] and min(sizes) >= 0, f"parts {tuple(sizes)} of {x.shape[at]}")
    ends = np.cumsum(sizes).tolist()
    return [x[(*[slice(None)] * at, slice(e - s, e))] for s, e in zip(sizes, ends, strict=True)]


@rule("Slice", 1)
def slice_by(
    x: Any, *, starts: Sequence[int], ends: Sequence[int], axes: Sequence[int] | None
) -> Any:
    return _sliced(x, starts, ends, axes, None)


@rule("Slice", 10, 11, 13, known=(1, 2, 3, 4))
def slice_(x: Any, starts: Any, ends: Any, axes: Any = None, steps: Any = None) -> Any:
    listed = [None if a is None else numbers(a) for a in (axes, steps)]
    return _sliced(x, numbers(starts), numbers(ends), *listed)


def _sliced(
    x: Any,
    starts: Sequence[int],
    ends: Sequence[int],
    axes: Sequence[int] | None,
    steps: Sequence[int] | None,
) -> Any:
    axes = range(len(starts)) if axes is None else axes
    parts = [slice(None)] * x.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps or [1] * len(starts), strict=True):
        at = axis_of(axis, x.ndim)
        demand(step != 0, "a step of 0")
        first, last, step = slice(start, end, step).indices(x.shape[at])
        parts[at] = slice(first, None if last < 0 else last, step)
        if not len(range(first, last, step)):
            parts[at] = slice(0, 0)
    return x[tuple(parts)]


_MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}


@rule("Pad", 2)
def pad_by(x: Any, *, mode: str, pads: Sequence[int], value: float) -> Any:
    return _padded(x, pads, value, range(x.ndim), mode)


@rule("Pad", 11, 13, known=(1, 2))
def pad_to(x: Any, pads: Any, value: Any = None, *, mode: str) -> Any:
    return pad(x, pads, value, mode=mode)


@rule("Pad", 18, 19, 21, 23, 24, 25, known=(1, 2, 3))
def pad(x: Any, pads: Any, value: Any = None, axes: Any = None, *, mode: str) -> Any:
    """Negative widths cut."""
    number = 0 if value is None or not value.size else value.reshape(-1)[0].item()
    return _padded(x, numbers(pads), number, range(x.ndim) if axes is None else numbers(axes), mode)


def _padded(x: Any, pads: Sequence[int], value: Any, axes: Sequence[int], mode: str) -> Any:
    demand(mode in _MODES, f"mode={mode!r}")
    count = len(axes)
    demand(len(pads) == 2 * count, f"{len(pads)} widths for {count} axes")
    ends = {axis_of(a, x.ndim): (pads[n], pads[n + count]) for n, a in enumerate(axes)}
    widths = [ends.get(n, (0, 0)) for n in range(x.ndim)]
    if mode == "constant":
        grown = pb.pad(x, [(max(0, a), max(0, b)) for a, b in widths], value)
        cuts = [slice(max(0, -a), e - max(0, -b))
                for (a, b), e in zip(widths, grown.shape, strict=True)]  # fmt: skip
        return grown[tuple(cuts)] if any(w < 0 for ab in widths for w in ab) else grown
    return F.pad(x, [w for both in widths[::-1] for w in both], _MODES[mode])


@rule("ConstantOfShape", 9, 20, 21, 23, 24, 25, known=(0,))
def constant_of_shape(shape: Any, *, value: Any) -> Any:
    if not isinstance(value, np.ndarray):  # the definition's default: a float of 0
        return pb.zeros(numbers(shape), dtype=pb.float32)
    return pb.full(numbers(shape), value.reshape(-1)[0].item(), dtype=pb.dtype(value.dtype))


@rule("Range", 11, 27, known=(0, 1, 2))
def range_(start: Any, limit: Any, delta: Any, *, stash_type: int | None = None) -> Any:
    """``start + i delta``, as many as are below the limit."""
    del stash_type
    kind = pb.dtype(start.dtype)
    first, last, step = (a.reshape(-1)[0].item() for a in (start, limit, delta))
    demand(step != 0, "a delta of 0")
    count = max(0, math.ceil((last - first) / step))
    wide = pb.float32 if is_short(kind) else kind
    return pb.astype(pb.arange(count, dtype=wide) * step + first, kind)


@rule("EyeLike", 9, 22)
def eye_like(x: Any, *, dtype: int | None, k: int) -> Any:
    kind = x.dtype if dtype is None else kind_of(dtype, "the result of an EyeLike")
    return pb.eye(*x.shape, k=k, dtype=kind)


@rule("Trilu", 14, known=(1,))
def trilu(x: Any, k: Any = None, *, upper: int) -> Any:
    number = 0 if k is None else numbers(k)[0]
    if 0 in x.shape:
        return x
    return pb.triu(x, k=number) if upper else pb.tril(x, k=number)


@rule("DepthToSpace", 1)
def depth_to_space_by(x: Any, *, blocksize: int) -> Any:
    return depth_to_space(x, blocksize=blocksize, mode="DCR")


@rule("DepthToSpace", 11, 13, 28)
def depth_to_space(x: Any, *, blocksize: int, mode: str) -> Any:
    demand(mode in ("DCR", "CRD"), f"mode={mode!r}")
    n, c, h, w = x.shape
    b, own = blocksize, c // blocksize**2
    if mode == "DCR":
        y = pb.permute_dims(pb.reshape(x, (n, b, b, own, h, w)), (0, 3, 4, 1, 5, 2))
    else:
        y = pb.permute_dims(pb.reshape(x, (n, own, b, b, h, w)), (0, 1, 4, 2, 5, 3))
    return pb.reshape(y, (n, own, h * b, w * b))


@rule("SpaceToDepth", 1, 13)
def space_to_depth_by(x: Any, *, blocksize: int) -> Any:
    return space_to_depth(x, blocksize=blocksize, mode="DCR")


@rule("SpaceToDepth", 28)
def space_to_depth(x: Any, *, blocksize: int, mode: str) -> Any:
    demand(mode in ("DCR", "CRD"), f"mode={mode!r}")
    n, c, h, w = x.shape
    b = blocksize
    blocks = pb.reshape(x, (n, c, h // b, b, w // b, b))
    order = (0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4)
    return pb.reshape(pb.permute_dims(blocks, order), (n, c * b * b, h // b, w // b))
