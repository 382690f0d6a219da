"""Numbers added at places that are data, from several parts of a block in turn.

    for p in 0..n: check 0 <= i[p] < m; y[i[p]] sum= f(p)
    -> a block at a time, its places looked at before, q a quarter of it:
       for p in 0..q: y[i[p]] sum= f(p); y[i[q + p]] sum= f(q + p); .. two more

One addition waits until the one before is written where both are at one place, as neighbours often
are. The order in which a place's numbers add up is another one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import reduce

from pullback.algebra.linear import linear
from pullback.backends.nests.checks import Names, Values, as_passed, cheap, literal, look, spelled
from pullback.backends.nests.touched import arrays, loaded
from pullback.ir import expr as E
from pullback.ir.dtype import bool_
from pullback.ir.expr import index
from pullback.ir.nest import (
    Check,
    Declare,
    For,
    Guard,
    LoopKind,
    Peek,
    Routine,
    Stmt,
    Stmts,
    StoreCombine,
    Var,
)
from pullback.ir.node import Node, walk
from pullback.ir.statements import roots, statements

# On Zen 3, one thread, us of a loop in C, COO in order by a vector, SciPy beside it:
#   values            20,000  40,000  200,000  2,000,000
#   SciPy                 47     104      771       7079
#   one by one            42     101      775       7442
#   in 4 parts            21      43      272       2418
# On Zen 4, us of COO in order by a matrix, in 4 parts and one by one; SciPy beside it:
#   columns                     8           32          64          96
#   800,000 values, 2,000^2     1140 2930   2550 6720   5550 7350   -
#   200,000 values, 20,000^2     410  590   1430 2500   6180 6230   4750 3610
PARTS = 4
WIDE = 64  # numbers of a row that is added in parts
BLOCK = 4096  # numbers whose places are looked at before: they lie in the nearest cache


def in_parts(routine: Routine) -> Routine:
    """`routine` with its loops that add numbers, or short rows, at places that are data in parts
    of blocks.
    """
    names = Names("part")
    return replace(routine, body=tuple(_parted(s, names, frozenset()) for s in routine.body))


def _parted(s: Stmt, names: Names, around: frozenset[Node]) -> Stmt:
    """A loop in parts; of a task's, or a tile's, what is in it."""
    if not isinstance(s, For) or s.kind is not LoopKind.SEQ:
        return s
    if not _single(s, around):
        within = around | {s.var}
        body = tuple(_parted(i, names, within) for i in s.body)
        return s if body == s.body else replace(s, body=body)
    checks = [c for c in s.body if isinstance(c, Check)]
    block = Var(f"{s.var.name}_block", 0, (literal(s.hi) - 1) // BLOCK)
    begin = E.Mul(block, index(BLOCK))
    end = E.minimum(s.hi, E.Add(begin, index(BLOCK)))
    size = E.FloorDiv(E.subtract(end, begin), index(PARTS))
    looks, good = _looks(s, checks, (begin, end), names)
    body = as_passed(cheap([i for i in s.body if not isinstance(i, Check)]), checks)
    turn, part = Var(f"{s.var.name}_turn", 0, BLOCK), Var(f"{s.var.name}_part", 0, PARTS - 1)
    here = E.Add(E.Add(begin, E.Mul(part, size)), turn)
    each = For(s.var, here, E.Add(here, index(1)), body)
    abreast = For(part, index(0), index(PARTS), (each,), LoopKind.UNROLL)
    quick = (
        For(turn, index(0), size, (abreast,)),
        replace(s, lo=E.Add(begin, E.Mul(size, index(PARTS))), hi=end, body=body),
    )
    slow = replace(s, lo=begin, hi=end)
    ways = (Guard(good, quick), Guard(E.logical_not(good), (slow,))) if checks else quick
    return For(block, index(0), index(block.hi + 1), (*looks, *ways))


def _single(s: For, around: frozenset[Node]) -> bool:
    """Whether a loop only adds a number, or a row of them in lanes, at a place that is data, in
    turns that are all alike.
    """
    if not s.body:
        return False
    *before, last = s.body
    row = _row(last)
    one = last if row is None else row.body[0]
    plain = s.step == 1 and E.is_const(s.lo, 0)
    if not plain or not isinstance(s.hi, E.Const) or literal(s.hi) < PARTS:
        return False
    if not all(isinstance(c, Declare) or _checked(c) for c in before):
        return False
    held: Values = {Peek(d.register, ()): d.init for d in before if isinstance(d, Declare)}
    if not isinstance(one, StoreCombine) or not arrays(spelled(one.offset, held)):
        return False
    if row is not None and _apart(spelled(one.offset, held)) > WIDE:
        return False
    own = {*held, s.var, *around} if row is None else {*held, s.var, row.var, *around}
    leaves = {n for i in statements(s.body) for e in roots(i) for n in walk(e)}
    told = {n for n in leaves if isinstance(n, Var | Peek)} <= own
    return told and not any(one.array in loaded(i) for i in statements(s.body))


def _row(s: Stmt) -> For | None:
    """A loop that adds one row in lanes."""
    lanes = isinstance(s, For) and s.kind is LoopKind.VECTOR and len(s.body) == 1
    return s if isinstance(s, For) and lanes and E.is_const(s.lo, 0) else None


def _apart(offset: E.Expr) -> int:
    """How far apart places lie that are data: the length of a row, of which a tile has a part."""
    return min(abs(step) for term, step in linear(offset).terms if arrays(term))


def _checked(s: Stmt) -> bool:
    return isinstance(s, Check) and isinstance(s.extent, E.Const)


def _looks(
    s: For, checks: Iterable[Check], ends: tuple[E.Expr, E.Expr], names: Names
) -> tuple[Stmts, E.Expr]:
    """A look at each place of a block; whether all of them are there."""
    made: Stmts = []
    good: list[E.Expr] = []
    for check in checks:
        joined, inside = look(check, names)
        made.append(Declare(joined.register, joined.combiner.identity(joined.register.dtype)))
        made.append(For(s.var, *ends, (joined,), LoopKind.VECTOR, unroll=4))
        good.append(inside)
    return made, reduce(E.And, good or [E.const(True, bool_)])
