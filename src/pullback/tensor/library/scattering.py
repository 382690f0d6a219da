"""Functional updates: `x` with other elements where indices, masks or slices say.

    out = x;  for d: out[at(d)] = reduce(out[at(d)], values[d])

What is named several times is combined in order; `set` takes the last value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pullback.errors import DTypeError, OptionError
from pullback.ir import dtype as D
from pullback.ir import expr as E
from pullback.ir import functions as F
from pullback.ir.expr import Expr, If
from pullback.ir.graph import ANY, MAX, MIN, PROD, SUM, Value, read
from pullback.tensor.face.dialect import spelled
from pullback.tensor.face.tensor import Tensor, operand, value_of
from pullback.tensor.library import ops as O
from pullback.tensor.library.scalars import value_tensor
from pullback.tensor.shaped import shaped
from pullback.tensor.values import elementwise as W
from pullback.tensor.values import indexing as X
from pullback.tensor.values import updates as U
from pullback.tensor.values import views as V
from pullback.tensor.values.elementwise import Scalar, Shape, axes_of, cast, make, show
from pullback.tensor.values.precise import in_float32
from pullback.tensor.values.updates import Places

REDUCTIONS = {
    "set": "set", "add": "add", "sum": "add", "multiply": "multiply", "prod": "multiply",
    "max": "max", "amax": "max", "min": "min", "amin": "min", "mean": "mean", "any": "any",
}  # fmt: skip
IDENTITIES = {"add": SUM, "multiply": PROD, "max": MAX, "min": MIN, "mean": SUM}


# --- places --------------------------------------------------------------------------------------


def _along(x: Value, indices: Value, axis: int) -> Places:
    """Each element of `indices` names a place along `axis`; it may be smaller than `x` beside.

    Raises: ShapeError where one of them has no axes and the other has.
    """
    X.integer(indices.dtype)
    axis = V.normal_axis(axis, max(len(x.shape), 1))
    if len(indices.shape) != len(x.shape):
        raise V.fail(f"indices of {show(indices.shape)} of a number", code="E110")
    axes = axes_of(indices.shape)
    at = list(axes)
    if at:
        at[axis] = X.wrapped(indices, read(indices, *axes), x.shape[axis])
    return Places(x.shape, indices.shape, tuple(at))


def _fits(small: Any, large: Any) -> bool:
    return bool(small == large or (isinstance(small, int) and small <= E.lower(large)))


def _rows(x: Value, indices: Value, axis: int) -> tuple[Places, int]:
    """Each element of the vector `indices` names a whole slice across `axis`."""
    X.integer(indices.dtype)
    axis = V.normal_axis(axis, len(x.shape))
    (count,) = indices.shape
    domain = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    axes = axes_of(domain)
    at = list(axes)
    at[axis] = X.wrapped(indices, read(indices, axes[axis]), x.shape[axis])
    return Places(x.shape, domain, tuple(at)), axis


def _part_of(values: Any, x: Value, domain: Shape) -> Value:
    """Values of the type of `x` for a domain; a larger tensor gives its first elements.

    Raises: ShapeError where they are fewer, DTypeError where they are of a wider kind.
    """
    given = operand(values)
    if isinstance(given, Scalar) or len(given.shape) != len(domain) or given.shape == domain:
        return U.suited(x, given, domain)
    if all(_fits(m, e) for m, e in zip(domain, given.shape, strict=True)):
        checked = U.suited(x, given, given.shape)
        return make("part", domain, read(checked, *axes_of(domain)))
    return U.suited(x, given, domain)


# --- combining -----------------------------------------------------------------------------------


def _written(x: Value, places: Places, values: Value, reduce: str, include_self: bool) -> Value:
    """`x` with values combined at places. Raises: OptionError for another reduction."""
    if reduce not in REDUCTIONS:
        known = ", ".join(REDUCTIONS)
        raise OptionError(f"no reduction {reduce!r}", help=f"one of {known}", code="E124")
    how = REDUCTIONS[reduce]
    if how == "any":
        return _any(x, places, values, include_self)
    if how in ("max", "min") and x.dtype.is_bool:
        wide = W.astype(x, D.int8), W.astype(values, D.int8)
        bits = _written(wide[0], places, wide[1], reduce, include_self)
        return W.astype(bits, D.bool_)
    if how == "set" or (how != "mean" and include_self) or 0 in places.domain:
        return U.scatter(x, places, values, "set" if how == "mean" else how)
    axes = axes_of(x.shape)
    count = U.accumulated(places, E.index(1), SUM, "count")
    touched = E.Less(E.index(0), read(count, *axes))
    start = IDENTITIES[how].identity(x.dtype)
    here = read(x, *axes)
    base = x if include_self else make("base", x.shape, If(touched, start, here))
    if how != "mean":
        return U.scatter(base, places, values, how)
    total = read(U.scatter(base, places, values, "add"), *axes)
    number = cast(read(count, *axes), x.dtype)
    if include_self:
        number = E.Add(number, F.like(1, number))
    whole = E.Div if x.dtype.is_float else E.FloorDiv
    shared = whole(total, If(touched, number, F.like(1, number)))
    return make("mean", x.shape, If(touched, shared, here))


def _any(x: Value, places: Places, values: Value, include_self: bool) -> Value:
    axes = axes_of(places.domain)
    truth = F.truth(W.broadcast_read(values, places.domain, axes))
    hit = U.accumulated(places, truth, ANY, "any")
    count = U.accumulated(places, E.index(1), SUM, "count")
    out = axes_of(x.shape)
    own = F.truth(read(x, *out))
    if not include_self:
        untouched = E.Equal(read(count, *out), E.index(0))
        own = E.And(own, untouched)
    return make("any", x.shape, cast(E.Or(own, read(hit, *out)), x.dtype))


# --- along an axis -------------------------------------------------------------------------------


@spelled
@shaped("x[s..., _ @ axis], indices: int[s...<, n @ axis]")
def gather(x: Any, indices: Any, axis: int) -> Tensor:
    """``out[i, j] = x[i, indices[i, j]]`` along axis 1; `indices` may be smaller than `x` beside.

    Raises: IndexRangeError, when it runs, for one outside.

    Example:
        >>> pb.gather(pb.tensor([[1, 2], [3, 4]]), pb.tensor([[1], [0]]), 1).tolist()
        [[2], [3]]
    """
    value = value_of(x)
    places = _along(value, value_of(indices), axis)
    return Tensor(make("gather", places.domain, read(value, *places.at)))


@spelled
@shaped("x[s..., n @ axis], indices: int[s...<, _ @ axis], values[...] -> [s..., n @ axis]")
def scatter(
    x: Any,
    indices: Any,
    values: Any,
    *,
    axis: int = 0,
    reduce: str = "set",
    include_self: bool = True,
) -> Tensor:
    """``out = x; for i, j: out[i, indices[i, j]] = values[i, j]`` along axis 1, or combined.

    `reduce` is set, add (sum), multiply (prod), max (amax), min (amin), mean or any. Without
    `include_self` elements that are written to start from nothing. `indices` may be smaller than
    `x` beside, and than `values`.

    Raises: ShapeError for too few values, DTypeError for values of a wider kind, OptionError for
        another reduction; IndexRangeError, when it runs, for an index outside.

    Example:
        >>> pb.scatter(pb.zeros(3), pb.tensor([0, 2]), pb.tensor([5.0, 6.0]))
        Tensor([5., 0., 6.], dtype=float32)
    """
    value = value_of(x)
    places = _along(value, value_of(indices), axis)
    part = _part_of(values, value, places.domain)
    return Tensor(_written(value, places, part, reduce, include_self))


@spelled
@shaped("x[s..., n @ axis], indices: int[s...<, _ @ axis], values[...] -> [s..., n @ axis]")
@in_float32
def scatter_reduce(
    x: Any, indices: Any, values: Any, reduce: str, *, axis: int = 0, include_self: bool = True
) -> Tensor:
    """`scatter` with a reduction: add (sum), multiply (prod), max, min, mean or any.

    Raises: as `scatter`.

    Example:
        >>> pb.scatter_reduce(pb.ones(2), pb.tensor([1, 1]), pb.tensor([3.0, 4.0]), "max")
        Tensor([1., 4.], dtype=float32)
    """
    scattered: Tensor = scatter(
        x, indices, values, axis=axis, reduce=reduce, include_self=include_self
    )
    return scattered


@spelled
@shaped("x[s..., n @ axis], indices: int[s...<, _ @ axis] or [_], values[...] -> [s..., n @ axis]")
def scatter_add(x: Any, indices: Any, values: Any, *, axis: int = 0) -> Tensor:
    """`x` with `values` added at the places that `indices` names along an axis.

    `indices` has one axis, as in `take`, or is like `values`, as in `gather`, smaller than `x`
    beside perhaps. What is named twice is added twice, in order: the result does not depend on the
    threads. A negative index counts from the end.

    Raises: IndexRangeError, when it runs, for one outside.

    Example:
        >>> pb.scatter_add(pb.zeros(3), pb.tensor([0, 0]), pb.ones(2))
        Tensor([2., 0., 0.], dtype=float32)
    """
    base, places, given = value_of(x), value_of(indices), value_of(values)
    axis = V.normal_axis(axis, len(base.shape))
    count = given.shape[axis : axis + 1]
    whole = (*base.shape[:axis], *count, *base.shape[axis + 1 :])
    if len(places.shape) != len(base.shape) or places.shape == given.shape == whole:
        return Tensor(U.scatter_add(base, places, given, axis))
    added: Tensor = scatter(
        x, indices, Tensor(W.astype(given, base.dtype)), axis=axis, reduce="add"
    )
    return added


@shaped("x[s..., n @ axis], indices: int[m], values[s..., m @ axis] or [] -> [s..., n @ axis]")
@spelled
def index_add(x: Any, indices: Any, values: Any, *, axis: int = 0, alpha: float = 1) -> Tensor:
    """``out = x; for n: out[.., indices[n], ..] += alpha values[.., n, ..]``

    Raises: IndexRangeError, when it runs, for one outside.

    Example:
        >>> pb.index_add(pb.zeros(3), pb.tensor([0, 0]), pb.ones(2))
        Tensor([2., 0., 0.], dtype=float32)
    """
    scaled = values if alpha == 1 else value_tensor(values) * alpha
    return _index(x, indices, scaled, axis, "add")


@shaped("x[s..., n @ axis], indices: int[m], values[s..., m @ axis] or [] -> [s..., n @ axis]")
@spelled
def index_copy(x: Any, indices: Any, values: Any, *, axis: int = 0) -> Tensor:
    """``out = x; for n: out[.., indices[n], ..] = values[.., n, ..]``; the last one stays.

    Raises: IndexRangeError, when it runs, for one outside.

    Example:
        >>> pb.index_copy(pb.zeros(3), pb.tensor([0, 2]), pb.ones(2))
        Tensor([1., 0., 1.], dtype=float32)
    """
    return _index(x, indices, values, axis, "set")


@shaped("x[s...], indices: int[m], value[] -> [s...]")
@spelled
def index_fill(x: Any, indices: Any, value: Any, *, axis: int = 0) -> Tensor:
    """``out = x; for n: out[.., indices[n], ..] = value``

    Raises: IndexRangeError, when it runs, for an index outside.

    Example:
        >>> pb.index_fill(pb.zeros(3), pb.tensor([0, 2]), 5.0)
        Tensor([5., 0., 5.], dtype=float32)
    """
    return _index(x, indices, value, axis, "set")


@shaped("x[s..., n @ axis], indices: int[m], values[s..., m @ axis] or [] -> [s..., n @ axis]")
@spelled
def index_reduce(
    x: Any, indices: Any, values: Any, reduce: str, *, axis: int = 0, include_self: bool = True
) -> Tensor:
    """``out = x; for n: out[.., indices[n], ..] = reduce(out[..], values[.., n, ..])``

    Raises: OptionError for another reduction.

    Example:
        >>> pb.index_reduce(pb.ones(2), pb.tensor([1, 1]), pb.tensor([3.0, 4.0]), "prod")
        Tensor([ 1., 12.], dtype=float32)
    """
    return _index(x, indices, values, axis, reduce, include_self)


def _index(
    x: Any, indices: Any, values: Any, axis: int, reduce: str, include_self: bool = True
) -> Tensor:
    value = value_of(x)
    if not value.shape:
        written = _index(O.reshape(x, (1,)), indices, values, 0, reduce, include_self)
        return O.reshape(written, ())
    places, _ = _rows(value, value_of(indices), axis)
    part = U.suited(value, operand(values), places.domain)
    return Tensor(_written(value, places, part, reduce, include_self))


@shaped("x[s...], values[...] -> [s...]")
def index_put(x: Any, indices: Sequence[Any], values: Any, *, accumulate: bool = False) -> Tensor:
    """``x`` with ``x[indices] = values``, or added to them; None stands for a whole axis.

    As in ``pb.index_put(x, (rows, columns), 1.0, accumulate=True)``.

    Raises: as ``x.at[indices].set``.

    Example:
        >>> pb.index_put(pb.zeros(3), [pb.tensor([0, 2])], pb.ones(2))
        Tensor([1., 0., 1.], dtype=float32)
    """
    key = tuple(slice(None) if i is None else i for i in indices)
    elements = value_tensor(x).at[key]
    changed: Tensor = elements.add(values) if accumulate else elements.set(values)
    return changed


@shaped("x[s...], indices: int[...], values[...] -> [s...]")
def put(x: Any, indices: Any, values: Any, *, accumulate: bool = False) -> Tensor:
    """``ravel(x)`` with ``[indices] = values`` or ``+= values``, in the shape of `x`.

    Raises: ShapeError where the values do not fit.

    Example:
        >>> pb.put(pb.zeros((2, 2)), pb.tensor([0, 3]), pb.tensor([5.0, 6.0])).tolist()
        [[5.0, 0.0], [0.0, 6.0]]
    """
    value = value_tensor(x)
    flat = O.reshape(value, (-1,))
    elements = flat.at[indices]
    return O.reshape(elements.add(values) if accumulate else elements.set(values), value.shape)


# --- by masks ------------------------------------------------------------------------------------


@shaped("x[*b], mask: bool[*b], value[*b] -> [*b]")
def masked_fill(x: Any, mask: Any, value: Any) -> Tensor:
    """``value if mask else x``, of the type of `x`.

    As in ``scores = pb.masked_fill(scores, later, -math.inf)``.

    Raises: ShapeError where the value has axes; DTypeError where it is of a wider kind.

    Example:
        >>> pb.masked_fill(pb.ones(2), pb.tensor([True, False]), 0.0)
        Tensor([0., 1.], dtype=float32)
    """
    base = value_of(x)
    shape = W.broadcast_shapes([base.shape, value_of(mask).shape])
    filled: Tensor = O.where(mask, Tensor(U.suited(base, operand(value), shape)), x)
    return filled


@shaped("x[*b], mask: bool[*b], source[...] -> [*b]")
def masked_scatter(x: Any, mask: Any, source: Any) -> Tensor:
    """`x` where `mask` is false; elsewhere the elements of `source` in order.

    Raises: DTypeError for another type; IndexRangeError, when it runs, where `source` has too few.

    Example:
        >>> pb.masked_scatter(pb.zeros(3), pb.tensor([True, False, True]), pb.tensor([5.0, 6.0]))
        Tensor([5., 0., 6.], dtype=float32)
    """
    base, given = value_of(x), value_of(source)
    if base.dtype != given.dtype:
        raise DTypeError(f"{base.dtype} elements are given {given.dtype}", code="E142")
    if not value_of(mask).dtype.is_bool:
        raise DTypeError(f"a mask of {value_of(mask).dtype}", code="E147")
    shape = W.broadcast_shapes([base.shape, value_of(mask).shape])
    spread = O.broadcast_to(mask, shape)
    flat = O.astype(O.reshape(spread, (-1,)), D.int64)
    turn = O.reshape(O.cumulative_sum(flat, axis=0), shape).value
    line = V.reshape(given, (-1,))
    axes = axes_of(shape)
    here = W.broadcast_read(base, shape, axes)
    if line.shape == (0,):
        line = W.full((1,), 0, given.dtype)
    place: Expr = E.Add(read(turn, *axes), E.index(-1))
    body = If(read(spread.value, *axes), read(line, place), here)
    return Tensor(make("masked_scatter", shape, body))


# --- by places that are known --------------------------------------------------------------------


@spelled
@shaped("x[s..., n @ axis], values[s...] or [] -> [s..., n @ axis]")
def select_scatter(x: Any, values: Any, axis: int, index: int) -> Tensor:
    """`x` with ``x[.., index, ..] = values``

    Raises: IndexRangeError for an index outside.

    Example:
        >>> pb.select_scatter(pb.zeros((2, 2)), pb.ones(2), 0, 1).tolist()
        [[0.0, 0.0], [1.0, 1.0]]
    """
    value = value_of(x)
    n = V.normal_axis(axis, len(value.shape))
    parts: list[X.Part] = [*[slice(None)] * n, V.whole(index, "select_scatter: the index")]
    return Tensor(_replaced(value, parts, values))


@spelled
@shaped(
    "x[s..., n @ axis], values[s..., _ @ axis] or [] -> [s..., n @ axis]",
    where="int(start) < inf, int(stop) < inf, int(step) >= 1",
)
@shaped(
    "x[s..., n @ axis], values[s..., _ @ axis] or [] -> [s..., n @ axis]",
    where="int(start) < inf, int(stop) < inf, int(step) >= 1",
)
def slice_scatter(
    x: Any,
    values: Any,
    axis: int = 0,
    start: int | None = None,
    stop: int | None = None,
    step: int = 1,
) -> Tensor:
    """`x` with ``x[.., start:stop:step, ..] = values``

    Raises: ShapeError where the values are not of the extent of the slice.

    Example:
        >>> pb.slice_scatter(pb.zeros(4), pb.ones(2), 0, 1, 3)
        Tensor([0., 1., 1., 0.], dtype=float32)
    """
    value = value_of(x)
    n = V.normal_axis(axis, len(value.shape))
    parts: list[X.Part] = [*[slice(None)] * n, slice(start, stop, V.whole(step, "the step", 1))]
    return Tensor(_replaced(value, parts, values))


def _replaced(x: Value, parts: Sequence[X.Part], values: Any) -> Value:
    given = operand(values)
    region = X.region(x.shape, parts)
    if not isinstance(given, Scalar) and given.shape != region.shape:
        raise V.fail(
            f"values of {show(given.shape)} for a part of {show(region.shape)}", code="E110"
        )
    return U.update(x, parts, given)


@shaped("x[s..., m @ axis1, n @ axis2], values[s..., _] -> [s..., m @ axis1, n @ axis2]")
def diagonal_scatter(
    x: Any, values: Any, *, offset: int = 0, axis1: int = -2, axis2: int = -1
) -> Tensor:
    """`x` with `values` on the diagonal of two axes.

    Raises: ShapeError where the values are not as many as the diagonal has.

    Example:
        >>> pb.diagonal_scatter(pb.zeros((2, 2)), pb.ones(2)).tolist()
        [[1.0, 0.0], [0.0, 1.0]]
    """
    value, given = value_of(x), value_of(values)
    rank = len(value.shape)
    first, second = V.normal_axis(axis1, rank), V.normal_axis(axis2, rank)
    if first == second:
        raise V.fail(f"axes {axis1} and {axis2} are one", code="E113")
    offset = V.whole(offset, "the diagonal")
    kept = [n for n in range(rank) if n not in (first, second)]
    rows, columns = value.shape[first], value.shape[second]
    if not isinstance(rows, int) or not isinstance(columns, int):
        raise V.fail(f"a diagonal of symbolic axes of {show(value.shape)}", code="E120")
    count = max(0, min(rows - max(-offset, 0), columns - max(offset, 0)))
    wanted = (*(value.shape[n] for n in kept), count)
    if given.shape != wanted:
        raise V.fail(f"{show(given.shape)} on a diagonal of {show(wanted)}", code="E110")
    checked = U.suited(value, given, wanted)
    axes = axes_of(value.shape)
    here = read(value, *axes)
    if count == 0:
        return Tensor(make("diagonal_scatter", value.shape, here))
    hit = E.Equal(axes[second], V.affine(axes[first], offset, 1))
    place = V.affine(axes[first], -max(-offset, 0), 1)
    inside = E.minimum(E.maximum(place, E.index(0)), E.index(count - 1))
    new = read(checked, *(axes[n] for n in kept), inside)
    return Tensor(make("diagonal_scatter", value.shape, If(hit, new, here)))
