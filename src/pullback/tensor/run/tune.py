"""Measured schedules: kernels compiled by each choice, checked, and run side by side.

``default 120 us | beam 84 us | random 97 us``: medians of rounds in which all take turns, so that
what else the machine does slows all of them.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from statistics import median
from typing import Any

import numpy as np

from pullback.backends.host.compare import close
from pullback.backends.host.exchange import box
from pullback.backends.host.machine import VirtualMachine
from pullback.backends.host.profile import Clock
from pullback.backends.registry import compiler
from pullback.config import Options
from pullback.errors import IndexRangeError, InvalidIR, OptionError, UnsupportedError
from pullback.ir.expr import Dim, Take, upper
from pullback.ir.graph import Accumulate, Variable
from pullback.ir.kernel import Kernel, stage_reads
from pullback.ir.node import walk
from pullback.ir.signature import kernel_digest
from pullback.ir.target import Target
from pullback.pipeline import compile_kernel
from pullback.runtime.executable import Executable
from pullback.schedule.choices import Choices
from pullback.schedule.schedule import Schedule
from pullback.tensor.run.search import Trials, best, draws

Array = np.ndarray[Any, Any]

ROUNDS = 5  # of a batch; the last comparison has more
LAST_ROUNDS = 15
ROUND_NS = 1_000_000  # of one schedule in one round, at least one run
MOST_RUNS = 100
SLOW = 1.5  # times the fastest in the first two rounds: it is not run again
MARGIN = 1.03  # gains below this are taken for noise

MOST_INDEX = 100  # fits every type

SEARCHES = ("beam", "random", "price")
PRICED = 16  # of what is cheapest by its price, so many are measured


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was found for a kernel; times in microseconds, `inf` where there was no search.

    `refused`: schedules that did not pass the verifier, or gave other results.
    """

    kernel: Kernel
    default_us: float
    found_us: dict[str, float]
    choices: Choices
    tries: int
    refused: int

    @property
    def us(self) -> float:
        """The time by the best choices."""
        return min((self.default_us, *self.found_us.values())) if self.choices else self.default_us

    @property
    def gain(self) -> float:
        """Times as fast as by the model."""
        return self.default_us / self.us

    @property
    def line(self) -> str:
        """The user's line that the last of its results was made by."""
        places = [s.target.origin.place for s in self.kernel.every if s.target.origin is not None]
        return places[-1] if places else ""


def kernels_of(programs: Iterable[Executable]) -> list[Kernel]:
    """One kernel of each structure, but those whose tiles are given."""
    by_structure: dict[str, Kernel] = {}
    for kernel in (k for program in programs for k in program.distinct()):
        if kernel.tiling is None:
            by_structure.setdefault(kernel_digest(kernel), kernel)
    return list(by_structure.values())


class Bench:
    """One kernel, its inputs, and its results by the model's schedule.

    Raises: IndexRangeError where no data are known that its indices are in range with.
    """

    def __init__(self, kernel: Kernel, options: Options) -> None:
        self.kernel = kernel
        self.options = options
        self.refused = 0
        self.backend = compiler(options.backend)
        self.target = self.backend.machine(options)
        self.arrays = inputs(kernel)
        read = set(kernel.reads)
        self.kept = {v: self.arrays[v].copy() for v in kernel.writes if v in read}
        self.sizes = {e.name: e.hi for v in self.arrays for e in v.shape if isinstance(e, Dim)}
        self.default = self.compiled(())
        try:
            self.wanted = self.results(self.default)
        except IndexRangeError:  # indices that are computed from data
            for array in self.arrays.values():
                array.fill(0)
            self.wanted = self.results(self.default)
        self.ns = self.race([self.default])[0]

    def compiled(self, choices: Choices) -> _Timed:
        """Raises: InvalidIR, UnsupportedError where the schedule cannot be lowered."""

        def chosen(kernel: Kernel, target: Target) -> Schedule:
            return self.backend.start(kernel, target, choices)

        return _Timed(*compile_kernel(self.kernel, chosen, self.options))

    def results(self, timed: _Timed) -> list[Array]:
        """What one run leaves."""
        self.restore()
        for variable in self.kernel.writes:
            if variable not in self.kept:
                self.arrays[variable].fill(0)
        timed.run(self.arrays, self.sizes)
        return [self.arrays[v].copy() for v in self.kernel.writes]

    def restore(self) -> None:
        """What the kernel overwrites, as it was."""
        for variable, array in self.kept.items():
            self.arrays[variable][...] = array

    def measure(self, batch: Sequence[Choices]) -> list[float]:
        """Nanoseconds of each, beside the default's; `inf` for what is refused."""
        runners = [self.checked(choices) for choices in batch]
        times = iter(self.race([self.default, *(r for r in runners if r is not None)]))
        scale = self.ns / next(times)
        return [inf if r is None else next(times) * scale for r in runners]

    def searched(
        self, name: str, trials: Trials, start: Sequence[Choices], seconds: float, seed: int
    ) -> Choices:
        """The best by a stopwatch: of moves, of random draws, or of what moves make cheapest by its
        price, for which half of the time goes.
        """
        space = self.backend.moves(self.kernel, self.target)
        if name != "price":
            return (best if name == "beam" else draws)(start, space, trials, seed)
        half = time.perf_counter() + seconds / 2
        prices = Trials(self.priced, functools.partial(_early, half))
        best(start, space, prices, seed)
        trials.ask((*start, *prices.ranked[:PRICED]))
        return next(iter(trials.ranked), ())

    def priced(self, batch: Sequence[Choices]) -> list[float]:
        """Nanoseconds of each by the model of the backend; `inf` for what is refused.

        Raises: UnsupportedError for a backend that has none.
        """
        prices: list[float] = []
        for choices in batch:
            try:
                schedule = self.backend.start(self.kernel, self.target, choices)
                price = self.backend.price(self.kernel, schedule, self.target)
            except (InvalidIR, OptionError):
                prices.append(inf)
                continue
            if price is None:
                what = f"backend {self.options.backend!r} has no prices"
                raise UnsupportedError(what, code="E313")
            prices.append(price.ns)
        return prices

    def checked(self, choices: Choices) -> _Timed | None:
        """A schedule that passes the verifier and gives the default's results."""
        try:
            timed = self.compiled(choices)
        except (InvalidIR, OptionError, UnsupportedError):
            self.refused += 1
            return None
        pairs = zip(self.results(timed), self.wanted, self.kernel.writes, strict=True)
        if all(close(value, wanted, v.dtype) for value, wanted, v in pairs):
            return timed
        self.refused += 1
        return None

    def race(self, runners: Sequence[_Timed], rounds: int = ROUNDS) -> list[float]:
        """Medians of a run of each, the mean of many, nanoseconds.

        What is far behind the best in the first two rounds of a few does not run again.
        """
        times: list[list[float]] = [[] for _ in runners]
        live = list(range(len(runners)))
        for number in range(rounds):
            for one in live if number % 2 else reversed(live):
                self.restore()
                times[one].append(runners[one].run(self.arrays, self.sizes))
            if number == 1 and rounds == ROUNDS:
                least = min(map(min, times))
                live = [n for n in live if n == 0 or min(times[n]) <= SLOW * least]
        return [median(t) for t in times]

    def tuned(
        self, seconds: float, searches: Sequence[str], known: Choices = (), seed: int = 0
    ) -> Outcome:
        """Search for so long, in equal parts, then compare what was found with the default."""
        chosen: dict[str, Choices] = {}
        tries = 0
        for name in searches:
            until = time.perf_counter() + seconds / len(searches)
            trials = Trials(self.measure, functools.partial(_early, until))
            chosen[name] = self.searched(
                name, trials, ((), known), until - time.perf_counter(), seed
            )
            tries += len(trials.times)
        runners = [self.compiled(choices) for choices in chosen.values()]
        default, *times = self.race([self.default, *runners], LAST_ROUNDS)
        times_us = {name: ns / 1e3 for name, ns in zip(chosen, times, strict=True)}
        name = min(times_us, key=times_us.__getitem__)
        choices = chosen[name] if default > MARGIN * 1e3 * times_us[name] else ()
        return Outcome(self.kernel, default / 1e3, times_us, choices, tries, self.refused)


class _Timed:
    """A compiled schedule and its clock."""

    def __init__(self, machine: VirtualMachine, clock: Clock | None) -> None:
        assert clock is not None, "a single kernel is timed"
        self.machine = machine
        self.clock = clock
        self.runs = 1

    def run(self, arrays: Mapping[Variable, Array], sizes: Mapping[str, int]) -> float:
        """Nanoseconds of a run, the mean of as many as the last time showed to be enough."""
        before = self.clock.rows[0].copy()
        for _ in range(self.runs):
            self.machine.run(arrays, sizes)
        spent, runs = (self.clock.rows[0] - before).tolist()
        each: float = max(1.0, spent / runs)
        self.runs = max(1, min(MOST_RUNS, int(ROUND_NS / each)))
        return each


def _early(until: float) -> bool:
    return time.perf_counter() < until


def inputs(kernel: Kernel, seed: int = 0, most: int = MOST_INDEX) -> dict[Variable, Array]:
    """An array for all that a kernel touches: floats in 0.1 .. 1, indices that are in range."""
    rng = np.random.default_rng(seed)
    below = _index_bounds(kernel, most)
    arrays: dict[Variable, Array] = {}
    for variable in kernel.arguments:
        shape, kind = box(variable), variable.dtype
        if kind.is_float:
            arrays[variable] = rng.uniform(0.1, 1.0, shape).astype(kind.numpy)
        else:
            most = 2 if kind.is_bool else below.get(variable, 4)
            arrays[variable] = rng.integers(0, max(1, most), shape).astype(kind.numpy)
    return arrays


def _index_bounds(kernel: Kernel, most: int) -> dict[Variable, int]:
    """What is read as an index, with the least extent there."""
    bounds: dict[Variable, int] = {}
    for stage in kernel.every:
        places = [(t.indices, t.source.shape) for t in stage_reads(stage)]
        if isinstance(stage.form, Accumulate):
            places.append((stage.form.at, stage.shape))
        for index, extent in (pair for place in places for pair in zip(*place, strict=True)):
            for node in walk(index):
                if isinstance(node, Take) and isinstance(node.source, Variable):
                    bounds[node.source] = min(upper(extent), bounds.get(node.source, most))
    return bounds
