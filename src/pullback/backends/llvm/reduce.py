"""Reductions carried across a vector loop: one accumulator a group, joined where the loop ends."""

from __future__ import annotations

from dataclasses import dataclass, field

from pullback.backends.llvm import arith
from pullback.backends.llvm.memory import Memory
from pullback.backends.llvm.scope import Scope
from pullback.backends.llvm.text import Builder, Val, const
from pullback.backends.llvm.values import Values
from pullback.errors import InvalidIR
from pullback.ir.expr import Expr
from pullback.ir.graph import Combiner
from pullback.ir.nest import Register


@dataclass(slots=True)
class Accumulator:
    """The lanes of one register element, a variable a group."""

    register: Register
    indices: tuple[Expr, ...]
    combiner: Combiner
    groups: dict[int, Val] = field(default_factory=dict)


class Reductions:
    """The accumulators of one vector loop. They start in `prologue`, a place before the loop."""

    def __init__(self, builder: Builder, values: Values, memory: Memory, lanes: int) -> None:
        self.b = builder
        self.values = values
        self.memory = memory
        self.lanes = lanes
        self.prologue = builder.slot()
        self._all: dict[tuple[object, ...], Accumulator] = {}

    def variable(
        self, register: Register, indices: tuple[Expr, ...], combiner: Combiner, group: int
    ) -> Val:
        """The group's accumulator. Raises: InvalidIR where combiners are mixed."""
        key = (register, *indices)
        found = self._all.get(key)
        if found is None:
            found = Accumulator(register, indices, combiner)
            self._all[key] = found
        if found.combiner.name != combiner.name:
            raise InvalidIR(f"{register} is combined by {combiner.name} and otherwise in one loop")
        if group not in found.groups:
            kind = arith.COMPUTE[register.dtype.name]
            variable = self.b.alloca(kind, self.lanes)
            start = const(combiner.identity(register.dtype).value, kind, self.lanes)
            self.prologue.append(f"  store {start.typed}, {variable.typed}")
            found.groups[group] = variable
        return found.groups[group]

    def finish(self, scope: Scope) -> None:
        """Join groups, then lanes, then the register itself."""
        for one in self._all.values():
            dtype = one.register.dtype
            kind = arith.COMPUTE[dtype.name]
            parts = [self.b.load(v, kind, self.lanes) for v in one.groups.values()]
            while len(parts) > 1:
                pairs = zip(parts[::2], parts[1::2], strict=False)
                rest = parts[-1:] if len(parts) % 2 else []
                parts = [self._join(one, a, c, scope) for a, c in pairs] + rest
            total = self._across(one, parts[0], scope)
            place = self.memory.place(one.register, one.indices, scope)
            old = self.memory.peek(one.register, one.indices, scope)
            self.memory.poke(place, self._join(one, old, total, scope), scope)

    def _join(self, one: Accumulator, a: Val, c: Val, scope: Scope) -> Val:
        return self.values.join(one.combiner, a, c, one.register.dtype, scope)

    def _across(self, one: Accumulator, a: Val, scope: Scope) -> Val:
        if a.lanes == 1 or (one.combiner.name == "sum" and a.kind != "i1"):
            return self._sum(a)
        while a.lanes > 1:
            half = a.lanes // 2
            low = self.b.shuffle(a, a, range(half))
            high = self.b.shuffle(a, a, range(half, 2 * half))
            a = self._join(one, low, high, scope)
        return self.b.value(f"extractelement {a.typed}, i64 0", a.kind)

    def _sum(self, a: Val) -> Val:
        word = "fadd" if a.is_float else "add"
        short = {"float": "f32", "double": "f64"}.get(a.kind, a.kind)
        name = f"llvm.vector.reduce.{word}.v{a.lanes}{short}"
        if not a.is_float:
            return self.b.call(name, [a], a.kind, a.kind, 0)
        start = const(-0.0, a.kind)
        return self.b.call(name, [start, a], a.kind, a.kind, 0, "reassoc")
