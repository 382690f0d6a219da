"""Composites that a backend has an instruction or a polynomial for, recognised by canonical form.

A form is recognised by building it again from its argument, simplified as its body was: nodes
are interned.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

from pullback.config import frozen
from pullback.errors import InvalidIR
from pullback.ir import expr as E
from pullback.ir import functions as F
from pullback.ir.dtype import float32, is_half
from pullback.ir.expr import Expr
from pullback.ir.nest import Native
from pullback.ir.node import Node, walk
from pullback.simplify.rules import simplify

Kinds = tuple[type[Expr], ...]


@frozen
class Form:
    """A function by its simplified form: the types of the children, and where its argument is."""

    name: str
    function: Callable[[Expr], Expr]
    kinds: Kinds
    path: tuple[str, ...]
    double: bool = False

    def argument(self, node: Expr) -> Expr | None:
        """x where `node` is ``function(x)``."""
        if node.dtype != float32 and not self.double:
            return None
        pairs = zip(node.children, self.kinds, strict=True)
        if not all(isinstance(c, k) for c, k in pairs):
            return None
        inner: object = node
        for step in self.path:
            inner = getattr(inner, step, None)
        if not isinstance(inner, Expr) or inner.dtype != node.dtype:
            return None
        return inner if _form(self.function, inner) is node else None


@lru_cache(maxsize=256)
def _form(function: Callable[[Expr], Expr], x: Expr) -> Expr:
    return simplify(function(x))


SIGNED = ("condition", "right")
SIZED = ("condition", "left", "condition", "left")
ACOS = ("left", "condition", "left", "otherwise", "value", "right", "left")
FORMS: dict[type[Expr], tuple[Form, ...]] = {
    E.If: (
        Form("abs", F.absolute, (E.Less, Expr, E.If), ("condition", "left"), double=True),
        Form("sigmoid", F.sigmoid, (E.Less, E.Mul, E.Div), ("condition", "left")),
        Form("tanh", F.tanh, (E.Less, E.Mul, E.If), ("then", "left"), double=True),
        Form("erf", F.erf, (E.Less, E.Mul, E.If), ("then", "left"), double=True),
        Form("log1p", F.log1p, (E.Equal, Expr, E.If), ("then",)),
        Form("expm1", F.expm1, (E.Less, E.If, E.Add), ("then", "then")),
        Form("tan", F.tan, (E.Less, E.Div, E.Div), SIZED),
        Form("sinh", F.sinh, (E.Less, E.Mul, E.If), SIZED),
        Form("cosh", F.cosh, (E.Less, E.Mul, E.Mul), SIZED),
        Form("acosh", F.acosh, (E.Less, E.Add, E.If), SIGNED),
        Form("atanh", F.atanh, (E.Less, E.Mul, E.If), SIGNED),
        Form("asinh", F.asinh, (E.Less, E.If, E.If), SIGNED),
        Form("atan", F.atan, (E.Less, E.If, E.If), SIGNED),
        Form("asin", F.asin, (E.Less, E.If, E.If), SIGNED),
    ),
    E.Add: (Form("softplus", F.softplus, (E.If, E.If), ("left", "then")),),
    E.Mul: (Form("acos", F.acos, (E.If, E.Const), ACOS),),
    E.Div: (
        Form("log2", F.log2, (E.Log, E.Const), ("left", "value")),
        Form("log10", F.log10, (E.Log, E.Const), ("left", "value")),
    ),
}


def with_natives(root: Expr) -> Expr:
    """`root` with every composite that a backend provides replaced by its `Native`.

    ``If(x < 0, -x, x) -> abs(x)``
    """
    memo: dict[Node, Node] = {}
    for node in walk(root):
        native = _native(node)
        if native is not None:
            args = tuple(_replaced(a, memo) for a in native.args)
            memo[node] = native.with_children(args)
        else:
            memo[node] = node.with_children(tuple(memo[c] for c in node.children))
    result = memo[root]
    if not isinstance(result, Expr):
        raise InvalidIR(f"{root} became {result}")
    return result


def _replaced(argument: Expr, memo: dict[Node, Node]) -> Node:
    """What an argument became; one that a form does not spell out (``x / 2``: x) of its parts."""
    if argument in memo:
        return memo[argument]
    return argument.with_children(tuple(memo.get(c, c) for c in argument.children))


def _native(node: Node) -> Native | None:
    """The native function that `node` spells out, over the original arguments."""
    if not isinstance(node, Expr) or not node.dtype.is_float:
        return None
    match node:
        case E.FloorDiv(x, E.Const(1.0)):
            return Native("floor", (x,))
        case E.Exp(E.Mul(y, E.Log(x)) | E.Mul(E.Log(x), y)) if not is_half(node.dtype):
            return Native("power", (x, y))
        case E.Add(E.Mul(E.Mul(E.Sin(half), E.Sin(same)), E.Const(-2.0)), E.Const(1.0)):
            return Native("cos", (_doubled(half),)) if same is half else None
        case E.If() if (extremum := _extremum(node)) is not None:
            return extremum
    for form in FORMS.get(type(node), ()):
        argument = form.argument(node)
        if argument is not None:
            return Native(form.name, (argument,))
    return None


def _doubled(half: Expr) -> Expr:
    """``x / 2 -> x``"""
    match half:
        case E.Mul(x, E.Const(0.5)):
            return x
    return E.Mul(half, E.const(2.0, half.dtype))


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
