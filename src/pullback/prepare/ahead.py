"""Operands that a loop does not change are turned before it, as the products in it read them.

``loop { z[i, j] = sum[k] h[i, k] * w[j, k] }  ->  u[k, j] = w[j, k]; loop { z = .. * u[k, j] }``

A product of few rows would otherwise spend as long on packing w as on multiplying, every time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from pullback.algebra.affine import factors
from pullback.ir import expr as E
from pullback.ir.dtype import float32
from pullback.ir.expr import Axis, Expr, Take, upper
from pullback.ir.graph import SUM, Definition, Graph, Reduce, Value, Variable, define, read
from pullback.ir.node import Memo
from pullback.ir.program import Block, Branch, Compute, Item, Loop, expand, written
from pullback.machine.machine import Machine
from pullback.simplify.graph import Sources, with_roots
from pullback.simplify.product import uncast

# So many rows hide what packing costs: 0.3 ns an element, 0.02 ns a multiply-add.
MOST_ROWS = 128


def turned_ahead(block: Block, machine: Machine) -> Block:
    """`block` with copies before its loops; products read the copies.

    An element that is packed once, written to memory and read, is not packed again in each turn: on
    a machine that packs.
    """
    if not machine.packs:
        return block
    pack = machine.rate("whole", "pack")
    once = pack + 3 * float32.itemsize / machine.rate("whole", "memory_sweep")
    items: list[Item] = []
    for item in block:
        if isinstance(item, Loop):
            turned = _Turned(frozenset(written(item.body)), machine.vector)
            body = expand(item.body, turned.item) if item.count * pack >= once else item.body
            items += [Compute(Graph((copy,))) for copy in turned.copies]
            items.append(replace(item, body=turned_ahead(body, machine)))
        elif isinstance(item, Branch):
            then = turned_ahead(item.then, machine)
            otherwise = turned_ahead(item.otherwise, machine)
            items.append(replace(item, then=then, otherwise=otherwise))
        else:
            items.append(item)
    return tuple(items)


@dataclass(slots=True)
class _Turned:
    """The copies that one loop wants, in rows of a `vector` and more; it assigns `changed`."""

    changed: Collection[Variable]
    vector: int
    known: dict[tuple[Variable, int], Variable] = field(default_factory=dict)
    copies: list[tuple[Variable, Value]] = field(default_factory=list)

    def item(self, item: Item) -> list[Item] | None:
        """A computation with its operands replaced; None where nothing is."""
        if not isinstance(item, Compute):
            return None
        sources = Sources({})
        for definition in item.graph.definitions:
            roots = [sources(r) for r in definition.roots]
            roots[0] = self.body(definition, roots[0])
            sources.mapping[definition] = with_roots(definition, roots)
        if all(old is new for old, new in sources.mapping.items()):
            return None
        return [Compute(item.graph.of(sources.mapping))]

    def body(self, definition: Definition, body: Expr) -> Expr:
        """The body of a sum of products with the operands that it wants turned replaced."""
        form = definition.form
        if not isinstance(form, Reduce) or form.combiner is not SUM or not isinstance(body, E.Mul):
            return body
        every = factors(body)
        swapped: Memo = {}
        for factor in every:
            others = frozenset[int]().union(*(f.axes for f in every if f is not factor))
            take = uncast(factor)
            place = self.column(take, definition, others)
            if isinstance(take, Take) and place is not None:
                swapped[take] = Take(self.copy(take.source, place), _last(take.indices, place))
        return E.rewritten(body, swapped.get)

    def column(self, factor: Expr, definition: Definition, others: Collection[int]) -> int | None:
        """Which index of a read is the last output axis, if it lies along a summed one."""
        if not isinstance(factor, Take) or factor.source in self.changed:
            return None
        numbers = [i.number for i in factor.indices if isinstance(i, Axis)]
        shape = definition.shape
        last = len(definition.shape) - 1
        plain = isinstance(factor.source, Variable) and len(set(numbers)) == len(factor.indices)
        if not plain or last not in numbers or last in others or numbers[-1] <= last:
            return None
        rows = prod(upper(e) for n, e in enumerate(shape) if n not in numbers)
        wide = upper(shape[last]) * definition.dtype.itemsize >= self.vector
        return numbers.index(last) if wide and 1 < rows <= MOST_ROWS else None

    def copy(self, source: Value, place: int) -> Variable:
        """The variable that holds `source` with index `place` last, filled before the loop."""
        assert isinstance(source, Variable)
        turned = self.known.get((source, place))
        if turned is None:
            shape = _last(source.shape, place)
            turned = Variable(f"{source.name}_turned", shape, source.dtype, source.origin)
            self.known[source, place] = turned
            self.copies.append((turned, define(turned.name, shape, _first(source, place))))
        return turned


def _last(items: tuple[Any, ...], place: int) -> tuple[Any, ...]:
    return (*items[:place], *items[place + 1 :], items[place])


def _first(source: Variable, place: int) -> Callable[..., Expr]:
    """``u[k, j] = w[j, k]``"""

    def body(*at: Expr) -> Expr:
        return read(source, *at[:place], at[-1], *at[place:-1])

    return body
