"""Facts of domains: boxes that simplify, mixed radix, guards that leave, identities of sums."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import pytest

from grad_support import S, T, evaluate, fn, var, where
from pullback.grad.gather import Lattice
from pullback.grad.invert import Empty, Guard, Unsolvable, invert
from pullback.grad.reverse import gradients
from pullback.grad.system import ONE, Form, System, plus
from pullback.ir.expr import Axis, upper
from pullback.ir.graph import PROD, SUM, Graph, Reduce, Variable, topological
from pullback.schedule.count import cost
from pullback.simplify.graph import simplify_graph

# A relation over unknowns k, l, n: forms that are 0, forms that are >= 0.
Relation = tuple[list[Form], list[Form]]
K, L, N = range(3)


def less(a: int, b: int, strict: bool = True) -> Form:
    return {b: 1, a: -1} | ({ONE: -1} if strict else {})


VOLUMES: dict[str, tuple[Relation, int, int]] = {
    "k <= l": (([], [less(K, L, strict=False)]), 125, 0),
    "k < l": (([], [less(K, L)]), 80, 0),
    "k = l": (([{K: 1, L: -1}], []), 25, 0),
    "k = l < n": (([{K: 1, L: -1}], [less(L, N)]), 16, 0),
    "2 l = k": (([{L: 2, K: -1}], []), 15, 0),
    "k = 2 l": (([{K: 1, L: -2}], []), 15, 0),
    "l - k < 2, 2 n = k": (([{N: 2, K: -1}], [{K: 1, L: -1, ONE: 1}]), 15, 0),
    "l - k < 2, l >= k": (([], [{K: 1, L: -1, ONE: 1}, {L: 1, K: -1}]), 50, 0),
    "k < l from -3": (([], [less(K, L)]), 80, -3),
    "k = l from -3": (([{K: 1, L: -1}], []), 25, -3),
    "k = l < n from -3": (([{K: 1, L: -1}], [less(L, N)]), 16, -3),
    "2 l = k from -3": (([{L: 2, K: -1}], []), 10, -3),
    "l - k < 2, 2 n = k from -3": (([{N: 2, K: -1}], [{K: 1, L: -1, ONE: 1}]), 10, -3),
    "l - k < 2, l >= k from -3": (([], [{K: 1, L: -1, ONE: 1}, {L: 1, K: -1}]), 50, -3),
}


def box_of(relation: Relation, lower: int) -> tuple[int, set[Any]]:
    """Iterations of the loops that enumerate a relation, and the points that they visit."""
    system = System((), ())
    unknowns = [system.unknown({ONE: 5}, lower) for _ in range(3)]
    assert unknowns == [K, L, N]
    system.domain = unknowns
    equations, inequalities = relation
    system.equations += [dict(e) for e in equations]
    system.inequalities += [dict(i) for i in inequalities]
    solution = invert(system)
    extents = [upper(loop.extent) for loop in solution.loops]
    points = set()
    for place in itertools.product(*map(range, extents)):
        known = {loop.variable: p for loop, p in zip(solution.loops, place, strict=True)}
        if all(holds(g, known, system) for g in solution.guards):
            points.add(tuple(number(f, known, system) for f in solution.axes))
    return prod(extents), points


def number(form: Form, known: dict[int, int], system: System) -> int:
    total = form.get(ONE, 0)
    for v, c in form.items():
        if v in system.floors:
            inner, divisor, _ = system.floors[v]
            total += c * (number(inner, known, system) // divisor)
        elif v != ONE:
            total += c * known[v]
    return total


def holds(guard: Guard, known: dict[int, int], system: System) -> bool:
    value = number(guard.form, known, system)
    if guard.kind == "div":
        return value % guard.modulus == 0
    return value == 0 if guard.kind == "eq" else value >= 0


@pytest.mark.parametrize("name", VOLUMES)
def test_a_relation_becomes_a_small_box(name: str) -> None:
    relation, volume, lower = VOLUMES[name]
    iterations, points = box_of(relation, lower)
    wanted = {
        p
        for p in itertools.product(range(lower, lower + 5), repeat=3)
        if all(value(e, p) == 0 for e in relation[0]) and all(value(i, p) >= 0 for i in relation[1])
    }
    assert points == wanted
    assert iterations <= volume


def value(form: Form, point: Sequence[int]) -> int:
    return sum(c * (1 if v == ONE else point[v]) for v, c in form.items())


@pytest.mark.parametrize("seed", range(150))
def test_random_systems_are_enumerated_once(seed: int) -> None:
    rng = np.random.default_rng(seed)
    coefficients = rng.integers(-5, 6, (int(rng.integers(1, 4)), 4))
    forms = [dict(zip((K, L, N, ONE), map(int, row), strict=True)) for row in coefficients]
    forms = [{v: c for v, c in f.items() if c} for f in forms]
    cut = int(rng.integers(0, len(forms) + 1))
    relation = forms[:cut], forms[cut:]
    wanted = {
        p
        for p in itertools.product(range(5), repeat=3)
        if all(value(e, p) == 0 for e in relation[0]) and all(value(i, p) >= 0 for i in relation[1])
    }
    try:
        iterations, points = box_of(relation, 0)
    except (Empty, Unsolvable):
        assert not wanted
        return
    assert points == wanted
    assert iterations <= 125


RADIX: dict[str, tuple[tuple[int, ...], Callable[..., S], tuple[int, ...], int]] = {
    "k + 3 m = x": ((3, 2), lambda k, m: k + m * 3, (4,), 4),
    "k + 6 l = n": ((6, 5), lambda k, m: k + m * 6, (30,), 30),
    "6 l + k = n": ((5, 6), lambda m, k: k + m * 6, (30,), 30),
}


@pytest.mark.parametrize("name", RADIX)
def test_mixed_radix_has_one_point_for_each_element(name: str) -> None:
    box, index, source, volume = RADIX[name]
    x = var("x", *source)
    y = fn("y", box, lambda *a: where(index(*a) < source[0], T(x)[index(*a) % source[0]], 0.0))
    (dx,) = gradients(y, [x], Variable("head", box, y.dtype))
    assert cost([d for d in topological([dx]) if d is not y]).iterations <= volume


def test_pairs_of_quotient_and_remainder() -> None:
    x = var("x", 6, 5)
    y = fn("y", (30,), lambda n: T(x)[n // 5, n % 5])
    (dx,) = gradients(y, [x], Variable("head", (30,), y.dtype))
    assert cost([dx]).iterations == 30


EXTRACTED: dict[str, tuple[Callable[[S, S], S], int]] = {
    "i < 3, both": (lambda i, j: i < 3, 30),
    "i < j < 5": (lambda i, j: (i < j) & (j < 5), 10),
    "all": (lambda i, j: i < 10, 100),
}


@pytest.mark.parametrize("name", EXTRACTED)
def test_conditions_leave_the_loops(name: str) -> None:
    condition, volume = EXTRACTED[name]
    x = var("x", 10, 10)
    y = fn("y", (), lambda i, j: where(condition(i, j), T(x)[i, j], 0.0), (10, 10))
    assert cost([y]).executed == volume


IDENTITIES: dict[str, tuple[Callable[[T, S, S, S], S], Callable[[T, S, S], S] | None]] = {
    "delta of both": (
        lambda a, i, j, k: where(i.eq(j), a[i, k], 0.0) + where(i.eq(j), a[k, j], 0.0), None,
    ),
    "chain": (lambda a, i, j, k: where((i < j) & (j < k), a[j, k], 0.0), None),
    "squeezed": (
        lambda a, i, j, k: where((i >= k) & (i <= j) & (j <= k), a[j, k], 0.0),
        lambda a, i, j: where(i.eq(j), a[i, i], 0.0),
    ),
    "two deltas": (
        lambda a, i, j, k: where(i.eq(j) & i.eq(k), a[i, k] + a[k, j], 0.0),
        lambda a, i, j: where(i.eq(j), a[j, j] * 2.0, 0.0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", IDENTITIES)
def test_sums_under_conditions(name: str) -> None:
    """The adjoint is exact, and executes no more than the points where the conditions hold."""
    body, short = IDENTITIES[name]
    a = var("A", 10, 10)
    y = fn("y", (10, 10), lambda i, j, k: body(T(a), i, j, k), (10,))
    numbers = np.random.default_rng(0).normal(size=(10, 10))
    head = Variable("head", (10, 10), y.dtype)
    found = gradients(y, [a], head)
    values = {a: numbers, head: np.random.default_rng(1).normal(size=(10, 10))}
    other = y if short is None else fn("z", (10, 10), lambda i, j: short(T(a), i, j))
    (first,) = evaluate(found, values)
    (second,) = evaluate(gradients(other, [a], head), values)
    assert np.allclose(first, second)
    if short is not None:
        assert np.allclose(*evaluate([y, other], values))
    made = simplify_graph(Graph(((Variable("g", a.shape, a.dtype), found[0]),))).definitions
    assert cost(made).executed <= 10 * 100 + 300


def test_zeros_leave_a_product_only_where_they_decide_it() -> None:
    """``prod[k] (k < 3 ? a[k] : 0)`` is 0 and has the gradients of a product with a zero."""
    a = var("a", 4)
    y = fn("y", (), lambda k: where(k < 3, T(a)[k], 0.0), (4,), PROD)
    (da,) = gradients(y, [a])
    (found,) = evaluate([da], {a: np.array([2.0, 3.0, 4.0, 5.0])})
    assert not found.any()
    z = fn("z", (), lambda k: where(k < 3, T(a)[k], 1.0), (4,), PROD)
    (da,) = gradients(z, [a])
    (found,) = evaluate([da], {a: np.array([2.0, 3.0, 4.0, 5.0])})
    assert np.array_equal(found, [12, 8, 6, 0])
    assert cost([z]).executed == 3
    assert z.form == Reduce(PROD, (4,)) != Reduce(SUM, (4,))


@pytest.mark.parametrize("step", [(2, 0), (2, 1), (3, 2), (5, 4)])
@pytest.mark.parametrize("extent", [1, 4, 5, 9])
def test_lattices_hold_every_element_on_a_step(step: tuple[int, int], extent: int) -> None:
    modulus, remainder = step
    lattice = Lattice((extent,), {0: step})
    (size,) = lattice.shape
    wanted = [x for x in range(extent) if x % modulus == remainder]
    assert size == len(wanted)
    if size:
        places = fn("p", (size,), lambda i: S(lattice.places[0]))
        numbers = fn("n", (extent,), lambda i: S(lattice.numbers[0]))
        found, back = evaluate([places, numbers], {})
        assert found.tolist() == wanted
        assert [int(back[x]) for x in wanted] == list(range(size))


def test_equations_are_kept_apart_from_parameters() -> None:
    system = System((10,), (8, 3))
    form = system.form(Axis(0, 8))
    assert form is not None
    system.equations.append(plus(form, {system.parameters[0]: 1}, -1))
    solution = invert(system)
    assert solution.axes[0] == {system.parameters[0]: 1}
