"""`from pullback.torch import nn`: PyTorch's layers as operators, beside PyTorch's compositions."""

from __future__ import annotations

import copy
import io
from collections.abc import Iterator
from typing import Any

import pytest

import pullback as pb
from pullback.errors import ArgumentError, UnsupportedError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch.nn import functional as F  # noqa: E402  # it needs PyTorch

from pullback.torch import nn  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore"),  # of what PyTorch calls on its own
]
theirs = torch.nn


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch.manual_seed(0)
    yield


def near(a: Any, b: Any, tolerance: float = 1e-9) -> None:
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def edged(*shape: int) -> Any:
    """Random numbers, and those where pieces of activations meet, large ones too."""
    x = torch.randn(*shape, dtype=torch.float64)
    edges = [0.0, -0.0, 0.5, -0.5, 1.0, -1.0, 3.0, -3.0, 6.0, 100.0, -100.0, 1e4, -1e4]
    flat = x.view(-1)
    flat[: len(edges)] = torch.tensor(edges, dtype=torch.float64)[: flat.numel()]
    return x


def same(ours: Any, other: Any, *inputs: Any, tolerance: float = 1e-9) -> None:
    """Results, and gradients by inputs and parameters."""
    results, gradients = [], []
    for function, parameters in ((ours, held(ours)), (other, held(other))):
        given = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
        y = function(*given)
        parts = y if isinstance(y, tuple) else (y,)
        torch.manual_seed(1)
        kept = [p for p in parts if p is not None]
        sum((p * torch.randn(p.shape, dtype=p.dtype)).sum() for p in kept).backward()
        results.append(kept)
        gradients.append([t.grad for t in (*given, *parameters)])
    near(results[0], results[1], tolerance)
    near(gradients[0], gradients[1], tolerance)


def held(function: Any) -> list[Any]:
    for p in function.parameters() if isinstance(function, theirs.Module) else ():
        p.grad = None
    return list(function.parameters()) if isinstance(function, theirs.Module) else []


def runs_here(layer: Any) -> bool:
    return not pb.torch.report(layer).left


ACTIVATIONS = [
    "ELU", "CELU", "SELU", "GELU", "ReLU", "ReLU6", "LeakyReLU", "SiLU", "Mish", "Sigmoid",
    "LogSigmoid", "Tanh", "Tanhshrink", "Softplus", "Softsign", "Softshrink", "Hardshrink",
    "Hardsigmoid", "Hardswish", "Hardtanh",
]  # fmt: skip
SLACK = {"Hardsigmoid": 1e-7}  # PyTorch's backward has 1/6, and 1/alpha of CELU, of 32 bits
NAMES = {
    "sigmoid": torch.sigmoid, "logsigmoid": F.logsigmoid, "tanh": torch.tanh, "relu": F.relu,
    "gelu": F.gelu, "geluapprox": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu,
    "relu6": F.relu6, "hardsigmoid": F.hardsigmoid, "hardtanh": F.hardtanh,
    "hardswish": F.hardswish, "selu": F.selu, "mish": F.mish, "softplus": F.softplus,
    "softsign": F.softsign, "tanhshrink": F.tanhshrink,
    "leaky_relu_0.2": lambda x: F.leaky_relu(x, 0.2), "elu_0.7": lambda x: F.elu(x, 0.7),
    "celu_0.7": lambda x: F.celu(x, 0.7), "hardshrink_0.3": lambda x: F.hardshrink(x, 0.3),
    "softshrink_0.3": lambda x: F.softshrink(x, 0.3),
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation(name: str) -> None:
    layer = getattr(nn, name)()
    assert runs_here(layer) and isinstance(layer, getattr(theirs, name))
    same(layer, getattr(theirs, name)(), edged(3, 7), tolerance=SLACK.get(name, 1e-9))


@pytest.mark.parametrize("name", ["GELU", "ReLU", "Hardtanh"])
def test_an_activation_drops_by_the_same_mask_backwards(name: str) -> None:
    layer, plain = getattr(nn, name)(drop_p=0.5), getattr(theirs, name)()
    x = torch.randn(40, 50, dtype=torch.float64, requires_grad=True)
    y = layer(x)
    kept = y != 0
    expected = torch.where(kept, plain(x) * 2, 0.0)
    near(y, expected)
    head = torch.randn_like(y)
    (ours,) = torch.autograd.grad(y, x, head)
    (other,) = torch.autograd.grad(expected, x, head)
    near(ours, other)
    share = float(kept.double().sum() / (plain(x) != 0).double().sum())
    assert abs(share - 0.5) < 0.05
    assert not torch.equal(layer(x), y), "it draws anew"
    torch.manual_seed(7)
    first = layer(x)
    torch.manual_seed(7)
    near(layer(x), first)
    near(layer.eval()(x), plain(x))


@pytest.mark.parametrize("name", NAMES)
def test_an_activation_inside_of_linear_batch_norm_and_glu(name: str) -> None:
    act, x = NAMES[name], torch.randn(6, 8, dtype=torch.float64)
    slack = 1e-6 if name in ("hardsigmoid", "celu_0.7") else 1e-9
    linear = nn.Linear(8, 5, act_func=name).double()
    plain = theirs.Linear(8, 5).double()
    plain.load_state_dict(linear.state_dict())
    same(linear, theirs.Sequential(plain, Applied(act)), x, tolerance=slack)
    norm, other = nn.BatchNorm1d(8, act_func=name).double(), theirs.BatchNorm1d(8).double()
    same(norm, theirs.Sequential(other, Applied(act)), x, tolerance=slack)
    near(norm.state_dict(), other.state_dict())
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    ours, composed = nn.GLU(act_func=name)(a), b[:, :4] * act(b[:, 4:])
    near(ours, composed)
    near(torch.autograd.grad(ours.sum(), a), torch.autograd.grad(composed.sum(), b), slack)
    assert runs_here(linear) and runs_here(norm)


class Applied(theirs.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


PLAIN: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "Linear": (lambda n: n.Linear(6, 4, bias=False), ((3, 6),)),
    "Conv1d": (lambda n: n.Conv1d(4, 6, 3, 2, 1, groups=2), ((2, 4, 9),)),
    "Conv2d": (lambda n: n.Conv2d(4, 6, (5, 3), (1, 2), "valid", 1, 2), ((2, 4, 9, 8),)),
    "Conv2d same": (lambda n: n.Conv2d(3, 6, 3, padding="same", dilation=2), ((1, 3, 7, 7),)),
    "AvgPool1d": (lambda n: n.AvgPool1d(3, 2, 1), ((2, 3, 9),)),
    "AvgPool2d": (lambda n: n.AvgPool2d(3, 2, 1, True, False), ((2, 3, 9, 8),)),
    "MaxPool2d": (lambda n: n.MaxPool2d(3, 2, 1), ((2, 3, 9, 8),)),
    "Softmax": (lambda n: n.Softmax(1), ((2, 7, 3),)),
    "LogSoftmax": (lambda n: n.LogSoftmax(-1), ((2, 7),)),
    "Softmin": (lambda n: n.Softmin(-1), ((2, 7),)),
    "LayerNorm": (lambda n: n.LayerNorm((3, 5)), ((2, 3, 5),)),
    "RMSNorm": (lambda n: n.RMSNorm(5, eps=1e-6), ((4, 5),)),
    "BatchNorm2d": (lambda n: n.BatchNorm2d(3), ((4, 3, 5, 2),)),
    "BatchNorm3d": (lambda n: n.BatchNorm3d(3, affine=False), ((4, 3, 2, 2, 2),)),
    "GLU": (lambda n: n.GLU(1), ((2, 6, 3),)),
    "L1Loss": (lambda n: n.L1Loss(), ((4, 3), (4, 3))),
    "MSELoss": (lambda n: n.MSELoss(reduction="sum"), ((4, 3), (4, 3))),
    "SmoothL1Loss": (lambda n: n.SmoothL1Loss(beta=0.5), ((4, 3), (4, 3))),
    "HuberLoss": (lambda n: n.HuberLoss("none", 0.5), ((4, 3), (4, 3))),
}


@pytest.mark.parametrize("name", PLAIN)
def test_a_layer(name: str) -> None:
    make, shapes = PLAIN[name]
    layer, plain = make(nn).double(), make(theirs).double()
    plain.load_state_dict(layer.state_dict())
    assert runs_here(layer) and type(layer).__name__ == type(plain).__name__
    inputs = [torch.randn(*s, dtype=torch.float64) for s in shapes]
    same(layer, plain, *inputs)
    same(layer.eval(), plain.eval(), *inputs)
    near(layer.state_dict(), plain.state_dict())


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses_of_classes(reduction: str) -> None:
    weight = torch.rand(5, dtype=torch.float64)
    x, y = torch.randn(6, 5, dtype=torch.float64), torch.tensor([0, 4, 1, 2, 2, 3])
    how = {"weight": weight, "ignore_index": 2, "reduction": reduction}
    for name, more in (("NLLLoss", {}), ("CrossEntropyLoss", {"label_smoothing": 0.1})):
        layer = getattr(nn, name)(**how, **more)
        assert runs_here(layer)
        same(layer, getattr(theirs, name)(**how, **more), x, y)


def test_a_residual_before_the_activation() -> None:
    x, r = torch.randn(2, 4, 3, 5, 5, dtype=torch.float64)
    for training in (True, False):
        ours = nn.BatchNorm2d(3, act_func="relu").double().train(training)
        other = theirs.BatchNorm2d(3).double().train(training)
        for bn in (ours, other):
            bn.running_mean.fill_(0.3)
            bn.weight.data.copy_(torch.tensor([1.0, -2.0, 0.5]))
        composed = Applied(lambda x, r, other=other: F.relu(other(x) + r))
        composed.norm = other
        same(ours, composed, x, r)
        near(ours.state_dict(), other.state_dict())


@pytest.mark.parametrize("momentum", [0.3, None])
def test_running_statistics(momentum: float | None) -> None:
    ours = nn.BatchNorm1d(4, momentum=momentum).double()
    other = theirs.BatchNorm1d(4, momentum=momentum).double()
    for _ in range(3):
        x = torch.randn(5, 4, 3, dtype=torch.float64) * 3 + 1
        near(ours(x), other(x))
    near(ours.state_dict(), other.state_dict())
    near(ours.eval()(x), other.eval()(x))
    without = nn.BatchNorm1d(4, track_running_stats=False).double().eval()
    plain = theirs.BatchNorm1d(4, track_running_stats=False).double().eval()
    near(without(x), plain(x))
    with pytest.raises(ValueError, match="more than 1 value"):
        nn.BatchNorm1d(4)(torch.ones(1, 4))


def masks(kind: str) -> dict[str, Any]:
    if kind == "causal":
        return {"attn_mask": torch.ones(5, 5).triu(1).bool()}
    if kind == "added":
        return {"attn_mask": torch.randn(4, 5, 5, dtype=torch.float64)}
    if kind == "padding":
        padding = torch.tensor([[False] * 5, [False, False, True, False, True]])
        return {"key_padding_mask": padding}
    return {}


@pytest.mark.parametrize("kind", ["", "causal", "added", "padding"])
@pytest.mark.parametrize("weights", [False, True])
def test_attention(kind: str, weights: bool) -> None:
    first = kind == "causal"
    ours = nn.MultiheadAttention(6, 2, batch_first=first).double()
    other = theirs.MultiheadAttention(6, 2, batch_first=first).double()
    for p in other.parameters():
        p.data.normal_()  # scores that are far from each other
    ours.load_state_dict(other.state_dict())
    assert runs_here(ours)
    shape = (2, 5, 6) if first else (5, 2, 6)
    q, k, v = (torch.randn(*shape, dtype=torch.float64) for _ in range(3))
    how = {"need_weights": weights, **masks(kind)}
    pair = [Applied(lambda q, k, v, own=own: own(q, k, v, **how)) for own in (ours, other)]
    for applied, own in zip(pair, (ours, other), strict=True):
        applied.own = own
    same(*pair, q, k, v, tolerance=1e-8)


def test_attention_that_is_left_to_pytorch() -> None:
    x = torch.randn(5, 6)
    near(nn.MultiheadAttention(6, 2)(x, x, x)[0].shape, x.shape)
    wide = nn.MultiheadAttention(6, 2, add_zero_attn=True)
    assert "add_zero_attn" in next(iter(pb.torch.report(wide).left.values()))
    assert wide(x[:, None], x[:, None], x[:, None])[0].shape == (5, 1, 6)


def test_dropout() -> None:
    layer = nn.Dropout(0.25)
    x = torch.randn(100, 100, dtype=torch.float64, requires_grad=True)
    y = layer(x)
    kept = y != 0
    assert abs(float(kept.double().mean()) - 0.75) < 0.02
    near(y, torch.where(kept, x / 0.75, 0.0))
    near(torch.autograd.grad(y.sum(), x)[0], kept.double() / 0.75)
    near(nn.Dropout(1.0)(x), torch.zeros_like(x))
    assert torch.equal(nn.Dropout(0.0)(x), x) and torch.equal(layer.eval()(x), x)


def test_pytorchs_own_checks_of_derivatives() -> None:
    def doubles(*shape: int) -> Any:
        return torch.randn(*shape, dtype=torch.float64, requires_grad=True)

    linear = nn.Linear(3, 2, act_func="gelu").double()
    norm = nn.BatchNorm1d(2, act_func="tanh", track_running_stats=False).double()
    attention = nn.MultiheadAttention(4, 2).double()
    assert torch.autograd.gradcheck(linear, (doubles(4, 3),), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(linear, (doubles(2, 3),))
    assert torch.autograd.gradcheck(norm, (doubles(4, 2), doubles(4, 2)))
    assert torch.autograd.gradcheck(
        lambda x: attention(x, x, x, need_weights=False)[0], (doubles(3, 1, 4),)
    )
    strided = doubles(3, 4).T  # rows that do not lie one after the other
    assert torch.autograd.gradcheck(linear, (strided,))


# of the 29 shapes of attorch's own tests, and with the tolerance that they have
@pytest.mark.parametrize("shape", [(96,), (12288,), (4, 2000), (12288, 1), (1, 3, 224, 224)])
def test_shapes_of_attorch(shape: tuple[int, ...]) -> None:
    x = torch.randn(*shape)
    same(nn.GELU(), theirs.GELU(), x, tolerance=1e-3)
    same(nn.LayerNorm(shape[-1]), theirs.LayerNorm(shape[-1]), x, tolerance=1e-3)
    same(nn.Softmax(-1), theirs.Softmax(-1), x, tolerance=1e-3)
    linear, plain = nn.Linear(shape[-1], 7, act_func="silu"), theirs.Linear(shape[-1], 7)
    plain.load_state_dict(linear.state_dict())
    same(linear, theirs.Sequential(plain, theirs.SiLU()), x, tolerance=1e-3)


def test_a_model_trains_is_copied_saved_and_reported() -> None:
    def network(n: Any, **how: Any) -> Any:
        return n.Sequential(
            n.Conv2d(1, 4, 3), n.BatchNorm2d(4, **how), n.Flatten(), n.Linear(36, 3), n.Identity()
        ).double()

    ours, other = network(nn), network(theirs)
    other.load_state_dict(ours.state_dict())
    x, y = torch.randn(6, 1, 5, 5, dtype=torch.float64), torch.randint(3, (6,))
    pairs = [(m, torch.optim.SGD(m.parameters(), lr=0.1)) for m in (ours, other)]
    for _ in range(3):
        losses = []
        for model, optimizer in pairs:
            optimizer.zero_grad()
            losses.append(nn.CrossEntropyLoss()(model(x), y))
            losses[-1].backward()
            optimizer.step()
        near(losses[0], losses[1])
    near(ours.state_dict(), other.state_dict())
    report = pb.torch.report(ours)
    assert list(report.replaced) == ["0", "1", "2", "3"] and list(report.left) == ["4"]
    twin = copy.deepcopy(ours).eval()
    file = io.BytesIO()
    torch.save(ours, file)
    file.seek(0)
    again = torch.load(file, weights_only=False).eval()
    near(twin(x), ours.eval()(x))
    near(again(x), ours(x))


class Mixed(theirs.Module):
    """With what a `Sequential` has no place for."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(5, 8, act_func="gelu")
        self.norm = nn.BatchNorm1d(8, act_func="leaky_relu_0.1")
        self.attend = nn.MultiheadAttention(4, 2, batch_first=True)
        self.gate = nn.GLU(act_func="silu")
        self.last = nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        y = self.first(x)
        y = self.norm(y, y * y)
        return self.last(self.gate(self.attend(*[y.view(-1, 2, 4)] * 3)[0].flatten(1)))


def test_a_step_of_such_layers_is_one_program() -> None:
    torch._dynamo.reset()
    ours = Mixed().double()
    alone = copy.deepcopy(ours)
    x, y = torch.randn(6, 5, dtype=torch.float64), torch.randint(3, (6,))
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (ours, alone)]
    step = pb.torch.step(ours, F.cross_entropy, optimizers[0])
    for _ in range(2):
        loss = F.cross_entropy(alone(x), y)
        near(step(x, y), loss.detach())
        optimizers[1].zero_grad()
        loss.backward()
        optimizers[1].step()
    near(ours.state_dict(), alone.state_dict())


def test_settings_that_change_are_seen() -> None:
    layer, x = nn.LeakyReLU(0.1), torch.tensor([-1.0, 2.0])
    near(layer(x), torch.tensor([-0.1, 2.0]), 1e-6)
    layer.negative_slope = 0.5
    near(layer(x), torch.tensor([-0.5, 2.0]), 1e-6)
    over = nn.ReLU(inplace=True)
    assert over(x) is x and "inplace" in pb.torch.report(over).left[""]


def test_the_layers_of_attorch_run_here() -> None:
    """Its 41 classes, each an operator; and its 21 names of activations."""
    sizes: dict[str, tuple[Any, ...]] = {
        "Conv1d": (2, 3, 2), "Conv2d": (2, 3, 2), "AvgPool1d": (2,), "AvgPool2d": (2,),
        "MultiheadAttention": (4, 2), "BatchNorm1d": (3,), "BatchNorm2d": (3,),
        "LayerNorm": (4,), "RMSNorm": (4,), "Linear": (4, 3), "Softmax": (-1,),
        "LogSoftmax": (-1,), "Softmin": (-1,),
    }  # fmt: skip
    others = (
        "GLU", "Dropout", "L1Loss", "MSELoss",
        "SmoothL1Loss", "HuberLoss", "CrossEntropyLoss", "NLLLoss",
    )  # fmt: skip
    names = [*sizes, *others, *ACTIVATIONS]
    assert len(names) == 41 and len(NAMES) == 21
    left = {n: pb.torch.report(getattr(nn, n)(*sizes.get(n, ()))).left for n in names}
    assert not {n: why for n, why in left.items() if why}


def test_every_name_of_pytorch_is_there() -> None:
    missing = [n for n in dir(theirs) if not n.startswith("__") and not hasattr(nn, n)]
    assert not missing
    assert nn.functional is F and nn.Parameter is theirs.Parameter and nn.LSTM is theirs.LSTM
    for name in dir(theirs):
        kind = getattr(theirs, name)
        if isinstance(kind, type):
            assert issubclass(getattr(nn, name), kind)
    assert pb.torch.nn is nn


def test_bad_settings_are_refused() -> None:
    for make in (
        lambda: nn.Linear(2, 2, act_func="relux"),
        lambda: nn.GLU(act_func="leaky_relu_x"),
        lambda: nn.BatchNorm1d(2, act_func=""),
    ):
        with pytest.raises(UnsupportedError) as raised:
            make()
        assert raised.value.code == "E312" and "act_func" in raised.value.what
    for share in (-0.1, 1.5, "0.1", float("nan")):
        with pytest.raises(ArgumentError) as refused:
            nn.ReLU(drop_p=share)
        assert refused.value.code == "E176"
