"""Sizes of symbols that stay symbolic: which are arguments, and which follow from those.

K = 2*M, 2*P = M  ->  M and P are free, K is 2*M, and a call has to check that 2*P = M
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pullback.algebra.bounds import Prover, bounds
from pullback.composite.syntax import Name, Number, Operation, Tree
from pullback.errors import ShapeError
from pullback.ir import expr as E
from pullback.ir.expr import Derived, Dim, Expr, Extent, Size, extent_expr
from pullback.ir.node import walk
from pullback.ir.text import show
from pullback.operations.notation import RANK, Condition, Signature, form, symbols
from pullback.operations.notation import Size as Written
from pullback.operations.sizes import Sizes, ranks_of, runs_of, solve, unknown
from pullback.simplify.rules import simplify

Told = Mapping[str, int | tuple[int, int]]  # numbers, or bounds


@dataclass(slots=True)
class Extents(Sizes):
    """Sizes of symbols some of which are symbolic: an expression of those is an extent too.

    `checks`: what has to be true of free ones, and follows neither from bounds nor from `facts`.
    """

    facts: Sequence[Expr] = ()
    checks: list[Expr] = field(default_factory=list)

    def of(self, size: Written) -> Extent:
        """A size. Raises: ShapeError where a symbol in it is not known, or it may be no size."""
        if isinstance(size.tree, Name) and size.tree.name in self.known:
            known: Extent = self.known[size.tree.name]
            return known
        return self.extent(size.tree, size.text)

    def extent(self, tree: Tree, text: str, within: tuple[int, int] | None = None) -> Extent:
        """A size as an extent, `within` bounds that somebody told. Raises: ShapeError."""
        value = self.value(tree, text)
        if isinstance(value, Size):
            return value.dim
        same = (e for e in self.known.values() if isinstance(e, Derived) and e.of is value)
        if (known := next(same, None)) is not None:
            return known
        lo, hi = bounds(value)
        least, most = (0, hi) if within is None else within
        if hi < least or lo > most:
            what = f"{text} is {lo} to {hi}" if lo < hi else f"{text} is {lo}"
            raise ShapeError(f"{what} where {self.told(tree)}", code="E552")
        if isinstance(value, E.Const):
            return int(value.value)
        if lo < least:
            self.demand(E.Less(E.index(least - 1), value), f"{text} >= {least}")
        if hi > most:
            self.demand(E.Less(value, E.index(most + 1)), f"{text} <= {most}")
        return Derived(spelled(value), max(lo, least), min(hi, most), value)

    def value(self, tree: Tree, text: str) -> Expr:
        """A size as an expression of free symbols, in normal form. Raises: ShapeError."""
        if missing := [n for n in symbols(tree) if n not in self.known]:
            raise unknown(missing, self, text)
        return simplify(self._expression(tree))

    def _expression(self, tree: Tree) -> Expr:
        if isinstance(tree, Number):
            return E.index(int(tree.value))
        if isinstance(tree, Name):
            return extent_expr(self.known[tree.name])
        assert isinstance(tree, Operation)
        first, *rest = map(self._expression, tree.args)
        match tree.operator:
            case "prefix -":
                return E.negate(first)
            case "+":
                return E.Add(first, *rest)
            case "-":
                return E.subtract(first, *rest)
            case "*":
                return E.Mul(first, *rest)
            case "//":
                return E.FloorDiv(first, self._divisor(*rest))
            case "%":
                return E.Mod(first, self._divisor(*rest))
        return self._compared(tree.operator, first, *rest)

    def _divisor(self, by: Expr) -> Expr:
        """Which must not be 0. Raises: ShapeError."""
        self.demand(E.logical_not(E.Equal(by, E.index(0))), f"{spelled(by)} != 0")
        return by

    def _compared(self, operator: str, left: Expr, right: Expr) -> Expr:
        match operator:
            case "<":
                return E.Less(left, right)
            case ">":
                return E.Less(right, left)
            case "<=":
                return E.logical_not(E.Less(right, left))
            case ">=":
                return E.logical_not(E.Less(left, right))
            case "==":
                return E.Equal(left, right)
            case "!=":
                return E.logical_not(E.Equal(left, right))
        return E.And(left, right)

    def demand(self, condition: Expr, text: str) -> None:
        """Something has to be true. Raises: ShapeError where it never is."""
        condition = simplify(condition)
        shown = Prover(self.facts).prove(condition)
        if shown is False:
            raise ShapeError(f"{text} does not hold for any sizes within their bounds", code="E552")
        if shown is None and condition not in self.checks:
            self.checks.append(condition)

    def holds(self, condition: Condition) -> None:
        """What is said of sizes. Raises: ShapeError where it is never true."""
        if condition.right is None:
            self.demand(self.value(condition.left, condition.text), condition.text)
            return
        sides = [self.value(t, condition.text) for t in (condition.left, condition.right)]
        self.demand(E.Equal(*sides), condition.text)


def spelled(value: Expr) -> str:
    """``2*M``: an expression of sizes, for people."""
    return re.sub(r"size\((\w+)\)", r"\1", show(value))


def free(extents: Sequence[Extent]) -> list[Dim]:
    """Those that decide these, in order of appearance."""
    every = (n for e in extents for n in walk(extent_expr(e)))
    return list(dict.fromkeys(n.dim for n in every if isinstance(n, Size)))


def opened(
    names: Sequence[str], conditions: Sequence[Condition], told: Told, usual: tuple[int, int]
) -> Extents:
    """Every symbol's extent: what is told, what conditions say of it, else free within bounds.

    Raises: ShapeError for what contradicts itself.
    """
    made = Extents()
    for name, size in told.items():
        if isinstance(size, int) and name in names:
            made.give(name, size, "what was given")
    followed = _solved(names, conditions, made)
    for name in names:
        if name not in made.known and name not in followed:
            bound = told.get(name, usual)
            assert isinstance(bound, tuple)
            made.known[name] = Dim(name, *bound)
            made.said[name] = "its bounds"
    _follow(made, followed, told)
    for condition in conditions:
        made.holds(condition)
    return made


def measured(
    inputs: Sequence[Signature],
    shapes: Sequence[Sequence[Extent]],
    where: Sequence[Condition],
    given: Mapping[str, Any],
    facts: Sequence[Expr],
) -> Extents:
    """Every symbol's extent, from shapes, where `facts` are known of sizes.

    Raises: ShapeError for what contradicts itself, or does not follow from the facts.
    """
    plain = {n: v for n, v in given.items() if not n.startswith(RANK)}
    made = Extents(plain, dict.fromkeys(plain, "what was given"), facts)
    ranks = ranks_of(inputs, shapes, runs_of(given))
    conditions = [*where]
    for one, shape in zip(inputs, shapes, strict=True):
        for axis, (size, count) in enumerate(zip(one.expanded(ranks), shape, strict=True)):
            place = f"axis {axis} of `{one.name}`"
            made.known[place] = count
            made.said[place] = "its shape"
            text = f"{place}, {size.text}"
            conditions.append(Condition(text, size.tree, Name(0, 0, place)))
    names = [n for c in conditions for t in (c.left, c.right) for n in symbols(t)]
    _follow(made, _solved(names, conditions, made), {})
    for condition in conditions:
        made.holds(condition)
    if made.checks:
        what = f"nothing shows that {' and '.join(map(show, made.checks))}"
        raise ShapeError(what, help="say so in `where` of the file that is built", code="E553")
    return made


def _solved(
    names: Sequence[str], conditions: Sequence[Condition], made: Extents
) -> dict[str, tuple[Tree, Condition]]:
    """Numbers that equations give; what other symbols follow from. Raises: ShapeError."""
    numbers = Sizes({n: e for n, e in made.known.items() if isinstance(e, int)}, dict(made.said))
    open_ends = {n for n, e in made.known.items() if isinstance(e, Dim)}
    equations = [(c.text, c.left, c.right, "") for c in conditions if c.right is not None]
    plain = [e for e in equations if not open_ends & {*symbols(e[1]), *symbols(e[2])}]
    solve(plain, numbers)
    for name, value in numbers.known.items():
        made.known.setdefault(name, value)
        made.said.setdefault(name, numbers.said[name])
    missing = [n for n in names if n not in made.known]
    return _followed(missing, conditions, numbers.known)


def _follow(made: Extents, followed: Mapping[str, tuple[Tree, Condition]], told: Told) -> None:
    """Symbols that follow from others. Raises: ShapeError."""
    waiting = dict(followed)
    while ready := [n for n, (tree, _) in waiting.items() if made.known.keys() >= {*symbols(tree)}]:
        for name in ready:
            tree, condition = waiting.pop(name)
            bound = told.get(name)
            within = bound if isinstance(bound, tuple) else None
            made.known[name] = made.extent(tree, condition.text, within)
            made.said[name] = f"`{condition.text}`"


def _followed(
    names: Sequence[str], conditions: Sequence[Condition], known: Mapping[str, Any]
) -> dict[str, tuple[Tree, Condition]]:
    """Symbols that an equation gives by others, none by itself: ``K = 2*M``, ``M + N = K``."""
    made: dict[str, tuple[Tree, Condition]] = {}
    for condition in conditions:
        if condition.right is None:
            continue
        for side, other in _sides(condition, known):
            inner = _reached(other, made)
            name = side.name
            if name in names and name not in made and name not in inner:
                made[name] = other, condition
                break
    return made


def _sides(condition: Condition, known: Mapping[str, Any]) -> list[tuple[Name, Tree]]:
    """A symbol, and what it is: where it stands alone, or once with the factor 1 or -1."""
    assert condition.right is not None
    pairs = [(condition.left, condition.right), (condition.right, condition.left)]
    made = [(a, b) for a, b in pairs if isinstance(a, Name)]
    sides = form(condition.left, known), form(condition.right, known)
    if made or sides[0] is None or sides[1] is None:
        return made
    (left, number), (right, other) = sides[0], sides[1]
    factors = {n: left.get(n, 0) - right.get(n, 0) for n in {**left, **right}}
    for name, factor in factors.items():
        if abs(factor) == 1:
            total: Tree = Number(0, 0, factor * (other - number))
            for n, times in factors.items():
                part = Operation(0, 0, "*", (Number(0, 0, -factor * times), Name(0, 0, n)))
                total = total if n == name else Operation(0, 0, "+", (total, part))
            made.append((Name(0, 0, name), total))
    return made


def _reached(tree: Tree, made: Mapping[str, tuple[Tree, Condition]]) -> set[str]:
    """Every symbol that a size goes back to."""
    seen: set[str] = set()
    todo = symbols(tree)
    while todo:
        name = todo.pop()
        if name not in seen:
            seen.add(name)
            todo += symbols(made[name][0]) if name in made else []
    return seen
