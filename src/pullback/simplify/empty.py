"""Extents of zero: nothing is computed for an empty box, and nothing is read from one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pullback.ir import expr as E
from pullback.ir.expr import Expr, Extent, Take, upper
from pullback.ir.graph import (
    Accumulate,
    Definition,
    Graph,
    Map,
    Reduce,
    Value,
    replace_reads,
)
from pullback.simplify.graph import with_roots


def is_empty(shape: Sequence[Extent]) -> bool:
    """Whether a box has no element, whatever its symbolic extents."""
    return any(upper(e) == 0 for e in shape)


def without_empty(graph: Graph) -> Graph:
    """``sum over no k -> 0``; a write to an empty variable is left out; a read of one is 0, but
    for a data index, which has its check.
    """
    boxes = [(*d.shape, *d.extents) for d in graph.definitions]
    if not any(map(is_empty, boxes)) and not any(is_empty(v.shape) for v in graph.inputs):
        return graph
    memo: dict[Value, Value] = {}

    def read(take: Take) -> Expr | None:
        if is_empty(take.source.shape) and not take.is_data:  # data: the check has to fail
            return E.const(0, take.dtype)
        source = memo.get(take.source, take.source)
        return None if source is take.source else take.of(source)

    for definition in graph.definitions:
        filled = with_roots(definition, [replace_reads(r, read) for r in definition.roots])
        memo[definition] = _identity_where_empty(filled)
    return Graph(tuple((v, memo.get(d, d)) for v, d in graph.assigns if not is_empty(v.shape)))


def _identity_where_empty(definition: Definition) -> Definition:
    """A reduction or write over nothing as a constant."""
    form = definition.form
    if not isinstance(form, Reduce | Accumulate) or not is_empty(definition.extents):
        return definition
    nothing = form.combiner.identity(definition.dtype)
    return replace(definition, body=nothing, form=Map())
