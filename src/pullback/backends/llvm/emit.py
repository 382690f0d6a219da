"""A routine -> LLVM IR text: one function for its body, one for its finish.

``void @body(ptr block, i64 task, ptr scratch)``; see the code ABI in docs/running.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pullback.backends.llvm import dots, transpose
from pullback.backends.llvm.memory import SAFE, SAFE_BYTES, Memory
from pullback.backends.llvm.reduce import Reductions
from pullback.backends.llvm.registers import Registers
from pullback.backends.llvm.scope import Frame, Lanes, Scope
from pullback.backends.llvm.text import Builder, Counter, Module, Val, const, iota, prefix_mask
from pullback.backends.llvm.values import Values
from pullback.backends.nests.analysis import (
    Cell,
    Facts,
    LanePlan,
    Varying,
    in_pieces,
    plan_lanes,
    substitute,
    tiled,
)
from pullback.backends.nests.sizes import array_bytes
from pullback.backends.nests.words import dot_of
from pullback.errors import InvalidIR
from pullback.ir.expr import Const, Expr, Mul, index
from pullback.ir.nest import (
    Array,
    Check,
    Combine,
    Declare,
    For,
    Guard,
    Load,
    LoopKind,
    Mark,
    Prefetch,
    Routine,
    Set,
    Stmt,
    Store,
    StoreCombine,
    Transpose,
    Var,
)
from pullback.ir.node import walk
from pullback.ir.statements import roots, statements
from pullback.ir.target import Target
from pullback.ir.text import mark_text

FAIL = """define internal void @fail(ptr %error, i64 %site, i64 %value) noinline cold nounwind {
entry:
  %r = cmpxchg ptr %error, i64 0, i64 1 acq_rel monotonic
  %won = extractvalue {i64, i1} %r, 1
  br i1 %won, label %first, label %done
first:
  %s = getelementptr i64, ptr %error, i64 1
  store i64 %site, ptr %s
  %v = getelementptr i64, ptr %error, i64 2
  store i64 %value, ptr %v
  br label %done
done:
  ret void
}"""


def emit_routine(routine: Routine, target: Target) -> str:
    """LLVM IR text that defines `@body` and, where the routine has one, `@finish`."""
    module = Module(target)
    streamed = set(routine.streamed)
    zeros = f"[{SAFE_BYTES // 8} x i64] zeroinitializer"
    module.helpers[SAFE] = f"{SAFE} = internal constant {zeros}, align 64"
    facts = Facts()
    plan = plan_lanes(routine, target, facts)
    for name, body in (("body", routine.body), ("finish", routine.finish)):
        if body or name == "body":
            Function(module, routine, plan, facts, streamed).write(name, body)
    return module.text() + "!0 = !{}\n!1 = !{i32 1}\n"


class Function:
    """Writes one of a routine's functions."""

    def __init__(
        self, module: Module, routine: Routine, plan: LanePlan, facts: Facts, streamed: set[Array]
    ) -> None:
        self.target = module.target
        self.module = module
        self.routine = routine
        self.plan = plan
        self.b = Builder(module)
        self.arrays: dict[Array, Val] = {}
        exact = not routine.sizes
        self.memory = Memory(self.b, facts, self.arrays, streamed, exact)
        self.registers = Registers(self.b, facts, plan)
        self.values = Values(self.b, facts, self.memory, self.registers)
        self.facts = facts
        self.error = Val("", "ptr")
        self.reductions: Reductions | None = None

    def write(self, name: str, body: Sequence[Stmt]) -> None:
        """Add the function to the module."""
        frame = Frame(Scope())
        self._prologue(frame.uniform, body)
        self.block(body, frame)
        if self.memory.streamed & {s.array for s in statements(body) if isinstance(s, Store)}:
            self.b.fence_stores()
        head = f"define void @{name}(ptr noalias %block, i64 %task, ptr noalias %scratch)"
        text = f"{head} {self.module.attributes} {{\nentry:\n{self.b.body()}\n  ret void\n}}"
        self.module.functions.append(text)

    def _prologue(self, scope: Scope, body: Sequence[Stmt]) -> None:
        routine = self.routine
        used = _used(body)
        for place, array in enumerate((*routine.arguments, *routine.shared)):
            if array in used:
                self.arrays[array] = self._slot(place, "ptr")
        place = len(routine.arguments) + len(routine.shared)
        for size in routine.sizes:
            if size in used:
                scope.keep(size, self._slot(place, "i64"))
            place += 1
        if any(isinstance(s, Check) for s in statements(body)):
            self.error = self._slot(place, "ptr")
            self.module.helpers["fail"] = FAIL
        offset = 0
        for array in routine.scratch:
            start = Val("%scratch", "ptr")
            if array in used:
                self.arrays[array] = self.b.offset(start, "i8", const(offset, "i64"))
            offset += array_bytes(array)
        scope.keep(routine.task, Val("%task", "i64"))

    def _slot(self, place: int, kind: str) -> Val:
        at = self.b.offset(Val("%block", "ptr"), "i64", const(place, "i64"))
        return self.b.load(at, kind, 0, 8, ", !invariant.load !0")

    # -- statements

    def block(self, body: Sequence[Stmt], frame: Frame) -> None:
        """Run statements in order."""
        for stmt in body:
            self.statement(stmt, frame)

    def statement(self, stmt: Stmt, frame: Frame) -> None:
        match stmt:
            case For(kind=LoopKind.VECTOR):
                self.vector(stmt, frame)
            case For():
                self.loop(stmt, frame)
            case Guard():
                self.guard(stmt, frame)
            case Transpose():
                self.transpose(stmt, frame)
            case Mark():
                self.b.emit(mark_text(stmt, ";"))
            case _:
                for scope in frame.effects:
                    self.effect(stmt, scope)
                frame.forget(written((stmt,)))

    def effect(self, stmt: Stmt, at: Scope) -> None:
        """A statement without a body, for one group of lanes (or for the scalar code)."""
        match stmt:
            case Declare():
                self.registers.declare(stmt.register, self.values.of(stmt.init, at), at)
            case Set():
                value = self.values.of(stmt.value, at)
                place = self.registers.place(stmt.register, stmt.indices, at)
                self.registers.poke(place, value, at)
            case Combine():
                self.combine(stmt, at)
            case Store():
                self.store(stmt.array, stmt.offset, self.values.of(stmt.value, at), at)
            case StoreCombine():
                old = self.values.of(Load(stmt.array, stmt.offset), at)
                new = self.values.of(stmt.value, at)
                joined = self.values.join(stmt.combiner, old, new, stmt.array.dtype, at)
                self.store(stmt.array, stmt.offset, joined, at)
            case Check():
                self.check(stmt, at)
            case Prefetch():
                self.prefetch(stmt, at)
            case _:
                raise InvalidIR(f"statement {type(stmt).__name__} is unknown")

    def store(self, array: Array, offset: Expr, value: Val, at: Scope) -> None:
        for need, scope in self.memory.needs(offset, at):
            self.values.of(need, scope)
        self.memory.store(array, offset, value, at, self.values.get)

    def prefetch(self, stmt: Prefetch, at: Scope) -> None:
        """The cache line of the first lane, into the second level: a block of an operand is more
        than the first holds (8 x 2000 of 30000: 19 ms without, 18 into the first, 12 so).
        """
        for need, scope in self.memory.needs(stmt.offset, at):
            self.values.of(need, scope)
        where = self.memory.pointer(stmt.array, stmt.offset, at, self.values.get)
        self.b.declare("llvm.prefetch.p0", ["ptr", "i32", "i32", "i32"], "void")
        self.b.emit(f"call void @llvm.prefetch.p0({where.typed}, i32 0, i32 2, i32 1)")

    def combine(self, stmt: Combine, at: Scope) -> None:
        """``register = join(register, value)``, in lanes where the loop carries it."""
        register, reductions = stmt.register, self.reductions
        if reductions is None or reductions.per_lane(register, stmt.indices):
            place = self.registers.place(register, stmt.indices, at)
            old = self.registers.peek(register, stmt.indices, at)
            self.registers.poke(place, self._joined(stmt, old, at), at)
            return
        key = reductions.accumulator(register, stmt.indices, at.number)
        old = self.registers.current(key)
        new = self.b.splat(self._joined(stmt, old, at), old.lanes)
        if at.mask is not None:
            new = self.b.select(self.b.splat(at.mask, old.lanes), new, old)
        self.registers.state[key] = new

    def _joined(self, stmt: Combine, old: Val, at: Scope) -> Val:
        """The new value; a sum of products is a fused multiply-add."""
        dtype, value = stmt.register.dtype, stmt.value
        if stmt.combiner.name == "sum" and isinstance(value, Mul) and dtype.is_float:
            factors = self.values.of(value.left, at), self.values.of(value.right, at)
            return self.b.multiply_add(*factors, old)
        return self.values.join(stmt.combiner, old, self.values.of(value, at), dtype, at)

    # -- control

    def guard(self, stmt: Guard, frame: Frame) -> None:
        """A branch where the condition is uniform, else a mask."""
        first = frame.effects[0]
        if self.values.varies(stmt.condition, first):
            self.block(stmt.body, Frame(frame.uniform, self._masked(stmt, frame)))
            frame.forget(written(stmt.body))
            return
        condition = self.values.of(stmt.condition, first)
        if condition.literal is not None:
            if condition.literal:
                self.block(stmt.body, frame)
            return
        inside, after = self.b.name("if"), self.b.name("fi")
        state, entry, before = self.registers.state, dict(self.registers.state), self.b.block
        self.b.branch(condition, inside, after)
        self.b.label(inside)
        with self.b.region():
            self.block(stmt.body, frame.inner())
        end = self.b.block
        self.b.jump(after)
        self.b.label(after)
        for key, old in entry.items():
            state[key] = self.b.merge(old, before, state[key], end)
        for key in [k for k in state if k not in entry]:
            del state[key]
        frame.forget(written(stmt.body))

    def _masked(self, stmt: Guard, frame: Frame) -> list[Scope]:
        scopes = []
        for group in frame.groups:
            condition = self.values.of(stmt.condition, group)
            scope = Scope(group, frame.uniform)
            scope.guarded = True
            old = group.mask
            scope.mask = condition if old is None else self.b.binary("and", old, condition)
            scopes.append(scope)
        return scopes

    def loop(self, stmt: For, frame: Frame) -> None:
        """A loop in order, or written out."""
        trip = self._trip(stmt)
        if frame.groups and self._dot(stmt, frame):
            return
        if stmt.kind is LoopKind.UNROLL and isinstance(stmt.lo, Const) and trip is not None:
            for step in range(0, trip, stmt.step):
                at = index(int(stmt.lo.value) + step)
                self.block(substitute(stmt.body, {stmt.var: at}), frame)
            return
        scope = frame.effects[0].uniform
        lo = self.values.of(stmt.lo, scope)
        if trip is not None and trip <= stmt.step:
            if trip > 0:
                inner = frame.inner()
                inner.uniform.keep(stmt.var, lo)
                self.block(stmt.body, inner)
                frame.forget(written(stmt.body))
            return
        hi = self.values.of(stmt.hi, scope)
        frame.forget(written(stmt.body))

        def body(at: Counter) -> None:
            inner = frame.inner()
            inner.uniform.count(stmt.var, at)
            self.block(stmt.body, inner)

        self._repeat(lo, hi, stmt.step, trip is not None, body, stmt, len(frame.groups) or 1)

    def _dot(self, stmt: For, frame: Frame) -> bool:
        """Whether a loop over the elements of a word is one instruction, then written here."""
        dot = dot_of(stmt, self.facts, self.target)
        if dot is None or self.reductions is None:
            return False
        register, indices = dot.combine.register, dot.combine.indices
        if not self.reductions.per_lane(register, indices):
            return False
        for scope in frame.groups:
            one, other = (
                dots.words(self.b, self.memory, side, scope, self.values.of)
                for side in (dot.first, dot.second)
            )
            old = self.registers.peek(register, indices, scope)
            place = self.registers.place(register, indices, scope)
            self.registers.poke(place, dots.emit(self.b, dot, (one, other), old), scope)
            if dot.floats:
                self.values.flushed.add(register)
        frame.forget(written(stmt.body))
        return True

    def _repeat(
        self,
        lo: Val,
        hi: Val,
        step: int,
        sure: bool,
        body: Callable[[Counter], None],
        stmt: For,
        groups: int,
    ) -> None:
        state = self.registers.state
        carried = self.registers.carried(written(stmt.body), groups)
        self.b.repeat(lo, hi, step, sure, body, state, carried)

    def _trip(self, stmt: For) -> int | None:
        """``hi - lo`` where it is a literal."""
        form = self.facts.form(stmt.hi).minus(self.facts.form(stmt.lo))
        return None if form.terms else form.const

    # -- vector loops

    def vector(self, stmt: For, frame: Frame) -> None:
        """Lanes: whole vectors `unroll` at a time, then masked ones; or all written out."""
        if frame.groups:
            raise InvalidIR(f"vector loop over {stmt.var.name} inside another")
        if stmt.step != 1:
            raise InvalidIR(f"vector loop over {stmt.var.name} has step {stmt.step}")
        own = [s.register for s in statements(stmt.body) if isinstance(s, Declare)]
        count = self.plan.loops[stmt.var]
        aligned = isinstance(stmt.lo, Const) and int(stmt.lo.value) % count == 0
        varying = Varying(stmt.var, frozenset(own))
        lanes = Lanes(stmt.var, count, varying, aligned)
        trip = self._trip(stmt)
        short = trip is not None and trip <= stmt.unroll * count
        whole = trip is not None and (short or tiled(stmt, self.plan, varying))
        groups = -(-trip // count) if whole and trip is not None else stmt.unroll
        lo = self.values.of(stmt.lo, frame.uniform)
        self.reductions = Reductions(self.values, lanes, stmt.body, groups)
        if whole and trip is not None:
            self._written_out(stmt, frame, lanes, lo, trip)
        else:
            self._rolled(stmt, frame, lanes, lo, trip)
        frame.forget(written(stmt.body))
        self.reductions.finish(groups, frame.uniform)
        self.reductions = None

    def _written_out(self, stmt: For, frame: Frame, lanes: Lanes, lo: Val, trip: int) -> None:
        if trip <= 0:
            return
        if trip % lanes.count and in_pieces(stmt, self.plan, lanes.varying):
            self._in_pieces(stmt, frame, lanes, lo, trip)
            return
        key = (stmt.var, lo.text, trip)
        inner = frame.tiles.get(key)
        if inner is None:
            masks: list[Val | None] = [None] * (trip // lanes.count)
            left, tail = trip % lanes.count, self.plan.tails.get(stmt.var, lanes.count)
            if left:
                masks.append(prefix_mask(left, tail) if left < tail else None)
            inner = self._lanes_frame(frame, lanes, lo, masks)
            if left:
                inner.groups[-1].lanes = Lanes(lanes.var, tail, lanes.varying, lanes.aligned)
            frame.tiles[key] = inner
        self.block(stmt.body, inner)

    def _in_pieces(self, stmt: For, frame: Frame, lanes: Lanes, lo: Val, trip: int) -> None:
        """The last lanes as powers of two: what was stored under a mask is not there for the next
        load of it, which waits until it is (16 lanes of which 12 count: 8 ns an addition, not 2.5).

        ``lanes 0..28 of 16  ->  0..16, 16..24 of 8, 24..28 of 4``
        """
        begin, count = 0, lanes.count
        while begin < trip:
            groups = (trip - begin) // count
            if groups:
                own = Lanes(lanes.var, count, lanes.varying, lanes.aligned)
                at = self.b.binary("add", lo, const(begin, "i64")) if begin else lo
                self.block(stmt.body, self._lanes_frame(frame, own, at, [None] * groups))
                begin += groups * count
            count //= 2

    def _lanes_frame(
        self, frame: Frame, lanes: Lanes, base: Val | Counter, masks: Sequence[Val | None]
    ) -> Frame:
        """The scopes of the groups that start at `base`."""
        uniform = Scope(frame.uniform)
        if isinstance(base, Counter):
            uniform.count(lanes.var, base)
        else:
            uniform.keep(lanes.var, base)
        groups = []
        for number, mask in enumerate(masks):
            group = Scope(None, uniform)
            group.lanes = lanes
            group.number = number
            group.first = number * lanes.count
            group.mask = mask
            groups.append(group)
        return Frame(uniform, groups)

    def _rolled(self, stmt: For, frame: Frame, lanes: Lanes, lo: Val, trip: int | None) -> None:
        b, span = self.b, stmt.unroll * lanes.count
        hi = self.values.of(stmt.hi, frame.uniform)
        if trip is not None:
            whole = const(trip // span * span, "i64")
        else:
            whole = self._whole(b.binary("sub", hi, lo), span)
        middle = b.binary("add", lo, whole)
        frame.forget(written(stmt.body))

        def main(at: Counter) -> None:
            self.block(stmt.body, self._lanes_frame(frame, lanes, at, [None] * stmt.unroll))

        def one(at: Counter) -> None:
            self.block(stmt.body, self._lanes_frame(frame, lanes, at, [None]))

        def tail(at: Counter) -> None:
            mask = self._tail_mask(b.binary("sub", hi, at.value), lanes.count)
            self.block(stmt.body, self._lanes_frame(frame, lanes, at, [mask]))

        if trip is None or trip >= span:
            self._repeat(lo, middle, span, trip is not None, main, stmt, stmt.unroll)
        rest = None if trip is None else trip % span
        more = span if rest is None else rest
        if not b.module.target.masks and more > lanes.count:
            # Stores under masks take long: no more than the last vector has one.
            length = b.binary("sub", hi, middle) if rest is None else const(rest, "i64")
            begin, middle = middle, b.binary("add", middle, self._whole(length, lanes.count))
            self._repeat(begin, middle, lanes.count, rest is not None, one, stmt, 1)
            rest = None if rest is None else rest % lanes.count
        if rest is not None and rest <= lanes.count:
            self._written_out(stmt, frame, lanes, middle, rest)
        else:
            self._repeat(middle, hi, lanes.count, rest is not None, tail, stmt, 1)

    def _whole(self, length: Val, span: int) -> Val:
        """The part of a length in whole spans, which need not be a power of two."""
        if span & (span - 1) == 0:
            return self.b.binary("and", length, const(-span, "i64"))
        rest = self.b.binary("srem", length, const(span, "i64"))
        return self.b.binary("sub", length, rest)

    def _tail_mask(self, left: Val, count: int) -> Val:
        """The lanes below `left`, which is at least 1."""
        kind = "i32"
        if count > 32:
            left = self.b.intrinsic("smin", left, const(count, "i64"))
            kind = "i8"
        limit = self.b.splat(self.b.convert("trunc", left, kind), count)
        return self.b.compare("ult", iota(kind, count), limit)

    # -- the rest

    def check(self, stmt: Check, at: Scope) -> None:
        """Record the first lane whose index is outside ``0 <= index < extent``."""
        b = self.b
        items = [self.values.of(e, at) for e in (stmt.index, stmt.extent)]
        value, extent = (self.values.fit(i, "i64") for i in items)
        bad = b.compare("uge", value, extent)
        if at.mask is not None:
            bad = b.binary("and", bad, at.mask)
        failing, after = b.name("bad"), b.name("good")
        b.branch(b.any(bad), failing, after)
        b.label(failing)
        if value.lanes:
            word = f"i{bad.lanes}"
            bits = b.value(f"bitcast {bad.typed} to {word}", word)
            b.declare(f"llvm.cttz.{word}", [word, "i1"], word)
            first = b.value(f"call {word} @llvm.cttz.{word}({bits.typed}, i1 true)", word)
            value = b.value(f"extractelement {value.typed}, {first.typed}", "i64")
        b.emit(f"call void @fail({self.error.typed}, i64 {stmt.site}, {value.typed})")
        b.jump(after)
        b.label(after)

    def transpose(self, stmt: Transpose, frame: Frame) -> None:
        if frame.groups:
            raise InvalidIR("a transpose stands inside a vector loop")
        scope = frame.uniform
        pointers = []
        for array, offset in (
            (stmt.target, stmt.target_offset),
            (stmt.source, stmt.source_offset),
        ):
            for need, at in self.memory.needs(offset, scope):
                self.values.of(need, at)
            pointers.append(self.memory.pointer(array, offset, scope, self.values.get))
        sizes = [self.values.of(e, scope) for e in (stmt.rows, stmt.columns)]
        rows = stmt.target_row // stmt.word, stmt.source_row // stmt.word
        size = stmt.target.dtype.itemsize * stmt.word
        transpose.call(self.b, pointers, rows, sizes, size)
        frame.forget((stmt.target,))


def written(body: Sequence[Stmt]) -> list[Cell]:
    """The arrays and registers that statements change."""
    cells: dict[Cell, None] = {}
    for stmt in statements(body):
        match stmt:
            case Declare() | Set() | Combine():
                cells[stmt.register] = None
            case Store() | StoreCombine():
                cells[stmt.array] = None
            case Transpose():
                cells[stmt.target] = None
    return list(cells)


def _used(body: Sequence[Stmt]) -> set[Array | Var]:
    """The arrays and variables that statements mention."""
    touched: set[Array | Var] = set()
    for stmt in statements(body):
        match stmt:
            case Store() | StoreCombine() | Prefetch():
                touched.add(stmt.array)
            case Transpose():
                touched.update((stmt.target, stmt.source))
        for node in walk(roots(stmt)):
            if isinstance(node, Load):
                touched.add(node.array)
            elif isinstance(node, Var):
                touched.add(node)
    return touched
