"""Loops in lanes as OpenCL's vectors: a compiler of kernels looks for lanes across work-items only.

A vector is a value of every lane. Truth is a vector of int, -1 or 0. What is not written here
(`NotWide`) stays a loop, lane by lane; so do the last lanes of a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pullback.algebra.affine import affine
from pullback.backends.c.emit import Function, Lanes, trip_of
from pullback.ir import expr as E
from pullback.ir import nest as N
from pullback.ir.dtype import DType, is_short
from pullback.ir.expr import Expr
from pullback.ir.graph import Combiner
from pullback.ir.node import walk
from pullback.ir.statements import roots, statements

MOST = 16  # lanes of OpenCL's vectors
DEEP = 150  # of an expression, in nodes; a deeper one stays a loop
MANY = 2000  # vectors of a statement; one of more stays a loop
NAMES = {
    "bool": "int", "int8": "char", "int16": "short", "int32": "int", "int64": "long",
    "uint8": "uchar", "uint16": "ushort", "uint32": "uint", "uint64": "ulong",
    "float32": "float", "float64": "double",
}  # fmt: skip
SIGNED = {1: "char", 2: "short", 4: "int", 8: "long"}
SIGNS: dict[type[Expr], str] = {
    E.Add: "+", E.Mul: "*", E.Div: "/", E.And: "&", E.Or: "|", E.Xor: "^",
}  # fmt: skip
CALLS: dict[type[Expr], str] = {E.Exp: "exp", E.Log: "log", E.Sqrt: "sqrt", E.Sin: "sin"}
POLYNOMIALS = ("exp", "log", "tanh", "erf", "normal_cdf")  # of wide.cl, for float32
LIBRARY = (
    "tanh", "erf", "floor", "rint", "fma", "cos", "tan", "sinh", "cosh", "log1p", "expm1", "log2",
    "log10", "atan", "asin", "acos", "asinh", "acosh", "atanh",
)  # fmt: skip
Key = tuple[Expr, str]
Tile = Callable[[N.Register, Sequence[Expr]], str | None]


class NotWide(Exception):
    """This is not written in vectors."""


def lanes_of(stmt: N.For, vector: int) -> int:
    """How many lanes are as wide as a register, by the widest numbers that memory and registers
    have.

    Raises: NotWide where there is nothing to count by, or 16-bit floats.
    """
    kinds = {a.dtype for s in statements(stmt.body) for a in _memory(s)}
    if not kinds or any(is_short(k) for k in kinds):
        raise NotWide
    return min(MOST, vector // max(k.itemsize for k in kinds))


def _memory(stmt: N.Stmt) -> list[N.Array | N.Register]:
    """Arrays and registers that a statement uses."""
    cells: list[N.Array | N.Register] = []
    if isinstance(stmt, N.Store | N.StoreCombine):
        cells.append(stmt.array)
    if isinstance(stmt, N.Declare | N.Set | N.Combine):
        cells.append(stmt.register)
    for node in walk(roots(stmt)):
        if isinstance(node, N.Load):
            cells.append(node.array)
        elif isinstance(node, N.Peek):
            cells.append(node.register)
    return cells


class Wide:
    """Writes statements over `width` lanes of a loop; `first`: the loop's variable in lane 0.

    `tile`: the vector of a register tile that lanes are, or None.
    """

    def __init__(
        self, own: Function, var: N.Var, first: str, width: int, tile: Tile | None = None
    ) -> None:
        if width < 2:
            raise NotWide
        self.tile = tile
        self.own = own
        self.values = own.values
        self.var = var
        self.first = first
        self.width = width
        self.registers: dict[N.Register, str] = {}
        self.named: dict[Key, str] = {}
        self.variable: dict[Expr, bool] = {}
        self.depth = 0
        self.values.variables[var] = first

    def kind(self, dtype: DType) -> str:
        """The vector of a type."""
        if dtype.name not in NAMES:
            raise NotWide
        return f"{NAMES[dtype.name]}{self.width}"

    def varies(self, e: Expr) -> bool:
        """Whether lanes have values of their own."""
        known = self.variable.get(e)
        if known is None:
            known = self.variable[e] = any(
                n is self.var or (isinstance(n, N.Peek) and n.register in self.registers)
                for n in walk(e)
            )
        return known

    # -- statements

    def block(self, body: Sequence[N.Stmt]) -> None:
        for stmt in body:
            self.statement(stmt)

    def statement(self, stmt: N.Stmt) -> None:
        match stmt:
            case N.Declare():
                if stmt.register.shape:
                    raise NotWide
                name = self.registers[stmt.register] = self.values.fresh("r")
                self.values.emit(f"{self.kind(stmt.register.dtype)} {name};")
                self.effect(lambda: self.values.emit(f"{name} = {self.of(stmt.init)};"))
            case N.Set() | N.Combine():
                self.effect(lambda: self.change(stmt))
            case N.Store():
                self.effect(lambda: self.store(stmt))
            case N.For(kind=N.LoopKind.SEQ | N.LoopKind.UNROLL):
                self.loop(stmt)
            case N.Mark() | N.Prefetch():
                pass
            case _:
                raise NotWide

    def effect(self, write: Callable[[], None]) -> None:
        """What is named for a statement is forgotten after it, since memory changes."""
        self.named = {}
        with self.values.inside() as scope:
            write()
        self.named = {}
        self.values.emit("{")
        self.values.scope.lines += ["  " + line for line in scope.lines]
        self.values.emit("}")

    def loop(self, stmt: N.For) -> None:
        """A loop that all lanes go round together."""
        if self.varies(stmt.lo) or self.varies(stmt.hi):
            raise NotWide
        lo, hi = self.own.bounds(stmt)
        name = self.values.variables[stmt.var] = self.values.fresh("k")
        with self.values.inside() as scope:
            self.block(stmt.body)
        head = f"for (int64_t {name} = {lo}; {name} < {hi}; {name} += {stmt.step})"
        self.values.emit(f"{head} {{")
        self.values.scope.lines += ["  " + line for line in scope.lines]
        self.values.emit("} }")

    def change(self, stmt: N.Set | N.Combine) -> None:
        place, kind, value = self.place(stmt), stmt.register.dtype, stmt.value
        if isinstance(stmt, N.Set):
            text = self.of(value)
        elif stmt.combiner.name == "sum" and isinstance(value, E.Mul) and kind.is_float:
            text = f"fma({self.of(value.left)}, {self.of(value.right)}, {place})"
        else:
            text = self.joined(stmt.combiner, place, self.of(value), kind)
        self.values.emit(f"{place} = {text};")

    def place(self, stmt: N.Set | N.Combine | N.Peek) -> str:
        """The vector of a register."""
        if stmt.register in self.registers and not stmt.indices:
            return self.registers[stmt.register]
        in_tile = self.tile(stmt.register, stmt.indices) if self.tile is not None else None
        if in_tile is None:
            raise NotWide
        return in_tile

    def joined(self, combiner: Combiner, old: str, new: str, kind: DType) -> str:
        match combiner.name:
            case "max" | "min":
                return self.extreme(combiner.name, old, new, kind)
            case "sum" | "prod":
                sign = "+" if combiner.name == "sum" else "*"
                return self.arithmetic(sign, old, new, kind, False)
        return f"({old} {'|' if combiner.name == 'any' else '&'} {new})"

    def store(self, stmt: N.Store) -> None:
        if is_short(stmt.array.dtype):
            raise NotWide
        value, kind = self.of(stmt.value), stmt.array.dtype
        if kind.is_bool:
            value = f"convert_uchar{self.width}({value} & 1)"
        where = self.contiguous(stmt.array, stmt.offset)
        if where is not None:
            self.values.emit(f"vstore{self.width}({value}, 0, {where});")
        elif not self.varies(stmt.offset):
            raise NotWide
        else:
            offsets, name = self.of(stmt.offset), self.values.fresh("w")
            base = "uchar" if kind.is_bool else NAMES[kind.name]
            self.values.emit(f"const {base}{self.width} {name} = {value};")
            array = self.values.arrays[stmt.array]
            for lane in self.every():
                self.values.emit(f"{array}[{offsets}.{lane}] = {name}.{lane};")

    def every(self) -> list[str]:
        """The names of the lanes."""
        return [f"s{n:X}" for n in range(self.width)]

    # -- values

    def of(self, e: Expr, mask: str = "") -> str:
        """The name of a vector with the values of all lanes; under a `mask` those alone."""
        if not self.values.loads(e):
            mask = ""  # what reads no memory has a value in every lane
        name = self.named.get((e, mask))
        if name is not None:
            return name
        self.depth += 1
        if self.depth > DEEP or len(self.named) > MANY:
            raise NotWide
        if self.varies(e):
            text = self.text(e, mask)
        else:
            text = self.spread(self.values.of(e), e.dtype)
        self.depth -= 1
        name = self.values.fresh("w")
        self.values.emit(f"const {self.kind(e.dtype)} {name} = {text};")
        self.named[e, mask] = name
        return name

    def spread(self, value: str, kind: DType) -> str:
        """One number in all lanes."""
        return f"({self.kind(kind)})({f'{value} ? -1 : 0' if kind.is_bool else value})"

    def text(self, e: Expr, mask: str) -> str:
        match e:
            case N.Var():
                places = ", ".join(map(str, range(self.width)))
                return f"{self.first} + (long{self.width})({places})"
            case N.Load():
                return self.load(e, mask)
            case N.Peek():
                return self.place(e)
            case E.If():
                return self.chosen(e, mask)
            case E.Cast():
                return self.cast(self.of(e.value, mask), e.value.dtype, e.to)
            case E.Less() | E.Equal():
                return self.compared(e, mask)
        args = [self.of(c, mask) for c in e.children if isinstance(c, Expr)]
        if isinstance(e, N.Native):
            return self.native(e.name, args, e.dtype)
        if type(e) in CALLS:
            return self.call(CALLS[type(e)], args, e.dtype)
        if isinstance(e, E.FloorDiv | E.Mod):
            return self.lane_by_lane(e, args)
        if type(e) not in SIGNS:
            raise NotWide
        left, right = args
        return self.arithmetic(SIGNS[type(e)], left, right, e.dtype, self.values.is_index(e))

    def arithmetic(self, sign: str, left: str, right: str, kind: DType, index: bool) -> str:
        """Signed sums and products as unsigned ones: OpenCL leaves open what an overflow is."""
        if kind.is_bool:
            return f"({left} {({'+': '|', '*': '&'}).get(sign, sign)} {right})"
        if kind.kind != "i" or index or sign not in "+*":
            return f"({left} {sign} {right})"
        own, plain = self.kind(kind), f"u{self.kind(kind)}"
        return f"as_{own}(as_{plain}({left}) {sign} as_{plain}({right}))"

    def compared(self, e: E.Less | E.Equal, mask: str) -> str:
        """A vector of int; of two truths, one is less where it alone is false."""
        left, right = self.of(e.left, mask), self.of(e.right, mask)
        if e.left.dtype.is_bool and isinstance(e, E.Less):
            return f"(~{left} & {right})"
        text = f"({left} {'<' if isinstance(e, E.Less) else '=='} {right})"
        narrow = e.left.dtype.is_bool or e.left.dtype.itemsize == 4
        return text if narrow else f"convert_int{self.width}{text}"

    def mask_for(self, mask: str, kind: DType) -> str:
        """A truth as wide as the numbers it chooses between."""
        size = 4 if kind.is_bool else kind.itemsize
        return mask if size == 4 else f"convert_{SIGNED[size]}{self.width}({mask})"

    def chosen(self, e: E.If, mask: str) -> str:
        """Both sides are computed; a side that reads memory, for the lanes that take it."""
        if not self.varies(e.condition):
            return self.branches(e, mask)
        condition = self.of(e.condition, mask)
        sides = []
        for side, own in ((e.then, condition), (e.otherwise, f"~{condition}")):
            inner = mask
            if self.values.loads(side):
                inner = self.values.fresh("m")
                both = f"{own} & {mask}" if mask else own
                self.values.emit(f"const int{self.width} {inner} = {both};")
            sides.append(self.of(side, inner))
        return f"select({sides[1]}, {sides[0]}, {self.mask_for(condition, e.dtype)})"

    def branches(self, e: E.If, mask: str) -> str:
        """All lanes take one side."""
        name = self.values.fresh("w")
        self.values.emit(f"{self.kind(e.dtype)} {name};")
        self.values.emit(f"if ({self.values.of(e.condition)}) {{")
        for side, between in ((e.then, "} else {"), (e.otherwise, "}")):
            kept = dict(self.named)
            with self.values.inside() as scope:
                value = self.of(side, mask)
            self.named = kept
            self.values.scope.lines += [*scope.lines, f"{name} = {value};", between]
        return name

    def contiguous(self, array: N.Array, offset: Expr) -> str | None:
        """Where the first lane lies, if the others lie behind it."""
        form = affine(offset)
        if dict(form.terms).get(self.var) != 1:
            return None
        if any(atom is not self.var and self.varies(atom) for atom in form.atoms):
            return None
        return f"{self.values.arrays[array]} + {self.values.of(offset)}"

    def load(self, e: N.Load, mask: str) -> str:
        """Memory in a row, or lane by lane; under a mask, of its lanes alone."""
        kind = e.array.dtype
        if is_short(kind):
            raise NotWide
        own = f"{'uchar' if kind.is_bool else NAMES[kind.name]}{self.width}"
        where = self.contiguous(e.array, e.offset)
        if where is None:
            offsets, array = self.of(e.offset, mask), self.values.arrays[e.array]
            parts = [f"{array}[{offsets}.{lane}]" for lane in self.every()]
        else:
            parts = [f"({where})[{n}]" for n in range(self.width)]
        row = f"vload{self.width}(0, {where})"
        if mask:
            taken = [f"{mask}.{s} ? {p} : 0" for s, p in zip(self.every(), parts, strict=True)]
            each = f"({own})({', '.join(taken)})"
            text = each if where is None else f"all({mask}) ? {row} : {each}"
        else:
            text = row if where is not None else f"({own})({', '.join(parts)})"
        if not kind.is_bool:
            return text
        return f"(convert_int{self.width}({text}) != 0)"

    def cast(self, value: str, source: DType, to: DType) -> str:
        if source == to:
            return value
        if is_short(to) or is_short(source):
            raise NotWide
        if to.is_bool:
            text = f"({value} != ({self.kind(source)})(0))"
            return text if source.itemsize == 4 else f"convert_int{self.width}{text}"
        if source.is_bool:
            return f"convert_{self.kind(to)}({value} & 1)"
        if source.is_float and to.is_integer:  # NaN may become any number by OpenCL alone
            number = f"select({value}, ({self.kind(source)})(0), {value} != {value})"
            return f"convert_{self.kind(to)}_sat_rtz({number})"
        return f"convert_{self.kind(to)}({value})"

    def extreme(self, name: str, a: str, c: str, kind: DType) -> str:
        """The larger, or the smaller; NaN where one is."""
        if kind.is_bool:
            return f"({a} {'|' if name == 'max' else '&'} {c})"
        if not kind.is_float:
            return f"{name}({a}, {c})"
        sign = ">" if name == "max" else "<"
        return f"select(select({a}, {c}, {c} {sign} {a}), {c}, {c} != {c})"

    def native(self, name: str, args: list[str], kind: DType) -> str:
        """A function that a backend provides."""
        if name in ("maximum", "minimum"):
            return self.extreme(name[:3], args[0], args[1], kind)
        if name == "abs" and kind.is_float:
            return f"fabs({args[0]})"
        if name in LIBRARY or name in POLYNOMIALS:
            return self.call(name, args, kind)
        if name not in ("sigmoid", "softplus"):
            raise NotWide
        x, own = args[0], self.kind(kind)
        z = self.values.fresh("w")
        power = self.call("exp", [f"-fabs({x})"], kind)
        self.values.emit(f"const {own} {z} = {power};")
        if name == "sigmoid":
            return f"select(({own})(1), {z}, {x} < 0) / (1 + {z})"
        return f"select({x}, ({own})(0), {x} < 0) + log1p({z})"

    def call(self, name: str, args: list[str], kind: DType) -> str:
        """A function of wide.cl, or of the library."""
        if kind.bits == 32 and name in POLYNOMIALS:
            if self.width != self.own.vector // 4:
                raise NotWide
            name = f"pb_{name}_wide"
        return f"{name}({', '.join(args)})"

    def lane_by_lane(self, e: Expr, args: list[str]) -> str:
        """A function of numbers, for each lane."""
        own = self.own.values
        parts = [own.text(e, [f"{a}.{lane}" for a in args]) for lane in self.every()]
        return f"({self.kind(e.dtype)})({', '.join(parts)})"


class Kernel(Function):
    """Writes a routine's functions, loops in lanes as vectors where they can be."""

    def wide(
        self, body: Sequence[N.Stmt], var: N.Var, first: str, width: int, tile: Tile | None,
        registers: dict[N.Register, str],
    ) -> list[str]:  # fmt: skip
        """Lines of a loop's body for `width` lanes. Raises: NotWide."""
        with self.values.inside() as scope:
            lanes = Wide(self, var, first, width, tile)
            lanes.registers.update(registers)
            lanes.block(body)
        return scope.lines

    def apart(self, stmt: N.For, lo: str, hi: str) -> None:
        """Whole vectors, then the lanes that are left."""
        start = self.values.fresh("start")
        try:
            trip, width = trip_of(stmt), lanes_of(stmt, self.vector)
            if trip is not None and trip < width:
                raise NotWide
            lines = self.wide(stmt.body, stmt.var, start, width, None, {})
        except NotWide:
            super().apart(stmt, lo, hi)
            return
        self.emit(f"int64_t {start} = {lo};")
        self.emit(f"for (; {start} + {width} <= {hi}; {start} += {width}) {{")
        self.values.scope.lines += ["  " + line for line in lines]
        self.emit("}")
        if trip is None or trip % width:
            super().apart(stmt, start, hi)

    def beside(
        self, stmt: N.For, sums: dict[N.Register, Combiner], count: int, start: str, hi: str
    ) -> None:
        """Sums in lanes: `count` of them in vectors, which go where the rest expects them."""
        try:
            width = lanes_of(stmt, self.vector)
            lines, before, after = self.in_vectors(stmt, sums, count, start, width)
        except NotWide:
            super().beside(stmt, sums, count, start, hi)
            return
        self.values.scope.lines += before
        self.emit(f"for (; {start} + {count} <= {hi}; {start} += {count}) {{")
        self.values.scope.lines += ["  " + line for line in lines]
        self.emit("}")
        self.values.scope.lines += after

    def in_vectors(
        self, stmt: N.For, sums: dict[N.Register, Combiner], count: int, start: str, width: int
    ) -> tuple[list[str], list[str], list[str]]:
        """The lines of a turn, those before all turns and after them. Raises: NotWide."""
        trip = trip_of(stmt)
        few = trip is not None and trip < count
        if (
            few
            or count % width
            or any(r.shape or r.dtype.is_bool or is_short(r.dtype) for r in sums)
        ):
            raise NotWide
        lines, before, after = [], [], []
        for number in range(count // width):
            own: dict[N.Register, str] = {}
            for register, combiner in sums.items():
                kind, name = register.dtype, self.values.fresh("sum")
                vector = f"{NAMES[kind.name]}{width}"
                identity = self.values.of(combiner.identity(kind))
                before.append(f"{vector} {name} = ({vector})({identity});")
                carried = self.values.carried[register]
                after.append(f"vstore{width}({name}, {number}, {carried});")
                own[register] = name
            first = self.values.fresh("first")
            turn = self.wide(stmt.body, stmt.var, first, width, None, own)
            lines += [f"{{ const int64_t {first} = {start} + {number * width};", *turn, "}"]
        return lines, before, after

    def lane_by_lane(self, stmt: N.For, lanes: Lanes) -> None:
        """A part of a tile: the vectors themselves, where it is all of one."""
        try:
            if lanes.count * 4 != self.vector:
                raise NotWide

            def tile(register: N.Register, indices: Sequence[Expr]) -> str | None:
                whole = register in self.tiled and register.dtype.name == "float32"
                return self.place(register, indices, lanes) if whole else None

            text = str(lanes.first)
            lines = self.wide(stmt.body, stmt.var, text, lanes.count, tile, {})
        except NotWide:
            super().lane_by_lane(stmt, lanes)
            return
        self.emit("{")
        self.values.scope.lines += ["  " + line for line in lines]
        self.emit("}")
