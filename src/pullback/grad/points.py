"""A pinned adjoint at chosen points: the entries of a Jacobian that are known not to vanish.

    d[x], with pins p     ->     values[n] = d at p = rows[n], x = columns[n]

What the adjoint reads is followed to those points, so that the whole Jacobian is never made.
"""

from __future__ import annotations

from collections.abc import Sequence

from pullback.cost.facts import elements
from pullback.grad.pins import Pins
from pullback.ir import expr as E
from pullback.ir.expr import Axis, Expr, Exprs, Pin, Shape, Size, Take, rewritten
from pullback.ir.graph import Definition, Map, Reduce, Value, beside, identity, read
from pullback.ir.node import Node, size

DEPTH = 40  # definitions that stand on one another
NODES = 200  # of a map that is written out where it is read


class Scattered(Exception):
    """The points cannot be reached one by one within the work of the whole."""


class Points:
    """`rows` give the pins, each a vector of one length; `limit` elements are made at most."""

    def __init__(self, pins: Pins, rows: Sequence[Value], limit: int) -> None:
        self.pins = pins
        self.rows = dict(zip(pins.pins, rows, strict=True))
        self.limit = limit
        self._depth = 0
        self._known: dict[tuple[Value, Exprs, Shape], Expr] = {}

    def values(self, adjoint: Definition, columns: Sequence[Value], count: int) -> Definition:
        """The vector of entries. Raises: Scattered."""
        axis = Axis(0, count)
        body = self._at(adjoint, tuple(read(c, axis) for c in columns), (count,))
        return beside(adjoint, adjoint.name, body, Map(), (count,))

    def _at(self, value: Value, indices: Exprs, box: Shape) -> Expr:
        """`value` at `indices`, which are expressions over the axes of `box`."""
        plain = Take(value, indices)
        if not isinstance(value, Definition) or not self.pins.depends(plain):
            return plain
        key = value, indices, box
        if key not in self._known:
            self._depth += 1
            if self._depth > DEPTH or not isinstance(value.form, Map | Reduce):
                raise Scattered
            self._known[key] = self._made(value, indices, box)
            self._depth -= 1
        return self._known[key]

    def _made(self, value: Definition, indices: Exprs, box: Shape) -> Expr:
        over = value.form.over if isinstance(value.form, Reduce) else ()
        places = (*indices, *E.axes(over, len(box)))
        body = self._moved(value.body, places, box + over)
        if not over and size(body) <= NODES:
            return body
        if elements(box + over) > self.limit:
            raise Scattered
        return identity(beside(value, value.name, body, value.form, box))

    def _moved(self, e: Expr, axes: Exprs, box: Shape) -> Expr:
        def change(node: Node) -> Node | None:
            if isinstance(node, Axis):
                return axes[node.number]
            if isinstance(node, Size) and isinstance(node.dim, Pin) and node.dim in self.rows:
                return read(self.rows[node.dim], Axis(0, box[0]))
            return self._at(node.source, node.indices, box) if isinstance(node, Take) else None

        return rewritten(e, change)
