"""Arrays and registers: where elements live and how lanes reach them.

An offset whose coefficient of the vector variable is 1 is a contiguous access, -1 a reversed one,
0 a broadcast, anything else a gather or scatter. Masked-off lanes never touch memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast as typed

from pullback.backends.llvm import arith
from pullback.backends.llvm.analysis import Facts, LanePlan
from pullback.backends.llvm.scope import Scope
from pullback.backends.llvm.text import Builder, Val, const, iota, mangled
from pullback.errors import InvalidIR
from pullback.ir.expr import Const, Expr
from pullback.ir.nest import Array, Load, Register
from pullback.simplify.affine import Affine

Get = Callable[[Expr, Scope], Val]
SAFE = "@safe"


@dataclass(frozen=True, slots=True)
class Place:
    """A register's variable; `lane`: one lane of it."""

    pointer: Val
    kind: str
    lanes: int
    lane: int | None = None


class Memory:
    """Loads, stores and registers of one function."""

    def __init__(
        self, builder: Builder, facts: Facts, plan: LanePlan, arrays: dict[Array, Val]
    ) -> None:
        self.b = builder
        self.facts = facts
        self.plan = plan
        self.arrays = arrays
        self._registers: dict[tuple[object, ...], Val] = {}

    # -- addresses

    def stride(self, offset: Expr, at: Scope) -> int | None:
        """Elements between lanes; None where it is not one number."""
        if at.lanes is None or not at.lanes.varying.of(offset):
            return 0
        form = self.facts.form(offset)
        rest = form.without(at.lanes.var)
        if any(at.lanes.varying.of(a) for a in rest.atoms):
            return None
        return form.coefficient(at.lanes.var)

    def needs(self, offset: Expr, at: Scope) -> list[tuple[Expr, Scope]]:
        """What the address is computed from, each with its scope."""
        if self.stride(offset, at) is None:
            return [(offset, at)]
        var = at.lanes.var if at.lanes else None
        atoms = self.facts.form(offset).atoms
        return [(a, at.uniform if a is var else at) for a in atoms]

    def pointer(self, array: Array, offset: Expr, at: Scope, get: Get) -> Val:
        """The address of the first lane's element."""
        form = self.facts.form(offset)
        var = at.lanes.var if at.lanes else None
        loads = any(self.facts.loads(a) for a in form.atoms)
        home = at if loads and at.guarded else at.uniform
        shift = form.const
        if var is not None and at.lanes is not None:
            shift += form.coefficient(var) * at.number * at.lanes.count
        kind = arith.MEMORY[array.dtype.name]
        key = ("&", array, form.terms)
        base = home.find(key)
        if base is None:
            index = self._sum(form, at, get)
            base = self.b.offset(self._array(array), kind, index)
            cells = [self.facts.reads(a) for a in form.atoms]
            home.keep(key, base, frozenset().union(*cells))
        return self.b.offset(base, kind, const(shift, "i64"))

    def _array(self, array: Array) -> Val:
        if array not in self.arrays:
            raise InvalidIR(f"array {array} is not declared by the routine")
        return self.arrays[array]

    def _sum(self, form: Affine, at: Scope, get: Get) -> Val:
        total = const(0, "i64")
        for atom, coefficient in form.terms:
            own = at.uniform if at.lanes and atom is at.lanes.var else at
            term = self.b.binary("mul", get(atom, own), const(coefficient, "i64"))
            total = self.b.binary("add", total, term)
        return total

    def _vector_pointer(self, array: Array, offset: Expr, at: Scope, get: Get) -> Val:
        assert at.lanes is not None
        kind = arith.MEMORY[array.dtype.name]
        stride = self.stride(offset, at)
        if stride is None:
            return self.b.offset(self._array(array), kind, get(offset, at))
        first = self.pointer(array, offset, at, get)
        return self.b.offset(first, kind, iota("i64", at.lanes.count, stride))

    # -- arrays

    def load(self, e: Load, at: Scope, get: Get) -> Val:
        """``array[offset]``"""
        raw = self._load(e.array, e.offset, at, get)
        return arith.from_memory(self.b, raw, e.array.dtype)

    def _load(self, array: Array, offset: Expr, at: Scope, get: Get) -> Val:
        kind, align = arith.MEMORY[array.dtype.name], array.dtype.itemsize
        stride = self.stride(offset, at)
        if stride == 0:
            pointer = self.pointer(array, offset, at, get)
            if at.guarded and at.mask is not None:
                pointer = self.b.select(self.b.any(at.mask), pointer, Val(SAFE, "ptr"))
            return self.b.load(pointer, kind, 0, align)
        assert at.lanes is not None
        lanes = at.lanes.count
        if stride not in (1, -1):
            pointers = self._vector_pointer(array, offset, at, get)
            return self._gather(pointers, kind, align, self._mask(at))
        pointer = self.pointer(array, offset, at, get)
        mask = at.mask
        if stride == -1:
            pointer = self.b.offset(pointer, kind, const(1 - lanes, "i64"))
            mask = self.b.reverse(self._mask(at)) if mask is not None else None
        if mask is None:
            raw = self.b.load(pointer, kind, lanes, align)
        else:
            raw = self._masked_load(pointer, kind, align, self.b.splat(mask, lanes))
        return self.b.reverse(raw) if stride == -1 else raw

    def _mask(self, at: Scope) -> Val:
        assert at.lanes is not None
        return self.b.splat(at.mask or const(True, "i1"), at.lanes.count)

    def _masked_load(self, pointer: Val, kind: str, align: int, mask: Val) -> Val:
        wide = f"<{mask.lanes} x {kind}>"
        name = f"llvm.masked.load.{mangled(kind, mask.lanes)}.p0"
        self.b.declare(name, ["ptr", mask.type, wide], wide)
        args = f"ptr align {align} {pointer.text}, {mask.typed}, {wide} zeroinitializer"
        return self.b.value(f"call {wide} @{name}({args})", kind, mask.lanes)

    def _gather(self, pointers: Val, kind: str, align: int, mask: Val) -> Val:
        wide = f"<{mask.lanes} x {kind}>"
        name = f"llvm.masked.gather.{mangled(kind, mask.lanes)}.v{mask.lanes}p0"
        self.b.declare(name, [pointers.type, mask.type, wide], wide)
        where = f"{pointers.type} align {align} {pointers.text}"
        args = f"{where}, {mask.typed}, {wide} zeroinitializer"
        return self.b.value(f"call {wide} @{name}({args})", kind, mask.lanes)

    def store(self, array: Array, offset: Expr, value: Val, at: Scope, get: Get) -> None:
        """``array[offset] = value``; the offset's needs are known."""
        value = arith.to_memory(self.b, value, array.dtype)
        align = array.dtype.itemsize
        stride = self.stride(offset, at)
        if at.lanes is None:
            self.b.store(value, self.pointer(array, offset, at, get), align)
            return
        if stride == 0:
            raise InvalidIR(f"every lane stores to one element of {array}")
        value = self.b.splat(value, at.lanes.count)
        if stride not in (1, -1):
            pointers = self._vector_pointer(array, offset, at, get)
            self._call_store("scatter", value, pointers, align, self._mask(at))
            return
        pointer, mask = self.pointer(array, offset, at, get), at.mask
        if stride == -1:
            pointer = self.b.offset(pointer, value.kind, const(1 - value.lanes, "i64"))
            value = self.b.reverse(value)
            mask = self.b.reverse(self._mask(at)) if mask is not None else None
        if mask is None:
            self.b.store(value, pointer, align)
        else:
            self._call_store("store", value, pointer, align, self.b.splat(mask, value.lanes))

    def _call_store(self, word: str, value: Val, to: Val, align: int, mask: Val) -> None:
        name = f"llvm.masked.{word}.{mangled(value.kind, value.lanes)}.{mangled('ptr', to.lanes)}"
        self.b.declare(name, [value.type, to.type, mask.type], "void")
        where = f"{to.type} align {align} {to.text}"
        self.b.emit(f"call void @{name}({value.typed}, {where}, {mask.typed})")

    # -- registers

    def place(self, register: Register, indices: tuple[Expr, ...], at: Scope) -> Place:
        """The variable that holds a register's element."""
        kind = arith.COMPUTE[register.dtype.name]
        lanes = self.plan.tiles.get(register, 0)
        if lanes:
            return self._tile(register, indices, at, kind, lanes)
        key: tuple[object, ...] = (register, *self._literals(register, indices))
        if at.lanes is not None and register in at.lanes.varying.registers:
            lanes = at.lanes.count
            key += (at.number,)
        return Place(self._variable(key, kind, lanes), kind, lanes)

    def _tile(
        self, register: Register, indices: tuple[Expr, ...], at: Scope, kind: str, lanes: int
    ) -> Place:
        outer = self._literals(register, indices[:-1])
        if at.lanes is None or not at.lanes.varying.of(indices[-1]):
            slot, lane = divmod(self._literals(register, indices)[-1], lanes)
            key = (register, *outer, slot)
            return Place(self._variable(key, kind, lanes), kind, lanes, lane)
        form = self.facts.form(indices[-1])
        base = at.uniform.find(at.lanes.var)
        start = base.literal if base is not None else None
        plain = form.coefficient(at.lanes.var) == 1 and len(form.terms) == 1
        if not plain or start is None:
            raise InvalidIR(f"register {register} is not indexed by a plain vector variable")
        slot, lane = divmod(int(start) + form.const, lanes)
        if lane:
            raise InvalidIR(f"register {register} is indexed {lane} lanes off a vector")
        key = (register, *outer, slot + at.number)
        return Place(self._variable(key, kind, lanes), kind, lanes)

    def _literals(self, register: Register, indices: tuple[Expr, ...]) -> list[int]:
        found = []
        for index in indices:
            form = self.facts.form(index)
            if form.terms:
                raise InvalidIR(f"register {register} needs literal indices, got {index}")
            found.append(form.const)
        return found

    def _variable(self, key: tuple[object, ...], kind: str, lanes: int) -> Val:
        found = self._registers.get(key)
        if found is None:
            found = self.b.alloca(kind, lanes)
            self._registers[key] = found
        return found

    def peek(self, register: Register, indices: tuple[Expr, ...], at: Scope) -> Val:
        """The value of a register's element."""
        place = self.place(register, indices, at)
        found = self.b.load(place.pointer, place.kind, place.lanes)
        if place.lane is None:
            return found
        return self.b.value(f"extractelement {found.typed}, i64 {place.lane}", place.kind)

    def poke(self, place: Place, value: Val, at: Scope) -> None:
        """Set a register's element; lanes that a guard turns off keep theirs."""
        if value.kind == "i32" and place.kind == "i64":
            value = self.b.convert("sext", value, "i64")
        if place.lane is not None:
            old = self.b.load(place.pointer, place.kind, place.lanes)
            text = f"insertelement {old.typed}, {value.typed}, i64 {place.lane}"
            value = self.b.value(text, place.kind, place.lanes)
        elif place.lanes:
            value = self.b.splat(value, place.lanes)
            if at.guarded and at.mask is not None:
                old = self.b.load(place.pointer, place.kind, place.lanes)
                value = self.b.select(self.b.splat(at.mask, place.lanes), value, old)
        self.b.store(value, place.pointer)

    def declare(self, register: Register, init: Val, at: Scope) -> None:
        """Every element starts as `init`."""
        kind = arith.COMPUTE[register.dtype.name]
        if init.kind == "i32" and kind == "i64":
            init = self.b.convert("sext", init, "i64")
        lanes = self.plan.tiles.get(register, 0)
        shape = register.shape
        if lanes:
            shape = (*shape[:-1], -(-shape[-1] // lanes))
        inside = at.lanes is not None and register in at.lanes.varying.registers
        suffix: tuple[object, ...] = (at.number,) if inside and at.lanes and not lanes else ()
        if inside and at.lanes and not lanes:
            lanes = at.lanes.count
        init = self.b.splat(init, lanes) if lanes else init
        for index in _indices(shape):
            key: tuple[object, ...] = (register, *index, *suffix)
            self.b.store(init, self._variable(key, kind, lanes))


def _indices(shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    found: list[tuple[int, ...]] = [()]
    for extent in shape:
        found = [(*head, n) for head in found for n in range(extent)]
    return found


def literal(e: Expr) -> int | None:
    """The value of a constant expression."""
    return int(typed(int, e.value)) if isinstance(e, Const) else None
