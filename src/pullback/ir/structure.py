"""The structure of a kernel: equal for kernels that differ only in which values they name."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pullback.ir.expr import Expr, Take
from pullback.ir.graph import Accumulate, Form, Reduce, Scan, Value
from pullback.ir.kernel import Kernel, Stage, stage_reads
from pullback.ir.node import walk

Key = tuple[Any, ...]


def kernel_key(kernel: Kernel) -> Key:
    """A hashable that says everything about `kernel` but the identity of what it names.

    Kernels with equal keys take equal arguments in equal order.
    """
    numbers: dict[Value, int] = {v: n for n, v in enumerate(kernel.arguments)}
    arguments = tuple((v.shape, v.dtype) for v in numbers)
    stages = tuple(_stage(s, numbers) for s in kernel.stages)
    finish = tuple(_stage(s, numbers) for s in kernel.finish)
    return (kernel.outer, arguments, stages, finish, kernel.tiling)


def checks(kernel: Kernel) -> Key:
    """What the messages of a kernel say about indices that are data: structure does not."""
    found: list[Any] = []
    for stage in kernel.stages + kernel.finish:
        data = [t for t in stage_reads(stage) if t.is_data]
        found += [(repr(t.source), t.source.origin, t.origin) for t in data]
        if isinstance(stage.form, Accumulate):
            found.append((repr(stage.target), stage.target.origin))
    return tuple(found)


def _stage(stage: Stage, numbers: dict[Value, int]) -> Key:
    roots: list[Expr] = [stage.body]
    if isinstance(stage.form, Accumulate):
        roots.extend(stage.form.at)
    body = _expressions(roots, numbers)
    store = None if stage.store is None else numbers[stage.store]
    numbers[stage.target] = len(numbers)
    return (stage.shape, _form(stage.form), body, stage.outer, store)


def _form(form: Form) -> Key:
    if isinstance(form, Reduce):
        return ("reduce", form.combiner.name, form.over)
    if isinstance(form, Scan):
        return ("scan", form.combiner.name, form.axis)
    if isinstance(form, Accumulate):
        return ("accumulate", form.combiner.name, form.domain)
    return ("map",)


def _expressions(roots: Iterable[Expr], numbers: dict[Value, int]) -> Key:
    """One row per node, children by position; a leaf that reads nothing is its own row."""
    place: dict[Any, int] = {}
    rows: list[Any] = []
    ends = list(roots)
    for node in walk(ends):
        kids = tuple(place[c] for c in node.children)
        if isinstance(node, Take):
            rows.append((Take, numbers[node.source], kids))
        elif kids:
            facts = tuple(f for f in node.fields if not isinstance(f, Expr))
            rows.append((type(node), kids, facts))
        else:
            rows.append(node)
        place[node] = len(place)
    return (tuple(rows), tuple(place[e] for e in ends))
