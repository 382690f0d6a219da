"""Scalar partials and the adjoint of every form: differences, ties, zeros, untaken branches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from grad_support import (
    S,
    T,
    cast,
    check_gradient,
    draw,
    evaluate,
    exp,
    fn,
    log,
    new_definitions,
    sigmoid,
    sin,
    sqrt,
    tanh,
    var,
    where,
)
from pullback.errors import UnsupportedError
from pullback.grad.composites import slopes
from pullback.grad.reverse import gradients
from pullback.grad.scalar import PARTIALS
from pullback.ir import expr as E
from pullback.ir import functions as F
from pullback.ir.dtype import bfloat16, bool_, float32, float64, int64
from pullback.ir.expr import Axis
from pullback.ir.graph import (
    ANY,
    MAX,
    MIN,
    PROD,
    SUM,
    Accumulate,
    Combiner,
    Definition,
    Reduce,
    Scan,
    Variable,
    read,
)
from pullback.ir.node import walk
from pullback.tensor.values.functions import UNARY

SCALARS = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "inverse": lambda a, b: 1.0 / (a * b + 2.0),
    "mod": lambda a, b: (a * 5.0) % b,
    "floordiv": lambda a, b: (a * 5.0) // b * a,
    "exp": lambda a, b: exp(a * b),
    "log": lambda a, b: log(a + b),
    "sqrt": lambda a, b: sqrt(a * b),
    "sin": lambda a, b: sin(a * b + a),
    "if": lambda a, b: where(a < b, a * a * b, exp(a)),
    "either branch": lambda a, b: where(a < b, sqrt(a), 0.0) + where(a > 0.7, sqrt(a), 0.0) * b,
    "sigmoid": lambda a, b: sigmoid(a * b),
    "tanh": lambda a, b: tanh(a + b * b),
    "silu": lambda a, b: a * sigmoid(a) + b,
    "gelu": lambda a, b: 0.5 * a * (tanh(0.79788456 * (a + 0.044715 * a * a * a)) + 1.0) * b,
    "power": lambda a, b: exp(b * log(a)),
    "shared": lambda a, b: (a + b) * (a + b) / (a * a),
    "softplus": lambda a, b: log(exp(a) + 1.0) * b,
}


@pytest.mark.parametrize("name", SCALARS)
def test_scalar_rules(name: str) -> None:
    x, y = var("x", 5), var("y", 5)
    out = fn("out", (5,), lambda i: SCALARS[name](T(x)[i], T(y)[i]))
    check_gradient(out, [x, y], draw([x, y], 0.3, 1.6))


def test_every_scalar_primitive_has_a_rule() -> None:
    assert set(E.SCALARS) - {E.If} <= set(PARTIALS)


@pytest.mark.parametrize(
    ("name", "limit"),
    [("sigmoid", 9), ("tanh", 12), ("silu", 16), ("exp", 3), ("gelu", 40)],
)
def test_derivatives_stay_small(name: str, limit: int) -> None:
    x = var("x", 5)
    y = fn("y", (5,), lambda i: SCALARS[name](T(x)[i], S(E.const(1.0, float64))))
    (dx,) = gradients(y, [x], var("head", 5))
    assert isinstance(dx, Definition)
    count = sum(1 for n in walk(dx.body) if not isinstance(n, E.Const | E.Axis | E.Take))
    assert count <= limit


NAMED = {
    "sigmoid": (-30, 30), "tanh": (-9, 9), "erf": (-4, 4), "log1p": (-0.9, 3), "expm1": (-3, 3),
    "softplus": (-30, 30), "rsqrt": (0.1, 4), "silu": (-20, 20), "gelu": (-6, 6),
    "gelu_tanh": (-6, 6), "cos": (-4, 4), "sinh": (-2, 2), "log_sigmoid": (-30, 30),
    "tan": (-1, 1), "cosh": (-2, 2), "asin": (-0.9, 0.9), "acos": (-0.9, 0.9), "atan": (-4, 4),
    "asinh": (-4, 4), "acosh": (1.1, 4), "atanh": (-0.9, 0.9),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
def test_named_composites(name: str) -> None:
    x = var("x", 9)
    y = fn("y", (9,), lambda i: S(UNARY[name](T(x)[i].e)))
    values = draw([x], *NAMED[name])
    check_gradient(y, [x], values)
    (dx,) = gradients(y, [x], var("head", 9))
    assert isinstance(dx, Definition)
    assert sum(1 for _ in walk(dx.body)) <= sum(1 for _ in walk(y.body)) + 16


SLOPES = [
    "sigmoid", "tanh", "erf", "log1p", "expm1", "softplus", "rsqrt", "tan", "asin", "acos",
    "atan", "asinh", "acosh", "atanh", "sinh",
]  # fmt: skip


@pytest.mark.parametrize("name", SLOPES)
def test_named_derivatives_equal_those_of_their_bodies(name: str) -> None:
    x = var("x", 7)
    body = UNARY[name](T(x)[S(Axis(0, 7))].e)
    known = slopes(body)
    assert known is not None
    assert len(known) == 1
    assert known[0][0] is T(x)[S(Axis(0, 7))].e
    values = {x: np.array([0.2, 0.31, 0.5, 0.9, 1.4, 2.0, 3.0])}
    if name in ("asin", "acos", "atanh", "acosh"):
        values[x] = values[x] / 3.1 if name != "acosh" else values[x] + 1
    step = 1e-6
    slope = fn("slope", (7,), lambda i: S(known[0][1]))
    y = fn("y", (7,), lambda i: S(body))
    ends = [evaluate([y], {x: values[x] + s * step})[0] for s in (1, -1)]
    assert np.allclose(evaluate([slope], values)[0], (ends[0] - ends[1]) / 2 / step, rtol=1e-7)


def test_tiny_arguments_keep_their_precision() -> None:
    x = var("x", 3)
    values = {x: np.array([1e-12, 0.0, -1e-17])}
    for name in ("log1p", "expm1", "tanh", "erf"):
        y = fn("y", (), lambda i, name=name: S(UNARY[name](T(x)[i].e)), (3,))
        (found,) = evaluate(gradients(y, [x]), values)
        one = 2 / np.sqrt(np.pi) if name == "erf" else 1
        assert np.allclose(found, one, rtol=1e-11), name


def test_powers() -> None:
    x, y = var("x", 4), var("y", 4)
    z = fn("z", (4,), lambda i: S(F.power(T(x)[i].e, T(y)[i].e)))
    check_gradient(z, [x, y], draw([x, y], 0.3, 2.5))
    zero = fn("zero", (), lambda i: S(F.power(T(x)[i].e, E.const(2.5, float64))), (4,))
    (found,) = evaluate(gradients(zero, [x]), {x: np.array([0.0, 1.0, 4.0, 9.0])})
    assert np.allclose(found, [0, 2.5, 20, 67.5])


def test_exp_reads_its_own_value() -> None:
    x = var("x", 5)
    y = fn("y", (5,), lambda i: exp(T(x)[i]))
    (dx,) = gradients(y, [x], var("head", 5))
    assert isinstance(dx, Definition)
    assert y in dx.sources
    assert not any(isinstance(n, E.Exp) for n in walk(dx.body))


def test_sigmoid_of_large_arguments() -> None:
    x = Variable("x", (4,), float32)
    values = {x: np.array([-200, 200, -90, 0], np.float32)}
    y = fn("y", (4,), lambda i: sigmoid(T(x)[i]))
    (dx,) = gradients(fn("s", (), lambda i: T(y)[i], (4,)), [x])
    (found,) = evaluate([dx], values)
    assert np.allclose(found, [0, 0, 0, 0.25])


def test_untaken_branches_make_no_nan() -> None:
    x = var("x", 4)

    def body(i: S) -> S:
        v = T(x)[i]
        return where(v > 0.0, sqrt(v), 0.0) + where(v > 1.0, log(v) * sqrt(v), 2.0 * v)

    (dx,) = gradients(fn("s", (), body, (4,)), [x])
    (found,) = evaluate([dx], {x: np.array([0.0, -1.0, 0.25, 4.0])})
    assert np.allclose(found, [2, 2, 3, 0.25 + (np.log(4) * 0.25 + 0.5)])


def test_a_branch_that_may_not_be_read_is_not_read() -> None:
    x, w = var("x", 5), var("w", 5)

    def body(i: S) -> S:
        return where((i > 0) & (i < 4), T(x)[i - 1] * T(w)[i + 1], T(x)[i])

    check_gradient(fn("y", (5,), body), [x, w], draw([x, w]))


REDUCTIONS = {"sum": SUM, "max": MAX, "min": MIN, "prod": PROD}


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("shape", [(4, 5), (1, 1), (3, 1), (2, 7)])
def test_reductions(name: str, shape: tuple[int, int]) -> None:
    x = var("x", *shape)
    m, n = shape
    combiner = REDUCTIONS[name]
    rows = fn("rows", (m,), lambda i, k: T(x)[i, k] * T(x)[i, k] + 0.1, (n,), combiner)
    check_gradient(rows, [x], draw([x], 0.2, 1.5))
    whole = fn("whole", (), lambda i, k: exp(T(x)[i, k]), (m, n), combiner)
    check_gradient(whole, [x], draw([x]))


@pytest.mark.parametrize("combiner", [MAX, MIN], ids=["max", "min"])
def test_the_first_of_equal_winners_takes_all(combiner: Combiner) -> None:
    x = var("x", 2, 2, 2)
    y = fn("y", (2,), lambda i, a, b: T(x)[i, a, b], (2, 2), combiner)
    (dx,) = gradients(y, [x], var("head", 2))
    values = np.zeros((2, 2, 2))
    values[1, 0, 0] = 3 if combiner is MIN else -3
    (found,) = evaluate([dx], {x: values, dx_head(dx): np.array([5.0, 7.0])})
    expected = np.zeros((2, 2, 2))
    expected[0, 0, 0] = 5
    expected[1, 0, 1] = 7
    assert np.array_equal(found, expected)


def dx_head(dx: Any) -> Variable:
    """The variable called head that `dx` reads."""
    todo = [dx]
    while todo:
        value = todo.pop()
        if isinstance(value, Variable) and value.name == "head":
            return value
        todo += value.sources if isinstance(value, Definition) else ()
    raise AssertionError


def test_nan_and_infinite_winners() -> None:
    x = var("x", 2, 3)
    y = fn("y", (2,), lambda i, k: T(x)[i, k], (3,), MAX)
    (dx,) = gradients(fn("s", (), lambda i: T(y)[i], (2,)), [x])
    rows = np.array([[1, np.nan, np.nan], [-np.inf, -np.inf, -np.inf]])
    (found,) = evaluate([dx], {x: rows})
    assert np.array_equal(found, [[0, 1, 0], [1, 0, 0]])


def test_overlapping_max_windows() -> None:
    x = var("x", 10, 9)
    y = fn("y", (4, 4), lambda i, j, a, b: T(x)[i * 2 + a, j * 2 + b], (3, 3), MAX)
    check_gradient(y, [x], draw([x]))


@pytest.mark.parametrize("zeros", [0, 1, 2, 3])
def test_product_with_zeros(zeros: int) -> None:
    x = var("x", 3)
    values = np.array([2.0, -3.0, 0.5])
    values[:zeros] = 0
    y = fn("y", (), lambda k: T(x)[k], (3,), PROD)
    (dx,) = gradients(y, [x])
    (found,) = evaluate([dx], {x: values})
    others = [np.prod(np.delete(values, n)) for n in range(3)]
    assert np.allclose(found, others, rtol=1e-15)


def test_no_gradient_through_any() -> None:
    x = var("x", 3)
    y = fn("y", (), lambda k: T(x)[k] > 0.0, (3,), ANY)
    z = fn("z", (), lambda: where(T(y)[()], S(E.const(1.0, float64)), 2.0))
    assert not np.any(evaluate(gradients(z, [x]), {x: np.ones(3)})[0])


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("shape", [(3, 5), (1, 1), (4, 1)])
def test_cumulative_sum(axis: int, shape: tuple[int, int]) -> None:
    x = var("x", *shape)
    y = fn("y", shape, lambda i, j: T(x)[i, j] * T(x)[i, j], form=Scan(SUM, axis))
    found = check_gradient(y, [x], draw([x]))
    assert not any(isinstance(d.form, Reduce | Accumulate) for d in new_definitions(found, y))


@pytest.mark.parametrize("form", [Accumulate(PROD, (4,), (Axis(0, 4),))])
def test_forms_without_a_gradient_are_refused_by_name(form: Any) -> None:
    x = var("x", 4)
    y = fn("total", (4,), lambda i: T(x)[i], form=form)
    with pytest.raises(UnsupportedError, match=f"{form.combiner.name} \\(total\\)"):
        gradients(y, [x], var("head", 4))


@pytest.mark.parametrize("combiner", [MAX, MIN, PROD], ids=["max", "min", "prod"])
@pytest.mark.parametrize("axis", [0, 1])
def test_running_combinations(combiner: Combiner, axis: int) -> None:
    x = var("x", 3, 6)
    y = fn("y", (3, 6), lambda i, j: T(x)[i, j] * T(x)[i, j] + 0.2, form=Scan(combiner, axis))
    values = draw([x])
    check_gradient(y, [x], values)
    (first,) = gradients(fn("s", (), lambda i, j: exp(T(y)[i, j]), (3, 6)), [x])
    check_gradient(first, [x], values)


def test_a_running_product_is_exact_at_zeros() -> None:
    x = var("x", 5)
    y = fn("y", (5,), lambda i: T(x)[i], form=Scan(PROD, 0))
    for row in ([2, 0, 3, 4, 5], [2, 0, 3, 0, 5], [0, 0, 1, 2, 3], [1, 2, 3, 4, 5]):
        (dx,) = gradients(y, [x], var("head", 5))
        assert isinstance(dx, Definition)
        values = {x: np.array(row, float), dx_head(dx): np.arange(1.0, 6)}
        expected = [
            sum((t + 1) * np.prod(np.delete(row[: t + 1], u)) for t in range(u, 5))
            for u in range(5)
        ]
        assert np.array_equal(evaluate([dx], values)[0], expected)


def test_the_last_to_reach_a_running_maximum_takes_all() -> None:
    x = var("x", 6)
    y = fn("y", (6,), lambda i: T(x)[i], form=Scan(MAX, 0))
    (dx,) = gradients(fn("s", (), lambda i: T(y)[i], (6,)), [x])
    (found,) = evaluate([dx], {x: np.array([1.0, 1, 3, 2, 3, 4])})
    assert np.array_equal(found, [1, 1, 2, 0, 1, 1])
    (found,) = evaluate([dx], {x: np.full(6, -np.inf)})
    assert np.array_equal(found, [1, 1, 1, 1, 1, 1])


def test_an_accumulated_maximum_has_one_winner() -> None:
    x, to = var("x", 5), Variable("to", (5,), int64)
    y = fn("y", (3,), lambda v: T(x)[v], form=Accumulate(MAX, (5,), (read(to, Axis(0, 5)),)))
    (dx,) = gradients(y, [x], var("head", 3))
    places = np.array([0, 2, 0, 0, 2])
    values = {x: np.array([1.0, 5, 7, 7, 4]), to: places, dx_head(dx): np.array([1.0, 2, 3])}
    assert np.array_equal(evaluate([dx], values)[0], [0, 3, 1, 0, 0])


def embedding() -> tuple[Definition, Variable, Variable]:
    table, tokens = var("table", 6, 3), Variable("tokens", (8,), int64)
    return fn("e", (8, 3), lambda t, d: T(table)[T(tokens)[t], d]), table, tokens


TOKENS = np.array([0, 5, 5, 2, 0, 0, 1, 5])


def test_embedding_accumulates() -> None:
    e, table, tokens = embedding()
    (dtable,) = check_gradient(e, [table], {**draw([table]), tokens: TOKENS})
    assert isinstance(dtable, Definition)
    assert isinstance(dtable.form, Accumulate)
    assert dtable.form.domain == (8, 3)
    assert isinstance(dtable.body, E.Take)


def test_accumulate_and_its_second_order() -> None:
    x, to = var("x", 8), Variable("to", (8,), int64)
    at = (read(to, Axis(0, 8)),)
    y = fn("y", (6,), lambda v: T(x)[v] * T(x)[v], form=Accumulate(SUM, (8,), at))
    values = {**draw([x]), to: TOKENS}
    check_gradient(y, [x], values)
    cube = fn("cube", (), lambda k: T(y)[k] * T(y)[k] * T(y)[k], (6,))
    (dx,) = gradients(cube, [x])
    check_gradient(dx, [x], values)


def test_second_order_of_an_embedding() -> None:
    e, table, tokens = embedding()
    loss = fn("loss", (), lambda t, d: T(e)[t, d] * T(e)[t, d] * T(e)[t, d], (8, 3))
    values = {**draw([table]), tokens: TOKENS}
    (first,) = gradients(loss, [table])
    check_gradient(first, [table], values)


def test_picked_elements_are_a_map() -> None:
    scores, target = var("scores", 5, 4), Variable("target", (5,), int64)
    y = fn("y", (5,), lambda n: -T(scores)[n, T(target)[n]])
    (found,) = check_gradient(y, [scores], {**draw([scores]), target: np.array([3, 0, 0, 1, 2])})
    assert isinstance(found, Definition)
    assert not isinstance(found.form, Reduce | Accumulate)


def test_guarded_data_index() -> None:
    table, tokens = var("table", 6, 3), Variable("tokens", (8,), int64)

    def body(t: S, d: S) -> S:
        return where(T(tokens)[t] >= 0, T(table)[T(tokens)[t], d], 0.0)

    e = fn("e", (8, 3), body)
    values = {**draw([table]), tokens: np.where(TOKENS == 2, -100, TOKENS)}
    check_gradient(e, [table], values)


def test_a_gather_that_costs_too_much_is_a_scatter() -> None:
    x = var("x", 145)
    y = fn("y", (4, 4, 4, 4), lambda i, j, k, n: T(x)[i * 7 + j * 11 + k * 13 + n * 17])
    (dx,) = check_gradient(y, [x], draw([x]))
    assert isinstance(dx, Definition)
    assert isinstance(dx.form, Accumulate)


@pytest.mark.parametrize("length", [5, 9])
def test_one_sum_serves_every_element(length: int) -> None:
    """``y[t] = sum[k] flag[k] ? x[k] w[t] : 0``: no `w` is read outside, no sum is repeated."""
    x, w, flag = var("x", 3), var("w", length), Variable("flag", (3,), bool_)

    def body(t: S, k: S) -> S:
        return where(T(flag)[k], T(x)[k] * T(w)[t], 0.0)

    y = fn("y", (9,), body, (3,))
    chosen = np.array([length == 9, False, False])
    found = check_gradient(y, [x], {**draw([x, w]), flag: chosen})
    shapes = [d.shape for d in new_definitions(found, y)]
    assert shapes == [(), (3,)]


def test_casts_sum_in_the_wide_type() -> None:
    x, w = Variable("x", (300,), bfloat16), var("w", 300, kind=float32)
    y = fn("y", (4,), lambda i, k: cast(T(x)[k], float32) * T(w)[k], (300,))
    (dx,) = gradients(fn("s", (), lambda i: T(y)[i], (4,)), [x])
    assert dx.dtype == bfloat16
    b = Variable("b", (), bfloat16)
    z = fn("z", (), lambda k: cast(T(b)[()], float32) * T(w)[k], (300,))
    (db,) = gradients(z, [b])
    (found,) = evaluate([db], {w: np.full(300, 1.01, np.float32)})
    assert abs(float(found) - 303) < 2
    sums = [d for d in new_definitions([db], z) if isinstance(d.form, Reduce)]
    assert [d.dtype for d in sums] == [float32]


def test_float_casts() -> None:
    x = var("x", 4)
    y = fn("y", (4,), lambda i: cast(cast(T(x)[i] * 2.0, float32), float64) * T(x)[i])
    (dx,) = gradients(y, [x], var("head", 4))
    assert dx.dtype == float64
    values = draw([x])
    (found,) = evaluate([dx], {**values, dx_head(dx): np.ones(4)})
    assert np.allclose(found, 4 * values[x], rtol=1e-6)
