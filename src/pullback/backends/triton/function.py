"""One launch as a function of Triton's: ``rows of a program: load, compute, store``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pullback.backends.triton import language as L
from pullback.backends.triton.blocks import Group, Way
from pullback.backends.triton.body import Block, Body, Lines, Mark, Text
from pullback.backends.triton.narrow import narrow
from pullback.backends.triton.schedule import BlockSchedule
from pullback.ir.expr import Axis, Dim, Expr, Extent, Shape, Size, Take
from pullback.ir.graph import Value, Variable
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
    stages: int


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
        self.index = "tl.int32" if narrow(group) else "tl.int64"
        self.row = ""
        self.inside: str | None = None
        self.grid: tuple[tuple[Shape, int], ...] = ((group.extents, schedule.rows),)

    def launch(self) -> Launch:
        """The function, with what it is called by."""
        schedule = self.schedule
        self.lines.taken |= dict.fromkeys(L.RESERVED, 1)
        self.write()
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
            schedule.stages,
        )

    def write(self) -> None:
        """The lines of all stages."""
        raise NotImplementedError

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
        start = f"tl.program_id(0).to({self.index}) * {block}"
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
            flat = self.lines.name(hint, f"tl.arange(0, {key[0]}).to({self.index})")
            self.sides[key] = self.line(flat, key[0], extents)
        self.along(block, dim, axes, *self.sides[key])

    def line(self, flat: str, count: int, extents: Shape) -> Line:
        """Axes that run together: their coordinate, its mask, those of each by its place. Blocks of
        `count` that cover them exactly have no mask; 0: they always have one.
        """
        total, inside = L.times(extents), None
        if not (count and total.isdigit() and int(total) and int(total) % count == 0):
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

    def ones(self, stage: Stage, block: Block) -> None:
        """Axes of one element."""
        for axis, extent in enumerate(stage.extents):
            if extent == 1:
                block.coordinates.setdefault(axis, Text("0"))

    # -- memory

    def placed(self, offset: Text, block: Block) -> str:
        """Offsets of every element of a block."""
        if offset.text == "0":
            return f"tl.zeros({block.extents}, tl.int64)"
        return block.filled(offset, None)

    def store(self, stage: Stage, block: Block, text: str) -> None:
        """A block to memory."""
        if stage.store is None:
            return
        shape = stage.store.shape
        axes: list[Expr] = [Axis(n, e) for n, e in enumerate(shape)]
        if len(shape) > len(stage.shape):  # the part of a sum: rows have it last, tiles first
            block.coordinates[len(stage.shape)] = block.coordinates[-1]
            if self.group.way is Way.PRODUCT:
                axes = [Axis(len(stage.shape), shape[0])]
                axes += [Axis(n, e) for n, e in enumerate(stage.shape)]
        body = self.body(block)
        body.values(axes)
        where = f"{self.pointer(stage.store)} + {self.placed(body.offset(axes, shape), block)}"
        masks = [block.masks[d] for d in sorted(block.masks)]
        mask = f", mask={' & '.join(masks)}" if masks else ""
        self.lines.put(f"tl.store({where}, {L.stored(text, stage.store.dtype)}{mask})")

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
