"""Loops of a few turns around little at places that are data, written out: what all turns have,
checks and products of places, is computed once.

    for p: for a in 0..3: for b in 0..3: y[i[p] + a, j[p] + b] += f    ->    nine writes for each p
"""

from __future__ import annotations

from dataclasses import replace

from pullback.backends.nests.touched import arrays
from pullback.ir import expr as E
from pullback.ir.dtype import int64
from pullback.ir.expr import Expr
from pullback.ir.nest import For, Guard, LoopKind, Routine, Stmt
from pullback.ir.node import walk
from pullback.ir.statements import roots, statements

TURNS = 4  # of a loop that is written out, at most
STATEMENTS = 48  # that a turn around such loops has then, at most


def written_out(routine: Routine) -> Routine:
    """`routine` with its short loops inside of others written out."""
    return replace(routine, body=tuple(_short(s, False)[0] for s in routine.body))


def _short(s: Stmt, inside: bool) -> tuple[Stmt, int]:
    """A statement with the short loops in it written out, and how many statements it is then."""
    if not isinstance(s, For | Guard):
        return s, 1
    made = [_short(i, inside or isinstance(s, For)) for i in s.body]
    size = sum(n for _, n in made)
    if any(new is not old for (new, _), old in zip(made, s.body, strict=True)):
        s = replace(s, body=tuple(new for new, _ in made))
    if isinstance(s, Guard):
        return s, size + 1
    turns = _turns(s)
    if s.kind is LoopKind.UNROLL:
        return s, size * (turns or 1)
    few = s.kind is LoopKind.SEQ and turns is not None and turns <= TURNS
    if inside and few and turns is not None and turns * size <= STATEMENTS and _placed(s):
        return replace(s, kind=LoopKind.UNROLL), turns * size
    return s, size + STATEMENTS * (s.kind is LoopKind.SEQ)


def _placed(s: For) -> bool:
    """Whether a place in it is data."""
    own = (n for i in statements(s.body) for e in roots(i) for n in walk(e))
    return any(isinstance(n, Expr) and n.dtype is int64 and bool(arrays(n)) for n in own)


def _turns(s: For) -> int | None:
    """Of a loop between literals in steps of one."""
    if not isinstance(s.lo, E.Const) or not isinstance(s.hi, E.Const) or s.step != 1:
        return None
    return int(s.hi.value) - int(s.lo.value)
