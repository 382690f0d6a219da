"""Calls: computations that are no definitions, such as loops and branches, among those that are.

    y = a(x); z = loop(y); w = b(z)        order: y, loop, z, w

A call leaves `results`, definitions that read what it wrote. Its derivative is a rule of theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from pullback.ir.graph import Definition, Value, Variable


class Call:
    """A computation with several results. `sources`: every value it may depend on."""

    __slots__ = ("results", "sources")
    results: list[Definition]
    sources: Sequence[Value]


Node = Definition | Call
Calls = Mapping[Definition, Call]


def nothing(value: Value) -> bool:
    """No value is known."""
    return False


def ordered(
    roots: Iterable[Value], calls: Calls, known: Callable[[Value], bool] = nothing
) -> list[Node]:
    """Definitions and calls that `roots` need, sources first, without those that are `known`."""
    order: list[Node] = []
    seen: set[Node] = set()
    stack: list[tuple[Value | Call, bool]] = [(r, False) for r in reversed(list(roots))]
    while stack:
        node, ready = stack.pop()
        if isinstance(node, Variable):
            continue
        if ready:
            order.append(node)
            continue
        if node in seen or (isinstance(node, Definition) and known(node)):
            continue
        seen.add(node)
        stack.append((node, True))
        stack.extend((s, False) for s in reversed(below(node, calls)))
    return order


def below(node: Node, calls: Calls) -> Sequence[Value | Call]:
    """What `node` needs: of a result, the call that leaves it; all outputs of its rule."""
    if isinstance(node, Call):
        return node.sources
    if node in calls:
        return (calls[node],)
    if node.rule is None:
        return node.sources
    return (*node.sources, *node.rule.deps, *node.rule.outputs)
