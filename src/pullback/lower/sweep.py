"""Sweeps: maps and reductions over one box, in one loop, one axis in lanes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pullback.algebra.linear import Linear, linear
from pullback.config import Cap, frozen
from pullback.ir import expr as E
from pullback.ir.dtype import bool_
from pullback.ir.expr import Axis, Expr, index
from pullback.ir.graph import Combiner, Reduce, Value
from pullback.ir.kernel import Stage, stage_reads
from pullback.ir.nest import (
    Check,
    Combine,
    Declare,
    Load,
    Peek,
    Register,
    Stmts,
    Store,
    StoreCombine,
)
from pullback.ir.node import walk
from pullback.lower.abreast import abreast
from pullback.lower.blocked import blocked
from pullback.lower.bounds import (
    Bounded,
    assuming,
    bounded,
    guarded,
    narrowed,
    outer,
    over_loops,
    settled,
    spans,
)
from pullback.lower.context import (
    Context,
    Coordinates,
    Nest,
    NestLoop,
    accumulator,
    along,
    cast,
    in_pieces,
    nest,
    vector,
)
from pullback.lower.hoist import hoisted
from pullback.lower.merge import merged, revalued, split
from pullback.lower.patch import Patch, patch
from pullback.lower.pieces import EVERYWHERE, Piece, StagePart, Within, pieces, stage_parts
from pullback.lower.translate import Translator
from pullback.machine.machine import LINE
from pullback.schedule.regions import Bound, Region, common
from pullback.schedule.schedule import SweepLoops

# So many nodes make a body long, twice as many that of a sum: several copies of it take long to
# compile.
SHORT_BODY: Cap = 12

# Lanes whose sums have bounds of their own are cut into this many blocks.
BLOCKS = 8


@frozen
class Box:
    """The loops of a step: those of the output first, `rank` of them, then the reduced ones."""

    loops: Nest
    rank: int
    axes: Coordinates

    @property
    def outs(self) -> Nest:
        return self.loops[: self.rank]

    @property
    def overs(self) -> Nest:
        return self.loops[self.rank :]


def sweep(context: Context, vector: int | None, stages: list[Stage], loops: SweepLoops) -> Stmts:
    """The loop nests of stages in one loop, axis `vector` in lanes: of maps one for each part."""
    lead, made = stages[0], Stmts()
    around = (n for n in range(len(lead.extents)) if n != vector and context.longest(lead, n) > 1)
    for part in stage_parts(stages, around):
        made += _swept(context, vector, part, loops)
    return made


def _swept(context: Context, vector: int | None, own: StagePart, loops: SweepLoops) -> Stmts:
    """The loop nest of stages over a part of their box."""
    stages = own.stages
    box, values = make_box(context, stages, vector, own.within)
    lane = along(box.loops, vector)
    work = [_work(context, box.axes, s) for s in stages]
    if loops.through:
        work = [tuple(bound for bound in region if bound.tests) for region in work]
    part = _Part(context, box, stages, values, work, loops)
    place = patch(stages)
    loop = None if place is None else along(box.loops, place.axis.number)
    if place is not None and loop is not None and len(loop.axes) == 1:
        return _patched(part, lane, loop, place)
    maps = [s for s in stages if not isinstance(s.form, Reduce)]
    if maps and (len(maps) == len(stages) or lane not in box.outs):
        return _parted(part, lane)
    return _shrunk(part, lane, () if maps else common(work))


def _patched(part: _Part, lane: NestLoop | None, loop: NestLoop, place: Patch) -> Stmts:
    """Maps that change one place along `loop` only."""
    region = over_loops(part.context, part.box.axes, place.region)
    cut = bounded(loop, region, {}).loop
    body = part.body({place.test: True})
    outs = [cut if o is loop else o for o in part.box.loops if o is not lane or o is loop]
    inner = body.inside if lane is None or lane is loop else _lanes(part, lane, body)
    return nest(outs, inner)


def _work(context: Context, axes: Coordinates, stage: Stage) -> Region:
    """Where a stage has work to do, over loop variables."""
    return over_loops(context, axes, context.regions.work.get(stage.target, ()))


@frozen
class Bodies:
    """Bodies of stages over loop variables, with the checks each needs and a register each."""

    bodies: list[Expr]
    checks: list[list[Check]]
    registers: dict[Value, Register]


def stage_values(
    context: Context,
    stages: list[Stage],
    axes: Coordinates,
    registers: dict[Value, Register],
) -> Bodies:
    """What each stage computes; stages of one step meet in registers."""
    bodies: list[Expr] = []
    checks: list[list[Check]] = []
    for stage in stages:
        translate = Translator(context, axes, registers)
        bodies.append(translate(stage.body))
        checks.append(translate.checks)
    return Bodies(bodies, checks, registers)


def make_box(
    context: Context, stages: list[Stage], lane: int | None = None, within: Within = EVERYWHERE
) -> tuple[Box, Bodies]:
    """Loops of stages over one box, neighbours merged where every access allows it."""
    lead = next((s for s in stages if isinstance(s.form, Reduce)), stages[0])
    loops, axes = context.loops(lead)
    loops = [_ranged(loop, axes, within) for loop in loops]
    outputs = len(lead.shape)
    registers = context.registers(stages)
    values = stage_values(context, stages, axes, registers)
    loops, parted = split(context, loops, values.bodies, lane)
    if parted:
        axes = revalued(axes, parted)
        values = stage_values(context, stages, axes, registers)
    parts = [int(loop.axes[0] >= outputs) for loop in loops]
    stores = [written(context, s, axes) for s in stages if s.target in context.homes]
    roots = values.bodies + [b.form.expr() for s in stages for b in _work(context, axes, s)]
    loops, joined = merged(context, loops, parts, roots, stores)
    if joined:
        axes = revalued(axes, joined)
        values = stage_values(context, stages, axes, registers)
    rank = sum(loop.axes[0] < outputs for loop in loops)
    return Box(loops, rank, axes), values


def _ranged(loop: NestLoop, axes: Coordinates, within: Within) -> NestLoop:
    """A loop over what lies in a part of its axis, of which a tile may have less, or nothing."""
    (axis,) = loop.axes
    if axis not in within:
        return loop
    place, (first, end) = linear(axes[axis]), within[axis]
    region = Bound(place.shifted(-first)), Bound(Linear(end - 1).minus(place))
    return bounded(loop, region, {}).loop


def written(context: Context, stage: Stage, axes: Coordinates) -> Linear:
    """Where the value of `stage` at the current coordinates is stored."""
    return context.home(stage).offset(tuple(axes[n] for n in range(len(stage.shape))))


class _Body:
    """The statements of one iteration."""

    def __init__(
        self,
        context: Context,
        box: Box,
        stages: list[Stage],
        values: Bodies,
    ) -> None:
        self.context = context
        self.stages = stages
        self.box = box
        self.before: Stmts = []
        self.after: Stmts = []
        self.inside: Stmts = []
        self.size = 0
        for number, stage in enumerate(stages):
            value = values.bodies[number]
            if len(stages) > 1:
                self.inside += context.mark([stage])
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


@frozen
class _Part:
    """Stages of one nest with their values, and where each has work to do."""

    context: Context
    box: Box
    stages: list[Stage]
    values: Bodies
    work: list[Region]
    loops: SweepLoops

    def where(self, known: Mapping[Expr, Expr], maps: bool = False) -> _Part:
        """The same where nodes have the forms `known`; `maps`: of maps alone."""
        if not known and not maps:
            return self
        own = [s for s in self.stages if not (maps and isinstance(s.form, Reduce))]
        stages = [assuming(s, known) for s in own]
        registers = self.context.registers(stages)
        values = stage_values(self.context, stages, self.box.axes, registers)
        return replace(self, stages=stages, values=values)

    def body(self, known: Mapping[Expr, bool], maps: bool = False) -> _Body:
        """The statements of an iteration where tests are decided; `maps`: of maps alone."""
        part = self.where({test: E.const(v, bool_) for test, v in known.items()}, maps)
        return _Body(self.context, self.box, part.stages, part.values)


def _shrunk(part: _Part, lane: NestLoop | None, region: Region) -> Stmts:
    """Reductions, over what their guards leave.

    ``for i: for k: if k <= i: s += x[k]  ->  for i: for k in 0..i+1: s += x[k]``
    """
    context, box = part.context, part.box
    outs = [loop for loop in box.outs if loop is not lane]
    overs = [loop for loop in box.overs if loop is not lane]
    above = outer(region, [*overs, *([] if lane is None else [lane])])
    if lane is not None and lane in box.outs:
        blocks, lane = _blocked(part, lane, overs, region)
        bounds = narrowed(overs, region, spans([lane]))
        body = part.body(_known(part, bounds, above))
        inner = guarded(above, {}, nest([b.loop for b in bounds], body.inside))
        inner = [*blocked(context, body.before, inner), *body.after]
        row: Stmts = [vector(lane, _unroll(part, body), inner)]
        if blocks or not outs:
            return nest([*outs, *blocks], row)
        *around, rows = outs
        return nest(around, abreast(context, rows, part.loops.abreast, row))
    bounds = narrowed([*overs, *([] if lane is None else [lane])], region, {})
    body = part.body(_known(part, bounds, above))
    loops = [b.loop for b in bounds]
    inner = body.inside
    if lane is not None:
        inner = hoisted(context, vector(loops.pop(), _unroll(part, body), inner))
    inner = guarded(above, {}, nest(loops, inner))
    return nest(outs, [*blocked(context, body.before, inner), *body.after])


def _known(part: _Part, bounds: list[Bounded], above: Region) -> dict[Expr, bool]:
    exact = tuple(bound for b in bounds for bound in b.exact)
    return settled(above + exact, part.work)


def _unroll(part: _Part, body: _Body) -> int:
    """Vectors in flight of a loop in lanes, by how long its body is."""
    sums = any(isinstance(s.form, Reduce) for s in body.stages)
    short = body.size <= (2 * SHORT_BODY if sums else SHORT_BODY)
    return part.loops.unroll if short else part.loops.long


def _blocked(part: _Part, lane: NestLoop, overs: Nest, region: Region) -> tuple[Nest, NestLoop]:
    """Lanes in blocks, each with its own bounds, where bounds of other loops depend on them."""
    context, width = part.context, part.context.lanes(4)
    size = max(width, min(part.loops.block, lane.most // BLOCKS // width * width))
    skewed = any(b.form.of(lane.var) and any(b.form.of(o.var) for o in overs) for b in region)
    if not skewed or lane.most <= size:
        return [], lane
    blocks, own = in_pieces(context, lane, size, "c")
    return [blocks], own


def _parted(part: _Part, lane: NestLoop | None) -> Stmts:
    """Maps, perhaps with reductions along the lanes: apart where all is zero.

    ``for j: y[j] = if(j <= i, f(j), 0)  ->  for j in 0..i+1: y[j] = f(j); for j in i+1..n: ..``
    """
    box = part.box
    outs = [loop for loop in box.outs if loop is not lane]
    overs = [loop for loop in box.overs if loop is not lane]
    if lane is None:
        body = part.body({})
        return nest(outs, [*body.before, *nest(overs, body.inside), *body.after])
    reduced = any(isinstance(s.form, Reduce) for s in part.stages)
    wide = lane.most // part.context.lanes(4) > 1
    region = [b for b in common(part.work) if len(b.form.terms) > 1 and (b.tests or reduced)]
    cut = bounded(lane, region if wide else (), {})
    if not cut.exact and not reduced:
        own = _cut(part, lane)
        turned = _turned(part, outs, lane) if len(own) < 2 else None
        if turned is not None:
            return _in_squares(part, [o for o in outs if o is not turned], turned, lane)
        return nest([*outs, *overs], _pieces(part, lane, own))
    body = part.body(settled(cut.exact, part.work))
    inner = _lanes(part, cut.loop, body)
    sides = ((cut.below, lane.first, cut.loop.first), (cut.above, cut.loop.extent, lane.extent))
    for bounds, first, end in sides:
        if bounds:
            known = dict(bounds[0].tests) if len(bounds) == 1 else {}
            rest = replace(lane, first=first, extent=end)
            inner += _lanes(part, rest, part.body(known, maps=True))
    inner = nest(overs, inner)
    return nest(outs, [*blocked(part.context, body.before, inner), *body.after])


def _turned(part: _Part, outs: Nest, lane: NestLoop) -> NestLoop | None:
    """Of maps in one piece the loop along lines that lanes go across. ``y[i, k] = x[k, i]: i``"""
    if not lane.whole or lane.most < 2 * part.context.lanes(4):
        return None
    loads = [n for n in walk(part.values.bodies) if isinstance(n, Load)]
    places = [(n.array, linear(n.offset)) for n in loads]
    for stage in part.stages:
        home = part.context.homes.get(stage.target)
        if home is not None:
            places.append((home.array, written(part.context, stage, part.box.axes)))
    for array, form in places:
        if abs(form.of(lane.var)) * array.dtype.itemsize > LINE:
            return next((o for o in outs if o.whole and abs(form.of(o.var)) == 1), None)
    return None


def _in_squares(part: _Part, outs: Nest, turned: NestLoop, lane: NestLoop) -> Stmts:
    """A map that turns rows into columns: few lines at a time, all of each.

    ``for i: for k: y[i, k] = x[k, i]  ->  for c: for g: for i in line g: for k in vector c: ..``

    Zen 3, 152 x 128 x 96 turned around, rows 48 KB apart, which share places of both caches: 7.5
    ms row by row, 1.6 in squares.
    """
    context, width = part.context, part.context.lanes(4)
    body = part.body({})
    whole = lane.most // width * width
    across, vectors = in_pieces(context, replace(lane, extent=index(whole), most=whole), width, "c")
    inner = nest([across, *in_pieces(context, turned, LINE // 4, "g")], _lanes(part, vectors, body))
    if whole < lane.most:
        inner += nest([turned], _lanes(part, replace(lane, first=index(whole)), body))
    return nest(outs, inner)


def _pieces(part: _Part, lane: NestLoop, cut: list[Piece]) -> Stmts:
    """Maps, each piece of the lanes by itself."""
    statements = Stmts()
    if not cut:
        return _lanes(part, lane, part.body({}))
    for piece in cut:
        own = replace(lane, first=index(piece.first), extent=index(piece.end))
        known = part.where(piece.known)
        statements += _lanes(known, own, known.body({}))
    return statements


def _cut(part: _Part, lane: NestLoop) -> list[Piece]:
    """The pieces of the lanes; none of what is no whole axis."""
    if not lane.whole or len(lane.axes) > 1:
        return []
    axis = Axis(lane.axes[0], lane.most)
    return pieces((s.body for s in part.stages), axis, part.context.lanes(4))


def _lanes(part: _Part, lane: NestLoop, body: _Body) -> Stmts:
    """One loop in lanes; none where all that it computed is known to be zero."""
    if not body.inside:
        return []
    return hoisted(part.context, vector(lane, _unroll(part, body), body.inside))
