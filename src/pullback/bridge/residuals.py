"""What an operator keeps for its backward, besides its arguments.

    y = f(x)      ->      y, r.. = f_kept(x),      dx = f_back(dy, x, r..)

Each `r` is a value of the forward that adjoints read. Fusion prices both programs, without it and
with it, in nanoseconds; what pays for being written and read is kept, all else computed again.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from pullback.backends.host.processor import chosen_target
from pullback.bridge.derived import Derived, Tensors
from pullback.bridge.lying import Axes
from pullback.bridge.programs import Dims, Programs, kind_of, static
from pullback.bridge.signature import MAYBE, Parameter, Signature
from pullback.config import Options
from pullback.cost.facts import is_view, size_bytes
from pullback.errors import PullbackError
from pullback.fuse.entry import group
from pullback.ir.expr import Dim, Extent
from pullback.ir.graph import Definition, Graph, Map, Value, Variable, topological
from pullback.ir.target import Target
from pullback.tensor.derive.modes import vjp
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.record.recording import Segment, redirect
from pullback.tensor.record.trace import Trace, current, tracing

NOTHING = ""
_MORE = (Parameter("wanted", "int"), Parameter("kept", "str"))


@dataclass(frozen=True, slots=True)
class Joint:
    """A function and its adjoints, written down together.

    `order`: every definition of both, but for what arguments are made of: a definition is told by
    its place in it, the same in each program, and by the number of the result that it is:
    ``"7 12@0"``. `read`: those of the forward that adjoints read.
    """

    outputs: list[Value]
    adjoints: dict[int, Value]
    order: list[Definition]
    read: list[Definition]

    @classmethod
    def of(cls, function: Derived, args: Sequence[Any], wanted: int, heads: Sequence[Any]) -> Joint:
        """`heads`: adjoints of the results that are floats; none: variables stand for them."""
        moving = [n for n in function.signature.tensors if wanted >> n & 1]
        results: list[Tensor] = []

        def floats(*given: Any) -> Tensors:
            whole = list(args)
            for n, argument in zip(moving, given, strict=True):
                whole[n] = argument
            results[:] = function.call(*whole)
            return tuple([r for r in results if r.dtype.is_float])

        own, back = vjp(floats, *[args[n] for n in moving])
        trace = current()
        assert trace is not None, "inside of a trace"
        known = heads or [Tensor(trace.fresh("head", r.shape, r.dtype)) for r in own]
        slopes = [t.value for t in back(tuple(known))]
        outputs = [r.value for r in results]
        leaves = {a.value for a in args if isinstance(a, Tensor)} | {h.value for h in known}
        order = topological([*outputs, *slopes], leaves)
        read = _read(order, {h.value for h in known}, leaves)
        return cls(outputs, dict(zip(moving, slopes, strict=True)), order, read)

    def at(self, places: str) -> list[Definition]:
        """The definitions of these places."""
        return [self.order[int(p.partition("@")[0])] for p in places.split()]

    def apart(self, kept: Sequence[Definition]) -> list[Definition]:
        """Those that are no results: what the forward gives besides them."""
        return [k for k in kept if k not in self.outputs]

    def backward(self, kept: Mapping[Definition, Value]) -> list[Value]:
        """The adjoints, which read what was kept."""
        return redirect(list(self.adjoints.values()), kept)

    def chosen(self, target: Target) -> str:
        """The places of what is kept: with what saves the most left out, until nothing does."""
        kept = [d for d in self.read if not any(isinstance(e, Dim) for e in d.shape[1:])]
        least = self._price(kept, target)
        for value in sorted(kept, key=lambda d: -size_bytes(_like(d))):
            fewer = [k for k in kept if k is not value]
            price = self._price(fewer, target)
            if price <= least:
                kept, least = fewer, price
        return " ".join([self._told(k) for k in kept])

    def _told(self, value: Definition) -> str:
        end = f"@{self.outputs.index(value)}" if value in self.outputs else ""
        return f"{self.order.index(value)}{end}"

    def _price(self, kept: Sequence[Definition], target: Target) -> float:
        """Nanoseconds of both programs."""
        forward = [*self.outputs, *self.apart(kept)]
        backward = self.backward({k: _like(k) for k in kept})
        return _priced(forward, target) + _priced(backward, target)


def _priced(values: Sequence[Value], target: Target) -> float:
    grouping = group(Graph(tuple([(_like(v), v) for v in values])), target)
    return sum(grouping.price(g).ns for g in grouping.groups.values())


def _like(value: Value) -> Variable:
    return Variable(value.name, value.shape, value.dtype)


def _read(order: Sequence[Definition], heads: set[Value], leaves: set[Value]) -> list[Definition]:
    """What definitions that depend on heads read of those that do not; of a view, its source."""
    moved = set(heads)
    read: dict[Definition, None] = {}
    for definition in order:
        if moved.isdisjoint(definition.sources):
            continue
        moved.add(definition)
        stack = [s for s in definition.sources if s not in moved]
        while stack:
            source = stack.pop()
            if not isinstance(source, Definition) or source in leaves:
                continue
            if isinstance(source.form, Map) and is_view(source.body):
                stack += source.sources
            else:
                read[source] = None
    return list(read)


def results_of(places: str) -> list[int | None]:
    """Of each value that is kept the number of the result that it is; None: it is none."""
    ends = [p.partition("@")[2] for p in places.split()]
    return [int(end) if end else None for end in ends]


class Residuals:
    """The programs of an operator whose backward reads what its forward kept."""

    def __init__(self, own: Programs, options: Options | None) -> None:
        self._own, self._options = own, options
        function = own.function
        self._count = function.signature.outputs
        plain = Signature((*function.signature.plain, *_MORE), self._count)
        forward = Derived(f"{function.name}_kept", plain, self._forward)
        self.forward = Programs(forward, {}, options, lambda args: (*own.dims(args[:-2]), {}, {}))
        self._backwards: dict[Any, Programs] = {}
        self._chosen: dict[Any, str] = {}

    @property
    def traces(self) -> int:
        """How often a program was made."""
        backwards = [p.jit.traces for p in self._backwards.values()]
        return self.forward.jit.traces + sum(backwards)

    def chosen(self, args: Sequence[Any], wanted: int) -> str:
        """What is kept of a call, told by places; nothing where no value pays."""
        key = (wanted, *_shapes(args, {}))
        known = self._chosen.get(key)
        if known is None:
            opened = self._own.opened(args)
            whole = (wanted, *_shapes(args, opened))  # one for all sizes of an extent
            if whole not in self._chosen:
                self._chosen[whole] = self._choose(args, opened, wanted)
            known = self._chosen[key] = self._chosen[whole]
        return known

    def run(self, args: Sequence[Any], wanted: int, chosen: str) -> tuple[Any, tuple[Any, ...]]:
        """The results, and what is kept."""
        made = self.forward(*args, wanted, chosen)
        made = (made,) if isinstance(made, torch.Tensor) else made
        extra = iter(made[self._count :])
        kept = [next(extra) if n is None else made[n] for n in results_of(chosen)]
        return made[0] if self._count == 1 else made[: self._count], tuple(kept)

    def backward(
        self, heads: Mapping[int, Any], args: Any, kept: Any, wanted: int, chosen: str
    ) -> tuple[Any, ...]:
        """The adjoints of the arguments of `wanted`, in order; `heads` by numbers of results."""
        key = (tuple(heads), chosen)
        programs = self._backwards.get(key)
        if programs is None:
            programs = self._backwards.setdefault(key, self._programs(list(heads), chosen))
        made = programs(*heads.values(), *args, *kept, wanted, chosen)
        return (made,) if isinstance(made, torch.Tensor) else made

    def _forward(self, *args: Any) -> Tensors:
        joint = Joint.of(self._own.function, args[:-2], args[-2], ())
        extra = joint.apart(joint.at(args[-1]))
        return tuple([Tensor(v) for v in (*joint.outputs, *extra)])

    def _programs(self, floats: Sequence[int], chosen: str) -> Programs:
        """Programs of the backward for heads of these results."""
        own, places = self._own, results_of(chosen)
        first = len(floats)
        last = first + len(own.function.signature.parameters)
        named = [Parameter(f"head{n}_", MAYBE) for n in floats]
        held = [Parameter(f"kept{n}_", MAYBE) for n in range(len(places))]
        parameters = (*named, *own.function.signature.plain, *held, *_MORE)

        def call(*args: Any) -> Tensors:
            joint = Joint.of(own.function, args[first:last], args[-2], args[:first])
            pairs = zip(joint.at(args[-1]), args[last:-2], strict=True)
            return tuple([Tensor(v) for v in joint.backward({k: t.value for k, t in pairs})])

        def dims(args: Sequence[Any]) -> Dims:
            given = args[first:last]
            leads = dict(enumerate(self.forward.leads((*given, *args[-2:]))))
            extra = itertools.count(self._count)
            kept = [leads.get(next(extra) if n is None else n, {}) for n in places]
            return (*[leads.get(n, {}) for n in floats], *own.dims(given), *kept, {}, {})

        name = f"{own.function.name}_back"
        return Programs(Derived(name, Signature(parameters), call), {}, self._options, dims)

    def _choose(self, args: Sequence[Any], opened: Mapping[int, Axes], wanted: int) -> str:
        """Of a function that does more than compute tensors from tensors nothing is kept."""
        options = self._options or Options.from_environment()
        trace = Trace()
        try:
            with tracing(trace):
                joint = Joint.of(self._own.function, _fresh(trace, args, opened), wanted, ())
            parts = trace.recording.root.parts
            plain = all(isinstance(p, Segment) for p in parts) and not trace.assigned
            if not plain or trace.observed:
                return NOTHING
            return joint.chosen(chosen_target(options.target, options.machine))
        except PullbackError:  # the program that has none of it says so
            return NOTHING


def _shapes(args: Sequence[Any], opened: Mapping[int, Axes]) -> list[Any]:
    """Types and shapes, with extents for open axes; static arguments."""
    return [
        (a.dtype, _shape(a, opened.get(n, {}))) if isinstance(a, torch.Tensor) else static(a)
        for n, a in enumerate(args)
    ]


def _shape(tensor: torch.Tensor, axes: Axes) -> tuple[Extent, ...]:
    return tuple([axes.get(n, size) for n, size in enumerate(tensor.shape)])


def _fresh(trace: Trace, args: Sequence[Any], opened: Mapping[int, Axes]) -> list[Any]:
    """Arguments that are variables of a trace."""
    whole = list(args)
    for n, a in enumerate(args):
        if isinstance(a, torch.Tensor):
            shape = _shape(a, opened.get(n, {}))
            whole[n] = Tensor(trace.fresh("argument", shape, kind_of(a)))
    return whole
