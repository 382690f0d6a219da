"""Lifting: what a traced function computed for one sample, recorded anew for many at once.

    y = loop(x); z = w * y, x of many samples b     ->     y[b] = loop(x[b]); z[b] = w * y[b]

Definitions get axes in front (`grad.batch`), control forms are recorded a second time. Inside the
block of a form also what is the same for every sample is written down again: a replay does that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from pullback.errors import InvalidIR
from pullback.grad.batch import Batch
from pullback.ir import expr as E
from pullback.ir.expr import Expr, Extent, Pin
from pullback.ir.graph import (
    Accumulate,
    Combiner,
    Definition,
    Map,
    Reduce,
    Scan,
    Value,
    Variable,
    identity,
    read,
)
from pullback.simplify.guards import reads_data
from pullback.tensor.record.calls import ordered
from pullback.tensor.record.recording import Frame, Segment, reread
from pullback.tensor.record.replay import Form, Replay
from pullback.tensor.record.trace import current, placeholder


class Lift(Batch):
    """Values with a prefix; control forms on the way too.

    `replay`: of the block whose values are lifted into another one; `only`: which samples count,
    where the results of the others will be thrown away.
    """

    def __init__(
        self,
        prefix: Sequence[Extent],
        known: Mapping[Value, Value],
        pins: Mapping[Pin, int] | None = None,
        replay: Replay | None = None,
        only: Value | None = None,
    ) -> None:
        super().__init__(prefix, known, pins)
        self.trace = current()
        self.replay = replay
        self.only = only
        self._states: dict[tuple[Variable, Segment], Value] = {}

    def __call__(self, values: Iterable[Value]) -> list[Value]:
        values = list(values)
        self.visit(values)
        return [self.known.get(v) or self.repeated(self.plain(v)) for v in values]

    def repeated(self, value: Value) -> Value:
        again = super().repeated(value)
        if self.trace is not None and isinstance(again, Definition):
            self.trace.recording.stamp(again)
        return again

    def one(self, value: Value) -> Value:
        """`value` with the prefix."""
        return self([value])[0]

    def plain(self, value: Value) -> Value:
        """`value`, the same for every sample, as it is here."""
        return value if self.replay is None else self.replay.memo.get(value, value)

    def tell(self, value: Value, lifted: Value, *, wide: bool) -> None:
        """`value` has become `lifted`, with the prefix if it is `wide`."""
        if wide:
            self.known[value] = lifted
        elif self.replay is not None:
            self.replay.memo[value] = lifted
        else:
            self._done.add(value)  # what was recorded before holds it

    def visit(self, values: Iterable[Value]) -> None:
        calls = {} if self.trace is None else self.trace.calls
        for node in ordered(values, calls, self._settled):
            if isinstance(node, Form):
                self._form(node)
            elif isinstance(node, Definition) and not self._settled(node):
                self._enter(node)
        self._carry_rules()

    def entered(self, frame: Frame, place: Expr | None, only: Value | None) -> Lift:
        """For the values of a block, written down in the current one."""
        assert self.trace is not None
        replay = self.replay
        if replay is None:
            replay = Replay(self.trace, frame, place, store=False, many=True)
        replay.enter(frame, place)
        for value in [v for v in self.known if self.trace.recording.contains(frame, v)]:
            del self.known[value]  # as it was in the block that was recorded before this one
        inner = Lift(self.prefix, {}, self.pins, replay, only)
        inner.known = self.known
        return inner

    def like(self, value: Value) -> Variable:
        return like(value)

    def wider(self, known: Mapping[Value, Value]) -> Lift:
        return Lift(self.prefix, self.known | dict(known), self.pins, self.replay, self.only)

    def _settled(self, value: Value) -> bool:
        if value in self._done or value in self.known:
            return True
        if self.replay is None or self.trace is None:
            return False
        home = self.trace.recording.home.get(value) if isinstance(value, Definition) else None
        before = home is not None and home.number < self.replay.root.first
        return before or value in self.replay.memo

    def _renamed(self, node: Definition | Form) -> bool:
        """Whether what is the same for all samples is to be written down again."""
        if self.replay is None or self.trace is None:
            return False
        made = node if isinstance(node, Definition) else node.results[0]
        if self.trace.recording.contains(self.replay.root, made):
            return True
        return any(s in self.replay.memo for s in node.sources)

    def _form(self, form: Form) -> None:
        if form.results and all(self._settled(r) for r in form.results):
            return
        if any(s in self.known for s in form.sources):
            form.lift(self)
        elif self.replay is not None and self._renamed(form):
            form.again(self.replay)

    def _enter(self, definition: Definition) -> None:
        super()._enter(definition)
        if definition in self.known or self.replay is None or not self._renamed(definition):
            return
        self.replay.memo[definition] = self.replay.copy(definition)
        if definition.rule is not None:
            self.replay.copy_rule(definition.rule)

    def _lifted(self, definition: Definition) -> Definition:
        lifted = super()._lifted(self._own(definition))
        if self.only is not None:
            lifted = _guarded(lifted, read(self.only, *self.front))
        if self.trace is not None:
            self.trace.recording.stamp(lifted)
        return lifted

    def _own(self, definition: Definition) -> Definition:
        """`definition` with what is the same for all samples as it is here."""
        if self.trace is None:
            return definition
        recording = self.trace.recording
        segment = recording.home.get(definition)
        sources = {}
        for source in definition.sources:
            if source in self.known:
                continue
            if self.replay is None:
                sources[source] = self._as_it_was(source, segment)
            elif segment is not None and recording.contains(self.replay.root, definition):
                sources[source] = self.replay.source(source, segment)
            else:
                sources[source] = self.plain(source)
        return reread(definition, sources)

    def _as_it_was(self, source: Value, segment: Segment | None) -> Value:
        """A state that has changed since, as it was in `segment`."""
        if segment is None or not isinstance(source, Variable) or self.trace is None:
            return source
        recording = self.trace.recording
        if recording.changed.get(source, -1) < segment.number:
            return source
        if (source, segment) not in self._states:
            seen = Definition(source.name, source.shape, identity(source), origin=source.origin)
            recording.home[seen] = segment
            self._states[source, segment] = seen
        return self._states[source, segment]


def like(value: Value) -> Variable:
    """What stands for `value` while a function is transformed."""
    return placeholder(value.name, value.shape, value.dtype)


def chosen(condition: Value, then: Value, otherwise: Value | None = None) -> Definition:
    """``out[b, i] = condition[b] ? then[b, i] : otherwise[b, i]``; zeros without `otherwise`."""
    axes = [E.Axis(n, e) for n, e in enumerate(then.shape)]
    other: Expr = E.const(0, then.dtype) if otherwise is None else read(otherwise, *axes)
    body = E.If(read(condition, *axes[: len(condition.shape)]), read(then, *axes), other)
    return Definition(then.name, then.shape, body, origin=then.origin)


def over_samples(name: str, value: Value, combiner: Combiner) -> Definition:
    """``out = combine over b of value[b]``"""
    axes = [E.Axis(n, e) for n, e in enumerate(value.shape)]
    return Definition(name, (), read(value, *axes), Reduce(combiner, value.shape))


def _guarded(definition: Definition, only: Expr) -> Definition:
    """Indices that are data are looked at for samples that count alone."""
    data = any(reads_data(i) for take in definition.reads for i in take.indices)
    form = definition.form
    if isinstance(form, Accumulate) and any(map(reads_data, form.at)):
        at = tuple(E.If(only, i, E.index(0)) for i in form.at)
        nothing = form.combiner.identity(definition.dtype)
        body = E.If(only, definition.body, nothing)
        return replace(definition, body=body, form=replace(form, at=at))
    if not data or isinstance(form, Scan):
        return definition
    if not isinstance(form, Map | Reduce | Accumulate):
        raise InvalidIR(f"{definition!r} has an unknown form")
    body = E.If(only, definition.body, E.const(0, definition.dtype))
    return replace(definition, body=body)
