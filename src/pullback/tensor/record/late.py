"""Calls that only wait for an earlier one stand as late as they may: what lies between runs beside
what they wait for.

``start a -> b; wait b; c = f(d); e = g(b)   ->   start a -> b; c = f(d); wait b; e = g(b)``
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from pullback.ir import program as P
from pullback.ir.graph import Variable


def late(program: P.Program) -> P.Program:
    """A program whose waits stand before what first touches their memory, or end their block."""
    waits = any(isinstance(i, P.HostCall) and _waits(i) for i in P.items(program.body))
    return replace(program, body=_block(program.body)) if waits else program


def _waits(item: P.HostCall) -> bool:
    """Whether a call finishes what an earlier one began in its memory."""
    return item.writes and not set(item.sources).isdisjoint(item.targets)


def _block(block: P.Block) -> P.Block:
    """Waits keep their order; a carry that a block ends with is touched by what comes after."""
    placed: list[P.Item] = []
    waiting: list[P.HostCall] = []
    for item in block:
        if isinstance(item, P.Loop):
            item = replace(item, body=_block(item.body))
        elif isinstance(item, P.Branch):
            item = replace(item, then=_block(item.then), otherwise=_block(item.otherwise))
        if isinstance(item, P.HostCall) and _waits(item):
            waiting.append(item)
            continue
        read, changed = _touched((item,))
        last = max((n for n, w in enumerate(waiting) if _meet(w, read, changed)), default=-1)
        placed += waiting[: last + 1]
        del waiting[: last + 1]
        placed.append(item)
    return (*placed, *waiting)


def _meet(wait: P.HostCall, read: set[Variable], changed: set[Variable]) -> bool:
    """Whether an item reads what is waited for, or writes what is still being read."""
    return not (read.isdisjoint(wait.targets) and changed.isdisjoint(wait.sources))


def _touched(block: Iterable[P.Item]) -> tuple[set[Variable], set[Variable]]:
    """What items read, and what they write."""
    read: set[Variable] = set()
    changed: set[Variable] = set(P.written(tuple(block)))
    for item in P.items(tuple(block)):
        if isinstance(item, P.Compute):
            read.update(item.graph.inputs)
        elif isinstance(item, P.Receive | P.HostCall):
            read.update(item.sources)
        elif isinstance(item, P.Branch):
            read.add(item.predicate)
        elif isinstance(item, P.Loop):
            read.update(v for v in (item.condition,) if v is not None)
            changed.update(v for v in (item.counter,) if v is not None)
    return read, changed
