"""Places in sorted order, differences, areas.

``searchsorted(a, v)[i] = how many of a are below v[i]``
"""

from __future__ import annotations

from typing import Any

from pullback.errors import OptionError, ShapeError
from pullback.ir import dtype as D
from pullback.ir import expr as E
from pullback.ir.expr import Cast, Expr
from pullback.ir.graph import read
from pullback.tensor.face.dialect import spelled
from pullback.tensor.face.tensor import Tensor, value_of
from pullback.tensor.library import maths as M
from pullback.tensor.library import ops as O
from pullback.tensor.library.scalars import value_tensor
from pullback.tensor.library.shapes import narrow
from pullback.tensor.shaped import shaped
from pullback.tensor.values import elementwise as W
from pullback.tensor.values import views as V
from pullback.tensor.values.answers import answered
from pullback.tensor.values.functions import is_nan
from pullback.tensor.values.precise import in_float32


@shaped(
    "boundaries[n] or [b..., n], values[...] or [b..., m], sorter: int[n] -> [...] or [b..., m]"
)
def searchsorted(boundaries: Any, values: Any, *, side: str = "left", sorter: Any = None) -> Tensor:
    """How many of the sorted `boundaries` are below (`right`: not above) each value; int64.

    ``boundaries[out - 1] < v <= boundaries[out]``, found by halving; NaN stands after all numbers.
    Boundaries of several rows are searched row by row. `sorter` names the sorted order of one row.

    Raises: OptionError for another side, ShapeError where rows do not fit.

    Example:
        >>> pb.searchsorted(pb.tensor([1.0, 2.0, 3.0]), pb.tensor([0.5, 2.0]))
        Tensor([0, 1], dtype=int64)
    """
    if side not in ("left", "right"):
        raise OptionError(f'side {side!r} is neither "left" nor "right"', code="E124")
    rows = value_of(boundaries) if sorter is None else O.take(boundaries, sorter, axis=0).value
    wanted = value_of(values)
    one = len(rows.shape) == 1
    if not one and rows.shape[:-1] != wanted.shape[:-1]:
        raise V.fail(
            f"searchsorted of {W.show(wanted.shape)} in rows of {W.show(rows.shape)}", code="E110"
        )
    size = rows.shape[-1]
    if not isinstance(size, int):
        raise V.fail(f"searchsorted in the symbolic axis {size}", code="E120")
    kind = W.common_dtype([rows, wanted])
    axes = W.axes_of(wanted.shape)
    lead = [] if one else axes[:-1]
    v = W.cast(read(wanted, *axes), kind)
    place: Expr = E.index(0)
    for bit in reversed(range(size.bit_length())):
        there = E.Add(place, E.index(2**bit))
        at = E.minimum(there, E.index(size))
        row = W.cast(read(rows, *lead, E.Add(at, E.index(-1))), kind)
        sooner = E.Less(row, v) if side == "left" else E.logical_not(E.Less(v, row))
        if kind.is_float:
            last = is_nan(v)
            known = E.logical_not(is_nan(row))
            sooner = E.And(E.Or(sooner, last), known if side == "left" else E.Or(known, last))
        fits = E.And(E.logical_not(E.Less(E.index(size), there)), sooner)
        place = E.Add(place, E.Mul(Cast(fits, D.int64), E.index(2**bit)))
    return Tensor(W.make("searchsorted", wanted.shape, place, stop=True))


@shaped("x[...], boundaries[n] -> [...]")
def bucketize(x: Any, boundaries: Any, *, right: bool = False) -> Tensor:
    """Between which boundaries each element lies: ``boundaries[out - 1] < x <= boundaries[out]``.

    With `right` the other way round: ``boundaries[out - 1] <= x < boundaries[out]``.

    Example:
        >>> pb.bucketize(pb.tensor([0.5, 2.0]), pb.tensor([1.0, 2.0, 3.0]))
        Tensor([0, 1], dtype=int64)
    """
    return searchsorted(boundaries, x, side="right" if right else "left")


@shaped("x[...], bins[n] -> [...]")
def digitize(x: Any, bins: Any, *, right: bool = False) -> Tensor:
    """In which of the increasing bins each element lies: ``bins[out - 1] <= x < bins[out]``.

    With `right` the other way round: ``bins[out - 1] < x <= bins[out]``.

    Example:
        >>> pb.digitize(pb.tensor([0.5, 2.0]), pb.tensor([1.0, 2.0, 3.0]))
        Tensor([0, 2], dtype=int64)
    """
    return searchsorted(bins, x, side="left" if right else "right")


@answered
@spelled
@shaped(
    "x[s..., _ @ axis], prepend[s..., _ @ axis] or [], append[s..., _ @ axis] or []",
    where="int(n) >= 0",
)
def diff(x: Any, *, axis: int = -1, n: int = 1, prepend: Any = None, append: Any = None) -> Tensor:
    """``out[i] = x[i + 1] - x[i]``, `n` times, of `x` between `prepend` and `append`.

    Of truths whether they differ; 0 times is `x` as it is.

    Example:
        >>> pb.diff(pb.tensor([1.0, 4.0, 9.0]))
        Tensor([3., 5.], dtype=float32)
    """
    values = value_tensor(x)
    axis = V.normal_axis(axis, len(values.shape))
    if n == 0:
        return values
    parts = [value_tensor(p) for p in (prepend, values, append) if p is not None]
    if len(parts) > 1:
        edge = tuple(1 if k == axis else e for k, e in enumerate(values.shape))
        values = O.concat([p if p.shape else O.broadcast_to(p, edge) for p in parts], axis=axis)
    extent = values.shape[axis]
    if not isinstance(extent, int):
        raise ShapeError(f"diff along the symbolic axis {extent}", code="E120")
    for rest in range(extent - 1, max(extent - n, 0) - 1, -1):
        later, sooner = (narrow(values, axis, k, rest) for k in (1, 0))
        values = M.not_equal(later, sooner) if values.dtype.is_bool else later - sooner
    return values


def _steps(y: Tensor, x: Any, dx: Any, axis: int) -> Any:
    if x is None:
        return dx
    places = value_tensor(x)
    if places.ndim == 1:
        trailing = [1] * (y.ndim - 1 - axis)
        return O.reshape(diff(places), (-1, *trailing))
    return diff(places, axis=axis)


def _areas(y: Any, x: Any, dx: Any, axis: int) -> tuple[Tensor, int]:
    given = value_tensor(y)
    axis = V.normal_axis(axis, given.ndim)
    extent = given.shape[axis]
    if not isinstance(extent, int):
        raise ShapeError(f"areas along the symbolic axis {extent}", code="E120")
    less = max(extent - 1, 0)
    heights = narrow(given, axis, min(1, extent), less) + narrow(given, axis, 0, less)
    return heights * _steps(given, x, dx, axis) / 2.0, axis


@spelled
@shaped("y[s..., n @ axis], x[n] or [s...?, n @ axis]")
@in_float32
def trapezoid(y: Any, x: Any = None, *, dx: Any = 1.0, axis: int = -1) -> Tensor:
    """``sum[i] (y[i + 1] + y[i]) (x[i + 1] - x[i]) / 2``; without `x` steps are `dx`.

    Example:
        >>> pb.trapezoid(pb.tensor([0.0, 1.0, 2.0]))
        Tensor(2., dtype=float32)
    """
    parts, axis = _areas(y, x, dx, axis)
    area: Tensor = O.sum(parts, axis=axis)
    return area


@spelled
@shaped("y[s..., n @ axis], x[n] or [s...?, n @ axis]")
@in_float32
def cumulative_trapezoid(y: Any, x: Any = None, *, dx: Any = 1.0, axis: int = -1) -> Tensor:
    """The areas of `trapezoid` up to each place but the first.

    Example:
        >>> pb.cumulative_trapezoid(pb.tensor([0.0, 1.0, 2.0]))
        Tensor([0.5, 2. ], dtype=float32)
    """
    parts, axis = _areas(y, x, dx, axis)
    area: Tensor = O.cumulative_sum(parts, axis=axis)
    return area


def _running(name: str, x: Any, axis: int | None) -> Tensor:
    best: Tensor = O.cumulative_max(x, axis) if name == "max" else O.cumulative_min(x, axis)
    value = value_tensor(x)
    axis = 0 if axis is None else V.normal_axis(axis, value.ndim)
    hit = M.equal(value, best)
    if value.dtype.is_float:
        hit = M.logical_or(hit, M.isnan(value))
    place = W.axes_of(value.shape)[axis]
    own = read(value_of(hit), *W.axes_of(value.shape))
    where = E.If(own, place, E.index(0))
    places: Tensor = O.cumulative_max(Tensor(W.make("place", value.shape, where)), axis)
    return places


@spelled
def cumulative_argmax(x: Any, axis: int | None = None) -> Tensor:
    """Where the running maximum stands: the last of equal ones, the latest NaN; int64.

    Example:
        >>> pb.cumulative_argmax(pb.tensor([1.0, 3.0, 2.0]))
        Tensor([0, 1, 1], dtype=int64)
    """
    return _running("max", x, axis)


@spelled
def cumulative_argmin(x: Any, axis: int | None = None) -> Tensor:
    """Where the running minimum stands: the last of equal ones, the latest NaN; int64.

    Example:
        >>> pb.cumulative_argmin(pb.tensor([3.0, 1.0, 2.0]))
        Tensor([0, 1, 1], dtype=int64)
    """
    return _running("min", x, axis)
