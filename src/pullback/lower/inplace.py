"""Which results of a routine may be written over which of its operands.

``y[i] = f(x[i])`` in any loops: y may lie where x lies, if nobody reads x afterwards.

What is read off the loop nest itself, so that no pass before has to know: an iteration of a loop
touches places of its own where the loop's variable is a *digit* of all offsets, and within an
iteration every read of x stands before the write of y that could meet it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import gcd

from pullback.algebra.linear import Linear, atom_range, divide, linear
from pullback.config import Pair, frozen
from pullback.ir import expr as E
from pullback.ir.expr import Expr
from pullback.ir.nest import (
    Array,
    For,
    Guard,
    Load,
    Prefetch,
    Routine,
    Stmt,
    Stmts,
    Store,
    StoreCombine,
    Transpose,
    Var,
)
from pullback.ir.node import walk
from pullback.ir.statements import roots, statements


def in_place(routine: Routine) -> tuple[Pair, ...]:
    """Operand and result, by their places among the arguments, that may share memory."""
    seen = _Seen()
    for statement in (*routine.body, *routine.finish):
        seen.uses(statement)
    operands = [n for n, a in enumerate(routine.arguments) if a in seen.read]
    results = [n for n, a in enumerate(routine.arguments) if a in seen.written]
    pairs = []
    for x in operands:
        for y in results:
            pair = routine.arguments[x], routine.arguments[y]
            if _alike(*pair, seen) and _Over(*pair, routine, seen).safe():
                pairs.append((x, y))
    return tuple(pairs)


def _alike(x: Array, y: Array, seen: _Seen) -> bool:
    same = x.dtype == y.dtype and x.size == y.size > 1
    return same and x not in seen.written and not seen.opaque & {x, y}


@frozen
class _Uses:
    """Offsets that a statement reads and writes, by array."""

    reads: dict[Array, list[Linear]] = field(default_factory=dict)
    writes: dict[Array, list[Linear]] = field(default_factory=dict)

    def add(self, other: _Uses) -> None:
        for mine, theirs in ((self.reads, other.reads), (self.writes, other.writes)):
            for array, forms in theirs.items():
                mine.setdefault(array, []).extend(forms)


@dataclass(slots=True)
class _Seen:
    """What each statement touches; arrays read, written, and used as no offset tells."""

    known: dict[Stmt, _Uses] = field(default_factory=dict)
    read: set[Array] = field(default_factory=set)
    written: set[Array] = field(default_factory=set)
    opaque: set[Array] = field(default_factory=set)

    def uses(self, statement: Stmt) -> _Uses:
        """What a statement touches, found once."""
        if statement not in self.known:
            self.known[statement] = self._touched(statement)
        return self.known[statement]

    def _touched(self, statement: Stmt) -> _Uses:
        uses = _Uses()
        match statement:
            case Prefetch():
                return uses
            case Transpose():
                self.opaque |= {statement.source, statement.target}
                return uses
            case Store():
                uses.writes[statement.array] = [linear(statement.offset)]
                self.written.add(statement.array)
            case StoreCombine():
                self.opaque.add(statement.array)
        for node in walk(roots(statement)):
            if isinstance(node, Load):
                uses.reads.setdefault(node.array, []).append(linear(node.offset))
                self.read.add(node.array)
        for inner in statement.body if isinstance(statement, For | Guard) else ():
            uses.add(self.uses(inner))
        return uses


@frozen
class _Over:
    """Whether `y` may be written over `x`."""

    x: Array
    y: Array
    routine: Routine
    seen: _Seen

    def safe(self) -> bool:
        routine = self.routine
        body = self._touching(routine.body)
        late = any(self._loads(s) for s in routine.finish)
        if late and any(self._stores(s) for s in body):
            return False
        if not self._ordered(routine.finish):
            return False
        return self._dealt(body) if routine.tasks > 1 else self._ordered(body)

    def _touching(self, body: Iterable[Stmt]) -> Stmts:
        return [s for s in body if self._loads(s) or self._stores(s)]

    def _loads(self, statement: Stmt) -> list[Linear]:
        return self.seen.uses(statement).reads.get(self.x, [])

    def _stores(self, statement: Stmt) -> list[Linear]:
        return self.seen.uses(statement).writes.get(self.y, [])

    def _dealt(self, body: Sequence[Stmt]) -> bool:
        """The same where tasks run side by side: all that counts is in loops that are dealt out."""
        task = self.routine.task
        if not any(self._stores(s) for s in body):
            return True
        if len(body) != 1 or not isinstance(body[0], For) or not _mentions(body[0], task):
            return False
        loop, inner = body[0], self._touching(body[0].body)
        further = any(isinstance(s, For) and _mentions(s, task) for s in loop.body)
        return self._apart(loop) and (self._dealt(inner) if further else self._ordered(inner))

    def _ordered(self, body: Iterable[Stmt]) -> bool:
        """Whether one run of these statements reads every place of x before it writes it as y."""
        written: list[Linear] = []
        for statement in body:
            loads, stores = self._loads(statement), self._stores(statement)
            if any(not _differ(a, b) for a in written for b in loads):
                return False
            if loads and stores and not self._inside(statement):
                return False
            written += _renamed(statement, stores)
        return True

    def _inside(self, statement: Stmt) -> bool:
        if isinstance(statement, For):
            apart = _once(statement) or self._apart(statement)
            return apart and self._ordered(statement.body)
        return not isinstance(statement, Guard) or self._ordered(statement.body)

    def _apart(self, loop: For) -> bool:
        """Whether iterations of a loop touch different places: by its variable, or by the names
        of its digits, ``for tile: t0 = tile // 4; t1 = tile % 4``.
        """
        forms = [*self._loads(loop), *self._stores(loop)]
        if _is_digit(loop.var, forms):
            return True
        names = []
        inner = loop.body
        while len(inner) == 1 and isinstance(inner[0], For) and _once(inner[0]):
            names.append(inner[0])
            inner = inner[0].body
        rest: Expr = loop.var
        for name in reversed([n for n in names if _is_digit(n.var, forms)]):
            if name.lo is rest:
                return True
            if isinstance(name.lo, E.Mod) and name.lo.left is rest:
                rest = linear(E.FloorDiv(rest, name.lo.right)).expr()
        return isinstance(rest, E.Const)


def _once(loop: For) -> bool:
    """Whether a loop has one iteration."""
    span = linear(loop.hi).minus(linear(loop.lo))
    return span.is_constant and span.const <= loop.step


def _renamed(statement: Stmt, forms: Iterable[Linear]) -> list[Linear]:
    """Offsets inside a statement for use outside: a loop variable of its own is any of its values,
    and no other loop's, though it may have its name.
    """
    inner = {s.var for s in statements([statement]) if isinstance(s, For)}

    def fresh(atom: Expr) -> Expr:
        return atom if inner.isdisjoint(walk(atom)) else Var(f"{atom}'", *atom_range(atom))

    return [Linear(f.const, {fresh(t): c for t, c in f.terms}) for f in forms]


def _mentions(loop: For, task: Var) -> bool:
    return task in set(walk((loop.lo, loop.hi)))


def _is_digit(var: Var, forms: Sequence[Linear]) -> bool:
    """Whether offsets tell the value of `var`, all in the same way.

    ``36 t + 6 j + k, j < 6, k < 6``: t, j and k are digits of it.
    """
    size = forms[0].of(var)
    if size <= 0:
        return False
    period, places = 0, set()
    for form in forms:
        high = divide(form, size)[0]
        if form.hidden(var) or high.of(var) != 1 or high.hidden(var):
            return False
        period = gcd(period, *(c for atom, c in high.terms if atom is not var))
        places.add(high.const)
    if period:
        return var.hi - var.lo < period and len({p % period for p in places}) == 1
    return len(places) == 1


def _differ(a: Linear, b: Linear) -> bool:
    """Whether two offsets are never equal, whatever loops they stand in: so modulo some stride."""
    gap = a.minus(b)
    for stride in (0, *sorted({abs(c) for _, c in gap.terms})):
        terms = tuple(t for t in gap.terms if not stride or t[1] % stride)
        low = gap.made(terms, gap.const)
        lo, hi = low.range()
        if (lo > 0 or hi < 0) and (not stride or -stride < lo <= hi < stride):
            return True
    return False
