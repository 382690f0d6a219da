"""Results that are only laid out otherwise are stored where they are made.

``d[i, 0, k] = sum[m] f(i, 0, k, m); y[i, k] = d[i, 0, k]  ->  y[i, k] = sum[m] f(i, 0, k, m)``
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from pullback.ir.expr import Axis, Expr, Take, index
from pullback.ir.graph import Definition, Map, Reduce, Value, substitute
from pullback.ir.kernel import Kernel, Stage, stage_reads


def viewed(kernel: Kernel) -> Kernel:
    """A kernel without maps that give a sum, which nobody else reads, another shape."""
    read = Counter(t.source for s in kernel.every for t in dict.fromkeys(stage_reads(s)))
    made: dict[Value, Stage] = {s.target: s for s in kernel.stages}
    stages = list(kernel.stages)
    for stage in kernel.stages:
        source = _source(stage, made)
        if source is None or read[source.target] > 1 or read[stage.target]:
            continue
        if stage.store is not None and read[stage.store]:
            continue  # what it writes over is read
        own = _shaped(source, stage)
        if own is not None:
            stages[stages.index(source)] = own
            stages.remove(stage)
    return kernel if len(stages) == len(kernel.stages) else replace(kernel, stages=tuple(stages))


def _source(stage: Stage, made: dict[Value, Stage]) -> Stage | None:
    """The sum that a map reads, and nothing else."""
    if not (isinstance(stage.form, Map) and isinstance(stage.body, Take)):
        return None
    source = made.get(stage.body.source)
    whole = source is not None and isinstance(source.form, Reduce) and source.store is None
    return source if whole else None


def _shaped(source: Stage, stage: Stage) -> Stage | None:
    """A sum in the shape of the map that reads it; None: that does more than drop axes of one."""
    assert isinstance(stage.body, Take), "who asks knows"
    places: dict[int, Expr] = {}
    wide = [a.number for a, e in zip(stage.target.axes, stage.shape, strict=False) if e != 1]
    for number, (at, extent) in enumerate(zip(stage.body.indices, source.shape, strict=True)):
        if extent == 1:
            places[number] = index(0)
        elif isinstance(at, Axis) and wide and at.number == wide[0] and at.extent == extent:
            places[number] = Axis(wide.pop(0), extent)
        else:
            return None
    if wide or source.body.dtype is not stage.body.dtype:
        return None
    moved = len(stage.shape) - len(source.shape)
    for number in source.over:
        places[number] = Axis(number + moved, source.extents[number])
    body, name = substitute(source.body, places), stage.target.name
    target = Definition(name, stage.shape, body, source.form, origin=stage.target.origin)
    return Stage(target, source.form, body, stage.outer, stage.store)
