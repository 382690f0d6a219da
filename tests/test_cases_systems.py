"""Integer systems as small boxes: what is enumerated is every solution, each of them once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import pytest

from grad_support import ONE, S, T, evaluate, fn, form, var, where
from pullback.grad.invert import Condition, Empty, Unsolvable, invert
from pullback.grad.reverse import gradients
from pullback.grad.system import Form, System, constant, variable
from pullback.ir.expr import upper
from pullback.ir.graph import Graph, Variable
from pullback.schedule.count import cost
from pullback.simplify.graph import simplify_graph

Array = np.ndarray[Any, Any]
Range = tuple[int, int]  # the end is not in it


@dataclass(frozen=True)
class Box:
    """Iterations of the loops, and the points (a row each) that they visit."""

    iterations: int
    points: Array


def box_of(
    build: Callable[..., None], ranges: Sequence[Range], parameters: Sequence[int] = ()
) -> Box:
    """The loops over the solutions of what ``build(system, *unknowns)`` demands.

    Points have the coordinates of the unknowns, then those of the parameters.
    """
    system = System(parameters, ())
    unknowns = [system.unknown(constant(end - start), start) for start, end in ranges]
    system.domain = unknowns
    build(system, *unknowns)
    solution = invert(system)
    extents = [upper(loop.extent) for loop in solution.loops]
    variables = [loop.variable for loop in solution.loops] + system.parameters
    count = prod((*extents, *parameters))
    grid = np.indices((*extents, *parameters)).reshape(len(variables), count)
    known = dict(zip(variables, grid, strict=True))
    inside = np.ones(count, bool)
    for guard in solution.guards:
        inside &= holds(guard, known, system)
    axes = [np.broadcast_to(number(f, known, system), (count,)) for f in solution.axes]
    axes += [known[p] for p in system.parameters]
    return Box(prod(extents), np.stack(axes, 1)[inside])


def number(form: Form, known: dict[int, Array], system: System) -> Array:
    """The values of a form."""
    total = np.asarray(form.const)
    for v, c in form.terms:
        if v in system.floors:
            inner, divisor, _ = system.floors[v]
            total = total + c * (number(inner, known, system) // divisor)
        else:
            total = total + c * known[v]
    return total


def holds(guard: Condition, known: dict[int, Array], system: System) -> Array:
    value = number(guard.form, known, system)
    if guard.kind == "div":
        return value % guard.modulus == 0
    return value == 0 if guard.kind == "eq" else value >= 0


def check(found: Array, wanted: Array) -> None:
    """The same points, and none of them twice."""
    assert len(found) == len(np.unique(found, axis=0)), "visited twice"
    assert {tuple(p) for p in found.tolist()} == {tuple(p) for p in wanted.tolist()}


def grid_of(ranges: Sequence[Range]) -> Array:
    """All points of a box, a row each."""
    axes = np.meshgrid(*(np.arange(*r) for r in ranges), indexing="ij")
    return np.stack([a.ravel() for a in axes], 1)


# --- relations of three --------------------------------------------------------------------------

# Demands on (k, l, n), as forms that are 0 and forms that are >= 0, and as NumPy writes them.
K, L, N = range(3)
Terms = dict[int, int]
Relation = tuple[list[Terms], list[Terms]]


def less(a: int, b: int, strict: bool = True) -> Terms:
    return {b: 1, a: -1} | ({ONE: -1} if strict else {})


NEAR, HALF = {K: 1, L: -1, ONE: 1}, {N: 2, K: -1}
RELATIONS: dict[str, tuple[Relation, Callable[..., Array], int, int]] = {
    "k <= l": (([], [less(K, L, False)]), lambda k, l, n: k <= l, 125, 125),
    "k < l": (([], [less(K, L)]), lambda k, l, n: k < l, 80, 80),
    "k = l": (([{K: 1, L: -1}], []), lambda k, l, n: k == l, 25, 25),
    "k = l < n": (
        ([{K: 1, L: -1}], [less(L, N)]), lambda k, l, n: (k == l) & (l < n), 16, 16,
    ),
    "2 l = k": (([{L: 2, K: -1}], []), lambda k, l, n: 2 * l == k, 15, 10),
    "k = 2 l": (([{K: 1, L: -2}], []), lambda k, l, n: k == 2 * l, 15, 10),
    "l - k < 2, 2 n = k": (
        ([HALF], [NEAR]), lambda k, l, n: (l - k < 2) & (2 * n == k), 15, 10,
    ),
    "l - k < 2, l >= k": (
        ([], [NEAR, less(K, L, False)]), lambda k, l, n: (l - k < 2) & (l >= k), 50, 50,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RELATIONS)
@pytest.mark.parametrize("start", [0, -3])
def test_a_relation_becomes_a_small_box(name: str, start: int) -> None:
    (equations, inequalities), test, *volumes = RELATIONS[name]

    def build(system: System, *unknowns: int) -> None:
        assert unknowns == (K, L, N)
        system.equations += map(form, equations)
        system.inequalities += map(form, inequalities)

    ranges = [(start, start + 5)] * 3
    found = box_of(build, ranges)
    every = grid_of(ranges)
    check(found.points, every[test(*every.T)])
    assert found.iterations <= volumes[0 if start == 0 else 1]


@pytest.mark.parametrize(("width", "volume"), [(3, 50), (2, 25)])
def test_a_parameter_bounds_the_band(width: int, volume: int) -> None:
    """``l - k < v, l >= k`` for every v below `width`."""

    def build(system: System, k: int, l: int, n: int) -> None:
        (v,) = system.parameters
        system.inequalities += [form({v: 1, k: 1, l: -1, ONE: -1}), form({l: 1, k: -1})]

    found = box_of(build, [(0, 5)] * 3, (width,))
    k, l, _, v = (every := grid_of([(0, 5)] * 3 + [(0, width)])).T
    check(found.points, every[(l - k < v) & (l >= k)])
    assert found.iterations <= volume


# --- mixed radix ---------------------------------------------------------------------------------

ORDERS = list(itertools.permutations(range(3)))
RADIX_RANGES = [(0, 6), (0, 5), (0, 30)]


def whole(system: System, k: int, l: int, n: int) -> None:
    system.equations.append(form({k: 1, l: 6, n: -1}))


def parts(system: System, k: int, l: int, n: int) -> None:
    """``n // 5 = k, n % 5 = l``"""
    quotient, remainder = system.divided(variable(n), 5)
    system.equations += [quotient.minus(variable(k)), remainder.minus(variable(l))]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("build", [whole, parts])
def test_mixed_radix_in_any_order_of_the_variables(
    build: Callable[..., None], order: Sequence[int]
) -> None:
    def turned(system: System, *unknowns: int) -> None:
        build(system, *(unknowns[order.index(n)] for n in range(3)))

    found = box_of(turned, [RADIX_RANGES[n] for n in order])
    every = grid_of(RADIX_RANGES)
    k, l, n = every.T
    solved = k + 6 * l == n if build is whole else (n // 5 == k) & (n % 5 == l)
    check(found.points, every[solved][:, list(order)])
    assert found.iterations == 30


def test_a_sum_split_in_two() -> None:
    """``(l + k) % 3 <= 1, (l + k) // 3 <= 2``"""

    def build(system: System, k: int, l: int) -> None:
        quotient, remainder = system.divided(variable(k).plus(variable(l)), 3)
        system.inequalities += [constant(1).minus(remainder), constant(2).minus(quotient)]

    found = box_of(build, [(0, 10)] * 2)
    every = grid_of([(0, 10)] * 2)
    total = every.sum(1)
    check(found.points, every[(total % 3 <= 1) & (total // 3 <= 2)])
    assert found.iterations <= 48


READS: dict[str, tuple[tuple[int, ...], Callable[..., S], int, int]] = {
    "k + 3 m = x": ((3, 2), lambda k, m: k + m * 3, 4, 4),
    "k + 6 l = n": ((6, 5), lambda k, m: k + m * 6, 30, 30),
    "6 l + k = n": ((5, 6), lambda m, k: k + m * 6, 30, 30),
}


@pytest.mark.parametrize("name", READS)
def test_an_element_has_one_pair_of_digits(name: str) -> None:
    box, index, source, volume = READS[name]
    x = var("x", source)
    y = fn("y", box, lambda *a: where(index(*a) < source, T(x)[index(*a) % source], 0.0))
    head = Variable("head", box, y.dtype)
    found = gradients(y, [x], head)
    made = simplify_graph(Graph(((Variable("dx", x.shape, x.dtype), found[0]),))).definitions
    assert cost(made).iterations <= volume


def test_pairs_of_quotient_and_remainder() -> None:
    x = var("x", 6, 5)
    y = fn("y", (30,), lambda n: T(x)[n // 5, n % 5])
    (dx,) = gradients(y, [x], Variable("head", (30,), y.dtype))
    assert cost([dx]).iterations == 30


# --- the windows of a pool -----------------------------------------------------------------------


def windows(system: System, y: int, x: int, j2: int, j3: int) -> None:
    """``2 y <= j2 <= 2 y + 2, 2 x <= j3 <= 2 x + 2``"""
    bounds: list[Terms] = [
        {j2: 1, y: -2}, {j2: -1, y: 2, ONE: 2}, {j3: 1, x: -2}, {j3: -1, x: 2, ONE: 2},
    ]  # fmt: skip
    system.inequalities += map(form, bounds)


def in_windows(y: Array, x: Array, j2: Array, j3: Array) -> Array:
    return (2 * y <= j2) & (j2 <= 2 * y + 2) & (2 * x <= j3) & (j3 <= 2 * x + 2)


def test_the_domain_of_a_pool() -> None:
    """Of 6,400 points 2,916 would do; what is visited are the 144 that are in a window."""
    ranges = [(0, 4)] * 2 + [(0, 10)] * 2
    found = box_of(windows, ranges)
    every = grid_of(ranges)
    check(found.points, every[in_windows(*every.T)])
    assert found.iterations == len(found.points) == 144


def test_the_windows_that_an_element_is_in() -> None:
    """With the element outside: of 16 windows 4 are tried, where 8 would do."""
    found = box_of(lambda s, y, x: windows(s, y, x, *s.parameters), [(0, 4)] * 2, (10, 10))
    every = grid_of([(0, 4)] * 2 + [(0, 10)] * 2)
    check(found.points, every[in_windows(*every.T)])
    assert found.iterations == 4


def test_a_pools_adjoint_executes_no_more() -> None:
    """``dx[i, j] = sum[a, b] head`` over at most two windows an axis."""
    x = var("x", 10, 10)
    y = fn("y", (4, 4), lambda i, j, a, b: T(x)[i * 2 + a, j * 2 + b], (3, 3))
    head = Variable("head", (4, 4), y.dtype)
    (dx,) = gradients(y, [x], head)
    made = simplify_graph(Graph(((Variable("dx", x.shape, x.dtype), dx),))).definitions
    assert cost(made).iterations <= 32 * 100
    assert cost(made).executed <= 4 * 100
    (found,) = evaluate([dx], {head: np.ones((4, 4))})
    counts = np.array([1, 1, 2, 1, 2, 1, 2, 1, 1, 0])
    assert np.array_equal(found, np.outer(counts, counts))


# --- random systems ------------------------------------------------------------------------------

# Variables, coefficients up to, ranges, systems.
RANDOM = [
    (1, 5, [(-20, 21)], 40),
    (2, 5, [(-20, 21)] * 2, 60),
    (3, 5, [(-20, 21)] * 3, 30),
    (3, 5, [(0, 5)] * 3, 150),
    (4, 5, [(0, 5)] * 4, 100),
    (4, 2, [(-6, 7)] * 4, 30),
    (6, 2, [(0, 5)] * 6, 12),
    (10, 1, [(0, 3)] * 10, 16),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", range(len(RANDOM)))
def test_random_systems_are_enumerated_once(kind: int) -> None:
    count, most, ranges, systems = RANDOM[kind]
    rng = np.random.default_rng(kind)
    every = grid_of(ranges)
    unsolved = 0
    for _ in range(systems):
        rows = rng.integers(-most, most + 1, (int(rng.integers(1, 5)), count))
        offsets = rng.integers(-most, most + 1, len(rows))
        cut = int(rng.integers(0, min(len(rows), count) + 1))
        values = every @ rows.T + offsets
        wanted = every[(values[:, :cut] == 0).all(1) & (values[:, cut:] >= 0).all(1)]

        def build(
            system: System,
            *unknowns: int,
            rows: Array = rows,
            offsets: Array = offsets,
            cut: int = cut,
        ) -> None:
            forms = [
                form({v: int(c) for v, c in zip((*unknowns, ONE), (*row, offset), strict=True)})
                for row, offset in zip(rows, offsets, strict=True)
            ]
            system.equations += forms[:cut]
            system.inequalities += forms[cut:]

        try:
            found = box_of(build, ranges)
        except Empty:
            assert not len(wanted)
            continue
        except Unsolvable:
            unsolved += 1
            continue
        check(found.points, wanted)
        assert found.iterations <= len(every)
    assert unsolved <= systems // 20
