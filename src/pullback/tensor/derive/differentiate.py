"""`pb.differentiate`: adjoints of all tensors on the way, and rules of one's own in between.

r = differentiate(loss, [w, b]);  dw, db = r;  r.adjoints[y];  r.adjoint_summands[y][loss]
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from pullback.errors import GradientError, UnrelatedError
from pullback.grad.pins import Pins
from pullback.grad.reverse import Reverse, zeros
from pullback.grad.rules import Rules, active, below, ordered, own_rule
from pullback.ir import expr as E
from pullback.ir.expr import Extent
from pullback.ir.graph import Definition, Rule, Value
from pullback.tensor.derive.autograd import differentiable, twins_of
from pullback.tensor.face.tensor import Tensor, from_array
from pullback.tensor.record.lift import Lift, like
from pullback.tensor.record.trace import Handle
from pullback.tensor.values import elementwise as W
from pullback.tensor.values.elementwise import show

T = TypeVar("T")
Override = Mapping[Tensor, tuple[Sequence[Tensor], Callable[..., Any]]]
Difference = Callable[[Tensor, Tensor, Tensor], Any]


def differentiate(
    output: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor] | None = None,
    head: Tensor | Sequence[Tensor] | None = None,
    override: Override | None = None,
    fdiff: Difference | None = None,
) -> Differentiated:
    """The adjoints of `inputs`, each ``prefix + input.shape``; without inputs of every tensor.

    `head` is ``prefix + output.shape``; None is the identity, so that the prefix of a non-scalar
    is its own shape (the full Jacobian). ``override={t: (deps, f)}`` has ``f(t, deps, head)`` give
    the adjoints of `deps`, which need not be immediate; ``fdiff(out, inp, head)`` gives that of
    each tensor by each that it reads. Both see heads without the prefix. Where they say nothing,
    a rule given by hand (`pb.custom_vjp`) holds, and else the derivative is derived. The choice is
    logged to "pullback.grad".
    Raises: GradientError for integers and for heads that do not fit.

    Example:
        >>> x = pb.tensor(3.0)
        >>> pb.differentiate(x * x, x)[0]
        Tensor(6., dtype=float32)
    """
    outputs = _values(output)
    wanted = [] if inputs is None else _values(inputs)
    differentiable([*outputs, *wanted])
    rules = _rules(override, wanted, fdiff, outputs)
    heads = [] if head is None else _values(head)
    if heads:
        state, batch = _with_heads(outputs, wanted, heads, rules)
    else:
        state, batch = _with_identity(outputs, wanted, rules)
    return Differentiated(wanted, state, batch)


class Differentiated(Sequence[Tensor]):
    """The adjoints of the inputs, in order, and of everything on the way."""

    def __init__(self, inputs: Sequence[Value], state: Reverse, batch: Lift | None) -> None:
        self._state = state
        self._batch = batch
        self._inputs = inputs
        twins = twins_of(inputs)
        self.result: list[Tensor] = [self._of(v, twins.get(v)) for v in inputs]
        self._pick = None if state.pins is None else state.pins.pick
        known = dict.fromkeys([*state.summands, *state.inputs])
        on_way = [v for v in known if v is not self._pick]
        self.adjoints: Mapping[Tensor, Tensor] = _Table(on_way, self._adjoint)
        self.adjoint_summands: Mapping[Tensor, Mapping[Tensor, Tensor]] = _Table(
            on_way, self._summands
        )

    def _of(self, value: Value, twin: Definition | None) -> Tensor:
        """The adjoint of an input; one that is a result is also met as the definition of it."""
        adjoint = self._state.gradient(value)
        if twin is not None:
            adjoint = W.elementwise("add", E.Add, [adjoint, self._state.gradient(twin)])
        return self._whole(adjoint)

    def _whole(self, value: Value) -> Tensor:
        return Tensor(value if self._batch is None else self._batch([value])[0])

    def _adjoint(self, value: Value) -> Tensor:
        return self._whole(self._state.gradient(value))

    def _summands(self, value: Value) -> Mapping[Tensor, Tensor]:
        own = self._state.summands.get(value, {})

        def summand(consumer: Value) -> Tensor:
            share = self._state.summed(value, own[consumer])
            return self._whole(zeros(value) if share is None else share)

        return _Table([c for c in own if c is not None and c is not self._pick], summand)

    def _asked(self) -> list[Tensor]:
        if not self._inputs:
            raise GradientError(
                "no inputs were named, so there is no list of their adjoints",
                help="name them, or look into .adjoints",
                code="E212",
            )
        return self.result

    def __len__(self) -> int:
        return len(self._asked())

    def __getitem__(self, place: Any) -> Any:
        return self._asked()[place]

    def __iter__(self) -> Iterator[Tensor]:
        return iter(self._asked())


class _Table(Mapping[Tensor, T]):
    """What belongs to tensors, made when it is looked at; keys are equal by what they stand for."""

    def __init__(self, values: Sequence[Value], make: Callable[[Value], T]) -> None:
        self._make = make
        self._known: dict[Value, T | None] = dict.fromkeys(values)

    def __getitem__(self, key: Tensor) -> T:
        value = key.value
        if value not in self._known:
            raise UnrelatedError(f"{value!r} is not on the way from the output to an input")
        entry = self._known[value]
        if entry is None:
            entry = self._known[value] = self._make(value)
        return entry

    def __iter__(self) -> Iterator[Tensor]:
        return (Tensor(v) for v in self._known)

    def __len__(self) -> int:
        return len(self._known)


def _values(given: Tensor | Sequence[Tensor]) -> list[Value]:
    listed = [given] if isinstance(given, Handle | np.ndarray) else given
    wrong = [h for h in listed if not isinstance(h, Handle | np.ndarray)]
    if wrong:
        raise GradientError(f"{wrong[0]!r} is no tensor", code="E213")
    return [from_array(h).value for h in listed]


# --- heads ---------------------------------------------------------------------------------------


def _with_heads(
    outputs: Sequence[Value], wanted: Sequence[Value], heads: Sequence[Value], rules: Rules
) -> tuple[Reverse, Lift | None]:
    """The pass for heads that are given; its prefix is put in front afterwards."""
    prefix = _prefix(outputs, heads)
    if not prefix:
        return Reverse(outputs, _inputs(outputs, wanted, rules), heads, rules), None
    plain = [like(o) for o in outputs]
    state = Reverse(outputs, _inputs(outputs, wanted, rules), plain, rules)
    return state, Lift(prefix, dict(zip(plain, heads, strict=True)))


def _prefix(outputs: Sequence[Value], heads: Sequence[Value]) -> tuple[Extent, ...]:
    """The axes that all heads have before those of their outputs.

    Raises: GradientError where a head does not fit.
    """
    if len(heads) != len(outputs):
        raise GradientError(f"{len(heads)} heads for {len(outputs)} outputs", code="E206")
    prefixes: dict[tuple[Extent, ...], None] = {}
    for output, head in zip(outputs, heads, strict=True):
        count = len(head.shape) - len(output.shape)
        if count < 0 or head.shape[count:] != output.shape or head.dtype != output.dtype:
            raise GradientError(
                f"head is {head.dtype}{show(head.shape)}, its output"
                f" {output.dtype}{show(output.shape)}",
                help="a head ends with the shape of its output; what stands before is the prefix",
                code="E205",
            )
        prefixes[head.shape[:count]] = None
    if len(prefixes) > 1:
        raise GradientError("heads of different prefixes", code="E205")
    return next(iter(prefixes))


def _with_identity(
    outputs: Sequence[Value], wanted: Sequence[Value], rules: Rules
) -> tuple[Reverse, Lift | None]:
    """The pass for the identity: a gradient, or with pins the full Jacobian."""
    inputs = _inputs(outputs, wanted, rules)
    if all(o.shape == () for o in outputs):
        return Reverse(outputs, inputs, [None] * len(outputs), rules), None
    if len(outputs) > 1:
        raise GradientError(
            "the Jacobian of several tensors at once",
            help="give their heads, or ask for one after the other",
            code="E206",
        )
    pins = Pins(outputs[0])
    state = Reverse([pins.pick], inputs, [None], rules, pins)
    return state, Lift(outputs[0].shape, {}, pins.numbers())


def _inputs(outputs: Sequence[Value], wanted: Sequence[Value], rules: Rules) -> list[Value]:
    """The inputs and the definitions of those that are results; without inputs all floats."""
    if wanted:
        return [*wanted, *twins_of(wanted).values()]
    floats: dict[Value, None] = {}
    for step in ordered(outputs, rules):
        near = [step] if isinstance(step, Definition) else []
        sources = [s for s in below(step, rules) if not isinstance(s, Rule)]
        floats.update((v, None) for v in [*sources, *near] if v.dtype.is_float)
    return list(floats)


# --- rules ---------------------------------------------------------------------------------------


def _rules(
    override: Override | None,
    wanted: Sequence[Value],
    fdiff: Difference | None,
    outputs: Sequence[Value],
) -> Rules:
    """Overrides first, then rules given by hand, then `fdiff`."""
    table: dict[Value, Rule] = {}
    for tensor, (deps, function) in (override or {}).items():
        table[tensor.value] = _overridden(tensor, deps, function)

    def chosen(definition: Definition) -> Rule | None:
        return table.get(definition) or definition.rule

    if fdiff is None:
        return chosen if table else own_rule
    order = ordered(outputs, chosen)
    moving = active(order, _inputs(outputs, wanted, chosen), chosen)
    for step in order:
        if isinstance(step, Definition) and chosen(step) is None:
            near = tuple(s for s in step.sources if s in moving)
            table[step] = _by_pairs(step, near, fdiff)
    return chosen


def _overridden(tensor: Tensor, deps: Sequence[Tensor], function: Callable[..., Any]) -> Rule:
    def pull(heads: Sequence[Value]) -> Sequence[Value | None]:
        return _results(function(tensor, list(deps), Tensor(heads[0])))

    return Rule("override", (tensor.value,), tuple(d.value for d in deps), pull)


def _by_pairs(definition: Definition, deps: tuple[Value, ...], fdiff: Difference) -> Rule:
    def pull(heads: Sequence[Value]) -> Sequence[Value | None]:
        out, head = Tensor(definition), Tensor(heads[0])
        return _results([fdiff(out, Tensor(d), head) for d in deps])

    return Rule("fdiff", (definition,), deps, pull)


def _results(given: Any) -> list[Value | None]:
    """What a user's function gave: a tensor, or one (or None) for each dependency."""
    parts = [given] if isinstance(given, Handle) else list(given)
    return [None if p is None else p.value for p in parts]
