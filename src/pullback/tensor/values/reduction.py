"""Reductions, scans and what is built of them. Functions take and give values.

``out[i] = sum over k of x[i, k]``
"""

from __future__ import annotations

from collections.abc import Sequence

from pullback.errors import DTypeError, Origin
from pullback.ir import dtype as D
from pullback.ir import expr as E
from pullback.ir import functions as F
from pullback.ir.dtype import DType
from pullback.ir.expr import Axis, Dim, Div, Equal, Expr, Extent, If, Or
from pullback.ir.graph import (
    ALL,
    ANY,
    MAX,
    MIN,
    PROD,
    SUM,
    Combiner,
    Definition,
    Reduce,
    Scan,
    Value,
    read,
)
from pullback.tensor.record.trace import current
from pullback.tensor.values import elementwise as W
from pullback.tensor.values import views as V
from pullback.tensor.values.elementwise import Shape, axes_of, cast, make
from pullback.tensor.values.functions import is_finite
from pullback.tensor.values.precise import in_float32

Axes = int | Sequence[int] | None


def _box(shape: Shape, over: Sequence[int]) -> tuple[list[Extent], list[Extent], list[Expr]]:
    """Kept extents, reduced extents, and the axis value at each place of the operand."""
    kept = [n for n in range(len(shape)) if n not in over]
    numbers = {n: place for place, n in enumerate([*kept, *over])}
    axes: list[Expr] = [Axis(numbers[n], e) for n, e in enumerate(shape)]
    return [shape[n] for n in kept], [shape[n] for n in over], axes


def kept_dims(x: Value, over: Sequence[int], keepdims: bool) -> Value:
    """A reduced value with axes of extent one where axes went, if asked for."""
    return V.expand_dims(x, tuple(over)) if keepdims and over else x


def fold(
    name: str,
    x: Value,
    by: Combiner,
    axis: Axes,
    keepdims: bool,
    kind: DType | None = None,
) -> Value:
    """``out[i] = combine over k of x[i, k]``, computed as `kind`."""
    over = V.normal_axes(axis, len(x.shape))
    shape, extents, axes = _box(x.shape, over)
    body = read(x, *axes)
    if kind is not None:
        body_cast = F.truth(body) if kind.is_bool else cast(body, kind)
    else:
        body_cast = body
    if not over:
        return make(name, shape, body_cast)
    return kept_dims(W.reduce(name, shape, extents, body_cast, by), over, keepdims)


def sum_dtype(kind: DType) -> DType:
    """The array API's rule: small integers add up in a wide type."""
    if kind.is_float:
        return kind
    return D.uint64 if kind.kind == "u" else D.int64


def total(x: Value, axis: Axes, keepdims: bool, kind: DType | None) -> Value:
    """Sum."""
    return fold("sum", x, SUM, axis, keepdims, kind or sum_dtype(x.dtype))


def product(x: Value, axis: Axes, keepdims: bool, kind: DType | None) -> Value:
    """Product."""
    return fold("prod", x, PROD, axis, keepdims, kind or sum_dtype(x.dtype))


def extreme(name: str, x: Value, axis: Axes, keepdims: bool) -> Value:
    """The largest or smallest; NaN if any is. Raises: ShapeError over nothing."""
    _not_empty(name, x, axis)
    if x.dtype.is_bool:
        return fold(name, x, ANY if name == "max" else ALL, axis, keepdims)
    return fold(name, x, MAX if name == "max" else MIN, axis, keepdims)


@in_float32
def even_extreme(name: str, x: Value, axis: Axes, keepdims: bool) -> Value:
    """The largest or smallest, whose gradient all equal winners share evenly.

    With the winners ``w[k] = (x[k] == m)``: ``m + sum[k](w[k] ? x[k] - stop(x[k]) : 0) / sum(w)``
    """
    if not x.dtype.is_float:
        return extreme(name, x, axis, keepdims)
    over = V.normal_axes(axis, len(x.shape))
    best = W.copy(extreme(name, x, axis, True), name, stop=True)
    still = W.copy(x, name, stop=True)
    shape, extents, axes = _box(x.shape, over)
    here, fixed = read(x, *axes), read(still, *axes)
    m = W.broadcast_read(best, x.shape, axes)
    moved = If(is_finite(m), E.subtract(here, fixed), here)
    wins, zero = Equal(fixed, m), F.like(0, here)
    shares: Value = W.reduce("shares", shape, extents, If(wins, moved, zero))
    count: Value = W.reduce("winners", shape, extents, cast(wins, x.dtype))
    shares, count = (kept_dims(v, over, True) for v in (shares, count))
    full = axes_of(best.shape)
    base = read(best, *full)
    share = Div(read(shares, *full), read(count, *full))
    body = E.Add(If(is_finite(base), base, zero), share)
    kept: Value = make(f"a{name}", best.shape, body)
    return kept if keepdims or not over else V.squeeze(kept, over)


def _not_empty(name: str, x: Value, axis: Axes) -> None:
    """Raises: ShapeError over nothing; of a symbolic axis, when it turns out so in a call."""
    trace = current()
    for n in V.normal_axes(axis, len(x.shape)):
        extent = x.shape[n]
        if extent == 0:
            raise V.fail(f"{name} over no elements: the shape is {W.show(x.shape)}", code="E118")
        if trace is not None and isinstance(extent, Dim) and extent.lo == 0:
            trace.filled.setdefault(extent, (name, Origin.of_caller()))


def truth(name: str, x: Value, axis: Axes, keepdims: bool) -> Value:
    """Whether any or all are true (not 0)."""
    return fold(name, x, ANY if name == "any" else ALL, axis, keepdims, D.bool_)


def count(x: Value, axis: Axes, kind: DType) -> Expr:
    """How many elements are reduced, as a scalar expression."""
    over = V.normal_axes(axis, len(x.shape))
    extents = [E.extent_expr(x.shape[n]) for n in over]
    number = V.product(extents)
    if isinstance(number, E.Const):
        return E.const(number.value, kind)
    return cast(number, kind)


@in_float32
def mean(x: Value, axis: Axes, keepdims: bool) -> Value:
    """``sum(x) / n``; integers become float32."""
    kind = W.as_float(x.dtype)
    sums = total(x, axis, keepdims, kind)
    number = count(x, axis, kind)
    return make("mean", sums.shape, Div(read(sums, *axes_of(sums.shape)), number))


@in_float32
def variance(x: Value, axis: Axes, keepdims: bool, correction: float) -> Value:
    """``sum((x - mean(x))^2) / max(n - correction, 0)``"""
    kind = W.as_float(x.dtype)
    center = mean(x, axis, True)
    over = V.normal_axes(axis, len(x.shape))
    shape, extents, axes = _box(x.shape, over)
    away = E.subtract(cast(read(x, *axes), kind), W.broadcast_read(center, x.shape, axes))
    squares: Value = W.reduce("squares", shape, extents, F.square(away))
    squares = kept_dims(squares, over, keepdims)
    number = count(x, axis, kind)
    if correction:
        number = E.maximum(E.Add(number, E.const(-correction, kind)), E.const(0, kind))
    return make("var", squares.shape, Div(read(squares, *axes_of(squares.shape)), number))


@in_float32
def deviation(x: Value, axis: Axes, keepdims: bool, correction: float) -> Value:
    """``sqrt(var)``; where all are equal its slope would be infinite, and is 0."""
    spread = variance(x, axis, keepdims, correction)
    v = read(spread, *axes_of(spread.shape))
    return make("std", spread.shape, If(Equal(v, F.like(0, v)), v, E.Sqrt(v)))


def arg_extreme(name: str, x: Value, axis: int | None, keepdims: bool) -> Value:
    """The first place of the largest (smallest) element; of the first NaN if there is one.

    ``min over k of (k if x[i, k] == max(x[i]) else n)``
    """
    rank = len(x.shape)
    if axis is None:
        flat: Value = V.reshape(x, (-1,))
        position = arg_extreme(name, flat, 0, False)
        return V.expand_dims(position, tuple(range(rank))) if keepdims else position
    axis = V.normal_axis(axis, rank)
    best = extreme(name[3:], x, axis, True)
    shape, extents, axes = _box(x.shape, (axis,))
    value = read(x, *axes)
    hit = arg_hit(value, W.broadcast_read(best, x.shape, axes))
    extent = extents[0]
    last = E.index(extent - 1) if isinstance(extent, int) else E.extent_expr(extent)
    place = If(hit, Axis(len(shape), extent), last)
    return kept_dims(W.reduce(name, shape, extents, place, MIN), (axis,), keepdims)


def arg_hit(value: Expr, best: Expr) -> Expr:
    """Whether an element is the one looked for."""
    same = Equal(value, best)
    return Or(same, E.is_nan(value)) if value.dtype.is_float else same


@in_float32
def logsumexp(x: Value, axis: Axes, keepdims: bool) -> Value:
    """``m + log(sum(exp(x - m)))`` with m the largest element (0 where that is infinite).

    Where every element is -inf so is the result, and the gradient is 0.
    """
    x = floating(x)
    m = steady_max(x, axis, True)
    over = V.normal_axes(axis, len(x.shape))
    shape, extents, axes = _box(x.shape, over)
    shift = W.broadcast_read(m, x.shape, axes)
    terms = E.Exp(E.subtract(read(x, *axes), shift))
    sums: Value = kept_dims(W.reduce("exps", shape, extents, terms), over, True)
    full = axes_of(sums.shape)
    kept: Value = make("logsumexp", sums.shape, log_of(read(m, *full), read(sums, *full)))
    return kept if keepdims or not over else V.squeeze(kept, over)


def log_of(m: Expr, s: Expr) -> Expr:
    """``m + log(s)``; -inf, of no slope, where s is 0."""
    return If(Equal(s, F.like(0, s)), E.lowest(s.dtype), E.Add(m, E.Log(s)))


def steady_max(x: Value, axis: Axes, keepdims: bool) -> Value:
    """The largest element, 0 where it is infinite; no gradient passes."""
    m = fold("max", x, MAX, axis, keepdims)
    value = read(m, *axes_of(m.shape))
    return make("shift", m.shape, If(is_finite(value), value, F.like(0, value)), stop=True)


def floating(x: Value) -> Value:
    """`x` itself, or as float32 where it is no float."""
    return x if x.dtype.is_float else W.astype(x, D.float32)


def _centered(x: Value, axis: int) -> tuple[Definition, list[Expr]]:
    """The row maximum, without a gradient, and ``x - max`` read at the axes of `x`."""
    over = (V.normal_axis(axis, len(x.shape)),)
    shape, extents, axes = _box(x.shape, over)
    _not_empty("softmax", x, axis)
    top = make("max", shape, read(x, *axes), Reduce(MAX, tuple(extents)), stop=True)
    return top, axes


@in_float32
def softmax(x: Value, axis: int) -> Definition:
    """``exp(x - max) / sum(exp(x - max))``"""
    x = floating(x)
    over = V.normal_axis(axis, len(x.shape))
    top, axes = _centered(x, axis)
    here = axes_of(x.shape)
    rows = [a for n, a in enumerate(here) if n != over]
    exps = make("exps", x.shape, E.Exp(E.subtract(read(x, *here), read(top, *rows))))
    sums = W.reduce("norm", top.shape, [x.shape[over]], read(exps, *axes))
    return make("softmax", x.shape, Div(read(exps, *here), read(sums, *rows)))


@in_float32
def log_softmax(x: Value, axis: int) -> Definition:
    """``x - max - log(sum(exp(x - max)))``"""
    x = floating(x)
    over = V.normal_axis(axis, len(x.shape))
    top, axes = _centered(x, axis)
    here = axes_of(x.shape)
    rows = [a for n, a in enumerate(here) if n != over]
    shift = read(top, *axes_of(top.shape))
    terms = E.Exp(E.subtract(read(x, *axes), shift))
    sums = W.reduce("norm", top.shape, [x.shape[over]], terms)
    away = E.subtract(read(x, *here), read(top, *rows))
    return make("log_softmax", x.shape, E.subtract(away, E.Log(read(sums, *rows))))


_SCANS = {"sum": SUM, "prod": PROD, "max": MAX, "min": MIN}


def cumulative(
    name: str, x: Value, axis: int | None, kind: DType | None, initial: bool = False
) -> Definition:
    """``out[.., t] = combine over t' <= t of x[.., t']``; `initial`: over t' < t, one t more."""
    axis = scan_axis(name, x, axis)
    small = x.dtype if name in ("max", "min") else sum_dtype(x.dtype)
    combiner = _SCANS[name]
    shape, axes = list(x.shape), axes_of(x.shape)
    if initial:
        extent = x.shape[axis]
        if not isinstance(extent, int):
            raise V.fail(f"include_initial along the symbolic axis {extent}", code="E120")
        shape[axis] = extent + 1
        axes = axes_of(shape)
        axes[axis] = E.Add(axes[axis], E.index(-1))
    body = cast(read(x, *axes), kind or small)
    if body.dtype.is_bool:
        raise DTypeError(f"cumulative_{name} of bool")
    if initial:
        later = E.Less(E.index(0), Axis(axis, shape[axis]))
        body = If(later, body, combiner.identity(body.dtype))
    return make(f"cumulative_{name}", shape, body, Scan(combiner, axis))


def scan_axis(name: str, x: Value, axis: int | None) -> int:
    """The axis of a running combination. Raises: ShapeError where it has to be said."""
    rank = len(x.shape)
    if axis is None and rank != 1:
        raise V.fail(f"cumulative_{name} of {rank} axes", "say along which: axis=", code="E124")
    return V.normal_axis(0 if axis is None else axis, rank)
