"""The text that declares shapes: what it may say, as data.

    input[*b, k], weight[n, k], bias[n] -> [*b, n]

| written | means |
|---|---|
| `n` | an extent; one letter is one number wherever it stands |
| `n?` | that extent, or 1, which stretches |
| `3`, `2 * n`, `c // groups` | numbers; arithmetic of extents and of arguments that are integers |
| `_`, `_ * space` | any extent; as many of them as an argument says |
| `*b` | any number of axes, which broadcast together over all arguments (NumPy's rule) |
| `b...` | any number of axes, the same everywhere; `...` any at all |
| `b...?` | what stretches to those axes: fewer of them, or 1 |
| `*shape` | where `shape` is an argument: the extents that it lists |
| `[n] or []` | either |
| `x: int[n]` | of integers; `float`, `bool`, `number` (no bool) likewise |

Limits of numbers beside the tensors: ``"int(stride) >= 1, 0 <= p <= 1, c % groups == 0"``.
`int(..)` wants an integer; of a sequence every element is meant.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from pullback.errors import SyntaxFormError

KINDS = {
    "float": "floats",
    "int": "integers",
    "bool": "booleans",
    "number": "numbers",
    "any": "anything",
}
_ARGUMENT = re.compile(r"\s*(?P<name>\w+)?\s*(?::\s*(?P<kind>\w+)\s*)?\[")


@dataclass(frozen=True, slots=True)
class Extent:
    """One axis: an expression over letters and arguments; with `stretches` 1 will do too."""

    text: str
    tree: ast.expr
    stretches: bool = False

    @property
    def letter(self) -> str | None:
        """The letter, where it is nothing else."""
        return self.tree.id if isinstance(self.tree, ast.Name) else None

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Free:
    """Axes of any extents, `count` of them; None is any number."""

    count: ast.expr | None
    text: str

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Group:
    """Any number of axes under one name: they broadcast, are the `same`, or stretch to those."""

    name: str
    same: bool
    stretches: bool = False

    def __str__(self) -> str:
        return f"{self.name}...{'?' * self.stretches}" if self.same else f"*{self.name}"


Item = Extent | Free | Group
Items = tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """One argument, or one result without a name; any of `ways` fits."""

    name: str
    kind: str
    ways: tuple[Items, ...]

    def __str__(self) -> str:
        kind = f": {self.kind}" if self.kind != "any" else ""
        ways = " or ".join(f"[{', '.join(map(str, way))}]" for way in self.ways)
        return f"{self.name}{kind}{ways}" if not kind or self.name else f"{self.kind}{ways}"


@dataclass(frozen=True, slots=True)
class Limit:
    """A comparison that must hold: ``0 <= p <= 1``."""

    text: str
    tree: ast.Compare


@dataclass(frozen=True, slots=True)
class Declaration:
    """What a function takes and gives."""

    arguments: tuple[Shape, ...]
    results: tuple[Shape, ...]
    limits: tuple[Limit, ...]

    def __str__(self) -> str:
        given = ", ".join(map(str, self.arguments))
        return f"{given}{self._made()}"

    def call(self, name: str) -> str:
        """``name(x[n]) -> [n]``"""
        return f"{name}({', '.join(map(str, self.arguments))}){self._made()}"

    def _made(self) -> str:
        return f" -> {', '.join(map(str, self.results))}" if self.results else ""


def parse(text: str, where: str = "") -> Declaration:
    """The declaration that `text` writes. Raises: SyntaxFormError where it cannot be read."""
    given, _, made = text.partition("->")
    return Declaration(_shapes(given), _shapes(made), _limits(where))


def _shapes(text: str) -> tuple[Shape, ...]:
    """``"x[n], t: int[n] or []"`` as shapes."""
    listed: list[Shape] = []
    rest = text.strip()
    while rest:
        head = _ARGUMENT.match(rest)
        if head is None:
            raise SyntaxFormError(f"no shape: {rest!r}")
        kind = head["kind"] or "any"
        if kind not in KINDS:
            raise SyntaxFormError(f"no kind: {kind!r}")
        ways = []
        rest = "[" + rest[head.end() :]
        while rest.startswith("["):
            inner, end, rest = rest[1:].partition("]")
            if not end:
                raise SyntaxFormError(f"no end: [{inner}")
            ways.append(_items(inner))
            rest = rest.strip().removeprefix("or ").strip()
        listed.append(Shape(head["name"] or "", kind, tuple(ways)))
        rest = rest.removeprefix(",").strip()
    return tuple(listed)


def _items(text: str) -> Items:
    return tuple(_item(part.strip()) for part in text.split(",") if part.strip())


def _item(text: str) -> Item:
    if text == "...":
        return Free(None, text)
    if text.startswith("*"):
        return Group(text[1:], same=False)
    if text.endswith(("...", "...?")):
        return Group(text.removesuffix("?")[:-3], True, text.endswith("?"))
    tree = _expression(text.removesuffix("?"))
    if isinstance(tree, ast.Name) and tree.id == "_":
        return Free(ast.Constant(1), text)
    product = isinstance(tree, ast.BinOp) and isinstance(tree.op, ast.Mult)
    if product and isinstance(tree.left, ast.Name) and tree.left.id == "_":  # type: ignore[attr-defined]  # BinOp
        return Free(tree.right, text)  # type: ignore[attr-defined]  # BinOp
    return Extent(text, tree, text.endswith("?"))


def _expression(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError as problem:
        raise SyntaxFormError(f"no expression: {text!r}") from problem


def _limits(text: str) -> tuple[Limit, ...]:
    if not text.strip():
        return ()
    tree = _expression(f"({text},)")
    assert isinstance(tree, ast.Tuple)
    listed = []
    for part in tree.elts:
        if not isinstance(part, ast.Compare):
            raise SyntaxFormError(f"no comparison: {ast.unparse(part)}")
        listed.append(Limit(ast.unparse(part), part))
    return tuple(listed)
