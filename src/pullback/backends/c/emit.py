"""Routines as one C11 file: ``void body_0(void **block, int64_t task, char *scratch)`` and so on.

A routine keeps the shape of its nest: loops in order stay loops, unrolled ones are written out,
register tiles are arrays of vectors at constant places, which compilers keep in registers. A loop
in lanes that adds up has a row of sums side by side, so that no compiler has to reorder any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from pullback.algebra.affine import affine
from pullback.backends.c.expressions import Scope, Values, combined
from pullback.backends.c.language import C11, Passed, computed
from pullback.errors import InvalidIR
from pullback.ir import expr as E
from pullback.ir import nest as N
from pullback.ir.dtype import DType
from pullback.ir.expr import Const, Expr
from pullback.ir.graph import Combiner
from pullback.ir.node import walk
from pullback.ir.statements import roots, statements
from pullback.ir.text import mark_text

INDENT = "  "
K = TypeVar("K")
Names = Mapping[K, str]
Width = Callable[[DType], int]


def emit_program(
    routines: Sequence[N.Routine], language: C11, writer: type[Function] | None = None
) -> str:
    """The file of a program."""
    parts = [emit_routine(r, language, f"_{n}", writer) for n, r in enumerate(routines)]
    return "\n".join([language.prelude(), *parts])


def standalone(
    routines: Sequence[N.Routine], language: C11, writer: type[Function] | None = None
) -> list[str]:
    """A file that says itself how a routine is run: the prelude, then a part for each routine."""
    suffixes = [f"_{number}" for number in range(len(routines))]
    parts = [
        emit_routine(r, language, end, writer) + language.run(r, end)
        for r, end in zip(routines, suffixes, strict=True)
    ]
    return [language.prelude(), *parts]


def emit_routine(
    routine: N.Routine, language: C11, suffix: str = "", writer: type[Function] | None = None
) -> str:
    """The functions of one routine, by a `writer` that may know more than C does."""
    names = [("body", routine.body)]
    if routine.finish:
        names.append(("finish", routine.finish))
    made = [(writer or Function)(routine, language) for _ in names]
    pairs = zip(made, names, strict=True)
    return "\n".join(own.written(n + suffix, b) for own, (n, b) in pairs)


def passed(routine: N.Routine, body: Sequence[N.Stmt]) -> list[Passed]:
    """What of its block a function uses, in order."""
    used = _used(body)
    words: tuple[N.Array | N.Var, ...] = (*routine.arguments, *routine.shared, *routine.sizes)
    passed_words = [Passed(place, what) for place, what in enumerate(words) if what in used]
    if any(isinstance(s, N.Check) for s in statements(body)):
        passed_words.append(Passed(len(words), None))
    return passed_words


@dataclass(frozen=True, slots=True)
class Lanes:
    """One vector of a loop in lanes that is written out: lanes ``first .. first + count``."""

    var: N.Var
    number: int
    first: int
    count: int


class Function:
    """Writes one of a routine's functions."""

    def __init__(self, routine: N.Routine, language: C11) -> None:
        self.routine = routine
        self.language = language
        self.vector = language.vector
        every = list(statements((*routine.body, *routine.finish)))
        self.arrays = {a: f"{_plain(a.name)}_a{n}" for n, a in enumerate(_arrays(routine))}
        registers = [s.register for s in every if isinstance(s, N.Declare)]
        self.cells = {r: f"{_plain(r.name)}_r{n}" for n, r in enumerate(dict.fromkeys(registers))}
        self.tiled = _tiled(every) if self.vector else {}
        self.values = _Values(self.arrays, self.cells, language, self.width)
        self.values.tiled = self.tiled
        self.loops = 0

    def width(self, kind: DType) -> int:
        """Lanes of a vector."""
        return self.vector // kind.itemsize

    def written(self, name: str, body: Sequence[N.Stmt]) -> str:
        """The function's text."""
        values, routine = self.values, self.routine
        values.scope = Scope()
        values.variables = {size: values.fresh("n") for size in routine.sizes}
        used = _used(body)
        names: dict[object, str] = {a: n for a, n in self.arrays.items() if a in used}
        for size, text in values.variables.items():
            names[size] = text
        head, lines, end = self.language.function(name, routine, passed(routine, body), names)
        values.scope.lines += [*lines, *self.language.scratch(routine, names)]
        values.variables[routine.task] = "task"
        self.block(body)
        lines = [INDENT + line for line in values.scope.lines]
        return "\n".join([head, *lines, end, ""])

    def emit(self, line: str) -> None:
        self.values.emit(line)

    def braced(self, head: str, body: Sequence[N.Stmt]) -> None:
        """A block with its own names."""
        with self.values.inside() as scope:
            self.block(body)
        self.emit(f"{head} {{")
        self.values.scope.lines += [INDENT + line for line in scope.lines]
        self.emit("}")

    def block(self, body: Iterable[N.Stmt]) -> None:
        for stmt in body:
            self.statement(stmt)

    def statement(self, stmt: N.Stmt) -> None:
        match stmt:
            case N.For(kind=N.LoopKind.VECTOR):
                self.lanes(stmt)
            case N.For():
                self.loop(stmt)
            case N.Guard():
                self.scoped(stmt)
            case N.Declare():
                self.declare(stmt)
            case N.Mark():
                self.emit(mark_text(stmt, "//"))
            case _:
                self.effect(stmt)

    def scoped(self, stmt: N.Guard) -> None:
        with self.values.inside() as scope:
            condition = self.values.of(stmt.condition)
        self.emit("{")
        self.values.scope.lines += [INDENT + line for line in scope.lines]
        self.braced(f"{INDENT}if ({condition})", stmt.body)
        self.emit("}")

    def declare(self, stmt: N.Declare) -> None:
        """Registers: values of their type, tiles as arrays of vectors."""
        register = stmt.register
        name, kind = self.cells[register], computed(register.dtype)
        with self.values.inside() as scope:
            init = self.values.of(stmt.init)
        self.values.scope.lines += scope.lines
        if not register.shape:
            self.emit(f"{kind} {name} = {init};")
            return
        shape = list(register.shape)
        if register in self.tiled:
            width = self.width(register.dtype)
            shape[-1] = -(-shape[-1] // width)
            init = self.language.every_lane(init, register.dtype.name)
            kind = f"v_{register.dtype.name}"
        self.emit(f"{kind} {name}{''.join(f'[{n}]' for n in shape)};")
        for place in _places(shape):
            self.emit(f"{name}{''.join(f'[{n}]' for n in place)} = {init};")

    def effect(self, stmt: N.Effect) -> None:
        """A statement without a body; what it names is forgotten, since memory changes."""
        with self.values.inside() as scope:
            self.change(stmt)
        self.emit("{")
        self.values.scope.lines += [INDENT + line for line in scope.lines]
        self.emit("}")

    def change(self, stmt: N.Effect) -> None:
        values = self.values
        match stmt:
            case N.Set():
                value = values.of(stmt.value)
                self.emit(f"{self.cell(stmt.register, stmt.indices)} = {value};")
            case N.Combine():
                place = self.cell(stmt.register, stmt.indices)
                self.emit(f"{place} = {self.joined(stmt, place)};")
            case N.Store():
                value = values.storable(values.of(stmt.value), stmt.array.dtype)
                self.emit(f"{self.arrays[stmt.array]}[{values.of(stmt.offset)}] = {value};")
            case N.StoreCombine():
                kind = stmt.array.dtype
                place = f"{self.arrays[stmt.array]}[{values.of(stmt.offset)}]"
                old, new = values.loaded(place, kind), values.of(stmt.value)
                joined = combined(self.language, stmt.combiner, old, new, kind)
                self.emit(f"{place} = {values.storable(joined, kind)};")
            case N.Check():
                index, extent = values.of(stmt.index), values.of(stmt.extent)
                outside = f"(uint64_t){index} >= (uint64_t){extent}"
                self.emit(f"if ({outside}) pb_fail(error, {stmt.site}, {index});")
            case N.Prefetch():
                self.emit(f"PREFETCH({self.arrays[stmt.array]} + {values.of(stmt.offset)});")
            case N.Transpose():
                self.transpose(stmt)
            case _:
                raise InvalidIR(f"statement {type(stmt).__name__} is unknown")

    def cell(self, register: N.Register, indices: Sequence[Expr]) -> str:
        return self.values.cell(register, [self.values.of(i) for i in indices])

    def joined(self, stmt: N.Combine, old: str) -> str:
        """The new value; a sum of products is a fused multiply-add where there is one."""
        kind, value = stmt.register.dtype, stmt.value
        if stmt.combiner.name == "sum" and isinstance(value, E.Mul) and kind.is_float:
            return f"MADD({self.values.of(value.left)}, {self.values.of(value.right)}, {old})"
        return combined(self.language, stmt.combiner, old, self.values.of(value), kind)

    def transpose(self, s: N.Transpose) -> None:
        """A panel copy, word by word."""
        of = self.values.of
        target, source = self.arrays[s.target], self.arrays[s.source]
        to = f"{target}[{of(s.target_offset)} + c * {s.target_row} + r * {s.word} + u]"
        place = f"{source}[{of(s.source_offset)} + r * {s.source_row} + c * {s.word} + u]"
        self.emit(f"for (int64_t r = 0; r < {of(s.rows)}; ++r)")
        self.emit(f"  for (int64_t c = 0; c < {of(s.columns)}; ++c)")
        self.emit(f"    for (int64_t u = 0; u < {s.word}; ++u) {to} = {place};")

    # -- loops

    def loop(self, stmt: N.For) -> None:
        """A loop in order, or written out; of one turn that names a value, a block."""
        trip = trip_of(stmt)
        if stmt.kind is N.LoopKind.UNROLL and isinstance(stmt.lo, Const) and trip is not None:
            for step in range(0, trip, stmt.step):
                self.values.variables[stmt.var] = str(int(stmt.lo.value) + step)
                self.braced("", stmt.body)
            return
        name = self.values.variables[stmt.var] = self.values.fresh(_plain(stmt.var.name))
        lo, hi = self.bounds(stmt)
        head = f"for (int64_t {name} = {lo}; {name} < {hi}; {name} += {stmt.step})"
        self.braced(head, stmt.body)
        self.emit("}")

    def bounds(self, stmt: N.For) -> tuple[str, str]:
        """Named in a block that the caller closes."""
        with self.values.inside() as scope:
            lo, hi = self.values.of(stmt.lo), self.values.of(stmt.hi)
        self.emit("{")
        self.values.scope.lines += [INDENT + line for line in scope.lines]
        return lo, hi

    def lanes(self, stmt: N.For) -> None:
        """A loop whose turns are independent: written out over a tile, else beside each other."""
        trip = trip_of(stmt)
        tile = [r for r, var in self.tiled.items() if stmt.var in var]
        if tile and trip is not None and isinstance(stmt.lo, Const):
            width = self.width(tile[0].dtype)
            for number in range(-(-trip // width)):
                count = min(width, trip - number * width)
                self.tile_part(stmt, Lanes(stmt.var, number, number * width, count))
            return
        sums = _carried(stmt)
        lo, hi = self.bounds(stmt)
        if sums:
            self.side_by_side(stmt, sums, lo, hi)
        else:
            self.apart(stmt, lo, hi)
        self.emit("}")

    def apart(self, stmt: N.For, lo: str, hi: str) -> None:
        """Turns that have nothing in common."""
        name = self.values.variables[stmt.var] = self.values.fresh(_plain(stmt.var.name))
        self.emit("IVDEP")
        self.braced(f"for (int64_t {name} = {lo}; {name} < {hi}; ++{name})", stmt.body)

    def side_by_side(self, stmt: N.For, sums: list[N.Combine], lo: str, hi: str) -> None:
        """Each lane adds up for itself; then vectors by pairs, and the lanes, halves onto halves:
        the order of every backend.
        """
        first = {s.register: s.combiner for s in reversed(sums)}
        widest = min(r.dtype.itemsize for r in first)
        vector = max(1, (self.vector or 16) // widest)
        count = vector * stmt.unroll
        count = 1 << (count.bit_length() - 1)
        values = self.values
        for register, combiner in first.items():
            kind, lanes = register.dtype, values.fresh("lanes")
            values.carried[register] = lanes
            shape = "".join(f"[{n}]" for n in (*register.shape, count))
            identity = values.of(combiner.identity(kind))
            self.emit(f"{computed(kind)} {lanes}{shape};")
            for place in _places(register.shape):
                at = lanes + "".join(f"[{n}]" for n in place)
                self.emit(f"for (int l = 0; l < {count}; ++l) {at}[l] = {identity};")
        start = values.fresh("start")
        self.emit(f"int64_t {start} = {lo};")
        self.beside(stmt, first, count, start, hi)
        trip = trip_of(stmt)
        if trip is None or trip % count:
            self.turn(stmt, start, "", f"for (int l = 0; l < (int)({hi} - {start}); ++l)")
        for register, combiner in first.items():
            lanes, kind = values.carried.pop(register), register.dtype
            for place in _places(register.shape):
                at = lanes + "".join(f"[{n}]" for n in place)
                cell = values.cell(register, [str(n) for n in place])
                if count > 2 * vector:
                    self.paired(at, combiner, kind, count, vector)
                step = vector // 2 if count > 2 * vector else count // 2
                pair = combined(self.language, combiner, f"{at}[l]", f"{at}[l + step]", kind)
                self.emit(f"for (int step = {step}; step; step /= 2)")
                self.emit(f"  for (int l = 0; l < step; ++l) {at}[l] = {pair};")
                self.emit(f"{cell} = {combined(self.language, combiner, cell, f'{at}[0]', kind)};")

    def paired(self, at: str, combiner: Combiner, kind: DType, count: int, vector: int) -> None:
        """Vectors joined with their neighbours, until one is left: ``(0, 1, 2, 3) -> (01, 23)``."""
        left, right = f"{at}[2 * j * {vector} + l]", f"{at}[(2 * j + 1) * {vector} + l]"
        pair = combined(self.language, combiner, left, right, kind)
        self.emit(f"for (int n = {count // vector // 2}; n; n /= 2)")
        self.emit("  for (int j = 0; j < n; ++j)")
        self.emit(f"    for (int l = 0; l < {vector}; ++l) {at}[j * {vector} + l] = {pair};")

    def beside(
        self, stmt: N.For, sums: dict[N.Register, Combiner], count: int, start: str, hi: str
    ) -> None:
        """As many turns at a time as there are `sums` side by side."""
        outer = f"for (; {start} + {count} <= {hi}; {start} += {count})"
        self.turn(stmt, start, outer, f"for (int l = 0; l < {count}; ++l)")

    def turn(self, stmt: N.For, start: str, outer: str, head: str) -> None:
        values = self.values
        name = values.variables[stmt.var] = values.fresh(_plain(stmt.var.name))
        with values.inside() as scope:
            self.emit(f"const int64_t {name} = {start} + l;")
            self.block(stmt.body)
        self.emit(f"{outer} {{ IVDEP")
        self.emit(f"{head} {{")
        values.scope.lines += [INDENT + line for line in scope.lines]
        self.emit("} }")

    # -- register tiles

    def tile_part(self, stmt: N.For, lanes: Lanes) -> None:
        """One vector's part of a loop over a tile."""
        whole = []
        for inner in stmt.body:
            with self.values.inside() as scope:
                line = self.vector_line(inner, lanes)
            if line is None:
                self.lane_by_lane(stmt, lanes)
                return
            whole.append([*scope.lines, line])
        for lines in whole:
            self.emit("{")
            self.values.scope.lines += [INDENT + text for text in lines]
            self.emit("}")

    def lane_by_lane(self, stmt: N.For, lanes: Lanes) -> None:
        name = self.values.variables[lanes.var] = self.values.fresh(_plain(lanes.var.name))
        end = lanes.first + lanes.count
        self.emit("IVDEP")
        head = f"for (int64_t {name} = {lanes.first}; {name} < {end}; ++{name})"
        self.braced(head, stmt.body)

    def vector_line(self, stmt: N.Stmt, lanes: Lanes) -> str | None:
        """A statement over a whole vector; None where it is not one of those that matter."""
        match stmt:
            case N.Set() | N.Combine() if stmt.register in self.tiled:
                place = self.place(stmt.register, stmt.indices, lanes)
                if place is None:
                    return None
                return self.into(stmt, place, lanes)
            case N.Store() if stmt.array.dtype.name in ("float32", "float64"):
                value, where = self.whole(stmt.value, lanes), self.address(stmt, lanes)
                if value is None or where is None:
                    return None
                kind, size = stmt.array.dtype.name, stmt.array.dtype.itemsize
                every = self.language.every_lane(value, kind)
                if lanes.count * size == self.vector:
                    return self.language.store(every, where, kind)
                copied = self.language.store_part("part", where, lanes.count, kind)
                return f"const v_{kind} part = {every}; {copied}"
        return None

    def into(self, stmt: N.Set | N.Combine, place: str, lanes: Lanes) -> str | None:
        """``acc = a * b + acc``, rounded once where the processor does that."""
        kind = stmt.register.dtype.name
        if isinstance(stmt, N.Set):
            value = self.whole(stmt.value, lanes)
            return None if value is None else f"{place} = {self.language.every_lane(value, kind)};"
        terms = stmt.value
        if stmt.combiner.name != "sum" or not isinstance(terms, E.Mul):
            return None
        left, right = self.whole(terms.left, lanes), self.whole(terms.right, lanes)
        if left is None or right is None:
            return None
        sides = ", ".join(self.language.every_lane(side, kind) for side in (left, right))
        return f"{place} = madd_{kind}({sides}, {place});"

    def whole(self, e: Expr, lanes: Lanes) -> str | None:
        """A vector, or one value for all lanes; None where it has to be lane by lane."""
        if not any(n is lanes.var for n in walk(e)):
            return self.values.of(e) if e.dtype.is_float else None
        if isinstance(e, N.Peek):
            return self.place(e.register, e.indices, lanes) if e.register in self.tiled else None
        if isinstance(e, N.Load) and e.array.dtype.name in ("float32", "float64"):
            where = self.address(e, lanes)
            if where is None:
                return None
            kind, size = e.array.dtype.name, e.array.dtype.itemsize
            if lanes.count * size == self.vector:
                return self.language.load(where, kind)
            part = self.values.fresh("part")
            for line in self.language.load_part(part, where, lanes.count, kind):
                self.emit(line)
            return part
        if isinstance(e, E.Add | E.Mul | E.Div) and e.dtype.bits >= 32 and e.dtype.is_float:
            left, right = self.whole(e.left, lanes), self.whole(e.right, lanes)
            sign = "+" if isinstance(e, E.Add) else "*" if isinstance(e, E.Mul) else "/"
            return None if left is None or right is None else f"({left} {sign} {right})"
        return None

    def place(self, register: N.Register, indices: Sequence[Expr], lanes: Lanes) -> str | None:
        """The vector of a tile that lanes are."""
        if not indices or indices[-1] is not lanes.var:
            return None
        known = "".join(f"[{self.values.of(i)}]" for i in indices[:-1])
        return f"{self.cells[register]}{known}[{lanes.number}]"

    def address(self, e: N.Load | N.Store, lanes: Lanes) -> str | None:
        """Where the first lane lies, if the others lie behind it."""
        form = affine(e.offset)
        if dict(form.terms).get(lanes.var) != 1 or any(
            lanes.var in set(walk(atom)) for atom in form.atoms if atom is not lanes.var
        ):
            return None
        self.values.variables[lanes.var] = str(lanes.first)
        return f"{self.arrays[e.array]} + {self.values.of(e.offset)}"


class _Values(Values):
    """Values whose tiles are vectors: one lane of a tile is ``acc[i][j / width][j % width]``."""

    def __init__(
        self, arrays: Names[N.Array], cells: Names[N.Register], language: C11, width: Width
    ) -> None:
        super().__init__(arrays, cells, language)
        self.width = width
        self.tiled: dict[N.Register, set[Expr]] = {}
        self.carried: dict[N.Register, str] = {}

    def cell(self, register: N.Register, indices: list[str]) -> str:
        if register in self.carried:
            return self.carried[register] + "".join(f"[{i}]" for i in (*indices, "l"))
        if register not in self.tiled:
            return super().cell(register, indices)
        *others, last = indices
        width = self.width(register.dtype)
        vector = super().cell(register, [*others, f"({last}) / {width}"])
        return self.language.lane(vector, f"({last}) % {width}", register.dtype.name)


def _tiled(every: Sequence[N.Stmt]) -> dict[N.Register, set[Expr]]:
    """Registers of whole floats whose last place the variable of a loop in lanes counts."""
    lasts: dict[N.Register, set[Expr]] = {}
    lanes = {s.var for s in every if isinstance(s, N.For) and s.kind is N.LoopKind.VECTOR}
    for s in every:
        uses = [(s.register, s.indices)] if isinstance(s, N.Set | N.Combine) else []
        for root in roots(s):
            uses += [(n.register, n.indices) for n in walk(root) if isinstance(n, N.Peek)]
        for register, indices in uses:
            if indices and indices[-1] in lanes and register.dtype.name in ("float32", "float64"):
                lasts.setdefault(register, set()).add(indices[-1])
    return lasts


def _carried(stmt: N.For) -> list[N.Combine]:
    """What a loop in lanes adds up in registers that are declared outside of it."""
    inside = list(statements(stmt.body))
    own = {s.register for s in inside if isinstance(s, N.Declare)}
    return [s for s in inside if isinstance(s, N.Combine) and s.register not in own]


def _used(body: Sequence[N.Stmt]) -> set[object]:
    """Arrays and sizes that are mentioned."""
    touched: set[object] = set()
    for s in statements(body):
        if isinstance(s, N.Store | N.StoreCombine | N.Prefetch):
            touched.add(s.array)
        if isinstance(s, N.Transpose):
            touched |= {s.target, s.source}
        for node in walk(roots(s)):
            touched.add(node.array if isinstance(node, N.Load) else node)
    return touched


def _arrays(routine: N.Routine) -> tuple[N.Array, ...]:
    return (*routine.arguments, *routine.shared, *routine.scratch)


def trip_of(stmt: N.For) -> int | None:
    """``hi - lo`` where it is a literal."""
    form = affine(stmt.hi).minus(affine(stmt.lo))
    return None if form.terms else form.const


def _plain(name: str) -> str:
    """A name of letters and digits."""
    return "".join(c if c.isalnum() and c.isascii() else "_" for c in name) or "x"


def _places(shape: Sequence[int]) -> Iterable[tuple[int, ...]]:
    if not shape:
        yield ()
        return
    for n in range(shape[0]):
        yield from ((n, *rest) for rest in _places(shape[1:]))
