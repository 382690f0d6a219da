"""Interned, immutable nodes: equal nodes are the same object, so `is` is structural equality."""

from __future__ import annotations

import inspect
import time
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any, ClassVar, Self, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class Node:
    """A node whose annotated fields are its identity. Subclasses annotate fields, in order.

    A class made with `family=True` is the root of one kind of node: it annotates derived facts.
    Floats are compared by bits (0.0 and -0.0, and every NaN payload, stay apart) and values by
    type (1, 1.0 and True stay apart). Facts that follow from the fields are set in `derive`.
    """

    __slots__ = ("__weakref__", "children")
    __match_args__: ClassVar[tuple[str, ...]] = ()
    # Whether a field may hold a number, which equality alone does not tell from another type's.
    _literal: ClassVar[bool] = False
    children: tuple[Node, ...]
    _interned: ClassVar[dict[tuple[Any, ...], weakref.ref[Node]]] = {}

    def __init_subclass__(cls, family: bool = False) -> None:
        if not family:
            own = (name for name in inspect.get_annotations(cls) if name[0] != "_")
            cls.__match_args__ += tuple(own)  # type: ignore[misc]  # each class has its own

    def __new__(cls, *args: Any) -> Self:
        key = (cls, *map(_identity, args)) if cls._literal else (cls, *args)
        ref: Any = Node._interned.get(key)
        known: Self | None = None if ref is None else ref()
        if known is not None:
            return known
        if len(args) != len(cls.__match_args__):
            raise TypeError(f"{cls.__name__} takes {cls.__match_args__}, got {len(args)} values")
        node = super().__new__(cls)
        assign = object.__setattr__
        for name, value in zip(cls.__match_args__, args, strict=True):
            assign(node, name, value)
        assign(node, "children", tuple(_nodes(args)))
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
        raise TypeError("nodes are not pickled")

    @property
    def fields(self) -> tuple[Any, ...]:
        """The field values, in declaration order."""
        return tuple(getattr(self, name) for name in self.__match_args__)

    def with_children(self, new: tuple[Node, ...]) -> Self:
        """The same node over other children."""
        if new == self.children:
            return self
        fresh = iter(new)
        return type(self)(*(_replace(value, fresh) for value in self.fields))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.fields))})"


def _first(node: Any, key: tuple[Any, ...]) -> Any:
    """`node`, unless another thread was faster to make an equal one."""
    own = weakref.ref(node, _Forget(key))
    while True:
        known = Node._interned.setdefault(key, own)()
        if known is not None:
            return known
        time.sleep(0)  # another thread is at forgetting a dead one


class _Forget:
    """Removes a dead node's entry from the intern table."""

    __slots__ = ("key",)

    def __init__(self, key: tuple[Any, ...]) -> None:
        self.key = key

    def __call__(self, ref: weakref.ref[Node]) -> None:
        if Node._interned.get(self.key) is ref:
            del Node._interned[self.key]


def _identity(value: Any) -> Any:
    if isinstance(value, Node):
        return value
    if isinstance(value, float):
        return (float, value.hex())
    return (type(value), value)


def _nodes(values: Iterable[Any]) -> Iterator[Node]:
    for value in values:
        if isinstance(value, Node):
            yield value
        elif isinstance(value, tuple):
            yield from _nodes(value)


def _replace(value: Any, fresh: Iterator[Node]) -> Any:
    if isinstance(value, Node):
        return next(fresh)
    if isinstance(value, tuple) and any(True for _ in _nodes(value)):
        return tuple(_replace(v, fresh) for v in value)
    return value


def walk(roots: Iterable[Node] | Node, skip: Container[Node] = ()) -> Iterator[Node]:
    """Children before parents, each node once, without recursion or entering `skip`."""
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
        stack.append(node)
        stack.append(None)
        stack.extend(kids[::-1])


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


def count_live() -> int:
    """How many interned nodes are alive."""
    return len(Node._interned)


def rebuild(root: Node, change: Callable[[Node], Node | None], memo: dict[Node, Node]) -> Node:
    """One bottom-up pass: `change` sees each node over its new children; None keeps it.

    `memo` maps old nodes to new ones and may be shared between calls with the same `change`.
    """
    for node in walk(root, skip=memo):
        kids = node.children
        new = node.with_children(tuple([memo[c] for c in kids])) if kids else node
        better = change(new)
        memo[node] = new if better is None else better
    return memo[root]
