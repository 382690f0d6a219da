"""The boundary: what a backend is given and what it gives back.

``(kernel, schedule) -> code``, or an interpreter: ``graph -> values``, ``kernel -> values``

A backend is an object that keeps one of three protocols. `registry` knows those of this package;
others register one under the entry point `pullback.backends`, or are a Python file that has one
called `backend`. A class that derives from its protocol inherits what it does not say.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from pullback.config import Ints, Options, Pair, entity, frozen
from pullback.cost.price import Price
from pullback.errors import InvalidIR, Origin
from pullback.ir.expr import upper
from pullback.ir.graph import Graph, Variable
from pullback.ir.kernel import Kernel
from pullback.ir.program import Block
from pullback.ir.target import Target
from pullback.lower.whole import scheduled
from pullback.memory.budget import Repetition
from pullback.memory.plan import Plan
from pullback.schedule.choices import Choices, joined
from pullback.schedule.moves import Moves, Space
from pullback.schedule.schedule import Schedule

Values = dict[Variable, np.ndarray[Any, Any]]
Work = tuple[Kernel, Schedule]
Text = Callable[[Kernel, Schedule, Target], str]


class ObjectStore(Protocol):
    """Where compiled objects are kept between processes."""

    def get(self, key: str) -> bytes | None:
        """The object stored under `key`, if it is there and whole."""

    def put(self, key: str, data: bytes) -> None:
        """Keep an object."""


class Report(Protocol):
    """Who looks on while a program is compiled."""

    options: Options

    def lap(self, name: str) -> float:
        """What ran since the last lap was `name`."""

    def stage(self, name: str, facts: str) -> None:
        """A stage is done."""

    def text(self, level: int, name: str, make: Callable[[], str]) -> None:
        """What a stage made, for who wants to see texts of that level."""


@dataclass(slots=True)
class CompileStats:
    """What compiling did: `compiled` calls of the compiler, `loaded` objects from the store."""

    compiled: int = 0
    loaded: int = 0
    shared: int = 0

    def add(self, other: CompileStats) -> None:
        """What `other` counted, too; it begins again."""
        self.compiled += other.compiled
        self.loaded += other.loaded
        other.compiled = other.loaded = 0


@frozen
class Job:
    """Compiling one program: for which target, where code is kept, who counts and looks on."""

    options: Options
    target: Target
    store: ObjectStore | None
    stats: CompileStats
    report: Report


@frozen
class Stored:
    """What of a `Code` outlives the process: `key` names the object that holds it, as `symbol`.

    `scratch` is bytes per thread, `shared` bytes of each shared array, `sizes` the symbolic extents
    that it is passed, by name, `sites` what its checks of indices say.
    """

    name: str
    key: str
    finish: bool
    scratch: int
    shared: Ints
    sites: tuple[str, ...]
    tasks: int
    sizes: tuple[str, ...]
    symbol: str = ""


@entity
class Code:
    """Native code of a kernel by the code ABI: addresses (`finish` 0: none), what keeps it alive.

    `over`: operand and result, by their places among the arguments, that may share memory.
    """

    stored: Stored
    body: int
    finish: int
    engine: Any = field(repr=False)
    over: tuple[Pair, ...] = ()


@entity
class Part:
    """Code, and the variables it is passed."""

    code: Code
    arguments: tuple[Variable, ...]

    @property
    def tasks(self) -> int:
        return self.code.stored.tasks

    @property
    def shared_bytes(self) -> int:
        return sum(map(lined, self.code.stored.shared))


@entity
class Call:
    """One launch. `moved`: bytes it reads and writes.

    Of several parts, `shares` cuts their tasks, counted as one row, into those of the launch.

    Raises: InvalidIR for shares that are not all of the row.
    """

    name: str
    parts: tuple[Part, ...]
    shares: Ints
    writes: tuple[Variable, ...]
    moved: int

    def __post_init__(self) -> None:
        shares, rows = self.shares, sum(part.tasks for part in self.parts)
        whole = shares[:1] == (0,) and shares[-1] == rows and list(shares) == sorted(shares)
        if not (whole or (len(self.parts) == 1 and not shares)):
            raise InvalidIR(f"{self.name}: {rows} tasks are shared out as {shares}")

    @classmethod
    def of(cls, kernel: Kernel, codes: Sequence[Code], shares: Ints) -> Call:
        """The launch of a kernel."""
        moved = sum(map(_bytes, kernel.reads)) + sum(map(_bytes, kernel.writes))
        pairs = zip(codes, kernel.pieces, strict=True)
        parts = tuple(Part(code, piece.arguments) for code, piece in pairs)
        return cls(kernel.name, parts, shares, kernel.writes, moved)

    def on(self, kernel: Kernel) -> Call:
        """The same code on the variables of a kernel of the same structure."""
        parts = zip(self.parts, kernel.pieces, strict=True)
        own = tuple(Part(part.code, piece.arguments) for part, piece in parts)
        return replace(self, parts=own, writes=kernel.writes)

    @property
    def tasks(self) -> int:
        return len(self.shares) - 1 if self.shares else self.parts[0].tasks

    @property
    def scratch(self) -> int:
        """Scratch of one thread, bytes."""
        return max(part.code.stored.scratch for part in self.parts)

    @property
    def shared(self) -> int:
        """Memory for the partial results of all tasks, bytes."""
        return sum(part.shared_bytes for part in self.parts)

    @property
    def sites(self) -> tuple[str, ...]:
        """What the checks of indices say; several parts have none."""
        return self.parts[0].code.stored.sites


def _bytes(variable: Variable) -> int:
    return prod(upper(e) for e in variable.shape) * variable.dtype.itemsize


def lined(size: int) -> int:
    """So many bytes in whole cache lines."""
    return -(-size // 64) * 64


@frozen
class Made:
    """For whom an image was made: a backend, what of it decides code, the target and machine that
    were asked for by name, and how many threads it has memory for.
    """

    backend: str
    identity: str
    target: str | None
    machine: str | None
    threads: int


@entity
class Image:
    """A compiled program: its items, what each launch calls, where everything lies.

    `state` outlives a run. `kernels` holds those of each computation; of an image that was read
    they are mere names. `steps` computed some of them again, for a memory budget, after some were
    `split`. `runtime/image.py` writes it as text.
    """

    made: Made
    state: tuple[Variable, ...]
    block: Block
    kernels: Sequence[Sequence[Kernel]]
    calls: Mapping[Kernel, Call]
    plan: Plan
    steps: tuple[Repetition, ...] = ()
    split: bool = False

    @property
    def written(self) -> list[Variable]:
        """What its launches assign."""
        return [v for call in self.calls.values() for v in call.writes]

    @property
    def codes(self) -> list[Code]:
        """All code, each once, in order of launches."""
        return list(dict.fromkeys(part.code for c in self.calls.values() for part in c.parts))


class Runner(Protocol):
    """What executes a program: of a backend whose code the machine of this process cannot call."""

    launches: int

    def run(
        self, bindings: Mapping[Variable, np.ndarray[Any, Any]], sizes: Mapping[str, int]
    ) -> None:
        """Run on contiguous arrays of the state variables, shaped by upper bounds; what the program
        assigns is updated in place. `launches` counts those of the last run.
        """


@frozen
class Device:
    """What schedules of launches are measured for: a device by its name, what code for it is made
    for and of which version. `file`: those that this package brings, where there are any.
    """

    name: str
    target: str
    file: Path | None = None


@frozen
class Launched:
    """What was found of a launch of a device: microseconds by the schedule of the least price, and
    by the fastest, which is `block` as text (empty: the cheapest is). `price_us`: what that price
    says. `tries` were measured, of which `refused` did not compile or gave other results.
    """

    signature: str
    name: str
    block: str
    default_us: float
    us: float
    price_us: float
    tries: int
    refused: int


@frozen
class Refusal:
    """Why a backend does not compile a kernel, and the user's line that asks for it."""

    reason: str
    origin: Origin | None = None


@runtime_checkable
class Explained(Protocol):
    """Shows what it makes of kernels: compilers do, interpreters may."""

    def texts(self) -> Mapping[str, Text]:
        """What can be shown of a kernel by its schedule, each by its name, in order.

        Lines of them may name the stages of the kernel by number, as `ir.text.mark_text` writes.
        """
        return {}


@runtime_checkable
class Compiler(Explained, Protocol):
    """Makes code of kernels by their schedules."""

    name: str

    def machine(self, options: Options) -> Target:
        """What kernels are fused and scheduled for. Raises: OptionError, UnsupportedError."""

    def prepare(self, graph: Graph, target: Target) -> Graph:
        """A simplified graph as this backend wants it fused for a machine."""
        return graph

    def refuses(self, kernel: Kernel) -> Refusal | None:
        """Why this backend does not compile a kernel; None: it does."""
        return None

    def identity(self, target: Target) -> str:
        """What code depends on besides kernel, schedule and target: of whom, for which processor.

        Empty: programs leave no record, and another process compiles them again.
        """
        return ""

    def compile(self, work: Iterable[Work], job: Job) -> list[Code]:
        """Code of each kernel by its schedule. `work` makes them as they are asked for.

        Raises: UnsupportedError for what the backend refuses by name.
        """

    def load(self, kept: Sequence[Stored], job: Job) -> list[Code] | None:
        """Code that another process of the same identity compiled; None where it is not there."""
        return None

    def runner(self, image: Image) -> Runner | None:
        """Who runs a program; None: the machine of this process, by the code ABI."""
        return None

    def start(
        self,
        kernel: Kernel,
        target: Target,
        choices: Choices = (),
        unchosen: Choices | None = None,
    ) -> Schedule:
        """The schedule of a kernel where nobody chose one; with `choices`, as they say. `unchosen`:
        what the method of that name gives, where it is known.

        Raises: OptionError for a choice that the kernel does not have.
        """
        own = self.unchosen(kernel, target) if unchosen is None else unchosen
        given = joined(own, dict(choices))
        return replace(scheduled(kernel, target, given), asked=choices)

    def unchosen(self, kernel: Kernel, target: Target) -> Choices:
        """What prices choose where nobody else did: columns of products, tasks, tiles."""
        return ()

    def moves(self, kernel: Kernel, target: Target) -> Moves:
        """Where a search over the schedules of a kernel may go."""
        return Space(kernel, target, self.unchosen(kernel, target))

    def price(self, kernel: Kernel, schedule: Schedule, target: Target) -> Price | None:
        """What one launch costs; None: this backend does not know."""
        return None

    def ns(self, kernel: Kernel, target: Target) -> float:
        """Nanoseconds of a kernel that is scheduled as prices choose; 0: this backend has none."""
        made = self.price(kernel, self.start(kernel, target), target)
        return 0.0 if made is None else made.ns

    def device(self, target: Target) -> Device | None:
        """What has schedules of its own, of launches, not of kernels; None: this processor."""
        return None

    def measured(
        self,
        kernel: Kernel,
        given: Callable[[], Values],
        target: Target,
        known: Container[str],
        seconds: float,
    ) -> list[Launched]:
        """The fastest schedules of a kernel's launches on its device, on copies of what is `given`,
        that so many seconds find; not of those whose signatures are `known`.

        Raises: IndexRangeError for indices out of range, DeviceError, UnsupportedError.
        """
        return []


@runtime_checkable
class GraphInterpreter(Protocol):
    """Runs definitions."""

    name: str

    def run_graph(self, graph: Graph, values: Mapping[Variable, Any]) -> Values:
        """New contents of every variable that `graph` assigns."""


@runtime_checkable
class KernelInterpreter(Protocol):
    """Runs kernels, which are fused for its machine."""

    name: str

    def machine(self, options: Options) -> Target:
        """What kernels are fused for."""

    def run_kernel(self, kernel: Kernel, values: Mapping[Variable, Any]) -> Values:
        """New contents of every variable that `kernel` writes."""


@runtime_checkable
class Aimed(KernelInterpreter, Protocol):
    """Runs kernels by their schedules for a machine."""

    def run_for(self, target: Target, kernel: Kernel, values: Mapping[Variable, Any]) -> Values:
        """As `run_kernel`, for what `machine` gave."""


@runtime_checkable
class Guest(Protocol):
    """A backend that runs by something outside of this package."""

    def host(self) -> str:
        """What it runs by, for people. Raises: UnsupportedError where that is missing."""


Backend = Compiler | GraphInterpreter | KernelInterpreter
