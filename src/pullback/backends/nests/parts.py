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

from pullback.backends.nests.checks import Names, as_passed, cheap, literal, look
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
from pullback.ir.node import walk
from pullback.ir.statements import roots

# On Zen 3, one thread, us of a loop in C, COO in order by a vector, SciPy beside it:
#   values            20,000  40,000  200,000  2,000,000
#   SciPy                 47     104      771       7079
#   one by one            42     101      775       7442
#   in 4 parts            21      43      272       2418
PARTS = 4
BLOCK = 4096  # numbers whose places are looked at before: they lie in the nearest cache


def in_parts(routine: Routine) -> Routine:
    """`routine` with its loops over single numbers for places that are data in parts of blocks."""
    if routine.tasks != 1:
        return routine
    names = Names("part")
    return replace(routine, body=tuple(_parted(s, names) for s in routine.body))


def _parted(s: Stmt, names: Names) -> Stmt:
    if not isinstance(s, For) or not _single(s):
        return s
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


def _single(s: For) -> bool:
    """Whether a loop only adds a number at a place that is data, in turns that are all alike."""
    if not s.body:
        return False
    *before, one = s.body
    plain = s.kind is LoopKind.SEQ and s.step == 1 and E.is_const(s.lo, 0)
    if not plain or not isinstance(s.hi, E.Const) or literal(s.hi) < PARTS:
        return False
    if not isinstance(one, StoreCombine) or not arrays(one.offset):
        return False
    if not all(isinstance(c, Check) and isinstance(c.extent, E.Const) for c in before):
        return False
    leaves = {n for i in s.body for e in roots(i) for n in walk(e) if isinstance(n, Var | Peek)}
    return leaves == {s.var} and not any(one.array in loaded(i) for i in s.body)


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
