"""What factors of derivatives are by the values of a kernel that are there anyway.

a / b -> y    where y = a / b           |x|' x -> |x|
exp(a) / s -> exp(y)    where y = a - log(s) is loaded
g (c x) + c g x -> 2 c g x              numbers of what is alike are added up
"""

from __future__ import annotations

from typing import Protocol

from pullback.triton.facts import Facts
from pullback.triton.nodes import Operation, Type, Value
from pullback.triton.terms import Factors, Term, is_number, joined, times

_DIVISIONS = ("arith.divf", "tt.precise_divf")
_REPEATED = ("tt.splat", "tt.broadcast")
_LOGARITHMS = {"math.log": ("math.exp", "tl.exp"), "math.log2": ("math.exp2", "tl.exp2")}


HALF = ("f16", "bf16")
_FREE = (
    "tt.load",
    "tt.store",
    "arith.extf",
    "arith.truncf",
    "tt.fp_to_fp",
)  # they compute in no half type


class Written(Protocol):
    """What the algebra asks of what writes a kernel's values."""

    facts: Facts
    kept: dict[Value, Operation]

    def short(self, value: Value) -> tuple[str, tuple[int, ...]]:
        """The text of a value, and its shape there."""
        ...

    def holds(self, value: Value) -> bool:
        """Whether a value is there, in all lanes what it was computed as."""
        ...

    def sums(self, type: Type) -> str:
        """The type in which derivatives are added up."""
        ...


class Algebra:
    """Simplifies terms. It knows the values that rules have met by their texts."""

    def __init__(self, to: Written) -> None:
        self.to = to
        self.values: dict[str, Value] = {}
        self.signs: dict[str, tuple[str, str]] = {}
        self.ratios: dict[tuple[str, str], Value] | None = None
        walk = [o for o in to.facts.function.block.walk() if o.name not in _FREE]
        self.halves = any(v.type.element in HALF for o in walk for v in (*o.operands, *o.results))

    def text(self, value: Value) -> str:
        return self.to.short(value)[0]

    def meets(self, o: Operation) -> None:
        """An operation whose derivative is written next."""
        for value in (*o.operands, *o.results):
            bare = value
            while (holder := self.to.facts.makers.get(bare)) and holder.name in _REPEATED:
                bare = holder.operands[0]
            self.values[self.text(value)] = bare
        if o.name == "math.absf":
            x, y = (self.text(v) for v in (*o.operands, *o.results))
            sign = f"tl.where({x} > 0, 1.0, tl.where({x} < 0, -1.0, 0.0))"
            self.signs[sign] = x, y

    # --- one term ---------------------------------------------------------------------------------

    def simple(self, term: Term, type: Type) -> Term:
        """The same with fewer factors."""
        factors = self.divided(self.signed(term.factors), type)
        return Term(term.name, term.minus, factors, term.when)

    def signed(self, factors: Factors) -> Factors:
        """``sign(x) * x = |x|``, where `x` is a factor or what is divided by another."""
        for sign, (x, size) in self.signs.items():
            powers = dict(factors)
            if powers.get(sign, 0) < 1:
                continue
            for text, power in factors:
                holder = self.maker(self.values.get(text))
                if power > 0 and text == x:
                    return times(factors, ((sign, -1), (x, -1), (size, 1)))
                if power > 0 and holder and holder.name in _DIVISIONS:
                    above, below = map(self.text, holder.operands)
                    if above == x:
                        more = ((sign, -1), (text, -1), (size, 1), (below, -1))
                        return times(factors, more)
        return factors

    def divided(self, factors: Factors, type: Type) -> Factors:
        """Quotients that are there, or that are exponentials of what is loaded."""
        for above, power in factors:
            for below, other in factors:
                if power < 1 or other > -1:
                    continue
                value = self.quotients().get((above, below))
                known = value is not None and value.type.shape in (type.shape, ())
                if known and value is not None and self.to.holds(value):
                    text = self.text(value)
                else:
                    text = self.exponential(above, below, type)
                if text:
                    more = ((above, -1), (below, 1), (text, 1))
                    return self.divided(times(factors, more), type)
        return factors

    def quotients(self) -> dict[tuple[str, str], Value]:
        """Values that are quotients, by the texts of what is divided."""
        if self.ratios is None:
            walk = self.to.facts.function.block.walk()
            made = (o for o in walk if o.name in _DIVISIONS)
            self.ratios = {
                (self.text(o.operands[0]), self.text(o.operands[1])): o.results[0] for o in made
            }
        return self.ratios

    def exponential(self, above: str, below: str, type: Type) -> str:
        """``exp(a) / s`` by a value ``a - log(s)`` that is loaded."""
        top = self.maker(self.values.get(above))
        for value in self.to.kept:
            holder = self.maker(value)
            if not holder or not top or holder.name != "arith.subf" or value.type != type:
                continue
            log = self.maker(holder.operands[1])
            if log is None or _LOGARITHMS.get(log.name, ("",))[0] != top.name:
                continue
            alike = self.text(holder.operands[0]) == self.text(top.operands[0])
            if alike and self.text(log.operands[0]) == below and self.to.holds(value):
                return f"{_LOGARITHMS[log.name][1]}({self.text(value)})"
        return ""

    def maker(self, value: Value | None) -> Operation | None:
        """What makes a value, or the one that it repeats."""
        holder = self.to.facts.makers.get(value) if value is not None else None
        while holder is not None and holder.name in _REPEATED:
            holder = self.to.facts.makers.get(holder.operands[0])
        return holder

    # --- two terms --------------------------------------------------------------------------------

    def sum(self, a: Term, b: Term, type: Type) -> Term:
        """Both together; as one, where they differ by a number alone."""
        if a.name == b.name and a.when == b.when:
            (one, first), (two, second) = map(self.parts, (a.factors, b.factors))
            total = first * (-1) ** a.minus + second * (-1) ** b.minus
            if dict(one) == dict(two) and total:
                number = ((repr(abs(total)), 1),) if abs(total) != 1 else ()
                return Term(a.name, total < 0, times(one, number), a.when)
        return joined(a, b, self.to.sums(type) == "tl.float32", not self.halves)

    def parts(self, factors: Factors) -> tuple[Factors, float]:
        """Factors without numbers, those in values too, and the number."""
        number, rest = 1.0, Factors()
        for text, power in factors:
            holder = self.maker(self.values.get(text))
            texts = [text]
            if holder and holder.name == "arith.mulf":
                texts = [self.text(v) for v in holder.operands]
                texts = texts if any(map(is_number, texts)) else [text]
            for one in texts:
                if is_number(one):
                    number *= float(one) ** power
                else:
                    rest = times(rest, ((one, power),))
        return rest, number
