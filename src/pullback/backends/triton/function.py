"""One launch as a function of Triton's: ``rows of a program: load, compute, store``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from pullback.backends.triton import language as L
from pullback.backends.triton.blocks import (
    BlockSchedule,
    Group,
    Way,
    columns,
    place,
    power,
    size,
    terms,
)
from pullback.backends.triton.body import Block, Body, Lines, Mark, Text
from pullback.backends.triton.product import plain, product_of
from pullback.ir.dtype import DType, float32, is_half
from pullback.ir.expr import Axis, Dim, Expr, Extent, Shape, Size, Take
from pullback.ir.graph import Accumulate, Combiner, Reduce, Scan, Value, Variable, read
from pullback.ir.kernel import Stage
from pullback.ir.node import walk

SCALAR = frozenset[int]()
Line = tuple[str, str | None, dict[int, str]]
Side = tuple[int, tuple[int, ...], Line]  # of a tile: elements, axes, what `line` makes of them
ROWS = frozenset([0])


@dataclass(frozen=True, slots=True)
class Launch:
    """A function of a file, as it is called: arrays, sizes, then where checks leave what they
    found, two int64 for each of `sites`. `grid`: one program for so many of what runs together.
    """

    name: str
    source: str
    arguments: tuple[Variable, ...]
    sizes: tuple[Dim, ...]
    grid: tuple[tuple[Shape, int], ...]
    sites: tuple[str, ...]
    warps: int


class Function:
    """Writes the function of one group."""

    def __init__(self, name: str, group: Group, schedule: BlockSchedule) -> None:
        self.name, self.group, self.schedule = name, group, schedule
        self.lines = Lines()
        self.pointers: dict[Variable, str] = {}
        self.sizes: dict[Dim, None] = {}
        self.sites: list[str] = []
        self.registers: dict[Value, tuple[Stage, str]] = {}
        self.sides: dict[tuple[int, Shape], Line] = {}
        self.row = ""
        self.inside: str | None = None
        self.tiled: Callable[[Stage], Block] = lambda stage: Block([])
        self.grid: tuple[tuple[Shape, int], ...] = ((group.extents, schedule.rows),)

    def launch(self) -> Launch:
        """The function, with what it is called by."""
        group, schedule = self.group, self.schedule
        self.lines.taken |= dict.fromkeys(L.RESERVED, 1)
        if group.way is not Way.PRODUCT:
            self.head()
        for stage in group.stages:
            self.about(stage)
            match group.way:
                case Way.BLOCK:
                    self.whole(stage)
                case Way.LOOP:
                    self.looped(stage)
                case Way.SEQUENCE:
                    self.sequence(stage)
                case Way.SCATTER:
                    self.scatter(stage)
                case Way.PRODUCT:
                    self.product(stage) if stage is group.stages[0] else self.after(stage)
        for dim in self.dims():
            if any(L.extent_text(dim) in line for line in self.lines.lines):
                self.sizes[dim] = None
        names = [*self.pointers.values(), *map(L.extent_text, self.sizes)]
        if self.sites:
            names.append("wrong")
        text = [f"@triton.jit\ndef {self.name}({', '.join(names)}):", *self.lines.lines, ""]
        return Launch(
            self.name,
            "\n".join(text),
            tuple(self.pointers),
            tuple(self.sizes),
            self.grid,
            tuple(self.sites),
            schedule.warps,
        )

    def dims(self) -> list[Dim]:
        """The symbolic extents that its stages know."""
        extents: list[Extent] = list(self.group.extents)
        for stage in self.group.stages:
            extents += [*stage.extents, *stage.shape]
            for node in walk(stage.roots):
                match node:
                    case Size():
                        extents.append(node.dim)
                    case Axis():
                        extents.append(node.extent)
                    case Take():
                        extents += node.source.shape
        return list(dict.fromkeys(e for e in extents if isinstance(e, Dim)))

    # -- rows

    def head(self) -> None:
        """The rows of this program."""
        block, extents = self.schedule.rows, self.group.extents
        start = f"tl.program_id(0).to(tl.int64) * {block}"
        self.row = self.lines.name("row", f"{start} + tl.arange(0, {block})")
        total = L.times(extents)
        if not total.isdigit() or int(total) % block:
            self.inside = self.lines.name("in_rows", f"{self.row} < {total}")

    def about(self, stage: Stage) -> None:
        """What is computed, and where it was written."""
        origin = stage.target.origin
        shape = ", ".join(map(str, stage.shape))
        where = "" if origin is None else f": {origin.source}  ({origin.place})"
        self.lines.put(f"# {stage.target.name}[{shape}]{where}")

    def decoded(self, flat: str, axes: Sequence[int], extents: Sequence[Extent]) -> dict[int, str]:
        """The coordinates of axes that run together, the last one fastest."""
        if len(axes) == 1:
            return {axes[0]: flat}
        made = {}
        for n, axis in enumerate(axes):
            below = L.times(tuple(extents[n + 1 :]))
            text = flat if below == "1" else f"{flat} // ({below})"
            if n:
                text = f"{text} % {L.extent_text(extents[n])}"
            made[axis] = "0" if extents[n] == 1 else self.lines.name("i", text)
        return made

    def rows(self, stage: Stage, block: Block) -> None:
        """The coordinates of rows in a block."""
        axes = self.group.rows[stage]
        if self.inside is not None:
            block.masks[0] = block.spread(self.inside, 0)
        for axis, text in self.decoded(self.row, axes, self.group.extents).items():
            wide = text != "0"
            spread = block.spread(text, 0) if wide else text
            block.coordinates[axis] = Text(spread, ROWS if wide else SCALAR)

    def side(self, stage: Stage, block: Block, dim: int, axes: Sequence[int], hint: str) -> None:
        """Axes that are whole in a block, along its axis `dim`; equal ones are made once."""
        extents = tuple(stage.extents[a] for a in axes)
        key = block.extents[dim], extents
        if key not in self.sides:
            flat = self.lines.name(hint, f"tl.arange(0, {key[0]}).to(tl.int64)")
            self.sides[key] = self.line(flat, key[0], extents)
        self.along(block, dim, axes, *self.sides[key])

    def line(self, flat: str, count: int, extents: Shape) -> Line:
        """Axes that run together: their coordinate, its mask, those of each by its place."""
        total, inside = L.times(extents), None
        if not total.isdigit() or int(total) != count:
            inside = self.lines.name(f"in_{flat}", f"{flat} < {total}")
        return flat, inside, self.decoded(flat, range(len(extents)), extents)

    def along(
        self,
        block: Block,
        dim: int,
        axes: Sequence[int],
        flat: str,
        inside: str | None,
        places: dict[int, str],
    ) -> None:
        """The coordinates of axes along one axis of a block."""
        if inside is not None:
            block.masks[dim] = block.spread(inside, dim)
        for number, text in places.items():
            block.coordinates[axes[number]] = Text(block.spread(text, dim), frozenset([dim]))

    def body(self, block: Block) -> Body:
        """Who writes the bodies of a block."""
        return Body(self.lines, block, self.pointer, lambda take: None, self.site)

    def pointer(self, variable: Variable) -> str:
        if variable not in self.pointers:
            self.pointers[variable] = self.lines.fresh(f"{L.word(variable.name)}_ptr")
        return self.pointers[variable]

    def site(self, take: Take, axis: int) -> int:
        """The number of the check of one data index."""
        source, origin = take.source, take.origin
        made = "" if source.origin is None else f" ({source.origin.place})"
        what = f"axis {axis} of `{source}`{made}, which has {source.shape[axis]} elements"
        return self.site_of(what if origin is None else f"{what}\n{origin.excerpt()}")

    def site_of(self, text: str) -> int:
        if text not in self.sites:
            self.sites.append(text)
        return self.sites.index(text)

    # -- whole rows in registers

    def whole(self, stage: Stage) -> None:
        """A map or a reduction of rows that a block holds."""
        cols, over = columns(stage, self.group.rows[stage]), terms(stage)
        extents = [self.schedule.rows]
        extents += [power(size(stage, axes)) for axes in (cols, over) if axes]
        block = Block(extents)
        self.rows(stage, block)
        self.ones(stage, block)
        if cols:
            self.side(stage, block, 1, cols, "column")
        if over:
            self.side(stage, block, 1 + bool(cols), over, "k")
        body = self.body(block)
        body.held = lambda take: self.register(take, stage, block)
        (value,) = body.values([stage.body])
        self.checks(body, stage.body, block)
        text = block.filled(value, stage.body)
        if over:
            text = self.collapse(stage, block, text, over=len(extents) - 1)
            block = self.outside(stage, block)
        name = self.lines.name(L.word(stage.target.name), L.rounded(text, stage.body.dtype))
        self.registers[stage.target] = stage, name
        self.store(stage, block, name)

    def ones(self, stage: Stage, block: Block) -> None:
        """Axes of one element."""
        for axis, extent in enumerate(stage.extents):
            if extent == 1:
                block.coordinates.setdefault(axis, Text("0"))

    def collapse(self, stage: Stage, block: Block, text: str, over: int) -> str:
        """A block of terms, combined."""
        assert isinstance(stage.form, Reduce), "it has terms"
        text = self.lines.name("term", self.masked(stage, block, text, over))
        return L.collapsed(stage.form.combiner.name, text, over, stage.body.dtype)

    def masked(self, stage: Stage, block: Block, text: str, over: int) -> str:
        """Terms beyond the last one are the identity."""
        mask = block.masks.get(over)
        if mask is None:
            return text
        assert isinstance(stage.form, Reduce), "it has terms"
        return (
            f"tl.where({mask}, {text}, {L.typed(stage.form.combiner.identity(stage.body.dtype))})"
        )

    def outside(self, stage: Stage, block: Block) -> Block:
        """The block without its terms, which are its last axis."""
        last = len(block.extents) - 1
        made = Block(block.extents[:-1])
        if self.inside is not None:
            made.masks[0] = made.spread(self.inside, 0)
        for dim, mask in block.masks.items():
            if 0 < dim < last:
                made.masks[dim] = mask.replace(", :, None]", ", :]")
        for axis, text in block.coordinates.items():
            if last in text.dims:
                continue
            short = text.text.replace("[:, None, None]", "[:, None]").replace(", :, None]", ", :]")
            if last == 1:
                short = text.text.replace("[:, None]", "")
            made.coordinates[axis] = Text(short, text.dims)
        return made

    def register(self, take: Take, stage: Stage, block: Block) -> Text | None:
        """What an earlier stage of this launch made."""
        held = self.registers.get(take.source)
        if held is None:
            return None
        source, name = held
        theirs = self.group.rows[source]
        dim = place(take, source, theirs, stage, self.group.rows[stage])
        assert dim is not None, "groups are made so"
        rank = len(block.extents)
        if dim == 0:
            return Text(block.spread(name, 0), ROWS)
        if rank == 3:
            name = f"{name}[:, :, None]" if dim == 1 else f"{name}[:, None, :]"
        return Text(name, frozenset([0, dim]))

    # -- loops

    def looped(self, stage: Stage) -> None:
        """A reduction in blocks of its terms, of all of them or of one part of several."""
        form, kind = stage.form, stage.body.dtype
        assert isinstance(form, Reduce), "others are not looped"
        chunked = len(self.group.extents) > len(stage.shape)
        rows, step = self.schedule.rows, self.schedule.step
        block, over = Block([rows, step]), terms(stage)
        self.chunk(stage, block) if chunked else self.rows(stage, block)
        self.ones(stage, block)
        identity = L.number(form.combiner.identity(kind).value)
        held = L.spelled(L.held(kind))
        total = self.lines.name("total", f"tl.full([{rows}, {step}], {identity}, {held})")
        every = L.times(tuple(stage.extents[a] for a in over))
        count = every
        first = self.lines.fresh("first")
        if chunked:
            lengths = tuple(stage.extents[a] for a in over)
            count = self.lines.name("length", L.parts(lengths, str(self.group.extents[-1])))
        self.lines.put(f"for {first} in range(0, {count}, {step}):")
        self.lines.depth += 1
        own = f"{first} + tl.arange(0, {step}).to(tl.int64)"
        self.terms(stage, block, own, chunked)
        body = self.body(block)
        (value,) = body.values([stage.body])
        self.checks(body, stage.body, block)
        text = self.masked(stage, block, block.filled(value, stage.body), 1)
        joined = L.JOINS[form.combiner.name].format(total, f"({text})")
        self.lines.put(f"{total} = {joined}")
        self.lines.depth -= 1
        name = L.rounded(L.collapsed(form.combiner.name, total, 1, kind), kind)
        name = self.lines.name(L.word(stage.target.name), name)
        self.store(stage, self.outside(stage, block), name)

    def chunk(self, stage: Stage, block: Block) -> None:
        """Rows of parts: the last of their axes is the part."""
        axes = (*range(len(stage.shape)), -1)
        if self.inside is not None:
            block.masks[0] = block.spread(self.inside, 0)
        for axis, text in self.decoded(self.row, axes, self.group.extents).items():
            wide = text != "0"
            spread = block.spread(text, 0) if wide else text
            block.coordinates[axis] = Text(spread, ROWS if wide else SCALAR)

    def terms(self, stage: Stage, block: Block, own: str, chunked: bool) -> None:
        """The coordinates of a loop's terms."""
        over = terms(stage)
        extents = [stage.extents[a] for a in over]
        if not chunked:
            flat = self.lines.name("k", own)
            self.along(block, 1, over, *self.line(flat, block.extents[1], tuple(extents)))
            return
        near = self.lines.name("near", own)
        begin = f"{self.row} % {self.group.extents[-1]} * length"
        k = self.lines.name("k", f"({begin})[:, None] + {near}[None, :]")
        inside = f"({near} < length)[None, :] & ({k} < {L.times(tuple(extents))})"
        block.masks[1] = self.lines.name("in_k", inside)
        both = frozenset([0, 1])
        for axis, text in self.decoded(k, over, extents).items():
            block.coordinates[axis] = Text(text, both if text != "0" else SCALAR)

    # -- products

    def product(self, stage: Stage) -> None:
        """A tile of a sum of products: blocks of both factors, term after term."""
        product, schedule = product_of(stage), self.schedule
        assert product is not None, "who asks knows"
        shapes = [
            tuple(stage.extents[a] for a in axes)
            for axes in (product.batch, product.rows, product.columns, product.terms)
        ]
        across = self.lines.name("across", L.parts(shapes[2], schedule.columns))
        down = self.lines.name("down", L.parts(shapes[1], schedule.rows))
        self.grid = tuple(zip(shapes, (1, schedule.rows, schedule.columns), strict=False))
        tile = self.lines.name("tile", "tl.program_id(0).to(tl.int64)")
        first = f"{tile} // {across} % {down} * {schedule.rows} + tl.arange(0, {schedule.rows})"
        own = f"{tile} % {across} * {schedule.columns} + tl.arange(0, {schedule.columns})"
        row = self.line(self.lines.name("row", first), 0, shapes[1])
        column = self.line(self.lines.name("column", own), 0, shapes[2])
        batch = self.lines.name("batch", f"{tile} // ({across} * {down})")
        shared = self.decoded(batch, product.batch, shapes[0])
        kept = [schedule.rows, schedule.columns]
        total = self.lines.name("total", f"tl.zeros({kept}, tl.float32)")
        at = self.lines.fresh("first")
        self.lines.put(f"for {at} in range(0, {L.times(shapes[3])}, {schedule.step}):")
        self.lines.depth += 1
        k = self.lines.name("k", f"{at} + tl.arange(0, {schedule.step}).to(tl.int64)")
        term = self.line(k, 0, shapes[3])
        ends = (schedule.rows, product.rows, row), (schedule.columns, product.columns, column)
        depth = schedule.step, product.terms, term
        kind, other = plain(product.left), plain(product.right)
        if kind is None or kind is not other:
            kind = float32
        left = self.factor(stage, product.left, kind, shared, (ends[0], depth))
        right = self.factor(stage, product.right, kind, shared, (depth, ends[1]))
        precise = "" if is_half(kind) else ', input_precision="tf32x3"'
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
        block = Block([count for count, _, _ in sides])
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
        if is_half(kind):
            text = f"({text}).to({L.spelled(kind)})"
        return self.lines.name("factor", text)

    # -- term by term

    def sequence(self, stage: Stage) -> None:
        """A scan, or a reduction by a combiner of the user's: one term after the other."""
        form, kind = stage.form, stage.body.dtype
        assert isinstance(form, Scan | Reduce), "others have no terms"
        block = Block([self.schedule.rows])
        self.rows(stage, block)
        self.ones(stage, block)
        axes = [form.axis] if isinstance(form, Scan) else list(stage.over)
        identity = L.number(form.combiner.identity(kind).value)
        held = L.spelled(L.held(kind))
        carry = self.lines.name("carry", f"tl.full({block.extents}, {identity}, {held})")
        self.each(stage, block, axes)
        body = self.body(block)
        (value,) = body.values([stage.body])
        self.checks(body, stage.body, block)
        text = self.joined(form.combiner, kind, carry, block.filled(value, stage.body), block)
        self.lines.put(f"{carry} = {text}")
        if isinstance(form, Scan):
            self.store(stage, block, L.rounded(carry, kind))
        self.lines.depth -= 1
        if not isinstance(form, Scan):
            self.store(stage, block, L.rounded(carry, kind))

    def each(self, stage: Stage, block: Block, axes: Sequence[int]) -> None:
        """A loop over all coordinates of axes, which are the same for all rows."""
        extents = [stage.extents[a] for a in axes]
        at = self.lines.fresh("at")
        self.lines.put(f"for {at} in range(0, {L.times(tuple(extents))}):")
        self.lines.depth += 1
        flat = self.lines.name("k", f"tl.zeros({block.extents}, tl.int64) + {at}")
        for axis, text in self.decoded(flat, axes, extents).items():
            block.coordinates[axis] = Text(text, SCALAR if text == "0" else ROWS)

    def joined(self, combiner: Combiner, kind: DType, left: str, right: str, block: Block) -> str:
        """Two values combined."""
        if combiner.name in L.JOINS:
            return L.JOINS[combiner.name].format(left, f"({right})")
        a, b = (read(Variable(name, (), kind)) for name in "ab")
        dims = frozenset(range(len(block.extents)))
        right = self.lines.name("term", right)
        given: dict[Expr, Text] = {a: Text(left, dims), b: Text(right, dims)}
        body = Body(self.lines, block, self.pointer, lambda take: None, self.site, given)
        both = combiner.join(a, b)
        (value,) = body.values([both])
        return block.filled(value, both)

    def scatter(self, stage: Stage) -> None:
        """An accumulating write: a program owns the rows that it writes, whatever data says."""
        form = stage.form
        assert isinstance(form, Accumulate), "others do not scatter"
        assert stage.store is not None, "it is memory"
        block = Block([self.schedule.rows])
        self.rows(stage, block)
        rows = self.group.rows[stage]
        self.each(stage, block, [a for a in range(len(form.domain)) if a not in rows])
        body = self.body(block)
        value, *at = body.values([stage.body, *form.at])
        self.checks(body, stage.body, block)
        for n, index in enumerate(form.at):
            self.checks(body, index, block)
            for bound in body.within(index, stage.shape[n]):
                axis = f"axis {n} of `{stage.target}`, which has {stage.shape[n]} elements"
                origin = stage.target.origin
                text = axis if origin is None else f"{axis}\n{origin.excerpt()}"
                mark = Mark(self.site_of(text), bound.wrong, at[n])
                self.check(mark, block)
        pairs = zip(form.at, stage.shape, strict=True)
        guards = [bound.right.text for i, e in pairs for bound in body.within(i, e)]
        masks = [*block.inside(ROWS), *guards]
        where = (
            f"{self.pointer(stage.store)} + {self.placed(body.offset(form.at, stage.shape), block)}"
        )
        where = self.lines.name("where", where)
        mask = f", mask={' & '.join(masks)}" if masks else ""
        other = f"{mask}, other=0" if masks else ""
        old = f"tl.load({where}{other})"
        if stage.store.dtype.is_bool:
            old = f"({old} != 0)"
        old = self.lines.name("old", old)
        new = self.joined(
            form.combiner, stage.body.dtype, old, block.filled(value, stage.body), block
        )
        self.lines.put(f"tl.store({where}, {self.kept(new, stage.store)}{mask})")
        self.lines.depth -= 1

    # -- memory

    def placed(self, offset: Text, block: Block) -> str:
        """Offsets of every element of a block."""
        if offset.text == "0":
            return f"tl.zeros({block.extents}, tl.int64)"
        return block.filled(offset, None)

    def kept(self, text: str, store: Variable) -> str:
        return f"({text}).to(tl.uint8)" if store.dtype.is_bool else text

    def store(self, stage: Stage, block: Block, text: str) -> None:
        """A block to memory."""
        if stage.store is None:
            return
        shape = stage.store.shape
        axes: list[Expr] = [Axis(n, e) for n, e in enumerate(shape)]
        if len(shape) > len(stage.shape):  # the part of a sum
            block.coordinates[len(stage.shape)] = block.coordinates[-1]
        body = self.body(block)
        body.values(axes)
        where = f"{self.pointer(stage.store)} + {self.placed(body.offset(axes, shape), block)}"
        masks = [block.masks[d] for d in sorted(block.masks)]
        mask = f", mask={' & '.join(masks)}" if masks else ""
        self.lines.put(f"tl.store({where}, {self.kept(text, stage.store)}{mask})")

    # -- checks

    def checks(self, body: Body, root: Expr, block: Block) -> None:
        """What is wrong in a body reaches the launch's record."""
        for mark in body.marks.get(root, ()):
            self.check(mark, block)

    def check(self, mark: Mark, block: Block) -> None:
        every = [*map(block.masks.__getitem__, sorted(block.masks)), str(mark.wrong)]
        at = f"wrong + {2 * mark.site} + tl.zeros({block.extents}, tl.int64)"
        bad = self.lines.name("bad", f"tl.broadcast_to({' & '.join(every)}, {block.extents})")
        one = f"tl.full({block.extents}, 1, tl.int64)"
        self.lines.put(f"tl.store({at}, {one}, mask={bad})")
        value = f"tl.broadcast_to({mark.value}, {block.extents})"
        self.lines.put(f"tl.store({at} + 1, {value}, mask={bad})")
