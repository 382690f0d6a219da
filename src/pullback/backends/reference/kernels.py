"""Kernels executed with NumPy, tile by tile, so that fusion is checked against the definitions.

A tile sees only its own part of what earlier stages kept in scratch: a read of another tile's part
raises. Stores reach memory at once, so an overwrite that comes too early gives a wrong result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from pullback.backends.reference import combine
from pullback.backends.reference.definitions import (
    Range,
    Sizes,
    Work,
    extent_of,
    fitted,
    infer_sizes,
    shape_of,
)
from pullback.errors import InvalidIR
from pullback.ir.expr import Expr
from pullback.ir.graph import Accumulate, Reduce, Value, Variable
from pullback.ir.kernel import Kernel, Stage, target_axis
from pullback.ir.meaning import Array

TILES = 3  # tiles along each outer axis when no sizes are given


def run_kernel(
    kernel: Kernel,
    values: Mapping[Variable, Array],
    tile_sizes: Sequence[int] | None = None,
    sizes: Sizes | None = None,
) -> dict[Variable, Array]:
    """New contents of every variable that `kernel` writes; `values` are left alone.

    `tile_sizes`: elements of a tile along each outer axis. Memory not given starts as NaN.

    Raises: IndexRangeError for a read outside what a tile may see; InvalidIR for other faults.
    """
    if kernel.parts:
        # They need nothing of each other: the last one first.
        written = [run_kernel(p, values, None, sizes) for p in reversed(kernel.parts)]
        return {v: array for each in written for v, array in each.items()}
    known = infer_sizes({v: values[v] for v in kernel.arguments if v in values})
    run = _Run(kernel, known if sizes is None else sizes)
    for variable in kernel.arguments:
        run.memory[variable] = run.copied(variable, values.get(variable))
    for tile in run.tiles(tile_sizes):
        run.tile(tile)
    run.finish()
    return {v: run.memory[v] for v in kernel.writes}


@dataclass(slots=True)
class _Run:
    """One launch: memory, and what outlives a tile."""

    kernel: Kernel
    sizes: Sizes
    memory: dict[Variable, Array] = field(default_factory=dict)
    totals: dict[Stage, Array] = field(default_factory=dict)

    def copied(self, variable: Variable, given: Array | None) -> Array:
        if given is not None:
            return np.array(fitted(variable, np.asarray(given), self.sizes))
        if variable not in self.kernel.writes:
            raise InvalidIR(f"no array for {variable}")
        shape = shape_of(variable.shape, self.sizes)
        if variable.dtype.is_float:
            return np.full(shape, np.nan, variable.dtype.numpy)
        return np.full(shape, variable.dtype.range()[1], variable.dtype.numpy)

    def tiles(self, given: Sequence[int] | None) -> list[tuple[Range, ...]]:
        """Tiles of the outer box, last first: their order must not matter."""
        spans: list[list[Range]] = []
        for n, extent in enumerate(self.kernel.outer):
            size = extent_of(extent, self.sizes)
            step = max(1, -(-size // TILES) if given is None else given[n])
            spans.append([(lo, min(lo + step, size)) for lo in range(0, size, step)])
        return list(product(*spans))[::-1]

    def tile(self, tile: tuple[Range, ...]) -> None:
        scratch: dict[Value, Array] = dict(self.memory.items())
        starts: dict[Value, tuple[int, ...]] = {}
        for stage in self.kernel.stages:
            box = self.box(stage, tile)
            work = self.work(stage, box, scratch, starts)
            part = self.part(stage, tile)
            place = tuple(slice(lo, hi) for lo, hi in part)
            if stage.partial:
                self.add(stage, work, place, tile)
                continue
            value = self.values(stage, work, place)
            scratch[stage.target] = value
            starts[stage.target] = tuple(lo for lo, _ in part)
            if stage.store is not None:
                self.memory[stage.store][place] = value

    def box(self, stage: Stage, tile: tuple[Range, ...]) -> list[Range]:
        """The ranges of a stage's axes in one tile."""
        box = [(0, extent_of(e, self.sizes)) for e in stage.extents]
        for span, axis in zip(tile, stage.outer, strict=False):
            if axis is not None:
                box[axis] = span
        return box

    def part(self, stage: Stage, tile: tuple[Range, ...]) -> tuple[Range, ...]:
        """The ranges of a stage's result in one tile."""
        spans = [(0, extent_of(e, self.sizes)) for e in stage.shape]
        for span, axis in zip(tile, stage.outer, strict=False):
            place = target_axis(stage, axis)
            if place is not None:
                spans[place] = span
        return tuple(spans)

    def values(self, stage: Stage, work: Work, place: tuple[slice, ...]) -> Array:
        """What a stage makes in one tile; an accumulating write reaches no other tile's part."""
        if not isinstance(stage.form, Accumulate):
            return combine.finished(work.gathered(), stage.body.dtype)
        out = self.identity(stage)
        work.scattered(out)
        return combine.finished(out[place], stage.body.dtype)

    def work(
        self,
        stage: Stage,
        box: Sequence[Range],
        scratch: Mapping[Value, Array],
        starts: Mapping[Value, tuple[int, ...]],
    ) -> Work:
        roots: tuple[Expr, ...] = (stage.body,)
        if isinstance(stage.form, Accumulate):
            roots += stage.form.at
        return Work(stage.target, stage.form, roots, tuple(box), scratch, self.sizes, starts)

    def identity(self, stage: Stage) -> Array:
        return combine.start(stage.form, shape_of(stage.shape, self.sizes), stage.body.dtype)

    def add(
        self, stage: Stage, work: Work, place: tuple[slice, ...], tile: tuple[Range, ...]
    ) -> None:
        """One tile's share of a partial reduction."""
        # Tiles along an axis that the stage lacks would add the same share again.
        again = any(a is None and t[0] > 0 for a, t in zip(stage.outer, tile, strict=True))
        if again:
            return
        total = self.totals.setdefault(stage, self.identity(stage))
        assert isinstance(stage.form, Reduce)
        share, combiner = work.gathered(), stage.form.combiner
        total[place] = combine.joined(total[place], share, combiner, stage.body.dtype)

    def finish(self) -> None:
        """Partials are whole: they are stored, and the finish stages run once."""
        scratch: dict[Value, Array] = dict(self.memory.items())
        for stage in self.kernel.stages:
            if not stage.partial:
                continue
            whole = self.totals.setdefault(stage, self.identity(stage))
            scratch[stage.target] = combine.finished(whole, stage.body.dtype)
            if stage.store is not None:
                self.memory[stage.store][...] = scratch[stage.target]
        for stage in self.kernel.finish:
            box = [(0, extent_of(e, self.sizes)) for e in stage.extents]
            scratch[stage.target] = self.values(stage, self.work(stage, box, scratch, {}), ())
            if stage.store is not None:
                self.memory[stage.store][...] = scratch[stage.target]
