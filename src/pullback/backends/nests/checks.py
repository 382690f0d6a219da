"""Checks of places that are made before the loops that read or write there.

    for p in 0..n: check 0 <= i[p] < 9; y[i[p]] sum= f(p)
    -> most = max over p of uint32(i[p]); if most < 9: for p in 0..n: y[i[p]] sum= f(p)

Else the loop runs as it was, and its own check tells which place is none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pullback.algebra.bounds import Intervals
from pullback.ir import expr as E
from pullback.ir.dtype import bool_, int32, int64, uint32
from pullback.ir.expr import Expr, index
from pullback.ir.graph import ALL, MAX
from pullback.ir.nest import Check, Combine, Declare, For, Guard, Peek, Register, Stmt, Stmts, Var
from pullback.ir.node import Node, rebuild, walk
from pullback.ir.statements import roots, statements, with_roots

Values = dict[Node, Node]  # what a register that is never set holds


class Names:
    """Names of new registers of a routine: ``most_1``, with a `mark` ``most_part1``."""

    def __init__(self, mark: str = "") -> None:
        self.mark, self.count = mark, 0

    def register(self, name: str, like: Expr) -> Register:
        self.count += 1
        return Register(f"{name}_{self.mark}{self.count}", like.dtype)


def look(c: Check, names: Names) -> tuple[Combine, Expr]:
    """What a look at an index adds to a register, and what that then says of all of them."""
    narrow = c.index.value if isinstance(c.index, E.Cast) else None
    if narrow is not None and narrow.dtype is int32 and literal(c.extent) <= uint32.range()[1]:
        most = names.register("most", E.const(0, uint32))
        joined = Combine(most, (), MAX, E.Cast(narrow, uint32))
        return joined, E.Less(Peek(most, ()), E.const(literal(c.extent), uint32))
    whole = names.register("passed", E.const(True, bool_))
    inside = E.And(E.logical_not(E.Less(c.index, index(0))), E.Less(c.index, c.extent))
    return Combine(whole, (), ALL, inside), Peek(whole, ())


def literal(e: Expr) -> int:
    assert isinstance(e, E.Const)
    return int(e.value)


def shaped(register: Register, shape: tuple[int, ...]) -> Register:
    return Register(register.name, register.dtype, shape)


def spelled(e: Expr, known: Values) -> Expr:
    """`e` with registers replaced by what they hold."""
    whole = rebuild(e, lambda n: known.get(n), {})
    assert isinstance(whole, Expr)
    return whole


def pruned(body: Iterable[Stmt]) -> Stmts:
    """Without checks that are passed for certain and registers that nothing looks at."""
    intervals = Intervals()

    def passed(s: Stmt) -> bool:
        if not isinstance(s, Check) or not isinstance(s.extent, E.Const):
            return False
        lo, hi = intervals.of(s.index)
        return lo >= 0 and hi < int(s.extent.value)

    kept = [s for s in body if not passed(s)]
    while True:
        read = {
            n.register
            for s in statements(kept)
            for e in roots(s)
            for n in walk(e)
            if isinstance(n, Peek)
        }
        fewer = [s for s in kept if not isinstance(s, Declare) or s.register in read]
        if len(fewer) == len(kept):
            return kept
        kept = fewer


def places(c: Check) -> tuple[Expr, Expr | None, Expr]:
    """What stands for an index behind its check: clamped; of 32 bits shorter; itself."""
    assert isinstance(c.extent, E.Const)
    clamped = E.minimum(E.maximum(c.index, index(0)), index(literal(c.extent) - 1))
    narrow = c.index.value if isinstance(c.index, E.Cast) else None
    if narrow is None or narrow.dtype is not int32:
        return clamped, None, c.index
    plain = E.Cast(E.Cast(narrow, uint32), int64)
    return clamped, E.If(E.Less(plain, c.extent), plain, index(0)), c.index


def renamed(body: Iterable[Stmt], named: Values) -> tuple[Stmt, ...]:
    """Statements with expressions replaced, those of inner loops too."""
    made = []
    for s in body:
        fresh = with_roots(s, lambda e: spelled(e, named))
        if isinstance(fresh, For | Guard):
            fresh = replace(fresh, body=renamed(fresh.body, named))
        made.append(fresh)
    return tuple(made)


def cheap(body: Stmts) -> Stmts:
    """Behind a check of 32 bits, the index as it is or 0: one comparison, without a sign."""
    named: Values = {}
    for s in statements(body):
        if isinstance(s, Check) and isinstance(s.extent, E.Const):
            clamped, short, _ = places(s)
            if short is not None:
                named[clamped] = short
    return list(renamed(body, named))


def without(body: Stmts, checks: list[Check], known: Values) -> Stmts:
    gone = {(c.index, c.site) for c in checks}
    made: Stmts = []
    for s in body:
        if isinstance(s, Check) and (spelled(s.index, known), s.site) in gone:
            continue
        if isinstance(s, For | Guard):
            s = replace(s, body=tuple(without(list(s.body), checks, known)))
        made.append(s)
    return made


def as_passed(body: Iterable[Stmt], checks: list[Check]) -> tuple[Stmt, ...]:
    """`body` where indices that passed their checks are as they are: a variable with bounds."""
    made = tuple(body)
    for n, c in enumerate(checks):
        clamped, short, own = places(c)
        place = Var(f"passed_{n}", 0, literal(c.extent) - 1)
        named: Values = {clamped: place} if short is None else {clamped: place, short: place}
        made = (For(place, own, E.Add(own, index(1)), renamed(made, named)),)
    return made
