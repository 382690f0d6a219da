"""Options: one frozen value, part of every cache key."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar, dataclass_transform

from pullback.errors import OptionError, RuleError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoints

# Named numbers of the passes that decide no code by what it costs. `Cap`: what is tried or looked
# at, for the sake of compile time; more would be as right. `Legal`: beyond it would be wrong.
Cap = int
Ints = tuple[int, ...]
Pair = tuple[int, int]
Caps = Ints
Legal = int

Made = TypeVar("Made")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[Made]) -> type[Made]:
    """A class of values: fields in slots, never changed; equal fields make equal values."""
    return dataclass(frozen=True, slots=True)(cls)


@dataclass_transform(eq_default=False, frozen_default=True, field_specifiers=(field,))
def entity(cls: type[Made]) -> type[Made]:
    """A class of things with an identity: the same, but each is equal to itself alone."""
    return dataclass(frozen=True, eq=False, slots=True)(cls)


BACKEND = "llvm"  # where nobody says which
MOST_THREADS = 64  # of a pool that nobody chose the size of


def processors() -> int:
    """Processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def default_threads() -> int:
    """PULLBACK_THREADS, or as many threads as this process may use processors, at most 64.

    Raises: OptionError for what is no number from 1 on.
    """
    threads = _number("PULLBACK_THREADS", min(processors(), MOST_THREADS))
    if threads < 1:
        raise OptionError(
            f"PULLBACK_THREADS={threads}", help="the caller is one of the threads", code="E523"
        )
    return threads


def _default_cache() -> Path | None:
    """`PULLBACK_CACHE`, a folder or `off`; else a folder where caches are kept."""
    chosen = os.environ.get("PULLBACK_CACHE")
    if chosen is not None:
        return None if chosen == "off" else Path(chosen)
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "pullback"


def chosen_names() -> tuple[str | None, ...]:
    """Backend, target and machine that the environment names, and whether sums are deterministic:
    what is compiled is kept by them.
    """
    names = "BACKEND", "TARGET", "MACHINE", "DETERMINISTIC"
    return tuple(os.environ.get(f"PULLBACK_{name}") for name in names)


class _Source(SourceFileLoader):
    """A file by its text alone: kept bytecode knows its age in whole seconds, and may be older."""

    def path_stats(self, path: str) -> Any:
        raise OSError(f"no bytecode of {path}")


def installed(group: str) -> EntryPoints:
    """What installed packages register under a group; imported lazily, it takes 30 ms."""
    from importlib.metadata import entry_points

    return entry_points(group=group)


def module_of(path: Path) -> ModuleType:
    """A user's Python file, run as a module. Raises: what it raises."""
    loader = _Source(path.stem, str(path))
    spec = spec_from_file_location(path.stem, path, loader=loader)
    assert spec is not None, "a loader is given"
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, str(default))
    try:
        return int(text)
    except ValueError as error:
        raise OptionError(f"{name}={text}: a whole number is needed", code="E520") from error


def _whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _seconds(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return 0 <= value < math.inf


# Choices of schedules by kernel: its structure's digest, then numbers by name.
Schedules = tuple[tuple[str, tuple[tuple[str, int], ...]], ...]

UNITS = {"B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30, "TB": 2**40}  # bytes


def parse_bytes(given: object) -> int:
    """``"64MB" -> 67108864``; an integer is bytes. Units are powers of 1024.

    Raises: OptionError for anything but a positive size.
    """
    size = 0
    if isinstance(given, str):
        match = re.fullmatch(r"(\d+(?:\.\d+)?) *([KMGT]?)i?B", given.strip(), re.IGNORECASE)
        if match is not None:
            size = int(float(match[1]) * UNITS[match[2].upper() + "B"])
    elif _whole(given):
        size = given
    if size <= 0:
        what = f"memory={given!r}: a number of bytes or text like '64MB' is needed"
        raise OptionError(what, code="E522")
    return size


class UserRule:
    """A step of the user's in the passes: what `pullback.rules` makes. This one changes nothing.

    `digest` tells it from others in the records of programs; where it is empty there is none.
    `laws`: types of nodes, each with a function of a node and its context that simplifies it.
    """

    name = digest = ""
    laws: Sequence[tuple[type[Any], Callable[[Any, Any], Any]]] = ()

    def program(self, program: Any) -> Any:
        """A traced program, rewritten."""
        return program

    def apart(self, a: Sequence[Any], b: Sequence[Any]) -> str:
        """Why definitions of two kernels may not be in one; empty: they may."""
        return ""


@frozen
class Options:
    """How programs are compiled and run.

    `backend`: its name, or the path of a Python file. `threads`: those of a program, the caller
    included; None: as many as `pb.set_num_threads` says at each run.
    `target`: the processor that is compiled for, by name ("x86-64-v3"); None: this one.
    `debug`: 0..4, from nothing to every stage printed. `dump`: a folder for numbered stage files.
    `memory`: bytes that the arena of a program may have (temporaries and working memory, not what
    it is given and gives back); None: as it comes. The reference backend has no arena.
    `profile`: launches are timed, see `Executable.profile`. `check`: each launch runs on memory of
    its own between fences, and what it writes is looked through for NaN; slow.
    `tune`: seconds in which other schedules of a program's kernels are measured after it is
    compiled; what is faster, and what is not, is left to later programs in the cache's folder.
    `schedules`: choices for kernels by their structure, as `pb.jit(schedules=..)` gives them.
    `workers`: processes that choose schedules, this one included, where that takes long; None: as
    many as processors, at most 4.
    `host`: whether programs may call functions of the host, such as LAPACK; without, what would be
    faster there is generated too. `machine`: the numbers that schedules are chosen by, the name or
    the file of a machine (docs/machine.md); None: those of the target. `rules`: those of
    `pullback.rules`, in the order in which they are asked.
    `deterministic`: results have the same bits every time on a GPU too. Without, accumulating
    writes there may add floats up in whatever order they come, by atomic additions, which is
    faster; on a processor no sum depends on what runs first, with or without.

    Example:
        >>> pb.Options(threads=2).threads
        2
    """

    backend: str = BACKEND
    threads: int | None = None
    debug: int = 0
    dump: Path | None = None
    cache: Path | None = field(default_factory=_default_cache)
    memory: int | None = None
    profile: bool = False
    check: bool = False
    target: str | None = None
    host: bool = True
    machine: str | None = None
    schedules: Schedules = ()
    rules: Sequence[UserRule] = ()
    tune: float = 0.0
    workers: int | None = None
    deterministic: bool = False

    def __post_init__(self) -> None:
        """`memory` may be text with a unit, `dump` and `cache` text. Raises: OptionError."""
        for name in ("threads", "workers"):
            count = getattr(self, name)
            if count is not None and (not _whole(count) or count < 1):
                what = f"{count!r} {name}"
                raise OptionError(what, help="the caller is one of them", code="E523")
        if not _whole(self.debug):
            raise OptionError(f"debug={self.debug!r}", help="a number from 0 to 4", code="E225")
        if not _seconds(self.tune):
            what = f"tune={self.tune!r}"
            raise OptionError(what, help="seconds for measuring a program's kernels", code="E225")
        if self.memory is not None:
            object.__setattr__(self, "memory", parse_bytes(self.memory))
        if self.machine is not None:
            object.__setattr__(self, "machine", os.fspath(self.machine))
        for name in ("dump", "cache"):
            given = getattr(self, name)
            if not isinstance(given, str | os.PathLike | None):
                raise OptionError(f"{name}={given!r}", help="the path of a folder", code="E225")
            object.__setattr__(self, name, None if given is None else Path(given))
        rules = tuple(self.rules) if isinstance(self.rules, Iterable) else (self.rules,)
        if not all(isinstance(rule, UserRule) for rule in rules):
            raise RuleError(f"rules={self.rules!r}", help="what pb.rules makes", code="E371")
        object.__setattr__(self, "rules", rules)

    @classmethod
    def from_environment(cls) -> Options:
        """Read `PULLBACK_BACKEND`, `_TARGET`, `_MACHINE`, `_DEBUG`, `_DUMP`, `_CACHE` (or `off`),
        `_PROFILE` (1: launches are timed), `_CHECK` (1: launches are checked), `_HOST` (0: no
        program calls functions of the host), `_WORKERS` (processes that choose schedules),
        `_DETERMINISTIC` (1: the same bits every time on a GPU too).

        Raises: OptionError for what is no number.
        """
        env = os.environ
        dump = env.get("PULLBACK_DUMP")
        return cls(
            backend=env.get("PULLBACK_BACKEND", BACKEND),
            debug=_number("PULLBACK_DEBUG", 0),
            dump=Path(dump) if dump else None,
            profile=env.get("PULLBACK_PROFILE", "0") != "0",
            check=env.get("PULLBACK_CHECK", "0") != "0",
            target=env.get("PULLBACK_TARGET") or None,
            host=env.get("PULLBACK_HOST", "1") != "0",
            machine=env.get("PULLBACK_MACHINE") or None,
            workers=_number("PULLBACK_WORKERS", 0) or None,
            deterministic=env.get("PULLBACK_DETERMINISTIC", "0") != "0",
        )
