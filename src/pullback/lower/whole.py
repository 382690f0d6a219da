"""Schedules made whole: how the loops of every step are written is decided for a processor.

``tiles of stages [0, 1], axis 1 in lanes
->  tiles of stages [0, 1], axis 1 in lanes; 8 x 48 sums, right in panels of blocks, ..``

It stands here, above `schedule/`, since it asks of a contraction what lowering makes of it (strides
over merged loops, bounds, panels): `lower.kernel.lower` itself takes a whole schedule and decides
nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from math import prod

from pullback.config import Cap, Ints
from pullback.cost.facts import size_bytes
from pullback.errors import InvalidIR, OptionError
from pullback.ir import expr as E
from pullback.ir.expr import Expr, index, upper
from pullback.ir.graph import Reduce, Variable
from pullback.ir.kernel import Kernel, Stage, stage_reads
from pullback.ir.nest import Load, Native
from pullback.ir.node import walk
from pullback.ir.target import Target
from pullback.lower.context import (
    Context,
    NestLoop,
    rounded_up,
    scratch_home,
    symbols,
    tile_extents,
)
from pullback.lower.depth import by_depth
from pullback.lower.dots import dottable
from pullback.lower.kernel import closed, lower, opened
from pullback.lower.operands import Contraction, Operand, kept, problem
from pullback.lower.tiles import (
    left_evaluated,
    left_in_front,
    left_level,
    left_loops,
    rows_of_tiles,
)
from pullback.lower.turned import across, pays
from pullback.lower.words import wordable
from pullback.schedule.choices import OPERANDS, Choices
from pullback.schedule.choose import choose
from pullback.schedule.contraction import balanced, exact_sums, register_tile
from pullback.schedule.cost import stage_ns
from pullback.schedule.count import share
from pullback.schedule.regions import Regions, regions
from pullback.schedule.schedule import (
    DotLoops,
    Left,
    Place,
    Residence,
    Right,
    Schedule,
    Slot,
    Step,
    SweepLoops,
    TileLoops,
    Way,
    in_order,
)
from pullback.schedule.steps import lanes
from pullback.schedule.verify import revisited, verify_schedule

# Many instructions for an element, in lanes as many for all of them.
FUNCTIONS = (Native, E.Exp, E.Log, E.Sin)

# Vectors of a panel that is skipped where its block has no work: the finer, the more is skipped.
NARROW = 2

# Vectors in flight. A sum needs four to hide the latency of an addition (probes/cpu/kernels.py; on
# processors of vectors of 32 bytes eight take up to 1.39 times as long, rows of 64 and 100); a map
# gains from two while its body is short, but code takes time to compile.
SUMS_IN_FLIGHT = 4
MAPS_IN_FLIGHT: Cap = 2


@lru_cache(maxsize=64)
def scheduled(kernel: Kernel, target: Target, choices: Choices = ()) -> Schedule:
    """The whole schedule of `kernel`: the best by the model of costs, but for `choices`.

    Raises: OptionError for a choice that the kernel does not have.
    """
    chosen = choose(kernel, target, choices)
    if not any(name.partition(".")[0] in OPERANDS for name, _ in choices):
        return whole(kernel, chosen, target)
    try:
        made = whole(kernel, chosen, target)
        verify_schedule(kernel, made, "choices")
        lower(kernel, made)
        return made
    except InvalidIR as problem:
        what = f"kernel {kernel.name} has no such schedule: {problem}"
        raise OptionError(what, code="E527") from None


def whole(kernel: Kernel, schedule: Schedule, target: Target) -> Schedule:
    """`schedule` with the loops of every step; itself if it is whole."""
    if schedule.whole:
        return schedule
    schedule = replace(schedule, vector=target.vector)
    turned, plain = in_order(kernel, schedule)
    decided = _Decided(turned, plain, target, list(schedule.slots), list(schedule.residences))
    steps = [s for step in schedule.steps for s in decided.step(step, turned.stages, 0)]
    if any(step.product is not None for step in schedule.finish):
        decided.context, _ = closed(decided.context)
    count = len(turned.stages)
    finish = [s for step in schedule.finish for s in decided.step(step, turned.finish, count)]
    settled = replace(
        schedule,
        steps=tuple(steps),
        finish=tuple(finish),
        slots=tuple(decided.slots),
        residences=tuple(decided.residences),
    )
    return replace(settled, streamed=_streamed(kernel, settled, decided.near, target))


@dataclass
class _Decided:
    """Steps of one kernel with their loops; what is taken apart gets a place of its own."""

    kernel: Kernel
    schedule: Schedule
    target: Target
    slots: list[Slot]
    residences: list[Residence]
    near: set[Variable] = field(default_factory=set)

    @cached_property
    def regions(self) -> Regions:
        """Where stages have work to do."""
        return regions(self.kernel.stages, self.kernel.finish)

    @cached_property
    def context(self) -> Context:
        """The kernel inside of its outer loops, for contractions: what of them there is to see."""
        return opened(self.kernel, self.schedule)[0]

    def step(self, step: Step, stages: Sequence[Stage], first: int) -> list[Step]:
        """A step with its loops; sweeps where there is no contraction in such tiles.

        `first`: the number of the first of `stages` among the kernel's.
        """
        members = [stages[n] for n in step.stages]
        settled = replace(step, asked=(), terms=None)
        if step.way in (Way.SCAN, Way.SCATTER):
            return [settled]
        if step.product is None:
            swept = sweep_loops(step, members, self.target.vector)
            through = any(self._through(step, members, stage) for stage in members)
            return [replace(settled, loops=replace(swept, through=through))]
        prob = problem(self.context, step.product, members)
        word = step.product.word if wordable(prob, step.product.word) else 1
        product = replace(step.product, word=word, direct=False, dots=0)
        settled = replace(settled, product=product)
        if step.way is Way.DOTS:
            if not dottable(prob):
                return self._plain(step, stages, first)
            return [replace(settled, loops=dot_loops(self.context, prob, self.target))]
        if prob.column is None or not prob.over:
            return self._plain(step, stages, first)
        loops = tile_loops(self.context, prob, step, word, self.target)
        loops = _asked(self.context, prob, loops, dict(step.asked))
        depth = None if loops.terms is None else by_depth(self.context, prob, loops.terms)
        if depth is not None and depth.home:
            self.near |= {s.store for s in members[:1] if s.store is not None}
        return [replace(settled, loops=loops)]

    def _through(self, step: Step, members: Sequence[Stage], stage: Stage) -> bool:
        """Whether to leave out the zeros around what a sum reads takes longer than to add them:
        loops of a length of their own are entered for each vector (depthwise 5x5 of 2 x 128
        channels of 32x32: 366 us, 202 with the zeros). Only of a frame: what a mask leaves out,
        as causal attention does, may be anything times zero.
        """
        if not isinstance(stage.form, Reduce):
            return False
        sources = {take.source for take in stage_reads(stage)}
        own = [b for v, region in self.regions.work.items() if v in sources for b in region]
        if any(len(bound.form.terms) > 1 for bound in own):
            return False
        around = [b.form for b in self.regions.work[stage.target] if not b.tests]
        box = [upper(e) for e in stage.extents]
        if not around or not prod(box):
            return False
        saved = 1 - share(box, [E.Less(index(-1), form.expr()) for form in around])
        entered = prod(box) // box[stage.over[-1]]
        if step.vector is not None and step.vector not in stage.over:
            entered //= self.target.lanes(stage.body.dtype.itemsize)
        enter = 2 * self.target.profile.rate("whole", "scalar")
        return entered * enter > saved * sum(stage_ns(s, self.target) for s in members)

    def _plain(self, step: Step, stages: Sequence[Stage], first: int) -> list[Step]:
        """A contraction as a plain reduction, and the maps after it as a sweep of their own."""
        lead, rest = stages[step.lead], [stages[n] for n in step.stages[1:]]
        number = first + step.lead
        if self.residences[number].place is Place.REGISTER:
            shape = tile_extents(self.context, lead)
            size = prod(shape)
            self.residences[number] = Residence(Place.SCRATCH, len(self.slots))
            self.slots.append(Slot(lead.body.dtype, size))
            array = self.context.draft.panel("tile", lead.body.dtype, size)
            home = scratch_home(self.context, lead, array, shape)
            self.context = replace(self.context, homes={**self.context.homes, lead.target: home})
        lane, _ = lanes([lead], self.target)
        made = [Step(step.stages[:1], Way.SWEEP, step.level, lane)]
        if rest:
            lane, _ = lanes(rest, self.target)
            made.append(Step(step.stages[1:], Way.SWEEP, step.level, lane))
        return [part for one in made for part in self.step(one, stages, first)]


def sweep_loops(step: Step, stages: Sequence[Stage], vector: int) -> SweepLoops:
    """Vectors in flight, as asked for or by what is computed; blocks of lanes."""
    sums = any(isinstance(s.form, Reduce) for s in stages)
    unroll, long = (SUMS_IN_FLIGHT, 2) if sums else (MAPS_IN_FLIGHT, 1)
    given = dict(step.asked)
    asked, abreast = given.get("unroll"), given.get("abreast", 1)
    block = SUMS_IN_FLIGHT * vector // 4
    return SweepLoops(asked or unroll, asked or long, block, abreast=abreast)


def dot_loops(context: Context, prob: Contraction, target: Target) -> DotLoops:
    """Blocks of sums that registers hold, with one more for each column and one for a row: with
    the fewest reads a sum, or, from memory, of all rows while columns pay for what is read of them.

    ``8 -> 8 x 3 from memory, 4 x 6 from the cache`` (16 registers, 8 x 2000 x 2000: one register
    too many takes up to twice as long)
    """
    column, ahead = prob.column, _far(prob.right.value, target)
    assert column is not None

    def beside(height: int) -> int:
        return max(1, (target.vectors - 1) // (height + 1))

    rows = prob.height
    if prob.row is not None and not (ahead and beside(rows) > 2):
        squarest = min(range(1, rows + 1), key=lambda height: 1 / height + 1 / beside(height))
        rows = _fewest(prob.row, squarest)
    most = beside(rows)
    columns = balanced(column.most, most) if ahead else _fewest(column, most)
    return DotLoops(rows, columns, _pitch(context, prob, target), ahead)


def _fewest(loop: NestLoop, most: int) -> int:
    """The largest size, from half of `most` on, of blocks all alike, since what is left of them is
    code of its own; if there is none, that of the fewest, where single ones are left of an extent
    that is not known.
    """
    alike = [size for size in range(most // 2 + 1, most + 1) if loop.most % size == 0]
    if alike or loop.static:
        return alike[-1] if alike else balanced(loop.most, most)
    return min(range(1, most + 1), key=lambda size: sum(divmod(loop.most, size)))


def _far(operand: Expr, target: Target) -> bool:
    """Whether an operand comes from memory, not from the second-level cache."""
    if not isinstance(operand, Load):
        return False
    return operand.array.size * operand.array.dtype.itemsize > target.l2


def _pitch(context: Context, prob: Contraction, target: Target) -> int | None:
    """From row to row of `left`, evaluated because it is more than a load, or because its rows
    share their places in the first-level cache (8 x 4096 of 4096: 57 GF/s where they lie, 84 from a
    copy); None: it is neither.

    ``left[i, k] = x[i*4096 + k]  ->  s[i*4112 + k] = x[i*4096 + k]``
    """
    width = context.lanes(prob.kind.itemsize)
    if prob.left.plain and not _rows_meet(prob, target):
        return None
    *outside, last = prob.over
    apart = rounded_up(last.most, width) * width
    whole = apart * prod(o.most for o in outside)
    return apart + width if _meets(whole, prob, target) else apart


def _meets(step: int, prob: Contraction, target: Target) -> bool:
    """Whether elements a step apart share their places in the first-level cache."""
    way = target.profile.memories[0].way // prob.kind.itemsize
    return way > 0 and step % way == 0


def _rows_meet(prob: Contraction, target: Target) -> bool:
    """Whether more than two rows of `left`, read where they lie, share their places there."""
    steps = (prob.left.stride(o.var) or 1 for o in prob.rows if o.most > 2)
    return any(_meets(step, prob, target) for step in steps)


def tile_loops(
    context: Context,
    prob: Contraction,
    step: Step,
    word: int,
    target: Target,
) -> TileLoops:
    """The register tile of a contraction, and how its operands reach it."""
    column, asked = prob.column, dict(step.asked)
    assert column is not None
    width = context.lanes(prob.kind.itemsize)
    rows = prob.height
    most = NARROW if _oblique(prob, column) else None
    wanted = asked.get("vectors")
    fitting = rows if asked.get("left") else min(rows, _rows_held(prob, rows, target))
    height, vectors = register_tile(fitting, column.most, width, target.profile, most, wanted)
    if "rows" in asked:
        height = max(1, min(asked["rows"], rows, (target.vectors - 1 - vectors) // vectors))
    exact = exact_sums(target.vectors, width)
    block = int(target.profile.rate("block", "terms"))
    if word > 1:
        terms = (step.terms or block) * word
        return TileLoops(height, vectors * width, exact, terms, right=Right.BLOCKS)
    columns = min(vectors * width, column.most)
    squares = _across(prob) and pays(target, height, columns, width)
    made = TileLoops(height, columns, exact, turned=squares)
    # Up to two rows and panels use an element too seldom to keep what is no function of its own.
    few = rows <= 2 and column.most <= 2 * columns
    dear = any(isinstance(node, FUNCTIONS) for node in walk(prob.left.value))
    worth = (dear or not few) and not prob.bare(column).plain
    if step.terms is None and worth and _fixed(context, prob, target):
        made = replace(made, left=Left.FRONT)
        prob = left_in_front(context, prob)
    elif step.terms is None and worth and _ready(prob, target.l2):
        made = replace(made, left=Left.EVALUATED)
        prob = left_evaluated(context, prob)[1]
    if step.terms and not prob.work and not prob.needed:
        return _deep(context, prob, step, replace(made, terms=step.terms), target)
    if prob.right.stride(column.var) == 1 and not asked.get("packed"):
        return made
    level = _pack_level(context, prob, rounded_up(column.most, columns) * columns, target)
    if level is not None:
        return replace(made, right=Right.PANELS, level=level)
    kind = kept(prob.right, prob.kind)
    panel = columns * prod(o.most for o in prob.over) * kind.itemsize
    if panel > target.l2 and not prob.work and not prob.needed:
        return _deep(context, prob, step, replace(made, terms=block), target)
    return replace(made, right=Right.ONE)


def _rows_held(prob: Contraction, rows: int, target: Target) -> int:
    """How many rows of `left`, read where they lie, the first-level cache holds at once: as many as
    it has ways, where all lie at the same place in one.

    196 x 2048 of 512 columns, one Zen 4 core: 14 x 32 sums 5.2 ms, 8 x 32 4.1.
    """
    first = target.profile.memories[0]
    meet = prob.left.plain and _rows_meet(prob, target)
    return first.bytes // first.way if meet else rows


def _across(prob: Contraction) -> bool:
    """Whether rows of a result are neighbours in memory and columns are not."""
    if prob.row is None or prob.column is None:
        return False
    row, column = prob.row.var, prob.column.var
    stages, stores = (prob.stage, *prob.tail.stages), (prob.store, *prob.tail.stores)
    pairs = zip(stages, stores, strict=True)
    return any(s is not None and across(s, row, column, one.body.dtype) for one, s in pairs)


def _asked(
    context: Context, prob: Contraction, made: TileLoops, asked: Mapping[str, int]
) -> TileLoops:
    """Loops whose operands are where they are asked for.

    Raises: InvalidIR for panels in front of the loops that compute what is in them.
    """
    if "left" in asked:
        made = replace(made, left=[*Left][asked["left"]])
    if "right" in asked:
        made = replace(made, right=[*Right][asked["right"]], ahead=False)
    if made.right is Right.PANELS and "right" in asked:
        if _inside(context, prob.right):
            raise InvalidIR(f"the right operand of {prob.stage.target} is computed in the tile")
        made = replace(made, level=context.depth(prob.right.value))
    scattered = asked.get("scattered", int(made.scattered)) == 1
    return replace(made, scattered=scattered, ahead=asked.get("ahead", int(made.ahead)) == 1)


def _inside(context: Context, operand: Operand) -> bool:
    """Whether an operand is computed in the tile."""
    inner = {home.array for home in context.homes.values()}
    return any(isinstance(n, Load) and n.array in inner for n in walk(operand.value))


def _oblique(prob: Contraction, column: NestLoop) -> bool:
    """Whether what is skipped depends on the column and something else."""
    bounds = [*prob.work, *prob.needed]
    return any(b.form.of(column.var) != 0 and len(b.form.terms) > 1 for b in bounds)


def _ready(prob: Contraction, most: int) -> bool:
    """Whether `left` is more than a load and, once computed, takes at most `most` bytes."""
    loops = [] if prob.left.plain else left_loops(prob)
    size = prod(o.most for o in loops) * prob.kind.itemsize
    return bool(loops) and (size <= most or bool(prob.left.checks))


def _fixed(context: Context, prob: Contraction, target: Target) -> bool:
    """Whether `left` is more than a load, the same in several tiles, and the last level of caches
    holds it beside as much.
    """
    loops = [] if prob.left.plain or prob.left.checks else left_loops(prob)
    size = prod(o.most for o in loops) * prob.kind.itemsize
    again = _again(context, left_level(context, prob))
    return bool(loops) and again and size <= target.l3 // 2 and not _inside(context, prob.left)


def _again(context: Context, level: int) -> bool:
    """Whether the loops inside of `level` outer ones have several turns."""
    return context.turns > 1 and any(start.terms for start in context.starts[level:])


def _deep(
    context: Context,
    prob: Contraction,
    step: Step,
    made: TileLoops,
    target: Target,
) -> TileLoops:
    """The same with k in blocks."""
    column = prob.column
    assert column is not None and made.terms is not None
    depth = by_depth(context, prob, made.terms)
    prob = prob if depth is None else depth.prob
    if _ready(prob, target.profile.share):
        made = replace(made, left=Left.BLOCKS)
        prob = left_evaluated(context, prob)[1]
    made = replace(made, scattered=_scattered(context, prob, target))
    size = column.most * prod(o.most for o in prob.over) * prob.kind.itemsize
    few = prob.height < target.profile.rate("block", "few")
    packed = dict(step.asked).get("packed")
    wanted = size <= target.l2 or few if packed is None else not packed
    if not wanted or prob.right.stride(column.var) != 1:
        return replace(made, right=Right.BLOCKS)
    return replace(made, ahead=depth is not None and few and _far(prob.right.value, target))


def _scattered(context: Context, prob: Contraction, target: Target) -> bool:
    """Whether `left` is not contiguous along k, and more than stays near."""
    row, over = prob.row, prob.over
    if row is None or (not row.static and rows_of_tiles(context, row) is None):
        return False
    size = row.most * prod(o.most for o in over) * prob.kind.itemsize
    return size > target.l2 and prob.left.stride(over[-1].var) not in (0, 1)


def _pack_level(context: Context, prob: Contraction, columns: int, target: Target) -> int | None:
    """The outermost loop level at which all panels can be packed; None: as they come."""
    level = context.depth(prob.right.value)
    if _inside(context, prob.right) or not _again(context, level):
        return None
    size = columns * prob.kind.itemsize
    for loop in [*prob.shared, *prob.over]:
        size *= loop.most
    return level if size <= target.profile.share else None


def _streamed(kernel: Kernel, schedule: Schedule, near: Set[Variable], target: Target) -> Ints:
    """The arguments that are written past the caches: large ones that nothing reads again."""
    if symbols(kernel):
        return ()
    near = near | set(kernel.reads) | revisited(kernel, schedule)
    return tuple(
        n
        for n, variable in enumerate(kernel.arguments)
        if variable not in near and target.streams(size_bytes(variable))
    )
