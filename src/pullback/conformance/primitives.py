"""The 27 primitives on every element type: scalar functions, forms of definitions, control."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pullback.conformance.case import KINDS, Array, Case, Make, Sample, drawn, special
from pullback.ir import expr as E
from pullback.ir.dtype import DType, bool_
from pullback.ir.expr import Axis, Dim, Expr
from pullback.ir.graph import ANY, SUM, Accumulate, Definition, Form, Map, Reduce, Scan, read
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.forms.control import cond, loop
from pullback.tensor.run.host import Feeder, Receiver

COUNT = 83  # elements: no multiple of any number of lanes
FLOATS = tuple(k for k in KINDS if k.is_float)
INTEGERS = tuple(k for k in KINDS if k.is_integer)
NUMERIC = INTEGERS + FLOATS
LOGIC = (bool_, *INTEGERS)
STEPS = 5


def made(body: Expr, *shape: int | Dim, form: Form = Map()) -> Tensor:
    """A definition as it stands: nothing is promoted or written otherwise."""
    return Tensor(Definition("y", shape, body, form))


def scalar(*operands: Callable[[DType], Array]) -> Callable[[Callable[..., Expr]], Make]:
    """An expression over equal places of arrays."""

    def wrap(build: Callable[..., Expr]) -> Make:
        def function(*given: Any) -> Tensor:
            place = Axis(0, COUNT)
            return made(build(*(read(x.value, place) for x in given)), COUNT)

        return lambda kind: Sample(function, (tuple(o(kind) for o in operands),))

    return wrap


def first(kind: DType) -> Array:
    return special(kind, COUNT)


def second(kind: DType) -> Array:
    return special(kind, COUNT, seed=8)


def third(kind: DType) -> Array:
    return special(bool_, COUNT, seed=9)


def of_one(build: Callable[[Expr], Expr]) -> Make:
    return scalar(first)(build)


def of_two(build: Callable[[Expr, Expr], Expr]) -> Make:
    return scalar(first, second)(build)


def casts(kind: DType) -> Sample:
    """To every type."""

    def function(x: Any) -> list[Tensor]:
        place = read(x.value, Axis(0, COUNT))
        return [made(E.Cast(place, to), COUNT) for to in KINDS]

    return Sample(function, ((special(kind, COUNT),),))


def constants(kind: DType) -> Sample:
    """Three literals, chosen by the place."""
    low, high = (-1.5, 0.1) if kind.is_float else kind.range()
    values = [E.const(v, kind) for v in (low, high, 1)]

    def function() -> Tensor:
        place = Axis(0, 7)
        rest = E.If(E.Equal(place, E.index(4)), values[1], values[2])
        return made(E.If(E.Less(place, E.index(3)), values[0], rest), 7)

    return Sample(function, ((),))


def axes(kind: DType) -> Sample:
    """``y[i, j] = 5 i + j``"""

    def function() -> Tensor:
        place = E.Add(E.Mul(Axis(0, 7), E.index(5)), Axis(1, 5))
        return made(E.Cast(place, kind), 7, 5)

    return Sample(function, ((),))


def sizes(kind: DType) -> Sample:
    """An extent that is known at each call, as a number."""
    n = Dim(f"n_{kind}", 1, COUNT)

    def function(x: Any) -> Tensor:
        return made(E.Cast(E.Size(x.shape[0]), kind), 3)

    return Sample(function, ((drawn(kind, 13),),), [(n,)])


def takes(kind: DType) -> Sample:
    """``y[i] = x[places[i]]``"""

    def function(x: Any, places: Any) -> Tensor:
        return made(read(x.value, read(places.value, Axis(0, COUNT))), COUNT)

    places = np.random.default_rng(3).integers(0, 11, COUNT)
    return Sample(function, ((drawn(kind, 11), places),))


def combined(kind: DType) -> Any:
    return ANY if kind.is_bool else SUM


def reductions(kind: DType) -> Sample:
    """``y[i] = sum[k] x[i, k]``; of truth, whether any is."""

    def function(x: Any) -> Tensor:
        form = Reduce(combined(kind), (COUNT,))
        return made(read(x.value, Axis(0, 5), Axis(1, COUNT)), 5, form=form)

    return Sample(function, ((drawn(kind, 5, COUNT),),))


def scans(kind: DType) -> Sample:
    """``y[i, t] = sum[s <= t] x[i, s]``"""

    def function(x: Any) -> Tensor:
        form = Scan(combined(kind), 1)
        return made(read(x.value, Axis(0, 5), Axis(1, COUNT)), 5, COUNT, form=form)

    return Sample(function, ((drawn(kind, 5, COUNT),),))


def accumulations(kind: DType) -> Sample:
    """``y[places[i]] += x[i]``"""

    def function(x: Any, places: Any) -> Tensor:
        here = Axis(0, COUNT)
        form = Accumulate(combined(kind), (COUNT,), (read(places.value, here),))
        return made(read(x.value, here), 11, form=form)

    places = np.random.default_rng(3).integers(0, 11, COUNT)
    return Sample(function, ((drawn(kind, COUNT), places),))


def stepped(kind: DType) -> Callable[[Any, Any], Any]:
    return lambda h, x: h ^ x if kind.is_bool else h + x


def loops(kind: DType) -> Sample:
    """``h = h + x`` five times, as a loop of the program."""
    step = stepped(kind)
    return Sample(lambda x: loop(STEPS, lambda i, h: step(h, x), x), ((drawn(kind, COUNT),),))


def branches(kind: DType) -> Sample:
    """One of two, by a number of the program: each is taken once."""
    step = stepped(kind)

    def function(x: Any, flag: Any) -> list[Any]:
        return [cond(f, lambda x: step(x, x), lambda x: x, x) for f in (flag > 0, flag < 0)]

    return Sample(function, ((drawn(kind, COUNT), np.asarray(1.0)),))


def feeds(kind: DType) -> Sample:
    """Batches of the host, added up."""
    step, batches = stepped(kind), [drawn(kind, 7, seed=n) for n in range(STEPS)]
    rest = iter(batches)

    def function(x: Any) -> Any:
        def body(i: Any, h: Any) -> Any:
            return step(h, Feeder(lambda: next(rest), shape=(7,), dtype=kind))

        return loop(STEPS, body, x)

    return Sample(function, ((drawn(kind, 7),),))


def receives(kind: DType) -> Sample:
    """What a loop makes, told to the host at every second step."""
    step, sample = stepped(kind), Sample(lambda x: x, ((drawn(kind, 7),),))

    def function(x: Any) -> Any:
        def body(i: Any, h: Any) -> Any:
            h = step(h, x)
            Receiver(lambda a: sample.received.append(np.array(a)), [h], every=2)
            return h

        return loop(STEPS, body, x)

    return Sample(function, sample.calls, None, sample.received)


def row(
    name: str, make: Make, kinds: tuple[DType, ...], ulps: float = 0.0, whole: bool = False
) -> Case:
    return Case(name, make, kinds, ulps, whole)


# Sums are off by as many units as their order has it; exp and its kin by what accuracy.md allows.
PRIMITIVES = (
    row("Const", constants, KINDS), row("Axis", axes, KINDS), row("Size", sizes, KINDS),
    row("Take", takes, KINDS), row("Cast", casts, KINDS),
    row("If", scalar(third, first, second)(E.If), KINDS),
    row("Add", of_two(E.Add), NUMERIC), row("Mul", of_two(E.Mul), NUMERIC),
    row("Div", of_two(E.Div), FLOATS), row("FloorDiv", of_two(E.FloorDiv), NUMERIC),
    row("Mod", of_two(E.Mod), NUMERIC), row("Less", of_two(E.Less), KINDS),
    row("Equal", of_two(E.Equal), KINDS), row("And", of_two(E.And), LOGIC),
    row("Or", of_two(E.Or), LOGIC), row("Xor", of_two(E.Xor), LOGIC),
    row("Exp", of_one(E.Exp), FLOATS, 2.0), row("Log", of_one(E.Log), FLOATS, 2.0),
    row("Sqrt", of_one(E.Sqrt), FLOATS, 1.0), row("Sin", of_one(E.Sin), FLOATS, 2.0),
    row("Reduce", reductions, KINDS, 8.0, True), row("Scan", scans, KINDS, 8.0, True),
    row("Accumulate", accumulations, KINDS, 8.0, True),
    row("Loop", loops, KINDS), row("Branch", branches, KINDS), row("Feed", feeds, KINDS),
    row("Receive", receives, KINDS),
)  # fmt: skip
