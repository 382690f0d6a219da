"""Rules of ATen operators beside eager PyTorch, where a sample of OpInfo is too easy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import pullback as pb

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch.nn import functional as F  # noqa: E402  # it needs PyTorch

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("fresh_torch"),
    pytest.mark.filterwarnings("ignore"),  # of PyTorch's own compiler
]


def same(function: Callable[..., Any], *args: Any) -> None:
    """Results, their types, and gradients are those of eager, without fallback."""
    run = torch.compile(
        function, backend=pb.torch.backend, options={"fallback": "error"}, dynamic=False
    )
    rows = [torch.utils._pytree.tree_leaves(g(*args)) for g in (run, function)]
    for own, eager in zip(*rows, strict=True):
        torch.testing.assert_close(own, eager, rtol=1e-5, atol=1e-5, equal_nan=True)
    leaves = [a for a in args if isinstance(a, torch.Tensor) and a.requires_grad]
    if not leaves or not any(r.requires_grad for r in rows[1]):
        return
    smooth = [[r for r in row if r.requires_grad] for row in rows]
    heads = [torch.randn_like(r) for r in smooth[1]]
    pairs = [torch.autograd.grad(row, leaves, heads) for row in smooth]
    for own, eager in zip(*pairs, strict=True):
        torch.testing.assert_close(own, eager, rtol=1e-4, atol=1e-5)


BAGS: dict[str, dict[str, Any]] = {
    "sums": {"mode": "sum"},
    "means": {"mode": "mean", "padding_idx": 2},
    "largest": {"mode": "max", "padding_idx": 2},
    "weighted": {"mode": "sum", "padding_idx": 1},
    "with the last": {"mode": "mean", "include_last_offset": True},
}


@pytest.mark.parametrize("name", BAGS)
def test_bags_of_embeddings(name: str) -> None:
    """Bags that are empty, or all padding; ties of the largest."""
    table = torch.randn(6, 4)
    table[3] = table[4]
    table.requires_grad_()
    indices = torch.tensor([1, 4, 3, 2, 2, 5, 0, 1])
    offsets = torch.tensor([0, 3, 3, 5, 8]) if "last" in name else torch.tensor([0, 3, 3, 5])
    weights = torch.randn(8, requires_grad=True) if name == "weighted" else None

    def f(table: Any, weights: Any) -> Any:
        return F.embedding_bag(indices, table, offsets, per_sample_weights=weights, **BAGS[name])

    same(f, table, weights)


def test_what_no_rule_takes_is_pytorchs() -> None:
    table, indices = torch.randn(5, 2, requires_grad=True), torch.tensor([[1, 1], [0, 4]])
    f = lambda t: F.embedding_bag(indices, t, scale_grad_by_freq=True, mode="sum")
    run = torch.compile(f, backend=pb.torch.backend)
    own, eager = (torch.autograd.grad(g(table).sin().sum(), table)[0] for g in (run, f))
    torch.testing.assert_close(own, eager)
    assert any("frequency" in one.reason for one in pb.torch.report().fallbacks)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("how", [{"size": (3, 9)}, {"scale_factor": 0.4}, {"size": (13, 2)}])
def test_a_resize_that_averages(mode: str, how: dict[str, Any]) -> None:
    x = torch.randn(2, 3, 8, 7, requires_grad=True)
    for aligned in (False, True):
        torch._dynamo.reset()
        same(lambda x, a=aligned: F.interpolate(
            x, mode=mode, antialias=True, align_corners=a, **how
        ), x)  # fmt: skip


def test_what_a_mask_picks() -> None:
    x, source = torch.randn(3, 4, requires_grad=True), torch.randn(10, requires_grad=True)
    mask = torch.rand(3, 4) < 0.6
    same(lambda x, s: x.masked_scatter(mask, s), x, source)
    same(lambda x, s: x.masked_scatter(mask[:, :1], s.reshape(2, 5)), x, source)
    for size in (0, 3, 20):
        torch._dynamo.reset()
        same(lambda m, n=size: torch.nonzero_static(m, size=n, fill_value=-7), mask)


def test_medians_of_numbers() -> None:
    x = torch.tensor([[3.0, float("nan"), 1.0, 2.0], [4.0, 1.0, 3.0, 2.0]], requires_grad=True)
    same(lambda x: torch.nanmedian(x, 1), x)
    same(torch.nanmedian, x)
    same(lambda x: torch.nanmedian(x, 0)[0], torch.full((2, 2), float("nan")))


def test_medians() -> None:
    x = torch.tensor([[3.0, float("nan"), 1.0, float("nan")], [4.0, 1.0, 3.0, 2.0]])
    same(lambda x: x.median(1), x.requires_grad_())
    same(lambda x: x.median(0, keepdim=True), torch.tensor([[3, 1], [2, 5], [7, 0]]))


@pytest.mark.parametrize("rank", [2, 3])
def test_pools_at_drawn_places(rank: int) -> None:
    pool = F.fractional_max_pool2d if rank == 2 else F.fractional_max_pool3d
    x = torch.randn(2, 3, *(7, 8, 6)[:rank], requires_grad=True)
    samples = torch.rand(2, 3, rank)
    same(lambda x, s: pool(x, 2, output_size=3, return_indices=True, _random_samples=s), x, samples)
    same(lambda x, s: pool(x, 2, output_size=3, _random_samples=s), x[0].detach(), samples[:1])


def test_rules_are_named() -> None:
    names = pb.torch.rules()
    assert len(names) > 500 and "aten.mm.default" in names and list(names) == sorted(names)


def test_histograms() -> None:
    x, weight = torch.randn(50), torch.rand(50)
    same(lambda x, w: torch.histogram(x, 7, range=(-1.0, 2.0), weight=w), x, weight)
    same(lambda x: torch.histogram(x, 5, density=True), x)
    same(lambda x: torch.histogram(x, 4), torch.ones(3))


NUMBERS: dict[str, Callable[[Any], Any]] = {
    "sum": lambda x: x.sum(0),
    "logsumexp": lambda x: torch.logsumexp(x, -1, keepdim=True),
    "norm": lambda x: torch.linalg.vector_norm(x, 3, dim=0),
    "argmax": lambda x: x.argmax(0),
    "aminmax": lambda x: torch.aminmax(x, dim=-1),
    "cummax": lambda x: x.cummax(0),
    "gather": lambda x: x.gather(0, torch.tensor([0, 0])),
    "scatter": lambda x: x.scatter(0, torch.tensor([0]), torch.tensor([2.0])),
    "scatter_add": lambda x: x.scatter_add(0, torch.tensor(0), x),
    "scatter_reduce": lambda x: x.scatter_reduce(0, torch.tensor(0), x, "prod"),
    "index_add": lambda x: x.index_add(0, torch.tensor(0), x, alpha=3),
    "angle": lambda x: torch.angle(-x),
    "std": lambda x: torch.var(x, 0, correction=0),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_axes_of_a_number(name: str) -> None:
    """PyTorch takes 0 and -1 as axes of a tensor that has none."""
    same(NUMBERS[name], torch.tensor(1.5, requires_grad=True))


def test_no_places_of_another_shape() -> None:
    x, none = torch.randn(4, requires_grad=True), torch.empty(3, 0, dtype=torch.int64)
    same(lambda x: x.gather(0, none), x)
    same(lambda x: x.scatter(0, none, 1.0), x)
    same(lambda x: x.scatter_add(0, none, torch.ones(3, 0)), x)


def test_nothing_is_normalized() -> None:
    x = torch.randn(5, 0, 3, requires_grad=True)
    same(lambda x: (x.softmax(1), x.log_softmax(1), x.softmax(2)), x)


def test_factors_of_integers() -> None:
    """Eager has them as integers: 1.6 is 1."""
    x, a, b = (torch.randint(-5, 5, s) for s in ((3, 2), (3, 4), (4, 2)))
    how = {"beta": 0.6, "alpha": 1.6}
    same(lambda x, a, b: torch.addmm(x, a, b, **how), x, a, b)
    same(lambda x, a, b: torch.addmv(x[:, 0], a, b[:, 0], **how), x, a, b)
    same(lambda x, a, b: torch.addbmm(x, a[None], b[None], **how), x, a, b)


@pytest.mark.parametrize("shape", [(9,), (4, 9), (9, 4, 2)])
def test_undefined_numbers_in_order(shape: tuple[int, ...]) -> None:
    """NaN is the largest, and infinities are beside it."""
    drawn = torch.randint(0, 6, shape)
    special = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, 1.0, 2.0])
    x = special[drawn]
    dim = shape.index(9)
    for down in (False, True):
        same(lambda x, d=down: torch.sort(x, stable=True, dim=dim, descending=d), x)
        for k in (0, 1, 4, 9):
            same(lambda x, k=k, d=down: torch.topk(x, k, dim, d)[0], x)
    same(lambda x: (torch.sign(x), torch.sgn(x), torch.nn.functional.threshold(x, 0.5, 2.0)), x)
