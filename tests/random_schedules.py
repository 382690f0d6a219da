"""Random legal schedules of kernels: what the compiler would choose, changed at some places."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from random import Random
from typing import Any

import numpy as np

from golden_programs import OPTIONS, programs, traced
from lower_support import HOST, natively, random_array
from pullback.backends.reference.kernels import run_kernel
from pullback.cli.schedule_text import scratch_slots
from pullback.errors import InvalidIR
from pullback.ir.expr import upper
from pullback.ir.graph import Map, Variable
from pullback.ir.kernel import Kernel
from pullback.ir.nest import Routine
from pullback.ir.program import Compute, items
from pullback.ir.signature import kernel_digest
from pullback.ir.target import Target
from pullback.ir.text import show
from pullback.lower import lower
from pullback.lower.whole import scheduled
from pullback.pipeline import fuse_graph
from pullback.runtime.report import Reporter
from pullback.schedule.schedule import (
    Left,
    Loops,
    Right,
    Schedule,
    Step,
    SweepLoops,
    TileLoops,
)
from pullback.schedule.text import schedule_text
from pullback.schedule.verify import verify_schedule
from pullback.verify.nest import verify_routine

MOST_WORK = 1 << 18  # elements of all stages: a second of the interpreter
TOLERANCE = 2e-4  # float32 sums in another order

EXTENTS = (1, 2, 3, 5, 8, 16, 17, 32, 64, 100)
VALUES: dict[str, tuple[Any, ...]] = {
    "rows": (1, 2, 3, 4, 6, 8, 12),
    "columns": (1, 3, 8, 16, 20, 32, 48),
    "exact": (0, 64, 4096),
    "terms": (None, 1, 8, 24, 128),
    "left": tuple(Left),
    "scattered": (False, True),
    "right": tuple(Right),
    "level": (0, 1, 2),
    "ahead": (False, True),
    "turned": (False, True),
    "pitch": (None, 64, 80, 144),
    "unroll": (1, 2, 3, 4, 8),
    "long": (1, 2, 4),
    "abreast": (1, 2, 3, 4),
    "block": (8, 16, 64),
}


def changed(rng: Random, kernel: Kernel, schedule: Schedule) -> Schedule:
    """Some fields of a schedule drawn anew; whether it still holds is not asked."""
    for _ in range(rng.randint(1, 4)):
        what = rng.choice(("tile", "tasks", "step", "step", "step", "streamed"))
        if what == "tile" and kernel.outer:
            axis = rng.randrange(len(kernel.outer))
            extent = min(rng.choice(EXTENTS), upper(kernel.outer[axis]))
            tile = (*schedule.tile[:axis], extent, *schedule.tile[axis + 1 :])
            schedule = replace(schedule, tile=tile)
        elif what == "tasks":
            split = rng.randint(0, len(kernel.outer))
            schedule = replace(schedule, tasks=rng.choice((1, 2, 3, 4, 8)), split=split)
        elif what == "streamed" and rng.random() < 0.2:
            schedule = replace(schedule, streamed=(rng.randrange(len(kernel.arguments)),))
        elif what == "step" and schedule.steps:
            number = rng.randrange(len(schedule.steps))
            steps = list(schedule.steps)
            steps[number] = _step(rng, kernel, steps[number])
            schedule = replace(schedule, steps=tuple(steps))
    return replace(schedule, slots=scratch_slots(kernel, schedule))


def _step(rng: Random, kernel: Kernel, step: Step) -> Step:
    lead = kernel.stages[step.stages[0]]
    kind = rng.choice(("loops", "loops", "vector", "level"))
    if kind == "vector" and isinstance(step.loops, SweepLoops):
        return replace(step, vector=rng.choice((None, *range(len(lead.extents)))))
    if kind == "level":
        return replace(step, level=rng.randint(step.level, len(kernel.outer)))
    return step if step.loops is None else replace(step, loops=_loops(rng, step.loops))


def _loops(rng: Random, loops: Loops) -> Loops:
    names = [f for f in loops.__slots__ if f in VALUES]
    for name in rng.sample(names, rng.randint(1, min(3, len(names)))):
        loops = replace(loops, **{name: rng.choice(VALUES[name])})
    blocks = isinstance(loops, TileLoops) and loops.terms is not None
    if blocks and loops.right in (Right.PANELS, Right.ONE):
        return replace(loops, right=Right.BLOCKS)
    return loops


def legal(
    rng: Random, kernel: Kernel, target: Target, tries: int = 40
) -> tuple[Schedule, Routine] | None:
    """A legal schedule that is not the compiler's, with its nest; None where none was drawn."""
    start = scheduled(kernel, target)
    for _ in range(tries):
        schedule = changed(rng, kernel, start)
        if schedule == start:
            continue
        try:
            verify_schedule(kernel, schedule, "draw")
            routine = lower(kernel, schedule)
        except InvalidIR:
            continue
        try:
            verify_routine(routine, "lower")
        except InvalidIR as problem:
            if "streamed_unread" not in str(problem):  # which sums wait in a result, lowering knows
                raise
            continue
        return schedule, routine
    return None


def same_sums(kernel: Kernel, one: Schedule, two: Schedule) -> bool:
    """Whether two schedules add up the terms of every sum in one order."""
    if any(s.partial for s in kernel.stages) and (one.tile, one.tasks) != (two.tile, two.tasks):
        return False
    pairs = [(kernel.stages, a, b) for a, b in zip(one.steps, two.steps, strict=True)]
    pairs += [(kernel.finish, a, b) for a, b in zip(one.finish, two.finish, strict=True)]
    for stages, a, b in pairs:
        sums = any(not isinstance(stages[n].form, Map) for n in a.stages)
        if isinstance(a.loops, TileLoops) and isinstance(b.loops, TileLoops):
            sums = (a.loops.terms, a.loops.exact) != (b.loops.terms, b.loops.exact)
        elif (a.vector, a.loops) == (b.vector, b.loops):
            sums = False
        if sums:
            return False
    return True


@functools.cache
def kernels() -> list[Kernel]:
    """Kernels of the golden programs that an interpreter runs in a moment."""
    found: dict[Any, Kernel] = {}
    for make in programs().values():
        for item in items(traced(make()).body):
            if not isinstance(item, Compute):
                continue
            every = fuse_graph(item.graph, HOST, Reporter(OPTIONS))
            for kernel in (piece for k in every for piece in k.pieces):
                work = sum(prod(upper(e) for e in s.extents) for s in kernel.every)
                if work <= MOST_WORK and kernel.every:
                    found.setdefault(kernel_digest(kernel), kernel)
    return list(found.values())


def wanted(kernel: Kernel) -> dict[Variable, Any]:
    """What the interpreter of kernels makes of the numbers that `natively` draws."""
    given = {v: random_array(v, n, {}) for n, v in enumerate(kernel.arguments)}
    with np.errstate(all="ignore"):
        return run_kernel(kernel, given)


def check_schedule(seed: int, backend: str) -> Sequence[str]:
    """A drawn kernel by a drawn legal schedule: what its definitions mean, and the same bits as by
    the compiler's own where the order of sums is the same.
    """
    rng = Random(seed)
    kernel = rng.choice(kernels())
    drawn = legal(rng, kernel, HOST)
    if drawn is None:
        return ["none drawn"]
    schedule, routine = drawn
    start = scheduled(kernel, HOST)
    try:
        found = natively(kernel, routine)
        for variable, want in wanted(kernel).items():
            what, got = str(variable), found[kernel.arguments.index(variable)]
            np.testing.assert_allclose(got, want, TOLERANCE, TOLERANCE, err_msg=what)
        labels = ["compared", *{s.way.value for s in schedule.steps}]
        if same_sums(kernel, start, schedule):
            pairs = zip(natively(kernel, lower(kernel, start)), found, strict=True)
            assert all(a.tobytes() == b.tobytes() for a, b in pairs), "other bits"
            labels.append("same bits")
    except Exception as problem:
        problem.add_note(f"{show(kernel)}\n{schedule_text(schedule)}")
        raise
    return labels
