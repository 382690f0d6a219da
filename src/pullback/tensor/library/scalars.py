"""More element-wise functions, on tensors and on scalars inside a definition.

Each is a `Rule`: a scalar expression of primitives, so that its derivative is the expression's.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes

from pullback.errors import DTypeError
from pullback.ir import dtype as D
from pullback.ir import expr as E
from pullback.ir import functions as F
from pullback.ir.expr import Add, And, Cast, Div, Equal, Expr, FloorDiv, If, Less, Mul, Or
from pullback.tensor.face import handles
from pullback.tensor.face.handles import ScalarHandle
from pullback.tensor.face.tensor import Tensor, operand, value_of
from pullback.tensor.forms.control import while_loop
from pullback.tensor.library import maths as M
from pullback.tensor.library import ops as O
from pullback.tensor.record.trace import current, realize
from pullback.tensor.shaped import shaped
from pullback.tensor.values import elementwise as W
from pullback.tensor.values.answers import answering
from pullback.tensor.values.functions import is_finite, is_inf, is_nan, trunc
from pullback.tensor.values.precise import in_float32
from pullback.tensor.values.rules import RULES, Rule

LN2 = math.log(2.0)
EXPONENTS = {64: (1074, 10, 500, 600), 32: (149, 7, 60, 70)}
"""By width: -log2 of the least float; bits of a third of an exponent; below which exponent a
number is scaled up first, and by how much, so that products by powers of two round once."""


def facts(kind: D.DType) -> tuple[int, float, float]:
    """Of a type of floats: bits of its mantissa, the least and the largest number."""
    known: Any = ml_dtypes.finfo(kind.numpy)  # type: ignore[no-untyped-call]  # it has no types
    return known.nmant + 1, float(known.smallest_subnormal), float(known.max)


def applied(rule: Rule, *operands: Any) -> Any:
    """`rule` on tensors, or on scalars inside a definition."""
    speaker = answering(operands)
    if speaker is not None:
        return speaker.answer(rule.name, operands, {})
    if any(isinstance(o, ScalarHandle) for o in operands):
        lifted = [handles.lift(o) for o in operands]
        kind = rule.dtype(lifted)
        typed = (W.literal(a, kind) if isinstance(a, W.Scalar) else W.cast(a, kind) for a in lifted)
        return handles.located(rule.body(*typed))
    args = [operand(o) for o in operands]
    return Tensor(W.elementwise(rule.name, rule.body, args, rule.dtype(args)))


def both_wide(function: Any) -> Any:
    """A function of several floats computed in float32 where they are 16-bit floats."""

    def widened(*args: Expr) -> Expr:
        kind = args[0].dtype
        if not D.is_short(kind):
            value: Expr = function(*args)
            return value
        return W.cast(function(*(Cast(a, D.float32) for a in args)), kind)

    return widened


# --- signs, infinities, NaN ----------------------------------------------------------------------


def _signbit(x: Expr) -> Expr:
    x = Cast(x, D.float32) if x.dtype == D.float8_e4m3fn else x  # its 1 / 0 is NaN
    zero = F.like(0, x)
    if not x.dtype.is_float:
        return Less(x, zero)
    return Or(Less(x, zero), And(Equal(x, zero), Less(F.reciprocal(x), zero)))


def _fmax(a: Expr, b: Expr) -> Expr:
    return If(is_nan(a), b, If(is_nan(b), a, E.maximum(a, b)))


def _fmin(a: Expr, b: Expr) -> Expr:
    return If(is_nan(a), b, If(is_nan(b), a, E.minimum(a, b)))


def _heaviside(x: Expr, middle: Expr) -> Expr:
    zero, one = F.like(0, x), F.like(1, x)
    step = If(Less(x, zero), zero, If(Equal(x, zero), middle, one))
    return If(is_nan(x), x, step)


def _is_positive_infinity(x: Expr) -> Expr:
    return Equal(x, F.like(math.inf, x)) if x.dtype.is_float else E.const(False, D.bool_)


def _is_negative_infinity(x: Expr) -> Expr:
    return Equal(x, F.like(-math.inf, x)) if x.dtype.is_float else E.const(False, D.bool_)


def signbit(x: Any) -> Any:
    """Whether the sign is minus, of -0.0 too; of NaN it is not told.

    Example:
        >>> pb.signbit(pb.tensor([-0.0, 2.0]))
        Tensor([ True, False], dtype=bool)
    """
    return applied(Rule("signbit", _signbit), x)


@shaped("x1[*b], x2[*b] -> [*b]")
def fmax(x1: Any, x2: Any) -> Any:
    """``max(x1, x2)``; where one is NaN the other.

    Example:
        >>> pb.fmax(pb.tensor([float("nan"), 2.0]), 1.0)
        Tensor([1., 2.], dtype=float32)
    """
    return applied(Rule("fmax", _fmax, "number"), x1, x2)


@shaped("x1[*b], x2[*b] -> [*b]")
def fmin(x1: Any, x2: Any) -> Any:
    """``min(x1, x2)``; where one is NaN the other.

    Example:
        >>> pb.fmin(pb.tensor([float("nan"), 2.0]), 1.0)
        Tensor([1., 1.], dtype=float32)
    """
    return applied(Rule("fmin", _fmin, "number"), x1, x2)


@shaped("x1[*b], x2[*b] -> [*b]")
def heaviside(x1: Any, x2: Any) -> Any:
    """``0 if x1 < 0 else x2 if x1 == 0 else 1``; NaN stays.

    Example:
        >>> pb.heaviside(pb.tensor([-1.0, 0.0, 2.0]), 0.5)
        Tensor([0. , 0.5, 1. ], dtype=float32)
    """
    return applied(Rule("heaviside", _heaviside, "number"), x1, x2)


def isposinf(x: Any) -> Any:
    """Whether positive infinity.

    Example:
        >>> pb.isposinf(pb.tensor([1.0, float("inf")]))
        Tensor([False,  True], dtype=bool)
    """
    return applied(Rule("isposinf", _is_positive_infinity), x)


def isneginf(x: Any) -> Any:
    """Whether negative infinity.

    Example:
        >>> pb.isneginf(pb.tensor([1.0, float("-inf")]))
        Tensor([False,  True], dtype=bool)
    """
    return applied(Rule("isneginf", _is_negative_infinity), x)


def nan_to_num(
    x: Any, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Any:
    """NaN and infinities replaced, by default with 0 and the largest floats of the type.

    Example:
        >>> pb.nan_to_num(pb.tensor([float("nan"), 1.0]), nan=7.0)
        Tensor([7., 1.], dtype=float32)
    """

    def replaced(x: Expr) -> Expr:
        if not x.dtype.is_float:
            return x
        most = facts(x.dtype)[2]
        high = most if posinf is None else posinf
        low = -most if neginf is None else neginf
        value = If(_is_negative_infinity(x), F.like(low, x), x)
        value = If(_is_positive_infinity(x), F.like(high, x), value)
        return If(is_nan(x), F.like(nan, x), value)

    return applied(Rule("nan_to_num", replaced), x)


@shaped("x1[*b], x2[*b] -> [*b]", where="rtol >= 0, atol >= 0")
def isclose(
    x1: Any, x2: Any, *, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Any:
    """``|x1 - x2| <= atol + rtol |x2|``; equal infinities are close, NaN is if `equal_nan`.

    Example:
        >>> pb.isclose(pb.tensor([1.0, 2.0]), pb.tensor([1.0, 2.1]))
        Tensor([ True, False], dtype=bool)
    """

    def near(a: Expr, b: Expr) -> Expr:
        same = Equal(a, b)
        wide = D.float64 if a.dtype.bits == 64 or not a.dtype.is_float else D.float32
        a, b = W.cast(a, wide), W.cast(b, wide)
        gap = F.absolute(E.subtract(a, b))
        limit = Add(F.like(atol, a), Mul(F.like(rtol, a), F.absolute(b)))
        close = Or(same, And(is_finite(gap), F.less_equal(gap, limit)))
        return Or(close, And(is_nan(a), is_nan(b))) if equal_nan else close

    return applied(Rule("isclose", near), x1, x2)


@shaped("x1[*b], x2[*b] -> []", where="rtol >= 0, atol >= 0")
def allclose(
    x1: Any, x2: Any, *, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Tensor:
    """Whether all elements are close, as `isclose` says: one truth.

    ``bool(pb.allclose(x, x))`` is True where nothing is NaN.

    Example:
        >>> pb.allclose(pb.ones(2), pb.ones(2) + 1e-7)
        Tensor(True, dtype=bool)
    """
    near: Tensor = isclose(value_tensor(x1), x2, rtol=rtol, atol=atol, equal_nan=equal_nan)
    together: Tensor = O.all(near)
    return together


def value_tensor(x: Any) -> Tensor:
    """`x` as a tensor; a tensor is itself."""
    return x if isinstance(x, Tensor) else Tensor(value_of(x))


# --- arithmetic ----------------------------------------------------------------------------------


@both_wide
def _lerp(a: Expr, b: Expr, weight: Expr) -> Expr:
    gap = E.subtract(b, a)
    near = Add(a, Mul(weight, gap))
    far = E.subtract(b, Mul(gap, E.subtract(F.like(1, a), weight)))
    return If(Less(weight, F.like(0.5, a)), near, far)


@both_wide
def _hypot(a: Expr, b: Expr) -> Expr:
    a, b = F.absolute(a), F.absolute(b)
    less = Less(a, b)
    m, n = If(less, b, a), If(less, a, b)  # of equal ones each is one of them, in slopes too
    still = Equal(m, F.like(0, m))
    ratio = Div(n, If(still, F.like(1, m), m))
    size = Mul(m, E.Sqrt(Add(F.like(1, m), F.square(ratio))))
    endless = Or(is_inf(a), is_inf(b))
    return If(endless, E.highest(a.dtype), size)


@both_wide
def _log_add_2(a: Expr, b: Expr) -> Expr:
    gap = E.minimum(E.subtract(b, a), E.subtract(a, b))
    gap = If(And(Equal(a, b), is_inf(a)), F.like(0, a), gap)
    part = F.log1p(E.Exp(Mul(gap, F.like(LN2, a))))
    return Add(E.maximum(a, b), Mul(part, F.like(1 / LN2, a)))


@shaped("x1[*b], x2[*b], weight[*b] -> [*b]")
def lerp(x1: Any, x2: Any, weight: Any) -> Any:
    """``x1 + weight (x2 - x1)``; at 1 exactly `x2`.

    Example:
        >>> pb.lerp(pb.tensor([0.0, 10.0]), pb.tensor([1.0, 20.0]), 0.5)
        Tensor([ 0.5, 15. ], dtype=float32)
    """
    return applied(Rule("lerp", _lerp, "float"), x1, x2, weight)


@shaped("x1[*b], x2[*b] -> [*b]")
def hypot(x1: Any, x2: Any) -> Any:
    """``sqrt(x1^2 + x2^2)`` without overflow: ``m sqrt(1 + (n / m)^2)``, m the larger.

    Example:
        >>> pb.hypot(pb.tensor([3.0]), pb.tensor([4.0]))
        Tensor([5.], dtype=float32)
    """
    return applied(Rule("hypot", _hypot, "float"), x1, x2)


@shaped("x1[*b], x2[*b] -> [*b]")
def logaddexp2(x1: Any, x2: Any) -> Any:
    """``log2(2^x1 + 2^x2)``, safe for large elements.

    Example:
        >>> pb.logaddexp2(pb.tensor([0.0, 1.0]), 0.0)
        Tensor([1.       , 1.5849625], dtype=float32)
    """
    return applied(Rule("logaddexp2", _log_add_2, "float"), x1, x2)


@shaped("x1[*b], x2[*b] -> [*b]")
def float_power(x1: Any, x2: Any) -> Any:
    """``x1 ** x2`` in float64, whatever the types are.

    Example:
        >>> pb.float_power(pb.tensor([2, 3]), 2)
        Tensor([4., 9.], dtype=float64)
    """
    base, power = (
        float(x) if isinstance(x, W.Scalar) else O.astype(value_tensor(x), D.float64)
        for x in (x1, x2)
    )
    if isinstance(base, float) and isinstance(power, float):
        base = Tensor(W.full((), base, D.float64))
    return M.pow(base, power)


def deg2rad(x: Any) -> Any:
    """``x pi / 180``

    Example:
        >>> pb.deg2rad(pb.tensor([0.0, 180.0]))
        Tensor([0.       , 3.1415927], dtype=float32)
    """
    scale = math.pi / 180
    return applied(Rule("deg2rad", F.wide(lambda x: Mul(x, F.like(scale, x))), "float"), x)


def rad2deg(x: Any) -> Any:
    """``x 180 / pi``

    Example:
        >>> pb.rad2deg(pb.tensor([0.0, 1.0]))
        Tensor([ 0.     , 57.29578], dtype=float32)
    """
    scale = 180 / math.pi
    return applied(Rule("rad2deg", F.wide(lambda x: Mul(x, F.like(scale, x))), "float"), x)


def frac(x: Any) -> Any:
    """``x - trunc(x)``, with the sign of `x`; of integers 0.

    Example:
        >>> pb.frac(pb.tensor([1.25, -1.25]))
        Tensor([ 0.25, -0.25], dtype=float32)
    """
    return applied(Rule("frac", lambda x: E.subtract(x, trunc(x)), "number"), x)


@shaped("x[*b], x1[*b], x2[*b] -> [*b]")
@in_float32
def addcmul(x: Any, x1: Any, x2: Any, *, value: float = 1) -> Any:
    """``x + value x1 x2``, broadcast.

    Example:
        >>> pb.addcmul(pb.ones(2), pb.tensor([1.0, 2.0]), 4.0)
        Tensor([5., 9.], dtype=float32)
    """
    product = M.multiply(x1, x2)
    return M.add(x, product if value == 1 else M.multiply(product, value))


@shaped("x[*b], x1[*b], x2[*b] -> [*b]")
@in_float32
def addcdiv(x: Any, x1: Any, x2: Any, *, value: float = 1) -> Any:
    """``x + value x1 / x2``, broadcast.

    Example:
        >>> pb.addcdiv(pb.ones(2), pb.tensor([1.0, 2.0]), 4.0)
        Tensor([1.25, 1.5 ], dtype=float32)
    """
    ratio = M.divide(x1, x2)
    return M.add(x, ratio if value == 1 else M.multiply(ratio, value))


# --- powers of two, neighbours -------------------------------------------------------------------


def _two_to(n: Expr, like: Expr) -> Expr:
    """``2^n`` of the type of `like`, exact: a product over the bits of |n|, a third of a range."""
    bits = EXPONENTS[like.dtype.bits][1]
    down = Less(n, E.index(0))
    size = F.absolute(n)
    power: Expr | None = None
    for k in range(bits):
        factor = (
            If(down, F.like(2.0 ** -(2**k), like), F.like(2.0 ** (2**k), like))
            if (2**k < (1024 if like.dtype.bits == 64 else 128))
            else F.like(1, like)
        )
        bit = Equal(E.Mod(FloorDiv(size, E.index(2**k)), E.index(2)), E.index(1))
        part = If(bit, factor, F.like(1, like))
        power = part if power is None else Mul(power, part)
    assert power is not None
    return power


def scaled(x: Expr, n: Expr) -> Expr:
    """``x 2^n``, rounded once: in three steps, a small `x` scaled up before."""
    least, _, below, by = EXPONENTS[x.dtype.bits]
    most = 2 * least + 100
    n = E.minimum(E.maximum(n, E.index(-most)), E.index(most))
    small = Less(F.absolute(x), F.like(2.0**-below, x))
    start = If(small, Mul(x, F.like(2.0**by, x)), x)
    left = If(small, E.subtract(n, E.index(by)), n)
    third = FloorDiv(left, E.index(3))
    step = _two_to(third, x)
    last = _two_to(E.subtract(left, Mul(third, E.index(2))), x)
    return Mul(Mul(Mul(start, step), step), last)


def _mantissa(x: Expr) -> tuple[Expr, Expr]:
    """``x = m 2^e, 0.5 <= |m| < 1``; of 0, infinities and NaN themselves and 0."""
    below, by = EXPONENTS[x.dtype.bits][2:]
    zero = Or(Equal(x, F.like(0, x)), E.logical_not(is_finite(x)))
    size = If(zero, F.like(1, x), F.absolute(x))
    small = Less(size, F.like(2.0**-below, x))
    size = If(small, Mul(size, F.like(2.0**by, x)), size)
    guess = Cast(F.floor(Mul(E.Log(size), F.like(1 / LN2, x))), D.int64)
    m = scaled(size, E.negate(Add(guess, E.index(1))))
    high, low = F.less_equal(F.like(1, x), m), Less(m, F.like(0.5, x))
    m = If(high, Mul(m, F.like(0.5, x)), If(low, Mul(m, F.like(2, x)), m))
    step = If(high, E.index(2), If(low, E.index(0), E.index(1)))
    e = E.subtract(Add(guess, step), If(small, E.index(by), E.index(0)))
    signed = If(Less(x, F.like(0, x)), E.negate(m), m)
    return If(zero, x, signed), If(zero, E.index(0), e)


def _wide_mantissa(x: Expr) -> tuple[Expr, Expr]:
    if not D.is_short(x.dtype):
        return _mantissa(x)
    m, e = _mantissa(Cast(x, D.float32))
    return Cast(m, x.dtype), e


def exp2(x: Any) -> Any:
    """``2 ** x``, exact at whole numbers.

    Example:
        >>> pb.exp2(pb.tensor([0.0, 3.0]))
        Tensor([1., 8.], dtype=float32)
    """
    return applied(Rule("exp2", lambda x: RULES["pow"].body(F.like(2.0, x), x), "float"), x)


@shaped("x1[*b], x2: int[*b] -> [*b]")
def ldexp(x1: Any, x2: Any) -> Any:
    """``x1 2^x2`` of whole `x2`, rounded once.

    Example:
        >>> pb.ldexp(pb.tensor([1.0, 3.0]), pb.tensor([2, -1]))
        Tensor([4. , 1.5], dtype=float32)
    """
    base, power = value_of(x1), value_of(x2)
    if not power.dtype.is_integer:
        raise DTypeError(f"ldexp by a power of {power.dtype}", code="E145")
    kind = W.as_float(base.dtype)
    shape = W.broadcast_shapes([base.shape, power.shape])
    axes = W.axes_of(shape)
    n = W.lifted(power, D.int64, shape, axes)
    x = W.lifted(base, D.float32 if D.is_short(kind) else kind, shape, axes)
    return Tensor(W.make("ldexp", shape, W.cast(scaled(x, n), kind)))


def frexp(x: Any) -> tuple[Any, Any]:
    """``x = m 2^e`` with ``0.5 <= |m| < 1``: m, and e as int32.

    Example:
        >>> pb.frexp(pb.tensor([8.0, 0.5]))
        (Tensor([0.5, 0.5], dtype=float32), Tensor([4, 0], dtype=int32))
    """
    m = applied(Rule("mantissa", lambda x: _wide_mantissa(x)[0], "float"), x)
    e = applied(Rule("exponent", lambda x: Cast(_wide_mantissa(x)[1], D.int32), "float"), x)
    return m, e


def _next(x: Expr, to: Expr) -> Expr:
    """The neighbour of `x` towards `to`: ``x ± e``, e more than half a step and less than 1.5.

    Source: Rump, Zimmermann, Boldo, Melquiond 2009, Computing predecessor and successor in
    rounding to nearest.
    """
    digits, least, largest = facts(x.dtype)
    u = 2.0**-digits
    size = F.absolute(x)
    up = E.logical_not(E.Xor(Less(x, to), Less(F.like(0, x), x)))  # away from 0
    scale = F.like(1 / u, x)
    small = Less(size, F.like(least / u, x))
    middle = Less(size, F.like(least / u / u, x))
    phi = F.like(u * (1 + 2 * u), x)
    enlarged = Mul(size, scale)
    part = Mul(phi, enlarged)

    def moved(base: Expr, by: Expr) -> Expr:
        return If(up, Add(base, by), E.subtract(base, by))

    far = moved(size, Mul(phi, size))
    near = Mul(moved(enlarged, part), F.like(u, x))
    neighbour = If(small, moved(size, F.like(least, x)), If(middle, near, far))
    edge = If(up, E.highest(x.dtype), F.like(largest, x))
    neighbour = If(is_inf(x), edge, neighbour)
    neighbour = If(_signbit(x), E.negate(neighbour), neighbour)
    step = If(Less(F.like(0, x), to), F.like(least, x), F.like(-least, x))
    neighbour = If(Equal(x, F.like(0, x)), step, neighbour)
    unmoved = If(Equal(x, to), to, neighbour)
    return If(is_nan(x), x, If(is_nan(to), to, unmoved))


@shaped("x1[*b], x2[*b] -> [*b]")
def nextafter(x1: Any, x2: Any) -> Any:
    """The next float after `x1` towards `x2`.

    Raises: DTypeError for integers.

    Example:
        >>> pb.nextafter(pb.tensor([1.0]), pb.tensor([2.0])) > 1.0
        Tensor([ True], dtype=bool)
    """
    kind = W.common_dtype([operand(x1), operand(x2)])
    if not kind.is_float:
        raise DTypeError(f"nextafter of {kind}: floats have neighbours", code="E144")
    neighbour: Tensor = applied(Rule("nextafter", _next, "float"), x1, x2)
    return O.stop_gradient(neighbour)


# --- loops over all elements at once --------------------------------------------------------------


def repeated(test: Any, step: Any, start: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """``while test(carry): carry = step(carry)``; outside of programs each carry is computed.

    Else what the test does not look at would grow into a longer expression with every step.
    """

    def whole(carry: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        after: tuple[Tensor, ...] = step(carry)
        if current() is None:
            realize(list(after))
        return after

    last: tuple[Tensor, ...] = while_loop(test, whole, start)
    return last


# --- whole numbers -------------------------------------------------------------------------------


def _integers(name: str, *given: Any) -> list[Tensor]:
    kind = O.result_type(*given)
    if not kind.is_integer:  # Python's floats, which are of no type yet
        raise DTypeError(f"{name} of {kind}", code="E145")
    return [O.astype(x, kind) for x in O.broadcast_arrays(*given)]


@shaped("x1: int[*b], x2: int[*b] -> [*b]")
def gcd(x1: Any, x2: Any) -> Tensor:
    """The greatest common divisor, not negative; ``gcd(0, 0) = 0``. Euclid's, all at once.

    Example:
        >>> pb.gcd(pb.tensor([12, 7]), 18)
        Tensor([6, 1], dtype=int64)
    """
    a, b = _integers("gcd", x1, x2)

    def step(carry: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        a, b = carry
        rest = O.where(b == 0, 0, M.remainder(a, O.where(b == 0, 1, b)))
        return O.where(b == 0, a, b), rest

    divisor, _ = repeated(lambda carry: O.any(carry[1] != 0), step, (M.abs(a), M.abs(b)))
    return divisor


@shaped("x1: int[*b], x2: int[*b] -> [*b]")
def lcm(x1: Any, x2: Any) -> Tensor:
    """The least common multiple, not negative; 0 where one is 0.

    Example:
        >>> pb.lcm(pb.tensor([4, 7]), 6)
        Tensor([12, 42], dtype=int64)
    """
    a, b = _integers("lcm", x1, x2)
    divisor = gcd(a, b)
    part = M.floor_divide(M.abs(a), O.where(divisor == 0, 1, divisor))
    multiple: Tensor = M.multiply(part, M.abs(b))
    return multiple


@shaped("x1[b...], x2[...] -> [b...]")
def isin(x1: Any, x2: Any, *, invert: bool = False) -> Tensor:
    """``any[k](x1[i] == x2[k])``: whether each element of `x1` is one of `x2`.

    Example:
        >>> pb.isin(pb.tensor([1, 2, 3]), pb.tensor([2, 5]))
        Tensor([False,  True, False], dtype=bool)
    """
    others = O.reshape(value_tensor(x2), (-1,))
    hit: Tensor = O.any(M.equal(O.expand_dims(value_tensor(x1), -1), others), axis=-1)
    member: Tensor = M.logical_not(hit) if invert else hit
    return member
