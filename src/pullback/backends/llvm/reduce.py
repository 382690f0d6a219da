"""Reductions carried across a vector loop: one accumulator a group, joined where the loop ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pullback.backends.llvm import arith
from pullback.backends.llvm.analysis import statements
from pullback.backends.llvm.registers import Group, Registers, elements
from pullback.backends.llvm.scope import Lanes, Scope
from pullback.backends.llvm.text import Builder, Key, Val, const
from pullback.backends.llvm.values import Values
from pullback.errors import InvalidIR
from pullback.ir.expr import Expr, index
from pullback.ir.graph import Combiner
from pullback.ir.nest import Combine, Register, Stmt


@dataclass(slots=True)
class Accumulator:
    """The lanes of one register element: a value a group, of which `used` were combined."""

    register: Register
    at: tuple[int, ...]
    combiner: Combiner
    used: dict[int, None] = field(default_factory=dict)

    def key(self, group: int) -> Key:
        """The element's name in the registers' state."""
        return (self.register, *self.at, Group(group))


class Reductions:
    """The accumulators of one vector loop over `groups` groups; they start as identities."""

    def __init__(self, values: Values, lanes: Lanes, body: Sequence[Stmt], groups: int) -> None:
        self.b: Builder = values.b
        self.values = values
        self.registers: Registers = values.registers
        self.lanes = lanes
        self._all: dict[tuple[object, ...], Accumulator] = {}
        for stmt in statements(body):
            if isinstance(stmt, Combine) and not self.per_lane(stmt.register, stmt.indices):
                self._start(stmt, groups)

    def per_lane(self, register: Register, indices: tuple[Expr, ...]) -> bool:
        """Whether each lane has its own element, so that nothing is carried across."""
        if register in self.lanes.varying.registers:
            return True
        tile = register in self.registers.plan.tiles
        return tile and self.lanes.varying.of(indices[-1])

    def _start(self, stmt: Combine, groups: int) -> None:
        register, facts = stmt.register, self.registers.facts
        forms = [facts.form(i) for i in stmt.indices]
        every = elements(register.shape)
        if not any(f.terms for f in forms):
            every = [tuple(f.const for f in forms)]
        kind = arith.COMPUTE[register.dtype.name]
        start = const(stmt.combiner.identity(register.dtype).value, kind, self.lanes.count)
        for at in every:
            one = self._all.setdefault((register, *at), Accumulator(register, at, stmt.combiner))
            if one.combiner.name != stmt.combiner.name:
                raise InvalidIR(f"{register} is combined in two ways in one loop")
            for group in range(groups):
                self.registers.state[one.key(group)] = start

    def accumulator(self, register: Register, indices: tuple[Expr, ...], group: int) -> Key:
        """The element that the group combines into."""
        at = self.registers.literals(register, indices)
        one = self._all[register, *at]
        one.used[group] = None
        return one.key(group)

    def finish(self, groups: int, scope: Scope) -> None:
        """Join groups, then lanes, then the register itself."""
        state = self.registers.state
        for one in self._all.values():
            parts = [state[one.key(g)] for g in one.used]
            for group in range(groups):
                del state[one.key(group)]
            if not parts:
                continue
            while len(parts) > 1:
                pairs = zip(parts[::2], parts[1::2], strict=False)
                rest = parts[-1:] if len(parts) % 2 else []
                parts = [self._join(one, a, c, scope) for a, c in pairs] + rest
            total = self._across(one, parts[0], scope)
            at = tuple(index(i) for i in one.at)
            place = self.registers.place(one.register, at, scope)
            old = self.registers.peek(one.register, at, scope)
            self.registers.poke(place, self._join(one, old, total, scope), scope)

    def _join(self, one: Accumulator, a: Val, c: Val, scope: Scope) -> Val:
        return self.values.join(one.combiner, a, c, one.register.dtype, scope)

    def _across(self, one: Accumulator, a: Val, scope: Scope) -> Val:
        if one.combiner.name == "sum" and a.kind != "i1":
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
