"""Composites that a backend has an instruction or a polynomial for, recognised by canonical form.

A form is recognised by building it again from its argument: nodes are interned.
"""

from __future__ import annotations

from pullback.errors import InvalidIR
from pullback.ir import expr as E
from pullback.ir import functions as F
from pullback.ir.dtype import float32
from pullback.ir.expr import Expr
from pullback.ir.nest import Native
from pullback.ir.node import Node, walk


def with_natives(root: Expr) -> Expr:
    """`root` with every composite that a backend provides replaced by its `Native`.

    ``If(x < 0, -x, x) -> abs(x)``
    """
    if not any(isinstance(n, E.If | E.FloorDiv) and n.dtype.is_float for n in walk(root)):
        return root
    memo: dict[Node, Node] = {}
    for node in walk(root):
        found = _native(node)
        if found is not None:
            args = tuple(memo[a] for a in found.args)
            memo[node] = found.with_children(args)
        else:
            memo[node] = node.with_children(tuple(memo[c] for c in node.children))
    result = memo[root]
    if not isinstance(result, Expr):
        raise InvalidIR(f"{root} became {result}")
    return result


def _native(node: Node) -> Native | None:
    """The native function that `node` spells out, over the original arguments."""
    match node:
        case E.FloorDiv(x, E.Const(1.0)) if node.dtype.is_float:
            return Native("floor", (x,))
        case E.If() if node.dtype.is_float:
            return _extremum(node) or _branch(node)
    return None


def _extremum(node: E.If) -> Native | None:
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


def _branch(node: E.If) -> Native | None:
    """The forms with two branches around a threshold; polynomials exist for float32."""
    match node:
        case E.If(E.Less(x, E.Const(0.0)), _, same) if same is x and F.absolute(x) is node:
            return Native("abs", (x,))
        case E.If(E.Less(x, E.Const(0.0)), E.Mul(), E.Div()) if node.dtype == float32:
            return Native("sigmoid", (x,)) if F.sigmoid(x) is node else None
        case E.If(E.Less(_, E.Const(0.625)), E.Add(x, _), _) if node.dtype == float32:
            return Native("tanh", (x,)) if F.tanh(x) is node else None
        case E.If(E.Less(_, E.Const(1.0)), E.Mul(x, _), _) if node.dtype == float32:
            return Native("erf", (x,)) if F.erf(x) is node else None
    return None
