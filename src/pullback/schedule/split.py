"""A launch as several that do the same: smaller working memory, and values that come back alone.

    {z = x @ w -> z; y = f(z) @ v -> y}  ->  {z = x @ w -> z}  {y = f(z) @ v -> y}

Only between stages where all that is still read has been stored, and only where every reduction is
then scheduled as it was: results stay the same bit for bit.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from pullback.ir.graph import Map, Value, Variable
from pullback.ir.kernel import Kernel, Stages, redirected, stage_reads
from pullback.ir.target import Target
from pullback.schedule.choose import Choose
from pullback.schedule.schedule import Schedule
from pullback.schedule.slots import numbered
from pullback.verify.kernel import spread


def split(kernel: Kernel, target: Target, choose: Choose) -> list[Kernel]:
    """The most launches that a kernel can be cut into; itself where it cannot.

    `choose` gives the schedule of a kernel.
    """
    if kernel.parts:
        return [kernel]
    ends = [*_cuts(kernel), len(kernel.stages)]
    if len(ends) == 1:
        return [kernel]
    schedule = choose(kernel, target)
    products = {step.lead: step.product for step in schedule.steps}
    seen = [products.get(n) for n in range(len(kernel.stages))]
    columns = tuple(None if product is None else product.column for product in seen)
    fixed = replace(kernel, tiling=(schedule.tile, schedule.tasks, columns))
    pieces = [_piece(fixed, start, end) for start, end in pairwise([0, *ends])]
    wanted = _orders(kernel, schedule)
    orders = [order for piece in pieces for order in _orders(piece, choose(piece, target))]
    return pieces if orders == wanted else [kernel]


def _cuts(kernel: Kernel) -> list[int]:
    """Numbers of stages before which a kernel can be cut."""
    last: dict[Value, int] = {}
    for n, stage in enumerate(kernel.every):
        last.update((take.source, n) for take in stage_reads(stage))
    cuts, needed, stored = [], -1, False
    for n, stage in enumerate(kernel.stages):
        if stored and needed < n:
            cuts.append(n)
            stored = False
        whole = stage.store is not None and not spread(stage)
        stored = stored or stage.store is not None
        if not whole:
            needed = max(needed, last.get(stage.target, -1))
    return cuts


def _piece(kernel: Kernel, start: int, end: int) -> Kernel:
    """Stages ``start..end`` alone, with what runs last in the last piece."""
    names: dict[Value, Variable] = {}
    names.update((s.target, s.store) for s in kernel.stages[:start] if s.store is not None)
    stages = tuple(redirected(s, names) for s in kernel.stages[start:end])
    finish: Stages = ()
    if end == len(kernel.stages):
        finish = tuple(redirected(s, names) for s in kernel.finish)
    made = [s.store.name for s in (*stages, *finish) if s.store is not None]
    name = made[0] if len(made) == 1 else f"{made[0]}..{made[-1]}"
    assert kernel.tiling is not None
    tiling = (*kernel.tiling[:2], kernel.tiling[2][start:end])
    return replace(kernel, name=name, stages=stages, finish=finish, tiling=tiling)


def _orders(kernel: Kernel, schedule: Schedule) -> list[tuple[object, ...]]:
    """All that decides in which order the terms of each reduction are added."""
    orders: list[tuple[object, ...]] = []
    for step, stages, _ in numbered(kernel, schedule.steps, schedule.finish):
        tiles = (schedule.tile, schedule.tasks)
        for n in step.stages:
            stage, lead = stages[n], step.lead == n
            if isinstance(stage.form, Map):
                continue
            product = step.product if lead else None
            lanes = step.vector if step.vector in stage.over else None
            facts = () if product is None else (product.row, product.column, product.scale is None)
            orders.append((stage.target, step.way, lanes, facts, tiles if spread(stage) else ()))
    return orders
