"""The backend that writes OpenCL C: kernels for one device, launched without Python."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pullback.backends.base import Code, Job, Stored
from pullback.backends.c.emit import emit_program, emit_routine, passed, standalone
from pullback.backends.host.processor import processor
from pullback.backends.loops.backend import Loops, NestText, stored
from pullback.backends.opencl.device import FLAGS, Device, device
from pullback.backends.opencl.lanes import Kernel
from pullback.backends.opencl.language import OpenCLC
from pullback.backends.opencl.launch import NUMBER, POINTER, SCRATCH, Stubs
from pullback.errors import DeviceError
from pullback.ir import expr as E
from pullback.ir import nest as N
from pullback.ir.dtype import is_short
from pullback.ir.expr import Expr
from pullback.ir.node import walk
from pullback.ir.signature import digest
from pullback.ir.statements import roots, statements
from pullback.ir.target import Target

Words = np.ndarray[Any, Any]


class OpenCL(Loops):
    """Routines as kernels; what it needs is a device that shares the memory of this process."""

    name = "opencl"

    def host(self) -> str:
        """The device. Raises: DeviceError."""
        on = device()
        kinds = "float64" if on.doubles else "no float64"
        return f"{on.name}, {on.units} units, {kinds}, driver {on.driver}"

    def emit(self, routines: Iterable[N.Routine], job: Job) -> list[Code]:
        """Code of each routine, of one program. Raises: DeviceError."""
        every = list(routines)
        if not every:
            return []
        on = device(job.options.threads)
        language = OpenCLC(job.target.vector, on.doubles)
        for routine in every:
            if not on.doubles and doubles(routine):
                raise DeviceError(f"{on.name} has no float64: {routine.name}", code="E363")
        texts = [emit_routine(r, language, writer=Kernel) for r in every]
        first = {text: n for n, text in reversed(list(enumerate(texts)))}
        kept = sorted(first.values())
        job.stats.shared += len(every) - len(kept)
        text = emit_program([every[n] for n in kept], language, Kernel)
        key = digest(text, on.name, on.driver, FLAGS.decode(), processor(job.target))
        program, made = _program(on, text, key, job), Stubs(job.store)
        kernels = {n: _kernel(every[n], at, on) for at, n in enumerate(kept)}
        bodies = {n: kernel.address(made, on, program) for n, kernel in kernels.items()}
        return [
            Code(_stored(r, key, kernels[first[t]], on), bodies[first[t]], 0, made)
            for r, t in zip(every, texts, strict=True)
        ]

    def identity(self, target: Target) -> str:
        on = device()
        return " ".join([on.name, on.driver, FLAGS.decode(), str(on.units), processor(target)])

    def load(self, kept: Sequence[Stored], job: Job) -> list[Code] | None:
        if job.store is None or not kept:
            return None if kept else []
        on, made = device(job.options.threads), Stubs(job.store)
        objects = {s.key: job.store.get(s.key) for s in kept}
        programs = {key: on.loaded(data) for key, data in objects.items() if data is not None}
        if len(programs) < len(objects):
            return None
        job.stats.loaded += len(programs)
        launches = {(s.key, s.symbol): Launched.read(s.symbol) for s in kept}
        bodies = {
            own: launch.address(made, on, programs[own[0]]) for own, launch in launches.items()
        }
        return [Code(s, bodies[s.key, s.symbol], 0, made) for s in kept]

    def sources(self, routines: Sequence[N.Routine], target: Target) -> list[str]:
        return standalone(routines, OpenCLC(target.vector), Kernel)

    def written(self) -> Mapping[str, NestText]:

        def text(nest: N.Routine, target: Target) -> str:
            return emit_routine(nest, OpenCLC(target.vector), writer=Kernel)

        return {self.name: text}


def _program(on: Device, text: str, key: str, job: Job) -> int:
    """A program, from the store where it is there."""
    data = None if job.store is None else job.store.get(key)
    if data is not None:
        job.stats.loaded += 1
        return on.loaded(data)
    program = on.built(text)
    job.stats.compiled += 1
    if job.store is not None:
        job.store.put(key, on.binary(program))
    return program


def _items(routine: N.Routine, on: Device) -> int:
    """Work-items of a launch: one for each task; each that wants scratch has memory of its own."""
    return min(routine.tasks, on.units) if routine.scratch else max(1, routine.tasks)


@dataclass(frozen=True, slots=True)
class Launched:
    """What launching a routine takes, as `Stored.symbol` keeps it: where the address of the error
    lies in the block, and of each kernel its name, work-items and {what, place} of its arguments.
    """

    error: int
    kernels: tuple[tuple[str, int, tuple[int, ...]], ...]

    def text(self) -> str:
        """As `read` takes it."""
        return json.dumps([self.error, self.kernels])

    @classmethod
    def read(cls, text: str) -> Launched:
        """Raises: what `MALFORMED` lists."""
        error, kernels = json.loads(text)
        return cls(error, tuple([(name, items, tuple(rows)) for name, items, rows in kernels]))

    def address(self, made: Stubs, on: Device, program: int) -> int:
        """The function that launches."""
        functions = [
            np.array([on.kernel(program, name), items, len(rows) // 2, *rows], np.int64)
            for name, items, rows in self.kernels
        ]
        places = [f.ctypes.data for f in functions]
        record = [0, on.functions.ctypes.data, on.queue, self.error, *places, 0]
        return made.function(np.array(record, np.int64), on.functions, *functions)


def _kernel(routine: N.Routine, number: int, on: Device) -> Launched:
    """How a routine is launched, the `number`-th of its program."""
    bodies: list[tuple[str, Sequence[N.Stmt], int]] = [("body", routine.body, _items(routine, on))]
    if routine.finish:
        bodies.append(("finish", routine.finish, 1))
    kernels = []
    for name, body, items in bodies:
        rows: list[int] = []
        for place, what in passed(routine, body):
            rows += [NUMBER if isinstance(what, N.Var) else POINTER, place]
        kernels.append((f"{name}_{number}", items, (*rows, SCRATCH, 0)))
    error = len(routine.arguments) + len(routine.shared) + len(routine.sizes)
    return Launched(error, tuple(kernels))


def _stored(routine: N.Routine, key: str, launched: Launched, on: Device) -> Stored:
    """A launch as one task, with scratch for all work-items; it is looked at for errors."""
    facts = stored(routine, key, launched.text())
    scratch = facts.scratch * _items(routine, on)
    sites = (*facts.sites, f"a launch by {on.name}")
    return replace(facts, finish=False, scratch=scratch, sites=sites, tasks=1)


def doubles(routine: N.Routine) -> bool:
    """Whether a routine computes in float64, be it only to round as it must."""
    every = list(statements((*routine.body, *routine.finish)))
    nodes = walk([root for s in every for root in roots(s)])
    return any(isinstance(n, Expr) and _double(n) for n in nodes)


def _double(e: Expr) -> bool:
    if e.dtype.name == "float64":
        return True
    if isinstance(e, E.Cast):
        wide = e.value.dtype.is_integer and e.value.dtype.bits >= 32
        return (e.value.dtype.is_float and e.to.is_integer) or (wide and is_short(e.to))
    return isinstance(e, E.FloorDiv) and e.dtype.is_float
