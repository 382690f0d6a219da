"""Products with packed weights: of floats, and of bytes with sums of 32 bits."""

from __future__ import annotations

from typing import Any

from pullback.errors import DTypeError, OptionError, ShapeError
from pullback.ir.dtype import float32, float64, int8, int32
from pullback.quantised.packed import PANEL, Weights, fitting, literal, of_largest
from pullback.tensor.define.compute import axis, compute
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.library import maths as M
from pullback.tensor.library import ops as O
from pullback.tensor.library.creation import zeros
from pullback.tensor.shaped import shaped

NIBBLES = (
    128  # columns of 4 bits that are added up at once: 64 to 512 were measured, 4096^2, 8192^2
)
MOST = 2**31 // 128**2 - 1  # products of bytes whose sum fits into 32 bits for certain


@shaped("x: float[..., k]")
def linear(x: Tensor, w: Weights) -> Tensor:
    """``y[.., n] = sum[g] scale[n, g] sum[k of g] x[.., k] q[n, k]``, in float32 (float64) sums.

    Of weights that `quantised.weights` made of W: ``|y - x W^T| <= sum[k] |x[k]| scale / 2``,
    beside the rounding of the sums. Derivatives by `x` and ``w.scales``; none by integers.
    Raises: ShapeError, E590, where `x` or the parts of `w` do not fit.

    Example:
        >>> pb.quantised.linear(pb.ones((2, 4)), pb.quantised.weights(pb.ones((3, 4)))).shape
        (2, 3)
    """
    own = _columns(x if x.dtype is float64 else O.astype(x, float32), w)
    groups = literal(w.scales.shape[1])
    piece = NIBBLES if w.bits == 4 and w.group % NIBBLES == 0 else w.group
    pieces = w.group // piece if piece else 1
    split = O.reshape(own, (*own.shape[:-1], groups, pieces, piece))
    if w.bits == 8:
        shape = (w.values.shape[0], groups, pieces, piece, PANEL)
        whole = O.astype(O.reshape(w.values, shape), own.dtype)
        sums = O.einsum("...ghk,aghkr->...aghr", split, whole)
    else:
        sums = _nibbles(split, w.values)
    return _rows(O.einsum("...aghr,agr->...ar", sums, w.scales), w)


@shaped("x: float[..., k]")
def activations(x: Tensor) -> tuple[Tensor, Tensor]:
    """``q = round(x / scale)`` as int8, ``scale[..] = max over k |x[.., k]| / 127``.

    What is not finite makes its scale NaN.

    Example:
        >>> q, scale = pb.quantised.activations(pb.ones((2, 4)))
        >>> q.dtype, scale.shape
        (int8, (2,))
    """
    own = O.astype(x, float32)
    if own.shape[-1] == 0:
        return O.astype(own, int8), zeros(own.shape[:-1], dtype=float32)
    scale = of_largest(O.max(M.abs(own), axis=-1), 127)
    shown = O.where(scale > 0, scale, 1.0)
    return O.astype(M.round(own / O.expand_dims(shown, -1)), int8), scale


@shaped("x: int[..., k]")
def integer_product(x: Tensor, w: Weights) -> Tensor:
    """``y[.., n] = sum[k] x[.., k] q[n, k]`` of int8 by int8 as int32, exact.

    Raises: DTypeError, E591, for an `x` of another type; ShapeError, E590, for sizes that do not
    fit; OptionError, E592, for weights of 4 bits and for 2^17 columns and more, whose sums may not
    fit into 32 bits.

    Example:
        >>> x = pb.ones((2, 4), dtype="int8")
        >>> pb.quantised.integer_product(x, pb.quantised.weights(pb.ones((3, 4))))[0, 0].numpy()
        array(508, dtype=int32)
    """
    if x.dtype is not int8:
        raise DTypeError(f"integer_product of {x.dtype}", help="int8", code="E591")
    own = _columns(x, w)
    if w.bits != 8 or w.columns > MOST:
        raise OptionError(
            f"sums of 32 bits of {w.columns} products of bytes, weights of {w.bits} bits",
            help=f"weights of 8 bits, up to {MOST} columns; `quantised.linear` takes all",
            code="E592",
        )
    return _rows(O.einsum("...k,akr->...ar", O.astype(own, int32), O.astype(w.values, int32)), w)


@shaped("x: int[..., k], x_scale: float[...]")
def linear8(x: Tensor, x_scale: Tensor, w: Weights) -> Tensor:
    """``y[.., n] = x_scale[..] scale[n] sum[k] x[.., k] q[n, k]``, the sum one of integers.

    With ``x, x_scale = activations(X)`` and ``w = weights(W)``, a and b the two scales:
    ``|y - X W^T| <= sum[k] (|X| b / 2 + |W| a / 2 + a b / 4)``. Derivatives by both scales.
    Raises: as `integer_product`; OptionError, E592, for weights with several scales a row.

    Example:
        >>> q, scale = pb.quantised.activations(pb.ones((2, 4)))
        >>> pb.quantised.linear8(q, scale, pb.quantised.weights(pb.ones((3, 4)))).shape
        (2, 3)
    """
    if w.scales.shape[1:2] != (1,):
        raise OptionError("linear8 with weights of several scales a row", code="E592")
    if x_scale.shape != x.shape[:-1]:
        raise ShapeError(
            f"scales {list(x_scale.shape)} of values {list(x.shape)}",
            help="a scale for each row of the values",
            code="E590",
        )
    sums = O.astype(integer_product(x, w), float32)
    scales = O.reshape(w.scales, (w.scales.shape[0] * PANEL,))[: w.rows]
    y: Tensor = sums * scales * O.expand_dims(x_scale, -1)
    return y


def _columns(x: Tensor, w: Weights) -> Tensor:
    """`x` with zeros for the columns that fill up. Raises: ShapeError, E590, for other columns."""
    fitting(w)
    if x.shape[-1] != w.columns:
        raise ShapeError(
            f"{x.shape[-1]} columns by weights of {w.rows} x {w.columns}",
            help="the last axis of x and the columns of the weights must agree",
            code="E590",
        )
    fill = w.depth - w.columns
    return O.pad(x, [*[(0, 0)] * (len(x.shape) - 1), (0, fill)]) if fill else x


def _rows(y: Tensor, w: Weights) -> Tensor:
    """``[.., panels, 64] -> [.., rows]``"""
    lead = y.shape[:-2]
    rows: Tensor = O.reshape(y, (*lead, literal(y.shape[-2]) * PANEL))[..., : w.rows]
    return rows


def _nibbles(x: Tensor, values: Tensor) -> Tensor:
    """``sum[k] x[.., g, h, 2k] low[a, k of g h, r] + sum[k] x[.., g, h, 2k + 1] high[a, k, r]``

    Two sums, each of plain products: multiply-adds in one loop over the bytes.
    """
    groups, pieces, piece = map(literal, x.shape[-3:])
    half = piece // 2
    k = axis(half)

    def total(*at: Any) -> Any:
        *front, a, g, h, r = at
        byte = O.astype(values[a, (g * pieces + h) * half + k, r], int32)
        low = O.astype(M.bitwise_and(byte, 15) - 8, x.dtype)
        high = O.astype(M.bitwise_right_shift(byte, 4), x.dtype)
        even = O.sum(x[(*front, g, h, 2 * k)] * low, over=k)
        return even + O.sum(x[(*front, g, h, 2 * k + 1)] * high, over=k)

    shape = (*x.shape[:-3], values.shape[0], groups, pieces, PANEL)
    sums = compute(shape, total, name="nibbles")
    assert isinstance(sums, Tensor)
    return sums
