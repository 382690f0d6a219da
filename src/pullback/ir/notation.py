"""Expressions as text: infix, minimal parentheses, shared parts named ``$0, $1, ..``.

Precedence is Python's: comparisons bind loosest, then ``|``, ``^``, ``&``, then arithmetic.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from pullback.ir import dtype as D
from pullback.ir.expr import (
    Add,
    And,
    Axis,
    Binary,
    Cast,
    Const,
    Dim,
    Div,
    Equal,
    Exp,
    Expr,
    Extent,
    FloorDiv,
    If,
    Less,
    Log,
    Mod,
    Mul,
    Or,
    Sin,
    Size,
    Sqrt,
    Take,
    Xor,
    is_const,
    maximum,
    minimum,
)
from pullback.ir.graph import COMBINERS, Value
from pullback.ir.node import Node, walk

AXES = "ijklmpqrstuvwxyz"
SUFFIX = {
    "float32": "", "int64": "", "bool": "", "float64": "f64", "float16": "f16", "bfloat16": "bf16",
    "int32": "i32", "int8": "i8", "uint8": "u8", "uint32": "u32", "int16": "i16", "uint16": "u16",
    "uint64": "u64", "float8_e4m3fn": "f8E4M3FN", "float8_e5m2": "f8E5M2",
}  # fmt: skip
UNARY: dict[str, type[Expr]] = {"exp": Exp, "log": Log, "sqrt": Sqrt, "sin": Sin}
BINARY: dict[str, tuple[int, type[Binary]]] = {
    "<": (1, Less), "==": (1, Equal), "|": (2, Or), "^": (3, Xor), "&": (4, And),
    "+": (5, Add), "*": (6, Mul), "/": (6, Div), "//": (6, FloorDiv), "%": (6, Mod),
}  # fmt: skip
SIGN = 7
TIGHT = 8
RESERVED = frozenset(
    (
        *UNARY, *COMBINERS, *D.BY_NAME, "if", "size", "scan", "accumulate", "true", "false",
        "inf", "nan", "def", "var", "dim", "assign", "stop", "keep", "graph",
    )
)  # fmt: skip
SHARED = 8  # nodes in a shared part from which it gets a name
LARGE = 48  # nodes in any part from which it gets a name: bounds the depth of what is printed

_SYMBOL = {cls: (symbol, level) for symbol, (level, cls) in BINARY.items()}
_CALL: dict[type[Node], str] = {cls: name for name, cls in UNARY.items()}
Leaf = Callable[[Node, Callable[[Node], str]], str | None]


def axis_name(number: int) -> str:
    """``0 -> i, 1 -> j, .., 16 -> i16``"""
    return AXES[number] if number < len(AXES) else f"i{number}"


def axis_number(name: str) -> int | None:
    """The inverse of `axis_name`; None for other names."""
    if len(name) == 1 and name in AXES:
        return AXES.index(name)
    numbered = re.fullmatch(r"i([1-9]\d+)", name)
    return int(numbered[1]) if numbered and int(numbered[1]) >= len(AXES) else None


@dataclass(slots=True)
class Names:
    """Unique printable names, given at first use."""

    of: dict[Value, str] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)

    def __call__(self, value: Value) -> str:
        """The name of a value: letters, digits, ``_`` and ``.``, no word of the notation."""
        if value not in self.of:
            plain = re.sub(r"[^A-Za-z0-9_.]", "_", value.name) or "_"
            if plain[0] in "0123456789." or plain in RESERVED:
                plain = f"_{plain}"
            name = plain
            count = 1
            while name in self.taken:
                count += 1
                name = f"{plain}_{count}"
            self.taken.add(name)
            self.of[value] = name
        return self.of[value]


def extent_text(extent: Extent) -> str:
    return extent.name if isinstance(extent, Dim) else str(extent)


def shape_text(kind: D.DType, shape: Iterable[Extent]) -> str:
    """``float32[2, n]``"""
    return f"{kind.name}[{', '.join(map(extent_text, shape))}]"


def literal(e: Const) -> str:
    """``1.5``, ``2``, ``true``, ``1.5f64``"""
    if isinstance(e.value, bool):
        return "true" if e.value else "false"
    return f"{e.value!r}{SUFFIX[e.kind.name]}"


class Printer:
    """Expressions over shared names; `leaf` prints nodes that are not the IR's scalars."""

    def __init__(self, names: Names, leaf: Leaf | None = None) -> None:
        self.names = names
        self.leaf = leaf

    def body(self, roots: Sequence[Expr]) -> tuple[list[str], list[str]]:
        """Lines that name shared parts, then one text per root."""
        lines: list[str] = []
        known: dict[Node, tuple[str, int]] = {}
        sizes: dict[Node, int] = {}
        uses = _uses(roots)
        for node in walk(roots):
            if node not in uses:
                continue
            known[node] = self._node(node, known)
            size = 1 + sum(sizes[c] for c in _shown(node))
            named = (size >= SHARED and uses[node] > 1) or size >= LARGE
            if named and node not in roots:
                name = f"${len(lines)}"
                lines.append(f"{name} = {known[node][0]}")
                known[node], size = (name, TIGHT), 1
            sizes[node] = size
        return lines, [known[root][0] for root in roots]

    def _node(self, node: Node, known: dict[Node, tuple[str, int]]) -> tuple[str, int]:
        """Text and precedence of a node whose children are known."""

        def text(child: Node) -> str:
            return known[child][0]

        if isinstance(node, Const):
            negative = literal(node).startswith("-")
            return literal(node), SIGN if negative else TIGHT
        called = self._call(node, text)
        if called is None and self.leaf is not None:
            called = self.leaf(node, text)
        if called is not None:
            return called, TIGHT
        if not isinstance(node, Binary):
            return repr(node), TIGHT
        return self._infix(node, known)

    def _call(self, node: Node, text: Callable[[Node], str]) -> str | None:
        if isinstance(node, Axis):
            return axis_name(node.number)
        if isinstance(node, Size):
            return f"size({node.dim.name})"
        if isinstance(node, Take):
            return f"{self.names(node.source)}[{', '.join(map(text, node.indices))}]"
        if isinstance(node, Cast):
            return f"{node.to.name}({text(node.value)})"
        if isinstance(node, If):
            return _choice(node, text)
        called = _CALL.get(type(node))
        return f"{called}({text(node.children[0])})" if called else None

    def _infix(self, node: Binary, known: dict[Node, tuple[str, int]]) -> tuple[str, int]:
        def side(child: Node, least: int) -> str:
            text, level = known[child]
            return text if level >= least else f"({text})"

        if isinstance(node, Xor) and node.dtype.is_bool and is_const(node.right, True):
            return f"~{side(node.left, SIGN)}", SIGN
        if isinstance(node, Mul) and _minus_one(node):
            return f"-{side(node.left, TIGHT)}", SIGN
        symbol, level = _SYMBOL[type(node)]
        left = side(node.left, level + 1 if level == 1 else level)
        if isinstance(node, Add) and isinstance(node.right, Const):
            shown = literal(node.right)
            if shown.startswith("-"):
                return f"{left} - {shown[1:]}", level
        if isinstance(node, Add) and isinstance(node.right, Mul) and _minus_one(node.right):
            return f"{left} - {side(node.right.left, level + 1)}", level
        return f"{left} {symbol} {side(node.right, level + 1)}", level


def _uses(roots: Sequence[Expr]) -> dict[Node, int]:
    """How often each node is printed; nodes that shorter notation hides are left out."""
    counts: dict[Node, int] = dict.fromkeys(roots, 0)
    for node in reversed(list(walk(roots))):
        if node in counts:
            for child in _shown(node):
                counts[child] = counts.get(child, 0) + 1
    return counts


def _shown(node: Node) -> tuple[Node, ...]:
    """The nodes whose text stands in a node's own."""
    if isinstance(node, If) and _extremum(node):
        return node.otherwise, node.then
    if isinstance(node, Mul) and _minus_one(node):
        return (node.left,)
    if isinstance(node, Add) and isinstance(node.right, Mul) and _minus_one(node.right):
        return node.left, node.right.left
    return node.children


def _minus_one(e: Mul) -> bool:
    """Whether a product is a negation that is printed as one (a literal is not)."""
    right = e.right
    return isinstance(right, Const) and right.value == -1 and not isinstance(e.left, Const)


def _extremum(e: If) -> str:
    """`max` or `min` where a choice is one."""
    for name, make in (("max", maximum), ("min", minimum)):
        if not e.dtype.is_bool and e is make(e.otherwise, e.then):
            return name
    return ""


def _choice(e: If, text: Callable[[Node], str]) -> str:
    name = _extremum(e)
    if name:
        return f"{name}({text(e.otherwise)}, {text(e.then)})"
    return f"if({text(e.condition)}, {text(e.then)}, {text(e.otherwise)})"
