"""Derivatives of Triton kernels, on Triton's interpreter: beside PyTorch's, and by differences."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pullback as pb
from pullback.errors import ArgumentError, DeviceError, GradientError, UnsupportedError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
triton = pytest.importorskip("triton", reason="Triton is not installed")
from torch.nn import functional as F  # noqa: E402

import triton_corpus as corpus  # noqa: E402  # it needs Triton
from pullback.config import module_of  # noqa: E402
from pullback.triton import words  # noqa: E402
from pullback.triton.adjoint import RULES  # noqa: E402
from pullback.triton.table import table  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("one_seed"),
    pytest.mark.filterwarnings("ignore"),
]


def same(f: Any, of: Callable[..., Any], tensors: list[Any], *rest: Any, **named: Any) -> Any:
    """Values and gradients beside those of PyTorch in float64."""
    own = [t.clone().requires_grad_() for t in tensors]
    exact = [t.double().requires_grad_() for t in tensors]
    made, right = f(*own, *rest, **named), of(*exact)
    torch.testing.assert_close(made.double(), right, rtol=2e-5, atol=2e-5)
    behind = torch.randn(made.shape)
    grown = torch.autograd.grad(made, own, behind)
    known = torch.autograd.grad(right, exact, behind.double(), allow_unused=True)
    for one, other, t in zip(grown, known, tensors, strict=True):
        other = torch.zeros(t.shape, dtype=torch.float64) if other is None else other
        torch.testing.assert_close(one.double(), other, rtol=5e-5, atol=5e-5)
    return f.source(*own, *rest, **named)


# --- Triton's tutorials ---------------------------------------------------------------------------


def test_vector_add() -> None:
    f = pb.triton.op(corpus.add_kernel, grid=lambda a: (triton.cdiv(a["n"], 32),), outputs="OUT")
    text = same(f, torch.add, [torch.randn(98), torch.randn(98)], 98, BLOCK=32)
    assert "atomic" not in text  # no two elements have one address


def test_softmax() -> None:
    f = pb.triton.op(corpus.softmax_kernel, grid=lambda a: (a["X"].shape[0],), outputs="OUT")
    text = same(f, lambda x: x.softmax(1), [torch.randn(5, 27)], 27, 27, BLOCK=32)
    assert "atomic" not in text


@pytest.mark.parametrize("activate", [False, True])
def test_matmul(activate: bool) -> None:
    def grid(a: Any) -> tuple[int]:
        return (triton.cdiv(a["M"], a["BM"]) * triton.cdiv(a["N"], a["BN"]),)

    def of(a: Any, b: Any) -> Any:
        return F.gelu(a @ b.T) if activate else a @ b.T

    m, n, k = 37, 21, 50
    f = pb.triton.op(
        corpus.matmul_kernel, grid=grid, outputs={"C": lambda a: torch.empty(a["M"], a["N"])}
    )
    a, b = torch.randn(m, k), torch.randn(n, k) / 7
    text = same(f, of, [a, b], m, n, k, k, 1, 1, k, BM=16, BN=16, BK=16, ACTIVATE=activate)
    assert "tape" not in text or activate


def test_the_code_of_a_loop_is_as_long_for_any_number_of_steps() -> None:
    f = pb.triton.op(
        corpus.matmul_kernel, grid=(1,), outputs={"C": lambda a: torch.empty(a["M"], a["N"])}
    )
    texts = {
        f.source(torch.randn(16, k), torch.randn(k, 16), 16, 16, k, k, 1, 16, 1,
                 BM=16, BN=16, BK=16, ACTIVATE=False)
        for k in (16, 1600)
    }  # fmt: skip
    assert len(texts) == 1


def test_dropout_is_replayed() -> None:
    f = pb.triton.op(corpus.dropout_kernel, grid=(4,), outputs="OUT")
    x = torch.rand(100) + 0.5
    kept = (f(x, 100, 0.3, 7, BLOCK=32) != 0).double()
    assert 0.5 < kept.mean() < 0.9
    same(f, lambda x: x * kept / 0.7, [x], 100, 0.3, 7, BLOCK=32)


def test_layer_norm() -> None:
    f = pb.triton.op(
        corpus.layer_norm_kernel,
        grid=(3,),
        outputs={"OUT": "X", "MEAN": lambda a: torch.empty(a["X"].shape[0])},
    )
    x, w, b = torch.randn(3, 50) * 2 + 1, torch.randn(50), torch.randn(50)
    first = lambda *a, **n: f(*a, **n)[0]
    first.source = f.source
    same(first, lambda x, w, b: F.layer_norm(x, (50,), w, b), [x, w, b], 50, 1e-5, BLOCK=16)
    second = lambda *a, **n: f(*a, **n)[1]
    second.source = f.source
    same(second, lambda x, w, b: x.mean(1), [x, w, b], 50, 1e-5, BLOCK=16)


@pytest.mark.parametrize("causal", [False, True])
def test_flash_attention(causal: bool) -> None:
    heads, steps, size = 2, 48, 16
    f = pb.triton.op(corpus.attention_kernel, grid=(3, 2), outputs="OUT")
    q, k, v = (torch.randn(heads, steps, size) for _ in range(3))

    def of(q: Any, k: Any, v: Any) -> Any:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    text = same(f, of, [q, k, v], steps, 0.25, BM=16, BN=16, D=16, CAUSAL=causal)
    assert text.count("atomic_add") == 2  # of keys and values: rows of q have one program


# --- constructs -----------------------------------------------------------------------------------


def loop(x: Any, steps: int, body: Callable[..., Any]) -> Any:
    y = x
    for i in range(steps):
        y = body(i, y, x)
    return y


def halving(x: Any) -> Any:
    y = x
    while (y * y).sum() > 0.1:
        y = y * 0.5 + torch.sin(y) * 0.25
    return y


def nested(i: int, y: Any, x: Any) -> Any:
    return y * loop(y, i + 1, lambda _, z, __: torch.sin(z) + 0.1 * x) + 0.5


def joined(x: Any) -> Any:
    even, odd = x[::2], x[1::2]
    return torch.stack([odd * odd, even * odd], 1).reshape(-1)


def several(x: Any) -> Any:
    y = torch.rsqrt(x * x + 1) + x.abs() + x * x + x.floor() + x.sigmoid() + torch.exp2(x)
    return y + torch.log2(x * x + 2) + torch.sqrt(x * x + 1) / (2 + x.cos())


def ranged(x: Any) -> Any:
    return ((x - x.min()) / (x.max() - x.min())) ** 2


CONSTRUCTS: dict[str, Callable[[Any], Any]] = {
    "clamp": lambda x: x.clamp(-0.5, 0.7) * x,
    "branch": lambda x: x * x.sum() if x.sum() > 0 else x.exp(),
    "while": halving,
    "nested": lambda x: loop(x, 3, nested),
    "branch_in_loop": lambda x: loop(x, 6, lambda i, y, x: y + y.cos() if i % 2 else y.sin() * x),
    "cumsum": lambda x: (x * x).cumsum(0) * x,
    "cumsum_back": lambda x: x.flip(0).cumsum(0).flip(0) * x,
    "join": joined,
    "one_half": lambda x: x * (x[::2] ** 2).sum(),
    "cat": lambda x: torch.cat([x[:8] * x[8:], x[:8].sin()]),
    "gather": lambda x: (x * x)[(torch.arange(len(x)) * 3) % len(x)] * x,
    "flip": lambda x: x.flip(0) * x,
    "argmax": lambda x: x * x.max() + x.argmax(),
    "min_max": ranged,
    "twice": lambda x: torch.where(torch.arange(len(x)) % 2 == 0, x * x, x.exp()),
    "half": lambda x: x * x * x,
    "rsqrt": several,
}


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("name", CONSTRUCTS)
def test_a_construct(name: str, sign: int) -> None:
    n = 16 if name in ("join", "cat", "one_half") else 13
    f = pb.triton.op(getattr(corpus, f"{name}_kernel"), grid=(1,), outputs="OUT")
    x = torch.randn(n).abs() * sign if name == "branch" else torch.randn(n) * sign
    same(f, CONSTRUCTS[name], [x], n, BLOCK=16)


def test_a_table() -> None:
    def of(x: Any) -> Any:
        pairs = x[:, None] * x.sin()[None, :] + (x[:, None] - x[None, :]).T
        return pairs / (1 + x[None, :] ** 2)

    outputs = {"OUT": lambda _: torch.empty(8, 8)}
    f = pb.triton.op(corpus.table_kernel, grid=(1,), outputs=outputs)
    same(f, of, [torch.randn(8)], 8, BLOCK=16)


def test_atomic_additions() -> None:
    outputs = {"OUT": lambda _: torch.zeros(4)}
    f = pb.triton.op(corpus.atomic_kernel, grid=(2,), outputs=outputs)
    same(f, lambda x: (x * x).reshape(-1, 4).sum(0), [torch.randn(24)], 24, BLOCK=16)


def test_an_address_that_walks_unevenly_is_kept() -> None:
    def of(x: Any) -> Any:
        rows = [torch.zeros(16, dtype=x.dtype) for _ in range(4)]
        total = sum(
            torch.cat([x[first : first + 8] * (k + 1), rows[k][8:]])
            for k, first in enumerate((0, 1, 3, 6))
        )
        return total**2

    f = pb.triton.op(corpus.walking_kernel, grid=(1,), outputs="OUT")
    text = same(f, of, [torch.randn(16)], 16, BLOCK=16)
    assert "tape" in text


def test_a_recurrence_is_kept_on_a_tape() -> None:
    f = pb.triton.op(corpus.recurrence_kernel, grid=(1,), outputs={"OUT": "X"})

    def of(a: Any, x: Any) -> Any:
        h, rows = torch.zeros(16, dtype=a.dtype), []
        for row in x:
            h = torch.sin(a * h + row)
            rows.append(h)
        return torch.stack(rows)

    same(f, of, [torch.rand(16), torch.randn(9, 16)], 9, D=16)


# --- what is asked for and refused ----------------------------------------------------------------


def test_a_handwritten_backward() -> None:
    def backward(given: Any, behind: Any) -> Any:
        return {"X": behind["OUT"] * 3, "Y": behind["OUT"]}

    f = pb.triton.op(corpus.add_kernel, grid=(1,), outputs="OUT", backward=backward)
    x, y = torch.randn(8, requires_grad=True), torch.randn(8, requires_grad=True)
    f(x, y, 8, BLOCK=8).sum().backward()
    assert x.grad.tolist() == [3.0] * 8 and y.grad.tolist() == [1.0] * 8


def test_a_gradient_lies_as_its_tensor() -> None:
    f = pb.triton.op(
        corpus.softmax_kernel,
        grid=lambda a: (a["X"].shape[0],),
        outputs={"OUT": lambda a: torch.empty(a["X"].shape)},
    )
    wide = torch.randn(4, 40)
    x = wide[:, 3:30].detach().requires_grad_()
    behind = torch.randn(4, 27)
    (grown,) = torch.autograd.grad(f(x, 40, 27, BLOCK=32), x, behind)
    other = x.detach().contiguous().requires_grad_()
    (known,) = torch.autograd.grad(other.softmax(1), other, behind)
    torch.testing.assert_close(grown, known)


def test_what_is_refused_is_named() -> None:
    x = torch.ones(4, requires_grad=True)
    add = pb.triton.op(corpus.add_kernel, grid=(1,), outputs="OUT")
    with pytest.raises(GradientError, match="E428"):
        add(x[:1].expand(4), torch.ones(4), 4, BLOCK=4)
    with pytest.raises(ArgumentError, match="needs 'n'"):
        add(x, x, BLOCK=4)
    with pytest.raises(DeviceError, match="E427"):
        add(torch.ones(4, device="meta"), x, 4, BLOCK=4)
    partial = pb.triton.op(corpus.layer_norm_kernel, grid=(1,), outputs="OUT")
    with pytest.raises(UnsupportedError, match=r"tt.store at .*triton_corpus.py:\d+: MEAN"):
        partial(x, x, x, torch.empty(1), 4, 1e-5, BLOCK=4)


# --- functions ------------------------------------------------------------------------------------


def test_the_derivative_of_a_function_is_its_source() -> None:
    made = pb.triton.grad(corpus.gelu)
    assert (
        made.source.startswith("import triton\n") and "def gelu_grad(x, d_result):" in made.source
    )
    with pytest.raises(ArgumentError, match="E425"):
        pb.triton.grad(corpus.gelu, wrt=(1,))


def test_the_table_of_operations_is_of_the_code() -> None:
    page = Path(__file__).parent.parent / "docs" / "triton.md"
    assert page.read_text(encoding="utf-8").endswith(table())
    for names in (words.ELEMENTWISE, words.STRUCTURED, words.UNSIGNED, words.DERIVATIVES):
        assert not names.keys() & words.REASONS.keys()
    assert RULES.keys() <= words.STRUCTURED.keys() | {*words.CASTS, *words.UNSIGNED_CASTS}


REFUSED = {
    "bits": "tt.bitcast",
    "largest_atomic": "tt.atomic_rmw",
}


@pytest.mark.parametrize("name", REFUSED)
def test_an_operation_without_a_derivative_is_named(name: str) -> None:
    f = pb.triton.op(getattr(corpus, f"{name}_kernel"), grid=(1,), outputs="OUT")
    with pytest.raises(UnsupportedError, match=rf"{REFUSED[name]} at .*triton_corpus.py:\d+: "):
        f(torch.rand(16, requires_grad=True), 16, BLOCK=16)


def test_what_has_no_rule_is_refused() -> None:
    f = pb.triton.op(corpus.assembly_kernel, grid=(1,), outputs="OUT")
    with pytest.raises(UnsupportedError, match=r"tt.elementwise_inline_asm at .*: assembly"):
        f.source(torch.rand(16), 16, BLOCK=16)


def test_a_derivative_is_certified() -> None:
    f = pb.triton.op(corpus.softmax_kernel, grid=lambda a: (a["X"].shape[0],), outputs="OUT")
    report = pb.triton.check(f, torch.randn(3, 27), 27, 27, BLOCK=32)
    assert report.differences["X"] < 5e-3 and report.linear < 1e-5
    wrong = pb.triton.op(
        corpus.softmax_kernel,
        grid=(3,),
        outputs="OUT",
        backward=lambda given, behind: {"X": behind["OUT"]},
    )
    with pytest.raises(GradientError, match=r"by X is off .*E426"):
        pb.triton.check(wrong, torch.randn(3, 27), 27, 27, BLOCK=32)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "gelu": F.gelu,
    "tanh": torch.tanh,
    "silu": F.silu,
    "softplus": F.softplus,
    "mish": F.mish,
    "elu": F.elu,
    "relu6": F.relu6,
    "softsign": F.softsign,
    "leaky_relu": F.leaky_relu,
    "hardswish": F.hardswish,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_derivative_of_a_function_in_a_kernel(name: str, tmp_path: Path) -> None:
    made = pb.triton.grad(getattr(corpus, name))
    lines = [
        "import triton",
        "import triton.language as tl",
        "g = None",
        "@triton.jit",
        "def slope(X, D, OUT, n, BLOCK: tl.constexpr):",
        "    at = tl.arange(0, BLOCK)",
        "    x, d = tl.load(X + at, mask=at < n), tl.load(D + at, mask=at < n)",
        "    tl.store(OUT + at, g(x, d), mask=at < n)",
    ]
    path = tmp_path / "slope.py"
    path.write_text("\n".join(lines))
    module = module_of(path)
    module.g = made
    x = (torch.randn(50) * 3).requires_grad_()
    d, out = torch.randn(50), torch.empty(50)
    module.slope[(1,)](x.detach(), d, out, 50, BLOCK=64)
    exact = x.detach().double().requires_grad_()
    (known,) = torch.autograd.grad(FUNCTIONS[name](exact), exact, d.double())
    torch.testing.assert_close(out.double(), known, rtol=2e-5, atol=2e-5)
    source = made.source.splitlines()
    assert len([line for line in source if " = " in line]) < 40


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_element_types(dtype: Any) -> None:
    f = pb.triton.op(corpus.typed_kernel, grid=(2,), outputs="OUT")
    x, w = torch.randn(2, 16).to(dtype), torch.rand(16).to(dtype)
    own = [t.clone().requires_grad_() for t in (x, w)]
    exact = [t.double().requires_grad_() for t in (x, w)]
    behind = torch.randn(2, 16).to(dtype)
    grown = torch.autograd.grad(f(*own, 16, BLOCK=16), own, behind)
    right = torch.sin(exact[0]) * exact[1]
    known = torch.autograd.grad(right, exact, behind.double())
    near = 1e-6 if dtype == torch.float64 else 2e-2
    for one, other in zip(grown, known, strict=True):
        assert one.dtype == dtype
        torch.testing.assert_close(one.double(), other, rtol=near, atol=near)
