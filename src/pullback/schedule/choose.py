"""Choose a schedule: a function of the kernel's structure, its shapes and the target alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate
from math import prod
from operator import mul

from pullback.config import Ints, Pair, frozen
from pullback.cost.facts import elements
from pullback.errors import OptionError
from pullback.ir.expr import upper
from pullback.ir.graph import Accumulate
from pullback.ir.kernel import Kernel, Stage, Stages, reordered
from pullback.ir.target import Target
from pullback.schedule.choices import (
    STRUCTURE,
    Choices,
    offered,
    order_of,
    refuse_unknown,
    with_choices,
)
from pullback.schedule.cost import Model, longest, task_count, whole_axes
from pullback.schedule.large import Tiling, blocks
from pullback.schedule.schedule import Numbers, Place, Schedule, Step, Steps, Tile, Way
from pullback.schedule.slots import (
    Lives,
    added_in_place,
    lives,
    residences,
    tile_counts,
    tile_shape,
)
from pullback.schedule.steps import NOTHING, steps
from pullback.schedule.tiling import Fit, choose_tile, tile_ns

Choose = Callable[[Kernel, Target], Schedule]


@lru_cache(maxsize=64)
def choose(kernel: Kernel, target: Target, choices: Choices = ()) -> Schedule:
    """The schedule of `kernel`: the best by the model of costs, but for `choices`.

    Raises: OptionError for a choice that the kernel does not have.
    """
    if kernel.tiling is not None and not choices:
        return schedule_with(kernel, target, *kernel.tiling)
    given = dict(choices)
    order = order_of(kernel, given)
    structure = tuple(c for c in choices if c[0].partition(".")[0] in (*STRUCTURE, "place"))
    plan, best = _planned(reordered(kernel, order), target, structure)
    if not given:
        return best
    made = plan.chosen(best, order, given)
    refuse_unknown(kernel, given, offered(kernel, made, target, given))
    if made.scratch_bytes > max(best.scratch_bytes, target.l2):
        what = f"kernel {kernel.name} has no room for tiles of {made.tile}"
        raise OptionError(what, help="smaller tiles", code="E527")
    steps_ = tuple(with_choices(s, given) for s in made.steps)
    return replace(made, steps=steps_, asked=choices)


def schedule_with(
    kernel: Kernel, target: Target, tile: Tile, tasks: int, columns: Sequence[int | None] = ()
) -> Schedule:
    """The schedule of `kernel` with this tile, these columns and at most so many tasks."""
    given = {f"column.{n}": column for n, column in enumerate(columns) if column is not None}
    plan = _Plan.of(kernel, target, given)
    return plan.schedule(plan.tiling(tile, tasks))


@lru_cache(maxsize=64)
def _planned(kernel: Kernel, target: Target, structure: Choices) -> tuple[_Plan, Schedule]:
    """The plan of a kernel with choices that change its steps, and its cheapest schedule: the same
    for all tiles, and for all ways of innermost loops, that are asked for.
    """
    plan = _Plan.of(kernel, target, dict(structure))
    return plan, _modelled(plan)


def _modelled(plan: _Plan) -> Schedule:
    """The cheapest schedule: of tiles as `choose_tile` finds them, or in blocks of k."""
    kernel, target = plan.kernel, plan.model.target
    tasks = task_count(kernel, plan.model.work_us(kernel), target)
    tasks = _packing_tasks(kernel, plan.body, tasks, target)
    tasks = min(tasks, _whole_vectors(plan))
    if all(_filling(kernel.stages[s.lead], target) for s in plan.body):
        tasks = 1
    way = min((_dealt(plan, tasks), *plan.blocks), key=plan.ns)
    return plan.schedule(replace(way, tasks=_even(plan, way)))


def _dealt(plan: _Plan, tasks: int) -> Tiling:
    """Tiles for so many tasks; or for fewer, where more have to be so narrow that all work together
    takes longer than some threads save: in the geometric mean over 1, 2, 4 .. threads.

    Two pictures of 14 channels, priced for two Zen 4 cores: as 14 tasks of two channels 6.1 ms of
    work, as two of 14 channels 1.0.
    """
    way = Tiling(choose_tile(plan.fit(tasks)), tasks)
    if plan.tiles(way) >= 2 * tasks or all(s.product is None for s in plan.body):
        return way
    launch = plan.model.target.profile.tables["launch"]
    threads = [1 << n for n in range(int(launch["processors"]).bit_length())]
    times: dict[Tiling, float] = {}
    while True:
        tiles, ns = plan.tiles(way), plan.ns(way)
        times[way] = prod(ns * longest(tiles, way.tasks, n) for n in threads)
        if way.tasks == 1 or times[way] > min(times.values()):
            break
        way = Tiling(choose_tile(plan.fit(way.tasks // 2)), way.tasks // 2)
    enough = min(times.values()) * launch["gain"] ** len(threads)
    return next(way for way, time in times.items() if time <= enough)


def _even(plan: _Plan, way: Tiling) -> int:
    """So many tasks that each has whole leading axes, where that deals all threads as much: what
    those axes select is packed once then, not by two tasks (attention of 6 heads of 905 positions,
    priced for one Zen 3 core: 24 ms by 8 tasks, 19 by 6), and added up by one: no axes whose terms
    a sum would have in several tasks.

    Else a few more tasks where all have as many tiles: of 10 tiles 8 tasks keep two threads busy
    for 6 (a depthwise convolution of 14 x 14: 121 us, by 10 tasks 80), of 28 for 16.
    """
    kernel, tasks = plan.kernel, way.tasks
    counts = tile_counts(kernel, way.tile)
    packs = any(s.product is not None and not s.product.direct for s in plan.body)
    threads = int(plan.model.target.profile.rate("launch", "processors"))
    whole = whole_axes(kernel)
    shared = whole < len(counts)
    if (packs or shared) and (even := evenly(counts[: whole + 1], tasks, threads)):
        return even
    if shared:
        tasks = min(tasks, int(plan.model.target.profile.rate("launch", "partial_tasks")))
    tiles = prod(counts)
    alone = any(s.partial or isinstance(s.form, Accumulate) for s in kernel.stages)
    most = _packing_tasks(kernel, plan.body, 2 * tasks - 1, plan.model.target)
    more = range(tasks, tasks if alone else most + 1)
    return next((n for n in more if tiles % n == n % 2 == 0), tasks)


def evenly(counts: Sequence[int], tasks: int, threads: int) -> int:
    """The most tasks that leading axes' tiles are dealt to evenly, if nearly as many; else 0.

    ``(3, 2, 57), 8, 2  ->  6``
    """
    ways = (n for n in range(tasks, (tasks - 1) // 2, -1) if n % threads == 0)
    firsts = list(accumulate(counts[:-1], mul))
    return next((n for n in ways if any(first % n == 0 for first in firsts)), 0)


@frozen
class _Plan:
    """What does not depend on the tile: steps and when scratch is in use."""

    kernel: Kernel
    body: Steps
    finish: Steps
    scratch: Lives
    model: Model
    blocks: tuple[Tiling, ...]

    @classmethod
    def of(cls, kernel: Kernel, target: Target, given: Numbers = NOTHING) -> _Plan:
        body = _with_levels(kernel, steps(kernel.stages, target, given))
        finish = steps(kernel.finish, target)
        homes = residences(kernel, body, finish)
        scratch = lives(kernel, body, finish, homes, target, given)
        ways = blocks(kernel, body, scratch, target)
        return cls(kernel, body, finish, scratch, Model(target), ways)

    def fit(self, tasks: int) -> Fit:
        return Fit(self.kernel, self.body, self.scratch, tasks, self.model)

    def ns(self, way: Tiling) -> float:
        """The price of a tiling."""
        return tile_ns(self.fit(way.tasks), way.tile, way.terms)

    def tiles(self, way: Tiling) -> int:
        """How many tiles there are."""
        return prod(tile_counts(self.kernel, way.tile))

    def tiling(self, tile: Tile, tasks: int) -> Tiling:
        """These tiles, in blocks of k where there is a way of them that is."""
        ways = (replace(way, tasks=tasks) for way in self.blocks if way.tile == tile)
        return min(ways, key=self.ns, default=Tiling(tile, tasks))

    def schedule(self, way: Tiling) -> Schedule:
        kernel = self.kernel
        tile = way.tile
        body = tuple(_with_way(kernel.stages, step, tile) for step in self.body)
        body = tuple(s if s.product is None else replace(s, terms=way.terms or None) for s in body)
        finish = tuple(_with_way(kernel.finish, step, ()) for step in self.finish)
        tasks, split = deal(kernel, tile, way.tasks)
        slots, placed = self.scratch.assign(tile)
        homes = [
            replace(home, place=Place.MEMORY) if added_in_place(kernel, s, tasks, split) else home
            for s, home in zip(kernel.every, placed, strict=True)
        ]
        return Schedule(tile, tasks, split, body, finish, tuple(homes), slots)

    def chosen(self, best: Schedule, order: Ints, given: Numbers) -> Schedule:
        """A schedule of this kernel, which has `order`, but for the tile and tasks chosen."""
        pairs = zip(order, best.tile, strict=True)
        tile = tuple(max(1, given.get(f"tile.{axis}", extent)) for axis, extent in pairs)
        terms = sum(step.terms or 0 for step in best.steps)
        made = self.schedule(Tiling(tile, max(1, given.get("tasks", best.tasks)), terms))
        own = tuple(extent for _, extent in sorted(zip(order, tile, strict=True)))
        turned = order if order != tuple(sorted(order)) else ()
        return replace(made, tile=own, order=turned)


def _packing_tasks(kernel: Kernel, body: Steps, tasks: int, target: Target) -> int:
    """Fewer tasks where each packs panels that another packs too: each has so many rows, but two
    share what is worth several tasks.
    """
    own_rows = int(target.profile.rate("block", "own"))
    for step in body:
        if step.product is None or step.product.direct:
            continue
        stage = kernel.stages[step.lead]
        if step.product.right.axes.isdisjoint(stage.bound):
            own = set(range(len(stage.shape))) - step.product.right.axes
            rows = prod(upper(stage.shape[a]) for a in own)
            tasks = min(tasks, max(2, rows // own_rows))
    return tasks


def _whole_vectors(plan: _Plan) -> int:
    """The most tasks that each own a vector of an accumulating write's lanes."""
    kernel, target = plan.kernel, plan.model.target
    most = elements(kernel.outer)
    for step in plan.body:
        stage = kernel.stages[step.lead]
        if isinstance(stage.form, Accumulate) and step.vector in stage.bound:
            most = min(most, elements(kernel.outer) // target.lanes(stage.body.dtype.itemsize))
    return max(1, most)


def _filling(stage: Stage, target: Target) -> bool:
    """Whether an accumulating write takes longer to fill its target than to add its values: one
    task that goes along memory beats many that each fill some columns (512 x 512 into 8192 rows:
    0.37 and 1.6 ms on one thread).
    """
    if not isinstance(stage.form, Accumulate):
        return False
    places, values = elements(stage.shape), elements(stage.extents)
    rates = target.profile.tables["whole"]
    filled = places * stage.body.dtype.itemsize / rates["memory_sweep"]
    return filled >= values * rates["scalar"]


def _with_levels(kernel: Kernel, body: Steps) -> Steps:
    """Steps at their loop level; one that cannot move before the inner loops stays innermost."""
    read = set(kernel.reads)

    def placed(step: Step) -> Step:
        members = [kernel.stages[n] for n in step.stages]
        deep = any(s.partial or s.store in read for s in members)
        return replace(step, level=len(kernel.outer)) if deep else step

    return tuple(map(placed, body))


def _with_way(stages: Stages, step: Step, tile: Tile) -> Step:
    """A contraction of few rows with both operands contiguous along k goes by dot products."""
    if step.product is None or len(step.stages) > 1:
        return step
    stage = stages[step.lead]
    if tile_shape(stage, tile or None)[step.product.row] > step.product.dots:
        return step
    return replace(step, way=Way.DOTS, vector=stage.over[-1])


def deal(kernel: Kernel, tile: Tile, wanted: int) -> Pair:
    """How many tasks, and over how many leading axes their tiles are counted."""
    counts = tile_counts(kernel, tile)
    tasks = max(1, min(wanted, prod(counts)))
    if not counts:
        return 1, 0
    total = 1
    for split, count in enumerate(counts, start=1):
        total *= count
        if total >= tasks and (total % tasks == 0 or total >= 4 * tasks):
            return tasks, split
    return tasks, len(counts)
