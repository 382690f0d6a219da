"""What a program spent its time on: its launches, and the calls of its feeders and receivers."""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pullback.errors import Origin
from pullback.ir.kernel import Kernel
from pullback.memory.budget import work
from pullback.schedule.count import Cost

LOGGED = 1 << 16  # launches whose start and end are kept; all are counted


@dataclass(frozen=True, eq=False, slots=True)
class Span:
    """Something that began and ended, in nanoseconds of a clock that never goes back.

    `launch`: which one of the program text it is; -1 for a call.
    """

    name: str
    lane: str
    start: int
    end: int
    launch: int = -1


@dataclass(frozen=True, eq=False)
class Timed:
    """A launch of the program text: how often it ran, for how many nanoseconds in all.

    `moved`: bytes that one run reads and writes, each array once.
    """

    kernel: Kernel
    runs: int
    spent: int
    moved: int

    @functools.cached_property
    def work(self) -> Cost:
        """What one run computes, at the upper bounds of symbolic extents."""
        return work(self.kernel)

    @property
    def origin(self) -> Origin | None:
        """The user's expression that the last of its results was made by."""
        origins = [s.target.origin for s in self.kernel.every if s.target.origin is not None]
        return origins[-1] if origins else None


@dataclass(frozen=True, eq=False, slots=True)
class Profile:
    """All launches in program order, and the first `LOGGED` of them with all calls, as spans."""

    launches: tuple[Timed, ...]
    spans: tuple[Span, ...]


class Clock:
    """Where the machine writes its times: a row {ns, runs} a launch, a log of all."""

    def __init__(self, places: Sequence[int]) -> None:
        self.places = tuple(places)
        self.rows = np.zeros((len(self.places), 2), np.int64)
        self.log = np.zeros((LOGGED, 3), np.int64)
        self.calls: list[Span] = []

    def note(self, lane: str, began: int) -> None:
        """A call of the user's that began at `began` and is over."""
        if len(self.calls) < LOGGED:
            self.calls.append(Span(lane, lane, began, time.perf_counter_ns()))

    def profile(self, kernels: Sequence[Kernel], moved: Mapping[int, int], logged: int) -> Profile:
        """The times so far. `kernels`: of the launches in program order."""
        totals = zip(kernels, self.places, self.rows.tolist(), strict=True)
        launches = tuple(Timed(k, runs, ns, moved[p]) for k, p, (ns, runs) in totals)
        number = {p: n for n, p in enumerate(self.places)}
        rows = [(number[p], a, b) for p, a, b in self.log[:logged].tolist()]
        steps = [Span(kernels[n].name, "steps", a, b, n) for n, a, b in rows]
        return Profile(launches, (*steps, *self.calls))
