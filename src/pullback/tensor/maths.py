"""The element-wise functions, on tensors and on scalars inside a definition.

What each means stands in `rules` and `ir.functions`.
"""

from __future__ import annotations

from typing import Any

from pullback.tensor.shaped import declared
from pullback.tensor.tensor import apply


@declared("x[b...] -> [b...]")
def negative(x: Any) -> Any:
    """``-x``"""
    return apply("negative", x)


@declared("x[b...] -> [b...]")
def positive(x: Any) -> Any:
    """``x``"""
    return apply("positive", x)


@declared("x[b...] -> [b...]")
def abs(x: Any) -> Any:
    """Magnitude."""
    return apply("abs", x)


@declared("x[b...] -> [b...]")
def square(x: Any) -> Any:
    """``x * x``"""
    return apply("square", x)


@declared("x[b...] -> [b...]")
def relu(x: Any) -> Any:
    """``max(0, x)``"""
    return apply("relu", x)


@declared("x[b...] -> [b...]")
def floor(x: Any) -> Any:
    """The largest whole number not above."""
    return apply("floor", x)


@declared("x[b...] -> [b...]")
def ceil(x: Any) -> Any:
    """The smallest whole number not below."""
    return apply("ceil", x)


@declared("x[b...] -> [b...]")
def trunc(x: Any) -> Any:
    """Towards zero."""
    return apply("trunc", x)


@declared("x[b...] -> [b...]")
def round(x: Any) -> Any:
    """To the nearest whole number, halves to the even one."""
    return apply("round", x)


@declared("x[b...] -> [b...]")
def sign(x: Any) -> Any:
    """-1, 0 or 1; NaN stays."""
    return apply("sign", x)


@declared("x[b...] -> [b...]")
def exp(x: Any) -> Any:
    """``e ** x``"""
    return apply("exp", x)


@declared("x[b...] -> [b...]")
def log(x: Any) -> Any:
    """Natural logarithm."""
    return apply("log", x)


@declared("x[b...] -> [b...]")
def sqrt(x: Any) -> Any:
    """Square root."""
    return apply("sqrt", x)


@declared("x[b...] -> [b...]")
def sin(x: Any) -> Any:
    """Sine, radians."""
    return apply("sin", x)


@declared("x[b...] -> [b...]")
def cos(x: Any) -> Any:
    """Cosine, radians."""
    return apply("cos", x)


@declared("x[b...] -> [b...]")
def tan(x: Any) -> Any:
    """Tangent, radians."""
    return apply("tan", x)


@declared("x[b...] -> [b...]")
def sinh(x: Any) -> Any:
    """Hyperbolic sine."""
    return apply("sinh", x)


@declared("x[b...] -> [b...]")
def cosh(x: Any) -> Any:
    """Hyperbolic cosine."""
    return apply("cosh", x)


@declared("x[b...] -> [b...]")
def tanh(x: Any) -> Any:
    """Hyperbolic tangent."""
    return apply("tanh", x)


@declared("x[b...] -> [b...]")
def asin(x: Any) -> Any:
    """Arcsine, radians; NaN outside -1..1."""
    return apply("asin", x)


@declared("x[b...] -> [b...]")
def acos(x: Any) -> Any:
    """Arccosine, radians; NaN outside -1..1."""
    return apply("acos", x)


@declared("x[b...] -> [b...]")
def atan(x: Any) -> Any:
    """Arctangent, radians."""
    return apply("atan", x)


@declared("x[b...] -> [b...]")
def asinh(x: Any) -> Any:
    """Inverse hyperbolic sine."""
    return apply("asinh", x)


@declared("x[b...] -> [b...]")
def acosh(x: Any) -> Any:
    """Inverse hyperbolic cosine; NaN below 1."""
    return apply("acosh", x)


@declared("x[b...] -> [b...]")
def atanh(x: Any) -> Any:
    """Inverse hyperbolic tangent; NaN outside -1..1."""
    return apply("atanh", x)


@declared("x1[*b], x2[*b] -> [*b]")
def atan2(x1: Any, x2: Any) -> Any:
    """The angle of the point (x2, x1) in -pi..pi, radians."""
    return apply("atan2", x1, x2)


@declared("x[b...] -> [b...]")
def erf(x: Any) -> Any:
    """The error function."""
    return apply("erf", x)


@declared("x[b...] -> [b...]")
def sigmoid(x: Any) -> Any:
    """``1 / (1 + exp(-x))``"""
    return apply("sigmoid", x)


@declared("x[b...] -> [b...]")
def silu(x: Any) -> Any:
    """``x * sigmoid(x)``"""
    return apply("silu", x)


@declared("x[b...] -> [b...]")
def gelu(x: Any) -> Any:
    """``x * (1 + erf(x / sqrt 2)) / 2``"""
    return apply("gelu", x)


@declared("x[b...] -> [b...]")
def gelu_tanh(x: Any) -> Any:
    """The tanh form of GELU."""
    return apply("gelu_tanh", x)


@declared("x[b...] -> [b...]")
def softplus(x: Any) -> Any:
    """``log(1 + exp(x))``"""
    return apply("softplus", x)


@declared("x[b...] -> [b...]")
def log_sigmoid(x: Any) -> Any:
    """``log(sigmoid(x))``"""
    return apply("log_sigmoid", x)


@declared("x[b...] -> [b...]")
def log1p(x: Any) -> Any:
    """``log(1 + x)``, exact near 0."""
    return apply("log1p", x)


@declared("x[b...] -> [b...]")
def expm1(x: Any) -> Any:
    """``exp(x) - 1``, exact near 0."""
    return apply("expm1", x)


@declared("x[b...] -> [b...]")
def log2(x: Any) -> Any:
    """Logarithm to base 2."""
    return apply("log2", x)


@declared("x[b...] -> [b...]")
def log10(x: Any) -> Any:
    """Logarithm to base 10."""
    return apply("log10", x)


@declared("x[b...] -> [b...]")
def rsqrt(x: Any) -> Any:
    """``1 / sqrt(x)``"""
    return apply("rsqrt", x)


@declared("x[b...] -> [b...]")
def reciprocal(x: Any) -> Any:
    """``1 / x``"""
    return apply("reciprocal", x)


@declared("x[b...] -> [b...]")
def isnan(x: Any) -> Any:
    """Whether NaN."""
    return apply("isnan", x)


@declared("x[b...] -> [b...]")
def isinf(x: Any) -> Any:
    """Whether infinite."""
    return apply("isinf", x)


@declared("x[b...] -> [b...]")
def isfinite(x: Any) -> Any:
    """Whether neither infinite nor NaN."""
    return apply("isfinite", x)


@declared("x[b...] -> [b...]")
def bitwise_invert(x: Any) -> Any:
    """Every bit flipped."""
    return apply("bitwise_invert", x)


@declared("x[b...] -> [b...]")
def logical_not(x: Any) -> Any:
    """``not x``"""
    return apply("logical_not", x)


@declared("x1[*b], x2[*b] -> [*b]")
def add(x1: Any, x2: Any) -> Any:
    """``x1 + x2``"""
    return apply("add", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def subtract(x1: Any, x2: Any) -> Any:
    """``x1 - x2``"""
    return apply("subtract", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def multiply(x1: Any, x2: Any) -> Any:
    """``x1 * x2``"""
    return apply("multiply", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def divide(x1: Any, x2: Any) -> Any:
    """``x1 / x2``; integers become float32."""
    return apply("divide", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def floor_divide(x1: Any, x2: Any) -> Any:
    """``floor(x1 / x2)``"""
    return apply("floor_divide", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def remainder(x1: Any, x2: Any) -> Any:
    """``x1 - floor(x1 / x2) * x2``, exact: the sign of `x2`."""
    return apply("remainder", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def fmod(x1: Any, x2: Any) -> Any:
    """``x1 - trunc(x1 / x2) * x2``, exact, as C's: the sign of `x1`."""
    return apply("fmod", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def copysign(x1: Any, x2: Any) -> Any:
    """The magnitude of `x1` with the sign of `x2`, of -0.0 too."""
    return apply("copysign", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def pow(x1: Any, x2: Any) -> Any:
    """``x1 ** x2``; exact for Python whole numbers."""
    return apply("pow", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def maximum(x1: Any, x2: Any) -> Any:
    """The larger; NaN if either is."""
    return apply("maximum", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def minimum(x1: Any, x2: Any) -> Any:
    """The smaller; NaN if either is."""
    return apply("minimum", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def logaddexp(x1: Any, x2: Any) -> Any:
    """``log(exp(x1) + exp(x2))``"""
    return apply("logaddexp", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def less(x1: Any, x2: Any) -> Any:
    """``x1 < x2``"""
    return apply("less", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def less_equal(x1: Any, x2: Any) -> Any:
    """``x1 <= x2``"""
    return apply("less_equal", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def greater(x1: Any, x2: Any) -> Any:
    """``x1 > x2``"""
    return apply("greater", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def greater_equal(x1: Any, x2: Any) -> Any:
    """``x1 >= x2``"""
    return apply("greater_equal", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def equal(x1: Any, x2: Any) -> Any:
    """``x1 == x2``"""
    return apply("equal", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def not_equal(x1: Any, x2: Any) -> Any:
    """``x1 != x2``"""
    return apply("not_equal", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def bitwise_and(x1: Any, x2: Any) -> Any:
    """``x1 & x2``"""
    return apply("bitwise_and", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def bitwise_or(x1: Any, x2: Any) -> Any:
    """``x1 | x2``"""
    return apply("bitwise_or", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def bitwise_xor(x1: Any, x2: Any) -> Any:
    """``x1 ^ x2``"""
    return apply("bitwise_xor", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def bitwise_left_shift(x1: Any, x2: Any) -> Any:
    """``x1 * 2 ** x2``; 0 where `x2` is the width or more, or negative."""
    return apply("bitwise_left_shift", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def bitwise_right_shift(x1: Any, x2: Any) -> Any:
    """``floor(x1 / 2 ** x2)``; 0 or -1 where `x2` is the width or more, or negative."""
    return apply("bitwise_right_shift", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def logical_and(x1: Any, x2: Any) -> Any:
    """``x1 and x2``"""
    return apply("logical_and", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def logical_or(x1: Any, x2: Any) -> Any:
    """``x1 or x2``"""
    return apply("logical_or", x1, x2)


@declared("x1[*b], x2[*b] -> [*b]")
def logical_xor(x1: Any, x2: Any) -> Any:
    """One of the two is true."""
    return apply("logical_xor", x1, x2)
