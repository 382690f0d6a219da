"""The one search over schedules: moves to neighbours of the best so far, random draws beside it.

``() 120 us -> (tile.0 = 64) 100 us -> (tile.0 = 64, unroll.1 = 4) 84 us``: each step changes one
choice of the best few schedules so far. What evaluates them is the business of who searches: a
stopwatch (`tune.py`), a price, or a function of the user's (`schedules.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from random import Random

from pullback.config import Cap
from pullback.schedule.choices import Choices
from pullback.schedule.moves import Moves

BEAM: Cap = 3  # schedules of which every change is tried
BATCH: Cap = 8  # schedules measured side by side

# Times, or prices, of the schedules in a batch, in any one unit; `inf`: it does not run, or not
# rightly.
Evaluate = Callable[[Sequence[Choices]], Sequence[float]]


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
