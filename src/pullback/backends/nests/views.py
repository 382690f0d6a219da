"""Indices by division, computed once, rewritten before fusion.

    y[p] = sum[k](a[p // 7 % 4, p % 7, k] * b[p // 7 % 4, k])
    -> s[w, r] = sum[k](a[w, r, k] * b[w, k]); y[p] = s[p // 7 % 4, p % 7]
    s[w, i, j] = sum[c](x[(w * 7 + i // 7 + 3) % 28, c] * ..)
    -> u[w, i, c] = x[(w * 7 + i // 7 + 3) % 28, c]; s[w, i, j] = sum[c](u[w, i, c] * ..)
    y[w, h, i] = if(zone(w, i) == 0, f(w, h, i), 0)  ->  m[w, i] = zone(w, i) == 0; ..

Windows of an image, rolled; tables of relative positions; masks of zones. Where it costs less.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from pullback.algebra.bounds import DIVIDED, all_inside, in_bounds
from pullback.backends.nests.segments import whole
from pullback.cost.facts import FLOPS, elements, points
from pullback.ir import expr as E
from pullback.ir.dtype import bool_, int64
from pullback.ir.expr import Axis, Expr, Take, takes
from pullback.ir.graph import SUM, Definition, Graph, Keep, Map, Moves, Reduce, read, substitute
from pullback.ir.node import Node, reach, walk
from pullback.simplify.graph import Sources, simplify_graph
from pullback.simplify.product import Quotient
from pullback.simplify.rules import simplify

LONGEST = 4096  # of an axis whose places are looked at one by one

Prices = Mapping[str, float]  # nanoseconds, by the names of [places]


def with_views(graph: Graph, ns: Prices) -> Graph:
    """`graph` with what its indices divide looked up once; itself where nothing is."""
    order = graph.definitions
    if not any(isinstance(n, DIVIDED) for n in walk([d.body for d in order])):
        return graph
    sources, changed = Sources({}), False
    again = {source for d in order for source in _viewed(ns, d)}
    for d in order:
        own = sources.of(d)
        fresh = replace(own, keep=Keep.ALWAYS) if d in again else _plainer(ns, own)
        changed |= fresh is not own
        sources.mapping[d] = fresh
    return simplify_graph(graph.of(sources.mapping)) if changed else graph


def arithmetic(e: Expr) -> int:
    """The operations of an expression, reads not counted."""
    own = [n for n in walk(e) if isinstance(n, Expr) and n.children]
    return sum(FLOPS.get(type(n), 1) for n in own if not isinstance(n, Take | E.Cast))


def is_product(d: Definition) -> bool:
    """Whether it is a sum of plain products over several terms."""
    own = isinstance(d.form, Reduce) and d.form.combiner is SUM and isinstance(d.body, E.Mul)
    return own and d.dtype.is_float and whole(d)


def _divides(e: Expr) -> bool:
    """Whether it divides more than an axis by literals, which loops over its parts do not."""
    return any(isinstance(n, DIVIDED) and not _part(n) for n in walk(e))


def _part(e: Expr) -> bool:
    """``k // 64 % 3``: a loop goes over it."""
    while isinstance(e, DIVIDED) and E.divisor(e):
        e = e.left
    return isinstance(e, Axis)


def _plainer(ns: Prices, d: Definition) -> Definition:
    """`d` with what it divides kept, or over other axes: whichever copies less."""
    boxed = _boxed(ns, d)
    if boxed is None or _copied(ns, boxed[0]) + elements(d.shape) >= _copied(ns, d):
        return kept(ns, d)
    return replace(d, body=simplify(read(kept(ns, boxed[0]), *boxed[1])), form=Map())


def _copied(ns: Prices, d: Definition) -> int:
    """Elements of copies that a product reads without division; all points, where it cannot."""
    reads = [f for f in Quotient.of(d.body).above if isinstance(f, Take) and _divided(f)]
    return sum(_count(d, f) if _spares(ns, d, f) else points(d) for f in reads)


def _boxed(ns: Prices, d: Definition) -> tuple[Definition, list[Expr]] | None:
    """A sum of products over what its axes are divided into, and where `d` reads it.

    An axis that is seen only through quotients and remainders that tell all of its places apart,
    and fill a box, is that box.
    """
    saved = (points(d) - elements(d.shape)) * arithmetic(d.body) * ns["operation"]
    if not is_product(d) or saved < ns["kernel"] + elements(d.shape) * (ns["kept"] + ns["turned"]):
        return None
    boxes = {n: box for n in range(len(d.shape)) if (box := _box(d.body, d.axes[n]))}
    if not boxes:
        return None
    memo: dict[Node, Node] = {}
    shape: list[E.Extent] = []
    at: list[Expr] = []
    moves: Moves = {}
    for n, extent in enumerate(d.shape):
        for atom, first, size in boxes.get(n, ()):
            memo[atom] = E.Add(Axis(len(shape), size), E.index(first))
            at.append(E.Add(atom, E.index(-first)))
            shape.append(size)
        if n not in boxes:
            moves[n] = Axis(len(shape), extent)
            at.append(d.axes[n])
            shape.append(extent)
    assert isinstance(d.form, Reduce)
    moves |= dict(enumerate(E.axes(d.form.over, len(shape)), len(d.shape)))

    def change(node: Node) -> Node | None:
        return moves.get(node.number) if isinstance(node, Axis) else None

    body = simplify(E.rewritten(d.body, change, memo))
    if not all_inside(body):
        return None
    return replace(d, name=f"{d.name}_box", shape=tuple(shape), body=body), at


def _box(body: Expr, axis: Axis) -> list[tuple[Expr, int, int]]:
    """Expressions of an axis that stand for it, with the first value and the number of values."""
    if not isinstance(axis.extent, int) or not 1 < axis.extent <= LONGEST:
        return []

    def atom(node: Node) -> bool:
        return isinstance(node, DIVIDED) and node.axes == {axis.number} and not any(takes(node))

    atoms: dict[Expr, np.ndarray] = {}
    for node in reach([body], lambda n: () if atom(n) else n.children):
        if isinstance(node, Axis) and node.number == axis.number:
            return []
        if isinstance(node, Expr) and atom(node):
            values = _values(node, axis.extent)
            if values is None:
                return []
            atoms[node] = values
    if len(atoms) < 2:
        return []
    lows = {a: int(v.min()) for a, v in atoms.items()}
    sizes = {a: int(v.max()) - lows[a] + 1 for a, v in atoms.items()}
    place = np.zeros(axis.extent, np.int64)
    for a, v in atoms.items():
        place = place * sizes[a] + v - lows[a]
    if prod(sizes.values()) != axis.extent or len(np.unique(place)) != axis.extent:
        return []
    slow = sorted(atoms, key=lambda a: np.count_nonzero(np.diff(atoms[a])))
    return [(a, lows[a], sizes[a]) for a in slow]


def _values(e: Expr, extent: int) -> np.ndarray | None:
    """An index at every place of its axis; None for what is no arithmetic of literals."""
    memo: dict[Node, np.ndarray] = {}
    for node in walk(e):
        match node:
            case E.Const():
                memo[node] = np.full(extent, int(node.value))
            case Axis():
                memo[node] = np.arange(extent)
            case E.Add():
                memo[node] = memo[node.left] + memo[node.right]
            case E.Mul():
                memo[node] = memo[node.left] * memo[node.right]
            case E.FloorDiv() | E.Mod() if memo[node.right].all():
                made = np.floor_divide if isinstance(node, E.FloorDiv) else np.mod
                memo[node] = made(memo[node.left], memo[node.right])
            case _:
                return None
    return memo[e]


def kept(ns: Prices, d: Definition) -> Definition:
    """`d` with its reads at quotients and its conditions on them kept, where that is less work."""
    if not whole(d) or not isinstance(d.form, Map | Reduce) or not d.shape or d.keep is Keep.ALWAYS:
        return d
    chosen: dict[Node, Node] = {}
    if is_product(d):
        factors = [f for f in Quotient.of(d.body).above if isinstance(f, Take) and not f.is_data]
        chosen = {f: _stored(ns, d, f) for f in factors if _divided(f) and _spares(ns, d, f)}
    else:
        lane = len(d.shape) - 1

        def below(n: Node) -> Sequence[Node]:
            return () if isinstance(n, Take) or _alone(ns, d, n, lane) else n.children

        for n in reach([d.body], below):
            if isinstance(n, Expr) and _alone(ns, d, n, lane):
                chosen[n] = _stored(ns, d, n)
    if not chosen or not (is_product(d) or all_inside(d.body)):  # a condition keeps a read inside
        return d
    return replace(d, body=simplify(E.rewritten(d.body, lambda _: None, chosen)))


def _divided(take: Take) -> bool:
    """Whether indices divide, and lie inside without any guard."""
    return any(map(_divides, take.indices)) and all(in_bounds(take))


def _count(d: Definition, e: Expr) -> int:
    return prod(E.upper(d.extents[n]) for n in e.axes)


def _spares(ns: Prices, d: Definition, take: Take) -> bool:
    """Whether a copy of what a product reads, no larger than that, costs less than its indices."""
    count = _count(d, take)
    ops = sum(map(arithmetic, take.indices))
    saved = (points(d) - count) * ops * ns["operation"] - count * ns["turned"] - ns["kernel"]
    return count <= elements(take.source.shape) and saved > 0


def _alone(ns: Prices, d: Definition, node: Node, lane: int) -> bool:
    """Whether what is read or asked at quotients, in lanes, is better kept: one for many points."""
    if not isinstance(node, Expr) or lane not in node.axes or len(node.axes) == len(d.extents):
        return False
    asks = node.dtype in (bool_, int64) and not any(takes(node))
    if not asks and not (isinstance(node, Take) and not node.is_data):
        return False
    inner = node.children if isinstance(node, Take) else (node,)
    if not any(isinstance(n, DIVIDED) and lane in n.axes for n in walk(inner)):
        return False
    count = _count(d, node)
    saved = (points(d) - count) * arithmetic(node) * ns["operation"]
    return saved > points(d) * ns["kept"] + count * ns["alone"] + ns["kernel"]


def _stored(ns: Prices, d: Definition, e: Expr) -> Expr:
    """An expression as a definition over its axes, which reaches memory; lanes lie last."""
    last: Expr = d.axes[len(d.shape) - 1]
    if isinstance(e, Take) and isinstance(d.form, Reduce):
        last = e.indices[-1]
    rank = 0 if isinstance(e, Take) else len(d.shape)
    own = sorted(e.axes, key=lambda n: (d.axes[n] is last, n < rank, n))
    shape = tuple(d.extents[n] for n in own)
    moves: Moves = {n: Axis(k, d.extents[n]) for k, n in enumerate(own)}
    body = simplify(substitute(e, moves))
    stored = Definition(f"{d.name}_view", shape, body, origin=d.origin)
    stored = kept(ns, stored) if stored.dtype is bool_ else stored
    return read(replace(stored, keep=Keep.ALWAYS), *(d.axes[n] for n in own))


def _viewed(ns: Prices, d: Definition) -> Iterator[Definition]:
    """Views at quotients among the factors of a sum of products."""
    if not is_product(d):
        return
    for factor in Quotient.of(d.body).above:
        source = factor.source if isinstance(factor, Take) and not factor.is_data else None
        view = source.body if isinstance(source, Definition) else None
        if not isinstance(source, Definition) or not isinstance(view, Take) or view.is_data:
            continue
        if not isinstance(source.form, Map) or source.keep is not Keep.AUTO or not whole(source):
            continue
        ops = sum(map(arithmetic, view.indices))
        saved = (points(d) - points(source)) * ops * ns["operation"]
        paid = points(source) * ns["turned"] + ns["kernel"]
        small = points(source) <= elements(view.source.shape)
        if _divided(view) and small and saved > paid:
            yield source
