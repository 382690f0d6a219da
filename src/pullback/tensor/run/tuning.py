"""Programs whose kernels are measured: what is faster by other schedules is compiled so.

``kernels of a program, 60 seconds -> records, for this program and later ones``

Of a program of a device it is the launches of its kernels, which its backend measures.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np

from pullback.backends.base import Compiler, Device, Guest, Launched, Values
from pullback.backends.host.exchange import box
from pullback.backends.host.pool import pools
from pullback.backends.host.processor import binding
from pullback.backends.registry import compiler
from pullback.config import Options
from pullback.errors import IndexRangeError
from pullback.ir.kernel import Kernel
from pullback.ir.program import Program
from pullback.ir.signature import kernel_digest
from pullback.ir.target import Target
from pullback.pipeline import compile_program
from pullback.runtime.executable import Executable
from pullback.runtime.fault import version_of
from pullback.runtime.tuned import FILE, Chooser, Key, Records, Tuned, blocks_of, read, write
from pullback.schedule.choices import Choices
from pullback.tensor.run.tune import Bench, Outcome, inputs, kernels_of

LEAST = 1.0  # seconds for a kernel, however long the others took
OWN = ("price", "beam")  # what is cheap by its price is measured first, then what is near the best

log = logging.getLogger("pullback")


def benches(kernels: Iterable[Kernel], options: Options) -> list[Bench]:
    """Kernels that can be measured, longest first; others are told of."""
    made = []
    for kernel in kernels:
        try:
            made.append(Bench(kernel, options))
        except IndexRangeError as error:
            log.warning("%s is not measured: %s", kernel.name, error.what)
    return sorted(made, key=lambda b: -b.ns)


def shares(benches: Sequence[Bench], seconds: float) -> Iterator[tuple[Bench, float]]:
    """Each with seconds in proportion to its time, of what those before it have left."""
    ends = time.perf_counter() + seconds
    for number, bench in enumerate(benches):
        left = ends - time.perf_counter()
        whole = sum(b.ns for b in benches[number:])
        yield bench, max(min(LEAST, seconds), left * bench.ns / whole)


def record_of(outcome: Outcome) -> Tuned:
    """What was found; without choices where the model's schedule is the best."""
    return Tuned(outcome.kernel.name, outcome.choices, outcome.default_us, outcome.us)


def measured(executable: Executable, program: Program, options: Options) -> Executable:
    """The program by the best schedules of its kernels that `options.tune` seconds find.

    What has a record is not measured again. Without a folder for records what is found is
    this program's alone.
    """
    folder = options.cache
    path = None if folder is None else folder / FILE
    backend = compiler(options.backend)
    target = backend.machine(options)
    if backend.device(target) is not None:
        return _measured_launches(executable, program, options, path)
    threads = options.threads or pools.known()
    known: Records = {} if path is None else read(path)
    chooser = Chooser(known, threads, backend=backend.name, start=backend.start)
    fresh = [k for k in kernels_of([executable]) if chooser.record(k, target) is None]
    outcomes = [
        bench.tuned(seconds, OWN)
        for bench, seconds in shares(benches(fresh, options), options.tune)
    ]
    if not outcomes:
        return executable
    if path is not None:
        keys = [Key.of(o.kernel, target, threads, backend.name) for o in outcomes]
        _left(path, dict(zip(keys, map(record_of, outcomes), strict=True)))
    faster: list[tuple[str, Choices]] = [
        (kernel_digest(o.kernel), o.choices) for o in outcomes if o.choices
    ]
    log.info("%d of %d kernels are faster by other schedules", len(faster), len(outcomes))
    if not faster:
        return executable
    alone = () if path is not None else tuple(faster)
    again = replace(options, schedules=(*options.schedules, *alone))
    return compile_program(program, again)


def _left(path: Path, new: Records) -> None:
    """Records for later programs, beside what others wrote meanwhile."""
    write(path, {**read(path), **new})


def _measured_launches(
    executable: Executable, program: Program, options: Options, path: Path | None
) -> Executable:
    """The program by the best schedules of its launches."""
    known: Records = {} if path is None else read(path)
    new = launches(kernels_of([executable]), options, known, options.tune)
    faster = sum(bool(record.block) for record in new.values())
    log.info("%d of %d launches are faster by other schedules", faster, len(new))
    if not new:
        return executable
    if path is not None:
        _left(path, new)
        return compile_program(program, options)
    backend, _, device = _device(options)
    came = () if executable.target is None else executable.target.blocks
    blocks = (*blocks_of(device, backend.name, (new, None)), *came)  # the first of a launch counts
    own = Chooser({}, 1, None, options.schedules, backend.name, start=backend.start, blocks=blocks)
    return compile_program(program, options, own)


def launches(
    kernels: Iterable[Kernel],
    options: Options,
    records: Records,
    seconds: float,
    told: Callable[[Launched], None] | None = None,
) -> Records:
    """Records of the launches of kernels, longest kernels first, as far as the seconds go. What has
    one is not measured again; unless every launch is `told` of, which is measured from there on.

    Raises: UnsupportedError for a backend that measures none, DeviceError.
    """
    backend, target, device = _device(options)
    blocks = blocks_of(device, backend.name, (records, None))
    own = [k.structure for k in records if k == Key.on(device, k.structure, backend.name)]
    seen = set(own if told is None else ())
    priced = target.profile.priced or (lambda kernel: 1.0)
    rest = sorted(((priced(kernel), kernel) for kernel in kernels), key=lambda pair: -pair[0])
    ends = time.perf_counter() + seconds
    new: Records = {}
    while rest and (left := ends - time.perf_counter()) > 0:
        share = left * rest[0][0] / sum(ns for ns, _ in rest)
        measure = functools.partial(
            backend.measured, target=replace(target, blocks=blocks), known=seen, seconds=share
        )
        for launch in _of(rest.pop(0)[1], measure):
            seen.add(launch.signature)
            record = Tuned(launch.name, (), launch.default_us, launch.us, launch.block)
            new[Key.on(device, launch.signature, backend.name)] = record
            if told is not None:
                told(launch)
    return new


def _device(options: Options) -> tuple[Compiler, Target, Device]:
    """What launches are measured by, for and on."""
    backend = compiler(options.backend)
    target = backend.machine(options)
    device = backend.device(target)
    assert device is not None, "who asks knows"
    return backend, target, device


def _of(
    kernel: Kernel, measure: Callable[[Kernel, Callable[[], Values]], list[Launched]]
) -> list[Launched]:
    """What is measured of a kernel, with indices that are in range; without, it is told of."""
    for given in (inputs, _zeros):
        with suppress(IndexRangeError):
            return measure(kernel, functools.partial(given, kernel))
    log.warning("%s is not measured: its indices are computed from data", kernel.name)
    return []


def _zeros(kernel: Kernel) -> Values:
    return {v: np.zeros(box(v), v.dtype.numpy) for v in kernel.arguments}


def origin(options: Options, **more: str) -> dict[str, str]:
    """What a file of records says of where and when they were measured, and of what."""
    backend = compiler(options.backend)
    host = backend.host() if isinstance(backend, Guest) else binding().get_host_cpu_name()
    times = "medians, us; of a launch, the second cache as the run before left it"
    facts = {"on": host, "date": date.today().isoformat(), "pullback": version_of("pullback")}
    return {**facts, "times": times, **more}
