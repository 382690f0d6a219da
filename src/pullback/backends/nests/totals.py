"""Sums of products of which nothing else is wanted.

    p[i, j] = sum[k](a[i, k] * b[k, j]); y[] = sum[i, j](p[i, j] * 3 + c[i, j])
    -> u[k] = sum[i] a[i, k]; v[k] = sum[j] b[k, j]
       y[] = sum[k](u[k] * v[k]) * 3 + sum[i, j] c[i, j]
    p[i] = sum[j](x[j] * a[j, i]); y[] = sum[i] p[i]  ->  y[] = sum[i, j](x[j] * a[j, i])

The first where it costs less; the second, a product with a vector, may then share any axis with
what else reads its matrix.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator
from dataclasses import replace
from functools import reduce

from pullback.algebra.affine import flat
from pullback.backends.nests.segments import whole
from pullback.backends.nests.views import is_product
from pullback.config import frozen
from pullback.cost.facts import elements
from pullback.ir import expr as E
from pullback.ir.expr import Axis, Expr, Exprs, Shape, Take
from pullback.ir.graph import (
    SUM,
    Definition,
    Graph,
    Keep,
    Map,
    Moves,
    Reduce,
    placed_at,
    read,
    substitute,
)
from pullback.ir.node import walk
from pullback.machine.machine import Machine
from pullback.simplify.graph import Sources, simplify_graph
from pullback.simplify.product import Quotient, scale
from pullback.simplify.rules import simplify


def with_totals(graph: Graph, machine: Machine) -> Graph:
    """`graph` with its sums of products made without these; itself where there are none."""
    while True:
        single = _only_summed(graph)
        if not any(map(is_product, single)):
            return graph
        sources, changed = Sources({}), False
        inner: set[Definition] = set()
        for d in graph.definitions:
            own = sources.of(d)
            fresh = _total(own, inner, machine)
            changed |= fresh is not own
            sources.mapping[d] = fresh
            if d in single:
                inner.add(fresh)
        if not changed:
            return graph
        graph = simplify_graph(graph.of(sources.mapping))


def _only_summed(graph: Graph) -> set[Definition]:
    """Products, and maps, that are read once: by a sum, or a map that only a sum reads."""
    order = graph.definitions
    uses = Counter(value for _, value in graph.assigns)
    uses.update(take.source for d in order for take in d.reads)
    single: set[Definition] = set()
    for d in reversed(order):
        if _is_sum(d) or (d in single and isinstance(d.form, Map)):
            sources = (take.source for take, _ in _terms(d.body, ()) if isinstance(take, Take))
            single |= {s for s in sources if isinstance(s, Definition) and _free(s, uses[s])}
    return single


def _free(d: Definition, uses: int) -> bool:
    own = is_product(d) or (isinstance(d.form, Map) and d.dtype.is_float)
    return own and uses == 1 and d.keep is Keep.AUTO


def _is_sum(d: Definition) -> bool:
    own = isinstance(d.form, Reduce) and d.form.combiner is SUM
    return own and d.dtype.is_float and whole(d)


def _terms(e: Expr, single: Container[object]) -> Iterator[tuple[Expr, float]]:
    """The terms of a sum, each with its literal factor; maps of `single` are written in."""
    for part in flat(e, E.Add):
        quotient = Quotient.of(part)
        plain = len(quotient.above) == 1 and not quotient.below
        factor = quotient.factor if plain else 1
        term = quotient.above[0] if plain else part
        if not isinstance(term, Take) or term.source not in single:
            yield term, factor
        elif isinstance(term.source, Definition) and isinstance(term.source.form, Map):
            body = placed_at(term.source.body, term.indices)
            yield from ((inner, own * factor) for inner, own in _terms(body, single))
        else:
            yield term, factor


def _total(d: Definition, single: Container[object], machine: Machine) -> Definition:
    """A sum without the products in it, which are among `single`; itself where that costs more."""
    if not _is_sum(d):
        return d
    axes = d.axes[: len(d.shape)]
    made: list[Expr] = []
    rest: list[Expr] = []
    for term, factor in _terms(d.body, single):
        product = _product(d, term) if isinstance(term, Take) and term.source in single else None
        sums = None if product is None else product.sums(machine)
        if sums is None:
            rest.append(scale(term, factor, d.dtype))
        else:
            made.append(scale(read(sums, *axes), factor, d.dtype))
    if not made:
        return d
    if rest:
        body = simplify(reduce(E.Add, rest))
        made.append(read(replace(d, name=f"{d.name}_rest", body=body, keep=Keep.AUTO), *axes))
    return replace(d, body=simplify(reduce(E.Add, made)), form=Map())


@frozen
class _Product:
    """``d[..] = sum[..](product of factors)`` over `extents`, the first axes those of `d`.

    `own`: of each factor, the axes that `d` sums and no other factor has.
    """

    d: Definition
    factors: Exprs
    literal: float
    extents: Shape
    own: tuple[frozenset[int], ...]

    def sums(self, machine: Machine) -> Definition | None:
        """What the sum is instead; None where it costs less as it is."""
        rates = machine.tables["whole"]
        pulled = [f for f, own in zip(self.factors, self.own, strict=True) if own]
        left = frozenset(range(len(self.extents))).difference(*self.own)
        moved = sum(map(self._points, (f.axes for f in pulled))) + 2 * self._points(left)
        spent = moved * self.d.dtype.itemsize / rates["memory"]
        spent += len(pulled) * machine.rate("launch", "launch")
        every = self._points(range(len(self.extents)))
        if spent < 2 * every / rates["product_flops"]:
            return self._apart()
        largest = max(self.factors, key=lambda f: self._points(f.axes))
        return self._over(largest) if self._points(largest.axes) == every else None

    def _over(self, matrix: Expr) -> Definition:
        """One sum over all axes, in the order in which the matrix lies."""
        lie = [n.number for n in walk(matrix) if isinstance(n, Axis)]
        over = range(len(self.d.shape), len(self.extents))
        return self._sum(self.factors, [n for n in dict.fromkeys((*lie, *over)) if n in over])

    def _points(self, axes: Iterable[int]) -> int:
        return elements(self.extents[n] for n in axes)

    def _apart(self) -> Definition:
        """A sum of products of sums. ``sum[i, j, k](a[i, k] * b[k, j]) -> sum[k](u[k] * v[k])``"""
        factors = tuple(map(self._summed, self.factors, self.own))
        rank = len(self.d.shape)
        left = frozenset(range(rank, len(self.extents))).difference(*self.own)
        return self._sum(factors, sorted(left))

    def _summed(self, factor: Expr, own: frozenset[int]) -> Expr:
        """A factor, summed over its own axes."""
        if not own:
            return factor
        left, over = sorted(factor.axes - own), sorted(own)
        moves = self._moves([*left, *over])
        shape = tuple(self.extents[n] for n in left)
        form = Reduce(SUM, tuple(self.extents[n] for n in over))
        body = simplify(substitute(factor, moves))
        inner = Definition(f"{self.d.name}_inner", shape, body, form, origin=self.d.origin)
        return read(inner, *(Axis(n, self.extents[n]) for n in left))

    def _sum(self, factors: Exprs, over: list[int]) -> Definition:
        moves = self._moves([*range(len(self.d.shape)), *over])
        body = scale(reduce(E.Mul, factors), self.literal, self.d.dtype)
        form = Reduce(SUM, tuple(self.extents[n] for n in over)) if over else Map()
        body = simplify(substitute(body, moves))
        name = f"{self.d.name}_total"
        return Definition(name, self.d.shape, body, form, origin=self.d.origin)

    def _moves(self, axes: list[int]) -> Moves:
        return {n: Axis(k, self.extents[n]) for k, n in enumerate(axes)}


def _product(d: Definition, take: Take) -> _Product | None:
    """A read of a product under a sum, as one sum; None where no axis is one factor's own."""
    source = take.source
    if not isinstance(source, Definition) or not is_product(source):
        return None
    assert isinstance(source.form, Reduce)
    quotient = Quotient.of(source.body)
    axes = frozenset(i.number for i in take.indices if isinstance(i, Axis))
    summed = range(len(d.shape), len(d.extents))
    if quotient.below or len(axes) < len(take.indices) or not axes.issuperset(summed):
        return None
    over = E.axes(source.form.over, len(d.extents))
    moves: Moves = dict(enumerate((*take.indices, *over)))
    factors = tuple(substitute(f, moves) for f in quotient.above)
    uses = Counter(n for f in factors for n in f.axes)
    several = {n for n in summed if d.extents[n] != 1 and uses[n] == 1}
    own = tuple(frozenset(several & f.axes) for f in factors)
    if not any(own):
        return None
    extents = (*d.extents, *source.form.over)
    return _Product(d, factors, quotient.factor, extents, own)
