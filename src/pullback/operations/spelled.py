"""Scalar expressions as the text form spells them, so that they are read as the same ones.

Functions that are composites of primitives are recognised: from their argument at a known place
they are built again, and nodes are interned.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pullback.errors import UnsupportedError
from pullback.ir import expr as E
from pullback.ir import functions as F
from pullback.ir.dtype import DType
from pullback.ir.expr import Expr
from pullback.ir.graph import Definition, Value, Variable
from pullback.ir.node import Node
from pullback.tensor.values.functions import (
    TESTS,
    UNARY,
    UNARY_ANY,
    copysign,
    fmod,
    log_add,
)

MOST = 1 << 15  # characters of a definition
MOST_DEPTH = 80  # of nested expressions, which the reader has a limit of, too
ATOM, SIGN, FACTOR, TERM, SAME, NOT = 90, 70, 60, 50, 40, 35
INFIX: dict[type[Expr], tuple[str, int]] = {
    E.Or: ("|", 10), E.Xor: ("^", 20), E.And: ("&", 30), E.Less: ("<", SAME), E.Equal: ("==", SAME),
    E.Add: ("+", TERM), E.Mul: ("*", FACTOR), E.Div: ("/", FACTOR), E.FloorDiv: ("//", FACTOR),
    E.Mod: ("%", FACTOR),
}  # fmt: skip
PAIRS: dict[str, Callable[..., Expr]] = {
    "max": E.maximum, "min": E.minimum, "pow": F.power, "atan2": F.atan2, "copysign": copysign,
    "fmod": fmod, "logaddexp": log_add,
}  # fmt: skip
Spelled = tuple[str, int]  # a text, and how tight it binds


@functools.cache
def known(kind: DType) -> dict[type[Expr], list[tuple[str, Any, tuple[tuple[int, ...], ...]]]]:
    """Functions of a type by the node that they are: name, builder, where the arguments are."""
    made: dict[type[Expr], list[Any]] = {}
    probes = [E.Take(Variable(name, (), kind), ()) for name in "xy"]
    singles = {**UNARY, **UNARY_ANY, **TESTS} if kind.is_float else UNARY_ANY
    pairs = PAIRS if kind.is_float else {n: PAIRS[n] for n in ("max", "min")}
    functions = [(n, f, 1) for n, f in singles.items()] + [(n, f, 2) for n, f in pairs.items()]
    for name, function, count in [] if kind.is_bool else functions:
        node = function(*probes[:count])
        places = [next(_paths(node, probe), None) for probe in probes[:count]]
        if None not in places and () not in places:
            made.setdefault(type(node), []).append((name, function, tuple(places)))
    return made


def _paths(root: Node, wanted: Node) -> Iterator[tuple[int, ...]]:
    """Where a node is below another one, the nearest place first."""
    level: list[tuple[Node, tuple[int, ...]]] = [(root, ())]
    seen: set[Node] = set()
    while level:
        below: list[tuple[Node, tuple[int, ...]]] = []
        for node, path in level:
            if node is wanted:
                yield path
            if node not in seen:
                seen.add(node)
                below += [(c, (*path, n)) for n, c in enumerate(node.children)]
        level = below


def function_of(node: Expr) -> tuple[str, tuple[Expr, ...]] | None:
    """The name of a function that a node is, and of what."""
    kinds = dict.fromkeys((node.dtype, *(c.dtype for c in node.children if isinstance(c, Expr))))
    for kind in kinds:
        for name, function, places in known(kind).get(type(node), ()):
            args = [_at(node, path) for path in places]
            fits = [a for a in args if a is not None and a.dtype == kind]
            if len(fits) == len(places) and function(*fits) is node:
                return name, tuple(fits)
    return None


def _at(node: Node, path: Sequence[int]) -> Expr | None:
    for place in path:
        if place >= len(node.children):
            return None
        node = node.children[place]
    return node if isinstance(node, Expr) else None


class Speller:
    """The text of the body of one definition. `names`: of tensors; `axes`: by number."""

    def __init__(
        self, definition: Definition, names: Mapping[Value, str], axes: Sequence[str]
    ) -> None:
        self.definition = definition
        self.names = names
        self.axes = axes
        self.made: dict[Node, Spelled] = {}

    def text(self, node: Expr) -> str:
        """Raises: UnsupportedError for what is too long or too deep to be written."""
        return self.spelled(node, 0)[0]

    def spelled(self, node: Expr, depth: int) -> Spelled:
        if node not in self.made:
            if depth > MOST_DEPTH:
                raise refused("an expression nested too deeply", self.definition)
            made = self.fresh(node, depth + 1)
            if len(made[0]) > MOST:
                raise refused(f"an expression of more than {MOST} characters", self.definition)
            self.made[node] = made
        return self.made[node]

    def fresh(self, node: Expr, depth: int) -> Spelled:
        if isinstance(node, E.Const):
            return constant(node), ATOM
        if isinstance(node, E.Axis):
            return self.axes[node.number], ATOM
        if isinstance(node, E.Size):
            return node.dim.name, ATOM
        if isinstance(node, E.Take):
            indices = [bare(n) or self.spelled(n, depth)[0] for n in node.indices]
            return f"{self.names[node.source]}[{', '.join(indices)}]", ATOM
        if isinstance(node, E.Cast):
            return f"{node.to.name}({self.several((node.value,), depth)})", ATOM
        named = function_of(node)
        if named is not None:
            return f"{named[0]}({self.several(named[1], depth)})", ATOM
        if isinstance(node, E.If):
            return (
                f"where({self.several((node.condition, node.then, node.otherwise), depth)})",
                ATOM,
            )
        if type(node) in INFIX and isinstance(node, E.Binary):
            return self.infix(node, depth)
        raise refused(f"{type(node).__name__}, which the text form does not have", self.definition)

    def several(self, nodes: Sequence[Expr], depth: int) -> str:
        """Arguments, literals with their types."""
        return ", ".join(self.spelled(n, depth)[0] for n in nodes)

    def infix(self, node: E.Binary, depth: int) -> Spelled:
        if isinstance(node, E.Xor) and E.is_const(node.right, True) and node.dtype.is_bool:
            return self.negated(node.left, depth)
        if isinstance(node, E.Mul) and _minus_one(node.right):
            return f"-{self.side(node.left, SIGN, depth)}", SIGN
        symbol, level = INFIX[type(node)]
        left = self.operand(node.left, node.right, level + (level == SAME), depth)
        right = node.right
        if isinstance(node, E.Add) and isinstance(right, E.Mul) and _minus_one(right.right):
            return f"{left} - {self.side(right.left, level + 1, depth)}", level
        return f"{left} {symbol} {self.operand(right, node.left, level + 1, depth)}", level

    def negated(self, node: Expr, depth: int) -> Spelled:
        """``a != b``, or ``~(..)``"""
        if not isinstance(node, E.Equal):
            return f"~({self.spelled(node, depth)[0]})", NOT
        left = self.operand(node.left, node.right, SAME + 1, depth)
        return f"{left} != {self.operand(node.right, node.left, SAME + 1, depth)}", SAME

    def operand(self, node: Expr, other: Expr, least: int, depth: int) -> str:
        """A literal without its type where the other operand has that."""
        plain = None if isinstance(other, E.Const) else bare(node)
        if plain is not None:
            return f"({plain})" if plain.startswith("-") else plain
        return self.side(node, least, depth)

    def side(self, node: Expr, least: int, depth: int) -> str:
        text, level = self.spelled(node, depth)
        return text if level >= least else f"({text})"


def _minus_one(e: Expr) -> bool:
    return E.is_const(e, -1) and not e.dtype.is_bool


def bare(node: Expr) -> str | None:
    """A literal of the type that another operand says, or of int64 alone; None for others."""
    if not isinstance(node, E.Const) or isinstance(node.value, bool):
        return None
    value = node.value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return repr(value)


def constant(node: E.Const) -> str:
    """A literal with its type."""
    value = node.value
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, float) and math.isnan(value):
        return f"{node.kind.name}(nan)"
    if isinstance(value, float) and math.isinf(value):
        return f"{node.kind.name}({'-' if value < 0 else ''}inf)"
    return f"{node.kind.name}({value!r})"


def refused(what: str, definition: Definition | None) -> UnsupportedError:
    """The error of what no file says, at the user's line."""
    origin = None if definition is None else definition.origin
    return UnsupportedError(f"{what}: no file says that", origin=origin, code="E557")
