"""Factors of a product that lie in rectangles of an array: what a GPU's copy engine reads.

``x[b, m, k]`` of 8 x 100 x 64 -> 100 rows of 64 from ``x + b * 6400`` on, 64 apart
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from pullback.algebra.bounds import in_bounds
from pullback.algebra.linear import Linear, linear
from pullback.backends.triton.product import Product, plain
from pullback.config import Ints
from pullback.ir import expr as E
from pullback.ir.expr import Axis, Expr, upper
from pullback.ir.graph import Value
from pullback.ir.kernel import Stage
from pullback.machine.machine import LINE

# Of a base, and between rows; source: NVIDIA, CUDA driver API, cuTensorMapEncodeTiled, as the next.
ALIGNED = 16  # bytes
FURTHEST = 2**31 - 1  # a coordinate


@dataclass(frozen=True, slots=True)
class Rectangle:
    """Rows of a source, each `stride` elements behind the one before, from `begin` on, plus so many
    elements for the coordinate of each axis of `batch`. `turned`: they run along the factor's first
    axis.
    """

    source: Value
    begin: int
    batch: tuple[tuple[int, int], ...]
    stride: int
    turned: bool


def rectangles(stage: Stage, product: Product) -> tuple[Rectangle | str, Rectangle | str]:
    """Where both factors lie; or why one lies in no rectangle."""
    left, right = (product.rows, product.terms), (product.terms, product.columns)
    return _rectangle(stage, product.left, left), _rectangle(stage, product.right, right)


def _rectangle(stage: Stage, factor: Expr, sides: Sequence[Ints]) -> Rectangle | str:
    take = factor.value if isinstance(factor, E.Cast) else factor
    if plain(factor) is None or not isinstance(take, E.Take):
        return "is computed, not read as it is"
    source, item = take.source, take.dtype.itemsize
    if take.dtype.is_float and item == 1:
        return "is of floats of 8 bits, which are widened as they are read"
    if take.dtype.name == "float64":
        return "is of float64, for which ptxas takes 30 registers more (sm_90)"
    extents = *source.shape, *stage.extents
    if not all(isinstance(e, int) for e in extents):
        return "has extents that a run brings"
    if not all(in_bounds(take)):
        return "is not proved to be read inside of its array"
    place = _place(take)
    wide = [(a, n) for a, n in place.terms if not (isinstance(a, Axis) and a.extent == 1)]
    strides = {a.number: n for a, n in wide if isinstance(a, Axis)}
    if len(strides) < len(wide):
        return "is read at places that are no sums of its axes"
    ends = [_stride(stage, strides, axes) for axes in sides]
    if 1 not in ends or min(ends) < 1:
        return "has no rows of neighbours in memory"
    own = {axis for axes in sides for axis in axes}
    batch = tuple((a, n) for a, n in sorted(strides.items()) if a not in own)
    turned = ends[1] != 1
    stride = ends[turned]
    apart = [n * item for n in (stride, place.const, *(n for _, n in batch))]
    wrong = [n for n in apart if n % ALIGNED]
    if stride < prod(upper(stage.extents[a]) for a in sides[0 if turned else 1]):
        return "has rows that overlap"
    if wrong:
        return f"lies {wrong[0]} bytes apart, no multiple of {ALIGNED}"
    if prod(map(upper, source.shape)) * item < LINE:
        return f"is an array of less than {LINE} bytes, which begins anywhere"
    if max(prod(upper(stage.extents[a]) for a in axes) for axes in sides) > FURTHEST:
        return f"has an axis of more than {FURTHEST} elements"
    return Rectangle(source, place.const, batch, stride, turned)


def _place(take: E.Take) -> Linear:
    """Where an element lies in a row-major array."""
    shape, place = take.source.shape, Linear()
    for n, at in enumerate(take.indices):
        place = place.plus(linear(at), prod(map(upper, shape[n + 1 :])))
    return place


def _stride(stage: Stage, strides: dict[int, int], axes: Ints) -> int:
    """Elements from one to the next along axes that run together; 0: they do not."""
    last = strides.get(axes[-1], 0)
    step = last
    for axis in reversed(axes):
        if strides.get(axis, 0) != step:
            return 0
        step *= upper(stage.extents[axis])
    return last
