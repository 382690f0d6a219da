"""How far a convolution by minimal filtering may be from the exact one, element by element.

    abs(error) <= gamma(K) sum[p, q] |a[i, p]| |a[j, q]| sum[c] U V
    U = sum[k, l] |g[p, k]| |g[q, l]| |w[k, l]|        V = sum[i, j] |b[p, i]| |b[q, j]| |x[i, j]|
    gamma(K) = K u / (1 - K u)

Each element of the result is a sum of products of roundings: K is the most of them on a way from
an input to it, u half a unit in the last place. It holds for any order of the sums, with and
without fused multiply-adds, where nothing overflows or falls below the normal numbers.

Source: Higham, Accuracy and Stability of Numerical Algorithms, 2002, chapter 3.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from pullback.errors import OptionError, ShapeError
from pullback.winograd.algorithms import ALGORITHMS, TAPS, Algorithm, Matrix

Array = np.ndarray[Any, Any]
# Plain sums, told the same way: a tile of one output, three products along an axis.
_ONE = tuple(tuple(Fraction(i == j) for j in range(TAPS)) for i in range(TAPS))
DIRECT = Algorithm("direct", 1, (tuple(Fraction(1) for _ in range(TAPS)),), _ONE, _ONE)


def bound(algorithm: str, x: Any, w: Any, padding: int = 0, groups: int = 1) -> Array:
    """The bound of each element of ``conv2d(x, w, padding=padding, groups=groups)``, in float64.

    `algorithm`: "winograd2", "winograd4", or "direct" for plain sums. `x` is ``(N, C, H, W)``, `w`
    ``(O, C / groups, 3, 3)``; the type of `x`, float32 or float64, is that of the sums. The adjoint
    by `x` is a convolution of the result's adjoint by `w` with its taps turned round and its
    channels exchanged, ``padding = 2 - padding``.
    Raises: OptionError, E594, for another name; ShapeError, E596, for arrays that do not fit.

    Example:
        >>> x, w = np.ones((1, 2, 8, 8), np.float32), np.ones((3, 2, 3, 3), np.float32)
        >>> limit = pb.winograd.bound("winograd4", x, w)
        >>> limit.shape, bool(limit.max() < 0.01)
        ((1, 3, 6, 6), True)
    """
    own, unit = _algorithm(algorithm), _unit(x)
    x, w = (np.abs(np.asarray(t, np.float64)) for t in (x, w))
    four = x.ndim == w.ndim == 4 and w.shape[2:] == (TAPS, TAPS) and groups > 0
    if not four or w.shape[1] * groups != x.shape[1] or w.shape[0] % groups:
        what = f"{list(x.shape)} by {list(w.shape)} in {groups} groups"
        raise ShapeError(what, help="(N, C, H, W) by (O, C / groups, 3, 3)", code="E596")
    rows, columns = _places(x, padding)
    v = _tiles(_padded(x, padding), own.tile, own.points, rows, columns)
    b, g, a = (_absolute(matrix) for matrix in (own.inputs, own.weights, own.outputs))
    v = np.einsum("pi,qj,nctsij->nctspq", b, b, v)
    u = np.einsum("pk,ql,ockl->ocpq", g, g, w)
    n, c, down, along = v.shape[:4]
    v = v.reshape(n, groups, c // groups, down, along, own.points, own.points)
    u = u.reshape(groups, -1, c // groups, own.points, own.points)
    m = np.einsum("gocpq,ngctspq->ngotspq", u, v)
    y = np.einsum("ip,jq,ngotspq->ngotisj", a, a, m)
    y = y.reshape(n, w.shape[0], down * own.tile, along * own.tile)[..., :rows, :columns]
    depth = 2 * (_terms(own.inputs) + _terms(own.weights) + _terms(own.outputs)) + c // groups
    if own is DIRECT:
        depth = TAPS * TAPS * c // groups
    return np.asarray(y * _gamma(depth, unit))


def weight_bound(algorithm: str, x: Any, adjoint: Any, padding: int = 0, groups: int = 1) -> Array:
    """The bound of each element of the adjoint of ``conv2d(x, w, padding, groups)`` by `w`.

    `adjoint` is that of the result, ``(N, O, H + 2 padding - 2, W + 2 padding - 2)``; the others
    are as in `bound`.
    Raises: OptionError, E594, for another name; ShapeError, E596, for arrays that do not fit.

    Example:
        >>> x, dy = np.ones((1, 2, 8, 8), np.float32), np.ones((1, 3, 6, 6), np.float32)
        >>> pb.winograd.weight_bound("winograd2", x, dy).shape
        (3, 2, 3, 3)
    """
    own, unit = _algorithm(algorithm), _unit(x)
    x, dy = (np.abs(np.asarray(t, np.float64)) for t in (x, adjoint))
    four = x.ndim == dy.ndim == 4 and x.shape[0] == dy.shape[0] and groups > 0
    fits = four and not x.shape[1] % groups and not dy.shape[1] % groups
    if not fits or dy.shape[2:] != _places(x, padding):
        what = f"{list(x.shape)} and the adjoint {list(dy.shape)} in {groups} groups"
        raise ShapeError(what, help="(N, C, H, W) and (N, O, H', W')", code="E596")
    v = _tiles(_padded(x, padding), own.tile, own.points, *dy.shape[2:])
    z = _tiles(dy, own.tile, own.tile, *dy.shape[2:])
    b, g, a = (_absolute(matrix) for matrix in (own.inputs, own.weights, own.outputs))
    v = np.einsum("pi,qj,nctsij->nctspq", b, b, v)
    z = np.einsum("ip,jq,notsij->notspq", a, a, z)
    n, c, down, along = v.shape[:4]
    v = v.reshape(n, groups, c // groups, down, along, own.points, own.points)
    z = z.reshape(n, groups, -1, down, along, own.points, own.points)
    sums = np.einsum("ngotspq,ngctspq->gocpq", z, v).reshape(-1, c // groups, *v.shape[-2:])
    turned = tuple(tuple(zip(*matrix, strict=True)) for matrix in (own.outputs, own.weights))
    depth = 2 * (_terms(own.inputs) + sum(map(_terms, turned))) + n * down * along
    if own is DIRECT:
        depth = n * down * along
    return np.asarray(np.einsum("pk,ql,ocpq->ockl", g, g, sums) * _gamma(depth, unit))


def _algorithm(name: str) -> Algorithm:
    known = {"direct": DIRECT, **ALGORITHMS}
    if name not in known:
        what = f"no algorithm {name!r} of convolutions"
        raise OptionError(what, help=", ".join(known), code="E594")
    return known[name]


def _unit(x: Any) -> float:
    """Half a unit in the last place of one."""
    kind = np.asarray(x).dtype
    return float(np.finfo(kind if kind == np.float32 else np.float64).eps) / 2


def _gamma(depth: int, unit: float) -> float:
    """What that many roundings may come to, of one."""
    return depth * unit / (1 - depth * unit)


def _terms(matrix: Matrix) -> int:
    """Roundings of a product with a matrix: one a term, and one where a number is no float."""
    rounded = any(number.denominator % 3 == 0 for row in matrix for number in row)
    return max(sum(number != 0 for number in row) for row in matrix) + rounded


def _absolute(matrix: Matrix) -> Array:
    return np.abs(np.array(matrix, np.float64))


def _places(x: Array, padding: int) -> tuple[int, ...]:
    """The rows and columns of the result. Raises: ShapeError where there are none."""
    places = tuple(e + 2 * padding - TAPS + 1 for e in x.shape[2:])
    if padding < 0 or min(places) < 1:
        raise ShapeError(f"{list(x.shape)} padded by {padding}", code="E596")
    return places


def _padded(x: Array, padding: int) -> Array:
    return np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))


def _tiles(x: Array, step: int, size: int, rows: int, columns: int) -> Array:
    """``t[.., row, column, i, j]``: squares of `size`, every `step`, zeros beyond the end."""
    down, along = -(-rows // step), -(-columns // step)
    ends = [(0, (n - 1) * step + size - e) for n, e in zip((down, along), x.shape[2:], strict=True)]
    x = np.pad(x, ((0, 0), (0, 0), *((0, max(0, after)) for _, after in ends)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(2, 3))
    return windows[:, :, : down * step : step, : along * step : step]
