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
| `b...<` | as many axes as those, none of them longer |
| `*shape` | where `shape` is an argument: the extents that it lists |
| `*shape?` | what broadcasts to those; where nothing is listed, as `*b` |
| `n @ axis` | axis number `axis` has that extent; the other items are the other axes |
| `*arrays[n]` | each tensor of several |
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
_ARGUMENT = re.compile(r"\s*(?P<several>\*)?(?P<name>\w+)?\s*(?::\s*(?P<kind>\w+)\s*)?\[")


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
    """Any number of axes under one name: they broadcast, are the `same`, or stretch to those.

    `within`: of those, none is longer.
    """

    name: str
    same: bool
    stretches: bool = False
    within: bool = False

    def __str__(self) -> str:
        mark = "?" * self.stretches + "<" * self.within
        return f"{self.name}...{mark}" if self.same else f"*{self.name}{mark}"


@dataclass(frozen=True, slots=True)
class Along:
    """One axis by its number, `axis`, which is an argument."""

    extent: Extent | Free
    axis: ast.expr
    text: str

    def __str__(self) -> str:
        return self.text


Item = Extent | Free | Group | Along
Items = tuple[Item, ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """One argument, or one result without a name; any of `ways` fits."""

    name: str
    kind: str
    ways: tuple[Items, ...]
    several: bool = False

    def __str__(self) -> str:
        kind = f": {self.kind}" if self.kind != "any" else ""
        ways = " or ".join(f"[{', '.join(map(str, way))}]" for way in self.ways)
        name = "*" * self.several + self.name
        return f"{name}{kind}{ways}" if not kind or name else f"{self.kind}{ways}"


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
    return Declaration(_shapes(given), _shapes(made), limits(where))


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
        listed.append(Shape(head["name"] or "", kind, tuple(ways), head["several"] is not None))
        rest = rest.removeprefix(",").strip()
    return tuple(listed)


def _items(text: str) -> Items:
    return tuple(_item(part.strip()) for part in text.split(",") if part.strip())


def _item(text: str) -> Item:
    if text == "...":
        return Free(None, text)
    if text.startswith("*"):
        return Group(text[1:].removesuffix("?"), same=False, stretches=text.endswith("?"))
    if text.endswith(("...", "...?", "...<")):
        name, _, mark = text.partition("...")
        return Group(name, same=True, stretches=mark == "?", within=mark == "<")
    whole, at, axis = text.partition("@")
    tree = _expression(whole.strip().removesuffix("?"))
    item = _axes(whole.strip(), tree)
    return Along(item, _expression(axis.strip()), text) if at else item


def _axes(text: str, tree: ast.expr) -> Extent | Free:
    match tree:
        case ast.Name(id="_"):
            return Free(ast.Constant(1), text)
        case ast.BinOp(op=ast.Mult(), left=ast.Name(id="_"), right=count):
            return Free(count, text)
    return Extent(text, tree, text.endswith("?"))


def _expression(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError as problem:
        raise SyntaxFormError(f"no expression: {text!r}") from problem


def limits(text: str) -> tuple[Limit, ...]:
    """``"0 <= p <= 1, int(n) >= 1"`` as limits. Raises: SyntaxFormError for no comparison."""
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
