"""The backend that writes OpenCL C: kernels for one device, launched without Python."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from pullback.backends.base import Code, CompileStats, ObjectStore, array_bytes
from pullback.backends.c.emit import emit_program, emit_routine, passed, standalone
from pullback.backends.host.processor import chosen_target, processor
from pullback.backends.loops.analysis import roots, statements
from pullback.backends.opencl.device import FLAGS, Device, device
from pullback.backends.opencl.language import OpenCLC
from pullback.backends.opencl.launch import NUMBER, POINTER, SCRATCH, Stubs
from pullback.config import Options
from pullback.errors import DeviceError
from pullback.ir import expr as E
from pullback.ir import nest as N
from pullback.ir.expr import Expr
from pullback.ir.node import walk
from pullback.ir.target import Target

Words = np.ndarray[Any, Any]


class OpenCL:
    """Routines as kernels; what it needs is a device that shares the memory of this process."""

    name = "opencl"
    recorded = False

    def host(self) -> str:
        """The device. Raises: DeviceError."""
        on = device()
        kinds = "float64" if on.doubles else "no float64"
        return f"{on.name}, {on.units} units, {kinds}, driver {on.driver}"

    def sources(self, routines: Sequence[N.Routine], target: Target) -> list[str]:
        """Parts of a text that builds by itself: what is shared, then one for each routine."""
        return standalone(routines, OpenCLC(target.vector))

    def target(self, options: Options) -> Target:
        return chosen_target(options.target)

    def compile(
        self,
        routines: Iterable[N.Routine],
        options: Options,
        target: Target,
        store: ObjectStore | None,
        stats: CompileStats,
    ) -> list[Code]:
        """Code of each routine, of one program. Raises: DeviceError."""
        every = list(routines)
        if not every:
            return []
        on = device(options.threads)
        language = OpenCLC(target.vector, on.doubles)
        for routine in every:
            if not on.doubles and doubles(routine):
                raise DeviceError(f"{on.name} has no float64: {routine.name}", code="E363")
        texts = [emit_routine(r, language) for r in every]
        first = {text: n for n, text in reversed(list(enumerate(texts)))}
        kept = sorted(first.values())
        stats.shared += len(every) - len(kept)
        text = emit_program([every[n] for n in kept], language)
        parts = "\0".join([text, on.name, on.driver, FLAGS.decode(), processor(target)])
        key = blake2b(parts.encode(), digest_size=32).hexdigest()
        program = _program(on, text, key, store, stats)
        made = Stubs(store)
        bodies = {n: _launch(made, on, program, every[n], at) for at, n in enumerate(kept)}
        return [
            _code(routine, key, bodies[first[t]], on, made)
            for routine, t in zip(every, texts, strict=True)
        ]


def _program(
    on: Device, text: str, key: str, store: ObjectStore | None, stats: CompileStats
) -> int:
    """A program, from the store where it is there."""
    data = None if store is None else store.get(key)
    if data is not None:
        stats.loaded += 1
        return on.loaded(data)
    program = on.built(text)
    stats.compiled += 1
    if store is not None:
        store.put(key, on.binary(program))
    return program


def _items(routine: N.Routine, on: Device) -> int:
    """Work-items of a launch: one for each task; each that wants scratch has memory of its own."""
    return min(routine.tasks, on.units) if routine.scratch else max(1, routine.tasks)


def _launch(made: Stubs, on: Device, program: int, routine: N.Routine, number: int) -> int:
    """The address of the function that launches a routine."""
    bodies: list[tuple[str, Sequence[N.Stmt], int]] = [("body", routine.body, _items(routine, on))]
    if routine.finish:
        bodies.append(("finish", routine.finish, 1))
    functions = []
    for name, body, items in bodies:
        rows: list[int] = []
        for place, what in passed(routine, body):
            rows += [NUMBER if isinstance(what, N.Var) else POINTER, place]
        rows += [SCRATCH, 0]
        kernel = on.kernel(program, f"{name}_{number}")
        functions.append(np.array([kernel, items, len(rows) // 2, *rows], np.int64))
    error = len(routine.arguments) + len(routine.shared) + len(routine.sizes)
    places = [f.ctypes.data for f in functions]
    record = [0, on.functions.ctypes.data, on.queue, error, *places, 0]
    return made.function(np.array(record, np.int64), on.functions, *functions)


def _code(routine: N.Routine, key: str, body: int, on: Device, made: Stubs) -> Code:
    """A launch as one task, with scratch for all work-items; it is looked at for errors."""
    scratch = sum(map(array_bytes, routine.scratch)) * _items(routine, on)
    shared = tuple(map(array_bytes, routine.shared))
    sites = (*routine.sites, f"a launch by {on.name}")
    return Code(routine.name, body, 0, scratch, shared, sites, key, made, whole=True)


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
        return (e.value.dtype.is_float and e.to.is_integer) or (wide and e.to.bits == 16)
    return isinstance(e, E.FloorDiv) and e.dtype.is_float
