"""Reductions and scans by a function of the user's, over single values or tuples.

    best, place = pb.reduce(larger, (-inf, 0), (x[i, k], k), over=k)
    h = pb.linear_recurrence(a, b)                         h[t] = a[t] h[t - 1] + b[t]

The function is written in scalar handles and traced once. It must be associative; it need not be
commutative. Work is linear in the length (`ir.associative`), forward and backward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pullback.errors import DTypeError, Origin, ShapeError
from pullback.ir import expr as E
from pullback.ir import functions as F
from pullback.ir.associative import Join, Tuple, reduced, scanned
from pullback.ir.dtype import DType, float32, is_short
from pullback.ir.expr import Axis, Expr, Extent, If, lower
from pullback.ir.graph import (
    ALL,
    ANY,
    MAX,
    MIN,
    PROD,
    SUM,
    Definition,
    Value,
    Variable,
    read,
    replace_reads,
)
from pullback.simplify.rules import simplify
from pullback.tensor.face.dialect import spelled
from pullback.tensor.face.handles import Fold, Inner, ScalarHandle, as_expr, bound_axes, located
from pullback.tensor.face.tensor import Tensor, value_of
from pullback.tensor.record.trace import wrap
from pullback.tensor.shaped import shaped
from pullback.tensor.values import elementwise as W
from pullback.tensor.values import reduction as R
from pullback.tensor.values import views as V
from pullback.tensor.values.elementwise import axes_of, make
from pullback.tensor.values.functions import is_finite

Combine = Callable[[Any, Any], Any]


class Joining:
    """How two tuples become one: `results` over two rows of variables that stand for them."""

    def __init__(self, combine: Combine, kinds: Sequence[DType], single: bool) -> None:
        """Raises: ShapeError for another number of results, DTypeError for one of other type."""
        origin = Origin.of_caller()
        self.rows = [
            [Variable(f"{side}{n}", (), kind) for n, kind in enumerate(kinds)]
            for side in ("earlier", "later")
        ]
        given = [[ScalarHandle(read(v), v.name) for v in row] for row in self.rows]
        combined = combine(*(row[0] if single else tuple(row) for row in given))
        listed = [combined] if single else combined
        if not isinstance(listed, list | tuple) or len(listed) != len(kinds):
            raise ShapeError(
                f"{len(kinds)} values are combined to {combined!r}", origin=origin, code="E134"
            )
        self.results = tuple(as_expr(e) for e in listed)
        for result, kind in zip(self.results, kinds, strict=True):
            if result.dtype != kind:
                raise DTypeError(
                    f"{kind} values are combined to {result.dtype}",
                    origin=origin,
                    help="what is combined and what comes of it must have one type",
                    code="E142",
                )
        self.made: dict[Any, list[Definition]] = {}

    def kin(self, number: int, start: E.Const) -> str | None:
        """The combiner that component `number` amounts to: ``a + b`` is sum."""
        left, right = (read(row[number]) for row in self.rows)
        own = simplify(self.results[number])
        truth = left.dtype.is_bool
        for combiner in (ANY, ALL) if truth else (SUM, PROD, MAX, MIN):
            same = own is simplify(combiner.join(left, right))
            if same and start is combiner.identity(left.dtype):
                return combiner.name
        return None


def applied(
    rows: Sequence[Sequence[Variable]], results: Tuple, earlier: Tuple, later: Tuple
) -> Tuple:
    """`results` with the values of two tuples in the place of the variables."""
    both = zip([*rows[0], *rows[1]], [*earlier, *later], strict=True)
    known: dict[Value, Expr] = dict(both)
    return [replace_reads(e, lambda take: known.get(take.source)) for e in results]


class Part(Inner):
    """Component `number` of a combination of tuples inside an expression."""

    __slots__ = ("bodies", "joining", "number", "over", "results", "starts")
    bodies: tuple[Expr, ...]
    results: tuple[Expr, ...]
    starts: tuple[E.Const, ...]
    over: tuple[Axis, ...]
    joining: Joining
    number: int

    def derive(self) -> None:
        used = frozenset[int]().union(*(e.axes for e in self.inside))
        bound = frozenset(a.number for a in self.over)
        self._set(dtype=self.bodies[self.number].dtype, axes=used - bound)

    @property
    def inside(self) -> tuple[Expr, ...]:
        return (*self.bodies, *self.results)


def reduce(combine: Combine, identity: Any, values: Any, *, over: Any) -> Any:
    """``values[0] . values[1] . ..`` along axes, ``combine(earlier, later)`` being the dot.

    With a tuple of values `combine` takes two tuples and gives one. `identity` is the result over
    no elements. A component that is a sum (product, ..) of its own is computed as one.

    Raises: ShapeError, DTypeError where the values, their identity and what comes of them differ.

    Example:
        >>> x = pb.tensor([1.0, 2.0, 3.0])
        >>> k = pb.axis(3)
        >>> pb.compute((), lambda: pb.reduce(lambda a, b: a * b, 1.0, x[k], over=k))
        Tensor(6., dtype=float32)
    """
    origin = Origin.of_caller()
    single = not isinstance(values, tuple | list)
    bodies = tuple(as_expr(v) for v in ([values] if single else values))
    axes = bound_axes(over)
    given = [identity] if single else list(identity)
    if len(given) != len(bodies) or not bodies:
        raise ShapeError(
            f"{len(bodies)} values, and an identity of {len(given)}", origin=origin, code="E134"
        )
    starts = tuple(_start(s, e.dtype) for s, e in zip(given, bodies, strict=True))
    joining = Joining(combine, [e.dtype for e in bodies], single)
    components: list[ScalarHandle] = []
    for n, body in enumerate(bodies):
        name = joining.kin(n, starts[n])
        if name is None:
            part: Inner = Part(bodies, joining.results, starts, axes, joining, n)
        else:
            part = Fold(body, name, axes)
        components.append(located(part))
    return components[0] if single else tuple(components)


def _start(value: Any, kind: DType) -> E.Const:
    if not isinstance(value, W.Scalar):
        raise DTypeError(f"the identity {value!r} is no number", code="E143")
    return W.literal(value, kind)


def combined(
    part: Part,
    axes: Sequence[Axis],
    elements: Sequence[Expr],
    results: Sequence[Expr],
    origin: Origin,
) -> list[Definition]:
    """All components over `axes` (and the reduced ones, of extent 1), elements given.

    `elements` and `results` are over axes by number: `axes`, then the reduced ones.
    """
    shape = (*(a.extent for a in axes), *(a.extent for a in part.over))
    level = [wrap(Definition("reduce", shape, e, origin=origin)) for e in elements]
    join: Join = partial(applied, part.joining.rows, results)
    for n in reversed(range(len(axes), len(shape))):
        level = reduced(level, n, join)
    return [wrap(d) for d in level]


def whole(part: Part, arrays: Sequence[Definition], axes: Sequence[Axis]) -> Expr:
    """A component at `axes`; the identity where nothing was combined."""
    start = part.starts[part.number]
    extents = [a.extent for a in part.over]
    if 0 in extents:
        return start
    value: Expr = read(arrays[part.number], *axes, *(0 for _ in extents))
    for extent in extents:
        if lower(extent) < 1:
            value = If(E.Less(E.index(0), E.extent_expr(extent)), value, start)
    return value


# --- scans of tensors ----------------------------------------------------------------------------


@spelled
def associative_scan(combine: Combine, values: Any, *, axis: int = 0, reverse: bool = False) -> Any:
    """``out[t] = values[0] . .. . values[t]`` along an axis; with `reverse` from the other end.

    With a tuple of tensors of one shape `combine` takes two tuples and gives one.

    Raises: ShapeError, DTypeError where tensors and what comes of them differ.

    Example:
        >>> pb.associative_scan(lambda a, b: a * b, pb.tensor([1.0, 2.0, 3.0]))
        Tensor([1., 2., 6.], dtype=float32)
    """
    single = not isinstance(values, tuple | list)
    given = [value_of(v) for v in ([values] if single else values)]
    shapes = list(dict.fromkeys(v.shape for v in given))
    if len(shapes) != 1:
        raise V.fail(f"a scan over shapes {', '.join(map(W.show, shapes)) or 'of nothing'}")
    joining = Joining(combine, [v.dtype for v in given], single)
    at = _Along(shapes[0], axis, reverse)
    elements = [make("scan", at.shape, read(v, *at.axes)) for v in given]
    running = at.scan(elements, partial(applied, joining.rows, joining.results))
    return running[0] if single else tuple(running)


class _Along:
    """One direction along one axis of a shape; `axes` are places as the scan meets them."""

    def __init__(self, shape: Sequence[Extent], axis: int, reverse: bool) -> None:
        self.shape = tuple(shape)
        self.axis = V.normal_axis(axis, len(shape))
        self.axes = axes_of(shape)
        if reverse:
            last = E.Add(E.extent_expr(shape[self.axis]), E.index(-1))
            self.axes[self.axis] = E.subtract(last, self.axes[self.axis])

    def scan(self, elements: Sequence[Definition], join: Join) -> list[Tensor]:
        """The running combination, read back in the order of the tensors."""
        running = scanned(elements, self.axis, join)
        return [Tensor(make("scan", self.shape, read(d, *self.axes))) for d in running]


@spelled
@shaped("a[*s], b[*s], initial[...] -> [*s]")
def linear_recurrence(
    a: Any, b: Any, initial: Any = None, *, axis: int = 0, reverse: bool = False
) -> Tensor:
    """``h[t] = a[t] h[t - 1] + b[t]`` along an axis, from `initial` (0, and then a[0] is not used).

    `a` and `b` broadcast; `initial` is without the axis. With `reverse` from the other end.

    Example:
        >>> pb.linear_recurrence(pb.full((3,), 0.5), pb.ones(3))
        Tensor([1.  , 1.5 , 1.75], dtype=float32)
    """
    values = [value_of(a), value_of(b)]
    result = W.as_float(W.common_dtype(values))
    kind = float32 if is_short(result) else result
    at = _Along(W.broadcast_shapes([v.shape for v in values]), axis, reverse)
    step, part = (W.cast(W.broadcast_read(v, at.shape, at.axes), kind) for v in values)
    if initial is not None:
        rest = axes_of(at.shape)
        place = rest.pop(at.axis)
        without = tuple(e for n, e in enumerate(at.shape) if n != at.axis)
        start = value_of(initial)
        if W.broadcast_shapes([start.shape, without]) != without:
            raise ShapeError(
                f"linear_recurrence: from `initial` of {W.show(start.shape)} on",
                help=f"without the axis it must broadcast to {W.show(without)}",
                code="E110",
            )
        before = W.cast(W.broadcast_read(start, without, rest), kind)
        first = E.Add(E.Mul(step, before), part)
        part = If(E.Equal(place, E.index(0)), first, part)
    pair = [make(name, at.shape, e) for name, e in (("step", step), ("part", part))]
    states = at.scan(pair, _affine)[1]
    return states if kind == result else Tensor(W.astype(states.value, result))


def _affine(earlier: Tuple, later: Tuple) -> Tuple:
    """``x -> g (f x + s) + t``"""
    (f, s), (g, t) = earlier, later
    return E.Mul(f, g), E.Add(E.Mul(s, g), t)


@spelled
def cumulative_logsumexp(x: Any, axis: int | None = None) -> Tensor:
    """``out[t] = log(sum(exp(x[: t + 1])))``, safe for large elements; -inf is no term.

    A scan over pairs: the largest element m so far, and the sum of exp(x - m).

    Example:
        >>> pb.cumulative_logsumexp(pb.zeros(3))
        Tensor([0.       , 0.6931472, 1.0986123], dtype=float32)
    """
    value = value_of(x)
    result = W.as_float(value.dtype)
    at = _Along(value.shape, R.scan_axis("logsumexp", value, axis), False)
    here = W.cast(read(value, *at.axes), float32 if is_short(result) else result)
    zero = F.like(0, here)
    most = make("most", at.shape, here, stop=True)
    near = E.Exp(E.subtract(here, read(most, *at.axes)))
    far = If(E.Less(here, zero), zero, here)
    sums = make("exps", at.shape, If(is_finite(here), near, far))
    top, total = (t.value for t in at.scan([most, sums], _exponents))
    m, s = read(top, *at.axes), read(total, *at.axes)
    return Tensor(make("cumulative_logsumexp", at.shape, W.cast(R.log_of(m, s), result)))


def _exponents(earlier: Tuple, later: Tuple) -> Tuple:
    """``m = max(m1, m2), s = s1 exp(m1 - m) + s2 exp(m2 - m)``; one of the two exponents is 0."""
    (m1, s1), (m2, s2) = earlier, later
    less = E.Less(m1, m2)
    gap = E.subtract(m1, m2)
    away = E.Exp(If(less, gap, E.negate(gap)))
    shrink = If(E.Equal(m1, m2), F.like(1, m1), away)
    sums = If(less, E.Add(E.Mul(s1, shrink), s2), E.Add(s1, E.Mul(s2, shrink)))
    return If(less, m2, m1), sums
