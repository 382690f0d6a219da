"""Scalar expressions as C: shared nodes are named once, branches that read memory stay branches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pullback.backends.c.language import C11, computed, suffix
from pullback.errors import InvalidIR
from pullback.ir import expr as E
from pullback.ir import nest as N
from pullback.ir.dtype import DType, is_short
from pullback.ir.expr import Expr
from pullback.ir.graph import Combiner
from pullback.ir.node import Node, walk

PLAIN = 1 << 15  # numbers below it are written as they are: a product of two fits an int
SIGNS: dict[type[Expr], str] = {E.Add: "+", E.Mul: "*", E.Div: "/", E.Less: "<", E.Equal: "=="}
BITS: dict[type[Expr], str] = {E.And: "&", E.Or: "|", E.Xor: "^"}
PRIMITIVES: dict[type[Expr], str] = {E.Exp: "exp", E.Log: "log", E.Sqrt: "sqrt", E.Sin: "sin"}
HELPERS: dict[type[Expr], str] = {E.FloorDiv: "floordiv", E.Mod: "mod"}


def literal(node: E.Const) -> str:
    """``0.1`` -> ``0x1.99999ap-4f``"""
    kind, value = node.dtype, node.value
    if kind.is_bool:
        return "true" if value else "false"
    if kind.is_integer and abs(int(value)) < PLAIN:
        return f"({int(value)})" if int(value) < 0 else str(int(value))
    if kind.is_integer:
        return f"(({computed(kind)}){_integer(int(value), kind)})"
    number = float(kind.numpy.type(value))
    end = "" if kind.bits == 64 else "f"
    if math.isnan(number):
        return "NAN"
    if math.isinf(number):
        return "INFINITY" if number > 0 else "(-INFINITY)"
    if number == int(number) and abs(number) < PLAIN:
        return f"({number!r}{end})"
    return f"({number.hex()}{end})"


def _integer(value: int, kind: DType) -> str:
    if kind.kind == "u":
        return f"UINT64_C({value % (1 << kind.bits)})"
    if value == -(1 << 63):
        return "INT64_MIN"
    return f"INT64_C({value})"


class Scope:
    """The lines of a block and what is known in it by name."""

    def __init__(self, parent: Scope | None = None) -> None:
        self.parent = parent
        self.names: dict[Node, str] = {}
        self.lines: list[str] = []

    def name(self, node: Node) -> str | None:
        """What `node` is called here."""
        scope: Scope | None = self
        while scope is not None:
            if node in scope.names:
                return scope.names[node]
            scope = scope.parent
        return None


class Values:
    """Writes the value of an expression into the current scope. `arrays`: their C names."""

    def __init__(
        self, arrays: Mapping[N.Array, str], cells: Mapping[N.Register, str], language: C11
    ) -> None:
        self.language = language
        self.arrays = arrays
        self.cells = cells
        self.variables: dict[N.Var, str] = {}
        self.scope = Scope()
        self._count = 0
        self._loads: dict[Node, bool] = {}
        self._certain: dict[Node, frozenset[Node]] = {}
        self._data: dict[Node, bool] = {}

    def fresh(self, letter: str) -> str:
        """A name that nothing has."""
        self._count += 1
        return f"{letter}_{self._count}"

    @contextmanager
    def inside(self) -> Iterator[Scope]:
        """A nested block: what is named in it is not known after it."""
        self.scope = Scope(self.scope)
        try:
            yield self.scope
        finally:
            assert self.scope.parent is not None
            self.scope = self.scope.parent

    def emit(self, line: str) -> None:
        self.scope.lines.append(line)

    def loads(self, e: Expr) -> bool:
        """Whether evaluating reads memory."""
        known = self._loads.get(e)
        if known is None:
            known = self._loads[e] = any(isinstance(n, N.Load) for n in walk(e))
        return known

    def is_index(self, e: Expr) -> bool:
        """Whether it counts from loop variables and extents alone."""
        known = self._data.get(e)
        if known is None:
            leaves = (N.Load, N.Peek, E.Cast, N.Native)
            known = self._data[e] = any(isinstance(n, leaves) for n in walk(e))
        return not known and e.dtype.bits == 64

    def of(self, root: Expr) -> str:
        """The name or text of a value, its parts named before it."""
        stack: list[Expr] = [root]
        while stack:
            e = stack[-1]
            if self.scope.name(e) is not None:
                stack.pop()
                continue
            missing = [k for k in self.needed(e) if self.scope.name(k) is None]
            if missing:
                stack.extend(missing)
                continue
            stack.pop()
            self.scope.names[e] = self.named(e)
        known = self.scope.name(root)
        assert known is not None
        return known

    def needed(self, e: Expr) -> list[Expr]:
        """What must be known before `e`; of a branch that reads memory, what both sides need."""
        if isinstance(e, E.If) and (self.loads(e.then) or self.loads(e.otherwise)):
            return [e.condition, *self.shared(e)]
        return [c for c in e.children if isinstance(c, Expr)]

    def shared(self, e: E.If) -> list[Expr]:
        """What is computed whichever side is taken.

        Left to the sides, a chain of branches would be written twice at every link.
        """
        both = self.certain(e.then) & self.certain(e.otherwise)
        return [n for n in walk(e.then) if n in both and isinstance(n, Expr)]

    def certain(self, e: Expr) -> frozenset[Node]:
        """`e` and what it is made of, but for what is on one side of a branch alone."""
        for node in walk(e, skip=self._certain):
            kids = [self._certain[c] for c in node.children]
            if isinstance(node, E.If) and (self.loads(node.then) or self.loads(node.otherwise)):
                condition, then, otherwise = kids
                kids = [condition, then & otherwise]
            self._certain[node] = frozenset({node}).union(*kids)
        return self._certain[e]

    def named(self, e: Expr) -> str:
        """Write `e`, whose parts are known; its name."""
        match e:
            case E.Const():
                return literal(e)
            case N.Var():
                return self.variables[e]
            case E.If() if self.loads(e.then) or self.loads(e.otherwise):
                return self.branches(e)
        text = self.text(e, [self.known(c) for c in e.children if isinstance(c, Expr)])
        name = self.fresh("v")
        self.emit(f"const {computed(e.dtype)} {name} = {text};")
        return name

    def known(self, e: Expr) -> str:
        known = self.scope.name(e)
        if known is None:
            raise InvalidIR(f"{type(e).__name__} is not computed yet")
        return known

    def branches(self, e: E.If) -> str:
        """One side alone is computed: the other may read where nothing is."""
        name = self.fresh("v")
        self.emit(f"{computed(e.dtype)} {name};")
        self.emit(f"if ({self.known(e.condition)}) {{")
        for side, between in ((e.then, "} else {"), (e.otherwise, "}")):
            with self.inside() as scope:
                value = self.of(side)
                lines = [*scope.lines, f"{name} = {value};"]
            self.scope.lines += ["  " + line for line in lines]
            self.emit(between)
        return name

    def text(self, e: Expr, args: list[str]) -> str:
        """The C expression of one node."""
        kind = e.dtype
        match e:
            case N.Load():
                return self.loaded(f"{self.arrays[e.array]}[{args[0]}]", e.array.dtype)
            case N.Peek():
                return self.cell(e.register, args)
            case N.Native():
                return self.language.native(e.name, args, kind)
            case E.Cast():
                return cast(args[0], e.value.dtype, e.to)
            case E.If():
                return f"{args[0]} ? {args[1]} : {args[2]}"
        if type(e) in HELPERS:
            return f"pb_{HELPERS[type(e)]}_{suffix(kind)}({', '.join(args)})"
        if type(e) in PRIMITIVES:
            return self.language.call(PRIMITIVES[type(e)], args, kind)
        if type(e) in BITS:
            return f"({computed(kind)})({args[0]} {BITS[type(e)]} {args[1]})"
        if type(e) not in SIGNS:
            raise InvalidIR(f"{type(e).__name__} in a loop nest")
        if kind.is_bool and isinstance(e, E.Add | E.Mul):
            return f"{args[0]} {'|' if isinstance(e, E.Add) else '&'} {args[1]}"
        if kind.is_integer and isinstance(e, E.Add | E.Mul):
            index = self.is_index(e)
            return self.language.integer(SIGNS[type(e)], args[0], args[1], kind, index)
        return f"({computed(kind)})({args[0]} {SIGNS[type(e)]} {args[1]})"

    def cell(self, register: N.Register, indices: list[str]) -> str:
        """``acc[i][j]``"""
        return self.cells[register] + "".join(f"[{i}]" for i in indices)

    def loaded(self, place: str, kind: DType) -> str:
        """The value of an element as it is computed with."""
        if kind.is_bool:
            return f"{place} != 0"
        return f"pb_from_{kind.name}({place})" if is_short(kind) else place

    def storable(self, value: str, kind: DType) -> str:
        """An element as it lies in memory."""
        return f"pb_to_{kind.name}({value})" if is_short(kind) else value


def cast(value: str, source: DType, to: DType) -> str:
    """A value as another type: to integers towards zero and at the ends, NaN as 0."""
    if source == to:
        return value
    if to.is_bool:
        return f"{value} != 0"
    if is_short(to):
        near = f"pb_odd({value})" if source.is_float and source.bits == 64 else f"(float){value}"
        exact = source.is_integer and source.bits >= 32
        near = f"pb_odd((double){value})" if exact else near
        return f"pb_from_{to.name}(pb_to_{to.name}({near}))"
    if source.is_float and to.is_integer:
        return f"pb_to_{to.name}({value})"
    return f"({computed(to)}){value}"


def combined(language: C11, combiner: Combiner, old: str, new: str, kind: DType) -> str:
    """``join(old, new)`` of a combiner."""
    name = combiner.name
    if name in ("max", "min"):
        return f"pb_{name}imum_{suffix(kind)}({old}, {new})"
    sign = {"sum": "+", "prod": "*", "any": "|", "all": "&"}[name]
    if kind.is_bool:
        sign = {"+": "|", "*": "&"}.get(sign, sign)
    if kind.is_integer and sign in "+*":
        return language.integer(sign, old, new, kind, False)
    return f"({computed(kind)})({old} {sign} {new})"
