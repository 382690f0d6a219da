"""The public functions on tensors, under the array API's names.

Those that also mean something on scalars work inside `pb.compute`: ``pb.sum(a[i, k], over=k)``.
"""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np

from pullback.errors import DTypeError, OptionError
from pullback.ir import dtype as D
from pullback.ir.graph import Keep
from pullback.tensor.face import handles
from pullback.tensor.face.dialect import spelled
from pullback.tensor.face.eager import eagerly, viewing
from pullback.tensor.face.extents import beside
from pullback.tensor.face.handles import ScalarHandle
from pullback.tensor.face.tensor import (
    Axes,
    Tensor,
    apply,
    operand,
    optional_dtype,
    shape_of,
    value_of,
)
from pullback.tensor.library.creation import sizes_of
from pullback.tensor.shaped.checks import declared, shaped
from pullback.tensor.values import elementwise as W
from pullback.tensor.values import indexing as X
from pullback.tensor.values import linalg as L
from pullback.tensor.values import reduction as R
from pullback.tensor.values import views as V
from pullback.tensor.values.answers import answered
from pullback.tensor.values.precise import in_float32

_NONE: Any = object()


# --- reductions ----------------------------------------------------------------------------------


def _scalar(x: Any, over: Any) -> bool:
    """Whether a reduction is one inside a definition."""
    if over is not _NONE:
        return True
    if isinstance(x, ScalarHandle):
        raise DTypeError(
            "a reduction of a scalar expression",
            help="say over which axis: over=k with k = pb.axis(extent)",
            code="E154",
        )
    return False


@eagerly
@answered
@spelled
@declared("x[...]")
def sum(
    x: Any, axis: Axes = None, *, over: Any = _NONE, dtype: Any = None, keepdims: bool = False
) -> Any:
    """Sum of elements; of a scalar expression over axes: ``sum[k](x)``

    Example:
        >>> pb.sum(pb.tensor([[1.0, 5.0], [4.0, 2.0]]), axis=1)
        Tensor([6., 6.], dtype=float32)
    """
    if _scalar(x, over):
        return handles.fold("sum", x, over)
    return Tensor(R.total(value_of(x), axis, keepdims, optional_dtype(dtype)))


@eagerly
@answered
@spelled
@declared("x[...]")
def prod(
    x: Any, axis: Axes = None, *, over: Any = _NONE, dtype: Any = None, keepdims: bool = False
) -> Any:
    """Product of elements.

    Example:
        >>> pb.prod(pb.tensor([[1.0, 5.0], [4.0, 2.0]]), axis=1)
        Tensor([5., 8.], dtype=float32)
    """
    if _scalar(x, over):
        return handles.fold("prod", x, over)
    return Tensor(R.product(value_of(x), axis, keepdims, optional_dtype(dtype)))


@eagerly
@answered
@spelled
@declared("x[...]")
def max(x: Any, axis: Axes = None, *, over: Any = _NONE, keepdims: bool = False) -> Any:
    """The largest element; NaN if any is. Of equal ones the first has the whole gradient.

    Example:
        >>> pb.max(pb.tensor([[1.0, 5.0], [4.0, 2.0]]), axis=1)
        Tensor([5., 4.], dtype=float32)
    """
    if _scalar(x, over):
        return handles.fold("max", x, over)
    return Tensor(R.extreme("max", value_of(x), axis, keepdims))


@eagerly
@answered
@spelled
@declared("x[...]")
def min(x: Any, axis: Axes = None, *, over: Any = _NONE, keepdims: bool = False) -> Any:
    """The smallest element; NaN if any is. Of equal ones the first has the whole gradient.

    Example:
        >>> pb.min(pb.tensor([[1.0, 5.0], [4.0, 2.0]]), axis=1)
        Tensor([1., 2.], dtype=float32)
    """
    if _scalar(x, over):
        return handles.fold("min", x, over)
    return Tensor(R.extreme("min", value_of(x), axis, keepdims))


@eagerly
@spelled
@declared("x[...]")
def amax(x: Any, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """The largest element; equal ones share the gradient evenly, where `max` has one winner.

    Example:
        >>> pb.amax(pb.tensor([[1.0, 5.0], [4.0, 2.0]]), axis=1)
        Tensor([5., 4.], dtype=float32)
    """
    return Tensor(R.even_extreme("max", value_of(x), axis, keepdims))


@eagerly
@spelled
@declared("x[...]")
def amin(x: Any, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """The smallest element; equal ones share the gradient evenly, where `min` has one winner.

    Example:
        >>> pb.amin(pb.tensor([[1.0, 5.0], [4.0, 2.0]]), axis=1)
        Tensor([1., 2.], dtype=float32)
    """
    return Tensor(R.even_extreme("min", value_of(x), axis, keepdims))


@eagerly
@answered
@spelled
@declared("x[...]")
def any(x: Any, axis: Axes = None, *, over: Any = _NONE, keepdims: bool = False) -> Any:
    """Whether any element is true.

    Example:
        >>> pb.any(pb.tensor([[True, False], [False, False]]), axis=1)
        Tensor([ True, False], dtype=bool)
    """
    if _scalar(x, over):
        return handles.fold("any", x, over)
    return Tensor(R.truth("any", value_of(x), axis, keepdims))


@eagerly
@answered
@spelled
@declared("x[...]")
def all(x: Any, axis: Axes = None, *, over: Any = _NONE, keepdims: bool = False) -> Any:
    """Whether all elements are true.

    Example:
        >>> pb.all(pb.tensor([[True, False], [True, True]]), axis=1)
        Tensor([False,  True], dtype=bool)
    """
    if _scalar(x, over):
        return handles.fold("all", x, over)
    return Tensor(R.truth("all", value_of(x), axis, keepdims))


@eagerly
@answered
@spelled
@declared("x[...]")
def argmax(x: Any, axis: int | None = None, *, over: Any = _NONE, keepdims: bool = False) -> Any:
    """The first place of the largest element.

    Example:
        >>> pb.argmax(pb.tensor([[1.0, 5.0], [4.0, 2.0]]), axis=1)
        Tensor([1, 0], dtype=int64)
    """
    if _scalar(x, over):
        return handles.arg_fold("argmax", x, over)
    return Tensor(R.arg_extreme("argmax", value_of(x), axis, keepdims))


@eagerly
@answered
@spelled
@declared("x[...]")
def argmin(x: Any, axis: int | None = None, *, over: Any = _NONE, keepdims: bool = False) -> Any:
    """The first place of the smallest element.

    Example:
        >>> pb.argmin(pb.tensor([[1.0, 5.0], [4.0, 2.0]]), axis=1)
        Tensor([0, 1], dtype=int64)
    """
    if _scalar(x, over):
        return handles.arg_fold("argmin", x, over)
    return Tensor(R.arg_extreme("argmin", value_of(x), axis, keepdims))


@eagerly
@answered
@spelled
@declared("x[...]")
def mean(x: Any, axis: Axes = None, *, over: Any = _NONE, keepdims: bool = False) -> Any:
    """Mean of elements.

    Example:
        >>> pb.mean(pb.tensor([[1.0, 5.0], [4.0, 2.0]]), axis=1)
        Tensor([3., 3.], dtype=float32)
    """
    if _scalar(x, over):
        return handles.mean(x, over)
    return Tensor(R.mean(value_of(x), axis, keepdims))


@eagerly
@answered
@spelled
@declared("x[...]")
def var(x: Any, axis: Axes = None, *, correction: float = 0.0, keepdims: bool = False) -> Tensor:
    """``sum((x - mean)^2) / (n - correction)``

    Example:
        >>> pb.var(pb.tensor([1.0, 3.0]))
        Tensor(1., dtype=float32)
    """
    return Tensor(R.variance(value_of(x), axis, keepdims, correction))


@eagerly
@answered
@spelled
@declared("x[...]")
def std(x: Any, axis: Axes = None, *, correction: float = 0.0, keepdims: bool = False) -> Any:
    """The root of the variance; where that is 0, so is the gradient.

    Example:
        >>> pb.std(pb.tensor([1.0, 3.0]))
        Tensor(1., dtype=float32)
    """
    return Tensor(R.deviation(value_of(x), axis, keepdims, correction))


@eagerly
@spelled
@declared("x[...]")
def logsumexp(x: Any, axis: Axes = None, *, keepdims: bool = False) -> Tensor:
    """``log(sum(exp(x)))``, safe for large elements.

    Example:
        >>> pb.logsumexp(pb.zeros(2))
        Tensor(0.6931472, dtype=float32)
    """
    return Tensor(R.logsumexp(value_of(x), axis, keepdims))


@eagerly
@spelled
@declared("x[b...] -> [b...]")
def softmax(x: Any, axis: int = -1) -> Tensor:
    """``exp(x) / sum(exp(x))``

    Example:
        >>> pb.softmax(pb.tensor([0.0, 1.0]))
        Tensor([0.2689414, 0.7310586], dtype=float32)
    """
    return Tensor(R.softmax(value_of(x), axis))


@eagerly
@spelled
@declared("x[b...] -> [b...]")
def log_softmax(x: Any, axis: int = -1) -> Tensor:
    """``x - log(sum(exp(x)))``

    Example:
        >>> pb.log_softmax(pb.tensor([0.0, 0.0]))
        Tensor([-0.6931472, -0.6931472], dtype=float32)
    """
    return Tensor(R.log_softmax(value_of(x), axis))


@eagerly
@answered
@spelled
@declared("x[...]")
def cumulative_sum(
    x: Any, axis: int | None = None, *, dtype: Any = None, include_initial: bool = False
) -> Tensor:
    """Running sum along an axis; with `include_initial` from 0, one element longer.

    Example:
        >>> pb.cumulative_sum(pb.tensor([1.0, 3.0, 2.0]))
        Tensor([1., 4., 6.], dtype=float32)
    """
    kind = optional_dtype(dtype)
    return Tensor(R.cumulative("sum", value_of(x), axis, kind, include_initial))


@eagerly
@answered
@spelled
@declared("x[...]")
def cumulative_prod(
    x: Any, axis: int | None = None, *, dtype: Any = None, include_initial: bool = False
) -> Tensor:
    """Running product along an axis; with `include_initial` from 1, one element longer.

    Example:
        >>> pb.cumulative_prod(pb.tensor([1.0, 3.0, 2.0]))
        Tensor([1., 3., 6.], dtype=float32)
    """
    kind = optional_dtype(dtype)
    return Tensor(R.cumulative("prod", value_of(x), axis, kind, include_initial))


@eagerly
@spelled
@declared("x[b...] -> [b...]")
def cumulative_max(x: Any, axis: int | None = None) -> Tensor:
    """Running maximum along an axis. Of equal ones the first has the gradient.

    Example:
        >>> pb.cumulative_max(pb.tensor([1.0, 3.0, 2.0]))
        Tensor([1., 3., 3.], dtype=float32)
    """
    return Tensor(R.cumulative("max", value_of(x), axis, None))


@eagerly
@spelled
@declared("x[b...] -> [b...]")
def cumulative_min(x: Any, axis: int | None = None) -> Tensor:
    """Running minimum along an axis. Of equal ones the first has the gradient.

    Example:
        >>> pb.cumulative_min(pb.tensor([3.0, 1.0, 2.0]))
        Tensor([3., 1., 1.], dtype=float32)
    """
    return Tensor(R.cumulative("min", value_of(x), axis, None))


# --- products ------------------------------------------------------------------------------------


@eagerly
@answered
@declared("x1[*b, n, k] or [k], x2[*b, k, m] or [k]")
def matmul(x1: Any, x2: Any) -> Tensor:
    """The matrix product, batched and broadcast; one axis is a vector.

    Example:
        >>> pb.matmul(pb.ones((2, 3)), pb.ones((3, 4))).shape
        (2, 4)
    """
    return Tensor(L.matmul(value_of(x1), value_of(x2)))


@eagerly
@answered
@declared("x1[...], x2[...]")
def tensordot(x1: Any, x2: Any, axes: Any = 2) -> Tensor:
    """The sum of products over matched axes.

    Example:
        >>> pb.tensordot(pb.ones((2, 3)), pb.ones((3, 4)), 1).shape
        (2, 4)
    """
    return Tensor(L.tensordot(value_of(x1), value_of(x2), axes))


@eagerly
@answered
@declared("x1[...], x2[...]")
@in_float32
def vecdot(x1: Any, x2: Any, axis: int = -1) -> Any:
    """The sum of products along one axis, of their type.

    Example:
        >>> pb.vecdot(pb.tensor([1.0, 2.0]), pb.tensor([3.0, 4.0]))
        Tensor(11., dtype=float32)
    """
    products = apply("multiply", x1, x2)
    return sum(products, axis, dtype=products.dtype)


@eagerly
@answered
@declared("x1[n], x2[m] -> [n, m]")
def outer(x1: Any, x2: Any) -> Tensor:
    """``out[i, j] = x1[i] * x2[j]``

    Example:
        >>> pb.outer(pb.ones(2), pb.ones(3)).shape
        (2, 3)
    """
    return Tensor(L.contract([value_of(x1), value_of(x2)], ["i", "j"], "ij"))


@answered
@shaped("*operands[...]")
def einsum(subscripts: Any, *operands: Any) -> Tensor:
    """A sum of products, axes named by letters; ``...`` is any number of axes that broadcast.

    ``einsum("...ij,...jk->...ik", a, b)``, or in lists ``einsum(a, [0, 1], b, [1, 2], [0, 2])``.
    Several operands go two at a time, in the order of fewest multiplications (greedily from 7 on).
    Raises: ShapeError, E116, for subscripts that do not fit.

    Example:
        >>> pb.einsum("ij,jk->ik", pb.ones((2, 3)), pb.ones((3, 4))).shape
        (2, 4)
    """
    if isinstance(subscripts, str):
        terms, out = L.parsed(subscripts)
        return Tensor(L.einsum([value_of(o) for o in operands], terms, out))
    given = [subscripts, *operands]
    if len(given) < 2 or [t for t in given[1::2] if isinstance(t, Tensor)]:
        raise V.fail("einsum of tensors without subscripts", code="E116")
    paired = len(given) // 2 * 2
    result = given[paired] if len(given) > paired else None
    values = [value_of(o) for o in given[:paired:2]]
    return Tensor(L.einsum(values, given[1:paired:2], result))


# --- choosing ------------------------------------------------------------------------------------


@eagerly
@answered
@declared("condition[*b], x1[*b], x2[*b] -> [*b]")
def where(condition: Any, x1: Any, x2: Any) -> Any:
    """``x1 if condition else x2``; the other is never read.

    Example:
        >>> pb.where(pb.tensor([True, False]), 1.0, 2.0)
        Tensor([1., 2.], dtype=float32)
    """
    given = beside((condition, x1, x2))
    for one in given:
        if isinstance(one, ScalarHandle):
            return handles.where(*given)
    return Tensor(W.where(*map(operand, given)))


@eagerly
@answered
@declared("x[*b], min[*b], max[*b] -> [*b]")
def clip(x: Any, min: Any = None, max: Any = None) -> Any:
    """``minimum(maximum(x, min), max)``; None is no bound.

    Example:
        >>> pb.clip(pb.tensor([-2.0, 0.5, 9.0]), 0, 1)
        Tensor([0. , 0.5, 1. ], dtype=float32)
    """
    if isinstance(x, ScalarHandle):
        return handles.clip(x, min, max)
    low, high = (None if b is None else operand(beside((x, b))[1]) for b in (min, max))
    return Tensor(W.clip(operand(x), low, high))


@eagerly
@answered
@declared("x[b...] -> [b...]")
def astype(x: Any, dtype: Any, *, copy: bool = True) -> Any:
    """Another element type. Float to integer truncates and saturates, NaN gives 0.

    Example:
        >>> pb.astype(pb.tensor([1.7, -1.7]), "int32")
        Tensor([ 1, -1], dtype=int32)
    """
    if isinstance(x, ScalarHandle):
        return handles.astype(x, D.dtype(dtype))
    return x.astype(dtype, copy=copy)


@answered
@declared("x[b...] -> [b...]")
def stop_gradient(x: Tensor) -> Tensor:
    """The same values; no gradient passes.

    Example:
        >>> pb.grad(lambda x: x * pb.stop_gradient(x))(pb.tensor(3.0))
        Tensor(3., dtype=float32)
    """
    return Tensor(W.copy(value_of(x), "stop_gradient", stop=True))


def keep(x: Tensor, when: str) -> Tensor:
    """The same values, marked to reach memory "never", "always", or as is best ("auto").

    Example:
        >>> pb.keep(pb.ones(2) * 3, "always")
        Tensor([3., 3.], dtype=float32)
    """
    if when not in (known := [k.value for k in Keep]):
        raise OptionError(f"keep: when={when!r}", help=f"one of {known}", code="E124")
    return Tensor(W.copy(value_of(x), "keep", keep=Keep(when)))


# --- shapes --------------------------------------------------------------------------------------


@viewing(np.reshape)
@answered
def reshape(x: Any, shape: Any, *, copy: bool | None = None) -> Tensor:
    """The same elements in row-major order; one extent may be -1.

    Example:
        >>> pb.reshape(pb.arange(6), (2, 3)).tolist()
        [[0, 1, 2], [3, 4, 5]]
    """
    return Tensor(V.reshape(value_of(x), shape_of(shape, -1)))


@viewing(np.transpose)
@answered
def permute_dims(x: Any, axes: Sequence[int]) -> Tensor:
    """Axis n of the result is axis ``axes[n]``.

    Example:
        >>> pb.permute_dims(pb.ones((2, 3, 4)), (2, 0, 1)).shape
        (4, 2, 3)
    """
    return Tensor(V.permute(value_of(x), axes))


@viewing(np.matrix_transpose)
@answered
def matrix_transpose(x: Tensor) -> Tensor:
    """The last two axes swapped.

    Example:
        >>> pb.matrix_transpose(pb.ones((5, 2, 3))).shape
        (5, 3, 2)
    """
    return x.mT


@viewing(np.moveaxis)
@answered
def moveaxis(x: Any, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    """Axes moved, the others in order.

    Example:
        >>> pb.moveaxis(pb.ones((2, 3, 4)), 0, -1).shape
        (3, 4, 2)
    """
    value = value_of(x)
    rank = len(value.shape)
    lists = [tuple(p) if isinstance(p, Sequence) else (p,) for p in (source, destination)]
    starts, ends = ([V.normal_axis(n, rank) for n in places] for places in lists)
    if not len({*starts}) == len({*ends}) == len(starts) == len(ends):
        raise V.fail(f"moveaxis of {lists[0]} to {lists[1]}", code="E113")
    order = [n for n in range(rank) if n not in starts]
    for end, start in sorted(zip(ends, starts, strict=True)):
        order.insert(end, start)
    return Tensor(V.permute(value, order))


@eagerly
@answered
@spelled
def expand_dims(x: Any, axis: Axes = 0) -> Tensor:
    """A new axis of extent one.

    Example:
        >>> pb.expand_dims(pb.ones(3), 0).shape
        (1, 3)
    """
    return Tensor(V.expand_dims(value_of(x), 0 if axis is None else axis))


@viewing(np.squeeze)
@answered
@spelled
def squeeze(x: Any, axis: Axes = None) -> Tensor:
    """Axes of extent one removed.

    Example:
        >>> pb.squeeze(pb.ones((1, 3, 1)), 0).shape
        (3, 1)
    """
    return Tensor(V.squeeze(value_of(x), axis))


@viewing(np.broadcast_to)
@answered
def broadcast_to(x: Any, shape: Any) -> Tensor:
    """`x` stretched to `shape`.

    Example:
        >>> pb.broadcast_to(pb.tensor([1.0, 2.0]), (2, 2)).tolist()
        [[1.0, 2.0], [1.0, 2.0]]
    """
    return Tensor(W.broadcast_to(value_of(x), shape_of(shape)))


@answered
@shaped("*arrays[*b]")
def broadcast_arrays(*arrays: Any) -> list[Tensor]:
    """All stretched to their common shape.

    Example:
        >>> [x.shape for x in pb.broadcast_arrays(pb.ones(3), pb.ones((2, 1)))]
        [(2, 3), (2, 3)]
    """
    values = [value_of(a) for a in arrays]
    shape = W.broadcast_shapes([v.shape for v in values])
    return [Tensor(W.broadcast_to(v, shape)) for v in values]


@viewing(np.flip)
@answered
@spelled
@declared("x[b...] -> [b...]")
def flip(x: Any, axis: Axes = None) -> Tensor:
    """Elements in reverse order.

    Example:
        >>> pb.flip(pb.tensor([1, 2, 3]))
        Tensor([3, 2, 1], dtype=int64)
    """
    return Tensor(V.flip(value_of(x), axis))


@eagerly
@answered
@spelled
@declared("x[b...] -> [b...]")
def roll(x: Any, shift: int | Sequence[int], axis: Axes = None) -> Tensor:
    """Elements moved along axes, round the end; without axes along the flattened tensor.

    One shift serves several axes, several shifts of one axis add up.

    Example:
        >>> pb.roll(pb.tensor([1, 2, 3]), 1)
        Tensor([3, 1, 2], dtype=int64)
    """
    value = value_of(x)
    shifts = [V.whole(s, "shift") for s in (shift if isinstance(shift, Sequence) else (shift,))]
    if axis is None:
        flat = V.roll(V.reshape(value, (-1,)), [builtins.sum(shifts)], [0])
        return Tensor(V.reshape(flat, value.shape))
    axes = list(axis) if isinstance(axis, Sequence) else [axis]
    if len(shifts) != len(axes) and 1 not in (len(shifts), len(axes)):
        raise V.fail(f"roll by {len(shifts)} shifts along {len(axes)} axes", code="E134")
    times = builtins.max(len(shifts), len(axes))
    shifts, axes = ([*n] * (times if len(n) == 1 else 1) for n in (shifts, axes))
    return Tensor(V.roll(value, shifts, axes))


@answered
@spelled
@shaped("*arrays[b..., _ @ axis]")
def concat(arrays: Sequence[Any], axis: int | None = 0) -> Tensor:
    """Pieces one after the other.

    Example:
        >>> pb.concat([pb.zeros(1), pb.ones(2)])
        Tensor([0., 1., 1.], dtype=float32)
    """
    values = [value_of(a) for a in arrays]
    if not values:
        raise V.fail("concat of nothing", code="E118")
    if axis is None:
        return Tensor(V.concat([V.reshape(v, (-1,)) for v in values], 0))
    return Tensor(V.concat(values, axis))


@answered
@spelled
@shaped("*arrays[b...]")
def stack(arrays: Sequence[Any], axis: int = 0) -> Tensor:
    """Pieces side by side along a new axis.

    Example:
        >>> pb.stack([pb.zeros(2), pb.ones(2)]).tolist()
        [[0.0, 0.0], [1.0, 1.0]]
    """
    if not arrays:
        raise V.fail("stack of nothing", code="E118")
    return Tensor(V.stack([value_of(a) for a in arrays], axis))


@answered
@spelled
def split(x: Any, sections: int | Sequence[int], axis: int = 0) -> list[Tensor]:
    """Equal pieces, or pieces cut at given places.

    Example:
        >>> [x.tolist() for x in pb.split(pb.arange(6), 3)]
        [[0, 1], [2, 3], [4, 5]]
    """
    value = value_of(x)
    n = V.normal_axis(axis, len(value.shape))
    extent = value.shape[n]
    if not isinstance(extent, int):
        raise V.fail(f"cannot split the symbolic axis {extent}", code="E120")
    parts = [slice(None)] * n
    cuts = sizes_of(sections, extent)
    return [Tensor(X.index(value, [*parts, slice(a, b)])) for a, b in cuts]


@answered
@spelled
def unstack(x: Any, axis: int = 0) -> tuple[Tensor, ...]:
    """The pieces along an axis.

    Example:
        >>> pb.unstack(pb.tensor([1.0, 2.0]))
        (Tensor(1., dtype=float32), Tensor(2., dtype=float32))
    """
    value = value_of(x)
    n = V.normal_axis(axis, len(value.shape))
    extent = value.shape[n]
    if not isinstance(extent, int):
        raise V.fail(f"cannot unstack the symbolic axis {extent}", code="E120")
    parts = [slice(None)] * n
    return tuple(Tensor(X.index(value, [*parts, k])) for k in range(extent))


@eagerly
@answered
def pad(x: Any, pad_width: Any, value: W.Scalar = 0) -> Tensor:
    """`value` around: (before, after) for each axis, one pair, or one number for all.

    Example:
        >>> pb.pad(pb.ones(2), [(1, 2)])
        Tensor([0., 1., 1., 0., 0.], dtype=float32)
    """
    source = value_of(x)
    rank = len(source.shape)
    listed: list[Any] = [pad_width] if isinstance(pad_width, SupportsIndex) else [*pad_width]
    if len(listed) == 1 and isinstance(listed[0], SupportsIndex):
        listed *= 2
    if len(listed) == 2 and isinstance(listed[0], SupportsIndex):
        listed = [listed] * rank
    pairs = [tuple(V.whole(n, "pad: a width") for n in pair) for pair in listed]
    if {len(pair) for pair in pairs} - {2}:
        raise V.fail(f"pad by {pairs}: a pair of widths for each axis", code="E134")
    return Tensor(V.pad(source, [(a, b) for a, b in pairs], value))


@eagerly
@answered
def tile(x: Any, repetitions: Sequence[int]) -> Tensor:
    """The whole repeated.

    Example:
        >>> pb.tile(pb.tensor([1, 2]), (2,))
        Tensor([1, 2, 1, 2], dtype=int64)
    """
    return Tensor(V.tile(value_of(x), repetitions))


@eagerly
@answered
@spelled
def repeat(x: Any, repeats: int, *, axis: int | None = None) -> Tensor:
    """Each element repeated.

    Example:
        >>> pb.repeat(pb.tensor([1, 2]), 2)
        Tensor([1, 1, 2, 2], dtype=int64)
    """
    value = value_of(x)
    if axis is None:
        return Tensor(V.repeat(V.reshape(value, (-1,)), repeats, 0))
    return Tensor(V.repeat(value, repeats, axis))


@eagerly
@answered
@declared("x[b...] -> [b...]")
def tril(x: Any, *, k: int = 0) -> Tensor:
    """The lower triangle of the last two axes; 0 above diagonal `k`.

    Example:
        >>> pb.tril(pb.ones((2, 2))).tolist()
        [[1.0, 0.0], [1.0, 1.0]]
    """
    return Tensor(V.triangle(value_of(x), k, upper=False))


@eagerly
@answered
@declared("x[b...] -> [b...]")
def triu(x: Any, *, k: int = 0) -> Tensor:
    """The upper triangle of the last two axes; 0 below diagonal `k`.

    Example:
        >>> pb.triu(pb.ones((2, 2))).tolist()
        [[1.0, 1.0], [0.0, 1.0]]
    """
    return Tensor(V.triangle(value_of(x), k, upper=True))


# --- elements by index ---------------------------------------------------------------------------


@answered
@spelled
@shaped("x[s..., _ @ axis], indices[...]")
def take(x: Any, indices: Any, *, axis: int = 0) -> Tensor:
    """``out[a, i, b] = x[a, indices[i], b]``; negative ones count from the end, others raise.

    Example:
        >>> pb.take(pb.tensor([10, 20, 30]), pb.tensor([2, 0]))
        Tensor([30, 10], dtype=int64)
    """
    places = value_of(np.asarray(indices) if isinstance(indices, list) else indices)
    return Tensor(X.take(value_of(x), places, axis))


@answered
@spelled
@shaped("x[*s, _ @ axis], indices[*s, m @ axis] -> [*s, m @ axis]")
def take_along_axis(x: Any, indices: Any, axis: int = -1) -> Tensor:
    """``out[i, j] = x[i, indices[i, j]]``

    Example:
        >>> pb.take_along_axis(pb.tensor([[1, 2], [3, 4]]), pb.tensor([[1], [0]])).tolist()
        [[2], [3]]
    """
    return Tensor(X.take_along(value_of(x), value_of(indices), axis))


@answered
def result_type(*operands: Any) -> D.DType:
    """The type that operands promote to.

    Example:
        >>> pb.result_type(pb.int32, pb.float32)
        float32
    """
    kinds = [o if isinstance(o, D.DType) else operand(o) for o in operands]
    typed = [W.full((), 0, k) if isinstance(k, D.DType) else k for k in kinds]
    return W.common_dtype(typed)
