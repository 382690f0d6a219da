"""The element-wise functions, on tensors and on scalars inside a definition.

What each means stands in `rules`, `functions` and `ir.functions`.
"""

from __future__ import annotations

from typing import Any

from pullback.tensor.face.tensor import apply
from pullback.tensor.shaped.checks import declared


@declared("x[b...] -> [b...]")
def negative(x: Any) -> Any:
    """``-x``

    Example:
        >>> pb.negative(pb.tensor([1.0, -2.0]))
        Tensor([-1.,  2.], dtype=float32)
    """
    return apply("negative", x)


@declared("x[b...] -> [b...]")
def positive(x: Any) -> Any:
    """``x``

    Example:
        >>> pb.positive(pb.tensor([1.0, -2.0]))
        Tensor([ 1., -2.], dtype=float32)
    """
    return apply("positive", x)


@declared("x[b...] -> [b...]")
def abs(x: Any) -> Any:
    """Magnitude.

    Example:
        >>> pb.abs(pb.tensor([-1.5, 2.0]))
        Tensor([1.5, 2. ], dtype=float32)
    """
    return apply("abs", x)


@declared("x[b...] -> [b...]")
def square(x: Any) -> Any:
    """``x * x``

    Example:
        >>> pb.square(pb.tensor([2.0, -3.0]))
        Tensor([4., 9.], dtype=float32)
    """
    return apply("square", x)


@declared("x[b...] -> [b...]")
def relu(x: Any) -> Any:
    """``max(0, x)``

    Example:
        >>> pb.relu(pb.tensor([-1.0, 2.0]))
        Tensor([0., 2.], dtype=float32)
    """
    return apply("relu", x)


@declared("x[b...] -> [b...]")
def floor(x: Any) -> Any:
    """The largest whole number not above.

    Example:
        >>> pb.floor(pb.tensor([1.2, -1.2]))
        Tensor([ 1., -2.], dtype=float32)
    """
    return apply("floor", x)


@declared("x[b...] -> [b...]")
def ceil(x: Any) -> Any:
    """The smallest whole number not below.

    Example:
        >>> pb.ceil(pb.tensor([1.2, -1.2]))
        Tensor([ 2., -1.], dtype=float32)
    """
    return apply("ceil", x)


@declared("x[b...] -> [b...]")
def trunc(x: Any) -> Any:
    """Towards zero.

    Example:
        >>> pb.trunc(pb.tensor([1.7, -1.7]))
        Tensor([ 1., -1.], dtype=float32)
    """
    return apply("trunc", x)


@declared("x[b...] -> [b...]")
def round(x: Any) -> Any:
    """To the nearest whole number, halves to the even one.

    Example:
        >>> pb.round(pb.tensor([0.5, 1.5, -1.2]))
        Tensor([ 0.,  2., -1.], dtype=float32)
    """
    return apply("round", x)


@declared("x[b...] -> [b...]")
def sign(x: Any) -> Any:
    """-1, 0 or 1; NaN stays.

    Example:
        >>> pb.sign(pb.tensor([-3.0, 0.0, 2.0]))
        Tensor([-1.,  0.,  1.], dtype=float32)
    """
    return apply("sign", x)


@declared("x[b...] -> [b...]")
def exp(x: Any) -> Any:
    """``e ** x``

    Example:
        >>> pb.exp(pb.tensor([0.0, 1.0]))
        Tensor([1.      , 2.718282], dtype=float32)
    """
    return apply("exp", x)


@declared("x[b...] -> [b...]")
def log(x: Any) -> Any:
    """Natural logarithm.

    Example:
        >>> pb.log(pb.tensor([1.0, 2.0]))
        Tensor([0.       , 0.6931472], dtype=float32)
    """
    return apply("log", x)


@declared("x[b...] -> [b...]")
def sqrt(x: Any) -> Any:
    """Square root.

    Example:
        >>> pb.sqrt(pb.tensor([4.0, 9.0]))
        Tensor([2., 3.], dtype=float32)
    """
    return apply("sqrt", x)


@declared("x[b...] -> [b...]")
def sin(x: Any) -> Any:
    """Sine, radians.

    Example:
        >>> pb.sin(pb.tensor([0.0, 1.0]))
        Tensor([0.      , 0.841471], dtype=float32)
    """
    return apply("sin", x)


@declared("x[b...] -> [b...]")
def cos(x: Any) -> Any:
    """Cosine, radians.

    Example:
        >>> pb.cos(pb.tensor([0.0, 1.0]))
        Tensor([1.       , 0.5403023], dtype=float32)
    """
    return apply("cos", x)


@declared("x[b...] -> [b...]")
def tan(x: Any) -> Any:
    """Tangent, radians.

    Example:
        >>> pb.tan(pb.tensor([0.0, 1.0]))
        Tensor([0.       , 1.5574077], dtype=float32)
    """
    return apply("tan", x)


@declared("x[b...] -> [b...]")
def sinh(x: Any) -> Any:
    """Hyperbolic sine.

    Example:
        >>> pb.sinh(pb.tensor([0.0, 1.0]))
        Tensor([0.       , 1.1752013], dtype=float32)
    """
    return apply("sinh", x)


@declared("x[b...] -> [b...]")
def cosh(x: Any) -> Any:
    """Hyperbolic cosine.

    Example:
        >>> pb.cosh(pb.tensor([0.0, 1.0]))
        Tensor([1.       , 1.5430807], dtype=float32)
    """
    return apply("cosh", x)


@declared("x[b...] -> [b...]")
def tanh(x: Any) -> Any:
    """Hyperbolic tangent.

    Example:
        >>> pb.tanh(pb.tensor([0.0, 1.0]))
        Tensor([0.       , 0.7615941], dtype=float32)
    """
    return apply("tanh", x)


@declared("x[b...] -> [b...]")
def asin(x: Any) -> Any:
    """Arcsine, radians; NaN outside -1..1.

    Example:
        >>> pb.asin(pb.tensor([0.0, 1.0]))
        Tensor([0.       , 1.5707964], dtype=float32)
    """
    return apply("asin", x)


@declared("x[b...] -> [b...]")
def acos(x: Any) -> Any:
    """Arccosine, radians; NaN outside -1..1.

    Example:
        >>> pb.acos(pb.tensor([0.0, 1.0]))
        Tensor([1.5707964, 0.       ], dtype=float32)
    """
    return apply("acos", x)


@declared("x[b...] -> [b...]")
def atan(x: Any) -> Any:
    """Arctangent, radians.

    Example:
        >>> pb.atan(pb.tensor([0.0, 1.0]))
        Tensor([0.       , 0.7853982], dtype=float32)
    """
    return apply("atan", x)


@declared("x[b...] -> [b...]")
def asinh(x: Any) -> Any:
    """Inverse hyperbolic sine.

    Example:
        >>> pb.asinh(pb.tensor([0.0, 1.0]))
        Tensor([0.       , 0.8813736], dtype=float32)
    """
    return apply("asinh", x)


@declared("x[b...] -> [b...]")
def acosh(x: Any) -> Any:
    """Inverse hyperbolic cosine; NaN below 1.

    Example:
        >>> pb.acosh(pb.tensor([1.0, 2.0]))
        Tensor([0.      , 1.316958], dtype=float32)
    """
    return apply("acosh", x)


@declared("x[b...] -> [b...]")
def atanh(x: Any) -> Any:
    """Inverse hyperbolic tangent; NaN outside -1..1.

    Example:
        >>> pb.atanh(pb.tensor([0.0, 0.5]))
        Tensor([0.        , 0.54930615], dtype=float32)
    """
    return apply("atanh", x)


@declared("x1[*b], x2[*b] -> [*b]")
def atan2(x1: Any, x2: Any) -> Any:
    """The angle of the point (x2, x1) in -pi..pi, radians.

    Example:
        >>> pb.atan2(pb.tensor([1.0, -1.0]), pb.tensor([1.0, -1.0]))
        Tensor([ 0.7853982, -2.3561945], dtype=float32)
    """
    return apply("atan2", x1, x2)


@declared("x[b...] -> [b...]")
def erf(x: Any) -> Any:
    """The error function.

    Example:
        >>> pb.erf(pb.tensor([0.0, 1.0]))
        Tensor([0.       , 0.8427008], dtype=float32)
    """
    return apply("erf", x)


@declared("x[b...] -> [b...]")
def sigmoid(x: Any) -> Any:
    """``1 / (1 + exp(-x))``

    Example:
        >>> pb.sigmoid(pb.tensor([0.0, 2.0]))
        Tensor([0.5     , 0.880797], dtype=float32)
    """
    return apply("sigmoid", x)


@declared("x[b...] -> [b...]")
def silu(x: Any) -> Any:
    """``x * sigmoid(x)``

    Example:
        >>> pb.silu(pb.tensor([0.0, 2.0]))
        Tensor([0.      , 1.761594], dtype=float32)
    """
    return apply("silu", x)


@declared("x[b...] -> [b...]")
def gelu(x: Any) -> Any:
    """``x * (1 + erf(x / sqrt 2)) / 2``

    Example:
        >>> pb.gelu(pb.tensor([-1.0, 1.0]))
        Tensor([-0.15865529,  0.8413447 ], dtype=float32)
    """
    return apply("gelu", x)


@declared("x[b...] -> [b...]")
def gelu_tanh(x: Any) -> Any:
    """The tanh form of GELU.

    Example:
        >>> pb.gelu_tanh(pb.tensor([-1.0, 1.0]))
        Tensor([-0.158808,  0.841192], dtype=float32)
    """
    return apply("gelu_tanh", x)


@declared("x[b...] -> [b...]")
def softplus(x: Any) -> Any:
    """``log(1 + exp(x))``

    Example:
        >>> pb.softplus(pb.tensor([0.0, 2.0]))
        Tensor([0.6931472, 2.126928 ], dtype=float32)
    """
    return apply("softplus", x)


@declared("x[b...] -> [b...]")
def log_sigmoid(x: Any) -> Any:
    """``log(sigmoid(x))``

    Example:
        >>> pb.log_sigmoid(pb.tensor([0.0, 2.0]))
        Tensor([-0.6931472, -0.126928 ], dtype=float32)
    """
    return apply("log_sigmoid", x)


@declared("x[b...] -> [b...]")
def log1p(x: Any) -> Any:
    """``log(1 + x)``, exact near 0.

    Example:
        >>> pb.log1p(pb.tensor([0.0, 1.0]))
        Tensor([0.       , 0.6931472], dtype=float32)
    """
    return apply("log1p", x)


@declared("x[b...] -> [b...]")
def expm1(x: Any) -> Any:
    """``exp(x) - 1``, exact near 0.

    Example:
        >>> pb.expm1(pb.tensor([0.0, 1.0]))
        Tensor([0.      , 1.718282], dtype=float32)
    """
    return apply("expm1", x)


@declared("x[b...] -> [b...]")
def log2(x: Any) -> Any:
    """Logarithm to base 2.

    Example:
        >>> pb.log2(pb.tensor([1.0, 8.0]))
        Tensor([0., 3.], dtype=float32)
    """
    return apply("log2", x)


@declared("x[b...] -> [b...]")
def log10(x: Any) -> Any:
    """Logarithm to base 10.

    Example:
        >>> pb.log10(pb.tensor([1.0, 100.0]))
        Tensor([0., 2.], dtype=float32)
    """
    return apply("log10", x)


@declared("x[b...] -> [b...]")
def rsqrt(x: Any) -> Any:
    """``1 / sqrt(x)``

    Example:
        >>> pb.rsqrt(pb.tensor([1.0, 4.0]))
        Tensor([1. , 0.5], dtype=float32)
    """
    return apply("rsqrt", x)


@declared("x[b...] -> [b...]")
def reciprocal(x: Any) -> Any:
    """``1 / x``

    Example:
        >>> pb.reciprocal(pb.tensor([2.0, 4.0]))
        Tensor([0.5 , 0.25], dtype=float32)
    """
    return apply("reciprocal", x)


@declared("x[b...] -> [b...]")
def isnan(x: Any) -> Any:
    """Whether NaN.

    Example:
        >>> pb.isnan(pb.tensor([1.0, float("nan")]))
        Tensor([False,  True], dtype=bool)
    """
    return apply("isnan", x)


@declared("x[b...] -> [b...]")
def isinf(x: Any) -> Any:
    """Whether infinite.

    Example:
        >>> pb.isinf(pb.tensor([1.0, float("inf")]))
        Tensor([False,  True], dtype=bool)
    """
    return apply("isinf", x)


@declared("x[b...] -> [b...]")
def isfinite(x: Any) -> Any:
    """Whether neither infinite nor NaN.

    Example:
        >>> pb.isfinite(pb.tensor([1.0, float("inf")]))
        Tensor([ True, False], dtype=bool)
    """
    return apply("isfinite", x)


@declared("x[b...] -> [b...]")
def bitwise_invert(x: Any) -> Any:
    """Every bit flipped.

    Example:
        >>> pb.bitwise_invert(pb.tensor([0, 5]))
        Tensor([-1, -6], dtype=int64)
    """
    return apply("bitwise_invert", x)


@declared("x[b...] -> [b...]")
def logical_not(x: Any) -> Any:
    """``not x``

    Example:
        >>> pb.logical_not(pb.tensor([True, False]))
        Tensor([False,  True], dtype=bool)
    """
    return apply("logical_not", x)


@declared("x1[*b], x2[*b] -> [*b]")
def add(x1: Any, x2: Any) -> Any:
    """``x1 + x2``

    Example:
        >>> pb.add(pb.tensor([1.0, 2.0]), 10)
        Tensor([11., 12.], dtype=float32)
    """
    return apply("add", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def subtract(x1: Any, x2: Any) -> Any:
    """``x1 - x2``

    Example:
        >>> pb.subtract(pb.tensor([1.0, 2.0]), 10)
        Tensor([-9., -8.], dtype=float32)
    """
    return apply("subtract", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def multiply(x1: Any, x2: Any) -> Any:
    """``x1 * x2``

    Example:
        >>> pb.multiply(pb.tensor([1.0, 2.0]), 10)
        Tensor([10., 20.], dtype=float32)
    """
    return apply("multiply", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def divide(x1: Any, x2: Any) -> Any:
    """``x1 / x2``; integers become float32.

    Example:
        >>> pb.divide(pb.tensor([1.0, 2.0]), 4)
        Tensor([0.25, 0.5 ], dtype=float32)
    """
    return apply("divide", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def floor_divide(x1: Any, x2: Any) -> Any:
    """``floor(x1 / x2)``

    Example:
        >>> pb.floor_divide(pb.tensor([7, -7]), 2)
        Tensor([ 3, -4], dtype=int64)
    """
    return apply("floor_divide", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def remainder(x1: Any, x2: Any) -> Any:
    """``x1 - floor(x1 / x2) * x2``, exact: the sign of `x2`.

    Example:
        >>> pb.remainder(pb.tensor([7.0, -7.0]), 3)
        Tensor([1., 2.], dtype=float32)
    """
    return apply("remainder", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def fmod(x1: Any, x2: Any) -> Any:
    """``x1 - trunc(x1 / x2) * x2``, exact, as C's: the sign of `x1`.

    Example:
        >>> pb.fmod(pb.tensor([7.0, -7.0]), 3)
        Tensor([ 1., -1.], dtype=float32)
    """
    return apply("fmod", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def copysign(x1: Any, x2: Any) -> Any:
    """The magnitude of `x1` with the sign of `x2`, of -0.0 too.

    Example:
        >>> pb.copysign(pb.tensor([1.0, 2.0]), pb.tensor([-1.0, 1.0]))
        Tensor([-1.,  2.], dtype=float32)
    """
    return apply("copysign", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def pow(x1: Any, x2: Any) -> Any:
    """``x1 ** x2``; exact for Python whole numbers.

    Example:
        >>> pb.pow(pb.tensor([2.0, 3.0]), 2)
        Tensor([4., 9.], dtype=float32)
    """
    return apply("pow", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def maximum(x1: Any, x2: Any) -> Any:
    """The larger; NaN if either is.

    Example:
        >>> pb.maximum(pb.tensor([1.0, 5.0]), 3)
        Tensor([3., 5.], dtype=float32)
    """
    return apply("maximum", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def minimum(x1: Any, x2: Any) -> Any:
    """The smaller; NaN if either is.

    Example:
        >>> pb.minimum(pb.tensor([1.0, 5.0]), 3)
        Tensor([1., 3.], dtype=float32)
    """
    return apply("minimum", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def logaddexp(x1: Any, x2: Any) -> Any:
    """``log(exp(x1) + exp(x2))``

    Example:
        >>> pb.logaddexp(pb.tensor([0.0, 1.0]), 0.0)
        Tensor([0.6931472, 1.3132617], dtype=float32)
    """
    return apply("logaddexp", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def less(x1: Any, x2: Any) -> Any:
    """``x1 < x2``

    Example:
        >>> pb.less(pb.tensor([1, 2, 3]), 2)
        Tensor([ True, False, False], dtype=bool)
    """
    return apply("less", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def less_equal(x1: Any, x2: Any) -> Any:
    """``x1 <= x2``

    Example:
        >>> pb.less_equal(pb.tensor([1, 2, 3]), 2)
        Tensor([ True,  True, False], dtype=bool)
    """
    return apply("less_equal", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def greater(x1: Any, x2: Any) -> Any:
    """``x1 > x2``

    Example:
        >>> pb.greater(pb.tensor([1, 2, 3]), 2)
        Tensor([False, False,  True], dtype=bool)
    """
    return apply("greater", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def greater_equal(x1: Any, x2: Any) -> Any:
    """``x1 >= x2``

    Example:
        >>> pb.greater_equal(pb.tensor([1, 2, 3]), 2)
        Tensor([False,  True,  True], dtype=bool)
    """
    return apply("greater_equal", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def equal(x1: Any, x2: Any) -> Any:
    """``x1 == x2``

    Example:
        >>> pb.equal(pb.tensor([1, 2]), pb.tensor([1, 3]))
        Tensor([ True, False], dtype=bool)
    """
    return apply("equal", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def not_equal(x1: Any, x2: Any) -> Any:
    """``x1 != x2``

    Example:
        >>> pb.not_equal(pb.tensor([1, 2]), pb.tensor([1, 3]))
        Tensor([False,  True], dtype=bool)
    """
    return apply("not_equal", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def bitwise_and(x1: Any, x2: Any) -> Any:
    """``x1 & x2``

    Example:
        >>> pb.bitwise_and(pb.tensor([6, 5]), 3)
        Tensor([2, 1], dtype=int64)
    """
    return apply("bitwise_and", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def bitwise_or(x1: Any, x2: Any) -> Any:
    """``x1 | x2``

    Example:
        >>> pb.bitwise_or(pb.tensor([6, 5]), 3)
        Tensor([7, 7], dtype=int64)
    """
    return apply("bitwise_or", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def bitwise_xor(x1: Any, x2: Any) -> Any:
    """``x1 ^ x2``

    Example:
        >>> pb.bitwise_xor(pb.tensor([6, 5]), 3)
        Tensor([5, 6], dtype=int64)
    """
    return apply("bitwise_xor", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def bitwise_left_shift(x1: Any, x2: Any) -> Any:
    """``x1 * 2 ** x2``; 0 where `x2` is the width or more, or negative.

    Example:
        >>> pb.bitwise_left_shift(pb.tensor([1, 3]), 2)
        Tensor([ 4, 12], dtype=int64)
    """
    return apply("bitwise_left_shift", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def bitwise_right_shift(x1: Any, x2: Any) -> Any:
    """``floor(x1 / 2 ** x2)``; 0 or -1 where `x2` is the width or more, or negative.

    Example:
        >>> pb.bitwise_right_shift(pb.tensor([8, -8]), 2)
        Tensor([ 2, -2], dtype=int64)
    """
    return apply("bitwise_right_shift", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def logical_and(x1: Any, x2: Any) -> Any:
    """``x1 and x2``

    Example:
        >>> pb.logical_and(pb.tensor([True, False]), True)
        Tensor([ True, False], dtype=bool)
    """
    return apply("logical_and", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def logical_or(x1: Any, x2: Any) -> Any:
    """``x1 or x2``

    Example:
        >>> pb.logical_or(pb.tensor([True, False]), True)
        Tensor([ True,  True], dtype=bool)
    """
    return apply("logical_or", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def logical_xor(x1: Any, x2: Any) -> Any:
    """One of the two is true.

    Example:
        >>> pb.logical_xor(pb.tensor([True, False]), True)
        Tensor([False,  True], dtype=bool)
    """
    return apply("logical_xor", x1, x2)
