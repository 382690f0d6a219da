"""The mean that a loop moves on has a closed form where one is proved; else it goes by steps."""

from __future__ import annotations

from typing import Any

import pytest

import pullback as pb

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
triton = pytest.importorskip("triton", reason="Triton is not installed")

import triton_moments as corpus  # noqa: E402  # it needs Triton
from test_triton_grad import same  # noqa: E402
from test_triton_lean import operations  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("one_seed"),
    pytest.mark.filterwarnings("ignore"),
]


# --- a norm of a batch ----------------------------------------------------------------------------


def batch() -> Any:
    outputs = {"OUT": "X", "MEAN": _features, "STD": _features}
    return pb.triton.op(corpus.batch_kernel, grid=lambda a: (a["X"].shape[0],), outputs=outputs)


def _features(given: Any) -> Any:
    return torch.empty(given["X"].shape[0])


def norm(x: Any) -> Any:
    mean = x.mean((1, 2), keepdim=True)
    return (x - mean) * (x.var((1, 2), keepdim=True, correction=0) + 1e-5).rsqrt()


@pytest.mark.parametrize("shape", [(3, 5, 9), (2, 8, 16), (1, 1, 3), (2, 3, 1)])
@pytest.mark.parametrize("far", [0.0, 30.0])
def test_a_norm_of_a_batch(shape: tuple[int, ...], far: float) -> None:
    """No step is kept, and both numbers that it stored are loaded; far from 0 too."""
    f, x = batch(), torch.randn(shape) + far
    own, exact = x.clone().requires_grad_(), x.double().requires_grad_()
    given = {"batch": shape[1], "n": shape[2], "B": 8, "N": 4}
    out, *_ = f(own, **given)
    behind = torch.randn(shape)
    (grown,) = torch.autograd.grad(out, own, behind)
    (known,) = torch.autograd.grad(norm(exact), exact, behind.double())
    torch.testing.assert_close(grown.double(), known, rtol=1e-3, atol=2e-4 if far else 2e-5)
    text = f.source(own, **given)
    assert "tape" not in text and "tl.load(MEAN" in text and "tl.load(STD" in text


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_a_norm_of_other_elements(kind: Any) -> None:
    """The kernel casts them to float32: of float64 as of others the mean is one of float32."""
    f, x = batch(), torch.randn(3, 5, 9).to(kind)
    own, exact = x.clone().requires_grad_(), x.double().requires_grad_()
    given = {"batch": 5, "n": 9, "B": 8, "N": 4}
    out, *_ = f(own, **given)
    behind = torch.randn(3, 5, 9).to(kind)
    (grown,) = torch.autograd.grad(out, own, behind)
    (known,) = torch.autograd.grad(norm(exact), exact, behind.double())
    near = 1e-5 if kind == torch.float64 else 3 * torch.finfo(kind).eps
    torch.testing.assert_close(grown.double(), known, rtol=near, atol=near)
    assert "tape" not in f.source(own, **given)


def test_what_is_not_a_number_goes_where_its_mean_does() -> None:
    f, x = batch(), torch.randn(2, 5, 9)
    x[1, 2, 3], given = float("nan"), {"batch": 5, "n": 9, "B": 8, "N": 4}
    own = x.requires_grad_()
    out, *_ = f(own, **given)
    (grown,) = torch.autograd.grad(out, own, torch.ones(2, 5, 9))
    assert grown[0].isfinite().all() and grown[1].isnan().all()


def test_the_certificate_of_a_norm_and_its_operations() -> None:
    f, x = batch(), torch.randn(3, 5, 9)
    given = {"batch": 5, "n": 9, "B": 8, "N": 4}
    report = pb.triton.check(f, x, **given)
    assert report.linear < 1e-5 and max(report.differences.values()) < 1e-3
    types = dict.fromkeys(("X", "MEAN", "STD", "d_OUT", "d_MEAN", "d_STD", "d_X"), "*fp32")
    assert operations(f, {**types, "batch": "i32", "n": "i32"}, x, **given) <= 20


def test_a_norm_of_a_batch_is_differentiated_twice() -> None:
    f, x = batch(), torch.randn(2, 5, 9)
    own, exact = x.clone().requires_grad_(), x.double().requires_grad_()
    out, *_ = f(own, batch=5, n=9, B=8, N=4)
    behind, second = torch.randn(2, 2, 5, 9)
    (grown,) = torch.autograd.grad(out, own, behind, create_graph=True)
    (known,) = torch.autograd.grad(norm(exact), exact, behind.double(), create_graph=True)
    (grown,) = torch.autograd.grad(grown, own, second)
    (known,) = torch.autograd.grad(known, exact, second.double())
    torch.testing.assert_close(grown.double(), known, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("n", [3, 9])
def test_a_batch_of_more_rows_than_lanes_goes_step_by_step(n: int) -> None:
    """It counts all rows of a block, and loads eight: the derivative is that of what it does."""
    f, x = batch(), torch.randn(1, 11, n)
    given = {"batch": 11, "n": n, "B": 8, "N": 4}
    assert "tape" in f.source(x, **given)
    assert max(pb.triton.check(f, x, **given).differences.values()) < 1e-3


# --- rows and lanes -------------------------------------------------------------------------------


def moments(x: Any, *, fade: float = 1.0, more: int = 1, weighted: bool = False) -> Any:
    """Step by step, an element at a time."""
    mean = around = count = torch.zeros(len(x), dtype=x.dtype)
    for column in x.T:
        weight = 1 + column * column if weighted else 1
        count = fade * count + more * weight
        before, mean = mean, mean + weight * (column - mean) / count
        around = around + weight * (column - mean) * (column - before)
    return mean * torch.log(around + 1)


def whole(x: Any) -> Any:
    around = x.var(1, correction=0) * x.shape[1]
    return x.mean(1) * torch.log(around + 1)


def read(x: Any) -> Any:
    means = x.cumsum(1) / (torch.arange(x.shape[1]) + 1)
    return means[:, -1] * torch.log((means * means).sum(1) + 1)


def less(x: Any) -> Any:
    """Blocks of four; the last element is not there, and is counted."""
    mean, around, count = x.new_zeros(8), x.new_zeros(8), 0
    for block in (x * (torch.arange(x.shape[1]) < x.shape[1] - 1)).split(4, 1):
        count += block.shape[1]
        before, mean = mean, mean + (block.sum(1) - block.shape[1] * mean) / count
        inside = block[:, : -1 if count == x.shape[1] else None]
        around = around + ((inside - mean[:, None]) * (inside - before[:, None])).sum(1)
    return mean * torch.log(around + 1)


PROVED = {"rows": whole, "wide": whole, "lanes": whole}
STEPS = {
    "fading": lambda x: moments(x, fade=0.9),
    "weighted": lambda x: moments(x, weighted=True),
    "read": read,
    "bounded": lambda x: whole(x[:, :5]),
    "less": less,
}


@pytest.mark.parametrize("name", [*PROVED, *STEPS])
@pytest.mark.parametrize("n", [1, 4, 11])
def test_moments_of_rows(name: str, n: int) -> None:
    if name == "less" and n == 1:
        return  # it has no element
    outputs = {"OUT": lambda a: torch.empty(a["R"])}
    f = pb.triton.op(getattr(corpus, f"{name}_kernel"), grid=(1,), outputs=outputs)
    of = (PROVED | STEPS)[name]
    text = same(f, of, [torch.randn(8, n)], n, R=8, N=4)
    assert ("tape" in text) == (name in STEPS)
    if n > 1:  # of one element nothing is around its mean
        assert pb.triton.check(f, torch.randn(8, n), n, R=8, N=4).linear < 1e-4


@pytest.mark.parametrize("name", ["wide", "lanes"])
def test_one_of_both(name: str) -> None:
    outputs = {"OUT": lambda a: torch.empty(a["R"])}
    f = pb.triton.op(getattr(corpus, f"{name}_kernel"), grid=(1,), outputs=outputs)
    x = torch.randn(8, 11)
    assert "tape" not in same(f, lambda x: x.mean(1) ** 2, [x], 11, R=8, N=4, OF="mean")
    squares = same(f, lambda x: x.var(1, correction=0) * 11, [x], 11, R=8, N=4, OF="squares")
    assert "tape" not in squares


@pytest.mark.parametrize("name", ["wide", "lanes"])
def test_moments_of_no_elements(name: str) -> None:
    outputs = {"OUT": lambda a: torch.empty(a["R"])}
    f = pb.triton.op(getattr(corpus, f"{name}_kernel"), grid=(1,), outputs=outputs)
    x = torch.empty(8, 0, requires_grad=True)
    f(x, 0, R=8, N=4).sum().backward()
    assert x.grad.shape == (8, 0)


def test_an_element_that_counts_twice_and_is_added_once() -> None:
    """The mean alone has no closed form then, though the count is a number."""
    outputs = {"OUT": lambda a: torch.empty(a["R"])}
    f = pb.triton.op(corpus.lanes_kernel, grid=(1,), outputs=outputs)

    def twice(x: Any) -> Any:
        mean = around = torch.zeros(8, dtype=x.dtype)
        for k, column in enumerate(x.T):
            before, mean = mean, mean + (column - mean) / (2 * k + 2)
            around = around + (column - mean) * (column - before)
        return mean * torch.log(around + 1)

    assert "tape" in same(f, twice, [torch.randn(8, 6)], 6, R=8, N=4, MORE=2)


# --- products that are stored before they lead on -------------------------------------------------

# Those by the inputs are tiled again, but for what leads on into a sum.
PRODUCTS = {"silu": 0, "log": 0, "pole": 1, "sum": 3}
KEPT = {"silu": torch.nn.functional.silu, "log": lambda y: torch.log(y * y)}
AGAIN = {
    "pole": lambda y: torch.log((y - 1) * (y - 1)),
    "sum": lambda y: y * y.sum(1, keepdim=True),
}


@pytest.mark.parametrize("how", [*KEPT, *AGAIN])
def test_a_product_that_is_stored_is_loaded(how: str) -> None:
    """It is not made again, but where a lane that is left out would count."""
    m, n, k = 37, 13, 21
    like = {"KEPT": lambda a: torch.empty(a["m"], a["n"])}
    grid = (triton.cdiv(m, 16) * triton.cdiv(n, 16),)
    f = pb.triton.op(corpus.product_kernel, grid=grid, outputs={**like, "OUT": like["KEPT"]})
    x, w = torch.randn(m, k), torch.randn(k, n)
    own = [t.clone().requires_grad_() for t in (x, w)]
    exact = [t.double().requires_grad_() for t in (x, w)]
    _, out = f(*own, m, n, k, HOW=how, B=16)
    behind = torch.randn(m, n)
    grown = torch.autograd.grad(out, own, behind)
    made = (KEPT | AGAIN)[how](exact[0] @ exact[1])
    known = torch.autograd.grad(made, exact, behind.double())
    for one, other in zip(grown, known, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=2e-3, atol=2e-3)
    text = f.source(*own, m, n, k, HOW=how, B=16)
    assert ("tl.load(KEPT" in text) == (how in KEPT)
    assert text.count("tl.dot(") == PRODUCTS[how]
