"""Random functions of PyTorch's tensors, compiled, beside eager. More: `scripts/fuzz_torch.py`."""

from __future__ import annotations

import pytest

import pullback as pb

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from random_torch import check_torch  # noqa: E402  # it needs PyTorch

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("fresh_torch"),
    pytest.mark.filterwarnings("ignore"),  # of PyTorch's own compiler
]


@pytest.mark.parametrize("seed", [92, 547, *range(8)])
def test_random_functions(seed: int) -> None:
    faults = check_torch(seed)
    assert not faults, "\n".join(faults)


def test_windows_that_share_places_have_gradients_of_their_own() -> None:
    """PyTorch 2.13: its own backends keep one element of each place."""
    x = torch.randn(8, dtype=torch.float64, requires_grad=True)
    compiled = torch.compile(lambda x: (x * 2).unfold(0, 3, 1), backend=pb.torch.backend)
    heads = torch.randn(6, 3, dtype=torch.float64)
    (got,) = torch.autograd.grad(compiled(x), x, heads)
    (want,) = torch.autograd.grad((x * 2).unfold(0, 3, 1), x, heads)
    torch.testing.assert_close(got, want)


def test_windows_of_an_argument_stay_views() -> None:
    x = torch.arange(5.0)
    view = torch.compile(lambda x: x.unfold(0, 3, 1), backend=pb.torch.backend)(x)
    x[2] = 9
    assert view[:, 0].tolist() == [0, 1, 9] and view[2, 0] == view[0, 2] == 9


class Tail:
    """Views from a place that changes from call to call: PyTorch makes it symbolic."""

    start = 1

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        parts = y.split([self.start, y.shape[0] - self.start])
        return (
            x[self.start :],
            y,
            y[self.start :],
            y.T[:, self.start :],
            parts[1],
            y[self.start] + 1,
        )


def test_views_from_a_symbolic_place() -> None:
    """As they lie in the argument, or in another result: with their strides and offsets."""
    tail, x = Tail(), torch.randn(7, 3, requires_grad=True)
    compiled = torch.compile(tail, backend=pb.torch.backend)
    for start in (1, 4, 2):
        tail.start = start
        got, want = compiled(x), tail(x)
        for one, other in zip(got, want, strict=True):
            torch.testing.assert_close(one, other)
            assert one.stride() == other.stride()
            assert one.storage_offset() == other.storage_offset()
        heads = [torch.randn_like(w) for w in want]
        ours, theirs = (torch.autograd.grad(r, x, heads)[0] for r in (got, want))
        torch.testing.assert_close(ours, theirs)
