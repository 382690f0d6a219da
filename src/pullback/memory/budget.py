"""Memory against work: launches that run again so that a program's arena fits a number of bytes.

    z = x @ w; ..; d = g * (z > 0)  ->  z = x @ w; ..; z' = x @ w; d = g * (z' > 0)

Wherever more bytes are alive than the goal there is *excess*. Time and again that repetition is
taken which removes most excess for its work, until none is left; then the plan is made. Recomputed
values come from the same kernels as the stored ones and are equal to them bit for bit.

Source: Chen et al., Training Deep Nets with Sublinear Memory Cost, arXiv 1604.06174 (the idea);
Kirisame et al., Dynamic Tensor Rematerialization, arXiv 2006.09616 (choosing by cost and size).
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product

import numpy as np

from pullback.config import Cap, entity, frozen
from pullback.errors import MemoryBudgetError
from pullback.ir.graph import Definition, Variable
from pullback.ir.kernel import Kernel
from pullback.ir.program import Block, Item, Launch, expand
from pullback.ir.signature import kernel_digest
from pullback.memory.lives import lives, taken_over
from pullback.memory.plan import Needs, Plan, plan
from pullback.memory.timeline import Numbers, Row, Timeline
from pullback.schedule.count import Cost, cost

# Goals between what is alive at most and what one launch needs that are tried when a search for the
# budget is stuck: taking too much away at first may leave no way on.
RUNGS: Cap = 6
# Steps for each launch after which a search is given up.
MOST_STEPS: Cap = 2
# Steps that are looked at twice.
MOST_PRUNED: Cap = 64
# Values of the fullest launch that an error names.
NAMED: Cap = 5


@entity
class Start:
    """A fused program, its state, and what each launch needs beside its values."""

    block: Block
    state: Collection[Variable]
    needs: Mapping[Kernel, Needs]


@frozen
class Repetition:
    """Launch `source` runs again, as launch `number`, before launch `before`.

    Numbers are those of the original launches, in order, and then of earlier steps. `freed`: bytes
    that this saved where most were alive when it was chosen. `flops`: what it computes.
    """

    number: int
    source: int
    before: int
    freed: int
    flops: int


@entity
class Fitted:
    """A program within its budget. `launches`: see `Timeline.launches`."""

    steps: tuple[Repetition, ...]
    launches: list[list[tuple[Kernel, Kernel]]]
    plan: Plan


def fit(program: Start, budget: int) -> Fitted:
    """The cheapest repetitions found with which the arena of a fused program has `budget` bytes.

    Raises: MemoryBudgetError naming the smallest arena found and what fills it.
    """
    start = Timeline.of(program.block, program.state, program.needs)
    least, most = start.least(), int(start.live().max())
    flops: dict[tuple[str, ...], int] = {}
    for easy in (False, True):
        goal, search = budget, _Search(start, start.copy(), flops, easy)
        while goal >= least and search.reach(goal):
            fitted = search.fitted(program, goal)
            if fitted.plan.arena_bytes <= budget:
                return fitted
            goal -= fitted.plan.arena_bytes - budget
    smallest, fullest = 0, start
    rungs = range(1, RUNGS + 1) if most > least else [1]
    for n, easy in product(rungs, (False, True)):
        search = _Search(start, start.copy(), flops, easy)
        search.reach(most - (most - least) * n // RUNGS)
        fitted = search.fitted(program, int(search.timeline.live().max()))
        if fitted.plan.arena_bytes <= budget:
            return fitted
        if not smallest or fitted.plan.arena_bytes < smallest:
            smallest, fullest = fitted.plan.arena_bytes, search.timeline
    raise _too_small(fullest, budget, smallest)


def replay(start: Timeline, steps: Iterable[Repetition]) -> Timeline | None:
    """A timeline with steps taken that were chosen before; None if one cannot be."""
    timeline = start.copy()
    for step in steps:
        source, before = timeline.place(step.source), timeline.place(step.before)
        if not timeline.repeats(source, before):
            return None
        timeline.repeat(source, before, step.number)
    return timeline


def replaced(block: Block, launches: Sequence[Sequence[tuple[Kernel, Kernel]]]) -> Block:
    """A fused program with its launches, in order, replaced by those given for them."""
    rest = iter(launches)

    def change(item: Item) -> list[Item] | None:
        return [Launch(new) for new, _ in next(rest)] if isinstance(item, Launch) else None

    return expand(block, change)


def work(kernel: Kernel) -> Cost:
    """What one launch of a kernel computes."""
    stages = [Definition(s.target.name, s.shape, s.body, s.form) for s in kernel.every]
    return cost(stages)


@dataclass(slots=True)
class _Search:
    """Steps taken so far; flops by kernel structure; `easy`: see `_rate`."""

    start: Timeline
    timeline: Timeline
    flops: dict[tuple[str, ...], int]
    easy: bool
    steps: list[Repetition] = field(default_factory=list)

    def reach(self, goal: int) -> bool:
        """Take steps until no more than `goal` bytes are alive anywhere; False if stuck."""
        while self._excess(self.timeline.live(), goal):
            if len(self.steps) > MOST_STEPS * len(self.start.rows):
                return False
            heap = self._candidates(goal)
            if not heap:
                return False
            self._descend(heap, goal)
        return True

    def fitted(self, program: Start, goal: int) -> Fitted:
        """The program with the steps that `goal` needs, and its plan."""
        self.timeline, self.steps = _pruned(self.start, self.steps, goal)
        needs, launches = program.needs, self.timeline.launches()
        block = replaced(program.block, launches)
        kernels, spans = lives(block, program.state)
        known = {new: needs[old] for pairs in launches for new, old in pairs if old in needs}
        over = taken_over(block, program.state, known)
        made = plan(kernels, spans, known, over)
        return Fitted(tuple(self.steps), launches, made)

    def _descend(self, heap: list[tuple[float, int, Row, Row]], goal: int) -> None:
        """The best of the heap, looked at again as others are taken, until it is empty."""
        places = {id(row): n for n, row in enumerate(self.timeline.rows)}
        live = self.timeline.live()
        most = MOST_STEPS * len(self.start.rows)
        while heap and self._excess(live, goal) and len(self.steps) <= most:
            _, order, row, before = heapq.heappop(heap)
            source, place = places[id(row)], places[id(before)]
            rate = self._rate(source, place, live, goal)
            if rate <= 0:
                continue
            if heap and -rate > heap[0][0]:
                heapq.heappush(heap, (-rate, order, row, before))
                continue
            self._take(source, place, live)
            places = {id(row): n for n, row in enumerate(self.timeline.rows)}
            live = self.timeline.live()

    def _take(self, source: int, before: int, live: Numbers) -> None:
        peak = int(live.argmax())
        after = self._after(source, before, live)
        freed = int(live[peak] - after[peak + (peak >= before)])
        rows = self.timeline.rows
        number = 1 + max(row.number for row in rows)
        flops = self._flops(rows[source].kernel)
        step = Repetition(number, rows[source].number, rows[before].number, freed, flops)
        self.steps.append(step)
        self.timeline.repeat(source, before, number)

    def _candidates(self, goal: int) -> list[tuple[float, int, Row, Row]]:
        """Every repetition that removes excess, best first."""
        line, live = self.timeline, self.timeline.live()
        over = np.concatenate([[0], np.cumsum(live > goal)])
        candidates: list[tuple[float, int, Row, Row]] = []
        for source, row in enumerate(line.rows):
            for before in self._gaps(source, over):
                rate = self._rate(source, before, live, goal)
                if rate > 0:
                    candidates.append((-rate, len(candidates), row, line.rows[before]))
        heapq.heapify(candidates)
        return candidates

    def _gaps(self, source: int, over: Numbers) -> list[int]:
        """Where a value of `source` is used again after rows in which too much is alive."""
        line = self.timeline
        row = line.rows[source]
        ends: dict[int, None] = {}
        for value in row.writes:
            if line.plain[value]:
                places = [source, *line.uses(value, row)]
                ends.update((b, None) for a, b in pairwise(places) if over[b] > over[a + 1])
        return sorted(ends)

    def _rate(
        self,
        source: int,
        before: int,
        live: Numbers,
        goal: int,
    ) -> float:
        """Excess bytes removed, over all rows, for each operation; 0 where that is impossible.

        The new row counts too; while it is `easy`, with what stands out between those beside it.
        """
        if not self.timeline.repeats(source, before):
            return 0.0
        after = self._after(source, before, live)
        beside = max(goal, after[before - 1], after[before + 1]) if self.easy else goal
        peak = max(0, int(after[before] - beside))
        removed = self._excess(live, goal) - self._excess(np.delete(after, before), goal) - peak
        return removed / max(1, self._flops(self.timeline.rows[source].kernel))

    def _after(self, source: int, before: int, live: Numbers) -> Numbers:
        """Bytes alive in each row if `source` ran again before `before`."""
        line = self.timeline
        row = line.rows[source]
        taken = line.moved(source, before)
        after = np.insert(live, before, 0)
        across = (line.first < before) & (line.last >= before)
        across[[value for value, _ in taken]] = False
        after[before] = line.size[across].sum() + line.size[row.writes].sum() + row.working
        for value, early in taken:
            after[early + 1 : before] -= line.size[value]
        for value in row.reads:
            end = int(line.last[value])
            if end < before:
                after[end + 1 : before + 1] += line.size[value]
        return after

    def _flops(self, kernel: Kernel) -> int:
        key = tuple(kernel_digest(piece) for piece in kernel.pieces)
        if key not in self.flops:
            self.flops[key] = work(kernel).flops
        return self.flops[key]

    @staticmethod
    def _excess(live: Numbers, goal: int) -> int:
        return int(np.maximum(live - goal, 0).sum())


def _pruned(
    start: Timeline, steps: list[Repetition], goal: int
) -> tuple[Timeline, list[Repetition]]:
    """Without the steps that later ones have made needless, the dearest looked at first."""
    for step in sorted(steps, key=lambda s: (-s.flops, s.number))[:MOST_PRUNED]:
        if any(step.number in (s.source, s.before) for s in steps):
            continue
        rest = [s for s in steps if s is not step]
        timeline = replay(start, rest)
        if timeline is not None and timeline.live().max() <= goal:
            steps = rest
    timeline = replay(start, steps)
    assert timeline is not None, "steps that were taken can be taken again"
    return timeline, steps


def _too_small(timeline: Timeline, budget: int, smallest: int) -> MemoryBudgetError:
    """What is alive where most is, largest first; the line of the largest value."""
    live = timeline.live()
    peak = int(live.argmax())
    row = timeline.rows[peak]
    alive = [n for n, first in enumerate(timeline.first) if first <= peak]
    alive = [n for n in alive if timeline.last[n] >= peak and timeline.size[n]]
    alive.sort(key=lambda n: (-timeline.size[n], n))
    held = [(timeline.values[n], int(timeline.size[n])) for n in alive[:NAMED]]
    lines = [f"`{v.name}` {v.dtype}{list(v.shape)} {size:,}{_place(v)}" for v, size in held]
    if row.working:
        lines.append(f"working memory {row.working:,}")
    error = MemoryBudgetError(
        f"the memory budget of {budget:,} bytes is too small: the smallest arena found has "
        f"{smallest:,} bytes; launch `{row.kernel.name}` holds {live[peak]:,}: {'; '.join(lines)}",
        origin=held[0][0].origin if held else None,
        help=f"give memory={smallest} or more, or compute on smaller arrays",
    )
    error.smallest = smallest
    return error


def _place(variable: Variable) -> str:
    return "" if variable.origin is None else f" ({variable.origin.place})"
