"""The identity as a head: one element of the output, at coordinates that become axes afterwards.

``d out[p] / d x[j]``: with `p` fixed the adjoint of `out` is ``i == p ? 1 : 0``, and these
equations go into the index maps on the way, so no identity is ever summed over.
"""

from __future__ import annotations

from collections.abc import Sequence

from pullback.algebra.affine import flat
from pullback.algebra.bounds import all_inside
from pullback.grad import fold
from pullback.grad.fold import Term
from pullback.ir import expr as E
from pullback.ir.expr import Expr, Pin, Size, Take, takes, upper
from pullback.ir.graph import Definition, Map, Value, beside, identity, read, topological
from pullback.ir.node import Node, size, walk
from pullback.simplify import guards as G

PARTS = 16  # summands of one adjoint that are followed apart
NODES = 200  # in one summand


class Pins:
    """One pin for each axis of `output`, and what depends on them."""

    def __init__(self, output: Value) -> None:
        self.pins = tuple(Pin(f"p{n}", 0, upper(e) - 1) for n, e in enumerate(output.shape))
        body = read(output, *map(Size, self.pins))
        self.pick = Definition(f"{output!r}_at", (), body, origin=output.origin)
        self._seen: set[Value] = set()
        self._dependent: set[Value] = set()

    def numbers(self) -> dict[Pin, int]:
        """The number of the axis that each pin becomes."""
        return {pin: n for n, pin in enumerate(self.pins)}

    def depends(self, e: Expr) -> bool:
        """Whether `e` depends on a pin."""
        sources = [take.source for take in takes(e)]
        for definition in topological(sources, self._seen):
            self._seen.add(definition)
            if any(map(self._own, walk(definition.roots))):
                self._dependent.add(definition)
        return any(map(self._own, walk(e)))

    def _own(self, node: Node) -> bool:
        if isinstance(node, Take):
            return node.source in self._dependent
        return isinstance(node, Size) and node.dim in self.pins

    def parts(self, value: Definition, summands: Sequence[Expr]) -> list[Expr] | None:
        """The summands of an adjoint, guards outermost; None where they are not worth it."""
        parts = [part for summand in summands for part in flat(summand, E.Add)]
        if len(parts) > PARTS:
            return None
        pieces = []
        for part in parts:
            part = self._apart(value, fold.opened(Term((), part))).expression()
            if size(part) > NODES:
                return None
            pieces.append(part)
        return pieces

    def _apart(self, value: Definition, term: Term) -> Term:
        """A factor without pins as a definition of its own, over the axes of `value` alone.

        Its reads must lie inside where only the guards without pins hold.
        """
        if isinstance(term.value, Take | E.Const) or self.depends(term.value):
            return term
        free = tuple(g for g in term.guards if not self.depends(g))
        if not all_inside(term.value, free):
            return term
        body = G.guarded(free, term.value)
        return Term(term.guards, identity(beside(value, f"d{value!r}", body, Map())))
