"""The passes, in order, on one screen.

Program -> (each `Compute`) simplify -> fuse -> schedule -> lower -> native code -> plan -> machine
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path

from pullback.backends.llvm.emit import emit_routine
from pullback.backends.llvm.jit import Code, CompileStats, compile_routines, host_target
from pullback.backends.reference.definitions import evaluate
from pullback.config import Options
from pullback.errors import UnsupportedError
from pullback.fuse.entry import fuse
from pullback.ir.graph import Graph, Variable
from pullback.ir.kernel import Kernel
from pullback.ir.nest import Routine
from pullback.ir.program import Block, Branch, Compute, Item, Launch, Loop, Program
from pullback.ir.structure import Key, kernel_key
from pullback.ir.target import Target
from pullback.ir.text import show
from pullback.lower.kernel import lower
from pullback.runtime.assemble import Unit, assemble
from pullback.runtime.cache import ObjectCache
from pullback.runtime.executable import Array, Executable, Interpreted
from pullback.runtime.machine import Machine
from pullback.runtime.pool import loader
from pullback.runtime.report import Reporter
from pullback.runtime.system import address, memory
from pullback.schedule.choose import choose
from pullback.schedule.lives import lives
from pullback.schedule.plan import Needs, plan
from pullback.simplify.empty import without_empty
from pullback.simplify.graph import simplify_graph
from pullback.verify.graph import verify_graph
from pullback.verify.kernel import verify_kernel
from pullback.verify.nest import verify_routine


def compile_program(program: Program, options: Options) -> Executable:
    """A program ready to run.

    Raises: UnsupportedError for a backend that does not exist.
    """
    if options.backend == "reference":
        return Executable(program, program.body, options, _interpreted(program.body))
    if options.backend != "llvm":
        raise UnsupportedError(f"no backend {options.backend!r}", help="use llvm or reference")
    report = Reporter(options)
    target = host_target(options.threads)
    report.text(2, "trace", lambda: show(program))
    fused = _each(program.body, lambda graph: fuse_graph(graph, target, report))
    kernels, spans = lives(fused, program.state)
    report.stage("fuse", f"{len(kernels)} kernels")
    keys = {k: kernel_key(k) for k in kernels}
    routines = _routines(keys, target, report)
    stats = CompileStats()
    codes = _native(routines, options, target, stats)
    report.stage("compile", f"{stats.compiled} compiled, {stats.loaded} loaded")
    units = {k: _unit(routines[key], codes[key]) for k, key in keys.items()}
    needs = {k: _needs(unit, options.threads) for k, unit in units.items()}
    placed = plan(kernels, list(spans), needs, spans)
    report.text(3, "plan", placed.picture)
    arena = memory(placed.arena_bytes)
    image = assemble(fused, units, placed, address(arena))
    checks = {place: units[item.kernel].sites for place, item in image.launches.items()}
    machine = Machine(image, arena, placed.offsets, checks, options.threads)
    report.stage("plan", f"{placed.arena_bytes} bytes")
    found = tuple(codes.values())
    return Executable(program, fused, options, machine, placed, found, stats, target)


def fuse_graph(graph: Graph, target: Target, report: Reporter) -> list[Kernel]:
    """One simultaneous assignment -> kernels in launch order."""
    verify_graph(graph, "trace")
    report.text(2, "traced-graph", lambda: show(graph))
    simple = simplify_graph(without_empty(graph))
    verify_graph(simple, "simplify")
    report.text(2, "simplified-graph", lambda: show(simple))
    kernels = fuse(simple, target)
    for kernel in kernels:
        verify_kernel(kernel, "fuse")
        report.text(3, f"kernel-{kernel.name}", functools.partial(show, kernel))
    return kernels


def _each(block: Block, change: Callable[[Graph], list[Kernel]]) -> Block:
    """`block` with every `Compute` replaced by the launches of its kernels."""
    found: list[Item] = []
    for item in block:
        if isinstance(item, Compute):
            found.extend(Launch(k) for k in change(item.graph))
        elif isinstance(item, Loop):
            body = _each(item.body, change)
            found.append(
                Loop(body, item.count, item.counter, item.condition, item.start, item.step)
            )
        elif isinstance(item, Branch):
            then, otherwise = _each(item.then, change), _each(item.otherwise, change)
            found.append(Branch(item.predicate, then, otherwise))
        else:
            found.append(item)
    return tuple(found)


def _routines(keys: Mapping[Kernel, Key], target: Target, report: Reporter) -> dict[Key, Routine]:
    """One loop nest for each kernel structure."""
    found: dict[Key, Routine] = {}
    for kernel, key in keys.items():
        if key in found:
            continue
        schedule = choose(kernel, target)
        report.text(3, f"schedule-{kernel.name}", functools.partial(str, schedule))
        routine = lower(kernel, schedule, target)
        verify_routine(routine, "lower")
        report.text(4, f"nest-{kernel.name}", functools.partial(show, routine))
        report.text(4, f"llvm-{kernel.name}", functools.partial(emit_routine, routine, target))
        found[key] = routine
    report.stage("lower", f"{len(found)} routines")
    return found


def _native(
    routines: Mapping[Key, Routine], options: Options, target: Target, stats: CompileStats
) -> dict[Key, Code]:
    store = None if options.cache is None else _store(options.cache)
    loader.get(store, stats)
    codes = compile_routines(list(routines.values()), options, target, store, stats)
    return dict(zip(routines, codes, strict=True))


@functools.cache
def _store(folder: Path) -> ObjectCache:
    return ObjectCache(folder)


def _unit(routine: Routine, code: Code) -> Unit:
    sizes = tuple(v.name for v in routine.sizes)
    return Unit(code.body, code.finish, routine.tasks, code.shared, code.scratch, sizes, code.sites)


def _needs(unit: Unit, threads: int) -> Needs:
    return Needs(unit.scratch, unit.shared_bytes, threads if unit.tasks > 1 else 1)


def _interpreted(block: Block) -> Interpreted:
    def compute(graph: Graph, values: dict[Variable, Array]) -> dict[Variable, Array]:
        return evaluate(graph, {v: values[v] for v in graph.inputs})

    def launch(kernel: Kernel, values: dict[Variable, Array]) -> dict[Variable, Array]:
        raise UnsupportedError(f"kernel {kernel.name} in the definitions' interpreter")

    return Interpreted(block, compute, launch)
