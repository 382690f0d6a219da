"""What two projects say that they derive, in Triton: each rule and each function by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import pullback as pb

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
triton = pytest.importorskip("triton", reason="Triton is not installed")
from torch.nn import functional as F  # noqa: E402

import triton_corpus as corpus  # noqa: E402  # it needs Triton
import triton_seeds as seeds  # noqa: E402  # it needs Triton
from pullback.config import module_of  # noqa: E402
from test_triton_grad import same  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("one_seed"),
    pytest.mark.filterwarnings("ignore"),
]

SIZE = 16


def positive(*shape: int) -> Any:
    return torch.rand(*shape) + 0.5


# --- srush/triton-autodiff ------------------------------------------------------------------------


def readme(x: Any, y: Any) -> Any:
    a, b = torch.exp(x), torch.log(y[:, None])
    c = a + b
    return a * b + c @ c


RULES = {
    "log": lambda x, y: x.log() * y,
    "exp": lambda x, y: x.exp() * y,
    "log_exp": lambda x, y: x.log() * y.exp(),
    "sin": lambda x, y: x.sin() * y,
    "cos": lambda x, y: y.cos() * x,
    "sqrt": lambda x, y: x.sqrt() + y.sqrt(),
    "dot": lambda x, y: (x + y) @ (x * y),
    "expand_dims": lambda x, y: x * (x * y).sum(0)[None, :],
    "mul": lambda x, y: x * y,
    "add": lambda x, y: x + y,
    "sub": lambda x, y: (x - y) * (y - x),
    "div": lambda x, y: x / y + y / x,
    "power": lambda x, y: x**3 - x**y,
    "signs": lambda x, y: -x * y - x,
}


@pytest.mark.parametrize("name", RULES)
def test_a_rule_with_both_sides_broadcast(name: str) -> None:
    """Row S2; a column and a row, so that each adjoint is a sum over the other's axis: row S3."""
    f = pb.triton.op(
        seeds.rule_kernel, grid=(1,), outputs={"OUT": lambda a: torch.empty(SIZE, SIZE)}
    )
    text = same(
        f,
        lambda x, y: RULES[name](x[:, None], y[None, :]),
        [positive(SIZE), positive(SIZE)],
        NAME=name,
        BLOCK=SIZE,
    )
    assert "atomic" not in text


def test_the_function_of_the_readme(tmp_path: Path) -> None:
    """Row S4: both gradients, by the source that `grad` writes."""
    made = pb.triton.grad(seeds.readme, (0, 1), types=("fp32[16, 16]", "fp32[16]"))
    lines = [
        "import triton",
        "import triton.language as tl",
        "g = None",
        "@triton.jit",
        "def slopes(X, Y, D, DX, DY, SIZE: tl.constexpr):",
        "    at = tl.arange(0, SIZE)",
        "    place = at[:, None] * SIZE + at[None, :]",
        "    dx, dy = g(tl.load(X + place), tl.load(Y + at), tl.load(D + place))",
        "    tl.store(DX + place, dx)",
        "    tl.store(DY + at, dy)",
    ]
    path = tmp_path / "slopes.py"
    path.write_text("\n".join(lines))
    module = module_of(path)
    module.g = made
    x, y, d = torch.randn(SIZE, SIZE), positive(SIZE), torch.randn(SIZE, SIZE)
    dx, dy = torch.empty(SIZE, SIZE), torch.empty(SIZE)
    module.slopes[(1,)](x, y, d, dx, dy, SIZE=SIZE)
    exact = [t.double().requires_grad_() for t in (x, y)]
    known = torch.autograd.grad(readme(*exact), exact, d.double())
    for one, other in zip((dx, dy), known, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=2e-5, atol=2e-4)


def test_a_pair_by_hand_between_derived_ones() -> None:
    """Row B8: softmax, a sum whose backward is written by hand, a function of PyTorch."""

    def backward(given: Any, behind: Any) -> Any:
        calls.append(given)
        return {"X": behind["OUT"], "Y": behind["OUT"]}

    calls: list[Any] = []
    first = pb.triton.op(corpus.softmax_kernel, grid=(3,), outputs="OUT")
    second = pb.triton.op(corpus.add_kernel, grid=(1,), outputs="OUT", backward=backward)

    def composed(x: Any, y: Any) -> Any:
        return torch.sin(second(first(x * y, 20, 20, BLOCK=32), y, 60, BLOCK=64)) * x

    x, y = torch.randn(3, 20), torch.randn(3, 20)
    own, exact = ([t.to(kind).requires_grad_() for t in (x, y)] for kind in (x.dtype, torch.double))
    head = torch.randn(3, 20)
    grown = torch.autograd.grad(composed(*own), own, head)
    a, b = exact
    known = torch.autograd.grad(torch.sin((a * b).softmax(1) + b) * a, exact, head.double())
    assert len(calls) == 1
    for one, other in zip(grown, known, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=2e-5, atol=2e-5)


# --- attorch.math ---------------------------------------------------------------------------------


def statistics(x: Any, y: Any) -> Any:
    part = x[:, :13]
    inv_std = 1 / torch.sqrt(part.var(1, unbiased=False) + 1e-5)
    return part.mean(1)[:, None] * y + inv_std[:, None] * x


def welford(x: Any, y: Any) -> Any:
    mean = (5 * y + x.sum(1)) / 21
    second = (5 * (y * y + y * y) + (x * x).sum(1)) / 21
    return (mean * 21)[:, None] * x + torch.sqrt(second - mean * mean)[:, None]


def standardized(x: Any, y: Any) -> Any:
    square = (x * x).sum(1)[:, None]
    return torch.sin(y / torch.sqrt(square) * (x - square / 16) + y * y)


def losses(x: Any, y: Any) -> Any:
    t = y.expand(x.shape)
    whole = F.smooth_l1_loss(x, t, beta=0.7, reduction="none")
    whole = whole + F.l1_loss(x, t, reduction="none") * x
    whole = whole + F.mse_loss(x, t, reduction="none")
    return (whole + F.huber_loss(x, t, delta=0.7, reduction="none")) / 16


MATHEMATICS = {
    "accum_linear": lambda x, y: (x * y + x @ x.T) * torch.sin(x),
    "glu": lambda x, y: torch.sin(x) * F.silu(x * y),
    "softmax": lambda x, y: x.softmax(1) * y + (-x).softmax(1) * x + x.log_softmax(1),
    "calc_mean_and_inv_std": statistics,
    "update_welford": welford,
    "update_ema": lambda x, y: (0.9 * x + 0.1 * torch.exp(y)) * x,
    "standardize": standardized,
    "calc_p_loss": losses,
    "nll_loss": lambda x, y: -x * y / 16 * x,
    "cross_entropy_loss": lambda x, y: (x.logsumexp(1) - y)[:, None] * y,
}


@pytest.mark.parametrize("name", MATHEMATICS)
def test_a_function_of_attorch_among_others(name: str) -> None:
    """Rows B27, B29, B30: ten of ten, each in one kernel with other mathematics."""
    assert len(MATHEMATICS) == 10
    f = pb.triton.op(seeds.mathematics_kernel, grid=(1,), outputs={"OUT": "X"})
    x = torch.randn(SIZE, SIZE) * 2  # differences below -0.7 among them
    same(f, MATHEMATICS[name], [x, positive(SIZE)], NAME=name, BLOCK=SIZE)
