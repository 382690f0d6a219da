"""Launches whose programs have rows: whole in registers, in blocks of terms, or term by term."""

from __future__ import annotations

from collections.abc import Sequence

from pullback.backends.triton import language as L
from pullback.backends.triton.blocks import Way, columns, place, power, size, terms
from pullback.backends.triton.body import Block, Body, Text
from pullback.backends.triton.function import ROWS, SCALAR, Function
from pullback.ir.dtype import DType
from pullback.ir.expr import Expr, Take
from pullback.ir.graph import Combiner, Reduce, Scan, Variable, read
from pullback.ir.kernel import Stage


class Rows(Function):
    """Writes launches of rows."""

    def write(self) -> None:
        self.head()
        ways = {
            Way.BLOCK: self.whole,
            Way.LOOP: self.looped,
            Way.SCAN: self.whole,
            Way.SEQUENCE: self.sequence,
        }
        for stage in self.group.stages:
            self.about(stage)
            ways[self.group.way](stage)

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
        if isinstance(stage.form, Scan):
            text = f"tl.associative_scan({text}, 1, {L.SCANS[stage.form.combiner.name]})"
        if over:
            text = self.collapse(stage, block, text, over=len(extents) - 1)
            block = self.outside(stage, block)
        name = self.lines.name(L.word(stage.target.name), L.rounded(text, stage.body.dtype))
        self.registers[stage.target] = stage, name
        self.store(stage, block, name)

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
        axes = (*range(len(stage.shape)), -1)
        self.chunk(block, axes) if chunked else self.rows(stage, block)
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
        own = f"{first} + tl.arange(0, {step}).to({self.index})"
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

    def chunk(self, block: Block, axes: Sequence[int]) -> None:
        """Rows of parts: -1 of their axes is the part."""
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
        flat = self.lines.name("k", f"tl.zeros({block.extents}, {self.index}) + {at}")
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
