"""Eight ways in which the numbers of a tensor may lie in memory, as views of other tensors.

``step 2: x[i] = base[2 i]``, ``offset: x[i] = base[i + 2]``, ``stride 0: x[i, j] = base[0, j]``
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pullback.backends.host.exchange import box
from pullback.ir import expr as E
from pullback.ir.dtype import float64
from pullback.ir.expr import Axis, Expr
from pullback.ir.graph import Definition, Variable, read

Array = np.ndarray[Any, Any]
Place = tuple[tuple[int, ...], tuple[tuple[int, int], ...], bool]
"""Extents of the base; of each axis of the view (step, start); whether axes are reversed."""


def _transposed(shape: tuple[int, ...]) -> Place:
    return shape, ((1, 0),) * len(shape), True


def _narrowed(shape: tuple[int, ...]) -> Place:
    return tuple(n + 3 for n in shape), ((1, 0),) * len(shape), False


def _offset(shape: tuple[int, ...]) -> Place:
    return tuple(n + 2 for n in shape), ((1, 2),) * len(shape), False


def _repeated(shape: tuple[int, ...]) -> Place:
    return (1, *shape[1:]), ((0, 0), *(((1, 0),) * (len(shape) - 1))), False


def _stepped(shape: tuple[int, ...]) -> Place:
    return tuple(2 * n for n in shape), ((2, 0),) * len(shape), False


VIEWS: dict[str, Callable[[tuple[int, ...]], Place]] = {
    "transposed": _transposed,
    "narrowed": _narrowed,
    "stride 0": _repeated,
    "step 2": _stepped,
    "offset": _offset,
}
SIZES = {"size 0": 0, "size 1": 1}


class Layout:
    """A base variable, and a view of it that has `shape`."""

    def __init__(self, name: str, shape: tuple[int, ...], of: str) -> None:
        extents, places, back = VIEWS[name](shape) if shape else ((), (), False)
        self.base = Variable(of, tuple(reversed(extents)) if back else extents, float64)
        axes = [Axis(n, e) for n, e in enumerate(shape)]
        index: list[Expr] = [
            E.Add(E.Mul(a, E.index(step)), E.index(start))
            for a, (step, start) in zip(axes, places, strict=True)
        ]
        index = index[::-1] if back else index
        self.view = Definition(f"{of} view", shape, read(self.base, *index))
        grid = np.indices(shape)
        spots = [g * step + start for g, (step, start) in zip(grid, places, strict=True)]
        self.spots: tuple[Array, ...] = tuple(spots[::-1] if back else spots)

    def filled(self, array: Array, filler: float = np.nan) -> Array:
        """A base whose view shows `array` (where places are shared, its last elements)."""
        base = np.full(box(self.base), filler)
        base[self.spots] = array
        return base

    def gathered(self, gradient: Array) -> Array:
        """The gradient by the base, from that by the view."""
        total = np.zeros(box(self.base))
        np.add.at(total, self.spots, gradient)
        return total


def resized(arrays: Sequence[Array], size: int) -> list[Array]:
    """`arrays` with the first extent of the first one changed wherever it occurs."""
    first = next((a.shape[0] for a in arrays if a.ndim), None)
    return [_cut(a, first, size) for a in arrays]


def _cut(array: Array, extent: int | None, size: int) -> Array:
    return array[tuple(slice(size if n == extent else None) for n in array.shape)]
