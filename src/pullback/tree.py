"""Trees of parameters: nested tuples, lists, dicts and dataclasses, worked on leaf by leaf.

``weights = pb.tree.map(lambda w, g: w - 0.1 * g, weights, slopes)``

What is none of these is a leaf: a tensor, an array, a number. None is a tree without leaves.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pullback.errors import ShapeError
from pullback.tensor.face.dialect import shown as _shown
from pullback.tensor.face.dialect import unknown as _unknown
from pullback.tensor.record.trace import Handle

__all__ = ["flatten", "leaves", "map"]


def map(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """``function(leaf, ..)`` of the leaves that stand in one place of all trees, as such a tree.

    Raises: ShapeError where the trees differ in more than their leaves.

    Example:
        >>> pb.tree.map(lambda w, g: w - g, {"a": 3, "b": [1, 2]}, {"a": 1, "b": [0, 1]})
        {'a': 2, 'b': [1, 1]}
    """
    return _mapped(function, (tree, *others), "")


def leaves(tree: Any) -> list[Any]:
    """The leaves, in the order in which tuples, lists, dicts and dataclasses have them.

    Example:
        >>> pb.tree.leaves({"a": 3, "b": [1, None, 2]})
        [3, 1, 2]
    """
    return list(_leaves(tree))


def flatten(tree: Any) -> tuple[list[Any], Callable[[Sequence[Any]], Any]]:
    """The leaves, and the function that puts others in their place.

    Example:
        >>> numbers, rebuild = pb.tree.flatten({"a": 3, "b": [1, 2]})
        >>> rebuild([2 * n for n in numbers])
        {'a': 6, 'b': [2, 4]}
    """
    own = leaves(tree)

    def rebuild(given: Sequence[Any]) -> Any:
        if len(given) != len(own):
            raise ShapeError(f"{len(given)} leaves for a tree of {len(own)}", code="E132")
        left = iter(given)
        return map(lambda _: next(left), tree)

    return own, rebuild


def _mapped(function: Callable[..., Any], trees: tuple[Any, ...], place: str) -> Any:
    first = trees[0]
    keys = _keys(first)
    if keys is None:
        return function(*trees)
    for other in trees[1:]:
        _check(first, other, keys, place)
    parts = [
        _mapped(function, tuple([_part(t, key) for t in trees]), f"{place}[{key!r}]")
        for key in keys
    ]
    return _rebuilt(first, keys, parts)


def _leaves(tree: Any) -> Iterator[Any]:
    keys = _keys(tree)
    if keys is None:
        yield tree
        return
    for key in keys:
        yield from _leaves(_part(tree, key))


def _keys(node: Any) -> list[Any] | None:
    """What the parts of a node are called; None of a leaf."""
    if node is None:
        return []
    if isinstance(node, list | tuple):
        return list(range(len(node)))
    if isinstance(node, dict):
        return list(node)
    if isinstance(node, Handle | type) or not dataclasses.is_dataclass(node):
        return None
    return [field.name for field in dataclasses.fields(node)]


def _part(node: Any, key: Any) -> Any:
    return node[key] if isinstance(node, list | tuple | dict) else getattr(node, key)


def _rebuilt(node: Any, keys: list[Any], parts: list[Any]) -> Any:
    if node is None:
        return None
    if isinstance(node, dict):
        return dict(zip(keys, parts, strict=True))
    if isinstance(node, list | tuple):
        return type(node)(*parts) if hasattr(node, "_fields") else type(node)(parts)
    return dataclasses.replace(node, **dict(zip(keys, parts, strict=True)))


def _check(first: Any, other: Any, keys: list[Any], place: str) -> None:
    """Raises: ShapeError where a node is not like that of the first tree."""
    given = _keys(other)
    alike = isinstance(first, dict) and isinstance(other, dict)
    if given is not None and (alike or type(other) is type(first)) and set(given) == set(keys):
        return
    told = f"a {type(first).__name__} of {len(keys)}, and a {type(other).__name__}"
    told += "" if given is None else f" of {len(given)}"
    where = f" at {place}" if place else ""
    raise ShapeError(f"tree.map: {told}{where}", code="E132")


def __getattr__(name: str) -> object:
    raise _unknown("pullback.tree", name, __all__)


__dir__ = _shown(__all__)
