"""A mean that a loop moves on, and squares around it, by their closed form: no step is undone.

    n' m' = n m + sum X                                          n: of how many elements
    q' + n' (m' - c)^2 = q + n (m - c)^2 + sum (X - c)^2         for every number c

Where a step keeps to both, whatever it began with, all steps together do. With the last m for c

    dm/dX = 1 / n        dq/dX = 2 (X - m)                       n, m: behind the loop

Both sides are computed at random numbers of a field of 2^61 - 1: two that differ are equal there
with a chance of no more than their degree in 2^61.
Sources: Chan, Golub, LeVeque, Algorithms for Computing the Sample Variance, 1983; Schwartz, Fast
Probabilistic Algorithms for Verification of Polynomial Identities, 1980.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from fractions import Fraction

from pullback.config import frozen
from pullback.triton.derivatives import Derivatives
from pullback.triton.facts import Facts, starts
from pullback.triton.forward import kind_of
from pullback.triton.nodes import ENDS, Block, Operation, Value
from pullback.triton.terms import When
from pullback.triton.words import literal, shape_of

PRIME = 2**61 - 1

# Conditions; a sum of powers of X, each where conditions hold: numbers of the field.
Truths = frozenset[Value]
Sum = dict[tuple[int, Truths], int]
NONE = Truths()
ONE = (0, NONE)
# How many lanes of a mask hold along an axis, or along all, which is -1: the value that says so.
Counted = frozenset[tuple[str, int, str]]
ALL = -1


@frozen
class Moments:
    """Places of what a loop carries: a mean, of how many elements it is, and squares around it.

    `element` is X; of a block it counts where `mask` holds, and is added up along `axis`.
    """

    mean: int
    count: int
    squares: tuple[int, ...]
    element: Value
    mask: Value | None
    axis: int | None

    @property
    def places(self) -> frozenset[int]:
        """Of what is not undone."""
        return frozenset((self.mean, *self.squares))


@frozen
class Each:
    """What each step gives to its X: ``first + (X - mean) * second``, as texts."""

    of: Moments
    mean: str
    first: str
    second: str

    @classmethod
    def step(cls, to: Derivatives, loop: Operation, of: Moments) -> Each:
        """Written before the loop that runs back: ``dm / n`` and ``2 dq``."""
        mean, count = loop.results[of.mean], loop.results[of.count]
        names = ["", ""]
        squares = [to.d(v) for v in (loop.results[k] for k in of.squares) if v in to.known]
        if mean in to.known:
            names[0] = to.name(f"d_{mean.name}_each")
            kind = to.sums(mean.type)
            to.assign(names[0], f"{to.d(mean)} / tl.cast({to.short(count)[0]}, {kind})")
        if squares:
            names[1] = to.name(f"d_{mean.name}_around")
            to.assign(names[1], " + ".join(f"2.0 * {d}" for d in squares))
        wide = (to.short(mean)[0], *names)
        if of.axis not in (None, ALL):
            wide = tuple(text and f"tl.expand_dims({text}, {of.axis})" for text in wide)
        return cls(of, *wide)

    def add(self, to: Derivatives) -> None:
        """The derivative of a step's X, as far as it is of the mean and the squares."""
        x, mask = self.of.element, self.of.mask
        parts = [f"({to.short(x)[0]} - {self.mean}) * {self.second}"] if self.second else []
        parts += [self.first] if self.first else []
        text = " + ".join(parts)
        if not self.second and x.type.shape and text:
            text = f"tl.broadcast_to({text}, {shape_of(x.type.shape)})"
        to.add(x, text, When({(to.mask(mask), True)}) if mask else When())


def moments(
    facts: Facts, vary: frozenset[Value], counted: Counted, loop: Operation
) -> Moments | None:
    """The mean that a loop carries, with its squares; nothing, where none is proved."""
    body = loop.regions[0]
    carried = body.arguments[1:] if loop.name == "scf.for" else ()
    counts = [k for k, v in enumerate(carried) if v not in vary and not v.type.pointer]
    floats = [
        k for k, v in enumerate(carried)
        if v in vary and starts(loop)[k] not in vary and v.type.element in ("f32", "f64")
    ]  # fmt: skip
    for mean in floats if counts else ():
        type = carried[mean].type
        later = _made_of(body, {carried[mean]})
        inner = [v for o in body.operations for v in o.results if v in vary and v not in later]
        for element in (v for v in inner if v.type.element == type.element):
            for axis in _axes(element.type.shape, type.shape):
                for count in counts:
                    step = _Step(facts, body, element, axis, mean, count)
                    made = step.proved(floats, counted)
                    if made is not None and _closed(body, made):
                        return made
    return None


def _axes(shape: tuple[int, ...], mean: tuple[int, ...]) -> list[int | None]:
    """The axes along which a block may be added up to a mean; nothing of what has its shape."""
    if shape == mean:
        return [None]
    if not mean:
        return [ALL]
    return [k for k in range(len(shape)) if shape[:k] + shape[k + 1 :] == mean]


def _made_of(body: Block, seeds: set[Value]) -> set[Value]:
    """Values of a loop that are made of some of them, and those."""
    made = set(seeds)
    for o in body.walk():
        inner = [q for r in o.regions for q in r.walk()]
        if made.intersection((*o.operands, *(v for q in inner for v in q.operands))):
            made.update((*o.results, *(v for q in inner for v in q.results)))
            made.update(v for r in o.regions for v in r.arguments)
    return made


def _closed(body: Block, made: Moments) -> bool:
    """Whether a mean and squares lead to the same of the next step alone, and X to them."""
    later = _made_of(body, {body.arguments[1 + place] for place in made.places})
    ends = [v for place, v in enumerate(body.yields) if place not in made.places]
    acts = [o for o in body.walk() if not o.results and o.name not in ENDS]
    return not later.intersection((made.element, *ends, *(v for o in acts for v in o.operands)))


class _Unknown(Exception):
    """What a value is made of is not known."""


class _Step:
    """A step of a loop at random numbers: what it carries, its X, and sums of powers of X."""

    def __init__(
        self, facts: Facts, body: Block, element: Value, axis: int | None, mean: int, count: int
    ) -> None:
        self.facts, self.body, self.element, self.axis = facts, body, element, axis
        self.mean, self.count = mean, count
        self.shape = body.arguments[1 + mean].type.shape
        self.random = random.Random(0)
        self.symbols: dict[object, int] = {}
        self.known: dict[Value, Sum] = {}
        self.masks: dict[Truths, Value] = {}
        self.lanes: dict[Truths, int] = {}

    def proved(self, floats: list[int], counted: Counted) -> Moments | None:
        """The mean, if it is one of X, with all squares around it."""
        try:
            self.lanes = self.counts(counted)
            truths = self.summed()
        except _Unknown:
            return None
        if truths is None:
            return None
        squares = tuple(k for k in floats if k != self.mean and self.squared(k, truths))
        mask = None if truths <= self.outside(self.element) else self.masks[truths]
        return Moments(self.mean, self.count, squares, self.element, mask, self.axis)

    def counts(self, counted: Counted) -> dict[Truths, int]:
        """How many lanes hold, by their conditions."""
        values = {v.name: v for v in self.facts.makers}
        return {
            self.truths(values[mask]): self.number(values[count])
            for mask, axis, count in counted
            if axis == self.axis and mask in values and count in values
        }

    def summed(self) -> Truths | None:
        """Where X is added up: ``n' m' - n m = sum X``."""
        (n, more), (m, moved) = self.ends(self.count), self.ends(self.mean)
        total = (more * moved - n * m) % PRIME
        whole = [truths for power, truths in self.powers() if power == 1]
        return next((truths for truths in whole if self.sum(1, truths) == total), None)

    def squared(self, place: int, truths: Truths) -> bool:
        """Whether ``q' - q = sum (X - c)^2 + n (m - c)^2 - n' (m' - c)^2`` for any c."""
        try:
            q, other = self.ends(place)
        except _Unknown:
            return False
        (n, more), (m, moved), c = self.ends(self.count), self.ends(self.mean), self.symbol("c")
        zero, one, two = (self.sum(power, truths) for power in range(3))
        right = two - 2 * c * one + c * c * zero + n * (m - c) ** 2 - more * (moved - c) ** 2
        return (other - q - right) % PRIME == 0

    # --- numbers ----------------------------------------------------------------------------------

    def symbol(self, of: object) -> int:
        """A random number that stands for something."""
        if of not in self.symbols:
            self.symbols[of] = self.random.randrange(1, PRIME)
        return self.symbols[of]

    def ends(self, place: int) -> tuple[int, int]:
        """What a carried value is before a step and behind it."""
        return self.symbol(self.body.arguments[1 + place]), self.number(self.body.yields[place])

    def number(self, value: Value) -> int:
        made = self.of(value)
        if not made.keys() <= {ONE}:
            raise _Unknown
        return made.get(ONE, 0)

    def powers(self) -> list[tuple[int, Truths]]:
        """The sums of powers of X that were met."""
        if self.axis is None:
            return [(1, NONE)]
        return [key for key in self.symbols if isinstance(key, tuple)]

    def sum(self, power: int, truths: Truths) -> int:
        """The sum of a power of X where conditions hold."""
        if self.axis is None:
            return pow(self.symbol(self.element), power, PRIME)
        if power == 0 and truths in self.lanes:
            return self.lanes[truths]
        if (power, truths) == ONE:
            shape = self.element.type.shape
            return self.element.type.size if self.axis == ALL else shape[self.axis]
        return self.symbol((power, truths))

    # --- what values are made of ------------------------------------------------------------------

    def of(self, value: Value) -> Sum:
        """A value of elements, lane by lane."""
        if value not in self.known:
            self.known[value] = {k: n % PRIME for k, n in self.made(value).items() if n % PRIME}
        return self.known[value]

    def made(self, value: Value) -> Sum:
        if value == self.element and self.axis is not None:
            return {(1, self.outside(value)): 1}
        holder = self.facts.makers.get(value)
        narrow = value.type.shape in ((), self.shape)
        try:
            if value != self.element and holder is not None and holder.name in _RULES:
                return _RULES[holder.name](self, holder)
        except _Unknown:
            if not narrow:
                raise
        if not narrow:
            raise _Unknown
        return {ONE: self.symbol(value)}  # whatever it is: both sides have to agree for any

    def truths(self, value: Value) -> Truths:
        """The conditions that hold where a condition does."""
        holder, made = self.facts.makers.get(value), Truths((value,))
        if holder is not None and holder.name in ("tt.splat", "tt.broadcast"):
            made = self.truths(holder.operands[0])
        elif holder is not None and holder.name == "arith.andi":
            made = self.truths(holder.operands[0]) | self.truths(holder.operands[1])
        self.masks[made] = value
        return made

    def outside(self, value: Value) -> Truths:
        """The conditions without which a value that is loaded is 0."""
        holder = self.facts.makers.get(value)
        if holder is None or self.axis is None:
            return NONE
        if holder.name in ("arith.extf", "arith.truncf"):
            return self.outside(holder.operands[0])
        if holder.name != "tt.load" or len(holder.operands) < 2:
            return NONE
        zero = all(self.of(v) == {} for v in holder.operands[2:])
        return self.truths(holder.operands[1]) if zero else NONE

    def constant(self, o: Operation) -> Sum:
        type = o.results[0].type
        text = literal(o.attribute("value"), type)
        try:
            number = Fraction(text)
        except ValueError as error:  # a truth, or one that is infinite
            raise _Unknown from error
        return {ONE: number.numerator * pow(number.denominator, -1, PRIME)}

    def alike(self, o: Operation) -> Sum:
        """A cast, or what is repeated, where that is no part of a block."""
        (value,) = o.operands
        if value.type.element == "i1":
            if o.name not in ("arith.uitofp", "arith.extui"):
                raise _Unknown
            return {(0, self.truths(value)): 1}
        made, type = self.of(value), o.results[0].type
        if type.size != value.type.size and not made.keys() <= {ONE}:
            raise _Unknown
        return made

    def expanded(self, o: Operation) -> Sum:
        (value,) = o.operands
        along = value.type.shape == self.shape and int(o.attribute("axis")) == self.axis
        if value.type.size > 1 and not along:
            raise _Unknown
        return self.of(value)

    def added(self, o: Operation) -> Sum:
        a, b = map(self.of, o.operands)
        sign = -1 if "sub" in o.name else 1
        return {k: a.get(k, 0) + sign * b.get(k, 0) for k in {**a, **b}}

    def multiplied(self, o: Operation) -> Sum:
        return _product(*map(self.of, o.operands))

    def divided(self, o: Operation) -> Sum:
        below = self.number(o.operands[1])
        if not below:
            raise _Unknown
        return _product(self.of(o.operands[0]), {ONE: pow(below, -1, PRIME)})

    def negated(self, o: Operation) -> Sum:
        return {k: -n for k, n in self.of(o.operands[0]).items()}

    def chosen(self, o: Operation) -> Sum:
        """``where(t, a, b) = b + t (a - b)``"""
        where, a, b = o.operands
        truth, first, other = {(0, self.truths(where)): 1}, self.of(a), self.of(b)
        rest = {k: first.get(k, 0) - other.get(k, 0) for k in {**first, **other}}
        taken = _product(truth, rest)
        return {k: taken.get(k, 0) + other.get(k, 0) for k in {**taken, **other}}

    def reduced(self, o: Operation) -> Sum:
        """A sum of all that X has beside it."""
        value, result = o.operands[0], o.results[0]
        if kind_of(o) != "sum" or self.axis is None or result.type.shape != self.shape:
            raise _Unknown
        holder = self.facts.makers.get(value)
        if self.axis == ALL and holder is not None and holder.name == "tt.reshape":
            value = holder.operands[0]
        axis = ALL if self.axis == ALL else int(o.attribute("axis"))
        if value.type.shape != self.element.type.shape or axis != self.axis:
            raise _Unknown
        return {ONE: sum(n * self.sum(*key) for key, n in self.of(value).items())}


def _product(a: Sum, b: Sum) -> Sum:
    """Truths are 0 or 1: one twice is one."""
    made = Sum()
    for (power, where), one in a.items():
        for (more, there), two in b.items():
            key = power + more, where | there
            made[key] = made.get(key, 0) + one * two
    return made


_RULES: Mapping[str, Callable[[_Step, Operation], Sum]] = {
    "arith.constant": _Step.constant,
    **dict.fromkeys(
        ("arith.extf", "arith.extsi", "arith.extui", "arith.sitofp", "arith.uitofp", "tt.splat",
         "tt.broadcast"), _Step.alike
    ),
    "tt.expand_dims": _Step.expanded,
    **dict.fromkeys(("arith.addf", "arith.addi", "arith.subf", "arith.subi"), _Step.added),
    **dict.fromkeys(("arith.mulf", "arith.muli"), _Step.multiplied),
    **dict.fromkeys(("arith.divf", "tt.precise_divf"), _Step.divided),
    "arith.negf": _Step.negated,
    "arith.select": _Step.chosen,
    "tt.reduce": _Step.reduced,
}  # fmt: skip
