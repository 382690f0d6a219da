"""Loops as values: recorded once, run again, and differentiated.

    loop k up: c = f(c, x[k], w)   ->   loop k down: dc, dx[k], dw += d f(c[k], x[k], w) * dc

The backward of a loop is a loop with the counter reversed, of the same kind, so it has a backward
too. It needs the carries of every step: those are kept, one row a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pullback.errors import UnsupportedError
from pullback.grad.reverse import zeros
from pullback.ir import dtype as D
from pullback.ir import expr as E
from pullback.ir.expr import Axis, Expr
from pullback.ir.graph import (
    ANY,
    MAX,
    SUM,
    Accumulate,
    Definition,
    Map,
    Value,
    Variable,
    identity,
    read,
    substitute,
)
from pullback.ir.program import Block, Loop
from pullback.tensor.forms.late import Late
from pullback.tensor.forms.steps import FOREVER, Made, Steps, captures
from pullback.tensor.record.calls import Call, below, ordered
from pullback.tensor.record.lift import Lift, chosen, over_samples
from pullback.tensor.record.recording import Frame, LoopDraft, Segment
from pullback.tensor.record.replay import Form, Replay, is_zero, local_adjoints, local_tangents
from pullback.tensor.record.trace import Trace
from pullback.tensor.values import views as V

SIDE, LEVELS = 32, 4  # such a loop is run again as loops in loops, of as many steps each


class LoopForm(Form):
    """A recorded loop. Results are the last carries and then the rows of all steps."""

    __slots__ = (
        "after", "before", "begins", "captured", "counter", "ends", "first", "frame", "init",
        "items", "kind", "last", "number", "place", "rows", "steps", "tapes", "test", "trace",
        "tripped", "variables",
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
        self.first = first
        carries, condition = self._enter(first)
        self.frame: Frame = recording.enter()
        self.frame.owner = self
        self.place = self._place()
        self.number = self._made(Definition("step", (), self.place))
        self.begins = [self._made(_seen(v)) for v in carries]
        made = body(self)
        self.test = made.again
        condition = self._leave(made, carries, condition)
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

    def _leave(
        self, made: Made, carries: list[Variable], condition: Variable | None
    ) -> Variable | None:
        """The carries, rows and condition take their values at the end of the body."""
        trace, recording = self.trace, self.trace.recording
        again = made.again
        if self.steps.trips is not None:
            more = E.Less(E.Add(read(self.counter), E.index(1)), read(self.steps.trips))
            again = self._made(Definition("more", (), more))
        for value in (*made.ends, *made.items, again):
            if isinstance(value, Definition):
                recording.stamp(value)
        recording.segment.assigns.update(zip(carries, made.ends, strict=True))
        if condition is None and again is not None:
            condition = trace.fresh("condition", (), D.bool_)
            self.first = Definition("true", (), E.const(True, D.bool_))
            recording.home[self.first] = self.before
            self.before.assigns[condition] = self.first
        if condition is not None and again is not None:
            recording.segment.assigns[condition] = again
        self.last: Segment = recording.segment
        self.ends = made.ends
        for item in made.items:
            self._add(item, recording.segment)
        self._capture(made.rows)
        trace.flush()
        recording.leave()
        return condition

    def _add(self, item: Value, segment: Segment) -> None:
        self.items.append(item)
        self.variables.append(self._rows(item, segment))

    def _rows(self, item: Value, segment: Segment) -> Variable:
        """Rows for `item`: zeros before the loop, one written in each step."""
        if item in self.tapes:
            return self.tapes[item]
        if self.steps.count == FOREVER:
            raise self._unbounded("what each step leaves, such as a changed state,")
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
        tests = [v for v in (self.first, self.test) if v is not None]
        tested = captures(self.trace, self.frame, tests, own)
        self.sources = tuple(dict.fromkeys([*self.init, *self.captured, *wholes, *given, *tested]))

    # --- running again

    def again(self, replay: Replay) -> None:
        def body(form: LoopForm) -> Made:
            replay.enter(self.frame, read(form.number))
            replay.memo[self.number] = form.number
            replay.memo.update(zip(self.begins, form.begins, strict=True))
            ends, items = replay.values(self.ends), replay.values(self.items)
            rows = [(replay.value(w), replay.value(r)) for w, r in self.rows]
            again = replay.value(self.test) if asked and self.test is not None else None
            return Made(ends, items, [(w, r) for w, r in rows if isinstance(r, Definition)], again)

        steps, trips = self.steps, self.trips()
        asked = self.asked(replay)
        first = replay.value(self.first) if asked and self.first is not None else None
        if asked:
            steps = replace(steps, tested=True)
        elif trips is not None:
            given = steps.trips is not None
            known = replay.memo[trips] = replay.value(trips) if given else replay.keep(trips)
            steps = replace(steps, trips=known)
        form = LoopForm(self.trace, steps, replay.values(self.init), body, first)
        if asked and trips is not None and (counted := form.trips()) is not None:
            replay.memo[trips] = counted
        replay.memo.update(zip(self.results, form.results, strict=True))

    def asked(self, replay: Replay) -> bool:
        """Whether a run again asks the condition again: a block around it cannot keep how many
        steps there were.
        """
        trips = self.trips() if self.testable else None
        return trips is not None and (self.steps.tested or not replay.keeps(trips))

    @property
    def testable(self) -> bool:
        """Whether it ends by a condition that can be asked again; a feeder cannot."""
        return self.first is not None and self.steps.trips is None and not self.frame.feeds

    def _unbounded(self, what: str) -> UnsupportedError:
        return UnsupportedError(
            f"{what} of {self.kind} without a bound on its steps",
            help="say how many there are at most: max_steps=",
            code="E216",
        )

    def bounded(self) -> LoopForm:
        """The same steps again, as many as have run, in loops in loops of `SIDE` steps each.

        So each loop has rows for its carries, and no more than `SIDE`. A write that is out of
        range says so where there are too many steps.
        """
        trips = self.trips()
        assert trips is not None
        place = E.FloorDiv(read(trips), E.index(SIDE**LEVELS + 1))
        within = Accumulate(SUM, (1,), (place,))
        ran = Definition("steps_of_a_loop_without_max_steps", (1,), read(trips), within)
        trips = self._made(Definition("trips", (), read(ran, 0)))
        return self._level(LEVELS - 1, trips, E.index(0), self.init)

    def _level(self, level: int, trips: Value, start: Expr, init: Sequence[Value]) -> LoopForm:
        """The steps from `start` on, in chunks of ``SIDE**level``."""
        chunk = SIDE**level
        left = E.Add(E.subtract(read(trips), start), E.index(chunk - 1))
        count = E.minimum(E.FloorDiv(left, E.index(chunk)), E.index(SIDE))

        def body(form: LoopForm) -> Made:
            place = E.Add(start, E.Mul(read(form.number), E.index(chunk)))
            if level:
                return Made([*self._level(level - 1, trips, place, form.begins).results])
            replay = Replay(self.trace, self.frame, place, store=False)
            replay.memo[self.number] = form._made(Definition("step", (), place))
            replay.memo.update(zip(self.begins, form.begins, strict=True))
            return Made(replay.values(self.ends))

        steps = Definition("trips", (), count)
        return LoopForm(self.trace, Steps(self.kind, SIDE, trips=steps, store=False), init, body)

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
            self.tripped = self._result(variable)
        return self.tripped

    def _may_end(self) -> bool:
        """Whether a condition or a feeder may end the loop before its count."""
        return bool(self.frame.feeds) or self.first is not None

    def kept(self, value: Definition) -> Definition:
        if value not in self.items:
            self._add(value, self.trace.recording.home[value])
            self.results.append(self._result(self.variables[-1]))
            self.give_rule()
        return self.results[len(self.ends) + self.items.index(value)]

    def stored(self, value: Definition, place: Expr | None) -> Definition:
        return self.at(self._rows(value, self.trace.recording.home[value]), place)

    @property
    def keeps(self) -> bool:
        return self.steps.count != FOREVER

    def at(self, kept: Value, place: Expr | None) -> Definition:
        axes = [Axis(n, e) for n, e in enumerate(kept.shape[1:])]
        row = read(self.number) if place is None else place
        body: Expr = read(kept, row, *axes)
        if isinstance(kept, Definition) and isinstance(kept.form, Map) and not kept.reads:
            # It would be written down in the loop as a whole, in every step: the row is enough.
            body = substitute(kept.body, dict(enumerate([row, *axes])))
        return self._made(Definition("row", kept.shape[1:], body))

    def lift(self, lift: Lift) -> None:
        _Many(self, lift).tell()

    # --- the backward

    def pull(self, heads: Mapping[int, Value]) -> list[Value | None]:
        if self.steps.count == FOREVER:
            form = self.bounded()
            adjoints = form.pull(heads)
            by = dict(zip(form.deps, adjoints, strict=True))
            own = len(self.deps) - sum(c.dtype.is_float for c in self.captured)
            return [*adjoints[:own], *(by[d] for d in self.deps[own:])]
        count = len(self.ends)
        ends = [n for n in heads if n < count]
        items = {n - count: h for n, h in heads.items() if n >= count and not is_zero(h)}
        captured = [c for c in self.captured if c.dtype.is_float]
        start = [*(heads[n] for n in ends), *map(zeros, captured)]
        backward = _Backward(self, ends, items, captured)
        down = self._like(f"gradient of {self.kind}", backwards=not self.steps.backwards)
        form = LoopForm(self.trace, down, start, backward.body)
        return [*backward.late[0].found(form.results, len(ends))[: len(self.deps)]]

    def push(self, tangents: Sequence[Value], numbers: Sequence[int]) -> list[Value]:
        count = len(self.ends)
        ends = [n for n in numbers if n < count]
        items = [n - count for n in numbers if n >= count]
        captured = [c for c in self.captured if c.dtype.is_float]
        wholes = tangents[len(ends) + len(captured) :]
        unkept = self.steps.count == FOREVER
        start = [*tangents[: len(ends)], *(self.init if unkept else ())]

        def body(form: LoopForm) -> Made:
            local = _Local(self, form)
            moving = [*(self.begins[n] for n in ends), *captured, *self.float_rows]
            given = tangents[len(ends) : len(ends) + len(captured)]
            along = [*form.begins[: len(ends)], *given, *(local.row(w) for w in wholes)]
            wanted = [*(self.ends[n] for n in ends), *(self.items[n] for n in items)]
            pairs = list(zip(local.values(moving), along, strict=True))
            made = local_tangents(self.trace, local.values(wanted), pairs, local.given)
            again = local.values(self.ends) if unkept else []
            return Made([*made[: len(ends)], *again], made[len(ends) :], local.rows)

        along = self._like(f"tangent of {self.kind}", backwards=self.steps.backwards)
        form = LoopForm(self.trace, along, start, body)
        return [*form.results[: len(ends)], *form.results[len(start) :]]

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

    Where nothing is kept, the last carries of the other loop are those of this one.

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
            carries = form.begins[len(form.begins) - len(forward.begins) :]
        else:
            carries = [self.row(forward.kept(begin)) for begin in forward.begins]
        self.given.update(carries)
        self.replay.memo.update(zip(forward.begins, carries, strict=True))
        self.values = self.replay.values

    def row(self, whole: Value) -> Definition:
        """The row of this step of a value outside."""
        row = self.forward.at(whole, read(self.form.number))
        self.rows.append((whole, row))
        self.given.add(row)
        return row


@dataclass(frozen=True, slots=True)
class _Backward:
    """The body of the backward of `forward`: adjoints of `carries` and `captured` are carried."""

    forward: LoopForm
    carries: list[int]
    items: dict[int, Value]
    captured: list[Value]
    late: list[Late] = field(default_factory=list)

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
        summands = made[count:last]
        forward.enter_values(summands)
        late = Late(forward.trace.recording, forward.steps.count, local.rows)
        if forward.steps.store and form.steps.trips is None:
            late.choose(summands)
        self.late.append(late)
        sums = late.ends(form.begins[count:], summands)
        return Made([*made[:count], *sums], [*made[last:], *late.kept], local.rows)


class _Many:
    """`loop` for many samples at once, as many steps as any of them takes.

    `wide`: which carries differ by sample. A sample that has ended keeps its carries and has rows
    of zeros; the last two carries of a loop that tests each sample are which go on, and the steps
    of each.
    """

    def __init__(self, loop: LoopForm, lift: Lift) -> None:
        self.loop = loop
        self.lift = lift
        self.own = [loop.number, *loop.begins, *(row for _, row in loop.rows)]
        self.wide = [v in lift.known for v in loop.init]
        self.limit: Value | None = None
        self.tested = False
        self.moved = self._moved()
        self.tested = loop.first is not None and self._moves(loop.first, loop.test)
        self.asked = loop.testable and not self.tested
        trips = None if self.tested or self.asked else loop.trips()
        if trips is not None:
            self.limit = lift.known.get(trips)
        if self.tested or self.limit is not None:
            self.wide = [True] * len(self.wide)
        for source in loop.sources:
            if isinstance(lifted := lift.known.get(source), Definition):
                loop.trace.recording.stamp(lifted)
        self.wholes = [self._rows_first(whole) for whole, _ in loop.rows]
        init = self._some(lift, loop.init, self.wide)
        first: Value | None = None
        if self.tested and loop.first is not None:
            going = self._counted(lift.one(loop.first))
            init += [going, Definition("trips", lift.prefix, E.index(0))]
            first = over_samples("more", going, ANY)
        elif self.asked and loop.first is not None:
            (first,) = self._some(lift, [loop.first], [False])
        self.trips = None if trips is None else self._steps(trips)
        steps = replace(loop.steps, trips=self.trips)
        self.form = LoopForm(loop.trace, steps, init, self.body, first)

    def tell(self) -> None:
        """Say what the results have become."""
        loop, lift, count = self.loop, self.lift, len(self.wide)
        results = self.form.results
        for old, new, wide in zip(loop.results, results, self.wide, strict=False):
            lift.tell(old, new, wide=wide)
        rows = results[len(self.form.ends) :]
        for old, new, item in zip(loop.results[count:], rows, loop.items, strict=True):
            wide = self._moves(item)
            lift.tell(old, self._rows_behind(new) if wide else new, wide=wide)
        if loop.tripped is not None and self.tested:
            lift.tell(loop.tripped, results[count + 1], wide=True)
        elif loop.tripped is not None and (trips := self.trips or self.form.trips()) is not None:
            lift.tell(loop.tripped, trips, wide=False)

    def body(self, form: LoopForm) -> Made:
        loop, lift = self.loop, self.lift
        active = self._active(form)
        inner = lift.entered(loop.frame, read(form.number), lift.only if active is None else active)
        inner.tell(loop.number, form.number, wide=False)
        for begin, now, wide in zip(loop.begins, form.begins, self.wide, strict=False):
            inner.tell(begin, now, wide=wide)
        rows = []
        for (whole, row), source in zip(loop.rows, self.wholes, strict=True):
            here = form.at(source, None)
            inner.tell(row, here, wide=whole in lift.known)
            rows.append((source, here))
        ends = self._some(inner, loop.ends, self.wide)
        items = self._some(inner, loop.items, map(self._moves, loop.items))
        if active is not None:
            ends = [chosen(active, e, b) for e, b in zip(ends, form.begins, strict=False)]
            items = [chosen(active, i) for i in items]
        if self.asked and loop.test is not None:
            return Made(ends, items, rows, *self._some(inner, [loop.test], [False]))
        if not self.tested or loop.test is None or active is None:
            return Made(ends, items, rows)
        going = chosen(active, inner.one(loop.test))
        one = Definition("one", lift.prefix, E.Cast(identity(active), D.int64))
        steps = form.begins[len(ends) + 1]
        steps = Definition("trips", lift.prefix, E.Add(identity(steps), identity(one)))
        return Made([*ends, going, steps], items, rows, over_samples("more", going, ANY))

    def _moved(self) -> set[Value | Call]:
        """What differs by sample in the body; `wide` is made to hold all that it makes differ."""
        loop, lift = self.loop, self.lift
        inside, calls = loop.trace.recording.contains, loop.trace.calls
        roots = [*loop.ends, *loop.items, *([] if loop.test is None else [loop.test])]
        order = ordered(roots, calls, lambda v: v in self.own or not inside(loop.frame, v))
        moved: set[Value | Call] = {row for whole, row in loop.rows if whole in lift.known}
        while True:
            moved.update(b for b, w in zip(loop.begins, self.wide, strict=True) if w)
            for node in order:
                near = any(n in moved or n in lift.known for n in below(node, calls))
                if near or (isinstance(node, Definition) and lift.depends(node)):
                    moved.add(node)
            ends = [e in moved or e in lift.known for e in loop.ends]
            wide = [a or b for a, b in zip(self.wide, ends, strict=True)]
            if wide == self.wide:
                return moved
            self.wide = wide

    def _moves(self, *values: Value | None) -> bool:
        """Whether any of `values` differs by sample."""
        if self.limit is not None or self.tested:
            return True
        return any(v in self.moved or v in self.lift.known for v in values)

    def _some(self, lift: Lift, values: Sequence[Value], wide: Iterable[bool]) -> list[Value]:
        """Each of `values` as it is here, with the prefix where it is wide."""
        lift.visit(values)
        pairs = zip(values, wide, strict=True)
        return [lift.one(v) if w else lift.plain(v) for v, w in pairs]

    def _active(self, form: LoopForm) -> Value | None:
        """Which samples still run; None where all do."""
        if self.tested:
            return form.begins[len(self.wide)]
        if self.limit is None:
            return None
        more = E.Less(read(form.number), identity(self.limit))
        return form._made(Definition("active", self.lift.prefix, more))

    def _counted(self, going: Value) -> Value:
        """Those samples of `going` that count."""
        return going if self.lift.only is None else chosen(self.lift.only, going)

    def _steps(self, trips: Definition) -> Value:
        """How many steps there are, for any sample."""
        if self.limit is not None:
            return over_samples("trips", self._counted(self.limit), MAX)
        replay = self.lift.replay
        if replay is None or self.loop.steps.trips is not None:
            return self.lift.plain(trips)
        return replay.keep(trips)

    def _rows_first(self, whole: Value) -> Value:
        """``[b, step, ..] -> [step, b, ..]``, where there are samples."""
        if whole not in self.lift.known:
            return self.lift.plain(whole)
        wide = self.lift.known[whole]
        count = len(self.lift.prefix)
        order = [count, *range(count), *range(count + 1, len(wide.shape))]
        return V.permute(wide, order)

    def _rows_behind(self, rows: Value) -> Value:
        count = len(self.lift.prefix)
        order = [*range(1, count + 1), 0, *range(count + 1, len(rows.shape))]
        return V.permute(rows, order)


def _seen(variable: Variable) -> Definition:
    return Definition(variable.name, variable.shape, identity(variable), origin=variable.origin)
