"""Where stages live, and the scratch slots that they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from pullback.config import Ints, Pair, frozen
from pullback.cost.facts import size_bytes
from pullback.ir.dtype import is_short
from pullback.ir.expr import Dim, upper
from pullback.ir.graph import Map, Value, Variable
from pullback.ir.kernel import Kernel, Stage, Stages, stage_reads
from pullback.ir.target import Target
from pullback.schedule.schedule import Numbers, Place, Residence, Slot, Step, Steps, Tile
from pullback.schedule.steps import NOTHING, identical


def numbered(kernel: Kernel, body: Steps, finish: Steps) -> list[tuple[Step, Stages, Ints]]:
    """Each step with the stages that it counts, and its stages' numbers among all of the kernel."""
    first = len(kernel.stages)
    rows = [(step, kernel.stages, step.stages) for step in body]
    return rows + [(s, kernel.finish, tuple(first + n for n in s.stages)) for s in finish]


def readers(stages: Sequence[Stage]) -> list[set[int]]:
    """For each stage, by their numbers, those that read what it makes."""
    numbers: dict[Value, int] = {stage.target: n for n, stage in enumerate(stages)}
    users: list[set[int]] = [set() for _ in stages]
    for number, stage in enumerate(stages):
        for take in stage_reads(stage):
            if take.source in numbers:
                users[numbers[take.source]].add(number)
    return users


def residences(kernel: Kernel, body: Steps, finish: Steps) -> tuple[Residence, ...]:
    """Where each stage lives: in registers if only its own loop reads it."""
    every = kernel.every
    users = readers(every)
    private: set[int] = set()
    for step, _, members in numbered(kernel, body, finish):
        for n in members:
            in_loop = isinstance(every[n].form, Map) or leads(step, members, n)
            private |= {n} if in_loop and users[n] <= set(members) else set()
    return tuple(_residence(s, n in private) for n, s in enumerate(every))


def leads(step: Step, members: Ints, number: int) -> bool:
    """Whether a stage is the contraction of a step whose other stages follow on its blocks."""
    return step.product is not None and len(members) > 1 and members[0] == number


def _residence(stage: Stage, private: bool) -> Residence:
    if stage.partial:
        return Residence(Place.SHARED)
    if stage.store is not None:
        return Residence(Place.SCRATCH if overwrites_itself(stage) else Place.MEMORY)
    if private:
        return Residence(Place.REGISTER)
    return Residence(Place.SCRATCH)


def added_in_place(kernel: Kernel, stage: Stage, tasks: int, split: int) -> bool:
    """Whether no two tasks add to one element of a sum over tiles, so that all add where it is
    stored: `tasks` are dealt tiles of the first `split` axes, and each is one of the sum's own.
    """
    kind = stage.body.dtype
    if not stage.partial or stage.store is None or stage.store in kernel.reads:
        return False
    if stage.store.dtype != kind or is_short(kind):
        return False
    dealt = stage.outer[: split if tasks > 1 else 0]
    return all(axis is not None and axis not in stage.over for axis in dealt)


def overwrites_itself(stage: Stage) -> bool:
    """Whether a stage reads its own target variable where it has not yet, or already, written."""
    rank = len(stage.extents)
    at_home = isinstance(stage.form, Map)
    return any(
        t.source is stage.store and not (at_home and identical(t, rank)) for t in stage_reads(stage)
    )


def tile_counts(kernel: Kernel, tile: Sequence[int]) -> list[int]:
    """How many tiles there are along each outer axis."""
    return [-(-upper(e) // t) for e, t in zip(kernel.outer, tile, strict=True)]


def tile_shape(stage: Stage, tile: Tile | None) -> Ints:
    """Extents of the part of a stage that one tile holds; of all of it where there are no tiles."""
    bound = {} if tile is None else stage.bound
    shape = map(upper, stage.shape)
    return tuple(min(e, tile[bound[n]]) if tile and n in bound else e for n, e in enumerate(shape))


@frozen
class Life:
    """When a stage in scratch is written and last read, in steps; `hoisted`: outside some loop."""

    number: int
    stage: Stage
    start: int
    end: int
    hoisted: bool
    finish: bool


@frozen
class Lives:
    """The lives of a kernel's stages in scratch, in the order of their steps. `onto`: pairs of
    stages, the first of which may be written over the second, element by element.
    """

    residences: tuple[Residence, ...]
    stages: tuple[Life, ...]
    onto: frozenset[Pair]

    def bytes(self, tile: Tile) -> int:
        """Scratch of one tile, bytes."""
        return sum(s.bytes for s in self.assign(tile)[0])

    def assign(self, tile: Tile) -> tuple[tuple[Slot, ...], tuple[Residence, ...]]:
        """Scratch slots, shared by stages that are not alive together in one tile."""
        slots: list[Slot] = []
        last: list[Life] = []
        placed = list(self.residences)
        for life in self.stages:
            shape = tile_shape(life.stage, None if life.finish else tile)
            slot = self._take(slots, last, life, prod(shape))
            placed[life.number] = replace(placed[life.number], slot=slot)
        return tuple(slots), tuple(placed)

    def _take(self, slots: list[Slot], last: list[Life], life: Life, size: int) -> int:
        """A slot of the same type whose value is dead, or dies with the one that is written over
        it; grown if need be; or a new one.
        """
        kind = life.stage.body.dtype
        pairs = enumerate(zip(slots, last, strict=True))
        free = [
            n
            for n, (slot, one) in pairs
            if slot.dtype == kind
            and (one.end < life.start or (life.number, one.number) in self.onto)
        ]
        if life.hoisted or not free:
            slots.append(Slot(kind, size))
            last.append(life)
            return len(slots) - 1
        best = min(free, key=lambda n: (abs(slots[n].size - size), n))
        slots[best] = Slot(kind, max(slots[best].size, size))
        last[best] = life
        return best


def lives(
    kernel: Kernel,
    body: Steps,
    finish: Steps,
    homes: tuple[Residence, ...],
    target: Target,
    given: Numbers = NOTHING,
) -> Lives:
    """When each stage in scratch lives. `given`: what is chosen by name (`choices`)."""
    every = kernel.every
    ordered = tuple(sorted(body, key=lambda step: step.level))
    sequence = [members for _, _, members in numbered(kernel, ordered, finish)]
    when = {n: time for time, members in enumerate(sequence) for n in members}
    users = readers(every)
    levels = {n: s.level for s in body for n in s.stages}
    full = len(kernel.outer)
    alive = []
    for number, start in when.items():
        if homes[number].place is not Place.SCRATCH:
            continue
        hoisted = levels.get(number, full) < full
        end = len(sequence) if hoisted else max([start, *(when[n] for n in users[number])])
        late = number >= len(kernel.stages)
        alive.append(Life(number, every[number], start, end, hoisted, late))
    hosts = _Hosts(kernel, when, target)
    settled = list(homes)
    scratch = []
    for life in alive:
        host = None if life.hoisted or life.finish else hosts.host(life)
        scratched = host is None or given.get(f"place.{life.number}") == 0
        place = Place.SCRATCH if scratched else Place.MEMORY
        settled[life.number] = Residence(place, host=host)
        if scratched:
            scratch.append(life)
    return Lives(tuple(settled), tuple(scratch), _onto(kernel.stages, when, scratch))


def _onto(stages: Stages, when: Mapping[int, int], scratch: Sequence[Life]) -> frozenset[Pair]:
    """Pairs of values in scratch, the first of which may be written over the second."""
    inside = [life for life in scratch if not life.hoisted and not life.finish]
    return frozenset(
        (new.number, old.number)
        for new in inside
        for old in inside
        if old.end == new.start and old.start < new.start
        if written_over(stages, when, old.number, new.number)
    )


class _Hosts:
    """Variables that a kernel writes and never reads: until then they hold values of its stages.

    Not those that are written past the caches: what they held would come back from memory.
    """

    def __init__(self, kernel: Kernel, when: dict[int, int], target: Target) -> None:
        self.stages = kernel.stages
        self.when = when
        read = set(kernel.reads)
        writers: dict[Variable, list[int]] = {}
        for number, stage in enumerate(kernel.every):
            if stage.store is not None:
                writers.setdefault(stage.store, []).append(number)
        self.free = {
            numbers[0]: 0
            for variable, numbers in writers.items()
            if variable not in read and len(numbers) == 1 and numbers[0] < len(kernel.stages)
            if any(isinstance(extent, Dim) for extent in variable.shape)
            or not target.streams(size_bytes(variable))
        }

    def host(self, life: Life) -> int | None:
        """The first stage whose variable can hold `life` in full, tile by tile."""
        for number, since in self.free.items():
            if since <= life.start and self._fits(life, number):
                self.free[number] = life.end + 1
                return number
        return None

    def _fits(self, life: Life, number: int) -> bool:
        host = self.stages[number]
        if not isinstance(host.form, Map) or host.partial or life.start >= self.when[number]:
            return False
        if None in host.outer or not same_box(life.stage, host):
            return False
        if life.end < self.when[number]:
            return True
        dies = life.end == self.when[number]
        return dies and written_over(self.stages, self.when, life.number, number)


def written_over(stages: Stages, when: Mapping[int, object], old: int, new: int) -> bool:
    """Whether a map may be written over a value of the same box that dies in its loop: that is read
    there only where it is about to be written.

    ``s[i, j] = ..; e[i, j] = exp(s[i, j] - t[i])  ->  e over s``
    """
    if not isinstance(stages[new].form, Map) or not same_box(stages[old], stages[new]):
        return False
    for other, stage in enumerate(stages):
        if when[other] != when[new]:
            continue
        for take in stage_reads(stage):
            if take.source is not stages[old].target:
                continue
            if other > new or not identical(take, len(stage.extents)):
                return False
    return True


def same_box(one: Stage, other: Stage) -> bool:
    """Whether two stages have a value for each other's elements, of as many bytes, in each tile."""
    own = (one.shape, one.outer, one.body.dtype)
    return own == (other.shape, other.outer, other.body.dtype)
