"""A hundred steps of each optimiser beside PyTorch's, in one program; ranges of settings; state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import nn, optim
from pullback.errors import ArgumentError, PullbackError, ShapeError
from pullback.ir.dtype import float64

STEPS = 100
SCALE = np.arange(1.0, 13.0).reshape(3, 4) / 4.0
BEGIN = np.sin(np.arange(12.0)).reshape(3, 4) * 2.0
BIAS = np.array([0.5, -1.5, 0.25, 2.0])

SETTINGS: list[tuple[str, dict[str, Any]]] = [
    ("Adagrad", {}),
    ("Adagrad", {"lr": 0.1, "lr_decay": 0.01, "weight_decay": 0.1, "eps": 1e-3}),
    ("Adagrad", {"initial_accumulator_value": 0.5, "maximize": True}),
    ("Adadelta", {}),
    ("Adadelta", {"rho": 0.7, "eps": 1e-4, "weight_decay": 0.1, "maximize": True}),
    ("RMSprop", {}),
    ("RMSprop", {"momentum": 0.9, "weight_decay": 0.1, "alpha": 0.9}),
    ("RMSprop", {"centered": True, "momentum": 0.5, "eps": 1e-2, "maximize": True}),
    ("Adamax", {}),
    ("Adamax", {"betas": (0.8, 0.95), "weight_decay": 0.1, "maximize": True}),
    ("NAdam", {}),
    ("NAdam", {"betas": (0.8, 0.95), "weight_decay": 0.1, "momentum_decay": 0.02}),
    ("NAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True}),
    ("RAdam", {}),
    ("RAdam", {"betas": (0.8, 0.95), "weight_decay": 0.1}),
    ("RAdam", {"weight_decay": 0.1, "decoupled_weight_decay": True, "maximize": True}),
    ("Rprop", {}),
    ("Rprop", {"etas": (0.3, 1.5), "step_sizes": (1e-3, 0.2), "maximize": True}),
    ("ASGD", {}),
    ("ASGD", {"lambd": 0.1, "alpha": 0.5, "t0": 20.0, "weight_decay": 0.1, "maximize": True}),
    ("Adafactor", {}),
    ("Adafactor", {"lr": 3e-3, "beta2_decay": -0.5, "eps": (1e-8, 1e-2), "d": 1.5}),
    ("Adafactor", {"lr": 3e-3, "weight_decay": 0.1, "maximize": True}),
    ("SGD", {"lr": 0.01, "momentum": 0.9, "maximize": True}),
    ("Adam", {"amsgrad": True}),
    ("AdamW", {"amsgrad": True, "maximize": True}),
]


def loss(w: Any, b: Any, scale: Any, wave: Callable[[Any], Any]) -> Any:
    """Neither convex nor with one scale."""
    return (scale * w * w).sum() + wave(w * 3.0).sum() + ((w @ b) * (w @ b)).sum() * 0.1


def trained(make: Callable[[list[nn.Parameter]], optim.Optimizer]) -> list[np.ndarray]:
    """A matrix and a vector after `STEPS` steps in one program."""
    owned = [nn.Parameter(BEGIN), nn.Parameter(BIAS)]
    opt = make(owned)
    scale = pb.tensor(SCALE)

    def step() -> None:
        opt.zero_grad()
        loss(*owned, scale, pb.sin).backward()
        opt.step()

    program = pb.jit(lambda: pb.loop(STEPS, step))
    program()
    assert opt.steps.item() == STEPS or not opt.counts
    return [p.numpy() for p in owned]


def torch_trained(make: Callable[[list[Any]], Any]) -> list[np.ndarray]:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    owned = [torch.tensor(a, requires_grad=True) for a in (BEGIN, BIAS)]
    opt = make(owned)
    for _ in range(STEPS):
        opt.zero_grad()
        loss(*owned, torch.tensor(SCALE), torch.sin).backward()
        opt.step()
    return [p.detach().numpy() for p in owned]


@pytest.fixture
def double() -> Any:
    """PyTorch keeps products of momenta in its default type."""
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield torch
    torch.set_default_dtype(before)


@pytest.mark.torch
@pytest.mark.parametrize(("name", "settings"), SETTINGS, ids=str)
def test_a_hundred_steps_equal_torch(double: Any, name: str, settings: dict[str, Any]) -> None:
    found = trained(lambda owned: getattr(optim, name)(owned, **settings))
    wanted = torch_trained(lambda owned: getattr(double.optim, name)(owned, **settings))
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


def lion(p: np.ndarray, g: Callable[[np.ndarray], np.ndarray], decay: float) -> np.ndarray:
    """The published algorithm 2, line by line."""
    m = np.zeros_like(p)
    for _ in range(STEPS):
        grad = g(p)
        update = 0.8 * m + (1 - 0.8) * grad
        m = 0.95 * m + (1 - 0.95) * grad
        p = p - 0.01 * (np.sign(update) + decay * p)
    return p


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_lion_is_its_definition(decay: float) -> None:
    p, scale = nn.Parameter(BEGIN), pb.tensor(SCALE)
    opt = optim.Lion([p], 0.01, betas=(0.8, 0.95), weight_decay=decay)

    def step() -> None:
        opt.zero_grad()
        ((p - 0.3) ** 2 * scale).sum().backward()
        opt.step()

    pb.jit(lambda: pb.loop(STEPS, step))()
    wanted = lion(BEGIN, lambda x: 2.0 * (x - 0.3) * SCALE, decay)
    np.testing.assert_allclose(p.numpy(), wanted, rtol=1e-10, atol=1e-10)


MUON: list[dict[str, Any]] = [
    {},
    {"nesterov": False, "weight_decay": 0.0, "momentum": 0.8},
    {"adjust_lr_fn": "match_rms_adamw", "ns_steps": 3, "eps": 1e-3},
]


@pytest.mark.torch
@pytest.mark.parametrize("settings", MUON, ids=str)
@pytest.mark.parametrize("shape", [(3, 5), (6, 2)], ids=str)
@pytest.mark.parametrize("wide", [True, False])
def test_muon_equals_torch(
    double: Any,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    shape: tuple[int, int],
    wide: bool,
) -> None:
    """In float64 to 1e-10; as it is, bfloat16 inside, to a few of its roundings."""
    begin = np.random.default_rng(0).normal(size=shape)
    if wide:
        monkeypatch.setattr(optim.Muon, "kind", float64)
        monkeypatch.setattr(double.Tensor, "bfloat16", double.Tensor.clone)
    p, q = nn.Parameter(begin), double.tensor(begin, requires_grad=True)
    mine = optim.Muon([p], 0.01, **settings)
    theirs = double.optim.Muon([q], 0.01, **settings)

    def step() -> None:
        mine.zero_grad()
        (p * p * p + pb.sin(p)).sum().backward()
        mine.step()

    pb.jit(lambda: pb.loop(STEPS, step))()
    for _ in range(STEPS):
        theirs.zero_grad()
        (q * q * q + double.sin(q)).sum().backward()
        theirs.step()
    bound = 1e-10 if wide else 0.02
    np.testing.assert_allclose(p.numpy(), q.detach().numpy(), rtol=bound, atol=bound)


def optimisers() -> list[str]:
    made = [getattr(optim, name) for name in optim.__all__]
    kinds = [m for m in made if isinstance(m, type) and issubclass(m, optim.Optimizer)]
    return [k.__name__ for k in kinds if k is not optim.Optimizer]


RATES = (-1.0, float("nan"), float("inf"), "fast")
BAD: list[tuple[str, dict[str, Any]]] = [
    *((name, {"lr": bad}) for name in optimisers() for bad in RATES),
    ("SGD", {"momentum": -0.1}),
    ("SGD", {"weight_decay": float("nan")}),
    ("Adam", {"betas": (0.9, 1.0)}),
    ("AdamW", {"betas": (-0.1, 0.9)}),
    ("AdamW", {"eps": -1e-8}),
    ("Adagrad", {"lr_decay": -1.0}),
    ("Adagrad", {"initial_accumulator_value": -1.0}),
    ("Adadelta", {"rho": 1.5}),
    ("RMSprop", {"alpha": -0.5}),
    ("RMSprop", {"momentum": float("nan")}),
    ("Adamax", {"betas": (0.9, float("nan"))}),
    ("NAdam", {"momentum_decay": -1.0}),
    ("RAdam", {"betas": (1.0, 0.9)}),
    ("Rprop", {"etas": (1.2, 0.5)}),
    ("Rprop", {"step_sizes": (-1.0, 1.0)}),
    ("Rprop", {"step_sizes": (2.0, 1.0)}),
    ("ASGD", {"lambd": -1.0}),
    ("Adafactor", {"beta2_decay": 0.5}),
    ("Adafactor", {"d": 0.5}),
    ("Adafactor", {"eps": (-1.0, 1e-3)}),
    ("Lion", {"betas": (0.9, 1.0)}),
    ("Muon", {"ns_steps": 100}),
    ("Muon", {"ns_steps": 2.5}),
    ("Rprop", {"etas": (0.5, float("nan"))}),
    ("Muon", {"momentum": -1.0}),
    ("Muon", {"adjust_lr_fn": "other"}),
]


@pytest.mark.parametrize(("name", "bad"), BAD, ids=str)
def test_a_setting_out_of_range_is_refused(name: str, bad: dict[str, Any]) -> None:
    p = nn.Parameter(BEGIN)
    code = "E124" if "adjust_lr_fn" in bad else "E176"
    with pytest.raises(PullbackError, match=code) as refused:
        getattr(optim, name)([p], **bad)
    assert "test_optim_rules.py" in str(refused.value)
    with pytest.raises(PullbackError, match=code):
        getattr(optim, name)([{"params": [p], **bad}])


@pytest.mark.parametrize("bad", [-1.0, float("nan"), "fast"])
def test_a_learning_rate_set_later_is_checked(bad: Any) -> None:
    opt = optim.Adagrad([nn.Parameter(BEGIN)])
    with pytest.raises(ArgumentError, match="Adagrad: lr"):
        opt.lr = bad
    with pytest.raises(ArgumentError, match="lr"):
        opt.param_groups[0]["lr"] = bad


def test_muon_takes_matrices() -> None:
    with pytest.raises(ShapeError, match=r"matrices.*E111"):
        optim.Muon([nn.Parameter(BIAS)])


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", optimisers())
def test_state_goes_on_where_it_stopped(name: str) -> None:
    """Eager steps, one program and a reloaded state take one path; float32 stays float32."""
    begin = BEGIN.astype(np.float32)

    def steps(p: nn.Parameter, opt: optim.Optimizer, count: int) -> None:
        for _ in range(count):
            opt.zero_grad()
            ((p - 0.3) * (p - 0.3)).sum().backward()
            opt.step()

    p = nn.Parameter(begin)
    opt = getattr(optim, name)([p])
    steps(p, opt, 2)
    saved, at = {n: t.numpy() for n, t in opt.state_dict().items()}, p.numpy()
    steps(p, opt, 2)
    q = nn.Parameter(at)
    again = getattr(optim, name)([q])
    again.load_state_dict(saved)
    pb.jit(lambda: pb.loop(2, lambda: steps(q, again, 1)))()
    assert q.dtype == p.dtype == pb.float32
    np.testing.assert_array_equal(p.numpy(), q.numpy())
    assert np.any(p.numpy() != begin)


def valley(x: Any, wave: Callable[[Any], Any]) -> Any:
    """Rosenbrock's function with waves: neither convex nor with one scale."""
    a, b = x[1:], x[:-1]
    steep = (100.0 * (a - b * b) * (a - b * b) + (1.0 - b) * (1.0 - b)).sum()
    return steep + 0.1 * wave(3.0 * x).sum()


SEARCHES: list[dict[str, Any]] = [
    {"lr": 0.01, "max_iter": 100},
    {"line_search_fn": "strong_wolfe", "max_iter": 100},
    {"line_search_fn": "strong_wolfe", "max_iter": 12, "history_size": 3},
    {"line_search_fn": "strong_wolfe", "max_iter": 100, "max_eval": 25},
    {"lr": 0.005, "max_iter": 60, "history_size": 4, "max_eval": 1000},
]


@pytest.mark.torch
@pytest.mark.parametrize("settings", SEARCHES, ids=str)
def test_lbfgs_equals_torch(double: Any, settings: dict[str, Any]) -> None:
    begin = np.sin(np.arange(6.0)) * 1.5
    p = double.tensor(begin, requires_grad=True)
    theirs = double.optim.LBFGS([p], **settings)

    def closure() -> Any:
        theirs.zero_grad()
        value = valley(p, double.sin)
        value.backward()
        return value

    theirs.step(closure)
    search = pb.jit(lambda x: optim.lbfgs(lambda v: valley(v, pb.sin), x, **settings))
    found = search(pb.tensor(begin))
    np.testing.assert_allclose(found.x.numpy(), p.detach().numpy(), rtol=1e-10, atol=1e-10)
    assert found.iterations.item() == theirs.state[p]["n_iter"]
    np.testing.assert_allclose(found.value.item(), valley(found.x, pb.sin).item(), rtol=1e-12)


@pytest.mark.slow
def test_lbfgs_of_a_tree_outside_of_programs() -> None:
    def loss(at: dict[str, Any]) -> Any:
        return ((at["w"] - 2.0) ** 2).sum() + ((at["b"] + at["w"].sum()) ** 2).sum()

    begin = {"w": pb.zeros((2, 2), dtype="float64"), "b": pb.ones(3, dtype="float64")}
    found = optim.lbfgs(loss, begin, line_search_fn="strong_wolfe")
    np.testing.assert_allclose(found.x["w"].numpy(), 2.0, rtol=1e-6)
    np.testing.assert_allclose(found.x["b"].numpy(), -8.0, rtol=1e-6)
    still = optim.lbfgs(loss, found.x, tolerance_grad=1.0)
    assert still.iterations.item() == 0 and still.evaluations.item() == 1


@pytest.mark.parametrize(
    "bad",
    [
        {"lr": 0.0},
        {"lr": float("nan")},
        {"max_iter": 0},
        {"history_size": 0},
        {"tolerance_grad": -1.0},
        {"max_eval": 0},
        {"max_iter": 2.5},
        {"line_search_fn": "other"},
    ],
    ids=str,
)
def test_a_search_out_of_range_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(
        PullbackError, match="E124" if "line_search_fn" in bad else "E176"
    ) as refused:
        optim.lbfgs(lambda x: (x * x).sum(), pb.ones(2), **bad)
    assert "test_optim_rules.py" in str(refused.value)
