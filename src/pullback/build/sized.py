"""Sizes that others decide, and what has to be true of sizes, as texts of C and of LLVM."""

from __future__ import annotations

from collections.abc import Mapping

from pullback.backends.host.lines import Lines
from pullback.errors import InvalidIR
from pullback.ir import expr as E
from pullback.ir.expr import Dim, Expr, Extent, extent_expr
from pullback.ir.node import walk

# {0}, {1}: the operands. A divisor of 0 gives 0: what divides is checked to be another.
C: Mapping[type, str] = {
    E.Add: "({0} + {1})", E.Mul: "({0} * {1})",
    E.FloorDiv: "pb_floor({0}, {1})", E.Mod: "({0} - pb_floor({0}, {1}) * {1})",
    E.Less: "({0} < {1})", E.Equal: "({0} == {1})",
    E.And: "({0} & {1})", E.Or: "({0} | {1})", E.Xor: "({0} ^ {1})",
}  # fmt: skip
LLVM: Mapping[type, str] = {
    E.Add: "add i64", E.Mul: "mul i64", E.FloorDiv: "", E.Mod: "",
    E.Less: "icmp slt i64", E.Equal: "icmp eq i64",
    E.And: "and i1", E.Or: "or i1", E.Xor: "xor i1",
}  # fmt: skip
FLOOR = "call i64 @pb_floor(i64 {0}, i64 {1})"


def in_c(value: Expr, names: Mapping[Dim, str]) -> str:
    """An expression of sizes, each called by its name."""
    texts: dict[object, str] = {}
    for node in walk(value):
        texts[node] = _leaf(node, names) or C[type(node)].format(
            *(texts[kid] for kid in node.children)
        )
    return texts[value]


def extent_in_c(extent: Extent, names: Mapping[Dim, str]) -> str:
    """A size."""
    return in_c(extent_expr(extent), names)


def in_llvm(b: Lines, value: Expr, names: Mapping[Dim, str]) -> str:
    """The same: what it is called, behind the lines that compute it."""
    texts: dict[object, str] = {}
    for node in walk(value):
        leaf = _leaf(node, names)
        if leaf:
            texts[node] = f"%{leaf}" if isinstance(node, E.Size) else leaf
            continue
        left, right = (texts[kid] for kid in node.children)
        if isinstance(node, E.FloorDiv | E.Mod):
            texts[node] = b.value(FLOOR.format(left, right))
            if isinstance(node, E.Mod):
                whole = b.value(f"mul i64 {texts[node]}, {right}")
                texts[node] = b.value(f"sub i64 {left}, {whole}")
            continue
        texts[node] = b.value(f"{LLVM[type(node)]} {left}, {right}")
    return texts[value]


def extent_in_llvm(b: Lines, extent: Extent, names: Mapping[Dim, str]) -> str:
    """A size."""
    return in_llvm(b, extent_expr(extent), names)


def _leaf(node: object, names: Mapping[Dim, str]) -> str:
    """A size or a number; "" for what is neither. Raises: InvalidIR for what sizes are not of."""
    if isinstance(node, E.Size):
        return names[node.dim]
    if isinstance(node, E.Const):
        return str(int(node.value))
    if type(node) not in C:
        raise InvalidIR(f"a size that is a {type(node).__name__}")
    return ""
