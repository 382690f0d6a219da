"""Products and sums around them, distances, cross products: sums of products mostly.

``addmm(x, a, b) = beta x + alpha a b``
"""

from __future__ import annotations

import math
from typing import Any

from pullback.ir import dtype as D
from pullback.ir import expr as E
from pullback.ir import functions as F
from pullback.ir.expr import Axis, Expr, If
from pullback.ir.graph import MAX, read
from pullback.tensor.face.dialect import spelled
from pullback.tensor.face.tensor import Axes, Tensor, value_of
from pullback.tensor.library import maths as M
from pullback.tensor.library import ops as O
from pullback.tensor.library.scalars import value_tensor
from pullback.tensor.shaped import shaped
from pullback.tensor.values import elementwise as W
from pullback.tensor.values import views as V
from pullback.tensor.values.elementwise import show
from pullback.tensor.values.functions import constant_power
from pullback.tensor.values.precise import in_float32


def _plus(x: Any, product: Tensor, beta: float, alpha: float) -> Tensor:
    """``beta x + alpha product``; `x` is not looked at where beta is 0."""
    scaled = product if alpha == 1 else M.multiply(product, alpha)
    if beta == 0:
        kind = O.result_type(x, product)
        typed: Tensor = O.astype(scaled, kind)
        return typed
    total: Tensor = M.add(x if beta == 1 else M.multiply(x, beta), scaled)
    return total


@shaped("x[m?, n?] or [n?] or [], x1[m, k], x2[k, n] -> [m, n]")
@in_float32
def addmm(x: Any, x1: Any, x2: Any, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """``beta x + alpha x1 x2`` of matrices; `x` is not looked at where beta is 0.

    Raises: ShapeError where they do not fit.

    Example:
        >>> pb.addmm(pb.zeros((2, 4)), pb.ones((2, 3)), pb.ones((3, 4))).shape
        (2, 4)
    """
    return _plus(x, O.matmul(x1, x2), beta, alpha)


@shaped("x[m?] or [], x1[m, k], x2[k] -> [m]")
@in_float32
def addmv(x: Any, x1: Any, x2: Any, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """``beta x + alpha x1 x2`` of a matrix and a vector.

    Raises: ShapeError where they do not fit.

    Example:
        >>> pb.addmv(pb.zeros(2), pb.ones((2, 3)), pb.ones(3))
        Tensor([3., 3.], dtype=float32)
    """
    return _plus(x, O.matmul(x1, x2), beta, alpha)


@shaped("x[m?, n?] or [n?] or [], x1[m], x2[n] -> [m, n]")
@in_float32
def addr(x: Any, x1: Any, x2: Any, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """``out[i, j] = beta x[i, j] + alpha x1[i] x2[j]``

    Raises: ShapeError where they do not fit.

    Example:
        >>> pb.addr(pb.zeros((2, 2)), pb.ones(2), pb.tensor([1.0, 2.0])).tolist()
        [[1.0, 2.0], [1.0, 2.0]]
    """
    return _plus(x, O.outer(x1, x2), beta, alpha)


@shaped("x[b?, m?, n?] or [m?, n?] or [n?] or [], x1[b, m, k], x2[b, k, n] -> [b, m, n]")
@in_float32
def baddbmm(x: Any, x1: Any, x2: Any, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """``out[b] = beta x[b] + alpha x1[b] x2[b]``

    Raises: ShapeError where they do not fit.

    Example:
        >>> pb.baddbmm(pb.zeros((5, 2, 4)), pb.ones((5, 2, 3)), pb.ones((5, 3, 4))).shape
        (5, 2, 4)
    """
    return _plus(x, O.matmul(x1, x2), beta, alpha)


@shaped("x[m?, n?] or [n?] or [], x1[b, m, k], x2[b, k, n] -> [m, n]")
@in_float32
def addbmm(x: Any, x1: Any, x2: Any, *, beta: float = 1, alpha: float = 1) -> Tensor:
    """``beta x + alpha sum[b] x1[b] x2[b]``

    Raises: ShapeError where they do not fit.

    Example:
        >>> pb.addbmm(pb.zeros((2, 4)), pb.ones((5, 2, 3)), pb.ones((5, 3, 4))).shape
        (2, 4)
    """
    return _plus(x, O.einsum("bmk,bkn->mn", x1, x2), beta, alpha)


@shaped("x1[..., k] or [], x2[..., k] or []")
def inner(x1: Any, x2: Any) -> Tensor:
    """``out[i, j] = sum[k] x1[i, k] x2[j, k]`` over the last axes; a scalar multiplies.

    Example:
        >>> pb.inner(pb.tensor([1.0, 2.0]), pb.tensor([3.0, 4.0]))
        Tensor(11., dtype=float32)
    """
    if not value_of(x1).shape or not value_of(x2).shape:
        product: Tensor = M.multiply(value_tensor(x1), x2)
        return product
    return O.tensordot(x1, x2, axes=((-1,), (-1,)))


@shaped("x1[...], x2[...]")
def kron(x1: Any, x2: Any) -> Tensor:
    """``out[i p + k, j q + l] = x1[i, j] x2[k, l]``: Kronecker's product, of any rank.

    ``pb.kron(pb.eye(2), x)`` is x twice along the diagonal.

    Example:
        >>> pb.kron(pb.tensor([1.0, 2.0]), pb.ones(2))
        Tensor([1., 1., 2., 2.], dtype=float32)
    """
    a, b = value_of(x1), value_of(x2)
    rank = max(len(a.shape), len(b.shape))
    left, right = ((1,) * (rank - len(v.shape)) + v.shape for v in (a, b))
    wide = [n for e in left for n in (e, 1)]
    tall = [n for e in right for n in (1, e)]
    product: Tensor = M.multiply(Tensor(V.reshape(a, wide)), Tensor(V.reshape(b, tall)))
    shape = [_times(m, n) for m, n in zip(left, right, strict=True)]
    return Tensor(V.reshape(product.value, shape))


def _times(m: Any, n: Any) -> Any:
    if not isinstance(m, int) and not isinstance(n, int):
        raise V.fail(f"kron of two symbolic axes {m} and {n}", code="E120")
    if isinstance(m, int) and isinstance(n, int):
        return m * n
    if 1 not in (m, n):
        raise V.fail(f"kron along the symbolic axis {m if isinstance(n, int) else n}", code="E120")
    return n if m == 1 else m


@shaped("x1[*b], x2[*b] -> [*b]")
@spelled
@in_float32
def cross(x1: Any, x2: Any, *, axis: int = -1) -> Tensor:
    """``out = (a1 b2 - a2 b1, a2 b0 - a0 b2, a0 b1 - a1 b0)`` along an axis of three, broadcast.

    Raises: ShapeError where the axis has another extent.

    Example:
        >>> pb.cross(pb.tensor([1.0, 0.0, 0.0]), pb.tensor([0.0, 1.0, 0.0]))
        Tensor([0., 0., 1.], dtype=float32)
    """
    a, b = (Tensor(value_of(x)) for x in (x1, x2))
    for x in (a, b):
        n = V.normal_axis(axis, len(x.shape))
        if x.shape[n] != 3:
            raise V.fail(f"cross along axis {axis} of {show(x.shape)}: 3 are wanted", code="E110")
    left = O.roll(a, -1, axis=axis) * O.roll(b, -2, axis=axis)
    return left - O.roll(a, -2, axis=axis) * O.roll(b, -1, axis=axis)


# --- distances -----------------------------------------------------------------------------------


def _power(gap: Expr, p: float) -> Expr:
    """``|gap|^p``; of p = 0 whether there is a gap."""
    if p == 0:
        return If(E.Equal(gap, F.like(0, gap)), F.like(0, gap), F.like(1, gap))
    if p == 2:
        return F.square(gap)
    size = F.absolute(gap)
    if p == 1:
        return size
    still = E.Equal(gap, F.like(0, gap))
    return If(still, F.like(0, gap), constant_power(If(still, F.like(1, gap), size), p))


def _root(total: Expr, p: float) -> Expr:
    """``total^(1 / p)``, whose derivative at 0 is 0."""
    if p in (0, 1, math.inf):
        return total
    zero = F.like(0, total)
    still = E.Equal(total, zero)
    inside = If(still, F.like(1, total), total)
    return If(still, zero, E.Sqrt(inside) if p == 2 else constant_power(inside, 1 / p))


def _summed(name: str, gap: Expr, shape: Any, over: Any, p: float) -> Tensor:
    """``(sum |gap|^p)^(1 / p)``, of p = inf the largest."""
    if not p >= 0:
        raise V.fail(f"{name}: p = {p} is negative", code="E123")
    kind = gap.dtype
    wide = D.float32 if D.is_short(kind) else kind
    gap = W.cast(gap, wide)
    if p == math.inf:
        total = W.reduce(name, shape, over, F.absolute(gap), MAX)
        none = any(e == 0 for e in over)
        return Tensor(W.full(shape, 0, kind) if none else W.astype(total, kind))
    total = W.reduce(name, shape, over, _power(gap, p))
    root = _root(read(total, *W.axes_of(shape)), p)
    return Tensor(W.make(name, shape, W.cast(root, kind)))


@shaped("x1[*b, n, k], x2[*b, m, k] -> [*b, n, m]", where="p >= 0")
def cdist(x1: Any, x2: Any, *, p: float = 2.0) -> Tensor:
    """``out[i, j] = (sum[k] |x1[i, k] - x2[j, k]|^p)^(1 / p)``; at distance 0 the gradient is 0.

    Differences are taken before they are squared, so that near points lose no digits.

    Raises: ShapeError where they do not fit, or p is negative.

    Example:
        >>> pb.cdist(pb.zeros((1, 2)), pb.tensor([[3.0, 4.0], [0.0, 1.0]])).tolist()
        [[5.0, 1.0]]
    """
    a, b = value_of(x1), value_of(x2)
    kind = W.as_float(W.common_dtype([a, b]))
    lead = W.broadcast_shapes([a.shape[:-2], b.shape[:-2]])
    shape = (*lead, a.shape[-2], b.shape[-2])
    axes, k = W.axes_of(shape), Axis(len(shape), a.shape[-1])
    inner = a.shape[-1]
    left = W.broadcast_read(a, (*lead, a.shape[-2], inner), [*axes[:-1], k])
    right = W.broadcast_read(b, (*lead, b.shape[-2], inner), [*axes[:-2], axes[-1], k])
    gap = E.subtract(W.cast(left, kind), W.cast(right, kind))
    return _summed("cdist", gap, shape, [inner], float(p))


@shaped("x[n, k] -> [_]", where="p >= 0")
def pdist(x: Any, *, p: float = 2.0) -> Tensor:
    """Distances of all pairs of rows, ``(0, 1), (0, 2), .., (1, 2), ..``

    Raises: ShapeError for other than two axes, or where p is negative.

    Example:
        >>> pb.pdist(pb.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 4.0]]))
        Tensor([5., 4., 3.], dtype=float32)
    """
    value = value_of(x)
    count = value.shape[0]
    if not isinstance(count, int):
        raise V.fail(f"pdist of the symbolic axis {count}", code="E120")
    distances = cdist(x, x, p=p)
    places = [i * count + j for i in range(count) for j in range(i + 1, count)]
    flat = O.reshape(distances, (-1,))
    if not places:
        return Tensor(W.full((0,), 0, distances.dtype))
    return O.take(flat, places)


@shaped("x1[*b], x2[*b] -> []", where="p >= 0")
def dist(x1: Any, x2: Any, *, p: float = 2.0) -> Tensor:
    """``(sum |x1 - x2|^p)^(1 / p)`` over all elements, broadcast.

    Raises: ShapeError where they do not broadcast, or p is negative.

    Example:
        >>> pb.dist(pb.zeros(2), pb.tensor([3.0, 4.0]))
        Tensor(5., dtype=float32)
    """
    gap = M.subtract(x1, x2)
    flat = O.reshape(O.astype(gap, W.as_float(gap.dtype)), (-1,)).value
    body = read(flat, Axis(0, flat.shape[0]))
    return _summed("dist", body, (), [flat.shape[0]], float(p))


@spelled
@shaped("x[b...] -> [b...]", where="p > 0, maxnorm >= 0")
@in_float32
def renorm(x: Any, p: float, axis: int, maxnorm: float) -> Tensor:
    """Each place of an axis scaled down to a p-norm of at most `maxnorm`.

    Example:
        >>> pb.renorm(pb.tensor([[3.0, 4.0], [0.0, 1.0]]), 2.0, 0, 1.0).tolist()
        [[0.6000000238418579, 0.800000011920929], [0.0, 1.0]]
    """
    value = value_of(x)
    n = V.normal_axis(axis, len(value.shape))
    kept = value.shape[n]
    others = [e for m, e in enumerate(value.shape) if m != n]
    numbers = [Axis(0, kept) if m == n else None for m in range(len(value.shape))]
    place = iter(range(1, len(value.shape)))
    axes = [
        Axis(next(place), e) if a is None else a for a, e in zip(numbers, value.shape, strict=True)
    ]
    sizes = _summed("norm", read(value, *axes), (kept,), others, float(p))
    spread: Axes = tuple(m for m in range(len(value.shape)) if m != n)
    norms = O.expand_dims(sizes, axis=spread) if spread else sizes
    over = M.greater(norms, maxnorm)
    scale = O.where(over, maxnorm / (O.where(over, norms, 1.0) + 1e-7), 1.0)
    scaled: Tensor = M.multiply(Tensor(value), scale)
    return scaled
