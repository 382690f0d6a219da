"""The notation of a tensor, ``A{float32}[M, ~]<1, 0>(where K = 2*M)``, and conditions.

Nothing is evaluated: sizes are read by the parser of definitions, as linear forms of symbols.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from pullback.composite.syntax import COMPARISONS, Name, Number, Operation, Parser, Tree
from pullback.errors import DTypeError, Origin, ShapeError, SyntaxFormError
from pullback.ir import dtype as D

RANK = "~"  # any number of axes
MOST_TEXT = 300  # characters of a tensor's notation or of a condition
SHAPED = re.compile(
    r"\s*(?P<name>[^\W\d]\w*)\s*(\{\s*(?P<type>\w+)\s*\})?\s*\[(?P<shape>[^\[\]]*)\]\s*"
    r"(<(?P<order>[\s\d,]*)>)?\s*(\(\s*where\s+(?P<where>.*)\))?\s*",
    re.DOTALL,
)
EQUAL = re.compile(r"(?<![<>=!])={1,2}(?!=)")
COMPARE: dict[str, Callable[[int, int], bool]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
Form = tuple[dict[str, int], int]  # coefficients of symbols, and a number


@dataclass(frozen=True, slots=True)
class Size:
    """A number of elements, as it is written."""

    text: str
    tree: Tree


@dataclass(frozen=True, slots=True)
class Condition:
    """``left = right``, or a comparison that has no right."""

    text: str
    left: Tree
    right: Tree | None


@dataclass(frozen=True, slots=True)
class Signature:
    """A tensor: its name, type (None: any), sizes (None: any number of axes), order in memory."""

    name: str
    type: D.DType | None
    sizes: tuple[Size | None, ...]
    order: tuple[int, ...] | None
    where: tuple[Condition, ...]
    text: str

    @property
    def ranked(self) -> bool:
        """Whether it has any number of axes somewhere."""
        return None in self.sizes

    def expanded(self, rank: int) -> list[Size]:
        """Its sizes where ``~`` is `rank` axes."""
        axes = [Size(f"_{n}", Name(0, 1, f"_{n}")) for n in range(rank)]
        return [s for size in self.sizes for s in (axes if size is None else [size])]


def signature(text: object, caller: Origin) -> Signature:
    """A tensor from its notation. Raises: SyntaxFormError, DTypeError."""
    match = SHAPED.fullmatch(text) if isinstance(text, str) and len(text) <= MOST_TEXT else None
    if match is None or not isinstance(text, str):
        raise SyntaxFormError(
            f"{_short(text)} is no tensor",
            help="write it like A{float32}[M, ~, N]<1, 0>(where N = 2*M)",
            code="E551",
        )
    named = match["type"]
    if named is not None and named not in D.BY_NAME:
        raise DTypeError(
            f"{text}: no type is called {named}", help=", ".join(D.BY_NAME), code="E551"
        )
    parts = match["shape"].split(",") if match["shape"].strip() else []
    sizes = tuple(None if p.strip() == RANK else size(p, caller) for p in parts)
    if sizes.count(None) > 1:
        raise SyntaxFormError(f"{text}: ~ stands twice", code="E551")
    where = (condition(match["where"], caller),) if match["where"] else ()
    order = _order(match["order"], len(sizes), text)
    if order is not None and None in sizes:
        raise SyntaxFormError(f"{text}: an order of axes of which ~ is one", code="E551")
    kind = None if named is None else D.dtype(named)
    return Signature(match["name"], kind, sizes, order, where, text.strip())


def _order(text: str | None, axes: int, whole: str) -> tuple[int, ...] | None:
    if text is None:
        return None
    parts = re.split(r"[\s,]+", text.strip())
    if sorted(parts) != sorted(map(str, range(axes))):
        what = f"{whole}: <{text}> is no order of {axes} axes"
        raise SyntaxFormError(what, help="each axis once: <1, 0>", code="E551")
    return tuple(map(int, parts))


def size(text: str, caller: Origin) -> Size:
    """A size. Raises: SyntaxFormError for what is none."""
    return Size(text.strip(), _tree(text.strip(), caller, ("+", "-", "*", "//", "%", "prefix -")))


def condition(text: object, caller: Origin) -> Condition:
    """What is said of sizes. Raises: SyntaxFormError for what says nothing."""
    if not isinstance(text, str) or len(text) > MOST_TEXT:
        raise SyntaxFormError(f"{_short(text)} is no condition", help="K = 2*M", code="E551")
    allowed = ("+", "-", "*", "//", "%", "prefix -", "&", *COMPARISONS)
    parts = EQUAL.split(text)
    if len(parts) > 2:
        raise SyntaxFormError(f"{text}: more than one =", help="write two conditions", code="E551")
    trees = [_tree(part.strip(), caller, allowed[:6] if parts[1:] else allowed) for part in parts]
    first = trees[0]
    if not parts[1:] and not (
        isinstance(first, Operation) and first.operator in ("&", *COMPARISONS)
    ):
        raise SyntaxFormError(f"{text} compares nothing", help="K = 2*M, M >= 1", code="E551")
    return Condition(text.strip(), first, trees[1] if parts[1:] else None)


def _tree(text: str, caller: Origin, allowed: tuple[str, ...]) -> Tree:
    parser = Parser(text, caller)
    tree = parser.expression(0)
    end = parser.token
    if end.kind != "end":
        parser.fail(f"unexpected {end.text!r}", end.start, end.end, code="E551")
    stack = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, Operation) and node.operator in allowed:
            stack += node.args
        elif not (isinstance(node, Name) or (isinstance(node, Number) and type(node.value) is int)):
            parser.fail(
                "sizes are whole numbers, symbols, + - * // %", node.start, node.end, code="E551"
            )
    return tree


def form(tree: Tree, known: Mapping[str, int]) -> Form | None:
    """A size as a linear form of what is not known; None where it is none yet."""
    if isinstance(tree, Number):
        return {}, int(tree.value)
    if isinstance(tree, Name):
        return ({}, known[tree.name]) if tree.name in known else ({tree.name: 1}, 0)
    assert isinstance(tree, Operation)
    parts = [form(arg, known) for arg in tree.args]
    if any(part is None for part in parts):
        return None
    (names, number), *rest = [part for part in parts if part is not None]
    if tree.operator == "prefix -":
        return {n: -c for n, c in names.items()}, -number
    (others, other), *_ = rest
    if tree.operator in ("+", "-"):
        sign = 1 if tree.operator == "+" else -1
        made = {n: names.get(n, 0) + sign * others.get(n, 0) for n in {**names, **others}}
        return {n: c for n, c in made.items() if c}, number + sign * other
    if tree.operator == "*" and not (names and others):
        by, scaled, plain = (other, names, number) if not others else (number, others, other)
        return {n: c * by for n, c in scaled.items() if c * by}, plain * by
    if names or others or tree.operator == "*":
        return None
    if other == 0:
        raise ShapeError(f"a size is divided by 0: {number} {tree.operator} 0", code="E552")
    return {}, (number // other if tree.operator == "//" else number % other)


def holds(tree: Tree, known: Mapping[str, int]) -> bool | None:
    """Whether a comparison is true; None where a symbol in it is not known."""
    assert isinstance(tree, Operation)
    if tree.operator == "&":
        both = [holds(arg, known) for arg in tree.args]
        return None if None in both else all(both)
    sides = [form(arg, known) for arg in tree.args]
    if any(side is None or side[0] for side in sides):
        return None
    left, right = (side[1] for side in sides if side is not None)
    return COMPARE[tree.operator](left, right)


def symbols(tree: Tree | None) -> list[str]:
    """The names in a size or a condition, once each."""
    stack, names = [tree], dict[str, None]()
    while stack:
        node = stack.pop()
        if isinstance(node, Name):
            names[node.name] = None
        elif isinstance(node, Operation):
            stack += reversed(node.args)
    return list(names)


def _short(text: Any) -> str:
    shown = repr(text)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."
