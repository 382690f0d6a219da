"""Maxima and minima that cancel: what is computed does not change with them.

    exp(x - m) / sum exp(x - m)        is the same for any m

They keep exponentials finite, and have no derivative. By each value: how it changes with `m`,

    v + a m    or    v exp(a m)        an exponential, a logarithm leads from one to the other

and if nothing that is stored changes (a = 0), `m` takes part in no derivative.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from pullback.config import frozen
from pullback.triton.facts import Facts
from pullback.triton.forward import kind_of, order_of
from pullback.triton.nodes import Operation, Value
from pullback.triton.words import literal

# Of a number: what it is a multiple of says how a sum or a product changes.
_ALIKE = ("arith.extf", "arith.truncf", "tt.splat", "tt.broadcast", "tt.reshape")


class _Unknown(Exception):
    """How a value changes is not known."""


@frozen
class Change:
    """``v + by m``; ``v exp(by m)``, where `factor` is set. `m` differs along `axes` of a block."""

    by: float
    factor: bool
    axes: frozenset[int] = frozenset()


def cancelled(facts: Facts, silent: frozenset[str]) -> frozenset[Value]:
    """The maxima and minima of the kernel's own block with which no output changes.

    Nothing comes from behind `silent` outputs: they may.
    """
    own = facts.function.block.operations
    extrema = [o for o in own if o.name == "tt.reduce" and kind_of(o) in ("max", "min")]
    return frozenset(
        o.results[0]
        for o in extrema
        if o.results[0].type.is_float and _Cancels(facts, o, silent).hold()
    )


class _Cancels:
    def __init__(self, facts: Facts, extremum: Operation, silent: frozenset[str]) -> None:
        self.facts, self.silent = facts, silent
        (result,) = extremum.results
        wide = frozenset(k for k, extent in enumerate(result.type.shape) if extent > 1)
        self.changes: dict[Value, Change] = {result: Change(1.0, False, wide)}
        operations = facts.function.block.operations
        self.after = operations[operations.index(extremum) + 1 :]

    def hold(self) -> bool:
        """Whether all that is stored is the same for any extremum."""
        (start,) = self.changes.values()
        if len(start.axes) > 1:
            return False
        try:
            for o in self.after:
                self.operation(o)
        except _Unknown:
            return False
        return True

    def operation(self, o: Operation) -> None:
        inner = (v for r in o.regions for q in r.walk() for v in q.operands)
        if not any(v in self.changes for v in (*o.operands, *inner)):
            return
        if o.name == "tt.store" and self.facts.bases[o.operands[0]].name in self.silent:
            return
        rule = _RULES.get(o.name)
        if rule is None or any(v in self.changes for v in inner):
            raise _Unknown
        change = rule(self, o)
        if abs(change.by) > 1e-9:
            self.changes[o.results[0]] = change

    def of(self, value: Value) -> Change | None:
        return self.changes.get(value)

    def number(self, value: Value) -> float | None:
        """A value that is written as a number."""
        holder = self.facts.makers.get(self.facts.bare(value))
        if holder is None or holder.name != "arith.constant":
            return None
        text = literal(holder.attribute("value"), holder.results[0].type)
        return float(text.removeprefix('float("').removesuffix('")'))

    def axes(self, o: Operation) -> frozenset[int]:
        """Where `m` differs: of operands that change along one and the same axes."""
        differs = {c.axes for c in map(self.of, o.operands) if c is not None}
        if len(differs) > 1:
            raise _Unknown
        return differs.pop()

    # --- rules ------------------------------------------------------------------------------------

    def same(self, o: Operation) -> Change:
        return self.turned(o, lambda axis: axis)

    def turned(self, o: Operation, place: Callable[[int], int]) -> Change:
        change = self.changes[o.operands[0]]
        if o.name == "tt.reshape" and change.axes:
            raise _Unknown
        return Change(change.by, change.factor, frozenset(map(place, change.axes)))

    def sum(self, o: Operation) -> Change:
        a, b = (self.of(v) for v in o.operands)
        sign = -1.0 if o.name == "arith.subf" else 1.0
        factors = {c.factor for c in (a, b) if c is not None}
        if factors == {False}:
            by = (a.by if a else 0.0) + sign * (b.by if b else 0.0)
            return Change(by, False, self.axes(o))
        if a is None or b is None or a.factor is not b.factor or abs(a.by - b.by) > 1e-9:
            raise _Unknown
        return Change(a.by, True, self.axes(o))

    def product(self, o: Operation) -> Change:
        a, b = (self.of(v) for v in o.operands[:2])
        sign = -1.0 if "div" in o.name else 1.0
        if all(c is None or c.factor for c in (a, b)):
            by = (a.by if a else 0.0) + sign * (b.by if b else 0.0)
            return Change(by, True, self.axes(o))
        if a is not None and b is None:
            number = self.number(o.operands[1])
        elif b is not None and a is None and sign > 0:
            a, number = b, self.number(o.operands[0])
        else:
            raise _Unknown
        if not number:
            raise _Unknown
        return Change(a.by * number**sign, False, self.axes(o))

    def negated(self, o: Operation) -> Change:
        change = self.changes[o.operands[0]]
        return change if change.factor else Change(-change.by, False, change.axes)

    def exponential(self, o: Operation) -> Change:
        change = self.changes[o.operands[0]]
        if change.factor:
            raise _Unknown
        return Change(change.by * _scale(o), True, change.axes)

    def logarithm(self, o: Operation) -> Change:
        change = self.changes[o.operands[0]]
        if not change.factor:
            raise _Unknown
        return Change(change.by / _scale(o), False, change.axes)

    def chosen(self, o: Operation) -> Change:
        """Of two that change alike; 0 changes as any factor does, what is infinite as any sum."""
        if o.operands[0] in self.changes:
            raise _Unknown
        known = [self.of(v) for v in o.operands[1:]]
        (one,) = {c for c in known if c is not None} if len(set(known) - {None}) == 1 else {None}
        if one is None:
            raise _Unknown
        for change, value in zip(known, o.operands[1:], strict=True):
            number = self.number(value) if change is None else None
            free = number == 0 if one.factor else number is not None and math.isinf(number)
            if change is None and not free:
                raise _Unknown
        return one

    def reduced(self, o: Operation) -> Change:
        """Of sums of what has a factor, and of maxima of either: along axes where `m` is one."""
        change, axis, kind = self.changes[o.operands[0]], int(o.attribute("axis")), kind_of(o)
        if len(o.operands) != 1 or axis in change.axes:
            raise _Unknown
        if not (kind in ("max", "min") or (kind == "sum" and change.factor)):
            raise _Unknown
        kept = frozenset(a - (a > axis) for a in change.axes)
        return Change(change.by, change.factor, kept)


def _scale(o: Operation) -> float:
    return math.log(2) if o.name.endswith("2") else 1.0


_RULES: Mapping[str, Callable[[_Cancels, Operation], Change]] = {
    **dict.fromkeys(_ALIKE, _Cancels.same),
    "tt.expand_dims": lambda to, o: to.turned(o, lambda a: a + (a >= int(o.attribute("axis")))),
    "tt.trans": lambda to, o: to.turned(o, order_of(o).index),
    "arith.addf": _Cancels.sum,
    "arith.subf": _Cancels.sum,
    "arith.mulf": _Cancels.product,
    "arith.divf": _Cancels.product,
    "tt.precise_divf": _Cancels.product,
    "arith.negf": _Cancels.negated,
    "arith.select": _Cancels.chosen,
    "math.exp": _Cancels.exponential,
    "math.exp2": _Cancels.exponential,
    "math.log": _Cancels.logarithm,
    "math.log2": _Cancels.logarithm,
    "tt.reduce": _Cancels.reduced,
}
