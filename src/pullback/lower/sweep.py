"""Sweeps: maps and reductions over one box, in one loop, one axis in lanes."""

from __future__ import annotations

from dataclasses import dataclass

from pullback.ir.expr import Expr
from pullback.ir.graph import Combiner, Reduce, Value
from pullback.ir.kernel import Stage, stage_reads
from pullback.ir.nest import Combine, Declare, Load, Peek, Register, Stmt, Store, StoreCombine
from pullback.ir.node import walk
from pullback.lower.context import Context, Loop, accumulator, cast, nest, vector
from pullback.lower.hoist import hoisted
from pullback.lower.merge import merged, revalued, split
from pullback.lower.translate import Translator
from pullback.schedule.linear import Linear
from pullback.schedule.schedule import Step

# Vectors in flight. A sum needs four to hide the latency of an addition (probes/cpu/kernels.py);
# a map gains from two while its body is short, and code size costs compile time.
REDUCE_UNROLL = 4
MAP_UNROLL = 2
SHORT_BODY = 12


@dataclass(frozen=True, slots=True)
class Box:
    """The loops of a step: those of the output first, `rank` of them, then the reduced ones."""

    loops: list[Loop]
    rank: int
    axes: dict[int, Expr]

    @property
    def outs(self) -> list[Loop]:
        return self.loops[: self.rank]

    @property
    def overs(self) -> list[Loop]:
        return self.loops[self.rank :]


def sweep(context: Context, step: Step, stages: list[Stage]) -> list[Stmt]:
    """The loop nest of a step."""
    box, values = make_box(context, stages)
    lane = _lane(box, step.vector)
    reduced = any(isinstance(s.form, Reduce) for s in stages)
    body = _Body(context, box, stages, values)
    if not reduced:
        return _map_nest(box, lane, body)
    return _reduce_nest(box, lane, body)


@dataclass(frozen=True, slots=True)
class Values:
    """Bodies of stages over loop variables, with the checks each needs and a register each."""

    bodies: list[Expr]
    checks: list[list[Stmt]]
    registers: dict[Value, Register]


def stage_values(
    context: Context,
    stages: list[Stage],
    axes: dict[int, Expr],
    registers: dict[Value, Register],
) -> Values:
    """What each stage computes; stages of one step meet in registers."""
    bodies: list[Expr] = []
    checks: list[list[Stmt]] = []
    for stage in stages:
        translate = Translator(context, axes, registers)
        bodies.append(translate(stage.body))
        checks.append(translate.checks)
    return Values(bodies, checks, registers)


def make_box(context: Context, stages: list[Stage]) -> tuple[Box, Values]:
    """Loops of stages over one box, neighbours merged where every access allows it."""
    lead = next((s for s in stages if isinstance(s.form, Reduce)), stages[0])
    loops, axes = context.loops(lead)
    outputs = len(lead.shape)
    registers: dict[Value, Register] = {
        s.target: context.register("v", s.body.dtype) for s in stages
    }
    values = stage_values(context, stages, axes, registers)
    loops, parted = split(context, loops, values.bodies)
    if parted:
        axes = revalued(axes, parted)
        values = stage_values(context, stages, axes, registers)
    parts = [int(loop.axes[0] >= outputs) for loop in loops]
    stores = [written(context, s, axes) for s in stages if s.target in context.homes]
    loops, joined = merged(context, loops, parts, values.bodies, stores)
    if joined:
        axes = revalued(axes, joined)
        values = stage_values(context, stages, axes, registers)
    rank = sum(loop.axes[0] < outputs for loop in loops)
    return Box(loops, rank, axes), values


def written(context: Context, stage: Stage, axes: dict[int, Expr]) -> Linear:
    """Where the value of `stage` at the current coordinates is stored."""
    return context.home(stage).offset(tuple(axes[n] for n in range(len(stage.shape))))


def _lane(box: Box, axis: int | None) -> Loop | None:
    for loop in reversed(box.loops):
        if axis in loop.axes:
            return loop
    return None


class _Body:
    """The statements of one iteration."""

    def __init__(self, context: Context, box: Box, stages: list[Stage], values: Values) -> None:
        self.context = context
        self.stages = stages
        self.box = box
        self.before: list[Stmt] = []
        self.after: list[Stmt] = []
        self.inside: list[Stmt] = []
        self.size = 0
        for number, stage in enumerate(stages):
            value = values.bodies[number]
            self.inside += values.checks[number]
            self.size += sum(1 for n in walk(value) if not isinstance(n, Load))
            if isinstance(stage.form, Reduce):
                self._reduce(stage, stage.form.combiner, value)
            else:
                self._map(values.registers[stage.target], number, value)

    def _map(self, register: Register, number: int, value: Expr) -> None:
        stage = self.stages[number]
        home = self.context.homes.get(stage.target)
        shared = any(
            any(t.source is stage.target for t in stage_reads(later))
            for later in self.stages[number + 1 :]
        )
        if shared:
            self.inside.append(Declare(register, value))
            value = Peek(register, ())
        if home is not None:
            offset = written(self.context, stage, self.box.axes).expr()
            self.inside.append(Store(home.array, offset, value))

    def _reduce(self, stage: Stage, combiner: Combiner, value: Expr) -> None:
        kind = accumulator(stage.body.dtype)
        register = self.context.register("sum" if combiner.name == "sum" else "acc", kind)
        self.before.append(Declare(register, combiner.identity(kind)))
        self.inside.append(Combine(register, (), combiner, cast(value, kind)))
        home = self.context.home(stage)
        offset = written(self.context, stage, self.box.axes).expr()
        result = cast(Peek(register, ()), home.array.dtype)
        if stage.partial:
            self.after.append(StoreCombine(home.array, offset, combiner, result))
        else:
            self.after.append(Store(home.array, offset, result))


def _map_nest(box: Box, lane: Loop | None, body: _Body) -> list[Stmt]:
    others = [loop for loop in box.loops if loop is not lane]
    inside = body.inside
    if lane is not None:
        unroll = MAP_UNROLL if body.size <= SHORT_BODY else 1
        inside = hoisted(body.context, vector(lane, unroll, inside))
    return nest(others, inside)


def _reduce_nest(box: Box, lane: Loop | None, body: _Body) -> list[Stmt]:
    outs = [loop for loop in box.outs if loop is not lane]
    overs = [loop for loop in box.overs if loop is not lane]
    if lane is None:
        return nest(outs, [*body.before, *nest(overs, body.inside), *body.after])
    unroll = REDUCE_UNROLL if body.size <= 2 * SHORT_BODY else 2
    if lane in box.overs:
        inner = nest(overs, hoisted(body.context, vector(lane, unroll, body.inside)))
        return nest(outs, [*body.before, *inner, *body.after])
    inner = nest(overs, body.inside)
    return nest(outs, [vector(lane, unroll, [*body.before, *inner, *body.after])])
