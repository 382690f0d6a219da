"""Replay: what a traced block computed, computed again elsewhere, from what is known there.

    loop k: h' = tanh(w h)      ->      in the reverse loop, given h of step k: h' = tanh(w h)

A derivative needs the values of the block. They are written down a second time as definitions, so
that they can be differentiated in any order; what is dear to compute is read from where the first
run has stored it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container, Sequence
from dataclasses import replace

from pullback.errors import InvalidIR
from pullback.grad import fold
from pullback.grad.reverse import Reverse
from pullback.grad.total import identity
from pullback.ir import expr as E
from pullback.ir.expr import Expr
from pullback.ir.graph import Definition, Map, Rule, Value, Variable
from pullback.ir.node import walk
from pullback.tensor.calls import Call, ordered
from pullback.tensor.recording import Frame, Segment, reread
from pullback.tensor.trace import Trace

DEAR = (E.Exp, E.Log, E.Sqrt, E.Sin, E.Div)


class Form(Call, ABC):
    """A control form: a call with blocks of its own."""

    __slots__ = ()
    kind: str

    def give_rule(self) -> None:
        """Say how the results, as many as there are by now, are differentiated."""
        outputs = tuple(r for r in self.results if r.dtype.is_float)
        rule = Rule(self.kind, outputs, tuple(self.deps), self.pull)
        for result in outputs:
            result.rule = rule

    @property
    def floats(self) -> list[int]:
        """The numbers of the results that have an adjoint."""
        return [n for n, r in enumerate(self.results) if r.dtype.is_float]

    @property
    @abstractmethod
    def deps(self) -> list[Value]:
        """What a gradient passes on to."""

    @abstractmethod
    def pull(self, heads: Sequence[Value]) -> list[Value | None]:
        """The adjoints of `deps`, from those of the float results."""

    @abstractmethod
    def again(self, replay: Replay) -> None:
        """Record the form a second time and tell `replay` its results."""

    @abstractmethod
    def kept(self, value: Definition) -> Definition:
        """A result that holds what `value`, made in one of its blocks, was at every step."""

    @abstractmethod
    def stored(self, value: Definition, place: Expr | None) -> Definition:
        """A read of what `value` was at step `place`."""

    @abstractmethod
    def at(self, kept: Value, place: Expr | None) -> Value:
        """What a kept value was at step `place`."""


class Replay:
    """Values of one block, made again in the current one. `places`: at which step, by block."""

    def __init__(self, trace: Trace, root: Frame, place: Expr | None, *, store: bool) -> None:
        self.trace = trace
        self.root = root
        self.store = store
        self.places: dict[Frame, Expr | None] = {root: place}
        self.memo: dict[Value, Value] = {}
        self.states: dict[tuple[Variable, Segment], Value] = {}

    def values(self, roots: list[Value]) -> list[Value]:
        """`roots` as they are here."""
        for node in ordered(roots, self.trace.calls, self._known):
            if isinstance(node, Form):
                node.again(self)
            elif isinstance(node, Definition) and node not in self.memo:
                self.memo[node] = self._copy(node)
        return [self.memo.get(r, r) for r in roots]

    def value(self, root: Value) -> Value:
        """`root` as it is here."""
        return self.values([root])[0]

    def _known(self, value: Value) -> bool:
        return value in self.memo or not self.trace.recording.contains(self.root, value)

    def _copy(self, definition: Definition) -> Definition:
        recording = self.trace.recording
        segment = recording.home[definition]
        sources = {s: self._source(s, segment) for s in definition.sources}
        fresh = reread(definition, sources)
        if fresh is definition:
            fresh = replace(definition)
        recording.stamp(fresh)
        if self.store and segment.frame is self.root and _dear(definition):
            place = self.places[self.root]
            recording.stored[fresh] = _owner(segment).stored(definition, place)
        return fresh

    def _source(self, source: Value, segment: Segment) -> Value:
        """A source of a copied definition; of a state that has changed since, what it was."""
        if isinstance(source, Definition) or not self.trace.recording.stale(source, self.root):
            return self.memo.get(source, source)
        key = source, segment
        if key not in self.states:
            seen = Definition(source.name, source.shape, identity(source), origin=source.origin)
            self.trace.recording.home[seen] = segment
            self.states[key] = self.keep(seen)
        return self.states[key]

    def keep(self, value: Definition) -> Value:
        """What `value` was when the block ran, through all blocks around it."""
        segment = self.trace.recording.home[value]
        owner = _owner(segment)
        kept = owner.kept(value)
        outer = kept if segment.frame is self.root else self.keep(kept)
        return owner.at(outer, self.places[segment.frame])


def _owner(segment: Segment) -> Form:
    owner = segment.frame.owner
    if not isinstance(owner, Form):
        raise InvalidIR("a block that belongs to no control form is replayed")
    return owner


def _dear(definition: Definition) -> bool:
    """Whether computing it again costs more than a read."""
    if not isinstance(definition.form, Map):
        return True
    return any(isinstance(n, DEAR) for n in walk(definition.body))


def is_zero(value: Value) -> bool:
    """Whether nothing but zeros is known to be in `value`."""
    return isinstance(value, Definition) and fold.is_zero(value.body)


KNOWN = Rule("known value", (), ())


def local_adjoints(
    trace: Trace,
    heads: Sequence[tuple[Value, Value]],
    inputs: Sequence[Value],
    given: Container[Value],
) -> list[Value]:
    """``sum over (output, head) of head * d output / d input`` for each input.

    Only the block that is being traced is looked into, and no value that is `given`.
    """
    frame = trace.recording.frame

    def rules(definition: Definition) -> Rule | None:
        here = trace.recording.contains(frame, definition) and definition not in given
        return definition.rule if here else KNOWN

    state = Reverse([v for v, _ in heads], inputs, [h for _, h in heads], rules)
    return [state.gradient(v) for v in inputs]
