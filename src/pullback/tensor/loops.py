"""Loops as values: recorded once, run again, and differentiated.

    loop k up: c = f(c, x[k], w)   ->   loop k down: dc, dx[k], dw += d f(c[k], x[k], w) * dc

The backward of a loop is a loop with the counter reversed, of the same kind, so it has a backward
too. It needs the carries of every step: those are kept, one row a step.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pullback.errors import Origin, UnsupportedError
from pullback.grad.reverse import zeros
from pullback.grad.total import identity
from pullback.ir import dtype as D
from pullback.ir import expr as E
from pullback.ir.expr import Axis, Expr
from pullback.ir.graph import Definition, Value, Variable, read
from pullback.ir.program import Block, Loop
from pullback.tensor.calls import Call, below, ordered
from pullback.tensor.recording import Frame, LoopDraft, Segment
from pullback.tensor.replay import Form, Replay, is_zero, local_adjoints, local_tangents
from pullback.tensor.trace import Trace

FOREVER = 1 << 62  # the count of a loop that only its condition ends


@dataclass(frozen=True, slots=True)
class Steps:
    """How a loop runs: at most `count` steps, rows from the last to the first if `backwards`.

    `trips`: how many there are, where that is less and known before. `store`: whether a backward
    reads what is dear to compute, or computes it again from the carries.
    """

    name: str
    count: int
    backwards: bool = False
    trips: Value | None = None
    store: bool = True


@dataclass(slots=True)
class Made:
    """What the body of a loop computes: carries, rows of this step, and whether to go on.

    `rows`: of values outside, with the definition that reads the row of this step.
    """

    ends: list[Value]
    items: list[Value] = field(default_factory=list)
    rows: list[tuple[Value, Definition]] = field(default_factory=list)
    again: Value | None = None


class LoopForm(Form):
    """A recorded loop. Results are the last carries and then the rows of all steps."""

    __slots__ = (
        "after", "before", "begins", "captured", "counter", "ends", "frame", "init", "items",
        "kind",
        "last", "number", "place", "rows", "steps", "tapes", "tested", "trace", "tripped",
        "variables",
    )  # fmt: skip

    def __init__(
        self,
        trace: Trace,
        steps: Steps,
        init: Sequence[Value],
        body: Callable[[LoopForm], Made],
        first: Value | None = None,
    ) -> None:
        self.trace = trace
        self.steps = steps
        self.kind = steps.name
        self.init = list(init)
        self.items: list[Value] = []
        self.variables: list[Variable] = []
        self.tapes: dict[Value, Variable] = {}
        self.tripped: Definition | None = None
        recording = trace.recording
        self.counter = trace.fresh("step", (), D.int64)
        self.tested = first is not None
        carries, condition = self._enter(first)
        self.frame: Frame = recording.enter()
        self.frame.owner = self
        self.place = self._place()
        self.number = self._made(Definition("step", (), self.place))
        self.begins = [self._made(_seen(v)) for v in carries]
        made = body(self)
        self._leave(made, carries, condition)
        start, step = (steps.count - 1, -1) if self._counts_down else (0, 1)
        count, counter = steps.count, self.counter

        def make(block: Block) -> Loop:
            return Loop(block, count, counter, condition, start, step)

        recording.add(LoopDraft(self.frame, make))
        self.after: Segment = recording.segment
        self.results = [self._result(v) for v in (*carries, *self.variables)]
        self.give_rule()

    # --- recording

    @property
    def _counts_down(self) -> bool:
        return self.steps.backwards and self.steps.trips is None

    def _place(self) -> Expr:
        """The row of this step."""
        trips = self.steps.trips
        number = read(self.counter)
        if trips is None or not self.steps.backwards:
            return number
        return E.subtract(read(trips), E.Add(number, E.index(1)))

    def _made(self, definition: Definition) -> Definition:
        self.trace.recording.stamp(definition)
        return definition

    def _enter(self, first: Value | None) -> tuple[list[Variable], Variable | None]:
        """Variables for the carries, filled before the loop, and for its condition if any."""
        if self.steps.trips is not None:
            first = Definition("more", (), E.Less(E.index(0), read(self.steps.trips)))
        carries = [self._fill(f"carry{n}", value) for n, value in enumerate(self.init)]
        condition = None if first is None else self._fill("condition", first)
        self.before: Segment = self.trace.recording.segment
        self.trace.flush()
        return carries, condition

    def _fill(self, name: str, value: Value) -> Variable:
        fresh = self.trace.fresh(name, value.shape, value.dtype, value.origin)
        if isinstance(value, Definition):
            self.trace.recording.stamp(value)
        self.trace.recording.segment.assigns[fresh] = value
        return fresh

    def _leave(self, made: Made, carries: list[Variable], condition: Variable | None) -> None:
        """The carries, rows and condition take their values at the end of the body."""
        trace, recording = self.trace, self.trace.recording
        again = made.again
        if self.steps.trips is not None:
            more = E.Less(E.Add(read(self.counter), E.index(1)), read(self.steps.trips))
            again = self._made(Definition("more", (), more))
        for value in (*made.ends, *made.items):
            if isinstance(value, Definition):
                recording.stamp(value)
        recording.segment.assigns.update(zip(carries, made.ends, strict=True))
        if condition is not None and again is not None:
            recording.segment.assigns[condition] = again
        self.last: Segment = recording.segment
        self.ends = made.ends
        for item in made.items:
            self._add(item, recording.segment)
        self._capture(made.rows)
        trace.flush()
        recording.leave()

    def _add(self, item: Value, segment: Segment) -> None:
        self.items.append(item)
        self.variables.append(self._rows(item, segment))

    def _rows(self, item: Value, segment: Segment) -> Variable:
        """Rows for `item`: zeros before the loop, one written in each step."""
        if item in self.tapes:
            return self.tapes[item]
        if self.steps.count == FOREVER:
            raise self._unbounded("rows")
        home = self.trace.recording.home
        rows = self.trace.fresh("rows", (self.steps.count, *item.shape), item.dtype)
        empty = Definition("rows", rows.shape, E.const(0, rows.dtype))
        home[empty] = self.before
        self.before.assigns[rows] = empty
        row, *axes = (Axis(n, e) for n, e in enumerate(rows.shape))
        body = E.If(E.Equal(row, self.place), read(item, *axes), read(rows, row, *axes))
        filled = Definition("rows", rows.shape, body)
        home[filled] = segment
        segment.assigns[rows] = filled
        self.tapes[item] = rows
        return rows

    def _result(self, variable: Variable) -> Definition:
        seen = _seen(variable)
        self.trace.recording.home[seen] = self.after
        self.trace.calls[seen] = self
        return seen

    def _capture(self, rows: Sequence[tuple[Value, Definition]]) -> None:
        """`sources`: what comes from outside; rows of a value are told from the whole of it."""
        own: set[Value] = {self.number, *self.begins, *(row for _, row in rows)}
        self.captured = captures(self.trace, self.frame, [*self.ends, *self.items], own)
        self.rows = [(whole, row) for whole, row in rows if whole not in self.captured]
        given = [] if self.steps.trips is None else [self.steps.trips]
        wholes = [whole for whole, _ in self.rows]
        self.sources = tuple(dict.fromkeys([*self.init, *self.captured, *wholes, *given]))

    # --- running again

    def again(self, replay: Replay) -> None:
        def body(form: LoopForm) -> Made:
            replay.places[self.frame] = read(form.number)
            replay.memo[self.number] = form.number
            replay.memo.update(zip(self.begins, form.begins, strict=True))
            ends, items = replay.values(self.ends), replay.values(self.items)
            rows = [(replay.value(w), replay.value(r)) for w, r in self.rows]
            return Made(ends, items, [(w, r) for w, r in rows if isinstance(r, Definition)])

        steps = self.steps
        trips = self.trips()
        if trips is not None:
            given = steps.trips is not None
            known = replay.value(trips) if given else replay.keep(trips)
            steps = Steps(steps.name, steps.count, steps.backwards, known, steps.store)
        form = LoopForm(self.trace, steps, replay.values(self.init), body)
        replay.memo.update(zip(self.results, form.results, strict=True))

    def _unbounded(self, what: str) -> UnsupportedError:
        return UnsupportedError(
            f"{what} of {self.kind} without a bound on its steps",
            origin=Origin.of_caller(),
            help="say how many there are at most: max_steps=",
        )

    def run_again(self, trips: Definition) -> list[Definition]:
        """The carries after as many steps, from the start: where no bound says what to keep.

        Raises: UnsupportedError for the backward of such a loop, whose start is at its end.
        """
        if self.steps.backwards:
            raise self._unbounded("a second derivative")

        def body(form: LoopForm) -> Made:
            replay = Replay(self.trace, self.frame, read(form.number), store=False)
            replay.memo[self.number] = form.number
            replay.memo.update(zip(self.begins, form.begins, strict=True))
            return Made(replay.values(self.ends))

        steps = Steps(self.kind, FOREVER, trips=trips, store=False)
        return LoopForm(self.trace, steps, self.init, body).results

    def trips(self) -> Definition | None:
        """How many steps ran; None where that is the count."""
        given = self.steps.trips
        if isinstance(given, Definition):
            return given
        if not self._may_end():
            return None
        if self.tripped is None:
            home = self.trace.recording.home
            variable = self.trace.fresh("trips", (), D.int64)
            none = Definition("trips", (), E.index(0))
            one_more = Definition("trips", (), E.Add(read(self.counter), E.index(1)))
            home[none], home[one_more] = self.before, self.last
            self.before.assigns[variable] = none
            self.last.assigns[variable] = one_more
            self.tripped = _seen(variable)
            home[self.tripped] = self.after
        return self.tripped

    def _may_end(self) -> bool:
        """Whether a condition or a feeder may end the loop before its count."""
        return bool(self.frame.feeds) or self.tested

    def kept(self, value: Definition) -> Definition:
        if value not in self.items:
            self._add(value, self.trace.recording.home[value])
            self.results.append(self._result(self.variables[-1]))
            self.give_rule()
        return self.results[len(self.ends) + self.items.index(value)]

    def stored(self, value: Definition, place: Expr | None) -> Definition:
        return self.at(self._rows(value, self.trace.recording.home[value]), place)

    def at(self, kept: Value, place: Expr | None) -> Definition:
        axes = [Axis(n, e) for n, e in enumerate(kept.shape[1:])]
        row = read(self.number) if place is None else place
        return self._made(Definition("row", kept.shape[1:], read(kept, row, *axes)))

    # --- the backward

    def pull(self, heads: Mapping[int, Value]) -> list[Value | None]:
        count = len(self.ends)
        ends = [n for n in heads if n < count]
        items = {n - count: h for n, h in heads.items() if n >= count and not is_zero(h)}
        captured = [c for c in self.captured if c.dtype.is_float]
        start = [*(heads[n] for n in ends), *map(zeros, captured)]
        backward = _Backward(self, ends, items, captured)
        down = self._like(f"gradient of {self.kind}", backwards=not self.steps.backwards)
        form = LoopForm(self.trace, down, start, backward.body)
        return [*form.results[: len(self.deps)]]

    def push(self, tangents: Sequence[Value], numbers: Sequence[int]) -> list[Value]:
        count = len(self.ends)
        ends = [n for n in numbers if n < count]
        items = [n - count for n in numbers if n >= count]
        captured = [c for c in self.captured if c.dtype.is_float]
        wholes = tangents[len(ends) + len(captured) :]

        def body(form: LoopForm) -> Made:
            local = _Local(self, form)
            moving = [*(self.begins[n] for n in ends), *captured, *self.float_rows]
            given = tangents[len(ends) : len(ends) + len(captured)]
            along = [*form.begins, *given, *(local.row(w) for w in wholes)]
            wanted = [*(self.ends[n] for n in ends), *(self.items[n] for n in items)]
            pairs = list(zip(local.values(moving), along, strict=True))
            made = local_tangents(self.trace, local.values(wanted), pairs, local.given)
            return Made(made[: len(ends)], made[len(ends) :], local.rows)

        along = self._like(f"tangent of {self.kind}", backwards=self.steps.backwards)
        form = LoopForm(self.trace, along, tangents[: len(ends)], body)
        return [*form.results]

    def _like(self, name: str, *, backwards: bool) -> Steps:
        """As many steps as have run."""
        return Steps(name, self.steps.count, backwards, self.trips(), self.steps.store)

    @property
    def float_rows(self) -> list[Definition]:
        """The rows of outer values that have an adjoint."""
        return [row for whole, row in self.rows if whole.dtype.is_float]

    @property
    def deps(self) -> list[Value]:
        wholes = [whole for whole, _ in self.rows]
        own = [v for v, end in zip(self.init, self.ends, strict=True) if end.dtype.is_float]
        return [*own, *(v for v in (*self.captured, *wholes) if v.dtype.is_float)]


class _Local:
    """The values of a loop at one step, in the body of another loop, from the carries kept.

    `given`: rows and carries; where they come from is no matter of this step.
    """

    def __init__(self, forward: LoopForm, form: LoopForm) -> None:
        self.form = form
        self.forward = forward
        self.rows: list[tuple[Value, Definition]] = []
        place = read(form.number)
        store = forward.steps.store
        self.replay = Replay(forward.trace, forward.frame, place, store=store)
        self.replay.memo[forward.number] = form.number
        self.given: set[Value] = set()
        if forward.steps.count == FOREVER:
            carries = forward.run_again(form.number)
        else:
            carries = [self.row(forward.kept(begin)) for begin in forward.begins]
        self.given.update(carries)
        self.replay.memo.update(zip(forward.begins, carries, strict=True))
        self.values = self.replay.values

    def row(self, whole: Value) -> Definition:
        """The row of this step of a value outside."""
        found = self.forward.at(whole, read(self.form.number))
        self.rows.append((whole, found))
        self.given.add(found)
        return found


@dataclass(frozen=True, slots=True)
class _Backward:
    """The body of the backward of `forward`: adjoints of `carries` and `captured` are carried."""

    forward: LoopForm
    carries: list[int]
    items: dict[int, Value]
    captured: list[Value]

    def body(self, form: LoopForm) -> Made:
        forward = self.forward
        local = _Local(forward, form)
        count = len(self.carries)
        ends = local.values([forward.ends[n] for n in self.carries])
        items = local.values([forward.items[n] for n in self.items])
        heads = [*form.begins[:count], *(local.row(a) for a in self.items.values())]
        begins: list[Value] = [forward.begins[n] for n in self.carries]
        inputs = local.values([*begins, *self.captured, *forward.float_rows])
        pairs = list(zip([*ends, *items], heads, strict=True))
        made = local_adjoints(forward.trace, pairs, inputs, local.given)
        last = count + len(self.captured)
        sums = [
            Definition("sum", a.shape, E.Add(identity(a), identity(b)))
            for a, b in zip(form.begins[count:], made[count:last], strict=True)
        ]
        return Made([*made[:count], *sums], made[last:], local.rows)


def captures(trace: Trace, frame: Frame, roots: Sequence[Value], own: set[Value]) -> list[Value]:
    """Values from outside of `frame` that `roots` depend on, `own` ones not looked into."""
    inside = trace.recording.contains
    order = ordered(roots, trace.calls, lambda v: v in own or not inside(frame, v))
    wanted: list[Value | Call] = [*roots, *(s for n in order for s in below(n, trace.calls))]
    values = [v for v in wanted if not isinstance(v, Call) and v not in own]
    return list(dict.fromkeys(v for v in values if not inside(frame, v)))


def _seen(variable: Variable) -> Definition:
    return Definition(variable.name, variable.shape, identity(variable), origin=variable.origin)
