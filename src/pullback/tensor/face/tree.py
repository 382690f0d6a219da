"""Nested tuples, lists, dicts and dataclasses of tensors, taken apart and put together again."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from operator import itemgetter
from typing import Any

from pullback.tensor.record.trace import Handle

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_LEAF = object()
_PLAIN = {int, float, bool, str, type(None)}  # never taken apart
_PLACE = ("leaf", None, None)


@dataclass(frozen=True, eq=False, slots=True)
class Tree:
    """`handles` in order, and how to put others in their place. Equal `key`: same structure."""

    handles: tuple[Handle, ...]
    form: Any
    key: Any

    def rebuild(self, leaves: Sequence[Any]) -> Any:
        """The same structure around other leaves."""
        return _rebuild(self.form, iter(leaves))

    def builder(self) -> Callable[[Sequence[Any]], Any]:
        """`rebuild`, as short as the structure allows."""
        kind, head, parts = self.form
        if kind == "leaf":
            return itemgetter(0)
        return tuple if head is tuple and parts == [_PLACE] * len(parts) else self.rebuild


def leaf_names(function: Callable[..., Any], arguments: Tree) -> list[str]:
    """What to call each leaf of ``(args, kwargs)``: ``f({"w": x}, y) -> net.w, y``."""
    args, kwargs = arguments.form[2]
    named = zip(parameter_names(function, len(args[2])), args[2], strict=True)
    keyed = zip(kwargs[1], kwargs[2], strict=True)
    return [path for name, form in (*named, *keyed) for path in _paths(form, str(name))]


def parameter_names(function: Callable[..., Any], count: int) -> list[str]:
    """The names of the first parameters; numbers where a signature does not tell them."""
    numbered = [f"argument{n}" for n in range(count)]
    try:
        given = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # of some built-in functions
        return numbered
    named = [p.name for p in given if p.kind in _POSITIONAL][:count]
    return named + numbered[len(named) :]


def _paths(form: Any, path: str) -> Iterator[str]:
    kind, head, parts = form
    if kind == "leaf":
        yield path
    elif kind != "static":
        keys = map(str, head if kind == "dict" else range(len(parts)))
        for n, (key, part) in enumerate(zip(keys, parts, strict=True)):
            yield from _paths(part, f"{path}.{key if key.isidentifier() else n}")


def flatten(tree: Any, convert: Callable[[Any], Any] | None = None) -> Tree:
    """Take `tree` apart. What is no tensor, list, tuple or dict is static, part of the key.

    A dataclass with a tensor in one of its fields is taken apart, too.
    `convert` may turn a leaf into a handle first.
    """
    apart = _Apart(convert)
    form, key = apart.visit(tree)
    return Tree(tuple(apart.handles), form, key)


class _Apart:
    """Takes a tree apart: the handles so far. Functions that call one another would be a cycle,
    and the handles alive until Python looks for garbage.
    """

    __slots__ = ("convert", "handles")

    def __init__(self, convert: Callable[[Any], Any] | None) -> None:
        self.convert = convert
        self.handles: list[Handle] = []

    def visit(self, node: Any) -> tuple[Any, Any]:
        """Its form, and its part of the key."""
        if isinstance(node, Handle):
            self.handles.append(node)
            return _PLACE, _LEAF
        kind = type(node)
        if kind in _PLAIN:
            return self.leaf(node)
        if isinstance(node, list | tuple):
            shape = "named" if hasattr(node, "_fields") else "row"
            return self.joined(shape, kind, (kind,), node)
        if isinstance(node, dict):
            return self.joined("dict", list(node), (dict, tuple(node)), node.values())
        if has_tensors(node):
            inner = [getattr(node, f.name) for f in fields(node)]
            return self.joined("named", kind, (kind,), inner)
        return self.leaf(node)

    def leaf(self, node: Any) -> tuple[Any, Any]:
        """Of what has no parts."""
        converted = node if self.convert is None else self.convert(node)
        if isinstance(converted, Handle):
            self.handles.append(converted)
            return _PLACE, _LEAF
        static = node.hex() if isinstance(node, float) else node
        return ("static", None, node), (type(node), static)

    def joined(self, shape: str, head: Any, own: Any, nodes: Iterable[Any]) -> tuple[Any, Any]:
        """Of what has parts."""
        parts = [self.visit(n) for n in nodes]
        return (shape, head, [p[0] for p in parts]), (*own, tuple([p[1] for p in parts]))


def has_tensors(node: Any) -> bool:
    """Whether it is a dataclass with a tensor in one of its fields."""
    if isinstance(node, Handle | type) or not is_dataclass(node):
        return False
    return any(isinstance(getattr(node, f.name), Handle) for f in fields(node))


def _rebuild(form: Any, leaves: Iterator[Any]) -> Any:
    kind, head, parts = form
    if kind == "leaf":
        return next(leaves)
    if kind == "static":
        return parts
    built = [_rebuild(p, leaves) for p in parts]
    if kind == "dict":
        return dict(zip(head, built, strict=True))
    return head(*built) if kind == "named" else head(built)
