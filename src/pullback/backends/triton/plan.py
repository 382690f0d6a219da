"""A kernel as launches: where the values between them lie, in which order they are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pullback.backends.triton import language as L
from pullback.backends.triton.blocks import (
    BlockSchedule,
    Group,
    Way,
    groups,
    hazard,
    later_reads,
    start,
)
from pullback.backends.triton.function import Function, Launch
from pullback.ir import expr as E
from pullback.ir.expr import Axis, Expr
from pullback.ir.graph import MAP, Accumulate, Definition, Reduce, Value, Variable, read
from pullback.ir.kernel import Kernel, Stage, redirected


def launches(kernel: Kernel) -> list[Launch]:
    """The launches of a kernel, in order. What is written by no stage's store is a temporary."""
    return [launch for piece in kernel.pieces for launch in _Plan(piece).launches()]


def source(made: Sequence[Launch]) -> str:
    """A file of launches, which runs by itself."""
    return "\n\n".join([L.PRELUDE, *(launch.source for launch in made)])


class _Plan:
    """Where the values of one kernel lie between its launches."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.memory: dict[Value, Variable] = {}
        self.made: list[Launch] = []

    def launches(self) -> list[Launch]:
        plan = groups(self.kernel)
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
        schedule = start(group)
        if isinstance(group.stages[0].form, Accumulate):
            self.made.append(self.function(_filled(group), start(_filled(group))))
        if schedule.chunks > 1:
            first, second = _chunked(group, schedule)
            self.made.append(self.function(first, schedule))
            self.made.append(self.function(second, start(second)))
            return
        self.made.append(self.function(group, schedule))

    def function(self, group: Group, schedule: BlockSchedule) -> Launch:
        name = f"{L.word(self.kernel.name)}_{len(self.made)}"
        return Function(name, group, schedule).launch()


def _filled(group: Group) -> Group:
    """The identities that an accumulating write begins with."""
    (stage,) = group.stages
    assert isinstance(stage.form, Accumulate), "who asks knows"
    assert stage.store is not None, "it is memory"
    body = stage.form.combiner.identity(stage.store.dtype)
    definition = Definition(f"{stage.target.name}_empty", stage.shape, body)
    one = Stage(definition, MAP, body, (), stage.store)
    return Group(Way.BLOCK, stage.shape, [one], {one: tuple(range(len(stage.shape)))})


def _chunked(group: Group, schedule: BlockSchedule) -> tuple[Group, Group]:
    """A sum in parts, and the sum of the parts."""
    (stage,) = group.stages
    assert isinstance(stage.form, Reduce), "parts are those of a sum"
    shape, form = (*stage.shape, schedule.chunks), stage.form
    parts = Variable(f"{L.word(stage.target.name)}_parts", shape, L.held(stage.body.dtype))
    first = Group(Way.LOOP, shape, [replace(stage, store=parts)])
    first.rows[first.stages[0]] = tuple(range(len(stage.shape)))
    axes = [Axis(n, e) for n, e in enumerate(shape)]
    whole = Reduce(form.combiner, (schedule.chunks,))
    body: Expr = read(parts, *axes)
    total = Definition(stage.target.name, stage.shape, body, whole)
    last = Stage(total, whole, body, (), stage.store)
    every = tuple(range(len(stage.shape)))
    return first, Group(Way.LOOP, stage.shape, [last], {last: every})
