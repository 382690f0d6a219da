"""Named scalar functions that no pass knows by name: composites of those of `ir.functions`.

A shift by the width or more leaves nothing of a number but its sign, and so does a negative one: it
is a large one, as processors and NumPy read it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from pullback.ir import expr as E
from pullback.ir import functions as F
from pullback.ir.dtype import bool_, float8_e4m3fn
from pullback.ir.expr import Add, And, Cast, Const, Equal, Expr, FloorDiv, If, Less, Mod, Mul, Or
from pullback.ir.functions import Scalar, like, wide

INTEGER_POWER = 64  # integer exponents up to this are multiplied out


@wide
def silu(x: Expr) -> Expr:
    """``x * sigmoid(x)``"""
    return Mul(x, F.sigmoid(x))


@wide
def gelu(x: Expr) -> Expr:
    """``x * (1 + erf(x / sqrt 2)) / 2``"""
    return Mul(x, F.normal_cdf(x))


@wide
def gelu_tanh(x: Expr) -> Expr:
    """``x * sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3))``, which is the tanh form of GELU."""
    scale = 2.0 * math.sqrt(2.0 / math.pi)
    cubic = Add(like(scale, x), Mul(like(scale * 0.044715, x), F.square(x)))
    return Mul(x, F.sigmoid(Mul(x, cubic)))


@wide
def log_sigmoid(x: Expr) -> Expr:
    """``log(sigmoid(x))``"""
    return E.negate(F.softplus(E.negate(x)))


def copysign(x: Expr, sign: Expr) -> Expr:
    """The magnitude of `x` with the sign of `sign`; that of NaN is +."""
    size = F.absolute(x)
    return If(F.is_negative(sign), E.negate(size), size)


def fmod(x: Expr, y: Expr) -> Expr:
    """The exact remainder of truncated division, with the sign of `x`, as C defines it."""
    if x.dtype.is_float:
        rest = copysign(Mod(F.absolute(x), F.absolute(y)), x)
        none = And(Equal(x, like(0, x)), Less(like(0, x), F.absolute(y)))
        return If(none, x, rest)  # with a slope of 1
    rest, zero = Mod(x, y), like(0, x)
    other = E.Xor(Less(x, zero), Less(y, zero))
    return If(And(other, F.truth(rest)), E.subtract(rest, y), rest)


def log_add(a: Expr, b: Expr) -> Expr:
    """``log(e^a + e^b) = max(a, b) + log1p(e^-|a - b|)``; of equal infinities themselves.

    Where both are equal the maximum passes 1 to `a`, the minimum -1: half to each in all.
    """
    below = E.minimum(E.subtract(b, a), E.subtract(a, b))
    total = Add(E.maximum(a, b), F.log1p(E.Exp(below)))
    half = like(0.5, a)
    return If(And(Equal(a, b), is_inf(a)), Add(Mul(a, half), Mul(b, half)), total)


def trunc(x: Expr) -> Expr:
    """Towards zero."""
    return If(Less(x, like(0, x)), F.ceil(x), F.floor(x)) if x.dtype.is_float else x


def sign(x: Expr) -> Expr:
    """-1, 0 or 1; NaN stays."""
    zero = like(0, x)
    positive = Cast(Less(zero, x), x.dtype)
    difference = E.subtract(positive, Cast(Less(x, zero), x.dtype))
    return If(Equal(x, x), difference, x) if x.dtype.is_float else difference


def is_nan(x: Expr) -> Expr:
    """``x != x``"""
    return E.is_nan(x) if x.dtype.is_float else Const(False, bool_)


def is_inf(x: Expr) -> Expr:
    """``x == inf or x == -inf``"""
    if not x.dtype.is_float:
        return Const(False, bool_)
    return Or(Equal(x, like(math.inf, x)), Equal(x, like(-math.inf, x)))


def is_finite(x: Expr) -> Expr:
    """``-inf < x < inf``"""
    if not x.dtype.is_float:
        return Const(True, bool_)
    if x.dtype == float8_e4m3fn:
        return Equal(x, x)
    return And(Less(E.lowest(x.dtype), x), Less(x, E.highest(x.dtype)))


def invert(x: Expr) -> Expr:
    """Every bit flipped; of booleans the logical not."""
    if x.dtype.is_bool:
        return E.logical_not(x)
    return E.Xor(x, E.const(-1, x.dtype))


def constant_power(x: Expr, exponent: float) -> Expr:
    """``x ** exponent``, exact for whole exponents and for one half."""
    whole = float(exponent).is_integer() and abs(exponent) <= INTEGER_POWER
    if whole:
        return F.integer_power(x, int(exponent))
    if exponent == 0.5:
        return E.Sqrt(x)
    if exponent == -0.5:
        return F.rsqrt(x)
    return F.power(x, like(exponent, x))


def _beyond(count: Expr, most: int) -> Expr:
    """Whether a count is more than `most`, or negative."""
    if isinstance(count, Const):
        return Const(not 0 <= count.value <= most, bool_)
    above = Less(like(most, count), count)
    return Or(Less(count, like(0, count)), above) if count.dtype.kind == "i" else above


def _two_to(count: Expr) -> Expr:
    """``2 ** count`` of a count below the width: ``product over k of bit_k ? 2^(2^k) : 1``"""
    if isinstance(count, Const):
        return like(1 << int(count.value), count)
    one = like(1, count)
    power: Expr = one
    for k in range((count.dtype.bits - 1).bit_length()):
        power = Mul(power, If(F.bit(count, k), like(1 << (1 << k), count), one))
    return power


def _shifted(far: Expr, rest: Expr, near: Callable[[], Expr]) -> Expr:
    """`near`; `rest` where the count is too large."""
    if isinstance(far, Const):
        return rest if far.value else near()
    return If(far, rest, near())


def shift_left(x: Expr, count: Expr) -> Expr:
    """``x * 2 ** count`` without the bits that leave; 0 for a count beyond the width."""
    far = _beyond(count, x.dtype.bits - 1)
    return _shifted(far, like(0, x), lambda: Mul(x, _two_to(count)))


def shift_right(x: Expr, count: Expr) -> Expr:
    """``floor(x / 2 ** count)``; for a count beyond the width 0, of a negative x -1."""
    signed = x.dtype.kind == "i"
    none = like(0, x)
    rest = If(Less(x, none), like(-1, x), none) if signed else none
    far = _beyond(count, x.dtype.bits - (2 if signed else 1))
    return _shifted(far, rest, lambda: FloorDiv(x, _two_to(count)))


_FLOAT = (
    F.cos, F.tan, F.sinh, F.cosh, F.tanh, F.erf, F.sigmoid, silu, gelu, gelu_tanh, F.softplus,
    log_sigmoid, F.log1p, F.expm1, F.log2, F.log10, F.rsqrt, F.reciprocal, F.atan, F.asin, F.acos,
    F.asinh, F.acosh, F.atanh,
)  # fmt: skip
UNARY: dict[str, Scalar] = {
    "exp": wide(E.Exp), "log": wide(E.Log), "sqrt": E.Sqrt, "sin": wide(E.Sin),
    **{function.__name__: function for function in _FLOAT},
}  # fmt: skip
"""Functions whose argument is a float."""

UNARY_ANY: dict[str, Scalar] = {
    "abs": F.absolute, "square": F.square, "relu": F.relu, "floor": F.floor, "ceil": F.ceil,
    "trunc": trunc, "round": F.rint, "sign": sign,
}  # fmt: skip
"""Functions of any number, of its own type."""

TESTS: dict[str, Scalar] = {"isnan": is_nan, "isinf": is_inf, "isfinite": is_finite}
"""Functions of any number that give a bool."""
