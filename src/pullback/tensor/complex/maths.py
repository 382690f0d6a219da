"""Functions of complex numbers over their parts, with the branch cuts and infinities of C99.

Each takes ``x, y`` of ``x + iy`` and gives the parts of the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from pullback.tensor.face.tensor import Tensor
from pullback.tensor.library import maths as M
from pullback.tensor.library.ops import stop_gradient, where

Pair = tuple[Any, Any]
Function = Callable[[Any, Any], Pair]

# Beyond these, ``z^2 + 1`` is ``z^2`` in every type: 2^27 and 2^54 are exact in float32 too.
_FAR = 2.0**60
_LOG2 = math.log(2.0)


def _size(x: Any, y: Any) -> Any:
    """A scale: the larger magnitude, 1 for zeros and infinities; of no gradient."""
    most = stop_gradient(M.maximum(M.abs(x), M.abs(y)))
    usual = M.logical_and(most > 0.0, most < math.inf)
    return where(usual, most, 1.0)


def hypot(x: Any, y: Any) -> Any:
    """``sqrt(x^2 + y^2)`` without overflow; its gradient at 0 is 0; infinite beside NaN too."""
    scale = _size(x, y)
    a, b = x / scale, y / scale
    square = a * a + b * b
    length = scale * where(square > 0.0, M.sqrt(square), square)
    infinite = M.logical_or(M.isinf(x), M.isinf(y))
    return where(infinite, math.inf, length)


def multiplied(a: Any, b: Any, c: Any, d: Any) -> Pair:
    """``(a + ib)(c + id) = ac - bd + i(ad + bc)``"""
    return a * c - b * d, a * d + b * c


def divided(a: Any, b: Any, c: Any, d: Any) -> Pair:
    """``(a + ib) / (c + id)`` by the larger part of the divisor. Source: Smith, 1962."""
    wide = M.abs(c) >= M.abs(d)
    most, least = where(wide, c, d), where(wide, d, c)
    ratio = where(most == 0.0, least, least / where(most == 0.0, 1.0, most))
    below = most + least * ratio
    real = where(wide, a + b * ratio, a * ratio + b)
    imag = where(wide, b - a * ratio, b * ratio - a)
    return real / below, imag / below


def angle(x: Any, y: Any) -> Any:
    """``atan2(y, x)``, radians."""
    return M.atan2(y, x)


def exp(x: Any, y: Any) -> Pair:
    """``e^x (cos y + i sin y)``; a real z stays real, ``e^-inf`` is 0 whatever y is."""
    size = M.exp(x)
    gone = M.logical_and(M.isinf(x), x < 0.0)
    turn = where(M.logical_and(gone, M.logical_not(M.isfinite(y))), 0.0, y)
    return _grown(size, M.cos(turn), x, y), _level(size, M.sin(turn), y)


def _grown(size: Any, turn: Any, x: Any, y: Any) -> Any:
    """``size turn``; infinite where x is, and y no number to turn by."""
    endless = M.logical_and(M.isinf(x), M.logical_not(M.isfinite(y)))
    return where(M.logical_and(endless, M.isinf(size)), math.inf, size * turn)


def _level(size: Any, turn: Any, y: Any) -> Any:
    """``size turn``, and y where that is 0 and `size` no number."""
    return where(M.logical_and(y == 0.0, M.logical_not(M.isfinite(size))), y, size * turn)


def expm1(x: Any, y: Any) -> Pair:
    """``e^z - 1``, near 0 with the real part ``expm1(x) cos y - 2 sin(y / 2)^2``."""
    half = M.sin(y * 0.5)
    near = M.expm1(x) * M.cos(y) - 2.0 * half * half
    real, imag = exp(x, y)
    return where(M.abs(x) < 1.0, near, real - 1.0), imag


def _log_size(x: Any, y: Any) -> Any:
    """``log |z|``, near 1 from ``|z|^2 - 1 = (m - 1)(m + 1) + n^2``."""
    a, b = M.abs(x), M.abs(y)
    m, n = where(a >= b, a, b), where(a >= b, b, a)
    near = M.logical_and(m > 0.5, m < 1.5)
    safe = where(near, m, 1.0)
    small = where(near, n, 0.0)
    close = 0.5 * M.log1p((safe - 1.0) * (safe + 1.0) + small * small)
    return where(near, close, M.log(hypot(x, y)))


def log(x: Any, y: Any) -> Pair:
    """``log |z| + i angle``, the angle in -pi..pi."""
    return _log_size(x, y), angle(x, y)


def log1p(x: Any, y: Any) -> Pair:
    """``log(1 + z)``, near 0 from ``|1 + z|^2 - 1 = x (2 + x) + y^2``."""
    near = M.logical_and(M.abs(x) < 0.5, M.abs(y) < 0.5)
    a, b = where(near, x, 0.0), where(near, y, 0.0)
    close = 0.5 * M.log1p(a * (2.0 + a) + b * b)
    return where(near, close, _log_size(x + 1.0, y)), angle(x + 1.0, y)


def log2(x: Any, y: Any) -> Pair:
    """``log z / log 2``"""
    u, v = log(x, y)
    return u * (1.0 / _LOG2), v * (1.0 / _LOG2)


def log10(x: Any, y: Any) -> Pair:
    """``log z / log 10``"""
    u, v = log(x, y)
    return u * (1.0 / math.log(10.0)), v * (1.0 / math.log(10.0))


def sqrt(x: Any, y: Any) -> Pair:
    """The root with a real part of 0 or more, with the sign of y: ``t + i y / 2t``,

    ``t = sqrt((|x| + |z|) / 2)``; where x is negative ``|y| / 2t + i t``.
    """
    scale, side = _size(x, y), M.copysign(1.0, y)
    right = M.greater_equal(x, 0.0)
    a, b = x / scale, y / scale
    t = M.sqrt((where(right, a, -a) + hypot(a, b)) * 0.5) * M.sqrt(scale)
    nothing = M.logical_and(x == 0.0, y == 0.0)
    other = y / (2.0 * where(nothing, 1.0, t))
    real, imag = where(right, t, other * side), where(right, other, t * side)
    # sqrt(-inf + iy) is 0 + i inf, sqrt(x + i inf) is inf + i inf
    tall, wide = M.isinf(y), M.isinf(x)
    real = where(tall, math.inf, where(wide, where(x > 0.0, math.inf, M.abs(y) * 0.0), real))
    imag = where(tall, y, where(wide, where(x > 0.0, y * 0.0, side * math.inf), imag))
    return where(nothing, 0.0, real), where(nothing, y, imag)


def sinh(x: Any, y: Any) -> Pair:
    """``sinh x cos y + i cosh x sin y``"""
    still = M.logical_and(x == 0.0, M.logical_not(M.isfinite(y)))
    wide, size = M.cosh(x), M.sinh(x)
    return where(still, x, _grown(size, M.cos(y), x, y)), _level(wide, M.sin(y), y)


def cosh(x: Any, y: Any) -> Pair:
    """``cosh x cos y + i sinh x sin y``"""
    none = M.logical_or(x == 0.0, y == 0.0)
    wide, size = M.cosh(x), M.sinh(x)
    endless = M.logical_not(M.logical_and(M.isfinite(size), M.isfinite(y)))
    zero = M.copysign(0.0, y) * M.copysign(1.0, x)
    imag = where(M.logical_and(none, endless), zero, size * M.sin(y))
    return _grown(wide, M.cos(y), x, y), imag


def tanh(x: Any, y: Any) -> Pair:
    """``(a (1 + b^2) + i b / c^2) / (1 + a^2 b^2)``, ``a = tanh x, b = tan y, c = cosh x``."""
    far = M.isinf(x)
    a, b = M.tanh(x), M.tan(where(far, 0.0, y))
    short = 1.0 / M.cosh(where(far, 0.0, x))
    below = 1.0 + a * a * b * b
    real, imag = a * (1.0 + b * b) / below, b * short * short / below
    turn = where(M.isfinite(y), M.sin(2.0 * y), y)
    still = M.logical_and(x == 0.0, M.logical_not(M.isfinite(y)))
    real = where(still, x, where(far, a, real))
    imag = where(M.logical_and(y == 0.0, M.isnan(x)), y, imag)
    return real, where(far, M.copysign(0.0, turn), imag)


def _plus_one(x: Any, y: Any, sign: float) -> Pair:
    """``sqrt(1 + sign z)``, the sign of y kept."""
    return sqrt(1.0 + sign * x, y if sign > 0.0 else -y)


def _great(x: Any, y: Any) -> Any:
    """``log |2 z|`` where z is so large that squares overflow."""
    return _log_size(x * 0.5, y * 0.5) + 2.0 * _LOG2


def _near(x: Any, y: Any) -> tuple[Any, Any, Any]:
    """Whether z is large, and z with 0 in the place of large ones."""
    large = M.logical_or(M.abs(x) > _FAR, M.abs(y) > _FAR)
    return large, where(large, 0.0, x), where(large, 0.0, y)


def _void(nan: Any, zero: Any) -> Any:
    """Whether one part is NaN beside the other's 0."""
    return M.logical_and(M.isnan(nan), zero == 0.0)


def acos(x: Any, y: Any) -> Pair:
    """From the roots of ``1 - z`` and ``1 + z``. Source: Kahan, Branch Cuts, 1987."""
    large, a, b = _near(x, y)
    first, second = _plus_one(a, b, -1.0), _plus_one(a, b, 1.0)
    real = 2.0 * M.atan2(first[0], second[0])
    imag = M.asinh(second[0] * first[1] - second[1] * first[0])
    great = M.copysign(_great(x, y), -y)
    real = where(_void(y, x), math.pi / 2.0, real)
    return where(large, M.atan2(M.abs(y), x), real), where(large, great, imag)


def asinh(x: Any, y: Any) -> Pair:
    """From the roots of ``1 + iz`` and ``1 - iz``. Source: Kahan, Branch Cuts, 1987."""
    large, a, b = _near(x, y)
    first, second = sqrt(1.0 + b, -a), sqrt(1.0 - b, a)
    real = M.asinh(first[0] * second[1] - second[0] * first[1])
    imag = M.atan2(b, first[0] * second[0] - first[1] * second[1])
    great = M.copysign(_great(x, y), x)
    imag = where(_void(x, y), y, imag)
    return where(large, great, real), where(large, M.atan2(y, M.abs(x)), imag)


def acosh(x: Any, y: Any) -> Pair:
    """From the roots of ``z - 1`` and ``z + 1``. Source: Kahan, Branch Cuts, 1987."""
    large, a, b = _near(x, y)
    first, second = sqrt(a - 1.0, b), sqrt(a + 1.0, b)
    real = M.asinh(first[0] * second[0] + first[1] * second[1])
    imag = 2.0 * M.atan2(first[1], second[0])
    imag = where(_void(y, x), math.pi / 2.0, imag)
    return where(large, _great(x, y), real), where(large, M.atan2(y, x), imag)


def atanh(x: Any, y: Any) -> Pair:
    """``log1p(4x / ((1 - x)^2 + y^2)) / 4 + i atan2(2y, (1 - x)(1 + x) - y^2) / 2``

    of ``|x|``, ``|y|`` with the signs of x and y. Source: Kahan, Branch Cuts, 1987.
    """
    sides = M.copysign(1.0, x), M.copysign(1.0, y)
    p, q = x * sides[0], y * sides[1]
    large, a, b = _near(p, q)
    real = 0.25 * M.log1p(4.0 * a / ((1.0 - a) * (1.0 - a) + b * b))
    imag = 0.5 * M.atan2(2.0 * b, (1.0 - a) * (1.0 + a) - b * b)
    scale = _size(x, y)
    c, d = p / scale, q / scale
    infinite = M.logical_or(M.isinf(x), M.isinf(y))
    flat = where(infinite, 0.0, c / (c * c + d * d) / scale)
    real, imag = where(large, flat, real), where(large, math.pi / 2.0, imag)
    real = where(_void(y, x), 0.0, real)
    return real * sides[0], where(M.isnan(y), y, imag * sides[1])


def turned(function: Function) -> Function:
    """``-i f(iz)``: of sin sinh, of tan tanh, and back."""

    def call(x: Any, y: Any) -> Pair:
        u, v = function(-y, x)
        return v, -u

    return call


def cos(x: Any, y: Any) -> Pair:
    """``cosh(iz)``"""
    return cosh(-y, x)


def sign(x: Any, y: Any) -> Pair:
    """``z / |z|``, and 0 of 0."""
    size = hypot(x, y)
    none = size == 0.0
    safe = where(none, 1.0, size)
    return where(none, 0.0, x / safe), where(none, 0.0, y / safe)


def parts_of(function: Callable[[Any], Tensor]) -> Function:
    """A function of each part."""
    return lambda x, y: (function(x), function(y))


UNARY: dict[str, Function] = {
    "exp": exp, "expm1": expm1, "log": log, "log1p": log1p, "log2": log2, "log10": log10,
    "sqrt": sqrt, "sinh": sinh, "cosh": cosh, "tanh": tanh, "cos": cos,
    "sin": turned(sinh), "tan": turned(tanh),
    "acos": acos, "acosh": acosh, "asinh": asinh, "atanh": atanh,
    "asin": turned(asinh), "atan": turned(atanh),
    "sign": sign, "square": lambda x, y: ((x - y) * (x + y), 2.0 * x * y),
    "reciprocal": lambda x, y: divided(1.0, 0.0, x, y),
    "negative": lambda x, y: (-x, -y), "positive": lambda x, y: (x, y),
    "conj": lambda x, y: (x, -y), "round": parts_of(M.round),
}  # fmt: skip
"""Complex functions of one complex number."""
