"""Reductions, places of extremes, running sums, softmax."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pullback as pb
from pullback.onnx.rules.table import axis_of, demand, enter, numbers, rule

Reduction = Callable[..., Any]


def _lowest(kind: Any) -> Any:
    return -math.inf if kind.is_float else kind.range()[0]


def _highest(kind: Any) -> Any:
    return math.inf if kind.is_float else kind.range()[1]


def _extreme(function: Reduction, empty: Callable[[Any], Any]) -> Reduction:
    """The largest or smallest; of nothing what no element is beyond."""

    def run(x: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
        if any(x.shape[a] == 0 for a in axis):
            return pb.full(_left(x, axis, keepdims), empty(x.dtype), dtype=x.dtype)
        if x.dtype.is_bool:
            return pb.astype(run(pb.astype(x, pb.uint8), axis, keepdims), pb.bool_)
        return function(x, axis=axis, keepdims=keepdims)

    return run


def _left(x: Any, axis: Sequence[int], keepdims: bool) -> tuple[int, ...]:
    kept = [1 if n in axis else e for n, e in enumerate(x.shape) if keepdims or n not in axis]
    return tuple(kept)


def _typed(function: Reduction) -> Reduction:
    """A reduction in the type of what it reduces."""

    def run(x: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
        return pb.astype(function(x, axis, keepdims), x.dtype)

    return run


def _sum(x: Any, axis: Any, keepdims: bool) -> Any:
    return pb.sum(x, axis=axis, keepdims=keepdims)


def _log_sum_exp(x: Any, axis: Any, keepdims: bool) -> Any:
    if any(x.shape[a] == 0 for a in axis):
        return pb.full(_left(x, axis, keepdims), -math.inf, dtype=x.dtype)
    return pb.logsumexp(x, axis=axis, keepdims=keepdims)


_REDUCTIONS: dict[str, Reduction] = {
    "ReduceSum": _typed(_sum),
    "ReduceProd": _typed(lambda x, axis, keep: pb.prod(x, axis=axis, keepdims=keep)),
    "ReduceMean": _typed(lambda x, axis, keep: pb.mean(x, axis=axis, keepdims=keep)),
    "ReduceMax": _extreme(pb.max, _lowest),
    "ReduceMin": _extreme(pb.min, _highest),
    "ReduceL1": _typed(lambda x, axis, keep: _sum(pb.abs(x), axis, keep)),
    "ReduceL2": _typed(lambda x, axis, keep: pb.sqrt(_sum(x * x, axis, keep))),
    "ReduceSumSquare": _typed(lambda x, axis, keep: _sum(x * x, axis, keep)),
    "ReduceLogSum": _typed(lambda x, axis, keep: pb.log(_sum(x, axis, keep))),
    "ReduceLogSumExp": _typed(_log_sum_exp),
}


def _along(x: Any, axes: Sequence[int] | None) -> tuple[int, ...]:
    """Axes counted from the start; none are all."""
    return tuple([axis_of(a, x.ndim) for a in axes]) if axes else tuple(range(x.ndim))


def _by_attribute(function: Reduction) -> Reduction:
    def run(x: Any, *, axes: Sequence[int] | None, keepdims: int) -> Any:
        return function(x, _along(x, axes), bool(keepdims)) if x.ndim else function(x, (), False)

    return run


def _by_operand(function: Reduction) -> Reduction:
    def run(x: Any, axes: Any = None, *, keepdims: int, noop_with_empty_axes: int) -> Any:
        listed = numbers(axes) if axes is not None else ()
        if not listed and noop_with_empty_axes:
            return function(x, (), bool(keepdims))
        return function(x, _along(x, listed), bool(keepdims))

    return run


for _name, _function in _REDUCTIONS.items():
    _early = {"ReduceSum": (1, 11), "ReduceMax": (1, 11, 12, 13), "ReduceMin": (1, 11, 12, 13)}
    _late = {"ReduceSum": (13,), "ReduceMax": (18, 20), "ReduceMin": (18, 20)}
    enter(_name, _early.get(_name, (1, 11, 13)), _by_attribute(_function))
    enter(_name, _late.get(_name, (18,)), _by_operand(_function), known=(1,))
for _name in ("ReduceLogSum", "ReduceLogSumExp"):
    enter(_name, (28,), _by_operand(_REDUCTIONS[_name]), known=(1,))


def _place(function: Reduction) -> Reduction:
    def run(x: Any, *, axis: int, keepdims: int, select_last_index: int = 0) -> Any:
        at = axis_of(axis, x.ndim)
        if not select_last_index:
            return function(x, axis=at, keepdims=bool(keepdims))
        return x.shape[at] - 1 - function(pb.flip(x, axis=at), axis=at, keepdims=bool(keepdims))

    return run


def _first(function: Reduction) -> Reduction:
    def run(x: Any, *, axis: int, keepdims: int) -> Any:
        return function(x, axis=axis, keepdims=keepdims)

    return run


for _name, _function in (("ArgMax", pb.argmax), ("ArgMin", pb.argmin)):
    enter(_name, (1, 11), _first(_place(_function)))
    enter(_name, (12, 13), _place(_function))


def _running(function: Reduction, start: int) -> Reduction:
    """Sums or products of the elements so far; `exclusive` ones without the last."""

    def run(x: Any, axis: Any, *, exclusive: int, reverse: int) -> Any:
        at = axis_of(numbers(axis)[0], x.ndim)
        x = pb.flip(x, axis=at) if reverse else x
        y: Any = pb.astype(function(x, axis=at), x.dtype)
        if exclusive:
            rest = y[(*[slice(None)] * at, slice(0, y.shape[at] - 1))]
            y = pb.concat(
                [pb.full_like(x[(*[slice(None)] * at, slice(0, 1))], start), rest], axis=at
            )
        return pb.flip(y, axis=at) if reverse else y

    return run


enter("CumSum", (11, 14), _running(pb.cumulative_sum, 0), known=(1,))
enter("CumProd", (26,), _running(pb.cumulative_prod, 1), known=(1,))


# --- softmax --------------------------------------------------------------------------------------


def _hardmax(x: Any, axis: int) -> Any:
    """1 at the first largest."""
    places = pb.argmax(x, axis=axis, keepdims=True)
    shape = [1] * x.ndim
    shape[axis] = x.shape[axis]
    here = pb.reshape(pb.arange(x.shape[axis], dtype=places.dtype), tuple(shape))
    return pb.astype(here == places, x.dtype)


def _by_axis(function: Reduction) -> Reduction:
    def run(x: Any, *, axis: int) -> Any:
        return x if 0 in x.shape else function(x, axis=axis_of(axis, x.ndim))

    return run


def _by_rows(function: Reduction) -> Reduction:
    """Until version 13: over all axes from one on."""

    def run(x: Any, *, axis: int) -> Any:
        at = axis_of(axis, x.ndim)
        rows = pb.reshape(x, (math.prod(x.shape[:at]), -1))
        return pb.reshape(function(rows, axis=1), tuple(x.shape))

    return run


for _name, _function in (
    ("Softmax", pb.softmax), ("LogSoftmax", pb.log_softmax), ("Hardmax", _hardmax),
):  # fmt: skip
    enter(_name, (1, 11), _by_rows(_function))
    enter(_name, (13,), _by_axis(_function))


@rule("LpNormalization", 1, 22)
def lp_normalization(x: Any, *, axis: int, p: int) -> Any:
    """Rows without length stay 0."""
    demand(p in (1, 2), f"p={p}")
    sums = pb.sum(pb.abs(x) if p == 1 else x * x, axis=axis_of(axis, x.ndim), keepdims=True)
    norm = sums if p == 1 else pb.sqrt(sums)
    return pb.where(norm == 0, 0, x / pb.where(norm == 0, 1, norm))
