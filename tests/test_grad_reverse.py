"""Reverse mode as a whole: shapes of adjoints, marks, errors, symbolic extents, networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from grad_support import (
    S,
    T,
    check_gradient,
    draw,
    evaluate,
    exp,
    fn,
    new_definitions,
    sqrt,
    tanh,
    var,
    where,
    work,
)
from pullback.errors import GradientError
from pullback.grad.reverse import gradients
from pullback.ir import expr as E
from pullback.ir.dtype import float32, int64
from pullback.ir.expr import Axis, Dim
from pullback.ir.graph import (
    MAX,
    Accumulate,
    Definition,
    Keep,
    Map,
    Reduce,
    Value,
    Variable,
    read,
    topological,
)
from pullback.ir.node import walk


def total(y: Value) -> Definition:
    """``sum y``"""
    return fn("total", (), lambda *k: T(y)[k], y.shape)


def is_contraction(value: Value) -> bool:
    """``sum of read * read``, nothing else."""
    if not isinstance(value, Definition) or not isinstance(value.form, Reduce):
        return False
    body = value.body
    plain = isinstance(body, E.Mul) and all(isinstance(c, E.Take) for c in body.children)
    return plain and not any(isinstance(n, E.If | E.FloorDiv) for n in walk(body))


@pytest.mark.parametrize("rows", [(5,), (2, 5), (2, 3, 4)])
def test_adjoints_of_a_contraction_are_contractions(rows: tuple[int, ...]) -> None:
    x, w = var("x", *rows, 4), var("w", 3, 4)

    def body(*axes: S) -> S:
        *t, n, k = axes
        return T(x)[(*t, k)] * T(w)[n, k]

    y = fn("y", (*rows, 3), body, (4,))
    dx, dw = check_gradient(y, [x, w], draw([x, w]))
    assert is_contraction(dx)
    assert is_contraction(dw)
    assert isinstance(dw, Definition)
    assert dw.form == Reduce(dw.form.combiner, rows)


def test_batched_contraction_and_a_scale() -> None:
    a, b = var("a", 2, 4, 3), var("b", 2, 5, 3)
    y = fn("y", (2, 4, 5), lambda h, i, j, k: T(a)[h, i, k] * T(b)[h, j, k] * 0.5, (3,))
    found = check_gradient(y, [a, b], draw([a, b]))
    made = new_definitions(found, y)
    assert len(made) == 4
    assert sum(is_contraction(d) for d in made) == 2


def test_a_shared_factor_leaves_the_sum() -> None:
    x, w, g = var("x", 5, 4), var("w", 3, 4), var("g", 4)
    y = fn("y", (5, 3), lambda t, n, k: T(x)[t, k] * T(g)[k] * T(w)[n, k], (4,))
    found = check_gradient(y, [x, w], draw([x, w, g]))
    assert sum(is_contraction(d) for d in new_definitions(found, y)) == 2


def softmax(x: Value, rows: int, columns: int) -> list[Definition]:
    m = fn("m", (rows,), lambda i, k: T(x)[i, k], (columns,), MAX, stop=True)
    e = fn("e", (rows, columns), lambda i, j: exp(T(x)[i, j] - T(m)[i]))
    s = fn("s", (rows,), lambda i, k: T(e)[i, k], (columns,))
    p = fn("p", (rows, columns), lambda i, j: T(e)[i, j] / T(s)[i])
    return [m, e, s, p]


def test_softmax_gives_the_row_formulas() -> None:
    x = var("x", 4, 6)
    *_, p = softmax(x, 4, 6)
    found = check_gradient(p, [x], draw([x]))
    made = new_definitions(found, p)
    assert [d.shape for d in made] == [(4,), (4,), (4, 6), (4, 6)]
    assert not any(isinstance(n, E.Exp | E.If) for d in made for n in walk(d.roots))
    assert work(found, p) <= 4 * 24


def test_log_softmax_with_targets_has_no_scatter() -> None:
    x, target = var("x", 4, 6), Variable("target", (4,), int64)
    m = fn("m", (4,), lambda i, k: T(x)[i, k], (6,), MAX, stop=True)
    z = fn("z", (4,), lambda i, k: exp(T(x)[i, k] - T(m)[i]), (6,))
    y = fn("y", (4, 6), lambda i, j: T(x)[i, j] - T(m)[i] - S(E.Log(T(z)[i].e)))
    loss = fn("loss", (), lambda i: -T(y)[i, T(target)[i]] * 0.25, (4,))
    found = check_gradient(loss, [x], {**draw([x]), target: np.array([0, 5, 2, 2])})
    assert not any(isinstance(d.form, Accumulate) for d in new_definitions(found, loss))


def test_one_node_for_several_uses() -> None:
    x = var("x", 5)
    a = fn("a", (5,), lambda i: T(x)[i] * 2.0)
    b = fn("b", (5,), lambda i: exp(T(x)[i]))
    y = fn("y", (5,), lambda i: T(a)[i] * T(b)[i] + T(x)[4 - i])
    (dx,) = check_gradient(y, [x], draw([x]))
    assert isinstance(dx, Definition)
    assert dx.form == Map()
    assert dx.shape == (5,)


def test_residual_adjoints_are_shared() -> None:
    x = var("x", 5)
    f = fn("f", (5,), lambda i: exp(T(x)[i]))
    y = fn("y", (5,), lambda i: T(x)[i] + T(f)[i])
    head = var("head", 5)
    df, dx = gradients(y, [f, x], head)
    assert df is head
    assert isinstance(dx, Definition)


def test_equal_adjoints_of_a_map_are_computed_once() -> None:
    x, b = var("x", 4, 3), var("b", 3)
    y = fn("y", (4, 3), lambda t, n: tanh(T(x)[t, n] + T(b)[n]))
    dx, db = check_gradient(y, [x, b], draw([x, b]))
    assert isinstance(db, Definition)
    assert isinstance(db.body, E.Take)
    assert db.body.source is dx


def test_intermediate_inputs_and_identity() -> None:
    x = var("x", 3)
    a = fn("a", (3,), lambda i: T(x)[i] * T(x)[i])
    loss = total(a)
    da, dx, dl = gradients(loss, [a, x, loss])
    values = draw([x])
    one, twice, unit = evaluate([da, dx, dl], values)
    assert np.array_equal(one, np.ones(3))
    assert np.allclose(twice, 2 * values[x])
    assert unit == 1


def test_inputs_without_influence() -> None:
    x, y, z = var("x", 3), var("y", 2, 2), var("z", 3)
    stopped = fn("stopped", (3,), lambda i: exp(T(z)[i]), stop=True)
    loss = fn("loss", (), lambda i: T(x)[i] * T(stopped)[i], (3,))
    for v, shape in zip(gradients(loss, [y, z]), [(2, 2), (3,)], strict=True):
        assert isinstance(v, Definition)
        assert v.shape == shape
        assert E.const(0, v.dtype) is v.body
    values = draw([x, z])
    ds, dz = evaluate(gradients(loss, [stopped, z]), values)
    assert np.array_equal(ds, values[x])
    assert not dz.any()


def test_equal_zero_tensors_are_two_inputs() -> None:
    a, b = (fn("zeros", (3,), lambda i: S(E.const(0.0, float32))) for _ in range(2))
    loss = fn("loss", (), lambda i: T(a)[i] * T(b)[i], (3,))
    (da,) = gradients(loss, [a])
    assert isinstance(da, Definition)
    assert da is b or b in da.sources


def test_adjoints_inherit_keep_and_origin() -> None:
    q, k = var("q", 4, 3), var("k", 5, 3)
    body = [lambda i, j, d: T(q)[i, d] * T(k)[j, d], lambda i, j: exp(T(scores)[i, j])]
    scores = fn("scores", (4, 5), body[0], (3,), keep=Keep.NEVER)
    weights = fn("weights", (4, 5), body[1], keep=Keep.NEVER)
    loss = total(weights)
    found = gradients(loss, [q, k])
    for d in new_definitions(found, loss):
        assert (d.keep is Keep.NEVER) == (len(d.shape) == 2 and d.shape == (4, 5))


def test_a_stored_adjoint_is_not_one_that_must_not_be_stored() -> None:
    x = var("x", 3)
    s = fn("s", (3,), lambda i: T(x)[i] + 1.0, keep=Keep.NEVER)
    loss = fn("loss", (), lambda i: T(s)[i] * T(s)[i], (3,))
    ds, dx = gradients(loss, [s, x])
    assert isinstance(ds, Definition)
    assert isinstance(dx, Definition)
    assert (ds.keep, dx.keep) == (Keep.NEVER, Keep.AUTO)


def test_errors() -> None:
    x, n = var("x", 3), Variable("n", (3,), int64)
    y = fn("y", (3,), lambda i: T(x)[i])
    with pytest.raises(GradientError, match="needs a scalar"):
        gradients(y, [x])
    with pytest.raises(GradientError, match="with respect to n"):
        gradients(total(y), [n])
    with pytest.raises(GradientError, match="only a float"):
        gradients(total(n), [x])
    with pytest.raises(GradientError, match="head is"):
        gradients(y, [x], var("head", 4))


@pytest.mark.slow
def test_long_chains() -> None:
    x = var("x", 2)
    y: Value = x
    for n in range(10_000):
        y = Definition(f"y{n}", (2,), E.Add(read(y, Axis(0, 2)), E.const(1, x.dtype)))
    (dx,) = gradients(total(y), [x])
    assert isinstance(dx, Definition)
    z: Value = x
    for n in range(3_000):
        z = Definition(f"z{n}", (2,), E.Exp(read(z, Axis(0, 2))))
    (dz,) = gradients(total(z), [x])
    assert len(new_definitions([dz], z)) >= 2_999


def test_one_tensor_read_by_many() -> None:
    x = var("x", 2)
    parts = [fn(f"p{n}", (2,), lambda i: T(x)[i] * 2.0) for n in range(500)]
    y = parts[0]
    for p in parts[1:]:
        y = fn("y", (2,), lambda i, y=y, p=p: T(y)[i] + T(p)[i])
    (dx,) = gradients(total(y), [x])
    assert np.array_equal(evaluate([dx], draw([x]))[0], [1000, 1000])


def test_gradients_are_deterministic() -> None:
    def build() -> list[str]:
        loss, inputs, _ = block()
        found = gradients(loss, inputs)
        return [f"{d.name} {d.shape} {d.form} {d.body}" for d in topological(found)]

    first = build()
    assert first == build()


SYMBOLIC: dict[str, Any] = {
    "permute": ((2,), lambda x, n: fn("y", (2, n), lambda i, t: T(x)[t, i] * T(x)[t, i])),
    "broadcast": ((2,), lambda x, n: fn("y", (3, n, 2), lambda a, t, i: T(x)[t, i])),
    "sum": ((2,), lambda x, n: fn("y", (2,), lambda i, t: T(x)[t, i], (n,))),
    "flip": ((2,), lambda x, n: fn("y", (n, 2), lambda t, i: T(x)[S(E.Size(n)) - 1 - t, i])),
    "shift": (
        (2,),
        lambda x, n: fn("y", (n, 2), lambda t, i: where(t > 0, T(x)[t - 1, i], 0.0)),
    ),
    "causal": (
        (),
        lambda x, n: fn("y", (n,), lambda t, s: where(s <= t, T(x)[s] * T(x)[t], 0.0), (n,)),
    ),
    "max": ((2,), lambda x, n: fn("y", (2,), lambda i, t: T(x)[t, i], (n,), MAX)),
    "row": ((2,), lambda x, n: fn("y", (2,), lambda i: T(x)[0, i])),
}


@pytest.mark.parametrize("name", SYMBOLIC)
@pytest.mark.parametrize("size", [1, 2, 7])
def test_symbolic_extents(name: str, size: int) -> None:
    n = Dim("n", 1, 9)
    rest, build = SYMBOLIC[name]
    x = var("x", n, *rest)
    y = build(x, n)
    values = {x: np.random.default_rng(0).normal(size=(size, *rest))}
    probe = var("probe", n)
    loss = total(fn("keep", y.shape, lambda *i: T(y)[i] * T(y)[i]))
    (dx,) = gradients(loss, [x])
    assert dx.shape == x.shape
    made = new_definitions([dx], loss)
    assert not any(isinstance(d.form, Accumulate) for d in made)
    (found,) = evaluate([dx], {**values, probe: np.zeros(size)})
    step = 1e-6
    for place in np.ndindex(values[x].shape):
        unit = np.zeros(values[x].shape)
        unit[place] = step
        ends = [evaluate([loss], {x: values[x] + s * unit})[0] for s in (1, -1)]
        assert abs((ends[0] - ends[1]) / (2 * step) - found[place]) < 1e-6


SECOND: dict[str, Any] = {
    "cube": lambda x: fn("y", (4,), lambda i: T(x)[i] * T(x)[i] * T(x)[i]),
    "tanh": lambda x: fn("y", (4,), lambda i: tanh(T(x)[i])),
    "sqrt": lambda x: fn("y", (4,), lambda i: sqrt(T(x)[i] + 2.0)),
    "window": lambda x: fn("y", (2,), lambda i, k: exp(T(x)[i + k]), (3,)),
    "roll": lambda x: fn("y", (4,), lambda i: exp(T(x)[(i + 1) % 4] * T(x)[i])),
    "max": lambda x: fn("y", (2,), lambda i, k: exp(T(x)[i * 2 + k]), (2,), MAX),
    "softmax": lambda x: softmax(fn("r", (2, 2), lambda i, j: T(x)[i * 2 + j]), 2, 2)[-1],
    "where": lambda x: fn("y", (4,), lambda i: where(T(x)[i] > 0.0, exp(T(x)[i]), 1.0)),
}


@pytest.mark.parametrize("name", SECOND)
def test_second_order(name: str) -> None:
    x = var("x", 4)
    y = SECOND[name](x)
    loss = total(fn("square", y.shape, lambda *i: T(y)[i] * T(y)[i]))
    (dx,) = gradients(loss, [x])
    check_gradient(dx, [x], draw([x]))


@pytest.mark.parametrize("form", ["scan"])
def test_second_order_of_a_scan(form: str) -> None:
    from pullback.ir.graph import SUM, Scan

    x = var("x", 4)
    y = fn("y", (4,), lambda i: T(x)[i] * T(x)[i], form=Scan(SUM, 0))
    loss = total(fn("square", (4,), lambda i: T(y)[i] * T(y)[i]))
    (dx,) = gradients(loss, [x])
    check_gradient(dx, [x], draw([x]))


def linear(name: str, x: Value, w: Value, b: Value) -> Definition:
    t, k = x.shape
    n = w.shape[0]
    mm = fn(f"{name}_mm", (t, n), lambda i, j, c: T(x)[i, c] * T(w)[j, c], (k,))
    return fn(name, (t, n), lambda i, j: T(mm)[i, j] + T(b)[j])


def norm(name: str, x: Value, g: Value, b: Value) -> Definition:
    t, n = x.shape
    assert isinstance(n, int)
    mean = fn(f"{name}_mean", (t,), lambda i, k: T(x)[i, k] * (1 / n), (n,))
    centred = fn(f"{name}_c", (t, n), lambda i, j: T(x)[i, j] - T(mean)[i])
    square = fn(f"{name}_v", (t,), lambda i, k: T(centred)[i, k] * T(centred)[i, k] * (1 / n), (n,))
    scale = fn(f"{name}_r", (t,), lambda i: 1.0 / sqrt(T(square)[i] + 1e-5))
    return fn(name, (t, n), lambda i, j: T(centred)[i, j] * T(scale)[i] * T(g)[j] + T(b)[j])


def attention(qkv: Value, heads: int, width: int) -> Definition:
    """Causal self-attention over ``qkv[t, 3 * heads * width]``; scores never reach memory."""
    t = qkv.shape[0]
    assert isinstance(t, int)
    never = {"keep": Keep.NEVER}

    def part(name: str, n: int) -> Definition:
        first = n * heads * width
        return fn(name, (heads, t, width), lambda h, i, d: T(qkv)[i, h * width + d + first])

    q, k, v = part("q", 0), part("k", 1), part("v", 2)
    raw = fn(
        "raw", (heads, t, t), lambda h, i, j, d: T(q)[h, i, d] * T(k)[h, j, d], (width,), **never
    )
    s = fn(
        "s",
        (heads, t, t),
        lambda h, i, j: where(j <= i, T(raw)[h, i, j] * width**-0.5, -np.inf),
        **never,
    )
    m = fn("m", (heads, t), lambda h, i, j: T(s)[h, i, j], (t,), MAX, stop=True)
    e = fn("e", (heads, t, t), lambda h, i, j: exp(T(s)[h, i, j] - T(m)[h, i]), **never)
    z = fn("z", (heads, t), lambda h, i, j: T(e)[h, i, j], (t,))
    p = fn("p", (heads, t, t), lambda h, i, j: T(e)[h, i, j] / T(z)[h, i], **never)
    o = fn("o", (heads, t, width), lambda h, i, d, j: T(p)[h, i, j] * T(v)[h, j, d], (t,))
    return fn("merged", (t, heads * width), lambda i, c: T(o)[c // width, i, c % width])


def block(t: int = 5, heads: int = 2, width: int = 3) -> tuple[Definition, list[Variable], Any]:
    """A pre-norm transformer block and its loss ``sum y * r``."""
    d = heads * width
    x, r = var("x", t, d), var("r", t, d)
    shapes = {
        "g1": (d,), "b1": (d,), "wqkv": (3 * d, d), "bqkv": (3 * d,), "wo": (d, d), "bo": (d,),
        "g2": (d,), "b2": (d,), "wu": (2 * d, d), "bu": (2 * d,), "wd": (d, 2 * d), "bd": (d,),
    }  # fmt: skip
    p = {name: var(name, *shape) for name, shape in shapes.items()}
    n1 = norm("n1", x, p["g1"], p["b1"])
    qkv = linear("qkv", n1, p["wqkv"], p["bqkv"])
    proj = linear("proj", attention(qkv, heads, width), p["wo"], p["bo"])
    r1 = fn("r1", (t, d), lambda i, j: T(x)[i, j] + T(proj)[i, j])
    up = linear("up", norm("n2", r1, p["g2"], p["b2"]), p["wu"], p["bu"])
    c = 0.7978845608028654
    act = fn(
        "act",
        (t, 2 * d),
        lambda i, j: (
            0.5
            * T(up)[i, j]
            * (1.0 + tanh(c * (T(up)[i, j] + 0.044715 * T(up)[i, j] * T(up)[i, j] * T(up)[i, j])))
        ),
    )
    down = linear("down", act, p["wd"], p["bd"])
    y = fn("y", (t, d), lambda i, j: T(r1)[i, j] + T(down)[i, j])
    loss = fn("loss", (), lambda i, j: T(y)[i, j] * T(r)[i, j], (t, d))
    return loss, [x, *p.values()], r


@pytest.mark.slow
def test_transformer_block() -> None:
    loss, inputs, r = block()
    found = check_gradient(loss, inputs, draw([*inputs, r]), 1e-6)
    made = new_definitions(found, loss)
    assert not any(isinstance(d.form, Accumulate) for d in made)
    contractions = [d for d in made if is_contraction(d)]
    row_sums = 1  # of the softmax: sum dp * p
    assert len(contractions) == 4 * 2 + 4 + row_sums
    for d in made:
        assert (d.keep is Keep.NEVER) == (d.shape == (2, 5, 5)), d
