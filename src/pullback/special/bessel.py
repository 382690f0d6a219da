"""Bessel functions of whole order, of the first, the second and the modified kind.

``J[n](x) = sum[k] (-1)^k (x / 2)^(2 k + n) / (k! (k + n)!)``, ``I[n]`` without the signs, Y and K
the second solutions. Up to 8 they are rationals times their zeros; beyond, size and phase:
``J = sqrt(2 s / (pi x)) cos(x - (2 n + 1) pi / 4 + p / x)``, s and p rationals of ``1 / x^2``.

Source: Harrison 2009, Fast and accurate Bessel function computation (size and phase); Miller 1952,
British Association Mathematical Tables X (higher orders downwards).
"""

from __future__ import annotations

import functools
import math
from typing import Any

from pullback.ir import expr as E
from pullback.ir import functions as F
from pullback.ir.expr import Add, Div, Expr, If, Less, Mul
from pullback.special import bessel_tables as T
from pullback.special.elementary import bessel_i
from pullback.special.parts import Special, horner, pieces, ratio
from pullback.tensor.shaped import shaped
from pullback.tensor.values.functions import is_inf, is_nan

FAR = 8.0  # where size and phase begin
EXACT = 1e5  # up to which odd multiples of pi / 4 are taken away without a rounding
QUARTERS = F._QUARTER[64]
HIGHEST = 60  # order
CLOSE = 1.25  # up to which the power series of J is the best
SERIES = [  # of (x / 2)^2, by order, highest first: 0.39^11 / 11!^2 is 2e-20
    [(-1.0) ** k / (math.factorial(k) * math.factorial(k + n)) for k in reversed(range(11))]
    for n in (0, 1)
]
BEGIN = 24  # orders above n where quotients begin


def _zeros(x: Expr, zero: tuple[float, float]) -> Expr:
    """``x^2 - zero^2``, the zero a sum of two floats."""
    high, low = zero
    away = Add(Add(x, F.like(-high, x)), F.like(-low, x))
    return Mul(away, Add(x, F.like(high, x)))


def _far(order: int, a: Expr, second: bool) -> Expr:
    """Of ``a >= 8``: the cosine (J) or sine (Y) of ``a - (2 n + 1) pi / 4 + p / a`` times the size.

    The angle is taken from the nearest zero; very far out it is that of a sine and a cosine of a.
    """
    u = F.reciprocal(a)
    s = F.square(u)
    size_of, phase_of = (T.SIZE1, T.PHASE1) if order else (T.SIZE0, T.PHASE0)
    size = E.Sqrt(Mul(Mul(ratio(s, size_of[0]), F.like(2 / math.pi, a)), u))
    phase = Mul(ratio(s, phase_of[0]), u)
    near = Less(a, F.like(EXACT, a))
    b = If(near, a, F.like(FAR, a))
    shift = F.like(order + 0.5, a)
    count = F.floor(Add(E.subtract(Mul(b, F.like(2 / math.pi, a)), shift), F.like(0.5, a)))
    multiple = Add(count, shift)
    rest: Expr = b
    for part in QUARTERS:
        rest = E.subtract(rest, Mul(multiple, F.like(part, a)))
    angle = Add(rest, phase)
    sine, cosine = E.Sin(angle), F.cos(angle)
    turn = E.subtract(count, Mul(F.floor(Mul(count, F.like(0.25, a))), F.like(4, a)))
    odd = E.Or(E.Equal(turn, F.like(1, a)), E.Equal(turn, F.like(3, a)))
    first, other = (cosine, sine) if second else (sine, cosine)
    wave: Expr = If(odd, first, other)
    flipped = (F.like(2, a), F.like(3, a)) if second else (F.like(1, a), F.like(2, a))
    negative = E.Or(E.Equal(turn, flipped[0]), E.Equal(turn, flipped[1]))
    signed = If(negative, E.negate(wave), wave)
    turned = E.subtract(phase, F.like((2 * order + 1) * math.pi / 4, a))
    c, d = If(near, F.like(0, a), E.Sin(a)), If(near, F.like(1, a), F.cos(a))
    e, f = E.Sin(turned), F.cos(turned)
    both = Add(Mul(c, f), Mul(d, e)) if second else E.subtract(Mul(d, f), Mul(c, e))
    return Mul(size, If(near, signed, both))


def _positive_j(order: int, a: Expr) -> Expr:
    """Of ``a >= 0``."""
    tables, zeros = (T.J1, T.J1_ZEROS) if order else (T.J0, T.J0_ZEROS)
    cut = T.J1_ENDS[0] if order else T.J0_ENDS[0]
    first = Mul(_zeros(a, zeros[0]), ratio(F.square(a), tables[0]))
    first = Mul(first, a) if order else first
    middle = Mul(_zeros(a, zeros[1]), ratio(a, tables[1]))
    near = If(Less(F.square(a), F.like(cut, a)), first, middle)
    close = Less(a, F.like(CLOSE, a))
    half = Mul(If(close, a, F.like(0, a)), F.like(0.5, a))
    series = horner(F.square(half), SERIES[order])
    near = If(close, Mul(series, half) if order else series, near)
    within = Less(a, F.like(FAR, a))
    value = If(within, near, _far(order, If(within, F.like(FAR, a), a), second=False))
    return If(is_inf(a), F.like(0, a), value)


def _j(order: int, x: Expr) -> Expr:
    even = _positive_j(order, F.absolute(x))
    return If(Less(x, F.like(0, x)), E.negate(even), even) if order else even


def _near_y1(x: Expr) -> Expr:
    """Up to 1: ``2 / pi (log(x) J1(x) - 1 / x)`` and what is left, all negative."""
    part = Mul(E.Log(x), _positive_j(1, x))
    pole = E.subtract(part, F.reciprocal(x))
    return Add(Mul(pole, F.like(2 / math.pi, x)), Mul(x, ratio(F.square(x), T.Y1_NEAR[0])))


def _y(order: int, x: Expr) -> Expr:
    """``2 / pi log(x / z) J(x)`` and a function with the same zero z, up to 2.5 or 3.75."""
    tables, zeros = (T.Y1, T.Y1_ZEROS) if order else (T.Y0, T.Y0_ZEROS)
    ends = T.Y1_ENDS if order else T.Y0_ENDS
    high = zeros[0][0]
    apart = Add(Add(x, F.like(-high, x)), F.like(-zeros[0][1], x))
    close = Less(F.absolute(apart), F.like(high / 2, x))
    by = Mul(If(close, apart, F.like(0, x)), F.like(1 / high, x))
    log = If(close, F.log1p(by), E.Log(Mul(x, F.like(1 / high, x))))
    wave = Mul(Mul(log, F.like(2 / math.pi, x)), _positive_j(order, x))
    rest = Mul(_zeros(x, zeros[0]), ratio(F.square(x), tables[0]))
    near = Add(wave, Div(rest, x) if order else rest)
    value = _far(order, E.maximum(x, F.like(FAR, x)), second=True)
    for n in reversed(range(1, len(tables))):
        piece = Mul(_zeros(x, zeros[n]), ratio(x, tables[n]))
        value = If(Less(x, F.like(ends[n], x)), piece, value)
    value = If(Less(F.square(x), F.like(ends[0], x)), near, value)
    value = If(Less(x, F.like(1, x)), _near_y1(x), value) if order else value
    value = If(is_inf(x), F.like(0, x), value)
    return _on_the_right(x, value, -math.inf)


def _on_the_right(x: Expr, value: Expr, at_zero: float) -> Expr:
    """Of x > 0; infinite at 0, NaN below."""
    zero = F.like(0, x)
    right = If(E.Equal(x, zero), F.like(at_zero, x), value)
    return If(E.Or(Less(x, zero), is_nan(x)), F.like(math.nan, x), right)


def _k_parts(order: int, x: Expr) -> tuple[Expr, Expr, Expr]:
    """Whether x is at most 1, K there, and ``exp(x) K(x)`` beyond."""
    one = F.like(1, x)
    within = F.less_equal(x, one)
    b = If(E.And(Less(F.like(0, x), x), within), x, one)
    s = F.square(b)
    log = E.Log(b)
    if order:
        wave = Mul(log, bessel_i(1, b)[1])
        near: Expr = Add(F.reciprocal(b), Add(wave, Mul(b, ratio(s, T.K1_NEAR[0]))))
    else:
        near = E.subtract(ratio(s, T.K0_NEAR[0]), Mul(log, bessel_i(0, b)[1]))
    u = F.reciprocal(E.maximum(x, one))
    tables, ends = (T.K1_FAR, T.K1_FAR_ENDS) if order else (T.K0_FAR, T.K0_FAR_ENDS)
    return within, near, Mul(pieces(u, tables, ends), E.Sqrt(u))


def _k(order: int, x: Expr) -> Expr:
    within, near, scaled = _k_parts(order, x)
    value = If(within, near, Mul(scaled, E.Exp(E.negate(x))))
    return _on_the_right(x, If(is_inf(x), F.like(0, x), value), math.inf)


def _ke(order: int, x: Expr) -> Expr:
    within, near, scaled = _k_parts(order, x)
    b = If(within, x, F.like(0, x))
    value = If(within, Mul(near, E.Exp(b)), scaled)
    return _on_the_right(x, If(is_inf(x), F.like(0, x), value), math.inf)


def _higher_j(order: int, x: Expr) -> Expr:
    """Upwards from J0 and J1 where x >= n, else downwards to them: the larger of them scales it.

    ``h[k - 1] = k h[k] - (x / 2)^2 h[k + 1]`` from ``h[n] = 1``, ``J[k] = c (x / 2)^(k - n) h[k]``;
    above n by quotients ``J[k] / J[k - 1] = x / (2 k - x J[k + 1] / J[k])``, which begin with 0.
    """
    a = F.absolute(x)
    above = F.less_equal(F.like(order, a), a)
    first, second = _positive_j(0, a), _positive_j(1, a)
    b = If(above, a, F.like(order, a))
    before, last = first, second
    for n in range(1, order):
        up = E.subtract(Mul(Div(F.like(2 * n, a), b), last), before)
        before, last = last, up
    low = If(above, F.like(order, a), a)
    quotient: Expr = F.like(0, a)
    for n in range(order + BEGIN, order + 1, -1):
        quotient = Div(low, E.subtract(F.like(2 * n, a), Mul(low, quotient)))
    rest = E.subtract(F.like(2 * order + 2, a), Mul(low, quotient))
    half = Mul(low, F.like(0.5, a))
    square = F.square(half)
    higher, h = Div(F.like(2, a), rest), F.like(1, a)
    lower: list[Expr] = [higher, h]
    for n in range(order, 0, -1):
        lower.append(E.subtract(Mul(lower[-1], F.like(n, a)), Mul(square, lower[-2])))
    power = F.integer_power(half, order - 1)
    by_first = Less(F.absolute(second), F.absolute(first))
    scale = If(by_first, Mul(first, half), second)
    down = Div(Mul(scale, power), If(by_first, lower[-1], lower[-2]))
    value = If(is_inf(a), F.like(0, a), If(above, last, down))
    return If(Less(x, F.like(0, x)), E.negate(value), value) if order % 2 else value


@functools.cache
def _j_of(n: int) -> Special:
    """J[n], whose slope is ``(J[n - 1] - J[n + 1]) / 2``."""
    if n == 0:
        return Special("j0", lambda x: _j(0, x), (lambda x: -_j_of(1)(x),))

    def slope(x: Any) -> Any:
        return (_j_of(n - 1)(x) - _j_of(n + 1)(x)) * 0.5

    body = functools.partial(_j if n == 1 else _higher_j, n)
    return Special(f"j{n}", body, (slope,))


_y0 = Special("y0", lambda x: _y(0, x), (lambda x: -y1(x),))
_y1 = Special("y1", lambda x: _y(1, x), (lambda x: y0(x) - y1(x) / x,))
_k0 = Special("k0", lambda x: _k(0, x), (lambda x: -k1(x),))
_k1 = Special("k1", lambda x: _k(1, x), (lambda x: -k0(x) - k1(x) / x,))
_k0e = Special("k0e", lambda x: _ke(0, x), (lambda x: k0e(x) - k1e(x),))
_k1e = Special("k1e", lambda x: _ke(1, x), (lambda x: k1e(x) - k0e(x) - k1e(x) / x,))


def j0(x: Any) -> Any:
    """The Bessel function of the first kind, order 0: ``sum[k] (-1)^k (x / 2)^2k / k!^2``.

    Also called `bessel_j0`.

    Example:
        >>> pb.special.j0(pb.tensor([0.0, 1.0]))
        Tensor([1.       , 0.7651977], dtype=float32)
    """
    return _j_of(0)(x)


def j1(x: Any) -> Any:
    """The Bessel function of the first kind, order 1, ``-j0'(x)``. Also called `bessel_j1`.

    Example:
        >>> pb.special.j1(pb.tensor([0.0, 1.0]))
        Tensor([0.        , 0.44005057], dtype=float32)
    """
    return _j_of(1)(x)


@shaped("x[s...] -> [s...]", where=f"0 <= int(n) <= {HIGHEST}")
def jn(n: int, x: Any) -> Any:
    """The Bessel function of the first kind, order n: ``2 jn(n)' = jn(n - 1) - jn(n + 1)``.

    Example:
        >>> pb.special.jn(2, pb.tensor([0.0, 1.0]))
        Tensor([0.        , 0.11490349], dtype=float32)
    """
    return _j_of(int(n))(x)


def y0(x: Any) -> Any:
    """The Bessel function of the second kind, order 0; -inf at 0, NaN below.

    Also called `bessel_y0`.

    Example:
        >>> pb.special.y0(pb.tensor([1.0, 2.0]))
        Tensor([0.08825696, 0.5103757 ], dtype=float32)
    """
    return _y0(x)


def y1(x: Any) -> Any:
    """The Bessel function of the second kind, order 1, ``-y0'(x)``. Also called `bessel_y1`.

    Example:
        >>> pb.special.y1(pb.tensor([1.0, 2.0]))
        Tensor([-0.7812128 , -0.10703243], dtype=float32)
    """
    return _y1(x)


def k0(x: Any) -> Any:
    """The modified Bessel function of the second kind, order 0; infinite at 0, NaN below.

    Also called `modified_bessel_k0`.

    Example:
        >>> pb.special.k0(pb.tensor([1.0, 2.0]))
        Tensor([0.42102444, 0.11389387], dtype=float32)
    """
    return _k0(x)


def k1(x: Any) -> Any:
    """The modified Bessel function of the second kind, order 1, ``-k0'(x)``.

    Also called `modified_bessel_k1`.

    Example:
        >>> pb.special.k1(pb.tensor([1.0, 2.0]))
        Tensor([0.60190725, 0.13986588], dtype=float32)
    """
    return _k1(x)


def k0e(x: Any) -> Any:
    """``exp(x) k0(x)``. Also called `scaled_modified_bessel_k0`.

    Example:
        >>> pb.special.k0e(pb.tensor([1.0, 2.0]))
        Tensor([1.1444631 , 0.84156823], dtype=float32)
    """
    return _k0e(x)


def k1e(x: Any) -> Any:
    """``exp(x) k1(x)``. Also called `scaled_modified_bessel_k1`.

    Example:
        >>> pb.special.k1e(pb.tensor([1.0, 2.0]))
        Tensor([1.6361535, 1.0334768], dtype=float32)
    """
    return _k1e(x)


def spherical_bessel_j0(x: Any) -> Any:
    """``sin(x) / x``, 1 at 0.

    Example:
        >>> pb.special.spherical_bessel_j0(pb.tensor([0.0, 1.0]))
        Tensor([1.       , 0.841471 ], dtype=float32)
    """
    return _spherical(x)


def _spherical_j0(x: Expr) -> Expr:
    """Near 0 a polynomial in x^2, so that derivatives keep their digits."""
    close = Less(F.absolute(x), F.like(1, x))
    near = horner(F.square(x), SINE[::-1])
    apart = If(close, F.like(1, x), x)
    value = If(close, near, Div(E.Sin(apart), apart))
    return If(is_inf(x), F.like(0, x), value)


SINE = [(-1.0) ** k / math.factorial(2 * k + 1) for k in range(10)]
_spherical = Special("spherical_bessel_j0", _spherical_j0)
