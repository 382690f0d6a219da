"""Rows of sums side by side, where each waits for its own last addition.

    for i: for j in lanes: s = 0; for k: s += f(i, k, j); y[i, j] = s
    ->
    for m: for j in lanes: s[2] = 0; for k: s[r] += f(2*m + r, k, j) for r < 2; y[2*m + r, j] = s[r]

A row of few vectors keeps few sums in flight; what rows share is read once for all of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pullback.algebra.linear import Linear, linear
from pullback.config import frozen
from pullback.ir.dtype import int64
from pullback.ir.expr import Const, Expr, FloorDiv, const, index
from pullback.ir.nest import (
    Combine,
    Declare,
    For,
    Load,
    LoopKind,
    Peek,
    Register,
    Set,
    Stmt,
    Stmts,
    Store,
    Var,
)
from pullback.ir.node import walk
from pullback.ir.statements import roots, statements, with_roots
from pullback.lower.context import Context, NestLoop, unrolled
from pullback.lower.guards import replaced


def abreast(context: Context, rows: NestLoop, count: int, body: Stmts) -> Stmts:
    """The loop `rows` around `body`, whose sums run `count` rows at a time where they may."""
    one = For(rows.var, rows.first, rows.extent, tuple(body))
    if count < 2 or rows.most < count or rows.first is not index(0) or not _independent(one):
        return [one]
    block, each = context.var("m", rows.most // count), context.var("r", count)
    blocks = linear(FloorDiv(rows.extent, index(count)))
    place = Linear(0, {block: count, each: 1}).expr()
    own = dict.fromkeys(s.register for s in statements(body) if isinstance(s, Declare))
    fresh = {r: context.register(r.name.rstrip("0123456789"), r.dtype, (count,)) for r in own}
    side = _Side(rows.var, place, each, count, fresh)
    made: Stmts = [For(block, index(0), blocks.expr(), side.statements(body))]
    if not rows.static or rows.most % count:
        made.append(For(rows.var, blocks.times(count).expr(), rows.extent, tuple(body)))
    return made


def _independent(loop: For) -> bool:
    """Whether a row does not see another, and only sums, loops and stores of plain values are
    there, whose numbers are those of all rows.
    """
    inner = list(statements(loop.body))
    stored = {s.array for s in inner if isinstance(s, Store)}
    for s in inner:
        reads = [n for root in roots(s) for n in walk(root)]
        if any(isinstance(n, Load) and n.array in stored for n in reads):
            return False
        match s:
            case Declare() | Set() | Combine() if not s.register.shape:
                continue
            case For(kind=LoopKind.SEQ | LoopKind.VECTOR) if loop.var not in reads:
                continue
            case Store():
                continue
            case _:
                return False
    return True


@frozen
class _Side:
    """What becomes of one row's statements: those of `count` rows, counted by `each`."""

    row: Var
    place: Expr
    each: Var
    count: int
    registers: dict[Register, Register]

    def statements(self, body: Iterable[Stmt]) -> tuple[Stmt, ...]:
        return tuple(made for s in body for made in self.statement(s))

    def statement(self, s: Stmt) -> Stmts:
        if isinstance(s, For):
            return [replace(s, body=self.statements(s.body))]
        if isinstance(s, Declare):
            new = self.registers[s.register]
            if isinstance(s.init, Const):
                return [Declare(new, s.init)]
            return [Declare(new, const(0, new.dtype)), self.each_row(Set(new, (), s.init))]
        if isinstance(s, Set | Combine):
            s = replace(s, register=self.registers.get(s.register, s.register))
        return [self.each_row(s)]

    def each_row(self, s: Stmt) -> Stmt:
        if isinstance(s, Set | Combine):
            s = replace(s, indices=(self.each,))
        return unrolled(self.each, self.count, with_roots(s, self.value))

    def value(self, e: Expr) -> Expr:
        values: dict[Expr, Expr] = {self.row: self.place}
        for node in walk(e):
            if isinstance(node, Peek) and node.register in self.registers:
                values[node] = Peek(self.registers[node.register], (self.each,))
        made = replaced(e, values)
        return linear(made).expr() if made.dtype is int64 else made
