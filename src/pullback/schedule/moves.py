"""Where a search over schedules may go: to neighbours by one choice, or anywhere.

``() -> (tile.0 = 64) -> (tile.0 = 64, unroll.1 = 4)``: who searches, and by what measure, is
`tensor/run/search.py`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from pullback.config import Cap
from pullback.errors import OptionError
from pullback.ir.kernel import Kernel
from pullback.ir.target import Target
from pullback.schedule.choices import STRUCTURE, Choices, Options, choices_of, joined, offered
from pullback.schedule.choose import choose
from pullback.schedule.schedule import Numbers, Schedule

DRAWS: Cap = 50  # attempts to draw a schedule that is new
MOST_DRAWN: Cap = 6  # choices of a random schedule that differ from the model's


class Moves(Protocol):
    """Where a search may go; nothing is offered twice."""

    def near(self, choices: Choices) -> list[Choices]:
        """All that one change makes."""

    def draw(self, random: Random) -> Choices | None:
        """Anything, or None where nothing new is found."""


@dataclass
class Space:
    """The schedules of a kernel by their choices, each schedule under the first that made it.

    `unchosen`: what holds where the choices do not say.
    """

    kernel: Kernel
    target: Target
    unchosen: Choices = ()
    known: set[Schedule] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.known.add(self._chosen({}))

    def _chosen(self, given: Numbers) -> Schedule:
        return choose(self.kernel, self.target, joined(self.unchosen, given))

    def near(self, choices: Choices) -> list[Choices]:
        """All that one move makes, each schedule once."""
        given = dict(choices)
        near = moves(self.kernel, self._chosen(given), self.target, given)
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
        schedule = self._made(given)
        if schedule is None:
            given.clear()
            schedule = self._chosen(given)
        return offered(self.kernel, schedule, self.target, given)

    def _made(self, given: dict[str, int]) -> Schedule | None:
        """The schedule of choices, if they go together."""
        try:
            return self._chosen(given)
        except OptionError:
            return None

    def _new(self, given: dict[str, int]) -> Choices | None:
        """Choices that make a schedule which nothing before made; others that they rule out go."""
        schedule = self._made(given)
        if schedule is None:
            kept = {n: v for n, v in given.items() if n.partition(".")[0] in STRUCTURE}
            free = self._offered(kept)
            given = {n: v for n, v in given.items() if v in free.get(n, ())}
            schedule = self._made(given)
        if schedule is None or schedule in self.known:
            return None
        self.known.add(schedule)
        return choices_of(given)


def moves(
    kernel: Kernel, schedule: Schedule, target: Target, given: Numbers
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
