"""The largest elements of windows, and where: to the place beside eager PyTorch."""

from __future__ import annotations

from typing import Any

import pytest

import pullback as pb

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch.nn import functional as F  # noqa: E402  # it needs PyTorch

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("fresh_torch"),
    pytest.mark.filterwarnings("ignore"),  # of PyTorch's own compiler
]

WINDOWS = [  # size, stride, padding, dilation, ceil
    (3, 2, 1, 1, False),
    (2, 2, 0, 1, True),
    (3, 1, 1, 2, True),
    (2, 3, 1, 1, True),
    (4, 3, 2, 1, True),
    (5, 2, 2, 1, False),
]


@pytest.mark.parametrize("told", WINDOWS)
@pytest.mark.parametrize("space", [2, 3])
def test_places_of_ties_infinities_and_nan(space: int, told: tuple[Any, ...]) -> None:
    if space == 3 and told[0] > 3:
        told = (3, *told[1:2], 1, *told[3:])
    pool = {2: F.max_pool2d, 3: F.max_pool3d}[space]
    x = torch.randint(0, 4, (2, 3, *(11, 9, 8)[:space])).float()
    x[0, 0] = -float("inf")
    x[1].view(-1)[::7] = float("nan")

    def run(x: Any) -> Any:
        return pool(x, *told, True)

    fast = torch.compile(run, backend=pb.torch.backend, options={"fallback": "error"})
    for own, other in zip(fast(x), run(x), strict=True):
        torch.testing.assert_close(own, other, equal_nan=True, rtol=0, atol=0)
    assert fast(x.bfloat16())[1].equal(run(x.bfloat16())[1])


def test_the_gradient_of_a_batch_of_any_size() -> None:
    def run(x: Any) -> Any:
        return F.max_pool2d(x, 3, 2, 1).square().sum()

    fast = torch.compile(run, backend=pb.torch.backend, options={"fallback": "error"}, dynamic=True)
    for rows in (2, 5):
        x = torch.randn(rows, 3, 9, 8, requires_grad=True)
        (own,) = torch.autograd.grad(fast(x), x)
        torch.testing.assert_close(own, torch.autograd.grad(run(x), x)[0])


def test_windows_of_many_taps_and_of_integers() -> None:
    fast = torch.compile(
        lambda x: F.max_pool2d(x, 7, 2, 3, return_indices=True), backend=pb.torch.backend
    )
    for x in (torch.randn(1, 2, 12, 13), torch.randint(0, 9, (1, 2, 12, 13))):
        for own, other in zip(fast(x), F.max_pool2d(x, 7, 2, 3, return_indices=True), strict=True):
            torch.testing.assert_close(own, other, rtol=0, atol=0)
