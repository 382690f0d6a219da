"""Indexing: slices are index maps, integer tensors are data indices. Values in, values out.

``x[1:, None, ids]``. A negative index counts from the end; one out of range raises.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import EllipsisType

from pullback.algebra.bounds import Prover
from pullback.errors import DTypeError, IndexRangeError, UnsupportedError
from pullback.ir import expr as E
from pullback.ir import functions as F
from pullback.ir.dtype import DType, bool_, float32, float64, int64, is_short
from pullback.ir.expr import Axis, Dim, Expr, Extent, If, Less, Take, lower, takes
from pullback.ir.graph import (
    Definition,
    Keep,
    Map,
    Value,
    Variable,
    read,
    replace_reads,
    substitute,
    variables,
)
from pullback.tensor.values import views as V
from pullback.tensor.values.elementwise import (
    Scalar,
    Shape,
    axes_of,
    broadcast_read,
    broadcast_shapes,
    cast,
    literal,
    make,
    show,
)

Part = int | slice | None | EllipsisType | Value
Slot = Value | tuple[int, int, int]  # a data index; or (axis of the result or -1, start, step)


@dataclass(frozen=True, slots=True)
class Region:
    """The part of a tensor of shape `source` that an index names: ``x[slots]``, of shape `shape`.

    `data`: the common shape of the tensors among the indices, whose axes begin at `start`.
    """

    source: Shape
    shape: Shape
    slots: tuple[Slot, ...]
    data: Shape
    start: int

    @property
    def fixed(self) -> bool:
        """Whether no index is data: then each element is named once at most."""
        return all(isinstance(s, tuple) for s in self.slots)

    def places(self) -> list[Expr]:
        """Where in the source each element of the part lies, over the axes of `shape`."""
        axes = axes_of(self.shape)
        here = axes[self.start : self.start + len(self.data)]
        pairs = zip(self.slots, self.source, strict=True)
        return [_slot_index(s, extent, axes, self.data, here) for s, extent in pairs]


def index(x: Value, parts: Sequence[Part]) -> Definition:
    """``x[parts]`` under NumPy's rules for integers, slices, None, Ellipsis and integer tensors.

    Raises: IndexRangeError, ShapeError, DTypeError, UnsupportedError for a mask.
    """
    box = region(x.shape, parts)
    return make("index", box.shape, read(x, *box.places()))


def region(source: Shape, parts: Sequence[Part]) -> Region:
    """What `parts` name of a tensor of shape `source`. Raises: as `index`."""
    parts = _complete(source, parts)
    tensors = [p for p in parts if isinstance(p, Variable | Definition)]
    data = broadcast_shapes([t.shape for t in tensors])
    group = [n for n, p in enumerate(parts) if tensors and _counts_as_data(p)]
    adjacent = bool(group) and group[-1] - group[0] + 1 == len(group)
    insert = group[0] if adjacent else 0
    shape: list[Extent] = []
    slots: list[Slot] = []
    start = 0
    for n, part in enumerate(parts):
        if tensors and n == insert:
            start = len(shape)
            shape.extend(data)
        if part is None:
            shape.append(1)
        elif isinstance(part, slice):
            begin, step, count = slice_range(part, source[len(slots)])
            slots.append((len(shape), begin, step))
            shape.append(count)
        elif isinstance(part, int):
            slots.append((-1, fixed(part, source[len(slots)], len(slots)), 0))
        elif not isinstance(part, EllipsisType):
            slots.append(part)
    return Region(source, tuple(shape), tuple(slots), data, start)


def element_rows(x: Value, rows: Value, parts: Sequence[Part]) -> Definition:
    """``x[parts]`` with each integer among `parts` an element of `rows`, in order: they are data.

    One program serves every row then. The numbers of `rows` are inside of their axes.
    """
    axes = axes_of(region(x.shape, parts).shape)
    free, turn = iter(axes), 0
    places: list[Expr] = []
    for part in _complete(x.shape, parts):
        if isinstance(part, int):
            places.append(read(rows, E.index(turn)))
            turn += 1
            continue
        axis = next(free)
        if part is not None:
            assert isinstance(part, slice), "parts are static"
            start, step, _ = slice_range(part, x.shape[len(places)])
            places.append(V.affine(axis, start, step))
    return make("index", region(x.shape, parts).shape, read(x, *places))


def _counts_as_data(part: Part) -> bool:
    return isinstance(part, Variable | Definition | int)


def _slot_index(
    slot: Slot, extent: Extent, axes: list[Expr], data: Shape, here: list[Expr]
) -> Expr:
    if not isinstance(slot, tuple):
        return wrapped(slot, broadcast_read(slot, data, here), extent)
    axis, start, step = slot
    return E.index(start) if axis < 0 else V.affine(axes[axis], start, step)


def wrapped(indices: Value, place: Expr, extent: Extent) -> Expr:
    """`place`, an element of `indices`, counted from the front: ``i + n if -n <= i < 0 else i``.

    What is out of range stays as it is, so that the check tells the number that was given.
    """
    least = -extent if isinstance(extent, int) else 0
    place = cast(checked_place(place, least, extent), int64)
    if indices.dtype.kind == "u":
        return place
    size = E.extent_expr(extent)
    behind = E.And(Less(place, E.index(0)), E.logical_not(Less(E.Add(place, size), E.index(0))))
    return If(behind, E.Add(place, size), place)


def checked_place(place: Expr, least: int, extent: Extent) -> Expr:
    """`place`, and what it reads stored where that is a formula that may lead outside of an axis.

    Written into the reader it would be an index that no run checks. What is data is checked anyway.
    From `least`: 0, or minus the extent where places are counted from the end too.
    """
    reads = [read for read in takes(place) if _is_formula(read.source)]
    if not reads:
        return place
    written, prover = replace_reads(place, _written), Prover()
    low, high = prover.intervals.of(written)
    below = high < extent if isinstance(extent, int) else prover.inside(written, extent)
    return place if least <= low and below else replace_reads(place, _stored)


def _is_formula(value: Value) -> bool:
    return isinstance(value, Definition) and not variables([value])


def _written(take: Take) -> Expr | None:
    """The element of a map that reads nothing."""
    source = take.source
    if not isinstance(source, Definition) or not isinstance(source.form, Map) or source.sources:
        return None
    return substitute(source.body, dict(enumerate(take.indices)))


def _stored(take: Take) -> Expr | None:
    source = take.source
    if not _is_formula(source):
        return None
    body = read(source, *axes_of(source.shape))
    return take.of(make("indices", source.shape, body, keep=Keep.ALWAYS))


def _complete(shape: Shape, parts: Sequence[Part]) -> list[Part]:
    """The ellipsis and missing axes written out; types checked."""
    for part in parts:
        if isinstance(part, Variable | Definition):
            integer(part.dtype)
    used = sum(p is not None and p is not Ellipsis for p in parts)
    dots = [n for n, p in enumerate(parts) if p is Ellipsis]
    if len(dots) > 1:
        raise V.fail("an index has more than one ellipsis", code="E137")
    if used > len(shape):
        raise IndexRangeError(f"{used} indices for a tensor of shape {show(shape)}", code="E156")
    place = dots[0] if dots else len(parts)
    rest: list[Part] = [slice(None)] * (len(shape) - used)
    return [*parts[:place], *rest, *parts[place + 1 :]]


def integer(kind: DType) -> None:
    """Raises: UnsupportedError for a mask, DTypeError for another type that is no index."""
    if kind == bool_:
        raise UnsupportedError(
            "an index by a mask (its result has no fixed shape)",
            help="use pb.where(mask, x, other), or x.at[mask].set(v) to assign",
            code="E316",
        )
    if not kind.is_integer:
        raise DTypeError(f"a tensor of {kind} is no index", code="E153")


def fixed(place: int, extent: Extent, axis: int) -> int:
    """A literal index, counted from the front. Raises: IndexRangeError where it is outside."""
    size = lower(extent)
    if not isinstance(extent, int) and place < 0:
        raise V.fail(
            f"index {place} counts from the end of the symbolic axis {extent}", code="E120"
        )
    if not -size <= place < size:
        raise IndexRangeError(
            f"index {place} is outside axis {axis}, which has {extent} elements", code="E155"
        )
    return place % size


def slice_range(part: slice, extent: Extent) -> tuple[int, int, Extent]:
    """(start, step, count) of a slice of an axis."""
    if isinstance(part.stop, Dim):
        return 0, 1, _first(part, extent)
    if isinstance(extent, int):
        if part.step == 0:
            raise V.fail("the step of a slice is 0", code="E137")
        steps = range(*part.indices(extent))
        return (steps.start if len(steps) else 0), steps.step, len(steps)
    if part == slice(None) or part == slice(None, None, 1):
        return 0, 1, extent
    step = 1 if part.step is None else part.step
    start = 0 if part.start is None else part.start
    if part.stop is None or not 0 <= start <= part.stop <= extent.lo or step < 1:
        raise V.fail(
            f"{part} of the symbolic axis {extent}",
            f"both ends must be literal and lie in 0..{extent.lo}",
            code="E120",
        )
    return start, step, len(range(start, part.stop, step))


def _first(part: slice, extent: Extent) -> Dim:
    """How many ``x[:n]`` are, n symbolic. Raises: ShapeError where an axis may have fewer."""
    stop: Dim = part.stop
    fits = stop == extent or stop.hi <= lower(extent)
    if part.start not in (None, 0) or part.step not in (None, 1) or not fits:
        raise V.fail(
            f"{part.start or 0}:{stop}:{part.step or 1} of an axis of {extent}",
            f"a symbolic end (here up to {stop.hi}) goes with a start of 0, a step of 1 and an "
            "axis that has as many",
            code="E120",
        )
    return stop


def take(x: Value, indices: Value, axis: int) -> Definition:
    """``out[a, i, b] = x[a, indices[i], b]``"""
    axis = V.normal_axis(axis, len(x.shape))
    parts: list[Part] = [slice(None)] * axis
    return index(x, [*parts, indices])


def take_along(x: Value, indices: Value, axis: int) -> Definition:
    """``out[i, j] = x[i, indices[i, j]]``; other axes broadcast."""
    integer(indices.dtype)
    rank = len(x.shape)
    axis = V.normal_axis(axis, rank)
    if len(indices.shape) != rank:
        raise V.fail(f"take_along_axis of {show(x.shape)} with indices {show(indices.shape)}")
    left = tuple(1 if n == axis else e for n, e in enumerate(x.shape))
    right = tuple(1 if n == axis else e for n, e in enumerate(indices.shape))
    shape = list(broadcast_shapes([left, right]))
    shape[axis] = indices.shape[axis]
    axes = axes_of(shape)
    place = wrapped(indices, broadcast_read(indices, tuple(shape), axes), x.shape[axis])
    where = [E.index(0) if e == 1 else a for a, e in zip(axes, x.shape, strict=True)]
    where[axis] = place
    return make("take_along_axis", shape, read(x, *where))


def one_hot(x: Value, classes: Extent, kind: DType, axis: int) -> Definition:
    """``out[i, c] = 1 if x[i] == c else 0``"""
    integer(x.dtype)
    axis = V.normal_axis(axis, len(x.shape) + 1)
    shape = (*x.shape[:axis], classes, *x.shape[axis:])
    axes = axes_of(shape)
    rest = [a for n, a in enumerate(axes) if n != axis]
    hit = E.Equal(cast(read(x, *rest), int64), axes[axis])
    return make("one_hot", shape, cast(hit, kind))


def arange(start: Scalar, step: Scalar, count: Extent, kind: DType) -> Definition:
    """``out[i] = start + i * step``"""
    within = float32 if is_short(kind) else kind
    if kind.is_integer and not kind.range()[0] <= step <= kind.range()[1]:
        within = int64  # a step down, of an unsigned type
    axis = cast(Axis(0, count), within)
    scaled = axis if step == 1 else E.Mul(axis, literal(step, within))
    body = scaled if start == 0 else E.Add(scaled, literal(start, within))
    return make("arange", (count,), cast(body, kind))


def eye(rows: Extent, columns: Extent, k: int, kind: DType) -> Definition:
    """``out[i, j] = 1 if j == i + k else 0``"""
    hit = E.Equal(V.affine(Axis(0, rows), k, 1), Axis(1, columns))
    return make("eye", (rows, columns), cast(hit, kind))


def linspace(start: float, stop: float, count: int, kind: DType, endpoint: bool) -> Definition:
    """``out[i] = start + i * (stop - start) / n`` in float64, the last one exactly `stop`.

    Rounded once; integers are the floor.
    """
    steps = count - 1 if endpoint else count
    step = (stop - start) / steps if steps else 0.0
    place = cast(Axis(0, count), float64)
    body: Expr = E.Add(E.Mul(place, literal(step, float64)), literal(start, float64))
    if endpoint and count > 1:
        last = E.Equal(Axis(0, count), E.index(count - 1))
        body = If(last, literal(stop, float64), body)
    body = cast(F.floor(body) if kind.is_integer else body, kind)
    return make("linspace", (count,), body)
