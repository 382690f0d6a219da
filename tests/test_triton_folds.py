"""Derivatives of reductions and scans by users' combiners, of gathers, of a library's functions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pullback as pb

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
triton = pytest.importorskip("triton", reason="Triton is not installed")

import triton_folds as corpus  # noqa: E402  # it needs Triton
from pullback.config import module_of  # noqa: E402
from pullback.triton import library  # noqa: E402
from test_triton_grad import same  # noqa: E402
from triton_library import FUNCTIONS, on_the_interpreter  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def one_seed(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setenv("PULLBACK_CACHE", str(tmp_path))


def rows(x: Any) -> Any:
    x = x.reshape(4, 4)
    return (x.prod(1)[:, None] + x.prod(0, keepdim=True) * x).reshape(-1)


def columns(x: Any) -> Any:
    x = x.reshape(8, 2)
    return (x.cumprod(0) + x.cumprod(1)).reshape(-1)


def weighted(x: Any) -> Any:
    weight = torch.where(torch.arange(len(x)) > 4, x * x, 0.0)
    mean, total, made = x[0], torch.zeros((), dtype=x.dtype), []
    for k, one in enumerate(x):
        total = total + weight[k]
        mean = mean + (one - mean) * weight[k] / total if k > 4 else x[0]
        made.append(mean)
    return torch.stack(made)


def recurrence(x: Any) -> Any:
    h, made = torch.zeros((), dtype=x.dtype), []
    for one in x:
        h = torch.sin(one) * h + one * one
        made.append(h)
    return torch.stack(made)


def recurrence_back(x: Any) -> Any:
    return recurrence(x.flip(0)).flip(0) + torch.sin(x).flip(0).cumprod(0).flip(0)


def segments(x: Any) -> Any:
    made: list[Any] = []
    for k, one in enumerate(x):
        made.append(one if k % 5 == 0 else made[-1] + one * made[-1])
    return torch.stack(made)


def matrices(x: Any) -> Any:
    whole = torch.eye(2, dtype=x.dtype)
    for one in x:
        whole = whole @ torch.stack([one, one * one, torch.sin(one), one + 1]).reshape(2, 2)
    (a, b), (c, d) = whole
    return x * (a + 2 * b) + c * d


def gathered(x: Any) -> Any:
    x = x.reshape(4, 4)
    place = ((torch.arange(16) * 7) % 3).reshape(4, 4)
    return ((x * x).gather(0, place) + x.gather(1, place) * x).reshape(-1)


FOLDS: dict[str, Callable[[Any], Any]] = {
    "product": lambda x: x.prod() * x,
    "rows_product": rows,
    "prefix_product": lambda x: x.cumprod(0),
    "suffix_product": lambda x: x.flip(0).cumprod(0).flip(0) * x,
    "columns": columns,
    "welford": lambda x: (x - x.mean()) * torch.rsqrt(x.var(correction=0) + 1e-3),
    "weighted": weighted,
    "recurrence": recurrence,
    "recurrence_back": recurrence_back,
    "log_sum": lambda x: x.logcumsumexp(0),
    "segments": segments,
    "matrices": matrices,
    "running_max": lambda x: x.cummax(0).values * x,
    "gather_rows": gathered,
}
WHOLE = (
    "rows_product",
    "columns",
    "gather_rows",
    "recurrence_back",
    "matrices",
)  # of as many elements as the block has


@pytest.mark.parametrize("name", FOLDS)
def test_a_fold_by_any_combiner(name: str) -> None:
    n = 16 if name in WHOLE else 13
    f = pb.triton.op(getattr(corpus, f"{name}_kernel"), grid=(1,), outputs="OUT")
    same(f, FOLDS[name], [torch.randn(n)], n, BLOCK=16)


@pytest.mark.parametrize("name", ["product", "prefix_product", "suffix_product"])
def test_a_product_of_zeros_has_a_derivative(name: str) -> None:
    """No quotient of the result by an element."""
    x = torch.randn(13)
    x[4] = x[9] = 0.0
    f = pb.triton.op(getattr(corpus, f"{name}_kernel"), grid=(1,), outputs="OUT")
    same(f, FOLDS[name], [x], 13, BLOCK=16)


# --- functions of the device's library ------------------------------------------------------------

POINTS = {"acosh": (1.1, 3.0), "erfinv": (-0.9, 0.9), "erfcinv": (0.1, 1.9), "acos": (-0.9, 0.9),
          "asin": (-0.9, 0.9), "atanh": (-0.9, 0.9), "normcdfinv": (0.1, 0.9)}  # fmt: skip


def library_kernel(name: str, arity: int, folder: Path) -> Any:
    """A kernel that calls one function of the library."""
    own = [f"X{k}" for k in range(arity)]
    lines = [
        "import triton",
        "import triton.language as tl",
        "from triton.language.extra import libdevice",
        "@triton.jit",
        f"def kernel({', '.join(own)}, OUT, BLOCK: tl.constexpr):",
        "    at = tl.arange(0, BLOCK)",
        *(f"    x{k} = tl.load(X{k} + at)" for k in range(arity)),
        f"    tl.store(OUT + at, libdevice.{name}({', '.join(own).lower()}))",
    ]
    path = folder / f"{name}_library.py"
    path.write_text("\n".join(lines))
    return module_of(path).kernel


@pytest.mark.parametrize("name", library.DERIVATIVES)
def test_a_function_of_the_library(name: str, tmp_path: Path) -> None:
    """Beside PyTorch's derivative, or differences where it has none."""
    arity = len(library.DERIVATIVES[name])
    f = pb.triton.op(library_kernel(name, arity, tmp_path), grid=(1,), outputs="OUT")
    low, high = POINTS.get(name, (0.2, 0.8))
    given = [torch.empty(16, dtype=torch.float64).uniform_(low, high) for _ in range(arity)]
    if name.startswith("fast_") or name == "saturatef":  # of float32 alone
        given = [v.float() for v in given]
    own = [v.clone().requires_grad_() for v in given]
    with on_the_interpreter():
        grown = torch.autograd.grad(f(*own, BLOCK=16).sum(), own)
    step = 1e-5
    for place, one in enumerate(grown):
        ends = [
            FUNCTIONS[name](*(v.double() + sign * step * (k == place) for k, v in enumerate(given)))
            for sign in (1, -1)
        ]
        slope = (ends[0] - ends[1]) / (2 * step)
        near = 1e-3 if given[0].dtype == torch.float32 else 1e-6
        torch.testing.assert_close(one.double(), slope, rtol=near, atol=near)


def test_a_library_s_functions_in_a_derivative() -> None:
    with on_the_interpreter():
        f = pb.triton.op(corpus.tanh_kernel, grid=(1,), outputs="OUT")
        text = same(f, lambda x: torch.tanh(x) * x * x, [torch.randn(13)], 13, BLOCK=16)
    assert "from triton.language.extra import libdevice" in text
