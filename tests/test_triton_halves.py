"""Kernels that compute in bfloat16 or float16 itself, and floats of 8 bits.

Triton's interpreter computes with the bits of bfloat16: a kernel's own values are wrong there, and
its derivative must be right nonetheless.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pullback as pb
from pullback.errors import ArgumentError, UnsupportedError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
triton = pytest.importorskip("triton", reason="Triton is not installed")
import triton.language as tl  # noqa: E402

import triton_halves as corpus  # noqa: E402  # it needs Triton
from pullback.triton import words  # noqa: E402
from pullback.triton.nodes import Type  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("one_seed"),
    pytest.mark.filterwarnings("ignore"),
]
COUNT = 29
TENTH = 0.10009765625  # of bfloat16; of float16 it is 0.09997
EIGHT = {torch.float8_e5m2: tl.float8e5, torch.float8_e4m3fn: tl.float8e4nv}


def kept(x: Any, where: Any) -> Any:
    return torch.where(where, x, 0 * x)


RIGHT: dict[str, Callable[[Any, Any], Any]] = {
    "relu": lambda x, w: x.relu(),
    "constant": lambda x, w: kept(x * x, x < 0.0999),
    "not above": lambda x, w: torch.where(x <= w, x * w, w),
    "maximum": lambda x, w: torch.maximum(x, w).sin(),
    "minimum of a number": lambda x, w: torch.where(x < 0.101, x, 0 * x + TENTH).sin(),
    "clamp": lambda x, w: x.clamp(-TENTH, 0.5).sin(),
    "absolute": lambda x, w: x.abs().sin() * w,
    "product": lambda x, w: (x * w).sin(),
    "sum": lambda x, w: (x + w - 0.5).sin(),
    "minus": lambda x, w: (-x).sin() * w,
    "fma": lambda x, w: (x * w + x).sin(),
    "whole numbers": lambda x, w: (x * torch.arange(len(x)) / 32).sin(),
    "largest": lambda x, w: x.max().sin() * w,
    "place of the largest": lambda x, w: x.max().sin() * torch.where(x == x.max(), w, 0.5),
    "larger of all": lambda x, w: x.max().sin() * w,
    "sums": lambda x, w: (x.cumsum(0) * 0.1).sin(),
    "whole sum": lambda x, w: (x.sum() * 0.1).sin() * w,
    "products": lambda x, w: x.cumprod(0),
    "sort": lambda x, w: x.sort()[0] * w,
    "other half": lambda x, w: (x * w).sin(),
}
# Of bfloat16 what the interpreter does rightly.
JUDGED = ("absolute", "largest", "other half")


def drawn(kind: Any, count: int = COUNT) -> tuple[Any, Any]:
    """Elements that are apart by an eighth, with ties of both and a zero."""
    x = (torch.randperm(count) - count // 2 - 0.25) / 8
    x[3], x[4] = 0.0, 0.1
    w = torch.randn(count)
    w[5] = x[5]
    return x.to(kind), w.to(kind)


def halved(kind: Any, name: str) -> tuple[Any, tuple[Any, Any], dict[str, Any]]:
    count = 32 if name in ("sort", "whole sum", "sums", "products") else COUNT
    other = tl.float16 if kind == torch.bfloat16 else tl.bfloat16
    f = pb.triton.op(corpus.chosen_kernel, grid=(1,), outputs={"OUT": lambda _: torch.zeros(count)})
    return f, drawn(kind, count), {"n": count, "KIND": name, "OTHER": other, "BLOCK": 32}


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", RIGHT)
def test_what_is_computed_in_sixteen_bits(name: str, kind: Any) -> None:
    f, tensors, rest = halved(kind, name)
    own = [t.clone().requires_grad_() for t in tensors]
    exact = [t.double().requires_grad_() for t in tensors]
    made, right = f(*own, **rest), RIGHT[name](*exact)
    behind = torch.randn(made.shape)
    near = 2.0**-6 if kind == torch.bfloat16 else 2.0**-9
    grown = torch.autograd.grad(made, own, behind, allow_unused=True)
    known = torch.autograd.grad(right, exact, behind.double(), allow_unused=True)
    for one, other in zip(grown, known, strict=True):
        other = torch.zeros_like(exact[0]) if other is None else other
        assert float((one.double() - other).norm()) <= near * float(other.norm())
    if kind == torch.float16 or name in JUDGED:
        assert float((made - right).norm() / right.norm()) < near


@pytest.mark.parametrize("name", RIGHT)
def test_what_the_interpreter_cannot_judge_is_said(name: str) -> None:
    f, tensors, rest = halved(torch.bfloat16, name)
    if name in JUDGED:
        assert pb.triton.check(f, *tensors, **rest, tolerance=0.05).linear < 0.01
        return
    with pytest.raises(UnsupportedError, match="E429") as error:
        pb.triton.check(f, *tensors, **rest)
    assert re.search(r"triton_halves\.py:\d+ is of bfloat16", str(error.value))


@pytest.mark.parametrize("name", ["relu", "product", "sort", "sums"])
def test_float16_is_certified(name: str) -> None:
    f, (x, w), rest = halved(torch.float16, name)
    x = ((torch.randperm(len(x)) - 14.5) / 4).half()  # no element is near 0 or another one
    report = pb.triton.check(f, x, w, **rest, tolerance=0.02)
    assert report.linear < 0.002


def test_a_step_is_the_one_that_was_made() -> None:
    """Elements around 30, of which a step of bfloat16 is an eighth: most do not move, or by it."""
    f, (_, w), rest = halved(torch.bfloat16, "absolute")
    x = (torch.rand(COUNT) * 4 + 28).bfloat16()
    report = pb.triton.check(f, x, w, **rest, tolerance=0.05)
    assert report.differences["X"] < 0.02


def test_triton_alone_takes_the_bits() -> None:
    """Where this fails, the interpreter has learnt bfloat16, and there is nothing to refuse."""
    x = torch.tensor([-1.0, 2.0], dtype=torch.bfloat16)
    out = torch.zeros(2)
    corpus.chosen_kernel[(1,)](x, x, out, 2, "relu", tl.float16, 2)
    assert out.tolist() == [-1.0, 2.0]


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_products(kind: Any) -> None:
    f = pb.triton.op(corpus.product_kernel, grid=(1,), outputs="OUT")
    a, b = (torch.randn(16, 16).to(kind) for _ in range(2))
    if kind == torch.float16:
        own = [t.clone().requires_grad_() for t in (a, b)]
        grown = torch.autograd.grad(f(*own, D=16).sum(), own)
        ones = torch.ones(16, 16, dtype=torch.float64)
        torch.testing.assert_close(grown[0].double(), ones @ b.double().T, rtol=0.01, atol=0.01)
        torch.testing.assert_close(grown[1].double(), a.double().T @ ones, rtol=0.01, atol=0.01)
        return
    assert f(a, b, D=16).shape == (16, 16)  # without a gradient it is Triton's alone
    assert "tiled again: d_A[m, k] = sum[n]" in f.source(a, b, D=16)
    with pytest.raises(UnsupportedError, match="E429"):
        f(a.requires_grad_(), b, D=16)
    with pytest.raises(UnsupportedError, match="E429"):
        f.gradients(f.call((a, b), {"D": 16}), ("A",), {"OUT": a})


# --- 8 bits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", EIGHT)
def test_weights_of_eight_bits(kind: Any) -> None:
    f = pb.triton.op(corpus.weighted_kernel, grid=(1,), outputs="OUT")
    x, w = torch.randn(32, requires_grad=True), torch.randn(32).to(kind)
    behind = torch.randn(32)
    (f(x, w, BLOCK=32) * behind).sum().backward()
    wide = w.float()
    torch.testing.assert_close(x.grad, behind * (x.detach() * wide).cos() * wide)
    assert pb.triton.check(f, x.detach(), w, BLOCK=32).differences.keys() == {"X"}


@pytest.mark.parametrize("kind", EIGHT)
def test_eight_bits_have_no_derivative(kind: Any) -> None:
    f = pb.triton.op(corpus.weighted_kernel, grid=(1,), outputs="OUT")
    x, w = torch.randn(8), torch.randn(8).to(kind)
    with pytest.raises(UnsupportedError, match=r"the elements of W have 8 bits .*E430"):
        f(x, w.requires_grad_(), BLOCK=8)
    with pytest.raises(UnsupportedError, match="E430"):
        f.source(x, w, wrt=["W"], BLOCK=8)


@pytest.mark.parametrize("kind", EIGHT)
@pytest.mark.parametrize("out", [torch.float32, None])
def test_through_eight_bits_is_refused(kind: Any, out: Any) -> None:
    """At the line of the cast, also where an output has 8 bits."""
    made = {"OUT": lambda _: torch.zeros(8, dtype=out or kind)}
    f = pb.triton.op(corpus.rounded_kernel, grid=(1,), outputs=made)
    x = torch.randn(8, requires_grad=True)
    assert f(x.detach(), KIND=EIGHT[kind], WIDE=out is not None, BLOCK=8).dtype == (out or kind)
    with pytest.raises(UnsupportedError, match="values of 8 bits have no derivative") as error:
        f(x, KIND=EIGHT[kind], WIDE=out is not None, BLOCK=8)
    assert error.value.code == "E423"
    line = int(re.search(r"triton_halves\.py:(\d+)", str(error.value))[1])
    assert ".to(KIND)" in Path(corpus.__file__).read_text().splitlines()[line - 1]


def test_elements_of_no_type_are_refused() -> None:
    f = pb.triton.op(corpus.weighted_kernel, grid=(1,), outputs="OUT")
    with pytest.raises(ArgumentError, match=r"complex64.*E425"):
        f(torch.randn(8, requires_grad=True), torch.randn(8, dtype=torch.complex64), BLOCK=8)


@pytest.mark.parametrize(
    ("element", "text", "number"),
    [
        ("bf16", "1.000980e-01", TENTH),
        ("bf16", "0x3F80", 1.0),
        ("f16", "0x3C00", 1.0),
        ("f8E5M2", "0x3C", 1.0),
        ("f8E4M3FN", "1.000000e-01", 0.1015625),
        ("f32", "0x3F800000", 1.0),
        ("f64", "1.000980e-01", 0.100098),
    ],
)
def test_a_constant_is_the_number_of_its_type(element: str, text: str, number: float) -> None:
    assert float(words.literal(text, Type((), element))) == number
