"""Derivatives of derivatives of Triton kernels and functions; backwards made of operators."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pullback as pb
from pullback.errors import UnsupportedError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
triton = pytest.importorskip("triton", reason="Triton is not installed")
from torch.nn import functional as F  # noqa: E402

import triton_corpus as corpus  # noqa: E402  # it needs Triton
import triton_lean as lean  # noqa: E402
from pullback.config import module_of  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("one_seed"),
    pytest.mark.filterwarnings("ignore"),
]


def slopes(f: Callable[..., Any], tensors: list[Any], weights: Any) -> Any:
    """Gradients of the squares of gradients."""
    (grown,) = torch.autograd.grad((f(*tensors) * weights).sum(), tensors[:1], create_graph=True)
    return torch.autograd.grad((grown**2).sum(), tensors)


def twice(f: Callable[..., Any], of: Callable[..., Any], *tensors: Any) -> None:
    """Beside PyTorch's in float64."""
    own = [t.clone().requires_grad_() for t in tensors]
    exact = [t.double().requires_grad_() for t in tensors]
    weights = torch.randn(of(*exact).shape)
    made, known = slopes(f, own, weights), slopes(of, exact, weights.double())
    for one, other in zip(made, known, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=2e-4, atol=2e-4)


def norm(x: Any) -> Any:
    rows = {n: lambda a: torch.empty(a["X"].shape[0]) for n in ("MEAN", "SCALE")}
    f = pb.triton.op(lean.norm_kernel, grid=(3,), outputs={"OUT": "X", **rows})
    return f(x, 200, BLOCK=256)[0]


def test_a_kernel_has_a_second_derivative() -> None:
    softmax = pb.triton.op(corpus.softmax_kernel, grid=(3,), outputs="OUT")
    twice(lambda x: softmax(x, 27, 27, BLOCK=32), lambda x: x.softmax(1), torch.randn(3, 27))
    cumsum = pb.triton.op(corpus.cumsum_kernel, grid=(1,), outputs="OUT")
    twice(lambda x: cumsum(x, 13, BLOCK=16), lambda x: (x * x).cumsum(0) * x, torch.randn(13))
    # of what was stored, too
    twice(norm, lambda x: F.layer_norm(x, (200,)), torch.randn(3, 200))


def test_a_third_derivative() -> None:
    f = pb.triton.op(corpus.gather_kernel, grid=(1,), outputs="OUT")
    x = torch.randn(13).requires_grad_()
    y = f(x, 13, BLOCK=16)
    for _ in range(3):
        (y,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    exact = x.detach().double().requires_grad_()
    known = (exact * exact)[(torch.arange(13) * 3) % 13] * exact
    for _ in range(3):
        (known,) = torch.autograd.grad(known.sum(), exact, create_graph=True)
    torch.testing.assert_close(y.double(), known, rtol=1e-4, atol=1e-4)


def test_a_derivative_with_a_tape_has_none() -> None:
    f = pb.triton.op(corpus.recurrence_kernel, grid=(1,), outputs={"OUT": "X"})
    a, x = torch.rand(16).requires_grad_(), torch.randn(9, 16)
    y = f(a, x, 9, D=16)
    torch.autograd.grad(y.sum(), a, retain_graph=True)
    with pytest.raises(UnsupportedError, match=r"no second derivative of recurrence_kernel.*E423"):
        torch.autograd.grad(y.sum(), a, create_graph=True)


def test_a_backward_made_of_operators() -> None:
    """A handwritten one of derived operators has a derivative; one of bare tensors says so."""
    double = pb.triton.op(corpus.cumsum_kernel, grid=(1,), outputs="OUT")

    def composed(given: Any, behind: Any) -> Any:
        return {"X": behind["OUT"] * double(given["X"], 13, BLOCK=16)}

    def bare(given: Any, behind: Any) -> Any:
        return {"X": (behind["OUT"] * given["X"]).detach()}

    def of(x: Any) -> Any:
        return (x * x).cumsum(0) * x

    x = torch.randn(13).requires_grad_()
    exact = x.detach().double().requires_grad_()
    f, g = (
        pb.triton.op(corpus.gather_kernel, grid=(1,), outputs="OUT", backward=b)
        for b in (composed, bare)
    )
    (grown,) = torch.autograd.grad(f(x, 13, BLOCK=16).sum(), x, create_graph=True)
    torch.testing.assert_close(grown.double(), of(exact), rtol=1e-4, atol=1e-4)
    (second,) = torch.autograd.grad(grown.sum(), x)
    (known,) = torch.autograd.grad(of(exact).sum(), exact)
    torch.testing.assert_close(second.double(), known, rtol=1e-4, atol=1e-4)
    (grown,) = torch.autograd.grad(g(x, 13, BLOCK=16).sum(), x, create_graph=True)
    with pytest.raises(UnsupportedError, match="no second derivative of gather_kernel"):
        torch.autograd.grad(grown.sum(), x)


# --- functions ------------------------------------------------------------------------------------


def called(made: Any, count: int, gives: int, folder: Path, *values: Any) -> list[Any]:
    """What a function of Triton's gives of blocks."""
    names = [f"x{k}" for k in range(count)]
    lines = [
        "import triton",
        "import triton.language as tl",
        "g = None",
        "@triton.jit",
        f"def kernel({', '.join(n.upper() for n in names)}, OUT, n, BLOCK: tl.constexpr):",
        "    at = tl.arange(0, BLOCK)",
        *(f"    {n} = tl.load({n.upper()} + at, mask=at < n)" for n in names),
        f"    made = g({', '.join(names)})",
    ]
    for k in range(gives):
        part = "made" if gives == 1 else f"made[{k}]"
        lines.append(f"    tl.store(OUT + {k} * n + at, {part}, mask=at < n)")
    path = folder / f"called_{count}_{gives}.py"
    path.write_text("\n".join(lines))
    module = module_of(path)
    module.g = made
    n = len(values[0])
    out = torch.empty(gives, n)
    module.kernel[(1,)](*values, out, n, BLOCK=64)
    return list(out)


@pytest.mark.parametrize("name", ["gelu", "tanh", "softplus"])
def test_a_function_has_a_second_derivative(name: str, tmp_path: Path) -> None:
    of = {"gelu": F.gelu, "tanh": torch.tanh, "softplus": F.softplus}[name]
    first = pb.triton.grad(getattr(corpus, name))
    second = pb.triton.grad(first, (0, 1))
    x, d, b = torch.randn(3, 50)
    by_x, by_d = called(second, 3, 2, tmp_path, x, d, b)
    x, d = x.double().requires_grad_(), d.double().requires_grad_()
    (slope,) = torch.autograd.grad(of(x), x, d, create_graph=True)
    known = torch.autograd.grad(slope, (x, d), b.double())
    for one, other in zip((by_x, by_d), known, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


def test_a_function_of_several_results(tmp_path: Path) -> None:
    made = pb.triton.grad(lean.polar, (0, 1))
    assert "def polar_grad(r, angle, d_result_0, d_result_1, d_result_2):" in made.source
    values = torch.randn(5, 50)
    grown = called(made, 5, 2, tmp_path, *values)
    r, angle, *behind = (v.double().requires_grad_() for v in values)
    results = [r * angle.cos(), r * angle.sin(), r]
    known = torch.autograd.grad(results, (r, angle), behind)
    for one, other in zip(grown, known, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


def test_what_triton_does_not_compile_says_so() -> None:
    with pytest.raises(UnsupportedError, match="Triton does not compile"):
        pb.triton.grad(lean.broken)
