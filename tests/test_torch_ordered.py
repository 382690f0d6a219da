"""Orders along symbolic axes, and sizes as numbers: one program for all, beside eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import pullback as pb

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("fresh_torch"),
    pytest.mark.filterwarnings("ignore"),  # of PyTorch's own compiler
]

ORDERS: dict[str, Callable[[Any], Any]] = {
    "sorted": lambda x: torch.sort(x, dim=-1, stable=True),
    "from the largest on": lambda x: torch.sort(x, dim=-1, descending=True, stable=True),
    "along the first axis": lambda x: torch.sort(x.T, dim=0, stable=True),
    "the largest": lambda x: x.topk(3, -1)[0],
    "the smallest": lambda x: x.topk(2, -1, largest=False)[0],
    "the second": lambda x: x.kthvalue(2, -1)[0],
    "in the middle": lambda x: x.median(-1)[0],
}
NUMBERS: dict[str, Callable[[Any], Any]] = {
    "deviation": lambda x: x.std(-1),
    "by a root": lambda x: x / x.shape[1] ** 0.5,
    "a part": lambda x: x.quantile(0.3, -1),
    "picked": lambda x: x[:, torch.tensor([0, -1])] + x.index_select(1, torch.tensor([0, 2])),
    "repeated": lambda x: x.repeat(1, 2).exp(),
}
COUNTS = 6, 9, 13
QUICK = "from the largest on", "the largest", "deviation", "repeated"


def one_program() -> bool:
    report = pb.torch.report()
    return not report.fallbacks and not any(g.sizes for g in report.graphs)


def compiled(function: Any) -> Any:
    return torch.compile(
        function, backend=pb.torch.backend, dynamic=True, options={"dynamic": True}
    )


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in (*ORDERS, *NUMBERS)],
)
def test_values_and_gradients_of_all_sizes(name: str) -> None:
    function = {**ORDERS, **NUMBERS}[name]
    fast = compiled(function)
    for count in COUNTS:
        x = torch.randn(4, count, dtype=torch.float64, requires_grad=True)
        mine, own = fast(x), function(x)
        torch.testing.assert_close(tuple(mine), tuple(own))
        first = [y if isinstance(y, torch.Tensor) else y[0] for y in (mine, own)]
        head = torch.randn_like(first[1])
        torch.testing.assert_close(*[torch.autograd.grad(y, x, head) for y in first])
    assert one_program()


@pytest.mark.parametrize("name", ["sorted", "from the largest on"])
def test_what_fills_up_stands_behind_its_equals(name: str) -> None:
    """NaN, infinities, ties, and the ends of integers keep the places that eager gives them."""
    fast = compiled(ORDERS[name])
    ends = torch.iinfo(torch.int8)
    for count in COUNTS:
        x = torch.randint(0, 3, (4, count)).double()
        x[0, ::2], x[1, 1:4], x[2, -2:] = torch.nan, -torch.inf, torch.inf
        whole = torch.randint(ends.min, ends.max, (4, count), dtype=torch.int8)
        whole[0, :3], whole[1, 1:5] = ends.max, ends.min
        for given in (x, whole):
            for mine, own in zip(fast(given), ORDERS[name](given), strict=True):
                torch.testing.assert_close(mine, own, equal_nan=True)
    assert one_program()
