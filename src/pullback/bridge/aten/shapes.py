"""Operators that move elements, or make tensors of none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pullback as pb
from pullback.bridge.aten.table import aten, axes, cast, rule
from pullback.bridge.complexes import ELEMENTS


@rule(
    aten.view.default, aten._unsafe_view.default, aten.reshape.default,
    aten._reshape_copy.default, aten.view_copy.default,
)  # fmt: skip
def reshape(x: Any, shape: Sequence[int]) -> Any:
    return pb.reshape(x, tuple(shape))


@rule(aten.permute.default, aten.permute_copy.default)
def permute(x: Any, order: Sequence[int]) -> Any:
    return pb.permute_dims(x, tuple([d % x.ndim for d in order]))


@rule(aten.t.default, aten.t_copy.default)
def transpose_matrix(x: Any) -> Any:
    return pb.permute_dims(x, (1, 0)) if x.ndim == 2 else x


@rule(aten.transpose.int, aten.transpose_copy.int)
def transpose(x: Any, one: int, other: int) -> Any:
    return pb.swapaxes(x, one, other) if x.ndim else x


@rule(aten.expand.default, aten.expand_copy.default)
def expand(x: Any, shape: Sequence[int], implicit: bool = False) -> Any:
    del implicit
    first = len(shape) - x.ndim
    whole = [x.shape[n - first] if e == -1 else e for n, e in enumerate(shape)]
    return pb.broadcast_to(x, tuple(whole))


@rule(aten.unsqueeze.default, aten.unsqueeze_copy.default)
def unsqueeze(x: Any, dim: int) -> Any:
    return pb.expand_dims(x, axis=dim % (x.ndim + 1))


@rule(aten.squeeze.default)
def squeeze(x: Any) -> Any:
    return pb.reshape(x, tuple([e for e in x.shape if e != 1]))


@rule(aten.squeeze.dim, aten.squeeze.dims, aten.squeeze_copy.dim, aten.squeeze_copy.dims)
def squeeze_axes(x: Any, dim: Any) -> Any:
    ones = set(axes(dim, x.ndim) or ())
    kept = [e for n, e in enumerate(x.shape) if n not in ones or e != 1]
    return pb.reshape(x, tuple(kept))


@rule(aten.slice.Tensor, aten.slice_copy.Tensor)
def slice_(
    x: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Any:
    at = dim % x.ndim
    extent = x.shape[at]
    own = slice(*slice(start, end, step).indices(extent))
    if own.start == 0 and own.stop >= extent and step == 1:
        return x
    return x[(*[slice(None)] * at, own)]


@rule(aten.narrow_copy.default)
def narrow(x: Any, dim: int, start: int, length: int) -> Any:
    first = start % x.shape[dim] if start < 0 else start
    return slice_(x, dim, first, first + length)


@rule(aten.select.int, aten.select_copy.int)
def select(x: Any, dim: int, index: int) -> Any:
    return x[(*[slice(None)] * (dim % x.ndim), index)]


@rule(aten.split.Tensor, aten.split_copy.Tensor)
def split(x: Any, size: int, dim: int = 0) -> Any:
    extent = x.shape[dim]
    firsts = range(0, extent, size) if size else [0]
    return tuple([slice_(x, dim, first, min(extent, first + size)) for first in firsts])


@rule(aten.split_with_sizes.default, aten.split_with_sizes_copy.default)
def split_with_sizes(x: Any, sizes: Sequence[int], dim: int = 0) -> Any:
    ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    return tuple([slice_(x, dim, e - s, e) for s, e in zip(sizes, ends, strict=True)])


@rule(aten.unbind.int, aten.unbind_copy.int)
def unbind(x: Any, dim: int = 0) -> Any:
    return tuple([select(x, dim, n) for n in range(x.shape[dim])])


@rule(aten.cat.default)
def cat(tensors: Sequence[Any], dim: int = 0) -> Any:
    whole = [t for t in tensors if t.shape != (0,)] or [tensors[0]]
    return pb.concat(whole, axis=dim % whole[0].ndim) if len(whole) > 1 else whole[0]


@rule(aten.stack.default)
def stack(tensors: Sequence[Any], dim: int = 0) -> Any:
    return pb.stack(list(tensors), axis=dim)


@rule(aten.flip.default)
def flip(x: Any, dims: Sequence[int]) -> Any:
    return pb.flip(x, axis=tuple([d % x.ndim for d in dims])) if dims else x


@rule(aten.roll.default)
def roll(x: Any, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    shifts = [shifts] if isinstance(shifts, int) else shifts
    if not dims:
        return pb.reshape(pb.roll(pb.reshape(x, (-1,)), int(shifts[0]), axis=0), tuple(x.shape))
    return pb.roll(x, tuple(shifts), axis=tuple([d % x.ndim for d in dims]))


@rule(aten.repeat.default)
def repeat(x: Any, repeats: Sequence[int]) -> Any:
    return pb.tile(x, tuple(repeats))


@rule(aten.constant_pad_nd.default)
def constant_pad(x: Any, pad: Sequence[int], value: Any = 0) -> Any:
    pairs = [(pad[n], pad[n + 1]) for n in range(0, len(pad), 2)]
    widths = [(0, 0)] * (x.ndim - len(pairs)) + pairs[::-1]
    grown = pb.pad(x, [(max(0, a), max(0, b)) for a, b in widths], value)
    cuts = [
        slice(max(0, -a), e - max(0, -b)) for (a, b), e in zip(widths, grown.shape, strict=True)
    ]
    return grown[tuple(cuts)] if any(a < 0 or b < 0 for a, b in widths) else grown


@rule(aten.unfold.default, aten.unfold_copy.default)
def unfold(x: Any, dim: int, size: int, step: int) -> Any:
    if not x.ndim:
        return pb.broadcast_to(x, (size,))
    return pb.unfold(x, dim % x.ndim, size, step)


@rule(aten.diagonal.default, aten.diagonal_copy.default)
def diagonal(x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    return pb.diagonal(x, offset=offset, axis1=dim1, axis2=dim2)


@rule(aten.tril.default)
def tril(x: Any, k: int = 0) -> Any:
    return pb.tril(x, k=k)


@rule(aten.triu.default)
def triu(x: Any, k: int = 0) -> Any:
    return pb.triu(x, k=k)


@rule(aten.select_scatter.default)
def select_scatter(x: Any, values: Any, dim: int, index: int) -> Any:
    return pb.select_scatter(x, values, dim, index)


@rule(aten.slice_scatter.default)
def slice_scatter(
    x: Any,
    values: Any,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> Any:
    own = slice(*slice(start, end, step).indices(x.shape[dim]))
    return pb.slice_scatter(x, values, dim, own.start, own.stop, step)


@rule(aten.slice_backward.default)
def slice_backward(
    head: Any, shape: Sequence[int], dim: int, start: int, end: int, step: int
) -> Any:
    return slice_scatter(pb.zeros(tuple(shape), dtype=head.dtype), head, dim, start, end, step)


@rule(aten.select_backward.default)
def select_backward(head: Any, shape: Sequence[int], dim: int, index: int) -> Any:
    return pb.select_scatter(pb.zeros(tuple(shape), dtype=head.dtype), head, dim, index)


@rule(
    aten.clone.default, aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default,
    aten.contiguous.default, aten.detach_copy.default, aten.alias_copy.default,
)  # fmt: skip
def same(x: Any, *_: Any, **__: Any) -> Any:
    return x


@rule(aten._to_copy.default)
def to_copy(x: Any, dtype: Any = None, **_: Any) -> Any:
    return x if dtype is None else cast(x, ELEMENTS[dtype])


@rule(aten.full.default)
def full(shape: Sequence[int], value: Any, dtype: Any = None, **_: Any) -> Any:
    return pb.full(tuple(shape), value, dtype=None if dtype is None else ELEMENTS[dtype])


@rule(aten.full_like.default)
def full_like(x: Any, value: Any, dtype: Any = None, **_: Any) -> Any:
    return pb.full(tuple(x.shape), value, dtype=x.dtype if dtype is None else ELEMENTS[dtype])


@rule(aten.zeros_like.default)
def zeros_like(x: Any, dtype: Any = None, **_: Any) -> Any:
    return full_like(x, 0, dtype)


@rule(aten.ones_like.default)
def ones_like(x: Any, dtype: Any = None, **_: Any) -> Any:
    return full_like(x, 1, dtype)


@rule(aten.zeros.default, aten.new_zeros.default)
def zeros(*args: Any, dtype: Any = None, **_: Any) -> Any:
    return pb.zeros(tuple(args[-1]), dtype=_kind(args, dtype))


@rule(aten.ones.default, aten.new_ones.default)
def ones(*args: Any, dtype: Any = None, **_: Any) -> Any:
    return pb.ones(tuple(args[-1]), dtype=_kind(args, dtype))


def _kind(args: Sequence[Any], dtype: Any) -> Any:
    if dtype is not None:
        return ELEMENTS[dtype]
    return args[0].dtype if len(args) > 1 else pb.float32


@rule(aten.scalar_tensor.default)
def scalar_tensor(value: Any, dtype: Any = None, **_: Any) -> Any:
    return pb.full((), value, dtype=None if dtype is None else ELEMENTS[dtype])


@rule(aten.arange.default)
def arange(end: Any, dtype: Any = None, **_: Any) -> Any:
    return pb.arange(end, dtype=None if dtype is None else ELEMENTS[dtype])


@rule(aten.arange.start)
def arange_start(start: Any, end: Any, dtype: Any = None, **_: Any) -> Any:
    return pb.arange(start, end, dtype=None if dtype is None else ELEMENTS[dtype])


@rule(aten.arange.start_step)
def arange_step(start: Any, end: Any, step: Any = 1, dtype: Any = None, **_: Any) -> Any:
    return pb.arange(start, end, step, dtype=None if dtype is None else ELEMENTS[dtype])


@rule(aten.eye.default, aten.eye.m)
def eye(*sizes: int, dtype: Any = None, **_: Any) -> Any:
    return pb.eye(*sizes, dtype=None if dtype is None else ELEMENTS[dtype])


@rule(aten._efficientzerotensor.default)
def zero(shape: Sequence[int], *, dtype: Any = None, **_: Any) -> Any:
    return pb.zeros(tuple(shape), dtype=None if dtype is None else ELEMENTS[dtype])


@rule(aten.copy.default)
def copied(x: Any, source: Any, non_blocking: bool = False) -> Any:
    del non_blocking
    return pb.broadcast_to(cast(source, x.dtype), tuple(x.shape))


# --- by strides -----------------------------------------------------------------------------------


def _no_rows(x: Any, *_: Any, **__: Any) -> str | None:
    whole = x.is_contiguous() and x.numel() * x.itemsize == x.untyped_storage().nbytes()
    return None if whole else "strides over memory that is not in row-major order"


def _places(shape: Sequence[int], strides: Sequence[int], offset: int | None) -> Any:
    """Where elements lie in memory."""
    places = pb.full((1,) * len(shape), offset or 0, dtype=pb.int64)
    for axis, (extent, stride) in enumerate(zip(shape, strides, strict=True)):
        along = [extent if n == axis else 1 for n in range(len(shape))]
        places = places + pb.reshape(pb.arange(extent, dtype=pb.int64) * stride, tuple(along))
    return places


@rule(aten.as_strided.default, aten.as_strided_copy.default, refuses=_no_rows)
def as_strided(
    x: Any, shape: Sequence[int], strides: Sequence[int], offset: int | None = None
) -> Any:
    return pb.take(pb.reshape(x, (-1,)), _places(shape, strides, offset), axis=0)


@rule(aten.as_strided_scatter.default, refuses=_no_rows)
def as_strided_scatter(
    x: Any, values: Any, shape: Sequence[int], strides: Sequence[int], offset: int | None = None
) -> Any:
    places = pb.reshape(_places(shape, strides, offset), (-1,))
    whole = pb.index_put(pb.reshape(x, (-1,)), [places], pb.reshape(values, (-1,)))
    return pb.reshape(whole, tuple(x.shape))
