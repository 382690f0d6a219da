"""Programs whose kernels are measured: what is faster by other schedules is compiled so.

``kernels of a program, 60 seconds -> records, for this program and later ones``
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from pullback.backends.host.pool import pools
from pullback.backends.registry import compiler
from pullback.config import Options
from pullback.errors import IndexRangeError
from pullback.ir.kernel import Kernel
from pullback.ir.program import Program
from pullback.ir.signature import kernel_digest
from pullback.pipeline import compile_program
from pullback.runtime.executable import Executable
from pullback.runtime.tuned import FILE, Chooser, Key, Records, Tuned, read, write
from pullback.schedule.choices import Choices
from pullback.tensor.run.tune import Bench, Outcome, kernels_of

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
        new = dict(zip(keys, map(record_of, outcomes), strict=True))
        write(path, {**read(path), **new})
    faster: list[tuple[str, Choices]] = [
        (kernel_digest(o.kernel), o.choices) for o in outcomes if o.choices
    ]
    log.info("%d of %d kernels are faster by other schedules", len(faster), len(outcomes))
    if not faster:
        return executable
    alone = () if path is not None else tuple(faster)
    again = replace(options, schedules=(*options.schedules, *alone))
    return compile_program(program, again)
