"""`pb.differentiate` and `pb.jacobian`: every adjoint, every summand, and rules in between."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.errors import GradientError, UnsupportedError
from pullback.ir.expr import upper
from pullback.ir.graph import Reduce, topological

Array = np.ndarray[Any, Any]
K = pb.axis(4)


def draw(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).uniform(-1, 1, shape)


def dense(x: Any, w: Any, b: Any) -> tuple[Any, Any]:
    k = pb.axis(x.shape[1])
    t = pb.compute(
        (x.shape[0], w.shape[0]), lambda i, j: pb.sum(x[i, k] * w[j, k], over=k), name="t"
    )
    return t, t + b


class Tutorial:
    """X:(32, 100), W:(10, 100), B:(10): T = X W', Y = T + B, L = sum Y."""

    def __init__(self) -> None:
        self.x = pb.tensor(draw(1, 32, 100))
        self.w = pb.tensor(draw(2, 10, 100))
        self.b = pb.tensor(draw(3, 10))
        self.t, self.y = dense(self.x, self.w, self.b)
        self.loss = pb.sum(self.y)


def test_the_result_is_a_list() -> None:
    m = Tutorial()
    r = pb.differentiate(m.loss, [m.w, m.b])
    dw, db = r
    assert len(r) == 2
    assert r[0] is dw
    assert r[-1] is db
    assert r.result == [dw, db]
    assert np.allclose(dw.numpy(), np.broadcast_to(m.x.numpy().sum(0), (10, 100)))
    assert np.allclose(db.numpy(), 32)
    assert np.allclose(r.adjoints[m.w].numpy(), dw.numpy())
    assert np.allclose(r.adjoints[m.t].numpy(), 1)
    assert np.allclose(r.adjoints[m.y].numpy(), 1)
    assert r.adjoints[m.loss].numpy() == 1
    with pytest.raises(KeyError, match="on the way"):
        r.adjoints[m.x]


def test_without_inputs_there_are_all_adjoints_and_no_list() -> None:
    m = Tutorial()
    for r in (pb.differentiate(m.loss), pb.differentiate(m.loss, [])):
        assert r.result == []
        for tensor in (m.x, m.w, m.b, m.t, m.y, m.loss):
            assert r.adjoints[tensor].shape == tensor.shape
        assert len(list(r.adjoints)) == len(r.adjoints) >= 6
        for wrong in (lambda r: len(r), lambda r: r[0], list):
            with pytest.raises(ValueError, match="no inputs were named"):
                wrong(r)


def test_the_jacobian_of_the_tutorial() -> None:
    m = Tutorial()
    (jacobian,) = pb.differentiate(m.y, [m.w])
    assert jacobian.shape == (32, 10, 10, 100)
    expected = np.einsum("oj,ik->iojk", np.eye(10), m.x.numpy())
    assert np.array_equal(jacobian.numpy(), expected)
    by_x, by_b = pb.differentiate(m.y, [m.x, m.b])
    assert np.array_equal(by_x.numpy(), np.einsum("ab,jk->ajbk", np.eye(32), m.w.numpy()))
    assert np.array_equal(by_b.numpy(), np.broadcast_to(np.eye(10), (32, 10, 10)))


def new_boxes(tensor: Any, output: Any) -> list[tuple[int, ...]]:
    """The boxes of what differentiation made."""
    known = topological([output.value])
    made = [d for d in topological([tensor.value]) if d not in known]
    return [tuple(map(upper, d.extents)) for d in made]


def test_the_identity_is_solved_for_and_never_summed_over() -> None:
    m = Tutorial()
    for by, rank in ((m.w, 4), (m.x, 4), (m.b, 3)):
        (jacobian,) = pb.differentiate(m.y, [by])
        boxes = new_boxes(jacobian, m.y)
        assert [b for b in boxes if b] == [jacobian.shape]
        assert len(jacobian.shape) == rank
        last = topological([jacobian.value])
        assert not any(
            isinstance(d.form, Reduce) for d in last if d not in topological([m.y.value])
        )


@pytest.mark.slow
def test_jacobians_of_chains_follow_each_summand() -> None:
    x = pb.tensor(draw(1, 4, 3))

    def f(x: Any) -> Any:
        h = pb.sin(x) * pb.flip(x, axis=0)
        return pb.sum(h + pb.roll(h, 1, axis=1) * h, axis=1)

    (jacobian,) = pb.differentiate(f(x), [x])
    (jacobian,) = pb.differentiate(y := f(x), [x])
    rows = [pb.differentiate(y[n], [x])[0].numpy() for n in range(4)]
    assert np.allclose(jacobian.numpy(), rows)
    again = pb.differentiate(jacobian, [x])[0]
    assert again.shape == (4, 4, 3, 4, 3)
    v = draw(5, 4, 3)
    expected = pb.jvp(lambda z: pb.differentiate(f(z), [z])[0], (x,), (pb.tensor(v),))[1]
    assert np.allclose(np.einsum("ajkbc,bc->ajk", again.numpy(), v), expected.numpy())


FORMS = {
    "max": lambda x: pb.max(x, axis=1),
    "prod": lambda x: pb.prod(x, axis=0),
    "cumulative sum": lambda x: pb.cumulative_sum(x, axis=1),
    "cumulative prod": lambda x: pb.cumulative_prod(x, axis=0),
    "softmax": lambda x: pb.softmax(x, 1),
    "take": lambda x: pb.take(x, pb.tensor(np.array([2, 0, 2])), axis=0) ** 2,
    "clamped": lambda x: pb.compute(
        (4, 3), lambda i, j: x[pb.minimum(i + 1, 3), j] * x[i, j] + x[i, 0]
    ),
    "matmul": lambda x: x @ x.mT,
    "triangle": lambda x: pb.compute(
        (4,),
        lambda i: pb.sum(pb.where(i >= K, x[K, 0] * x[i, 1], 0.0), over=K),
    ),
    "whole": lambda x: pb.reshape(x, (2, 6)) * 3.0,
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", FORMS)
def test_jacobians_equal_their_rows(name: str) -> None:
    x = pb.tensor(draw(3, 4, 3))
    y = FORMS[name](x)
    (jacobian,) = pb.differentiate(y, x)
    assert jacobian.shape == y.shape + x.shape
    heads = np.eye(int(np.prod(y.shape))).reshape(-1, *y.shape)
    (rows,) = pb.differentiate(y, [x], head=pb.tensor(heads))
    assert rows.shape == (heads.shape[0], 4, 3)
    assert np.allclose(jacobian.numpy().reshape(rows.shape), rows.numpy(), rtol=1e-13, atol=1e-15)
    for n in (0, len(heads) - 1):
        single = pb.grad(y, x, head=pb.tensor(heads[n]))
        assert np.allclose(rows.numpy()[n], single.numpy(), rtol=1e-13, atol=1e-15)


def test_heads_with_prefixes_and_several_outputs() -> None:
    m = Tutorial()
    head = draw(7, 2, 3, 32, 10)
    (dw,) = pb.differentiate(m.y, [m.w], head=pb.tensor(head))
    assert np.allclose(dw.numpy(), np.einsum("abij,ik->abjk", head, m.x.numpy()))
    other = draw(8, 2, 3)
    r = pb.differentiate([m.y, m.loss], [m.w], head=[pb.tensor(head), pb.tensor(other)])
    expected = np.einsum("abij,ik->abjk", head + other[..., None, None], m.x.numpy())
    assert np.allclose(r[0].numpy(), expected)
    assert np.allclose(r.adjoints[m.t].numpy(), head + other[..., None, None])
    sums = pb.differentiate([m.loss, pb.sum(m.w)], [m.w])
    assert np.allclose(sums[0].numpy(), 1 + m.x.numpy().sum(0))
    with pytest.raises(GradientError, match="head is float64\\(3,\\)"):
        pb.differentiate(m.y, [m.w], head=pb.ones(3, dtype=pb.float64))
    with pytest.raises(GradientError, match="2 heads for 1"):
        pb.differentiate(m.y, [m.w], head=[m.y, m.y])
    with pytest.raises(GradientError, match="different prefixes"):
        pb.differentiate([m.y, m.loss], [m.w], head=[m.y, pb.tensor(other)])
    with pytest.raises(GradientError, match="several tensors"):
        pb.differentiate([m.y, m.loss], [m.w])


def test_an_input_without_influence_is_zero() -> None:
    m = Tutorial()
    other = pb.tensor(draw(9, 4, 2))
    (jacobian,) = pb.differentiate(m.y, [other])
    assert jacobian.shape == (32, 10, 4, 2)
    assert not jacobian.numpy().any()
    assert not pb.differentiate(m.loss, [other])[0].numpy().any()
    rows = pb.differentiate(m.loss, [other, m.w], head=pb.ones(5, dtype=pb.float64))
    assert [r.shape for r in rows] == [(5, 4, 2), (5, 10, 100)]
    assert not rows[0].numpy().any()


def test_summands_by_consumer() -> None:
    x = pb.tensor(draw(1, 5))
    z1 = x * 2.0
    z2 = pb.exp(z1)
    y = z1 + z2
    head = pb.tensor(draw(2, 5))
    r = pb.differentiate(y, [x], head=head)
    parts = r.adjoint_summands[z1]
    assert len(parts) == 2
    assert np.allclose(parts[y].numpy(), head.numpy())
    assert np.allclose(parts[z2].numpy(), head.numpy() * z2.numpy())
    assert np.allclose(r.adjoints[z1].numpy(), head.numpy() * (1 + z2.numpy()))
    assert list(r.adjoint_summands[z2]) != []
    many = pb.differentiate(y, [x])
    assert many.adjoint_summands[z1][z2].shape == (5, 5)
    assert np.allclose(many.adjoint_summands[z1][z2].numpy(), np.diag(z2.numpy()))
    assert len(many.adjoint_summands[y]) == 0


# --- override and fdiff --------------------------------------------------------------------------


class Flattened:
    """x:(32, 3, 28, 28), w:(10, 3, 3, 3): t1 = conv(x, w), t2 = flatten(t1), t3 = sum t2."""

    def __init__(self) -> None:
        self.x = pb.tensor(draw(1, 32, 3, 28, 28))
        self.w = pb.tensor(draw(2, 10, 3, 3, 3))
        c, a, b = pb.axis(3), pb.axis(3), pb.axis(3)
        x, w = self.x, self.w
        self.t1 = pb.compute(
            (32, 10, 26, 26),
            lambda n, f, i, j: pb.sum(x[n, c, i + a, j + b] * w[f, c, a, b], over=(c, a, b)),
        )
        self.t2 = pb.reshape(self.t1, (32, 6760))
        self.t3 = pb.sum(self.t2)
        self.plain = pb.differentiate(self.t3, [self.x, self.w])

    def check(self, r: Any) -> None:
        for found, expected in zip(r, self.plain, strict=True):
            assert np.allclose(found.numpy(), expected.numpy())


def test_a_sum_equals_a_head_of_ones() -> None:
    m = Flattened()
    m.check(pb.differentiate(m.t2, [m.x, m.w], head=pb.ones_like(m.t2)))


def test_an_override_over_one_step() -> None:
    m = Flattened()
    calls = []

    def unflatten(t: Any, deps: Any, head: Any) -> Any:
        calls.append((t, deps))
        body = lambda n, f, i, j: head[n, j + 26 * i + 676 * f]
        return [pb.compute((32, 10, 26, 26), body)]

    m.check(pb.differentiate(m.t3, [m.x, m.w], override={m.t2: ([m.t1], unflatten)}))
    assert len(calls) == 1
    assert calls[0][0] is m.t2
    assert calls[0][1] == [m.t1]


def test_an_override_over_several_steps_may_differentiate() -> None:
    m = Flattened()

    def inner(t: Any, deps: Any, head: Any) -> Any:
        return pb.differentiate(t, deps, head=head)

    m.check(pb.differentiate(m.t3, [m.x, m.w], override={m.t1: ([m.x, m.w], inner)}))
    m.check(pb.differentiate(m.t3, [m.x, m.w], override={m.t2: ([m.x, m.w], inner)}))
    heads = pb.tensor(draw(5, 3))
    override = {m.t2: ([m.x, m.w], inner)}
    rows = pb.differentiate(m.t3, [m.w], head=heads, override=override)
    expected = heads.numpy()[:, None, None, None, None] * m.plain[1].numpy()
    assert np.allclose(rows[0].numpy(), expected)


def test_an_override_in_a_jacobian() -> None:
    m = Tutorial()

    def twice(t: Any, deps: Any, head: Any) -> Any:
        assert head.shape == t.shape
        return [2.0 * d for d in pb.differentiate(t, deps, head=head)]

    override = {m.t: ([m.x, m.w], twice)}
    (found,) = pb.differentiate(m.y, [m.w], override=override)
    assert np.allclose(found.numpy(), 2 * np.einsum("oj,ik->iojk", np.eye(10), m.x.numpy()))


def test_an_override_that_stops_the_gradient() -> None:
    m = Tutorial()

    def without_x(t: Any, deps: Any, head: Any) -> Any:
        _, dw, db = pb.differentiate(t, deps, head=head)
        return [pb.zeros(deps[0].shape, dtype=pb.float64), dw, db]

    r = pb.differentiate(m.loss, [m.x, m.w, m.b], override={m.y: ([m.x, m.w, m.b], without_x)})
    assert not r[0].numpy().any()
    assert np.allclose(r[1].numpy(), np.broadcast_to(m.x.numpy().sum(0), (10, 100)))
    assert np.allclose(r[2].numpy(), 32)


def test_fdiff_replaces_every_pair() -> None:
    m = Tutorial()
    pairs = []

    def by_jacobian(out: Any, inp: Any, head: Any) -> Any:
        pairs.append((out, inp))
        jacobian = pb.differentiate(out, [inp])[0]
        return pb.tensordot(head, jacobian, len(head.shape))

    r = pb.differentiate(m.loss, [m.w, m.b], fdiff=by_jacobian)
    assert np.allclose(r[0].numpy(), np.broadcast_to(m.x.numpy().sum(0), (10, 100)))
    assert np.allclose(r[1].numpy(), 32)
    assert len(pairs) == 4
    assert len(r.adjoint_summands[m.t]) == 1


def test_the_choice_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    x = pb.tensor(draw(1, 3))

    @pb.custom_vjp
    def f(x: Any) -> Any:
        return x * 2.0

    f.defvjp(lambda x: (f(x), None), lambda saved, g: (g * 3.0,))
    y = f(x)
    z = pb.exp(y)
    loss = pb.sum(z)

    def ten(t: Any, deps: Any, head: Any) -> Any:
        return [head * 10.0]

    with caplog.at_level(logging.DEBUG, logger="pullback.grad"):
        r = pb.differentiate(loss, [x], override={z: ([y], ten)})
    assert np.allclose(r[0].numpy(), 30)
    said = [record.getMessage().split(": ")[1] for record in caplog.records]
    assert said == ["derived", "override", "custom_vjp"]
    assert np.allclose(pb.differentiate(loss, [x], override={y: ([x], ten)})[0].numpy(),
                       10 * np.exp(2 * x.numpy()))  # fmt: skip


def test_refusals() -> None:
    m = Tutorial()
    whole = pb.tensor(np.arange(3))
    with pytest.raises(GradientError, match="int64"):
        pb.differentiate(m.loss, [whole])
    with pytest.raises(GradientError, match="int64"):
        pb.differentiate(pb.sum(whole), [m.w])
    with pytest.raises(GradientError, match=r"the override of .* gave 1 values for 2"):
        override = {m.t: ([m.x, m.w], lambda t, deps, head: [head])}
        pb.differentiate(m.loss, [m.w], override=override)
    with pytest.raises(GradientError, match=r"the override of .* gave float64"):
        override = {m.t: ([m.x], lambda t, deps, head: [head])}
        pb.differentiate(m.loss, [m.x], override=override)


def test_inside_a_jitted_function_and_of_results() -> None:
    @pb.jit
    def f(x: Any, w: Any, head: Any) -> Any:
        t, y = dense(x, w, w[:, 0])
        r = pb.differentiate(y, [w], head=head)
        full = pb.differentiate(y, [x])
        return r[0], r.adjoints[t], full[0]

    x, w, head = draw(1, 4, 5), draw(2, 3, 5), draw(3, 2, 4, 3)
    dw, dt, full = (a.numpy() for a in f(*map(pb.tensor, (x, w, head))))
    expected = np.einsum("pij,ik->pjk", head, x)
    expected[:, :, 0] += head.sum(1)
    assert np.allclose(dw, expected)
    assert np.allclose(dt, head)
    assert np.allclose(full, np.einsum("ab,jk->ajbk", np.eye(4), w))
    z = pb.tensor(x) * 2.0
    z.numpy()
    assert np.allclose(pb.differentiate(pb.sum(z * z), [z])[0].numpy(), 4 * x)


@pytest.mark.slow
def test_a_long_chain() -> None:
    x = pb.tensor(draw(1, 2))
    y = x
    for _ in range(3000):
        y = y * 1.0001
    r = pb.differentiate(y, [x])
    assert len(r.adjoints) == 3001


# --- jacobian ------------------------------------------------------------------------------------


def test_dense_jacobians_of_functions_and_tensors() -> None:
    x, w = pb.tensor(draw(1, 3, 4)), pb.tensor(draw(2, 4))
    expected = np.einsum("ab,k->abk", np.eye(3), w.numpy())
    by_x, by_w = pb.jacobian(lambda x, w: x @ w, [x, w])
    assert np.allclose(by_x.numpy(), expected)
    assert np.allclose(by_w.numpy(), x.numpy())
    assert np.allclose(pb.jacobian(x @ w, x).numpy(), expected)
    assert np.allclose(pb.jacobian(lambda x, w: x @ w, argnums=1)(x, w).numpy(), x.numpy())
    hessian = pb.jacobian(pb.grad(lambda w: pb.sum(pb.exp(x @ w))))(w).numpy()
    curve = np.exp(x.numpy() @ w.numpy())
    assert np.allclose(hessian, np.einsum("i,ij,ik->jk", curve, x.numpy(), x.numpy()))
    rows = pb.vmap(pb.jacobian(lambda w: pb.sin(w) * w[0]))(x).numpy()
    assert np.allclose(rows[1], pb.jacobian(lambda w: pb.sin(w) * w[0])(x[1]).numpy())


def convolved(x: Any) -> Any:
    r = pb.axis(3)
    return pb.compute((4,), lambda i: pb.sum(x[i * 2 + r] * x[r], over=r))


SPARSE = {
    "map": (lambda x: pb.sin(x) * 2.0, (5,), 5),
    "flip": (lambda x: x * pb.flip(x, axis=0), (5,), 9),
    "convolution": (convolved, (9,), 20),
    "padded": (
        lambda x: pb.compute((6,), lambda i: pb.where((i > 0) & (i < 5), x[i - 1], 0.0)), (4,), 4,
    ),
    "two convolutions": (lambda x: convolved(pb.pad(convolved(x), ((2, 3),))), (9,), None),
    "scan": (lambda x: pb.cumulative_sum(x, axis=0), (5,), 15),
    "prod": (lambda x: pb.prod(x, axis=1), (3, 4), 12),
    "max": (lambda x: pb.max(x, axis=1), (3, 4), 12),
    "matmul": (lambda x: x @ x.mT, (3, 2), 30),
    "softmax": (lambda x: pb.softmax(x, 1), (3, 4), 48),
    "scalar": (lambda x: pb.sum(x * x), (3, 2), 6),
    "nothing": (lambda x: pb.stop_gradient(x), (3,), 0),
    "data decides a branch": (lambda x: pb.where(x > 0, x, 0.0), (6,), 6),
}  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", SPARSE)
def test_sparse_jacobians(name: str) -> None:
    f, shape, count = SPARSE[name]
    x = pb.tensor(draw(4, *shape))
    rows, columns, values = (a.numpy() for a in pb.jacobian(f, x, structure="sparse"))
    dense = pb.jacobian(f, x).numpy()
    dense = dense.reshape(dense.size // x.numpy().size, -1)
    filled = np.zeros_like(dense)
    filled[rows, columns] = values
    assert np.allclose(filled, dense, rtol=1e-13, atol=1e-15)
    assert rows.dtype == columns.dtype == np.int64
    places = list(zip(rows, columns, strict=True))
    assert places == sorted(set(places))
    if count is not None:
        assert len(rows) == count


def test_sparse_jacobians_never_make_the_whole() -> None:
    x = pb.tensor(draw(1, 400))
    y = pb.compute((400,), lambda i: x[i] * x[pb.minimum(i + 1, 399)])
    z = pb.compute((399,), lambda i: y[i] + pb.sin(y[i + 1]))
    rows, _, values = pb.jacobian(z, x, structure="sparse")
    assert rows.shape[0] < 4 * 400
    made = [d for d in topological([values.value]) if d not in topological([z.value])]
    assert max(np.prod([*map(upper, d.extents), 1]) for d in made) < 4 * 400


def test_a_pattern_that_data_decides() -> None:
    """Gathers, edges and an accumulating write: the pattern at the call, and the entries there."""
    x = pb.tensor(draw(1, 6))
    index, ends = pb.tensor(np.array([4, 0, 4, 2])), pb.tensor(np.array([1, 3, 0, 3]))

    def edges(x: Any) -> Any:
        return pb.compute((4,), lambda i: x[index[i]] * x[ends[i]])

    def guarded(x: Any) -> Any:
        far = index * 2
        return pb.compute((4,), lambda i: pb.where(far[i] < 6, pb.sin(x[far[i]]), x[i]))

    def gathered(x: Any) -> Any:
        return pb.grad(lambda z: pb.sum(pb.take(z, index) ** 3))(x)

    functions: list[Any] = [lambda x: pb.sin(pb.take(x, index * 1)), edges, guarded, gathered]
    counts = [4, 8, 6, 3]
    for f, count in zip(functions, counts, strict=True):
        rows, columns, values = pb.jacobian(f, x, structure="sparse")
        dense = pb.jacobian(f, x).numpy()
        found = np.zeros_like(dense)
        found[rows.numpy(), columns.numpy()] = values.numpy()
        np.testing.assert_allclose(found, dense, rtol=1e-12)
        assert len(rows.numpy()) == count


def test_what_a_jacobian_refuses() -> None:
    x = pb.tensor(draw(1, 4))
    index = pb.tensor(np.array([1, 0, 1]))
    with pytest.raises(UnsupportedError, match="indices that are data"):
        pb.jit(lambda x, i: pb.jacobian(pb.take(x, i), x, structure="sparse"))(x, index)
    with pytest.raises(GradientError, match="structure='diagonal'"):
        pb.jacobian(lambda x: x, x, structure="diagonal")
    with pytest.raises(GradientError, match="int64"):
        pb.jacobian(lambda x: x * 1.0, index)
    with pytest.raises(GradientError, match="by what"):
        pb.jacobian(x)

    @pb.custom_vjp
    def f(x: Any) -> Any:
        return x * 2.0

    with pytest.raises(UnsupportedError, match="sparsity of a custom_vjp"):
        pb.jacobian(f, x, structure="sparse")


def test_symbolic_extents() -> None:
    n = pb.dim("n", 1, 8)

    def running(x: Any) -> Any:
        return pb.cumulative_prod(x, axis=0) * pb.flip(x, axis=0)

    def all_of(x: Any) -> Any:
        full = pb.differentiate(running(x), [x])[0]
        moved = pb.jvp(running, x, pb.sin(x))[1]
        rows = pb.vmap(pb.grad(lambda z: pb.sum(pb.sin(z) * z)))(x[:, None])
        return full, moved, rows

    f = pb.jit(all_of, shapes=[(n,)])
    for size in (1, 3, 8):
        x = pb.tensor(draw(1, size))
        for found, expected in zip(f(x), all_of(x), strict=True):
            assert found.shape == expected.shape
            assert np.allclose(found.numpy(), expected.numpy(), rtol=1e-12)
    assert f.traces == 1
