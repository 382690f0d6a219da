"""Sizes of symbols from the shapes that an operation is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pullback.composite.syntax import Name, Number, Operation, Tree
from pullback.errors import ShapeError
from pullback.ir.expr import Dim
from pullback.operations.linear import System
from pullback.operations.notation import (
    RANK,
    Condition,
    Form,
    Signature,
    Size,
    form,
    holds,
    symbols,
)

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


def ranks_of(
    inputs: Sequence[Signature], shapes: Sequence[Sequence[Any]], given: Mapping[str, int]
) -> dict[str, int]:
    """How many axes each ``~`` is. `given`: those that somebody says, by ``~a``.

    Raises: ShapeError for too few axes, two numbers of them, or one that nothing says.
    """
    ranks = Sizes()
    for name, value in given.items():
        ranks.give(name, value, "what was given")
    equations: list[Equation] = []
    for one, shape in zip(inputs, shapes, strict=True):
        more = len(shape) - len(one.sizes)
        if more < 0 or (more and not one.runs):
            raise ShapeError(f"{one.text} is given {len(shape)} axes: {tuple(shape)}", code="E552")
        if one.runs:
            left = sum_of([run.text for run in one.runs])
            text = " + ".join(run.text for run in one.runs)
            equations.append((text, left, Number(0, 0, more), f"`{one.name}`"))
    solve(equations, ranks, "axes")
    for run in (run for one in inputs for run in one.runs):
        if run.text not in ranks.known:
            what = f"nothing says how many axes {run.text} is"
            raise ShapeError(what, help=f'give it: **{{"{run.text}": 1}}', code="E553")
        if ranks.known[run.text] > MOST_RANK:
            what = f"{run.text} is {ranks.known[run.text]} axes, at most {MOST_RANK}"
            raise ShapeError(what, code="E552")
    return ranks.known


def sum_of(names: Sequence[str]) -> Tree:
    """``a + b + ..``"""
    first, *rest = (Name(0, 0, name) for name in names)
    total: Tree = first
    for other in rest:
        total = Operation(0, 0, "+", (total, other))
    return total


def solved(
    inputs: Sequence[Signature],
    shapes: Sequence[Sequence[int]],
    where: Sequence[Condition],
    given: Mapping[str, int],
) -> Sizes:
    """Every symbol's size: equations that lack one symbol are solved in turns, then systems.

    Raises: ShapeError naming the symbol and both values where shapes contradict each other.
    """
    if any(isinstance(n, Dim) for row in (*shapes, [*given.values()]) for n in row):
        return _symbolic(inputs, shapes, where, given)
    sizes = Sizes()
    for name, value in given.items():
        if not name.startswith(RANK):
            sizes.give(name, value, "what was given")
    ranks = ranks_of(inputs, shapes, runs_of(given))
    equations: list[Equation] = []
    for one, shape in zip(inputs, shapes, strict=True):
        for axis, (size, count) in enumerate(zip(one.expanded(ranks), shape, strict=True)):
            place = f"axis {axis} of `{one.name}`"
            equations.append((size.text, size.tree, Number(0, 0, count), place))
    check(where, sizes, equations)
    return sizes


def check(where: Sequence[Condition], sizes: Sizes, equations: Sequence[Equation] = ()) -> None:
    """Symbols by equations and by what is said of sizes. Raises: ShapeError."""
    told = [(c.text, c.left, c.right, "") for c in where if c.right is not None]
    solve([*equations, *told], sizes)
    for condition in where:
        if condition.right is None and holds(condition.left, sizes.known) is False:
            said = sizes.told(condition.left)
            raise ShapeError(f"{condition.text} does not hold: {said}", code="E552")


def _symbolic(
    inputs: Sequence[Signature],
    shapes: Sequence[Sequence[Any]],
    where: Sequence[Condition],
    given: Mapping[str, Any],
) -> Sizes:
    """Symbols where some are symbolic extents: those stand alone, the others are numbers.

    Raises: ShapeError.
    """
    plain = {n: v for n, v in given.items() if not n.startswith(RANK)}
    sizes = Sizes(plain, dict.fromkeys(plain, "what was given"))
    ranks = ranks_of(inputs, shapes, runs_of(given))
    rest: list[Equation] = []
    for one, shape in zip(inputs, shapes, strict=True):
        for axis, (size, count) in enumerate(zip(one.expanded(ranks), shape, strict=True)):
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


def runs_of(given: Mapping[str, int]) -> dict[str, int]:
    """What is given of numbers of axes."""
    return {n: v for n, v in given.items() if n.startswith(RANK)}


def solve(pending: list[Equation], sizes: Sizes, what: str = "elements") -> None:
    """Symbols from equations: of those that lack one first, then of several at once.

    Raises: ShapeError for those that do not hold.
    """
    while pending:
        rest = [equation for equation in pending if not _settled(equation, sizes, what)]
        if len(rest) == len(pending) and not _together(rest, sizes, what):
            return
        pending = rest


def _settled(equation: Equation, sizes: Sizes, what: str) -> bool:
    """Whether an equation needs no more looking at: it gave a symbol, or it holds."""
    linear = _difference(equation, sizes)
    if linear is None or len(linear[0]) > 1:
        return False
    names, wanted = linear
    for name, factor in names.items():
        if wanted % factor:
            raise _contradiction(equation, sizes, f"{name} would be {wanted}/{factor}", what)
        sizes.give(name, wanted // factor, equation[3] or f"`{equation[0]}`")
        return True
    if wanted:
        raise _contradiction(equation, sizes, "", what)
    return True


def _difference(equation: Equation, sizes: Sizes) -> Form | None:
    """``coefficients * symbols = number``; None where it is not linear yet."""
    sides = form(equation[1], sizes.known), form(equation[2], sizes.known)
    if sides[0] is None or sides[1] is None:
        return None
    (names, number), (others, other) = sides[0], sides[1]
    left = {n: names.get(n, 0) - others.get(n, 0) for n in {**names, **others}}
    return {n: c for n, c in left.items() if c}, other - number


def _together(pending: list[Equation], sizes: Sizes, what: str) -> bool:
    """Whether several equations at once say what a symbol is. Raises: ShapeError."""
    system = System()
    for equation in pending:
        linear = _difference(equation, sizes)
        if linear is None:
            continue
        text, _, _, place = equation
        other = system.add(*linear, place or f"`{text}`")
        if other is not None:
            raise _contradiction(equation, sizes, f"it is {other[0]}, by {other[1]}", what)
    solution = system.solution()
    for name, (value, by) in solution.items():
        if value.denominator != 1:
            raise ShapeError(f"{name} would be {value}, by {by}", code="E552")
        sizes.give(name, int(value), by)
    return bool(solution)


def _contradiction(equation: Equation, sizes: Sizes, why: str, elements: str) -> ShapeError:
    text, left, right, place = equation
    said = ", ".join(t for t in (why, sizes.told(left), sizes.told(right)) if t)
    if place and isinstance(right, Number):
        what = f"{place} has {right.value} {elements}, not {text}"
    else:
        what = f"`{text}` does not hold"
    return ShapeError(f"{what}: {said}" if said else what, code="E552")
