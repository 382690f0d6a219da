"""Derivatives of reductions and scans by users' combiners, of gathers, of a library's functions."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pullback as pb
from pullback.errors import GradientError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
triton = pytest.importorskip("triton", reason="Triton is not installed")

from torch.nn import functional as F  # noqa: E402

import triton_folds as corpus  # noqa: E402  # it needs Triton
from pullback.config import module_of  # noqa: E402
from pullback.triton import library  # noqa: E402
from pullback.triton.parse import parse  # noqa: E402
from test_triton_grad import same  # noqa: E402
from triton_library import FUNCTIONS, on_the_interpreter  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("one_seed"),
    pytest.mark.filterwarnings("ignore"),
]


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


def sorted_rows(x: Any) -> Any:
    x = x.reshape(2, 8)
    made = (x * x).sort(1, descending=True).values + x.flip(1) * x + x.flip(0)
    return made.reshape(-1)


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
    "sorted": lambda x: x.sort().values * torch.arange(len(x)),
    "sorted_rows": sorted_rows,
    "largest": lambda x: x * (x.topk(4).values * torch.arange(1, 5)).sum(),
}
WHOLE = (
    "rows_product",
    "columns",
    "gather_rows",
    "recurrence_back",
    "matrices",
    "sorted_rows",
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


# --- returns in branches, descriptors -------------------------------------------------------------


def early(x: Any) -> Any:
    return torch.cat([x[:4].sin(), x[4:8] ** 3, x[8:].sin()])


def meeting(x: Any) -> Any:
    made = []
    for part, v in enumerate(x.split(4)):
        y = v.exp() * 0 if part == 0 else 3 * (3 * v + v * 3 * v)
        made.append(v * v if part == 3 else y * y.sin() * sum(range(part + 1)) * v)
    return torch.cat(made)


@pytest.mark.parametrize("function", [early, meeting])
def test_a_return_in_a_branch(function: Any) -> None:
    kernel = getattr(corpus, f"{function.__name__}_kernel")
    f = pb.triton.op(kernel, grid=(5,), outputs="OUT")
    same(
        f,
        function,
        [torch.randn(14 if function is early else 20)],
        14 if function is early else 20,
        BLOCK=16,
    )


def test_a_jump_passes_values_on() -> None:
    lines = [
        "tt.func public @k(%x: f32, %c: i1) {",
        "cf.cond_br %c, ^bb1(%x : f32), ^bb1(%x : f32)",
        "^bb1(%a: f32):  // 2 preds: ^bb0, ^bb0",
        "%y = arith.mulf %a, %a : f32",
        "cf.cond_br %c, ^bb2(%a, %y : f32, f32), ^bb2(%y, %a : f32, f32)",
        "^bb2(%p: f32, %q: f32):  // 2 preds: ^bb1, ^bb1",
        "%z = arith.subf %p, %q : f32",
        "tt.return",
        "}",
    ]
    function = parse("\n".join(lines), "")
    made = [o for o in function.block.walk() if o.name == "arith.subf"]
    names = [tuple(v.name for v in o.operands) for o in made]
    assert names == [("x", "y"), ("y", "x"), ("x", "y_1"), ("y_1", "x")]
    assert len({o.results[0].name for o in made}) == 4


def test_blocks_by_descriptors() -> None:
    f = pb.triton.op(corpus.blocks_kernel, grid=(3,), outputs="OUT")
    text = same(f, lambda x: x * x.sin(), [torch.randn(20, 12)], 20, 12, BLOCK=8)
    assert "atomic" not in text  # blocks do not meet


def test_a_persistent_product_by_descriptors() -> None:
    outputs = {"C": lambda a: torch.empty(a["M"], a["N"])}
    f = pb.triton.op(corpus.persistent_kernel, grid=(2,), outputs=outputs)
    a, b = torch.randn(37, 40) / 3, torch.randn(40, 24)
    same(f, lambda a, b: F.silu(a @ b), [a, b], 37, 24, 40, BM=16, BN=16, BK=16)


def test_rows_by_descriptors() -> None:
    outputs = {"OUT": lambda a: torch.zeros(8, 8)}
    f = pb.triton.op(corpus.rows_kernel, grid=(1,), outputs=outputs)

    def rows(x: Any) -> Any:
        return F.pad(x, (0, 4))[(torch.arange(8) * 3) % 5, 4:12] ** 2

    same(f, rows, [torch.randn(5, 8)], 5, 8, BLOCK=8)


def test_masks_of_a_program_and_of_lanes() -> None:
    f = pb.triton.op(corpus.truths_kernel, grid=(3,), outputs="OUT")
    same(f, lambda x: x * x.sum(1, keepdim=True) * x[0][:, None], [torch.randn(3, 3)], 3, BLOCK=4)


def test_a_tensor_that_is_read_and_then_written() -> None:
    """It is left as it is; elements that nothing writes go on as they are."""
    f = pb.triton.op(corpus.turned_kernel, grid=(3,), outputs={"X": "X"})

    def turned(x: Any, c: Any) -> Any:
        one, two, rest = x[:, :4], x[:, 4:8], x[:, 8:]
        return torch.cat([one * c.cos() - two * c.sin(), two * c.cos() + one * c.sin(), rest], 1)

    x = torch.randn(3, 10)
    known = x.clone()
    same(f, turned, [x, torch.randn(4)], 10, BLOCK=4)
    assert torch.equal(x, known)
    assert pb.triton.check(f, x, torch.randn(4), 10, BLOCK=4).linear < 1e-5


def test_what_is_read_may_be_gone() -> None:
    x = torch.randn(3, 10, requires_grad=True)
    f = pb.triton.op(corpus.shifting_kernel, grid=(3,), outputs={"X": "X"})
    f(x, 10, BLOCK=4).sum().backward()  # a program loads what it stores, and then stores
    known = torch.tensor([2.0, 1, 1, 1, 0, 1, 1, 1, 1, 1])
    torch.testing.assert_close(x.grad, known.repeat(3, 1))
    with pytest.raises(GradientError, match="E424"):
        f(x, 4, BLOCK=4)  # the next row's first element
    turned = pb.triton.op(corpus.turned_kernel, grid=(3,), outputs={"X": "X"})
    with pytest.raises(GradientError, match="E424"):
        turned(x, torch.randn(4), 3, BLOCK=4)  # rows that meet


@pytest.mark.parametrize("seed", range(3))
def test_a_kernel_drawn_at_random(seed: int, tmp_path: Path) -> None:
    script = runpy.run_path(str(Path(__file__).parent.parent / "scripts" / "fuzz_triton.py"))
    assert script["tried"](seed, tmp_path) == ""


@pytest.mark.parametrize("seed", range(4))
def test_a_kernel_drawn_with_halves(seed: int, tmp_path: Path) -> None:
    script = runpy.run_path(str(Path(__file__).parent.parent / "scripts" / "fuzz_triton.py"))
    assert script["tried_in_halves"](seed, tmp_path) == ""
