"""A tensor that reads itself, as a loop over times: each step computes a plane of equal time.

    f[i, j] = g(f[i-1, j], f[i, j-1], x[i, j])         time t = i + j, planes over i

    rows[t, i] = x[i, t - i]                           what no step changes, for all times at once
    loop t: new[i] = g(window[0, i-1], window[0, i], rows[t, i]) where 0 <= t - i < n
            window = new, window[0], ..                the planes that are still read
    f[i, j] = planes[i + j, i]

The loop is a `LoopForm`, and its derivatives of every order, forward and of many samples are its
own. Without a trace the same steps are written one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from pullback.algebra.affine import affine
from pullback.algebra.bounds import in_bounds
from pullback.errors import Origin
from pullback.ir import dtype as D
from pullback.ir import expr as E
from pullback.ir.expr import Axis, Expr, Extent, If, Take, lower
from pullback.ir.graph import Definition, Value, Variable, read, replace_reads, substitute
from pullback.ir.node import Node, rebuild, walk
from pullback.simplify.rules import simplify
from pullback.tensor.define.combine import Part
from pullback.tensor.define.compute import close
from pullback.tensor.define.scope import Scope, is_dear
from pullback.tensor.define.wavefront import Order, time_of
from pullback.tensor.face.handles import FIRST_FREE, ScalarHandle, new_axis
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.forms.loops import LoopForm
from pullback.tensor.forms.steps import Made, Steps
from pullback.tensor.record.trace import Trace, current, wrap
from pullback.tensor.run.apart import Apart
from pullback.tensor.values import elementwise as W
from pullback.tensor.values.views import conjunction

STAND_INS = 4096  # variables that stand for what recurrences read, kept for those that come


@dataclass(frozen=True, slots=True)
class Recurrence:
    """``itself[m][axes] = bodies[m]``, the bodies reading the variables `itself`, in an order."""

    name: str
    origin: Origin
    axes: tuple[Axis, ...]
    itself: tuple[Variable, ...]
    bodies: tuple[Expr, ...]
    order: Order

    @property
    def shape(self) -> tuple[Extent, ...]:
        return tuple(a.extent for a in self.axes)


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a body that is computed by itself: `here`, over `axes`, stands for it.

    What no step changes, for all times at once: `body` is over the axes of cells. Or a read of a
    window, in each step: its adjoint is then computed once a cell, not once for each that it reads.
    """

    here: Variable
    axes: tuple[Axis, ...]
    body: Expr


@dataclass(slots=True)
class Planes:
    """A recurrence in coordinates of time and plane. `time` stands for the number of the step.

    `windows`: planes of earlier steps, `fresh`: of this one, for each tensor.
    """

    given: Recurrence
    time: Variable = field(default_factory=lambda: Variable("time", (), D.int64))
    windows: list[Variable] = field(default_factory=list)
    fresh: list[Variable] = field(default_factory=list)
    operands: list[Piece] = field(default_factory=list)
    reads: list[Piece] = field(default_factory=list)
    bodies: list[Expr] = field(default_factory=list)

    def __post_init__(self) -> None:
        shape = tuple(a.extent for a in self.plane)
        for one in self.given.itself:
            window = (self.given.order.window, *shape)
            self.windows.append(Variable("window", window, one.dtype))
            self.fresh.append(Variable("fresh", shape, one.dtype))
        self.bodies = [self._in_planes(b) for b in self.given.bodies]

    @property
    def plane(self) -> list[Axis]:
        """The axes of a plane: all but the one that the time settles."""
        return [a for n, a in enumerate(self.given.axes) if n != self.given.order.lead]

    @property
    def lead(self) -> Axis:
        return self.given.axes[self.given.order.lead]

    def place(self, time: Expr) -> Expr:
        """Where along the lead axis the cells of this time are."""
        order, shape = self.given.order, self.given.shape
        others = [0 if n == order.lead else w for n, w in enumerate(order.weights)]
        along = E.subtract(time, time_of(others, self.given.axes, shape))
        if order.weights[order.lead] > 0:
            return simplify(along)
        last = E.Add(E.extent_expr(self.lead.extent), E.index(-1))
        return simplify(E.subtract(last, along))

    def at(self, root: Expr, time: Expr) -> Expr:
        """`root` at a time, over the plane's axes."""
        return substitute(root, {self.lead.number: self.place(time)})

    def inside(self, time: Expr) -> Expr | None:
        """Whether there is a cell at this time; None where there always is."""
        literal = isinstance(self.lead.extent, int)
        if not self.given.order.skewed and literal:
            return None
        place = self.place(time)
        below = E.Less(place, E.extent_expr(self.lead.extent))
        return E.And(E.logical_not(E.Less(place, E.index(0))), below)

    # --- bodies

    def _in_planes(self, root: Expr) -> Expr:
        """A body that reads windows, fresh planes and rows."""
        scope = Scope(root)
        moved = scope.above(self._reads_itself)
        memo: dict[Node, Node] = {}
        for node in scope.largest(moved):
            operand = self._operand(node, scope)
            if operand is not None:
                memo[node] = operand
        still = rebuild(root, lambda node: None, memo)
        assert isinstance(still, Expr)
        here = self.at(replace_reads(still, self._earlier), read(self.time))
        return self._apart(here)

    def _apart(self, root: Expr) -> Expr:
        """`root` with its reads of windows as parts, outside of reductions."""
        scope = Scope(root)
        own = frozenset(a.number for a in self.plane)
        memo: dict[Node, Node] = {}
        for node in scope.nodes:
            if isinstance(node, Take) and node.source in self.windows and node.axes <= own:
                here = Variable("read", tuple(a.extent for a in self.plane), node.dtype)
                guards = scope.guards(node)
                if all(g.axes <= own for g in guards):
                    self.reads.append(Piece(here, tuple(self.plane), _guarded(node, guards)))
                    memo[node] = read(here, *self.plane)
        parted = rebuild(root, lambda node: None, memo)
        assert isinstance(parted, Expr)
        return parted

    def _earlier(self, take: Take) -> Expr | None:
        """A read of itself as one of a window, or of a fresh plane."""
        given = self.given
        if take.source not in given.itself:
            return None
        number = given.itself.index(take.source)
        steps: Expr = E.index(0)
        for weight, axis, at in zip(given.order.weights, given.axes, take.indices, strict=True):
            if weight:
                steps = E.Add(steps, E.Mul(E.subtract(axis, at), E.index(weight)))
        places = [at for n, at in enumerate(take.indices) if n != given.order.lead]
        back = simplify(E.Add(steps, E.index(-1)))
        form = affine(back)
        if not form.terms and form.const < 0:
            return read(self.fresh[number], *places)
        return read(self.windows[number], back, *places)

    def _reads_itself(self, node: Expr) -> bool:
        return isinstance(node, Take) and node.source in self.given.itself

    def _operand(self, node: Expr, scope: Scope) -> Expr | None:
        """The row of what no step changes but every time has its own; None for anything else."""
        if self.lead.number not in node.axes or not is_dear(node):
            return None
        every = scope.guards(node)
        guards = [g for g in every if not any(map(self._reads_itself, Scope(g).nodes))]
        if len(guards) < len(every) and not _safe(node, guards):
            return None
        weights = dict(zip(self.given.axes, self.given.order.weights, strict=True))
        used = node.axes | frozenset(n for g in guards for n in g.axes)
        own = [a for a in self.plane if weights[a] or a.number in used]
        bound = [a for a in scope.axes if a.number in used and a not in self.given.axes]
        axes = (*own, *bound)
        here = Variable("row", tuple(a.extent for a in axes), node.dtype)
        self.operands.append(Piece(here, axes, _guarded(node, guards)))
        return read(here, *axes)

    def rows(self, count: int) -> list[Value]:
        """Every operand for all times, over ``(time, *axes)``."""
        return [self._rows(one, count) for one in self.operands]

    def _rows(self, one: Piece, count: int) -> Value:
        time = new_axis(count, "time")
        body = _where(self.inside(time.expr), self.at(one.body, time.expr))
        own = [time, *map(ScalarHandle, one.axes)]
        return close(own, ScalarHandle(body), "rows", self.given.origin).value

    # --- one step

    def step(self, time: Expr, windows: Sequence[Value], rows: Sequence[Value]) -> list[Value]:
        """The new planes, in the order of the tensors."""
        known: dict[Value, Value] = dict(zip(self.windows, windows, strict=True))
        known |= zip((o.here for o in self.operands), rows, strict=True)
        inside = self.inside(time)

        def change(take: Take) -> Expr | None:
            if take.source is self.time:
                return time
            plane = known.get(take.source)
            return None if plane is None else take.of(plane)

        own = [ScalarHandle(a) for a in self.plane]
        for part in self.reads:
            body = _where(inside, replace_reads(part.body, change))
            known[part.here] = close(own, ScalarHandle(body), "read", self.given.origin).value
        for number in self.given.order.turn:
            body = _where(inside, replace_reads(self.bodies[number], change))
            one = self.given.itself[number]
            made = close(own, ScalarHandle(body), one.name, self.given.origin)
            known[self.fresh[number]] = made.value
        return [known[f] for f in self.fresh]

    def shifted(self, window: Value, fresh: Value) -> Value:
        """The window a step later."""
        age, *axes = W.axes_of(window.shape)
        if window.shape[0] == 1:
            return W.make("window", window.shape, read(fresh, *axes))
        older = read(window, E.Add(age, E.index(-1)), *axes)
        newest = E.Less(age, E.index(1))
        return W.make("window", window.shape, If(newest, read(fresh, *axes), older))

    def cells(self, planes: Value, number: int) -> Value:
        """A tensor of its planes."""
        given = self.given
        axes = W.axes_of(given.shape)
        time = simplify(time_of(given.order.weights, axes, given.shape))
        places = [a for n, a in enumerate(axes) if n != given.order.lead]
        return W.make(given.itself[number].name, given.shape, read(planes, time, *places))


def _where(inside: Expr | None, body: Expr) -> Expr:
    """`body`, zero where there is no cell."""
    return body if inside is None else If(inside, body, E.const(0, body.dtype))


def _guarded(node: Expr, guards: Sequence[Expr]) -> Expr:
    """`node`, zero where nobody looks at it."""
    return _where(conjunction(guards) if guards else None, node)


def _safe(node: Expr, guards: Sequence[Expr]) -> bool:
    """Whether every read in `node` is proved to lie inside, by these guards and its own."""
    scope = Scope(node)
    takes = [n for n in scope.nodes if isinstance(n, Take)]
    return all(all(in_bounds(t, [*guards, *scope.guards(t)])) for t in takes)


def computed(given: Recurrence, checkpoint: str) -> list[Tensor]:
    """The tensors of a recurrence: part of the program that is traced, or a program of its own."""
    if current() is not None:
        return [Tensor(v) for v in _made(given, checkpoint)]
    plain, sources = _canonical(given)
    key = (plain.axes, plain.itself, plain.bodies, plain.order, checkpoint)

    def of(values: list[Value]) -> list[Value]:
        known: dict[Value, Value] = dict(zip(_stand_ins(sources), values, strict=True))

        def change(take: Take) -> Expr | None:
            return take.of(known[take.source]) if take.source in known else None

        bodies = tuple(replace_reads(b, change) for b in plain.bodies)
        return _made(replace(plain, bodies=bodies), checkpoint)

    return [Tensor(v) for v in Apart(given.name, key, of)(sources)]


def _canonical(given: Recurrence) -> tuple[Recurrence, list[Value]]:
    """The same over axes, tensors and sources that are told by their number, and the sources."""
    nodes = [n for body in given.bodies for n in walk(body)]
    bound = {v for n in nodes if isinstance(n, Part) for row in n.joining.rows for v in row}
    takes = dict.fromkeys(n.source for n in nodes if isinstance(n, Take) and n.source not in bound)
    sources = [s for s in takes if s not in given.itself]
    axes = dict.fromkeys([*given.axes, *(n for n in nodes if isinstance(n, Axis))])
    fresh = {a.number: Axis(FIRST_FREE + n, a.extent) for n, a in enumerate(axes)}
    own = tuple(_stand_in("itself", n, v.shape, v.dtype) for n, v in enumerate(given.itself))
    known: dict[Value, Value] = dict(zip(given.itself, own, strict=True))
    known |= zip(sources, _stand_ins(sources), strict=True)

    def change(take: Take) -> Expr | None:
        return take.of(known[take.source]) if take.source in known else None

    bodies = tuple(substitute(replace_reads(b, change), fresh) for b in given.bodies)
    named = tuple(fresh[a.number] for a in given.axes)
    return replace(given, axes=named, itself=own, bodies=bodies), sources


def _stand_ins(sources: Sequence[Value]) -> list[Variable]:
    return [_stand_in("source", n, s.shape, s.dtype) for n, s in enumerate(sources)]


@lru_cache(maxsize=STAND_INS)
def _stand_in(name: str, number: int, shape: tuple[Extent, ...], kind: D.DType) -> Variable:
    """The variable for a tensor with this number."""
    return Variable(f"{name}{number}", shape, kind)


def _made(given: Recurrence, checkpoint: str) -> list[Value]:
    """The tensors, in a trace as a loop and without one as definitions, a step after the other."""
    planes = Planes(given)
    count = given.order.count(given.shape)
    trace = current()
    if trace is None:
        made = _one_by_one(planes, count)
    else:
        made = _looped(trace, planes, count, checkpoint)
    return [planes.cells(v, n) for n, v in enumerate(made)]


def _looped(trace: Trace, planes: Planes, count: int, checkpoint: str) -> list[Value]:
    rows = planes.rows(count)
    start: list[Value] = [W.full(w.shape, 0, w.dtype) for w in planes.windows]

    def made(form: LoopForm) -> Made:
        here = [wrap(form.at(v, None)) for v in rows]
        fresh = planes.step(read(form.number), form.begins, here)
        ends = [planes.shifted(w, f) for w, f in zip(form.begins, fresh, strict=True)]
        return Made(ends, fresh, list(zip(rows, here, strict=True)))

    trips = _trips(planes.given)
    steps = Steps(planes.given.name, count, trips=trips, store=checkpoint == "tape")
    form = LoopForm(trace, steps, start, made)
    return [*form.results[len(start) :]]


def _trips(given: Recurrence) -> Definition | None:
    """How many steps there are where an extent is symbolic; none where there is no cell."""
    if all(isinstance(e, int) for e in given.shape):
        return None
    lasts = [E.Add(E.extent_expr(e), E.index(-1)) for e in given.shape]
    count: Expr = E.index(1)
    for weight, last in zip(given.order.weights, lasts, strict=True):
        count = E.Add(count, E.Mul(last, E.index(abs(weight))))
    for extent, last in zip(given.shape, lasts, strict=True):
        if lower(extent) == 0:
            count = If(E.Less(last, E.index(0)), E.index(0), count)
    return W.make("trips", (), count)


def _one_by_one(planes: Planes, count: int) -> list[Value]:
    """Without a trace: the steps as definitions, one after the other."""
    rows = planes.rows(count)
    windows: list[Value] = [W.full(w.shape, 0, w.dtype) for w in planes.windows]
    steps: list[list[Value]] = []
    for number in range(count):
        here = [_row(v, number) for v in rows]
        fresh = planes.step(E.index(number), windows, here)
        windows = [planes.shifted(w, f) for w, f in zip(windows, fresh, strict=True)]
        steps.append(fresh)
    return [_stacked(list(column)) for column in zip(*steps, strict=True)]


def _row(rows: Value, number: int) -> Value:
    axes = W.axes_of(rows.shape[1:])
    return W.make("row", rows.shape[1:], read(rows, E.index(number), *axes))


def _stacked(planes: list[Value]) -> Value:
    """``out[t, ..] = planes[t][..]``, by halves."""
    if len(planes) == 1:
        axes = W.axes_of((1, *planes[0].shape))
        return W.make("planes", (1, *planes[0].shape), read(planes[0], *axes[1:]))
    half = len(planes) // 2
    first, second = _stacked(planes[:half]), _stacked(planes[half:])
    axes = W.axes_of((len(planes), *planes[0].shape))
    here = E.Less(axes[0], E.index(half))
    later = read(second, E.Add(axes[0], E.index(-half)), *axes[1:])
    return W.make("planes", (len(planes), *planes[0].shape), If(here, read(first, *axes), later))
