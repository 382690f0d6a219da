"""Functions of Triton's library that move the bits of floats, as what tells where each goes.

    sort(x)_k = x_{p_k}      p: the places of x's elements in order, of whole numbers that hold both

For the derivation alone: what is launched forward is the user's kernel as it is.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

_LOW = tl.constexpr(0x7FFFFFFF)


@triton.jit  # type: ignore[untyped-decorator]
def _ordered(x: tl.tensor) -> tl.tensor:
    """Whole numbers in the order of floats: of negative ones the other bits are turned."""
    if x.dtype.primitive_bitwidth == 16:
        bits = x.to(tl.int16, bitcast=True).to(tl.int32) << 16
    else:
        bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & _LOW)


@triton.jit  # type: ignore[untyped-decorator]
def _places(x: tl.tensor) -> tl.tensor:
    """The place of each element along the last axis, below its order."""
    last: tl.constexpr = x.shape[len(x.shape) - 1]
    size: tl.constexpr = x.numel // last
    place = tl.broadcast_to(tl.arange(0, last)[None, :], (size, last))
    place = tl.reshape(place, x.shape).to(tl.int64)
    return (_ordered(x).to(tl.int64) << 32) | place


@triton.jit  # type: ignore[untyped-decorator]
def sort(x, dim: tl.constexpr = None, descending: tl.constexpr = False):  # type: ignore
    """The elements in order along the last axis."""
    if x.dtype.is_floating() and x.dtype.primitive_bitwidth <= 32:
        packed = tl.standard.sort_impl(_places(x), dim=dim, descending=descending)
        return tl.gather(x, packed.to(tl.int32), len(x.shape) - 1)
    return tl.standard.sort_impl(x, dim=dim, descending=descending)


@triton.jit  # type: ignore[untyped-decorator]
def topk(  # type: ignore[no-untyped-def]
    x, k: tl.constexpr, dim: tl.constexpr = None, descending: tl.constexpr = True
):
    """The largest elements along the last axis, in order."""
    if x.dtype.is_floating() and x.dtype.primitive_bitwidth <= 32:
        packed = tl.standard.sort_impl(_places(x), k=k, dim=dim, descending=descending)
        return tl.gather(x, packed.to(tl.int32), len(x.shape) - 1)
    return tl.standard.sort_impl(x, k=k, dim=dim, descending=descending)


@triton.jit  # type: ignore[untyped-decorator]
def flip(x, dim: tl.constexpr = None):  # type: ignore[no-untyped-def]
    """The elements from the last to the first along an axis."""
    rank: tl.constexpr = len(x.shape)
    axis: tl.constexpr = rank - 1 if dim is None else (dim + rank) % rank
    last: tl.constexpr = x.shape[axis] - 1
    place = last - tl.arange(0, x.shape[axis])
    for k in tl.static_range(rank):
        if k != axis:
            place = tl.expand_dims(place, k)
    return tl.gather(x, tl.broadcast_to(place, x.shape), axis)


FUNCTIONS: dict[Any, Any] = {
    tl.standard.sort.fn: sort,
    tl.standard.topk.fn: topk,
    tl.standard.flip.fn: flip,
}
