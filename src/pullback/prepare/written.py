"""Reductions of a few terms, written out once grouping is done."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import prod

from pullback.config import Cap
from pullback.cost.facts import is_cheap, study
from pullback.ir import expr as E
from pullback.ir.expr import Expr, Take, takes
from pullback.ir.graph import (
    Definition,
    Map,
    Moves,
    Reduce,
    Value,
    placed_at,
    replace_reads,
    substitute,
    with_places,
)
from pullback.ir.kernel import Kernel, Stage, Stages, stage_reads
from pullback.ir.node import walk
from pullback.machine.machine import Machine
from pullback.simplify.rules import simplify

# Reductions of so few terms are written out: longer ones run in loops of their own.
MOST_TERMS = 4
# Nodes of a body that is written out: more take longer to compile.
MOST_NODES: Cap = 96


def write_out(kernel: Kernel, machine: Machine) -> Kernel:
    """Small reductions as maps, which need no loop, and share one with the maps that follow.

    ``s[i] = sum[k < 2](f(i, k))  ->  s[i] = f(i, 0) + f(i, 1)``
    """
    renamed: dict[Value, Definition] = {}
    stages = tuple(_stage(s, renamed) for s in kernel.stages)
    if not renamed:
        return kernel
    finish = tuple(_stage(s, renamed) for s in kernel.finish)
    stages = _absorbed(stages, set(renamed.values()), machine)
    return replace(kernel, stages=stages, finish=finish)


def _absorbed(stages: Stages, written: set[Definition], machine: Machine) -> Stages:
    """Without the cheap maps that only written-out stages read: those compute them on the way.
    Finish stages read none of them: what is a tile's is gone by then.

    ``a[k] = max(z[k], 0); s[i] = d[0, i] * a[0] + ..  ->  s[i] = d[0, i] * max(z[0], 0) + ..``
    """
    kept = {stage.target: stage for stage in stages}
    for target in list(kept):
        stage = kept[target]
        if not _cheap(stage, machine):
            continue
        readers = [s for s in kept.values() if any(t.source is target for t in stage_reads(s))]
        if not readers or any(s.target not in written for s in readers):
            continue

        def change(take: Take, source: Stage = stage) -> Expr | None:
            here = take.source is source.target
            return placed_at(source.body, take.indices) if here else None

        del kept[target]
        for s in readers:
            kept[s.target] = replace(s, body=simplify(replace_reads(s.body, change)))
    return tuple(kept.values())


def _cheap(stage: Stage, machine: Machine) -> bool:
    """Whether computing an element from one read costs no more than writing it and reading it."""
    if stage.store is not None or stage.partial or not isinstance(stage.form, Map):
        return False
    reads = list(takes(stage.body))
    return len(reads) == 1 and is_cheap(study(stage.body, stage.form).flops, machine, 2)


def _stage(stage: Stage, renamed: dict[Value, Definition]) -> Stage:
    def change(take: Take) -> Expr | None:
        target = renamed.get(take.source)
        return None if target is None else take.of(target)

    if any(t.source in renamed for t in stage_reads(stage)):
        form = with_places(stage.form, change)
        body = replace_reads(stage.body, change)
        stage = replace(stage, form=form, body=body)
    terms = _written(stage)
    if terms is None:
        return stage
    target = renamed[stage.target] = replace(stage.target, body=terms, form=Map())
    return replace(stage, target=target, form=Map(), body=terms)


def _written(stage: Stage) -> Expr | None:
    """The body of a small reduction written out; None for anything else."""
    form = stage.form
    if not isinstance(form, Reduce) or stage.partial:
        return None
    extents = [e for e in form.over if isinstance(e, int)]
    terms = prod(extents)
    if len(extents) < len(form.over) or not 1 <= terms <= MOST_TERMS:
        return None
    nodes = list(walk(stage.body))
    # A divided index has no stride along the lanes: such a product does better in panels.
    divided = any(isinstance(n, E.FloorDiv | E.Mod) for n in nodes)
    if divided or terms * len(nodes) > MOST_NODES:
        return None
    total: Expr | None = None
    for place in product(*map(range, extents)):
        values: Moves = {a: E.index(i) for a, i in zip(stage.over, place, strict=True)}
        term = substitute(stage.body, values)
        total = term if total is None else form.combiner.join(total, term)
    return None if total is None else simplify(total)
