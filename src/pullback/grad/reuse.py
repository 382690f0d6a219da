"""What a map computes is read, not computed again: ``dout[i] * exp(x[i]) -> dout[i] * out[i]``."""

from __future__ import annotations

from pullback.ir import expr as E
from pullback.ir.expr import Expr, Exprs, If
from pullback.ir.graph import Definition, Map, identity
from pullback.ir.node import Node, walk
from pullback.simplify import guards as G

EXPENSIVE = (E.Exp, E.Div)


def reused(definition: Definition, value: Expr, guards: Exprs = (), stored: bool = False) -> Expr:
    """`value` with what `definition` computes read from it, if that is dear.

    Of ``c ? exp(x) : y`` exp(x) where `value` is guarded by c; the whole where it is `stored`.
    """
    if not isinstance(definition.form, Map):
        return value
    out = identity(definition)
    body = definition.body
    if isinstance(body, If):
        branches = ((body.condition, body.then), (G.negated(body.condition), body.otherwise))
        known = {b for c, b in branches if all(g in guards for g in G.conjuncts(c))}
    else:
        known = {body}
    known = {node for node in known if isinstance(node, EXPENSIVE)}
    if stored and any(isinstance(node, EXPENSIVE) for node in walk(body)):
        known.add(body)

    def change(node: Node) -> Node | None:
        return out if node in known else None

    return E.rewritten(value, change)
