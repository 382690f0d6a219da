"""The notation of a tensor, ``A{float32}[M, ~]<1, 0>(where K = 2*M)``, and conditions.

Nothing is evaluated: sizes are read by the parser of definitions, as linear forms of symbols.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pullback.composite.syntax import COMPARISONS, Name, Number, Operation, Parser, Tree
from pullback.errors import DTypeError, Origin, ShapeError, SyntaxFormError
from pullback.ir import dtype as D

RANK = "~"  # any number of axes; ~a is another number of them
RUN = re.compile(r"~\s*(?P<name>[^\W\d]\w*)?")
STORED = ("Dense", "Sparse", "Complex")  # how elements are stored; files hold the first
KINDS = {
    "float": "floats", "int": "whole numbers", "bool": "booleans", "number": "numbers",
}  # fmt: skip
MOST_TEXT = 300  # characters of a tensor's notation or of a condition
SHAPED = re.compile(
    r"\s*(?P<name>[^\W\d]\w*)\s*(\{(?P<type>[^{}]*)\})?\s*\[(?P<shape>[^\[\]]*)\]\s*"
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
class Run:
    """Any number of axes: ``~``, or ``~a``."""

    text: str

    def axis(self, number: int) -> str:
        """The symbol of one of its extents: ``_0``, ``_a0``."""
        return f"_{self.text[1:]}{number}"


@dataclass(frozen=True, slots=True)
class Element:
    """What elements are: a type, a variable for one, a kind of types; nothing of these is any."""

    type: D.DType | None = None
    variable: str = ""
    kind: str = ""

    def fits(self, given: D.DType) -> bool:
        """Whether a type is of the kind."""
        kinds = {"float": given.is_float, "int": given.is_integer, "bool": given.is_bool}
        return kinds.get(self.kind, not self.kind or not given.is_bool)


@dataclass(frozen=True, slots=True)
class Condition:
    """``left = right``, or a comparison that has no right."""

    text: str
    left: Tree
    right: Tree | None


@dataclass(frozen=True, slots=True)
class Signature:
    """A tensor: its name, elements, sizes, order in memory; what marks stand in its braces."""

    name: str
    element: Element
    axes: tuple[Size | Run, ...]
    order: tuple[int, ...] | None
    where: tuple[Condition, ...]
    text: str
    marks: tuple[str, ...] = ()

    @property
    def type(self) -> D.DType | None:
        """Its type, where that is said."""
        return self.element.type

    @property
    def sizes(self) -> list[Size]:
        """The sizes that are written."""
        return [a for a in self.axes if isinstance(a, Size)]

    @property
    def runs(self) -> list[Run]:
        """Where it has any number of axes."""
        return [a for a in self.axes if isinstance(a, Run)]

    def expanded(self, ranks: Mapping[str, int]) -> list[Size]:
        """Its sizes where ``~`` is `ranks["~"]` axes."""
        sizes: list[Size] = []
        for axis in self.axes:
            if isinstance(axis, Size):
                sizes.append(axis)
                continue
            names = [axis.axis(n) for n in range(ranks[axis.text])]
            sizes += [Size(name, Name(0, len(name), name)) for name in names]
        return sizes

    def symbols(self, ranks: Mapping[str, int]) -> list[str]:
        """Every symbol of its sizes."""
        return [n for size in self.expanded(ranks) for n in symbols(size.tree)]


def signature(text: object, caller: Origin, marks: Sequence[str] = ()) -> Signature:
    """A tensor from its notation; `marks`: words that may stand in braces beside its type.

    Raises: SyntaxFormError, DTypeError.
    """
    match = SHAPED.fullmatch(text) if isinstance(text, str) and len(text) <= MOST_TEXT else None
    if match is None or not isinstance(text, str):
        raise SyntaxFormError(
            f"{_short(text)} is no tensor",
            help="write it like A{float32}[M, ~, N]<1, 0>(where N = 2*M)",
            code="E551",
        )
    element, words = _element(match["type"], marks, text)
    parts = match["shape"].split(",") if match["shape"].strip() else []
    axes = tuple(_axis(p.strip(), caller) for p in parts)
    runs = [a for a in axes if isinstance(a, Run)]
    if len(set(runs)) < len(runs):
        raise SyntaxFormError(f"{text}: ~ stands twice", help="~a and ~b are two", code="E551")
    where = (condition(match["where"], caller),) if match["where"] else ()
    order = _order(match["order"], len(axes), text)
    if order is not None and runs:
        raise SyntaxFormError(f"{text}: an order of axes of which ~ is one", code="E551")
    return Signature(match["name"], element, axes, order, where, text.strip(), tuple(words))


def _axis(text: str, caller: Origin) -> Size | Run:
    run = RUN.fullmatch(text)
    return size(text, caller) if run is None else Run(RANK + (run["name"] or ""))


def _element(text: str | None, marks: Sequence[str], whole: str) -> tuple[Element, tuple[str, ...]]:
    """What stands in braces: a type, and marks. Raises: DTypeError."""
    if text is None:
        return Element(), ()
    words = re.split(r"[\s,]+", re.sub(r"\s*:\s*", ":", text.strip()))
    own = tuple(w for w in words if w in marks)
    rest = [w for w in words if w not in marks]
    if own and not rest:
        return Element(), own
    named, colon, kind = rest[0].partition(":")
    if len(rest) == 1 and not colon and named in STORED:
        if named == "Dense":
            return Element(), own
        help = "pb.sparse has products with CSR and COO, pb.Complex pairs of tensors"
        raise DTypeError(f"{whole}: tensors of files are dense", help=help, code="E555")
    if len(rest) == 1 and not colon and named in D.BY_NAME:
        return Element(D.dtype(named)), own
    variable = re.fullmatch(r"[A-Z]\w*", named) and named not in STORED
    if len(rest) == 1 and variable and (kind in KINDS or not colon):
        return Element(None, named, kind), own
    help = f"{', '.join(D.BY_NAME)}, or a variable: T, T: {', T: '.join(KINDS)}"
    raise DTypeError(f"{whole}: no type is called {text.strip()}", help=help, code="E551")


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
