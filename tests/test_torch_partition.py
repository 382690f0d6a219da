"""What `torch.compile` keeps for the backward: nothing twice, nothing wider than it has to be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import pullback as pb

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import nn  # noqa: E402  # it needs PyTorch
from torch._functorch import config  # noqa: E402
from torch.nn import functional as F  # noqa: E402

import pullback.bridge.backend as compiler  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("fresh_torch"),
    pytest.mark.filterwarnings("ignore"),  # of PyTorch's own compiler
]


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """What forward graphs keep that is no argument: type and shape of each."""
    noted: list[Any] = []
    own = compiler.partitioned

    def part(joint: Any, inputs: Sequence[Any], **how: Any) -> Any:
        forward, backward = own(joint, inputs, **how)
        outputs = list(forward.graph.nodes)[-1].args[0][how["num_fwd_outputs"] :]
        names = [n.name for n in backward.graph.find_nodes(op="placeholder")]
        assert [o.name for o in outputs] == names[: len(outputs)], "in the order they are read in"
        made = [o.meta["val"] for o in outputs if o.op != "placeholder"]
        noted.extend((m.dtype, tuple(m.shape)) for m in made)
        return forward, backward

    monkeypatch.setattr(compiler, "partitioned", part)
    with config.patch(enable_autograd_cache=False):
        yield noted


def beside(model: Any, *inputs: Any) -> None:
    """Results and gradients, of inputs and parameters, are eager's."""
    said = []
    options = {"fallback": "error"}
    for run in (torch.compile(model, backend=pb.torch.backend, options=options), model):
        own = [x.clone().requires_grad_() for x in inputs]
        held = list(model.parameters()) if isinstance(model, nn.Module) else []
        y = run(*own)
        said.append((y.detach(), torch.autograd.grad(y.cos().sum(), [*own, *held])))
    torch.testing.assert_close(said[0], said[1], rtol=1e-4, atol=1e-5)


def size(kept: Sequence[Any]) -> int:
    """In bytes."""
    return sum(kind.itemsize * torch.Size(shape).numel() for kind, shape in kept)


def test_a_transposed_parameter_is_not_copied(kept: list[Any]) -> None:
    """Both layers' gradients want the second weight, the other way round."""
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 5))
    beside(net, torch.randn(4, 6))
    assert kept == [(torch.float32, (4, 8))], "what tanh gives"


class Attention(nn.Module):
    """Two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.out = nn.Linear(8, 24), nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        b, n, d = x.shape
        q, k, v = self.into(x).view(b, n, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(b, n, d))


def test_heads_are_kept_once(kept: list[Any]) -> None:
    """Queries, keys and values as the one product that they are parts of; what attention gives
    once for its own gradient and for that of the layer behind it.
    """
    beside(Attention(), torch.randn(3, 5, 8))
    product, given, sums = 3 * 5 * 24, 3 * 5 * 8, 3 * 2 * 5
    assert size(kept) == 4 * (product + given + sums), kept


def test_a_part_alone_is_kept_as_it_is(kept: list[Any]) -> None:
    """A slice of what nobody else reads is less than the whole."""

    def f(x: Any, y: Any) -> Any:
        return torch.sort(x @ y, 0).values[:2] * y[:2]

    beside(f, torch.randn(6, 6), torch.randn(6, 6))
    assert (torch.float32, (2, 6)) in kept and (torch.float32, (6, 6)) not in kept


def test_what_is_written_is_kept_as_it_was(kept: list[Any]) -> None:
    """A view of a buffer that the forward overwrites."""

    class Moving(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("mean", torch.arange(6.0).reshape(2, 3))

        def forward(self, x: Any) -> Any:
            y = x @ self.mean.clone().t()
            self.mean.mul_(0.5).add_(1)
            return y

    net, x = Moving(), torch.randn(4, 3, requires_grad=True)
    y = torch.compile(net, backend=pb.torch.backend)(x)
    before = torch.arange(6.0).reshape(2, 3)
    torch.testing.assert_close(y, x @ before.t())
    (grad,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(grad, torch.ones(4, 2) @ before)
    assert torch.equal(net.mean, before * 0.5 + 1) and size(kept) == 4 * 6


@pytest.mark.parametrize(
    ("side", "kind"), [(6, torch.uint8), (16, torch.uint8), (18, torch.int16)], ids=str
)
def test_positions_of_largest_elements_are_narrow(side: int, kind: Any, kept: list[Any]) -> None:
    """256 places fit eight bits, 324 do not; ties and NaN have eager's places."""
    x = torch.randn(2, 3, side, side).round()
    x[0, 0, -2:, -2:] = float("inf")
    beside(lambda x: F.max_pool2d(x.sigmoid() * 3, 2), x)
    assert (kind, (2, 3, side // 2, side // 2)) in kept
    assert not any(k == torch.int64 for k, _ in kept)


def test_positions_that_the_user_sees_stay_wide() -> None:
    def f(x: Any) -> Any:
        y, places = F.max_pool2d(x, 2, return_indices=True)
        return y * y, places

    x = torch.randn(1, 1, 20, 20, requires_grad=True)
    y, places = torch.compile(f, backend=pb.torch.backend)(x)
    y.sum().backward()
    assert places.dtype == torch.int64 and torch.equal(places, f(x)[1])
    (want,) = torch.autograd.grad(f(x)[0].sum(), x)
    torch.testing.assert_close(x.grad, want)


def test_a_changed_parameter_is_told_as_by_eager() -> None:
    """A parameter is kept itself: who writes it before the backward hears of it."""
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    y = torch.compile(net, backend=pb.torch.backend)(torch.randn(5, 3)).sum()
    with torch.no_grad():
        net[2].weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
