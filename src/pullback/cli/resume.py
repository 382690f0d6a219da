"""`pullback resume`: go on from what one stage of the compiler wrote, as it is or edited.

graph -> kernel -> schedule -> loop nest -> the backend's texts -> results
"""

from __future__ import annotations

import ctypes
import functools
import re
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from pullback.backends.base import Code, CompileStats, Job
from pullback.backends.registry import by_nests, of_nests
from pullback.cli.command import Output, command
from pullback.cli.graph_text import parse_graph, parse_kernel
from pullback.cli.nest_text import parse_routine
from pullback.cli.schedule_text import read_schedule
from pullback.config import Options
from pullback.errors import InvalidIR, SyntaxFormError
from pullback.ir import dtype as D
from pullback.ir.expr import upper
from pullback.ir.kernel import Kernel
from pullback.ir.nest import Routine
from pullback.ir.program import Compute, Launch, Program
from pullback.ir.signature import digest
from pullback.ir.target import Target
from pullback.ir.text import show
from pullback.machine.machine import LINE
from pullback.pipeline import compile_program
from pullback.runtime.report import Reporter
from pullback.runtime.tuned import Chooser
from pullback.schedule.schedule import Schedule
from pullback.schedule.text import schedule_text
from pullback.schedule.verify import verify_schedule
from pullback.verify.kernel import verify_kernel
from pullback.verify.nest import verify_routine

Numbers = np.ndarray[Any, Any]
SHOWN = 4  # elements of each result
FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
SCHEDULE = re.compile(r"\d+ tasks over tiles of ")
LATER = "a folder for what later stages write"
NOT_READ = {
    "program": "resume from a graph: items of a program hold functions of the host",
    "arena": "the memory plan follows from the kernels",
}


class DumpError(SyntaxFormError):
    """A dumped file is not what a stage writes, or what it says does not hold."""

    code = "E172"
    placed = False


class Fixed(Chooser):
    """One schedule, for the one kernel of a program."""

    def __init__(self, schedule: Schedule, threads: int = 1) -> None:
        super().__init__({}, threads, start=lambda *_: schedule)
        self.schedule = schedule

    @property
    def digest(self) -> str:
        """What a program's record depends on."""
        return digest(schedule_text(self.schedule))

    def __call__(self, kernel: Kernel, target: Target, unchosen: object = None) -> Schedule:
        """The schedule that is given."""
        return self.schedule


@command(example="pullback resume dump/0002-simplified-graph.txt --out again")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--out", "later", type=click.Path(file_okay=False, path_type=Path), help=LATER)
@click.option("--seed", type=click.IntRange(min=0), default=0, help="of the inputs")
def resume(out: Output, file: Path, later: Path | None, seed: int) -> None:
    """Go on from FILE, which PULLBACK_DUMP wrote and you may have edited, and run it.

    Graphs, kernels, schedules, loop nests, LLVM IR, assembly and C are read
    back. A schedule needs its kernel beside it, code its loop nest. Inputs are drawn, by name:
    they are the same at every stage.
    """
    for name, value in resumed(file, later, seed).items():
        flat = value.ravel().astype(np.float64)
        first = [float(f"{x:.6g}") for x in flat[:SHOWN]]
        total = float(f"{flat.sum():.6g}")
        shown = " ".join(f"{x:g}" for x in first)
        out.show(f"{name}: {value.size} x {value.dtype}, sum {total:g}, {shown} ..")
        out.tell(name=name, size=value.size, dtype=str(value.dtype), sum=total, first=first)


def resumed(file: Path, out: Path | None = None, seed: int = 0) -> dict[str, Numbers]:
    """What the rest of the way, written to `out`, makes of a file: what it changed, by name.

    Raises: SyntaxFormError for what is not read back, or does not hold.
    """
    text = file.read_text()
    first = text.split(maxsplit=1)[0] if text.strip() else ""
    if first in NOT_READ:
        raise DumpError(f"{file.name} is not read back", help=NOT_READ[first])
    try:
        options = replace(Options.from_environment(), cache=None, dump=out)
        if first == "routine":
            return _run_nest(parse_routine(text), options, seed)
        for backend in by_nests().values():
            if backend.reads(text):
                nest = parse_routine(_beside(file, "nest").read_text())
                return _run_code(backend.resume(text, nest, backend.machine(options)), nest, seed)
        if SCHEDULE.match(text):
            return _run_schedule(file, text, options, seed)
        return _run_program(_program(text, first), options, seed)
    except InvalidIR as wrong:
        raise DumpError(f"{file.name} is read, but does not hold: {wrong}") from wrong


def drawn(name: str, kind: D.DType, shape: tuple[int, ...], seed: int = 0) -> Numbers:
    """Floats from N(0, 1), integers 0 or 1: a function of name, size and seed."""
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    if kind.is_float:
        return rng.standard_normal(shape).astype(kind.numpy)
    return rng.integers(0, 2, shape).astype(kind.numpy)


def _program(text: str, first: str) -> Program:
    """What a file describes, with nothing around it."""
    if first == "graph":
        graph = parse_graph(text)
        state = dict.fromkeys([*graph.inputs, *(target for target, _ in graph.assigns)])
        return Program((Compute(graph),), tuple(state))
    kernel = parse_kernel(text)
    for piece in kernel.pieces:
        verify_kernel(piece, "resume")
    return Program((Launch(kernel),), kernel.arguments)


def _run_schedule(file: Path, text: str, options: Options, seed: int) -> dict[str, Numbers]:
    """The kernel beside a schedule, as that says."""
    kernel = parse_kernel(_beside(file, "kernel").read_text())
    verify_kernel(kernel, "resume")
    schedule = read_schedule(text, kernel)
    verify_schedule(kernel, schedule, "resume")
    program = Program((Launch(kernel),), kernel.arguments)
    return _run_program(program, options, seed, Fixed(schedule))


def _beside(file: Path, stage: str) -> Path:
    """The last file of another stage before `file`, of the same kernel."""
    number, _, name = file.stem.partition("-")
    own = name.partition("-")[2]
    names = sorted(file.parent.glob(f"*-{stage}-{own}.txt"))
    before = [p for p in names if p.stem.partition("-")[0] <= number]
    if not before:
        raise DumpError(f"{file.name} needs NUMBER-{stage}-{own}.txt beside it")
    return before[-1]


def _run_program(
    program: Program, options: Options, seed: int, chosen: Chooser | None = None
) -> dict[str, Numbers]:
    """Compile and run it on drawn inputs; what it changed."""
    values = {v: drawn(v.name, v.dtype, tuple(map(upper, v.shape)), seed) for v in program.state}
    before = {v: array.copy() for v, array in values.items()}
    compile_program(program, options, chosen).run(values)
    return {v.name: a for v, a in values.items() if not np.array_equal(a, before[v])}


def _run_nest(routine: Routine, options: Options, seed: int) -> dict[str, Numbers]:
    """A loop nest on drawn inputs, by way of the backend's code."""
    verify_routine(routine, "resume")
    backend, report = of_nests(options.backend), Reporter(options)
    target = backend.machine(options)
    report.text(4, f"nest-{routine.name}", lambda: show(routine))
    for name, text in backend.written().items():
        make = functools.partial(text, routine, target)
        report.text(4, f"{name}-{routine.name}", make)
    job = Job(options, target, None, CompileStats(), report)
    (code,) = backend.emit([routine], job)
    return _run_code(code, routine, seed)


def _run_code(code: Code, routine: Routine, seed: int) -> dict[str, Numbers]:
    """Code on drawn inputs, task after task; what it changed."""
    facts = code.stored
    given = {a.name: drawn(a.name, a.dtype, (a.size,), seed) for a in routine.arguments}
    before = {name: array.copy() for name, array in given.items()}
    shared = [np.zeros(size, np.uint8) for size in facts.shared]
    error = np.zeros(3, np.int64)
    slots = [a.ctypes.data for a in [*given.values(), *shared]]
    block = np.array([*slots, *(v.hi for v in routine.sizes), error.ctypes.data], np.int64)
    room = np.zeros(facts.scratch + LINE, np.uint8)
    scratch = -(-room.ctypes.data // LINE) * LINE
    for task in range(facts.tasks):
        FUNCTION(code.body)(block.ctypes.data, task, scratch)
    if code.finish:
        FUNCTION(code.finish)(block.ctypes.data, 0, scratch)
    return {n: a for n, a in given.items() if not np.array_equal(a, before[n])}
