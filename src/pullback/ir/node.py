"""Interned, immutable nodes: equal nodes are the same object, so `is` is structural equality."""

from __future__ import annotations

import inspect
import time
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, ClassVar, Self, TypeVar

from pullback.config import Cap
from pullback.errors import UnsupportedError

MOST_KEPT: Cap = 64  # nodes that one keeps of a walk: most are walked again and again

T = TypeVar("T")
R = TypeVar("R")


class Node:
    """A node whose annotated fields are its identity. Subclasses annotate fields, in order.

    A class made with `family=True` is the root of one kind of node: it annotates derived facts.
    Floats are compared by bits (0.0 and -0.0, and every NaN payload, stay apart) and values by
    type (1, 1.0 and True stay apart). Facts that follow from the fields are set in `derive`.
    """

    __slots__ = ("__weakref__", "_below", "children")
    __match_args__: ClassVar[tuple[str, ...]] = ()
    # Whether a field may hold a number, which equality alone does not tell from another type's.
    _literal: ClassVar[bool] = False
    # What sets each field of a new node, where `__setattr__` refuses.
    _puts: ClassVar[tuple[Callable[[Node, Any], None], ...]] = ()
    children: tuple[Node, ...]
    # What `walk` yields before the node, once walked, where that is few.
    _below: tuple[Node, ...] | None
    _interned: ClassVar[dict[tuple[Any, ...], Any]] = {}  # weak references, by class and fields

    def __init_subclass__(cls, family: bool = False) -> None:
        if not family:
            own = (name for name in inspect.get_annotations(cls) if name[0] != "_")
            cls.__match_args__ += tuple(own)  # type: ignore[misc]  # each class has its own
            cls._puts = tuple([getattr(cls, name).__set__ for name in cls.__match_args__])

    def __new__(cls, *args: Any) -> Self:
        key = (cls, *map(_identity, args)) if cls._literal else (cls, *args)
        entry = Node._interned.get(key)
        known: Self | None = None if entry is None else entry()
        if known is not None:
            return known
        if len(args) != len(cls.__match_args__):
            raise TypeError(f"{cls.__name__} takes {cls.__match_args__}, got {len(args)} values")
        node = super().__new__(cls)
        for put, value in zip(cls._puts, args, strict=True):
            put(node, value)
        _put_children(node, _children(args))
        node.derive()
        first: Self = _first(node, key)
        return first

    def derive(self) -> None:
        """Check the fields and set the facts that follow from them."""

    def _set(self, **facts: Any) -> None:
        for name, value in facts.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is immutable (tried to set {name!r})")

    def __reduce__(self) -> str:
        raise UnsupportedError(
            "tensors and definitions are not pickled",
            help="pickle x.numpy(); pb.nn.save writes weights",
            code="E329",
        )

    @property
    def fields(self) -> tuple[Any, ...]:
        """The field values, in declaration order."""
        return tuple([getattr(self, name) for name in self.__match_args__])

    def with_children(self, new: tuple[Node, ...]) -> Self:
        """The same node over other children."""
        if new == self.children:
            return self
        fields = self.fields
        if fields == self.children:
            return type(self)(*new)
        fresh = iter(new)
        return type(self)(*[_replace(value, fresh) for value in fields])

    def __repr__(self) -> str:
        return _shown(self, DEEPEST)


# Levels of nodes that a repr shows: one node may be reached by exponentially many paths.
DEEPEST = 8


def _shown(value: object, depth: int) -> str:
    """``Add(x, Mul(y, z)), two levels  ->  Add(x, Mul(..))``"""
    if isinstance(value, tuple):
        inner = ", ".join(_shown(v, depth) for v in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if not isinstance(value, Node):
        return repr(value)
    fields = ", ".join(_shown(v, depth - 1) for v in value.fields) if depth else ".."
    return f"{type(value).__name__}({fields})"


_put_children = vars(Node)["children"].__set__
_put_below = vars(Node)["_below"].__set__


class _Entry(weakref.ref[Any]):
    """A node in the intern table, which its key leaves with it."""

    __slots__ = ("key",)
    key: tuple[Any, ...]


def _first(node: Any, key: tuple[Any, ...]) -> Any:
    """`node`, unless another thread was faster to make an equal one."""
    own = _Entry(node, _forget)
    own.key = key
    while True:
        known = Node._interned.setdefault(key, own)()
        if known is not None:
            return known
        time.sleep(0)  # another thread is at forgetting a dead one


def _forget(entry: _Entry) -> None:
    """Remove a dead node from the intern table."""
    if Node._interned.get(entry.key) is entry:
        del Node._interned[entry.key]


def _identity(value: Any) -> Any:
    if isinstance(value, Node):
        return value
    if isinstance(value, float):
        return (float, value.hex())
    return (type(value), value)


def _children(fields: tuple[Any, ...]) -> tuple[Node, ...]:
    if tuple in map(type, fields):
        return tuple(_nodes(fields))
    return tuple([value for value in fields if isinstance(value, Node)])


def _nodes(values: Iterable[Any]) -> Iterator[Node]:
    for value in values:
        if isinstance(value, Node):
            yield value
        elif isinstance(value, tuple):
            yield from _nodes(value)


def _replace(value: Any, fresh: Iterator[Node]) -> Any:
    if isinstance(value, Node):
        return next(fresh)
    if isinstance(value, tuple):
        return tuple([_replace(v, fresh) for v in value])
    return value


def walk(roots: Iterable[Node] | Node, skip: Container[Node] = ()) -> Iterable[Node]:
    """Children before parents, each node once, without recursion or entering `skip`."""
    if not isinstance(roots, Node) or skip != ():
        return _walked(roots, skip)
    try:
        below = roots._below
    except AttributeError:
        nodes = tuple(islice(_walked(roots, ()), MOST_KEPT + 1))
        below = nodes[:-1] if len(nodes) <= MOST_KEPT else None
        _put_below(roots, below)
    return _walked(roots, ()) if below is None else (*below, roots)


def _walked(roots: Iterable[Node] | Node, skip: Container[Node]) -> Iterator[Node]:
    start = [roots] if isinstance(roots, Node) else list(roots)
    seen: set[Node] = set()
    # None says that the node below it comes next: its children are done.
    stack: list[Any] = start[::-1]
    while stack:
        node = stack.pop()
        if node is None:
            yield stack.pop()
            continue
        if node in seen or node in skip:
            continue
        seen.add(node)
        kids = node.children
        if not kids:
            yield node
            continue
        stack += node, None, *kids[::-1]


def size(roots: Iterable[Node] | Node) -> int:
    """How many nodes there are."""
    return sum(1 for _ in walk(roots))


def reach(roots: Iterable[Node], below: Callable[[Any], Sequence[Node]]) -> Iterator[Node]:
    """What `roots` lead to, each once, before what is below it, in order."""
    seen: set[Node] = set()
    stack = list(roots)[::-1]
    while stack:
        node = stack.pop()
        if node not in seen:
            seen.add(node)
            yield node
            stack += below(node)[::-1]


def postorder(roots: Iterable[R], below: Callable[[T | R], Sequence[T] | None]) -> list[T | R]:
    """What `roots` need, each once, what is below it first; left out where `below` gives None."""
    order: list[T | R] = []
    seen: set[T | R] = set()
    stack: list[tuple[T | R, bool]] = [(r, False) for r in reversed(list(roots))]
    while stack:
        value, ready = stack.pop()
        if ready:
            order.append(value)
            continue
        under = None if value in seen else below(value)
        if under is None:
            continue
        seen.add(value)
        stack.append((value, True))
        stack.extend((u, False) for u in reversed(under))
    return order


Memo = dict[Node, Node]
"""Old nodes, and the new ones that stand for them."""


def rebuild(root: Node, change: Callable[[Node], Node | None], memo: Memo) -> Node:
    """One bottom-up pass: `change` sees each node over its new children; None keeps it.

    `memo` maps old nodes to new ones and may be shared between calls with the same `change`.
    """
    for node in walk(root, skip=memo):
        kids = node.children
        fresh = tuple([memo[c] for c in kids])
        new = node if fresh == kids else node.with_children(fresh)
        better = change(new)
        memo[node] = new if better is None else better
    return memo[root]
