"""The backend that compiles for NVIDIA's GPUs by LLVM alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from math import prod
from types import MappingProxyType

from pullback.backends.base import Code, Job, Text
from pullback.backends.cuda.backend import OnDevice
from pullback.backends.cuda.code import ELSEWHERE, CudaCode, Entry, blocks
from pullback.backends.cuda.driver import architecture, driver
from pullback.backends.host.processor import library
from pullback.backends.loops.backend import Loops, stored
from pullback.backends.loops.key import routine_key
from pullback.backends.nvptx.assemble import ptx
from pullback.backends.nvptx.warp import LANES, emit_kernels, scratch_bytes
from pullback.config import Options
from pullback.errors import DeviceError, OptionError
from pullback.ir import nest as N
from pullback.ir.expr import upper
from pullback.ir.kernel import Kernel
from pullback.ir.signature import digest
from pullback.ir.target import Target
from pullback.lower.kernel import lower
from pullback.machine.machine import Machine, like
from pullback.schedule.choices import Choices, choices_of
from pullback.schedule.schedule import Schedule

OLDEST = 80  # what is compiled for where no device says otherwise
WARPS = 4  # of a block of threads
MOST_WARPS = 132 * 32  # an H100 holds 64 on each of its 132 processors: half of them at once
TILE = (16, 64)  # rows and columns of a product that a warp makes
MOST_SCRATCH = 1 << 28  # bytes of all warps together


class NVPTX(OnDevice, Loops):
    """Routines as kernels, a warp for each task; what it needs to run is a driver."""

    name = "nvptx"

    def host(self) -> str:
        """The device. Raises: DeviceError."""
        on = driver()
        where = f"{self.name} on {on.name}, {architecture(on.capability)}"
        return f"{where}, {on.bytes >> 20} MiB, driver {on.version}"

    def machine(self, options: Options) -> Target:
        """A warp as a vector of 32 lanes. Raises: UnsupportedError for what runs on the host."""
        self.unwatched(options)
        ordinal = self.ordinal(options.target)
        return _target(_capability(ordinal), ordinal)

    def identity(self, target: Target) -> str:
        return f"{library().__version__} {target.cpu} {WARPS} {MOST_WARPS} {MOST_SCRATCH}"

    def emit(self, routines: Iterable[N.Routine], job: Job) -> list[Code]:
        """PTX of each routine; equal ones are compiled once."""
        made: dict[str, CudaCode] = {}
        codes = []
        for routine in routines:
            key = digest(routine_key(routine), repr(job.target), self.identity(job.target))
            if key in made:
                job.stats.shared += 1
            else:
                made[key] = _code(routine, key, job)
            codes.append(_facts(routine, key, made[key]))
        return codes

    def start(
        self, kernel: Kernel, target: Target, choices: Choices = (), unchosen: Choices | None = None
    ) -> Schedule:
        """Products in as many tiles as there may be tasks, so that all processors have work."""
        chosen = super().start(kernel, target, choices, unchosen)
        plain = kernel.tiling is not None or all(s.product is None for s in chosen.steps)
        if choices or plain or not kernel.outer:
            return chosen
        sides = (1,) * (len(kernel.outer) - len(TILE)) + TILE[-len(kernel.outer) :]
        tiles = [max(1, min(upper(e), n)) for e, n in zip(kernel.outer, sides, strict=True)]
        count = prod(-(-upper(e) // n) for e, n in zip(kernel.outer, tiles, strict=True))
        wanted = {f"tile.{axis}": n for axis, n in enumerate(tiles)}
        wanted["tasks"] = 1 << (max(1, min(count, MOST_WARPS // 2)).bit_length() - 1)
        try:
            return super().start(kernel, target, choices_of(wanted), unchosen)
        except OptionError:  # what it would hold does not fit, or tiles are of other sizes
            return chosen

    def texts(self) -> Mapping[str, Text]:
        """What all show of nests, and PTX."""
        return {**super().texts(), self.name: _shown}


def _shown(kernel: Kernel, schedule: Schedule, target: Target) -> str:
    """The PTX of a kernel, by this backend's own schedule where it has that of another one."""
    if not target.name.startswith(NVPTX.name):
        target = _target(_capability())
        schedule = NVPTX().start(kernel, target)
    routine = lower(kernel, schedule)
    return ptx(_text(routine, target, "body", "finish"), int(target.cpu[3:]))


def _capability(ordinal: int = 0) -> int:
    """That of a device; of the first one, where there is none, the oldest. Raises: DeviceError."""
    try:
        on = driver(ordinal)
    except DeviceError:
        if ordinal:
            raise
        return OLDEST
    architecture(on.capability)
    return on.capability


@cache
def _target(capability: int, ordinal: int = 0) -> Target:
    """What kernels of a device are made for; each device has records of programs of its own."""
    name = f"{NVPTX.name}:{ordinal}" if ordinal else NVPTX.name
    return Target(
        name, vector=4 * LANES, vectors=64, l1=16 << 10, l2=256 << 10, l3=32 << 20,
        scratch=16 << 10, powers=False, cpu=f"sm_{capability}", machine=_machine(),
    )  # fmt: skip


def _machine() -> Machine:
    """Numbers to schedule by: those of a processor, but for how many tasks there may be.

    Nothing of it was measured on a GPU.
    """
    like_this = like("x86-64-v4", "x86-64-v4")
    tables = {name: dict(rates) for name, rates in like_this.tables.items()}
    tables["launch"] |= {"tasks": MOST_WARPS // 2, "partial_tasks": 256}
    tables["whole"] |= {"parallel_sweep": 500.0, "task": 250.0}
    text = f"{like_this.text}\n# for warps {MOST_WARPS}"
    return replace(like_this, name="warps", tables=MappingProxyType(tables), text=text)


def warps_of(routine: N.Routine) -> int:
    """How many warps share the tasks: memory for the scratch of each is taken."""
    scratch = scratch_bytes(routine)
    most = MOST_SCRATCH // scratch if scratch else MOST_WARPS
    return max(1, min(routine.tasks, MOST_WARPS, most))


def _text(routine: N.Routine, target: Target, body: str, finish: str) -> str:
    names = (body, finish) if routine.finish else (body,)
    return emit_kernels(routine, target, warps_of(routine), names)


def _code(routine: N.Routine, key: str, job: Job) -> CudaCode:
    """The PTX of a routine, from the store where it is there."""
    names = f"pb_{key[:24]}_body", f"pb_{key[:24]}_finish"
    kept = None if job.store is None else job.store.get(key)
    if kept is not None:
        job.stats.loaded += 1
        return CudaCode.read(kept)
    text = _text(routine, job.target, *names)
    job.stats.compiled += 1
    warps = warps_of(routine)
    block = min(WARPS, warps)
    entries = [Entry(names[0], blocks(-(-warps // block)), block * LANES)]
    if routine.finish:
        entries.append(Entry(names[1], blocks(1), LANES))
    error = len(routine.arguments) + len(routine.shared) + len(routine.sizes)
    code = CudaCode((ptx(text, int(job.target.cpu[3:])).encode(),), tuple(entries), error)
    if job.store is not None:
        job.store.put(key, code.packed)
    return code


def _facts(routine: N.Routine, key: str, code: CudaCode) -> Code:
    """A launch as one task, with scratch for all warps."""
    facts = stored(routine, key)
    scratch, sites = scratch_bytes(routine) * warps_of(routine), (*facts.sites, ELSEWHERE)
    kept = replace(facts, finish=False, scratch=scratch, tasks=1, sites=sites)
    return Code(kept, code.body, 0, code)
