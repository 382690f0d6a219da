"""Results of a register tile whose rows lie along memory, turned around in registers.

    for i < 14: for j in lanes: y[784*j + i] = f(acc[i, j])      (each lane alone)
    ->
    for i < 14: for j in lanes: near[32*i + j] = f(acc[i, j])
    y[784*j + i] = near[32*i + j] for i < 14, j < 32             (a panel copy)

Of elements of four bytes and more: smaller ones are copied one by one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from pullback.algebra.linear import Linear, linear
from pullback.config import Pair
from pullback.ir.dtype import DType
from pullback.ir.expr import Expr, index
from pullback.ir.nest import Array, Stmt, Stmts, Store, Transpose, Var
from pullback.ir.node import walk
from pullback.ir.target import Target
from pullback.lower.context import Context, rounded_up
from pullback.schedule.contraction import WORD


def pays(target: Target, rows: int, columns: int, lanes: int) -> bool:
    """Whether squares of a tile take less time than its elements alone.

    14 x 32 on Zen 4, ns: 44 and 175.
    """
    ns = target.profile.tables["unit"]
    vectors = rounded_up(columns, lanes)
    squares = rounded_up(rows, lanes) * vectors * lanes**2
    together = rows * vectors * ns["store"] + squares * ns["pack"]
    return together < rows * columns * ns["scatter"]


def across(offset: Linear, row: Var, column: Var, kind: DType) -> bool:
    """Whether rows are neighbours in memory and columns are not, and squares of `kind` are copied
    as such (3x3 of 16 channels to 64, in squares and alone, ms: float32 4.3 and 5.1, float16 5.1
    and 5.1).
    """
    return kind.itemsize >= WORD and offset.of(row) == 1 and offset.of(column) > 1


@dataclass(slots=True)
class Turned:
    """Where tiles of `rows` x `columns` wait to be turned around: an array for each of a tile's
    results of one type.
    """

    context: Context
    tile: Pair
    arrays: dict[tuple[DType, int], Array] = field(default_factory=dict)

    def stores(
        self, body: Iterable[Stmt], i: Var, j: Var, rows: int, width: Expr
    ) -> tuple[Stmts, Stmts]:
        """The statements of row `i` and lane `j`, whose stores are near, and the copies after all
        rows.
        """
        made: Stmts = []
        copies: Stmts = []
        columns = self.tile[1]
        for s in body:
            offset = linear(s.offset) if isinstance(s, Store) else Linear()
            start = offset.minus(Linear(0, {i: offset.of(i), j: offset.of(j)})).expr()
            inside = not {i, j}.isdisjoint(walk(start))
            if not isinstance(s, Store) or inside or not across(offset, i, j, s.array.dtype):
                made.append(s)
                continue
            near = self._near(s.array.dtype, len(copies))
            made.append(replace(s, array=near, offset=Linear(0, {i: columns, j: 1}).expr()))
            copy = Transpose(
                s.array, start, offset.of(j), near, index(0), columns, index(rows), width
            )
            copies.append(copy)
        return made, copies

    def _near(self, kind: DType, number: int) -> Array:
        if (kind, number) not in self.arrays:
            rows, columns = self.tile
            self.arrays[kind, number] = self.context.draft.local("turned", kind, rows * columns)
        return self.arrays[kind, number]
