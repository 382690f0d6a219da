"""The one search over schedules: moves to neighbours of the best so far, random draws beside it.

``() 120 us -> (tile.0 = 64) 100 us -> (tile.0 = 64, unroll.1 = 4) 84 us``: each step changes one
choice of the best few schedules so far. What evaluates them is the business of who searches: a
stopwatch (`tensor/run/tune.py`), a price, or a function of the user's (`tensor/run/schedules.py`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import Protocol

from pullback.config import Cap
from pullback.errors import OptionError
from pullback.ir.kernel import Kernel
from pullback.ir.target import Target
from pullback.schedule.choices import STRUCTURE, Choices, Options, choices_of, offered
from pullback.schedule.choose import choose
from pullback.schedule.schedule import Schedule

BEAM: Cap = 3  # schedules of which every change is tried
BATCH: Cap = 8  # schedules measured side by side
DRAWS: Cap = 50  # attempts to draw a schedule that is new
MOST_DRAWN: Cap = 6  # choices of a random schedule that differ from the model's

# Times, or prices, of the schedules in a batch, in any one unit; `inf`: it does not run, or not
# rightly.
Evaluate = Callable[[Sequence[Choices]], Sequence[float]]


class Moves(Protocol):
    """Where a search may go; nothing is offered twice."""

    def near(self, choices: Choices) -> list[Choices]:
        """All that one change makes."""

    def draw(self, random: Random) -> Choices | None:
        """Anything, or None where nothing new is found."""


@dataclass
class Trials:
    """What was evaluated. `more`: whether there is time for another batch."""

    evaluate: Evaluate
    more: Callable[[], bool]
    times: dict[Choices, float] = field(default_factory=dict)

    def ask(self, wanted: Sequence[Choices]) -> None:
        """Evaluate what is wanted, as far as time allows."""
        fresh = [c for c in dict.fromkeys(wanted) if c not in self.times]
        for start in range(0, len(fresh), BATCH):
            if not self.more():
                return
            batch = fresh[start : start + BATCH]
            self.times.update(zip(batch, self.evaluate(batch), strict=True))

    @property
    def ranked(self) -> list[Choices]:
        """What runs, fastest first; of equal times what was evaluated first."""
        good = [c for c, time in self.times.items() if time < inf]
        return sorted(good, key=self.times.__getitem__)


def best(start: Sequence[Choices], space: Moves, trials: Trials, seed: int = 0) -> Choices:
    """The best found by changing one choice of the best few, until none of them gets better.

    Which they are is asked again after every batch.
    """
    random = Random(seed)
    trials.ask(start)
    rest: dict[Choices, list[Choices]] = {}
    while trials.more():
        front = trials.ranked[:BEAM]
        for parent in front:
            if parent not in rest:
                rest[parent] = space.near(parent)
                random.shuffle(rest[parent])
        batch: list[Choices] = []
        for parent in BATCH * front:  # in turn
            if rest[parent] and len(batch) < BATCH:
                batch.append(rest[parent].pop())
        if not batch:
            break
        trials.ask(batch)
    return next(iter(trials.ranked), ())


def draws(start: Sequence[Choices], space: Moves, trials: Trials, seed: int = 0) -> Choices:
    """The best of random schedules beside those of the start: what a search has to beat."""
    random = Random(seed)
    trials.ask(start)
    while trials.more():
        batch = [c for c in (space.draw(random) for _ in range(BATCH)) if c is not None]
        if not batch:
            break
        trials.ask(batch)
    return next(iter(trials.ranked), ())


@dataclass
class Space:
    """The schedules of a kernel by their choices, each schedule under the first that made it."""

    kernel: Kernel
    target: Target
    known: set[Schedule] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.known.add(choose(self.kernel, self.target))

    def near(self, choices: Choices) -> list[Choices]:
        """All that one move makes, each schedule once."""
        schedule = choose(self.kernel, self.target, choices)
        near = moves(self.kernel, schedule, self.target, dict(choices))
        return [c for c in map(self._new, near) if c is not None]

    def draw(self, random: Random) -> Choices | None:
        """A schedule with a few choices at random."""
        for _ in range(DRAWS):
            given: dict[str, int] = {}
            for _ in range(random.randint(1, MOST_DRAWN)):
                free = self._offered(given)
                name = random.choice(list(free))
                given[name] = random.choice(free[name])
            new = self._new(given)
            if new is not None:
                return new
        return None

    def _offered(self, given: dict[str, int]) -> Options:
        try:
            schedule = choose(self.kernel, self.target, choices_of(given))
        except OptionError:
            given.clear()
            schedule = choose(self.kernel, self.target)
        return offered(self.kernel, schedule, self.target, given)

    def _new(self, given: dict[str, int]) -> Choices | None:
        """Choices that make a schedule which nothing before made; others that they rule out go."""
        try:
            schedule = choose(self.kernel, self.target, choices_of(given))
        except OptionError:
            kept = {n: v for n, v in given.items() if n.partition(".")[0] in STRUCTURE}
            free = self._offered(kept)
            given = {n: v for n, v in given.items() if v in free.get(n, ())}
            try:
                schedule = choose(self.kernel, self.target, choices_of(given))
            except OptionError:
                return None
        if schedule in self.known:
            return None
        self.known.add(schedule)
        return choices_of(given)


def moves(
    kernel: Kernel, schedule: Schedule, target: Target, given: Mapping[str, int]
) -> Iterator[dict[str, int]]:
    """The choices beside those `given`, by which a kernel has `schedule`: one differs.

    Numbers go a step up or down; what is chosen may also be as is best again.
    """
    for name, values in offered(kernel, schedule, target, given).items():
        present = given.get(name, _present(name, schedule))
        for value in _beside(name, values, present):
            yield {**given, name: value}
    for name in given:
        yield {n: v for n, v in given.items() if n != name}


def _present(name: str, schedule: Schedule) -> int | None:
    """What a schedule has where nothing is chosen; None where lowering decides."""
    kind, _, number = name.partition(".")
    if kind == "tasks":
        return schedule.tasks
    return schedule.tile[int(number)] if kind == "tile" else None


def _beside(name: str, values: Sequence[int], present: int | None) -> Sequence[int]:
    """The values next to the present one in size; all of them where there is no order to go by."""
    if present is None or name.startswith(("column", "lanes")):
        return values
    below = bisect_left(values, present)
    above = below + (below < len(values) and values[below] == present)
    return [*values[max(0, below - 1) : below], *values[above : above + 1]]
