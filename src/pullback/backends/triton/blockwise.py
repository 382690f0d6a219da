"""One loop over blocks of terms: matrices made again, sums of products of them."""

from __future__ import annotations

from dataclasses import dataclass

from pullback.algebra.bounds import bounds
from pullback.backends.triton import language as L
from pullback.backends.triton.again import Again, Sum, again_of
from pullback.backends.triton.blocks import power, size
from pullback.backends.triton.body import Block, Text
from pullback.backends.triton.stream import BOTH, Places, Streams
from pullback.backends.triton.tiles import Side
from pullback.ir.expr import Take
from pullback.ir.kernel import Stage


@dataclass(slots=True)
class Factor:
    """The factor of a product that a program keeps: its name, what it is along its terms."""

    text: str
    term: Side


class Blockwise(Streams):
    """Writes a loop of matrices that are made again."""

    def write(self) -> None:
        made = again_of(self.group.stages)
        assert made is not None, "groups are made so"
        for stage in made.stages:
            self.about(stage)
        schedule, (_, rows, terms) = self.schedule, made.parts
        shared, row = self.here(made)
        kept: Side = (schedule.rows, rows, row)
        factors = {stage: self.kept_factor(made, stage, shared, kept) for stage in made.products}
        columns = {s: self.wide(s) for s in made.sums}
        totals = {s: self.nothing(columns[s]) for s in made.sums}
        over = tuple(made.inner[0].shape[a] for a in terms)
        begin, end = self.limits(made, shared, kept, L.times(over))
        at = self.lines.fresh("first")
        self.lines.put(f"for {at} in range({begin}, {end}, {schedule.step}):")
        self.lines.depth += 1
        flat = self.lines.name("key", f"{at} + tl.arange(0, {schedule.step}).to({self.index})")
        term: Side = (schedule.step, terms, self.line(flat, schedule.step, over))
        places = Places(shared, kept, term)
        for stage in made.inner:
            if stage in made.products:
                self.dot(made, stage, places, factors[stage])
            else:
                self.inner(stage, places)
        for one in made.sums:
            self.add(one, places, totals[one], columns[one])
        self.lines.depth -= 1
        for one in made.sums:
            self.done(one, places, totals[one], columns[one])

    def here(self, made: Again) -> tuple[dict[int, str], tuple[str, str | None, dict[int, str]]]:
        """Which rows a program makes."""
        (outer, rows, _), shape = made.parts, made.inner[0].shape
        batch, own = (tuple(shape[a] for a in axes) for axes in (outer, rows))
        count = self.schedule.rows
        down = self.lines.name("down", L.parts(own, count))
        tile = self.lines.name("tile", f"tl.program_id(0).to({self.index})")
        first = self.lines.name("row", f"{tile} % {down} * {count} + tl.arange(0, {count})")
        self.grid = (batch, 1), (own, count)
        flat = self.lines.name("batch", f"{tile} // {down}")
        return self.decoded(flat, outer, batch), self.line(first, count, own)

    def limits(
        self, made: Again, shared: dict[int, str], kept: Side, count: str
    ) -> tuple[str, str]:
        """Where terms begin and end: what ``term < f(row)`` or ``row < term + 1`` leaves out."""
        guard = made.guard
        if guard is None:
            return "0", count
        (term,) = made.parts[2]
        block = self.tile(made.inner[0], shared, (kept,))
        body = self.body(block)
        if guard.left is made.inner[0].target.axes[term]:
            (value,) = body.values([guard.right])
            last = self.lines.name("last", f"tl.max({block.filled(value, guard.right)}, 0)")
            return "0", self.lines.name("end", f"tl.minimum({last}, {count})")
        beyond = bounds(guard.right)[0] - 1  # the least term is 0
        (value,) = body.values([guard.left])
        first = f"tl.min({block.filled(value, guard.left)}, 0) - {beyond}"
        step = self.schedule.step
        first = self.lines.name("begin", f"tl.maximum({first}, 0) // {step} * {step}")
        return first, count

    def kept_factor(self, made: Again, stage: Stage, shared: dict[int, str], kept: Side) -> Factor:
        """The factor by rows: it is the same in all turns."""
        product = made.products[stage]
        depth = power(max(16, size(stage, product.terms)))
        over = tuple(stage.extents[a] for a in product.terms)
        line = self.line(
            self.lines.name("d", f"tl.arange(0, {depth}).to({self.index})"), depth, over
        )
        term: Side = (depth, product.terms, line)
        kind = self.kind(product)
        return Factor(self.factor(stage, product.left, kind, shared, (kept, term)), term)

    def dot(self, made: Again, stage: Stage, places: Places, mine: Factor) -> None:
        """A block of a product that is made again."""
        product = made.products[stage]
        kind = self.kind(product)
        sides = mine.term, places.key
        other = self.factor(stage, product.right, kind, places.shared, sides)
        self.score(stage, product, places, f"tl.dot({mine.text}, {other}{self.precise(kind)})")

    def wide(self, one: Sum) -> Side:
        """The columns of a sum, all of them."""
        stage, axes = one.stage, one.product.columns
        count = power(max(16, size(stage, axes)))
        flat = self.lines.name("column", f"tl.arange(0, {count}).to({self.index})")
        return count, axes, self.line(flat, count, tuple(stage.extents[a] for a in axes))

    def nothing(self, column: Side) -> str:
        return self.lines.name("total", f"tl.zeros({[self.schedule.rows, column[0]]}, tl.float32)")

    def add(self, one: Sum, places: Places, total: str, column: Side) -> None:
        """The sum over this block's terms."""
        shared, row, term = self.seen(one, places)
        block = self.tile(one.stage, shared, (row, term))
        kind = self.kind(one.product)
        left = self.masked_zero(self.value(one.stage, one.product.left, block), block)
        if kind.bits < 32:
            left = f"({left}).to({L.spelled(kind)})"
        left = self.lines.name("factor", left)
        right = self.factor(one.stage, one.product.right, kind, shared, (term, column))
        self.lines.put(f"{total} = tl.dot({left}, {right}, {total}{self.precise(kind)})")

    def done(self, one: Sum, places: Places, total: str, column: Side) -> None:
        """A sum after the loop, times what is known without its terms."""
        shared, row, _ = self.seen(one, places)
        block = self.tile(one.stage, shared, (row, column))
        body = self.body(block)
        values = body.values(list(one.product.scale))
        for factor in one.product.scale:
            self.checks(body, factor, block)
        self.made(one.stage, block, " * ".join([total, *map(str, values)]))

    def seen(self, one: Sum, places: Places) -> tuple[dict[int, str], Side, Side]:
        """Where a program is, by the axes of a sum."""
        shared = {one.axes[n]: text for n, text in places.shared.items()}
        row, term = (
            (count, tuple(one.axes[n] for n in axes), line)
            for count, axes, line in (places.row, places.key)
        )
        return shared, row, term

    def among(self, take: Take, block: Block) -> Text | None:
        """A matrix of this turn."""
        held = self.registers.get(take.source)
        return None if held is None else Text(held[1], BOTH)
