"""Sizes beside a declared shape: which letter is which number, and what does not fit."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pullback.errors import SyntaxFormError
from pullback.ir.expr import Dim, lower
from pullback.tensor.shaped.declaration import Along, Extent, Free, Group, Item, Items, Shape
from pullback.tensor.values.elementwise import show

Size = int | Dim
Sizes = tuple[Size, ...]


class Misfit(Exception):
    """Why a shape is not the one declared; caught where the argument is known.

    `of_rank`: not even the number of axes fits.
    """

    def __init__(self, text: str, of_rank: bool = False) -> None:
        super().__init__(text)
        self.of_rank = of_rank


class NoAxis(Exception):
    """An axis is named that is none: the function itself speaks of it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a letter got its number."""

    size: Size
    argument: str
    axis: int


@dataclass(slots=True)
class Bound:
    """Letters and groups of one call, as far as they are known."""

    arguments: Mapping[str, Any]
    letters: dict[str, Place] = field(default_factory=dict)
    groups: dict[str, tuple[Sizes, str]] = field(default_factory=dict)

    def branch(self) -> Bound:
        """A copy, to try a way with."""
        return Bound(self.arguments, dict(self.letters), dict(self.groups))

    def number(self, tree: ast.expr) -> Any:
        """What an expression of letters and arguments is; None while a name of it is not known."""
        match tree:
            case ast.Constant():
                return tree.value
            case ast.Name(id="inf"):
                return math.inf
            case ast.Name():
                place = self.letters.get(tree.id)
                return self.arguments.get(tree.id) if place is None else place.size
            case ast.Attribute():
                return getattr(self.number(tree.value), tree.attr, None)
            case ast.Subscript():
                listed, place = self.number(tree.value), self.number(tree.slice)
                return listed[place] if isinstance(listed, list | tuple) else None
            case ast.BinOp():
                return _combined(tree.op, self.number(tree.left), self.number(tree.right))
            case ast.UnaryOp(op=ast.USub()):
                return _combined(ast.Sub(), 0, self.number(tree.operand))
        raise SyntaxFormError(f"no arithmetic: {ast.unparse(tree)}")


def _combined(op: ast.operator, a: Any, b: Any) -> Any:
    """Arithmetic of numbers; None where one is not known or is no integer."""
    if not (isinstance(a, int | float) and isinstance(b, int | float)):
        return None
    match op:
        case ast.Add():
            return a + b
        case ast.Sub():
            return a - b
        case ast.Mult():
            return a * b
        case ast.FloorDiv():
            return a // b if b else None
        case ast.Mod():
            return a % b if b else None
        case ast.Pow():
            return a**b
    raise SyntaxFormError(f"no arithmetic: {type(op).__name__}")


# --- sizes ---------------------------------------------------------------------------------------


def match(shape: Shape, sizes: Sizes, bound: Bound) -> Bound:
    """What is known once the argument `shape` has these sizes. Raises: Misfit."""
    problems = []
    for way in shape.ways:
        trial = bound.branch()
        try:
            _match_way(shape.name, way, sizes, trial)
        except Misfit as problem:
            problems.append(problem)
            continue
        return trial
    fitting = [p for p in problems if not p.of_rank]
    raise (fitting or problems)[0]


def _match_way(name: str, way: Items, sizes: Sizes, bound: Bound) -> None:
    named = [item for item in way if isinstance(item, Along)]
    axes = list(range(len(sizes)))
    if named:
        taken = [_place(name, item, way, sizes, bound) for item in named]
        if None in taken:
            return
        if len(set(taken)) < len(taken):
            raise NoAxis
        for item, axis in zip(named, taken, strict=True):
            place: Any = axis  # no None: checked above
            _match_item(name, item.extent, [place], (sizes[place],), bound)
        axes = [axis for axis in axes if axis not in taken]
        way = tuple(item for item in way if not isinstance(item, Along))
    _match_others(name, way, axes, sizes, bound)


def _place(name: str, item: Along, way: Items, sizes: Sizes, bound: Bound) -> int | None:
    """Which axis an item is; None where none is named: any shape fits.

    Raises: NoAxis where it is not there, Misfit where that is since others have more axes.
    """
    axis = bound.number(item.axis)
    if not isinstance(axis, int | np.integer):
        return None
    if -len(sizes) <= axis < len(sizes):
        return int(axis) % len(sizes)
    if any(isinstance(other, Group) and other.name in bound.groups for other in way):
        text = f"`{name}` of {show(sizes)} has {len(sizes)} axes, and no axis {axis}"
        raise Misfit(text, of_rank=True)
    raise NoAxis


def _match_others(name: str, way: Items, axes: list[int], sizes: Sizes, bound: Bound) -> None:
    fixed = sum(_width(item, bound) or 0 for item in way)
    open_ended = [item for item in way if _width(item, bound) is None]
    if len(axes) < fixed or (len(axes) > fixed and not open_ended):
        raise Misfit(_rank_text(name, way, sizes, len(axes), fixed, bool(open_ended)), of_rank=True)
    rest = len(axes) - fixed
    for item in way:
        width = _width(item, bound)
        taken = rest if width is None else width
        own, axes = axes[:taken], axes[taken:]
        _match_item(name, item, own, tuple(sizes[n] for n in own), bound)


def _width(item: Any, bound: Bound) -> int | None:
    """How many axes an item takes; None: as many as there are."""
    if isinstance(item, Extent):
        return 1
    if isinstance(item, Free):
        return None if item.count is None else int(bound.number(item.count))
    if item.stretches:
        return None
    listed = _listed(item, bound)
    if listed is not None:
        return len(listed)
    known = bound.groups.get(item.name) if item.same else None
    return None if known is None else len(known[0])


def _listed(group: Group, bound: Bound) -> Sizes | None:
    """The extents that an argument of the group's name lists."""
    given = bound.arguments.get(group.name)
    if isinstance(given, int | np.integer):
        return (int(given),)
    return tuple(given) if isinstance(given, list | tuple) else None


def _rank_text(name: str, way: Items, sizes: Sizes, count: int, fixed: int, more: bool) -> str:
    wanted = ", ".join(map(str, way))
    least = " or more" if more else ""
    others = "" if count == len(sizes) else "other "
    return f"`{name}` of {show(sizes)} has {count} {others}axes, [{wanted}] has {fixed}{least}"


def _match_item(name: str, item: Any, axes: list[int], sizes: Sizes, bound: Bound) -> None:
    if isinstance(item, Extent):
        _match_extent(name, item, axes[0], sizes[0], bound)
    elif isinstance(item, Group):
        _match_group(name, item, axes, sizes, bound)


def _match_extent(name: str, item: Extent, axis: int, size: Size, bound: Bound) -> None:
    if item.stretches and size == 1:
        return
    letter = item.letter
    wanted = bound.number(item.tree)
    if wanted is None:
        if letter is not None:
            bound.letters[letter] = Place(size, name, axis)
        return
    if wanted == size or not isinstance(wanted, int | Dim):
        return
    raise Misfit(_size_text(name, axis, size, item.text, wanted, bound))


def _size_text(name: str, axis: int, size: Size, text: str, wanted: Size, bound: Bound) -> str:
    place = bound.letters.get(text.removesuffix("?"))
    if place is None:
        why = f"{text} is {wanted}" if text != str(wanted) else f"it must be {wanted}"
    else:
        why = f"{text} is {wanted}, axis {place.axis} of `{place.argument}`"
    return f"axis {axis} of `{name}` has {size} elements, {why}"


def _match_group(name: str, item: Group, axes: list[int], sizes: Sizes, bound: Bound) -> None:
    listed = _listed(item, bound)
    if listed is not None and item.stretches:
        _match_stretching(name, item, axes, sizes, listed, item.name)
        return
    if listed is not None:
        for n, (size, wanted) in enumerate(zip(sizes, listed, strict=True)):
            if size != wanted:
                text = f"*{item.name}"
                raise Misfit(_size_text(name, axes[n], size, text, wanted, bound))
        return
    before = bound.groups.get(item.name)
    if before is None:
        if not (item.same and (item.stretches or item.within)):
            bound.groups[item.name] = (sizes, name)
        return
    known, owner = before
    if not item.same:
        bound.groups[item.name] = (_stretched(name, item, axes, sizes, known, owner), owner)
    elif item.stretches:
        _match_stretching(name, item, axes, sizes, known, owner)
    else:
        _match_same(name, item, axes, sizes, known, owner)


def _match_same(
    name: str, item: Group, axes: list[int], sizes: Sizes, known: Sizes, owner: str
) -> None:
    """Raises: Misfit where these sizes are not those known, or not within them."""
    for n, (size, wanted) in enumerate(zip(sizes, known, strict=True)):
        if size != wanted and not (item.within and _fits(size, wanted)):
            most = "at most " if item.within else ""
            raise Misfit(
                f"axis {axes[n]} of `{name}` has {size} elements, "
                f"axis {n} of {item.name}... has {most}{wanted} in `{owner}`"
            )


def _fits(size: Size, most: Size) -> bool:
    """Whether an extent is certainly no longer than another."""
    return isinstance(size, int) and size <= lower(most)


def _match_stretching(
    name: str, item: Group, axes: list[int], sizes: Sizes, known: Sizes, owner: str
) -> None:
    """Raises: Misfit where these sizes do not stretch to those known."""
    skip = len(known) - len(sizes)
    if skip < 0:
        raise Misfit(f"`{name}` of {show(sizes)} has more axes than `{owner}`", of_rank=True)
    for n, (size, wanted) in enumerate(zip(sizes, known[skip:], strict=True)):
        if size not in (1, wanted):
            raise Misfit(
                f"axis {axes[n]} of `{name}` has {size} elements, "
                f"axis {skip + n} of {item.name}... has {wanted} in `{owner}`: it must be that or 1"
            )


def _stretched(
    name: str, item: Group, axes: list[int], sizes: Sizes, known: Sizes, owner: str
) -> Sizes:
    """Both broadcast. Raises: Misfit where they do not."""
    rank = max(len(sizes), len(known))
    padded = [(1,) * (rank - len(s)) + tuple(s) for s in (sizes, known)]
    both: list[Size] = []
    for n, (size, other) in enumerate(zip(*padded, strict=True)):
        if size != other and 1 not in (size, other):
            own = axes[n - (rank - len(sizes))]
            raise Misfit(
                f"axis {own} of `{name}` has {size} elements, {other} in *{item.name} of `{owner}`"
                ": they must be equal or 1"
            )
        both.append(other if size == 1 else size)
    return tuple(both)


def result_sizes(shape: Shape, bound: Bound) -> tuple[Size | None, ...] | None:
    """The sizes that a declared result has; None where they are not told."""
    if len(shape.ways) > 1:
        return None
    sizes: list[Size | None] = []
    named: list[Along] = []
    for item in shape.ways[0]:
        if isinstance(item, Along):
            named.append(item)
            continue
        own = _result_sizes(item, bound)
        if own is None:
            return None
        sizes += own
    for item in named:
        axis = bound.number(item.axis)
        extent = _result_sizes(item.extent, bound)
        if not isinstance(axis, int) or extent is None:
            return None
        sizes.insert(axis if axis >= 0 else len(sizes) + 1 + axis, extent[0])
    return tuple(sizes)


def _result_sizes(item: Item, bound: Bound) -> Sequence[Size | None] | None:
    if isinstance(item, Extent):
        return [bound.number(item.tree)]
    if isinstance(item, Group):
        listed = _listed(item, bound)
        return bound.groups.get(item.name, ((), ""))[0] if listed is None else listed
    if isinstance(item, Free) and item.count is not None:
        return [None] * int(bound.number(item.count))
    return None
