"""Kernels: one launch each. Ordered stages over shared outer axes, no backend in sight.

``for outer tile (parallel): for stage in stages: compute the stage's part of this tile``

A stage is a definition with inlining done. It reads variables (memory) and earlier stages of the
same kernel, the latter only at the same outer coordinates: the index at each of the earlier
stage's outer-bound axes must be exactly this stage's axis bound to the same outer axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from pullback.config import Ints, entity
from pullback.ir.expr import Axis, Expr, Exprs, Extent, Shape, Take, takes
from pullback.ir.graph import (
    Accumulate,
    Definition,
    Form,
    Reduce,
    Value,
    Variable,
    replace_reads,
    roots,
    with_places,
)


@entity
class Stage:
    """One definition computed tile by tile.

    `target` is the identity that later stages read. `body` may differ from the target's by
    inlining. `outer[o]` is the number of the stage's axis bound to kernel axis `o`, or None where
    the stage does not have it (then each tile computes it again). An axis of `over` bound to
    an outer axis makes the stage *partial*: private sums per chunk, combined before `finish`.
    `store` is the variable that receives the value; None keeps it in scratch or registers.

    `over`: numbers of the reduced axes. `bound`: the kernel's axis by the stage's own that is bound
    to it. `partial`: whether a reduced axis is spread over the kernel's tiles.
    """

    target: Definition
    form: Form
    body: Expr
    outer: tuple[int | None, ...]
    store: Variable | None = None
    over: range = field(init=False, repr=False)
    bound: dict[int, int] = field(init=False, repr=False)
    partial: bool = field(init=False, repr=False)
    _reads: tuple[Take, ...] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        rank = len(self.target.shape)
        count = len(self.form.over) if isinstance(self.form, Reduce) else 0
        over = range(rank, rank + count)
        bound = {a: o for o, a in enumerate(self.outer) if a is not None}
        object.__setattr__(self, "over", over)
        object.__setattr__(self, "bound", bound)
        object.__setattr__(self, "partial", any(a in over for a in bound))

    @property
    def shape(self) -> Shape:
        return self.target.shape

    @property
    def extents(self) -> Shape:
        """Extents by axis number, reduced axes last."""
        return self.target.extents

    @property
    def roots(self) -> Exprs:
        """The body and, of an accumulating write, the target indices."""
        return roots(self.body, self.form)


Stages = tuple[Stage, ...]


@entity
class Kernel:
    """One launch. `finish` stages run once, after the partial stages are combined; there every
    entry of `outer` is None. `reasons` says for people why the borders are where they are.

    A kernel with `parts` has no stages of its own: its parts, which need nothing of each other,
    run side by side, each over its own outer axes. `tiling`: the tile, tasks and columns of each
    stage that it must have, as the kernel that it was cut from; None: as is best.
    """

    name: str
    outer: Shape
    stages: Stages
    finish: Stages = ()
    reasons: tuple[str, ...] = ()
    parts: tuple[Kernel, ...] = ()
    tiling: tuple[Ints, int, tuple[int | None, ...]] | None = None

    @property
    def pieces(self) -> tuple[Kernel, ...]:
        """What is compiled: the parts, or the kernel itself."""
        return self.parts or (self,)

    @property
    def every(self) -> Stages:
        """All stages, in order; those of the parts one part after the other."""
        return tuple(s for piece in self.pieces for s in piece.stages + piece.finish)

    @property
    def writes(self) -> tuple[Variable, ...]:
        """Variables written, in stage order."""
        return tuple(dict.fromkeys(s.store for s in self.every if s.store is not None))

    @property
    def reads(self) -> tuple[Variable, ...]:
        """Variables read, in stage order."""
        variables: dict[Variable, None] = {}
        for stage in self.every:
            for take in stage_reads(stage):
                if isinstance(take.source, Variable):
                    variables[take.source] = None
        return tuple(variables)

    @property
    def arguments(self) -> tuple[Variable, ...]:
        """Every variable touched: those read, then those only written."""
        return tuple(dict.fromkeys(self.reads + self.writes))


def stage_reads(stage: Stage) -> tuple[Take, ...]:
    """The reads of a stage's body and of its write indices; found once."""
    if stage._reads is None:
        reads = tuple(takes(stage.roots))
        object.__setattr__(stage, "_reads", reads)
        return reads
    return stage._reads


def redirected(stage: Stage, places: Mapping[Value, Variable]) -> Stage:
    """A stage that reads, and stores to, other variables: what is looked up in `places`."""

    def change(take: Take) -> Expr | None:
        place = places.get(take.source)
        return None if place is None else take.of(place)

    form = with_places(stage.form, change)
    store = None if stage.store is None else places.get(stage.store, stage.store)
    return Stage(stage.target, form, replace_reads(stage.body, change), stage.outer, store)


def renamed(kernel: Kernel, names: Mapping[Variable, Variable]) -> Kernel:
    """The same launch on other variables: everything it reads and writes is looked up."""
    places: Mapping[Value, Variable] = {k: v for k, v in names.items() if k is not v}
    if places.keys().isdisjoint(kernel.arguments):
        return kernel
    return replace(
        kernel,
        stages=tuple(redirected(s, places) for s in kernel.stages),
        finish=tuple(redirected(s, places) for s in kernel.finish),
        parts=tuple(renamed(part, names) for part in kernel.parts),
    )


def reordered(kernel: Kernel, order: Ints) -> Kernel:
    """The same launch with its outer axes in another order."""
    if order == tuple(range(len(kernel.outer))):
        return kernel

    def turned(stages: Stages) -> Stages:
        return tuple(replace(s, outer=tuple(s.outer[axis] for axis in order)) for s in stages)

    outer = tuple(kernel.outer[axis] for axis in order)
    stages = turned(kernel.stages)
    finish = turned(kernel.finish)
    return replace(kernel, outer=outer, stages=stages, finish=finish)


def target_axis(stage: Stage, axis: int | None) -> int | None:
    """The axis of the target that a stage's own axis is (a scattered write: where it is plain)."""
    if axis is None:
        return None
    if not isinstance(stage.form, Accumulate):
        return axis if axis < len(stage.shape) else None
    return plain_places(stage.form, stage.shape).get(axis)


def plain_places(form: Accumulate, shape: Sequence[Extent]) -> dict[int, int]:
    """Domain axes that are an index of the target as they stand, over all of its extent.

    ``y[i, 0, i] += ..., i < 3, y: (4, 1, 3)  ->  {i: 2}``: no two iterations along such an axis
    write one element, and every element has its iteration.
    """
    places: dict[int, int] = {}
    for place, (at, extent) in enumerate(zip(form.at, shape, strict=True)):
        if isinstance(at, Axis) and at.extent == extent:
            places.setdefault(at.number, place)
    return places
