"""Where an adjoint is 0 because a branch was not taken: there no partial is evaluated.

y = where(x < 1, x, s), s = sqrt(x):   ds[i] = x[i] < 1 ? 0 : dy[i],
dx[i] += x[i] < 1 ? 0 : ds[i] / (2 s[i]),   and not 0 / 0 where x is 0
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from pullback.grad import fold
from pullback.grad.composites import tame
from pullback.grad.fold import Term
from pullback.ir import expr as E
from pullback.ir.expr import Expr, Take
from pullback.ir.graph import Definition, Value, substitute
from pullback.ir.node import Node, walk
from pullback.simplify import guards as G

GUARDS = 4  # of one adjoint that are remembered
NODES = 60  # in one of them


class Masks:
    """For adjoints, the guards outside of which they are 0, over their own axes."""

    def __init__(self) -> None:
        self._known: dict[Value, tuple[Expr, ...]] = {}

    def learn(self, adjoint: Value, summands: Sequence[Expr]) -> None:
        """Remember where every summand is 0."""
        found = [self._guards(s) for s in summands]
        if not found or not all(found):
            return
        if len(found) > 1:
            sides = [c for c in map(G.every, found) if c is not None]
            whole = sides[0]
            for side in sides[1:]:
                whole = whole if side is whole else E.Or(whole, side)
            found = [(whole,)]
        # A guard may keep a later one's reads inside: none is left out before another.
        small = tuple(takewhile(_small, found[0][:GUARDS]))
        if small:
            self._known[adjoint] = small

    def masked(self, adjoint: Value, indices: Sequence[Expr], value: Expr) -> Expr:
        """`value`, a read of `adjoint` at `indices`, under what is known of it."""
        axes = dict(enumerate(indices))
        guards = [substitute(g, axes) for g in self._known.get(adjoint, ())]
        return G.guarded(guards, value)

    def _guards(self, e: Expr) -> tuple[Expr, ...]:
        """``(c ? x : 0) * y -> c``; of a read of an adjoint, that adjoint's."""
        found: dict[Expr, None] = {}
        todo = [e]
        while todo:
            term = fold.opened(Term((), todo.pop()))
            found.update(dict.fromkeys(term.guards))
            part = term.value
            if isinstance(part, E.Mul):
                todo += [part.right, part.left]
            elif isinstance(part, E.Div):
                todo.append(part.left)
            elif isinstance(part, E.Cast):
                todo.append(part.value)
            elif isinstance(part, Take):
                axes = dict(enumerate(part.indices))
                own = self._known.get(part.source, ())
                found.update((substitute(g, axes), None) for g in own)
        return tuple(found)


def _small(guard: Expr) -> bool:
    return sum(1 for _ in walk(guard)) <= NODES


def steep(definition: Definition) -> bool:
    """Whether a partial of the body may be infinite; of ``tanh(x)``, say, none is."""
    todo: list[Node] = [definition.body]
    seen: set[Node] = set()
    while todo:
        node = todo.pop()
        if node in seen or not isinstance(node, Expr) or not node.dtype.is_float:
            continue
        seen.add(node)
        if isinstance(node, E.Log | E.Sqrt | E.Exp):
            return True
        if isinstance(node, E.Div) and not isinstance(node.right, E.Const):
            return True
        inner = None if isinstance(node, Take) else tame(node)
        todo += node.children if inner is None else inner
    return False
