"""Where a value is larger than a number, by a value that is computed before it.

    exp(x) - 1 > 0    <=>    x > 0        each operation on the way grows or falls, at exact numbers

So conditions that say the same have the same words, and values that only they need are not made.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from fractions import Fraction

from pullback.config import frozen
from pullback.triton.facts import Facts
from pullback.triton.nodes import Operation, Value
from pullback.triton.words import literal


@frozen
class Above:
    """``value > number``, or ``<`` where it falls; the other way round where `signs` is negative.

    `signs` are values of any sign, whose product is not known.
    """

    value: Value
    number: Fraction
    falls: bool = False
    signs: frozenset[Value] = frozenset()


def above(facts: Facts, vary: frozenset[Value], value: Value, number: Value) -> Above | None:
    """Where a value is larger than a number; nothing, where that is none that is exact."""
    least = _number(facts, number)
    if least is None:
        return None
    at = known = Above(value, least)
    while (before := _before(facts, vary, at)) is not None:
        at = before
        if not at.signs and _exact(at):
            known = at
    return known


def _before(facts: Facts, vary: frozenset[Value], at: Above) -> Above | None:
    """The same of the operand that varies."""
    holder = facts.makers.get(at.value)
    if holder is None or holder.name not in _STEPS:
        return None
    operands = [v for v in holder.operands if v in vary]
    if len(operands) != 1 or operands[0].type != at.value.type:
        return None
    if at.value.type.element not in ("f32", "f64"):
        return None
    rest = [v for v in holder.operands if v not in vary]
    by = _number(facts, rest[0]) if rest else None
    return _STEPS[holder.name](at, holder, operands[0], rest[0] if rest else None, by)


def _number(facts: Facts, value: Value) -> Fraction | None:
    """A value that is written as a number, exactly."""
    holder = facts.makers.get(facts.bare(value))
    if holder is None or holder.name != "arith.constant" or not value.type.is_float:
        return None
    text = literal(holder.attribute("value"), holder.results[0].type)
    if text.startswith("float("):
        return None
    exact = float(text)
    if value.type.element == "f32":
        (exact,) = struct.unpack("f", struct.pack("f", exact))
    return Fraction(exact)


def _exact(at: Above) -> bool:
    """Whether the number is one of the value's type."""
    number = float(at.number)
    if at.value.type.element == "f32" and abs(number) < 1e38:
        (number,) = struct.unpack("f", struct.pack("f", number))
    return Fraction(number) == at.number


Step = Callable[[Above, Operation, Value, Value | None, Fraction | None], Above | None]


def _sum(
    at: Above, o: Operation, value: Value, _: Value | None, by: Fraction | None
) -> Above | None:
    if by is None:
        return None
    if o.name == "arith.addf":
        return Above(value, at.number - by, at.falls, at.signs)
    if o.operands[0] == value:
        return Above(value, at.number + by, at.falls, at.signs)
    return Above(value, by - at.number, not at.falls, at.signs)


def _product(
    at: Above, o: Operation, value: Value, other: Value | None, by: Fraction | None
) -> Above | None:
    divides = o.name != "arith.mulf"
    if other is None or (divides and o.operands[0] != value):
        return None
    if by is None:
        if at.number:
            return None
        return Above(value, at.number, at.falls, at.signs ^ {other})
    if not by:
        return None
    number = at.number * by if divides else at.number / by
    return Above(value, number, at.falls != (by < 0), at.signs)


def _minus(
    at: Above, _: Operation, value: Value, __: Value | None, ___: Fraction | None
) -> Above | None:
    return Above(value, -at.number, not at.falls, at.signs)


def _mapped(number: int, to: int) -> Step:
    """Of a function that grows, at the one place where its number is exact."""

    def step(
        at: Above, _: Operation, value: Value, __: Value | None, ___: Fraction | None
    ) -> Above | None:
        return Above(value, Fraction(to), at.falls, at.signs) if at.number == number else None

    return step


def _bounded(
    at: Above, o: Operation, value: Value, _: Value | None, by: Fraction | None
) -> Above | None:
    """Of a maximum or a minimum that lets what is around the number through."""
    if by is None or at.signs or at.falls:
        return None
    through = at.number >= by if o.name.startswith("arith.max") else at.number < by
    return Above(value, at.number) if through else None


_STEPS: dict[str, Step] = {
    "arith.addf": _sum,
    "arith.subf": _sum,
    "arith.mulf": _product,
    "arith.divf": _product,
    "tt.precise_divf": _product,
    "arith.negf": _minus,
    "math.exp": _mapped(1, 0),
    "math.exp2": _mapped(1, 0),
    "math.log": _mapped(0, 1),
    "math.log2": _mapped(0, 1),
    "arith.maxnumf": _bounded,
    "arith.minnumf": _bounded,
}
