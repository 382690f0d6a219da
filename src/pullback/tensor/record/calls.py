"""Calls: computations that are no definitions, such as loops and branches, among those that are.

    y = a(x); z = loop(y); w = b(z)        order: y, loop, z, w

A call leaves `results`, definitions that read what it wrote. Its derivative is a rule of theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from pullback.ir.graph import Definition, Value, Variable
from pullback.ir.node import postorder


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

    def under(node: Value | Call) -> Sequence[Value | Call] | None:
        if isinstance(node, Variable) or (isinstance(node, Definition) and known(node)):
            return None
        return below(node, calls)

    return [n for n in postorder(roots, under) if not isinstance(n, Variable)]


def below(node: Node, calls: Calls) -> Sequence[Value | Call]:
    """What `node` needs: of a result, the call that leaves it; all outputs of its rule."""
    if isinstance(node, Call):
        return node.sources
    if node in calls:
        return (calls[node],)
    if node.rule is None:
        return node.sources
    return (*node.sources, *node.rule.deps, *node.rule.outputs)
