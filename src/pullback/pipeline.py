"""The passes, in order, on one screen.

Program -> (each `Compute`) simplify -> fuse -> schedule -> lower -> native code -> plan -> machine
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

from pullback.backends.base import (
    Aimed,
    Call,
    Code,
    Compiler,
    CompileStats,
    GraphInterpreter,
    Image,
    Job,
    KernelInterpreter,
    Made,
    Report,
    Work,
)
from pullback.backends.guard import guarded, interpreted
from pullback.backends.host.assemble import assemble, kept
from pullback.backends.host.checked import Checked
from pullback.backends.host.interpret import Interpreted
from pullback.backends.host.machine import Crew, VirtualMachine
from pullback.backends.host.pool import loader, pools
from pullback.backends.host.profile import Clock
from pullback.backends.host.system import address, memory, uncollected
from pullback.backends.host.workers import beside
from pullback.backends.registry import OWN, compiler, named, oracle
from pullback.config import Options
from pullback.errors import (
    BackendError,
    InvalidIR,
    MemoryBudgetError,
    OptionError,
    PullbackError,
    RuleError,
    UnsupportedError,
)
from pullback.fuse.entry import fuse
from pullback.ir.graph import Graph
from pullback.ir.kernel import Kernel
from pullback.ir.program import Block, HostCall, Launch, Program, items
from pullback.ir.signature import checks, kernel_digest
from pullback.ir.target import Target
from pullback.ir.text import show
from pullback.memory.budget import Fitted, Start, fit, replaced, replay
from pullback.memory.lives import lives, taken_over
from pullback.memory.plan import Needs, plan
from pullback.memory.timeline import Timeline
from pullback.prepare.ahead import turned_ahead
from pullback.runtime import fault
from pullback.runtime.cache import ObjectCache
from pullback.runtime.executable import Executable, Executor, Foreign
from pullback.runtime.record import Recorder, each
from pullback.runtime.report import Reporter
from pullback.runtime.tuned import Chooser, chooser
from pullback.schedule.choose import Choose
from pullback.schedule.cost import shares
from pullback.schedule.split import split
from pullback.schedule.text import schedule_text
from pullback.schedule.verify import verify_schedule
from pullback.simplify.empty import without_empty
from pullback.simplify.graph import simplify_graph
from pullback.simplify.rules import RULES
from pullback.verify.body import Proofs
from pullback.verify.graph import verify_graph
from pullback.verify.kernel import verify_kernel

Build = Callable[[list[list[Kernel]]], tuple[Image, Start]]


def begin(options: Options) -> None:
    """A program is being traced: what any program needs to run is made meanwhile."""
    if isinstance(named(options.backend), Compiler):
        loader.begin(store_at(options.cache))


@uncollected()
def compile_program(
    program: Program, options: Options, chosen: Chooser | None = None
) -> Executable:
    """A program ready to run: through all passes, or as an equal one was recorded. `chosen`: what
    chooses schedules, where that is not the backend and what was tuned.

    Raises: UnsupportedError for a backend that does not exist. A fault of the compiler's own gets
    a note that says how to report it.
    """
    try:
        return _compiled(program, options, chosen)
    except (PullbackError, MemoryError, OSError):
        raise
    except Exception as error:
        if isinstance(error, InvalidIR):
            _blame(program, options)
        error.add_note(fault.note(error, functools.partial(_compiled, program), options))
        raise


def _blame(program: Program, options: Options) -> None:
    """Raises: RuleError where a program is whole without the user's rules, and broken by them."""
    alone = [(rule,) for rule in options.rules]
    for rules in [(), *alone, options.rules] if alone else ():
        try:
            _compiled(program, replace(options, rules=rules, dump=None, cache=None))
        except InvalidIR as error:
            if not rules:
                return
            names = ", ".join(rule.name for rule in rules)
            raise RuleError(f"rule {names} breaks the program: {error}", code="E374") from error


def _compiled(program: Program, options: Options, chosen: Chooser | None = None) -> Executable:
    for rule in options.rules:
        program = rule.program(program)
    for item in items(program.body):
        if isinstance(item, HostCall) and not options.host:
            what = f"{item.name} by {item.library}, in a program that calls no host"
            raise UnsupportedError(what, origin=item.origin, code="E356")
    backend = named(options.backend)
    if options.schedules and (options.memory is not None or not isinstance(backend, Compiler)):
        other = "a memory budget" if options.memory is not None else f"backend {options.backend!r}"
        raise OptionError(f"schedules of kernels beside {other}", code="E384")
    if isinstance(backend, GraphInterpreter):
        compute = interpreted(backend.name, backend.run_graph, lambda g: [v for v, _ in g.assigns])
        runner = Interpreted(program.body, compute=compute)
        return Executable(program, options, runner, lambda: program.body)
    if isinstance(backend, KernelInterpreter):
        return _interpreted(program, backend, options)
    return _native(program, backend, options, chosen)


def _native(
    program: Program, backend: Compiler, options: Options, chosen: Chooser | None
) -> Executable:
    """A program as code, which the machine runs, or who the backend says."""
    report = Reporter(options)
    begin(options)
    store = store_at(options.cache)
    with _by(backend):
        target = backend.machine(options)
        device = backend.device(target)
    if chosen is None:
        threads = options.threads or pools.known()
        folder = options.cache if options.memory is None else None
        chosen = chooser(folder, threads, options.schedules, backend.name, backend.start, device)
    job = Job(options, replace(target, blocks=chosen.blocks), store, CompileStats(), report)
    traced = program
    program = replace(program, body=turned_ahead(program.body, target.profile))
    image, fuse = image_of(program, backend, job, chosen, report.wants_texts)
    done = job.stats, job.target, image.steps, report.times, chosen
    if options.check:
        checked = Checked(program.body, image.kernels, image.calls, oracle)
        return Executable(traced, options, checked, fuse, image, *done)
    executor = executor_of(image, backend, job)
    report.stage("plan", f"{image.plan.arena_bytes} bytes")
    return Executable(traced, options, executor, fuse, image, *done)


def image_of(
    program: Program, backend: Compiler, job: Job, chosen: Chooser, looked: bool = False
) -> tuple[Image, Callable[[], Block]]:
    """The image of a program, from its record or through the passes; what gives its kernels.

    `looked`: somebody wants to see what the passes do.
    """
    report = job.report
    options = job.options
    digests = [rule.digest for rule in options.rules]
    facts = repr(options.memory), chosen.digest, *digests
    recorder = Recorder.of(program, backend, job, chosen.threads, facts) if all(digests) else None
    image = None if recorder is None or looked else recorder.find()
    if image is not None:
        report.stage("record", f"{len(image.calls)} launches")
        return image, functools.partial(_fused, program, backend, _silent(job), image)
    image = _passed(program, backend, job, chosen)
    if recorder is not None:
        recorder.keep(image)
    block = image.block
    return image, lambda: block


def executor_of(image: Image, backend: Compiler, job: Job) -> Executor:
    """What runs an image: the machine, or who the backend says."""
    with _by(backend):
        own = backend.runner(image)
    if own is not None:
        return Foreign(own)
    options = job.options
    crew = Crew(image.made.threads, options.threads is None, options.memory is None)
    rows = loader.get(job.store, job.stats).rows
    free = options.memory is None and not options.profile and not kept(image)
    alike = functools.partial(_machine, image, rows, crew) if free else None
    machine, _ = _wired(image, rows, crew, options.profile, alike)
    return machine


def _machine(image: Image, rows: int, crew: Crew) -> VirtualMachine:
    """Another machine of the same program, for calls while one is at work."""
    return _wired(image, rows, crew, timed=False)[0]


def compile_kernel(
    kernel: Kernel, chosen: Choose, options: Options
) -> tuple[VirtualMachine, Clock | None]:
    """One launch over what it reads and writes, timed: a program of its own, past the caches."""
    program = Program((Launch(kernel),), kernel.arguments)
    backend = compiler(options.backend)
    job = _silent(Job(options, backend.machine(options), None, CompileStats(), Reporter(options)))
    threads = options.threads or pools.known()
    made, _ = _built(program, backend, job, chosen, threads, [])
    return _wired(made, loader.get().rows, Crew(threads), timed=True)


def _wired(
    image: Image,
    rows: int,
    crew: Crew,
    timed: bool,
    alike: Callable[[], VirtualMachine] | None = None,
) -> tuple[VirtualMachine, Clock | None]:
    """A program in memory of its own."""
    arena = memory(image.plan.arena_bytes)
    wired = assemble(image, address(arena), rows)
    checks = {place: call.sites for place, call in wired.launches.items()}
    clock = Clock(list(wired.launches)) if timed else None
    offsets = image.plan.offsets
    return VirtualMachine(wired, image.state, arena, offsets, checks, crew, clock, alike), clock


def _passed(program: Program, backend: Compiler, job: Job, chosen: Chooser) -> Image:
    """A program through all the passes."""
    report = job.report
    report.text(2, "trace", lambda: show(program))
    groups: list[list[Kernel]] = []

    def change(graph: Graph) -> list[Kernel]:
        groups.append(fuse_graph(graph, job.target, report, backend))
        return groups[-1]

    each(program.body, change)
    chosen.refuse_others(kernel for group in groups for kernel in group)
    report.stage("fuse", f"{sum(map(len, groups))} kernels")
    build = functools.partial(_built, program, backend, job, chosen, chosen.threads)
    made = _within(build, groups, job, backend.start)
    report.text(3, "plan", made.plan.picture)
    return made


def _built(
    program: Program,
    backend: Compiler,
    job: Job,
    chosen: Choose,
    threads: int,
    groups: list[list[Kernel]],
) -> tuple[Image, Start]:
    """A fused program with its code and plan."""
    rest = iter(groups)
    fused = each(program.body, lambda _: next(rest))
    kernels, spans = lives(fused, program.state)
    keys = {piece: (kernel_digest(piece), checks(piece)) for k in kernels for piece in k.pieces}
    alike: dict[tuple[str, tuple[object, ...]], Kernel] = {}
    for piece, key in keys.items():
        alike.setdefault(key, piece)
    for kernel in alike.values():
        accepted(kernel, backend)
    with _by(backend), beside(list(alike.values()), backend, job) as unchosen:
        if isinstance(chosen, Chooser) and backend.name in OWN:
            chosen = functools.partial(chosen, unchosen=unchosen)
        every = backend.compile(_scheduled(alike.values(), job, chosen), job)
    if len(every) != len(alike):
        what = f"backend {backend.name!r} gives {len(every)} codes for {len(alike)} kernels"
        raise BackendError(what)
    job.report.stage("compile", f"{job.stats.compiled} compiled, {job.stats.loaded} loaded")
    codes = dict(zip(alike, every, strict=True))
    calls = {k: _call(k, [codes[keys[piece]] for piece in k.pieces], job.target) for k in kernels}
    needs = {k: _needs(call, threads) for k, call in calls.items()}
    placed = plan(kernels, spans, needs, taken_over(fused, program.state, needs))
    asked = job.options
    own = backend.identity(job.target)
    made = Made(backend.name, own, asked.target, asked.machine, threads)
    image = Image(made, program.state, fused, groups, calls, placed)
    return image, Start(fused, program.state, needs)


def _within(build: Build, groups: list[list[Kernel]], job: Job, choose: Choose) -> Image:
    """A program in its memory budget: as it is, with launches again, and cut into more launches.

    Raises: MemoryBudgetError.
    """
    budget = job.options.memory
    made, start = build(groups)
    if budget is None or made.plan.arena_bytes <= budget:
        return made
    try:
        return _repeated(made, fit(start, budget))
    except MemoryBudgetError as whole:
        pieces = [
            [piece for k in group for piece in split(k, job.target, choose)] for group in groups
        ]
        cut, start = build(pieces)
        job.report.stage("split", f"{sum(map(len, pieces))} kernels")
        cut = replace(cut, split=True)
        if cut.plan.arena_bytes <= budget:
            return cut
        try:
            return _repeated(cut, fit(start, budget))
        except MemoryBudgetError as error:
            raise min(whole, error, key=lambda e: e.smallest) from None


def _repeated(made: Image, fitted: Fitted) -> Image:
    """A program with some of its launches repeated."""
    rest = iter(fitted.launches)
    groups = [[pair for _ in group for pair in next(rest)] for group in made.kernels]
    calls = {new: made.calls[old].on(new) for group in groups for new, old in group}
    kernels = [[new for new, _ in group] for group in groups]
    for kernel in calls:
        verify_kernel(kernel, "budget")
    block = replaced(made.block, fitted.launches)
    steps = fitted.steps
    placed = fitted.plan
    return replace(made, block=block, kernels=kernels, calls=calls, plan=placed, steps=steps)


def _fused(program: Program, backend: Compiler, job: Job, made: Image) -> Block:
    """The launches of a traced program, as those of a recorded one."""

    def change(graph: Graph) -> list[Kernel]:
        kernels = fuse_graph(graph, job.target, job.report, backend)
        if not made.split:
            return kernels
        return [p for k in kernels for p in split(k, job.target, backend.start)]

    block = each(program.body, change)
    if not made.steps:
        return block
    again = replay(Timeline.of(block, program.state, {}), made.steps)
    assert again is not None, "recorded steps are those of an equal program"
    return replaced(block, again.launches())


def _silent(job: Job) -> Job:
    return replace(job, report=Reporter(replace(job.options, debug=0, dump=None)))


def fuse_graph(
    graph: Graph, target: Target, report: Report, backend: Compiler | None = None
) -> list[Kernel]:
    """One simultaneous assignment -> kernels in launch order, as a backend prepares and prices
    them.
    """
    proofs = Proofs()
    rules = report.options.rules
    verify_graph(graph, "trace", proofs)
    report.text(2, "traced-graph", lambda: show(graph))
    report.lap("verify")
    simple = simplify_graph(without_empty(graph), RULES.also(rules))
    report.lap("simplify")
    verify_graph(simple, "simplify", proofs)
    report.text(2, "simplified-graph", lambda: show(simple))
    report.lap("verify")
    if backend is not None and (prepared := backend.prepare(simple, target)) is not simple:
        verify_graph(prepared, "prepare", proofs)
        simple = prepared
    price = None if backend is None else functools.partial(backend.ns, target=target)
    kernels = fuse(simple, target, rules, price)
    report.lap("fuse")
    for kernel in kernels:
        verify_kernel(kernel, "fuse", proofs)
        report.text(3, f"kernel-{kernel.name}", functools.partial(show, kernel))
    report.lap("verify")
    return kernels


def _by(backend: Compiler) -> AbstractContextManager[None]:
    """What is raised here is a backend's, where it is none of this package's."""
    return nullcontext() if backend.name in OWN else guarded(backend.name)


def accepted(kernel: Kernel, backend: Compiler) -> None:
    """Raises: UnsupportedError with the user's line where a backend refuses a kernel."""
    with _by(backend):
        refusal = backend.refuses(kernel)
    if refusal is None:
        return
    origins = [stage.target.origin for stage in reversed(kernel.stages)]
    origin = refusal.origin or next((o for o in origins if o is not None), None)
    what = f"backend {backend.name!r} refuses kernel {kernel.name}: {refusal.reason}"
    raise UnsupportedError(what, origin=origin, code="E358")


def _scheduled(kernels: Iterable[Kernel], job: Job, chosen: Choose) -> Iterator[Work]:
    """Kernels with their schedules, as they are asked for."""
    for kernel in kernels:
        schedule = chosen(kernel, job.target)
        job.report.lap("schedule")
        job.report.text(3, f"schedule-{kernel.name}", functools.partial(schedule_text, schedule))
        verify_schedule(kernel, schedule, "schedule")
        job.report.lap("verify")
        yield kernel, schedule


@functools.cache
def store_at(folder: Path | None) -> ObjectCache | None:
    """The cache in a folder."""
    return None if folder is None else ObjectCache(folder)


def _call(kernel: Kernel, codes: list[Code], target: Target) -> Call:
    tasks = [code.stored.tasks for code in codes]
    return Call.of(kernel, codes, shares(kernel, tasks, target) if kernel.parts else ())


def _needs(call: Call, threads: int) -> Needs:
    """What a launch takes; of one of several parts, nothing is written over anything."""
    pairs = call.parts[0].code.over if len(call.parts) == 1 else ()
    return Needs(call.scratch, call.shared, threads if call.tasks > 1 else 1, pairs)


def _interpreted(program: Program, backend: KernelInterpreter, options: Options) -> Executable:
    """A program whose kernels are run by a backend, one after the other."""
    report = Reporter(options)
    target = backend.machine(options)
    run = backend.run_kernel
    if isinstance(backend, Aimed):
        run = functools.partial(backend.run_for, target)
    launch = interpreted(backend.name, run, lambda kernel: kernel.writes)
    block = each(program.body, lambda graph: fuse_graph(graph, target, report))
    runner = Interpreted(block, launch=launch)
    return Executable(program, options, runner, lambda: block, target=target)
