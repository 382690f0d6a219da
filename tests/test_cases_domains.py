"""Facts of domains: boxes that simplify, mixed radix, guards that leave, identities of sums."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from grad_support import S, T, evaluate, fn, var, where
from pullback.grad.gather import Lattice
from pullback.grad.invert import invert
from pullback.grad.reverse import gradients
from pullback.grad.system import System, variable
from pullback.ir.expr import Axis
from pullback.ir.graph import PROD, SUM, Graph, Reduce, Variable
from pullback.schedule.count import cost
from pullback.simplify.graph import simplify_graph

EXTRACTED: dict[str, tuple[Callable[[S, S], S], int]] = {
    "i < 3, both": (lambda i, j: i < 3, 30),
    "i < j < 5": (lambda i, j: (i < j) & (j < 5), 10),
    "i <= j": (lambda i, j: i <= j, 55),
    "all": (lambda i, j: i < 10, 100),
}


@pytest.mark.parametrize("name", EXTRACTED)
def test_conditions_leave_the_loops(name: str) -> None:
    condition, volume = EXTRACTED[name]
    x = var("x", 10, 10)
    y = fn("y", (), lambda i, j: where(condition(i, j), T(x)[i, j], 0.0), (10, 10))
    assert cost([y]).executed == volume


VECTORS: dict[str, tuple[Callable[[T, S, S], S], int]] = {
    "[i < 3] i": (lambda x, i, j: where(i < 3, x[i], 0.0), 3),
    "[i < 3] j": (lambda x, i, j: where(i < 3, x[j], 0.0), 10),
}


@pytest.mark.parametrize("name", VECTORS)
def test_adjoints_under_a_condition_on_one_axis(name: str) -> None:
    """Of a sum over (10, 10): the adjoint visits the elements that count, and sums nothing."""
    body, volume = VECTORS[name]
    x = var("x", 10)
    y = fn("y", (), lambda i, j: body(T(x), i, j), (10, 10))
    found = simplify_graph(Graph(((Variable("g", (10,), y.dtype), gradients(y, [x])[0]),)))
    assert cost(found.definitions).executed == volume


IDENTITIES: dict[str, tuple[Callable[[T, S, S, S], S], Callable[[T, S, S], S] | None]] = {
    "delta of both": (
        lambda a, i, j, k: where(i.eq(j), a[i, k], 0.0) + where(i.eq(j), a[k, j], 0.0), None,
    ),
    "either of two": (
        lambda a, i, j, k: where(
            ((i < 5) & (k < 6)) | ((i > 5) & (k > 4)), a[i, k], 0.0
        ), None,
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
    system.equations.append(form.minus(variable(system.parameters[0])))
    solution = invert(system)
    assert solution.axes[0] == variable(system.parameters[0])
