"""Symbolic sizes of `torch.compile(backend="pullback")`: one program for all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

import pullback as pb

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import nn  # noqa: E402  # it needs PyTorch
from torch.nn import functional as F  # noqa: E402

from pullback.bridge.graphs import Native  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("fresh_torch"),
    pytest.mark.filterwarnings("ignore"),  # of PyTorch's own compiler
]


@pytest.fixture
def natives(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The graphs that become programs, as they come."""
    made: list[Any] = []
    own = Native.__init__

    def note(self: Any, *args: Any) -> None:
        own(self, *args)
        made.append(self)

    monkeypatch.setattr(Native, "__init__", note)
    return made


def compiled(function: Any, **how: Any) -> Any:
    options = {"fallback": "error"}
    return torch.compile(function, backend=pb.torch.backend, options=options, **how)


class Attention(nn.Module):
    """Two heads over a sequence, behind a norm and projections."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.into, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Any) -> Any:
        b, n, d = x.shape
        heads = [t.view(b, n, 2, 8).transpose(1, 2) for t in self.into(self.norm(x)).chunk(3, -1)]
        a = F.scaled_dot_product_attention(*heads, is_causal=True)
        return x + self.out(a.transpose(1, 2).reshape(b, n, d))


def mlp() -> Any:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))


def convnet() -> Any:
    parts = [nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*parts, nn.Conv2d(4, 6, 3), nn.Flatten(), nn.Linear(24, 2))


Make = Callable[[int], Any]
MODELS: dict[str, tuple[Callable[[], Any], Make, int]] = {
    "mlp": (mlp, lambda n: torch.randn(n, 8), 0),
    "mlp of tokens": (mlp, lambda n: torch.randn(2, n, 8), 1),
    "mlp of samples of tokens": (mlp, lambda n: torch.randn(n, 3, 8), 0),
    "attention": (Attention, lambda n: torch.randn(2, n, 16), 1),
    "convnet": (convnet, lambda n: torch.randn(n, 3, 8, 8), 0),
}


def beside(models: Sequence[Any], x: Any, axis: int | None = None, most: int = 64) -> None:
    """Results and gradients of two models are alike; `axis`: one whose size is in 2..`most`."""
    said = []
    for function, model in models:
        own = x.clone().requires_grad_()
        if axis is not None:
            torch._dynamo.mark_dynamic(own, axis, min=2, max=most)
        model.zero_grad()
        y = function(own)
        (y * torch.cos(torch.arange(y.numel()).view(y.shape))).mean().backward()
        said.append((y.detach(), own.grad, [p.grad for p in model.parameters()]))
    torch.testing.assert_close(said[0], said[1], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("name", MODELS)
def test_one_program_for_all_sizes_within_bounds(name: str, natives: list[Any]) -> None:
    """Also 1, for which PyTorch makes a graph of its own."""
    build, make, axis = MODELS[name]
    net = build()
    like = build()
    like.load_state_dict(net.state_dict())
    run = compiled(net)
    most = 15 if name == "convnet" else 64  # PyTorch has another convolution from 16 on
    for size in (2, 3, 7, 8, 15, 5, 12, 14, 4, most):
        beside(((run, net), (like, like)), make(size), axis, most)
    assert len(natives) == 2 and not any(n.reason for n in natives)
    assert [n._sized.traces for n in natives] == [1, 1]
    assert [n._programs.jit.traces for n in natives] == [0, 0]
    beside(((run, net), (like, like)), make(1))


def test_bounds_that_nobody_told_grow(natives: list[Any]) -> None:
    run = compiled(lambda x: torch.softmax(x.sin(), -1), dynamic=True)
    for size in (3, 4, 8, 9, 15, 40, 17, 200, 3):
        x = torch.randn(5, size)
        torch.testing.assert_close(run(x), torch.softmax(x.sin(), -1))
    (native,) = natives
    assert native._sized.traces == 3 and native._programs.jit.traces == 0  # 16, 128, 512


def test_sizes_as_numbers_among_elements(natives: list[Any]) -> None:
    def f(x: Any) -> Any:
        return x * x.shape[0] + x.sum() / (x.shape[0] * x.shape[1])

    run = compiled(f, dynamic=True)
    for shape in ((3, 5), (7, 4), (12, 2)):
        x = torch.randn(shape)
        torch.testing.assert_close(run(x), f(x))
    assert len(natives) == 1 and natives[0]._sized.traces == 1


def test_what_is_laid_out_in_another_way(natives: list[Any]) -> None:
    def f(x: Any, y: Any) -> Any:
        return torch.relu(x) @ y.t()

    run = compiled(f, dynamic=True)
    for n, m in ((3, 4), (5, 9), (16, 6)):
        x, y = torch.randn(8, n).t(), torch.randn(m, 3, 8)[:, 1]
        torch.testing.assert_close(run(x, y), f(x, y))
    assert all(one._programs.jit.traces == 0 for one in natives)


def test_one_size_of_elements_that_are_few_or_none(natives: list[Any]) -> None:
    run = compiled(lambda x: (x * 2).sum(1), dynamic=True)
    for shape in ((3, 4), (1, 4), (4, 1), (0, 4), (4, 0), (5, 6)):
        x = torch.randn(shape)
        torch.testing.assert_close(run(x), (x * 2).sum(1))


def test_a_graph_that_wants_a_number_has_a_program_for_each_size(natives: list[Any]) -> None:
    """A mode knows the length of its axis; the report says so."""

    def f(x: Any) -> Any:
        return torch.mode(x, dim=0).values * 2

    run = compiled(f, dynamic=True)
    for size in (3, 5, 4):
        x = torch.randn(size, 2)
        torch.testing.assert_close(run(x), f(x))
    (native,) = natives
    assert native._sized is None and native._programs.jit.traces == 3
    (graph,) = pb.torch.report().graphs
    assert "symbolic" in graph.sizes and "a program for each size" in str(graph)


def test_writes_into_arguments_of_symbolic_size() -> None:
    def f(x: Any) -> Any:
        x.mul_(2)
        return x.sum(0)

    run = compiled(f, dynamic=True)
    for size in (3, 5, 9):
        x = torch.randn(size, 2)
        want, kept = x * 2, x.clone()
        torch.testing.assert_close(run(x), f(kept))
        assert torch.equal(x, want)


def test_a_size_beyond_a_bound_has_its_own_program(natives: list[Any]) -> None:
    """PyTorch guards its bounds; a call past them is right too."""
    run = compiled(lambda x: x.sin().sum(1))
    x = torch.randn(4, 8)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=8)
    run(x)
    (native,) = natives
    places = [9 if isinstance(n.meta["val"], torch.SymInt) else None for n in native._given]
    wide = torch.randn(9, 8)
    (said,) = native([wide if p is None else p for p in places])
    torch.testing.assert_close(said, wide.sin().sum(1))
    assert native._sized.traces == 1 and native._programs.jit.traces == 1


def test_results_lie_as_the_graph_promised(natives: list[Any]) -> None:
    run = compiled(lambda x: (x.sum(0).t(), x + 1))
    for size in (3, 5):
        x = torch.randn(size, 4, 6)
        torch._dynamo.mark_dynamic(x, 0)
        first, second = run(x)
        torch.testing.assert_close(first, x.sum(0).t())
        torch.testing.assert_close(second, x + 1)
        assert first.stride() == (1, 6) and second.is_contiguous()


def test_dropout_of_symbolic_size(natives: list[Any]) -> None:
    run = compiled(lambda x: F.dropout(x, 0.5), dynamic=True)
    for size in (100, 300):
        x = torch.ones(size, 8, requires_grad=True)
        y = run(x)
        y.sum().backward()
        assert torch.equal(x.grad, y.detach()) and 0.4 < y.mean() / 2 < 0.6
