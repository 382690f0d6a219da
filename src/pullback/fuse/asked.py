"""Which definitions are read at places that only a run knows, and which bodies check such places.

An index that is data is checked where it is read, against the extent of what it reads. Written into
its reader, a definition is read no more: its body must check as much, or it stays a value.

    v[i] = x[i+1]; y[j] = v[t[j]]    x[t[j]+1] lets t = -1 pass: v is stored
    v[i] = x[i]*2; y[j] = v[t[j]]    x[t[j]]*2 checks what v[t[j]] would
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pullback.algebra.affine import affine
from pullback.algebra.bounds import bounds, in_bounds
from pullback.ir import expr as E
from pullback.ir.expr import Axis, Expr, Extent, Shape, Take, evaluated
from pullback.ir.graph import Definition
from pullback.ir.node import reach, walk

Places = dict[Definition, set[int]]


def asked(order: Iterable[Definition]) -> Places:
    """For each definition the places at which some index is data, and not known to be inside.

    `order` has sources first. What such a definition reads at the same place is asked there too.
    """
    places: Places = {}
    for definition in reversed(list(order)):
        own = places.get(definition, set())
        for node in definition.reads:
            if isinstance(node.source, Definition):
                wanted = {p for p in range(len(node.indices)) if _follows(node, p, own)}
                wanted |= _unknown(node)
                if wanted:
                    places.setdefault(node.source, set()).update(wanted)
    return places


def _follows(take: Take, place: int, own: Collection[int]) -> bool:
    """Whether an index may lie outside where axes `own` do; a remainder never does."""
    index = take.indices[place]
    extent = take.source.shape[place]
    if isinstance(index, E.Mod) and isinstance(extent, int) and 0 < E.divisor(index) <= extent:
        return False
    return not index.axes.isdisjoint(own)


def _unknown(take: Take) -> set[int]:
    """The places of a read whose indices are data that may lie outside."""
    if not take.is_data:
        return set()
    inside = in_bounds(take)
    data = (any(map(E.is_data, walk(index))) for index in take.indices)
    return {p for p, (d, i) in enumerate(zip(data, inside, strict=True)) if d and not i}


def checks(body: Expr, shape: Shape, places: Collection[int]) -> bool:
    """Whether reads of `body`, wherever it goes, fail for whatever lies outside at `places`."""
    reads = [n for n in reach([body], evaluated) if isinstance(n, Take)]
    return all(any(_fails(take, p, shape[p], places) for take in reads) for p in places)


def _fails(take: Take, place: int, extent: Extent, places: Collection[int]) -> bool:
    """Whether a read lies outside exactly where axis `place` does: ``c i + r``, r below c."""
    axis = Axis(place, extent)
    for index, bound in take.places:
        if index is axis:
            if bound == extent:
                return True
            continue
        if not (isinstance(bound, int) and isinstance(extent, int)):
            continue
        if isinstance(index, E.FloorDiv) and index.left is axis:
            by = index.right
            if isinstance(by, E.Const) and by.value * bound == extent:
                return True
            continue
        step = affine(index).of(axis)
        others = index.axes - {place}
        if step < 1 or step * extent != bound or others & set(places):
            continue
        low, high = bounds(E.Add(index, E.Mul(axis, E.index(-step))))
        if low >= 0 and high < step:
            return True
    return False
