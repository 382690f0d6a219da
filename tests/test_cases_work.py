"""The work of gradients is bounded: counted iterations, multiplications and elements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import grad_cases as C
import pullback as pb
from grad_support import S, T, call, check_gradient, draw, fn, new_definitions, var, where
from pullback.grad.reverse import gradients
from pullback.ir import expr as E
from pullback.ir.dtype import int64
from pullback.ir.expr import If
from pullback.ir.graph import (
    Accumulate,
    Definition,
    Graph,
    Map,
    Reduce,
    Scan,
    Value,
    Variable,
    topological,
)
from pullback.ir.node import walk
from pullback.schedule.count import Cost, cost
from pullback.simplify.graph import simplify_graph
from pullback.tensor.values.functions import UNARY, UNARY_ANY

CASES = [(c, {}) for c in C.all_cases() if c.bar is not None]
CASES += [(s.case, s.sizes) for s in C.symbolic()]


def simplified(values: Sequence[Value]) -> list[Definition]:
    targets = [Variable(f"g{n}", v.shape, v.dtype) for n, v in enumerate(values)]
    return simplify_graph(Graph(tuple(zip(targets, values, strict=True)))).definitions


def ones(output: Value) -> Definition:
    return Definition("ones", output.shape, E.const(1.0, output.dtype))


# --- the counter ---------------------------------------------------------------------------------


def test_static_boxes_and_dynamic_bounds() -> None:
    x, w = var("x", 9), var("w", 9)
    y = fn("y", (9,), lambda i, k: where(k <= i, T(x)[k] * T(w)[i], 0.0), (9,))
    assert cost([y]) == Cost(81, 45, 81, 90, 9)


COUNTED: dict[str, tuple[Callable[..., S], tuple[int, ...], int]] = {
    "bound above": (lambda x, i, k: where(k * 2 <= i, x[k], 0.0), (9,), 25),
    "bounds on both sides": (
        lambda x, i, k: where((k >= i) & (k < i + 2), x[k], 0.0), (9,), 17,
    ),
    "an equation": (lambda x, i, k: where(k.eq(i), x[k], 0.0), (9,), 9),
    "outside the loops": (lambda x, i, k: where((i % 3).eq(0), x[k], 0.0), (9,), 27),
    "a test inside": (lambda x, i, k: where((k % 3).eq(0), x[k], 0.0), (9,), 81),
    "data": (lambda x, i, k: where(x[k] > 0.0, x[k], 0.0), (9,), 81),
    "another identity": (lambda x, i, k: where(k <= i, x[k], 1.0), (9,), 81),
    "a factor outside": (lambda x, i, k: where(k <= i, x[k], 0.0) * x[i], (9,), 81),
    "two pairs of axes": (
        lambda x, i, j, k, m: where((k <= i) & (m <= j), x[k] * x[m], 0.0), (4, 5), 150,
    ),
    "an axis tied to an inner one": (
        lambda x, i, j, k, m: where(k + m < 3, x[k], 0.0), (4, 5), 120,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", COUNTED)
def test_executed_iterations(name: str) -> None:
    body, over, wanted = COUNTED[name]
    x = T(var("x", 9))
    shape = (9,) if len(over) == 1 else (4, 5)
    y = fn("y", shape, lambda *axes: body(x, *axes), over)
    assert cost([y]).executed == wanted


def test_a_write_clears_its_result() -> None:
    table, tokens = var("table", 50, 3), Variable("tokens", (8,), int64)
    e = fn("e", (8, 3), lambda t, d: T(table)[T(tokens)[t], d])
    (dtable,) = gradients(e, [table], ones(e))
    assert isinstance(dtable, Definition)
    assert isinstance(dtable.form, Accumulate)
    assert cost([dtable]).executed == cost([dtable]).iterations == 24 + 150


def test_signs_and_names() -> None:
    x = var("x", 5)
    y = fn("y", (5,), lambda i: -call("tanh", T(x)[i] - 2.0))
    found = cost([y])
    assert found.multiplications == 5
    assert found.flops > 50


def test_the_cost_of_a_program() -> None:
    x = pb.tensor(np.ones((4, 6), np.float32))
    w = pb.tensor(np.ones((5, 6), np.float32))
    product = pb.jit(lambda a, b: a @ b.T)
    product(x, w)
    found = product.program.cost
    assert (found.multiplications, found.flops) == (120, 240)
    assert found.executed == 120 + 30, "the product, and the transposed operand"


# --- the bars ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("case", "sizes"), CASES, ids=[c.name for c, _ in CASES])
def test_work_is_at_most_the_bar(case: C.Case, sizes: dict[Any, int]) -> None:
    found = cost(simplified(gradients(case.output, case.wrt, ones(case.output))), sizes)
    assert case.bar is not None
    iterations, products, elements = case.bar
    assert found.iterations <= iterations
    assert found.multiplications <= products
    assert found.elements <= elements


@pytest.mark.parametrize(("k", "s", "d"), C.CONVOLUTIONS)
def test_gradients_of_a_convolution_do_what_the_forward_does(k: int, s: int, d: int) -> None:
    """The products that are summed; what places them (one map of elements) does no arithmetic."""
    *_, ideal = C.CONVOLUTIONS[k, s, d]
    x, w = var("X", 1, 2, 10, 10), var("W", 2, 2, k, k)
    y = C.conv(x, w, s, d=d)
    assert cost([y]).executed == ideal
    for adjoint in gradients(y, [x, w], Variable("head", y.shape, y.dtype)):
        made = simplified([adjoint])
        assert not any(isinstance(v.form, Accumulate) for v in made)
        sums = [v for v in made if isinstance(v.form, Reduce)]
        assert cost(sums).executed == ideal
        rest = [v for v in made if v not in sums]
        assert len(rest) <= 1
        assert cost(rest).flops == 0


VIEWS: dict[str, tuple[tuple[int, ...], tuple[int, ...], Callable[..., Any]]] = {
    "flatten": ((2, 5, 5), (50,), lambda j: (j // 25, j // 5 % 5, j % 5)),
    "unflatten": ((50,), (2, 5, 5), lambda a, b, c: (a * 25 + b * 5 + c,)),
    "reshape": ((3, 8), (4, 6), lambda i, j: ((i * 6 + j) // 8, (i * 6 + j) % 8)),
    "roll": ((10,), (10,), lambda i: ((i + 3) % 10,)),
    "pixel shuffle": (
        (8, 3, 3), (2, 6, 6), lambda c, h, w: (c * 4 + h % 2 * 2 + w % 2, h // 2, w // 2),
    ),
    "transpose": ((4, 5), (5, 4), lambda i, j: (j, i)),
    "negative step": ((4, 9), (4, 9), lambda i, j: (i, 8 - j)),
}  # fmt: skip


@pytest.mark.parametrize("name", VIEWS)
def test_views_give_no_loop_and_no_guard(name: str) -> None:
    source, shape, index = VIEWS[name]
    x = var("x", *source)
    y = fn("y", shape, lambda *axes: T(x)[index(*axes)])
    (dx,) = gradients(y, [x], Variable("head", y.shape, y.dtype))
    assert isinstance(dx, Definition)
    assert dx.form == Map()
    assert not any(isinstance(n, If) for n in walk(dx.body))


def test_a_tile_sums_its_copies_without_a_guard() -> None:
    x = var("x", 3)
    y = fn("y", (12,), lambda i: T(x)[i % 3])
    (dx,) = new_definitions(gradients(y, [x], Variable("head", (12,), y.dtype)), y)
    assert dx.extents == (3, 4)
    assert not any(isinstance(n, If) for n in walk(dx.body))


def test_symmetric_sums_cost_two_reads() -> None:
    y = C.flipped(lambda a, b: a + b)
    found = cost(simplified(gradients(y, [C.A], Variable("head", y.shape, y.dtype))))
    assert found.iterations <= 200
    assert found.multiplications == 0


TRIANGLES: dict[str, Callable[[T, T, S, S], S]] = {
    "prefix": lambda x, w, i, k: where(k <= i, x[k], 0.0),
    "strict": lambda x, w, i, k: where(k < i, x[k] * w[i], 0.0),
    "suffix": lambda x, w, i, k: where(k >= i, x[k] * w[k], 0.0),
    "shifted": lambda x, w, i, k: where(k + 3 <= i, x[k] * w[i], 0.0),
    "ahead": lambda x, w, i, k: where(k <= i + 2, x[k], 0.0),
}


@pytest.mark.parametrize("name", TRIANGLES)
def test_triangles_that_factor_are_running_sums(name: str) -> None:
    n = 24
    x, w = var("x", n), var("w", n)
    y = fn("y", (n,), lambda i, k: TRIANGLES[name](T(x), T(w), i, k), (n,))
    found = check_gradient(y, [x, w], draw([x, w]))
    assert cost(simplified(found)).iterations <= 4 * n + n * n, "the sum of w[i] is the forward's"
    (dx,) = gradients(y, [x], Variable("head", (n,), y.dtype))
    assert cost(simplified([dx])).executed <= 3 * n
    assert any(isinstance(d.form, Scan) for d in topological([dx]))
    check_gradient(dx, [x, w], {**draw([x, w]), **heads([dx])})


def heads(values: Sequence[Value]) -> dict[Variable, Any]:
    """Numbers for the heads that `values` read."""
    found = {s for d in topological(values) for s in d.sources if isinstance(s, Variable)}
    return draw(sorted((v for v in found if v.name == "head"), key=repr))


@pytest.mark.parametrize("count", [100, 200, 400])
def test_take_is_linear_in_the_indices(count: int) -> None:
    table, tokens = var("table", 1000), Variable("tokens", (count,), int64)
    y = fn("y", (count,), lambda n: T(table)[T(tokens)[n]])
    found = cost(simplified(gradients(y, [table], Variable("head", y.shape, y.dtype))))
    assert found.executed == count + 1000


# --- scalar functions, nothing simplified: composites are in `test_cases_bounds` -----------------

SCALARS = {**UNARY, **UNARY_ANY}


def flops(y: Value, x: Sequence[Value]) -> tuple[int, int]:
    """(forward, gradient alone), nothing simplified."""
    found = gradients(y, x, Variable("head", y.shape, y.dtype))
    forward = topological([y])
    return cost(forward).flops, cost(d for d in topological(found) if d not in forward).flops


@pytest.mark.parametrize("name", SCALARS)
def test_a_slope_costs_at_most_four_values(name: str) -> None:
    x = var("x", 8)
    y = fn("y", (8,), lambda i: call(name, T(x)[i]))
    forward, gradient = flops(y, [x])
    # The sine is one primitive; its slope 1 - 2 sin(x / 2)^2, right far out too, and the head: six.
    assert gradient <= 4 * forward + (16 if name == "sin" else 8)
