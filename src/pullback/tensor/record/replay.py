"""Replay: what a traced block computed, computed again elsewhere, from what is known there.

    loop k: h' = tanh(w h)      ->      in the reverse loop, given h of step k: h' = tanh(w h)

A derivative needs the values of the block. They are written down a second time as definitions, so
that they can be differentiated in any order; what is dear to compute is read from where the first
run has stored it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pullback.errors import InvalidIR, UnsupportedError
from pullback.grad.forward import tangents
from pullback.grad.reverse import Reverse
from pullback.grad.rules import Rules
from pullback.ir import expr as E
from pullback.ir.expr import Expr
from pullback.ir.graph import Definition, Map, Rule, Value, Variable, identity
from pullback.ir.node import walk
from pullback.tensor.record.calls import Call, ordered
from pullback.tensor.record.recording import Frame, Segment, reread
from pullback.tensor.record.trace import Trace

if TYPE_CHECKING:
    from pullback.tensor.record.lift import Lift


class Form(Call, ABC):
    """A control form: a call with blocks of its own."""

    __slots__ = ()
    kind: str
    trace: Trace

    def give_rule(self) -> None:
        """Say how the results, as many as there are by now, are differentiated."""
        outputs = tuple(r for r in self.results if r.dtype.is_float)
        numbers = [n for n, r in enumerate(self.results) if r.dtype.is_float]

        def pull(heads: Sequence[Value]) -> list[Value | None]:
            self.enter_values(heads)
            return self.pull(dict(zip(numbers, heads, strict=True)))

        def push(tangents: Sequence[Value]) -> list[Value]:
            self.enter_values(tangents)
            return self.push(tangents, numbers)

        rule = Rule(self.kind, outputs, tuple(self.deps), pull, push)
        for result in outputs:
            result.rule = rule

    def enter_values(self, values: Iterable[Value]) -> None:
        """Make `values` part of the trace: they are read in another block."""
        for value in values:
            if isinstance(value, Definition):
                self.trace.recording.stamp(value)

    @property
    @abstractmethod
    def deps(self) -> list[Value]:
        """What a gradient passes on to."""

    @abstractmethod
    def pull(self, heads: Mapping[int, Value]) -> list[Value | None]:
        """The adjoints of `deps`, from those of float results by number."""

    @abstractmethod
    def push(self, tangents: Sequence[Value], numbers: Sequence[int]) -> list[Value]:
        """The tangents of the results with these numbers, from those of `deps`."""

    @abstractmethod
    def again(self, replay: Replay) -> None:
        """Record the form a second time and tell `replay` its results."""

    @abstractmethod
    def lift(self, lift: Lift) -> None:
        """Record the form for many samples and tell `lift` its results."""

    @property
    def keeps(self) -> bool:
        """Whether there is room for what a value was at every step."""
        return True

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
    """Values of one block, made again in the current one. `places`: at which step, by block.

    `many`: for many samples. The block itself runs for one, or not at all, and keeps nothing.
    """

    def __init__(
        self, trace: Trace, root: Frame, place: Expr | None, *, store: bool, many: bool = False
    ) -> None:
        self.trace = trace
        self.root = root
        self.store = store
        self.many = many
        self.places: dict[Frame, Expr | None] = {root: place}
        self.memo: dict[Value, Value] = {}
        self.states: dict[tuple[Variable, Segment], Value] = {}

    def enter(self, frame: Frame, place: Expr | None) -> None:
        """The values of a block inside are made now; copies in another block count no more."""
        self.places[frame] = place
        for value in [v for v in self.memo if self.trace.recording.contains(frame, v)]:
            del self.memo[value]

    def values(self, roots: list[Value]) -> list[Value]:
        """`roots` as they are here."""
        for node in ordered(roots, self.trace.calls, self._known):
            if isinstance(node, Form):
                node.again(self)
            elif isinstance(node, Definition) and node not in self.memo:
                self.memo[node] = self.copy(node)
                if node.rule is not None:
                    self.copy_rule(node.rule)
        return [self.memo.get(r, r) for r in roots]

    def value(self, root: Value) -> Value:
        """`root` as it is here."""
        return self.values([root])[0]

    def _known(self, value: Value) -> bool:
        return value in self.memo or not self.trace.recording.contains(self.root, value)

    def copy(self, definition: Definition) -> Definition:
        """One definition, whose sources have been visited."""
        recording = self.trace.recording
        segment = recording.home[definition]
        sources = {s: self.source(s, segment) for s in definition.sources}
        fresh = reread(definition, sources)
        if fresh is definition:
            fresh = replace(definition)
        recording.stamp(fresh)
        if self.store and segment.frame is self.root and _dear(definition):
            self._store(definition, fresh)
        return fresh

    def _store(self, definition: Definition, copy: Definition) -> None:
        """`copy` is read from where the block that is replayed has left `definition`."""
        recording, place = self.trace.recording, self.places[self.root]
        owner = _owner(recording.home[definition])
        recording.stored[copy] = owner.stored(definition, place)

    def from_store(self, definition: Definition) -> Definition:
        """A copy of what the block that is replayed has computed, not computed again."""
        fresh = replace(definition)
        self.trace.recording.stamp(fresh)
        self._store(definition, fresh)
        return fresh

    def copy_rule(self, rule: Rule) -> None:
        """A derivative given by hand is given to the copies too, once there are all of them."""
        outputs = [self.memo.get(o) for o in rule.outputs]
        if not all(isinstance(o, Definition) for o in outputs):
            return
        if rule.again is not None:
            rule.again(lambda v: self.memo.get(v, v))
            return
        pull = None if rule.pull is None else partial(self._through, rule.pull)
        push = None if rule.push is None else partial(self._through, rule.push)
        deps = tuple(self.memo.get(d, d) for d in rule.deps)
        whole = tuple(o for o in outputs if isinstance(o, Definition))
        copied = Rule(rule.kind, whole, deps, pull, push)
        for output in whole:
            output.rule = copied

    def _through(
        self, given: Callable[[Sequence[Value]], Sequence[Value | None]], args: Sequence[Value]
    ) -> list[Any]:
        """What a derivative by hand says of the block's own values, said of the copies."""
        recording = self.trace.recording
        before = dict(self.memo)  # copies that are made now may be part of another block
        for value in args:
            if isinstance(value, Definition):
                recording.stamp(value)
        slopes = given(args)
        roots = [v for v in slopes if v is not None]
        inside = partial(recording.contains, self.root)
        memo: dict[Value, Value] = {}

        def known(value: Value) -> bool:
            home = recording.home.get(value) if isinstance(value, Definition) else None
            outside = home is not None and not home.frame.inside(recording.frame)
            return value in args or outside

        for node in ordered(roots, self.trace.calls, known):
            if not isinstance(node, Definition):
                raise UnsupportedError(
                    f"{node.results[0].name} in a derivative by hand inside a loop or branch",
                    code="E215",
                )
            memo.update({s: self.value(s) for s in node.sources if inside(s)})
            memo[node] = fresh = reread(node, memo)
            recording.stamp(fresh)
        values = [None if v is None else memo.get(v, v) for v in slopes]
        whole = [self.value(v) if v is not None and inside(v) else v for v in values]
        self.memo = before
        return whole

    def source(self, source: Value, segment: Segment) -> Value:
        """A source of a copied definition; of a state that has changed since, what it was."""
        if isinstance(source, Definition) or not self.trace.recording.stale(source, self.root):
            return self.memo.get(source, source)
        key = source, segment
        if key not in self.states:
            seen = Definition(source.name, source.shape, identity(source), origin=source.origin)
            self.trace.recording.home[seen] = segment
            self.states[key] = self.keep(seen)
        return self.states[key]

    def keeps(self, value: Definition) -> bool:
        """Whether each block around `value` runs, and has room to keep it."""
        if self.many:
            return False
        frame = self.trace.recording.home[value].frame
        while frame.inside(self.root) and isinstance(owner := frame.owner, Form):
            if not owner.keeps:
                return False
            if frame is self.root or frame.parent is None:
                break
            frame = frame.parent
        return True

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
    return any(isinstance(n, E.DEAR) for n in walk(definition.body))


def is_zero(value: Value) -> bool:
    """Whether nothing but zeros is known to be in `value`."""
    return isinstance(value, Definition) and E.is_const(value.body, 0)


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
    outputs, slopes = [v for v, _ in heads], [h for _, h in heads]
    state = Reverse(outputs, inputs, slopes, _local(trace, given), stored=True)
    return [state.gradient(v) for v in inputs]


def local_tangents(
    trace: Trace,
    outputs: Sequence[Value],
    moved: Sequence[tuple[Value, Value]],
    given: Container[Value],
) -> list[Value]:
    """The derivative of each output where inputs move, each along its tangent; as above."""
    inputs, along = [v for v, _ in moved], [t for _, t in moved]
    return tangents(outputs, inputs, along, _local(trace, given))


def _local(trace: Trace, given: Container[Value]) -> Rules:
    frame = trace.recording.frame

    def rules(definition: Definition) -> Rule | None:
        here = trace.recording.contains(frame, definition) and definition not in given
        return definition.rule if here else KNOWN

    return rules
