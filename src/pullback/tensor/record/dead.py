"""Dead code across the items of a program: variables that nobody reads are not computed, loops
that nobody asks for their number do not count.

``loop { a = f(a); b = g(a) }; return a   ->   loop { a = f(a) }; return a``
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from pullback.ir import program as P
from pullback.ir.graph import Definition, Graph, Value, Variable
from pullback.simplify.graph import forwarded


@dataclass(slots=True)
class _Walk:
    """What each variable needs, and what is needed in any case.

    Whatever is written in a loop needs its condition, in a branch its predicate.
    """

    needs: dict[Variable, list[Value]] = field(default_factory=dict)
    roots: list[Value] = field(default_factory=list)

    def block(self, block: P.Block, around: tuple[Variable, ...]) -> None:
        for item in block:
            self.item(item, around)

    def item(self, item: P.Item, around: tuple[Variable, ...]) -> None:
        if isinstance(item, P.Compute):
            for variable, value in item.graph.assigns:
                self.needs.setdefault(variable, []).extend([value, *around])
        elif isinstance(item, P.Loop):
            inner = around if item.condition is None else (*around, item.condition)
            self.block(item.body, inner)
        elif isinstance(item, P.Branch):
            self.block(item.then, (*around, item.predicate))
            self.block(item.otherwise, (*around, item.predicate))
        elif isinstance(item, P.HostCall):
            for target in item.targets:
                self.needs.setdefault(target, []).extend([*item.sources, *around])
        elif isinstance(item, P.Receive):
            self.roots.extend([*item.sources, *around])
        elif isinstance(item, P.Feed):
            self.roots.extend(around)


def without_dead(program: P.Program) -> P.Program:
    """A program without what neither its state nor a receiver ever sees; feeds stay."""
    walk = _Walk()
    walk.block(program.body, ())
    live = _reached([*program.state, *walk.roots], walk.needs)
    return replace(program, body=_block(program.body, live))


def _reached(roots: Iterable[Value], needs: dict[Variable, list[Value]]) -> set[Value]:
    reached: set[Value] = set()
    stack = list(roots)
    while stack:
        value = stack.pop()
        if value in reached:
            continue
        reached.add(value)
        stack.extend(value.sources if isinstance(value, Definition) else needs.get(value, ()))
    return reached


def _block(block: P.Block, live: set[Value]) -> P.Block:
    kept = [_item(item, live) for item in block]
    return tuple(item for item in kept if item is not None)


def _item(item: P.Item, live: set[Value]) -> P.Item | None:
    """`item` without what is dead; None where nothing is left."""
    if isinstance(item, P.Compute):
        assigns = [(v, d) for v, d in item.graph.assigns if v in live and not _stays(v, d)]
        if len(assigns) == len(item.graph.assigns):
            return item
        return P.Compute(Graph(tuple(assigns))) if assigns else None
    if isinstance(item, P.Loop):
        body = _block(item.body, live)
        counter = item.counter if item.counter in live else None
        return replace(item, body=body, counter=counter) if body else None
    if isinstance(item, P.Branch):
        then, otherwise = _block(item.then, live), _block(item.otherwise, live)
        return replace(item, then=then, otherwise=otherwise) if then or otherwise else None
    if isinstance(item, P.HostCall) and live.isdisjoint(item.targets):
        return None
    return item


def _stays(variable: Variable, value: Value) -> bool:
    """Whether an assignment gives `variable` what it holds already."""
    return value is variable or (isinstance(value, Definition) and forwarded(value) is variable)
