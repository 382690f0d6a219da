"""Index-map inversion against brute force: every fibre, exactly, for random quasi-affine maps."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from grad_support import S, T, evaluate, fn, new_definitions, var, work
from pullback.grad.gather import BOUND
from pullback.grad.invert import Empty, Unsolvable, invert
from pullback.grad.render import rendered
from pullback.grad.reverse import gradients
from pullback.grad.system import Form, System, variable
from pullback.ir import expr as E
from pullback.ir.expr import Axis
from pullback.ir.graph import Variable

Index = tuple[Any, ...]


def linear(parts: Index, axes: list[S]) -> S:
    """``sum of c * axis + constant`` then ``// d`` or ``% d``."""
    coefficients, offset, operation, divisor = parts
    whole = S(E.index(offset))
    for c, axis in zip(coefficients, axes, strict=False):
        whole = whole + axis * c if c else whole
    if operation == "/":
        return whole // divisor
    return whole % divisor if operation == "%" else whole


def number(parts: Index, point: tuple[int, ...]) -> int:
    coefficients, offset, operation, divisor = parts
    whole = offset + sum(c * p for c, p in zip(coefficients, point, strict=False))
    if operation == "/":
        return whole // divisor
    return whole % divisor if operation == "%" else whole


EXTENTS = st.lists(st.integers(1, 5), min_size=1, max_size=3)
PART = st.tuples(
    st.tuples(*[st.sampled_from([0, 1, -1, 2, 3, -2, 4, 6])] * 3),
    st.integers(-4, 8),
    st.sampled_from(["", "", "/", "%"]),
    st.integers(1, 4),
)
MAPS = st.tuples(EXTENTS, st.lists(PART, min_size=1, max_size=2))
CONFIG = settings(
    max_examples=120,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.filter_too_much],
)


def shape_of(extents: list[int], parts: list[Index]) -> tuple[int, ...]:
    """The largest coordinates that the map reaches, so that most points land inside."""
    points = list(product(*map(range, extents)))
    return tuple(max(1, max(number(p, v) for v in points) + 1) for p in parts)


def fibres(extents: list[int], parts: list[Index]) -> dict[tuple[int, ...], set[Any]]:
    found: dict[tuple[int, ...], set[Any]] = {}
    for point in product(*map(range, extents)):
        x = tuple(number(p, point) for p in parts)
        if all(c >= 0 for c in x):
            found.setdefault(x, set()).add(point)
    return found


@CONFIG
@given(MAPS)
def test_fibres_are_exact(case: tuple[list[int], list[Index]]) -> None:
    extents, parts = case
    shape = shape_of(extents, parts)
    axes = [S(Axis(n, e)) for n, e in enumerate(extents)]
    system = System(shape, extents)
    for parameter, part in zip(system.parameters, parts, strict=True):
        form = system.form(linear(part, axes).e)
        assert form is not None
        system.equations.append(form.minus(variable(parameter)))
    wanted = fibres(extents, parts)
    try:
        inverse = rendered(invert(system), shape, lambda e: e)
    except Unsolvable:
        return
    except Empty:
        assert not any(all(c < n for c, n in zip(x, shape, strict=True)) for x in wanted)
        return
    whole = shape + tuple(int(str(e)) for e in inverse.over)
    # The coordinates of the point, -1 where a guard fails, over every element and iteration.
    solved = []
    for n in range(len(extents)):
        body = inverse.axes[n]
        for guard in (*inverse.guards, *inverse.stepped(shape)):
            body = E.If(guard, body, E.index(-1))
        solved.append(fn(f"s{n}", whole, lambda *_, body=body: S(body)))
    arrays = evaluate(solved, {})
    found: dict[tuple[int, ...], list[Any]] = {}
    for place in np.ndindex(*whole):
        point = tuple(int(a[place]) for a in arrays)
        if min(point) >= 0:
            found.setdefault(place[: len(shape)], []).append(point)
    for x in product(*map(range, shape)):
        points = found.get(x, [])
        assert len(points) == len(set(points))
        assert set(points) == wanted.get(x, set())


@CONFIG
@example(([1, 5, 1], [((4, 6, 6), 2, "%", 4), ((4, 6, 6), 2, "%", 4)]), 1)
@given(MAPS, st.integers(0, 1))
def test_adjoints_of_random_reads(case: tuple[list[int], list[Index]], reduced: int) -> None:
    extents, parts = case
    shape = shape_of(extents, parts)
    points = list(product(*map(range, extents)))
    inside = all(number(p, v) >= 0 for p in parts for v in points)
    x = var("x", *shape)
    split = len(extents) - min(reduced, len(extents) - 1)

    def body(*axes: S) -> S:
        index = [linear(p, list(axes)) for p in parts]
        valid = index[0] >= 0
        for i in index[1:]:
            valid = valid & (i >= 0)
        read = T(x)[tuple(index)]
        return read if inside else S(E.If(valid.e, read.e, E.const(0, x.dtype)))

    y = fn("y", extents[:split], body, extents[split:])
    head = Variable("head", y.shape, y.dtype)
    (dx,) = gradients(y, [x], head)
    u = np.random.default_rng(1).normal(size=extents[:split])
    (found,) = evaluate([dx], {x: np.zeros(shape), head: u})
    expected = np.zeros(shape)
    for point in points:
        place = tuple(number(p, point) for p in parts)
        if min(place) >= 0:
            expected[place] += u[point[:split]]
    assert np.allclose(found, expected)
    box = int(np.prod(extents)) + int(np.prod(shape))
    pieces = len(new_definitions([dx], y))
    assert work([dx], y) <= (BOUND + pieces) * box


def test_unit_coefficients_prefer_the_long_axis() -> None:
    system = System((10,), (8, 3))
    form = system.form(E.Add(Axis(0, 8), Axis(1, 3)))
    assert form is not None
    system.equations.append(form.minus(variable(system.parameters[0])))
    assert [loop.extent for loop in invert(system).loops] == [3]


@pytest.mark.parametrize(
    ("form", "divisor", "sign"), [(Form(((0, 2),), 3), 4, 1), (Form(((0, 5),), -7), 3, -1)]
)
def test_guards_lose_their_floors(form: Form, divisor: int, sign: int) -> None:
    system = System((20,), ())
    floor = system.floor(form, divisor)
    (v,) = floor.atoms
    guard = Form(((v, sign),), 2 * -sign)
    plain = system.unfloored(guard)
    assert v not in plain.atoms
    for x in range(20):
        quotient = (form.of(0) * x + form.const) // divisor
        holds = plain.of(0) * x + plain.const >= 0
        assert holds == (sign * quotient - 2 * sign >= 0)
