"""Shifts and powers of integers that are data, as composites of primitives.

A count of the width or more leaves nothing of a number but its sign, and so does a negative one:
it is a large one, as processors and NumPy read it. A negative power is the exact quotient without
its fraction; of 0 it is 0, as a quotient by zero is.
"""

from __future__ import annotations

from collections.abc import Callable

from pullback.ir import expr as E
from pullback.ir.dtype import bool_
from pullback.ir.expr import And, Const, Equal, Expr, FloorDiv, If, Less, Mul, Or


def _like(value: int, x: Expr) -> Const:
    return E.const(value, x.dtype)


def _bit(x: Expr, place: int) -> Expr:
    """Whether a bit of `x` is set."""
    return E.logical_not(Equal(And(x, _like(1 << place, x)), _like(0, x)))


def _beyond(count: Expr, most: int) -> Expr:
    """Whether a count is more than `most`, or negative."""
    if isinstance(count, Const):
        return Const(not 0 <= count.value <= most, bool_)
    above = Less(_like(most, count), count)
    return Or(Less(count, _like(0, count)), above) if count.dtype.kind == "i" else above


def _two_to(count: Expr) -> Expr:
    """``2 ** count`` of a count below the width: ``product over k of bit_k ? 2^(2^k) : 1``"""
    if isinstance(count, Const):
        return _like(1 << int(count.value), count)
    one = _like(1, count)
    power: Expr = one
    for k in range((count.dtype.bits - 1).bit_length()):
        power = Mul(power, If(_bit(count, k), _like(1 << (1 << k), count), one))
    return power


def _shifted(far: Expr, rest: Expr, near: Callable[[], Expr]) -> Expr:
    """`near`; `rest` where the count is too large."""
    if isinstance(far, Const):
        return rest if far.value else near()
    return If(far, rest, near())


def shift_left(x: Expr, count: Expr) -> Expr:
    """``x * 2 ** count`` without the bits that leave; 0 for a count beyond the width."""
    far = _beyond(count, x.dtype.bits - 1)
    return _shifted(far, _like(0, x), lambda: Mul(x, _two_to(count)))


def shift_right(x: Expr, count: Expr) -> Expr:
    """``floor(x / 2 ** count)``; for a count beyond the width 0, of a negative x -1."""
    signed = x.dtype.kind == "i"
    none = _like(0, x)
    rest = If(Less(x, none), _like(-1, x), none) if signed else none
    far = _beyond(count, x.dtype.bits - (2 if signed else 1))
    return _shifted(far, rest, lambda: FloorDiv(x, _two_to(count)))


def whole_power(x: Expr, y: Expr) -> Expr:
    """Squaring over the bits of the exponent, modulo ``2 ** bits``; see above for a negative one.

    ``product over k of bit_k ? x^(2^k) : 1``
    """
    one, none = _like(1, x), _like(0, x)
    power: Expr = one
    base = x
    for k in range(x.dtype.bits - (x.dtype.kind == "i")):
        power = Mul(power, If(_bit(y, k), base, one))
        base = Mul(base, base)
    if x.dtype.kind != "i":
        return power
    minus = _like(-1, x)
    unit = If(Equal(x, minus), If(_bit(y, 0), minus, one), none)
    return If(Less(y, _like(0, y)), If(Equal(x, one), one, unit), power)
