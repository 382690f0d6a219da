"""Long sums of floats in blocks: a register adds up few terms, blocks are added without a loss.

``for k in 0..n: s += x[k]  ->  for b: p = 0; for k in block b: p += x[k]; s, e = s + p exactly``

`e` gathers what each addition of a block has lost. The error of n terms is then that of one block,
for any n; how terms are grouped depends on the shapes alone. (Ogita, Rump and Oishi, Accurate sum
and dot product, 2005: cascaded summation.) A tile of a product adds its blocks plainly: it has no
registers for what is lost.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from pullback.algebra.linear import Linear, linear
from pullback.config import Legal, frozen
from pullback.ir import expr as E
from pullback.ir.expr import Expr, index
from pullback.ir.graph import SUM
from pullback.ir.nest import (
    Combine,
    Declare,
    For,
    Guard,
    LoopKind,
    Peek,
    Register,
    Set,
    Stmt,
    Stmts,
)
from pullback.lower.context import Context, ceil_div, smaller
from pullback.schedule.contraction import LONG

# Additions to one register, beyond which results are less exact than docs/accuracy.md says. Sixteen
# to one of lanes leave a sum of equal terms within 3 units, as NumPy's pairwise one is; where each
# lane is a sum of its own, or a sum is no longer than that, it may be sixty-four.
TERMS: Legal = 16
TERMS_ALONE: Legal = 64
# Of a product, if they are more than twice as many: what a tile adds to the sums of those before.
TERMS_OF_TILE: Legal = 256


Each = Callable[..., Stmt]  # statements for every element of an array of registers


@frozen
class Blocked:
    """The sums of one nest: the register of each block by that of the whole, and what was lost.

    `terms`: those of one block at most, where they are not in lanes; blocks of a tile are alike
    where half as many or more divide all. `lost`: none where blocks are added plainly. `place`:
    the element of a register, where it is an array; `each` runs over its elements.
    """

    context: Context
    parts: dict[Register, Register]
    lost: dict[Register, Register]
    terms: int = TERMS_ALONE
    place: tuple[Expr, ...] = ()
    each: Each | None = None

    def loops(self, body: Sequence[Stmt]) -> Stmts:
        """`body` with each loop that adds to the sums in blocks."""
        statements: Stmts = []
        for stmt in body:
            statements += self._split(stmt) if self._chain(stmt) else [stmt]
        return statements

    def _split(self, stmt: Stmt) -> Stmts:
        if isinstance(stmt, Guard):
            return [replace(stmt, body=tuple(self.loops(stmt.body)))]
        if not isinstance(stmt, For):
            return [stmt]
        lanes = stmt.kind is LoopKind.VECTOR
        if lanes:
            # more of them keep reads ahead of where a block ends (1e7 of them: 8 % quicker)
            stmt = replace(stmt, unroll=2 * stmt.unroll)
        terms = TERMS if lanes else self.terms
        inner = sum(map(self._chain, stmt.body))
        if inner > terms:
            return [replace(stmt, body=tuple(self.loops(stmt.body)))]
        size = max(1, terms // inner) * self._abreast(stmt)
        most = stmt.var.hi - stmt.var.lo + 1
        if most <= size or stmt.step != 1 or stmt.kind is LoopKind.UNROLL:
            return self._joined(self._renamed(stmt))
        alike = [n for n in range(size, size // 2, -1) if most % n == 0]
        return self._blocks(stmt, alike[0] if alike and inner == 1 and self.each else size, most)

    def _blocks(self, stmt: For, size: int, most: int) -> Stmts:
        """Blocks of a literal length, and what is left; in one loop where an end is not known."""
        length = linear(stmt.hi).minus(linear(stmt.lo))
        block = self.context.var("b", -(-most // size))
        first = linear(stmt.lo).plus(Linear(0, {block: size}))
        end = first.plus(Linear(size)).expr()
        if length.terms:
            inner = replace(self._renamed(stmt), lo=first.expr(), hi=smaller(end, stmt.hi))
            count = ceil_div(length.expr(), size)
            return [For(block, index(0), count, tuple(self._joined(inner)))]
        inner = replace(self._renamed(stmt), lo=first.expr(), hi=end)
        whole = length.const // size
        statements: Stmts = [For(block, index(0), index(whole), tuple(self._joined(inner)))]
        if length.const % size:
            rest = linear(stmt.lo).plus(Linear(whole * size)).expr()
            statements += self._joined(replace(self._renamed(stmt), lo=rest))
        return statements

    def _joined(self, stmt: Stmt) -> Stmts:
        """Parts from nothing, the loop, and each part added: ``s + p = t + lost`` exactly."""
        statements: Stmts = [Declare(p, E.const(0, p.dtype)) for p in self.parts.values()]
        statements.append(stmt)
        for whole, part in self.parts.items():
            if whole not in self.lost:
                statements += self._all(Combine(whole, self.place, SUM, Peek(part, self.place)))
                continue
            new = self.context.register("t", whole.dtype)
            step = self.context.register("d", whole.dtype)
            s, p = (Peek(r, self.place) for r in (whole, part))
            t, d = (Peek(r, ()) for r in (new, step))
            lost = E.Add(E.subtract(s, E.subtract(t, d)), E.subtract(p, d))
            statements += self._all(
                Declare(new, E.Add(s, p)),
                Declare(step, E.subtract(t, s)),
                Combine(self.lost[whole], self.place, SUM, lost),
                Set(whole, self.place, t),
            )
        return statements

    def _all(self, *body: Stmt) -> Stmts:
        return list(body) if self.each is None else [self.each(*body)]

    def ends(self) -> Stmts:
        """``s += e``, where s is no infinity: there e is NaN."""
        statements: Stmts = []
        for whole, lost in self.lost.items():
            s, e = Peek(whole, self.place), Peek(lost, self.place)
            total = E.If(E.Equal(e, e), E.Add(s, e), s)
            statements += self._all(Set(whole, self.place, total))
        return statements

    def _renamed(self, stmt: For) -> For:
        """The loop, adding to parts."""
        body: Stmts = []
        for s in stmt.body:
            if isinstance(s, Combine) and s.register in self.parts:
                s = replace(s, register=self.parts[s.register])
            elif isinstance(s, For):
                s = self._renamed(s)
            elif isinstance(s, Guard):
                s = replace(s, body=self._renamed(replace(stmt, body=s.body)).body)
            body.append(s)
        return replace(stmt, body=tuple(body))

    def chain(self, body: Sequence[Stmt]) -> int:
        """How many terms a register adds up one after the other, at most, in statements."""
        return max(map(self._chain, body), default=0) if self.parts else 0

    def _chain(self, stmt: Stmt) -> int:
        """How many terms a register adds up one after the other, at most."""
        match stmt:
            case Combine():
                return int(stmt.register in self.parts)
            case Guard():
                return self.chain(stmt.body)
            case For():
                inner = self.chain(stmt.body)
                if stmt.var in self.place:
                    return inner
                trips = stmt.var.hi - stmt.var.lo + 1
                return inner * -(-trips // self._abreast(stmt))
        return 0

    def _abreast(self, stmt: For) -> int:
        """Turns of a loop that add to registers of their own."""
        if stmt.kind is not LoopKind.VECTOR:
            return 1
        bytes = max(r.dtype.itemsize for r in self.parts)
        return stmt.unroll * self.context.lanes(bytes)


def blocked(context: Context, before: Sequence[Stmt], inner: Stmts) -> Stmts:
    """`before`, which declares accumulators, and the loops `inner` that combine into them."""
    sums = [s.register for s in before if isinstance(s, Declare) and _is_sum(s.register, inner)]
    whole = Blocked(context, {r: r for r in sums}, {})
    long = whole.chain(inner) > TERMS_ALONE
    return [*before, *(_in_blocks(whole, inner, sums) if long else inner)]


def blocked_tile(
    context: Context,
    tile: Register,
    place: tuple[Expr, ...],
    terms: Stmts,
    each: Each,
    exact: bool,
) -> Stmts:
    """Loops `terms` that add to an array of registers, element by element; very long ones without
    a loss where `exact`.
    """
    whole = Blocked(context, {tile: tile}, {}, TERMS_OF_TILE, place, each)
    chain = whole.chain(terms) if tile.dtype.is_float else 0
    if exact and chain > LONG:
        return _in_blocks(replace(whole, terms=TERMS_ALONE), terms, [tile])
    return _in_blocks(whole, terms) if chain > 2 * TERMS_OF_TILE else terms


def _in_blocks(whole: Blocked, body: Stmts, exact: Sequence[Register] = ()) -> Stmts:
    """`body` with its sums in blocks; those of `exact` without a loss."""

    def beside(name: str, sums: Iterable[Register]) -> dict[Register, Register]:
        return {r: whole.context.register(name, r.dtype, r.shape) for r in sums}

    apart = replace(whole, parts=beside("part", whole.parts), lost=beside("lost", exact))
    starts = [Declare(r, E.const(0, r.dtype)) for r in apart.lost.values()]
    return [*starts, *apart.loops(body), *apart.ends()]


def _is_sum(register: Register, body: Sequence[Stmt]) -> bool:
    """Whether floats are added up in the register."""
    if not register.dtype.is_float:
        return False
    for stmt in body:
        if isinstance(stmt, For | Guard) and _is_sum(register, stmt.body):
            return True
        if isinstance(stmt, Combine) and stmt.register == register:
            return stmt.combiner is SUM
    return False
