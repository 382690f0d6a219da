"""What sorting tells: medians, quantiles, the k-th, the most frequent.

``quantile(x, q) = lerp(s[floor(p)], s[ceil(p)], p - floor(p))``, ``p = q (n - 1)``, s sorted
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pullback.errors import OptionError, ShapeError
from pullback.ir import dtype as D
from pullback.ir import expr as E
from pullback.ir import functions as F
from pullback.ir.expr import Add, Cast, Expr, If, Mul
from pullback.ir.graph import Value, read
from pullback.tensor.face.dialect import spelled
from pullback.tensor.face.tensor import Axes, Tensor, operand, value_of
from pullback.tensor.library import maths as M
from pullback.tensor.library import ops as O
from pullback.tensor.library.scalars import value_tensor
from pullback.tensor.library.shapes import select
from pullback.tensor.library.sorting import order_of, ranked_value, sort
from pullback.tensor.record.trace import bind
from pullback.tensor.shaped import shaped
from pullback.tensor.values import elementwise as W
from pullback.tensor.values import indexing as X
from pullback.tensor.values import views as V
from pullback.tensor.values.functions import is_nan

PLOTTING = {
    "interpolated_inverted_cdf": (0.0, 1.0),
    "hazen": (0.5, 0.5),
    "weibull": (0.0, 0.0),
    "linear": (1.0, 1.0),
    "median_unbiased": (1 / 3, 1 / 3),
    "normal_unbiased": (3 / 8, 3 / 8),
}
"""alpha and beta: the place of q is ``n q + alpha + q (1 - alpha - beta) - 1``.

Source: Hyndman, Fan 1996, Sample quantiles in statistical packages.
"""
CHOSEN = (
    "lower", "higher", "midpoint", "nearest", "inverted_cdf", "averaged_inverted_cdf",
    "closest_observation",
)  # fmt: skip
BETWEEN = (*PLOTTING, "midpoint", "averaged_inverted_cdf")  # of two neighbours, not one of them


def _last_axis(x: Any, axis: Axes) -> tuple[Tensor, tuple[int, ...]]:
    """`x` with the reduced axes as one last axis, and which they were."""
    value = value_tensor(x)
    rank = len(value.shape)
    over = V.normal_axes(axis, rank)
    kept = [n for n in range(rank) if n not in over]
    moved = Tensor(V.permute(value.value, [*kept, *over]))
    if len(over) == 1:
        return moved, over
    extents = [value.shape[n] for n in over]
    if not all(isinstance(e, int) for e in extents):
        raise ShapeError(f"quantiles over the symbolic axes of {W.show(value.shape)}", code="E120")
    size = int(np.prod([e for e in extents if isinstance(e, int)], dtype=np.int64))
    return O.reshape(moved, (*(value.shape[n] for n in kept), size)), over


def _place(q: Expr, count: Expr, method: str) -> Expr:
    """Where among `count` sorted elements the quantile q stands, counted from 0, as a float."""
    one = F.like(1, q)
    last = E.subtract(count, one)
    if method == "inverted_cdf":
        place = E.subtract(F.ceil(Mul(q, count)), one)
    elif method == "averaged_inverted_cdf":  # half way where q n is whole
        whole = Add(F.floor(Mul(q, count)), F.ceil(Mul(q, count)))
        place = Mul(E.subtract(whole, one), F.like(0.5, q))
    elif method == "closest_observation":  # half way between two the even one, counted from 1
        place = E.subtract(F.rint(Mul(q, count)), one)
    elif method in PLOTTING and method != "linear":
        alpha, beta = PLOTTING[method]
        spread = Add(Mul(count, q), Mul(q, F.like(1 - alpha - beta, q)))
        place = Add(spread, F.like(alpha - 1, q))
    else:
        place = Mul(q, last)
    return E.minimum(E.maximum(place, F.like(0, q)), E.maximum(last, F.like(0, q)))


def _between(low: Expr, high: Expr, part: Expr, method: str) -> Expr:
    """What stands between two neighbours, `part` of the way from the lower one."""
    half = F.like(0.5, part)
    if method == "midpoint":
        part = If(E.Less(F.like(0, part), part), half, part)
    gap = E.subtract(high, low)
    near = Add(low, Mul(gap, part))
    far = E.subtract(high, Mul(gap, E.subtract(F.like(1, part), part)))
    value = If(E.Less(part, half), near, far)
    return If(E.Equal(low, high), low, value)


def _quantile(x: Any, q: Any, axis: Axes, keepdims: bool, method: str, skip: bool) -> Tensor:
    if method not in PLOTTING and method not in CHOSEN:
        known = ", ".join((*PLOTTING, *CHOSEN))
        raise OptionError(f"quantile: no method {method!r}", help=f"one of {known}", code="E124")
    rows, over = _last_axis(x, axis)
    kind = W.as_float(rows.dtype)
    rows = O.astype(rows, kind)
    size = rows.shape[-1]
    if not isinstance(size, int) or size == 0:
        raise ShapeError(f"a quantile of {size} elements", code="E118")
    wanted = _checked(q, kind)
    ordered = sort(rows).value
    shape = (*wanted.shape, *rows.shape[:-1])
    axes = W.axes_of(shape)
    lead = axes[len(wanted.shape) :]
    work = D.float64 if kind == D.float64 else D.float32
    real = _count(rows) if skip else None
    count = F.like(size, E.const(0, work)) if real is None else W.cast(read(real, *lead), work)
    at = W.cast(read(wanted, *axes[: len(wanted.shape)]), work)
    outside = E.logical_not(E.And(F.less_equal(F.like(0, at), at), F.less_equal(at, F.like(1, at))))
    place = _place(If(outside, F.like(0, at), at), count, method)
    low = F.rint(place) if method == "nearest" else F.floor(place)
    high = F.ceil(place)
    low, high = (high, high) if method == "higher" else (low, high)

    def ranked(place: Expr) -> Expr:
        return read(
            ranked_value(rows.value, ordered, W.make("rank", shape, _rank(place, size))), *axes
        )

    body = ranked(low)
    if method in BETWEEN:
        part = E.subtract(place, low)
        body = W.cast(_between(W.cast(body, work), W.cast(ranked(high), work), part, method), kind)
    last = read(ordered, *lead, E.index(size - 1))
    nothing = E.Equal(count, F.like(0, count)) if skip else is_nan(last)
    body = If(E.Or(outside, nothing), F.like(np.nan, body), body)
    values: Value = W.make("quantile", shape, body)
    if keepdims and over:
        values = V.expand_dims(values, tuple(n + len(wanted.shape) for n in over))
    return Tensor(values)


def _checked(q: Any, kind: D.DType) -> Value:
    """The wanted quantiles, in float64 if they are Python's. Raises: ShapeError outside 0..1."""
    if isinstance(q, Sequence):
        q = np.asarray(q, np.float64)
    if isinstance(q, np.ndarray | np.generic | int | float):
        if not np.all((np.asarray(q) >= 0) & (np.asarray(q) <= 1)):
            raise ShapeError(f"quantiles {q} are not all in 0..1", code="E123")
        exact = kind if kind == D.float64 else D.float32
        return (
            Tensor(bind(np.array(q, exact.numpy), "q")).value
            if np.ndim(q)
            else W.full((), float(q), exact)
        )
    return value_of(operand(q)) if isinstance(operand(q), W.Scalar) else value_of(q)


def _count(rows: Tensor) -> Value:
    """How many of each row are numbers."""
    real = M.logical_not(M.isnan(rows))
    return value_of(O.sum(O.astype(real, D.int64), axis=-1))


def _rank(place: Expr, size: int) -> Expr:
    """A place among `size` sorted elements."""
    return E.minimum(E.maximum(Cast(place, D.int64), E.index(0)), E.index(size - 1))


@spelled
@shaped("x[...], q[...]", where="0 <= q <= 1")
def quantile(
    x: Any, q: Any, axis: Axes = None, *, keepdims: bool = False, method: str = "linear"
) -> Tensor:
    """``lerp(s[floor(p)], s[ceil(p)], p - floor(p))``, ``p = q (n - 1)`` of the sorted elements s.

    `method` is one of NumPy's: linear, lower, higher, midpoint, nearest, inverted_cdf,
    averaged_inverted_cdf, closest_observation, hazen, weibull, median_unbiased, normal_unbiased,
    interpolated_inverted_cdf. NaN where any is.

    Raises: ShapeError for no elements, or an array q outside of 0..1; OptionError for another
        method.

    Example:
        >>> pb.quantile(pb.tensor([1.0, 2.0, 3.0]), 0.25)
        Tensor(1.5, dtype=float32)
    """
    return _quantile(x, q, axis, keepdims, method, skip=False)


@spelled
@shaped("x[...], q[...]", where="0 <= q <= 1")
def nanquantile(
    x: Any, q: Any, axis: Axes = None, *, keepdims: bool = False, method: str = "linear"
) -> Tensor:
    """`quantile` of the elements that are numbers; NaN where none is.

    Raises: ShapeError for no elements, or an array q outside of 0..1; OptionError for another
        method.

    Example:
        >>> pb.nanquantile(pb.tensor([float("nan"), 1.0, 3.0]), 0.5)
        Tensor(2., dtype=float32)
    """
    return _quantile(x, q, axis, keepdims, method, skip=True)


@spelled
@shaped("x[...], q[...]", where="0 <= q <= 100")
def percentile(
    x: Any, q: Any, axis: Axes = None, *, keepdims: bool = False, method: str = "linear"
) -> Tensor:
    """`quantile` of ``q / 100``.

    Raises: ShapeError for no elements, or an array q outside of 0..100; OptionError for another
        method.

    Example:
        >>> pb.percentile(pb.tensor([1.0, 2.0, 3.0]), 25)
        Tensor(1.5, dtype=float32)
    """
    return _quantile(x, _hundredths(q), axis, keepdims, method, skip=False)


@spelled
@shaped("x[...], q[...]", where="0 <= q <= 100")
def nanpercentile(
    x: Any, q: Any, axis: Axes = None, *, keepdims: bool = False, method: str = "linear"
) -> Tensor:
    """`percentile` of the elements that are numbers; NaN where none is.

    Raises: ShapeError for no elements, or an array q outside of 0..100; OptionError for another
        method.

    Example:
        >>> pb.nanpercentile(pb.tensor([float("nan"), 1.0, 3.0]), 50)
        Tensor(2., dtype=float32)
    """
    return _quantile(x, _hundredths(q), axis, keepdims, method, skip=True)


def _hundredths(q: Any) -> Any:
    if isinstance(q, list | tuple):
        return [_hundredths(part) for part in q]
    return q / 100


@spelled
def median(x: Any, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """The middle of the sorted elements, the mean of the two middle ones; NaN where any is.

    Raises: ShapeError for no elements.

    Example:
        >>> pb.median(pb.tensor([3.0, 1.0, 2.0]))
        Tensor(2., dtype=float32)
    """
    return _quantile(x, 0.5, axis, keepdims, "linear", skip=False)


@spelled
def nanmedian(x: Any, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """`median` of the elements that are numbers; NaN where none is.

    Raises: ShapeError for no elements.

    Example:
        >>> pb.nanmedian(pb.tensor([float("nan"), 1.0, 3.0]))
        Tensor(2., dtype=float32)
    """
    return _quantile(x, 0.5, axis, keepdims, "linear", skip=True)


@spelled
def msort(x: Any) -> Tensor:
    """Sorted along the first axis, NaN last.

    Example:
        >>> pb.msort(pb.tensor([3.0, 1.0, 2.0]))
        Tensor([1., 2., 3.], dtype=float32)
    """
    return sort(x, axis=0)


@spelled
@shaped("x[s..., n @ axis]", where="1 <= int(k) <= n")
def kthvalue(x: Any, k: int, axis: int = -1, *, keepdims: bool = False) -> tuple[Tensor, Tensor]:
    """The k-th smallest element, counted from 1, NaN last, and its place.

    Example:
        >>> pb.kthvalue(pb.tensor([3.0, 1.0, 2.0]), 2)
        (Tensor(2., dtype=float32), Tensor(2, dtype=int64))
    """
    value = value_tensor(x)
    axis = V.normal_axis(axis, value.ndim)
    place = V.strided(order_of(value.value, axis, False), axis, k - 1, 1, 1)
    return _picked(value, place, axis, keepdims)


def _picked(x: Tensor, place: Value, axis: int, keepdims: bool) -> tuple[Tensor, Tensor]:
    picked = Tensor(X.take_along(x.value, place, axis)), Tensor(place)
    return picked if keepdims else (select(picked[0], axis, 0), select(picked[1], axis, 0))


@spelled
def mode(x: Any, axis: int = -1, *, keepdims: bool = False) -> tuple[Tensor, Tensor]:
    """The most frequent element, of equally frequent ones the smallest, and its last place.

    Shapes: x[.., n, ..] -> [.., ..], [.., ..]
    Raises: ShapeError for no elements.

    Example:
        >>> pb.mode(pb.tensor([1.0, 2.0, 2.0]))
        (Tensor(2., dtype=float32), Tensor(2, dtype=int64))
    """
    value = value_tensor(x)
    axis = V.normal_axis(axis, value.ndim)
    order = order_of(value.value, axis, False)
    ordered = X.take_along(value.value, order, axis)
    axes = W.axes_of(ordered.shape)
    before = list(axes)
    before[axis] = E.maximum(E.Add(axes[axis], E.index(-1)), E.index(0))
    same = E.Equal(read(ordered, *axes), read(ordered, *before))
    start = If(same, E.index(0), axes[axis])
    starts: Tensor = O.cumulative_max(Tensor(W.make("start", ordered.shape, start)), axis)
    run = E.subtract(axes[axis], read(starts.value, *axes))
    lengths = Tensor(W.make("run", ordered.shape, run))
    longest = O.argmax(lengths, axis=axis, keepdims=True)
    return _picked(value, X.take_along(order, value_of(longest), axis), axis, keepdims)
