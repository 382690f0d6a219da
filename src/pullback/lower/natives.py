"""Composites that a backend has an instruction or a polynomial for, recognised by canonical form.

A form is recognised by building it again from its argument, simplified as its body was: nodes
are interned.
"""

from __future__ import annotations

from functools import lru_cache, partial

from pullback.config import frozen
from pullback.ir import functions as F
from pullback.ir.dtype import float32, is_short
from pullback.ir.expr import (
    Add,
    Const,
    Div,
    Equal,
    Exp,
    Expr,
    FloorDiv,
    If,
    Less,
    Log,
    Mul,
    Or,
    Sin,
    Xor,
    const,
)
from pullback.ir.nest import Native
from pullback.ir.node import Node, walk
from pullback.simplify.rules import simplify

Kinds = tuple[type[Expr], ...]


@frozen
class Form:
    """A function by its simplified form: the types of the children, and where its argument is."""

    function: F.Scalar
    kinds: Kinds
    path: F.Path
    double: bool = False

    @property
    def name(self) -> str:
        """What backends call it."""
        return CALLED.get(self.function, self.function.__name__)

    def argument(self, node: Expr) -> Expr | None:
        """x where `node` is ``function(x)``."""
        if node.dtype != float32 and not self.double:
            return None
        pairs = zip(node.children, self.kinds, strict=True)
        if not all(isinstance(c, k) for c, k in pairs):
            return None
        args = F.arguments(node, partial(_form, self.function), self.path)
        return None if args is None else args[0]


@lru_cache(maxsize=256)
def _form(function: F.Scalar, x: Expr) -> Expr:
    return simplify(function(x))


CALLED: dict[F.Scalar, str] = {F.absolute: "abs", F.size_atan: "atan"}
SIGNED = ("condition", "right")
SIZED = ("condition", "left", "condition", "left")
TURNED = ("left", "condition", "left", "otherwise")
ACOS = ("left", *TURNED, "value", "right", "left")
FORMS: dict[type[Expr], tuple[Form, ...]] = {
    If: (
        Form(F.absolute, (Less, Expr, If), ("condition", "left"), double=True),
        Form(F.rint, (Or, Mul, FloorDiv), ("otherwise", "left"), double=True),
        Form(F.sigmoid, (Less, Mul, Div), ("condition", "left")),
        Form(F.tanh, (Less, Mul, If), ("then", "left"), double=True),
        Form(F.erf, (Less, Mul, If), ("then", "left"), double=True),
        Form(F.log1p, (Equal, Expr, If), ("then",)),
        Form(F.expm1, (Less, If, Add), ("then", "then")),
        Form(F.tan, (Less, Div, Div), SIZED),
        Form(F.sinh, (Less, Mul, Mul), SIZED),
        Form(F.cosh, (Less, Mul, Mul), SIZED),
        Form(F.acosh, (Less, Add, If), SIGNED),
        Form(F.atanh, (Less, Mul, If), SIGNED),
        Form(F.asinh, (Less, If, If), SIGNED),
        Form(F.atan, (Less, Add, If), SIGNED),
        Form(F.asin, (Less, If, If), SIGNED),
    ),
    Add: (
        Form(F.softplus, (If, If), ("left", "then")),
        Form(F.size_atan, (If, Add), TURNED),
    ),
    Mul: (
        Form(F.acos, (Add, Const), ACOS),
        Form(F.normal_cdf, (Add, Const), ("left", "left", "then", "left", "left")),
    ),
    Div: (
        Form(F.log2, (Log, Const), ("left", "value")),
        Form(F.log10, (Log, Const), ("left", "value")),
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
    assert isinstance(result, Expr)
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
        case FloorDiv(x, Const(1.0)):
            return Native("floor", (x,))
        case Exp(Mul(y, Log(x)) | Mul(Log(x), y)) if not is_short(node.dtype):
            return Native("power", (x, y))
        case Add(Mul(Mul(Sin(half), Sin(same)), Const(-2.0)), Const(1.0)):
            return Native("cos", (_doubled(half),)) if same is half else None
        case If() if (extremum := _extremum(node)) is not None:
            return extremum
    for form in FORMS.get(type(node), ()):
        argument = form.argument(node)
        if argument is not None:
            return Native(form.name, (argument,))
    return None


def _doubled(half: Expr) -> Expr:
    """``x / 2 -> x``"""
    match half:
        case Mul(x, Const(0.5)):
            return x
    return Mul(half, const(2.0, half.dtype))


def _extremum(node: If) -> Native | None:
    """The forms of `expr.maximum` and `expr.minimum`."""
    match node.condition:
        case Or(Less(a, b), Xor(Equal(c, d), Const(True))):
            if not (c is d is node.then):
                return None
            if a is node.otherwise and b is node.then:
                return Native("maximum", (a, b))
            if b is node.otherwise and a is node.then:
                return Native("minimum", (b, a))
    return None
