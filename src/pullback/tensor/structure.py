"""The structure of a graph: equal for graphs that differ only in which variables they use."""

from __future__ import annotations

from typing import Any

from pullback.ir.expr import Expr, Take
from pullback.ir.graph import Accumulate, Definition, Graph, Reduce, Scan, Value
from pullback.ir.node import walk

Key = tuple[Any, ...]


def structure_key(graph: Graph) -> Key:
    """A hashable that says everything about `graph` but the identity of what it names."""
    numbers: dict[Value, int] = {}
    for variable in graph.inputs:
        numbers[variable] = len(numbers)
    parts: list[Any] = [(v.shape, v.dtype) for v in numbers]
    for definition in graph.definitions:
        roots = tuple(_expression(r, numbers) for r in definition.roots)
        parts.append((definition.shape, _form(definition), roots, definition.keep))
        numbers[definition] = len(numbers)
    targets = tuple((numbers.get(v, -1), numbers[d]) for v, d in graph.assigns)
    return (tuple(parts), targets)


def _form(definition: Definition) -> Key:
    form = definition.form
    if isinstance(form, Reduce):
        return ("reduce", form.combiner.name, form.over)
    if isinstance(form, Scan):
        return ("scan", form.combiner.name, form.axis)
    if isinstance(form, Accumulate):
        return ("accumulate", form.combiner.name, form.domain)
    return ("map",)


def _expression(root: Expr, numbers: dict[Value, int]) -> Key:
    """One entry per node, children by position; a body that reads nothing is its own key."""
    place: dict[Any, int] = {}
    rows: list[Any] = []
    for node in walk(root):
        kids = tuple(place[c] for c in node.children)
        if isinstance(node, Take):
            rows.append((Take, numbers[node.source], kids))
        elif kids:
            facts = tuple(f for f in node.fields if not isinstance(f, Expr))
            rows.append((type(node), kids, facts))
        else:
            rows.append(node)
        place[node] = len(place)
    return tuple(rows)
