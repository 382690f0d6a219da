"""Sizes of symbols from the shapes that an operation is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pullback.composite.syntax import Name, Number, Tree
from pullback.errors import ShapeError
from pullback.ir.expr import Dim
from pullback.operations.notation import Condition, Signature, Size, form, holds, symbols

MOST_RANK = 16
Equation = tuple[str, Tree, Tree, str]  # its text, two sides that are equal, who says so


@dataclass(slots=True)
class Sizes:
    """What symbols are, each with who said so."""

    known: dict[str, Any] = field(default_factory=dict)  # a symbolic extent where one is given
    said: dict[str, str] = field(default_factory=dict)

    def give(self, name: str, value: int, by: str) -> None:
        """A symbol's size. Raises: ShapeError where it is no size."""
        if value < 0:
            raise ShapeError(f"{name} would be {value}, by {by}", code="E552")
        self.known[name], self.said[name] = value, by

    def told(self, tree: Tree | None) -> str:
        """Every known symbol in a size, with its value and who said so."""
        known = [n for n in symbols(tree) if n in self.known]
        return ", ".join(f"{n} is {self.known[n]}, by {self.said[n]}" for n in known)

    def of(self, size: Size) -> Any:
        """A size. Raises: ShapeError where a symbol in it is not known, or symbolic."""
        if isinstance(size.tree, Name) and isinstance(self.known.get(size.tree.name), Dim):
            return self.known[size.tree.name]
        self.numbers(symbols(size.tree), size.text)
        linear = form(size.tree, self.known)
        if linear is None or linear[0]:
            raise unknown(symbols(size.tree), self, size.text)
        if linear[1] < 0:
            told = self.told(size.tree)
            raise ShapeError(f"{size.text} is {linear[1]} where {told}", code="E552")
        return linear[1]

    def numbers(self, names: Sequence[str], text: str) -> None:
        """Raises: ShapeError where one of these symbols is a symbolic extent."""
        for name in names:
            if isinstance(self.known.get(name), Dim):
                what = f"{name} is symbolic, and stands in {text}"
                raise ShapeError(what, help=f"give it a number: {name}=64", code="E553")


def unknown(names: Sequence[str], sizes: Sizes, text: str) -> ShapeError:
    """The error of symbols that nothing says."""
    missing = [n for n in names if n not in sizes.known]
    return ShapeError(
        f"nothing says what {' and '.join(missing)} is, in {text}",
        help=f"give it: {', '.join(f'{n}=..' for n in missing)}",
        code="E553",
    )


def rank_of(inputs: Sequence[Signature], shapes: Sequence[Sequence[int]]) -> int:
    """How many axes ``~`` is. Raises: ShapeError for too few axes, or two numbers of them."""
    ranks: dict[int, str] = {}
    for one, shape in zip(inputs, shapes, strict=True):
        more = len(shape) - len([s for s in one.sizes if s is not None])
        if more < 0 or (more and not one.ranked):
            raise ShapeError(f"{one.text} is given {len(shape)} axes: {tuple(shape)}", code="E552")
        if one.ranked:
            ranks.setdefault(more, one.name)
    if len(ranks) > 1:
        said = " and ".join(f"{n} in `{name}`" for n, name in ranks.items())
        raise ShapeError(f"~ is {said} axes", code="E552")
    return next(iter(ranks), 0)


def solved(
    inputs: Sequence[Signature],
    shapes: Sequence[Sequence[int]],
    where: Sequence[Condition],
    given: Mapping[str, int],
) -> Sizes:
    """Every symbol's size: equations with one symbol that is not known are solved, in turns.

    Raises: ShapeError naming the symbol and both values where shapes contradict each other.
    """
    if any(isinstance(n, Dim) for row in (*shapes, [*given.values()]) for n in row):
        return _symbolic(inputs, shapes, where, given)
    sizes = Sizes()
    for name, value in given.items():
        sizes.give(name, value, "what was given")
    rank = rank_of(inputs, shapes)
    equations: list[Equation] = []
    for one, shape in zip(inputs, shapes, strict=True):
        for axis, (size, count) in enumerate(zip(one.expanded(rank), shape, strict=True)):
            place = f"axis {axis} of `{one.name}`"
            equations.append((size.text, size.tree, Number(0, 0, count), place))
    for condition in where:
        if condition.right is not None:
            equations.append((condition.text, condition.left, condition.right, ""))
    solve(equations, sizes)
    for condition in where:
        if condition.right is None and holds(condition.left, sizes.known) is False:
            said = sizes.told(condition.left)
            raise ShapeError(f"{condition.text} does not hold: {said}", code="E552")
    return sizes


def _symbolic(
    inputs: Sequence[Signature],
    shapes: Sequence[Sequence[Any]],
    where: Sequence[Condition],
    given: Mapping[str, Any],
) -> Sizes:
    """Symbols where some are symbolic extents: those stand alone, the others are numbers.

    Raises: ShapeError.
    """
    sizes = Sizes(dict(given), dict.fromkeys(given, "what was given"))
    rank = rank_of(inputs, shapes)
    rest: list[Equation] = []
    for one, shape in zip(inputs, shapes, strict=True):
        for axis, (size, count) in enumerate(zip(one.expanded(rank), shape, strict=True)):
            place, tree = f"axis {axis} of `{one.name}`", size.tree
            if not isinstance(count, Dim) and not isinstance(tree, Name):
                rest.append((size.text, tree, Number(0, 0, count), place))
            elif not isinstance(tree, Name) or sizes.known.setdefault(tree.name, count) != count:
                had = sizes.told(tree)
                raise ShapeError(f"{place} is {count}, not {size.text}: {had}", code="E552")
            else:
                sizes.said.setdefault(tree.name, place)
    for condition in where:
        names = [*symbols(condition.left), *symbols(condition.right)]
        sizes.numbers(names, f"`{condition.text}`")
        if condition.right is not None:
            rest.append((condition.text, condition.left, condition.right, ""))
        elif holds(condition.left, sizes.known) is False:
            told = sizes.told(condition.left)
            raise ShapeError(f"{condition.text} does not hold: {told}", code="E552")
    for text, left, _, _ in rest:
        sizes.numbers(symbols(left), text)
    solve(rest, sizes)
    return sizes


def solve(pending: list[Equation], sizes: Sizes) -> None:
    """Symbols from equations that lack one. Raises: ShapeError for those that do not hold."""
    while pending:
        rest = [equation for equation in pending if not _settled(equation, sizes)]
        if len(rest) == len(pending):
            return
        pending = rest


def _settled(equation: Equation, sizes: Sizes) -> bool:
    """Whether an equation needs no more looking at: it gave a symbol, or it holds."""
    text, left, right, place = equation
    sides = form(left, sizes.known), form(right, sizes.known)
    if sides[0] is None or sides[1] is None:
        return False
    (names, number), (others, other) = sides[0], sides[1]
    left_over = {n: names.get(n, 0) - others.get(n, 0) for n in {**names, **others}}
    left_over = {n: c for n, c in left_over.items() if c}
    wanted = other - number
    if len(left_over) > 1:
        return False
    for name, factor in left_over.items():
        if wanted % factor:
            raise _contradiction(equation, sizes, f"{name} would be {wanted}/{factor}")
        sizes.give(name, wanted // factor, place or f"`{text}`")
        return True
    if wanted:
        raise _contradiction(equation, sizes, "")
    return True


def _contradiction(equation: Equation, sizes: Sizes, why: str) -> ShapeError:
    text, left, right, place = equation
    said = ", ".join(t for t in (why, sizes.told(left), sizes.told(right)) if t)
    if place:
        assert isinstance(right, Number)
        what = f"{place} has {right.value} elements, not {text}"
    else:
        what = f"`{text}` does not hold"
    return ShapeError(f"{what}: {said}" if said else what, code="E552")
