"""Sizes that are sums of symbols: what is joined and cut along them is one program for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import pullback as pb
from pullback.errors import PullbackError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import sympy  # noqa: E402  # it comes with PyTorch
from torch.nn import functional as F  # noqa: E402  # it needs PyTorch
from torch.utils._sympy.functions import FloorDiv  # noqa: E402

from pullback.bridge import grown  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("fresh_torch"),
    pytest.mark.filterwarnings("ignore"),  # of PyTorch's own compiler
]

GROWN: dict[str, Callable[..., Any]] = {
    "joined with one": lambda x, y: torch.cat([x, y[:1]], 0).softmax(0),
    "joined with another": lambda x, y: torch.cat([x, 2 * y], 0).cumsum(1),
    "three": lambda x, y: torch.cat([x, y[:2], x], 0).sum(0),
    "in front": lambda x, y: torch.cat([y[:3], x], 0) @ x[:4].T,
    "without the first": lambda x, y: x[1:] - x[:-1],
    "the last": lambda x, y: x[-1] + y[-2],
    "the last rows": lambda x, y: x[-2:] * y[-2:],
    "numbered from a size": lambda x, y: torch.arange(x.shape[0], x.shape[0] + 1) + y.sum(),
    "numbered": lambda x, y: torch.arange(x.shape[0] + 2).float().sqrt(),
    "without two": lambda x, y: x[2:].exp(),
    "padded": lambda x, y: F.pad(x, (1, 0, 2, 1), value=0.5).sin(),
    "cut by padding": lambda x, y: F.pad(x, (1, 0, -1, 0)) + y[0, 0],
    "moved by padding": lambda x, y: F.pad(x, (0, 0, 1, -1)) + y[0],
    "from a size on": lambda x, y: torch.arange(64.0)[x.shape[0] - 1 : x.shape[0] + 1] + x[0, :2],
}


CUT: dict[str, Callable[..., Any]] = {
    "itself three times": lambda x: torch.cat([x, x.sin(), x]).exp(),
    "itself twice": lambda x: torch.cat([x, 2 * x]).cumsum(0) @ x.sum(0),
    "every second": lambda x: x[::2] + 1,
    "every second but the first": lambda x: x.T[:, 1::2].exp(),
    "parts": lambda x: torch.cat([x, x[:2]]).split([2, x.shape[0]])[1].reshape(-1) + 1,
    "the first part": lambda x: torch.cat([x, x[:2]]).split([x.shape[0], 2])[0].cos(),
    "neighbours": lambda x: x[1:] - x[:-1],
    "all but two": lambda x: x[:-2].cos(),
    "the last": lambda x: x[-1].sin(),
    "put behind": lambda x: torch.slice_scatter(x.sin(), x[1:].cos(), 0, 1),
    "put at every second": lambda x: torch.slice_scatter(x.sin(), x[::2].cos(), 0, step=2),
}
QUICK = "itself three times", "every second but the first", "parts"


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in CUT]
)
def test_what_is_cut_is_one_program_forward_and_backward(name: str) -> None:
    function = CUT[name]
    options = {"fallback": "error", "dynamic": True}
    fast = torch.compile(function, backend=pb.torch.backend, options=options)
    for count in (5, 8, 4, 29):
        x, _ = sized(count, 1, grads=True)
        torch._dynamo.mark_dynamic(x, 0, min=4, max=30)
        ours, eager = fast(x), function(x)
        torch.testing.assert_close(ours, eager, msg=lambda m, n=count: f"{n}: {m}")
        head = torch.arange(1.0 * ours.numel(), dtype=x.dtype).cos().view(ours.shape)
        grads = [torch.autograd.grad(y, x, head)[0] for y in (ours, eager)]
        torch.testing.assert_close(*grads, msg=lambda m, n=count: f"{n}: {m}")
    assert [(g.kind, g.sizes) for g in graphs()] == [("forward", ""), ("backward", "")]


PADDED = ("padded", "cut by padding", "moved by padding")


def sized(count: int, other: int, grads: bool = False) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(count)
    x, y = (torch.randn(n, 4, dtype=torch.float64, generator=generator) for n in (count, other))
    return x.requires_grad_(grads), y.requires_grad_(grads)


def graphs() -> list[Any]:
    report = pb.torch.report()
    assert not report.fallbacks
    return list(report.graphs)


@pytest.mark.parametrize("name", GROWN)
def test_one_program_for_all_sizes(name: str) -> None:
    function = GROWN[name]
    fast = torch.compile(function, backend=pb.torch.backend, dynamic=True)
    for count, other in ((5, 7), (9, 6), (31, 12), (6, 40)):
        x, y = sized(count, other)
        torch.testing.assert_close(fast(x, y), function(x, y), msg=lambda m, n=count: f"{n}: {m}")
    assert [g.sizes for g in graphs()] == [""]


@pytest.mark.parametrize(
    "name", ["joined with one", "joined with another", "without the first", *PADDED]
)
def test_gradients_of_what_is_joined(name: str) -> None:
    function = GROWN[name]
    fast = torch.compile(function, backend=pb.torch.backend, dynamic=True)
    for count, other in ((5, 7), (9, 6), (20, 12)):
        x, y = sized(count, other, grads=True)
        ours = torch.autograd.grad(fast(x, y).sin().sum(), (x, y), allow_unused=True)
        eager = torch.autograd.grad(function(x, y).sin().sum(), (x, y), allow_unused=True)
        for mine, theirs in zip(ours, eager, strict=True):
            torch.testing.assert_close(mine, theirs, msg=lambda m, n=count: f"{n}: {m}")


def test_a_sum_is_bounded_by_what_it_adds() -> None:
    s, u = sympy.symbols("s u", integer=True)
    ranges = {s: (2, 16), u: (3, 5)}
    assert grown.bounds(s + 1, ranges) == (3, 17)
    assert grown.bounds(2 * s - u + 1, ranges) == (1, 30)  # an extent is 1 at the least
    assert grown.valued(2 * s - u + 1, {s: 7, u: 4}) == 11
    half = FloorDiv(s + 1, 2)
    assert grown.bounds(half, ranges) == (1, 8) and grown.valued(half, {s: 6}) == 3


def test_sizes_that_were_one_number_are_checked() -> None:
    """Keys and values of one length, which no line of the graph says; later of two lengths."""

    def attended(q: Any, k: Any, v: Any, new: Any) -> Any:
        k, v = torch.cat([k, new], 2), torch.cat([v, new], 2)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    fast = torch.compile(attended, backend=pb.torch.backend)
    draw = torch.Generator().manual_seed(0)

    def drawn(keys: int, values: int) -> list[Any]:
        sizes = (2, keys, values, 1)
        return [torch.randn(1, 2, n, 8, dtype=torch.float64, generator=draw) for n in sizes]

    for length in (5, 9, 30, 16):  # the first a graph of its own, the others one for all
        given = drawn(length, length)
        torch.testing.assert_close(fast(*given), attended(*given))
    assert [g.sizes for g in graphs()] == ["", ""]
    with pytest.raises((PullbackError, RuntimeError)):  # eager reads beyond the values
        fast(*drawn(7, 4))
