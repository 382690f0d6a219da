"""Schedules of a kernel's launches by measured time, on a device.

``priced 120 us | the 16 of the least price 97 us | neighbours of the fastest, .. 84 us``

Each candidate is compiled, run on copies and compared with the results of the priced one; then so
many runs of both are replayed in turns, between two events. Nothing empties the second cache: data
lie where the run before left them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from math import inf
from statistics import median
from typing import Any

import numpy as np

from pullback.backends.base import Call, Code, Image, Launched, Made, Values
from pullback.backends.cuda.driver import Driver
from pullback.backends.cuda.memory import Resident, stream_of
from pullback.backends.cuda.runner import CudaRunner
from pullback.backends.host.compare import close
from pullback.backends.host.exchange import box
from pullback.backends.triton import offline
from pullback.backends.triton.backend import orders
from pullback.backends.triton.blocks import Group
from pullback.backends.triton.choose import moves
from pullback.backends.triton.function import Launch
from pullback.backends.triton.language import word
from pullback.backends.triton.measured import read
from pullback.backends.triton.offline import Binary, Order
from pullback.backends.triton.plan import Chooser, cut, units, written
from pullback.backends.triton.price import Work
from pullback.backends.triton.schedule import BlockSchedule
from pullback.config import Cap, processors
from pullback.errors import DeviceError, IndexRangeError, OptionError
from pullback.ir import program as P
from pullback.ir.expr import Dim
from pullback.ir.graph import Variable
from pullback.ir.kernel import Kernel
from pullback.memory.plan import Needs, plan

MEASURED: Cap = 16  # of the least price, so many are measured before neighbours of the fastest
PRICED: Cap = 24  # schedules whose neighbours are priced for that
BATCH: Cap = 8  # compiled side by side, and measured in turns
ROUNDS = 5  # of a batch; the last comparison has more
LAST_ROUNDS = 15
ROUND_NS = 1_000_000  # of one schedule in one round, at least one run
MOST_RUNS = 100
MARGIN = 1.03  # gains below this are taken for noise
BLANK = 0xFF  # bytes of what a launch is to write: NaN, -1

Array = np.ndarray[Any, Any]
Memory = dict[Variable, Resident]
Source = tuple[list[Launch], list[Order]]
Run = Callable[[], float]
"""Runs a schedule often enough; nanoseconds of once."""

log = logging.getLogger("pullback")


@dataclass(frozen=True, slots=True)
class Maker:
    """Who chooses schedules by prices, the device, and what makes a kernel's code of launches."""

    choose: Chooser
    driver: Driver
    coded: Callable[[Kernel, list[Launch], list[Binary]], Code]

    def source(self, own: Kernel, group: Group, schedule: BlockSchedule) -> Source:
        """A launch by a schedule: its functions, written to a file."""
        pairs = cut(group, lambda g: schedule if g is group else self.choose.best(g))
        made = written(own.name, pairs)
        return made, orders(made)

    def compiled(self, source: Source) -> list[Binary]:
        """Their code. Raises: DeviceError where Triton fails to."""
        return offline.compiled(source[1], self.choose.gpu.capability)

    def runner(self, own: Kernel, source: Source, binaries: list[Binary]) -> CudaRunner:
        """What runs it: a program of one kernel."""
        code = self.coded(own, source[0], binaries)
        call = Call.of(own, [code], ())
        placed = plan([own], {}, {own: Needs(call.scratch, call.shared)})
        made = Made("", "", None, None, 1)
        item = P.Launch(own)
        return CudaRunner(
            Image(made, own.arguments, (item,), [[own]], {own: call}, placed), self.driver
        )


def measured(
    kernel: Kernel, given: Callable[[], Values], maker: Maker, known: Container[str], seconds: float
) -> list[Launched]:
    """The launches of a kernel that are not known, each by the fastest schedule that its share of
    the seconds finds; those for which there was no time are left out.

    Raises: IndexRangeError, DeviceError.
    """
    choose = maker.choose
    groups = [group for group, _ in units(kernel, choose)]
    own = [choose.signature(group) for group in groups]
    wanted = {
        n: Work.of(group, choose.gpu).price(choose.best(group)).ns
        for n, group in enumerate(groups)
        if own[n] not in known
    }
    if not wanted:
        return []
    ends = time.perf_counter() + seconds
    sizes = {e.name: e.hi for v in kernel.arguments for e in v.shape if isinstance(e, Dim)}
    values = given()
    memory = {v: _room(maker.driver, v).write(values[v]) for v in kernel.arguments}
    made: dict[str, Launched] = {}
    for number, group in enumerate(groups[: max(wanted) + 1]):
        left = ends - time.perf_counter()
        if left <= 0:
            break
        bench = Bench(maker, group, memory, sizes)
        if number in wanted and own[number] not in made:
            share = wanted[number] / sum(ns for n, ns in wanted.items() if n >= number)
            made[own[number]] = bench.tuned(time.perf_counter() + left * share)
        bench.goes_on()
    return list(made.values())


class Bench:
    """One launch, what it is given, and its results by the priced schedule.

    `memory`: what the launches before it left, as they do in the kernel; tries run on copies.

    Raises: IndexRangeError where an index is out of range with what it is given.
    """

    def __init__(
        self, maker: Maker, group: Group, memory: Memory, sizes: Mapping[str, int]
    ) -> None:
        self.maker, self.group, self.sizes, self.memory = maker, group, sizes, memory
        name = word(group.stages[-1].target.name)
        self.own = Kernel(name, (), tuple(group.stages))
        self.work = Work.of(group, maker.choose.gpu)
        self.best = maker.choose.best(group)
        self.refused = 0
        for variable in self.own.arguments:
            if variable not in memory:
                memory[variable] = _blank(maker.driver, variable)
        source = maker.source(self.own, group, self.best)
        self.default = maker.runner(self.own, source, maker.compiled(source))
        self.wanted, self.copies = self.results(self.default)

    def goes_on(self) -> None:
        """Memory is as the launch leaves it, for those after it."""
        self.default.run({v: self.memory[v] for v in self.own.arguments}, self.sizes)

    def results(self, runner: CudaRunner) -> tuple[list[Array], Memory]:
        """What one run leaves in copies, and these: runs from then on use them. What the launch
        does not read is blank there, so that nobody has results of others.

        Raises: IndexRangeError.
        """
        reads, on = set(self.own.reads), self.maker.driver
        copies = {
            v: self.memory[v].copy() if v in reads else _blank(on, v) for v in self.own.writes
        }
        runner.run({**{v: self.memory[v] for v in self.own.arguments}, **copies}, self.sizes)
        arrays = [np.empty(box(v), v.dtype.numpy) for v in copies]
        for resident, array in zip(copies.values(), arrays, strict=True):
            resident.read(array)
        return arrays, copies

    def tuned(self, ends: float) -> Launched:
        """The fastest that is found before a time: of what is cheap by its price, then of what is
        near the fastest so far.
        """
        run = _often(self.default, self.copies)
        runs = {self.best: run}
        times = {self.best: self.race([run], ROUNDS)[0]}
        first = [s for s in (*self.known(), *self.cheapest()) if s != self.best]
        while time.perf_counter() < ends:
            batch, first = first[:BATCH] or self.near(times), first[BATCH:]
            if not batch:
                break
            more = self.checked(batch)
            every = self.race([run, *more.values()], ROUNDS)
            scale = times[self.best] / every[0]
            times.update(dict.fromkeys(batch, inf))
            times.update((s, ns * scale) for s, ns in zip(more, every[1:], strict=True))
            fastest = min(times, key=times.__getitem__)
            runs = {s: r for s, r in {**runs, **more}.items() if s in (self.best, fastest)}
        fastest = min(times, key=times.__getitem__)
        default, ns = times[self.best], inf
        if fastest != self.best:
            default, ns = self.race([run, runs[fastest]], LAST_ROUNDS)
        better = default > MARGIN * ns
        block, us = (str(fastest), ns / 1e3) if better else ("", default / 1e3)
        head = self.maker.choose.signature(self.group), f"{self.group.way.value} {self.own.name}"
        price = self.work.price(self.best).ns
        return Launched(*head, block, default / 1e3, us, price / 1e3, len(times), self.refused)

    def known(self) -> list[BlockSchedule]:
        """What was measured before, where it still fits."""
        choose = self.maker.choose
        known = choose.known(self.group)
        try:
            return [] if known is None else [read(self.group, self.best, choose.gpu, known[0])]
        except OptionError:
            return []

    def cheapest(self) -> list[BlockSchedule]:
        """Schedules of the least price, around the cheapest."""
        prices = {self.best: self.work.price(self.best).ns}
        done: set[BlockSchedule] = set()
        while len(done) < PRICED and (rest := [s for s in prices if s not in done]):
            least = min(rest, key=prices.__getitem__)
            done.add(least)
            prices.update(self.priced(s for s in moves(self.group, least) if s not in prices))
        return sorted(prices, key=prices.__getitem__)[: MEASURED + 1]

    def near(self, times: Mapping[BlockSchedule, float]) -> list[BlockSchedule]:
        """Neighbours of the fastest that were not measured, cheapest first."""
        fastest = min(times, key=times.__getitem__)
        prices = dict(self.priced(s for s in moves(self.group, fastest) if s not in times))
        return sorted(prices, key=prices.__getitem__)[:BATCH]

    def priced(self, schedules: Iterable[BlockSchedule]) -> list[tuple[BlockSchedule, float]]:
        """What the GPU takes, with its price."""
        taken = [s for s in schedules if self.work.refusal(s) is None]
        return [(s, self.work.price(s).ns) for s in taken]

    def checked(self, batch: Sequence[BlockSchedule]) -> dict[BlockSchedule, Run]:
        """Those that compile, run, and give the priced one's results; others are told of."""
        # Schedules may share a file: all are written before one is read.
        sources = [self.maker.source(self.own, self.group, schedule) for schedule in batch]
        with ThreadPoolExecutor(min(processors(), offline.MOST)) as threads:
            made = [threads.submit(self.maker.compiled, source) for source in sources]
        rows = zip(batch, sources, made, strict=True)
        runs = {s: self.right(s, source, code) for s, source, code in rows}
        right = {s: run for s, run in runs.items() if run is not None}
        self.refused += len(batch) - len(right)
        return right

    def right(
        self, schedule: BlockSchedule, source: Source, code: Future[list[Binary]]
    ) -> Run | None:
        """What runs a schedule; None, told, where it cannot, or gives other results."""
        try:
            runner = self.maker.runner(self.own, source, code.result())
            arrays, copies = self.results(runner)
            pairs = zip(arrays, self.wanted, self.own.writes, strict=True)
            if all(close(value, wanted, v.dtype) for value, wanted, v in pairs):
                return _often(runner, copies)
            why = f"gives other results than {self.best}"
        except (DeviceError, IndexRangeError) as error:
            why = error.what
        log.warning("%s: %s: %s", self.own.name, schedule, why)
        return None

    def race(self, runs: Sequence[Run], rounds: int) -> list[float]:
        """Nanoseconds of each, medians of rounds in which they take turns."""
        every = [[max(run(), 1.0) for run in runs] for _ in range(rounds)]
        return [median(row) for row in zip(*every, strict=True)]


def _often(runner: CudaRunner, copies: Memory) -> Run:
    """So many runs at once as one round has time for, on copies that stay as long."""
    once = runner.repeated(1)
    once()
    often = runner.repeated(max(1, min(MOST_RUNS, int(ROUND_NS / max(once(), 1.0)))))
    return Kept(often, copies)


@dataclass(frozen=True, slots=True)
class Kept:
    """A run, and the memory that it needs."""

    run: Run
    memory: Memory

    def __call__(self) -> float:
        return self.run()


def _room(on: Driver, variable: Variable) -> Resident:
    return Resident(on, box(variable), variable.dtype.numpy)


def _blank(on: Driver, variable: Variable) -> Resident:
    """Memory of what nobody has written."""
    made = _room(on, variable)
    with on.here():
        on.fill(made.address, BLANK, made.nbytes, stream_of(on))
        on.wait(stream_of(on))
    return made
