"""The boundary: what a backend is given and what it gives back.

``(kernel, schedule) -> code``, or an interpreter: ``graph -> values``, ``kernel -> values``

A backend is an object that keeps one of three protocols. `registry` knows those of this package;
others register one under the entry point `pullback.backends`, or are a Python file that has one
called `backend`. A class that derives from its protocol inherits what it does not say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from pullback.config import Options
from pullback.cost.price import Price
from pullback.errors import Origin
from pullback.ir.graph import Graph, Variable
from pullback.ir.kernel import Kernel
from pullback.ir.program import Block, Program
from pullback.ir.target import Target
from pullback.memory.plan import Plan
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


@dataclass(frozen=True, slots=True)
class Job:
    """Compiling one program: for which target, where code is kept, who counts and looks on."""

    options: Options
    target: Target
    store: ObjectStore | None
    stats: CompileStats
    report: Report


@dataclass(frozen=True, slots=True)
class Stored:
    """What of a `Code` outlives the process: `key` names the object that holds it, as `symbol`.

    `scratch` is bytes per thread, `shared` bytes of each shared array, `sizes` the symbolic extents
    that it is passed, by name, `sites` what its checks of indices say.
    """

    name: str
    key: str
    finish: bool
    scratch: int
    shared: tuple[int, ...]
    sites: tuple[str, ...]
    tasks: int
    sizes: tuple[str, ...]
    symbol: str = ""


@dataclass(frozen=True, eq=False, slots=True)
class Code:
    """Native code of a kernel by the code ABI: addresses (`finish` 0: none), what keeps it alive.

    `over`: operand and result, by their places among the arguments, that may share memory.
    """

    stored: Stored
    body: int
    finish: int
    engine: Any = field(repr=False)
    over: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Image:
    """A compiled program: its items, the code of each launch by parts, where everything lies."""

    program: Program
    block: Block
    codes: Mapping[Kernel, tuple[Code, ...]]
    plan: Plan
    threads: int


class Runner(Protocol):
    """What executes a program: of a backend whose code the machine of this process cannot call."""

    launches: int

    def run(
        self, bindings: Mapping[Variable, np.ndarray[Any, Any]], sizes: Mapping[str, int]
    ) -> None:
        """Run on contiguous arrays of the state variables, shaped by upper bounds; what the program
        assigns is updated in place. `launches` counts those of the last run.
        """


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a backend does not compile a kernel, and the user's line that asks for it."""

    reason: str
    origin: Origin | None = None


@runtime_checkable
class Compiler(Protocol):
    """Makes code of kernels by their schedules."""

    name: str

    def machine(self, options: Options) -> Target:
        """What kernels are fused and scheduled for. Raises: OptionError, UnsupportedError."""

    def prepare(self, graph: Graph) -> Graph:
        """A simplified graph as this backend wants it fused."""
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

    def price(self, kernel: Kernel, schedule: Schedule, target: Target) -> Price | None:
        """What one launch costs; None: this backend does not know."""
        return None

    def texts(self) -> Mapping[str, Text]:
        """What can be shown of a kernel by its schedule, each by its name, in order.

        Lines of them may name the stages of the kernel by number, as `ir.text.mark_text` writes.
        """
        return {}


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
class Guest(Protocol):
    """A backend that runs by something outside of this package."""

    def host(self) -> str:
        """What it runs by, for people. Raises: UnsupportedError where that is missing."""


Backend = Compiler | GraphInterpreter | KernelInterpreter
