"""PyTorch's float8_e4m3fn and float8_e5m2 in programs, beside eager."""

from __future__ import annotations

from typing import Any

import pytest

import pullback as pb

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch_graphs import compiled  # noqa: E402  # it needs PyTorch

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("fresh_torch"),
    pytest.mark.filterwarnings("ignore"),  # of PyTorch's own compiler
]
KINDS = (torch.float8_e4m3fn, torch.float8_e5m2)


def same(a: Any, b: Any) -> None:
    """The same numbers, NaN too."""
    assert a.dtype == b.dtype
    assert torch.equal(a.isnan(), b.isnan())
    assert torch.equal(a.float().nan_to_num(9.0), b.float().nan_to_num(9.0))


@pytest.mark.parametrize("kind", KINDS)
def test_casts(kind: Any) -> None:
    """What is too large too: as this PyTorch has it, the largest number of e4m3fn or NaN."""
    x = torch.tensor([1.0, -2.3, 0.1, 0.001, 464.0, 465.0, 1e9, -7e4])
    x = torch.cat([x, torch.tensor([float("inf"), -float("inf"), float("nan")])])
    whole = torch.tensor([0, -3, 17, 1000, 100000])
    for function in (lambda x: x.to(kind), lambda x: torch.zeros(x.shape, dtype=kind).copy_(x)):
        for given in (x, x.half(), x.bfloat16(), x.double(), whole):
            same(compiled(function)(given).float(), function(given).float())
            torch._dynamo.reset()
    same(compiled(lambda x: x.float() * 2)(x.to(kind)), x.to(kind).float() * 2)
    assert torch.equal(
        compiled(lambda x: x.clone())(x.to(kind)).view(torch.uint8), x.to(kind).view(torch.uint8)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_weights(kind: Any) -> None:
    w = torch.randn(32, 65).to(kind)
    x = torch.randn(5, 65, requires_grad=True)

    def loss(x: Any) -> Any:
        return (x @ w.float().T).sin().sum()

    (own,) = torch.autograd.grad(compiled(loss)(x), x)
    (eager,) = torch.autograd.grad(loss(x), x)
    torch.testing.assert_close(own, eager, rtol=1e-4, atol=1e-4)
    operator = pb.torch.op(
        lambda x, w: x @ pb.astype(w, "float32").T, name=f"eighths::{str(kind)[6:]}"
    )
    torch.testing.assert_close(operator(x, w), x @ w.float().T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_leaves(kind: Any) -> None:
    """They are of the leaf's type."""
    leaves = [torch.arange(-4, 5).float().to(kind).requires_grad_() for _ in range(2)]

    def loss(x: Any) -> Any:
        return (x.float() ** 2 * 0.3).sum()

    compiled(loss)(leaves[0]).backward()
    loss(leaves[1]).backward()
    assert leaves[0].grad.dtype == kind
    same(leaves[0].grad, leaves[1].grad)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cache_of_keys(kind: Any) -> None:
    def step(cache: Any, key: Any, at: int, q: Any) -> Any:
        cache[at] = key.to(kind)
        return cache.float() @ q

    caches = [torch.zeros(6, 8).to(kind) for _ in range(2)]
    run = compiled(step)
    for at in range(3):
        key, q = torch.randn(8), torch.randn(8)
        own, eager = run(caches[0], key, at, q), step(caches[1], key, at, q)
        torch.testing.assert_close(own, eager, rtol=1e-4, atol=1e-4)
    assert torch.equal(*(c.view(torch.uint8) for c in caches))
