"""Whether a kernel reads what it wrote, found out by the elements of a call."""

from __future__ import annotations

from typing import Any

import pytest

import pullback as pb
from pullback.errors import GradientError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
triton = pytest.importorskip("triton", reason="Triton is not installed")

import triton_watched as corpus  # noqa: E402  # it needs Triton
from pullback.triton.frontend import ttir  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("one_seed"),
    pytest.mark.filterwarnings("ignore"),
]
PLACES = [3, 0, 1, 2, 7, 6, 5, 4]


def places(*at: int) -> Any:
    return torch.tensor(at)


@pytest.mark.parametrize("columns", [7, 16, 37])
def test_a_loss_that_leaves_its_gradient(columns: int) -> None:
    """Two passes over a row, and an element of it by a place that is loaded."""
    given = {"X": "X", "LOSS": lambda a: torch.zeros(a["X"].shape[0])}
    f = pb.triton.op(corpus.chosen_kernel, grid=(4,), outputs=given)
    x, at = torch.randn(4, columns, requires_grad=True), places(5, 9, 0, columns - 1)
    at[1] = -100
    over, loss = f(x, at, columns, -100, BLOCK=16)
    behind, slope = torch.randn(4, columns), torch.randn(4)
    ((over * behind).sum() + (loss * slope).sum()).backward()

    y = x.detach().double().requires_grad_()
    kept = at != -100
    one = torch.nn.functional.one_hot(at.clamp(min=0), columns)
    wanted = ((y.softmax(1) - one) * behind * kept[:, None]).sum()
    (wanted + ((y.logsumexp(1) - (y * one).sum(1)) * slope * kept).sum()).backward()
    torch.testing.assert_close(x.grad.double(), y.grad, rtol=2e-5, atol=2e-6)
    report = pb.triton.check(f, x.detach(), at, columns, -100, BLOCK=16)
    assert report.linear < 1e-5


def test_heads_of_two_arrays() -> None:
    """Rows by a quotient, a branch around all, heads that one array has and another one has not."""
    f = pb.triton.op(corpus.heads_kernel, grid=(7, 3), outputs={"Q": "Q", "K": "K"})
    q, k = (torch.randn(6, heads, 8, requires_grad=True) for heads in (3, 2))
    c, behind = torch.randn(3, 4), torch.randn(6, 3, 8)
    made, other = f(q, k, c, 2, 3, 8, 24, HEADS=3, FEW=2)
    ((made * behind).sum() + (other * behind[:, :2]).sum()).backward()

    def turned(x: Any, sign: int) -> Any:
        one, two = x[..., ::2], x[..., 1::2]
        by = c.repeat(2, 1)[:, None]
        return torch.stack([one * by - sign * two, two * by + sign * one], -1).reshape(x.shape)

    for own, heads, sign in ((q, 3, 1), (k, 2, -1)):
        x = own.detach().clone().requires_grad_()
        (turned(x, sign) * behind[:, :heads]).sum().backward()
        torch.testing.assert_close(own.grad, x.grad)


@pytest.mark.parametrize("there", [list(range(8)), PLACES])
def test_places_that_are_given(there: list[int]) -> None:
    """In place, where all elements that a program loads are its own; whatever it writes after."""
    f = pb.triton.op(corpus.moved_kernel, grid=(2,), outputs={"X": "X"})
    x, behind = torch.randn(8, requires_grad=True), torch.randn(8)
    (f(x, places(*PLACES), places(*there), BLOCK=4) * behind).sum().backward()
    y = x.detach().clone().requires_grad_()
    moved = torch.zeros(8).index_put((places(*there),), y[PLACES].sin())
    (moved * behind).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)


@pytest.mark.parametrize(
    ("sources", "targets"),
    [
        ([4, 5, 6, 7, 0, 1, 2, 3], range(8)),  # of another program
        (range(8), [0, 1, 2, 3, 3, 5, 6, 7]),  # two programs write
        (range(8), [0, 1, 1, 3, 4, 5, 6, 7]),  # two lanes write
        ([7, 1, 2, 3, 4, 5, 6, 2], [0, 1, 1, 3, 4, 5, 6, 6]),
    ],
)
def test_programs_and_lanes_that_meet(sources: Any, targets: Any) -> None:
    f = pb.triton.op(corpus.moved_kernel, grid=(2,), outputs={"X": "X"})
    with pytest.raises(GradientError, match="E424"):
        f(torch.randn(8, requires_grad=True), places(*sources), places(*targets), BLOCK=4)


def test_an_element_that_was_written_at_an_earlier_step() -> None:
    """The same kernel: by places ahead it has a derivative, and by places behind it has none."""
    f = pb.triton.op(corpus.twice_kernel, grid=(1,), outputs={"X": "X"})
    x = torch.randn(6, requires_grad=True)
    ahead = places(1, 2, 3, 5, 5, 5)
    f(x, ahead, 6).sum().backward()
    y = x.detach().clone().requires_grad_()
    (y[ahead] ** 2).sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
    with pytest.raises(GradientError, match="E424"):
        f(x, places(1, 2, 3, 5, 5, 0), 6)
    with pytest.raises(GradientError, match="E424"):
        f.source(x, places(0, 0, 3, 5, 5, 5), 6)


def test_what_is_written_over_by_numbers_has_no_derivative() -> None:
    f = pb.triton.op(corpus.cleared_kernel, grid=(1,), outputs="OUT")
    x = torch.randn(8, requires_grad=True)
    f(x, BLOCK=8).sum().backward()
    torch.testing.assert_close(x.grad, x.detach().cos() * (torch.arange(8) > 2))


def test_what_is_added_up_is_refused() -> None:
    f = pb.triton.op(corpus.added_kernel, grid=(1,), outputs={"X": "X"})
    with pytest.raises(GradientError, match="E424"):
        f(torch.randn(4, requires_grad=True), places(0, 1, 2, 3), BLOCK=4)


def test_without_a_gradient_nothing_is_looked_for() -> None:
    f = pb.triton.op(corpus.moved_kernel, grid=(2,), outputs={"X": "X"})
    x = torch.randn(8)
    f(x, places(*PLACES[::-1]), places(*range(8)), BLOCK=4)
    assert not f.watching


def test_the_kernel_that_finds_out_compiles() -> None:
    """It is one kernel for all calls of a type, and needs no more than the addresses do."""
    f = pb.triton.op(corpus.moved_kernel, grid=(2,), outputs={"X": "X"})
    for _ in range(2):
        f(torch.randn(8, requires_grad=True), places(*PLACES), places(*PLACES), BLOCK=4)
    ((kernel, arguments, _),) = f.watching.values()
    assert arguments[:2] == ("FROM", "TO") and "X" not in arguments
    types = {n: "*i64" if n in ("FROM", "TO") else "*i32" for n in arguments}
    text = ttir(kernel, types, {})
    assert "tt.atomic_rmw min" in text and "math.sin" not in text
