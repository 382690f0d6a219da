"""A routine -> LLVM IR for NVIDIA's GPUs: a kernel for its body, one for its finish.

A task is run by a warp. What stands outside of vector loops is done by all of its threads alike,
but for stores, which the first one does; a vector loop gives thread `t` the iterations
``t, t + 32, ..``, so that neighbours touch neighbours. A register that such a loop combines is a
part in each thread, which are then joined by shuffles; of a tile, a register that the loop's
variable indexes, thread `t` holds every 32nd element. Threads meet before and after what is stored.

``kernel(arguments.., shared.., sizes.., error, scratch)``
"""

from __future__ import annotations

from collections.abc import Sequence

from pullback.backends.llvm import arith
from pullback.backends.llvm.emit import FAIL, Function, written
from pullback.backends.llvm.memory import SAFE
from pullback.backends.llvm.registers import Place, Registers, elements
from pullback.backends.llvm.scope import Frame, Scope
from pullback.backends.llvm.text import BITS, Builder, Counter, Key, Module, Val, const
from pullback.backends.llvm.values import Values
from pullback.backends.nests.analysis import Facts, LanePlan, plan_lanes, substitute
from pullback.backends.nests.sizes import array_bytes
from pullback.backends.nvptx.rare import define_rare
from pullback.errors import InvalidIR
from pullback.ir import expr as E
from pullback.ir import nest as N
from pullback.ir.expr import Expr, index
from pullback.ir.graph import Combiner
from pullback.ir.node import walk
from pullback.ir.statements import roots, statements
from pullback.ir.target import Target

LANES = 32  # threads of a warp
EVERY = const(-1, "i32")  # threads that take part
SREG = "llvm.nvvm.read.ptx.sreg"
PART = "part"  # ends the key of an element that each thread adds up by itself
MEET = "llvm.nvvm.bar.warp.sync"
# What hides counters from LLVM's loop strength reduction, in the registers of 64 bits of PTX.
HIDDEN, WIDE = 'asm "", "=r,0"(i64', 'asm "", "=l,0"(i64'


def emit_kernels(routine: N.Routine, target: Target, warps: int, names: Sequence[str]) -> str:
    """LLVM IR text that defines a kernel for the body and, where there is one, for the finish.

    `warps`: so many share the tasks.
    """
    module = Module(target)
    module.helpers[SAFE] = f"{SAFE} = internal global [8 x i64] zeroinitializer, align 64"
    tiles = dict.fromkeys(plan_lanes(routine, target, Facts()).tiles, LANES)
    facts, plan = Facts(), LanePlan({}, tiles)
    for name, body in zip(names, (routine.body, routine.finish), strict=False):
        tasks = routine.tasks if body is routine.body else 1
        Warp(module, routine, plan, facts).kernel(name, body, tasks, warps)
    define_rare(module)
    return module.text().replace(HIDDEN, WIDE) + "!0 = !{}\n!1 = !{i32 1}\n"


class Slots(Registers):
    """Registers of one thread: of a tile, every 32nd element of its last axis."""

    def __init__(self, builder: Builder, facts: Facts, plan: LanePlan, lane: N.Var) -> None:
        super().__init__(builder, facts, plan)
        self.lane = lane
        self.own: Val = const(0, "i64")
        self.parted: set[N.Register] = set()  # tiles of which each thread adds up all elements

    def place(self, register: N.Register, indices: tuple[Expr, ...], at: Scope) -> Place:
        if register not in self.plan.tiles:
            return super().place(register, indices, at)
        kind, form = arith.COMPUTE[register.dtype.name], self.facts.form(indices[-1])
        outer = self.literals(register, indices[:-1])
        if register in self.parted and not form.terms:
            return Place((register, *outer, form.const, PART), kind, 0)
        slot, rest = divmod(form.const, LANES)
        if not form.terms:
            return Place((register, *outer, slot), kind, 0, rest)
        if rest or len(form.terms) > 1 or form.of(self.lane) != 1:
            raise InvalidIR(f"register {register} is not indexed by a plain vector variable")
        return Place((register, *outer, slot), kind, 0)

    def peek(self, register: N.Register, indices: tuple[Expr, ...], at: Scope) -> Val:
        place = self.place(register, indices, at)
        value = self.current(place.key)
        if place.lane is None:
            return value
        return shuffled(self.b, "idx", value, const(place.lane, "i32"))

    def poke(self, place: Place, value: Val, at: Scope) -> None:
        if place.lane is None:
            super().poke(place, value, at)
            return
        here = self.b.compare("eq", self.own, const(place.lane, "i64"))
        old = self.current(place.key)
        self.state[place.key] = self.b.select(here, self._widened(value, place.kind), old)

    def declare(self, register: N.Register, init: Val, at: Scope) -> None:
        if register not in self.plan.tiles:
            super().declare(register, init, at)
            return
        value = self._widened(init, arith.COMPUTE[register.dtype.name])
        shape = (*register.shape[:-1], -(-register.shape[-1] // LANES))
        for place in elements(shape):
            self.state[register, *place] = value


class Warp(Function):
    """Writes a routine's kernels, as one thread of a warp runs them."""

    def __init__(self, module: Module, routine: N.Routine, plan: LanePlan, facts: Facts) -> None:
        super().__init__(module, routine, plan, facts, set())
        self.lane = N.Var("lane", 0, LANES - 1)
        self.slots = Slots(self.b, facts, plan, self.lane)
        self.registers = self.slots
        self.values = Values(self.b, facts, self.memory, self.slots)
        self.apart = False  # whether threads do different things

    def kernel(self, name: str, body: Sequence[N.Stmt], tasks: int, warps: int) -> None:
        """Add a kernel to the module, of which `warps` warps share the tasks."""
        frame = Frame(Scope())
        given = self._arguments(frame.uniform)
        warp = self._place(frame.uniform)
        own = sum(map(array_bytes, self.routine.scratch))
        scratch = Val("%scratch", "ptr")
        start = self.b.binary("mul", warp, const(-(-own // 64) * 64, "i64"))
        for array in self.routine.scratch:
            self.arrays[array] = self.b.offset(scratch, "i8", start)
            start = self.b.binary("add", start, const(array_bytes(array), "i64"))
        each = const(-(-tasks // max(1, warps)), "i64")
        first = self.b.binary("mul", warp, each)
        last = self.b.intrinsic("smin", self.b.binary("add", first, each), const(tasks, "i64"))

        def task(at: Counter) -> None:
            inner = frame.inner()
            inner.uniform.keep(self.routine.task, at.value)
            self.block(body, inner)

        self.b.repeat(first, last, 1, False, task)
        head = f"define ptx_kernel void @{name}({', '.join(given)})"
        text = f"{head} nounwind {{\nentry:\n{self.b.body()}\n  ret void\n}}"
        self.module.functions.append(text)

    def _arguments(self, scope: Scope) -> list[str]:
        routine, given = self.routine, []
        for number, array in enumerate((*routine.arguments, *routine.shared)):
            self.arrays[array] = Val(f"%array{number}", "ptr")
            given.append(f"ptr %array{number}")
        for number, size in enumerate(routine.sizes):
            scope.keep(size, Val(f"%size{number}", "i64"))
            given.append(f"i64 %size{number}")
        self.error = Val("%error", "ptr")
        self.module.helpers["fail"] = FAIL
        return [*given, "ptr %error", "ptr %scratch"]

    def _place(self, scope: Scope) -> Val:
        """The number of this warp among all; the thread's number in it is the lane."""
        thread, block, threads = (
            self.b.call(f"{SREG}.{what}.x", (), "i32", "i32", 0)
            for what in ("tid", "ctaid", "ntid")
        )
        lane = self.b.binary("and", thread, const(LANES - 1, "i32"))
        self.slots.own = scope.keep(self.lane, self.b.convert("zext", lane, "i64"))
        row = self.b.binary("add", self.b.binary("mul", block, threads), thread)
        return self.b.convert("zext", self.b.binary("lshr", row, const(5, "i32")), "i64")

    def meet(self) -> None:
        """All threads have come to here, and see what the others stored."""
        self.b.declare(MEET, ["i32"], "void")
        self.b.emit(f"call void @{MEET}(i32 -1)")

    # -- statements

    def statement(self, stmt: N.Stmt, frame: Frame) -> None:
        match stmt:
            case N.Store() | N.StoreCombine() if not self.apart:
                self.once(stmt, frame)
            case N.Prefetch():
                pass
            case _:
                super().statement(stmt, frame)

    def once(self, stmt: N.Store | N.StoreCombine, frame: Frame) -> None:
        """A store that the first thread does, of what all know."""
        scope = frame.uniform
        for need, at in [*self.memory.needs(stmt.offset, scope), (stmt.value, scope)]:
            self.values.of(need, at)
        self.meet()
        self.apart = True
        self.guard(N.Guard(E.Equal(self.lane, index(0)), (stmt,)), frame)
        self.apart = False
        self.meet()

    def vector(self, stmt: N.For, frame: Frame) -> None:
        """Every thread its own iterations."""
        if self.apart or stmt.step != 1:
            raise InvalidIR(f"vector loop over {stmt.var.name} in another, or with a step")
        stores = any(isinstance(s, N.Store | N.StoreCombine) for s in statements(stmt.body))
        if stores:
            self.meet()
        before, tiles = self._parts(stmt, frame.uniform), self._parted(stmt, frame.uniform)
        self.apart = True
        if self._tiled(stmt):
            self._by_slots(stmt, frame)
        else:
            self._by_strides(stmt, frame)
        self.apart = False
        frame.forget(written(stmt.body))
        for key, (combiner, value) in before.items():
            self.slots.state[key] = self._joined_parts(key, combiner, value)
        self.slots.parted.clear()
        for key, combiner in tiles.items():
            self._placed(key, combiner)
        if stores:
            self.meet()

    def _parts(self, stmt: N.For, scope: Scope) -> dict[Key, tuple[Combiner, Val]]:
        """What registers hold that the loop combines, each of them an identity from here on."""
        inner = list(statements(stmt.body))
        own = {s.register for s in inner if isinstance(s, N.Declare)} | self.plan.tiles.keys()
        before: dict[Key, tuple[Combiner, Val]] = {}
        for s in inner:
            if not isinstance(s, N.Combine) or s.register in own:
                continue
            identity = self.values.of(s.combiner.identity(s.register.dtype), scope)
            for place in elements(s.register.shape):
                key: Key = (s.register, *place)
                if key not in before:
                    before[key] = s.combiner, self.slots.current(key)
                    self.slots.state[key] = identity
        return before

    def _parted(self, stmt: N.For, scope: Scope) -> dict[Key, Combiner]:
        """Tiles whose elements the loop combines one by one: all of them, an identity each."""
        parts: dict[Key, Combiner] = {}
        for s in statements(stmt.body):
            tile = isinstance(s, N.Combine) and s.register in self.plan.tiles
            if not tile or not isinstance(s, N.Combine) or stmt.var in set(walk(s.indices[-1:])):
                continue
            self.slots.parted.add(s.register)
            identity = self.values.of(s.combiner.identity(s.register.dtype), scope)
            for place in elements(s.register.shape):
                key: Key = (s.register, *place, PART)
                parts[key] = s.combiner
                self.slots.state[key] = identity
        return parts

    def _placed(self, key: Key, combiner: Combiner) -> None:
        """An element of a tile, joined to what the thread has that holds it."""
        register, *outer, last, _ = key
        assert isinstance(last, int), "it numbers an element"
        slot, lane = divmod(last, LANES)
        own: Key = (register, *outer, slot)
        before = self.slots.current(own)
        joined = self._joined_parts(key, combiner, before)
        del self.slots.state[key]
        here = self.b.compare("eq", self.slots.own, const(lane, "i64"))
        self.slots.state[own] = self.b.select(here, joined, before)

    def _joined_parts(self, key: Key, combiner: Combiner, before: Val) -> Val:
        """What a register was, and what the threads made: one value for all of them."""
        register, own, scope = key[0], self.slots.state[key], Scope()
        assert isinstance(register, N.Register)
        step = LANES // 2
        while step:
            other = shuffled(self.b, "bfly", own, const(step, "i32"))
            bit = self.b.binary("and", self.slots.own, const(step, "i64"))
            low = self.b.compare("eq", bit, const(0, "i64"))
            first, second = self.b.select(low, own, other), self.b.select(low, other, own)
            own = self.values.join(combiner, first, second, register.dtype, scope)
            step //= 2
        return self.values.join(combiner, before, own, register.dtype, scope)

    def _tiled(self, stmt: N.For) -> bool:
        """Whether a register is indexed by the loop's variable."""
        for s in statements(stmt.body):
            used = [(s.register, s.indices)] if isinstance(s, N.Set | N.Combine) else []
            used += [(n.register, n.indices) for n in walk(roots(s)) if isinstance(n, N.Peek)]
            for register, indices in used:
                if register in self.plan.tiles and stmt.var in set(walk(indices[-1:])):
                    return True
        return False

    def _by_slots(self, stmt: N.For, frame: Frame) -> None:
        trip = self._trip(stmt)
        if trip is None or not isinstance(stmt.lo, E.Const):
            raise InvalidIR(f"the bounds of tiles over {stmt.var.name} are no literals")
        for start in range(0, trip, LANES):
            place = E.Add(self.lane, index(int(stmt.lo.value) + start))
            body = substitute(stmt.body, {stmt.var: place})
            if start + LANES > trip:
                body = (N.Guard(E.Less(self.lane, index(trip - start)), body),)
            self.block(body, frame.inner())
            frame.forget(written(stmt.body))

    def _by_strides(self, stmt: N.For, frame: Frame) -> None:
        scope = frame.uniform
        lo, hi = self.values.of(stmt.lo, scope), self.values.of(stmt.hi, scope)
        start = self.b.binary("add", lo, self.slots.own)
        frame.forget(written(stmt.body))

        def body(at: Counter) -> None:
            inner = frame.inner()
            inner.uniform.count(stmt.var, at)
            self.block(stmt.body, inner)

        self._repeat(start, hi, LANES, False, body, stmt, 1)

    def transpose(self, stmt: N.Transpose, frame: Frame) -> None:
        """Rows in order, the columns of each by threads."""
        row = N.Var("row", 0, (1 << 31) - 1)
        column = N.Var("column", 0, (1 << 31) - 1)
        body = []
        for part in range(stmt.word):
            to = _sum(stmt.target_offset, column, stmt.target_row, row, stmt.word, part)
            source = _sum(stmt.source_offset, row, stmt.source_row, column, stmt.word, part)
            body.append(N.Store(stmt.target, to, N.Load(stmt.source, source)))
        columns = N.For(column, index(0), stmt.columns, tuple(body), N.LoopKind.VECTOR)
        self.block((N.For(row, index(0), stmt.rows, (columns,)),), frame)


def _sum(start: Expr, far: N.Var, pitch: int, near: N.Var, word: int, part: int) -> Expr:
    """``start + far pitch + near word + part``"""
    whole = E.Add(start, E.Mul(far, index(pitch)))
    return E.Add(E.Add(whole, E.Mul(near, index(word))), index(part))


def shuffled(b: Builder, way: str, value: Val, which: Val) -> Val:
    """The value that another thread of the warp has: `which`, or by the bits that differ."""
    if value.kind == "float":
        return _shuffle(b, way, value, which, "f32")
    if BITS[value.kind] == 64:
        return _wide(b, way, value, which)
    if value.kind == "i32":
        return _shuffle(b, way, value, which, "i32")
    wide = b.convert("zext", value, "i32")
    return b.convert("trunc", _shuffle(b, way, wide, which, "i32"), value.kind)


def _wide(b: Builder, way: str, value: Val, which: Val) -> Val:
    """In two halves."""
    bits = b.convert("bitcast", value, "i64") if value.kind == "double" else value
    half = const(32, "i64")
    parts = [b.convert("trunc", w, "i32") for w in (bits, b.binary("lshr", bits, half))]
    low, high = (b.convert("zext", _shuffle(b, way, p, which, "i32"), "i64") for p in parts)
    whole = b.binary("or", low, b.binary("shl", high, half))
    return b.convert("bitcast", whole, "double") if value.kind == "double" else whole


def _shuffle(b: Builder, way: str, value: Val, which: Val, suffix: str) -> Val:
    name = f"llvm.nvvm.shfl.sync.{way}.{suffix}"
    args = (EVERY, value, which, const(LANES - 1, "i32"))
    return b.call(name, args, value.kind, value.kind, 0)


def scratch_bytes(routine: N.Routine) -> int:
    """Scratch of one warp."""
    return -(-sum(map(array_bytes, routine.scratch)) // 64) * 64
