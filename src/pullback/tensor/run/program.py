"""`jit`: a function traced once becomes a compiled program.

A program is kept for each combination of argument shapes and types, static values, and training
flags of the modules it used. Tensors that the function captures are inputs of the program; states
(parameters, optimiser state) that it assigns are updated in place where nobody else reads them.
"""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, Generic, ParamSpec, TypeVar, overload

import numpy as np

from pullback.backends.host.system import process, uncollected
from pullback.backends.registry import named
from pullback.config import Options, Schedules, UserRule, parse_bytes
from pullback.errors import AbsentError, OptionError, ShapeError, UnsupportedError
from pullback.ir.expr import Dim, Extent, upper
from pullback.ir.graph import Variable
from pullback.ir.markup import fold, html, panel, table
from pullback.ir.program import Compute, HostCall, Program, Receive, items
from pullback.ir.text import show
from pullback.memory.budget import work
from pullback.pipeline import begin, compile_program
from pullback.rules.installed import chosen
from pullback.runtime.executable import Executable
from pullback.tensor.face.arrays import Derivative, returned
from pullback.tensor.face.tensor import Tensor, shape_of
from pullback.tensor.face.tree import Tree, flatten, leaf_names
from pullback.tensor.forms.control import cond, loop, scan, while_loop
from pullback.tensor.record.away import Placing
from pullback.tensor.record.constants import seen
from pullback.tensor.record.held import Held, Kind, kind_of, shared
from pullback.tensor.record.trace import (
    Cell,
    Handle,
    Trace,
    bind,
    cells,
    held,
    inline,
    known,
    realize,
    result_of,
    settled,
    tracing,
)
from pullback.tensor.record.turns import turns
from pullback.tensor.run.entry import Entry
from pullback.tensor.run.host import Feeder, Receiver
from pullback.tensor.run.images import save
from pullback.tensor.run.schedules import Given, given
from pullback.tensor.run.tuning import measured
from pullback.tensor.shaped.given import functions

SHOWN = 20  # kernels in a notebook

__all__ = ["Feeder", "Jit", "Receiver", "cond", "jit", "loop", "scan", "while_loop"]

log = logging.getLogger("pullback")
P = ParamSpec("P")
R = TypeVar("R")


class Jit(Generic[P, R]):
    """A function with its compiled programs. `traces`: how often it was traced so far."""

    def __init__(
        self,
        function: Callable[P, R],
        shapes: Sequence[Sequence[Extent] | None] | None = None,
        options: Options | None = None,
        memory: int | None = None,
        schedules: Schedules = (),
        rules: Sequence[UserRule] = (),
    ) -> None:
        functions(function=function)
        if shapes is not None and not isinstance(shapes, Sequence):
            raise ShapeError(f"shapes={shapes!r}: a list, of one shape for each array", code="E134")
        self.__name__ = str(getattr(function, "__name__", "function"))
        functools.update_wrapper(self, function)
        self.function = function
        self.plain = not isinstance(function, Derivative)
        self.shapes = None if shapes is None else [s if s is None else shape_of(s) for s in shapes]
        self.options = options
        self.memory = memory
        self.schedules = schedules
        self.rules = rules
        self.entries: dict[Any, list[Entry]] = {}
        self.quick: dict[Any, list[Entry]] = {}
        self.traces = 0
        self.lock = threading.RLock()
        process.tell(self)
        self.last: Entry | None = None

    @property
    def program(self) -> Executable:
        """The program of the last call. Raises: AbsentError before the first."""
        if self.last is None:
            raise AbsentError(f"{self.__name__} has not been called yet")
        return self.last.executable

    def save_image(self, path: str | PathLike[str], *, key: bytes | None = None) -> None:
        """Write the program of the last call, with what it captured, for `pb.load_image`: another
        process runs it without passes or a compiler. A `key` of 16 to 64 bytes signs it.

        Raises: AbsentError before the first call; UnsupportedError for a program that only its
            process can run; StateError where nothing can be written there; ArgumentError for what
            is no key.
        """
        executable = self.program
        assert self.last is not None
        captured = [v.array for v in held((*self.last.read, *self.last.written))]
        results = len(self.last.outputs)
        inputs = len(executable.program.state) - len(captured) - results
        save(path, executable, inputs, results, captured, key)

    def _repr_html_(self) -> str:
        """For notebooks: the program of the last call."""
        shown = "not called yet" if self.last is None else ""
        head = panel(f"jitted function {self.__name__}", shown)
        return head if self.last is None else head + self.program._repr_html_()

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if inline():
            return self.function(*args, **kwargs)
        ready = None if kwargs else _ready(args)
        if ready is not None:
            signature: Any = tuple([v.kind for v in ready])
        else:
            given = flatten((args, kwargs), _argument)
            ready = held(given.handles)
            signature = (given.key, tuple([v.kind for v in ready]))
        for entry in self.quick.get(signature, ()):
            if not entry.flags or entry.fits():
                break
        else:
            entry = self.found(flatten((args, kwargs), _argument), signature)
            held(entry.written)
        if turns.line:
            ready = settled(flatten((args, kwargs), _argument).handles)
        self.last = entry
        results: R = entry.call(ready)
        return results if self.plain else returned(self.function, args, results)

    def forked(self) -> None:
        """A child has no thread that traces."""
        self.lock = threading.RLock()

    def ended(self) -> None:
        """Nobody waits for a trace."""

    def found(self, given: Tree, signature: Any) -> Entry:
        """The entry for what is given, traced where there is none; by `signature` from now on."""
        realize(given.handles)
        shapes = self.declared(given)
        key = (given.key, tuple(zip(shapes, (h.dtype for h in given.handles), strict=True)))
        with self.lock:
            known = self.entries.setdefault(key, [])
            self.quick[signature] = known
            entry = next((e for e in known if e.fits()), None)
            if entry is None:
                self.report(key, known)
                entry = self.trace(given, shapes)
                known.append(entry)
            return entry

    def declared(self, given: Tree) -> tuple[tuple[Extent, ...], ...]:
        """The shapes to compile for: as given, or as declared with symbolic extents.

        Raises: ShapeError where an array does not fit its declaration.
        """
        actual = tuple(h.shape for h in given.handles)
        if self.shapes is None:
            return actual
        if len(self.shapes) != len(actual):
            raise ShapeError(
                f"{len(self.shapes)} shapes were declared for {len(actual)} arrays", code="E134"
            )
        pairs = zip(self.shapes, actual, strict=True)
        return tuple(a if s is None else _fit(tuple(s), a) for s, a in pairs)

    def report(self, key: Any, known: list[Entry]) -> None:
        """Log why the function is traced again."""
        if self.last is None:
            return
        if known:
            changed = [type(m).__name__ for m, flag in known[-1].flags if seen(m) != flag]
            log.info("%s: traced again, mode or contents of %s", self.__name__, ", ".join(changed))
            return
        old = next(k for k, entries in self.entries.items() if self.last in entries)
        for place, (before, after) in enumerate(zip(old[1], key[1], strict=False)):
            if before != after:
                log.info(
                    "%s: traced again, tensor %d: %s -> %s", self.__name__, place, before, after
                )
        if old[0] != key[0]:
            log.info("%s: traced again, static arguments: %s -> %s", self.__name__, old[0], key[0])

    @uncollected()
    def trace(self, given: Tree, shapes: Sequence[tuple[Extent, ...]]) -> Entry:
        """Run the function once on variables and compile what it did."""
        self.traces += 1
        options = asked = Options.from_environment()
        if self.options is not None:
            options = replace(self.options, profile=self.options.profile or asked.profile)
        begin(options)
        start = time.perf_counter()
        near = not isinstance(named(options.backend), Placing)
        trace = Trace(host=options.host, near=near)
        names = leaf_names(self.function, given)
        arguments = tuple(
            trace.fresh(name, shape, handle.dtype)
            for name, handle, shape in zip(names, given.handles, shapes, strict=True)
        )
        with tracing(trace):
            args, kwargs = given.rebuild([Tensor(v) for v in arguments])
            result = flatten(self.function(*args, **kwargs))
            values = [h.value for h in result.handles]
            outputs = tuple(
                Variable(f"result{n}", v.shape, v.dtype, v.origin) for n, v in enumerate(values)
            )
            trace.recording.segment.assigns.update(zip(outputs, values, strict=True))
            trace.flush()
        read, written = _split(trace)
        captured = [v for _, v in (*read, *written)]
        program = trace.recording.finish((*arguments, *captured, *outputs))
        for look in trace.looks:
            look(program)
        _refuse_stand_ins(trace, program)
        if self.memory is not None:
            options = replace(options, memory=self.memory)
        if self.schedules:
            options = replace(options, schedules=self.schedules)
        if self.rules:
            options = replace(options, rules=(*options.rules, *self.rules))
        traced = time.perf_counter() - start
        executable = compile_program(program, options)
        if options.tune:
            executable = measured(executable, program, options)
        executable.timings["trace"] = traced
        return Entry(
            executable,
            tuple([handle for handle, _ in read]),
            tuple([cell for cell, _ in written]),
            outputs,
            None if _symbolic(program.state) else tuple([_kind(v) for v in outputs]),
            result.builder(),
            tuple(trace.observed.values()),
            cells(handle for handle, _ in read),
            cells(cell for cell, _ in written),
            trace.filled,
        )


@overload
def jit(
    function: Callable[P, R],
    *,
    shapes: Sequence[Sequence[Extent] | None] | None = None,
    options: Options | None = None,
    memory: int | str | None = None,
    schedules: Given = (),
    rules: Any = (),
) -> Jit[P, R]: ...
@overload
def jit(
    function: None = None,
    *,
    shapes: Sequence[Sequence[Extent] | None] | None = None,
    options: Options | None = None,
    memory: int | str | None = None,
    schedules: Given = (),
    rules: Any = (),
) -> Callable[[Callable[P, R]], Jit[P, R]]: ...
def jit(
    function: Callable[..., Any] | None = None,
    *,
    shapes: Sequence[Sequence[Extent] | None] | None = None,
    options: Options | None = None,
    memory: int | str | None = None,
    schedules: Given = (),
    rules: Any = (),
) -> Any:
    """Compile `function` into one program, traced at its first call.

    `shapes`: one shape for each array argument, with `pb.dim` extents; None: as given.
    `memory`: bytes (or ``"64MB"``) for temporaries and working memory; what does not fit is
    computed again where it is used again, to the same bits.
    `schedules`: how kernels run, each a `pb.schedule` or a file that one was saved to; a program
    that has none of their kernels is refused when it is called.
    `rules`: of `pb.rules`, or their names, after those of `options`.

    Raises: OptionError for a `memory` that is no size, or a file that is no schedule; RuleError
        for what is no rule; MemoryBudgetError, at the call, for a budget that is too small.

    Example:
        >>> f = pb.jit(lambda x: pb.sum(x * x))
        >>> f(pb.tensor([1.0, 2.0]))
        Tensor(5., dtype=float32)
    """
    budget = None if memory is None else parse_bytes(memory)
    own = Options(rules=chosen(rules)).rules
    if options is not None and not isinstance(options, Options):
        raise OptionError(f"options={options!r}: a pb.Options is wanted", code="E225")
    if function is None:
        rest = {"options": options, "memory": budget, "schedules": schedules}
        return functools.partial(jit, shapes=shapes, rules=own, **rest)
    return Jit(function, shapes, options, budget, given(schedules), own)


def _argument(leaf: Any) -> Any:
    """NumPy arrays that are passed (not captured) become tensors."""
    if isinstance(leaf, np.ndarray | np.generic):
        return Tensor(bind(np.asarray(leaf), "argument", copy=False))
    return leaf


def _fit(declared: tuple[Extent, ...], actual: tuple[Extent, ...]) -> tuple[Extent, ...]:
    fits = len(declared) == len(actual) and all(
        d.lo <= a <= d.hi if isinstance(d, Dim) and isinstance(a, int) else d == a
        for d, a in zip(declared, actual, strict=True)
    )
    if not fits:
        raise ShapeError(f"an argument of shape {actual} was declared as {declared}", code="E122")
    return declared


def _symbolic(state: Sequence[Variable]) -> bool:
    return any(isinstance(e, Dim) for v in state for e in v.shape)


def _kind(variable: Variable) -> Kind:
    """Of a variable whose extents are all known."""
    return kind_of(tuple([upper(e) for e in variable.shape]), variable.dtype)


def _ready(arguments: tuple[Any, ...]) -> list[Held] | None:
    """Tensors that are computed, and arrays, as they are held; None where more has to be done."""
    ready = []
    for argument in arguments:
        if isinstance(argument, Handle):
            node = argument._node
            value = node if isinstance(node, Held) else known(node) or result_of(argument._value)
        elif type(argument) is np.ndarray:
            value = shared(argument, "argument")
        else:
            return None
        if not isinstance(value, Held):
            return None
        ready.append(value)
    return ready


def _split(trace: Trace) -> tuple[list[tuple[Handle, Variable]], list[tuple[Cell, Variable]]]:
    """Captured handles that are only read, and cells that are written."""
    read: list[tuple[Handle, Variable]] = []
    written: list[tuple[Cell, Variable]] = []
    for key, (handle, variable) in trace.captured.items():
        cell = trace.assigned.get(key)
        if cell is None:
            read.append((handle, variable))
        else:
            written.append((cell, variable))
    return read, written


def _refuse_stand_ins(trace: Trace, program: Program) -> None:
    """Raises: UnsupportedError where what runs depends on one sample or adjoint of many."""
    work = list(items(program.body))
    reads = [v for item in work if isinstance(item, Compute) for v in item.graph.inputs]
    reads += [v for item in work if isinstance(item, Receive | HostCall) for v in item.sources]
    for read in reads:
        if read in trace.stand_ins:
            raise UnsupportedError(
                f"`{read.name}` stands for each of many samples or adjoints, and a state, feeder"
                " or receiver inside the function depends on it",
                origin=read.origin,
                help="return what is wanted, and assign or receive it outside",
                code="E321",
            )


@html.register
def _(program: Executable) -> str:
    """Counts, kernels, the memory plan, the definitions."""
    kernels, plan = program.kernels, program.plan
    rows = [(k.name, f"{work(k).flops:,}", str(len(k.every))) for k in kernels[:SHOWN]]
    head = f"program of {len(program.definitions)} definitions in {len(kernels)} kernels"
    arena = "" if plan is None else f"arena {plan.arena_bytes:,} bytes"
    return "".join(
        [
            panel(head, arena),
            "" if plan is None else plan._repr_svg_(),
            table(("kernel", "operations", "stages"), rows) if rows else "",
            f"<p>{len(kernels) - SHOWN} more</p>" if len(kernels) > SHOWN else "",
            fold("definitions", show(program.program)),
        ]
    )
