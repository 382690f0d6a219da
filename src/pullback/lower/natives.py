"""Composites that a backend has an instruction for, recognised by their canonical form."""

from __future__ import annotations

from pullback.ir import expr as E
from pullback.ir.expr import Expr
from pullback.ir.nest import Native


def native(node: Expr) -> Expr:
    """`node`, or the native function it spells out.

    ``b if a < b or b != b else a -> maximum(a, b)``
    """
    if not isinstance(node, E.If) or not node.dtype.is_float:
        return node
    return _extremum(node) or node


def _extremum(node: E.If) -> Expr | None:
    """The forms of `expr.maximum` and `expr.minimum`."""
    match node.condition:
        case E.Or(E.Less(a, b), E.Xor(E.Equal(c, d), E.Const(True))):
            if not (c is d is node.then):
                return None
            if a is node.otherwise and b is node.then:
                return Native("maximum", (a, b))
            if b is node.otherwise and a is node.then:
                return Native("minimum", (b, a))
    return None
