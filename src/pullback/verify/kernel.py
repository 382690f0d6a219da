"""Checks on kernels, run after fusion: what tiles share, who writes, what is overwritten."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from pullback.config import frozen
from pullback.ir.expr import Axis, Take, upper
from pullback.ir.graph import Accumulate, Reduce, Scan, Value, Variable
from pullback.ir.kernel import Kernel, Stage, stage_reads, target_axis
from pullback.verify.body import Body, Proofs, verify_body
from pullback.verify.report import fail

Fault = tuple[str, Stage] | None


@frozen
class Scene:
    """A kernel with each target's stage, and each stage's place in the order."""

    kernel: Kernel
    made: dict[Value, Stage]
    place: dict[Stage, int]

    def reads(self) -> Iterator[tuple[Stage, Take]]:
        """Every read with its stage, in stage order."""
        for stage in self.place:
            for take in stage_reads(stage):
                yield stage, take

    def last(self, stage: Stage) -> bool:
        """Whether a stage runs once, after all tiles."""
        return self.place[stage] >= len(self.kernel.stages)


Check = Callable[[Scene], Fault]


def spread(stage: Stage) -> bool:
    """Whether a stage is whole only after every tile: partial sums, writes that tiles share."""
    if isinstance(stage.form, Accumulate):
        return any(a is not None and target_axis(stage, a) is None for a in stage.outer)
    return stage.partial


def bound_axes(scene: Scene) -> Fault:
    """Each stage binds an axis of equal extent, or none, to each outer axis; each axis once."""
    kernel = scene.kernel
    for stage in scene.place:
        if len(stage.outer) != len(kernel.outer):
            return f"{len(stage.outer)} bindings for {len(kernel.outer)} outer axes", stage
        bound = [a for a in stage.outer if a is not None]
        if len(set(bound)) != len(bound):
            return "binds one axis twice", stage
        if bound and scene.last(stage):
            return "a finish stage binds an outer axis", stage
        for axis, extent in zip(stage.outer, kernel.outer, strict=True):
            if axis is None:
                continue
            if axis >= len(stage.extents) or stage.extents[axis] != extent:
                return f"axis {axis} is bound to an outer axis of {extent}", stage
    return None


def scanned_whole(scene: Scene) -> Fault:
    """A scan is not cut along the axis that it runs over."""
    for stage in scene.place:
        if isinstance(stage.form, Scan) and stage.form.axis in stage.outer:
            return "the scanned axis is an outer axis", stage
    return None


def stage_order(scene: Scene) -> Fault:
    """A stage reads variables and earlier stages only."""
    for stage, take in scene.reads():
        if isinstance(take.source, Variable):
            continue
        maker = scene.made.get(take.source)
        if maker is None:
            return f"reads {take.source}, which no stage of the kernel makes", stage
        if scene.place[maker] >= scene.place[stage]:
            return f"reads {take.source} before it is made", stage
    return None


def whole_when_read(scene: Scene) -> Fault:
    """What is spread over tiles is read by finish stages only, what is a tile's never there."""
    for stage, take in scene.reads():
        maker = scene.made.get(take.source)
        if maker is None:
            continue
        if spread(maker) and not scene.last(stage):
            return f"reads {take.source} while tiles still add to it", stage
        if scene.last(stage) and not scene.last(maker) and not spread(maker):
            return f"reads {take.source}, which is gone with its tile", stage
    return None


def same_coordinates(scene: Scene) -> Fault:
    """A read inside a kernel is at the same outer coordinates."""
    for stage, take in scene.reads():
        maker = scene.made.get(take.source)
        if maker is None or scene.last(stage) or spread(maker):
            continue
        fault = _elsewhere(scene, stage, take, maker)
        if fault is not None:
            return f"reads {take.source} {fault}", stage
    return None


def _elsewhere(scene: Scene, stage: Stage, take: Take, maker: Stage) -> str | None:
    """How a read leaves its tile: index `a` must be this stage's axis of the same outer axis."""
    for o, extent in enumerate(scene.kernel.outer):
        place = target_axis(maker, maker.outer[o])
        if place is None or upper(extent) <= 1:
            continue
        own = stage.outer[o]
        index = take.indices[place]
        if own is None or not isinstance(index, Axis) or index.number != own:
            return f"at another coordinate of outer axis {o}"
    return None


def one_writer(scene: Scene) -> Fault:
    """Every variable has one writer, and every element one tile that writes it."""
    writers: dict[Variable, Stage] = {}
    for stage in scene.place:
        if stage.store is None:
            continue
        if stage.store in writers:
            return f"{stage.store} is also written by {writers[stage.store].target}", stage
        writers[stage.store] = stage
        if scene.last(stage):
            continue
        for o, (axis, extent) in enumerate(zip(stage.outer, scene.kernel.outer, strict=True)):
            if upper(extent) <= 1:
                continue
            if axis is None:
                return f"every tile along outer axis {o} writes {stage.store}", stage
            if isinstance(stage.form, Accumulate) and target_axis(stage, axis) is None:
                return f"tiles along outer axis {o} meet in {stage.store}", stage
    return None


def stored_alike(scene: Scene) -> Fault:
    """A stage has the shape and type of the variable that it is stored in."""
    for stage in scene.place:
        kept = stage.store
        if kept is None:
            continue
        if kept.shape != stage.shape or kept.dtype != stage.body.dtype:
            return f"{stage.body.dtype}{list(stage.shape)} goes to {kept}", stage
    return None


def partial_sums(scene: Scene) -> Fault:
    """Only an associative reduction is spread over tiles, and each tile adds its share once."""
    for stage in scene.place:
        if not spread(stage):
            continue
        if not isinstance(stage.form, Reduce):
            return f"a {type(stage.form).__name__} is spread over tiles", stage
        if scene.last(stage):
            return "a finish stage is spread over tiles", stage
        for o, (axis, extent) in enumerate(zip(stage.outer, scene.kernel.outer, strict=True)):
            if axis is None and upper(extent) > 1:
                return f"every tile along outer axis {o} adds the same share", stage
    return None


def in_place(scene: Scene) -> Fault:
    """What is overwritten is read at the writer's outer coordinates, not after the writer."""
    writers = {s.store: s for s in scene.place if s.store is not None}
    for stage, take in scene.reads():
        writer = writers.get(take.source) if isinstance(take.source, Variable) else None
        if writer is None:
            continue
        scattered = isinstance(writer.form, Accumulate)
        apart = scene.last(writer) or (spread(writer) and not scattered)
        late = scene.place[stage] + (scattered and not apart) > scene.place[writer]
        if late and (scene.last(stage) or not apart):
            return f"reads {take.source} after {writer.target} has overwritten it", stage
        fault = None if apart else _elsewhere(scene, stage, take, writer)
        if fault is not None:
            return f"reads {take.source}, which {writer.target} overwrites, {fault}", stage
    return None


def side_by_side(kernel: Kernel) -> Fault:
    """Parts of one launch need nothing of each other, and nothing is left to do after them."""
    writers = {v: part for part in kernel.parts for v in part.writes}
    for part in kernel.parts:
        for stage in part.every:
            if spread(stage) or part.finish or part.parts:
                return "is not done with its part of a launch", stage
            touched = [t.source for t in stage_reads(stage)]
            for value in [*touched, stage.store]:
                if isinstance(value, Variable) and writers.get(value, part) is not part:
                    return f"touches {value}, which another part of the launch writes", stage
    return None


CHECKS: tuple[Check, ...] = (
    bound_axes, scanned_whole, stage_order, whole_when_read, same_coordinates,
    one_writer, stored_alike, partial_sums, in_place,
)  # fmt: skip


def verify_kernel(kernel: Kernel, after: str, proofs: Proofs | None = None) -> None:
    """Every check on a kernel and on each of its stages, but those that `proofs` has.

    Raises: InvalidIR naming the pass, the kernel's stage and the user's line.
    """
    proofs = proofs or Proofs()
    for part in kernel.parts:
        verify_kernel(part, after, proofs)
    every = kernel.every
    if kernel.parts:
        _raise(kernel, side_by_side, side_by_side(kernel), after)
        return
    made: dict[Value, Stage] = {s.target: s for s in every}
    scene = Scene(kernel, made, {s: n for n, s in enumerate(every)})
    for check in CHECKS:
        _raise(kernel, check, check(scene), after)
    for stage in every:
        verify_body(_body(kernel, stage), after, proofs)


def _raise(kernel: Kernel, check: Callable[..., Fault], fault: Fault, after: str) -> None:
    if fault is not None:
        what, stage = fault
        name = f"{kernel.name}: {stage.target.name}"
        raise fail(after, name, check.__name__, what, stage.target.origin)


def _body(kernel: Kernel, stage: Stage) -> Body:
    form = stage.form
    target = stage.target
    extents = form.domain if isinstance(form, Accumulate) else stage.extents
    name = f"{kernel.name}: {target.name}"
    return Body(name, stage.shape, extents, form, stage.roots, target.origin)
