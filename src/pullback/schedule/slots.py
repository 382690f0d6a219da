"""Where stages live, and the scratch slots that they share."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from pullback.ir.dtype import DType
from pullback.ir.expr import upper
from pullback.ir.graph import Map, Value
from pullback.ir.kernel import Kernel, Stage, stage_reads
from pullback.schedule.schedule import Place, Residence, Slot, Step
from pullback.schedule.steps import identical


def residences(
    kernel: Kernel, body: tuple[Step, ...], finish: tuple[Step, ...]
) -> tuple[Residence, ...]:
    """Where each stage lives: in registers if only its own loop reads it."""
    every = kernel.stages + kernel.finish
    ahead = len(kernel.stages)
    groups = [s.stages for s in body] + [tuple(n + ahead for n in s.stages) for s in finish]
    company = {n: frozenset(g) for g in groups for n in g}
    users: dict[int, set[int]] = {n: set() for n in range(len(every))}
    numbers: dict[Value, int] = {s.target: n for n, s in enumerate(every)}
    for number, stage in enumerate(every):
        for take in stage_reads(stage):
            source = numbers.get(take.source)
            if source is not None:
                users[source].add(number)
    return tuple(_residence(s, users[n] <= company[n]) for n, s in enumerate(every))


def _residence(stage: Stage, private: bool) -> Residence:
    if stage.partial:
        return Residence(Place.SHARED)
    if stage.store is not None:
        return Residence(Place.SCRATCH if overwrites_itself(stage) else Place.MEMORY)
    if private and isinstance(stage.form, Map):
        return Residence(Place.REGISTER)
    return Residence(Place.SCRATCH)


def overwrites_itself(stage: Stage) -> bool:
    """Whether a stage reads its own target variable where it has not yet, or already, written."""
    rank = len(stage.extents)
    at_home = isinstance(stage.form, Map)
    return any(
        t.source is stage.store and not (at_home and identical(t, rank)) for t in stage_reads(stage)
    )


def tile_shape(stage: Stage, tile: tuple[int, ...]) -> tuple[int, ...]:
    """Extents of the part of a stage that one tile holds."""
    bound = {a: o for o, a in enumerate(stage.outer) if a is not None}
    return tuple(
        min(upper(e), tile[bound[n]]) if n in bound else upper(e) for n, e in enumerate(stage.shape)
    )


@dataclass(slots=True)
class _Open:
    """A slot while slots are dealt out: when its present value dies."""

    dtype: DType
    size: int
    until: int


def assign_slots(
    kernel: Kernel,
    body: tuple[Step, ...],
    finish: tuple[Step, ...],
    homes: tuple[Residence, ...],
    tile: tuple[int, ...],
) -> tuple[tuple[Slot, ...], tuple[Residence, ...]]:
    """Scratch slots, shared by stages that are not alive together in one tile."""
    every = kernel.stages + (kernel.finish if finish else ())
    ahead = len(kernel.stages)
    order = sorted(body, key=lambda s: s.level)
    sequence = [s.stages for s in order]
    sequence += [tuple(n + ahead for n in s.stages) for s in finish]
    when = {n: time for time, stages in enumerate(sequence) for n in stages}
    last = {n: _last_use(n, every, when) for n in when}
    full = len(kernel.outer)
    levels = {n: s.level for s in body for n in s.stages}
    slots: list[_Open] = []
    found = list(homes)
    for time, stages in enumerate(sequence):
        for number in stages:
            if homes[number].place is not Place.SCRATCH:
                continue
            stage = every[number]
            extents = tile_shape(stage, tile) if number < ahead else _whole(stage)
            hoisted = levels.get(number, full) < full
            until = len(sequence) if hoisted else last[number]
            slot = _take_slot(slots, stage.body.dtype, prod(extents), time, until, hoisted)
            found[number] = Residence(Place.SCRATCH, slot)
    return tuple(Slot(s.dtype, s.size) for s in slots), tuple(found)


def _whole(stage: Stage) -> tuple[int, ...]:
    return tuple(upper(e) for e in stage.shape)


def _last_use(number: int, every: tuple[Stage, ...], when: dict[int, int]) -> int:
    target = every[number].target
    uses = [when[n] for n, s in enumerate(every) if any(t.source is target for t in stage_reads(s))]
    return max([when[number], *uses])


def _take_slot(
    slots: list[_Open], kind: DType, size: int, time: int, until: int, hoisted: bool
) -> int:
    """A free slot of the same type, grown if need be, or a new one."""
    if not hoisted:
        free = [n for n, s in enumerate(slots) if s.until < time and s.dtype == kind]
        if free:
            best = min(free, key=lambda n: (abs(slots[n].size - size), n))
            slots[best].size = max(slots[best].size, size)
            slots[best].until = until
            return best
    slots.append(_Open(kind, size, until))
    return len(slots) - 1
