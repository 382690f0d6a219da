"""Registers: SSA values by element, lane group and vector slot; never in memory.

A register declared outside a vector loop is one scalar. Inside, it is a vector for each group of
lanes. One whose last index is a vector variable (a *tile*) is kept as whole vectors.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pullback.backends.llvm import arith
from pullback.backends.llvm.scope import Scope
from pullback.backends.llvm.text import Builder, Key, State, Val
from pullback.backends.nests.analysis import Cell, Facts, LanePlan
from pullback.errors import InvalidIR
from pullback.ir.expr import Const, Expr
from pullback.ir.nest import Register


@dataclass(frozen=True, slots=True)
class Place:
    """A register's element; `lane`: one lane of a tile's vector."""

    key: Key
    kind: str
    lanes: int
    lane: int | None = None


class Registers:
    """The current value of every register element of one function."""

    def __init__(self, builder: Builder, facts: Facts, plan: LanePlan) -> None:
        self.b = builder
        self.facts = facts
        self.plan = plan
        self.state: State = {}

    def place(self, register: Register, indices: tuple[Expr, ...], at: Scope) -> Place:
        """Where a register's element is held."""
        kind = arith.COMPUTE[register.dtype.name]
        lanes = self.plan.tiles.get(register, 0)
        if lanes:
            return self._tile(register, indices, at, kind, lanes)
        key: Key = (register, *self.literals(register, indices))
        if at.lanes is not None and register in at.lanes.varying.registers:
            lanes = at.lanes.count
            key += (at.number,)
        return Place(key, kind, lanes)

    def _tile(
        self, register: Register, indices: tuple[Expr, ...], at: Scope, kind: str, lanes: int
    ) -> Place:
        outer = self.literals(register, indices[:-1])
        if at.lanes is None or not at.lanes.varying.of(indices[-1]):
            slot, lane = divmod(self.literals(register, indices)[-1], lanes)
            return Place((register, *outer, slot), kind, self._lanes(register, slot), lane)
        form = self.facts.form(indices[-1])
        base = at.uniform.find(at.lanes.var)
        start = base.literal if base is not None else None
        plain = form.of(at.lanes.var) == 1 and len(form.terms) == 1
        if not plain or start is None:
            raise InvalidIR(f"register {register} is not indexed by a plain vector variable")
        slot, lane = divmod(int(start) + form.const, lanes)
        if lane:
            raise InvalidIR(f"register {register} is indexed {lane} lanes off a vector")
        slot += at.number
        return Place((register, *outer, slot), kind, self._lanes(register, slot))

    def _lanes(self, register: Register, slot: int) -> int:
        """Of one vector of a tile: its last may have fewer."""
        lanes = self.plan.tiles[register]
        last = (slot + 1) * lanes > register.shape[-1]
        return self.plan.tails.get(register, lanes) if last else lanes

    def literals(self, register: Register, indices: tuple[Expr, ...]) -> list[int]:
        """Indices, which must be constants. Raises: InvalidIR where one is not."""
        numbers = []
        for index in indices:
            if isinstance(index, Const):
                numbers.append(int(index.value))
                continue
            form = self.facts.form(index)
            if form.terms:
                raise InvalidIR(f"register {register} needs literal indices, got {index}")
            numbers.append(form.const)
        return numbers

    def current(self, key: Key) -> Val:
        """The element's value now. Raises: InvalidIR where it was not declared."""
        value = self.state.get(key)
        if value is None:
            raise InvalidIR(f"register {key[0]}{list(key[1:])} is used before it is declared")
        return value

    def peek(self, register: Register, indices: tuple[Expr, ...], at: Scope) -> Val:
        """The value of a register's element."""
        place = self.place(register, indices, at)
        element = self.current(place.key)
        if place.lane is None:
            return element
        return self.b.value(f"extractelement {element.typed}, i64 {place.lane}", place.kind)

    def poke(self, place: Place, value: Val, at: Scope) -> None:
        """Set a register's element; lanes that a guard turns off keep theirs."""
        value = self._widened(value, place.kind)
        old = self.current(place.key)
        if place.lane is not None:
            text = f"insertelement {old.typed}, {value.typed}, i64 {place.lane}"
            value = self.b.value(text, place.kind, place.lanes)
        elif place.lanes:
            value = self.b.splat(value, place.lanes)
            if at.guarded and at.mask is not None:
                value = self.b.select(self.b.splat(at.mask, place.lanes), value, old)
        self.state[place.key] = value

    def _widened(self, value: Val, kind: str) -> Val:
        narrow = value.kind == "i32" and kind == "i64"
        return self.b.convert("sext", value, "i64") if narrow else value

    def declare(self, register: Register, init: Val, at: Scope) -> None:
        """Every element starts as `init`."""
        init = self._widened(init, arith.COMPUTE[register.dtype.name])
        lanes = self.plan.tiles.get(register, 0)
        shape = register.shape
        suffix: Key = ()
        if lanes:
            shape = (*shape[:-1], -(-shape[-1] // lanes))
        elif at.lanes is not None and register in at.lanes.varying.registers:
            lanes = at.lanes.count
            suffix = (at.number,)
        tile = register in self.plan.tiles
        splat = self.b.splat(init, lanes) if lanes else init
        for index in elements(shape):
            width = self._lanes(register, index[-1]) if tile else lanes
            value = splat if width == lanes else self.b.splat(init, width)
            self.state[register, *index, *suffix] = value

    def carried(self, cells: Iterable[Cell], groups: int) -> list[Key]:
        """The elements of `cells` that a loop over `groups` groups hands from turn to turn."""
        changed = frozenset(cells)
        return [k for k in self.state if k[0] in changed and _group(k) < groups]


def _group(key: Key) -> int:
    last = key[-1]
    return last.number if isinstance(last, Group) else 0


@dataclass(frozen=True, slots=True)
class Group:
    """Marks the key of an accumulator of one group of lanes."""

    number: int


def elements(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Every index of a register, in row-major order."""
    places: list[tuple[int, ...]] = [()]
    for extent in shape:
        places = [(*head, n) for head in places for n in range(extent)]
    return places
