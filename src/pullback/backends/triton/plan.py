"""A kernel as launches: where the values between them lie, in which order they are made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf

from pullback.backends.triton import atomics
from pullback.backends.triton import language as L
from pullback.backends.triton.again import apart
from pullback.backends.triton.attention import loop
from pullback.backends.triton.blocks import Group, Way, groups, hazard, later_reads
from pullback.backends.triton.blockwise import Blockwise
from pullback.backends.triton.choose import best
from pullback.backends.triton.function import Function, Launch
from pullback.backends.triton.machine import USUAL, Gpu, named
from pullback.backends.triton.measured import kept, signature
from pullback.backends.triton.price import Work
from pullback.backends.triton.rows import Rows
from pullback.backends.triton.scatter import Scatter
from pullback.backends.triton.schedule import BlockSchedule, Precision
from pullback.backends.triton.stream import Streams
from pullback.backends.triton.tiles import Tiles
from pullback.backends.triton.views import viewed
from pullback.ir import expr as E
from pullback.ir.expr import Axis, Expr
from pullback.ir.graph import (
    MAP,
    Accumulate,
    Definition,
    Reduce,
    Value,
    Variable,
    read,
    replace_reads,
)
from pullback.ir.kernel import Kernel, Stage, redirected, stage_reads
from pullback.ir.target import Blocks

WRITERS: dict[Way, type[Function]] = {
    Way.PRODUCT: Tiles,
    Way.STREAM: Streams,
    Way.AGAIN: Blockwise,
    Way.SCATTER: Scatter,
}
Scheduled = tuple[Group, BlockSchedule]
Choose = Callable[[Group], BlockSchedule]
Unit = tuple[Group, list[Scheduled]]
"""A group, and the launches that make it."""


@dataclass(frozen=True, slots=True)
class Chooser:
    """How kernels are cut into launches and these are scheduled: by the prices of a GPU. `by_hand`:
    schedules that somebody else chooses; kernels are cut by the prices all the same.
    `deterministic`: sums of floats have the same bits every time. `blocks`: what was measured to be
    faster.
    """

    gpu: Gpu
    precision: Precision = Precision.EXACT
    by_hand: Choose | None = None
    deterministic: bool = False
    blocks: Blocks = ()

    def __call__(self, group: Group) -> BlockSchedule:
        """The schedule of a launch."""
        if self.by_hand is not None:
            return self.by_hand(group)
        return kept(group, self.best(group), self.gpu, self.known(group))

    def signature(self, group: Group) -> str:
        """What a launch is known by."""
        return signature(group, self.deterministic)

    def known(self, group: Group) -> tuple[str, str] | None:
        """What was measured of a launch: the schedule as text, and what says so."""
        own = self.signature(group) if self.blocks else ""
        return next(((text, source) for name, text, source in self.blocks if name == own), None)

    def best(self, group: Group) -> BlockSchedule:
        """The cheapest one."""
        return best(group, self.gpu, self.precision, self.deterministic)

    def joins(self, one: Group, other: Group, both: Group) -> bool:
        """Whether one launch is cheaper than two, between which values lie in memory."""
        read = {t.source for s in other.stages for t in stage_reads(s)}
        memory: dict[Value, Variable] = {
            s.target: s.store or Variable(s.target.name, s.shape, s.body.dtype)
            for s in one.stages
            if s.target in read
        }
        apart = _changed(one, lambda s: replace(s, store=memory.get(s.target, s.store)))
        after = _changed(other, lambda s: redirected(s, memory))
        return self.ns(both) < self.ns(apart) + self.ns(after)

    def ns(self, group: Group) -> float:
        """What a launch costs by its cheapest schedule; infinite where the GPU takes none."""
        work, schedule = Work.of(group, self.gpu), self.best(group)
        return inf if work.refusal(schedule) else work.price(schedule).ns


def _changed(group: Group, change: Callable[[Stage], Stage]) -> Group:
    """A group of other stages."""
    stages = {s: change(s) for s in group.stages}
    rows = {stages[s]: r for s, r in group.rows.items()}
    return Group(group.way, group.extents, list(stages.values()), rows)


def launches(kernel: Kernel, choose: Choose | None = None) -> list[Launch]:
    """The launches of a kernel, in order. What is written by no stage's store is a temporary."""
    return written(kernel.name, scheduled(kernel, choose))


def written(kernel: str, made: Sequence[Scheduled]) -> list[Launch]:
    """The functions of groups by their schedules."""
    return [
        WRITERS.get(group.way, Rows)(f"{L.word(kernel)}_{number}", group, schedule).launch()
        for number, (group, schedule) in enumerate(made)
    ]


def scheduled(kernel: Kernel, choose: Choose | None = None) -> list[Scheduled]:
    """The launches of a kernel, in order, each with its schedule."""
    return [pair for _, pairs in units(kernel, choose) for pair in pairs]


def units(kernel: Kernel, choose: Choose | None = None) -> list[Unit]:
    """The groups of a kernel, in order, each with its launches."""
    chosen = choose if isinstance(choose, Chooser) else Chooser(named(USUAL), by_hand=choose)
    return [unit for piece in kernel.pieces for unit in _Plan(piece, chosen).units()]


def cut(group: Group, choose: Choose) -> list[Scheduled]:
    """The launches of a group: parts of a sum before what adds them up; else one."""
    if group.way is Way.SCATTER:
        return _scattered(group, choose)
    schedule = choose(group)
    if schedule.chunks == 1:
        return [(group, schedule)]
    first, second = _chunked(group, schedule.chunks)
    return [(first, schedule), _whole(second, choose)]


def _scattered(group: Group, choose: Choose) -> list[Scheduled]:
    """An accumulating write after the identities that it begins with, and its parts in one."""
    how, schedule = choose(_filled(group)), choose(group)
    first, last = atomics.cut(group, schedule)
    made = [(_filled(first), how), (first, schedule)]
    return made if last is None else [*made, _whole(last, choose)]


def chooser(
    gpu: Gpu,
    precision: Precision = Precision.EXACT,
    deterministic: bool = False,
    blocks: Blocks = (),
) -> Chooser:
    """The cheapest schedules for a GPU, where nothing was measured."""
    return Chooser(gpu, precision, deterministic=deterministic, blocks=blocks)


def source(made: Sequence[Launch]) -> str:
    """A file of launches, which runs by itself."""
    return "\n\n".join([L.PRELUDE, *(launch.source for launch in made)])


class _Plan:
    """Where the values of one kernel lie between its launches."""

    def __init__(self, kernel: Kernel, choose: Chooser) -> None:
        (self.kernel, self.again), self.choose = apart(viewed(kernel)), choose
        self.memory: dict[Value, Variable] = {}
        self.made: list[Unit] = []

    def units(self) -> list[Unit]:
        plan = groups(self.kernel, self.loop, self.choose.joins)
        for number, group in enumerate(plan):
            later = set(later_reads(plan, number))
            stages = {s: redirected(s, self.memory) for s in group.stages}
            copies: list[Stage] = []
            for stage, own in stages.items():
                stages[stage] = replace(own, store=self.home(group, stage, later, copies))
            rows = {stages[s]: r for s, r in group.rows.items()}
            self.launch(Group(group.way, group.extents, list(stages.values()), rows))
            for copy in copies:
                every = tuple(range(len(copy.shape)))
                self.launch(Group(Way.BLOCK, copy.shape, [copy], {copy: every}))
        return self.made

    def loop(self, kernel: Kernel, number: int) -> Group | None:
        """Several stages from one on that are one loop."""
        made = self.again.get((*kernel.stages, *kernel.finish)[number])
        return loop(kernel, number) if made is None else made.group()

    def home(
        self, group: Group, stage: Stage, later: set[Value], copies: list[Stage]
    ) -> Variable | None:
        """Where a stage writes: memory of its own where others read what it would write over."""
        half = isinstance(stage.form, Accumulate) and L.held(stage.body.dtype) != stage.body.dtype
        apart = half or hazard(group, stage)
        others = [s for s in self.kernel.every if s is not stage and s.store is stage.store]
        if stage.store is not None and not apart:
            if stage.target in later and others:
                apart = True
            else:
                self.memory[stage.target] = stage.store
                return stage.store
        if not apart and stage.target not in later:
            return stage.store
        kind = L.held(stage.body.dtype) if half else stage.body.dtype
        own = Variable(f"{L.word(stage.target.name)}_kept", stage.shape, kind)
        self.memory[stage.target] = own
        if stage.store is not None or half:
            copies.append(self.copy(own, stage, half))
        return own

    def copy(self, own: Variable, stage: Stage, half: bool) -> Stage:
        """Memory of its own to where it was wanted, rounded on the way."""
        target = stage.store or Variable(own.name, stage.shape, stage.body.dtype)
        if half:
            self.memory[stage.target] = target
        axes = [Axis(n, e) for n, e in enumerate(stage.shape)]
        body: Expr = read(own, *axes)
        if half:
            body = E.Cast(body, stage.body.dtype)
        definition = Definition(f"{stage.target.name}_stored", stage.shape, body)
        return Stage(definition, MAP, body, (), target)

    def launch(self, group: Group) -> None:
        self.made.append((group, cut(group, self.choose)))


def _whole(group: Group, choose: Choose) -> Scheduled:
    """A launch that is not cut in parts again."""
    return group, replace(choose(group), chunks=1)


def _filled(group: Group) -> Group:
    """The identities that an accumulating write begins with."""
    (stage,) = group.stages
    assert isinstance(stage.form, Accumulate), "who asks knows"
    assert stage.store is not None, "it is memory"
    none = stage.form.combiner.identity(stage.body.dtype)  # of e4m3fn no infinity, in float32 too
    body, shape = E.Const(none.value, stage.store.dtype), stage.store.shape
    definition = Definition(f"{stage.target.name}_empty", shape, body)
    one = Stage(definition, MAP, body, (), stage.store)
    return Group(Way.BLOCK, shape, [one], {one: tuple(range(len(shape)))})


def _chunked(group: Group, chunks: int) -> tuple[Group, Group]:
    """A sum in parts; the sum of the parts, with the maps that follow a product.

    Parts of rows are neighbours in memory, those of tiles are apart: what is stored together is.
    """
    stage, *after = group.stages
    assert isinstance(stage.form, Reduce), "parts are those of a sum"
    tiles = group.way is Way.PRODUCT
    shape = (chunks, *stage.shape) if tiles else (*stage.shape, chunks)
    parts = Variable(f"{L.word(stage.target.name)}_parts", shape, L.held(stage.body.dtype))
    extents = group.extents if tiles else shape
    every = tuple(range(len(stage.shape)))
    first = Group(group.way, extents, [replace(stage, store=parts)])
    first.rows[first.stages[0]] = every
    axes, part = [Axis(n, e) for n, e in enumerate(stage.shape)], Axis(len(stage.shape), chunks)
    body: Expr = read(parts, part, *axes) if tiles else read(parts, *axes, part)
    whole = Reduce(stage.form.combiner, (chunks,))
    if parts.dtype is stage.body.dtype:
        total = Definition(stage.target.name, stage.shape, body, whole)
        last = [Stage(total, whole, body, (), stage.store)]
    else:  # rounded once, when all is added up
        total = Definition(f"{stage.target.name}_whole", stage.shape, body, whole)
        wide = E.Cast(read(total, *axes), stage.body.dtype)
        cut = Definition(stage.target.name, stage.shape, wide)
        last = [Stage(total, whole, body, ()), Stage(cut, MAP, wide, (), stage.store)]
    way = Way.BLOCK if after or len(last) > 1 or tiles else Way.LOOP
    last += [_rereading(s, stage.target, last[-1].target) for s in after]
    return first, Group(way, stage.shape, last, dict.fromkeys(last, every))


def _rereading(stage: Stage, old: Value, new: Value) -> Stage:
    """A stage that reads another value."""
    body = replace_reads(stage.body, lambda take: take.of(new) if take.source is old else None)
    return replace(stage, body=body)
