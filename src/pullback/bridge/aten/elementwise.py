"""Operators of one element, or of two at a time."""

from __future__ import annotations

from typing import Any

import torch
import torch._inductor.inductor_prims
import torch._prims  # both register operators

import pullback as pb
import pullback.nn.functional as F
from pullback.bridge.aten.table import Rule, aten, cast, once, pulled, rule, same
from pullback.bridge.complexes import ELEMENTS


def sign(x: Any) -> Any:
    """Of a NaN 0, as PyTorch has it."""
    return pb.where(pb.isnan(x), 0, pb.sign(x)) if x.dtype.is_float else pb.sign(x)


def infinite(function: Rule) -> Rule:
    """A function that PyTorch has no limit of: of an infinite number NaN, not what it tends to."""

    def run(x: Any) -> Any:
        return pb.where(pb.isinf(x), pb.nan, function(x)) if x.dtype.is_float else function(x)

    return run


same(
    {
        "abs": pb.abs, "acos": pb.acos, "acosh": pb.acosh, "asin": pb.asin, "asinh": pb.asinh,
        "atan": pb.atan, "atanh": pb.atanh, "ceil": pb.ceil, "cos": pb.cos, "cosh": pb.cosh,
        "erf": pb.erf, "exp": pb.exp, "exp2": pb.exp2, "expm1": pb.expm1, "floor": pb.floor,
        "frac": pb.frac, "isfinite": pb.isfinite, "isinf": pb.isinf, "isnan": pb.isnan,
        "log": pb.log, "log10": pb.log10, "log1p": pb.log1p, "log2": pb.log2, "neg": pb.negative,
        "reciprocal": pb.reciprocal, "relu": pb.relu, "rsqrt": pb.rsqrt, "sigmoid": pb.sigmoid,
        "sign": sign, "sgn": sign, "sin": pb.sin, "sinh": pb.sinh, "sqrt": pb.sqrt,
        "square": pb.square, "tan": pb.tan, "tanh": pb.tanh, "trunc": pb.trunc,
        "logical_not": pb.logical_not, "bitwise_not": pb.bitwise_invert, "signbit": pb.signbit,
        "silu": pb.silu, "log_sigmoid": F.logsigmoid, "mish": F.mish,
        "isneginf": pb.isneginf, "isposinf": pb.isposinf, "deg2rad": pb.deg2rad,
        "rad2deg": pb.rad2deg,
        "eq": pb.equal, "ne": pb.not_equal, "lt": pb.less, "le": pb.less_equal,
        "gt": pb.greater, "ge": pb.greater_equal, "maximum": pb.maximum, "minimum": pb.minimum,
        "fmax": pb.fmax, "fmin": pb.fmin, "atan2": pb.atan2, "logical_and": pb.logical_and,
        "logical_or": pb.logical_or, "logical_xor": pb.logical_xor, "hypot": pb.hypot,
        "copysign": pb.copysign, "fmod": pb.fmod, "remainder": pb.remainder,
        "bitwise_and": pb.bitwise_and, "bitwise_or": pb.bitwise_or, "bitwise_xor": pb.bitwise_xor,
        "bitwise_left_shift": pb.bitwise_left_shift, "bitwise_right_shift": pb.bitwise_right_shift,
        "logaddexp": pb.logaddexp, "logaddexp2": pb.logaddexp2,
        "floor_divide": pb.floor_divide, "heaviside": pb.heaviside, "nextafter": pb.nextafter,
        "xlogy": pb.special.xlogy, "gcd": pb.gcd, "lcm": pb.lcm,
        "lgamma": pb.special.gammaln, "digamma": pb.special.digamma,
        "i0": infinite(pb.special.i0), "sinc": infinite(pb.special.sinc),
        "erfc": pb.special.erfc, "erfinv": pb.special.erfinv,
    }
)  # fmt: skip


@rule(aten.angle.default)
def angle(x: Any) -> Any:
    """Of real numbers: pi below 0; NaN stays."""
    if not x.dtype.is_float:
        return pb.where(x < 0, pb.pi, 0.0)
    return pb.where(pb.isnan(x), x, pb.where(x < 0, pb.pi, 0.0))


@rule(aten.round.default)
def rounded(x: Any) -> Any:
    return pb.round(x)


def _truths(*values: Any) -> bool:
    return all(isinstance(v, bool) or getattr(v, "dtype", None) == pb.bool_ for v in values)


@rule(aten.mul.Tensor, aten.mul.Scalar)
def multiply(x: Any, y: Any) -> Any:
    return pb.logical_and(x, y) if _truths(x, y) else pb.multiply(x, y)


@rule(aten.add.Tensor, aten.add.Scalar)
def add(x: Any, y: Any, alpha: Any = 1) -> Any:
    if _truths(x, y):
        return pb.logical_or(x, y)
    return x + (y if alpha == 1 else y * alpha)


@rule(aten.sub.Tensor, aten.sub.Scalar)
def subtract(x: Any, y: Any, alpha: Any = 1) -> Any:
    return x - (y if alpha == 1 else y * alpha)


@rule(aten.rsub.Tensor, aten.rsub.Scalar)
def subtracted_from(x: Any, y: Any, alpha: Any = 1) -> Any:
    return y - (x if alpha == 1 else x * alpha)


@rule(aten.div.Tensor, aten.div.Scalar, aten.true_divide.Tensor)
def divide(x: Any, y: Any) -> Any:
    return pb.divide(x, y)


@rule(aten.div.Tensor_mode, aten.div.Scalar_mode)
def divide_by_mode(x: Any, y: Any, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return pb.divide(x, y)
    floor = pb.floor_divide(x, y)
    if rounding_mode == "floor":
        return floor
    if pb.divide(x, y).dtype == floor.dtype:
        return pb.trunc(pb.divide(x, y))
    return pb.where((floor < 0) & (floor * y != x), floor + 1, floor)  # of integers


@rule(aten.pow.Tensor_Tensor, aten.pow.Tensor_Scalar, aten.pow.Scalar)
def power(x: Any, y: Any) -> Any:
    return pb.pow(x, y)


@rule(aten.ldexp.Tensor)
def ldexp(x: Any, y: Any) -> Any:
    return x * pb.exp2(y)


@rule(aten.clamp.default, aten.clamp.Tensor, aten.clip.default)
def clamp(x: Any, low: Any = None, high: Any = None) -> Any:
    return pb.clip(x, low, high)


@rule(aten.clamp_min.default, aten.clamp_min.Tensor)
def clamp_min(x: Any, low: Any) -> Any:
    return pb.clip(x, low, None)


@rule(aten.clamp_max.default, aten.clamp_max.Tensor)
def clamp_max(x: Any, high: Any) -> Any:
    return pb.clip(x, None, high)


@rule(aten.where.self, aten.where.ScalarOther, aten.where.ScalarSelf, aten.where.Scalar)
def where(condition: Any, x: Any, y: Any) -> Any:
    return pb.where(condition, x, y)


@rule(aten.masked_fill.Scalar, aten.masked_fill.Tensor)
def masked_fill(x: Any, mask: Any, value: Any) -> Any:
    return pb.where(mask, value, x)


@rule(aten.lerp.Tensor, aten.lerp.Scalar)
@once
def lerp(x: Any, y: Any, weight: Any) -> Any:
    return pb.lerp(x, y, weight)


@rule(aten.addcmul.default)
@once
def addcmul(x: Any, y: Any, z: Any, value: Any = 1) -> Any:
    return x + (y * z if value == 1 else y * z * value)


@rule(aten.addcdiv.default)
@once
def addcdiv(x: Any, y: Any, z: Any, value: Any = 1) -> Any:
    return x + (y / z if value == 1 else y / z * value)


@rule(aten.gelu.default)
def gelu(x: Any, approximate: str = "none") -> Any:
    return F.gelu(x, approximate)


@rule(aten.leaky_relu.default)
def leaky_relu(x: Any, slope: float = 0.01) -> Any:
    return F.leaky_relu(x, slope)


@rule(aten.elu.default)
def elu(x: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    return pb.where(x > 0, x * scale, pb.expm1(x * input_scale) * (alpha * scale))


@rule(aten.hardtanh.default)
def hardtanh(x: Any, low: float = -1.0, high: float = 1.0) -> Any:
    return pb.clip(x, low, high)


@rule(aten.hardsigmoid.default)
def hardsigmoid(x: Any) -> Any:
    return F.hardsigmoid(x)


@rule(aten.hardswish.default)
@once
def hardswish(x: Any) -> Any:
    """Of -inf NaN, as a product with 0 is."""
    return x * pb.clip(x + 3.0, 0.0, 6.0) * (1 / 6)


@rule(aten.softplus.default)
def softplus(x: Any, beta: float = 1.0, threshold: float = 20.0) -> Any:
    return F.softplus(x, beta, threshold)


@rule(aten.threshold.default)
def threshold(x: Any, below: Any, value: Any) -> Any:
    return pb.where(x <= below, value, x)


@rule(aten.nan_to_num.default)
def nan_to_num(x: Any, nan: Any = None, posinf: Any = None, neginf: Any = None) -> Any:
    return pb.nan_to_num(x, nan or 0.0, posinf, neginf)


# --- derivatives of activations, of heads first ---------------------------------------------------


@rule(aten.threshold_backward.default)
def threshold_backward(head: Any, x: Any, below: Any) -> Any:
    return pb.where(x <= below, 0, head)  # of NaN the head


@rule(aten.tanh_backward.default)
def tanh_backward(head: Any, y: Any) -> Any:
    return head * (1 - y * y)


@rule(aten.sigmoid_backward.default)
def sigmoid_backward(head: Any, y: Any) -> Any:
    return head * (y * (1 - y))


@rule(aten.silu_backward.default)
def silu_backward(head: Any, x: Any) -> Any:
    s = pb.sigmoid(x)
    return head * (s * (1 + x * (1 - s)))


@rule(aten.gelu_backward.default)
def gelu_backward(head: Any, x: Any, approximate: str = "none") -> Any:
    return pulled(lambda t: F.gelu(t, approximate), [x], head)[0]


@rule(aten.hardtanh_backward.default)
def hardtanh_backward(head: Any, x: Any, low: float, high: float) -> Any:
    return pb.where((x <= low) | (x >= high), 0, head)


@rule(aten.hardsigmoid_backward.default)
def hardsigmoid_backward(head: Any, x: Any) -> Any:
    return pb.where((x > -3) & (x < 3), head * (1 / 6), 0)


@rule(aten.hardswish_backward.default)
@once
def hardswish_backward(head: Any, x: Any) -> Any:
    middle = pb.where(x >= 3, head, head * (x / 3 + 0.5))
    return pb.where(x <= -3, 0, middle)


@rule(aten.leaky_relu_backward.default)
def leaky_relu_backward(head: Any, x: Any, slope: float, self_is_result: bool) -> Any:
    del self_is_result  # of the same sign
    return pb.where(x > 0, head, head * slope)


@rule(aten.elu_backward.default)
def elu_backward(
    head: Any, alpha: float, scale: float, input_scale: float, is_result: bool, x: Any
) -> Any:
    grown = (
        x + alpha * scale if is_result else pb.exp(x * input_scale) * (alpha * scale)
    ) * input_scale
    return pb.where(x > 0, head * scale, head * grown)  # of NaN NaN


@rule(aten.softplus_backward.default)
def softplus_backward(head: Any, x: Any, beta: float, threshold_: float) -> Any:
    return pb.where(x * beta > threshold_, head, head * pb.sigmoid(x * beta))


@rule(aten.mish_backward.default)
def mish_backward(head: Any, x: Any) -> Any:
    return pulled(F.mish, [x], head)[0]


@rule(aten.log_sigmoid_forward.default)
def log_sigmoid_forward(x: Any) -> Any:
    return F.logsigmoid(x), pb.zeros(tuple(x.shape), dtype=x.dtype)


@rule(aten.log_sigmoid_backward.default)
def log_sigmoid_backward(head: Any, x: Any, buffer: Any) -> Any:
    del buffer
    return head * pb.sigmoid(-x)


@rule(aten.rrelu_with_noise_backward.default)
def rrelu_backward(
    head: Any, x: Any, noise: Any, low: float, high: float, training: bool, is_result: bool
) -> Any:
    """By the slopes that were drawn."""
    del is_result  # of the same sign
    if training and high - low > 1e-6:  # as PyTorch
        return head * noise
    return pb.where(x > 0, head, head * ((low + high) / 2))


# --- what PyTorch writes others by ----------------------------------------------------------------


def multiplied_and_added(x: Any, y: Any, z: Any) -> Any:
    return x * y + z


if hasattr(torch.ops.prims, "fma"):  # from PyTorch 2.13 on
    rule(torch.ops.prims.fma.default)(multiplied_and_added)


@rule(torch.ops.prims.convert_element_type.default)
def converted(x: Any, dtype: Any) -> Any:
    return cast(x, ELEMENTS[dtype])


@rule(aten.__lshift__.Scalar, aten.__lshift__.Tensor)
def shifted_left(x: Any, by: Any) -> Any:
    return pb.bitwise_left_shift(x, by)


@rule(aten.__rshift__.Scalar, aten.__rshift__.Tensor)
def shifted_right(x: Any, by: Any) -> Any:
    return pb.bitwise_right_shift(x, by)
