"""Loops over few phases written out, where they decide how often inner loops turn.

``for r < 2: for k in 1 - r..2: f(r, k)  ->  for r in 0..1: f(0, 1); for r in 1..2: f(1, 0); ..``

What turns once or twice is no loop then: its counting costs more than a step of a tile. But where
two turns read some of the same elements for the rows of a tile, side by side they are held from
one to the next, in registers that the sums of the tile need.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from math import prod

from pullback.algebra.linear import linear
from pullback.config import Cap
from pullback.ir.dtype import int64
from pullback.ir.expr import Expr, index
from pullback.ir.nest import Declare, For, Guard, Load, LoopKind, Stmt, Stmts, Var
from pullback.ir.node import walk
from pullback.ir.statements import with_roots
from pullback.lower.context import Nest
from pullback.lower.guards import Values, replaced
from pullback.schedule.regions import Region

MOST_PHASES: Cap = 4  # each is code of its own, which takes time to compile
MOST_TURNS: Cap = 2  # turns that are written out


def phases(loops: Nest, work: Region) -> Nest:
    """Those of `loops` that say how many terms there are; none where that is much code."""
    named = {node for bound in work for atom in bound.form.atoms for node in walk(atom)}
    few = [loop for loop in loops if loop.var in named and loop.static and loop.whole]
    return few if prod(loop.most for loop in few) <= MOST_PHASES else []


def written_out(loops: Nest, body: Stmts) -> Stmts:
    """`body` at each of the coordinates of `loops`, one after the other, in loops of one turn:
    registers are declared once in each.
    """
    if not loops:
        return body
    made: Stmts = []
    for first, *rest in product(*(range(loop.most) for loop in loops)):
        values: Values = {o.var: index(n) for o, n in zip(loops, (first, *rest), strict=True)}
        ends = index(first), index(first + 1)
        made.append(For(loops[0].var, *ends, tuple(_at(body, values))))
    return made


def _at(body: Iterable[Stmt], values: Values) -> Stmts:
    """`body` where variables have these values."""

    def known(e: Expr) -> Expr:
        new = replaced(e, values)
        return linear(new).expr() if new.dtype is int64 else new

    made: Stmts = []
    for stmt in body:
        new = with_roots(stmt, known)
        if isinstance(new, For | Guard):
            new = replace(new, body=tuple(_at(new.body, values)))
        if isinstance(new, For) and _is_few(new):
            new = replace(new, kind=LoopKind.UNROLL)
        made.append(new)
    return made


def _is_few(loop: For) -> bool:
    """Whether a loop has few turns and no other that counts is in it."""
    inner = [s.kind for s in loop.body if isinstance(s, For)]
    if loop.kind is not LoopKind.SEQ or LoopKind.SEQ in inner:
        return False
    turns = linear(loop.hi).minus(linear(loop.lo))
    if not turns.is_constant or not 0 < turns.const <= MOST_TURNS:
        return False
    return turns.const == 1 or not any(_overlap(loop.var, s) for s in loop.body)


def _overlap(turn: Var, rows: Stmt) -> bool:
    """Whether a turn reads for one row what another turn reads for another row.

    ``unroll i < 14: a = x[i + r]``: at r = 1 thirteen of what r = 0 reads.
    """
    if not isinstance(rows, For) or rows.kind is not LoopKind.UNROLL:
        return False
    count = linear(rows.hi).const
    for stmt in rows.body:
        if not isinstance(stmt, Declare) or not isinstance(stmt.init, Load):
            continue
        place = linear(stmt.init.offset)
        step, shift = place.of(rows.var), place.of(turn)
        if step and shift and shift % step == 0 and abs(shift) < abs(step) * count:
            return True
    return False
