"""Launches of accumulating writes: terms in the order of their owners, or added all at once."""

from __future__ import annotations

from collections.abc import Sequence

from pullback.backends.triton import language as L
from pullback.backends.triton.atomics import form_of
from pullback.backends.triton.body import Block, Body, Mark, Text
from pullback.backends.triton.function import ROWS
from pullback.backends.triton.rows import Rows
from pullback.ir.expr import Axis, Expr
from pullback.ir.kernel import Stage

PART, SHARE = -1, -2  # axes of programs that no definition has


class Scatter(Rows):
    """Writes launches of accumulating writes."""

    def write(self) -> None:
        self.head()
        (stage,) = self.group.stages
        self.about(stage)
        block = Block([self.schedule.rows])
        self.spread(stage, block) if self.schedule.atomic else self.owned(stage, block)
        self.combine(stage, block)
        self.lines.depth = 1

    def spread(self, stage: Stage, block: Block) -> None:
        """A term for each lane; those of a warp go to parts of their own."""
        self.rows(stage, block)
        if self.schedule.chunks > 1:
            part = self.lines.name("part", f"{self.row} % {self.schedule.chunks}")
            block.coordinates[PART] = Text(part, ROWS)

    def owned(self, stage: Stage, block: Block) -> None:
        """A loop over all terms of the rows that a program owns, or of one part of them."""
        schedule, domain, rows = self.schedule, form_of(stage).domain, self.group.rows[stage]
        parted = (PART,) if schedule.chunks > 1 else ()
        shared = (SHARE,) if schedule.shares > 1 else ()
        self.chunk(block, (*shared, *parted, *rows))
        others = [a for a in range(len(domain)) if a not in rows]
        if not parted:
            self.each(stage, block, others)
            return
        extents, at = tuple(domain[a] for a in others), self.lines.fresh("at")
        self.lines.put(f"for {at} in range(0, {L.parts(extents, schedule.chunks)}):")
        self.lines.depth += 1
        k = self.lines.name("k", f"{at} * {schedule.chunks} + {block.coordinates[PART]}")
        self.only(block, f"({k} < {L.times(extents)})")
        for axis, text in self.decoded(k, others, extents).items():
            block.coordinates[axis] = Text(text, ROWS if text != "0" else frozenset())

    def only(self, block: Block, condition: str) -> None:
        """A mask of lanes, beside those that there are."""
        every = " & ".join([*block.inside(ROWS), condition])
        block.masks[0] = self.lines.name("in_lane", every)

    def combine(self, stage: Stage, block: Block) -> None:
        """A block of terms to their places."""
        form = form_of(stage)
        assert stage.store is not None, "it is memory"
        body = self.body(block)
        at = body.values(form.at)
        self.inside_of(stage, body, block, at)
        if self.schedule.shares > 1:
            self.only(block, f"({self.place(stage, body)} == {block.coordinates[SHARE]})")
        part: list[Expr] = []
        if self.schedule.chunks > 1:
            part = [Axis(len(form.domain), self.schedule.chunks)]
            block.coordinates[len(form.domain)] = block.coordinates[PART]
        value, *_ = body.values([stage.body, *part])
        self.checks(body, stage.body, block)
        pairs = zip(form.at, stage.shape, strict=True)
        guards = [bound.right.text for i, e in pairs for bound in body.within(i, e)]
        mask = " & ".join([*block.inside(ROWS), *guards])
        offset = self.placed(body.offset([*part, *form.at], stage.store.shape), block)
        where = self.lines.name("where", f"{self.pointer(stage.store)} + {offset}")
        into = self.add if self.schedule.atomic else self.join
        into(stage, block, where, block.filled(value, stage.body), mask)

    def place(self, stage: Stage, body: Body) -> str:
        """Whose share the place of a term is: places that follow one another are dealt in turn."""
        rows = self.group.rows[stage]
        places = [
            (at, extent)
            for at, extent in zip(form_of(stage).at, stage.shape, strict=True)
            if not (isinstance(at, Axis) and at.number in rows)
        ]
        offset = body.offset([at for at, _ in places], [extent for _, extent in places])
        return f"({offset.text}) % {self.schedule.shares}"

    def join(self, stage: Stage, block: Block, where: str, term: str, mask: str) -> None:
        """Each term to what is there, by who owns it."""
        assert stage.store is not None, "it is memory"
        other = f", mask={mask}, other=0" if mask else ""
        old = self.lines.name("old", L.computed(f"tl.load({where}{other})", stage.store.dtype))
        new = self.joined(form_of(stage).combiner, stage.body.dtype, old, term, block)
        new = L.stored(new, stage.store.dtype)
        self.lines.put(f"tl.store({where}, {new}{mask and f', mask={mask}'})")

    def add(self, stage: Stage, block: Block, where: str, term: str, mask: str) -> None:
        """All terms of a block at once, beside those of other programs, in any order."""
        name, kind = form_of(stage).combiner.name, L.held(stage.body.dtype)
        mask = mask or f"tl.full({block.extents}, 1, tl.int1)"
        if kind.is_float and name != "sum":
            kinds = f"tl.int{kind.bits}, tl.uint{kind.bits}"
            self.lines.put(f"atomic_{name}({where}, {term}, {mask}, {kinds})")
            return
        call = {"sum": "add"}.get(name, name)
        self.lines.put(f'tl.atomic_{call}({where}, {term}, mask={mask}, sem="relaxed")')

    def inside_of(self, stage: Stage, body: Body, block: Block, at: Sequence[Text]) -> None:
        """Checks of indices, and of what they are made of."""
        form, origin = form_of(stage), stage.target.origin
        for n, (index, extent) in enumerate(zip(form.at, stage.shape, strict=True)):
            self.checks(body, index, block)
            for bound in body.within(index, extent):
                axis = f"axis {n} of `{stage.target}`, which has {extent} elements"
                text = axis if origin is None else f"{axis}\n{origin.excerpt()}"
                self.check(Mark(self.site_of(text), bound.wrong, at[n]), block)
