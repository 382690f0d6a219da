"""One loop over blocks of keys: scores, their maximum so far, sums scaled where it rises."""

from __future__ import annotations

from dataclasses import dataclass

from pullback.backends.triton import language as L
from pullback.backends.triton.attention import Stream, again, positions, turned
from pullback.backends.triton.blocks import power, size
from pullback.backends.triton.body import Block, Text
from pullback.backends.triton.function import ROWS, Line
from pullback.backends.triton.product import Product, kind_of, product_of
from pullback.backends.triton.tiles import Side, Tiles
from pullback.ir import expr as E
from pullback.ir.dtype import DType, float32
from pullback.ir.expr import Axis, Expr, Take
from pullback.ir.kernel import Stage, stage_reads

BOTH = frozenset([0, 1])


@dataclass(slots=True)
class Places:
    """Where a program is: coordinates that all of it has, its rows, its keys in this turn."""

    shared: dict[int, str]
    row: Side
    key: Side


class Streams(Tiles):
    """Writes a loop over blocks of keys."""

    def write(self) -> None:
        made = again(self.group)
        for stage in made.stages:
            self.about(stage)
        schedule, scores, product = self.schedule, made.scores, made.product
        shared, row = self.rows_of(made)
        rows: Side = (schedule.rows, product.rows, row)
        depth = power(max(16, size(scores, product.terms)))
        over = tuple(scores.extents[a] for a in product.terms)
        line = self.line(
            self.lines.name("d", f"tl.arange(0, {depth}).to({self.index})"), depth, over
        )
        term: Side = (depth, product.terms, line)
        kind = self.kind(product)
        query = self.factor(scores, product.left, kind, shared, (rows, term))
        columns = {s: self.column(s) for s in made.sums if s.shape != scores.shape[:-1]}
        top, totals = self.begin(made, columns)
        end = self.end(made, shared, rows)
        at = self.lines.fresh("first")
        self.lines.put(f"for {at} in range(0, {end}, {schedule.step}):")
        self.lines.depth += 1
        flat = self.lines.name("key", f"{at} + tl.arange(0, {schedule.step}).to({self.index})")
        key = self.line(flat, schedule.step, scores.shape[-1:])
        places = Places(shared, rows, (schedule.step, (made.keys,), key))
        other = self.factor(scores, product.right, kind, shared, (term, places.key))
        self.score(scores, product, places, f"tl.dot({query}, {other}{self.precise(kind)})")
        risen = scale = ""
        for stage in made.stages[1:]:
            if stage is made.top:
                risen, scale = self.rise(stage, places, top)
            elif stage in made.inner:
                self.inner(stage, places)
            elif stage in made.sums:
                self.sum(stage, places, totals[stage], scale, columns.get(stage))
        self.lines.put(f"{top} = {risen}")
        self.lines.depth -= 1
        self.finish(made, places, top, totals, columns)

    # -- around the loop

    def rows_of(self, made: Stream) -> tuple[dict[int, str], Line]:
        """Which rows a program makes."""
        scores, product, rows = made.scores, made.product, self.schedule.rows
        batch = tuple(scores.extents[a] for a in product.batch)
        own = tuple(scores.extents[a] for a in product.rows)
        down = self.lines.name("down", L.parts(own, rows))
        tile = self.lines.name("tile", f"tl.program_id(0).to({self.index})")
        first = self.lines.name("row", f"{tile} % {down} * {rows} + tl.arange(0, {rows})")
        self.grid = (batch, 1), (own, rows)
        flat = self.lines.name("batch", f"{tile} // {down}")
        return self.decoded(flat, product.batch, batch), self.line(first, rows, own)

    def column(self, stage: Stage) -> Side:
        """The columns of a result, all of them."""
        axis = len(stage.shape) - 1
        count = power(max(16, size(stage, (axis,))))
        flat = self.lines.name("column", f"tl.arange(0, {count}).to({self.index})")
        return count, (axis,), self.line(flat, count, stage.shape[-1:])

    def begin(self, made: Stream, columns: dict[Stage, Side]) -> tuple[str, dict[Stage, str]]:
        """The maximum and the sums of nothing."""
        rows = self.schedule.rows
        top = self.lines.name("top", f'tl.full([{rows}], float("-inf"), tl.float32)')
        totals = {}
        for stage in made.sums:
            wide = [rows, columns[stage][0]] if stage in columns else [rows]
            totals[stage] = self.lines.name("total", f"tl.zeros({wide}, tl.float32)")
        return top, totals

    def end(self, made: Stream, shared: dict[int, str], rows: Side) -> str:
        """Where keys end: beyond a guard ``key < f(row)`` all scores are -inf."""
        scores, count = made.scores, L.extent_text(made.scores.shape[-1])
        assert made.top is not None, "it is what makes a loop"
        match made.top.body:
            case E.If(condition=E.Less(left=Axis() as key, right=bound), otherwise=E.Const() as c):
                known = key.number not in bound.axes and not list(E.takes([bound]))
                if key.number == len(scores.shape) - 1 and known and c.value == -float("inf"):
                    block = self.tile(made.top, shared, (rows,))
                    body = self.body(block)
                    (value,) = body.values([bound])
                    last = self.lines.name("last", f"tl.max({block.filled(value, bound)}, 0)")
                    return self.lines.name("end", f"tl.minimum({last}, {count})")
        return count

    def finish(
        self,
        made: Stream,
        places: Places,
        top: str,
        totals: dict[Stage, str],
        columns: dict[Stage, Side],
    ) -> None:
        """What is known after the loop: stored, or read by maps of rows."""
        assert made.top is not None, "it is what makes a loop"
        for stage, text in ((made.top, top), *totals.items()):
            wide = [columns[stage]] if stage in columns else []
            block = self.tile(stage, places.shared, (places.row, *wide))
            self.made(stage, block, text)
        side = next(iter(columns.values()), None)
        for stage in made.last:
            self.after_loop(made, stage, places, side)

    def after_loop(self, made: Stream, stage: Stage, places: Places, side: Side | None) -> None:
        """A map after the loop, along whose axes its reads say."""
        reads = [t for t in stage_reads(stage) if t.source in made.rowwise]
        axes = positions(stage, reads, len(made.scores.shape))
        assert axes is not None, "it joined so"
        row, key = places.row, made.keys
        shared = {axes.get(n, -2): text for n, text in places.shared.items() if n in axes}
        count, own, (flat, inside, texts) = row
        kept = [n for n in own if n in axes]
        lines = {i: texts[own.index(n)] for i, n in enumerate(kept)}
        sides: list[Side] = [(count, tuple(axes[n] for n in kept), (flat, inside, lines))]
        if key in axes:
            assert side is not None, "it has columns"
            sides.append((side[0], (axes[key],), side[2]))
        block = self.tile(stage, shared, sides)
        self.evaluated(stage, block)

    # -- in the loop

    def kind(self, product: Product) -> DType:
        """The type in which a product's factors are multiplied."""
        return kind_of(product) or float32

    def precise(self, kind: DType) -> str:
        wide = kind.bits >= 32
        return f', input_precision="{self.schedule.precision.value}"' if wide else ""

    def score(self, stage: Stage, product: Product, places: Places, text: str) -> None:
        """A block of scores."""
        block = self.tile(stage, places.shared, (places.row, places.key))
        body = self.body(block)
        values = body.values(list(product.scale))
        text = " * ".join([text, *map(str, values)])
        name = self.lines.name(L.word(stage.target.name), L.rounded(text, stage.body.dtype))
        self.registers[stage.target] = stage, name

    def inner(self, stage: Stage, places: Places) -> None:
        """A map of scores."""
        self.evaluated(stage, self.tile(stage, places.shared, (places.row, places.key)))

    def evaluated(self, stage: Stage, block: Block) -> None:
        """A map of what the launch has made."""
        text = self.value(stage, stage.body, block)
        self.made(stage, block, text)

    def value(self, stage: Stage, e: Expr, block: Block) -> str:
        """An expression over a block."""
        body = self.body(block)
        body.held = lambda take: self.among(take, block)
        (value,) = body.values([e])
        self.checks(body, e, block)
        return block.filled(value, e)

    def among(self, take: Take, block: Block) -> Text | None:
        """What the launch has made, in a block: of rows, or of all of it."""
        held = self.registers.get(take.source)
        if held is None:
            return None
        stage, name = held
        row = stage.shape == self.group.extents
        if row and len(block.extents) > 1:
            return Text(f"{name}[:, None]", ROWS)
        return Text(name, ROWS if row or len(block.extents) == 1 else BOTH)

    def rise(self, stage: Stage, places: Places, top: str) -> tuple[str, str]:
        """The maximum with those of this block, and by what sums of before are multiplied."""
        block = self.terms_of(stage, places)
        text = self.value(stage, stage.body, block)
        mask = block.masks.get(1)
        if mask is not None:
            text = f'tl.where({mask}, {text}, float("-inf"))'
        term = self.lines.name("term", text)
        most = L.collapsed("max", term, 1, stage.body.dtype)
        most = L.JOINS["max"].format(top, f"({most})")
        risen = self.lines.name("risen", most)
        # Of scores that are all -inf, differences are those from 0.
        safe = self.lines.name("level", f'tl.where({risen} == float("-inf"), 0.0, {risen})')
        self.registers[stage.target] = stage, safe
        return risen, self.lines.name("scale", f"tl.exp({top} - {safe})")

    def terms_of(self, stage: Stage, places: Places) -> Block:
        """A block of rows and keys, as a sum over keys counts its axes."""
        count, _, line = places.key
        return self.tile(stage, places.shared, (places.row, (count, tuple(stage.over), line)))

    def sum(
        self, stage: Stage, places: Places, total: str, scale: str, column: Side | None
    ) -> None:
        """A sum over this block's keys, beside that of those before."""
        block = self.terms_of(stage, places)
        if column is None:
            text = self.masked_zero(self.value(stage, stage.body, block), block)
            self.lines.put(f"{total} = {total} * {scale} + tl.sum({text}, 1)")
            return
        product = turned(product_of(stage), len(stage.shape) - 1)
        assert product is not None, "it joined so"
        kind = self.kind(product)
        left = self.masked_zero(self.value(stage, product.left, block), block)
        if kind.bits < 32:
            left = f"({left}).to({L.spelled(kind)})"
        left = self.lines.name("factor", left)
        count, _, line = places.key
        terms: Side = (count, tuple(stage.over), line)
        right = self.factor(stage, product.right, kind, places.shared, (terms, column))
        before = f"{total} * {scale}[:, None]"
        self.lines.put(f"{total} = tl.dot({left}, {right}, {before}{self.precise(kind)})")

    def masked_zero(self, text: str, block: Block) -> str:
        """Terms beyond the last key are 0."""
        mask = block.masks.get(1)
        return text if mask is None else f"tl.where({mask}, {text}, 0.0)"
