"""What a backend is: an interpreter of definitions or of kernels, or a compiler of routines.

`registry` knows those of this package; others register an object under the entry point
`pullback.backends`, or are a Python file that has one called `backend`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from pullback.config import Options
from pullback.ir.graph import Graph, Variable
from pullback.ir.kernel import Kernel
from pullback.ir.nest import Array, Routine
from pullback.ir.target import Target

Values = dict[Variable, np.ndarray[Any, Any]]

ALIGNMENT = 64  # bytes, of scratch arrays
WORD = 8  # bytes, of those below a cache line


class ObjectStore(Protocol):
    """Where compiled objects are kept between processes."""

    def get(self, key: str) -> bytes | None:
        """The object stored under `key`, if it is there and whole."""

    def put(self, key: str, data: bytes) -> None:
        """Keep an object."""


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
class Stored:
    """What of a `Code` outlives the process: `key` names the object that holds it."""

    name: str
    key: str
    finish: bool
    scratch: int
    shared: tuple[int, ...]
    sites: tuple[str, ...]

    @classmethod
    def of(cls, routine: Routine, key: str) -> Stored:
        """What code of a routine wants, which lies under `key`."""
        scratch = sum(map(array_bytes, routine.scratch))
        shared = tuple(map(array_bytes, routine.shared))
        return cls(routine.name, key, bool(routine.finish), scratch, shared, routine.sites)


@dataclass(frozen=True, slots=True)
class Code:
    """Native code of a routine: addresses (`finish` 0: none), bytes it wants, what keeps it alive.

    `scratch` is bytes per thread, `shared` bytes of each shared array. `whole`: one call does all
    tasks, as where a device shares them out.
    """

    name: str
    body: int
    finish: int
    scratch: int
    shared: tuple[int, ...]
    sites: tuple[str, ...]
    key: str
    engine: Any = field(repr=False)
    whole: bool = False

    @classmethod
    def at(cls, stored: Stored, body: int, finish: int, engine: Any) -> Code:
        """The code of a routine once it has been loaded."""
        scratch, shared, sites = stored.scratch, stored.shared, stored.sites
        return cls(stored.name, body, finish, scratch, shared, sites, stored.key, engine)

    @property
    def stored(self) -> Stored:
        """What another process needs to load it."""
        shared, sites = self.shared, self.sites
        return Stored(self.name, self.key, self.finish != 0, self.scratch, shared, sites)


def array_bytes(array: Array) -> int:
    """Size in memory, bytes: whole cache lines, or whole words where less than one line."""
    size = array.size * array.dtype.itemsize
    unit = WORD if size < ALIGNMENT else ALIGNMENT
    return -(-size // unit) * unit


@runtime_checkable
class Compiler(Protocol):
    """Makes native code of loop nests, which the runtime calls by the code ABI.

    `recorded`: code of one process can be loaded by the next one by its keys alone.
    """

    name: str
    recorded: bool

    def target(self, options: Options) -> Target:
        """The processor that kernels are fused and scheduled for."""

    def compile(
        self,
        routines: Iterable[Routine],
        options: Options,
        target: Target,
        store: ObjectStore | None,
        stats: CompileStats,
    ) -> list[Code]:
        """Code of each routine; equal ones are compiled once.

        Raises: UnsupportedError for what the backend refuses by name.
        """


@runtime_checkable
class GraphInterpreter(Protocol):
    """Runs definitions."""

    name: str

    def compute(self, graph: Graph, values: Mapping[Variable, Any]) -> Values:
        """New contents of every variable that `graph` assigns."""


@runtime_checkable
class KernelInterpreter(Protocol):
    """Runs kernels, which are fused for the `target`."""

    name: str

    def target(self, options: Options) -> Target:
        """The processor that kernels are fused for."""

    def launch(self, kernel: Kernel, values: Mapping[Variable, Any]) -> Values:
        """New contents of every variable that `kernel` writes."""


@runtime_checkable
class Guest(Protocol):
    """A backend that runs by something outside of this package."""

    def host(self) -> str:
        """What it runs by, for people. Raises: UnsupportedError where that is missing."""


Backend = Compiler | GraphInterpreter | KernelInterpreter
