"""Tensors as they lie in another library's memory: a variable, and a view of it.

    x of shape (3, 4), strides (1, 3)     ->     x[i, j] = memory[j, i],     memory of (4, 3)
    x of shape (3, 4), strides (9, 2)     ->     x[i, j] = memory[9 i + 2 j], memory of (25,)

Nothing is copied: a view is an index map, and programs read through it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

from pullback.ir import expr as E
from pullback.ir.expr import Expr
from pullback.ir.graph import Value
from pullback.tensor.values import views as V
from pullback.tensor.values.elementwise import axes_of

Shape = tuple[int, ...]


def apart(shape: Shape, strides: Shape) -> list[int]:
    """The axes along which memory changes, those that lie far apart first."""
    axes = [n for n, extent in enumerate(shape) if extent > 1 and strides[n] != 0]
    return sorted(axes, key=lambda n: -strides[n])


def _dense(axes: Sequence[int], shape: Shape, strides: Shape) -> bool:
    """Whether they fill their memory without a gap."""
    rest = 1
    for n in reversed(axes):
        if strides[n] != rest:
            return False
        rest *= shape[n]
    return True


def contiguous(shape: Shape, strides: Shape) -> bool:
    """Whether elements lie in row-major order."""
    axes = [n for n, extent in enumerate(shape) if extent != 1]
    return 0 in shape or _dense(axes, shape, strides)


def overlaps(shape: Shape, strides: Shape) -> bool:
    """Whether windows share places. Symbolic sizes do not say; an expanded axis is none."""
    axes = [n for n, stride in enumerate(strides) if isinstance(stride, int) and stride]
    if 0 in shape or not all(isinstance(s, int) for s in (*shape, *strides)):
        return False
    return 1 + sum((shape[n] - 1) * strides[n] for n in axes) < math.prod(shape[n] for n in axes)


def memory(shape: Shape, strides: Shape) -> Shape:
    """The shape of a row-major variable over the same memory."""
    if contiguous(shape, strides):
        return shape
    axes = apart(shape, strides)
    if _dense(axes, shape, strides):
        return tuple([shape[n] for n in axes])
    return (1 + sum((shape[n] - 1) * strides[n] for n in axes),)


def placed(variable: Value, shape: Shape, strides: Shape) -> Value:
    """The tensor of `shape` whose elements lie `strides` apart in the variable."""
    if contiguous(shape, strides):
        return variable
    axes = axes_of(shape)
    order = apart(shape, strides)
    if _dense(order, shape, strides):
        return V.view(variable.name, variable, shape, [axes[n] for n in order])
    terms: list[Expr] = [E.Mul(axes[n], E.index(strides[n])) for n in order]
    return V.view(variable.name, variable, shape, [reduce(E.Add, terms)])


def row_major(shape: Shape) -> Shape:
    """The strides of elements in row-major order."""
    return tuple([math.prod(shape[n + 1 :]) for n in range(len(shape))])
