"""Named scalar functions as composites of primitives: one canonical form each.

Nodes are interned, so a backend recognises a function by building it again: where `x` is found at
its known place, ``tanh(x) is node``. Every form is safe at infinities, and so is its derivative.
Floats of 16 and 8 bits are computed in float32.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import TypeVar, cast

from pullback.ir import expr as E
from pullback.ir.dtype import float32, is_short
from pullback.ir.expr import (
    Add,
    And,
    Cast,
    Const,
    Div,
    Equal,
    Expr,
    Exprs,
    FloorDiv,
    If,
    Less,
    Mul,
    Or,
)

Scalar = Callable[[Expr], Expr]
Path = tuple[str, ...]
Made = TypeVar("Made", bound=Callable[..., Expr])

_ERF_NUMERATOR = (
    9.60497373987051638749, 9.00260197203842689217e1, 2.23200534594684319226e3,
    7.00332514112805075473e3, 5.55923013010394962768e4,
)  # fmt: skip
_ERF_DENOMINATOR = (
    1.0, 3.35617141647503099647e1, 5.21357949780152679795e2, 4.59432382970980127987e3,
    2.26290000613890934246e4, 4.92673942608635921086e4,
)  # fmt: skip
_ERFC_NUMERATOR = (
    2.46196981473530512524e-10, 5.64189564831068821977e-1, 7.46321056442269912687,
    4.86371970985681366614e1, 1.96520832956077098242e2, 5.26445194995477358631e2,
    9.34528527171957607540e2, 1.02755188689515710272e3, 5.57535335369399327526e2,
)  # fmt: skip
_ERFC_DENOMINATOR = (
    1.0, 1.32281951154744992508e1, 8.67072140885989742329e1, 3.54937778887819891062e2,
    9.75708501743205489753e2, 1.82390916687909736289e3, 2.24633760818710981792e3,
    1.65666309194161350182e3, 5.57535340817727675546e2,
)  # fmt: skip
_TANH_NUMERATOR = (
    -9.64399179425052238628e-1, -9.92877231001918586564e1, -1.61468768441708447952e3,
)  # fmt: skip
_TANH_DENOMINATOR = (
    1.0, 1.12811678491632931402e2, 2.23548839060100448583e3, 4.84406305325125486048e3,
)  # fmt: skip
_ASIN_NUMERATOR = (
    3.47933107596021167570e-05, 7.91534994289814532176e-04, -4.00555345006794114027e-02,
    2.01212532134862925881e-01, -3.25565818622400915405e-01, 1.66666666666666657415e-01,
)  # fmt: skip
_ASIN_DENOMINATOR = (
    7.70381505559019352791e-02, -6.88283971605453293030e-01, 2.02094576023350569471,
    -2.40339491173441421878, 1.0,
)  # fmt: skip
_ATAN_TERMS = 11  # of the series of atan(t) / t, |t| <= tan(pi / 16)
FAR = 1e30  # atan rounds to pi / 2 from 1e17 on
LARGE = 1e8  # x^2 + 1 rounds to x^2
QUARTERS = 1e4  # radians, up to which multiples of the first part of pi / 2 are exact
ERF_ONE = 6.0  # erf rounds to 1 in float64 from 5.93 on


def _parts(*bits: int) -> tuple[float, ...]:
    """pi / 2 as a sum: short numbers, of so many bits after the point, and the rest."""
    left = Fraction("1.57079632679489661923132169163975144209858469968755")
    short = []
    for places in bits:
        part = Fraction(int(left * 2**places), 2**places)
        short.append(float(part))
        left -= part
    return (*short, float(left))


_QUARTER = {32: _parts(9, 20, 31), 64: _parts(32, 64)}


def like(value: float, x: Expr) -> Const:
    """A literal of the type of `x`."""
    return E.const(value, x.dtype)


def wide(function: Made) -> Made:
    """`function` computed in float32 where its arguments are floats of 16 bits or 8."""

    @functools.wraps(function)
    def widened(*args: Expr) -> Expr:
        kind = args[0].dtype
        if not is_short(kind):
            return function(*args)
        return Cast(function(*(Cast(x, float32) for x in args)), kind)

    return cast(Made, widened)


def part(node: Expr, path: Path) -> Expr | None:
    """What lies in a node by the names of fields; None where that is no expression."""
    inner: object = node
    for name in path:
        inner = getattr(inner, name, None)
    return inner if isinstance(inner, Expr) else None


def arguments(node: Expr, function: Callable[..., Expr], *paths: Path) -> Exprs | None:
    """The arguments, at `paths`, of which `node` is the function: built again, it is interned."""
    args = [part(node, path) for path in paths]
    known = tuple([x for x in args if x is not None and x.dtype == node.dtype])
    return known if len(known) == len(args) and function(*known) is node else None


def _polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Horner's rule, highest power first; a leading one is not multiplied."""
    total: Expr = like(coefficients[0], x)
    for n, c in enumerate(coefficients[1:]):
        scaled = x if n == 0 and coefficients[0] == 1.0 else Mul(total, x)
        total = Add(scaled, like(c, x))
    return total


def absolute(x: Expr) -> Expr:
    """``-x if x < 0 else x``; of -0.0 too it is 0.0."""
    if x.dtype.kind in "bu":
        return x
    zero = like(0, x)
    positive = If(Equal(x, zero), zero, x) if x.dtype.is_float else x
    return If(Less(x, zero), E.negate(x), positive)


def reciprocal(x: Expr) -> Expr:
    """``1 / x``"""
    return Div(like(1, x), x)


def plus(x: Expr, value: float) -> Expr:
    """``x + value``"""
    return Add(x, like(value, x))


def times(x: Expr, value: float) -> Expr:
    """``x * value``"""
    return Mul(x, like(value, x))


def one_minus(x: Expr) -> Expr:
    """``1 - x``"""
    return E.subtract(like(1, x), x)


def square(x: Expr) -> Expr:
    """``x * x``"""
    return Mul(x, x)


def _mirrored(x: Expr, far: Expr) -> Expr:
    """An odd function of x, which is `far` of its size."""
    return If(Less(x, like(0, x)), E.negate(far), far)


@wide
def sigmoid(x: Expr) -> Expr:
    """``1 / (1 + exp(-x))``, as ``z = exp(-|x|); (z if x < 0 else 1) / (1 + z)``"""
    z = E.Exp(E.negate(absolute(x)))
    r = reciprocal(Add(like(1, x), z))
    return If(Less(x, like(0, x)), Mul(z, r), r)


@wide
def tanh(x: Expr) -> Expr:
    """Hyperbolic tangent: a rational near 0, else ``±(1 - z) / (1 + z), z = exp(-2|x|)``."""
    size = absolute(x)
    z = E.Exp(times(size, -2.0))
    far = Div(one_minus(z), Add(like(1, x), z))
    s = square(x)
    ratio = Div(_polynomial(s, _TANH_NUMERATOR), _polynomial(s, _TANH_DENOMINATOR))
    near = Mul(x, Add(Mul(s, ratio), like(1, x)))
    return If(Less(size, like(0.625, x)), near, _mirrored(x, far))


@wide
def erf(x: Expr) -> Expr:
    """The error function, to 1e-15: a rational for |x| < 1, else ``1 - exp(-x^2) r(|x|)``."""
    s = square(x)
    near = Mul(x, Div(_polynomial(s, _ERF_NUMERATOR), _polynomial(s, _ERF_DENOMINATOR)))
    size = absolute(x)
    y = E.minimum(size, like(ERF_ONE, x))
    ratio = Div(_polynomial(y, _ERFC_NUMERATOR), _polynomial(y, _ERFC_DENOMINATOR))
    tail = Mul(E.Exp(E.negate(square(y))), ratio)
    far = one_minus(tail)
    return If(Less(size, like(1, x)), near, _mirrored(x, far))


@wide
def normal_cdf(x: Expr) -> Expr:
    """``(1 + erf(x / sqrt 2)) / 2``: how likely a normal number is below x."""
    return times(plus(erf(times(x, math.sqrt(0.5))), 1), 0.5)


def relu(x: Expr) -> Expr:
    """``max(0, x)``; its derivative at 0 is 0."""
    return E.maximum(like(0, x), x)


@wide
def softplus(x: Expr) -> Expr:
    """``log(1 + exp(x))``, as ``max(0, x) + log1p(exp(-|x|))``"""
    return Add(relu(x), log1p(E.Exp(E.negate(absolute(x)))))


@wide
def log1p(x: Expr) -> Expr:
    """``log(1 + x)``: with ``u = 1 + x``, ``log(u) x / (u - 1)`` corrects the rounding of u."""
    one = like(1, x)
    u = Add(one, x)
    corrected = Mul(E.Log(u), Div(x, E.subtract(u, one)))
    far = If(Equal(u, x), E.Log(u), corrected)
    return If(Equal(u, one), x, far)


@wide
def expm1(x: Expr) -> Expr:
    """``exp(x) - 1``: with ``u = exp(x)``, ``(u - 1) x / log(u)`` corrects the rounding of u."""
    one = like(1, x)
    u = E.Exp(x)
    plain = E.subtract(u, one)
    corrected = Mul(plain, Div(x, E.Log(u)))
    near = If(Equal(u, one), x, corrected)
    return If(Less(absolute(x), like(0.5, x)), near, plain)


@wide
def log2(x: Expr) -> Expr:
    """Logarithm to base 2."""
    return Div(E.Log(x), like(math.log(2.0), x))


@wide
def log10(x: Expr) -> Expr:
    """Logarithm to base 10."""
    return Div(E.Log(x), like(math.log(10.0), x))


@wide
def cos(x: Expr) -> Expr:
    """Cosine, argument in radians: ``1 - 2 sin(x / 2)^2``, exact in its argument."""
    half = E.Sin(times(x, 0.5))
    return one_minus(Mul(like(2, x), square(half)))


@wide
def tan(x: Expr) -> Expr:
    """Tangent, argument in radians: of the rest from the nearest multiple of pi / 2.

    ``sin(r) / cos(r)``, of an odd multiple ``-cos(r) / sin(r)``; far out ``sin(x) / cos(x)``.
    """
    quarters = times(x, 2 / math.pi)
    count = FloorDiv(plus(quarters, 0.5), like(1, x))
    rest = x
    for part in _QUARTER[x.dtype.bits]:
        rest = E.subtract(rest, times(count, part))
    odd = is_odd(count)
    sine = E.Sin(rest)
    cosine = cos(rest)
    above = If(odd, cosine, sine)
    below = If(odd, E.negate(sine), cosine)
    near = Div(above, below)
    far = Div(E.Sin(x), cos(x))
    return If(Less(absolute(x), like(QUARTERS, x)), near, far)


@wide
def sinh(x: Expr) -> Expr:
    """``h - 1 / (4 h)``, ``h = exp(|x|) / 2``, with the sign of x; its series below 1."""
    size = absolute(x)
    series = _polynomial(square(x), [1 / math.factorial(n) for n in range(17, 0, -2)])
    half = If(Less(size, _steep(x)), times(E.Exp(size), 0.5), _half_exp(size))
    far = E.subtract(half, Div(like(0.25, x), half))
    side = If(Less(x, like(0, x)), like(-1, x), like(1, x))
    return If(Less(size, like(1, x)), Mul(x, series), Mul(side, far))


@wide
def cosh(x: Expr) -> Expr:
    """``(exp(x) + exp(-x)) / 2``"""
    size = absolute(x)
    both = Add(E.Exp(x), E.Exp(E.negate(x)))
    near = times(both, 0.5)
    return If(Less(size, _steep(x)), near, _half_exp(size))


def _steep(x: Expr) -> Expr:
    """From here on ``exp(-x)`` is nothing beside ``exp(x)``, which does not overflow yet."""
    return like(700.0 if x.dtype.bits == 64 else 80.0, x)


def _half_exp(x: Expr) -> Expr:
    """``exp(x) / 2`` where that is a number and ``exp(x)`` may be none: a product of two roots."""
    root = E.Exp(times(x, 0.5))
    return Mul(times(root, 0.5), root)


def _signed(x: Expr, size: Expr) -> Expr:
    """`size` with the sign of `x`; zeros and NaN stay as they are."""
    zero = like(0, x)
    below = If(Less(x, zero), E.negate(size), x)
    return If(Less(zero, x), size, below)


def size_atan(x: Expr) -> Expr:
    """The arctangent of a size ``x >= 0``, about the nearest of five angles.

    ``c + atan(t)``, ``t = (x cos c - sin c) / (cos c + x sin c)``, ``|t| <= tan(pi / 16)``
    """
    x = E.minimum(x, like(FAR, x))
    angles = [eighths * math.pi / 8 for eighths in range(5)]
    edges = [math.tan(angle + math.pi / 16) for angle in angles[:-1]]

    def nearest(values: Sequence[float]) -> Expr:
        own: Expr = like(values[-1], x)
        for edge, value in zip(edges[::-1], values[-2::-1], strict=True):
            own = If(Less(x, like(edge, x)), like(value, x), own)
        return own

    cosine = nearest([*map(math.cos, angles[:-1]), 0.0])
    sine = nearest([math.sin(angle) for angle in angles])
    t = Div(E.subtract(Mul(x, cosine), sine), Add(cosine, Mul(x, sine)))
    s = square(t)
    series = _polynomial(s, [(-1) ** k / (2 * k + 1) for k in range(_ATAN_TERMS, 0, -1)])
    return Add(nearest(angles), Add(t, Mul(Mul(t, s), series)))


@wide
def atan(x: Expr) -> Expr:
    """Arctangent, radians."""
    return _signed(x, size_atan(absolute(x)))


@wide
def asin(x: Expr) -> Expr:
    """Arcsine, radians; NaN outside -1..1: beyond a half ``pi / 2 - 2 asin(sqrt((1 - x) / 2))``."""
    size = absolute(x)
    root = E.Sqrt(Mul(one_minus(size), like(0.5, x)))
    far = E.subtract(like(math.pi / 2, x), times(_near_asin(root), 2))
    return _signed(x, If(Less(size, like(0.5, x)), _near_asin(size), far))


def _near_asin(x: Expr) -> Expr:
    """The arcsine of a size up to a half: ``x + x^3 p(x^2) / q(x^2)`` (FreeBSD's msun)."""
    s = square(x)
    ratio = Div(_polynomial(s, _ASIN_NUMERATOR), _polynomial(s, _ASIN_DENOMINATOR))
    return Add(x, Mul(x, Mul(s, ratio)))


@wide
def acos(x: Expr) -> Expr:
    """Arccosine, radians; NaN outside -1..1: ``2 atan(sqrt((1 - x) / (1 + x)))``."""
    ratio = Div(one_minus(x), Add(like(1, x), x))
    return Mul(size_atan(E.Sqrt(ratio)), like(2, x))


def _grown(x: Expr, value: Expr) -> Expr:
    """``log1p(value)``; of a large x ``log(2 x)``, whose square may overflow."""
    far = Add(E.Log(x), like(math.log(2.0), x))
    return If(Less(like(LARGE, x), x), far, log1p(value))


@wide
def asinh(x: Expr) -> Expr:
    """Inverse hyperbolic sine: ``log1p(|x| + x^2 / (1 + sqrt(1 + x^2)))`` with the sign of x."""
    size = absolute(x)
    s = square(size)
    below = Add(like(1, x), E.Sqrt(Add(like(1, x), s)))
    return _signed(x, _grown(size, Add(size, Div(s, below))))


@wide
def acosh(x: Expr) -> Expr:
    """Inverse hyperbolic cosine, NaN below 1: ``log1p(t + sqrt(t (t + 2)))``, ``t = x - 1``."""
    t = Add(x, like(-1, x))
    above = Add(E.maximum(t, like(-1, x)), like(2, x))  # not below 1: of a negative t, NaN
    return _grown(x, Add(t, E.Sqrt(Mul(t, above))))


@wide
def atanh(x: Expr) -> Expr:
    """Inverse hyperbolic tangent, NaN outside -1..1: ``log1p(2 |x| / (1 - |x|)) / 2``."""
    size = absolute(x)
    ratio = Div(times(size, 2), one_minus(size))
    return _signed(x, times(log1p(ratio), 0.5))


def is_negative(x: Expr) -> Expr:
    """Whether the sign of x is -, that of -0.0 too."""
    zero = like(0, x)
    return Or(Less(x, zero), And(Equal(x, zero), Less(reciprocal(x), zero)))


@wide
def atan2(y: Expr, x: Expr) -> Expr:
    """The angle of the point (x, y) in -pi..pi, radians, as C defines it.

    No branch holds the arctangent: simplified under their conditions it would be two.
    """
    height = absolute(y)
    width = absolute(x)
    zero = like(0, x)
    steep = Less(width, height)
    ratio = Div(If(steep, width, height), If(steep, height, width))
    level = If(Equal(height, zero), height, like(1, x))
    angle = size_atan(If(Equal(height, width), level, ratio))
    angle = _mirrored_if(steep, angle, math.pi / 2)
    angle = _mirrored_if(is_negative(x), angle, math.pi)
    return Mul(If(is_negative(y), like(-1, y), like(1, y)), angle)


def _mirrored_if(condition: Expr, angle: Expr, other: float) -> Expr:
    """``other - angle if condition else angle``"""
    side = If(condition, like(-1, angle), like(1, angle))
    return Add(Mul(angle, side), If(condition, like(other, angle), like(0, angle)))


@wide
def rsqrt(x: Expr) -> Expr:
    """``1 / sqrt(x)``"""
    return reciprocal(E.Sqrt(x))


def floor(x: Expr) -> Expr:
    """The largest whole number not above."""
    return FloorDiv(x, like(1, x)) if x.dtype.is_float else x


def ceil(x: Expr) -> Expr:
    """The smallest whole number not below."""
    return E.negate(floor(E.negate(x))) if x.dtype.is_float else x


def rint(x: Expr) -> Expr:
    """To the nearest whole number, halves to the even one."""
    if not x.dtype.is_float:
        return x
    low = floor(x)
    rest = E.subtract(x, low)
    up = Or(Less(like(0.5, x), rest), And(Equal(rest, like(0.5, x)), is_odd(low)))
    return If(up, ceil(x), low)


def is_odd(x: Expr) -> Expr:
    """Whether a whole number is odd: half of it is not whole. NaN and infinities are not."""
    half = times(x, 0.5)
    return E.logical_not(Or(Equal(floor(half), half), E.is_nan(x)))


def truth(x: Expr) -> Expr:
    """``x != 0``"""
    return x if x.dtype.is_bool else E.logical_not(Equal(x, like(0, x)))


def less_equal(a: Expr, b: Expr) -> Expr:
    """``a <= b``; false where either is NaN."""
    if a.dtype.is_float:
        return Or(Less(a, b), Equal(a, b))
    return E.logical_not(Less(b, a))


def integer_power(x: Expr, exponent: int) -> Expr:
    """``x * x * ..``, by squaring; a negative exponent divides."""
    if exponent < 0:
        return reciprocal(integer_power(x, -exponent))
    product: Expr | None = None
    base = x
    left = exponent
    while left:
        if left & 1:
            product = base if product is None else Mul(product, base)
        left >>= 1
        base = Mul(base, base) if left else base
    return like(1, x) if product is None else product


def bit(x: Expr, place: int) -> Expr:
    """Whether a bit of `x` is set."""
    return E.logical_not(Equal(And(x, like(1 << place, x)), like(0, x)))


def whole_power(x: Expr, y: Expr) -> Expr:
    """Squaring over the bits of the exponent, modulo ``2 ** bits``.

    ``product over k of bit_k ? x^(2^k) : 1``; a negative power is the exact quotient without its
    fraction; of 0 it is 0, as a quotient by zero is.
    """
    one = like(1, x)
    none = like(0, x)
    power: Expr = one
    base = x
    for k in range(x.dtype.bits - (x.dtype.kind == "i")):
        power = Mul(power, If(bit(y, k), base, one))
        base = Mul(base, base)
    if x.dtype.kind != "i":
        return power
    minus = like(-1, x)
    unit = If(Equal(x, minus), If(bit(y, 0), minus, one), none)
    inverse = If(Equal(x, one), one, unit)
    return If(Less(y, like(0, y)), inverse, power)


@wide
def power(x: Expr, y: Expr) -> Expr:
    """``x ** y`` as C defines it: ``exp(y log |x|)`` with the sign of odd whole exponents."""
    if not x.dtype.is_float:
        return whole_power(x, y)
    one = like(1, x)
    zero = like(0, x)
    base = absolute(x)
    size = If(Equal(base, one), one, E.Exp(Mul(y, E.Log(base))))
    whole = Or(Equal(floor(y), y), Equal(Add(x, x), x))
    odd = And(Equal(floor(y), y), is_odd(y))
    negative = If(whole, If(odd, E.negate(size), size), like(math.nan, x))
    signed = If(is_negative(x), negative, size)
    return If(Or(Equal(y, zero), Equal(x, one)), one, signed)
