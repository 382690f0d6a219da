"""A compiled program: run it, count what it did, look at it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from pullback.backends import base
from pullback.backends.base import CompileStats, Image, Text
from pullback.backends.host.exchange import box
from pullback.backends.host.interpret import Plain
from pullback.backends.host.processor import named_target
from pullback.backends.host.profile import Profile
from pullback.backends.registry import named
from pullback.config import Options
from pullback.errors import AbsentError, InvalidIR, OptionError, ShapeError
from pullback.ir import markup
from pullback.ir.expr import Dim, Shape
from pullback.ir.graph import Definition, Graph, Variable
from pullback.ir.kernel import Kernel
from pullback.ir.program import Block, Compute, HostCall, Launch, Program, items, written
from pullback.ir.signature import kernel_digest
from pullback.ir.target import Target
from pullback.ir.text import placed, show
from pullback.lower.whole import scheduled
from pullback.memory.budget import Repetition, work
from pullback.memory.plan import Plan
from pullback.schedule.choose import Choose
from pullback.schedule.count import Cost, cost
from pullback.schedule.text import schedule_text
from pullback.simplify.empty import without_empty
from pullback.simplify.graph import simplify_graph

Array = np.ndarray[Any, Any]

_NO_SIZES: dict[str, int] = {}
LOOPS, ASSEMBLY, PRICE, SCHEDULE = "loops", "assembly", "price", "schedule"  # texts of kernels


class Executor(Protocol):
    """What executes a program. The counts are those of the last run; `moved` is bytes."""

    @property
    def launches(self) -> int: ...

    @property
    def barriers(self) -> int: ...

    @property
    def moved(self) -> int: ...

    def run(self, bindings: Mapping[Variable, Array], sizes: Mapping[str, int]) -> None:
        """Run on contiguous arrays of the state variables, shaped by upper bounds."""

    def profile(self, kernels: Sequence[Kernel]) -> Profile | None:
        """The times of all runs so far, of `kernels` in program order; None if none are taken."""

    @property
    def go(self) -> Callable[[Sequence[int]], None] | None:
        """Run on their addresses, and then `sizes`; None where only arrays will do."""

    @property
    def sizes(self) -> Sequence[str]:
        """Names of the symbolic extents that `go` wants the sizes of, in order."""


class Foreign(Plain):
    """A program that its backend runs by itself."""

    def __init__(self, runner: base.Runner) -> None:
        self.own = runner
        self.launches = 0

    def run(self, bindings: Mapping[Variable, Array], sizes: Mapping[str, int]) -> None:
        self.own.run(bindings, sizes)
        self.launches = self.own.launches


@dataclass(eq=False, repr=False)
class Executable:
    """A program with what its compilation left behind.

    `program` is as traced. `image` is None where a program is interpreted.
    `fuse` makes the program as run: it takes the passes again where a record told the launches.
    `steps` are the launches that run again, for a memory budget. `timings`: seconds by stage.
    `chosen` gives the schedule of a kernel.
    """

    program: Program
    options: Options
    runner: Executor
    fuse: Callable[[], Block]
    image: Image | None = None
    stats: CompileStats = field(default_factory=CompileStats)
    target: Target | None = None
    steps: tuple[Repetition, ...] = ()
    timings: dict[str, float] = field(default_factory=dict)
    chosen: Choose = scheduled
    _written: frozenset[Variable] = field(init=False)

    def __post_init__(self) -> None:
        own = written(self.program.body)
        self._written = frozenset(own if self.image is None else (*own, *self.image.written))

    @property
    def plan(self) -> Plan | None:
        """The memory plan; None where nothing was planned."""
        return None if self.image is None else self.image.plan

    @functools.cached_property
    def fused(self) -> Block:
        """The program as run."""
        return self.fuse()

    @functools.cached_property
    def _fixed(self) -> list[tuple[Variable, Shape, np.dtype[Any]]]:
        """The state with the arrays it wants."""
        return [(v, v.shape, v.dtype.numpy) for v in self.program.state]

    @property
    def graphs(self) -> list[Graph]:
        """The graphs of the program as traced, loop bodies once."""
        return [i.graph for i in items(self.program.body) if isinstance(i, Compute)]

    @property
    def definitions(self) -> list[Definition]:
        """Every definition of them."""
        return list(dict.fromkeys(d for g in self.graphs for d in g.definitions))

    @functools.cached_property
    def cost(self) -> Cost:
        """Iterations, products, operations and elements of its definitions once simplified,
        at the upper bounds of symbolic extents; loop bodies once. What a memory budget computes
        again is counted again.
        """
        simple = [simplify_graph(without_empty(g)) for g in self.graphs]
        once = cost(d for g in simple for d in g.definitions)
        return sum((work(kernel) for kernel, _ in self.recomputed), once)

    @property
    def recomputed(self) -> list[tuple[Kernel, Repetition]]:
        """The launches that run again because of a memory budget, each with its reason."""
        kernels = self.kernels
        order = list(range(len(kernels) - len(self.steps)))
        for step in self.steps:
            order.insert(order.index(step.before), step.number)
        known = dict(zip(order, kernels, strict=True))
        return [(known[step.number], step) for step in self.steps]

    @property
    def kernels(self) -> list[Kernel]:
        """Every launch of the program text, loop bodies once."""
        return [i.kernel for i in items(self.fused) if isinstance(i, Launch)]

    @property
    def host_calls(self) -> list[HostCall]:
        """Every call of the host in the program text, loop bodies once."""
        return [i for i in items(self.program.body) if isinstance(i, HostCall)]

    @property
    def launches(self) -> int:
        """Kernels launched by the last run."""
        return self.runner.launches

    @property
    def barriers(self) -> int:
        """Times the last run waited for several threads."""
        return self.runner.barriers

    @property
    def bytes_moved(self) -> int:
        """Bytes that the launches of the last run read and wrote, each array once a launch."""
        return self.runner.moved

    @property
    def profile(self) -> Profile:
        """Times of every launch, over all runs.

        Raises: OptionError where the program was compiled without `Options(profile=True)`.
        """
        times = self.runner.profile(self.kernels)
        if times is None:
            what = "this program takes no times: compile it with Options(profile=True)"
            raise OptionError(what, help="or set PULLBACK_PROFILE=1", code="E524")
        return times

    @property
    def memory(self) -> Plan:
        """The memory plan: `.arena_bytes`, `.lower_bound_bytes`, `.picture()`.

        Raises: AbsentError on the reference backend, which plans nothing.
        """
        if self.plan is None:
            raise AbsentError("the reference backend plans no memory", code="E341")
        return self.plan

    def source(self) -> str:
        """The generated code, one text for each kernel structure; "" where nothing is generated."""
        names = [name for name in self.texts if name != LOOPS]
        return "" if self.target is None or not names else self._rendered(names[0], self.target)

    def assembly(self, target: str | None = None) -> str:
        """The machine code of each kernel structure, for a target by name (None: as it runs).

        Raises: OptionError for a name that is none; AbsentError of a backend that shows none.
        """
        wanted = self.target if target is None else named_target(target)
        return "" if wanted is None or not self.texts else self._rendered(ASSEMBLY, wanted)

    @functools.cached_property
    def texts(self) -> Mapping[str, Text]:
        """What its backend shows of a kernel, by names; nothing of an interpreter."""
        backend = named(self.options.backend)
        return backend.texts() if isinstance(backend, base.Explained) else {}

    def _rendered(self, name: str, target: Target) -> str:
        make = self.texts.get(name)
        if make is None:
            what = f"backend {self.options.backend!r} shows no {name}"
            raise AbsentError(what, help=f"it has {', '.join(self.texts)}", code="E341")
        texts = ((k, make(k, self.chosen(k, target), target)) for k in self.distinct())
        return "\n\n".join(placed(text, kernel) for kernel, text in texts)

    def explain(self) -> str:
        """The program as traced, its kernels with reasons and schedules, the memory plan."""
        parts = [f"== as traced\n{show(self.program)}"]
        if self.target is None or self.plan is None:
            return parts[0]
        for kernel in self.distinct():
            schedule = self.chosen(kernel, self.target)
            own = self.texts.get(SCHEDULE)
            how = schedule_text(schedule) if own is None else own(kernel, schedule, self.target)
            parts.append(f"== kernel {kernel.name}\n{show(kernel)}\n{how}")
            if PRICE in self.texts:
                parts[-1] += "\n" + self.texts[PRICE](kernel, schedule, self.target)
        if self.steps:
            parts.append("== computed again\n" + "\n".join(map(_again, self.recomputed)))
        parts.append(f"== as run\n{show(Program(self.fused, self.program.state))}")
        parts.append(f"== memory\n{self.plan.picture()}")
        return "\n\n".join(parts)

    def _repr_html_(self) -> str:
        """For notebooks: counts, kernels, the memory plan, the definitions."""
        return markup.html(self)

    def distinct(self) -> list[Kernel]:
        """One kernel of each structure, in order; of a launch of several, its parts."""
        kernels: dict[str, Kernel] = {}
        for piece in (piece for kernel in self.kernels for piece in kernel.pieces):
            kernels.setdefault(kernel_digest(piece), piece)
        return list(kernels.values())

    def run(self, bindings: Mapping[Variable, Array]) -> None:
        """Run it: an array for each state variable; those that it assigns are updated in place.

        Raises: ShapeError for an array that does not fit; what callbacks raise; IndexRangeError.
        """
        if all(_fits(bindings[v], shape, kind) for v, shape, kind in self._fixed):
            self.runner.run({v: bindings[v] for v in self.program.state}, _NO_SIZES)
            return
        sizes: dict[str, int] = {}
        boxes: dict[Variable, Array] = {}
        for variable in self.program.state:
            array = bindings[variable]
            _measure(variable, array, sizes)
            here = isinstance(array, np.ndarray)  # who runs it knows how others lie
            fits = not here or (array.shape == box(variable) and array.flags.c_contiguous)
            boxes[variable] = array if fits else _boxed(variable, array)
        try:
            self.runner.run(boxes, sizes)
        finally:
            for variable, array in boxes.items():
                own = bindings[variable]
                if array is not own and variable in self._written:
                    own[...] = array[tuple(slice(n) for n in own.shape)]


def _again(repeated: tuple[Kernel, Repetition]) -> str:
    """A repeated launch, with what it makes, saves and costs."""
    kernel, step = repeated
    names = ", ".join(v.name for v in kernel.writes)
    return (
        f"{kernel.name}, launch {step.source}, again before {step.before}: {names}; frees "
        f"{step.freed} bytes where most were alive, for {step.flops} operations"
    )


def _fits(array: Array, shape: Shape, kind: np.dtype[Any]) -> bool:
    """Whether a program can use an array as it lies; never where an extent is symbolic."""
    return array.shape == shape and array.dtype == kind and array.flags.c_contiguous


def _measure(variable: Variable, array: Array, sizes: dict[str, int]) -> None:
    """Check an array against its variable and learn symbolic extents from it."""
    if array.dtype != variable.dtype.numpy or array.ndim != len(variable.shape):
        raise InvalidIR(f"{variable} is given {array.dtype}{list(array.shape)}")
    for extent, size in zip(variable.shape, array.shape, strict=True):
        wanted = sizes.setdefault(extent.name, size) if isinstance(extent, Dim) else extent
        if wanted != size:
            raise ShapeError(
                f"`{variable.name}` has {size} elements along {extent}, not {wanted}", code="E121"
            )


def _boxed(variable: Variable, array: Array) -> Array:
    """A copy of `array` in memory of the variable's upper bounds."""
    whole = np.zeros(box(variable), variable.dtype.numpy)
    whole[tuple(slice(n) for n in array.shape)] = array
    return whole
