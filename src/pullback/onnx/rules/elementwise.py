"""Operators of one element, or of several at a time, and types."""

from __future__ import annotations

from functools import reduce
from typing import Any

import pullback as pb
import pullback.nn.functional as F
from pullback.onnx.read import kind_of
from pullback.onnx.rules.table import demand, rule, same

same((6, 13), {
    "Abs": pb.abs, "Ceil": pb.ceil, "Exp": pb.exp, "Floor": pb.floor, "Log": pb.log,
    "Neg": pb.negative, "Reciprocal": pb.reciprocal, "Sigmoid": pb.sigmoid, "Sqrt": pb.sqrt,
    "Tanh": pb.tanh,
})  # fmt: skip
same((7, 22), {
    "Acos": pb.acos, "Asin": pb.asin, "Atan": pb.atan, "Cos": pb.cos, "Sin": pb.sin, "Tan": pb.tan,
})  # fmt: skip
same((9, 22), {
    "Acosh": pb.acosh, "Asinh": pb.asinh, "Atanh": pb.atanh, "Cosh": pb.cosh, "Sinh": pb.sinh,
})  # fmt: skip
same((9, 13), {"Erf": pb.erf, "Sign": pb.sign})
same((9, 13, 20), {"IsNaN": pb.isnan})
same((6, 13, 14), {"Relu": pb.relu})
same((11, 22), {"Round": pb.round})
same((1,), {"Not": pb.logical_not})
same((18,), {
    "BitwiseNot": pb.bitwise_invert, "BitwiseAnd": pb.bitwise_and, "BitwiseOr": pb.bitwise_or,
    "BitwiseXor": pb.bitwise_xor,
})  # fmt: skip
same((1, 22), {"Softplus": F.softplus, "Softsign": F.softsign})
same((14, 22), {"HardSwish": lambda x: x * pb.clip(x * (1 / 6) + 0.5, 0.0, 1.0)})
same((18, 22), {"Mish": F.mish})
same((7, 13, 14), {"Add": pb.add, "Sub": pb.subtract, "Mul": pb.multiply})
same((7,), {"And": pb.logical_and, "Or": pb.logical_or, "Xor": pb.logical_xor})
same((7, 11, 13, 19), {"Equal": pb.equal})
same((7, 9, 13), {"Less": pb.less, "Greater": pb.greater})
same((12, 16), {"LessOrEqual": pb.less_equal, "GreaterOrEqual": pb.greater_equal})
same((9, 16), {"Where": pb.where})
same((1, 13, 14, 16, 19, 21, 23, 24, 25), {"Identity": lambda x: x})


@rule("Div", 7, 13, 14)
def divide(x: Any, y: Any) -> Any:
    """Of integers without the fraction."""
    if x.dtype.is_float:
        return pb.divide(x, y)
    floor = pb.floor_divide(x, y)
    if x.dtype.kind == "u":
        return floor
    return pb.where((floor < 0) & (floor * y != x), floor + 1, floor)


@rule("Mod", 10, 13, 28)
def mod(x: Any, y: Any, *, fmod: int) -> Any:
    """The sign is that of `y`, with `fmod` that of `x`."""
    return pb.fmod(x, y) if fmod else pb.remainder(x, y)


@rule("Pow", 7, 12, 13, 15)
def power(x: Any, y: Any) -> Any:
    """In the type of `x`."""
    return pb.astype(pb.pow(x, y), x.dtype)


@rule("BitShift", 11, 28)
def bit_shift(x: Any, y: Any, *, direction: str) -> Any:
    """Zeros come in; those of all bits and more leave nothing."""
    demand(direction in ("LEFT", "RIGHT"), f"direction={direction!r}")
    shift = pb.bitwise_left_shift if direction == "LEFT" else pb.bitwise_right_shift
    return shift(x, y)


@rule("Max", 6, 8, 12, 13)
def largest(*x: Any) -> Any:
    return reduce(pb.maximum, x)


@rule("Min", 6, 8, 12, 13)
def smallest(*x: Any) -> Any:
    return reduce(pb.minimum, x)


@rule("Sum", 6, 8, 13)
def total(*x: Any) -> Any:
    return reduce(pb.add, x)


@rule("Mean", 6, 8, 13)
def mean(*x: Any) -> Any:
    return reduce(pb.add, x) / len(x)


@rule("Clip", 6)
def clip_between(x: Any, *, min: float, max: float) -> Any:
    return pb.clip(x, min, max)


@rule("Clip", 11, 12, 13)
def clip(x: Any, low: Any = None, high: Any = None) -> Any:
    """The upper bound wins where the two are crossed."""
    x = x if low is None else pb.maximum(x, low)
    return x if high is None else pb.minimum(x, high)


@rule("Elu", 6, 22)
def elu(x: Any, *, alpha: float) -> Any:
    return F.elu(x, alpha)


@rule("Celu", 12, 28)
def celu(x: Any, *, alpha: float) -> Any:
    return F.celu(x, alpha)


@rule("Selu", 6, 22)
def selu(x: Any, *, alpha: float, gamma: float) -> Any:
    return F.elu(x, alpha) * gamma


@rule("LeakyRelu", 6, 16)
def leaky_relu(x: Any, *, alpha: float) -> Any:
    return F.leaky_relu(x, alpha)


@rule("ThresholdedRelu", 10, 22)
def thresholded_relu(x: Any, *, alpha: float) -> Any:
    return pb.where(x > alpha, x, 0)


@rule("HardSigmoid", 6, 22)
def hard_sigmoid(x: Any, *, alpha: float, beta: float) -> Any:
    return pb.clip(x * alpha + beta, 0.0, 1.0)


@rule("Shrink", 9)
def shrink(x: Any, *, bias: float, lambd: float) -> Any:
    y = pb.where(x < -lambd, x + bias, pb.where(x > lambd, x - bias, 0))
    return pb.astype(y, x.dtype)


@rule("PRelu", 7, 9, 16)
def prelu(x: Any, slope: Any) -> Any:
    return pb.where(x < 0, x * slope, x)


@rule("Gelu", 20)
def gelu(x: Any, *, approximate: str) -> Any:
    demand(approximate in ("none", "tanh"), f"approximate={approximate!r}")
    return F.gelu(x, approximate)


@rule("Swish", 24)
def swish(x: Any, *, alpha: float) -> Any:
    return x * pb.sigmoid(x * alpha)


@rule("IsInf", 10, 20)
def is_inf(x: Any, *, detect_negative: int, detect_positive: int) -> Any:
    if detect_negative and detect_positive:
        return pb.isinf(x)
    if detect_negative or detect_positive:
        return pb.isneginf(x) if detect_negative else pb.isposinf(x)
    return pb.isinf(x) & False


def short(x: Any, kind: Any, saturate: int | None) -> Any:
    """`x` as another type; what is beyond one of 8 bits as its largest, where it is to."""
    if not saturate or kind.name not in ENDS:
        return pb.astype(x, kind)
    wide = x if x.dtype.is_float else pb.astype(x, pb.float32)
    return pb.astype(pb.clip(wide, -ENDS[kind.name], ENDS[kind.name]), kind)


ENDS = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}


@rule("Cast", 6, 9)
def cast_to(x: Any, *, to: int) -> Any:
    return cast(x, to=to)


@rule("Cast", 13, 19, 21, 23, 24, 25, 28)
def cast(x: Any, *, to: int, saturate: int | None = None, round_mode: str | None = None) -> Any:
    del round_mode  # of powers of two
    return short(x, kind_of(to, "the result of a Cast"), saturate)


@rule("CastLike", 15, 19, 21, 23, 24, 25)
def cast_like(x: Any, y: Any, *, saturate: int | None = None, round_mode: str | None = None) -> Any:
    del round_mode
    return short(x, y.dtype, saturate)


@rule("BitCast", 26)
def bit_cast(x: Any, *, to: int) -> Any:
    """Of whole numbers of one width, which wrap."""
    kind = kind_of(to, "the result of a BitCast")
    same_bits = kind.bits == x.dtype.bits and not x.dtype.is_float and not kind.is_float
    demand(same_bits and not kind.is_bool, f"the bits of {x.dtype} as {kind}")
    return pb.astype(x, kind)
