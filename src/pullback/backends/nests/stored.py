"""What several kernels would compute again reaches memory, where that takes less.

    s[i, j] = sum[e] q[i, e] k[j, e]          marked to be computed again
    dq[i, e] = sum[j] s[i, j] k[j, e];  dk[j, e] = sum[i] s[i, j] q[i, e]
    ->  s may be stored: a kernel of rows i and one of rows j would each compute it

Attention of few positions: 3 heads of 197 positions of 64, 2 pictures, with gradients, one Zen 3
core: 4.3 ms, 3.1 with the exponentials and the adjoint of the scores stored. What neither the last
cache holds nor what it is made of is as large as stays out of memory: 8192 positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from pullback.cost.facts import elements, is_cheap, study
from pullback.ir.expr import Axis, Take, upper
from pullback.ir.graph import Definition, Graph, Keep, Map, Reduce, Value
from pullback.ir.target import Target
from pullback.simplify.graph import Sources

Axes = frozenset[int]  # of a value
MOVES = 3  # of an element that is stored: its line is fetched, written and read again


def with_stored(graph: Graph, target: Target) -> Graph:
    """`graph`, whose definitions that are marked to be computed again may reach memory where that
    takes less; itself where none does.

    Who reads one only after another reader of it, as a backward does after its forward, reads a
    copy, which fusion does not compute with the forward: it would wait in memory.
    """
    chosen = _chosen(graph, target)
    if not chosen:
        return graph
    late = _late(graph, chosen)
    waiting = {t for tables in late.values() for t in tables}
    sources = Sources({})
    copies: dict[Value, Value] = {}
    for d in graph.definitions:
        copied: dict[Value, Value] = {t: copies[t] for t in late.get(d, ())}
        own = Sources(sources.mapping | copied) if copied else sources
        made = own.of(d)
        sources.mapping[d] = made
        if d in chosen:
            copies[d] = replace(made, keep=Keep.LATE)
            if d not in waiting or _no_larger(d):
                sources.mapping[d] = copies[d]
    return graph.of(sources.mapping)


def _late(graph: Graph, tables: set[Definition]) -> dict[Definition, set[Definition]]:
    """Who reads a table after another reader of it, and which."""
    late: dict[Definition, set[Definition]] = {}
    before: dict[Definition, set[Definition]] = {}  # tables that what one is made of reads
    for d in graph.definitions:
        made_of = [s for s in d.sources if isinstance(s, Definition)]
        below = set[Definition]().union(*(before[s] for s in made_of))
        own = tables & set(made_of)
        before[d] = below | own
        if own & below:
            late[d] = own & below
    return late


def _chosen(graph: Graph, target: Target) -> set[Definition]:
    """The definitions to be stored, each the last before sums over different axes."""
    sums: dict[Definition, set[Axes]] = {}
    chosen: set[Definition] = set()
    for reader in reversed(graph.definitions):
        over = sums.get(reader, set())
        if reader.keep is Keep.AGAIN and len(over) > 1 and _pays(reader, target):
            chosen.add(reader)
            over = {max(over, key=max)}  # computed with the sums along its rows
        for take in reader.reads:
            if isinstance(take.source, Definition) and take.source.unstored:
                sums.setdefault(take.source, set()).update(_summed(reader, take, over))
    return chosen


def _summed(reader: Definition, take: Take, over: set[Axes]) -> Iterator[Axes]:
    """The axes of a value that are summed over by who reads it, or by the readers `over` of that,
    where these would compute it again.
    """
    if isinstance(reader.form, Reduce):
        last = range(len(reader.shape), len(reader.extents))
        axes = frozenset(n for n, i in enumerate(take.indices) if not i.axes.isdisjoint(last))
        yield from (axes,) if axes else ()
    elif isinstance(reader.form, Map) and reader.unstored:
        for axes in over:
            own = (n for n, i in enumerate(take.indices) if isinstance(i, Axis))
            through = frozenset(n for n in own if not take.indices[n].axes.isdisjoint(axes))
            yield from (through,) if through else ()


def _pays(d: Definition, target: Target) -> bool:
    """Whether to compute an element again takes longer than to store it, and there is room."""
    if is_cheap(_again(d)[0], target.profile, MOVES, "memory_sweep"):
        return False
    return _bytes(d) <= target.l3 or _no_larger(d)


def _no_larger(d: Definition) -> bool:
    """Whether it takes no more memory than what it is made of."""
    return _bytes(d) <= sum(map(_bytes, _again(d)[1]))


def _bytes(value: Value) -> int:
    return elements(value.shape) * value.dtype.itemsize


def _again(d: Definition) -> tuple[int, set[Value]]:
    """Weighted operations of an element with all that does not reach memory; what it is made of."""
    terms = prod(map(upper, d.extents[len(d.shape) :]))
    work, made_of = study(d.body, d.form).flops, set[Value]()
    for source in d.sources:
        if isinstance(source, Definition) and source.unstored:
            more, below = _again(source)
            work, made_of = work + more, made_of | below
        else:
            made_of.add(source)
    return work * terms, made_of
