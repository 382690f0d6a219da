"""Sorting. Short axes count who stands before whom; long ones merge, level by level.

Of two sorted runs A, B of width w, place p of the merged run takes `a` elements from A and p - a
from B, where `a` is found by bisection: n log^2 n steps, memory linear in n. Every level is the
same program, so it is compiled once. Stable; NaN last.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pullback.errors import Origin, UnsupportedError
from pullback.ir import expr as E
from pullback.ir.dtype import int8, int64
from pullback.ir.expr import Add, And, Axis, Cast, Expr, If, Less, Mul, Or
from pullback.ir.graph import Definition, Value, read
from pullback.tensor import elementwise as W
from pullback.tensor import indexing as X
from pullback.tensor import views as V
from pullback.tensor.control import loop
from pullback.tensor.dialect import spelled
from pullback.tensor.elementwise import axes_of, make
from pullback.tensor.tensor import Tensor, value_of
from pullback.tensor.trace import bind, current, realize

Order = Callable[[Expr, Expr], Expr]
COUNTED = 256  # elements up to which comparing all pairs is cheaper than merging


def _before(descending: bool) -> Order:
    """Whether `u` must stand before `v`; NaN stands after everything else."""

    def before(u: Expr, v: Expr) -> Expr:
        found: Expr = Less(v, u) if descending else Less(u, v)
        if not u.dtype.is_float:
            return found
        return Or(found, And(E.is_nan(v), E.logical_not(E.is_nan(u))))

    return before


def order_of(x: Value, axis: int, descending: bool) -> Value:
    """The places of the elements along `axis` in sorted order; long axes are sorted at once.

    Raises: UnsupportedError for a symbolic axis.
    """
    axis = V.normal_axis(axis, len(x.shape))
    size = x.shape[axis]
    if not isinstance(size, int):
        raise UnsupportedError(f"sorting along the symbolic axis {size}", origin=Origin.of_caller())
    keys: Value = W.astype(x, int8) if x.dtype.is_bool else x
    before = _before(descending)
    if size <= COUNTED:
        return _by_counting(keys, axis, size, before)
    return _by_merging(keys, axis, size, before)


def _by_counting(keys: Value, axis: int, size: int, before: Order) -> Definition:
    """``rank[i] = how many stand before i``, and the inverse of that."""
    shape = keys.shape
    axes = axes_of(shape)
    other = Axis(len(shape), size)
    there = list(axes)
    there[axis] = other
    mine, its = read(keys, *axes), read(keys, *there)
    tie = And(Less(other, axes[axis]), E.logical_not(before(mine, its)))
    earlier = Cast(Or(before(its, mine), tie), int64)
    rank = W.reduce("rank", shape, [size], earlier)
    hit = E.Equal(read(rank, *there), axes[axis])
    return W.reduce("order", shape, [size], If(hit, other, E.index(0)))


def _by_merging(keys: Value, axis: int, size: int, before: Order) -> Value:
    """Runs of one element merged until one is left, as a loop over levels.

    Carried are the places, the elements in that order, and the width of a run.
    """
    start = Tensor(make("order", keys.shape, axes_of(keys.shape)[axis]))
    elements = Tensor(W.copy(keys, "keys"))
    one = Tensor(bind(np.ones((), np.int64), "width"))
    if current() is None:
        realize([start, elements])
    levels = (size - 1).bit_length()

    def level(number: Any, carry: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        order, values, width = carry
        runs = _Runs(values.value, axis, read(width.value), size)
        splits = make("splits", values.shape, _bisection(runs, levels, before))
        merged = [Tensor(_merged(splits, o, runs, before)) for o in (order.value, values.value)]
        doubled = width * 2
        if current() is None:
            realize([*merged, doubled])
        return merged[0], merged[1], doubled

    order = loop(levels, level, (start, elements, one))[0]
    return W.copy(order.value, "order", stop=True)


class _Runs:
    """Two neighbouring sorted runs, as one place of the merged run sees them."""

    def __init__(self, values: Value, axis: int, width: Expr, size: int) -> None:
        self.values = values
        self.axis = axis
        self.axes = axes_of(values.shape)
        here = self.axes[axis]
        self.base = And(here, E.negate(Add(width, width)))
        self.place = E.subtract(here, self.base)
        rest = E.subtract(E.index(size), self.base)
        self.first = E.minimum(rest, width)
        over = E.subtract(rest, width)
        self.second = E.minimum(E.maximum(over, E.index(0)), width)
        self.middle = Add(self.base, width)
        self.last = E.index(size - 1)

    def at(self, source: Value, start: Expr, offset: Expr) -> Expr:
        """Element `offset` of a run of `source`; a place outside is moved in, its value unused."""
        indices = list(self.axes)
        indices[self.axis] = E.maximum(E.minimum(Add(start, offset), self.last), E.index(0))
        return read(source, *indices)


def _merged(splits: Value, source: Value, runs: _Runs, before: Order) -> Definition:
    """`source` with two runs made one, everywhere."""
    a = read(splits, *runs.axes)
    b = E.subtract(runs.place, a)
    left = runs.at(runs.values, runs.base, a)
    right = runs.at(runs.values, runs.middle, b)
    done = E.logical_not(Less(b, runs.second))
    from_first = And(Less(a, runs.first), Or(done, E.logical_not(before(right, left))))
    body = If(from_first, runs.at(source, runs.base, a), runs.at(source, runs.middle, b))
    return make("merged", source.shape, body)


def _bisection(runs: _Runs, levels: int, before: Order) -> Expr:
    """How many elements of the first run stand before this place: bits, the highest first."""
    most = E.minimum(runs.place, runs.first)
    taken: Expr = E.maximum(E.subtract(runs.place, runs.second), E.index(0))
    for level in reversed(range(levels)):
        bit = E.index(1 << level)
        more = Add(taken, bit)
        left = runs.at(runs.values, runs.base, E.subtract(more, E.index(1)))
        right = runs.at(runs.values, runs.middle, E.subtract(runs.place, more))
        room = E.logical_not(Less(most, more))
        fits = And(room, E.logical_not(before(right, left)))
        taken = Add(taken, Mul(bit, Cast(fits, int64)))
    return taken


@spelled
def argsort(x: Any, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The places of the elements in sorted order; stable, NaN last."""
    return Tensor(order_of(value_of(x), axis, descending))


@spelled
def sort(x: Any, *, axis: int = -1, descending: bool = False, stable: bool = True) -> Tensor:
    """The elements in sorted order, NaN last."""
    value = value_of(x)
    return Tensor(X.take_along(value, order_of(value, axis, descending), axis))


@spelled
def topk(x: Any, k: int, *, axis: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
    """The `k` largest (smallest) elements in order, and their places."""
    value = value_of(x)
    n = V.normal_axis(axis, len(value.shape))
    order = order_of(value, n, largest)
    extent = value.shape[n]
    if isinstance(extent, int) and k > extent:
        raise V.fail(f"the {k} largest of {extent} elements")
    places = V.strided(order, n, 0, 1, k)
    return Tensor(X.take_along(value, places, n)), Tensor(places)
