"""Diagonals, stacks, pieces and places: views and what is put together of them.

``diagonal(x)[.., i] = x[.., i, i + k]``
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pullback.ir import dtype as D
from pullback.ir import expr as E
from pullback.ir.expr import Axis, Expr, Extent, If
from pullback.ir.graph import Value, read
from pullback.tensor.face.dialect import spelled
from pullback.tensor.face.tensor import Tensor, optional_dtype, shape_of, value_of
from pullback.tensor.library import creation as C
from pullback.tensor.library import maths as M
from pullback.tensor.library import ops as O
from pullback.tensor.library.scalars import value_tensor
from pullback.tensor.record.trace import bind
from pullback.tensor.shaped import shaped
from pullback.tensor.values import elementwise as W
from pullback.tensor.values import indexing as X
from pullback.tensor.values import views as V
from pullback.tensor.values.elementwise import axes_of, make, show

# --- diagonals -----------------------------------------------------------------------------------


def _extents(x: Value, *axes: int) -> list[int]:
    """Extents that have to be numbers. Raises: ShapeError for a symbolic one."""
    extents: list[int] = []
    for n in axes:
        extent = x.shape[n]
        if not isinstance(extent, int):
            raise V.fail(f"axis {n} of {show(x.shape)} is symbolic", code="E120")
        extents.append(extent)
    return extents


def _two_axes(rank: int, axis1: int, axis2: int) -> tuple[int, int]:
    first, second = V.normal_axis(axis1, rank), V.normal_axis(axis2, rank)
    if first == second:
        raise V.fail(f"axes {axis1} and {axis2} are one", code="E113")
    return first, second


def diagonal(x: Any, *, offset: int = 0, axis1: int = -2, axis2: int = -1) -> Tensor:
    """``out[.., i] = x[.., i, i + offset]``: the diagonal of two axes, as a last axis.

    Shapes: x[.., m, n] -> [.., k], k what fits of the diagonal.
    Raises: ShapeError for one axis named twice, or a symbolic one.

    Example:
        >>> pb.diagonal(pb.tensor([[1.0, 2.0], [3.0, 4.0]]))
        Tensor([1., 4.], dtype=float32)
    """
    value = value_of(x)
    first, second = _two_axes(len(value.shape), axis1, axis2)
    offset = V.whole(offset, "the diagonal")
    rows, columns = _extents(value, first, second)
    count = max(0, min(rows - max(-offset, 0), columns - max(offset, 0)))
    kept = [n for n in range(len(value.shape)) if n not in (first, second)]
    shape = (*(value.shape[n] for n in kept), count)
    axes = axes_of(shape)
    if count == 0:
        return Tensor(make("diagonal", shape, E.const(0, value.dtype)))
    indices: dict[int, Expr] = dict(zip(kept, axes, strict=False))
    indices[first] = V.affine(axes[-1], max(-offset, 0), 1)
    indices[second] = V.affine(axes[-1], max(offset, 0), 1)
    return Tensor(V.view("diagonal", value, shape, [indices[n] for n in range(len(indices))]))


def diag_embed(x: Any, *, offset: int = 0, axis1: int = -2, axis2: int = -1) -> Tensor:
    """``out[.., i, j] = x[.., i] if j == i + offset else 0``: the last axis as a diagonal.

    ``pb.diag_embed(pb.ones(3))`` is ``pb.eye(3)``.

    Shapes: x[.., n] -> [.., n + |offset|, n + |offset|]
    Raises: ShapeError for one axis named twice.

    Example:
        >>> pb.diag_embed(pb.ones((5, 2))).shape
        (5, 2, 2)
    """
    value = value_of(x)
    if not value.shape:
        raise V.fail("diag_embed of a tensor without axes", code="E111")
    rank = len(value.shape) + 1
    first, second = _two_axes(rank, axis1, axis2)
    offset = V.whole(offset, "the diagonal")
    (extent,) = _extents(value, -1)
    size = extent + abs(offset)
    rest = iter(value.shape[:-1])
    shape = tuple(size if n in (first, second) else next(rest) for n in range(rank))
    axes = axes_of(shape)
    row, column = axes[first], axes[second]
    others = [a for n, a in enumerate(axes) if n not in (first, second)]
    place = V.affine(row if offset >= 0 else column, 0, 1)
    hit = E.Equal(column, V.affine(row, offset, 1))
    inside = E.minimum(place, E.index(max(extent - 1, 0)))
    zero = E.const(0, value.dtype)
    body = If(hit, read(value, *others, inside), zero) if extent else zero
    return Tensor(make("diag_embed", shape, body))


def diag(x: Any, *, k: int = 0) -> Tensor:
    """A vector as a diagonal of a matrix, or the diagonal of a matrix.

    ``pb.diag(pb.diag(x))`` has what x has on its diagonal.

    Shapes: x[n] -> [n + |k|, n + |k|]; x[m, n] -> [i]
    Raises: ShapeError for another number of axes.

    Example:
        >>> pb.diag(pb.tensor([1.0, 2.0])).tolist()
        [[1.0, 0.0], [0.0, 2.0]]
    """
    rank = len(value_of(x).shape)
    if rank not in (1, 2):
        raise V.fail(f"diag of {show(value_of(x).shape)}: one axis or two", code="E111")
    return diag_embed(x, offset=k) if rank == 1 else diagonal(x, offset=k)


def diagflat(x: Any, *, k: int = 0) -> Tensor:
    """``diag(ravel(x))``: all elements on the diagonal of a matrix.

    Shapes: x[..] -> [n + |k|, n + |k|] of n elements.

    Example:
        >>> pb.diagflat(pb.tensor([1.0, 2.0])).tolist()
        [[1.0, 0.0], [0.0, 2.0]]
    """
    return diag_embed(ravel(x), offset=k)


def trace(x: Any, *, offset: int = 0, axis1: int = -2, axis2: int = -1, dtype: Any = None) -> Any:
    """``sum[i] x[.., i, i + offset]``

    Shapes: x[.., m, n] -> [..]

    Example:
        >>> pb.trace(pb.tensor([[1.0, 2.0], [3.0, 4.0]]))
        Tensor(5., dtype=float32)
    """
    return O.sum(diagonal(x, offset=offset, axis1=axis1, axis2=axis2), axis=-1, dtype=dtype)


# --- axes ----------------------------------------------------------------------------------------


def swapaxes(x: Any, axis1: int, axis2: int) -> Tensor:
    """Two axes in each other's place.

    Raises: ShapeError for an axis that is not there.

    Example:
        >>> pb.swapaxes(pb.ones((2, 3, 4)), 0, 2).shape
        (4, 3, 2)
    """
    value = value_of(x)
    rank = len(value.shape)
    first, second = V.normal_axis(axis1, rank), V.normal_axis(axis2, rank)
    order = list(range(rank))
    order[first], order[second] = second, first
    return Tensor(V.permute(value, order))


def ravel(x: Any) -> Tensor:
    """The elements in row-major order along one axis.

    Shapes: x[..] -> [n]

    Example:
        >>> pb.ravel(pb.ones((2, 3))).shape
        (6,)
    """
    return Tensor(V.reshape(value_of(x), (-1,)))


@spelled
def flatten(x: Any, start_axis: int = 0, end_axis: int = -1) -> Tensor:
    """Axes from `start_axis` to `end_axis` as one.

    Raises: ShapeError where the first comes after the last.

    Example:
        >>> pb.flatten(pb.ones((2, 3, 4)), 1).shape
        (2, 12)
    """
    value = value_of(x)
    if not value.shape:
        return ravel(x)
    first, last = (V.normal_axis(a, len(value.shape)) for a in (start_axis, end_axis))
    if first > last:
        raise V.fail(f"flatten from axis {first} to {last}", code="E124")
    inner = V.reshape(value, (*value.shape[:first], *_joined(value.shape, first, last)))
    return Tensor(inner)


def _joined(shape: Sequence[Extent], first: int, last: int) -> tuple[Extent, ...]:
    group = shape[first : last + 1]
    one: Extent = group[0] if len(group) == 1 else -1
    if all(isinstance(e, int) for e in group):
        one = math.prod(e for e in group if isinstance(e, int))
    return (one, *shape[last + 1 :])


@spelled
def unflatten(x: Any, axis: int, sizes: Sequence[int]) -> Tensor:
    """One axis as several of these extents, one of which may be -1.

    Raises: ShapeError where their product is not the extent.

    Example:
        >>> pb.unflatten(pb.ones((2, 6)), 1, (2, 3)).shape
        (2, 2, 3)
    """
    value = value_of(x)
    n = V.normal_axis(axis, len(value.shape))
    new = list(shape_of(sizes, -1))
    (extent,) = _extents(value, n)
    known = math.prod(e for e in new if isinstance(e, int) and e != -1)
    if new.count(-1) == 1 and known and extent % known == 0:
        new[new.index(-1)] = extent // known
    if -1 in new or math.prod(e for e in new if isinstance(e, int)) != extent:
        raise V.fail(f"an axis of {extent} as {show(tuple(new))}", code="E114")
    return Tensor(V.reshape(value, (*value.shape[:n], *new, *value.shape[n + 1 :])))


def atleast_1d(x: Any) -> Tensor:
    """`x` with one axis at least.

    Example:
        >>> pb.atleast_1d(pb.tensor(2.0)).shape
        (1,)
    """
    return value_tensor(x) if value_of(x).shape else O.reshape(x, (1,))


def atleast_2d(x: Any) -> Tensor:
    """`x` with two axes at least: of a vector a row.

    Example:
        >>> pb.atleast_2d(pb.ones(3)).shape
        (1, 3)
    """
    vector = atleast_1d(x)
    return vector if vector.ndim > 1 else O.expand_dims(vector, 0)


def atleast_3d(x: Any) -> Tensor:
    """`x` with three axes at least: a vector between two, a matrix before one.

    Example:
        >>> pb.atleast_3d(pb.ones(3)).shape
        (1, 3, 1)
    """
    matrix = atleast_2d(x)
    return matrix if matrix.ndim > 2 else O.expand_dims(matrix, -1)


def broadcast_shapes(*shapes: Any) -> tuple[Extent, ...]:
    """The shape that all stretch to, aligned at the end.

    Raises: ShapeError where they do not fit.

    Example:
        >>> pb.broadcast_shapes((3,), (2, 1))
        (2, 3)
    """
    return W.broadcast_shapes([shape_of(s) for s in shapes])


def rot90(x: Any, k: int = 1, axes: Sequence[int] = (0, 1)) -> Tensor:
    """The plane of two axes turned `k` times by a quarter, the first axis towards the second.

    Raises: ShapeError for other than two axes.

    Example:
        >>> pb.rot90(pb.tensor([[1, 2], [3, 4]])).tolist()
        [[2, 4], [1, 3]]
    """
    value = value_of(x)
    if len(axes) != 2:
        raise V.fail(f"rot90 in the plane of axes {tuple(axes)}", code="E134")
    first, second = _two_axes(len(value.shape), axes[0], axes[1])
    turns = V.whole(k, "rot90: the number of turns") % 4
    if turns == 0:
        return Tensor(W.copy(value, "rot90"))
    if turns == 2:
        return Tensor(V.flip(value, (first, second)))
    if turns == 1:
        return swapaxes(Tensor(V.flip(value, second)), first, second)
    return Tensor(V.flip(swapaxes(Tensor(value), first, second).value, second))


# --- put together --------------------------------------------------------------------------------


@shaped("*arrays[...]")
def vstack(arrays: Sequence[Any]) -> Tensor:
    """Rows below each other: `concat` along the first axis of what has two at least.


    Example:
        >>> pb.vstack([pb.ones(2), pb.zeros(2)]).tolist()
        [[1.0, 1.0], [0.0, 0.0]]
    """
    return O.concat([atleast_2d(a) for a in arrays], axis=0)


@shaped("*arrays[...]")
def hstack(arrays: Sequence[Any]) -> Tensor:
    """Side by side: `concat` along the second axis, of vectors along the first.

    Example:
        >>> pb.hstack([pb.ones(2), pb.zeros(1)])
        Tensor([1., 1., 0.], dtype=float32)
    """
    pieces = [atleast_1d(a) for a in arrays]
    return O.concat(pieces, axis=0 if pieces and pieces[0].ndim == 1 else 1)


@shaped("*arrays[...]")
def dstack(arrays: Sequence[Any]) -> Tensor:
    """`concat` along the third axis of what has three at least.

    Example:
        >>> pb.dstack([pb.ones(2), pb.zeros(2)]).shape
        (1, 2, 2)
    """
    return O.concat([atleast_3d(a) for a in arrays], axis=2)


@shaped("*arrays[...]")
def column_stack(arrays: Sequence[Any]) -> Tensor:
    """Vectors as columns, and matrices, side by side.

    Example:
        >>> pb.column_stack([pb.ones(2), pb.zeros(2)]).tolist()
        [[1.0, 0.0], [1.0, 0.0]]
    """
    pieces = [atleast_1d(a) for a in arrays]
    return O.concat([O.expand_dims(p, -1) if p.ndim == 1 else p for p in pieces], axis=1)


@shaped("*arrays[_, _] or [_] or []")
def block_diag(*arrays: Any) -> Tensor:
    """Matrices along the diagonal, zeros elsewhere; a vector is a row.


    Example:
        >>> pb.block_diag(pb.ones((1, 2)), pb.ones((2, 1))).tolist()
        [[1.0, 1.0, 0.0], [0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]
    """
    pieces = [atleast_2d(a).value for a in arrays]
    widths = [_extents(p, 1)[0] for p in pieces]
    kind = W.common_dtype(pieces)
    rows = []
    for n, piece in enumerate(pieces):
        around = ((0, 0), (sum(widths[:n]), sum(widths[n + 1 :])))
        rows.append(V.pad(W.astype(piece, kind), around, 0))
    if not rows:
        raise V.fail("block_diag of nothing", code="E118")
    return Tensor(V.concat(rows, 0))


@shaped("*arrays[_]")
def cartesian_prod(*arrays: Any) -> Tensor:
    """Every combination of elements, one of each vector, the last fastest.


    Example:
        >>> pb.cartesian_prod(pb.tensor([1, 2]), pb.tensor([5, 6])).tolist()
        [[1, 5], [1, 6], [2, 5], [2, 6]]
    """
    if len(arrays) == 1:
        return value_tensor(arrays[0])
    grid = C.meshgrid(*arrays, indexing="ij")
    return O.stack([ravel(g) for g in grid], axis=1)


def combinations(x: Any, r: int = 2, *, with_replacement: bool = False) -> Tensor:
    """All ways to take `r` elements of a vector, in order.

    Shapes: x[n] -> [c, r]
    Raises: ShapeError for other than a vector.

    Example:
        >>> pb.combinations(pb.tensor([1, 2, 3])).tolist()
        [[1, 2], [1, 3], [2, 3]]
    """
    value = value_of(x)
    if len(value.shape) != 1:
        raise V.fail(f"combinations of {show(value.shape)}: one axis", code="E111")
    r = V.whole(r, "combinations: r", 0)
    (extent,) = _extents(value, 0)
    ways = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    places = np.array(list(ways(range(extent), r)), np.int64).reshape(-1, r)
    return Tensor(X.take(value, Tensor(bind(places, "places")).value, 0))


# --- pieces --------------------------------------------------------------------------------------


def _pieces(x: Value, axis: int, cuts: Sequence[tuple[int, int]]) -> list[Tensor]:
    lead: list[X.Part] = [slice(None)] * axis
    return [Tensor(X.index(x, [*lead, slice(a, b)])) for a, b in cuts]


@spelled
def tensor_split(x: Any, sections: int | Sequence[int], axis: int = 0) -> list[Tensor]:
    """Pieces of nearly equal extents (the first ones larger), or cut at given places.

    Raises: ShapeError for no section at all.

    Example:
        >>> [x.tolist() for x in pb.tensor_split(pb.arange(5), 2)]
        [[0, 1, 2], [3, 4]]
    """
    value = value_of(x)
    n = V.normal_axis(axis, len(value.shape))
    (extent,) = _extents(value, n)
    if isinstance(sections, Sequence):
        return _pieces(value, n, C.sizes_of(sections, extent))
    count = V.whole(sections, "tensor_split: the number of sections", 1)
    ends = [k * (extent // count) + min(k, extent % count) for k in range(count + 1)]
    return _pieces(value, n, list(itertools.pairwise(ends)))


@spelled
def chunk(x: Any, chunks: int, axis: int = 0) -> list[Tensor]:
    """At most `chunks` pieces of one extent, the last one perhaps smaller.

    Raises: ShapeError for fewer than one.

    Example:
        >>> [x.tolist() for x in pb.chunk(pb.arange(5), 2)]
        [[0, 1, 2], [3, 4]]
    """
    value = value_of(x)
    n = V.normal_axis(axis, len(value.shape))
    (extent,) = _extents(value, n)
    count = V.whole(chunks, "chunk: the number of chunks", 1)
    size = -(-extent // count)
    starts = range(0, extent, size) if size else range(count)
    return _pieces(value, n, [(s, min(s + size, extent)) for s in starts])


@spelled
def narrow(x: Any, axis: int, start: int, length: int) -> Tensor:
    """``x[.., start : start + length, ..]`` along an axis.

    Raises: ShapeError where that leaves the axis.

    Example:
        >>> pb.narrow(pb.arange(6), 0, 1, 3)
        Tensor([1, 2, 3], dtype=int64)
    """
    value = value_of(x)
    n = V.normal_axis(axis, len(value.shape))
    (extent,) = _extents(value, n)
    first, count = V.whole(start, "narrow: start"), V.whole(length, "narrow: length", 0)
    first = first + extent if first < 0 else first
    if not 0 <= first <= extent - count:
        raise V.fail(f"narrow to {start}:{start + length} of {extent} elements", code="E123")
    return _pieces(value, n, [(first, first + count)])[0]


@spelled
def select(x: Any, axis: int, index: int) -> Tensor:
    """``x[.., index, ..]``: one place of an axis, without it.

    Raises: IndexRangeError where it is outside.

    Example:
        >>> pb.select(pb.tensor([[1, 2], [3, 4]]), 0, 1)
        Tensor([3, 4], dtype=int64)
    """
    value = value_of(x)
    n = V.normal_axis(axis, len(value.shape))
    lead: list[X.Part] = [slice(None)] * n
    return Tensor(X.index(value, [*lead, V.whole(index, "select: the index")]))


@spelled
def unfold(x: Any, axis: int, size: int, step: int) -> Tensor:
    """``out[.., i, .., k] = x[.., i step + k, ..]``: windows of an axis, as a last axis.

    Shapes: x[.., n, ..] -> [.., (n - size) // step + 1, .., size]
    Raises: ShapeError for a window that does not fit, or a step of 0.

    Example:
        >>> pb.unfold(pb.arange(4), 0, 2, 1).tolist()
        [[0, 1], [1, 2], [2, 3]]
    """
    value = value_of(x)
    if not value.shape:
        windows: Tensor = unfold(O.reshape(x, (1,)), 0, size, step)
        return select(windows, 0, 0)
    n = V.normal_axis(axis, len(value.shape))
    size = V.whole(size, "unfold: the size", 0)
    step = V.whole(step, "unfold: the step", 1)
    (extent,) = _extents(value, n)
    if size > extent:
        raise V.fail(f"a window of {size} in an axis of {extent}", code="E126")
    count = (extent - size) // step + 1
    shape = (*value.shape[:n], count, *value.shape[n + 1 :], size)
    if size == 0:
        return Tensor(make("unfold", shape, E.const(0, value.dtype)))
    axes = axes_of(shape)
    inside = list(axes[:-1])
    inside[n] = E.Add(V.affine(axes[n], 0, step), axes[-1])
    return Tensor(V.view("unfold", value, shape, inside))


# --- numbers in order ----------------------------------------------------------------------------


def _triangle(
    places: Callable[[int, int, int], Sequence[np.ndarray[Any, Any]]],
    rows: int,
    columns: int | None,
    k: int,
) -> tuple[Tensor, Tensor]:
    wide = rows if columns is None else columns
    m, n = (V.whole(v, f"{places.__name__}: an extent", 0) for v in (rows, wide))
    i, j = places(m, V.diagonal(k), n)
    return C.tensor(i.tolist(), dtype="int64"), C.tensor(j.tolist(), dtype="int64")


def tril_indices(rows: int, columns: int | None = None, *, k: int = 0) -> tuple[Tensor, Tensor]:
    """Rows and columns of the places with ``j - i <= k``, row by row.

    ``x[pb.tril_indices(3)]`` are the elements of the lower triangle.

    Example:
        >>> pb.tril_indices(2)
        (Tensor([0, 1, 1], dtype=int64), Tensor([0, 0, 1], dtype=int64))
    """
    return _triangle(np.tril_indices, rows, columns, k)


def triu_indices(rows: int, columns: int | None = None, *, k: int = 0) -> tuple[Tensor, Tensor]:
    """Rows and columns of the places with ``j - i >= k``, row by row.

    ``x[pb.triu_indices(3)]`` are the elements of the upper triangle.

    Example:
        >>> pb.triu_indices(2)
        (Tensor([0, 0, 1], dtype=int64), Tensor([0, 1, 1], dtype=int64))
    """
    return _triangle(np.triu_indices, rows, columns, k)


def logspace(
    start: float,
    stop: float,
    num: int,
    *,
    base: float = 10.0,
    dtype: Any = None,
    endpoint: bool = True,
) -> Tensor:
    """``base ** linspace(start, stop, num)``, computed in float64.

    Example:
        >>> pb.logspace(0.0, 2.0, 3)
        Tensor([  1.,  10., 100.], dtype=float32)
    """
    kind = optional_dtype(dtype) or D.float32
    powers = C.linspace(start, stop, num, dtype=D.float64, endpoint=endpoint)
    spaced: Tensor = O.astype(M.pow(float(base), powers), kind)
    return spaced


def geomspace(
    start: float, stop: float, num: int, *, dtype: Any = None, endpoint: bool = True
) -> Tensor:
    """``start (stop / start) ** (i / n)``: even in logarithms, both ends exact.

    Raises: ShapeError where an end is 0 or their signs differ.

    Example:
        >>> pb.geomspace(1.0, 8.0, 4)
        Tensor([1., 2., 4., 8.], dtype=float32)
    """
    start, stop = float(start), float(stop)
    if not start * stop > 0.0:
        raise V.fail(f"geomspace from {start} to {stop}", code="E123")
    kind = optional_dtype(dtype) or D.float32
    num = V.whole(num, "geomspace: num", 0)
    parts = C.linspace(0.0, 1.0, num, dtype=D.float64, endpoint=endpoint)
    between = M.multiply(M.pow(stop / start, parts), start)
    ends = [(0, start)] + ([(num - 1, stop)] if endpoint and num > 1 else [])
    place = Axis(0, num)
    body: Expr = read(value_of(between), place)
    for at, value in ends:
        body = If(E.Equal(place, E.index(at)), E.const(value, D.float64), body)
    return Tensor(make("geomspace", (num,), W.cast(body, kind)))


def vander(x: Any, n: int | None = None, *, increasing: bool = False) -> Tensor:
    """``out[.., i, j] = x[.., i] ** j``; by default the highest power first.

    Shapes: x[.., m] -> [.., m, n]

    Example:
        >>> pb.vander(pb.tensor([2.0, 3.0]), 3).tolist()
        [[4.0, 2.0, 1.0], [9.0, 3.0, 1.0]]
    """
    value = value_of(x)
    if not value.shape:
        raise V.fail("vander of a tensor without axes", code="E111")
    count = _extents(value, -1)[0] if n is None else V.whole(n, "vander: n", 0)
    kind = value.dtype if value.dtype.is_float else D.int64
    base = O.expand_dims(O.astype(Tensor(value), kind), -1)
    repeated = O.broadcast_to(base, (*value.shape, max(count - 1, 0)))
    powers = O.cumulative_prod(repeated, axis=-1, include_initial=True)
    rising = Tensor(X.index(powers.value, [Ellipsis, slice(0, count)]))
    return rising if increasing else O.flip(rising, axis=-1)
