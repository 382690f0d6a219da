"""What laziness means: versions, looks, gradients that accumulate, what is compiled again."""

from __future__ import annotations

import numpy as np
import pytest

import pullback as pb
from pullback.errors import GradientError, UnsupportedError
from pullback.ir.graph import Definition
from pullback.tensor.record import trace


@pytest.fixture(autouse=True)
def _reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULLBACK_BACKEND", "reference")


def test_nothing_is_computed_before_a_look() -> None:
    x = pb.tensor([4]) // pb.tensor([1])
    bad = pb.arange(3)[pb.tensor([7])]
    assert isinstance(x.value, Definition) and isinstance(bad.value, Definition)


def test_a_look_never_changes() -> None:
    p = pb.State(pb.tensor([1.0, 2.0]).value)
    seen = p.numpy()
    y = p * 2
    p.assign(p + 10)
    assert seen.tolist() == [1, 2] and y.tolist() == [2, 4] and p.tolist() == [11, 12]
    assert (p * 2).tolist() == [22, 24]


def test_a_look_does_not_lose_the_derivative() -> None:
    a = pb.tensor([1.0, 2.0])
    c = a * a
    assert c.tolist() == [1, 4]
    assert pb.grad(c.sum(), a).tolist() == [2, 4]
    assert pb.grad((c * c).sum(), c).tolist() == [2, 8]
    lazy = pb.tensor([1.0, 2.0]) * 3
    y = lazy * lazy
    lazy.numpy()
    assert pb.grad(y.sum(), lazy).tolist() == [6, 12]
    state = pb.State((pb.tensor([1.0]) * 3).value)
    y = state * state
    y.numpy()
    assert pb.grad(y.sum(), state).tolist() == [6]
    assert pb.grad((y * state).sum(), state).tolist() == [27]


def test_equal_zeros_are_two_inputs() -> None:
    a, b = pb.zeros(3), pb.zeros(3)
    c = pb.tensor([1.0, 2.0, 3.0])
    assert pb.grad((a * b).sum(), a).tolist() == [0, 0, 0]
    assert pb.grad((a * c).sum(), a).tolist() == [1, 2, 3]
    assert pb.grad((a * b + b * c).sum(), b).tolist() == [1, 2, 3]


@pytest.mark.slow
def test_a_long_chain() -> None:
    x = pb.tensor([0.0])
    y = x
    for _ in range(3000):  # test_trace goes to 10,000
        y = y + 1
    assert y.tolist() == [3000]


def test_an_unchanged_graph_is_not_compiled_again() -> None:
    def run(n: int) -> None:
        x = pb.tensor(np.full((5, 3), n))
        pb.softmax(x @ x.T * 0.5).numpy()

    run(1)
    before = trace.compiled_programs()
    for n in range(4):
        run(n)
    assert trace.compiled_programs() == before


def test_gradients_accumulate_until_they_are_zeroed() -> None:
    w = pb.tensor([1.0, 2.0], requires_grad=True)
    other = pb.tensor([5.0, 5.0])
    for times in (1, 2, 3):
        (w * other).sum().backward()
        assert w.grad is not None and w.grad.tolist() == [5.0 * times] * 2
    w.grad = None
    (w * w).sum().backward()
    assert w.grad.tolist() == [2, 4] and other.grad is None
    with pytest.raises(GradientError):
        (w * w).backward()
    w.grad = None
    (w * w).backward(pb.tensor([1.0, 10.0]))
    assert w.grad.tolist() == [2, 40]


def test_gradients_stop() -> None:
    w = pb.tensor([3.0], requires_grad=True)
    (pb.stop_gradient(w) * w).sum().backward()
    assert w.grad is not None and w.grad.tolist() == [3]
    w.grad = None
    (w.detach() * w * w).sum().backward()
    assert w.grad.tolist() == [18]


def test_gradients_in_a_jitted_loop_accumulate_too() -> None:
    w = pb.State(pb.tensor([1.0]).value)
    w.requires_grad = True

    def step() -> None:
        (w * 3.0).sum().backward()

    @pb.jit
    def run() -> None:
        pb.loop(range(4), step)

    run()
    assert w.grad is not None and w.grad.tolist() == [12]
    run()
    assert w.grad.tolist() == [24]


def test_gradients_zeroed_in_the_block_live_in_it() -> None:
    w = pb.State(pb.tensor([1.0]).value)
    w.requires_grad = True

    def step() -> None:
        w.grad = None
        (w * w).sum().backward()
        assert w.grad is not None
        w.assign(pb.stop_gradient(w - 0.25 * w.grad))

    @pb.jit
    def run() -> None:
        pb.loop(range(3), step)

    run()
    assert w.tolist() == [0.125] and w.grad is None


def test_functions_of_functions() -> None:
    def cube(x: pb.Tensor) -> pb.Tensor:
        return x * x * x

    assert pb.grad(cube)(2.0).item() == 12
    assert pb.grad(pb.grad(cube))(2.0).item() == 12
    value, slope = pb.value_and_grad(cube)(3.0)
    assert (value.item(), slope.item()) == (27, 27)
    x = pb.tensor(3.0)
    both = pb.grad(lambda a, b: a * a * b, argnums=(0, 1))(x, x)
    assert [g.item() for g in both] == [18, 9]
    found = pb.grad(lambda p: p["w"] * p["b"][0])({"w": x, "b": [pb.tensor(2.0)]})
    assert found["w"].item() == 2 and found["b"][0].item() == 3
    with pytest.raises(GradientError, match="not a tensor"):
        pb.grad(lambda a: 3)(x)
    with pytest.raises(GradientError, match="scalar is needed") as caught:
        pb.grad(pb.zeros(3), x)
    assert "^^^" in str(caught.value)
    with pytest.raises(GradientError, match="int64"):
        pb.grad(pb.tensor(1.0), pb.tensor(1))


def test_a_traced_tensor_has_no_value_yet() -> None:
    @pb.jit
    def looks(x: pb.Tensor) -> pb.Tensor:
        if x.sum() > 0:
            return x
        return -x

    with pytest.raises(UnsupportedError, match="traced"):
        looks(pb.tensor([1.0]))
