"""Sorting along symbolic axes: as many elements as there may be, those beyond the size last.

    sort(x), x (n,), n in 1..16  ->  sort(x[0], .., x[n - 1], NaN, ..)[:n]

The order is stable, so that what fills up stands behind elements that are equal to it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch.fx import Node

import pullback as pb
from pullback.bridge.aten import RULES as FIXED
from pullback.bridge.aten.places import middles
from pullback.bridge.aten.table import aten
from pullback.ir.expr import Dim, upper

Count = Callable[[Any], Any]


def _axis(x: Any, dim: int) -> int | None:
    """The axis to sort along, where it is symbolic."""
    axis = dim % x.ndim if x.ndim else 0
    return axis if x.ndim and isinstance(x.shape[axis], Dim) else None


def _filled(x: Any, axis: int, *, largest: bool) -> Any:
    """As many elements as there may be; those beyond the size stand behind all others."""
    size = x.shape[axis]
    ends = (math.nan, -math.inf) if x.dtype.is_float else x.dtype.range()[::-1]
    last = ends[1] if largest else ends[0]
    box = tuple([upper(size) if n == axis else e for n, e in enumerate(x.shape)])
    return pb.compute(box, lambda *i: pb.where(i[axis] < size, x[i], last), name="filled")


def _cut(x: Any, axis: int, size: Dim) -> Any:
    shape = tuple([size if n == axis else e for n, e in enumerate(x.shape)])
    return pb.compute(shape, lambda *i: x[i], name="cut")


def _number(x: Any) -> Any:
    return pb.astype(x, pb.int8) if x.dtype.is_bool else x


def sort(
    shapes: Any, count: Count, node: Node, x: Any, dim: int = -1, descending: bool = False, *,
    stable: Any = None,
) -> Any:  # fmt: skip
    """The elements in order, and their places; None along an axis of fixed size."""
    axis = _axis(x, dim)
    if axis is None:
        return None
    both = FIXED[aten.sort.default](_filled(_number(x), axis, largest=descending), axis, descending)
    return tuple([_cut(t, axis, x.shape[axis]) for t in both])


def topk(
    shapes: Any, count: Count, node: Node, x: Any, k: Any, dim: int = -1, largest: bool = True,
    sorted: bool = True,
) -> Any:  # fmt: skip
    """The first of them; PyTorch checks that there are as many. None as in `sort`."""
    axis = _axis(x, dim)
    if axis is None or not isinstance(k, int):
        return None
    return FIXED[aten.topk.default](_filled(_number(x), axis, largest=largest), k, axis, largest)


def kthvalue(
    shapes: Any, count: Count, node: Node, x: Any, k: Any, dim: int = -1, keepdim: bool = False
) -> Any:
    """None as in `sort`."""
    axis = _axis(x, dim)
    if axis is None or not isinstance(k, int):
        return None
    return FIXED[aten.kthvalue.default](_filled(_number(x), axis, largest=False), k, axis, keepdim)


def median(shapes: Any, count: Count, node: Node, x: Any, dim: int, keepdim: bool = False) -> Any:
    """None as in `sort`."""
    axis = _axis(x, dim)
    if axis is None:
        return None
    size = x.shape[axis]
    order = _cut(pb.argsort(_filled(_number(x), axis, largest=False), axis=axis), axis, size)
    place = pb.reshape((count(size) - 1) // 2, (1,))
    return middles(x, pb.take(order, place, axis=axis), axis, keepdim)


RULES: dict[Any, Callable[..., Any]] = {
    aten.sort.default: sort,
    aten.sort.stable: sort,
    aten.topk.default: topk,
    aten.kthvalue.default: kthvalue,
    aten.median.dim: median,
}
