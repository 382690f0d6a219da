"""What stands where in a scalar expression, reductions looked into: guards, and what is cheap."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

from pullback.ir import expr as E
from pullback.ir.expr import Axis, Expr, If, Take
from pullback.ir.node import Node, walk
from pullback.tensor.face.handles import Inner
from pullback.tensor.values.views import conjunction

Guards = tuple[Expr, ...]


class Scope:
    """The nodes of one expression, each once, children first."""

    def __init__(self, root: Expr) -> None:
        self.root = root
        self.nodes = [n for n in walk(root) if isinstance(n, Expr)]

    @property
    def axes(self) -> list[Axis]:
        """Every axis, bound ones too."""
        return [n for n in self.nodes if isinstance(n, Axis)]

    def above(self, test: Callable[[Expr], bool]) -> set[Expr]:
        """The nodes for which `test` holds, and all that are made of them."""
        above: set[Expr] = set()
        for node in self.nodes:
            if test(node) or any(c in above for c in node.children):
                above.add(node)
        return above

    def largest(self, avoided: set[Expr]) -> list[Expr]:
        """The nodes that are not `avoided` and stand right below one that is, or are the root."""
        below = {c for node in avoided for c in node.children}
        return [n for n in self.nodes if n not in avoided and (n in below or n is self.root)]

    def guards(self, node: Expr) -> Guards:
        """Conditions that hold wherever `node` is looked at. ``where(c, a, b)``: a where c is."""
        return self._need[node]

    @cached_property
    def _need(self) -> dict[Node, Guards]:
        """The conditions of each node. Parents first."""
        need: dict[Node, Guards] = {self.root: ()}
        for node in reversed(self.nodes):
            for child, guard in _edges(node):
                here = need[node] if guard is None else _both(need[node], _parts(guard))
                need[child] = _either(need[child], here) if child in need else here
        return need


def _parts(guard: Expr) -> Guards:
    """``a & b & c -> a, b, c``"""
    parts: list[Expr] = []
    stack = [guard]
    while stack:
        one = stack.pop()
        if isinstance(one, E.And):
            stack += [one.right, one.left]
        else:
            parts.append(one)
    return tuple(parts)


def _both(first: Guards, second: Guards) -> Guards:
    return tuple(dict.fromkeys([*first, *second]))


def _either(first: Guards, second: Guards) -> Guards:
    """What two paths have in common, and that one of the rests holds."""
    common = tuple(g for g in first if g in second)
    rests = [[g for g in way if g not in common] for way in (first, second)]
    if not all(rests):
        return common
    return (*common, E.Or(*map(conjunction, rests)))


def _edges(node: Expr) -> list[tuple[Expr, Expr | None]]:
    """The children of a node, each with the guard before it."""
    if isinstance(node, If):
        other = E.logical_not(node.condition)
        return [(node.condition, None), (node.then, node.condition), (node.otherwise, other)]
    return [(c, None) for c in node.children if isinstance(c, Expr)]


def is_dear(root: Expr) -> bool:
    """Whether there is more to compute than arithmetic of axes: a read, or a reduction."""
    return any(isinstance(n, Take | Inner) for n in walk(root))
