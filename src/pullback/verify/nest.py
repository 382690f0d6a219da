"""Checks on loop nests, run after lowering: accesses, registers, variables, types."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from pullback.algebra.bounds import Intervals, Prover
from pullback.errors import InvalidIR
from pullback.ir import expr as E
from pullback.ir.dtype import DType, bool_, int64
from pullback.ir.expr import Expr, index
from pullback.ir.nest import (
    NATIVES,
    Array,
    Check,
    Combine,
    Declare,
    For,
    Guard,
    Load,
    Native,
    Peek,
    Prefetch,
    Register,
    Routine,
    Set,
    Stmt,
    Store,
    StoreCombine,
    Transpose,
    Var,
)
from pullback.ir.node import Node, rebuild, walk
from pullback.simplify.guards import Guards, conjuncts, contexts
from pullback.verify import points

SHAPED = {*E.SCALARS, Var, Load, Peek, Native} - {E.Axis, E.Take}


@dataclass(slots=True)
class _Scope:
    """What is visible at a statement."""

    variables: frozenset[Var]
    registers: frozenset[Register]
    guards: Guards = ()


@dataclass(slots=True)
class _Verifier:
    routine: Routine
    after: str
    arrays: frozenset[Array]
    changed: frozenset[Register]
    intervals: Intervals = field(default_factory=Intervals)
    named: dict[Node, Expr] = field(default_factory=dict)
    guarding: set[Expr] = field(default_factory=set)
    never: set[Expr] = field(default_factory=set)

    def fail(self, check: str, what: str) -> InvalidIR:
        return InvalidIR(f"after {self.after}: {self.routine.name}: {what} ({check})")

    def block(self, body: Iterable[Stmt], scope: _Scope) -> None:
        """Statements in order; what one declares the next ones see, and do not declare again."""
        own: set[Register] = set()
        for statement in body:
            if isinstance(statement, Declare):
                if statement.register in own:
                    raise self.fail("declared_once", f"{statement.register} is declared again")
                own.add(statement.register)
            self.statement(statement, scope)

    def statement(self, s: Stmt, scope: _Scope) -> None:
        match s:
            case For():
                self.loop(s, scope)
            case Guard():
                self.typed(s.condition, bool_, "guard", scope)
                never = Prover((), self.intervals).prove(s.condition) is False
                (self.never if never else self.guarding).add(s.condition)
                self.block(s.body, self.inner(scope, s.condition))
            case Declare():
                self.typed(s.init, s.register.dtype, f"declaration of {s.register}", scope)
                scope.registers |= {s.register}
                self.remember(s)
            case Set() | Combine():
                self.register(s.register, s.indices, scope)
                self.typed(s.value, s.register.dtype, f"value for {s.register}", scope)
            case Store() | StoreCombine():
                if isinstance(s, StoreCombine):
                    self.unread(s.array)
                self.typed(s.offset, int64, f"offset into {s.array}", scope)
                self.typed(s.value, s.array.dtype, f"value for {s.array}", scope)
                self.access(s.array, s.offset, (scope.guards,))
            case Check():
                self.check(s, scope)
            case Transpose():
                self.transpose(s, scope)
            case Prefetch():
                self.known(s.array)
                self.typed(s.offset, int64, f"offset of a prefetch of {s.array}", scope)

    def remember(self, s: Declare) -> None:
        """A register that is never set keeps its first value and that one's bounds."""
        kept = s.register.dtype in (int64, bool_) and not s.register.shape
        if not kept or s.register in self.changed:
            return
        place = Peek(s.register, ())
        if s.register.dtype == int64:
            self.intervals.leaves[place] = self.intervals.of(s.init)
        self.named[place] = self.spelled(s.init)

    def spelled(self, e: Expr) -> Expr:
        """`e` with registers that are never set replaced by what they hold."""
        whole = rebuild(e, self.named.get, {})
        assert isinstance(whole, Expr)
        return whole

    def inner(self, scope: _Scope, *guards: Expr) -> _Scope:
        return _Scope(scope.variables, scope.registers, scope.guards + guards)

    def loop(self, s: For, scope: _Scope) -> None:
        if s.step < 1:
            raise self.fail("loops_advance", f"loop over {s.var.name} steps by {s.step}")
        for bound in (s.lo, s.hi):
            self.typed(bound, int64, f"bound of {s.var.name}", scope)
        given = []
        last = self.intervals.of(s.hi)[1] - 1
        if last != s.var.hi or not isinstance(s.hi, E.Const):
            given.append(E.Less(s.var, s.hi))
        if not E.is_const(s.lo, 0):
            given.append(E.Less(s.lo, E.Add(s.var, index(1))))
        inside = self.inner(scope, *given)
        inside.variables |= {s.var}
        self.block(s.body, inside)

    def check(self, s: Check, scope: _Scope) -> None:
        for e in (s.index, s.extent):
            self.typed(e, int64, "check", scope)
        if not 0 <= s.site < len(self.routine.sites):
            raise self.fail("sites_exist", f"check of site {s.site}")

    def transpose(self, s: Transpose, scope: _Scope) -> None:
        for e in (s.target_offset, s.source_offset, s.rows, s.columns):
            self.typed(e, int64, "transpose", scope)
        if s.target.dtype != s.source.dtype:
            raise self.fail("typed", f"transpose of {s.source.dtype} to {s.target.dtype}")
        r = E.Add(s.rows, index(-1))
        c = E.Add(s.columns, index(-1))
        last = E.Add(E.Mul(c, index(s.target_row)), _end(r, s.word))
        self.access(s.target, E.Add(s.target_offset, last), (scope.guards,), last)
        self.unread(s.source)
        last = E.Add(E.Mul(r, index(s.source_row)), _end(c, s.word))
        self.access(s.source, E.Add(s.source_offset, last), (scope.guards,), last)

    def typed(self, e: Expr, kind: DType, what: str, scope: _Scope) -> None:
        """An expression has its type and is well formed here."""
        if e.dtype != kind:
            raise self.fail("typed", f"{what} is {e.dtype}, want {kind}")
        ways = None
        for node in walk(e):
            self.leaf(node, scope)
            if isinstance(node, Load):
                self.unread(node.array)
                ways = contexts((e,)) if ways is None else ways
                paths = tuple(scope.guards + guards for guards in ways[node])
                self.access(node.array, node.offset, paths)

    def leaf(self, node: Node, scope: _Scope) -> None:
        """A node is one of a loop nest's, over what is visible."""
        if type(node) not in SHAPED:
            raise self.fail("known_nodes", f"{type(node).__name__} in a loop nest")
        if isinstance(node, Var) and node not in scope.variables:
            raise self.fail("variables_bound", f"{node.name} is not a loop around its use")
        if isinstance(node, Peek):
            self.register(node.register, node.indices, scope)
        if isinstance(node, Native) and node.name not in NATIVES:
            raise self.fail("known_nodes", f"no native function {node.name}")

    def register(self, register: Register, indices: Sequence[Expr], scope: _Scope) -> None:
        """A register is declared before its use and indexed inside its shape."""
        if register not in scope.registers:
            raise self.fail("registers_declared", f"{register} is used before it is declared")
        if len(indices) != len(register.shape):
            raise self.fail("register_shape", f"{register} with {len(indices)} indices")
        for e, extent in zip(indices, register.shape, strict=True):
            for node in walk(e):
                if isinstance(node, Var) and node not in scope.variables:
                    raise self.fail("variables_bound", f"{node.name} is not bound")
            if not self.inside(e, extent, (scope.guards,)):
                lo, hi = self.intervals.of(e)
                raise self.fail("register_shape", f"{register}[{lo}..{hi}] of {extent}")

    def access(
        self,
        array: Array,
        offset: Expr,
        paths: tuple[Guards, ...],
        span: Expr | None = None,
    ) -> None:
        """An offset lies within its array, or under a guard that mentions it."""
        self.known(array)
        # The last element of a block is counted from its start: an empty block touches nothing.
        given = () if span is None else (E.Less(index(-1), span),)
        if not self.inside(offset, array.size, tuple(g + given for g in paths)):
            lo, hi = self.intervals.of(offset)
            what = f"{array}[{lo}..{hi}] is not proved to lie within {array.size} elements"
            raise self.fail("accesses_inside", what)

    def unread(self, array: Array) -> None:
        """What is written past the caches is not read."""
        if array in self.routine.streamed:
            raise self.fail("streamed_unread", f"{array} is written past the caches, and read")

    def known(self, array: Array) -> None:
        if array not in self.arrays:
            raise self.fail("arrays_known", f"{array} is not an array of the routine")

    def inside(self, e: Expr, size: int, paths: tuple[Guards, ...]) -> bool:
        lo, hi = self.intervals.of(e)
        if lo >= 0 and hi < size:
            return True
        return all(self.guarded(self.spelled(e), size, lo, guards) for guards in paths)

    def guarded(self, e: Expr, size: int, lo: int, guards: Guards) -> bool:
        """Whether guards prove an offset, or at least speak of what it depends on."""
        leaves = frozenset(n for n in walk(e) if isinstance(n, Var | Load | Peek))
        near = tuple(g for g in guards if any(n in leaves for n in walk(g)))
        proved = Prover(near, self.intervals).inside(e, size)
        if proved:
            return True
        if proved is False and self.outside(e, size, near):
            return self.unreachable(near) or self.tried(e, size, guards) is True
        tried = self.tried(e, size, guards)
        return bool(near) if tried is None else tried

    def tried(self, e: Expr, size: int, guards: Guards) -> bool | None:
        """Whether no point of a small box that fulfils the guards lies outside. None: not known,
        as a guard on data may exclude what points do not.
        """
        spelled = [c for g in guards for c in conjuncts(self.spelled(g))]
        inside = points.inside(e, size, spelled)
        return None if not inside and any(map(points.has_data, spelled)) else inside

    def outside(self, e: Expr, size: int, guards: Guards) -> bool:
        """Whether `e` must lie outside whatever a guard says: one that never holds proves all."""
        plain = [g for g in guards if g not in self.guarding]
        return Prover(plain, self.intervals).inside(e, size) is False

    def unreachable(self, guards: Guards) -> bool:
        """Whether guards exclude each other; a guard that is written and never holds is wrong."""
        parts = list(guards)
        for g in parts:
            parts += [g.left, g.right] if isinstance(g, E.And) else []
        parts = [g for g in parts if not isinstance(g, E.And)]
        if not self.never.isdisjoint(guards):
            return False
        return any(
            Prover(parts[:n] + parts[n + 1 :], self.intervals).prove(g) is False
            for n, g in enumerate(parts)
        )


def _end(last: Expr, word: int) -> Expr:
    """The last element of the last word."""
    return last if word == 1 else E.Add(E.Mul(last, index(word)), index(word - 1))


def verify_routine(routine: Routine, after: str) -> None:
    """Accesses proved in bounds or guarded, registers declared, variables bound, types equal.

    Raises: InvalidIR naming the pass and the kernel.
    """
    arrays = frozenset((*routine.arguments, *routine.scratch, *routine.shared))
    changed = frozenset(_changed((*routine.body, *routine.finish)))
    verifier = _Verifier(routine, after, arrays, changed)
    for body in (routine.body, routine.finish):
        visible = frozenset((routine.task, *routine.sizes))
        verifier.block(body, _Scope(visible, frozenset()))


def _changed(body: Iterable[Stmt]) -> Iterator[Register]:
    """Registers that are set or combined after their declaration."""
    for s in body:
        if isinstance(s, Set | Combine):
            yield s.register
        elif isinstance(s, For | Guard):
            yield from _changed(s.body)
