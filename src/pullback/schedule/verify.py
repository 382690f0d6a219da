"""Checks on whole schedules: what a kernel cannot do as its schedule says is refused, with why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import prod

from pullback.config import Cap, Ints, Pair
from pullback.ir.expr import upper
from pullback.ir.graph import Accumulate, Definition, Map, Scan, Value, Variable
from pullback.ir.kernel import Kernel, Stages, stage_reads
from pullback.schedule.contraction import products
from pullback.schedule.schedule import (
    LOOPS,
    Left,
    Place,
    Right,
    Schedule,
    Step,
    SweepLoops,
    TileLoops,
    Way,
    in_order,
)
from pullback.schedule.slots import (
    added_in_place,
    leads,
    numbered,
    overwrites_itself,
    readers,
    same_box,
    tile_counts,
    tile_shape,
    written_over,
)
from pullback.schedule.steps import follows, level, scatter_lanes, sweeps_together
from pullback.verify.report import fail

Fault = str | None

# Register tiles and vectors in flight are written out: LLVM takes long over more than so many.
MOST_SUMS: Cap = 4096
MOST_IN_FLIGHT: Cap = 16


@dataclass(frozen=True)
class Timetable:
    """A kernel with its schedule, and when each stage is computed."""

    kernel: Kernel
    schedule: Schedule

    @cached_property
    def every(self) -> Stages:
        """All stages, those of the finish last."""
        return self.kernel.every

    @cached_property
    def steps(self) -> list[tuple[Step, Stages, Ints]]:
        """Each step with the stages that it counts, and their numbers among all."""
        return numbered(self.kernel, self.schedule.steps, self.schedule.finish)

    @cached_property
    def readers(self) -> list[set[int]]:
        """The stages that read what a stage makes."""
        return readers(self.every)

    @cached_property
    def when(self) -> dict[int, Pair]:
        """By stage: how deep its step stands and, of those, which it is; what stands deeper runs
        later.
        """
        times: dict[int, Pair] = {}
        for order, (step, stages, members) in enumerate(self.steps):
            inside = stages is self.kernel.stages
            depth = step.level if inside else len(self.kernel.outer) + 1
            times.update(dict.fromkeys(members, (depth, order)))
        return times


def tiles_fit(scene: Timetable) -> Fault:
    """A tile has an extent for each outer axis, within it; tasks have tiles to run."""
    outer, schedule = scene.kernel.outer, scene.schedule
    for axis, (extent, tile) in enumerate(zip(outer, schedule.tile, strict=True)):
        if not 1 <= tile <= max(1, upper(extent)):
            return f"tiles of {tile} along outer axis {axis} of {upper(extent)}"
    counts = tile_counts(scene.kernel, schedule.tile)
    if not 0 <= schedule.split <= len(outer):
        return f"tiles of {schedule.split} axes are dealt out, and there are {len(outer)}"
    if not 1 <= schedule.tasks <= max(1, prod(counts[: schedule.split])):
        return f"{schedule.tasks} tasks for {prod(counts[: schedule.split])} tiles"
    if schedule.vector < 1 or schedule.vector & (schedule.vector - 1):
        return f"vectors of {schedule.vector} bytes"
    return None


def stages_once(scene: Timetable) -> Fault:
    """Steps have each stage once, in order."""
    for steps, stages in (
        (scene.schedule.steps, scene.kernel.stages),
        (scene.schedule.finish, scene.kernel.finish),
    ):
        listed = [n for step in steps for n in step.stages]
        if listed != list(range(len(stages))):
            return f"steps have stages {listed} of {len(stages)}"
    return None


def levels_hold(scene: Timetable) -> Fault:
    """A step stands inside of the loops that its stages depend on, and after what it reads."""
    full, read = len(scene.kernel.outer), set(scene.kernel.reads)
    for step, stages, _ in scene.steps:
        members = [stages[n] for n in step.stages]
        deep = any(s.partial or s.store in read for s in members)
        least = max(full if deep else level(s) for s in members)
        if stages is scene.kernel.finish:
            least = 0
        if not least <= step.level <= full:
            return f"stages {list(step.stages)} stand in {step.level} loops, not {least} to {full}"
    for source, users in enumerate(scene.readers):
        for number in users:
            if scene.when[source] > scene.when[number]:
                return f"stage {number} runs before stage {source}, which it reads"
    return None


def ways_fit(scene: Timetable) -> Fault:
    """Scans, accumulating writes and contractions run as such, all else in sweeps."""
    for step, stages, _ in scene.steps:
        lead = stages[step.lead]
        kinds = {Scan: Way.SCAN, Accumulate: Way.SCATTER}
        wanted = kinds.get(type(lead.form))
        if wanted is not step.way and (wanted or step.way in (Way.SCAN, Way.SCATTER)):
            return f"{lead.target} by {step.way.value}"
        product = step.way in (Way.TILES, Way.DOTS)
        if product != (step.product is not None):
            return f"{lead.target} by {step.way.value}, with columns or without"
        if step.product is not None and step.product.column not in products(lead):
            return f"{lead.target} is no contraction with columns {step.product.column}"
        if step.way in LOOPS and not isinstance(step.loops, LOOPS[step.way]):
            return f"{lead.target}: {step.way.value} without its loops"
    return None


def lanes_fit(scene: Timetable) -> Fault:
    """What runs in lanes is an axis of the stages; of scans and writes, one without an order."""
    for step, stages, _ in scene.steps:
        lead = stages[step.lead]
        if step.vector is None:
            continue
        if not 0 <= step.vector < len(lead.extents):
            return f"{lead.target} has no axis {step.vector} for lanes"
        if isinstance(lead.form, Scan) and step.vector == lead.form.axis:
            return f"{lead.target} is scanned along axis {step.vector}"
        if isinstance(lead.form, Accumulate) and step.vector != scatter_lanes(lead):
            return f"writes of {lead.target} may meet along axis {step.vector}"
    return None


def steps_meet(scene: Timetable) -> Fault:
    """Stages share a loop only where each finds what it reads at its own coordinates."""
    for step, stages, _ in scene.steps:
        members = [stages[n] for n in step.stages]
        if len(members) > 1 and step.way not in (Way.SWEEP, Way.TILES):
            return f"{len(members)} stages by {step.way.value}"
        for place, stage in enumerate(members[1:], 1):
            if step.product is not None:
                near = Step(step.stages[:place], step.way, step.level, step.vector, step.product)
                fits = follows(near, step.stages[place], stages)
            else:
                fits = sweeps_together(members[:place], stage)
            if not fits:
                return f"{stage.target} cannot share the loop of {members[0].target}"
    return None


def loops_fit(scene: Timetable) -> Fault:
    """Numbers of loops are such that they can be written out."""
    for step, stages, _ in scene.steps:
        loops, lead = step.loops, stages[step.lead]
        if isinstance(loops, SweepLoops):
            counts = loops.unroll, loops.long, loops.abreast
            if not all(1 <= n <= MOST_IN_FLIGHT for n in counts) or loops.block < 1:
                return f"{lead.target}: {max(counts)} vectors in flight, blocks of {loops.block}"
        elif loops is not None:
            least = min(loops.rows, loops.columns)
            if least < 1 or loops.rows * loops.columns > MOST_SUMS:
                return f"{lead.target}: {loops.rows} x {loops.columns} sums"
        if isinstance(loops, TileLoops):
            fault = _tile_loops(loops, step, len(scene.kernel.outer))
            if fault is not None:
                return f"{lead.target}: {fault}"
    return None


def _tile_loops(loops: TileLoops, step: Step, outer: int) -> Fault:
    blocks = loops.left is Left.BLOCKS or loops.scattered or loops.right is Right.BLOCKS
    if loops.terms is None and blocks:
        return "blocks of k without their terms"
    if loops.terms is not None and (loops.terms < 1 or loops.right in (Right.PANELS, Right.ONE)):
        return f"blocks of {loops.terms} terms, right {loops.right.value}"
    if step.product is not None and step.product.word > 1 and loops.right is not Right.BLOCKS:
        return f"words, right {loops.right.value}"
    if loops.ahead and (loops.terms is None or loops.right is not Right.IN_PLACE):
        return "fetched ahead, but not read in place by blocks of k"
    return None if 0 <= loops.level <= outer else f"packed inside of {loops.level} loops"


def homes_hold(scene: Timetable) -> Fault:
    """Every value lives where all that read it find it."""
    schedule, every = scene.schedule, scene.every
    if len(schedule.residences) != len(every):
        return f"{len(schedule.residences)} places for {len(every)} stages"
    steps = {n: (step, members) for step, _, members in scene.steps for n in members}
    for number, (stage, home) in enumerate(zip(every, schedule.residences, strict=True)):
        together = home.place is Place.MEMORY and _added(scene, number)
        if (stage.partial and not together) != (home.place is Place.SHARED):
            return f"{stage.target} in {home.place.value}"
        if home.place is Place.MEMORY and home.host is None and stage.store is None:
            return f"{stage.target} in memory, without a variable"
        if stage.store is not None and home.place is Place.REGISTER:
            return f"{stage.target} in a register, and stored"
        if home.place is Place.MEMORY and home.host is None and overwrites_itself(stage):
            return f"{stage.target} overwrites what it has yet to read"
        elsewhere = scene.readers[number] - set(steps[number][1])
        in_loop = isinstance(stage.form, Map) or leads(*steps[number], number)
        if home.place is Place.REGISTER and (elsewhere or not in_loop):
            return f"{stage.target} in a register, and read by stages {sorted(elsewhere)}"
        aside = stage.store is None or overwrites_itself(stage)
        if home.place is Place.SCRATCH and not aside:
            return f"{stage.target} in scratch, and stored"
    return None


def _added(scene: Timetable, number: int) -> bool:
    """Whether tasks may add a sum over tiles where it is stored."""
    kernel, made = in_order(scene.kernel, scene.schedule)
    return added_in_place(kernel, kernel.every[number], made.tasks, made.split)


def scratch_holds(scene: Timetable) -> Fault:
    """Pieces of scratch are large enough, and hold one value at a time."""
    schedule, every = scene.schedule, scene.every
    for number, home in enumerate(schedule.residences):
        stage = every[number]
        if home.host is not None and not _hosted(scene, number, home.host):
            return f"{stage.target} in the variable of stage {home.host}, which is not its like"
        if home.slot is None:
            continue
        if home.place is not Place.SCRATCH or not 0 <= home.slot < len(schedule.slots):
            return f"{stage.target} in {home.place.value} {home.slot}"
        slot = schedule.slots[home.slot]
        last = number >= len(scene.kernel.stages)
        shape = tile_shape(stage, None if last else schedule.tile)
        if slot.dtype != stage.body.dtype or slot.size < prod(shape):
            return f"{stage.target} does not fit scratch {home.slot}"
        for other in range(number):
            if schedule.residences[other].slot == home.slot and _alive(scene, other, number):
                return f"stages {other} and {number} are in scratch {home.slot} at once"
    return None


def _alive(scene: Timetable, one: int, two: int) -> bool:
    """Whether two values are needed at one time; what stands outside of a loop is for all turns.
    A map that is written over what it reads is not.
    """
    full = len(scene.kernel.outer)
    if any(scene.when[n][0] < full for n in (one, two)):
        return True
    first, second = sorted((one, two), key=lambda n: scene.when[n])
    last = max((scene.when[n] for n in scene.readers[first]), default=scene.when[first])
    inside = max(first, second) < len(scene.kernel.stages)
    if inside and last == scene.when[second] > scene.when[first]:
        return not written_over(scene.kernel.stages, scene.when, first, second)
    return last >= scene.when[second]


def _hosted(scene: Timetable, number: int, host: int) -> bool:
    """Whether a variable that is yet to be written holds a value of the same box meanwhile."""
    if not 0 <= host < len(scene.kernel.stages) or number >= len(scene.kernel.stages):
        return False
    stage, owner = scene.every[number], scene.every[host]
    same = same_box(stage, owner) and isinstance(owner.form, Map)
    unread = owner.store is not None and owner.store not in scene.kernel.reads
    before = scene.when[number] < scene.when[host]
    last = max((scene.when[n] for n in scene.readers[number]), default=(0, 0))
    return same and unread and before and last <= scene.when[host]


def revisited(kernel: Kernel, schedule: Schedule) -> set[Variable]:
    """Variables that a kernel reads after it has written them, as values of its stages, or to add
    to them.
    """
    stored = {stage.target: stage.store for stage in kernel.every}
    again: set[Variable | None] = set()
    for step, stages, _ in numbered(kernel, schedule.steps, schedule.finish):
        members = [stages[n] for n in step.stages]
        # maps of one step meet in registers, but the sums of a block wait in memory
        meets: set[Value] = {s.target for s in members[step.product is not None :]}
        takes = [t for s in members for t in stage_reads(s) if t.source not in meets]
        again.update(stored.get(t.source) for t in takes if isinstance(t.source, Definition))
        again.update(s.store for s in members if isinstance(s.form, Accumulate))
    homes = zip(kernel.every, schedule.residences, strict=True)
    again.update(s.store for s, home in homes if s.partial and home.place is Place.MEMORY)
    hosts = [r.host for r in schedule.residences if r.host is not None]
    again.update(kernel.stages[host].store for host in hosts)
    return {variable for variable in again if variable is not None}


def streams_hold(scene: Timetable) -> Fault:
    """What is written past the caches is a result that the kernel does not read."""
    arguments = scene.kernel.arguments
    read = set(scene.kernel.reads) | revisited(scene.kernel, scene.schedule)
    for number in scene.schedule.streamed:
        if not 0 <= number < len(arguments):
            return f"argument {number} of {len(arguments)} past the caches"
        if arguments[number] in read:
            return f"{arguments[number]} is read, and written past the caches"
    return None


CHECKS: tuple[Callable[[Timetable], Fault], ...] = (
    tiles_fit,
    stages_once,
    levels_hold,
    ways_fit,
    lanes_fit,
    steps_meet,
    loops_fit,
    homes_hold,
    scratch_holds,
    streams_hold,
)


def verify_schedule(kernel: Kernel, schedule: Schedule, after: str) -> None:
    """Every stage once, in an order that holds, in loops that exist, and a place for its value.

    Raises: InvalidIR naming the pass, the kernel and the check.
    """
    order = sorted(schedule.order or range(len(kernel.outer)))
    if order != list(range(len(kernel.outer))) or len(schedule.tile) != len(kernel.outer):
        what = f"{len(kernel.outer)} outer axes, order {schedule.order}, tile {schedule.tile}"
        raise fail(after, kernel.name, "axes_once", what)
    scene = Timetable(*in_order(kernel, schedule))
    for check in CHECKS:
        fault = check(scene)
        if fault is not None:
            raise fail(after, kernel.name, check.__name__, fault)
