"""Quotients that a loop does not change, before it: no optimiser moves them, and a short row of
lanes takes less time than they do.

    for k: for l: u = (k + 2) % 28 // 7; y[k, l] = x[u]  ->  for k: u = ..; for l: y[k, l] = x[u]
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pullback.algebra.bounds import DIVIDED
from pullback.ir.expr import Expr
from pullback.ir.nest import Declare, For, Guard, Load, LoopKind, Peek, Routine, Stmt, Stmts
from pullback.ir.node import walk


def steadied(routine: Routine) -> Routine:
    """`routine` with its quotients in the outermost loop that changes them."""
    body = tuple(_block(routine.body))
    return routine if body == routine.body else replace(routine, body=body)


def _block(body: Iterable[Stmt]) -> Stmts:
    made: Stmts = []
    for s in body:
        if isinstance(s, For) and s.kind is LoopKind.SEQ:
            inner = _block(s.body)
            out = [i for i in inner if isinstance(i, Declare) and _moves(i.init, s)]
            rest = tuple(i for i in inner if i not in out)
            made += [*out, s if rest == s.body else replace(s, body=rest)]
        elif isinstance(s, Guard):
            made.append(replace(s, body=tuple(_block(s.body))))
        else:
            made.append(s)
    return made


def _moves(value: Expr, loop: For) -> bool:
    """Whether it divides, and is made of literals and variables of outer loops alone."""
    nodes = list(walk(value))
    if any(n is loop.var or isinstance(n, Load | Peek) for n in nodes):
        return False
    return any(isinstance(n, DIVIDED) for n in nodes)
