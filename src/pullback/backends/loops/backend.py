"""The base of backends that write loop nests.

``(kernel, schedule) -> nest, verified -> code``; who derives from `Loops` makes code of nests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

from pullback.backends.base import Code, Compiler, Image, Job, Part, Stored, Text, Work
from pullback.backends.host.processor import chosen_target
from pullback.backends.nests.bottleneck import priced
from pullback.backends.nests.cheapest import cheapest
from pullback.backends.nests.parts import in_parts
from pullback.backends.nests.places import with_places
from pullback.backends.nests.price import price
from pullback.backends.nests.ranges import lowered
from pullback.backends.nests.short import written_out
from pullback.backends.nests.sizes import array_bytes
from pullback.backends.nests.totals import with_totals
from pullback.config import Options
from pullback.cost.price import Price
from pullback.ir.graph import Graph
from pullback.ir.kernel import Kernel
from pullback.ir.nest import Routine
from pullback.ir.program import Launch
from pullback.ir.target import Target
from pullback.ir.text import placed, show
from pullback.lower.inplace import in_place
from pullback.machine.machine import with_numbers
from pullback.schedule.choices import Choices
from pullback.schedule.schedule import Schedule
from pullback.verify.nest import verify_routine

LOOPS, PRICE = "loops", "price"  # the nest among the texts; in dumps it is called so:
DUMPED = {LOOPS: "nest"}

NestText = Callable[[Routine, Target], str]


class Loops(Compiler):
    """What is common to all: they differ in `emit`, and in what they write a nest as."""

    def machine(self, options: Options) -> Target:
        """The processor that this process runs on, or less of it."""
        target = chosen_target(options.target, options.machine)
        return target if options.threads is None else _alone(target, options.threads)

    def prepare(self, graph: Graph, target: Target) -> Graph:
        """Indices that are data in rows, sums of products without these."""
        return with_places(with_totals(graph, target.profile), target.profile)

    def compile(self, work: Iterable[Work], job: Job) -> list[Code]:
        """Code of each kernel; nests are made as they are asked for."""
        nests: list[Routine] = []
        codes = self.emit(self._nests(work, job, nests), job)
        return [replace(c, over=in_place(n)) for n, c in zip(nests, codes, strict=True)]

    def emit(self, routines: Iterable[Routine], job: Job) -> list[Code]:
        """Code of each nest. Raises: UnsupportedError for what the backend does not do."""
        raise NotImplementedError

    def laid(self, routine: Routine, kernel: Kernel, schedule: Schedule) -> Routine:
        """The nest over arrays as they lie: by the largest of symbolic sizes."""
        return routine

    def written(self) -> Mapping[str, NestText]:
        """What a nest is written as, by the name of the text, in order."""
        return {}

    def reads(self, text: str) -> bool:
        """Whether a text is one that this backend writes and can go on from."""
        return False

    def resume(self, text: str, routine: Routine, target: Target) -> Code:
        """Code of a nest out of a text of it, which may be edited."""
        raise NotImplementedError

    def sources(self, routines: Sequence[Routine], target: Target) -> list[str]:
        """Parts of a text that compiles by itself: what is shared, then one for each routine; none
        where each kernel has a text of its own.
        """
        return []

    def unchosen(self, kernel: Kernel, target: Target) -> Choices:
        """Those of the lowest price."""
        return cheapest(kernel, target)

    def price(self, kernel: Kernel, schedule: Schedule, target: Target) -> Price:
        """What one launch costs, read off its nest with the numbers of the target's machine."""
        return price(kernel, schedule, target)

    def texts(self) -> Mapping[str, Text]:
        """The nest and what it is written as."""
        makes: dict[str, NestText] = {LOOPS: lambda nest, _: show(nest), **self.written()}
        return {name: partial(_text, make) for name, make in makes.items()} | {PRICE: priced}

    def _nests(self, work: Iterable[Work], job: Job, made: list[Routine]) -> Iterator[Routine]:
        report, target, texts = job.report, job.target, self.texts()
        for kernel, schedule in work:
            routine = _emitted(lowered(kernel, schedule))
            report.lap("lower")
            verify_routine(routine, "lower")
            routine = self.laid(routine, kernel, schedule)
            report.lap("verify")
            for name, text in texts.items():
                make = partial(_placed, text, kernel, schedule, target)
                report.text(4, f"{DUMPED.get(name, name)}-{kernel.name}", make)
            made.append(routine)
            yield routine
            report.lap("emit")
        report.stage("lower", f"{len(made)} routines")


@cache
def _alone(target: Target, threads: int) -> Target:
    """A machine of which programs are given so many threads, whoever else has more."""
    return replace(target, machine=with_numbers(target.profile, "launch", given=threads))


def launched(image: Image, item: Launch, number: int) -> Iterator[tuple[Part, int]]:
    """The parts of the n-th launch of an image, each with where what its tasks share begins."""
    shared = image.plan.shared[number]
    for part in image.calls[item.kernel].parts:
        yield part, shared
        shared += part.shared_bytes


def stored(routine: Routine, key: str, symbol: str = "") -> Stored:
    """What code of a routine wants, which lies under `key`."""
    return Stored(
        routine.name,
        key,
        bool(routine.finish),
        sum(map(array_bytes, routine.scratch)),
        tuple(map(array_bytes, routine.shared)),
        routine.sites,
        routine.tasks,
        tuple(v.name for v in routine.sizes),
        symbol,
    )


def _emitted(routine: Routine) -> Routine:
    """A nest with a price, as it is emitted: sums at data in parts, short loops written out."""
    return written_out(in_parts(routine))


def _text(make: NestText, kernel: Kernel, schedule: Schedule, target: Target) -> str:
    """Lowered again: what is compiled has no marks of stages."""
    return make(_emitted(lowered(kernel, schedule, marks=True)), target)


def _placed(text: Text, kernel: Kernel, schedule: Schedule, target: Target) -> str:
    return placed(text(kernel, schedule, target), kernel)
