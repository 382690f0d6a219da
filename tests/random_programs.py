"""Random index maps and random programs, each a function of its number alone, and their checks."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np

from grad_support import S, T, call, evaluate, exp, log, sin, sqrt, where, work
from pullback.config import Options
from pullback.grad.forward import tangents
from pullback.grad.gather import BOUND
from pullback.grad.reverse import gradients
from pullback.ir import expr as E
from pullback.ir.dtype import float64, int64
from pullback.ir.expr import Axis
from pullback.ir.graph import (
    MAX,
    MIN,
    PROD,
    SUM,
    Accumulate,
    Definition,
    Form,
    Graph,
    Map,
    Reduce,
    Scan,
    Value,
    Variable,
    topological,
)
from pullback.ir.program import Compute, Program
from pullback.pipeline import compile_program

Array = np.ndarray[Any, Any]
Arrays = dict[Variable, Array]


SMALL = 40  # definitions; of larger programs only the first order is compiled


def number(value: int) -> S:
    return S(E.index(value))


# --- index maps ----------------------------------------------------------------------------------


class Indices:
    """Random quasi-affine index arithmetic over some axes."""

    def __init__(self, source: random.Random, extents: Sequence[int]) -> None:
        self.random = source
        self.axes = [S(Axis(n, e)) for n, e in enumerate(extents)]
        self.extents = extents

    def linear(self) -> S:
        whole = number(self.random.choice([0, 0, 0, 1, 2, -1, -3, 5]))
        for axis in self.axes:
            factor = self.random.choice([0, 0, 1, 1, 1, -1, 2, 3, -2, 4, 6])
            whole = whole + axis * factor if factor else whole
        return whole

    def flat(self) -> S:
        """Row-major: ``(i * 4 + j) * 3 + k``."""
        whole = number(0)
        for axis, extent in zip(self.axes, self.extents, strict=True):
            whole = whole * extent + axis
        return whole

    def index(self, depth: int = 2) -> S:
        turn = self.random.randrange(9)
        if turn < 3 or not depth:
            return self.random.choice(self.axes) if turn == 0 and self.axes else self.linear()
        if turn == 3:
            return self.flat()
        if turn == 4:
            return self.index(depth - 1) + self.index(depth - 1)
        inner = self.flat() if turn == 5 else self.index(depth - 1)
        divisor = self.random.randint(1, 5)
        return inner // divisor if self.random.random() < 0.5 else inner % divisor

    def condition(self) -> S:
        turn = self.random.randrange(4)
        a, b = self.linear(), number(self.random.randint(-2, 6))
        if turn == 0:
            return (self.index(1) % self.random.randint(2, 3)).eq(self.random.randint(0, 1))
        if turn == 1:
            return a.eq(b)
        return a < b if turn == 2 else (a >= b) & (self.linear() <= 6)


@dataclass(frozen=True)
class MapFound:
    """How the adjoint of a read was had, and its work over that of the read."""

    scatters: bool
    ratio: float


def check_map(seed: int) -> MapFound:
    """``y[i] = sum[k] (guard ? x[A(i, k)] : 0)``: the adjoint by brute force.

    Raises: AssertionError with the definitions.
    """
    source = random.Random(f"map {seed}")
    extents = [source.choice([1, 2, 3, 3, 4, 5, 6]) for _ in range(source.randint(1, 4))]
    if len(extents) <= 2 and source.random() < 0.5:
        extents[-1] = source.randint(16, 24)
    made = Indices(source, extents)
    index = [made.index() for _ in range(source.randint(1, 3))]
    guards = [made.condition() for _ in range(source.choice([0, 0, 0, 1, 2]))]
    values = [fn_over(extents, i) for i in index]
    places = [np.asarray(a) for a in evaluate(values, {})]
    shape = tuple(max(1, int(p.max()) + source.choice([1, 1, 0, 3])) for p in places)
    for i, extent, place in zip(index, shape, places, strict=True):
        guards += [i >= 0] if place.min() < 0 else []
        guards += [i < extent] if place.max() >= extent else []
    x = Variable("x", shape, float64)
    read = T(x)[tuple(index)]
    body = read
    for guard in guards:
        body = where(guard, body, 0.0)
    split = source.randint(1, len(extents))
    form: Form = Reduce(SUM, tuple(extents[split:])) if split < len(extents) else Map()
    y = Definition("y", tuple(extents[:split]), body.e, form)
    head = Variable("head", y.shape, float64)
    (dx,) = gradients(y, [x], head)
    u = np.random.default_rng(seed).normal(size=y.shape)
    (found,) = evaluate([dx], {x: np.zeros(shape), head: u})
    kept = np.ones(extents, bool)
    for guard in guards:
        kept &= np.asarray(evaluate([fn_over(extents, guard)], {})[0])
    wide = np.broadcast_to(u.reshape(u.shape + (1,) * (len(extents) - split)), extents)
    expected = np.zeros(shape)
    np.add.at(expected, tuple(p[kept] for p in places), wide[kept])
    text = "\n".join(f"{d.name}{d.shape} {d.form} {d.body}" for d in topological([dx]))
    assert np.allclose(found, expected), f"map {seed}: {y.body}\n{text}"
    done, box = work([dx], y), prod(extents) + prod(shape)
    adjoints = [d for d in topological([dx]) if d is not y]
    assert done <= (BOUND + len(adjoints)) * box, f"map {seed}: {done} for {box}\n{text}"
    return MapFound(any(isinstance(d.form, Accumulate) for d in adjoints), done / box)


def fn_over(extents: Sequence[int], value: S) -> Definition:
    return Definition("f", tuple(extents), value.e)


# --- programs ------------------------------------------------------------------------------------


class Maker:
    """One random program: a few definitions over a few inputs."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(f"program {seed}")
        self.seed = seed
        count = self.random.randint(1, 3)
        self.inputs = [Variable(f"x{n}", self.shape(), float64) for n in range(count)]
        self.tokens = Variable("tokens", (self.random.randint(1, 5),), int64)
        self.values: list[Value] = list(self.inputs)

    def shape(self, most: int = 4) -> tuple[int, ...]:
        rank = self.random.randint(1, most)
        return tuple(self.random.choice([1, 2, 3, 3, 4]) for _ in range(rank))

    def place(self, made: Indices, extent: int) -> S:
        """An index that lies inside an axis of `extent` elements."""
        turn = self.random.randrange(8)
        fitting = [a for a, e in zip(made.axes, made.extents, strict=True) if e <= extent]
        if turn < 4 and fitting:
            axis = self.random.choice(fitting)
            size = next(e for a, e in zip(made.axes, made.extents, strict=True) if a is axis)
            return (size - 1) - axis if turn == 0 else axis
        if turn == 4:
            e = E.maximum(made.linear().e, E.index(0))
            return S(E.minimum(e, E.index(extent - 1)))
        if turn == 5:
            at = made.index(1) % int(self.tokens.shape[0])
            return T(self.tokens)[at] % extent
        return made.index() % extent

    def read(self, made: Indices) -> S:
        value = self.random.choice(self.values)
        index = tuple(self.place(made, int(n)) for n in value.shape)
        return T(value)[index]

    def value(self, made: Indices, depth: int = 3) -> S:
        turn = self.random.randrange(14)
        if not depth or turn < 3:
            return self.read(made)
        a = self.value(made, depth - 1)
        if turn < 7:
            return self.unary(a)
        b = self.value(made, depth - 1)
        if turn < 9:
            return a + b
        if turn < 11:
            return a * b
        if turn == 11:
            return a / (b * b + 1.0)
        if turn == 12:
            condition = made.condition() if self.random.random() < 0.6 else a < b
            return where(condition, a, self.random.choice([0.0, 0.5]))
        return where(made.condition(), a, b) - b * 0.5

    def unary(self, a: S) -> S:
        makers: list[Callable[[S], S]] = [
            sin,
            lambda s: exp(sin(s)),
            lambda s: sqrt(s * s + 0.5),
            lambda s: log(s * s + 0.5),
            lambda s: call("tanh", s),
            lambda s: call("sigmoid", s),
            lambda s: call("relu", s),
            lambda s: s * self.random.choice([0.5, -1.0, 2.0]),
        ]
        return self.random.choice(makers)(a)

    def definition(self, name: str) -> Definition:
        shape = self.shape(3) if self.random.random() < 0.9 else ()
        turn = self.random.randrange(10)
        if turn < 4:
            return Definition(name, shape, self.value(Indices(self.random, shape)).e)
        if turn < 8:
            over = self.shape(4 - len(shape) if len(shape) < 3 else 1)
            combiner = self.random.choice([SUM, SUM, SUM, MAX, MIN, PROD])
            made = Indices(self.random, (*shape, *over))
            body = self.value(made)
            body = sin(body) if combiner is PROD else body
            if self.random.random() < 0.4:
                body = where(made.condition(), body, combiner.identity(float64).value)
                body = body if combiner in (SUM, PROD) else self.value(made)
            return Definition(name, shape, body.e, Reduce(combiner, over))
        if turn == 8 and shape:
            form = Scan(self.random.choice([SUM, PROD, MAX]), len(shape) - 1)
            return Definition(name, shape, sin(self.value(Indices(self.random, shape))).e, form)
        domain = self.shape(3)
        made = Indices(self.random, domain)
        at = tuple(self.place(made, n).e for n in shape)
        return Definition(name, shape, self.value(made).e, Accumulate(SUM, domain, at))

    def build(self) -> tuple[Definition, Arrays]:
        for n in range(self.random.randint(1, 4)):
            self.values.append(self.definition(f"d{n}"))
        output = self.values[-1]
        assert isinstance(output, Definition)
        rng = np.random.default_rng(self.seed)
        arrays: Arrays = {v: rng.normal(size=v.shape) for v in self.inputs}
        arrays[self.tokens] = rng.integers(0, 9, self.tokens.shape)
        return output, arrays


@dataclass
class Checked:
    """A program that passed on the interpreter, and what native code must give too."""

    seed: int
    wanted: list[Value]
    arrays: Arrays
    expected: list[Array] = field(default_factory=list)


def close(a: Any, b: Any, tolerance: float) -> bool:
    return bool(abs(a - b) <= tolerance * (1 + abs(a) + abs(b)))


def check_program(seed: int) -> Checked:
    """Forward, both modes, and second order, on the interpreter of definitions.

    Raises: AssertionError with the definitions.
    """
    output, arrays = Maker(seed).build()
    inputs = [v for v in arrays if v.dtype.is_float]
    rng = np.random.default_rng(seed + 1)
    head = Variable("head", output.shape, float64)
    along = [Variable(f"along{n}", v.shape, float64) for n, v in enumerate(inputs)]
    arrays |= {v: rng.normal(size=v.shape) for v in (head, *along)}
    text = "\n".join(f"{d.name}{d.shape} {d.form}\n  {d.body}" for d in topological([output]))
    found = gradients(output, inputs, head)
    (pushed,) = tangents([output], inputs, along)
    wanted: list[Value] = [output, pushed, *found]
    _, moved, *adjoints = evaluate(wanted, arrays)
    assert all(np.isfinite(a).all() for a in adjoints), f"program {seed} not finite\n{text}"
    slope = float(np.sum(moved * arrays[head]))
    back = sum(float(np.sum(a * arrays[v])) for a, v in zip(adjoints, along, strict=True))
    scale = sum(float(np.sum(abs(a * arrays[v]))) for a, v in zip(adjoints, along, strict=True))
    assert abs(slope - back) <= 1e-9 * (1 + scale), f"program {seed}: {slope} {back}\n{text}"
    guesses = [difference(output, head, inputs, along, arrays, step) for step in (1e-5, 3e-6)]
    smooth = close(*guesses, 1e-5)
    assert not smooth or close(slope, guesses[0], 1e-4), (
        f"program {seed}: {guesses} {slope}\n{text}"
    )
    second = tangents(found, inputs, along)
    other = [Variable(f"other{n}", v.shape, float64) for n, v in enumerate(inputs)]
    arrays |= {v: rng.normal(size=v.shape) for v in other}
    twice = [g for f, o in zip(found, other, strict=True) for g in gradients(f, inputs, o)]
    wanted += [*second, *twice]
    expected = evaluate(wanted, arrays)
    count = len(inputs)
    left = expected[-count - len(twice) : len(expected) - len(twice)]
    right = expected[len(expected) - len(twice) :]
    one = sum(float(np.sum(a * arrays[o])) for a, o in zip(left, other, strict=True))
    two = [float(np.sum(a * arrays[along[n % count]])) for n, a in enumerate(right)]
    if len(topological(wanted)) > SMALL:
        wanted, expected = wanted[: 2 + count], expected[: 2 + count]
    scale = sum(map(abs, two))
    assert abs(one - sum(two)) <= 1e-8 * (1 + scale), f"program {seed} 2nd: {one} {two}\n{text}"
    return Checked(seed, wanted, arrays, expected)


def difference(
    output: Value,
    head: Variable,
    inputs: Sequence[Variable],
    along: Sequence[Variable],
    arrays: Arrays,
    step: float,
) -> float:
    """``<h, (f(x + s v) - f(x - s v)) / 2 s>``"""
    ends = []
    for s in (step, -step):
        moved = {x: arrays[x] + s * arrays[v] for x, v in zip(inputs, along, strict=True)}
        ends.append(evaluate([output], {**arrays, **moved})[0])
    return float(np.sum((ends[0] - ends[1]) * arrays[head])) / (2 * step)


def check_native(programs: Sequence[Checked]) -> list[str]:
    """What native code gives otherwise, all programs compiled as one."""
    wanted = [v for p in programs for v in p.wanted]
    results = [Variable(f"r{n}", v.shape, v.dtype) for n, v in enumerate(wanted)]
    graph = Graph(tuple(zip(results, wanted, strict=True)))
    env: Arrays = {}
    for p in programs:
        env |= p.arrays
    bindings = {v: np.array(env[v], order="C") for v in graph.inputs}
    bindings |= {v: np.zeros(v.shape) for v in results}
    state = (*graph.inputs, *results)
    compile_program(Program((Compute(graph),), state), Options(cache=None)).run(bindings)
    wrong = []
    arrays = iter([bindings[v] for v in results])
    for p in programs:
        for n, want in enumerate(p.expected):
            got = next(arrays)
            scale = 1 + float(np.max(abs(want), initial=0))
            if not np.allclose(got, want, rtol=1e-9, atol=1e-9 * scale):
                wrong.append(f"program {p.seed}: value {n} {p.wanted[n]} is {got}, not {want}")
    return wrong
