"""Records of tuned schedules: one JSON file in the cache folder, which people may read and merge.

    {"structure": "5f..", "cpu": "znver4", "target": "x86-64-v4 native", "threads": 2, "version": 1,
     "kernel": "y", "choices": {"tile.0": 64}, "default_us": 120.4, "us": 84.0}

A record says how fast a kernel runs by choices of its schedule, and nothing of what it computes:
what it asks for is refused where the kernel does not have it, and verified like any schedule.
Of a device records are those of launches: ``"structure": "9c..", "cpu": "NVIDIA H200", "target":
"sm_90 Triton 3.9.0", "threads": 0, "block": "64 x 128, 32 at once; .."``. A file may say beside its
records where they are from; those that come with this package do.
"""

from __future__ import annotations

import functools
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pullback.backends.base import Device
from pullback.backends.host.processor import binding
from pullback.config import BACKEND, Schedules, frozen
from pullback.errors import MALFORMED, CacheError, OptionError
from pullback.ir.kernel import Kernel
from pullback.ir.signature import digest, kernel_digest
from pullback.ir.target import Blocks, Target
from pullback.runtime.cache import write_whole
from pullback.schedule.choices import Choices, choices_of
from pullback.schedule.schedule import Schedule

FILE = "tuned.json"
VERSION = 1  # raised where choices get another meaning
NO_THREADS = 0  # of a launch of a device

NOWHERE: Mapping[str, str] = MappingProxyType({})

log = logging.getLogger("pullback")


@frozen
class Key:
    """What the best schedule depends on: the kernel's structure, where and how it runs."""

    structure: str
    cpu: str
    target: str
    threads: int
    version: int = VERSION
    backend: str = BACKEND

    @classmethod
    def of(cls, kernel: Kernel, target: Target, threads: int, backend: str = BACKEND) -> Key:
        """The key of a kernel on this processor."""
        name = " ".join((target.name, target.cpu, *target.dots))
        cpu = binding().get_host_cpu_name()
        return cls(kernel_digest(kernel), cpu, name, threads, backend=backend)

    @classmethod
    def on(cls, device: Device, signature: str, backend: str) -> Key:
        """The key of a launch on a device."""
        return cls(signature, device.name, device.target, NO_THREADS, backend=backend)


@frozen
class Tuned:
    """What was found best, no choices: as the model has it; microseconds by it and by the model.
    `block`: of a launch, the schedule as text; empty: as the model has it.
    """

    kernel: str
    choices: Choices
    default_us: float
    us: float
    block: str = ""

    @property
    def gain(self) -> float:
        """Times as fast as by the model."""
        return self.default_us / self.us


Records = dict[Key, Tuned]
Start = Callable[..., Schedule]
"""The schedule of a kernel for a target by choices, as `Compiler.start` gives it."""


class Chooser:
    """Chooses schedules: as the user wants, as recorded, else as a backend starts."""

    def __init__(
        self,
        records: Mapping[Key, Tuned],
        threads: int,
        path: Path | None = None,
        wanted: Schedules = (),
        backend: str = BACKEND,
        *,
        start: Start,
        blocks: Blocks = (),
    ) -> None:
        here = threads, backend
        self.records = {k: r for k, r in records.items() if (k.threads, k.backend) == here}
        self.backend = backend
        self.start = start
        self.threads = threads
        self.path = path
        self.wanted = dict(wanted)
        self.blocks = blocks

    @property
    def digest(self) -> str:
        """What a program's record depends on; empty without records."""
        better = {key: record for key, record in self.records.items() if record.choices}
        known = _text(better) if better else ""
        return digest(known, repr(self.wanted)) if known or self.wanted else ""

    def refuse_others(self, kernels: Iterable[Kernel]) -> None:
        """Raises: OptionError where none of the schedules wanted is for one of these kernels."""
        every = {kernel_digest(piece): k.name for k in kernels for piece in k.pieces}
        others = self.wanted.keys() - every.keys()
        if others and len(others) == len(self.wanted):
            what = "no schedule that is given is for a kernel of this program"
            names = ", ".join(every.values())
            raise OptionError(what, help=f"it has {names}, of other shapes or types", code="E383")
        if others:
            log.warning("%d schedules are for no kernel of this program", len(others))

    def record(self, kernel: Kernel, target: Target) -> Tuned | None:
        """What is recorded of a kernel."""
        if not self.records or kernel.tiling is not None:
            return None
        return self.records.get(Key.of(kernel, target, self.threads, self.backend))

    def __call__(
        self, kernel: Kernel, target: Target, unchosen: Callable[[Kernel], Choices] | None = None
    ) -> Schedule:
        """The schedule of a kernel; a record that does not fit it is told of and left out.
        `unchosen`: who knows what prices choose, if not the backend.
        """
        own = () if unchosen is None else (unchosen(kernel),)
        wanted = self.wanted.get(kernel_digest(kernel)) if self.wanted else None
        if wanted is not None:
            return self.start(kernel, target, wanted, *own)
        record = self.record(kernel, target)
        if record is not None:
            try:
                return self.start(kernel, target, record.choices, *own)
            except OptionError as error:
                log.warning("%s: a record is ignored: %s", self.path, error.what)
        return self.start(kernel, target, (), *own)


def chooser(
    folder: Path | None,
    threads: int,
    wanted: Schedules,
    backend: str,
    start: Start,
    device: Device | None = None,
) -> Chooser:
    """What the cache folder knows of schedules, beside what the user wants; of a `device`, what
    came with this package too.
    """
    path = None if folder is None else folder / FILE
    records = {} if path is None else _kept(path)
    blocks: Blocks = ()
    if device is not None:
        came = {} if device.file is None else _kept(device.file)
        blocks = blocks_of(device, backend, (came, device.file), (records, path))
    return Chooser(records, threads, path, wanted, backend, start=start, blocks=blocks)


def blocks_of(
    device: Device, backend: str, *files: tuple[Mapping[Key, Tuned], Path | None]
) -> Blocks:
    """What files of records know of a device's launches that are faster by other schedules; of one
    launch the last file counts.
    """
    last: dict[str, tuple[str, str]] = {}
    for records, path in files:
        for key, r in records.items():
            if key == Key.on(device, key.structure, backend):
                told = f"{r.us:.1f} us, as priced {r.default_us:.1f}; {path or 'by this program'}"
                last[key.structure] = r.block, told
    return tuple((own, *pair) for own, pair in sorted(last.items()) if pair[0])


def _kept(path: Path) -> Records:
    """The records of a file, if there is one; a file that is damaged is told of and left out."""
    try:
        facts = path.stat()
    except OSError:
        return {}
    return _known(path, facts.st_mtime_ns, facts.st_size)


@functools.lru_cache(maxsize=4)
def _known(path: Path, changed: int, size: int) -> Records:
    try:
        return read(path)
    except CacheError as error:
        log.warning("tuned schedules are ignored: %s", error.what)
        return {}


def read(path: Path) -> Records:
    """The records of a file; none where there is no file.

    Raises: CacheError, with the file's name, for one that is damaged.
    """
    try:
        rows = json.loads(path.read_text())["records"]
        return dict(map(_record, rows))
    except FileNotFoundError:
        return {}
    except (OSError, *MALFORMED) as error:
        what = f"{path} is no file of tuned schedules ({error})"
        raise CacheError(what, help="remove it, and tune again", code="E511") from error


def write(path: Path, records: Mapping[Key, Tuned], origin: Mapping[str, str] = NOWHERE) -> None:
    """Keep records, whole or not at all; `origin`: where, when and of what they were measured.

    Raises: CacheError.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        write_whole(path, _text(records, origin).encode())
    except OSError as error:
        raise CacheError(f"cannot write {path}: {error.strerror}") from error


def _text(records: Mapping[Key, Tuned], origin: Mapping[str, str] = NOWHERE) -> str:
    """Records as JSON, one a line, in an order of their own."""
    rows = [{**asdict(k), **asdict(r), "choices": dict(r.choices)} for k, r in records.items()]
    lines = sorted(json.dumps(row) for row in rows)
    head = "".join(f"{json.dumps(name)}: {json.dumps(told)},\n" for name, told in origin.items())
    return f'{{{head}"records": [\n' + ",\n".join(lines) + "\n]}\n"


def _record(row: dict[str, Any]) -> tuple[Key, Tuned]:
    """Raises: LookupError, TypeError, ValueError for what is none."""
    backend = row.get("backend", BACKEND)
    block = row.get("block", "")
    texts = [*(row[name] for name in ("structure", "cpu", "target", "kernel")), backend, block]
    numbers = [row["threads"], row["version"], *row["choices"].values()]
    if not all(isinstance(t, str) for t in texts):
        raise TypeError(f"a name is no text: {texts}")
    if not all(type(n) is int for n in numbers):
        raise TypeError(f"a whole number is needed: {numbers}")
    default = float(row["default_us"])
    us = float(row["us"])
    if not (default > 0 and us > 0):
        raise ValueError(f"times of {default} and {us} us")
    structure, cpu, target, kernel, *_ = texts
    key = Key(structure, cpu, target, row["threads"], row["version"], backend)
    return key, Tuned(kernel, choices_of(row["choices"]), default, us, block)
