"""Norms of vectors and of matrices, and how far a matrix is from a singular one."""

from __future__ import annotations

import math
from typing import Any, SupportsIndex

from pullback.errors import ShapeError, UnsupportedError
from pullback.linalg.factors import inv
from pullback.linalg.operation import back, matrix, size
from pullback.linalg.spectral import svdvals
from pullback.tensor.face.tensor import Axes, Tensor
from pullback.tensor.library import maths as M
from pullback.tensor.library import ops as O
from pullback.tensor.shaped import shaped
from pullback.tensor.values.elementwise import show
from pullback.tensor.values.views import normal_axis

ORDERS = ("fro", "nuc", 2, -2, 1, -1, math.inf, -math.inf)


@shaped("x[...]")
def vector_norm(x: Tensor, ord: float = 2, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """``sum(|x|^ord)^(1 / ord)``; inf: the largest, -inf: the smallest, 0: how many are not 0.

    Its gradient where everything is 0 is 0. Equal largest ones share it.

    Example:
        >>> pb.linalg.vector_norm(pb.tensor([3.0, 4.0]))
        Tensor(5., dtype=float32)
    """
    if not isinstance(ord, int | float) or isinstance(ord, bool) or math.isnan(ord):
        raise UnsupportedError(f"ord={ord!r}", help="a number; inf and -inf too", code="E312")
    own = matrix(x)
    return back(_vector_norm(own, ord, axis, keepdims), x.dtype)


def _vector_norm(x: Tensor, ord: float, axis: Axes, keep: bool) -> Any:
    absolute = M.abs(x)
    if math.isinf(ord):
        return (O.amax if ord > 0 else O.amin)(absolute, axis=axis, keepdims=keep)
    if ord == 0:
        return O.sum((x != 0.0).astype(x.dtype), axis=axis, keepdims=keep)
    if ord == 1:
        return O.sum(absolute, axis=axis, keepdims=keep)
    if ord == 2:
        total = O.sum(M.square(x), axis=axis, keepdims=keep)
        return O.where(total > 0.0, M.sqrt(total), total)
    zero = absolute == 0.0
    powers = M.pow(O.where(zero, 1.0, absolute), ord) if 0 < ord < 2 else M.pow(absolute, ord)
    powers = O.where(zero, 0.0, powers) if 0 < ord < 2 else powers
    total = O.sum(powers, axis=axis, keepdims=keep)
    if ord < 0:
        return M.pow(total, 1 / ord)
    return O.where(total > 0.0, M.pow(total, 1 / ord), total)


@shaped("x[*b, m, n]")
def matrix_norm(
    x: Tensor,
    ord: Any = "fro",
    axis: tuple[int, int] = (-2, -1),
    keepdims: bool = False,
) -> Tensor:
    """ "fro"; 1 and -1 of columns, inf and -inf of rows; 2, -2 and "nuc" of singular values.

    ``fro = sqrt(sum x^2)``, ``1 = max[j] sum[i] |x[i, j]|``, ``nuc = sum[i] s[i]``

    Example:
        >>> pb.linalg.matrix_norm(pb.tensor([[3.0, 0.0], [0.0, 4.0]]))
        Tensor(5., dtype=float32)
    """
    if ord not in ORDERS:
        raise UnsupportedError(f"ord={ord!r}", help=f"one of {ORDERS}", code="E312")
    rank = len(x.shape)
    places = [normal_axis(a, rank) for a in axis]
    if len(places) != 2 or places[0] == places[1]:
        raise ShapeError(f"matrix_norm over the axes {axis}: two of them", code="E134")
    row, column = places
    own = matrix(x)
    if ord == "fro":
        return back(_vector_norm(own, 2, (row, column), keepdims), x.dtype)
    if ord in (2, -2, "nuc"):
        turned = O.moveaxis(O.moveaxis(own, row, -1), column - (column > row), -1)
        values = svdvals(turned)
        result = {2: O.max, -2: O.min, "nuc": O.sum}[ord](values, axis=-1)
        result = O.expand_dims(result, (min(row, column), max(row, column))) if keepdims else result
        return back(result, x.dtype)
    over, along = (row, column) if abs(ord) == 1 else (column, row)
    sums = O.sum(M.abs(own), axis=over, keepdims=True)
    best = (O.amax if ord > 0 else O.amin)(sums, axis=along, keepdims=True)
    return back(best if keepdims else O.squeeze(best, axis=(row, column)), x.dtype)


@shaped("x[...]")
def norm(x: Tensor, ord: Any = None, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """`vector_norm` along one axis, `matrix_norm` along two; without `ord` the root of all squares.

    Without `axis` an `ord` is of the vector or matrix that `x` is, as NumPy and PyTorch have it.

    Example:
        >>> pb.linalg.norm(pb.tensor([3.0, 4.0]))
        Tensor(5., dtype=float32)
    """
    if axis is None and ord is None:
        return vector_norm(x, 2, None, keepdims)
    if axis is None and len(x.shape) not in (1, 2):
        raise ShapeError(
            f"norm of {show(x.shape)} with ord={ord!r}: say along which axis or axes", code="E134"
        )
    axes = tuple(range(len(x.shape))) if axis is None else axis
    axes = (axes,) if isinstance(axes, SupportsIndex) else tuple(axes)
    if len(axes) == 1:
        return vector_norm(x, 2 if ord is None else ord, axes[0], keepdims)
    if len(axes) != 2:
        raise ShapeError(f"norm along {len(axes)} axes: one or two", code="E134")
    return matrix_norm(x, "fro" if ord is None else ord, (axes[0], axes[1]), keepdims)


@shaped("x[*b, m, n] -> [*b]")
def cond(x: Tensor, p: Any = None) -> Tensor:
    """``|x| |x^-1|`` in the norm `p`; without one the largest singular value by the smallest.

    Example:
        >>> pb.linalg.cond(pb.tensor([[2.0, 0.0], [0.0, 1.0]]))
        Tensor(2., dtype=float32)
    """
    if p not in (None, *ORDERS):
        raise UnsupportedError(f"p={p!r}", help=f"one of {ORDERS}", code="E312")
    if p in (None, 2, -2):
        values = svdvals(x)
        if not size(values.shape[-1]):
            raise ShapeError("cond of an empty matrix", code="E118")
        one, two = values[..., :1], values[..., -1:]
        return O.squeeze(two / one if p == -2 else one / two, -1)
    return matrix_norm(x, p) * matrix_norm(inv(x), p)
