"""`pb.torch.step`: more optimizers, scaled losses, steps of several calls, states both ways."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest

import pullback as pb
from pullback.errors import ArgumentError, PullbackError, UnsupportedError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import nn  # noqa: E402  # it needs PyTorch
from torch.nn import functional as F  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("fresh_torch"),
    pytest.mark.filterwarnings("ignore"),  # of PyTorch's own compiler
]
O = torch.optim


def network(kind: Any = torch.float64) -> Any:
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).to(kind)
    model.unused = nn.Parameter(torch.ones(2, dtype=kind))
    return model


def batches(count: int, kind: Any = torch.float64) -> list[Any]:
    return [(torch.randn(6, 5, dtype=kind), torch.randint(3, (6,))) for _ in range(count)]


def same(a: Any, b: Any, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def agree(ours: Any, own: Any, theirs: Any, other: Any, tolerance: float = 1e-9) -> None:
    """Parameters, and states with all their names, are the same."""
    same(ours.state_dict(), theirs.state_dict(), tolerance)
    one, two = own.state_dict(), other.state_dict()
    assert one["param_groups"] == two["param_groups"]
    same(one["state"], two["state"], tolerance)


def eagerly(model: Any, optimizer: Any, x: Any, y: Any) -> Any:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.detach()


OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "rmsprop": (O.RMSprop, {}),
    "rmsprop centered": (
        O.RMSprop,
        {"momentum": 0.9, "centered": True, "weight_decay": 0.1, "eps": 1e-2},
    ),
    "rmsprop moving": (O.RMSprop, {"momentum": 0.5, "maximize": True, "foreach": True}),
    "adagrad": (O.Adagrad, {"initial_accumulator_value": 0.1, "lr_decay": 0.1}),
    "adagrad decay": (O.Adagrad, {"weight_decay": 0.1, "maximize": True}),
    "adadelta": (O.Adadelta, {"rho": 0.7, "weight_decay": 0.1}),
    "adamax": (O.Adamax, {"weight_decay": 0.1, "betas": (0.5, 0.8)}),
    "radam": (O.RAdam, {"betas": (0.9, 0.9), "weight_decay": 0.1}),
    "radam decoupled": (O.RAdam, {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    "nadam": (O.NAdam, {"weight_decay": 0.1, "momentum_decay": 0.1}),
    "nadam decoupled": (O.NAdam, {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    "rprop": (O.Rprop, {"step_sizes": (1e-4, 0.1)}),
    "asgd": (O.ASGD, {"t0": 3.0, "lambd": 0.1, "weight_decay": 0.1}),
    "sgd with a rate in a tensor": (O.SGD, {"lr": torch.tensor(0.3), "momentum": 0.9}),
    "adam with a rate in a tensor": (
        O.Adam,
        {"lr": torch.tensor(0.3, dtype=torch.float64), "amsgrad": True},
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_are_those_of_eager(name: str) -> None:
    kind, options = OPTIMIZERS[name]
    ours = network()
    theirs = copy.deepcopy(ours)
    own, other = (
        kind(m.parameters(), **{"lr": 0.05, **copy.deepcopy(options)}) for m in (ours, theirs)
    )
    step = pb.torch.step(ours, F.cross_entropy, own)
    for x, y in batches(12):
        # counts in float32 are rounded as eager's, so what follows from them is equal, too
        same(step(x, y), eagerly(theirs, other, x, y), 1e-8)
    agree(ours, own, theirs, other, 1e-8)
    (graph,) = pb.torch.report().graphs
    assert graph.operators == graph.native, "one program, compiled once"


@pytest.mark.parametrize("name", ["nadam", "asgd", "rmsprop centered", "rprop", "adagrad"])
@pytest.mark.parametrize("eager_first", [False, True])
def test_states_go_both_ways(name: str, eager_first: bool) -> None:
    """Three steps by one, saved and loaded, three by the other: six of eager."""
    kind, options = OPTIMIZERS[name]
    whole = network()
    reference = kind(whole.parameters(), lr=0.05, **options)
    start = copy.deepcopy(whole)
    data = batches(6)
    first = kind(start.parameters(), lr=0.05, **options)
    stepped = pb.torch.step(start, F.cross_entropy, first)

    def take(by_eager: bool, step: Any, model: Any, optimizer: Any, rows: Any) -> None:
        for x, y in rows:
            eagerly(model, optimizer, x, y) if by_eager else step(x, y)

    take(True, None, whole, reference, data[:3])
    reference.load_state_dict(copy.deepcopy(reference.state_dict()))  # which casts counts
    take(True, None, whole, reference, data[3:])
    take(eager_first, stepped, start, first, data[:3])
    file = io.BytesIO()
    torch.save([start.state_dict(), first.state_dict()], file)
    file.seek(0)
    parameters, states = torch.load(file)
    again = network()
    again.load_state_dict(parameters)
    second = kind(again.parameters(), lr=0.9, **options)
    second.load_state_dict(states)
    onward = pb.torch.step(again, F.cross_entropy, second)
    take(not eager_first, onward, again, second, data[3:])
    agree(again, second, whole, reference, 1e-6)


def test_a_step_of_several_calls() -> None:
    """The mean of the gradients of four calls; a parameter used in one of them counts."""
    ours = network(torch.float64)
    theirs = copy.deepcopy(ours)
    own, other = (O.AdamW(m.parameters(), lr=0.05) for m in (ours, theirs))
    step = pb.torch.step(ours, F.cross_entropy, own, accumulate=4, clip=0.5)
    for n, (x, y) in enumerate(batches(12)):
        before = copy.deepcopy(ours.state_dict())
        loss = F.cross_entropy(theirs(x), y)
        (loss / 4).backward()
        same(step(x, y), loss.detach())
        if n % 4 != 3:
            same(ours.state_dict(), before, 0.0)
            continue
        nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        other.step()
        other.zero_grad()
        agree(ours, own, theirs, other)
    assert len(pb.torch.report().graphs) == 3, "the first, those that add, and the last"


def test_a_parameter_of_one_call_of_several() -> None:
    class Sometimes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(5, 3).double(), nn.Linear(5, 3).double()

        def forward(self, x: Any, both: bool) -> Any:
            return self.a(x) + self.b(x) if both else self.a(x)

    ours = Sometimes()
    theirs = copy.deepcopy(ours)
    own, other = (O.Adam(m.parameters(), lr=0.05) for m in (ours, theirs))
    step = pb.torch.step(ours, F.cross_entropy, own, accumulate=2)
    for n, (x, y) in enumerate(batches(4)):
        both = n == 0
        step(x, both, y)
        (F.cross_entropy(theirs(x, both), y) / 2).backward()
        if n % 2:
            other.step()
            other.zero_grad()
    agree(ours, own, theirs, other)
    assert float(own.state[ours.b.weight]["step"]) == 1


def test_scaled_losses() -> None:
    """A step whose gradients are not finite changes nothing; scales are eager's."""
    ours = network(torch.float32)
    theirs = copy.deepcopy(ours)
    own, other = (O.Adam(m.parameters(), lr=0.05) for m in (ours, theirs))
    how = {"init_scale": 2.0**10, "growth_interval": 2, "backoff_factor": 0.25}
    mine, its = (torch.amp.GradScaler("cpu", **how) for _ in range(2))
    step = pb.torch.step(ours, F.cross_entropy, own, scaler=mine, clip=0.5)
    rows = batches(7, torch.float32)
    rows[3][0][0, 0] = torch.inf
    for x, y in rows:
        other.zero_grad()
        loss = F.cross_entropy(theirs(x), y)
        its.scale(loss).backward()
        its.unscale_(other)
        nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
        its.step(other)
        its.update()
        torch.testing.assert_close(step(x, y), loss.detach(), equal_nan=True)
        assert mine.state_dict() == its.state_dict()
        agree(ours, own, theirs, other, 1e-5)
    assert float(own.state[ours[0].weight]["step"]) == 6


def test_a_scale_reaches_gradients_of_16_bits() -> None:
    """Of a loss so small that its gradients vanish in float16 without a scale."""

    def loss(y: Any) -> Any:
        return (y * 1e-4).float().mean() * 1e-3

    moved = []
    for scaler in (None, torch.amp.GradScaler("cpu", enabled=False), torch.amp.GradScaler("cpu")):
        torch.manual_seed(0)
        model = nn.Linear(5, 3).to(torch.float16)
        before = model.weight.detach().clone()
        step = pb.torch.step(
            model, loss, O.Adam(model.parameters(), lr=0.1, eps=1e-12), targets=0, scaler=scaler
        )
        step(torch.ones(2, 5, dtype=torch.float16))
        moved.append(float((model.weight - before).abs().min()))
    assert moved[0] == moved[1] == 0.0 and moved[2] > 0.05


def test_a_scale_and_several_calls() -> None:
    ours = network(torch.float64)
    theirs = copy.deepcopy(ours)
    own, other = (O.SGD(m.parameters(), lr=0.5) for m in (ours, theirs))
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
    step = pb.torch.step(ours, F.cross_entropy, own, accumulate=2, scaler=scaler)
    for n, (x, y) in enumerate(batches(4)):
        step(x, y)
        (F.cross_entropy(theirs(x), y) / 2).backward()
        if n % 2:
            other.step()
            other.zero_grad()
    agree(ours, own, theirs, other, 1e-6)  # scales are of 32 bits
    assert scaler.state_dict()["_growth_tracker"] == 2


SCHEDULES: dict[str, Any] = {
    "cosine": lambda o: O.lr_scheduler.CosineAnnealingLR(o, 5),
    "warmup and decay": lambda o: O.lr_scheduler.SequentialLR(
        o,
        [O.lr_scheduler.LinearLR(o, 0.1, total_iters=2), O.lr_scheduler.ExponentialLR(o, 0.5)],
        [2],
    ),
    "momentum too": lambda o: O.lr_scheduler.CyclicLR(o, 0.01, 0.1, 2, base_momentum=0.5),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_compile_nothing(name: str) -> None:
    ours = network()
    theirs = copy.deepcopy(ours)
    own, other = (O.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (ours, theirs))
    mine, its = SCHEDULES[name](own), SCHEDULES[name](other)
    step = pb.torch.step(ours, F.cross_entropy, own)
    for x, y in batches(6):
        same(step(x, y), eagerly(theirs, other, x, y))
        mine.step()
        its.step()
    agree(ours, own, theirs, other)
    assert len(pb.torch.report().graphs) == 1


def test_steps_that_there_are_not() -> None:
    model = network()

    def refused(code: str, kind: type[PullbackError], optimizer: Any, **how: Any) -> PullbackError:
        with pytest.raises(kind) as raised:
            pb.torch.step(model, F.cross_entropy, optimizer, **how)
        assert raised.value.code == code
        return raised.value

    sgd = O.SGD(model.parameters(), lr=0.1)
    for bad in (0, -1, 1.5, True, "2"):
        refused("E394", ArgumentError, sgd, accumulate=bad)
    for bad in (2.0, object()):
        refused("E394", ArgumentError, sgd, scaler=bad)
    for other in (O.LBFGS(model.parameters()), O.SparseAdam(model.parameters())):
        error = refused("E392", UnsupportedError, other)
        assert type(other).__name__ in error.what and "RMSprop" in (error.help or "")
