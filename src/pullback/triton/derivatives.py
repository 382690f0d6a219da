"""Derivatives of values by name, and of the operations whose operands meet element by element."""

from __future__ import annotations

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

    def d(self, value: Value) -> str:
        """The name of a value's derivative."""
        if value not in self.names:
            self.names[value] = self.name(f"d_{value.name}")
        return self.names[value]

    def add(self, value: Value, text: str) -> None:
        """One more part of a derivative."""
        if value not in self.vary or not value.type.is_float or not text:
            return
        name = self.d(value)
        self.assign(name, f"{name} + {text}" if value in self.known else text)
        self.known.add(value)

    def zero(self, type: Type) -> str:
        kind = self.sums(type)
        if type.shape:
            return f"tl.zeros({words.shape_of(type.shape)}, {kind})"
        return f"tl.cast(0.0, {kind})"

    def sums(self, type: Type) -> str:
        """The type in which derivatives are added up."""
        return "tl.float64" if type.element == "f64" else "tl.float32"

    def begun(self, values: Iterable[Value]) -> None:
        """Derivatives that a loop or a branch adds to begin before it."""
        for value in values:
            if value not in self.known:
                self.assign(self.d(value), self.zero(value.type))
                self.known.add(value)

    @contextmanager
    def inside(self) -> Iterator[None]:
        """What is known inside of a loop or a branch is not known behind it."""
        known, self.known = self.known, set(self.known)
        try:
            yield
        finally:
            self.known = known

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
        for value, form in zip(o.operands, words.DERIVATIVES[name], strict=True):
            text = form.format(**names)
            if guarded and text:
                text = f"tl.where({names['g']} == 0, 0.0, {text})"
            self.add(value, text)

    def guarded(self, o: Operation) -> bool:
        """Whether a factor may be infinite where nothing comes from behind."""
        return self.mixed and any(map(self.facts.infinite, (*o.operands, *o.results)))

    def converted(self, o: Operation) -> None:
        """Between floats: derivatives of float64 are added up as such, others in float32."""
        own, other = self.sums(o.operands[0].type), self.sums(o.results[0].type)
        g = self.d(o.results[0])
        self.add(o.operands[0], g if own == other else f"tl.cast({g}, {own})")


CONVERSIONS = ("arith.extf", "arith.truncf")
