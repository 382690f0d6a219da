"""Scalar expressions -> LLVM values, in lanes where they vary.

Nothing recurses: an explicit stack evaluates children before parents, an `If`'s branches after
its condition. Index arithmetic whose bounds fit runs in 32-bit lanes.
"""

from __future__ import annotations

from collections.abc import Callable
from math import copysign
from typing import cast

from pullback.backends.llvm import arith, vmath, vpower, vwide
from pullback.backends.llvm.memory import Memory
from pullback.backends.llvm.registers import Registers
from pullback.backends.llvm.scope import Scope
from pullback.backends.llvm.text import BITS, Builder, Val, const, iota, literals
from pullback.backends.nests.analysis import NOTHING, Facts, Varying
from pullback.errors import InvalidIR
from pullback.ir import expr as E
from pullback.ir.dtype import DType, bfloat16, float32, int64
from pullback.ir.expr import Expr
from pullback.ir.graph import Combiner
from pullback.ir.nest import Load, Native, Peek, Register, Var
from pullback.ir.node import Node, walk
from pullback.ir.statements import Given

Need = tuple[Expr, Scope]
ELEMENTARY: dict[str, Callable[[Builder, Val], Val]] = {
    "sqrt": vmath.sqrt, "exp": vmath.exp, "log": vmath.log, "sin": vmath.sin, "cos": vmath.cos,
    "tan": vmath.tan, "tanh": vmath.tanh, "erf": vmath.erf, "sigmoid": vmath.sigmoid,
    "normal_cdf": vmath.normal_cdf,
}  # fmt: skip
"""Functions of floats with code of their own."""
SINGLE: dict[str, Callable[[Builder, Val], Val]] = {
    "log1p": vmath.log1p, "softplus": vmath.softplus,
}  # fmt: skip
"""Those of float32 alone."""

# Lanes of a whole vector of float32, which is what dot instructions leave.
WHOLE = 16


class Values:
    """Evaluates expressions of one function."""

    def __init__(
        self, builder: Builder, facts: Facts, memory: Memory, registers: Registers
    ) -> None:
        self.b = builder
        self.facts = facts
        self.memory = memory
        self.registers = registers
        self._given = 0
        self._literals: dict[Expr, Val] = {}
        self._strays: dict[Varying | None, dict[Node, bool]] = {}
        # Sums of an instruction that knows no denormals.
        self.flushed: set[Register] = set()

    def of(self, root: Expr, scope: Scope) -> Val:
        """The value of `root` in `scope`."""
        known = self.known(root, scope)
        if known is not None:
            return known
        stack: list[Need] = [(root, scope)]
        while stack:
            node, at = stack[-1]
            at = self.home(node, at)
            if at.find(node) is not None:
                stack.pop()
                continue
            missing = [n for n in self.needs(node, at) if self.known(*n) is None]
            if missing:
                stack.extend(reversed(missing))
                continue
            stack.pop()
            at.keep(node, self.apply(node, at), self.facts.reads(node))
        return self.get(root, scope)

    def known(self, e: Expr, scope: Scope) -> Val | None:
        """The value, if it was computed already."""
        if isinstance(e, E.Const):
            literal = self._literals.get(e)
            if literal is None:
                literal = self._literals[e] = const(e.value, arith.COMPUTE[e.kind.name])
            return literal
        return self.home(e, scope).find(e)

    def get(self, e: Expr, scope: Scope) -> Val:
        """The value, which was computed already."""
        value = self.known(e, scope)
        if value is None:
            raise InvalidIR(f"no value for {e}")
        return value

    def home(self, e: Expr, scope: Scope) -> Scope:
        """The widest scope in which `e` may be computed."""
        strays = self.strays(e, scope)
        if not strays:
            scope = scope.plain
        if scope.lanes is None or self.varies(e, scope):
            return scope
        return scope.uniform if not (strays and scope.guarded) else scope

    def strays(self, e: Expr, scope: Scope) -> bool:
        """Whether it reads what a guard may keep it from: all but single elements that exist."""
        if not self.facts.loads(e):
            return False
        known = self._strays.setdefault(None if scope.lanes is None else scope.lanes.varying, {})
        if e not in known:
            for n in walk(e, skip=known):
                below = any(known[c] for c in n.children)
                known[n] = below or (isinstance(n, Load) and not self.memory.certain(n, scope))
        return known[e]

    def varies(self, e: Expr, scope: Scope) -> bool:
        """Whether the value differs between the lanes of `scope`."""
        return scope.lanes is not None and scope.lanes.varying.of(e)

    def needs(self, e: Expr, at: Scope) -> list[Need]:
        """What must be known before `e`, each with its scope."""
        if isinstance(e, E.If):
            return self._branches(e, at)
        if isinstance(e, Load):
            return self.memory.needs(e.offset, at)
        if isinstance(e, Peek):
            return []
        return [(cast(Expr, c), at) for c in e.children]

    def _branches(self, e: E.If, at: Scope) -> list[Need]:
        condition = self.known(e.condition, at)
        if condition is None:
            return [(e.condition, at)]
        if condition.literal is not None:
            return [(e.then if condition.literal else e.otherwise, at)]
        shared = [(n, at) for n in self.facts.shared(e) if self.known(n, at) is None]
        if shared:
            return shared
        sides = []
        for side, positive in ((e.then, True), (e.otherwise, False)):
            inside = at
            if self.strays(side, at) and self.known(side, at) is None:
                inside = at.branch(self.b, e.condition, condition, positive)
            sides.append((side, inside))
        return sides

    def apply(self, e: Expr, at: Scope) -> Val:
        """The value of `e` once its needs are known."""
        match e:
            case Var():
                return self._variable(e, at)
            case Load():
                return self.memory.load(e, at, self.get)
            case Peek():
                return self.registers.peek(e.register, e.indices, at)
            case E.If():
                return self._select(e, at)
            case E.Cast():
                return self._cast(e, at)
            case E.Exp() | E.Log() | E.Sqrt() | E.Sin():
                return ELEMENTARY[type(e).__name__.lower()](self.b, self.get(e.value, at))
            case Native():
                return self._native(e, at)
            case E.Binary():
                return self._binary(e, at)
        raise InvalidIR(f"{type(e).__name__} is not defined in a loop nest")

    # -- leaves

    def _variable(self, e: Var, at: Scope) -> Val:
        lanes = at.lanes
        if lanes is None or e is not lanes.var:
            raise InvalidIR(f"loop variable {e.name} is used outside its loop")
        base = at.uniform.find(e)
        assert base is not None
        kind = "i32" if self.facts.narrow(e) else "i64"
        first = self.fit(base, kind)
        first = self.b.binary("add", first, const(at.first, kind))
        return self.b.binary("add", iota(kind, lanes.count), self.b.splat(first, lanes.count))

    # -- operations

    def fit(self, a: Val, kind: str) -> Val:
        """An index in `kind` bits; its bounds are known to fit."""
        if a.kind == kind:
            return a
        return self.b.convert("trunc" if BITS[kind] < BITS[a.kind] else "sext", a, kind)

    def _alike(self, items: list[Val], dtype: DType, narrow: bool) -> list[Val]:
        """Operands of one type: int64 ones in 32 bits where `narrow` and there are lanes."""
        if dtype.kind != "i" or dtype.bits != 64:
            return items
        lanes = any(i.lanes for i in items)
        kind = "i32" if lanes and narrow else "i64"
        return [self.fit(i, kind) for i in items]

    def _binary(self, e: E.Binary, at: Scope) -> Val:
        dtype = e.left.dtype
        phase = at.lanes.phase(e, self.facts) if at.lanes and isinstance(e, E.Mod) else None
        if phase is not None and at.lanes is not None:
            kind = "i32" if self._narrow(e) else "i64"
            return literals(kind, [n % phase for n in range(at.lanes.count)])
        narrow = self._narrow(e.left) and self._narrow(e.right)
        if narrow and not e.dtype.is_bool:
            narrow = self._narrow(e)
        raw = [self.get(e.left, at), self.get(e.right, at)]
        a, c = self._alike(raw, dtype, narrow)
        if dtype is not int64 or a.lanes or c.lanes:
            return self._operation(e, a, c)
        with self.b.before(at.entered(max(a.number, c.number))):
            return self._operation(e, a, c)

    def _operation(self, e: E.Binary, a: Val, c: Val) -> Val:
        dtype = e.left.dtype
        match e:
            case E.Add():
                return arith.add(self.b, a, c, dtype)
            case E.Mul():
                return arith.multiply(self.b, a, c, dtype)
            case E.Div():
                return self.b.binary("fdiv", a, c)
            case E.FloorDiv() | E.Mod():
                positive = dtype.is_integer and self.facts.interval(e.left)[0] >= 0
                rule = arith.floor_divide if isinstance(e, E.FloorDiv) else arith.modulo
                return rule(self.b, a, c, dtype, positive)
            case E.Less():
                signed = "slt" if dtype.kind == "i" else "ult"
                return self.b.compare("olt" if dtype.is_float else signed, a, c)
            case E.Equal():
                return self.b.compare("oeq" if dtype.is_float else "eq", a, c)
        return self.b.binary(type(e).__name__.lower(), a, c)

    def _narrow(self, e: Expr) -> bool:
        return e.dtype.kind == "i" and self.facts.narrow(e)

    def _select(self, e: E.If, at: Scope) -> Val:
        condition = self.get(e.condition, at)
        scopes = self._branches(e, at)
        sides = [self.get(side, inside) for side, inside in scopes]
        if len(sides) == 1:
            return sides[0]
        for n, (side, inside) in enumerate(scopes):
            other = scopes[1 - n][0]
            if inside is not at and _is_zero(other) and self.memory.zero_outside(side, inside):
                return sides[n]
        lanes = condition.lanes or sides[0].lanes or sides[1].lanes
        narrow = bool(lanes) and self._narrow(e)
        if e.dtype.is_integer and e.dtype.bits == 64:
            sides = [self.fit(s, "i32" if narrow else "i64") for s in sides]
        return self.b.select(condition, sides[0], sides[1])

    def _cast(self, e: E.Cast, at: Scope) -> Val:
        value = self.get(e.value, at)
        flushed = isinstance(e.value, Peek) and e.value.register in self.flushed
        if e.to == bfloat16 and flushed and value.lanes == WHOLE:
            return arith.flushed(self.b, value)
        narrow = bool(value.lanes) and self._narrow(e)
        return arith.cast(self.b, value, e.value.dtype, e.to, narrow)

    def _native(self, e: Native, at: Scope) -> Val:
        args = [self.get(a, at) for a in e.args]
        narrow = all(self._narrow(a) for a in e.args)
        args = self._alike(args, e.dtype, narrow)
        match e.name:
            case name if name in ELEMENTARY and len(args) == 1:
                return ELEMENTARY[name](self.b, args[0])
            case name if name in SINGLE and e.dtype == float32:
                return SINGLE[name](self.b, args[0])
            case name if name in vwide.NAMES and e.dtype == float32:
                return vwide.call(self.b, name, args[0])
            case "power" if e.dtype == float32 and args[0].literal == 2.0:
                return vmath.exp2(self.b, args[1])
            case "power" if e.dtype.is_float:
                rule = vwide.power if e.dtype == float32 else vpower.power
                return rule(self.b, args[0], args[1])
            case "maximum" | "minimum":
                return arith.extremum(self.b, e.name[:3], args[0], args[1], e.dtype)
            case "abs":
                return arith.absolute(self.b, args[0], e.dtype)
            case "floor":
                return self.b.intrinsic("floor", args[0]) if e.dtype.is_float else args[0]
            case "rint":
                return self.b.intrinsic("rint", args[0])
            case "fma" if e.dtype.is_float:
                return self.b.multiply_add(*args)
        raise InvalidIR(f"native function {e.name} of {e.dtype}")

    # -- combiners

    def join(self, combiner: Combiner, a: Val, c: Val, dtype: DType, at: Scope) -> Val:
        """``join(a, c)`` of two values at hand."""
        a, c = self._alike([a, c], dtype, narrow=False)
        match combiner.name:
            case "sum":
                return arith.add(self.b, a, c, dtype)
            case "prod":
                return arith.multiply(self.b, a, c, dtype)
            case "max" | "min":
                return arith.extremum(self.b, combiner.name, a, c, dtype)
            case "any":
                return self.b.binary("or", a, c)
            case "all":
                return self.b.binary("and", a, c)
        a, c = self.b.unify(a, c)
        self._given += 2
        left, right = Given(self._given, dtype), Given(self._given + 1, dtype)
        inside = Scope()
        inside.keep(left, a, NOTHING)
        inside.keep(right, c, NOTHING)
        return self.of(combiner.join(left, right), inside)


def _is_zero(e: Expr) -> bool:
    """Whether all bits are zero, as what a load reads where its guard does not hold."""
    return isinstance(e, E.Const) and not e.value and copysign(1, e.value) > 0
