"""`pb.torch.step`: forward, loss, backward and update as one program, beside eager PyTorch."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest

import pullback as pb
from pullback.errors import ArgumentError, OptionError, PullbackError, UnsupportedError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import nn  # noqa: E402  # it needs PyTorch
from torch.nn import functional as F  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("fresh_torch"),
    pytest.mark.filterwarnings("ignore"),  # of PyTorch's own compiler
]


def network(kind: Any = torch.float64) -> Any:
    """With a parameter that nothing uses, and a frozen one."""
    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).to(kind)
    model.unused = nn.Parameter(torch.ones(2, dtype=kind))
    model[0].bias.requires_grad_(False)
    return model


def batches(count: int, kind: Any = torch.float64) -> list[Any]:
    return [(torch.randn(6, 5, dtype=kind), torch.randint(3, (6,))) for _ in range(count)]


def same(a: Any, b: Any, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def beside(
    make: Any, model: Any = None, count: int = 20, clip: Any = None, kind: Any = torch.float64
) -> tuple[Any, Any]:
    """Steps of the same model, the one here and eager's; both optimizers afterwards."""
    ours = network(kind) if model is None else model
    theirs = copy.deepcopy(ours)
    own, other = make(ours), make(theirs)
    step = pb.torch.step(ours, F.cross_entropy, own, clip=clip)
    tolerance = 1e-9 if kind == torch.float64 else 1e-2
    for x, y in batches(count, kind):
        state = torch.get_rng_state()
        loss = step(x, y)
        torch.set_rng_state(state)
        same(loss, eager(theirs, other, x, y, clip), tolerance)
    same(ours.state_dict(), theirs.state_dict(), tolerance)
    one, two = own.state_dict(), other.state_dict()
    assert one["param_groups"] == two["param_groups"]
    same(one["state"], two["state"], tolerance)
    return step, other


def eager(model: Any, optimizer: Any, x: Any, y: Any, clip: Any = None) -> Any:
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    if isinstance(clip, float):
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    elif clip and "value" in clip:
        nn.utils.clip_grad_value_(model.parameters(), clip["value"])
    elif clip:
        nn.utils.clip_grad_norm_(model.parameters(), clip["norm"], clip["norm_type"])
    optimizer.step()
    return loss.detach()


OPTIMIZERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "sgd": (torch.optim.SGD, {}),
    "momentum": (torch.optim.SGD, {"momentum": 0.9, "dampening": 0.3, "weight_decay": 0.1}),
    "nesterov": (torch.optim.SGD, {"momentum": 0.9, "nesterov": True, "maximize": True}),
    "adam": (torch.optim.Adam, {"betas": (0.4, 0.9), "eps": 1e-3}),
    "adam decay": (torch.optim.Adam, {"weight_decay": 0.1, "amsgrad": True, "maximize": True}),
    "adam decoupled": (torch.optim.Adam, {"weight_decay": 0.1, "decoupled_weight_decay": True}),
    "adamw": (torch.optim.AdamW, {"weight_decay": 0.2}),
    "adamw amsgrad": (torch.optim.AdamW, {"amsgrad": True, "foreach": True}),
    "adamw fused": (torch.optim.AdamW, {"fused": True, "maximize": True}),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_twenty_steps_are_those_of_eager(name: str) -> None:
    kind, options = OPTIMIZERS[name]
    beside(lambda m: kind(m.parameters(), lr=0.05, **options))
    (graph,) = pb.torch.report().graphs
    assert graph.operators == graph.native, "one program, compiled once"


@pytest.mark.parametrize(
    "clip", [0.1, {"value": 0.01}, {"norm": 0.1, "norm_type": 1.0}], ids=["2", "value", "1"]
)
def test_gradients_are_clipped(clip: Any) -> None:
    beside(lambda m: torch.optim.SGD(m.parameters(), lr=0.5), clip=clip, count=3)


def test_clipping_by_the_largest_and_by_both() -> None:
    many = {"norm": 0.1, "norm_type": float("inf")}
    beside(lambda m: torch.optim.SGD(m.parameters(), lr=0.5), clip=many, count=3)


def groups(model: Any) -> Any:
    """Two groups, each with its own numbers, and one form of its own."""
    return [
        {"params": model[0].parameters(), "lr": 0.1, "weight_decay": 0.0},
        {"params": model[2].parameters(), "betas": (0.7, 0.9), "amsgrad": True},
    ]


def test_groups_have_their_own_numbers() -> None:
    beside(lambda m: torch.optim.AdamW(groups(m), lr=0.02), count=5)


def test_a_schedule_changes_rates_without_another_program() -> None:
    ours = network()
    theirs = copy.deepcopy(ours)
    pairs = []
    for model in (ours, theirs):
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        pairs.append((optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, 10)))
    step = pb.torch.step(ours, F.cross_entropy, pairs[0][0])
    for x, y in batches(8):
        same(step(x, y), eager(theirs, pairs[1][0], x, y))
        for _, schedule in pairs:
            schedule.step()  # with momentum: it moves betas, too
    same(ours.state_dict(), theirs.state_dict())
    assert len(pb.torch.report().graphs) == 1


def test_a_loaded_state_goes_on_and_both_ways_to_step_mix() -> None:
    ours, theirs = network(), network()
    theirs.load_state_dict(ours.state_dict())
    own = torch.optim.AdamW(ours.parameters(), lr=0.05)
    other = torch.optim.AdamW(theirs.parameters(), lr=0.05)
    step = pb.torch.step(ours, F.cross_entropy, own)
    first, second, third, fourth = batches(4)
    same(step(*first), eager(theirs, other, *first))
    same(eager(ours, own, *second), eager(theirs, other, *second))
    file = io.BytesIO()
    torch.save(own.state_dict(), file)
    same(step(*third), eager(theirs, other, *third))
    same(step(*fourth), eager(theirs, other, *fourth))
    same(ours.state_dict(), theirs.state_dict())
    file.seek(0)
    own.load_state_dict(torch.load(file))
    other.load_state_dict(copy.deepcopy(own.state_dict()))
    same(step(*first), eager(theirs, other, *first))
    same(own.state_dict()["state"], other.state_dict()["state"])


def test_a_parameter_that_is_used_later_takes_its_first_step_then() -> None:
    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(5, 3), nn.Linear(5, 3)
            self.both = False

        def forward(self, x: Any) -> Any:
            return self.first(x) + self.second(x) if self.both else self.first(x)

    ours = Late().double()
    theirs = copy.deepcopy(ours)
    own = torch.optim.Adam(ours.parameters(), lr=0.05)
    other = torch.optim.Adam(theirs.parameters(), lr=0.05)
    step = pb.torch.step(ours, F.cross_entropy, own)
    for n, (x, y) in enumerate(batches(6)):
        ours.both = theirs.both = n in (3, 4)
        same(step(x, y), eager(theirs, other, x, y))
    same(ours.state_dict(), theirs.state_dict())
    same(own.state_dict()["state"], other.state_dict()["state"])
    assert {float(s["step"]) for s in own.state.values()} == {6.0, 2.0}


def test_buffers_modes_and_a_frozen_part() -> None:
    model = nn.Sequential(
        nn.Conv1d(1, 4, 2), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)
    ).double()  # fmt: skip
    ours = nn.Sequential(nn.Unflatten(1, (1, 5)), model)
    theirs = copy.deepcopy(ours)
    own = torch.optim.SGD(ours.parameters(), lr=0.05)
    other = torch.optim.SGD(theirs.parameters(), lr=0.05)
    step = pb.torch.step(ours, F.cross_entropy, own)
    for n, (x, y) in enumerate(batches(6)):
        for m in (ours, theirs):
            m.train(n != 2)
            m[1][0].weight.requires_grad_(n < 4)
        same(step(x, y), eager(theirs, other, x, y))
    same(ours.state_dict(), theirs.state_dict())
    assert int(model[1].num_batches_tracked) == 5


def test_a_shared_weight_has_one_gradient() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.out = nn.Embedding(9, 4), nn.Linear(4, 9, bias=False)
            self.out.weight = self.words.weight

        def forward(self, x: Any) -> Any:
            return self.out(self.words(x).tanh())

    ours = Tied().double()
    theirs = copy.deepcopy(ours)
    own = torch.optim.Adam(ours.parameters(), lr=0.05)
    other = torch.optim.Adam(theirs.parameters(), lr=0.05)
    step = pb.torch.step(ours, F.cross_entropy, own)
    for _ in range(3):
        x, y = torch.randint(9, (6,)), torch.randint(9, (6,))
        same(step(x, y), eager(theirs, other, x, y))
    same(ours.state_dict(), theirs.state_dict())


def test_dropout_draws_anew_and_by_the_seed() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(5, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    step = pb.torch.step(model, F.cross_entropy, optimizer)
    ((x, y),) = batches(1, torch.float32)
    torch.manual_seed(3)
    losses = [float(step(x, y)) for _ in range(3)]
    assert len(set(losses)) == 3
    torch.manual_seed(3)
    assert [float(step(x, y)) for _ in range(3)] == losses
    model.eval()
    assert float(step(x, y)) == pytest.approx(float(F.cross_entropy(model(x), y)))


def test_halves_compute_their_update_in_32_bits() -> None:
    def make(model: Any) -> Any:
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=0.1)

    model = nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).bfloat16()
    beside(make, copy.deepcopy(model), 3, kind=torch.bfloat16)
    w = torch.randn(400).bfloat16().requires_grad_()
    x, before = torch.randn(400).bfloat16(), w.detach().float()
    optimizer = torch.optim.Adam([w], lr=0.1, weight_decay=0.3)
    step = pb.torch.step(None, lambda _, x: (w * x).sum(), optimizer, targets=None)
    step(x)
    slope = x.float() + 0.3 * before
    first, second = 0.1 * slope, 0.001 * slope**2
    expected = before - 0.1 / 0.1 * first / (second.sqrt() / 0.001**0.5 + 1e-8)
    state = optimizer.state[w]
    for own, exact in ((w.detach(), expected), (state["exp_avg"], first)):
        assert float((own == exact.bfloat16()).double().mean()) > 0.99, "rounded once"


def test_autocast_reaches_the_model_and_not_the_update() -> None:
    ours = network(torch.float32)
    own = torch.optim.Adam(ours.parameters(), lr=0.05)
    step = pb.torch.step(ours, F.cross_entropy, own)
    theirs = copy.deepcopy(ours)
    other = torch.optim.Adam(theirs.parameters(), lr=0.05)
    for x, y in batches(3, torch.float32):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = step(x, y)
            expected = F.cross_entropy(theirs(x), y)
        other.zero_grad()
        expected.backward()
        other.step()
        same(loss, expected.detach(), 2e-2)
    assert ours[0].weight.dtype == torch.float32


def test_a_backward_is_not_under_autocast() -> None:
    class Whole(nn.Linear):
        def forward(self, x: Any) -> Any:
            with torch.autocast("cpu", enabled=False):
                return super().forward(x)

    ours = Whole(5, 3)
    theirs = copy.deepcopy(ours)
    own = torch.optim.SGD(ours.parameters(), lr=1.0)
    other = torch.optim.SGD(theirs.parameters(), lr=1.0)
    ((x, y),) = batches(1, torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        pb.torch.step(ours, F.cross_entropy, own)(x, y)
    eager(theirs, other, x, y)
    same(ours.state_dict(), theirs.state_dict(), 1e-5)


def test_results_keywords_and_losses_of_their_own() -> None:
    ((x, y),) = batches(1)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model(x)
    loss, result = pb.torch.step(model, F.cross_entropy, optimizer, outputs=True)(x, y)
    same(result, before.detach())
    assert not result.requires_grad and not loss.requires_grad

    def objective(m: Any, x: Any, *, y: Any, weight: float) -> Any:
        return weight * F.cross_entropy(m(x), y)

    whole = pb.torch.step(model, objective, optimizer, targets=None)
    same(whole(x, y=y, weight=2.0), 2 * F.cross_entropy(model(x), y).detach(), 0.5)
    square = pb.torch.step(model, lambda z: (z * z).mean(), optimizer, targets=0)
    expected = model(x).square().mean().detach()
    same(square(input=x), expected)


def test_another_size_of_a_batch() -> None:
    ours = network()
    theirs = copy.deepcopy(ours)
    own = torch.optim.Adam(ours.parameters(), lr=0.05)
    other = torch.optim.Adam(theirs.parameters(), lr=0.05)
    step = pb.torch.step(ours, F.cross_entropy, own, dynamic=False)
    for x, y in batches(4):
        same(step(x, y), eager(theirs, other, x, y))
        same(step(x[:2], y[:2]), eager(theirs, other, x[:2], y[:2]))
    same(ours.state_dict(), theirs.state_dict())


def test_steps_do_not_remember_the_sizes_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    symbols = []

    def backend(gm: Any, inputs: Any, **how: Any) -> Any:
        symbols.extend(i for i in inputs if isinstance(i, torch.SymInt))
        return gm.forward

    monkeypatch.setattr("pullback.bridge.step.backend", backend)
    for rows, size in ((6, 5), (7, 4), (9, 8)):
        model = nn.Linear(size, 3)
        step = pb.torch.step(model, F.cross_entropy, torch.optim.Adam(model.parameters()))
        step(torch.randn(rows, size), torch.randint(3, (rows,)))
    assert not symbols


def test_hooks_of_an_optimizer_and_schedulers_are_told() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    told: list[Any] = []
    optimizer.register_step_post_hook(lambda own, args, kwargs: told.append(own))
    step = pb.torch.step(model, F.cross_entropy, optimizer)
    step(*batches(1)[0])
    assert told == [optimizer]
    with pytest.warns(UserWarning) as noted:
        schedule.step()
        warnings_are_those_of(noted)


def warnings_are_those_of(noted: Any) -> None:
    import warnings

    warnings.warn("one at least", UserWarning, stacklevel=1)
    assert not any("before `optimizer.step()`" in str(w.message) for w in noted)


# --- what is refused ------------------------------------------------------------------------------


def refusal(code: str, kind: type[PullbackError], call: Any) -> PullbackError:
    with pytest.raises(kind) as raised:
        call()
    assert raised.value.code == code
    return raised.value


def test_other_optimizers_are_refused_by_name() -> None:
    model = network()

    def make(optimizer: Any) -> Any:
        return lambda: pb.torch.step(model, F.cross_entropy, optimizer)

    class Own(torch.optim.SGD):
        pass

    for optimizer in (torch.optim.SparseAdam(model.parameters()), Own(model.parameters())):
        error = refusal("E392", UnsupportedError, make(optimizer))
        assert type(optimizer).__name__ in error.what
    through = torch.optim.Adam(model.parameters(), differentiable=True)
    refusal("E392", UnsupportedError, make(through))


def test_gradients_that_are_sparse_or_hooked_are_refused() -> None:
    words = nn.Sequential(nn.Embedding(9, 3, sparse=True), nn.Flatten())
    optimizer = torch.optim.SGD(words.parameters(), lr=0.1)

    def made() -> Any:
        return pb.torch.step(words, torch.sum, optimizer, targets=0)

    refusal("E392", UnsupportedError, made)
    table = torch.randn(9, 3, requires_grad=True)
    own = torch.optim.SGD([table], lr=0.1)
    step = pb.torch.step(lambda x: F.embedding(x, table, sparse=True), torch.sum, own, targets=0)
    refusal("E393", UnsupportedError, lambda: step(torch.tensor([1, 2])))
    model = network()
    step = pb.torch.step(model, F.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.1))
    model[0].weight.register_hook(lambda g: 2 * g)
    refusal("E392", UnsupportedError, lambda: step(*batches(1)[0]))


def test_a_model_that_is_not_one_graph_is_refused_with_its_line() -> None:
    class Asks(nn.Linear):
        def forward(self, x: Any) -> Any:
            y = super().forward(x)
            return y if float(y.sum().item()) > 0 else -y

    model = Asks(5, 3).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = pb.torch.step(model, F.cross_entropy, optimizer)
    error = refusal("E393", UnsupportedError, lambda: step(*batches(1)[0]))
    assert "test_torch_step.py" in error.what


def test_what_has_no_rule_is_named_or_left_to_pytorch() -> None:
    def loss(z: Any, y: Any) -> Any:
        return F.cross_entropy(z, y) + torch.logaddexp(z + 0j, z + 1j).abs().sum()

    ((x, y),) = batches(1)
    ours = nn.Linear(5, 3).double()
    theirs = copy.deepcopy(ours)
    own = torch.optim.SGD(ours.parameters(), lr=0.1)
    error = refusal("E386", UnsupportedError, lambda: pb.torch.step(ours, loss, own)(x, y))
    assert "logaddexp" in error.what and "test_torch_step.py" in error.what
    step = pb.torch.step(ours, loss, own, options={"fallback": "allow"})
    expected = loss(theirs(x), y)
    same(step(x, y), expected.detach())
    expected.backward()
    torch.optim.SGD(theirs.parameters(), lr=0.1).step()
    same(ours.state_dict(), theirs.state_dict())


def test_bad_arguments_are_refused() -> None:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ((x, y),) = batches(1)
    for clip in ({}, {"nrom": 1.0}, "1", -1.0, {"value": float("nan")}):
        refusal(
            "E394",
            ArgumentError,
            lambda clip=clip: pb.torch.step(model, F.cross_entropy, optimizer, clip=clip),
        )
    step = pb.torch.step(model, lambda z, y: z, optimizer)
    refusal("E394", ArgumentError, lambda: step(x, y))
    nothing = pb.torch.step(model, lambda z, y: y.double().mean(), optimizer)
    refusal("E394", ArgumentError, lambda: nothing(x, y))
    with pytest.raises(OptionError):
        pb.torch.step(model, F.cross_entropy, optimizer, options={"thread": 1})


# --- steps that users write -----------------------------------------------------------------------


def test_a_step_by_functional_gradients_is_one_program() -> None:
    model = network()
    model.unused.requires_grad_(False)
    held = {n: p.detach().clone() for n, p in model.named_parameters()}

    def loss(given: Any, x: Any, y: Any) -> Any:
        return F.cross_entropy(torch.func.functional_call(model, given, (x,)), y)

    def train(given: Any, x: Any, y: Any) -> Any:
        slopes, value = torch.func.grad_and_value(loss)(given, x, y)
        for name, slope in slopes.items():
            given[name].sub_(0.1 * slope)
        return value

    fast = torch.compile(
        train, backend=pb.torch.backend, fullgraph=True, options={"fallback": "error"}
    )
    other = {n: p.clone() for n, p in held.items()}
    for x, y in batches(3):
        same(fast(held, x, y), train(other, x, y))
    same(held, other)
    (graph,) = pb.torch.report().graphs
    assert graph.operators == graph.native


def test_a_traced_backward_and_an_update_are_one_program() -> None:
    model = network()
    params = [p for p in model.parameters() if p.requires_grad and p is not model.unused]

    def train(x: Any, y: Any) -> Any:
        value = F.cross_entropy(model(x), y)
        slopes = torch.autograd.grad(value, params)
        with torch.no_grad():
            for p, slope in zip(params, slopes, strict=True):
                p.sub_(0.1 * slope)
        return value.detach()

    eager = copy.deepcopy(model)
    optimizer = torch.optim.SGD([p for p in eager.parameters() if p is not eager.unused], lr=0.1)
    fast = torch.compile(
        train, backend=pb.torch.backend, fullgraph=True, options={"fallback": "error"}
    )
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        for x, y in batches(3):
            value = F.cross_entropy(eager(x), y)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            same(fast(x, y), value.detach())
    same(model.state_dict(), eager.state_dict())
    (graph,) = pb.torch.report().graphs
    assert graph.operators == graph.native


@pb.torch.op(name="steps::gated")
def gated(x: pb.Tensor, w: pb.Tensor, power: int = 2) -> tuple[pb.Tensor, pb.Tensor]:
    y = pb.tanh(x @ w)
    return y**power, pb.sum(y)


class Gates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.own = nn.Linear(5, 4), nn.Parameter(torch.randn(4, 3))

    def forward(self, x: Any) -> Any:
        y, whole = gated(self.first(x), self.own)
        return F.gelu(y) + gated(self.first(x), self.own, 3)[0] + whole


def test_an_operator_of_the_users_is_a_part_of_the_program() -> None:
    ours = Gates().double()
    theirs = copy.deepcopy(ours)
    fast = torch.compile(
        ours, backend=pb.torch.backend, fullgraph=True, options={"fallback": "error"}
    )
    ((x, y),) = batches(1)
    results = [m(x) for m in (fast, theirs)]
    same(results[0], results[1])
    for result in results:
        result.square().sum().backward()
    same([p.grad for p in ours.parameters()], [p.grad for p in theirs.parameters()])
    assert all(g.operators == g.native for g in pb.torch.report().graphs)
    own = torch.optim.SGD(ours.parameters(), lr=0.1)
    other = torch.optim.SGD(theirs.parameters(), lr=0.1)
    step = pb.torch.step(ours, F.cross_entropy, own)
    same(step(x, y), eager(theirs, other, x, y))
    same(ours.state_dict(), theirs.state_dict())
