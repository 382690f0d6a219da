"""Calls of known functions that wait: what a tensor holds outside of programs until someone asks.

    y = x * 2.0; z = y + 1.0         two calls; nothing is built
    z.numpy()                        the program of (x * 2.0) + 1.0, found by the calls' numbers

The first call of a function with operands of some kinds makes its definition, which checks them.
Later ones of the same kinds are `Deferred`: a number and operands. Their definitions are made where
something needs them: a derivative, a trace, another function. What waits together is found again by
its structure, without a definition, a graph or a key of expressions.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, final

import numpy as np

from pullback.config import chosen_names
from pullback.errors import Origin
from pullback.ir.dtype import DType
from pullback.ir.graph import Definition, Value, topological
from pullback.tensor.record.held import Array, Held, Kind, fresh, shared

KEPT = 4096  # calls by their keys, and plans by theirs; beyond that all are forgotten


class Call:
    """A function and its static arguments, for operands of certain kinds. It gives a `like`.

    `host`: the same for one array in NumPy, a view that only has to be copied.
    """

    __slots__ = ("build", "host", "kind", "like", "name", "number")
    _numbers = count()

    def __init__(
        self,
        name: str,
        kind: Kind,
        build: Callable[[Sequence[Value]], Value],
        like: Any,
        host: Callable[[Array], Array] | None = None,
    ) -> None:
        self.host = host
        self.number = next(Call._numbers)
        self.like = like
        self.name = name
        self.kind = kind
        self.build = build


@final
class Deferred:
    """A call with its operands. `result`: what it gave; `definition`: what it stands for.

    `owner`: the tensor that holds it, so that what users can see is computed with what follows.
    """

    __slots__ = ("args", "call", "definition", "kind", "origin", "owner", "result")
    owner: weakref.ref[Any]

    def __init__(self, call: Call, args: tuple[Node, ...], origin: Origin) -> None:
        self.call = call
        self.kind = call.kind
        self.args = args
        self.origin = origin
        self.definition: Definition | None = None
        self.result: Held | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return self.kind.shape

    @property
    def dtype(self) -> DType:
        return self.kind.dtype


Node = Held | Deferred


class Plan:
    """A compiled program for a structure: how it is run, which leaves it reads, what it leaves."""

    __slots__ = ("go", "kept", "leaves")

    def __init__(
        self, go: Callable[[list[Held]], None], leaves: list[int], kept: list[int]
    ) -> None:
        self.go = go
        self.leaves = leaves
        self.kept = kept


class _Tables:
    """Calls by function, static arguments and kinds; plans by structure, backend and target."""

    def __init__(self) -> None:
        self.calls: dict[Any, Call] = {}
        self.plans: dict[Any, Plan] = {}


tables = _Tables()


def remember_call(key: Any, call: Call) -> None:
    """Later calls of this key are deferred."""
    if len(tables.calls) >= KEPT:
        tables.calls.clear()
    tables.calls[key] = call


def remember_plan(key: Any, plan: Plan) -> None:
    """Later structures of this key are run by `plan`."""
    if len(tables.plans) >= KEPT:
        tables.plans.clear()
    tables.plans[key, chosen_names()] = plan


class Work:
    """What has to be computed: deferred calls in order, their leaves, and a key of their structure.

    `settled`: whether every call is still nothing but a call.
    """

    __slots__ = ("kept", "key", "leaves", "order", "settled")

    def __init__(self, wanted: Sequence[Deferred]) -> None:
        self.order: list[Deferred] = []
        self.leaves: list[Held] = []
        self.kept: list[Deferred] = []
        self.settled = True
        self.key: Any = self._walk(wanted)

    def _walk(self, wanted: Sequence[Deferred]) -> Any:
        if len(wanted) == 1 and (alone := self._alone(wanted[0])) is not None:
            return alone
        places: dict[int, int] = {}
        key: list[int] = []
        asked = set(map(id, wanted))
        stack: list[Node] = list(wanted)
        while stack:
            node = stack[-1]
            if id(node) in places:
                stack.pop()
                continue
            leaf = node if type(node) is not Deferred else node.result
            if leaf is not None:
                stack.pop()
                if id(leaf) not in places:
                    places[id(leaf)] = -1 - len(self.leaves)
                    self.leaves.append(leaf)
                places[id(node)] = places[id(leaf)]
                continue
            assert isinstance(node, Deferred)
            waiting = [a for a in node.args if id(a) not in places]
            if waiting:
                stack += waiting
                continue
            stack.pop()
            self._number(node, places, key, asked)
        return tuple(key), tuple([leaf.kind for leaf in self.leaves])

    def _number(
        self, node: Deferred, places: dict[int, int], key: list[int], asked: set[int]
    ) -> None:
        if node.definition is not None:
            self.settled = False
        places[id(node)] = len(self.order)
        kept = id(node) in asked or node.owner() is not None
        key.append(node.call.number * 2 + kept)
        key += [places[id(a)] for a in node.args]
        self.order.append(node)
        if kept:
            self.kept.append(node)

    def _alone(self, node: Deferred) -> Any:
        """The key of one call of what is known; None where it is more than that."""
        for arg in node.args:
            leaf = arg if type(arg) is not Deferred else arg.result
            if leaf is None:
                self.leaves.clear()
                return None
            self.leaves.append(leaf)
        if node.definition is not None:
            self.settled = False
        self.order.append(node)
        self.kept.append(node)
        if len(self.leaves) < 2:
            return node.call.number
        first = self.leaves[0]
        return (node.call.number, *[leaf is first for leaf in self.leaves])

    def run(self) -> bool:
        """Compute all that is kept, if that was done before. False: it has to be compiled."""
        host = self.order[0].call.host if len(self.order) == 1 else None
        if host is not None and self.settled:
            node, array = self.order[0], np.ascontiguousarray(host(self.leaves[0].laid))
            node.result = shared(array.reshape(node.shape), node.call.name, node.origin)
            return True
        plan = tables.plans.get((self.key, chosen_names()))
        if plan is None or not self.settled:
            return False
        self.follow(plan)
        return True

    def follow(self, plan: Plan) -> None:
        """Compute what is kept as `plan` says."""
        leaves, order = self.leaves, self.order
        state = [leaves[n] for n in plan.leaves]
        made = [fresh(order[n].call.name, order[n].kind, order[n].origin) for n in plan.kept]
        state += made
        plan.go(state)
        for n, result in zip(plan.kept, made, strict=True):
            order[n].result = result


def written(node: Deferred) -> list[Deferred]:
    """Make the definitions of `node` and of what it needs; those that are new, operands first."""
    new: list[Deferred] = []
    stack = [node]
    while stack:
        one = stack[-1]
        if one.definition is not None:
            stack.pop()
            continue
        waiting = [a for a in one.args if type(a) is Deferred and a.definition is None]
        if waiting:
            stack += waiting
            continue
        stack.pop()
        values = [value_of(a) for a in one.args]
        built = one.call.build(values)
        assert isinstance(built, Definition), "what is deferred makes a definition"
        for definition in topological([built], set(values)):
            definition.origin = one.origin
            definition.placed()
        one.definition = built
        new.append(one)
    return new


def value_of(node: Node) -> Value:
    """An operand as a value; it has its definition if it is a call."""
    if not isinstance(node, Deferred):
        return node
    assert node.definition is not None, "operands are written down first"
    return node.definition
