"""Operators of 16 bits round once, as eager's do: beside the same in float64, rounded."""

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

Case = tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]
CASES: dict[str, Case] = {
    "linear": (F.linear, ((16, 32), (24, 32), (24,))),
    "linear of rows of rows": (F.linear, ((2, 8, 32), (24, 32), (24,))),
    "addmm": (lambda x, a, b: torch.addmm(x, a, b, beta=0.5, alpha=2), ((9, 7), (9, 32), (32, 7))),
    "baddbmm": (torch.baddbmm, ((2, 9, 7), (2, 9, 32), (2, 32, 7))),
    "addmv": (torch.addmv, ((16,), (16, 32), (32,))),
    "addcmul": (lambda a, b, c: torch.addcmul(a, b, c, value=0.3), ((64,),) * 3),
    "addcdiv": (lambda a, b, c: torch.addcdiv(a, b, c.abs()), ((64,),) * 3),
    "lerp": (lambda a, b: torch.lerp(a, b, 0.3), ((64,),) * 2),
    "hardswish": (F.hardswish, ((64,),)),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (32,), w, b), ((16, 32), (32,), (32,))),
    "group norm": (lambda x, w, b: F.group_norm(x, 2, w, b), ((4, 8, 9), (8,), (8,))),
    "batch norm": (
        lambda x, m, v, w, b: F.batch_norm(x, m, v.abs(), w, b),
        ((8, 4, 5), (4,), (4,), (4,), (4,)),
    ),
}
EDGE = 0.002  # of the results: sums of float32 that lie where two roundings meet


def off(own: Any, true: Any) -> float:
    """Which part of elements is not the true one, rounded; all are within one unit of it."""
    wanted = true.to(own.dtype)
    torch.testing.assert_close(own, wanted, rtol=2 * torch.finfo(own.dtype).eps, atol=1e-3)
    return float((own != wanted).double().mean())


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", CASES)
def test_an_operator_of_16_bits_rounds_once(name: str, kind: str) -> None:
    function, shapes = CASES[name]
    given = [torch.randn(shape).to(getattr(torch, kind)) for shape in shapes]
    true = function(*[g.double() for g in given])
    own = torch.compile(function, backend=pb.torch.backend, options={"fallback": "error"})(*given)
    assert off(own, true) <= max(EDGE, 1.5 / own.numel())


def test_a_linear_layer_of_any_rows_rounds_once() -> None:
    layer = torch.nn.Linear(32, 24).to(torch.bfloat16)
    fast = torch.compile(layer, backend=pb.torch.backend, options={"dynamic": True})
    for rows in (5, 9):
        x = torch.randn(rows, 3, 32).to(torch.bfloat16)
        torch._dynamo.mark_dynamic(x, 0)
        true = F.linear(x.double(), layer.weight.double(), layer.bias.double())
        assert off(fast(x), true) <= max(EDGE, 1.5 / true.numel())


@pytest.mark.parametrize("name", ["linear", "layer norm", "group norm", "hardswish"])
def test_gradients_of_16_bits_are_as_near_as_eagers(name: str) -> None:
    function, shapes = CASES[name]
    given = [torch.randn(shape).to(torch.bfloat16).requires_grad_() for shape in shapes]
    true = [g.detach().double().requires_grad_() for g in given]
    head = torch.randn_like(function(*given))
    wanted = torch.autograd.grad(function(*true), true, head.double())
    eager = torch.autograd.grad(function(*given), given, head)
    fast = torch.compile(function, backend=pb.torch.backend)
    own = torch.autograd.grad(fast(*given), given, head)
    for mine, theirs, exact in zip(own, eager, wanted, strict=True):
        worst = (theirs.double() - exact).abs().max()
        assert (mine.double() - exact).abs().max() <= 1.01 * worst + 1e-6
