"""Writes by masks, slopes that are drawn, heads that share keys: without fallback, beside eager."""

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


def compiled(function: Callable[..., Any]) -> Any:
    """Without fallback, and without breaks."""
    return torch.compile(
        function, backend=pb.torch.backend, options={"fallback": "error"}, fullgraph=True
    )


def beside_eager(function: Callable[..., Any], *given: Any, rounding: float = 1e-9) -> None:
    """Values and gradients; results are weighed, so that places are not exchanged."""

    def run(f: Callable[..., Any]) -> list[Any]:
        own = [g.detach().clone().requires_grad_(g.requires_grad) for g in given]
        y = f(*own)
        wanted = [g for g in own if g.requires_grad]
        weights = torch.linspace(0.5, 2.0, y.numel(), dtype=y.dtype).view(y.shape)
        return [y.detach(), *torch.autograd.grad((y * weights).sum(), wanted)]

    names = ["value", *(f"gradient {n}" for n in range(len(given)))]
    for name, own, eager in zip(names, run(compiled(function)), run(function), strict=False):
        torch.testing.assert_close(
            own, eager, rtol=rounding, atol=rounding, msg=lambda m, n=name: f"{n}: {m}"
        )


def real(*shape: int) -> Any:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def assigned(pick: Callable[[Any], Any]) -> Callable[..., Any]:
    def run(x: Any, mask: Any, v: Any) -> Any:
        y = x * 2
        y[pick(mask)] = v
        return y * y

    return run


def added(pick: Callable[[Any], Any]) -> Callable[..., Any]:
    def run(x: Any, mask: Any, v: Any) -> Any:
        y = (x * 2).index_put_(pick(mask), v, accumulate=True)
        return y * y

    return run


def outside(x: Any, mask: Any, v: Any) -> Any:
    y = x * 2
    return y.index_put((mask,), v) * y


def of_a_view(x: Any, mask: Any, v: Any) -> Any:
    y = x * 2
    y[:, 1:4][mask[:, 1:4]] = v
    return y * y


def one_of_each_row(m: Any) -> Any:
    return (slice(None), m[0])


WRITES: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...]]] = {
    "all axes": (assigned(lambda m: m), (4, 5), ()),
    "all axes, one value": (assigned(lambda m: m), (4, 5), (1,)),
    "the first axis": (assigned(lambda m: m[:, 0]), (4, 5), (5,)),
    "the first axis, a row": (assigned(lambda m: m[:, 0]), (4, 5), (1, 5)),
    "the last axis": (assigned(one_of_each_row), (4, 5), (4, 1)),
    "the last axis, a scalar": (assigned(one_of_each_row), (4, 5), ()),
    "behind dots": (assigned(lambda m: (..., m[0])), (3, 4, 5), (3, 4, 1)),
    "two axes of four": (assigned(lambda m: (slice(0, 2), m)), (3, 4, 5, 2), (2, 1, 2)),
    "beside a number": (assigned(lambda m: (1, m)), (3, 4, 5, 2), (2,)),
    "before a number": (assigned(lambda m: (m, -1)), (4, 5, 2), ()),
    "before dots": (assigned(lambda m: (m[:, 0], ..., slice(1, 3))), (4, 2, 5), (2, 2)),
    "added": (added(lambda m: (m,)), (4, 5), ()),
    "added rows": (added(lambda m: (m[:, 0],)), (4, 5), (5,)),
    "a new tensor": (outside, (4, 5), ()),
    "a view": (of_a_view, (4, 5), ()),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_write_by_a_mask_is_a_choice(name: str) -> None:
    function, shape, value = WRITES[name]
    mask = torch.rand(4, 5) > 0.5
    beside_eager(function, real(*shape), mask, real(*value))


@pytest.mark.parametrize("number", [3, 2.5, True])
def test_numbers_by_a_mask_are_of_the_tensors_type(number: Any) -> None:
    def run(x: Any, counts: Any) -> Any:
        counts = counts + 0
        counts[x > 0] = number
        y = x * 2
        y[counts > 1] = number
        return y * counts

    beside_eager(run, real(4, 5), torch.full((4, 5), 2**40))


def test_an_argument_is_written_by_a_mask() -> None:
    def run(x: Any, held: Any) -> Any:
        held[x > 0] = -1.0
        return held * x

    x = torch.randn(4, 5)
    own, eager = torch.ones(4, 5), torch.ones(4, 5)
    torch.testing.assert_close(compiled(run)(x, own), run(x, eager))
    torch.testing.assert_close(own, eager)
    assert own.min() == -1.0


def test_values_by_place_are_pytorchs() -> None:
    """As many values as a mask picks."""

    def run(x: Any, v: Any) -> Any:
        y = x * 2
        y[x > 0] = v
        return y

    x = torch.randn(4, 5)
    v = torch.randn(int((x > 0).sum()))
    torch.testing.assert_close(torch.compile(run, backend=pb.torch.backend)(x, v), run(x, v))
    (left,) = pb.torch.report().fallbacks
    assert left.reason == "a mask as an index: the shape depends on data"


# --- bags -----------------------------------------------------------------------------------------


def test_gradients_of_bags_by_frequency_are_eagers() -> None:
    """PyTorch divides each row by how often another is named; it runs here, and is told."""
    table = torch.zeros(10, 3, requires_grad=True)

    def run(table: Any) -> Any:
        indices = torch.tensor([[1, 2, 1, 7], [2, 2, 3, 1]])
        return F.embedding_bag(indices, table, mode="sum", scale_grad_by_freq=True)

    (eager,) = torch.autograd.grad(run(table).sum(), table)
    (own,) = torch.autograd.grad(torch.compile(run, backend=pb.torch.backend)(table).sum(), table)
    torch.testing.assert_close(own, eager)
    (left,) = pb.torch.report().fallbacks
    assert left.reason == "gradients by frequency, which PyTorch counts in another way"


# --- slopes that are drawn ------------------------------------------------------------------------


def test_slopes_are_drawn_between_their_bounds() -> None:
    x = torch.full((64, 64), -1.0)
    x[0] = 3.0
    x.requires_grad_()
    rrelu = compiled(lambda x: F.rrelu(x, 0.25, 0.5, training=True))
    torch.manual_seed(5)
    y = rrelu(x)
    (slope,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(y, x * slope)  # the backward has the same numbers
    below = slope[1:]
    assert (slope[0] == 1).all() and below.min() >= 0.25 and below.max() <= 0.5
    assert abs(float(below.mean()) - 0.375) < 0.01 and float(below.std()) > 0.06
    torch.manual_seed(5)
    assert torch.equal(rrelu(x), y)
    assert not torch.equal(rrelu(x), y)


def test_slopes_of_a_model_in_place_and_in_eval() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(5, 5), torch.nn.RReLU(0.1, 0.3, inplace=True))
    x = torch.randn(8, 5)
    fast = compiled(model)
    raw, y = model[0](x), fast(x)
    slope = (y / raw)[raw < 0]
    assert ((slope > 0.0999) & (slope < 0.3001)).all()
    torch.testing.assert_close(y[raw > 0], raw[raw > 0])
    model.eval()
    torch.testing.assert_close(fast(x), model(x))


# --- heads that share keys ------------------------------------------------------------------------


@pytest.mark.parametrize("causal", [False, True])
def test_heads_of_queries_share_keys(causal: bool) -> None:
    def run(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)

    beside_eager(run, real(2, 6, 5, 4), real(2, 2, 5, 4), real(2, 2, 5, 4), rounding=1e-7)


def test_attention_keeps_the_logarithms_of_its_sums() -> None:
    """What eager's forward leaves for a backward is what ours leaves, and fits either."""
    pair = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    q, k, v = (torch.randn(2, 3, n, 8) for n in (5, 7, 7))
    run = compiled(lambda q, k, v: pair(q, k, v, scale=0.5))
    for own, eager in zip(run(q, k, v), pair(q, k, v, scale=0.5), strict=True):
        torch.testing.assert_close(own, eager)
