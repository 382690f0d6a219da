"""Factors of matrices in graphs of `torch.compile`: as eager's, in one program, errors included."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

import pullback as pb

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

from torch_graphs import compiled  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("fresh_torch"),
    pytest.mark.filterwarnings("ignore"),  # of PyTorch's own compiler
]
LA = torch.linalg


def definite(*shape: int, dtype: Any = torch.float32) -> Any:
    a = torch.randn(*shape, dtype=dtype)
    return a @ a.mT + torch.eye(shape[-1], dtype=dtype)


def _lu_solved(a: Any) -> Any:
    factors, pivots = LA.lu_factor(a)
    return factors, pivots, LA.lu_solve(factors, pivots, a.mT.contiguous())


def _reflected(a: Any) -> Any:
    q, tau = torch.geqrf(a)
    return LA.householder_product(q, tau), torch.ormqr(q, tau, a)


FACTORS: dict[str, Callable[[Any], Any]] = {
    "cholesky": lambda a: LA.cholesky(a, upper=True),
    "solve": lambda a: LA.solve(a, a.mT.sin()),
    "inverse": lambda a: a.sin() @ LA.inv(a),
    "lu": _lu_solved,
    "qr": lambda a: LA.qr(a[..., :2]),
    "eigh": lambda a: LA.eigh(a)[0],
    "svd": lambda a: LA.svd(a[..., :3, :], full_matrices=False),
    "determinants": lambda a: (LA.det(a), LA.slogdet(a)),
    "pseudoinverse": lambda a: LA.pinv(a[..., :3]),
    "rest": lambda a: torch.cholesky_solve(a, LA.cholesky(a)),
}


def flat(tree: Any) -> list[Any]:
    return torch.utils._pytree.tree_leaves(tree)


@pytest.mark.parametrize("shape", [(4, 4), (2, 5, 5), (0, 3, 3)], ids=str)
@pytest.mark.parametrize("name", FACTORS)
def test_factors_are_those_of_eager(name: str, shape: tuple[int, ...]) -> None:
    """Results with signs and pivots, strides, gradients; a call of the host, and no fallback."""
    f = FACTORS[name]
    for dtype in (torch.float32, torch.float64) if len(shape) == 2 else (torch.float32,):
        torch._dynamo.reset()
        a = definite(*shape, dtype=dtype).requires_grad_()
        rows = [flat(g(a)) for g in (compiled(f), f)]
        for own, eager in zip(*rows, strict=True):
            torch.testing.assert_close(own, eager)
            assert own.stride() == eager.stride() or not own.numel()
        smooth = [[r for r in row if r.requires_grad] for row in rows]
        heads = [torch.randn_like(r) for r in smooth[1]]
        own, eager = (torch.autograd.grad(row, a, heads)[0] for row in smooth)
        torch.testing.assert_close(own, eager, rtol=1e-3, atol=1e-3)
        report = pb.torch.report()
        assert not report.fallbacks and report.host_calls
        assert all(g.native == g.operators for g in report.graphs)
    assert "called from a program, PyTorch" in str(report)
    assert "test_torch_factors.py" in str(report.host_calls[0])


def test_arguments_that_nothing_writes_give_no_warning() -> None:
    """PyTorch's own, of arrays that cannot be written, said once in a process: asked in one."""
    code = (
        "import torch, warnings; import pullback\n"
        "warnings.simplefilter('error')\n"
        "f = torch.compile(torch.linalg.inv, backend='pullback')\n"
        "torch.testing.assert_close(f(2 * torch.eye(3)), torch.eye(3) / 2)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_without_a_gradient() -> None:
    a = definite(4, 4)
    q, _ = torch.geqrf(a)
    for own, eager in zip(compiled(_reflected)(a), _reflected(a), strict=True):
        torch.testing.assert_close(own, eager)
    f = lambda a, b: LA.ldl_solve(*LA.ldl_factor(a), b)
    torch.testing.assert_close(compiled(f)(a, q), f(a, q))


def test_what_has_no_factors_is_eagers_error() -> None:
    """Every time, whichever of two it is; what is regular goes on."""

    def f(a: Any, b: Any) -> Any:
        return LA.inv(a) + LA.cholesky(b)

    run = compiled(f)
    good, singular = definite(3, 3), torch.ones(3, 3)
    negative = torch.diag(torch.tensor([1.0, -1.0, 1.0]))
    for a, b in ((singular, good), (good, negative), (good, good), (good, negative)):
        try:
            eager = f(a, b)
        except LA.LinAlgError as error:
            with pytest.raises(LA.LinAlgError) as caught:
                run(a, b)
            assert str(caught.value) == str(error)
        else:
            torch.testing.assert_close(run(a, b), eager)


def test_numbers_of_failure() -> None:
    rows = torch.stack([torch.diag(torch.tensor(d)) for d in ([1.0, 2.0, 3.0], [1.0, 2.0, -3.0])])
    for f in (LA.cholesky_ex, LA.inv_ex, LA.lu_factor_ex):
        own, eager = compiled(f)(rows), f(rows)
        assert torch.equal(own[-1], eager[-1])


def test_an_axis_of_any_size_is_pytorchs() -> None:
    a = definite(6, 3, 3)
    torch._dynamo.mark_dynamic(a, 0)
    torch.testing.assert_close(compiled(LA.inv, "allow")(a), LA.inv(a))
    reasons = [f.reason for f in pb.torch.report().fallbacks]
    assert "a call of the host along an axis of any size" in reasons


def test_a_factor_among_other_operators() -> None:
    """Written arguments, a loss, and a second call with other values."""

    def f(a: Any, noise: Any) -> Any:
        noise.mul_(2)
        lower = LA.cholesky(a * 2)
        return (lower @ noise).square().sum() + 2 * lower.diagonal().log().sum()

    run = compiled(f)
    for _ in range(2):
        a, noise = definite(5, 5).requires_grad_(), torch.randn(5, 2)
        copy = noise.clone()
        own = torch.autograd.grad(run(a, noise), a)[0]
        eager = torch.autograd.grad(f(a, copy), a)[0]
        torch.testing.assert_close(own, eager, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(noise, copy)


@pytest.mark.parametrize("size", [40, 3000])
@pytest.mark.parametrize("name", ["sort", "topk"])
def test_a_long_sort_is_reported_as_a_call_of_the_host(name: str, size: int) -> None:
    """Short ones are in the program, by kernels."""
    sort = {"sort": torch.sort, "topk": lambda x: torch.topk(x, 20)}[name]
    x = torch.randn(4, size)
    torch.testing.assert_close(compiled(sort)(x), sort(x))
    report = pb.torch.report()
    assert not report.fallbacks
    assert [c.operator for c in report.host_calls] == [f"aten.{name}.default"] * (size == 3000)
    assert all("NumPy" in str(c) and "(" not in c.library for c in report.host_calls)
