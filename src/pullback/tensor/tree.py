"""Nested tuples, lists, dicts and dataclasses of tensors, taken apart and put together again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from pullback.tensor.trace import Handle

_LEAF = object()
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


def flatten(tree: Any, convert: Callable[[Any], Any] | None = None) -> Tree:
    """Take `tree` apart. What is no tensor, list, tuple or dict is static, part of the key.

    A dataclass with a tensor in one of its fields is taken apart, too.
    `convert` may turn a leaf into a handle first.
    """
    handles: list[Handle] = []

    def visit(node: Any) -> tuple[Any, Any]:
        if type(node) is tuple and all(isinstance(n, Handle) for n in node):
            handles.extend(node)
            return ("row", tuple, [_PLACE] * len(node)), (tuple, (_LEAF,) * len(node))
        if isinstance(node, list | tuple):
            parts = [visit(n) for n in node]
            form = (
                "named" if hasattr(node, "_fields") else "row",
                type(node),
                [p[0] for p in parts],
            )
            return form, (type(node), tuple(p[1] for p in parts))
        if isinstance(node, dict):
            parts = [visit(n) for n in node.values()]
            return ("dict", list(node), [p[0] for p in parts]), (
                dict,
                tuple(node),
                tuple(p[1] for p in parts),
            )
        if has_tensors(node):
            parts = [visit(getattr(node, f.name)) for f in fields(node)]
            form = ("named", type(node), [p[0] for p in parts])
            return form, (type(node), tuple(p[1] for p in parts))
        leaf = node if convert is None else convert(node)
        if isinstance(leaf, Handle):
            handles.append(leaf)
            return _PLACE, _LEAF
        static = node.hex() if isinstance(node, float) else node
        return ("static", None, node), (type(node), static)

    form, key = visit(tree)
    return Tree(tuple(handles), form, key)


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
