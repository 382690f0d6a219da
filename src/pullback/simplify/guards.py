"""Under which conditions each read happens: the `If`s around it, along every path."""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce

from pullback.ir.dtype import bool_
from pullback.ir.expr import (
    And,
    Axis,
    Const,
    Expr,
    Exprs,
    If,
    Or,
    Take,
    Xor,
    const,
    is_const,
    logical_not,
    lower,
    takes,
)
from pullback.ir.node import walk

Guards = Exprs
FALSE = const(False, bool_)
PATHS = 32  # contexts kept apart for one node; beyond that only what they share


def contexts(roots: Iterable[Expr]) -> dict[Expr, tuple[Guards, ...]]:
    """For each node the guards that hold when it is needed, one entry per way to reach it.

    ``If(c, x[i], If(d, x[i], 0))``: x[i] -> ((c,), (not c, d))
    """
    roots = tuple(roots)
    order = [n for n in walk(roots) if isinstance(n, Expr)]
    if not any(isinstance(n, If) for n in order):
        return dict.fromkeys(reversed(order), ((),))
    paths_to: dict[Expr, dict[Guards, None]] = {root: {(): None} for root in roots}
    settled: dict[Expr, tuple[Guards, ...]] = {}
    for node in reversed(order):
        paths = _limited(tuple(paths_to[node]))
        settled[node] = paths
        for child, guard in _edges(node):
            into = paths_to.setdefault(child, {})
            parts = () if guard is None else conjuncts(guard)
            for path in paths:
                into[(*path, *(c for c in parts if c not in path))] = None
    return settled


def negated(condition: Expr) -> Expr:
    """``not not c -> c``."""
    if isinstance(condition, Xor) and is_const(condition.right, True):
        return condition.left
    if isinstance(condition, Const):
        return const(not condition.value, condition.dtype)
    return logical_not(condition)


def conjuncts(condition: Expr) -> Exprs:
    """``a and (b and c) -> a, b, c``, ``not (a or b) -> not a, not b``; each once, in order."""
    conditions: dict[Expr, None] = {}
    todo = [condition]
    while todo:
        c = todo.pop()
        if isinstance(c, And):
            todo += [c.right, c.left]
        elif isinstance(c, If) and is_const(c.otherwise, False):
            todo += [c.then, c.condition]
        elif isinstance(c, Xor) and isinstance(c.left, Or) and is_const(c.right, True):
            todo += [negated(c.left.right), negated(c.left.left)]
        elif not is_const(c, True):
            conditions[c] = None
    return tuple(conditions)


def reads_data(e: Expr) -> bool:
    """Whether `e` reads a tensor."""
    return any(True for _ in takes(e))


def both(first: Expr, second: Expr) -> Expr:
    """The conjunction; what reads at places that the first may keep inside is not evaluated where
    it fails: ``a ? b : false``.
    """
    plain = all(map(_inside, takes(second)))
    return And(first, second) if plain else If(first, second, FALSE)


def _inside(take: Take) -> bool:
    """Whether each index is an axis of the same extent, or a number below it."""
    pairs = zip(take.indices, take.source.shape, strict=True)
    return all(
        i.extent == extent
        if isinstance(i, Axis)
        else isinstance(i, Const) and i.value < lower(extent)
        for i, extent in pairs
    )


def every(conditions: Iterable[Expr]) -> Expr | None:
    """The conjunction, None of nothing; conditions that read come last."""
    ordered = sorted(conditions, key=reads_data)
    return reduce(both, ordered) if ordered else None


def guarded(conditions: Iterable[Expr], value: Expr) -> Expr:
    """``value if all conditions else 0``; conditions that read are nested inside the others."""
    if is_const(value, 0):
        return value
    conditions = list(conditions)
    zero = const(0, value.dtype)
    for c in reversed([c for c in conditions if reads_data(c)]):
        value = If(c, value, zero)
    whole = every(c for c in conditions if not reads_data(c))
    return value if whole is None else If(whole, value, zero)


def _edges(node: Expr) -> list[tuple[Expr, Expr | None]]:
    """Children with the condition that a branch adds."""
    if isinstance(node, If):
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
    sets = [frozenset(p) for p in paths]
    pairs = zip(paths, sets, strict=True)
    paths = tuple(p for p, own in pairs if not any(s < own for s in sets))
    if len(paths) <= PATHS:
        return paths
    shared = set(paths[0]).intersection(*paths[1:])
    return (tuple(g for g in paths[0] if g in shared),)
