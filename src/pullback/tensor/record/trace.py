"""Handles on values, the memory behind them, and the one trace that may be going on.

Outside `jit` a handle holds a pending definition until someone looks; `realize` then computes all
that is asked for as one program. Inside `jit` definitions are recorded and nothing is computed.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from pullback.backends.host.system import process
from pullback.errors import (
    DTypeError,
    InvalidIR,
    Origin,
    ShapeError,
    UnsupportedError,
)
from pullback.ir.dtype import DType
from pullback.ir.expr import Axis, Dim, Extent, upper
from pullback.ir.graph import Definition, Graph, Value, Variable, read, variables
from pullback.ir.program import Program
from pullback.runtime.executable import Executable
from pullback.tensor.record.calls import Call
from pullback.tensor.record.compiled import Compiled, runs
from pullback.tensor.record.deferred import Deferred, Plan, Work, remember_plan, value_of, written
from pullback.tensor.record.held import Held, copied, fresh, kind_of, shared
from pullback.tensor.record.recording import Recording, above, redirect
from pullback.tensor.record.turns import NONE, turns

Array = np.ndarray[Any, Any]


class Memory:
    """What exists: results of definitions, compiled eager programs."""

    def __init__(self) -> None:
        self.results: MutableMapping[Definition, Held] = weakref.WeakKeyDictionary()
        self.made_by: MutableMapping[Variable, weakref.ref[Definition]] = (
            weakref.WeakKeyDictionary()
        )
        self.groups: MutableMapping[Definition, list[weakref.ref[Definition]]] = (
            weakref.WeakKeyDictionary()
        )
        self.pending: weakref.WeakValueDictionary[int, Handle] = weakref.WeakValueDictionary()
        self.programs = Compiled()
        self.lock = threading.RLock()  # of graphs that are being made into programs
        process.tell(self)

    def forked(self) -> None:
        """A child has no thread that compiles."""
        self.lock = threading.RLock()

    def ended(self) -> None:
        """Nobody waits for a compilation."""


_memory = Memory()
_current: ContextVar[Trace | None] = ContextVar("pullback_trace", default=None)
_inline: ContextVar[bool] = ContextVar("pullback_inline", default=False)
_written: ContextVar[bool] = ContextVar("pullback_written", default=False)


class Handle:
    """What the user holds: a value that may not have been computed yet. Base of `Tensor`."""

    __slots__ = ("__weakref__", "_node")
    _node: Value | Deferred

    def __init__(self, value: Value) -> None:
        trace = _current.get()
        self._node = value if trace is None else trace.adopt(value)
        if isinstance(value, Definition):
            _memory.pending[id(self)] = self

    @property
    def _value(self) -> Value:
        """The definition or variable; that of a call which waits is made now."""
        node = self._node
        if type(node) is not Deferred:
            return node
        self._node = value = written_down(node)
        return value

    @_value.setter
    def _value(self, value: Value) -> None:
        self._node = value

    @property
    def waits(self) -> bool:
        """Whether calls with it as an operand may wait: it stands for one value, for good."""
        return False

    @property
    def value(self) -> Value:
        """The definition or variable this stands for, as of now."""
        trace = _current.get()
        if trace is not None:
            return trace.value_of(self)
        return self.outside()

    def outside(self) -> Value:
        """The value where no trace is going on: a variable once computed, if nothing is lost."""
        computed = result_of(self._value)
        if computed is not None and not self.remembers():
            self._value = computed
        return self._value

    def remembers(self) -> bool:
        """Whether the definition is kept beside its result, for derivatives yet to be asked for."""
        return False

    def rebind(self, value: Value) -> None:
        """Stand for another value from here on; what was made of the old one keeps that."""
        self._value = value
        if isinstance(value, Definition):
            _memory.pending[id(self)] = self

    @property
    def shape(self) -> tuple[Extent, ...]:
        """The extents of the axes; symbolic ones are `Dim`."""
        return self._node.shape

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self._node.dtype


class Cell(Handle):
    """A handle that may be given another value: parameter, optimiser state, random state.

    A read binds the version of that moment. Inside `jit` the last value of a block is written
    back into the cell's variable.

    Example:
        >>> x = pb.State(pb.zeros(2))
        >>> isinstance(x, pb.Cell)
        True
    """

    __slots__ = ()

    def __init__(self, value: Value) -> None:
        trace = _current.get()
        if trace is not None and isinstance(value, Definition):
            value = trace.born(value)
        with suspended():
            super().__init__(value)

    def outside(self) -> Value:
        """The value of now; a program that is assigning it is waited for."""
        now = super().outside()
        if not turns.line:
            return now
        turn = turns.begin(frozenset([id(self)]), NONE)
        try:
            return super().outside()
        finally:
            turns.end(turn)

    def assign(self, value: Handle | Value) -> None:
        """Give the cell another value of the same shape and type.

        Raises: ShapeError, DTypeError.
        """
        new = value.value if isinstance(value, Handle) else value
        if new.shape != self.shape:
            raise ShapeError(
                f"cannot assign a value of shape {new.shape} to a state of shape {self.shape}",
                code="E133",
            )
        if new.dtype != self.dtype:
            raise DTypeError(
                f"cannot assign a {new.dtype} value to a {self.dtype} state",
                help=f"cast it to {self.dtype}",
                code="E142",
            )
        trace = _current.get()
        if trace is not None:
            trace.assign(self, new)
            return
        self._value = new
        if isinstance(new, Definition):
            _memory.pending[id(self)] = self


class Trace:
    """One recording, with the variables that stand for handles made before it began."""

    def __init__(self, *, host: bool = True, near: bool = True) -> None:
        self.host = host  # whether it may call functions of the host
        self.near = near  # whether its arrays lie where these find them
        self.recording = Recording()
        self.captured: dict[int, tuple[Handle, Variable]] = {}
        self.own: set[Variable] = set()
        self.stand_ins: set[Variable] = set()
        self.cells: set[Variable] = set()
        self.local: dict[int, Value] = {}
        self.dirty: dict[int, Cell] = {}
        self.assigned: dict[int, Cell] = {}
        self.calls: dict[Definition, Call] = {}
        self.observed: dict[int, tuple[Any, Any]] = {}
        self.constants: dict[int, Handle] = {}
        # What looks at the whole program before it is compiled.
        self.looks: list[Callable[[Program], None]] = []
        # Symbolic extents that must not turn out to be 0: of what, and at which expression.
        self.filled: dict[Dim, tuple[str, Origin | None]] = {}

    def adopt(self, value: Value) -> Value:
        """The value a new handle is to hold; a cell's variable is read now, not later."""
        if isinstance(value, Variable):
            if value not in self.cells:
                return value
            axes = tuple(Axis(n, e) for n, e in enumerate(value.shape))
            value = Definition(value.name, value.shape, read(value, *axes), origin=value.origin)
        # An adjoint stands on definitions that no handle ever held: look below those too. One of
        # zeros stands on nothing, and is made here: its extents may be symbols of this trace.
        below = above([value], self.recording.home)
        sources = [s for d in below for s in d.sources]
        if not sources or any(map(self.owns, sources)):
            self.recording.stamp(value)
        return value

    def owns(self, value: Value) -> bool:
        """Whether `value` was made by this trace."""
        if isinstance(value, Variable):
            return value in self.own
        return value in self.recording.home

    def value_of(self, handle: Handle) -> Value:
        """What `handle` stands for inside this trace."""
        if isinstance(handle, Cell):
            return self.local.get(id(handle)) or self.capture(handle)
        value = handle.outside()
        return value if self.owns(value) else self.capture(handle)

    def capture(self, handle: Handle) -> Variable:
        """The variable that stands for a handle made outside."""
        if (pair := self.captured.get(id(handle))) is not None:
            return pair[1]
        value = handle.outside()
        variable = self.fresh(value.name, value.shape, value.dtype, value.origin)
        self.captured[id(handle)] = (handle, variable)
        if isinstance(handle, Cell):
            self.cells.add(variable)
        return variable

    def fresh(
        self, name: str, shape: tuple[Extent, ...], dtype: DType, origin: Origin | None = None
    ) -> Variable:
        """A variable of this trace."""
        variable = Variable(name, shape, dtype, origin)
        self.own.add(variable)
        return variable

    def assign(self, cell: Cell, value: Value) -> None:
        """``cell = value`` from here on."""
        self.capture(cell)
        self.local[id(cell)] = value
        self.dirty[id(cell)] = cell
        self.assigned[id(cell)] = cell

    def born(self, value: Definition) -> Variable:
        """The first content of a cell made while tracing: computed now, once.

        Raises: UnsupportedError where it depends on values of the trace.
        """
        if any(v in self.own for v in variables([value])):
            raise UnsupportedError(
                "a state made inside a jitted function must not depend on traced values",
                origin=value.origin,
                help="make it before the call",
                code="E319",
            )
        with suspended():
            return _compute([value])[value]

    def flush(self) -> None:
        """Write assigned cells back; what follows reads them from their variables."""
        for key in self.dirty:
            variable = self.captured[key][1]
            value = self.local.pop(key)
            if value is not variable:
                self.recording.assign(variable, value)
        self.dirty.clear()
        self.recording.cut()


def current() -> Trace | None:
    """The trace that is going on here, if any."""
    return _current.get()


@contextmanager
def tracing(trace: Trace | None) -> Iterator[None]:
    """Record into `trace` (None: compute eagerly) in this context."""
    token = _current.set(trace)
    try:
        yield
    finally:
        _current.reset(token)


def inline() -> bool:
    """Whether a jitted function is to run as it is written: traced, or transformed, by another."""
    return _inline.get() or _current.get() is not None


def transformed(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """``function(*args)`` for its definitions: jitted functions inside it are not compiled."""
    token = _inline.set(True)
    try:
        return function(*args, **kwargs)
    finally:
        _inline.reset(token)


def compiled(function: Callable[..., Any], *args: Any) -> Any:
    """``function(*args)`` by its own program, even while a derivative is being written."""
    token = _inline.set(False)
    try:
        return function(*args)
    finally:
        _inline.reset(token)


def written_out() -> bool:
    """Whether everything is to be a definition, nothing a program of its own (see `writing`)."""
    return _written.get()


@contextmanager
def writing() -> Iterator[None]:
    """In this context everything is written out as definitions, to be looked at one by one."""
    token = _written.set(True)
    try:
        yield
    finally:
        _written.reset(token)


def suspended() -> Any:
    """Leave the trace for a moment."""
    return tracing(None)


def wrap(definition: Definition) -> Definition:
    """Register a new definition with the current block of the current trace."""
    trace = _current.get()
    if trace is not None:
        trace.recording.stamp(definition)
    return definition.placed()


def placeholder(name: str, shape: tuple[Extent, ...], dtype: DType) -> Variable:
    """A variable that stands for values to come while a function is transformed."""
    trace = _current.get()
    if trace is not None:
        fresh = trace.fresh(name, shape, dtype)
        trace.stand_ins.add(fresh)
        return fresh
    return Variable(name, shape, dtype, Origin.of_caller())


def bind(array: Array, name: str, *, copy: bool = True, origin: Origin | None = None) -> Held:
    """A variable whose contents are `array` (`copy=False`: shared, and never written to)."""
    return copied(array, name, origin) if copy else shared(array, name, origin)


def observe(module: Any) -> None:
    """Say that what is being traced depends on ``module.training``."""
    trace = _current.get()
    if trace is not None:
        trace.observed.setdefault(id(module), (module, bool(module.training)))


def refuse_truth() -> None:
    """Raises: UnsupportedError inside a jitted function."""
    if _current.get() is not None:
        raise UnsupportedError(
            "a tensor has no truth value while it is being traced",
            help="choose elements with pb.where, what runs with pb.cond or pb.while_loop",
            code="E326",
        )


def contents(variable: Variable) -> Array | None:
    """The array behind a variable; do not write to it."""
    return variable.array if isinstance(variable, Held) else None


def array_of(handle: Handle) -> Array:
    """The array behind a realised handle; do not write to it."""
    variable = known(handle._node) or result_of(handle.value)
    if variable is None:
        raise InvalidIR(f"{handle.value} has not been computed")
    return _content(variable).array


def result_of(value: Value) -> Variable | None:
    """The variable that holds the contents of `value`; None where it is not computed yet."""
    return value if isinstance(value, Variable) else _memory.results.get(value)


def held(handles: Sequence[Handle]) -> list[Held]:
    """What `handles` hold, computed first where it has to be.

    Raises: UnsupportedError for what has no value here.
    """
    nodes: list[Any] = [h._node for h in handles]
    for node in nodes:
        if not isinstance(node, Held):
            if any(known(n) is None for n in nodes):
                realize(handles)
            return [known(h._node) or _content(result_of(h.outside())) for h in handles]
    return nodes


def known(node: Value | Deferred) -> Held | None:
    """What a handle's node holds, where the node alone tells it."""
    if isinstance(node, Held):
        return node
    return node.result if type(node) is Deferred else None


def cells(handles: Iterable[Handle]) -> frozenset[int]:
    """The states among `handles`, by `id`."""
    return frozenset(id(h) for h in handles if isinstance(h, Cell))


def settled(handles: Sequence[Handle]) -> list[Held]:
    """What `handles` hold, with no program writing to it."""
    turn = turns.begin(cells(handles), NONE)
    try:
        return held(handles)
    finally:
        turns.end(turn)


def twin(variable: Variable) -> Definition | None:
    """The definition, if it is still alive, that `variable` holds the result of."""
    weak = _memory.made_by.get(variable)
    return None if weak is None else weak()


def know(definition: Definition, array: Array) -> None:
    """Say what `definition` contains; nobody writes to `array`."""
    variable = shared(array, definition.name, definition.origin)
    with _memory.lock:
        _memory.results[definition] = variable
        _memory.made_by[variable] = weakref.ref(definition)


def together(values: Iterable[Value]) -> None:
    """Say that these were asked for at once: who looks at one has all of them computed."""
    definitions = [v for v in values if isinstance(v, Definition)]
    if _current.get() is None and len(definitions) > 1:
        group = [weakref.ref(d) for d in definitions]
        _memory.groups.update((d, group) for d in definitions)


def _beside(order: Iterable[Definition], asked: Iterable[Definition]) -> list[Definition]:
    """What was asked for at once with one of `order`, is wanted still, and is not in `asked`."""
    groups = {id(g): g for d in order if (g := _memory.groups.get(d)) is not None}
    alive = [d for group in groups.values() for ref in group if (d := ref()) is not None]
    known = set(asked)
    return [d for d in dict.fromkeys(alive) if d not in known and result_of(d) is None]


def compiled_programs() -> int:
    """How many eager programs this process has compiled."""
    return _memory.programs.count


def realize(handles: Iterable[Handle]) -> None:
    """Compute what `handles` stand for, as one program; each then holds a variable.

    Raises: UnsupportedError inside a jitted function.
    """
    if _current.get() is not None:
        raise UnsupportedError(
            "a value cannot be looked at while it is being traced",
            help="return it from the jitted function or hand it out with pb.Receiver",
            code="E310",
        )
    pending = _memory.pending
    handles = [h for h in handles if not isinstance(h._node, Variable) or id(h) in pending]
    nodes = [h._node for h in handles]
    calls = [n for n in nodes if type(n) is Deferred]
    if len(calls) == len(nodes):
        evaluate([n for n in calls if n.result is None])
        return
    handles = [h for h in handles if isinstance(h._value, Definition) or id(h) in pending]
    values = [h.outside() for h in handles]
    wanted = [v for v in values if isinstance(v, Definition) and result_of(v) is None]
    if wanted:
        _compute(wanted)
    for handle in handles:
        handle.outside()
        pending.pop(id(handle), None)


def evaluate(calls: list[Deferred]) -> None:
    """Compute calls that wait, and what tensors hold on the way to them."""
    if not calls:
        return
    work = Work(calls)
    if work.run():
        return
    with _memory.lock:
        kept = [written_down(node) for node in work.order if node in work.kept]
        definitions = [d for d in kept if isinstance(d, Definition)]
        if work.settled:
            program, graph, _ = _prepared(definitions)
            places = {id(leaf): n for n, leaf in enumerate(work.leaves)}
            if all(id(v) in places for v in graph.inputs):
                inputs = [places[id(v)] for v in graph.inputs]
                plan = Plan(runs(program), inputs, [work.order.index(n) for n in work.kept])
                remember_plan(work.key, plan)
    results = _compute(definitions)
    for node, definition in zip(work.kept, definitions, strict=True):
        node.result = _content(results[definition])


def written_down(node: Deferred) -> Value:
    """The definition of a call; its result where no derivative will need more."""
    if node.result is not None and not node.kind.dtype.is_float:
        return node.result
    with _memory.lock, suspended():
        for one in written(node):
            definition = value_of(one)
            assert isinstance(definition, Definition)
            if one.result is not None:
                _memory.results[definition] = one.result
                _memory.made_by[one.result] = weakref.ref(definition)
            owner = one.owner()
            if owner is not None and owner._node is one:
                owner._node = definition
                _memory.pending[id(owner)] = owner
    return value_of(node)


def _prepared(kept: Sequence[Definition]) -> tuple[Executable, Graph, list[Held]]:
    """The program of definitions, over what is known; its results have memory."""
    values = redirect(list(kept), _memory.results)
    made = [fresh(d.name, kind_of(tuple(map(upper, d.shape)), d.dtype), d.origin) for d in kept]
    graph = Graph(tuple(zip(made, values, strict=True)))
    return _memory.programs.of(graph), graph, made


def _compute(wanted: list[Definition]) -> dict[Definition, Variable]:
    """Results of `wanted`, and of whatever on the way to them somebody still holds."""
    with _memory.lock:
        order = above(wanted, _memory.results)
        while _memory.groups and (more := _beside(order, wanted)):
            wanted = [*wanted, *more]
            order = above(wanted, _memory.results)
        handles = [handle for ref in _memory.pending.valuerefs() if (handle := ref()) is not None]
        held = {h._node for h in handles}
        asked = set(wanted)
        kept = [d for d in order if d in asked or (d in held and not d.unstored)]
        program, graph, made = _prepared(kept)
    arrays = [v.array for v in (*map(_content, graph.inputs), *made)]
    program.run(dict(zip(program.program.state, arrays, strict=True)))
    with _memory.lock:
        _memory.results.update(zip(kept, made, strict=True))
        _memory.made_by.update(zip(made, map(weakref.ref, kept), strict=True))
        return {d: _memory.results[d] for d in wanted}


def _content(variable: Variable | None) -> Held:
    if isinstance(variable, Held):
        return variable
    assert variable is not None, "what was realised has a result"
    raise UnsupportedError(
        f"`{variable.name}` stands for an argument of a function that is being compiled or"
        " mapped, and has no value outside of it",
        origin=variable.origin,
        help="return it from the function or hand it out with pb.Receiver",
        code="E325",
    )
