"""Optimisers against their formulas and PyTorch; schedules; state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from nn_support import draws
from pullback import nn, optim
from pullback.errors import ArgumentError, ShapeError, StateError
from pullback.optim import schedules


@pytest.fixture(autouse=True)
def oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULLBACK_BACKEND", "reference")


def quadratic(p: nn.Parameter) -> Any:
    return (p * p * pb.tensor(np.arange(1.0, 4.0))).sum()


def descend(make: Callable[[list[nn.Parameter]], optim.Optimizer], steps: int = 10) -> np.ndarray:
    """A parameter after `steps` steps on ``sum(n p_n^2)``."""
    p = nn.Parameter(np.array([1.0, -2.0, 0.5]))
    opt = make([p])
    for _ in range(steps):
        opt.zero_grad()
        quadratic(p).backward()
        opt.step()
    return p.numpy()


def slope(p: np.ndarray) -> np.ndarray:
    return 2.0 * p * np.arange(1.0, 4.0)


@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd_formula(nesterov: bool) -> None:
    p, b = np.array([1.0, -2.0, 0.5]), np.zeros(3)
    for _ in range(10):
        d = slope(p) + 0.1 * p
        b = 0.9 * b + d
        p = p - 0.01 * (d + 0.9 * b if nesterov else b)
    found = descend(lambda q: optim.SGD(q, 0.01, momentum=0.9, weight_decay=0.1, nesterov=nesterov))
    np.testing.assert_allclose(found, p, rtol=1e-12)


def test_sgd_dampening_spares_the_first_step() -> None:
    p, b = np.array([1.0, -2.0, 0.5]), np.zeros(3)
    for step in range(10):
        d = slope(p)
        b = d if step == 0 else 0.9 * b + 0.7 * d
        p = p - 0.01 * b
    found = descend(lambda q: optim.SGD(q, 0.01, momentum=0.9, dampening=0.3))
    np.testing.assert_allclose(found, p, rtol=1e-12)


@pytest.mark.parametrize("kind", [optim.Adam, optim.AdamW])
def test_adam_formula(kind: type[optim.Adam]) -> None:
    p, m, v = np.array([1.0, -2.0, 0.5]), np.zeros(3), np.zeros(3)
    for t in range(1, 11):
        g = slope(p) + (0.1 * p if kind is optim.Adam else 0.0)
        m, v = 0.8 * m + 0.2 * g, 0.95 * v + 0.05 * g * g
        if kind is optim.AdamW:
            p = p * (1.0 - 0.01 * 0.1)
        p = p - 0.01 / (1 - 0.8**t) * m / (np.sqrt(v / (1 - 0.95**t)) + 1e-8)
    found = descend(lambda q: kind(q, 0.01, betas=(0.8, 0.95), weight_decay=0.1))
    np.testing.assert_allclose(found, p, rtol=1e-12)


MAKERS: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {"lr": 0.05}),
    ("SGD", {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.1, "nesterov": True}),
    ("SGD", {"lr": 0.05, "momentum": 0.9, "dampening": 0.3}),
    ("Adam", {"lr": 0.05, "weight_decay": 0.1}),
    ("AdamW", {"lr": 0.05, "weight_decay": 0.1, "betas": (0.8, 0.99)}),
]


@pytest.mark.torch
@pytest.mark.parametrize(("name", "settings"), MAKERS, ids=str)
def test_ten_steps_equal_torch(name: str, settings: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    p = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64, requires_grad=True)
    opt = getattr(torch.optim, name)([p], **settings)
    for _ in range(10):
        opt.zero_grad()
        (p * p * torch.arange(1.0, 4.0, dtype=torch.float64)).sum().backward()
        opt.step()
    found = descend(lambda q: getattr(optim, name)(q, **settings))
    np.testing.assert_allclose(found, p.detach().numpy(), rtol=1e-10)


def test_a_schedule_is_the_same_inside_and_outside() -> None:
    plan = (
        schedules.warmup(3)
        + schedules.cosine(1.0, 0.1, 4)
        + schedules.piecewise([(0, 0.5), (2, 0.25)])
    )
    p = nn.Parameter(np.zeros(1))
    opt = optim.SGD([p], lr=1.0, schedule=plan)
    seen = []
    for _ in range(12):
        before = p.numpy()[0]
        opt.zero_grad()
        p.sum().backward()
        opt.step()
        seen.append(before - p.numpy()[0])
    np.testing.assert_allclose(seen, [plan.at(n) for n in range(12)], rtol=1e-12)
    assert seen[2] == 1.0 and seen[-1] == 0.25
    with pytest.raises(ShapeError, match="start at 0"):
        schedules.piecewise([(1, 0.5)])


def test_changing_lr_needs_no_retrace() -> None:
    p = nn.Parameter(np.zeros(2, np.float32))
    opt = optim.SGD([p], lr=0.5)

    @pb.jit
    def step() -> None:
        opt.zero_grad()
        p.sum().backward()
        opt.step()

    step()
    opt.lr = 0.25
    step()
    assert opt.lr == 0.25 and opt.param_groups[0]["lr"] == 0.25
    assert step.traces == 1
    np.testing.assert_array_equal(p.numpy(), -0.75)


def test_groups_have_settings_of_their_own() -> None:
    a, b, c = (nn.Parameter(np.ones(1)) for _ in range(3))
    groups = [{"params": [a]}, {"params": [b], "lr": 0.5}, {"params": c, "weight_decay": 1.0}]
    opt = optim.SGD(groups, lr=0.1)
    (a + b + c).sum().backward()
    opt.step()
    np.testing.assert_allclose([a.item(), b.item(), c.item()], [0.9, 0.5, 0.8])
    with pytest.raises(StateError, match="in two groups"):
        optim.SGD([a, a])
    with pytest.raises(StateError, match="unknown settings"):
        optim.SGD([{"params": [a], "speed": 3}])


def test_state_dict_goes_on_where_it_stopped() -> None:
    def make(p: nn.Parameter) -> optim.AdamW:
        return optim.AdamW([p], 0.05, schedule=schedules.linear(1.0, 0.0, 6))

    def steps(p: nn.Parameter, opt: optim.Optimizer, count: int) -> None:
        for _ in range(count):
            opt.zero_grad()
            quadratic(p).backward()
            opt.step()

    p = nn.Parameter(np.array([1.0, -2.0, 0.5]))
    opt = make(p)
    steps(p, opt, 3)
    saved, at = {n: t.numpy() for n, t in opt.state_dict().items()}, p.numpy()
    steps(p, opt, 3)
    q = nn.Parameter(at)
    again = make(q)
    again.load_state_dict(saved)
    steps(q, again, 3)
    np.testing.assert_array_equal(p.numpy(), q.numpy())
    assert set(saved) == {"step", "lr.0", "state.0.exp_avg", "state.0.exp_avg_sq"}
    with pytest.raises(StateError, match="missing"):
        again.load_state_dict({})


def test_a_parameter_without_gradient_stays() -> None:
    a, b = nn.Parameter(np.ones(2)), nn.Parameter(np.ones(2))
    opt = optim.AdamW([a, b], 0.1)
    a.sum().backward()
    opt.step()
    np.testing.assert_array_equal(b.numpy(), 1.0)
    assert np.all(a.numpy() < 1.0)


def test_an_old_read_keeps_its_value() -> None:
    p = nn.Parameter(np.ones(1))
    opt = optim.SGD([p], 0.5)
    y = p * 2.0
    p.sum().backward()
    opt.step()
    assert (y.item(), p.item()) == (2.0, 0.5)


@pytest.mark.parametrize("order", [1.0, 2.0, 3.0, float("inf")])
def test_clipping_by_norm(order: float) -> None:
    grads = [draws(3), draws(2, 2, seed=1)]
    owners = [nn.Parameter(np.zeros(g.shape)) for g in grads]
    for p, g in zip(owners, grads, strict=True):
        p.grad = pb.tensor(g)
    whole = np.concatenate([g.ravel() for g in grads])
    norm = np.linalg.norm(whole, order)
    assert optim.clip_grad_norm_(owners, 0.5, order).item() == pytest.approx(norm)
    for p, g in zip(owners, grads, strict=True):
        np.testing.assert_allclose(p.grad.numpy(), g * 0.5 / (norm + 1e-6))
    optim.clip_grad_norm_(owners, 100.0, order)
    np.testing.assert_allclose(owners[0].grad.numpy(), grads[0] * 0.5 / (norm + 1e-6))


def test_clipping_by_value() -> None:
    p = nn.Parameter(np.zeros(3))
    p.grad = pb.tensor([-2.0, 0.1, 3.0])
    optim.clip_grad_value_([p], 0.5)
    np.testing.assert_allclose(p.grad.numpy(), [-0.5, 0.1, 0.5], rtol=1e-6)


def test_wrong_settings_are_refused() -> None:
    p = nn.Parameter(np.zeros(1))
    with pytest.raises(ArgumentError, match="0 <= lr"):
        optim.SGD([p], lr=-1.0)
    with pytest.raises(ArgumentError, match="betas"):
        optim.Adam([p], betas=(0.9, 1.0))
    with pytest.raises(ShapeError, match="nesterov"):
        optim.SGD([p], nesterov=True)
    with pytest.raises(ShapeError, match="no parameters"):
        optim.SGD([])
