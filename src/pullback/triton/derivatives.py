"""Derivatives of values by name, and of the operations whose operands meet element by element."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from pullback.triton import words
from pullback.triton.facts import Facts, refused
from pullback.triton.forward import Forward
from pullback.triton.nodes import Operation, Type, Value

# Where lanes meet: what one has is in the derivative of all.
_MIXING = ("tt.reduce", "tt.scan", "tt.splat", "tt.broadcast", "tt.dot", "tt.gather")
# Whose derivative is of a factor that may be infinite in a lane that a mask leaves out: there the
# 0 that comes from behind must stay 0.
_FACTORS = ("arith.mulf", "arith.divf", "tt.precise_divf", "math.fma", "math.log", "math.log2",
            "math.sqrt", "tt.precise_sqrt", "math.rsqrt")  # fmt: skip


# Conditions, each with whether it holds: of lanes where all of them do a derivative is not 0.
When = frozenset[tuple[str, bool]]
PLAIN = (False, When())
# The derivative of what chooses: all or nothing.
_PART = re.compile(
    r"tl\.where\((?P<where>.+), (?P<zero>0\.0, )?(?P<minus>-?)\{g\}(?(zero)|, 0\.0)\)"
)


class Derivatives(Forward):
    """Writes derivatives behind values. `vary` are the values that have one."""

    def __init__(self, facts: Facts, vary: frozenset[Value]) -> None:
        super().__init__(facts)
        self.vary = vary
        self.known: set[Value] = set()  # values that have a derivative by now
        self.mixed = any(
            o.name in _MIXING and self.vary & set(o.operands) for o in facts.function.block.walk()
        )
        self.names: dict[Value, str] = {}
        # Of derivatives: whether there is a minus before what is written, and where it is not 0.
        self.aside: dict[Value, tuple[bool, When]] = {}
        self.sign, self.when = 1, When()  # of what the rule at work is given: it is linear in it

    def d(self, value: Value) -> str:
        """The name of a value's derivative."""
        if value not in self.names:
            self.names[value] = self.name(f"d_{value.name}")
        return self.names[value]

    def add(self, value: Value, text: str, when: When = frozenset()) -> None:
        """One more part of a derivative, which is 0 but `when`; a minus is of all of it.

        What a sum of two would need is kept aside: the minus, and where it is 0.
        """
        if value not in self.vary or not value.type.is_float or not text:
            return
        minus = (self.sign < 0) != text.startswith("-")
        name, text, when = self.d(value), text.removeprefix("-"), when | self.when
        if value not in self.known:
            self.known.add(value)
        else:
            own, other = self.aside.pop(value, PLAIN)
            text, minus, when = _sum(name, own, other, text, minus, when)
        self.assign(name, text)
        self.put_aside(value, minus, when)

    def put_aside(self, value: Value, minus: bool, when: When) -> None:
        self.aside.pop(value, None)
        if minus or when:
            self.aside[value] = minus, when

    def expression(self, value: Value) -> str:
        """A derivative as an expression, whole."""
        minus, when = self.aside.get(value, PLAIN)
        return f"{'-' * minus}{_only(self.d(value), when)}"

    def plain(self, value: Value) -> None:
        """Nothing of a derivative is kept aside from here on."""
        if value in self.aside:
            self.assign(self.d(value), self.expression(value))
            del self.aside[value]

    @contextmanager
    def linear(self, o: Operation, alike: bool) -> Iterator[None]:
        """The rule of an operation is of what is written; what is kept aside goes with its parts.

        Where it is 0 goes so only with a rule of elements, which are `alike`, to one operand: to
        more it would be said more than once.
        """
        kept = [v for v in o.results if v in self.aside]
        alike = alike and sum(v in self.vary for v in o.operands) == 1
        if len(o.results) > 1 or (not alike and any(self.aside[v][1] for v in kept)):
            for value in kept:
                self.plain(value)
        minus, self.when = self.aside.get(o.results[0], PLAIN)
        self.sign = -1 if minus else 1
        try:
            yield
        finally:
            self.sign, self.when = 1, frozenset()

    def zero(self, type: Type) -> str:
        kind = self.sums(type)
        if type.shape:
            return f"tl.zeros({words.shape_of(type.shape)}, {kind})"
        return f"tl.cast(0.0, {kind})"

    def sums(self, type: Type) -> str:
        """The type in which derivatives are added up."""
        return "tl.float64" if type.element == "f64" else "tl.float32"

    def begun(self, values: Iterable[Value]) -> None:
        """Derivatives that a loop or a branch adds to begin before it; nothing is kept aside."""
        for value in values:
            if value not in self.known:
                self.assign(self.d(value), self.zero(value.type))
                self.known.add(value)
            self.plain(value)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """What is known inside of a loop or a branch is not known behind it."""
        known, self.known = self.known, set(self.known)
        aside, self.aside = self.aside, dict(self.aside)
        try:
            yield
        finally:
            self.known, self.aside = known, aside

    # --- operations of elements -------------------------------------------------------------------

    def elements(self, o: Operation) -> None:
        """What an operation of elements gives to the derivatives of its operands.

        Raises: UnsupportedError (E423) for one that has none.
        """
        name = words.named(o)
        if name in CONVERSIONS:
            self.converted(o)
            return
        if name not in words.DERIVATIVES:
            raise refused(o)
        short = [self.short(v)[0] for v in o.operands]
        names = dict(zip("xzw", short, strict=False))
        names |= {"g": self.d(o.results[0]), "y": self.short(o.results[0])[0]}
        poles = name in _FACTORS or name.startswith("libdevice.")
        guarded = poles and self.guarded(o)
        for value, form in zip(o.operands, self.forms(o, name), strict=True):
            when = When()
            if (part := _PART.fullmatch(form)) and self.is_block(o, part["where"]):
                form, where = f"{part['minus']}{{g}}", part["where"].format(**names)
                when = When({(where, not part["zero"])})
            text = form.format(**names)
            if guarded and text:
                minus, text = "-" * text.startswith("-"), text.removeprefix("-")
                text = f"{minus}tl.where({names['g']} == 0, 0.0, {text})"
            self.add(value, text, when)

    def forms(self, o: Operation, name: str) -> tuple[str, ...]:
        """The derivatives by each operand; of a maximum by one that alone varies without ties.

        An operand that is as large as the other has that of a minimum and not of a maximum:
        together, as of max(x, c) + min(x, c) = x + c, they have what their sum has.
        """
        forms = words.DERIVATIVES[name]
        if name not in words.EXTREMES or all(v in self.vary for v in o.operands):
            return forms
        made = []
        for own, other, value in zip("xz", "zx", reversed(o.operands), strict=True):
            beats = f"{{{own}}} > {{{other}}}"
            if words.EXTREMES[name] == "<":
                made.append(f"tl.where({beats}, 0.0, {{g}})")
                continue
            if not self.is_literal(value):
                beats = f"({beats}) | ({{{other}}} != {{{other}}})"
            made.append(f"tl.where({beats}, {{g}}, 0.0)")
        return tuple(made)

    def is_block(self, o: Operation, where: str) -> bool:
        """Whether a condition on operands has a truth for each element, as its result has one."""
        named = (v for v, name in zip(o.operands, "xzw", strict=False) if f"{{{name}}}" in where)
        return not o.results[0].type.shape or any(self.short(v)[1] for v in named)

    def guarded(self, o: Operation) -> bool:
        """Whether a factor may be infinite where nothing comes from behind."""
        return self.mixed and any(map(self.facts.infinite, (*o.operands, *o.results)))

    def converted(self, o: Operation) -> None:
        """Between floats: derivatives of float64 are added up as such, others in float32."""
        own, other = self.sums(o.operands[0].type), self.sums(o.results[0].type)
        g = self.d(o.results[0])
        self.add(o.operands[0], g if own == other else f"tl.cast({g}, {own})")


CONVERSIONS = ("arith.extf", "arith.truncf")


def _sum(
    name: str, minus: bool, when: When, text: str, minus_2: bool, when_2: When
) -> tuple[str, bool, When]:
    """`name` and `text` together, each with its minus and where it is not 0."""
    kept, only, only_2 = when & when_2, when - when_2, when_2 - when
    if _apart(only, only_2):
        one = f"-{name}" if minus and not minus_2 else name
        two = f"-{text}" if minus_2 and not minus else text
        other = two if _opposite(only, only_2) else _only(two, only_2)
        return _only(one, only, other), minus and minus_2, kept
    one, two = _only(name, only), _only(text, only_2)
    if minus == minus_2:
        return f"{one} + {two}", minus, kept
    return (f"{one} - {two}" if minus_2 else f"{two} - {one}"), False, kept


def _only(text: str, when: When, other: str = "0.0") -> str:
    """A text where all conditions hold, and another one elsewhere."""
    if not when:
        return text
    if len(when) == 1:
        ((where, holds),) = when
        return f"tl.where({where}, {text}, {other})" if holds else (
            f"tl.where({where}, {other}, {text})"
        )  # fmt: skip
    parts = [f"({where})" if holds else f"(({where}) == 0)" for where, holds in sorted(when)]
    return f"tl.where({' & '.join(parts)}, {text}, {other})"


def _opposite(one: When, two: When) -> bool:
    """Whether of two conditions one holds where the other does not."""
    return len(one) == len(two) == 1 and two == {(where, not holds) for where, holds in one}


def _apart(one: When, two: When) -> bool:
    """Whether two conditions hold nowhere together."""
    return any((where, not holds) in two for where, holds in one)
