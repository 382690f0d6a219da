"""Calls of the host as values: a function of arrays that a program runs between its launches.

    y, z = f(a, b)      f: NumPy's arrays -> NumPy's arrays, declared with what it gives

What `f` is given is computed before, what it gives is read after: no definition knows of it. It
stands in loops and branches as anything else does, and is called once for many samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pullback.errors import InvalidIR, Origin
from pullback.ir.dtype import DType
from pullback.ir.expr import Expr, Extent
from pullback.ir.graph import Definition, Value, Variable, identity
from pullback.ir.program import HostCall
from pullback.simplify.graph import forwarded
from pullback.tensor.record.lift import Lift
from pullback.tensor.record.recording import Segment
from pullback.tensor.record.replay import Form, Replay
from pullback.tensor.record.trace import Trace

Kind = tuple[tuple[Extent, ...], DType]
Variables = tuple[Variable, ...]


@dataclass(frozen=True, slots=True)
class HostFunction:
    """A function of the host: pure, over any leading axes as a batch.

    `results`: shape and type of each result, from those of the inputs. `lenient`: the same, with
    NaN where `function` raises.
    """

    name: str
    library: str
    function: Callable[..., Any]
    results: Callable[[Sequence[Kind]], Sequence[Kind]]
    lenient: Callable[..., Any]


class HostForm(Form):
    """A recorded call of the host. It has no block; derivatives are the rules of its users."""

    __slots__ = ("after", "host", "kind", "origin", "strict", "trace")

    def __init__(
        self,
        trace: Trace,
        host: HostFunction,
        inputs: Sequence[Value],
        *,
        strict: bool,
        origin: Origin | None = None,
    ) -> None:
        self.trace = trace
        self.host = host
        self.kind = host.name
        self.strict = strict
        self.origin = origin
        self.sources = tuple(inputs)
        kinds = host.results([(v.shape, v.dtype) for v in inputs])
        targets = tuple([trace.fresh(host.name, *kind, origin) for kind in kinds])
        sources = tuple(map(self._filled, inputs))
        for call in self.calls(sources, targets):
            trace.recording.add(call)
        self.after: Segment = trace.recording.segment
        self.results = [self._result(t) for t in targets]

    def calls(self, sources: Variables, targets: Variables) -> Sequence[HostCall]:
        """What the program runs."""
        host = self.host
        function = host.function if self.strict else host.lenient
        return [HostCall(host.name, host.library, function, sources, targets, self.origin)]

    def _filled(self, value: Value) -> Variable:
        """A variable with the content of `value`, before the call: its own, if it has one."""
        recording = self.trace.recording
        plain = value if isinstance(value, Variable) else forwarded(value)
        if isinstance(plain, Variable) and plain not in recording.changed:
            return plain
        if isinstance(value, Definition):
            recording.stamp(value)
        fresh = self.trace.fresh(value.name, value.shape, value.dtype, value.origin)
        recording.segment.assigns[fresh] = value
        return fresh

    def _result(self, variable: Variable) -> Definition:
        seen = Definition(variable.name, variable.shape, identity(variable), origin=self.origin)
        self.trace.recording.home[seen] = self.after
        self.trace.calls[seen] = self
        return seen

    def again(self, replay: Replay) -> None:
        """Where the block's own run has stored the results they are read, else it is called."""
        if replay.store and self.after.frame is replay.root:
            replay.memo.update({r: replay.from_store(r) for r in self.results})
            return
        given = replay.values(list(self.sources))
        form = type(self)(self.trace, self.host, given, strict=self.strict, origin=self.origin)
        replay.memo.update(zip(self.results, form.results, strict=True))

    def lift(self, lift: Lift) -> None:
        """One call for all samples; those that do not count raise nothing."""
        given = [lift.one(s) for s in self.sources]
        strict = self.strict and lift.only is None
        form = type(self)(self.trace, self.host, given, strict=strict, origin=self.origin)
        for old, new in zip(self.results, form.results, strict=True):
            lift.tell(old, new, wide=True)

    @property
    def deps(self) -> list[Value]:
        return []

    def pull(self, heads: Mapping[int, Value]) -> list[Value | None]:
        return []

    def push(self, tangents: Sequence[Value], numbers: Sequence[int]) -> list[Value]:
        raise InvalidIR(f"{self.kind} has no tangent of its own")

    def kept(self, value: Definition) -> Definition:
        raise InvalidIR(f"{self.kind} has no block")

    def stored(self, value: Definition, place: Expr | None) -> Definition:
        raise InvalidIR(f"{self.kind} has no block")

    def at(self, kept: Value, place: Expr | None) -> Value:
        raise InvalidIR(f"{self.kind} has no block")
