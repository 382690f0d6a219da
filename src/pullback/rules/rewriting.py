"""Definitions of a program replaced by others, or by calls of the host that cut it.

    y = max(x @ w, 0); z = y @ u   =>   p = host(x, w); launch y; q = host(y, u); launch z = q

A computation becomes as many as calls wait for each other. What a later one reads of an earlier
one is stored; states are assigned in the last one, unless nothing reads their old content.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pullback.errors import RuleError
from pullback.ir.expr import Axis, Mul, Take
from pullback.ir.graph import (
    SUM,
    Definition,
    Graph,
    Keep,
    Reduce,
    Value,
    Variable,
    topological,
)
from pullback.ir.program import Compute, HostCall, Item
from pullback.simplify.graph import Sources


@dataclass(frozen=True, slots=True)
class OnHost:
    """``definition = function(*arrays of sources)``, computed by the host."""

    function: Callable[..., Any]
    sources: tuple[Value, ...]
    library: str


def on_host(function: Callable[..., Any], *sources: Value, library: str = "host") -> OnHost:
    """A definition by a function of NumPy's arrays, which it must not write to.

    It gives one array of the definition's shape and type. `library` is what a program's text and
    records call it: another name where the function becomes another one.

    Raises: RuleError for what is no function, or no value of a program.

    Example:
        >>> @pb.rules.rewrite
        ... def by_numpy(definition):
        ...     p = pb.rules.product(definition)
        ...     if p is None:
        ...         return None
        ...     return pb.rules.on_host(lambda a, b: np.einsum(p.spec, a, b), p.left, p.right)
        >>> f = pb.jit(lambda a, b: a @ b, rules=[by_numpy])
        >>> f(pb.ones((2, 3)), pb.ones((3, 2)))
        Tensor([[3., 3.],
                [3., 3.]], dtype=float32)
    """
    if not callable(function):
        raise RuleError(f"on_host({function!r}, ..): a function is wanted", code="E372")
    for source in sources:
        if not isinstance(source, Variable | Definition):
            raise RuleError(f"on_host: {source!r} is no value of a program", code="E372")
    return OnHost(function, sources, library)


@dataclass(frozen=True, slots=True)
class PlainProduct:
    """``out = sum over letters that it lacks of left * right``, `spec` as einsum's."""

    spec: str
    left: Value
    right: Value

    @property
    def swapped(self) -> PlainProduct:
        """The same with its operands the other way round."""
        left, right, out = self.spec.replace("->", ",").split(",")
        return PlainProduct(f"{right},{left}->{out}", self.right, self.left)


def product(definition: Definition) -> PlainProduct | None:
    """A sum of products of two values read at plain axes, as einsum says it; None for others.

    ``y[i, j] = sum[k] x[i, k] * w[j, k]  ->  PlainProduct("ac,bc->ab", x, w)``

    Example:
        >>> @pb.rules.rewrite
        ... def told(definition):
        ...     p = pb.rules.product(definition)
        ...     print(None if p is None else p.spec)
        >>> _ = pb.jit(lambda a, b: a @ b, rules=[told])(pb.ones((2, 3)), pb.ones((3, 2)))
        ac,cb->ab
    """
    form, body = definition.form, definition.body
    if not isinstance(form, Reduce) or form.combiner is not SUM or not isinstance(body, Mul):
        return None
    left, right = body.left, body.right
    if not isinstance(left, Take) or not isinstance(right, Take):
        return None
    letters = [_letters(take) for take in (left, right)]
    every = [chr(ord("a") + n) for n in range(len(definition.extents))]
    if not all(letters) or set("".join(letters)) != set(every):
        return None
    out = "".join(every[: len(definition.shape)])
    return PlainProduct(f"{letters[0]},{letters[1]}->{out}", left.source, right.source)


def _letters(take: Take) -> str:
    """The axes that a read goes along, each over all of its extent; empty for other reads."""
    text = ""
    for index, extent in zip(take.indices, take.source.shape, strict=True):
        if not isinstance(index, Axis) or index.extent != extent:
            return ""
        text += chr(ord("a") + index.number)
    return text if len(set(text)) == len(text) else ""


def stored(definition: Definition) -> Definition:
    """The same definition, always kept in memory: readers load it, none computes it again.

    Example:
        >>> @pb.rules.rewrite
        ... def exponentials(definition):
        ...     return pb.rules.stored(definition) if definition.name == "exp" else None
        >>> pb.jit(lambda x: pb.sum(pb.exp(x)), rules=[exponentials])(pb.zeros(3))
        Tensor(3., dtype=float32)
    """
    d = definition
    return Definition(d.name, d.shape, d.body, d.form, d.stop, Keep.ALWAYS, d.origin)


class Rewriting:
    """One computation while its definitions are replaced, sources first."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.sources = Sources({})
        self.calls: dict[Variable, OnHost] = {}

    def put(self, definition: Definition, other: Definition | OnHost | None) -> None:
        """Let readers of a definition read another, the result of a call, or itself as it is."""
        mapping = self.sources.mapping
        if isinstance(other, OnHost):
            d = definition
            target = Variable(d.name, d.shape, d.dtype, d.origin)
            moved = tuple(self._moved(s) for s in other.sources)
            self.calls[target] = OnHost(other.function, moved, other.library)
            mapping[definition] = target
        else:
            mapping[definition] = self._moved(other or definition)

    def _moved(self, value: Value) -> Value:
        """A value over what the definitions before it have become."""
        mapping = self.sources.mapping
        for d in topological([value], skip=mapping):
            mapping[d] = self.sources.of(d)
        return mapping.get(value, value)

    def items(self) -> list[Item]:
        """The computations and calls that the computation has become."""
        assigns = [(v, self.sources.mapping.get(d, d)) for v, d in self.graph.assigns]
        if not self.calls:
            return [Compute(Graph(tuple(assigns)))]
        return _Cut(self.calls, assigns, frozenset(self.graph.inputs)).items()


class _Cut:
    """A computation with calls, by levels: how many calls each value waits for."""

    def __init__(
        self,
        calls: dict[Variable, OnHost],
        assigns: list[tuple[Variable, Value]],
        inputs: frozenset[Variable],
    ) -> None:
        self.calls = calls
        self.assigns = assigns
        self.inputs = inputs
        self.level: dict[Value, int] = {}
        roots = [d for _, d in assigns]
        ends = [*(s for call in calls.values() for s in call.sources), *roots]
        self.definitions = topological(ends)
        for target in calls:
            self._find(target)
        for definition in self.definitions:
            self._find(definition)
        self.top = max(self._of(value) for value in ends)

    def _of(self, value: Value) -> int:
        return self.level.get(value, 0)

    def _find(self, value: Value) -> int:
        """The level of a value; what a call gives is one above what it is given."""
        stack = [value]
        while stack:
            one = stack[-1]
            below = self._below(one)
            new = [s for s in below if s not in self.level and self._below(s)]
            if new:
                stack += new
                continue
            self.level[one] = (one in self.calls) + max(map(self._of, below), default=0)
            stack.pop()
        return self.level[value]

    def _below(self, value: Value) -> tuple[Value, ...]:
        if isinstance(value, Definition):
            return value.sources
        return self.calls[value].sources if value in self.calls else ()

    def items(self) -> list[Item]:
        """A computation for each level, the calls that it feeds behind it."""
        early, last = self._early()
        place = self._stored(early)
        steps: list[list[tuple[Variable, Value]]] = [[] for _ in range(self.top + 1)]
        for value, variable in place.items():
            if isinstance(value, Definition):
                steps[self._of(value)].append((variable, value))
        steps[self.top] += [(v, place.get(d, d)) for v, d in last]
        made: list[Item] = []
        for level, step in enumerate(steps):
            if step:
                made.append(Compute(Graph(self._read(step, place, level))))
            made += [self._call(t, place) for t in self.calls if self._of(t) == level + 1]
        return made

    def _early(self) -> tuple[dict[Value, Variable], list[tuple[Variable, Value]]]:
        """Values that may go to their variable as soon as they are there, and the other assigns."""
        early: dict[Value, Variable] = {}
        last = []
        for variable, value in self.assigns:
            made = value in self.level and (value in self.calls or self._of(value) < self.top)
            if made and variable not in self.inputs and value not in early:
                early[value] = variable
            else:
                last.append((variable, value))
        return early, last

    def _stored(self, early: dict[Value, Variable]) -> dict[Value, Variable]:
        """Where values lie that another computation or a call reads."""
        wanted: dict[Value, None] = dict.fromkeys(early)
        for target, call in self.calls.items():
            wanted.update(dict.fromkeys((target, *call.sources)))
        for reader in self.definitions:
            level = self._of(reader)
            wanted.update((s, None) for s in reader.sources if self._of(s) < level)
        wanted.update((d, None) for _, d in self.assigns if self._of(d) < self.top)
        return {v: early.get(v) or _fresh(v) for v in wanted if v in self.level}

    def _read(
        self, step: list[tuple[Variable, Value]], place: dict[Value, Variable], level: int
    ) -> tuple[tuple[Variable, Value], ...]:
        """The assigns of a level; what is below it, and what calls gave, lies in variables."""
        known: dict[Value, Value] = {
            v: p for v, p in place.items() if v in self.calls or self._of(v) < level
        }
        sources = Sources(known)
        for d in topological([d for _, d in step], skip=known):
            sources.mapping[d] = sources.of(d)
        return tuple((v, sources.mapping.get(d, d)) for v, d in step)

    def _call(self, target: Variable, place: dict[Value, Variable]) -> HostCall:
        call = self.calls[target]
        given = tuple(_variable(place.get(s, s)) for s in call.sources)

        into = place[target]
        rank, kind = len(into.shape), into.dtype.numpy
        own = {n: e for n, e in enumerate(into.shape) if isinstance(e, int)}

        def function(*arrays: Any) -> tuple[Any, ...]:
            """The result, checked, since the function is the user's own."""
            made = call.function(*arrays)
            fits = isinstance(made, np.ndarray) and made.dtype == kind and made.ndim == rank
            if not fits or any(made.shape[n] != extent for n, extent in own.items()):
                kept = isinstance(made, np.ndarray)
                gave = f"{made.dtype}{list(made.shape)}" if kept else type(made).__name__
                wanted = f"{target.dtype}{list(target.shape)}"
                what = f"on_host: the function gave {gave} for {target.name}, {wanted}"
                raise RuleError(what, code="E372", origin=target.origin)
            return (made,)

        return HostCall(into.name, call.library, function, given, (into,), target.origin)


def _fresh(value: Value) -> Variable:
    if isinstance(value, Variable):
        return value
    return Variable(value.name, value.shape, value.dtype, value.origin)


def _variable(value: Value) -> Variable:
    assert isinstance(value, Variable), "what a call is given is stored"
    return value
