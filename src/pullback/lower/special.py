"""Stages with an order: scans, accumulating writes, and copies of values computed aside."""

from __future__ import annotations

from dataclasses import replace

from pullback.algebra.bounds import Prover
from pullback.algebra.linear import Linear, linear
from pullback.errors import InvalidIR
from pullback.ir.expr import Axis, Expr, FloorDiv, index, takes, upper
from pullback.ir.graph import Accumulate, Combiner, Scan
from pullback.ir.kernel import Stage, plain_places
from pullback.ir.nest import (
    Check,
    Combine,
    Declare,
    For,
    Load,
    Peek,
    Stmts,
    Store,
    StoreCombine,
    Var,
)
from pullback.lower.context import (
    Context,
    Coordinates,
    Home,
    Nest,
    NestLoop,
    accumulator,
    cast,
    nest,
    swept,
    unrolled,
    vector,
)
from pullback.lower.hoist import hoisted
from pullback.lower.merge import revalued
from pullback.lower.sweep import written
from pullback.lower.translate import Translator, clamped

# Rows of a scan without lanes that run side by side: an addition takes three cycles or four, and
# rows of a power of two of bytes share the eight places of their lines in the first-level cache.
ABREAST = 4


def scan(context: Context, lanes: int | None, stage: Stage, form: Scan) -> Stmts:
    """A running combination, in order along its axis; another axis may run in `lanes`.

    Where none does, a few rows run abreast, since each waits for its own last result:
    ``for j: s[r] += x[i + r, j]; y[i + r, j] = s[r] for r < 4``
    """
    loops, axes = context.loops(stage)
    along = [loop for loop in loops if form.axis in loop.axes]
    lane = [loop for loop in loops if lanes in loop.axes]
    others = [loop for loop in loops if loop not in along and loop not in lane]
    if lane:
        return nest(
            others, [vector(lane[0], 1, _running(context, stage, form.combiner, along, axes))]
        )
    if not others or others[-1].most < ABREAST:
        return nest(others, _running(context, stage, form.combiner, along, axes))
    *around, rows = others
    block, each = context.var("m", rows.most // ABREAST), context.var("r", ABREAST)
    count = linear(FloorDiv(rows.extent, index(ABREAST)))
    place = Linear(0, {block: ABREAST, each: 1}).expr()
    body = _running(context, stage, form.combiner, along, revalued(axes, {rows.var: place}), each)
    statements: Stmts = [For(block, index(0), count.expr(), tuple(body))]
    if not rows.static or rows.most % ABREAST:
        single = replace(rows, first=count.times(ABREAST).expr())
        statements += nest([single], _running(context, stage, form.combiner, along, axes))
    return nest(around, statements)


def _running(
    context: Context,
    stage: Stage,
    combiner: Combiner,
    along: Nest,
    axes: Coordinates,
    each: Var | None = None,
) -> Stmts:
    """One scan, or as many as `each` counts."""
    translate = Translator(context, axes)
    value = translate(stage.body)
    kind = accumulator(stage.body.dtype)
    running = context.register("run", kind, () if each is None else (ABREAST,))
    own = () if each is None else (each,)
    home = context.home(stage)
    now = cast(Peek(running, own), home.array.dtype)
    inside: Stmts = [
        *translate.checks,
        Combine(running, own, combiner, cast(value, kind)),
        Store(home.array, written(context, stage, axes).expr(), now),
    ]
    if each is not None:
        inside = [unrolled(each, ABREAST, *inside)]
    return [Declare(running, combiner.identity(kind)), *nest(along, inside)]


def scatter(context: Context, lanes: int | None, stage: Stage, form: Accumulate) -> Stmts:
    """An accumulating write: the target starts at the identity, then takes one value at a time."""
    loops, axes = context.loops(stage)
    if stage.store is None and stage.bound and context.starts:
        raise InvalidIR(f"{stage.target}: an accumulating write over tiles must be stored")
    home = context.home(stage)
    lane = [loop for loop in loops if lanes in loop.axes]
    others = [loop for loop in loops if loop not in lane]
    translate = Translator(context, axes)
    value = translate(stage.body)
    places = [_place(context, translate, stage, form, n) for n in range(len(form.at))]
    offset = home.offset(tuple(places)).expr()
    inside: Stmts = [
        *translate.checks,
        StoreCombine(home.array, offset, form.combiner, value),
    ]
    if lane:
        inside = hoisted(context, vector(lane[0], 1, inside))
    return [*_identity(context, stage, form, home), *nest(others, inside)]


def _place(
    context: Context,
    translate: Translator,
    stage: Stage,
    form: Accumulate,
    number: int,
) -> Expr:
    """One coordinate of the write, checked and clamped where it is data."""
    at = translate(form.at[number])
    extent = stage.target.shape[number]
    data = any(takes(form.at[number]))
    lo, hi = linear(at if data else form.at[number]).range()
    whole = isinstance(extent, int) or form.at[number] == Axis(number, extent)
    known = lo >= 0 and hi < upper(extent) and whole
    if known or (data and Prover().inside(form.at[number], extent)):
        return at
    limit = context.extent(extent)
    what = f"axis {number} of {stage.target} (written)"
    site = context.draft.site(what, stage.target.origin)
    translate.checks.append(Check(at, limit, site))
    return clamped(at, limit)


def _identity(context: Context, stage: Stage, form: Accumulate, home: Home) -> Stmts:
    """The target (this tile's part of it) at the combiner's identity."""
    bound = stage.bound
    places = {p: bound[a] for a, p in plain_places(form, stage.shape).items() if a in bound}
    loops: Nest = []
    indices: list[Expr] = []
    for number, extent in enumerate(stage.target.shape):
        most, span, start = upper(extent), context.extent(extent), Linear()
        var = context.var("z", most)
        if number in places and context.starts:
            outer = places[number]
            most = min(most, context.schedule.tile[outer])
            span, start = context.spans[outer], context.starts[outer]
            var = context.var("z", most)
        loops.append(NestLoop((number,), var, span, most))
        indices.append(linear(var).plus(start).expr())
    offset = home.offset(tuple(indices)).expr()
    store = Store(home.array, offset, form.combiner.identity(home.array.dtype))
    return swept(loops, [store])


def copy_home(context: Context, stage: Stage, target: Home) -> Stmts:
    """What was computed aside goes to its variable."""
    loops, axes = context.loops(stage)
    loops = [loop for loop in loops if loop.axes[0] < len(stage.shape)]
    here = tuple(axes[n] for n in range(len(stage.shape)))
    source = context.home(stage)
    value = Load(source.array, source.offset(here).expr())
    return swept(loops, [Store(target.array, target.offset(here).expr(), value)])
