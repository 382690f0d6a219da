"""Writes into a part of an argument: the rest of it is neither read nor written.

``y = slice_scatter(x, v, 2, p, p + 1); copy_(x, y)  ->  v; x[:, :, p : p + 1] = v``

A program would write all of the buffer; here it computes the part, which is copied to its place
once the program has run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

from pullback.bridge.programs import caller
from pullback.bridge.writes import COPY, PUT
from pullback.errors import IndexRangeError

aten = torch.ops.aten
_VIEWS = {
    aten.slice_scatter.default: aten.slice.Tensor,
    aten.select_scatter.default: aten.select.int,
}
_INTO = {
    aten.index_copy.default: aten.index_copy_.default,
    aten.index_put.default: aten.index_put_.default,
}
_ARGUMENTS = {aten.index_copy.default: 4, aten.index_put.default: 3}  # more: it adds
Step = tuple[Any, tuple[Any, ...]]
"""A view, and its arguments after the tensor."""


@dataclass(frozen=True, slots=True)
class Write:
    """A value that goes into a view of an argument: all of it (`copy_`), or where indices say."""

    target: Node
    value: Node
    views: tuple[Step, ...] = ()
    into: Any = COPY
    where: tuple[Any, ...] = ()

    @property
    def nodes(self) -> list[Node]:
        """What has to be known: the value, and where it goes."""
        known: list[Node] = [self.value]
        torch.fx.map_arg((self.views, self.where), known.append)
        return known

    def place(self, whole: Any, known: Mapping[Node, Any]) -> Any:
        """The part of the argument. Raises: IndexRangeError."""
        part = whole
        for view, args in self.views:
            part = view(part, *torch.fx.map_arg(args, known.__getitem__))
        for axis, index in self._indices():
            _check(index, known[index], part.shape[axis] if part.ndim else 1, self.into)
        return part

    def run(self, part: Any, known: Mapping[Node, Any]) -> None:
        """Write, into what `place` gave."""
        self.into(part, *torch.fx.map_arg(self.where, known.__getitem__), known[self.value])

    def _indices(self) -> Iterator[tuple[int, Node]]:
        """Each index with the axis that it counts."""
        if self.into == aten.index_copy_.default:
            yield self.where[0], self.where[1]
        elif self.where:
            yield from ((n, i) for n, i in enumerate(self.where[0]) if i is not None)


def writes_of(copy: Node) -> list[Write]:
    """A write at the end of a graph, by its parts where that moves fewer bytes than all of it.

    All of it is read and written once; a part is written, read, and written to its place.
    """
    target, source = copy.args
    whole = [Write(target, source)]
    parts = _parts(source, target, target, ())
    if not parts or not all(_is_tensor(w.value) for w in parts):
        return whole
    return parts if 3 * sum(_bytes(w.value) for w in parts) < 2 * _bytes(target) else whole


def put(writes: Sequence[Write], held: Mapping[Node, Any], known: Mapping[Node, Any]) -> None:
    """All of them, in order; `held`: the arguments. Raises: IndexRangeError, before the first."""
    places = [w.place(held[w.target], known) for w in writes]
    for one, part in zip(writes, places, strict=True):
        one.run(part, known)


def _parts(source: Any, base: Node, target: Node, views: tuple[Step, ...]) -> list[Write] | None:
    """What makes `source` of `base`, which is the argument seen through `views`; None: nobody
    can tell.
    """
    if source == base:
        return []
    if not isinstance(source, Node) or source.kwargs or source.target not in (*_VIEWS, *_INTO):
        return None
    if not _unread(source):
        return None  # the program has it anyway
    before = _parts(source.args[0], base, target, views)
    if before is None:
        return None
    if source.target in _INTO:
        *where, value = source.args[1:]
        if len(source.args) != _ARGUMENTS[source.target]:
            return None
        return [*before, Write(target, value, views, _INTO[source.target], tuple(where))]
    value, *args = source.args[1:]
    step = (_VIEWS[source.target], tuple(args))
    return [*before, *_within(value, source.args[0], target, (*views, step))]


def _within(value: Node, base: Node, target: Node, views: tuple[Step, ...]) -> list[Write]:
    """A value that goes into a view of `base`; what is put into that view itself, deeper."""
    view, args = views[-1]
    inner = value
    while isinstance(inner, Node) and inner.target in (*_VIEWS, *_INTO):
        inner = inner.args[0]
    same = isinstance(inner, Node) and inner.target == view and inner.args == (base, *args)
    parts = _parts(value, inner, target, views) if same and not inner.kwargs else None
    if parts:
        return parts
    plain = value.args[1] if value.target == PUT and not value.kwargs else value
    return [Write(target, plain if _is_tensor(plain) else value, views)]


def _unread(node: Node) -> bool:
    """Whether nothing but writes wants it."""
    return all(
        user.target in (COPY, *_VIEWS, *_INTO)
        or (user.target == PUT and user.args[0] == node)
        or (user.target in _VIEWS.values() and _unread(user))
        for user in node.users
    )


def _is_tensor(node: Any) -> bool:
    return isinstance(node, Node) and isinstance(node.meta.get("val"), torch.Tensor)


def _bytes(node: Node) -> int:
    """Of a tensor; a symbolic size counts as it was when the graph was traced."""
    value = node.meta["val"]
    count = 1
    for size in value.shape:
        count *= size if isinstance(size, int) else size.node.hint
    return int(count * value.itemsize)


def _check(node: Node, index: Any, extent: int, into: Any) -> None:
    """Raises: IndexRangeError."""
    if not index.numel():
        return
    low = -extent if into == aten.index_put_.default else 0
    for worst in map(int, index.aminmax()):
        if not low <= worst < extent:
            what = f"index {worst} is out of range: `{node.name}` counts {extent} elements"
            raise IndexRangeError(what, origin=caller())
