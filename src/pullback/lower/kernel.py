"""Kernel and schedule to a loop nest: tiles dealt to tasks, stages in order inside each tile."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce

from pullback.algebra.linear import Linear, linear
from pullback.errors import InvalidIR
from pullback.ir import expr as E
from pullback.ir.expr import Expr, index, upper
from pullback.ir.graph import Accumulate, Map, Reduce, Scan
from pullback.ir.kernel import Kernel, Stage
from pullback.ir.nest import (
    Combine,
    Declare,
    For,
    Guard,
    Load,
    LoopKind,
    Peek,
    Routine,
    Stmts,
    Store,
    Var,
)
from pullback.lower.bounds import over_loops, somewhere, spans
from pullback.lower.context import (
    Context,
    Home,
    NestLoop,
    begin,
    cast,
    ceil_div,
    floor_div,
    name_value,
    settled,
    smaller,
    swept,
    task_var,
    vector,
)
from pullback.lower.dots import dots
from pullback.lower.guards import TRUE
from pullback.lower.special import copy_home, scan, scatter
from pullback.lower.sweep import sweep
from pullback.lower.tiles import tiles
from pullback.schedule.schedule import (
    DotLoops,
    Product,
    Schedule,
    Step,
    SweepLoops,
    TileLoops,
    Way,
    in_order,
)
from pullback.schedule.slots import overwrites_itself, tile_shape


def lower(kernel: Kernel, schedule: Schedule, *, marks: bool = False, far: int = 0) -> Routine:
    """The routine of `kernel` as `schedule` says; with `marks`, its loops name their stages. `far`:
    arguments lie as if their symbolic extents were so long.

    Raises: InvalidIR for a schedule that is not whole, or asks for what the kernel cannot do.
    """
    if not schedule.whole:
        raise InvalidIR(f"the schedule of {kernel.name} is not whole")
    context, outer, levels = opened(kernel, schedule, marks, far)
    draft = context.draft
    body = _zero_partials(context) + _tile_nest(context, outer, levels)
    finish = _finish(context)
    if schedule.tasks == 1:
        body, finish = body + finish, []
    return Routine(
        kernel.name,
        tuple(context.arrays[v] for v in kernel.arguments),
        tuple(context.sizes.values()),
        # what is a cache line or more is aligned to one in this order
        tuple(sorted(draft.scratch, key=lambda a: -a.size * a.dtype.itemsize)),
        tuple(draft.shared),
        task_var(context),
        schedule.tasks,
        tuple(body),
        tuple(finish),
        tuple(draft.sites),
        tuple(context.arrays[kernel.arguments[n]] for n in schedule.streamed),
    )


def opened(
    kernel: Kernel,
    schedule: Schedule,
    marks: bool = False,
    far: int = 0,
) -> tuple[Context, list[_Outer], list[int]]:
    """A kernel inside of its outer loops, with a place for the value of every stage; the loops, and
    for each number of enclosing ones the level statements go to.
    """
    context = begin(*in_order(kernel, schedule), marks, far)
    outer = [_Outer(context, n) for n in range(len(context.kernel.outer))]
    levels = _levels(context, outer)
    named = zip(outer, levels[1:], strict=True)
    context = replace(
        context,
        starts=tuple(one.start for one in outer),
        spans=tuple(one.span for one in outer),
        depths={name: level for one, level in named for name in (one.var, one.span)},
    )
    return replace(context, homes=settled(context, 0, context.kernel.stages)), outer, levels


def closed(context: Context) -> tuple[Context, Stmts]:
    """After the tiles: partial results combined in task order, a place for all finish stages."""
    stages, finish = context.kernel.stages, context.kernel.finish
    context = replace(context, starts=(), spans=())
    homes, statements = dict(context.homes), Stmts()
    for stage in stages:
        if stage.partial and isinstance(stage.form, Reduce) and _private(context, stage):
            homes[stage.target], combined = _combine_partials(context, stage, stage.form)
            statements += combined
    homes |= settled(context, len(stages), finish)
    return replace(context, homes=homes), statements


class _Outer:
    """The loop over the tiles of one outer axis: its variable, and the variable of the extent."""

    def __init__(self, context: Context, axis: int) -> None:
        extent, tile = context.kernel.outer[axis], context.schedule.tile[axis]
        size = upper(extent)
        self.total = ceil_div(context.extent(extent), tile)
        most = max(1, -(-size // tile))
        self.single = most == 1 and isinstance(self.total, E.Const)
        self.var = Var(f"t{axis}", 0, most - 1)
        start = Linear() if most == 1 else Linear(0, {self.var: tile})
        rest = linear(context.extent(extent)).minus(start).expr()
        self.start = start
        self.span: Expr = index(min(size, tile))
        self.span_value: Expr | None = None
        if not isinstance(extent, int) or size % tile:
            self.span = Var(f"n{axis}", 0, tile)
            self.span_value = smaller(index(tile), rest)

    def inside(self, body: Stmts) -> Stmts:
        """`body` with the tile's extent named."""
        if self.span_value is None or not isinstance(self.span, Var):
            return body
        return [name_value(self.span, self.span_value, body)]

    def around(self, lo: Expr, hi: Expr, body: Stmts) -> Stmts:
        """The loop over tiles ``lo..hi`` around `body`."""
        body = self.inside(body)
        if self.single:
            return body
        return [For(self.var, lo, hi, tuple(body))]


def _levels(context: Context, outer: list[_Outer]) -> list[int]:
    """For each number of enclosing loops the level statements go to."""
    split = context.schedule.split if context.schedule.tasks > 1 else 0
    lead = _lead(context, outer)[0]
    levels = [lead if 0 < n < lead else n for n in range(len(outer) + 1)]
    return [split if lead < n < split else n for n in levels]


def _lead(context: Context, outer: list[_Outer]) -> tuple[int, int]:
    """How many leading axes have one tile in a task, and how many tasks share such a tile.

    ``2 x 2 x 8 tiles, 8 tasks  ->  2 axes, 2 tasks``
    """
    tasks, split = context.schedule.tasks, context.schedule.split
    lead = 0, tasks
    shared = tasks
    for number in range(split - 1):
        total = outer[number].total
        if not isinstance(total, E.Const) or shared % int(total.value):
            break
        shared //= int(total.value)
        if not outer[number].single:
            lead = number + 1, shared
    return lead if tasks > 1 else (0, tasks)


def _tile_nest(context: Context, outer: list[_Outer], levels: list[int]) -> Stmts:
    """Loops over tiles with every step at its level, built from the innermost outwards."""
    steps = [(levels[s.level], _step(context, s)) for s in context.schedule.steps]
    split = context.schedule.split if context.schedule.tasks > 1 else 0
    lead, shared = _lead(context, outer)
    body: Stmts = []
    for depth in reversed(range(len(outer) + 1)):
        if 0 < depth < split and depth != lead:
            continue
        own = [s for at, statements in steps if at == depth for s in statements]
        body = context.draft.hoisted.pop(depth, []) + own + body
        if depth == len(outer):
            body = _worked(context, levels, body)
        if depth == split:
            body = _zero_sums(context, split) + body
        if depth == 0:
            break
        if depth == split:
            body = _dealt(context, outer[lead:split], shared, body)
        elif depth == lead:
            whole = E.FloorDiv(task_var(context), index(shared))
            body = _counted(outer[:lead], whole, body)
        else:
            one = outer[depth - 1]
            body = one.around(index(0), one.total, body)
    return body


def _worked(context: Context, levels: list[int], body: Stmts) -> Stmts:
    """`body`, all steps of the innermost tiles, where a sum over tiles has terms: elsewhere what it
    adds to stays as it is.

    ``for t0: for t1: s += tile  ->  for t0: for t1: if 64 t1 <= 256 t0 + 255: s += tile``
    """
    deepest = [s for s in context.schedule.steps if levels[s.level] == len(levels) - 1]
    stages = [context.kernel.stages[n] for step in deepest for n in step.stages]
    kept = [s for s in stages if s.store is not None or s.partial]
    if not kept or not all(s.partial for s in kept):
        return body
    tests: dict[Expr, None] = {}
    for stage in kept:
        loops, axes = context.loops(stage)
        region = over_loops(context, axes, context.regions.work[stage.target])
        tests[somewhere(region, spans(loops))] = None
    condition = reduce(E.Or, tests)
    return body if TRUE in tests else [Guard(condition, tuple(body))]


def _dealt(context: Context, outer: list[_Outer], tasks: int, body: Stmts) -> Stmts:
    """The loop over a task's share of the tiles of `outer`, which are counted as one."""
    total: Expr = index(1)
    most = 1
    for one in outer:
        total = _times(total, one.total)
        most *= one.var.hi + 1
    task: Expr = task_var(context)
    if tasks < context.schedule.tasks:
        task = E.Mod(task, index(tasks))
    lo = floor_div(_times(total, task), tasks)
    next_task = linear(task).shifted(1).expr()
    hi = floor_div(_times(total, next_task), tasks)
    if len(outer) == 1:
        return outer[0].around(lo, hi, body)
    flat = Var("tile", 0, most - 1)
    return [For(flat, lo, hi, tuple(_counted(outer, flat, body)))]


def _counted(outer: list[_Outer], flat: Expr, body: Stmts) -> Stmts:
    """`body` at tile `flat` of all tiles of `outer`."""
    rest = flat
    for number in reversed(range(len(outer))):
        one = outer[number]
        body = one.inside(body)
        if one.single:
            continue
        value = rest if number == 0 else E.Mod(rest, one.total)
        body = [name_value(one.var, linear(value).expr(), body)]
        rest = linear(E.FloorDiv(rest, one.total)).expr()
    return body


def _times(left: Expr, right: Expr) -> Expr:
    return linear(E.Mul(left, right)).expr()


def _step(context: Context, step: Step) -> Stmts:
    """The statements of one step in one tile."""
    stages = [context.kernel.stages[n] for n in step.stages]
    statements = _compute(context, step, stages)
    for stage in stages:
        statements = _once(context, stage, statements)
    return statements


def _once(context: Context, stage: Stage, statements: Stmts) -> Stmts:
    """A partial stage counts once: only at the first tile of outer axes that it lacks."""
    if not stage.partial:
        return statements
    for number, axis in enumerate(stage.outer):
        start = context.starts[number]
        if axis is None and start.terms:
            first = E.Equal(start.expr(), index(0))
            statements = [Guard(first, tuple(statements))]
    return statements


def _compute(context: Context, step: Step, stages: list[Stage]) -> Stmts:
    context.draft.begin_step()
    statements = context.mark(stages) + _dispatch(context, step, stages)
    for stage in stages:
        if stage.store is not None and overwrites_itself(stage) and not stage.partial:
            statements += copy_home(context, stage, context.memory(stage.store))
    return statements


def _dispatch(context: Context, step: Step, stages: list[Stage]) -> Stmts:
    lead = stages[0]
    match step.way, lead.form, step.product, step.loops:
        case Way.SCAN, Scan() as form, None, None:
            return scan(context, step.vector, lead, form)
        case Way.SCATTER, Accumulate() as form, None, None:
            return scatter(context, step.vector, lead, form)
        case Way.TILES, Reduce(), Product() as product, TileLoops() as loops:
            return tiles(context, product, stages, loops)
        case Way.DOTS, Reduce(), Product() as product, DotLoops() as loops:
            return dots(context, product, lead, loops)
        case Way.SWEEP, Map() | Reduce(), None, SweepLoops() as loops:
            return sweep(context, step.vector, stages, loops)
    raise InvalidIR(f"{lead.target} by {step.way.value}, with {step.product} and {step.loops}")


def _zero_partials(context: Context) -> Stmts:
    """Each task starts its own partial results at the combiner's identity."""
    statements: Stmts = []
    for stage in context.kernel.stages:
        if not _private(context, stage) or not isinstance(stage.form, Reduce):
            continue
        home = context.home(stage)
        size = home.array.size // context.schedule.tasks
        var = context.var("z", size)
        offset = home.base.plus(linear(var)).expr()
        store = Store(home.array, offset, stage.form.combiner.identity(home.array.dtype))
        statements.append(vector(NestLoop((), var, index(size), size), 1, [store]))
    return statements


def _private(context: Context, stage: Stage) -> bool:
    """Whether each task has sums over tiles of its own."""
    return stage.partial and context.home(stage).array in context.draft.shared


def _zero_sums(context: Context, split: int) -> Stmts:
    """What all tiles of a task add to in place, inside of the loops over the tasks' own tiles, at
    the combiner's identity.
    """
    statements: Stmts = []
    around = replace(context, starts=context.starts[:split], spans=context.spans[:split])
    for stage in context.kernel.stages:
        if stage.partial and isinstance(stage.form, Reduce) and not _private(context, stage):
            own = replace(stage, outer=stage.outer[:split])
            loops, values = around.loops(own)
            loops = [loop for loop in loops if loop.axes[0] < len(stage.shape)]
            home = context.home(stage)
            offset = home.offset(tuple(values[n] for n in range(len(stage.shape)))).expr()
            identity = stage.form.combiner.identity(home.array.dtype)
            statements += swept(loops, [Store(home.array, offset, identity)])
    return statements


def _finish(context: Context) -> Stmts:
    """Partial results combined, then the finish stages."""
    context, statements = closed(context)
    for step in context.schedule.finish:
        stages = [context.kernel.finish[n] for n in step.stages]
        statements += _compute(context, step, stages)
    hoisted = context.draft.hoisted
    late = [s for level in sorted(hoisted) for s in hoisted[level]]
    hoisted.clear()
    return late + statements


def _combine_partials(context: Context, stage: Stage, form: Reduce) -> tuple[Home, Stmts]:
    """Where the sum of all partial results lies, and what adds them."""
    partial = context.home(stage).array
    size = partial.size // context.schedule.tasks
    var = context.var("z", size)
    result = Home.whole(partial, tile_shape(stage, None))
    if stage.store is not None:
        result = context.memory(stage.store)
    total = context.register("sum", partial.dtype)
    body: Stmts = [Declare(total, Load(partial, var))]
    if (tasks := context.schedule.tasks) > 1:
        other = Var(f"p{context.draft.number()}", 1, tasks - 1)
        value = Load(partial, Linear(0, {other: size, var: 1}).expr())
        add = Combine(total, (), form.combiner, value)
        body.append(For(other, index(1), index(tasks), (add,), LoopKind.UNROLL))
    body.append(Store(result.array, var, cast(Peek(total, ()), result.array.dtype)))
    first = (*stage.shape, 1)[0]  # of rows beyond its sizes a call has no memory
    extent = _times(context.extent(first), index(size // (upper(first) or 1)))
    return result, [vector(NestLoop((), var, extent, size), 1, body)]
