"""Derivatives of values by name, and of the operations whose operands meet element by element."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from pullback.triton import words
from pullback.triton.algebra import Algebra
from pullback.triton.facts import Facts, refused
from pullback.triton.forward import Forward, kind_of
from pullback.triton.nodes import Operation, Type, Value
from pullback.triton.terms import MOST, Factors, Term, When, factored, is_number, product, times
from pullback.triton.thresholds import above

# Where lanes meet: what one has is in the derivative of all.
_MIXING = ("tt.reduce", "tt.scan", "tt.splat", "tt.broadcast", "tt.dot", "tt.gather")
# Whose derivative is of a factor that may be infinite in a lane that a mask leaves out: there the
# 0 that comes from behind must stay 0.
_FACTORS = ("arith.mulf", "arith.divf", "tt.precise_divf", "math.fma", "math.log", "math.log2",
            "math.sqrt", "tt.precise_sqrt", "math.rsqrt")  # fmt: skip

# Whose rules may hand factors on that are the same along what they add up.
_PASSING = ("tt.splat", "tt.broadcast", "tt.expand_dims")
# The derivative of what chooses: all or nothing.
_PART = re.compile(
    r"tl\.where\((?P<where>.+), (?P<zero>0\.0, )?(?P<minus>-?)\{g\}(?(zero)|, 0\.0)\)"
)
_COMPARED = re.compile(r" ([<>]=?|[!=]=) ")
_NAME = re.compile(r"[A-Za-z_]\w*")


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
        self.terms: dict[Value, Term] = {}  # what is known, as far as it is not written yet
        self.beside = PLAIN  # what the rule at work is given, beside its name: it is linear in it
        self.algebra = Algebra(self)

    def own(self, value: Value) -> str:
        """The name that a value's derivative has where it is written."""
        if value not in self.names:
            self.names[value] = self.name(f"d_{value.name}")
        return self.names[value]

    def d(self, value: Value) -> str:
        """The name of what a rule is given of a value's derivative."""
        return self.terms[value].name if value in self.terms else self.own(value)

    def add(self, value: Value, text: str, when: When = frozenset(), factors: Factors = ()) -> None:
        """One more part of a derivative, which is 0 but `when`; a minus is of all of it."""
        if value not in self.vary or not value.type.is_float or not text:
            return
        minus = self.beside.minus != text.startswith("-")
        term = Term(
            text.removeprefix("-"),
            minus,
            times(self.beside.factors, factors),
            when | self.beside.when,
        )
        term = self.algebra.simple(term, value.type)
        if value in self.known:
            term = self.algebra.sum(self.terms[value], term, value.type)
        self.known.add(value)
        self.terms[value] = term
        if len(term.factors) > MOST:
            self.plain(value)
        elif not _NAME.fullmatch(term.name):
            self.assign(self.own(value), term.name)
            self.terms[value] = Term(self.own(value), term.minus, term.factors, term.when)

    def expression(self, value: Value) -> str:
        """A derivative as an expression, whole."""
        return self.terms[value].text

    def plain(self, value: Value) -> None:
        """A derivative is written from here on, under its own name."""
        if self.terms[value] != Term(self.own(value)):
            self.assign(self.own(value), self.expression(value))
            self.terms[value] = Term(self.own(value))

    @contextmanager
    def linear(self, o: Operation, alike: bool) -> Iterator[None]:
        """The rule of an operation is of what is written; what is not yet goes with its parts.

        Factors and where it is 0 do so only with a rule of elements, which are `alike`, to one
        operand: to more it would be said more than once.
        """
        alone = alike and sum(v in self.vary for v in o.operands) == 1
        passes = o.name in _PASSING or (o.name == "tt.reduce" and kind_of(o) == "sum")
        for value in o.results:
            term = self.terms.get(value)
            if term is None:
                continue
            kept = term.factors and not (alone and not self.poles(o)) and not passes
            if len(o.results) > 1 or kept or (term.when and not alone):
                self.plain(value)
        self.beside = self.terms.get(o.results[0], PLAIN)
        try:
            yield
        finally:
            self.beside = PLAIN

    @contextmanager
    def outside(self, o: Operation, passed: Callable[[str], str | None]) -> Iterator[str]:
        """What comes from behind with the factors that `passed` hands on to no text.

        The others stay outside of what the rule adds up, under the text that they have there.
        """
        inside, outside = list[tuple[str, int]](), list[tuple[str, int]]()
        for text, power in self.beside.factors:
            other = passed(text)
            if other is None:
                inside.append((text, power))
            else:
                outside.append((other, power))
        rule = self.beside
        self.beside = Term(rule.name, rule.minus, tuple(outside), rule.when)
        yield product(self.d(o.results[0]), tuple(inside))

    def extents(self, text: str) -> tuple[int, ...] | None:
        """The shape of a factor; nothing, where it is not known."""
        if is_number(text):
            return ()
        value = self.algebra.values.get(text)
        return None if value is None else self.short(value)[1]

    def holds(self, value: Value) -> bool:
        """Whether a value is there, in all lanes what it was computed as."""
        return False

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
                self.assign(self.own(value), self.zero(value.type))
                self.known.add(value)
                self.terms[value] = Term(self.own(value))
            self.plain(value)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """What is known inside of a loop or a branch is not known behind it."""
        known, self.known = self.known, set(self.known)
        terms, self.terms = self.terms, dict(self.terms)
        try:
            yield
        finally:
            self.known, self.terms = known, terms

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
        values = dict(zip("xzw", o.operands, strict=False)) | {"y": o.results[0]}
        plain = {n: self.short(v)[0] for n, v in values.items()} | {"g": self.d(o.results[0])}
        wide = {n: self.wide(v, plain[n]) for n, v in values.items()} | {"g": plain["g"]}
        self.algebra.meets(o)
        guarded = self.poles(o)
        for value, form in zip(o.operands, self.forms(o, name), strict=True):
            when, factors = When(), Factors()
            names = wide if _COMPARED.search(form) else plain
            if (part := _PART.fullmatch(form)) and self.is_block(o, part["where"]):
                form, where = f"{part['minus']}{{g}}", part["where"].format(**names)
                when = When({(where, not part["zero"])})
            if not guarded and (made := factored(form)) is not None:
                factors = tuple((text.format(**names), power) for text, power in made)
                form = f"{'-' * form.startswith('-')}{{g}}"
            text = form.format(**names)
            if guarded and text:
                minus, text = "-" * text.startswith("-"), text.removeprefix("-")
                text = f"{minus}tl.where({names['g']} == 0, 0.0, {text})"
            self.add(value, text, when, factors)

    def poles(self, o: Operation) -> bool:
        """Whether a factor of a derivative may be infinite where nothing comes from behind."""
        name = words.named(o)
        return (name in _FACTORS or name.startswith("libdevice.")) and self.guarded(o)

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
            at = above(self.facts, self.vary, o.operands["xz".index(own)], value)
            beats = f"{{{own}}} > {{{other}}}"
            if at is not None:
                sign = "<" if at.falls else ">"
                beats = self.wide(at.value, self.short(at.value)[0])
                beats = f"{beats} {sign} {float(at.number)!r}"
            if words.EXTREMES[name] == "<":
                made.append(f"tl.where({beats}, 0.0, {{g}})")
                continue
            if not self.is_literal(value):
                beats = f"({beats}) | ({{{other}}} != {{{other}}})"
            made.append(f"tl.where({beats}, {{g}}, 0.0)")
        return tuple(made)

    def is_block(self, o: Operation, where: str) -> bool:
        """Whether a condition on operands has a truth for each element, as its result has one."""
        if "{" not in where:  # of a value that comes before, and varies
            return True
        named = (v for v, name in zip(o.operands, "xzw", strict=False) if f"{{{name}}}" in where)
        return not o.results[0].type.shape or any(self.short(v)[1] for v in named)

    def guarded(self, o: Operation) -> bool:
        """Whether a factor may be infinite where nothing comes from behind."""
        return self.mixed and any(map(self.facts.infinite, (*o.operands, *o.results)))

    def converted(self, o: Operation) -> None:
        """Between floats: derivatives of float64 are added up as such, others in float32."""
        own, other = self.sums(o.operands[0].type), self.sums(o.results[0].type)
        if own != other:
            self.plain(o.results[0])
            self.beside = PLAIN
        g = self.d(o.results[0])
        self.add(o.operands[0], g if own == other else f"tl.cast({g}, {own})")


CONVERSIONS = ("arith.extf", "arith.truncf", "tt.fp_to_fp")
PLAIN = Term("")
