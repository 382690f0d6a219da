"""Views: definitions whose body is one read. They cost nothing once fused.

``flat[i] = x[i // 3, i % 3]``
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import SupportsIndex

import numpy as np

from pullback.errors import AxisError, ShapeError
from pullback.ir import expr as E
from pullback.ir.dtype import int64
from pullback.ir.expr import Dim, Expr, Extent, FloorDiv, If, Less, Mod, Mul
from pullback.ir.graph import Definition, Value, read
from pullback.tensor.values.elementwise import (
    Scalar,
    Shape,
    axes_of,
    cast,
    common_dtype,
    literal,
    make,
    show,
)

MOST = int64.range()[1]
FAR = 2**62  # no axis is so long, and a place so far away has a number


def fail(what: str, help: str = "", *, code: str = "") -> ShapeError:
    """A ShapeError at the user's expression."""
    return ShapeError(what, help=help, code=code)


def whole(value: object, what: str, least: int | None = None) -> int:
    """An argument that is a whole number. Raises: ShapeError where it is none, or too small."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise fail(f"{what} {value!r} is no whole number", code="E360")
    try:
        number = operator.index(value)
    except TypeError:  # an array of another kind, a type
        raise fail(f"{what} {value!r} is no whole number", code="E360") from None
    if not -MOST <= number <= MOST:
        raise fail(f"{what} is an integer of {number.bit_length()} bits", code="E123")
    if least is not None and number < least:
        raise fail(f"{what} {number} is less than {least}", code="E123")
    return number


def diagonal(k: object) -> int:
    """The number of a diagonal; beyond every axis all are alike. Raises: ShapeError."""
    near = max(-FAR, min(k, FAR)) if isinstance(k, int | np.integer) else k
    return whole(near, "the diagonal")


def normal_axis(axis: int, rank: int, *, what: str = "axis") -> int:
    """`axis` counted from the front. Raises: AxisError where it is out of range."""
    axis = whole(axis, what)
    if not -rank <= axis < rank:
        raise AxisError(f"{what} {axis} of a tensor with {rank} axes")
    return axis % rank


def normal_axes(axis: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Axes counted from the front, in order; None is all of them.

    Raises: AxisError where one is out of range, ShapeError where one is named twice.
    """
    if axis is None:
        return tuple(range(rank))
    listed = tuple(axis) if isinstance(axis, Iterable) else (axis,)
    normal = tuple(normal_axis(a, rank) for a in listed)
    if len(set(normal)) != len(normal):
        raise fail(f"axes {listed} name one axis twice", code="E113")
    return tuple(sorted(normal))


def view(name: str, x: Value, shape: Sequence[Extent], indices: Sequence[Expr | int]) -> Definition:
    """``out[..] = x[indices]``"""
    return make(name, shape, read(x, *indices))


# --- reshape -------------------------------------------------------------------------------------


def reshape(x: Value, shape: Sequence[Extent]) -> Definition:
    """The same elements in row-major order; one extent may be -1.

    Raises: ShapeError where the counts differ.
    """
    new = _infer(x.shape, tuple(shape))
    if new == x.shape:
        return view("reshape", x, new, axes_of(new))
    if 0 in new:
        return make("reshape", new, E.const(0, x.dtype))
    groups = _groups(x.shape, new)
    axes = axes_of(new)
    indices: list[Expr | int] = []
    for old, at in groups:
        indices += _split([x.shape[o] for o in old], [(axes[a], new[a]) for a in at])
    return view("reshape", x, new, indices)


def _infer(old: Shape, new: Shape) -> Shape:
    """`new` with its -1 worked out."""
    unknown = [n for n, e in enumerate(new) if e == -1]
    if len(unknown) > 1 or any(isinstance(e, int) and e < -1 for e in new):
        raise fail(
            f"cannot reshape {show(old)} to {show(new)}", "only one extent may be -1", code="E114"
        )
    if unknown:
        rest = [e for e in new if e != -1]
        new = tuple(_quotient(old, rest, new) if e == -1 else e for e in new)
    left, right = _count(old), _count(new)
    if left != right:
        raise fail(
            f"cannot reshape {show(old)} to {show(new)}: {left[0]} and {right[0]} elements",
            code="E114",
        )
    return new


def _count(shape: Sequence[Extent]) -> tuple[int, tuple[str, ...]]:
    """The product: a number, and the names of symbolic factors."""
    number = math.prod(e for e in shape if isinstance(e, int))
    return number, tuple(sorted(e.name for e in shape if isinstance(e, Dim)))


def _quotient(old: Shape, rest: Sequence[Extent], new: Shape) -> Extent:
    left: list[Extent] = list(old)
    others: list[Extent] = []
    for extent in rest:
        if isinstance(extent, Dim) and extent in left:
            left.remove(extent)
        else:
            others.append(extent)
    symbols = [e for e in left if isinstance(e, Dim)]
    top, bottom = _count(left)[0], _count(others)[0]
    if any(isinstance(e, Dim) for e in others) or bottom == 0 or top % bottom:
        raise fail(f"cannot reshape {show(old)} to {show(new)}", code="E114")
    if not symbols:
        return top // bottom
    if len(symbols) == 1 and top == bottom:
        return symbols[0]
    raise fail(
        f"cannot reshape {show(old)} to {show(new)}: an extent would be a product of {symbols}",
        "symbolic extents stay axes of their own",
        code="E120",
    )


def _groups(old: Shape, new: Shape) -> list[tuple[list[int], list[int]]]:
    """Axes of `old` and `new` matched in the smallest groups with equal products."""
    groups: list[tuple[list[int], list[int]]] = []
    o = n = 0
    while o < len(old) or n < len(new):
        left: list[int] = []
        right: list[int] = []
        a, b = _Product(old), _Product(new)
        while not left or not right or a.key != b.key:
            if o < len(old) and (n >= len(new) or a.number <= b.number or not left):
                o = a.take(o, left)
            elif n < len(new):
                n = b.take(n, right)
            elif a.key == b.key:
                break
            else:
                raise fail(
                    f"cannot reshape {show(old)} to {show(new)}",
                    "symbolic extents move",
                    code="E120",
                )
        groups.append((left, right))
    return groups


class _Product:
    """The product of some axes of a shape; symbolic ones are counted at a large prime."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.number = 1
        self.dims: tuple[Dim, ...] = ()

    @property
    def key(self) -> tuple[int, tuple[Dim, ...]]:
        return self.number, self.dims

    def take(self, position: int, into: list[int]) -> int:
        """Multiply one more axis in; the next position."""
        extent = self.shape[position]
        into.append(position)
        self.number *= extent if isinstance(extent, int) else 1_000_003
        if isinstance(extent, Dim):
            self.dims += (extent,)
        return position + 1


def _split(old: Sequence[Extent], axes: Sequence[tuple[Expr, Extent]]) -> list[Expr | int]:
    """Indices into a group of old axes for one group of new ones. ``[i // 3, i % 3]``"""
    wanted = [n for n, e in enumerate(old) if e != 1]
    used = [(a, e) for a, e in axes if e != 1]
    indices: list[Expr | int] = [0] * len(old)
    if len(wanted) == 1 and len(used) == 1:
        indices[wanted[0]] = used[0][0]
        return indices
    flat = linear(used)
    stride: Expr | None = None
    for place, n in enumerate(reversed(wanted)):
        rest = flat if stride is None else FloorDiv(flat, stride)
        first = place == len(wanted) - 1
        extent = E.extent_expr(old[n])
        indices[n] = rest if first else Mod(rest, extent)
        stride = extent if stride is None else product([stride, extent])
    return indices


def linear(axes: Sequence[tuple[Expr, Extent]]) -> Expr:
    """The row-major position. ``i * 3 + j``"""
    position: Expr | None = None
    stride: Expr = E.index(1)
    for axis, extent in reversed(axes):
        term = axis if position is None else Mul(axis, stride)
        position = term if position is None else E.Add(term, position)
        stride = product([stride, E.extent_expr(extent)])
    return E.index(0) if position is None else position


def product(factors: Sequence[Expr]) -> Expr:
    """A product of extents, literals folded."""
    number = math.prod(int(f.value) for f in factors if isinstance(f, E.Const))
    symbolic: Expr | None = None
    for factor in factors:
        if isinstance(factor, E.Const):
            continue
        symbolic = factor if symbolic is None else Mul(symbolic, factor)
    if symbolic is None:
        return E.index(number)
    return symbolic if number == 1 else Mul(symbolic, E.index(number))


# --- axes moved, added, removed ------------------------------------------------------------------


def permute(x: Value, order: Sequence[int]) -> Definition:
    """Axis n of the result is axis ``order[n]`` of `x`."""
    rank = len(x.shape)
    order = tuple(normal_axis(a, rank) for a in order)
    if sorted(order) != list(range(rank)):
        raise fail(f"{tuple(order)} does not name each of {rank} axes once", code="E113")
    shape = [x.shape[a] for a in order]
    axes = axes_of(shape)
    return view("permute_dims", x, shape, [axes[order.index(n)] for n in range(rank)])


def expand_dims(x: Value, axis: int | Sequence[int]) -> Definition:
    """New axes of extent one at the places `axis` of the result."""
    listed = tuple(axis) if isinstance(axis, Iterable) else (axis,)
    rank = len(x.shape) + len(listed)
    new = normal_axes(listed, rank)
    rest = iter(x.shape)
    shape = [1 if n in new else next(rest) for n in range(rank)]
    axes = axes_of(shape)
    return view("expand_dims", x, shape, [a for n, a in enumerate(axes) if n not in new])


def squeeze(x: Value, axis: int | Sequence[int] | None) -> Definition:
    """Axes of extent one removed. Raises: ShapeError where one has another extent."""
    rank = len(x.shape)
    gone = normal_axes(axis, rank)
    if axis is None:
        gone = tuple(n for n in gone if x.shape[n] == 1)
    wrong = [n for n in gone if x.shape[n] != 1]
    if wrong:
        raise fail(
            f"cannot squeeze axis {wrong[0]} of {show(x.shape)}: its extent is not 1", code="E159"
        )
    shape = [e for n, e in enumerate(x.shape) if n not in gone]
    rest = iter(axes_of(shape))
    return view("squeeze", x, shape, [0 if n in gone else next(rest) for n in range(rank)])


def flip(x: Value, axis: int | Sequence[int] | None) -> Definition:
    """``out[i] = x[n - 1 - i]``"""
    over = normal_axes(axis, len(x.shape))
    axes = axes_of(x.shape)
    for n in over:
        last = E.Add(E.extent_expr(x.shape[n]), E.index(-1))
        axes[n] = E.subtract(_folded(last), axes[n])
    return view("flip", x, x.shape, axes)


def _folded(sum_: E.Add) -> Expr:
    left, right = sum_.left, sum_.right
    if isinstance(left, E.Const) and isinstance(right, E.Const):
        return E.index(int(left.value) + int(right.value))
    return sum_


def roll(x: Value, shift: Sequence[int], axis: Sequence[int]) -> Definition:
    """``out[i] = x[(i - shift) % n]``"""
    axes = axes_of(x.shape)
    for amount, a in zip(shift, axis, strict=True):
        n = normal_axis(a, len(x.shape))
        axes[n] = Mod(E.Add(axes[n], E.index(-amount)), E.extent_expr(x.shape[n]))
    return view("roll", x, x.shape, axes)


def strided(x: Value, axis: int, start: int, step: int, count: int) -> Definition:
    """``out[i] = x[start + step * i]`` along one axis, in bounds by the caller's word."""
    shape = tuple(count if n == axis else e for n, e in enumerate(x.shape))
    axes = axes_of(shape)
    axes[axis] = affine(axes[axis], start, step)
    return view("slice", x, shape, axes)


def affine(axis: Expr, start: int, step: int) -> Expr:
    """``start + step * axis``"""
    scaled = axis if step == 1 else Mul(axis, E.index(step))
    return scaled if start == 0 else E.Add(scaled, E.index(start))


# --- pieces put together -------------------------------------------------------------------------


def pick(position: Expr, ends: Sequence[int], leaf: Callable[[int], Expr], lo: int = 0) -> Expr:
    """Which piece `position` lies in: a balanced tree of guards over the pieces' ends."""
    if len(ends) == 1:
        return leaf(lo)
    half = len(ends) // 2
    left = pick(position, ends[:half], leaf, lo)
    right = pick(position, ends[half:], leaf, lo + half)
    return If(Less(position, E.index(ends[half - 1])), left, right)


def concat(values: Sequence[Value], axis: int) -> Definition:
    """Pieces of extents that fit one after the other along `axis`."""
    first = values[0]
    rank = len(first.shape)
    axis = normal_axis(axis, rank)
    sizes: list[int] = []
    for value in values:
        size = value.shape[axis]
        if not isinstance(size, int):
            raise fail(f"cannot join {show(value.shape)} on its symbolic axis {axis}", code="E120")
        sizes.append(size)
    kind = common_dtype(values)
    pieces = [(v, s) for v, s in zip(values, sizes, strict=True) if s] or [(first, 0)]
    ends = list(accumulate(s for _, s in pieces))
    shape = tuple(ends[-1] if n == axis else e for n, e in enumerate(first.shape))
    axes = axes_of(shape)

    def leaf(n: int) -> Expr:
        value, size = pieces[n]
        indices = list(axes)
        indices[axis] = affine(axes[axis], size - ends[n], 1)
        return cast(read(value, *indices), kind)

    return make("concat", shape, pick(axes[axis], ends, leaf))


def stack(values: Sequence[Value], axis: int) -> Definition:
    """Pieces of one shape side by side along a new axis."""
    first = values[0]
    axis = normal_axis(axis, len(first.shape) + 1)
    kind = common_dtype(values)
    shape = (*first.shape[:axis], len(values), *first.shape[axis:])
    axes = axes_of(shape)
    rest = [a for n, a in enumerate(axes) if n != axis]

    def leaf(n: int) -> Expr:
        return cast(read(values[n], *rest), kind)

    return make("stack", shape, pick(axes[axis], range(1, len(values) + 1), leaf))


def pad(x: Value, widths: Sequence[tuple[int, int]], value: Scalar) -> Definition:
    """``out[i] = x[i - before] if before <= i < before + n else value``; x is not read outside."""
    if len(widths) != len(x.shape):
        raise fail(f"pad of {show(x.shape)} with {len(widths)} pairs of widths", code="E134")
    shape: list[Extent] = []
    for extent, (before, after) in zip(x.shape, widths, strict=True):
        if before < 0 or after < 0:
            raise fail(f"pad with a negative width {(before, after)}", "slice instead", code="E123")
        if (before or after) and not isinstance(extent, int):
            raise fail(f"cannot pad the symbolic axis {extent}", code="E120")
        shape.append(extent + before + after if isinstance(extent, int) else extent)
    axes = axes_of(shape)
    indices = list(axes)
    guards: list[Expr] = []
    for n, (extent, (before, after)) in enumerate(zip(x.shape, widths, strict=True)):
        indices[n] = affine(axes[n], -before, 1)
        if before:
            guards.append(E.logical_not(Less(axes[n], E.index(before))))
        if after and isinstance(extent, int):
            guards.append(Less(axes[n], E.index(before + extent)))
    body: Expr = read(x, *indices)
    if guards:
        body = If(conjunction(guards), body, literal(value, x.dtype))
    return make("pad", shape, body)


def conjunction(guards: Sequence[Expr]) -> Expr:
    """``a & b & ..``"""
    both = guards[0]
    for guard in guards[1:]:
        both = E.And(both, guard)
    return both


def tile(x: Value, counts: Sequence[int]) -> Definition:
    """The whole repeated: ``out[i] = x[i % n]``"""
    counts = [whole(c, "tile: the count", 0) for c in counts]
    lead = max(0, len(counts) - len(x.shape))
    old: Shape = (1,) * lead + x.shape
    counts = (*(1,) * (len(old) - len(counts)), *counts)
    shape: list[Extent] = []
    indices: list[Expr | int] = []
    for n, (extent, count) in enumerate(zip(old, counts, strict=True)):
        if count != 1 and not isinstance(extent, int):
            raise fail(f"cannot tile the symbolic axis {extent}", code="E120")
        shape.append(extent * count if isinstance(extent, int) else extent)
        axis = E.Axis(n, shape[-1])
        indices.append(axis if count == 1 else Mod(axis, E.extent_expr(extent)))
    return view("tile", x, shape, indices[lead:])


def repeat(x: Value, count: int, axis: int) -> Definition:
    """Each element repeated: ``out[i] = x[i // count]``"""
    axis = normal_axis(axis, len(x.shape))
    count = whole(count, "repeat: the count", 0)
    extent = x.shape[axis]
    if not isinstance(extent, int):
        raise fail(f"cannot repeat the symbolic axis {extent}", code="E120")
    shape = [extent * count if n == axis else e for n, e in enumerate(x.shape)]
    axes = axes_of(shape)
    axes[axis] = FloorDiv(axes[axis], E.index(count))
    return view("repeat", x, shape, axes)


def triangle(x: Value, k: int, *, upper: bool) -> Definition:
    """``x[i, j] if j - i <= k else 0`` (upper: ``j - i >= k``)."""
    if len(x.shape) < 2:
        raise fail(f"a triangle of {show(x.shape)}: two axes are needed", code="E111")
    k = diagonal(k)
    axes = axes_of(x.shape)
    row, column = axes[-2], axes[-1]
    edge = affine(row, k, 1)
    keep = E.logical_not(Less(column, edge)) if upper else E.logical_not(Less(edge, column))
    zero = E.const(0, x.dtype)
    return make("triu" if upper else "tril", x.shape, If(keep, read(x, *axes), zero))
