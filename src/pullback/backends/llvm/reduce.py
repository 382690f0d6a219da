"""Reductions carried across a vector loop: one accumulator a group, joined where the loop ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from pullback.backends.llvm import arith
from pullback.backends.llvm.across import across
from pullback.backends.llvm.registers import Group, Registers, elements
from pullback.backends.llvm.scope import Lanes, Scope
from pullback.backends.llvm.text import Builder, Key, Val, const
from pullback.backends.llvm.values import Values
from pullback.errors import InvalidIR
from pullback.ir.expr import Expr, index
from pullback.ir.graph import Combiner
from pullback.ir.nest import Combine, Register, Stmt
from pullback.ir.statements import statements


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
        totals: dict[tuple[object, ...], list[tuple[Accumulator, Val]]] = {}
        for one in self._all.values():
            parts = [state[one.key(g)] for g in one.used]
            for group in range(groups):
                del state[one.key(group)]
            if not parts:
                continue
            join = partial(self._join, one, scope=scope)
            while len(parts) > 1:
                pairs = zip(parts[::2], parts[1::2], strict=False)
                rest = parts[-1:] if len(parts) % 2 else []
                parts = [join(a, c) for a, c in pairs] + rest
            same = one.combiner.name, one.register, parts[0].type
            totals.setdefault(same, []).append((one, parts[0]))
        for every in totals.values():
            most = every[0][1].lanes
            for first in range(0, len(every), most):
                self._across(every[first : first + most], scope)

    def _join(self, one: Accumulator, a: Val, c: Val, *, scope: Scope) -> Val:
        return self.values.join(one.combiner, a, c, one.register.dtype, scope)

    def _across(self, every: Sequence[tuple[Accumulator, Val]], scope: Scope) -> None:
        """Join the lanes of accumulators alike, and what comes of them to the register."""
        one, state = every[0][0], self.registers.state
        join = partial(self._join, one, scope=scope)
        sums = across(self.b, join, [lanes for _, lanes in every])
        held: dict[Key, dict[int | None, int]] = {}
        for number, (other, _) in enumerate(every):
            at = tuple(index(n) for n in other.at)
            place = self.registers.place(other.register, at, scope)
            held.setdefault(place.key, {})[place.lane] = number
        for key, lanes in held.items():
            old = state[key]
            if None in lanes:
                text = f"extractelement {sums.typed}, i64 {lanes[None]}"
                state[key] = join(old, self.b.value(text, sums.kind))
                continue
            picks = [lanes.get(n, 0) for n in range(old.lanes)]
            new = join(old, self.b.shuffle(sums, sums, picks))
            if len(lanes) < min(old.lanes, one.register.shape[-1]):
                mixed = [n if n not in lanes else old.lanes + n for n in range(old.lanes)]
                new = self.b.shuffle(old, new, mixed)
            state[key] = new
