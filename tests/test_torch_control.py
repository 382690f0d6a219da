"""Branches and loops of PyTorch's (`torch.cond`, `scan`, `while_loop`) in programs: as eager's."""

from __future__ import annotations

from typing import Any

import pytest

import pullback as pb

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("torch._higher_order_ops.scan", reason="this PyTorch has no scan")

from torch._higher_order_ops.scan import scan  # noqa: E402
from torch._higher_order_ops.while_loop import while_loop  # noqa: E402

from torch_graphs import compiled  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("fresh_torch"),
    pytest.mark.filterwarnings("ignore"),  # of PyTorch's own compiler
]


def leaves(tree: Any) -> list[Any]:
    return [t for t in torch.utils._pytree.tree_leaves(tree) if isinstance(t, torch.Tensor)]


def alike(function: Any, run: Any, given: Any) -> None:
    """Results, and gradients by all that has some."""
    eager, own = leaves(function(*given)), leaves(run(*given))
    for mine, theirs in zip(own, eager, strict=True):
        torch.testing.assert_close(mine, theirs)
    wanted = [g for g in given if g.requires_grad]
    rows = []
    for results in (own, eager):
        value = sum(r.sin().sum() for r in results if r.requires_grad)
        rows.append(torch.autograd.grad(value, wanted, allow_unused=True) if wanted else ())
    for mine, theirs in zip(*rows, strict=True):
        assert (mine is None) == (theirs is None)
        if mine is not None:
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def chosen(x: Any, w: Any) -> Any:
    return torch.cond(x.sum() > 0, lambda x: (x @ w).sin(), lambda x: x @ w + 1, (x,))


def test_a_branch_takes_either_side() -> None:
    """One program for both: what is true is known when it runs."""
    x, w = torch.randn(4, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    run = compiled(chosen)
    for _ in range(2):
        for sign in (1, -1):
            given = (x * sign * x.sum().sign()).detach().requires_grad_()
            alike(chosen, run, (given, w))
    assert len(pb.torch.report().graphs) == 2, "a forward and a backward"


def recurrent(x: Any, w: Any) -> Any:
    """Leaky states, and a row of each step."""
    return scan(lambda c, x: ((c * 0.5 + x @ w).tanh(), (c + 1).sum()), torch.zeros(3), x)


@pytest.mark.parametrize("steps", [1, 2, 37])
def test_a_scan_is_one_loop(steps: int) -> None:
    x, w = torch.randn(steps, 3, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    alike(recurrent, compiled(recurrent, dynamic=False), (x, w))


def test_branches_in_a_scan_backwards() -> None:
    def nested(x: Any) -> Any:
        def step(c: Any, x: Any) -> Any:
            new = torch.cond(x.sum() > 0, lambda c, x: c + x, lambda c, x: c * x, (c, x))
            return new, (c * x).sum()

        last, rows = scan(step, torch.ones(3), x, reverse=True)
        return last * 2, rows.exp()

    alike(nested, compiled(nested), (torch.randn(5, 3, requires_grad=True),))


def test_a_loop_until() -> None:
    def halved(x: Any) -> Any:
        start = torch.tensor(0), x
        return while_loop(lambda n, x: x.abs().max() > 1, lambda n, x: (n + 1, x / 2), start)

    run = compiled(halved)
    for size in (0.5, 3.0, 1000.0):
        alike(halved, run, (torch.randn(4) * size,))


def test_what_has_no_rule_in_a_branch_is_named() -> None:
    def f(x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda x: torch.dropout(x, 0.5, True), lambda x: x + 1, (x,))

    x = -torch.ones(4)
    torch.testing.assert_close(compiled(f, "allow")(x), x + 1)
    (left,) = pb.torch.report().fallbacks
    assert left.operator == "cond"
    assert "in a branch or a loop" in left.reason


def test_a_branch_beside_what_pytorch_runs() -> None:
    """Which takes graphs apart: a part has no graphs, and the report says so."""

    def f(x: Any) -> Any:
        y = torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x + 1, (x,))
        return y.sin(), torch.hash_tensor(x)

    x = torch.randn(4)
    for own, eager in zip(compiled(f, "allow")(x), f(x), strict=True):
        torch.testing.assert_close(own, eager)
    reasons = {one.operator: one.reason for one in pb.torch.report().fallbacks}
    assert reasons["cond"] == "a branch or a loop, in a graph of which PyTorch runs a part"
    assert "aten.hash_tensor.default" in reasons


def test_sizes_that_change_have_a_program_each() -> None:
    def f(x: Any) -> Any:
        return torch.cond(x.sum() > 0, lambda x: x.cos(), lambda x: x.sin(), (x,))

    run = compiled(f, dynamic=True)
    for n in (3, 5, 8):
        x = torch.randn(n)
        torch.testing.assert_close(run(x), f(x))
    assert "branches or loops, whose programs have fixed sizes" in str(pb.torch.report())


def test_a_step_of_training_with_a_branch() -> None:
    class Gated(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(3, 3)

        def forward(self, x: Any) -> Any:
            y = self.linear(x)
            return torch.cond(y.mean() > 0, lambda y: y * 2, lambda y: y - 1, (y,))

    model, x = Gated(), torch.randn(8, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = torch.nn.functional.mse_loss
    step = pb.torch.step(model, loss, optimizer)
    for _ in range(5):
        want = loss(model(x), x)
        torch.testing.assert_close(step(x, x), want.detach())
