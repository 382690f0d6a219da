"""Tensors some of whose axes count as one, for shapes that are products of symbolic sizes.

    view(x, (s * 16, d)) of x (s, 16, d)   ->   Fold(x, ((0, 1), (2,)))

A linear layer over samples and tokens is such a view, a product of matrices, and a view back: no
extent is a product, and no element moves. What an operator does to a fold is said here for few of
them; others raise, and their graph has a program for each size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import sympy
import torch

from pullback.errors import ShapeError
from pullback.ir.dtype import is_short
from pullback.ir.expr import Extent
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.library.maths import add, multiply
from pullback.tensor.library.ops import astype, permute_dims, reshape, tensordot
from pullback.tensor.library.ops import sum as sum_of

aten = torch.ops.aten
VIEWS = {
    aten.view.default,
    aten._unsafe_view.default,
    aten.reshape.default,
    aten._reshape_copy.default,
    aten.view_copy.default,
}
Of = Callable[[Extent], Any]
"""The expression of an extent."""


@dataclass(frozen=True, slots=True)
class Fold:
    """`tensor`, whose axes in `groups`, one after the other, count as one each."""

    tensor: Tensor
    groups: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, value: Any) -> Fold:
        """As a fold, of one axis each."""
        if isinstance(value, cls):
            return value
        return cls(value, tuple([(n,) for n in range(value.ndim)]))

    @property
    def plain(self) -> Any:
        """The tensor, where each axis counts for itself."""
        return self.tensor if all(len(g) == 1 for g in self.groups) else self

    def extents(self, axis: int) -> tuple[Extent, ...]:
        """Those that count as one."""
        return tuple([self.tensor.shape[n] for n in self.groups[axis]])

    def shape(self, of: Of) -> tuple[Any, ...]:
        """The expression of each size."""
        return tuple([sympy.Mul(*map(of, self.extents(n))) for n in range(len(self.groups))])


def grouped(tensor: Tensor, lengths: Sequence[int]) -> Fold:
    """So many axes in each group, in order."""
    ends = [0, *accumulate(lengths)]
    return Fold(tensor, tuple([tuple(range(a, b)) for a, b in pairwise(ends)]))


def viewed(value: Any, shape: Sequence[Any], of: Of) -> Any:
    """A view of `shape`, expressions. Raises: ShapeError E120 where that splits a symbolic axis."""
    rest = [e for e in Fold.of(value).tensor.shape if e != 1]
    groups: list[list[Extent]] = []
    for size in shape:
        group: list[Extent] = []
        while (missing := _quotient(size, sympy.Mul(*map(of, group)))) != 1:
            group.append(_next(rest, missing, of))
        groups.append(_merged(group) or [1])
    if rest:
        raise ShapeError(f"a view of other elements: {rest} are left", code="E120")
    tensor = reshape(Fold.of(value).tensor, tuple([e for g in groups for e in g]))
    return grouped(tensor, [len(g) for g in groups]).plain


def _merged(group: Sequence[Extent]) -> list[Extent]:
    """Numbers beside each other as one."""
    made: list[Extent] = []
    for extent in group:
        last = made[-1] if made else None
        if isinstance(extent, int) and isinstance(last, int):
            made[-1] = extent * last
        else:
            made.append(extent)
    return made


def _next(rest: list[Extent], missing: Any, of: Of) -> Extent:
    """The next axis of those that a view still has to place, or the part of it that it wants."""
    if rest and _quotient(missing, of(rest[0])) is not None:
        return rest.pop(0)
    if rest and isinstance(rest[0], int) and missing.is_Integer and rest[0] % int(missing) == 0:
        first, rest[0] = int(missing), rest[0] // int(missing)
        return first
    left = ", ".join(map(str, rest))
    raise ShapeError(f"a view splits a symbolic size: {missing} of {left}", code="E120")


def _quotient(whole: Any, part: Any) -> Any:
    """Where it divides without a rest, for all sizes."""
    over, under = sympy.fraction(sympy.cancel(sympy.sympify(whole) / part))
    return over if under == 1 else None


def permuted(value: Any, order: Sequence[int]) -> Any:
    """The axes in another order, those of a group together."""
    fold = Fold.of(value)
    groups = [fold.groups[n] for n in order]
    tensor = permute_dims(fold.tensor, [n for g in groups for n in g])
    return grouped(tensor, [len(g) for g in groups]).plain


def product(a: Any, b: Any) -> Any:
    """A product of matrices, over all axes of the group between them."""
    x, y = Fold.of(a), Fold.of(b)
    _alike(x.extents(1), y.extents(0))
    summed = tensordot(x.tensor, y.tensor, axes=(x.groups[1], y.groups[0]))
    return grouped(summed, [len(x.groups[0]), len(y.groups[1])]).plain


def added(bias: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    """``beta bias + alpha a b``"""
    bias, a, b = (each(_wide, [v]) for v in (bias, a, b))
    made = product(a, b)
    scaled = made if alpha == 1 else each(lambda t: multiply(t, alpha), [made])
    own = bias if beta == 1 else each(lambda t: multiply(t, beta), [bias])
    return each(add, [own, scaled])


def _wide(x: Tensor) -> Tensor:
    """Of short floats in 32 bits: what is added is rounded once."""
    return astype(x, "float32") if is_short(x.dtype) else x


def each(function: Callable[..., Any], values: Sequence[Any]) -> Any:
    """A function of elements; what is broadcast has no axis, or one of 1, for a group."""
    folds = [v for v in values if isinstance(v, Fold)]
    if not folds:
        return function(*values)
    most = max(folds, key=lambda f: len(f.groups))
    aligned = [_aligned(v, most) if isinstance(v, Fold | Tensor) else v for v in values]
    return Fold(function(*aligned), most.groups)


def _aligned(value: Any, to: Fold) -> Tensor:
    """A tensor with the axes of a fold, or 1 in their place."""
    own = Fold.of(value)
    missing = len(to.groups) - len(own.groups)
    shape: list[Extent] = []
    for axis, group in enumerate(to.groups):
        if axis < missing or own.extents(axis - missing) in ((), (1,)):
            shape += [1] * len(group)
            continue
        _alike(own.extents(axis - missing), to.extents(axis))
        shape += own.extents(axis - missing)
    return own.tensor if own.tensor.shape == tuple(shape) else reshape(own.tensor, tuple(shape))


def summed(value: Any, axes: Sequence[int] | None, keepdim: bool = False) -> Any:
    """The sum over groups."""
    fold = Fold.of(value)
    count = len(fold.groups)
    over = {n % count for n in axes} if axes else set(range(count))
    tensor = sum_of(fold.tensor, axis=tuple([n for a in over for n in fold.groups[a]]))
    kept = [fold.extents(n) if n not in over else (1,) for n in range(count)]
    groups = [g for n, g in enumerate(kept) if keepdim or n not in over]
    whole = reshape(tensor, tuple([e for g in groups for e in g])) if keepdim else tensor
    return grouped(whole, [len(g) for g in groups]).plain


def _alike(a: Sequence[Extent], b: Sequence[Extent]) -> None:
    if tuple(a) != tuple(b):
        raise ShapeError(f"sizes {tuple(a)} beside {tuple(b)}", code="E120")
