"""Shapes of the inputs of a definition given as text: as options say, or small ones that fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

import click

from pullback.composite.syntax import Name, Number, Operation, Parser, Read, Tree
from pullback.composite.text import defined, reads
from pullback.errors import Origin

LARGEST = 1 << 20  # elements of an input whose shape nobody gave
EXTENTS = (4, 5, 3, 6, 2)  # of axes, by order of appearance; all differ, so that mistakes show

Shape = tuple[int, ...]


class Typed(Origin):
    """Text that the user typed: the frames between are not theirs."""

    @property
    def place(self) -> str:
        return "the command line"


def typed(text: str, sizes: Mapping[str, int], names: Mapping[str, Any]) -> Any:
    """What a definition on the command line makes of tensors."""
    return defined(text, TYPED, sizes, names)


TYPED = Typed(typed.__code__, 0)


def parsed(option: str) -> tuple[str, Shape]:
    """``a=2,3 -> ("a", (2, 3))``. Raises: click.BadParameter."""
    name, equals, extents = option.partition("=")
    try:
        shape = tuple(int(e) for e in extents.split(",") if e.strip())
    except ValueError:
        shape = ()
        equals = ""
    if not equals or not name.isidentifier():
        raise click.BadParameter(f"{option!r} is not of the form a=2,3", param_hint="--shape")
    return name, shape


def size_of(option: str) -> tuple[str, int]:
    """``i=8 -> ("i", 8)``: the extent of an axis that no read fixes. Raises: click.BadParameter."""
    name, shape = parsed(option)
    if len(shape) != 1:
        raise click.BadParameter(f"{option!r} is not of the form i=8", param_hint="--size")
    return name, shape[0]


def shapes_of(text: str, options: Sequence[str]) -> dict[str, Shape]:
    """A shape for everything that `text` reads.

    Raises: click.UsageError where an index is more than an axis, or makes it large, and no option
        gives the shape.
    """
    shapes = dict(map(parsed, options))
    extents: dict[str, int] = {}
    statements = Parser(text, TYPED).statements()
    every = [r for s in statements for r in reads(s.body)]
    for read in every:
        for index, extent in zip(read.indices, shapes.get(read.name, ()), strict=False):
            if isinstance(index, Name):
                extents[index.name] = extent
    made = {s.name for s in statements}
    for read in every:
        if read.name not in shapes and read.name not in made:
            shapes[read.name] = tuple(_extent(read.name, i, extents) for i in read.indices)
            if prod(shapes[read.name]) > LARGEST:
                raise _unknown(read.name)
    return shapes


def data_indices(text: str, shapes: Mapping[str, Shape]) -> dict[str, int]:
    """The inputs that stand in an index, with the least extent there: ``x[rows[i]] -> rows``.

    1 where what they index is no input.
    """
    bounds: dict[str, int] = {}
    statements = Parser(text, TYPED).statements()
    for read in (r for s in statements for r in reads(s.body)):
        extents = shapes.get(read.name, (1,) * len(read.indices))
        for index, extent in zip(read.indices, extents, strict=False):
            for name in _operands(index):
                bounds[name] = min(extent, bounds.get(name, extent))
    return {name: bound for name, bound in bounds.items() if name in shapes}


def _operands(index: Tree) -> Iterator[str]:
    """What an index reads itself, not inside a function or a reduction: where floats may stand."""
    stack = [index]
    while stack:
        node = stack.pop()
        if isinstance(node, Read):
            yield node.name
        elif isinstance(node, Operation):
            stack.extend(node.args)


def _extent(name: str, index: Tree, extents: dict[str, int]) -> int:
    if isinstance(index, Number) and index.value < LARGEST:
        return int(index.value) + 1
    if isinstance(index, Name):
        return extents.setdefault(index.name, EXTENTS[len(extents) % len(EXTENTS)])
    raise _unknown(name)


def _unknown(name: str) -> click.UsageError:
    what = f"the shape of {name} does not follow from its reads: --shape {name}=.."
    return click.UsageError(what)
