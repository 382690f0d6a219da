"""Gradients of loops and branches: equal to the unrolled ones, in every nesting and mode."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import nn, optim
from pullback.backends.host.processor import host_target
from pullback.backends.reference.work import executed
from pullback.errors import UnsupportedError
from pullback.ir import expr as E
from pullback.ir.graph import Reduce
from pullback.ir.node import walk
from pullback.lower.kernel import lower
from pullback.lower.whole import scheduled

MODES = ("tape", "recompute", "sqrt")
HOST = host_target()
Array = np.ndarray[Any, Any]


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed + sum(shape)).standard_normal(shape)


def jitted(function: Callable[..., Any], *args: Array) -> tuple[Any, list[Array], Any]:
    """Value, gradient by every argument, and the program that computed them."""
    numbers = tuple(range(len(args)))
    program = pb.jit(lambda *a: pb.value_and_grad(function, argnums=numbers)(*a))
    value, found = program(*args)
    return float(value), [g.numpy() for g in found], program.program


def eager(function: Callable[..., Any], *args: Array) -> tuple[Any, list[Array]]:
    numbers = tuple(range(len(args)))
    tensors = [pb.tensor(a) for a in args]
    value, found = pb.value_and_grad(function, argnums=numbers)(*tensors)
    return float(value), [g.numpy() for g in found]


def same(make: Callable[[str], Any], unrolled: Callable[..., Any], *args: Array) -> None:
    """The gradients in every mode, and outside of a program, are those of `unrolled`."""
    wanted, expected = eager(unrolled, *args)
    runs = [jitted(make(mode), *args)[:2] for mode in MODES]
    runs.append(eager(make("tape"), *args))
    for value, found in runs:
        np.testing.assert_allclose(value, wanted, rtol=1e-12)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def cell(h: Any, x: Any, w: Any) -> Any:
    return pb.tanh(h @ w + x)


def rnn(mode: str) -> Callable[..., Any]:
    def loss(h: Any, xs: Any, w: Any) -> Any:
        def step(h: Any, x: Any) -> Any:
            new = cell(h, x, w)
            return new, new * h

        last, ys = pb.scan(step, h, xs, checkpoint=mode)
        return pb.sum(last * last) + pb.sum(pb.sin(ys))

    return loss


def rnn_unrolled(count: int) -> Callable[..., Any]:
    def loss(h: Any, xs: Any, w: Any) -> Any:
        total = pb.sum(h * 0.0)
        for k in range(count):
            new = cell(h, xs[k], w)
            total = total + pb.sum(pb.sin(new * h))
            h = new
        return total + pb.sum(h * h)

    return loss


def rnn_in_numpy(h: Array, xs: Array, w: Array) -> tuple[float, list[Array]]:
    """The value of `rnn` and its gradients, written by hand."""
    states = [h]
    for x in xs:
        states.append(np.tanh(states[-1] @ w + x))
    value = np.sum(states[-1] ** 2)
    dh, dxs, dw = 2 * states[-1], np.zeros_like(xs), np.zeros_like(w)
    for k in reversed(range(len(xs))):
        old, new = states[k], states[k + 1]
        value += np.sum(np.sin(new * old))
        dy = np.cos(new * old)
        dxs[k] = (dh + dy * old) * (1 - new**2)
        dw += old.T @ dxs[k]
        dh = dxs[k] @ w.T + dy * new
    return value, [dh, dxs, dw]


@pytest.mark.sampled(9)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("count", [0, 1, 7, 100])
def test_scan(count, mode):
    args = normal(2, 3), normal(count, 2, 3), 0.4 * normal(3, 3)
    value, expected = rnn_in_numpy(*args)
    runs = [jitted(rnn(mode), *args)[:2]]
    if count < 10 and mode == "tape":
        runs += [eager(rnn(mode), *args), eager(rnn_unrolled(count), *args)]
    for found in runs:
        np.testing.assert_allclose(found[0], value, rtol=1e-12)
        for a, b in zip(found[1], expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("steps", [range(0), range(1), range(3, 17, 2), range(5, 0, -1)])
def test_loop(steps):
    def body(i: Any, c: Any, w: Any) -> Any:
        a, b = c
        return pb.sin(a * w) + b, b * 0.9 + pb.astype(i, "float64") * 0.01 * a

    def looped(mode: str, a: Any, w: Any) -> Any:
        c = pb.loop(steps, lambda i, c: body(i, c, w), carry=(a, a * 2.0), checkpoint=mode)
        return pb.sum(c[0] * c[1])

    def unrolled(a: Any, w: Any) -> Any:
        c = a, a * 2.0
        for i in steps:
            c = body(pb.asarray(i), c, w)
        return pb.sum(c[0] * c[1])

    same(partial(partial, looped), unrolled, normal(4), normal(4, seed=1))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("bound", [40, None])
@pytest.mark.parametrize("limit", [0.0, 2.0, 20.0])
def test_while_loop(limit, bound):
    def looped(mode: str, x: Any, w: Any) -> Any:
        y = pb.while_loop(
            lambda c: pb.sum(c * c) < limit,
            lambda c: c * 1.3 + pb.sin(w) * pb.exp(-c),
            x,
            max_steps=bound,
            checkpoint=mode,
        )
        return pb.sum(y * y * y)

    def unrolled(x: Any, w: Any) -> Any:
        while float(pb.sum(x * x)) < limit:
            x = x * 1.3 + pb.sin(w) * pb.exp(-x)
        return pb.sum(x * x * x)

    same(partial(partial, looped), unrolled, normal(3) * 0.1, normal(3, seed=2))


@pytest.mark.parametrize("mode", MODES)
def test_while_loop_stops_at_its_bound(mode):
    def looped(x: Any) -> Any:
        step = lambda c: c * 2.0
        return pb.while_loop(lambda c: c < 1e9, step, x, max_steps=7, checkpoint=mode)

    value, (gradient,), _ = jitted(looped, np.array(1.5))
    assert value == 1.5 * 128 and gradient == 128
    assert eager(looped, np.array(1.5)) == (1.5 * 128, [128])


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_cond(sign):
    def branched(mode: str, x: Any, w: Any) -> Any:
        y = pb.cond(x[0] > 0, lambda x: pb.exp(x) * w, lambda x: pb.sin(x), x * 2.0)
        return pb.sum(y * y)

    def unrolled(x: Any, w: Any) -> Any:
        y = pb.exp(x * 2.0) * w if sign > 0 else pb.sin(x * 2.0)
        return pb.sum(y * y)

    same(partial(partial, branched), unrolled, sign * np.abs(normal(4)), normal(4, seed=3))


def test_cond_in_a_scan():
    def step(c: Any, x: Any) -> Any:
        new = pb.cond(pb.sum(x) > 0, lambda: pb.sin(c) + x, lambda: c * x)
        return new, pb.sum(new)

    def looped(mode: str, c: Any, xs: Any) -> Any:
        c, ys = pb.scan(step, c, xs, checkpoint=mode)
        return pb.sum(c) + pb.sum(ys * ys)

    def unrolled(c: Any, xs: Any) -> Any:
        total = pb.sum(c * 0.0)
        for k in range(9):
            c = pb.sin(c) + xs[k] if float(pb.sum(xs[k])) > 0 else c * xs[k]
            total = total + pb.sum(c) * pb.sum(c)
        return pb.sum(c) + total

    same(partial(partial, looped), unrolled, normal(3), normal(9, 3))


@pytest.mark.slow
def test_scan_in_a_scan():
    def looped(mode: str, c: Any, xs: Any, w: Any) -> Any:
        def outer(c: Any, block: Any) -> Any:
            def inner(d: Any, x: Any) -> Any:
                new = pb.tanh(d * w + x * c)
                return new, new * x

            d, ys = pb.scan(inner, c * 0.5, block, checkpoint=mode)
            return d + c, pb.sum(ys)

        c, ys = pb.scan(outer, c, xs, checkpoint=mode)
        return pb.sum(c * c) + pb.sum(ys * ys)

    def unrolled(c: Any, xs: Any, w: Any) -> Any:
        total = pb.sum(c * 0.0)
        for k in range(3):
            d, own = c * 0.5, pb.sum(c * 0.0)
            for n in range(4):
                d = pb.tanh(d * w + xs[k, n] * c)
                own = own + pb.sum(d * xs[k, n])
            c = d + c
            total = total + own * own
        return pb.sum(c * c) + total

    same(partial(partial, looped), unrolled, normal(3), normal(3, 4, 3), normal(3, seed=4))


@pytest.mark.slow
def test_second_order_through_a_scan():
    def twice(loss: Callable[..., Any]) -> Callable[..., Any]:
        def norm(h: Any, xs: Any, w: Any) -> Any:
            by = pb.grad(loss, argnums=(0, 1, 2))(h, xs, w)
            return sum((pb.sum(g * g) for g in by[1:]), start=pb.sum(by[0] * by[0]))

        return norm

    args = normal(2, 3), normal(3, 2, 3), 0.4 * normal(3, 3)
    same(lambda mode: twice(rnn(mode)), twice(rnn_unrolled(3)), *args)


def test_a_gradient_step_inside_a_loss():
    def inner(p: Any, x: Any) -> Any:
        return pb.sum((pb.tanh(x * p) - 0.3) ** 2)

    def looped(mode: str, p: Any, rate: Any, x: Any) -> Any:
        step = pb.grad(inner)
        p = pb.loop(6, lambda i, p: p - rate * step(p, x), carry=p, checkpoint=mode)
        return inner(p, x * 1.5)

    def unrolled(p: Any, rate: Any, x: Any) -> Any:
        for _ in range(6):
            p = p - rate * pb.grad(inner)(p, x)
        return inner(p, x * 1.5)

    same(partial(partial, looped), unrolled, normal(4), np.array(0.2), normal(4, seed=5))


@pytest.mark.parametrize("mode", MODES)
def test_random_masks_of_a_loop_are_those_of_its_backward(mode):
    def looped(c: Any, xs: Any) -> Any:
        def step(c: Any, x: Any) -> Any:
            mask = pb.random.uniform((4,), dtype="float64")
            return pb.sin(c + x * mask), mask

        c, masks = pb.scan(step, c, xs, checkpoint=mode)
        return pb.sum(c), masks

    @pb.jit
    def f(c: Any, xs: Any) -> Any:
        value, masks = looped(c, xs)
        return pb.grad(value, [c, xs]), masks

    pb.random.manual_seed(3)
    c, xs = normal(4), normal(9, 4)
    (dc, dxs), masks = f(c, xs)
    drawn = masks.numpy()
    assert len(np.unique(drawn)) == drawn.size

    def known(c: Any, xs: Any) -> Any:
        for k in range(9):
            c = pb.sin(c + xs[k] * pb.tensor(drawn[k]))
        return pb.sum(c)

    _, expected = eager(known, c, xs)
    np.testing.assert_allclose(dc.numpy(), expected[0], rtol=1e-12)
    np.testing.assert_allclose(dxs.numpy(), expected[1], rtol=1e-12)


@pytest.mark.parametrize("batches", [0, 1, 5, 9])
@pytest.mark.parametrize("mode", MODES)
def test_a_feeder_that_ends_the_loop(batches, mode):
    data = normal(9, 3)

    def program(count: int) -> Any:
        left = iter(data[:count])

        @pb.jit
        def f(w: Any) -> Any:
            def step(i: Any, c: Any) -> Any:
                x = pb.Feeder(lambda: next(left), shape=(3,), dtype="float64")
                return pb.tanh(c * w + x)

            return pb.grad(pb.sum(pb.loop(7, step, carry=w * 0.5, checkpoint=mode)), w)

        return f

    def unrolled(w: Any) -> Any:
        c = w * 0.5
        for k in range(min(batches, 7)):
            c = pb.tanh(c * w + pb.tensor(data[k]))
        return pb.sum(c)

    w = normal(3, seed=6)
    found = program(batches)(w)
    np.testing.assert_allclose(found.numpy(), eager(unrolled, w)[1][0], rtol=1e-12)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", ["scan", "while_loop"])
@pytest.mark.parametrize("batches", range(0, 9, 2))
def test_a_feeder_ends_all_chunks_of_a_loop(kind, batches):
    data = normal(9, 3)
    left = [*data[:batches], None, *data]  # what comes after the end is of no concern

    def batch() -> Array:
        found = left.pop(0)
        if found is None:
            raise StopIteration
        return found

    def step(c: Any, w: Any) -> Any:
        return pb.tanh(c * w + pb.Feeder(batch, shape=(3,), dtype="float64"))

    @pb.jit
    def f(w: Any, xs: Any) -> Any:
        if kind == "while_loop":
            start = w * 0.5, pb.tensor(0)
            more = lambda s: s[1] < 7
            body = lambda s: (step(s[0], w), s[1] + 1)
            last = pb.while_loop(more, body, start, max_steps=8, checkpoint="sqrt")[0]
            return pb.grad(pb.sum(last), [w])
        body = lambda c, x: (step(c, w) * x, c)
        last, ys = pb.scan(body, w * 0.5, xs, checkpoint="sqrt")
        return pb.grad(pb.sum(last) + pb.sum(ys * ys), [w, xs])

    def unrolled(w: Any, xs: Any) -> Any:
        c, total = w * 0.5, pb.sum(w * 0.0)
        for k in range(min(batches, 7)):
            total = total + pb.sum(c * c)
            c = pb.tanh(c * w + pb.tensor(data[k]))
            c = c * xs[k] if kind == "scan" else c
        return pb.sum(c) + (total if kind == "scan" else 0.0)

    w, xs = normal(3, seed=6), normal(7, 3, seed=8)
    for found, wanted in zip(f(w, xs), eager(unrolled, w, xs)[1], strict=False):
        np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-11, atol=1e-13)


@pytest.mark.slow
def test_forward_mode_and_hessians():
    def forms(c: Any, xs: Any, w: Any) -> Any:
        def step(c: Any, x: Any) -> Any:
            new = pb.cond(pb.sum(x) > 0, lambda: pb.sin(c * w) + x, lambda: c * x)
            return new, new * w

        c, ys = pb.scan(step, c, xs)
        more = pb.while_loop(lambda v: pb.sum(v * v) < 9, lambda v: v * 1.5, c, max_steps=9)
        return pb.sum(c * more) + pb.sum(ys * ys)

    primals = normal(3), normal(6, 3), normal(3, seed=4)
    along = normal(3, seed=7), normal(6, 3, seed=8), normal(3, seed=9)
    for function in (pb.jvp, pb.hvp):

        @pb.jit
        def found(p: Any, t: Any, function: Any = function) -> Any:
            return function(forms, p, t)

        tensors = tuple(map(pb.tensor, primals)), tuple(map(pb.tensor, along))
        outside = function(forms, *tensors)
        for a, b in zip(found(primals, along), outside, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-10)


def test_derivatives_by_hand_inside_a_loop():
    @pb.custom_vjp
    def loud(x: Any) -> Any:
        return pb.sin(x)

    loud.defvjp(lambda x: (pb.sin(x), x), lambda x, g: (g * pb.cos(x) * 3.0,))

    @pb.custom_jvp
    def steep(x: Any) -> Any:
        return pb.tanh(x)

    @steep.defjvp
    def along(primals: Any, tangents: Any) -> Any:
        return steep(*primals), tangents[0] * pb.cos(primals[0]) * 2.0

    def loss(mode: str, c: Any, xs: Any) -> Any:
        step = lambda c, x: (loud(c * x) + steep(c), None)
        return pb.sum(pb.scan(step, c, xs, checkpoint=mode)[0])

    same(partial(partial, loss), partial(loss, "tape"), normal(3), normal(5, 3))


class Recurrent(nn.Module):
    """An LSTM over a scan (or unrolled), and a linear layer on each of its states."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.by_input = nn.Linear(width, 4 * hidden)
        self.by_state = nn.Linear(hidden, 4 * hidden)
        self.out = nn.Linear(hidden, 1)

    def step(self, state: Any, x: Any) -> Any:
        h, c = state
        gates = self.by_input(x) + self.by_state(h)
        i, f, u, o = (gates[:, k * self.hidden : (k + 1) * self.hidden] for k in range(4))
        c = pb.sigmoid(f) * c + pb.sigmoid(i) * pb.tanh(u)
        h = pb.sigmoid(o) * pb.tanh(c)
        return (h, c), self.out(h)

    def forward(self, xs: Any, mode: str) -> Any:
        start = pb.zeros((xs.shape[1], self.hidden))
        if mode != "unrolled":
            return pb.scan(self.step, (start, start), xs, checkpoint=mode)[1]
        state, rows = (start, start), []
        for k in range(xs.shape[0]):
            state, row = self.step(state, xs[k])
            rows.append(row)
        return pb.stack(rows, axis=0)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("mode", MODES)
def test_a_whole_training_of_an_lstm_is_one_program(mode):
    xs = normal(7, 2, 3).astype(np.float32)
    ys = np.cumsum(xs, 0)[..., :1]

    def losses(mode: str) -> list[float]:
        pb.random.manual_seed(1)
        model = Recurrent(3, 5)
        optimizer = optim.Adam(model.parameters(), lr=0.02)
        x, y = pb.tensor(xs), pb.tensor(ys)
        seen: list[float] = []

        def step() -> None:
            optimizer.zero_grad()
            loss = pb.mean((model(x, mode) - y) ** 2)
            loss.backward()
            optimizer.step()
            pb.Receiver(lambda v: seen.append(float(v)), loss)

        pb.jit(lambda: pb.loop(6, step))()
        return seen

    found = losses(mode)
    assert found[-1] < 0.95 * found[0]
    np.testing.assert_allclose(found, losses("unrolled"), rtol=1e-5)


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_cells_through_a_scan_equal_those_of_torch(kind):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")

    width, hidden, batch, steps = 3, 4, 2, 9
    layer = getattr(torch.nn, kind)(width, hidden).double()
    names = ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0"]
    xs = normal(steps, batch, width)
    weights = [getattr(layer, n) for n in names]
    given = torch.tensor(xs, requires_grad=True)
    rows = layer(given)[0]
    loss = torch.sum(torch.sin(rows) * torch.arange(1.0, steps + 1).double()[:, None, None])
    expected = [g.numpy() for g in torch.autograd.grad(loss, [given, *weights])]

    def parts(gates: Any) -> list[Any]:
        count = gates.shape[1] // hidden
        return [gates[:, k * hidden : (k + 1) * hidden] for k in range(count)]

    def lstm(state: Any, x: Any, wx: Any, wh: Any, bx: Any, bh: Any) -> Any:
        h, c = state
        i, f, u, o = parts(x @ wx.T + bx + h @ wh.T + bh)
        c = pb.sigmoid(f) * c + pb.sigmoid(i) * pb.tanh(u)
        h = pb.sigmoid(o) * pb.tanh(c)
        return (h, c), h

    def gru(state: Any, x: Any, wx: Any, wh: Any, bx: Any, bh: Any) -> Any:
        (r, z, n), (hr, hz, hn) = parts(x @ wx.T + bx), parts(state[0] @ wh.T + bh)
        r, z = pb.sigmoid(r + hr), pb.sigmoid(z + hz)
        h = (1.0 - z) * pb.tanh(n + r * hn) + z * state[0]
        return (h, h), h

    cell = lstm if kind == "LSTM" else gru

    def scanned(mode: str, xs: Any, *weights: Any) -> Any:
        start = pb.zeros((batch, hidden), dtype="float64")
        step = lambda s, x: cell(s, x, *weights)
        ys = pb.scan(step, (start, start), xs, checkpoint=mode)[1]
        scale = pb.arange(1, steps + 1, dtype="float64").reshape(steps, 1, 1)
        return pb.sum(pb.sin(ys) * scale)

    arrays = [w.detach().numpy() for w in weights]
    for mode in MODES:
        value, found, _ = jitted(partial(scanned, mode), xs, *arrays)
        np.testing.assert_allclose(value, loss.item(), rtol=1e-12)
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_code_size_does_not_depend_on_the_trip_count():
    for mode in MODES:
        sizes = []
        for count in (16, 100):
            args = normal(2, 3), normal(count, 2, 3), 0.4 * normal(3, 3)
            sizes.append(len(jitted(rnn(mode), *args)[2].kernels))
        assert sizes[0] == sizes[1] < 60


def test_a_scan_writes_a_row_a_step():
    stores = []
    for count in (10, 1000):
        program = jitted(rnn("tape"), normal(2, 3), normal(count, 2, 3), normal(3, 3))[2]
        inside = [k for k in program.kernels if any("step" in v.name for v in k.reads)]
        routines = [lower(k, scheduled(k, HOST)) for k in inside]
        stores.append(sum(executed(r).stores for r in routines))
    assert 0 < stores[1] < 1.5 * stores[0]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("batch", "mode", "late"), [(2, "tape", True), (2, "recompute", False), (12, "tape", False)]
)
def test_gradients_of_weights_are_summed_after_the_loop(batch: int, mode: str, late: bool) -> None:
    """Where rows are kept, and a step has less of them than there are weights."""
    args = normal(batch, 16), normal(7, batch, 16), 0.4 * normal(16, 16)
    value, found, program = jitted(rnn(mode), *args)
    sums = [s.form.over for k in program.kernels for s in k.stages if isinstance(s.form, Reduce)]
    assert ((7, batch) in sums) == late
    wanted, expected = rnn_in_numpy(*args)
    np.testing.assert_allclose(value, wanted, rtol=1e-12)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def test_derivatives_read_the_gates_that_a_loop_has_stored() -> None:
    """Of ``tanh`` and ``sigmoid`` their values: the backward computes no exponential."""
    model, x = nn.GRU(16, 16), normal(5, 2, 16).astype(np.float32)

    @pb.jit
    def train(x: Any) -> Any:
        loss = pb.sum(model(x)[0] ** 2)
        loss.backward()
        return loss

    train(x)
    stages = [s for k in train.program.kernels for s in k.stages]
    dear = [s for s in stages if any(isinstance(n, E.Exp) for n in walk(s.body))]
    assert dear and not any(s.target.name.startswith("d") for s in dear)


def test_views_of_rows_that_data_name():
    @pb.jit
    def f(x: Any, places: Any) -> Any:
        return pb.take(x.reshape(4, 5), places, axis=0)

    x = np.arange(20.0)
    assert f(x, np.array([1, 3])).numpy().tolist() == x.reshape(4, 5)[[1, 3]].tolist()


@pytest.mark.slow
def test_memory_of_the_three_modes():
    def loss(mode: str) -> Callable[..., Any]:
        def f(h: Any, xs: Any, w: Any) -> Any:
            def step(h: Any, x: Any) -> Any:
                a = pb.exp(-(h @ w) * x)
                return pb.tanh(a) + pb.sin(a * h), None

            return pb.sum(pb.scan(step, h, xs, checkpoint=mode)[0])

        return f

    args = normal(8, 32), normal(100, 8, 1), 0.1 * normal(32, 32)
    found = {m: jitted(loss(m), *args) for m in MODES}
    arenas = [found[m][2].memory.arena_bytes for m in MODES]
    assert arenas[0] > 1.5 * arenas[1] and arenas[1] > 2.5 * arenas[2]
    for mode in MODES[1:]:
        for a, b in zip(found[mode][1], found["tape"][1], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10)


@pytest.mark.parametrize("jit", [True, False])
def test_checkpoint(jit):
    @pb.checkpoint
    def block(x: Any, w: Any) -> Any:
        for _ in range(3):
            x = pb.tanh(x @ w)
        return x

    def loss(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x, w: pb.sum(function(function(x, w), w) ** 2)

    args = normal(3, 4), normal(4, 4)
    expected = eager(loss(block.__wrapped__), *args)
    found = (jitted if jit else eager)(loss(block), *args)
    for a, b in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)


@pytest.mark.slow
def test_checkpoint_keeps_less():
    def block(x: Any, w: Any) -> Any:
        for _ in range(4):
            x = pb.tanh(x @ w)
        return x

    def loss(function: Callable[..., Any]) -> Callable[..., Any]:
        def f(x: Any, w: Any) -> Any:
            for _ in range(4):
                x = function(x, w)
            return pb.sum(x)

        return f

    args = normal(64, 16), 0.1 * normal(16, 16)
    plain = jitted(loss(block), *args)
    less = jitted(loss(pb.checkpoint(block)), *args)
    assert less[2].memory.arena_bytes < 0.7 * plain[2].memory.arena_bytes
    for a, b in zip(less[1], plain[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10)


def test_finite_differences_of_a_scan():
    loss = rnn("tape")
    args = [normal(2, 3), normal(7, 2, 3), 0.4 * normal(3, 3)]
    _, found, _ = jitted(loss, *args)
    value = pb.jit(loss)
    for place, gradient in enumerate(found):
        way = normal(*args[place].shape, seed=9)
        moved = [
            [a + h * way if n == place else a for n, a in enumerate(args)] for h in (1e-6, -1e-6)
        ]
        slope = (float(value(*moved[0])) - float(value(*moved[1]))) / 2e-6
        np.testing.assert_allclose(slope, np.sum(gradient * way), rtol=1e-7)


def test_wrong_modes_are_refused():
    with pytest.raises(UnsupportedError, match="tapes"):
        pb.loop(3, lambda i, c: c, carry=pb.tensor(1.0), checkpoint="tapes")


def test_a_data_index_behind_a_guard_that_reads() -> None:
    """The index of a read is checked only where it is taken, in conditions too."""
    x, rows = pb.tensor(np.arange(6.0)), pb.tensor(np.array([1, 0]))

    def body(i: Any) -> Any:
        near = pb.where(i < 2, x[rows[i % 2] * 3 + i], 0.0)
        return pb.where(i < 2, pb.where(near > 1.0, x[rows[i % 2] + i], -near), 7.0)

    found = pb.jit(lambda: pb.compute((4,), body))()
    np.testing.assert_array_equal(found.numpy(), [1.0, -1.0, 7.0, 7.0])


def test_gates_of_one_body_in_a_scan() -> None:
    """Parts of a body that are guarded by place, in conditions of other parts."""

    def f(g: Any, h0: Any) -> Any:
        def step(h: Any, gx: Any) -> Any:
            a = pb.compute((4,), lambda j: pb.sigmoid(gx[j] + h[j % 2]))
            new = pb.compute((2,), lambda j: pb.tanh(gx[4 + j] * a[j]))
            out = pb.compute((2,), lambda j: new[j] + a[2 + j] * (h[j] - new[j]))
            return out, out

        ys = pb.scan(step, h0, g)[1]
        return pb.grad((ys * ys).sum(), [g, h0])

    g = pb.tensor(np.linspace(-2.0, 3.0, 18).reshape(3, 6))
    h = pb.tensor(np.array([0.3, -0.8]))
    for one, two in zip(pb.jit(f)(g, h), f(g, h), strict=True):
        np.testing.assert_allclose(one.numpy(), two.numpy(), rtol=1e-10, atol=1e-12)
