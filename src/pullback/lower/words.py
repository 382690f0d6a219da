"""Products of narrow types: neighbours along k lie in 32-bit words, which one instruction takes.

``acc[i, j] += sum[u < 4](left[i, 4 q + u] * right[4 q + u, j])``, both sides in words of four.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from pullback.algebra.linear import Linear, linear, row_major
from pullback.config import Ints, frozen
from pullback.errors import InvalidIR
from pullback.ir import expr as E
from pullback.ir.dtype import int8, int32, uint8
from pullback.ir.expr import Expr, index
from pullback.ir.graph import SUM
from pullback.ir.nest import Array, Combine, Declare, Load, Peek, Stmts, Store, Transpose, Var
from pullback.ir.node import walk
from pullback.lower.context import (
    Context,
    Nest,
    NestLoop,
    cast,
    ceil_div,
    counted,
    floor_div,
    nest,
    rest_of,
    rounded_up,
    unrolled,
    vector,
)
from pullback.lower.depth import grouped
from pullback.lower.guards import Values, moved
from pullback.lower.operands import Contraction, Operand, Panels, Side, Words, panels

# Added to one side where both are signed or both are not, so that the instruction fits.
LEAST = int8.range()[0]
SHIFT = {int8: -LEAST, uint8: LEAST}


def wordable(prob: Contraction, word: int) -> bool:
    """Whether words of so many elements can be made of the last loop over k."""
    if word == 1 or prob.work or prob.needed or prob.column is None or not prob.over[-1].static:
        return False
    column, k = prob.column.var, prob.over[-1]
    whole = prob.right.stride(k.var) == 1 and k.most % word == 0
    return _strides(prob.right, column, (0, 1)) or whole


def _strides(side: Operand, var: Var, known: Ints) -> bool:
    """Whether every load of a side has one of these strides along `var`."""
    forms = [linear(n.offset) for n in walk(side.value) if isinstance(n, Load)]
    return all(f.of(var) in known and not f.hidden(var) for f in forms)


def in_words(context: Context, prob: Contraction, word: int, rest: bool) -> Contraction:
    """`prob` with its last loop over words. `rest`: the last word may be incomplete."""
    *outer, k = prob.over
    most = -(-k.most // word)
    words = NestLoop(k.axes, context.var("w", most), ceil_div(k.extent, word), most)
    unit = context.var("u", word)
    at: Values = {k.var: Linear(0, {words.var: word, unit: 1}).expr()}
    left, right = prob.left.at(at), prob.right.at(at)
    own = Words(unit, word, k.extent, rest)
    return replace(prob, left=left, right=right, over=[*outer, words], word=own)


@frozen
class Packing:
    """Copies of both sides of `prob`, which is in words."""

    context: Context
    prob: Contraction

    @property
    def word(self) -> Words:
        """The words of the problem."""
        if self.prob.word is None:
            raise InvalidIR(f"{self.prob.stage.target} is not in words")
        return self.prob.word

    def left(self, row: NestLoop | None, height: int) -> tuple[Stmts, Contraction, Panels | None]:
        """`left` in place, as rows of words, or in panels where it is contiguous along rows."""
        prob, word = self.prob, self.word
        shifted = self._shifted()
        k = prob.over[-1]
        lies = prob.left.stride(word.var) == 1 and prob.left.stride(k.var) == word.size
        if shifted is prob.left and not word.rest and lies:
            return [], prob, None
        own = [loop for loop in prob.rest if prob.left.uses(loop.var)]
        if row is not None and not _strides(prob.left, word.var, (0, 1)):
            count = rounded_up(row.most, height)
            panels = self._panels("left", shifted, height, count, own)
            fill = self._pack(Side(shifted, row), panels)
            return nest(own, fill), prob, panels
        around = own if row is None or not prob.left.uses(row.var) else [*own, row]
        fill, left = self._rows(shifted, [*around, *prob.over[:-1]])
        return fill, replace(prob, left=left), None

    def _shifted(self) -> Operand:
        """`left` as the instruction wants it: bytes of the other sign than those of `right`."""
        left, kind = self.prob.left, self.prob.right.value.dtype
        if left.value.dtype != kind or kind not in SHIFT:
            return left
        other = uint8 if kind == int8 else int8
        return Operand(E.Add(E.Cast(left.value, other), E.const(SHIFT[kind], other)), left.checks)

    def right(self, column: NestLoop, width: int) -> tuple[Stmts, Panels, Array | None]:
        """`right` in panels, and where `left` was shifted the negated sums that this adds."""
        prob = self.prob
        count = rounded_up(column.most, width)
        panels = self._panels("panel", prob.right, width, count, [])
        fill = self._pack(Side(prob.right, column), panels)
        kind = prob.right.value.dtype
        if prob.left.value.dtype != kind or kind not in SHIFT:
            return fill, panels, None
        less = self.context.draft.local("less", int32, count * width)
        return fill + self._less(less, panels, column, width), panels, less

    def _less(
        self,
        less: Array,
        panels: Panels,
        column: NestLoop,
        width: int,
    ) -> Stmts:
        """``less[j] = -sum[k](shift * right[k, j])``"""
        every = counted(self.context, column, width, "p")
        number = every.var
        j = self.context.var("j", width)
        total = self.context.register("less", int32)
        kind = panels.array.dtype
        one = cast(panels.at(number, self._place(j)), int32)
        add = Combine(total, (), SUM, E.Mul(E.const(SHIFT[kind], int32), one))
        step: Stmts = [unrolled(self.word.var, self.word.size, add)]
        store = Store(
            less,
            linear(number).times(width).plus(linear(j)).expr(),
            E.Mul(Peek(total, ()), E.const(-1, int32)),
        )
        body: Stmts = [Declare(total, E.const(0, int32)), *nest(self.prob.over, step), store]
        lane = vector(NestLoop(column.axes, j, index(width), width), 1, body)
        return nest([every], [lane])

    def _place(self, column: Var) -> Expr:
        return Linear(0, {column: self.word.size, self.word.var: 1}).expr()

    def _panels(
        self,
        name: str,
        side: Operand,
        width: int,
        count: int,
        around: Nest,
    ) -> Panels:
        """An array ``[around, panel, k, word, element of the word]``."""
        whole, over = width * self.word.size, self.prob.over
        return panels(self.context, side.value.dtype, whole, count, around, over, name=name)

    def _pack(self, side: Side, panels: Panels) -> Stmts:
        """All panels of a side, a few rows of words of all of them at a time."""
        word, over = self.word, self.prob.over
        width = panels.width // word.size
        every = counted(self.context, side.loop, width, "p")
        number = every.var
        first = linear(number).times(width)
        columns = rest_of(side.loop, first, width)
        copy = self._transposed(side, panels, number, first, columns)
        if copy is not None:
            return nest([every, *over[:-1]], [copy])
        c = self.context.var("c", panels.width)
        column = first.plus(linear(floor_div(c, word.size))).expr()
        here = side.operand.at({side.loop.var: column, word.var: E.Mod(c, index(word.size))})
        store = Store(panels.array, panels.at(number, c).offset, here.value)
        extent = linear(columns).times(word.size).expr()
        lane = vector(NestLoop(side.loop.axes, c, extent, panels.width), 1, [*here.checks, store])
        rows = over[-1]
        if word.rest:
            full = floor_div(word.terms, word.size)
            most = full.value if isinstance(full, E.Const) else rows.most
            rows = replace(rows, extent=full, most=max(1, int(most)))
        statements = nest(
            over[:-1], grouped(self.context, rows, lambda part: nest([every, part], [lane]))
        )
        return statements + self._last_word(side, panels, every, first, columns)

    def _last_word(
        self,
        side: Side,
        panels: Panels,
        every: NestLoop,
        first: Linear,
        columns: Expr,
    ) -> Stmts:
        """The word that k does not fill: zeros after its last element."""
        word, (*outer, k) = self.word, self.prob.over
        if not word.rest:
            return []
        rows = replace(k, first=floor_div(word.terms, word.size))
        j = self.context.var("j", panels.width // word.size)
        here = side.operand.at({side.loop.var: first.plus(linear(j)).expr()})
        there = E.Less(self._place(k.var), word.terms)
        value = E.If(there, here.value, E.const(0, here.value.dtype))
        store = Store(panels.array, panels.at(every.var, self._place(j)).offset, value)
        columns_ = NestLoop(side.loop.axes, j, columns, panels.width // word.size)
        fill: Stmts = [unrolled(word.var, word.size, *here.checks, store)]
        return nest([*outer, rows, every, columns_], fill)

    def _transposed(
        self,
        side: Side,
        panels: Panels,
        number: Expr,
        first: Linear,
        columns: Expr,
    ) -> Transpose | None:
        """A panel copy of words that lie together already."""
        word, k, value = self.word, self.prob.over[-1], side.operand.value
        step = side.operand.stride(side.loop.var)
        if not isinstance(value, Load) or step is None or word.rest or side.operand.checks:
            return None
        form = linear(value.offset)
        near = form.of(word.var) == 1 and form.of(k.var) == word.size
        if not near or step % word.size:
            return None
        zero: Values = {k.var: index(0), word.var: index(0)}
        target = moved(linear(panels.at(number, index(0)).offset), zero)
        source = moved(form, {**zero, side.loop.var: first.expr()})
        return Transpose(
            panels.array,
            target,
            panels.width,
            value.array,
            source,
            step,
            columns,
            k.extent,
            word.size,
        )

    def _rows(self, side: Operand, around: Nest) -> tuple[Stmts, Operand]:
        """`side` as rows of words, zeros after the last element."""
        word, k = self.word, self.prob.over[-1]
        extents = [*(loop.most for loop in around), k.most * word.size]
        strides = row_major(extents)
        kind = side.value.dtype
        array = self.context.draft.local("left", kind, prod(extents))
        named: dict[Expr, int] = {o.var: s for o, s in zip(around, strides, strict=False)}
        t = self.context.var("t", extents[-1])
        term = linear(E.Mod(t, index(word.size))).expr()
        here = side.at({k.var: floor_div(t, word.size), word.var: term})
        place = Linear(0, {**named, t: 1}).expr()
        store = Store(array, place, here.value)
        most = extents[-1]
        lane = NestLoop(k.axes, t, word.terms, most)
        body: Stmts = [vector(lane, 1, [*here.checks, store])]
        if word.rest:
            end = linear(k.extent).times(word.size).expr()
            zero = Store(array, place, E.const(0, kind))
            body += nest([NestLoop((), t, end, most, word.terms)], [zero])
        form = Linear(0, {**named, k.var: word.size, word.var: 1})
        return nest(around, body), Operand(Load(array, form.expr()), ())
