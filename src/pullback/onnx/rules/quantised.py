"""Whole numbers for floats: ``x = (q - zero) scale``, by tensor, by axis or by block."""

from __future__ import annotations

from typing import Any

import pullback as pb
from pullback.onnx.read import kind_of
from pullback.onnx.rules.elementwise import ENDS, short
from pullback.onnx.rules.table import axis_of, demand, rule
from pullback.onnx.rules.windows import Windows, padded, whole_conv, windows

SMALL = ("int8", "uint8", "int16", "uint16")


def _spread(values: Any, x: Any, axis: int, block: int = 0) -> Any:
    """Scales or zeros over the axes of what they scale."""
    if values.ndim == 0 or (values.ndim == 1 and values.shape[0] == 1 and not block):
        return pb.reshape(values, ())
    at = axis_of(axis, x.ndim)
    if block:
        demand(values.ndim == x.ndim, f"scales of {values.ndim} axes")
        whole = pb.repeat(values, block, axis=at)
        return whole[(*[slice(None)] * at, slice(0, x.shape[at]))]
    demand(values.ndim == 1, f"scales of {values.ndim} axes without a block")
    return pb.reshape(values, tuple([-1 if n == at else 1 for n in range(x.ndim)]))


def quantised(x: Any, scale: Any, zero: Any, kind: Any, saturate: int | None = 1) -> Any:
    """``round(x / scale) + zero``, at the ends of the type where it is beyond; floats of 8 bits,
    whose zero is 0, are rounded by themselves.
    """
    if kind.is_float:
        return short(x / scale, kind, saturate)
    demand(kind.name in SMALL, f"a result of {kind}")
    low, high = kind.range()
    y = pb.round(x / scale)
    if zero is not None:
        y = y + pb.astype(zero, pb.float32)
    return pb.astype(pb.clip(y, float(low), float(high)), kind)


def _quantised(
    x: Any, scale: Any, zero: Any, axis: int, kind: Any, block: int = 0, saturate: int | None = 1
) -> Any:
    wide = x if x.dtype == pb.float64 else pb.astype(x, pb.float32)
    own = _spread(pb.astype(scale, wide.dtype), x, axis, block)
    moved = None if zero is None else _spread(zero, x, axis, block)
    return quantised(wide, own, moved, kind, saturate)


@rule("QuantizeLinear", 10)
def quantize_10(x: Any, scale: Any, zero: Any = None) -> Any:
    return _quantised(x, scale, zero, 1, pb.uint8 if zero is None else zero.dtype)


@rule("QuantizeLinear", 13)
def quantize_13(x: Any, scale: Any, zero: Any = None, *, axis: int) -> Any:
    return _quantised(x, scale, zero, axis, pb.uint8 if zero is None else zero.dtype)


@rule("QuantizeLinear", 19)
def quantize_19(x: Any, scale: Any, zero: Any = None, *, axis: int, saturate: int) -> Any:
    kind = pb.uint8 if zero is None else zero.dtype
    return _quantised(x, scale, zero, axis, kind, saturate=saturate)


@rule("QuantizeLinear", 21, 23, 24, 25, 28)
def quantize(
    x: Any, scale: Any, zero: Any = None, *, axis: int, block_size: int, output_dtype: int,
    saturate: int, precision: int = 0,
) -> Any:  # fmt: skip
    demand(precision in (0, 1), f"precision={precision}")
    kind = pb.uint8 if zero is None else zero.dtype
    if output_dtype:
        kind = kind_of(output_dtype, "the result of a QuantizeLinear")
    return _quantised(x, scale, zero, axis, kind, block_size, saturate)


def _dequantised(q: Any, scale: Any, zero: Any, axis: int, block: int = 0) -> Any:
    demand(q.dtype.name in (*SMALL, "int32", *ENDS), f"{q.dtype}")
    whole = q if q.dtype.is_float else pb.astype(q, pb.int32)
    if zero is not None and not q.dtype.is_float:  # a float's is 0
        whole = whole - pb.astype(_spread(zero, q, axis, block), pb.int32)
    own = _spread(pb.astype(scale, pb.float32), q, axis, block)
    return pb.astype(pb.astype(whole, pb.float32) * own, scale.dtype)


@rule("DequantizeLinear", 10)
def dequantize_10(q: Any, scale: Any, zero: Any = None) -> Any:
    return _dequantised(q, scale, zero, 1)


@rule("DequantizeLinear", 13, 19)
def dequantize_13(q: Any, scale: Any, zero: Any = None, *, axis: int) -> Any:
    return _dequantised(q, scale, zero, axis)


@rule("DequantizeLinear", 21, 23, 24, 25, 28)
def dequantize(
    q: Any, scale: Any, zero: Any = None, *, axis: int, block_size: int, output_dtype: int = 0
) -> Any:
    y = _dequantised(q, scale, zero, axis, block_size)
    return pb.astype(y, kind_of(output_dtype, "a DequantizeLinear")) if output_dtype else y


def _whole(x: Any, zero: Any, axis: int) -> Any:
    """``x - zero`` in 32 bits."""
    wide = pb.astype(x, pb.int32)
    if zero is None:
        return wide
    return wide - pb.astype(_spread(zero, x, axis), pb.int32)


@rule("MatMulInteger", 10)
def matmul_integer(a: Any, b: Any, a_zero: Any = None, b_zero: Any = None) -> Any:
    """Zeros of `a` by row, of `b` by column."""
    return pb.matmul(_whole(a, a_zero, -2), _whole(b, b_zero, -1))


@rule("QLinearMatMul", 10, 21)
def qlinear_matmul(
    a: Any, a_scale: Any, a_zero: Any, b: Any, b_scale: Any, b_zero: Any, y_scale: Any, y_zero: Any
) -> Any:
    """The product of what is meant, as whole numbers again."""
    sums = pb.astype(pb.matmul(_whole(a, a_zero, -2), _whole(b, b_zero, -1)), pb.float32)
    wide = [pb.astype(s, pb.float32) for s in (a_scale, b_scale, y_scale)]
    by = _spread(wide[0], sums, -2) * _spread(wide[1], sums, -1)
    return quantised(sums * by, _spread(wide[2], sums, -2), _spread(y_zero, sums, -2), y_zero.dtype)


@rule("QLinearConv", 10)
def qlinear_conv(
    x: Any, x_scale: Any, x_zero: Any, w: Any, w_scale: Any, w_zero: Any, y_scale: Any,
    y_zero: Any, b: Any = None, *, auto_pad: str, dilations: Any, group: int, kernel_shape: Any,
    pads: Any, strides: Any,
) -> Any:  # fmt: skip
    demand(tuple(kernel_shape or w.shape[2:]) == tuple(w.shape[2:]), f"kernel_shape={kernel_shape}")
    whole, own = _whole(x, x_zero, 0), windows(x, w.shape[2:], strides, dilations, pads, auto_pad)
    bare = Windows(own.sizes, own.steps, own.spread, own.ends)
    sums = whole_conv(padded(whole, own.ends), _whole(w, w_zero, 0), bare, group)
    if b is not None:
        sums = sums + pb.reshape(b, (1, -1, *[1] * (x.ndim - 2)))
    by = pb.reshape(x_scale, ()) * _spread(w_scale, sums, 1)
    scaled = pb.astype(sums, pb.float32) * by
    return quantised(scaled, pb.reshape(y_scale, ()), pb.reshape(y_zero, ()), y_zero.dtype)
