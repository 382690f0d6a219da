"""Sums of products in tiles of `tl.dot`, with the maps that follow them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from pullback.backends.triton import language as L
from pullback.backends.triton.blocks import Group, size
from pullback.backends.triton.body import Block, Text
from pullback.backends.triton.descriptors import Rectangle, rectangles
from pullback.backends.triton.function import Function, Line
from pullback.backends.triton.product import Product, kind_of, plain, product_of
from pullback.backends.triton.schedule import BlockSchedule, Reads
from pullback.config import Ints
from pullback.ir.dtype import DType, float32, is_short
from pullback.ir.expr import Expr, Shape, Take
from pullback.ir.graph import Variable
from pullback.ir.kernel import Stage

Side = tuple[int, tuple[int, ...], Line]  # of a tile: elements, axes, what `line` makes of them
Edge = tuple[str, Line]  # where a side begins, and its line


class Tiles(Function):
    """Writes tiles of a product."""

    def __init__(self, name: str, group: Group, schedule: BlockSchedule) -> None:
        super().__init__(name, group, schedule)
        self.tiled: Callable[[Stage], Block] = lambda stage: Block([])

    def write(self) -> None:
        for number, stage in enumerate(self.group.stages):
            self.about(stage)
            self.after(stage) if number else self.product(stage)

    # -- products

    def product(self, stage: Stage) -> None:
        """A tile of a sum of products: blocks of both factors, term after term."""
        product, schedule = product_of(stage), self.schedule
        assert product is not None, "who asks knows"
        shapes = [
            tuple(stage.extents[a] for a in axes)
            for axes in (product.batch, product.rows, product.columns, product.terms)
        ]
        shared, (top, row), (start, column) = self.place(product, shapes)
        count, begin, covered = L.times(shapes[3]), "", schedule.step
        if schedule.chunks > 1:
            length = -(-size(stage, product.terms) // schedule.chunks)
            count = str(-(-length // schedule.step) * schedule.step)
            begin = f"{shared[-1]} * {count} + "
            exact = int(count) * schedule.chunks == size(stage, product.terms)
            covered = schedule.step if exact else 0
        at = self.lines.fresh("first")
        loads = self.loads(stage, product, shared, (top, f"{begin}{at}", start))
        double = stage.body.dtype.name == "float64"
        wide = "tl.float64" if double else "tl.float32"
        kept = [schedule.rows, schedule.columns]
        total = self.lines.name("total", f"tl.zeros({kept}, {wide})")
        self.lines.put(f"for {at} in range(0, {count}, {schedule.step}):")
        self.lines.depth += 1
        term: Line = "", None, {}
        if None in loads:
            own = f"{begin}{at} + tl.arange(0, {schedule.step}).to({self.index})"
            term = self.line(self.lines.name("k", own), covered, shapes[3])
        ends = (schedule.rows, product.rows, row), (schedule.columns, product.columns, column)
        depth = schedule.step, product.terms, term
        kind = kind_of(product) or (stage.body.dtype if double else float32)
        sides = (ends[0], depth), (depth, ends[1])
        left, right = (
            self.factor(stage, e, kind, shared, side) if load is None else self.cut(load, e, kind)
            for e, side, load in zip((product.left, product.right), sides, loads, strict=True)
        )
        precise = "" if is_short(kind) else f', input_precision="{schedule.precision.value}"'
        if double:
            precise = ", out_dtype=tl.float64"
        self.lines.put(f"{total} = tl.dot({left}, {right}, {total}{precise})")
        self.lines.depth -= 1
        self.tiled = partial(self.tile, shared=shared, sides=ends)
        block = self.tiled(stage)
        body = self.body(block)
        values = body.values(list(product.scale))
        text = " * ".join([total, *map(str, values)])
        for factor in product.scale:
            self.checks(body, factor, block)
        self.made(stage, block, text)

    def place(self, product: Product, shapes: Sequence[Shape]) -> tuple[dict[int, str], Edge, Edge]:
        """Which tile a program makes: coordinates that all of it has, its rows, its columns.

        Tiles of a batch, or of a part of the terms, are neighbours; of them `group` rows of tiles
        are gone through column by column.
        """
        schedule, lines = self.schedule, self.lines
        batch, outer = shapes[0], product.batch
        if schedule.chunks > 1:
            batch, outer = (schedule.chunks, *batch), (-1, *outer)
        across = lines.name("across", L.parts(shapes[2], schedule.columns))
        down = lines.name("down", L.parts(shapes[1], schedule.rows))
        self.grid = tuple(
            zip((batch, *shapes[1:]), (1, schedule.rows, schedule.columns), strict=False)
        )
        tile = lines.name("tile", f"tl.program_id(0).to({self.index})")
        below, beside = f"{tile} // {across} % {down}", f"{tile} % {across}"
        if schedule.group > 1:
            here = lines.name("here", f"{tile} % ({across} * {down})")
            wide = lines.name("wide", f"{across} * {schedule.group}")
            above = lines.name("above", f"{here} // {wide} * {schedule.group}")
            tall = lines.name("tall", f"tl.minimum({down} - {above}, {schedule.group})")
            near = lines.name("near", f"{here} % {wide}")
            below, beside = f"({above} + {near} % {tall})", f"{near} // {tall}"
        row = self.edge("row", below, schedule.rows, shapes[1])
        column = self.edge("column", beside, schedule.columns, shapes[2])
        flat = lines.name("batch", f"{tile} // ({across} * {down})")
        return self.decoded(flat, outer, batch), row, column

    def edge(self, hint: str, number: str, count: int, shape: Shape) -> Edge:
        """A side of the tile of some number."""
        first = self.lines.name("start", f"{number} * {count}")
        own = self.lines.name(hint, f"{first} + tl.arange(0, {count})")
        return first, self.line(own, count, shape)

    def loads(
        self, stage: Stage, product: Product, shared: dict[int, str], firsts: Sequence[str]
    ) -> list[str | None]:
        """Reads of both factors by descriptors, from the first row, term and column on; None: of
        one that is read by pointers.
        """
        schedule = self.schedule
        if schedule.reads is Reads.POINTERS:
            return [None, None]
        counts = schedule.rows, schedule.step, schedule.columns
        every = product.rows, product.terms, product.columns
        row, term, column = zip(counts, every, firsts, strict=True)
        left, right = rectangles(stage, product)
        return [
            self.described(stage, left, shared, (row, term)),
            self.described(stage, right, shared, (term, column)),
        ]

    def described(
        self,
        stage: Stage,
        own: Rectangle | str,
        shared: dict[int, str],
        sides: Sequence[tuple[int, Ints, str]],
    ) -> str | None:
        """A read of a block: elements, axes and the first coordinate of each side."""
        if isinstance(own, str):
            return None
        assert isinstance(own.source, Variable), "a product begins its launch"
        counts, axes, firsts = zip(*(sides[::-1] if own.turned else sides), strict=True)
        base = [self.pointer(own.source), *(f"{shared[a]} * {n}" for a, n in own.batch)]
        base += [str(own.begin)] * bool(own.begin)
        shape, strides = [size(stage, a) for a in axes], [own.stride, 1]
        text = f"{' + '.join(base)}, {shape}, {strides}, {list(counts)}"
        name = self.lines.name("block", f"tl.make_tensor_descriptor({text})")
        if self.index != "tl.int32":  # coordinates of descriptors have 32 bits
            firsts = tuple(f"tl.cast({first}, tl.int32)" for first in firsts)
        return f"{name}.load([{', '.join(firsts)}]){'.T' * own.turned}"

    def cut(self, load: str, e: Expr, kind: DType) -> str:
        """A block of a factor that is read as it is; beyond the ends of its array are zeros."""
        text = load if plain(e) is kind else f"{load}.to({L.spelled(kind)})"
        return self.lines.name("factor", text)

    def after(self, stage: Stage) -> None:
        """A map of what the tiles of a product are."""
        block = self.tiled(stage)
        body = self.body(block)
        body.held = self.within
        (value,) = body.values([stage.body])
        self.checks(body, stage.body, block)
        self.made(stage, block, block.filled(value, stage.body))

    def within(self, take: Take) -> Text | None:
        """What the launch has made of this tile."""
        held = self.registers.get(take.source)
        return None if held is None else Text(held[1], frozenset([0, 1]))

    def made(self, stage: Stage, block: Block, text: str) -> None:
        """A block stays in registers, and is stored where it is wanted."""
        name = self.lines.name(L.word(stage.target.name), L.rounded(text, stage.body.dtype))
        self.registers[stage.target] = stage, name
        self.store(stage, block, name)

    def tile(self, stage: Stage, shared: dict[int, str], sides: Sequence[Side]) -> Block:
        """A block of two sides; other axes are the same for all of it."""
        block = Block([count for count, _, _ in sides], index=self.index)
        self.ones(stage, block)
        for axis, text in shared.items():
            block.coordinates[axis] = replace(block.each(text), text=f"({block.each(text).text})")
        for dim, (_, axes, line) in enumerate(sides):
            self.along(block, dim, axes, *line)
        return block

    def factor(
        self, stage: Stage, e: Expr, kind: DType, shared: dict[int, str], sides: Sequence[Side]
    ) -> str:
        """A block of one factor, 0 beyond its last term."""
        block = self.tile(stage, shared, sides)
        body = self.body(block)
        (value,) = body.values([e])
        self.checks(body, e, block)
        text, masks = block.filled(value, e), [block.masks[d] for d in sorted(block.masks)]
        if masks and plain(e) is None:
            text = f"tl.where({' & '.join(masks)}, {text}, 0.0)"
        if is_short(kind):
            text = f"({text}).to({L.spelled(kind)})"
        return self.lines.name("factor", text)
