"""Under which conditions each read happens: the `If`s around it, along every path."""

from __future__ import annotations

from collections.abc import Iterable

from pullback.ir import expr as E
from pullback.ir.expr import Expr, logical_not
from pullback.ir.node import walk

Guards = tuple[Expr, ...]
PATHS = 8  # contexts kept apart for one node; beyond that only what they share


def contexts(roots: Iterable[Expr]) -> dict[Expr, tuple[Guards, ...]]:
    """For each node the guards that hold when it is needed, one entry per way to reach it.

    ``If(c, x[i], If(d, x[i], 0))``: x[i] -> ((c,), (not c, d))
    """
    roots = tuple(roots)
    found: dict[Expr, dict[Guards, None]] = {root: {(): None} for root in roots}
    settled: dict[Expr, tuple[Guards, ...]] = {}
    for node in reversed(list(walk(roots))):
        if not isinstance(node, Expr):
            continue
        paths = _limited(tuple(found[node]))
        settled[node] = paths
        for child, guard in _edges(node):
            into = found.setdefault(child, {})
            for path in paths:
                into[path if guard is None or guard in path else (*path, guard)] = None
    return settled


def _edges(node: Expr) -> list[tuple[Expr, Expr | None]]:
    """Children with the condition that a branch adds."""
    if isinstance(node, E.If):
        return [
            (node.condition, None),
            (node.then, node.condition),
            (node.otherwise, logical_not(node.condition)),
        ]
    return [(c, None) for c in node.children if isinstance(c, Expr)]


def _limited(paths: tuple[Guards, ...]) -> tuple[Guards, ...]:
    """`paths`, less those implied by a weaker one; only what all share where they are many."""
    if () in paths:
        return ((),)
    if len(paths) <= PATHS:
        return paths
    shared = set(paths[0]).intersection(*paths[1:])
    return (tuple(g for g in paths[0] if g in shared),)
