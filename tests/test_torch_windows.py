"""Convolutions and pools along symbolic axes: one program for all pictures, beside eager."""

from __future__ import annotations

import copy
from typing import Any

import pytest

import pullback as pb

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
import sympy  # noqa: E402  # it comes with PyTorch
from torch import nn  # noqa: E402  # it needs PyTorch
from torch.utils._sympy.functions import FloorDiv  # noqa: E402

from pullback.bridge import grown  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("fresh_torch"),
    pytest.mark.filterwarnings("ignore"),  # of PyTorch's own compiler
]

SIZES = (8, 9), (11, 7), (13, 13)
LAYERS: dict[str, Any] = {
    "convolution": nn.Conv2d(4, 6, 3, padding=1),
    "of a stride": nn.Conv2d(4, 5, 3, stride=2, padding=1, bias=False),
    "of groups, far taps": nn.Conv2d(4, 4, 3, groups=2, dilation=2, padding=2),
    "of each channel": nn.Conv2d(4, 4, 3, groups=4, stride=3, padding=1),
    "transposed": nn.ConvTranspose2d(4, 3, 4, stride=2, padding=1),
    "transposed, of groups": nn.ConvTranspose2d(4, 4, 3, 2, 1, output_padding=1, groups=2),
    "largest": nn.MaxPool2d(3, 2, 1),
    "largest of far taps": nn.MaxPool2d(2, 1, 1, dilation=2),
    "largest, over the end": nn.MaxPool2d(2, ceil_mode=True),
    "mean": nn.AvgPool2d(3, 2, 1),
    "mean of what is there": nn.AvgPool2d(3, 2, 1, count_include_pad=False, ceil_mode=True),
    "network": nn.Sequential(
        nn.Conv2d(4, 4, 3, stride=2, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 3, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 2),
    ),
}  # fmt: skip
QUICK = "of a stride", "transposed, of groups", "largest", "mean of what is there"


def agrees(layer: Any, pictures: list[Any], close: Any = torch.testing.assert_close) -> None:
    """Values and all gradients beside eager's; each graph is one program for all sizes."""
    eager = copy.deepcopy(layer)
    model = torch.compile(layer, backend=pb.torch.backend, dynamic=True, options={"dynamic": True})
    for x in pictures:
        mine, own = model(x), eager(x)
        close(mine, own)
        head = torch.randn_like(own)
        slopes = [
            torch.autograd.grad(y, [x, *m.parameters()], head)
            for y, m in ((mine, layer), (own, eager))
        ]
        close(*slopes)
    report = pb.torch.report()
    assert not report.fallbacks and not any(g.sizes for g in report.graphs)


def pictures(*sizes: tuple[int, ...], channels: int = 4, kind: Any = None) -> list[Any]:
    made = [torch.randn(2, channels, *size, dtype=kind) for size in sizes]
    return [x.requires_grad_() for x in made]


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in QUICK else [pytest.mark.slow]) for n in LAYERS]
)
def test_pictures_of_all_sizes(name: str) -> None:
    agrees(copy.deepcopy(LAYERS[name]).double(), pictures(*SIZES, kind=torch.float64))


@pytest.mark.slow
def test_lines_and_rooms_of_all_sizes() -> None:
    agrees(nn.Conv1d(4, 3, 5, stride=3, padding=2), pictures((20,), (31,)))
    torch._dynamo.reset()
    agrees(nn.Conv3d(4, 3, 3, padding=1), pictures((5, 6, 7), (6, 4, 5)))
    torch._dynamo.reset()
    agrees(nn.MaxPool3d(2), pictures((5, 6, 7), (6, 4, 5)))


def test_undefined_and_equal_elements_of_windows() -> None:
    """The first of equal ones, NaN before all: gradients go to eager's places."""
    x = torch.randint(0, 3, (2, 3, 9, 8)).double()
    x[0, 0, 2:4, 3] = torch.nan
    x[1, 1, :, 2] = -torch.inf
    y = torch.zeros(2, 3, 6, 11, dtype=torch.float64)

    def close(a: Any, b: Any) -> None:
        torch.testing.assert_close(a, b, equal_nan=True)

    agrees(nn.MaxPool2d(3, 2, 1), [x.requires_grad_(), y.requires_grad_()], close)


def test_means_of_16_bits_are_added_up_in_32() -> None:
    x = torch.full((1, 1, 64, 40), 1.01, dtype=torch.float16)
    model = torch.compile(nn.AvgPool2d(31, 5), backend=pb.torch.backend, dynamic=True)
    torch.testing.assert_close(model(x), nn.AvgPool2d(31, 5)(x))


def test_bounds_and_values_of_wholes() -> None:
    """``(s - 3) // 2 + 1``, and wholes of them."""
    s = sympy.Symbol("s", integer=True, positive=True)
    one = FloorDiv(s - 3, 2) + 1
    two = FloorDiv(one - 2, 2) + 1
    assert grown.bounds(one, {s: (1, 32)}) == (1, 15)
    assert grown.bounds(two, {s: (8, 33)}) == (1, 8)
    for size in (7, 8, 32):
        assert grown.valued(two, {s: size}) == ((size - 3) // 2 + 1 - 2) // 2 + 1
