"""Branches as values: blocks of which one runs, recorded once, run again, and differentiated.

    y = a(x) if p else b(x)      ->      dx = da(x) * dy if p else db(x) * dy

With one side and no predicate it is a block whose backward computes it again (`checkpoint`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from pullback.errors import InvalidIR
from pullback.ir import dtype as D
from pullback.ir import expr as E
from pullback.ir.expr import Expr
from pullback.ir.graph import Definition, Value, Variable, identity
from pullback.tensor.forms.steps import captures
from pullback.tensor.record.lift import Lift, chosen
from pullback.tensor.record.recording import BlockDraft, BranchDraft, Frame, Segment
from pullback.tensor.record.replay import Form, Replay, is_zero, local_adjoints, local_tangents
from pullback.tensor.record.trace import Trace

Sides = Sequence[Callable[[], Sequence[Value | None]]]


class BranchForm(Form):
    """A recorded branch. Result n is value n of the side that ran, if that side has one."""

    __slots__ = (
        "after", "captured", "frames", "kind", "predicate", "store", "tapes", "trace", "values",
    )  # fmt: skip

    def __init__(
        self, trace: Trace, name: str, predicate: Value | None, sides: Sides, *, store: bool
    ) -> None:
        recording = trace.recording
        self.trace = trace
        self.kind = name
        self.predicate = predicate
        self.store = store
        self.frames: list[Frame] = []
        self.values: list[tuple[Value | None, ...]] = []
        self.tapes: dict[Value, Variable] = {}
        self.results: list[Definition] = []
        test = trace.fresh("predicate", (), D.bool_)
        if predicate is not None:
            recording.segment.assigns[test] = predicate
        trace.flush()
        variables: dict[int, Variable] = {}
        made = [self._side(side, variables) for side in sides]
        self.values = list(zip(*made, strict=True))
        if predicate is None:
            recording.add(BlockDraft(self.frames[0]))
        else:
            recording.add(BranchDraft(test, *self.frames))
        self.after: Segment = recording.segment
        self.results = [self._result(variables[n]) for n in range(len(self.values))]
        self.captured = self._captures()
        self.give_rule()
        given = [] if predicate is None else [predicate]
        self.sources = tuple(dict.fromkeys([*self.captured, *given]))

    def _side(
        self, side: Callable[[], Sequence[Value | None]], variables: dict[int, Variable]
    ) -> Sequence[Value | None]:
        """Record one side; the first with a value of each number makes its variable."""
        trace, recording = self.trace, self.trace.recording
        frame = recording.enter()
        frame.owner = self
        self.frames.append(frame)
        values = side()
        for number, value in enumerate(values):
            if value is None:
                continue
            if isinstance(value, Definition):
                recording.stamp(value)
            if number not in variables:
                name = f"branch{number}"
                variables[number] = trace.fresh(name, value.shape, value.dtype, value.origin)
            recording.segment.assigns[variables[number]] = value
        trace.flush()
        recording.leave()
        return values

    def _result(self, variable: Variable) -> Definition:
        seen = Definition(variable.name, variable.shape, identity(variable))
        self.trace.recording.home[seen] = self.after
        self.trace.calls[seen] = self
        return seen

    def _captures(self) -> list[Value]:
        outside: dict[Value, None] = {}
        for number, frame in enumerate(self.frames):
            own = [values[number] for values in self.values]
            roots = [v for v in own if v is not None]
            outside.update(dict.fromkeys(captures(self.trace, frame, roots, set())))
        return list(outside)

    # --- running again

    def again(self, replay: Replay) -> None:
        rows = tuple(self.values)  # what a loop in a side has kept meanwhile comes after these

        def side(number: int) -> list[Value | None]:
            replay.enter(self.frames[number], None)
            own = [values[number] for values in rows]
            return [None if v is None else replay.value(v) for v in own]

        sides = [partial(side, n) for n in range(len(self.frames))]
        predicate = None if self.predicate is None else replay.value(self.predicate)
        form = BranchForm(self.trace, self.kind, predicate, sides, store=self.store)
        replay.memo.update(zip(self.results[: len(rows)], form.results, strict=True))

    def lift(self, lift: Lift) -> None:
        """Where the condition differs by sample, both sides run and each sample takes its own."""
        predicate, rows = self.predicate, tuple(self.values)
        for source in self.sources:
            if isinstance(lifted := lift.known.get(source), Definition):
                self.trace.recording.stamp(lifted)

        def side(number: int, only: Value | None) -> list[Value | None]:
            inner = lift.entered(self.frames[number], None, only)
            own = [values[number] for values in rows]
            return [None if v is None else inner.one(v) for v in own]

        if predicate in lift.known:
            made = self._both(lift, side)
        else:
            plain = None if predicate is None else lift.plain(predicate)
            sides = [partial(side, n, lift.only) for n in range(len(self.frames))]
            made = BranchForm(self.trace, self.kind, plain, sides, store=self.store).results
        for old, new in zip(self.results[: len(rows)], made, strict=True):
            lift.tell(old, new, wide=True)

    def _both(
        self, lift: Lift, side: Callable[[int, Value | None], list[Value | None]]
    ) -> list[Definition]:
        assert self.predicate is not None
        test = lift.one(self.predicate)
        false = Definition("untaken", test.shape, E.logical_not(identity(test)))
        masks = [m if lift.only is None else chosen(lift.only, m) for m in (test, false)]
        self.enter_values(masks)  # here, and not where a side first reads them
        made: list[Definition] = []
        for then, otherwise in zip(*(side(n, m) for n, m in enumerate(masks)), strict=True):
            pair = (then, otherwise) if then is not None else (otherwise, None)
            assert pair[0] is not None
            made.append(chosen(masks[0] if then is not None else masks[1], *pair))
        for result in made:
            self.trace.recording.stamp(result)
        return made

    def kept(self, value: Definition) -> Definition:
        side = self._side_of(value)
        row = tuple(value if n == side else None for n in range(len(self.frames)))
        if row not in self.values:
            self.values.append(row)
            self.results.append(self._result(self._variable(value)))
            self.give_rule()
        return self.results[self.values.index(row)]

    def stored(self, value: Definition, place: Expr | None) -> Definition:
        variable = self._variable(value)
        seen = Definition(variable.name, variable.shape, identity(variable))
        self.trace.recording.stamp(seen)
        return seen

    def at(self, kept: Value, place: Expr | None) -> Value:
        return kept

    def _variable(self, value: Definition) -> Variable:
        """A variable that the side with `value` leaves it in."""
        if value not in self.tapes:
            fresh = self.trace.fresh(value.name, value.shape, value.dtype, value.origin)
            self.trace.recording.home[value].assigns[fresh] = value
            self.tapes[value] = fresh
        return self.tapes[value]

    def _side_of(self, value: Value) -> int:
        for number, frame in enumerate(self.frames):
            if self.trace.recording.contains(frame, value):
                return number
        raise InvalidIR(f"{value} belongs to no side of {self.kind}")

    # --- the backward

    def pull(self, heads: Mapping[int, Value]) -> list[Value | None]:
        sides = [partial(self._backward, n, heads) for n in range(len(self.frames))]
        name = f"gradient of {self.kind}"
        form = BranchForm(self.trace, name, self.predicate, sides, store=self.store)
        return [*form.results]

    def push(self, tangents: Sequence[Value], numbers: Sequence[int]) -> list[Value]:
        moved = list(zip(self.deps, tangents, strict=True))

        def side(number: int) -> list[Value | None]:
            replay = Replay(self.trace, self.frames[number], None, store=self.store)
            own = [self.values[n][number] for n in numbers]
            made = replay.values([v for v in own if v is not None])
            own_tangents = iter(local_tangents(self.trace, made, moved, set()))
            return [None if v is None else next(own_tangents) for v in own]

        sides = [partial(side, n) for n in range(len(self.frames))]
        name = f"tangent of {self.kind}"
        form = BranchForm(self.trace, name, self.predicate, sides, store=self.store)
        return [*form.results]

    @property
    def deps(self) -> list[Value]:
        return [c for c in self.captured if c.dtype.is_float]

    def _backward(self, number: int, heads: Mapping[int, Value]) -> list[Value | None]:
        """Adjoints of what one side read."""
        replay = Replay(self.trace, self.frames[number], None, store=self.store)
        pairs: list[tuple[Value, Value]] = []
        for place, head in heads.items():
            value = self.values[place][number]
            if value is not None and not is_zero(head):
                pairs.append((replay.value(value), head))
        return [*local_adjoints(self.trace, pairs, self.deps, set())]
