"""`pb.triton.check`: what it certifies, and wrong backwards that it must not let through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import pullback as pb
from pullback.errors import ArgumentError, GradientError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
triton = pytest.importorskip("triton", reason="Triton is not installed")

import triton_check as kernels  # noqa: E402  # it needs Triton

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("one_seed"),
    pytest.mark.filterwarnings("ignore"),
]


Wrong = Callable[[dict[str, Any], Any], dict[str, Any]]
CALLS: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "rows": (
        kernels.rows_kernel,
        {"X": (4, 12), "W": (12,), "row": 12, "n": 11, "BLOCK": 16},
        {"sizes": ("n",), "strides": {"row": "X"}},
    ),
    "softmax": (
        kernels.softmax_kernel,
        {"X": (4, 12), "row": 12, "n": 12, "BLOCK": 16},
        {"sizes": ("n",), "strides": {"row": "X"}},
    ),
    "product": (
        kernels.product_kernel,
        {"A": (16, 16), "B": (16, 16), "k": 16, "D": 16},
        {"sizes": ("k",)},
    ),
}


def inside(a: dict[str, Any], made: Any) -> Any:
    """What is beyond a size has no part in it."""
    made = made.clone()
    made[..., a["n"] :] = 0
    return made


def rows(a: dict[str, Any], g: Any) -> dict[str, Any]:
    x, w = a["X"], a["W"]
    return {"X": inside(a, g * w * x.cos()), "W": inside(a, (g * x.sin()).sum(0))}


def softmax(a: dict[str, Any], g: Any) -> dict[str, Any]:
    y, g = inside(a, a["OUT"]), inside(a, g)
    return {"X": y * (g - (g * y).sum(1, keepdim=True))}


def product(a: dict[str, Any], g: Any) -> dict[str, Any]:
    k = a["k"]
    one, two = torch.zeros(16, 16), torch.zeros(16, 16)
    one[:, :k], two[:k] = g @ a["B"][:k].T, a["A"][:, :k].T @ g
    return {"A": one, "B": two}


RIGHT: dict[str, Wrong] = {"rows": rows, "softmax": softmax, "product": product}


def changed(of: Wrong, **how: Callable[..., Any]) -> Wrong:
    """A backward whose gradients, by name, have something done to them."""

    def backward(a: dict[str, Any], g: Any) -> dict[str, Any]:
        made = of(a, g)
        return made | {n: act(made[n], a, g) for n, act in how.items()}

    return backward


def packed(a: dict[str, Any], name: str) -> Any:
    """A tensor as one reads it that takes it for packed: of its memory the first elements."""
    tensor = a[name]
    return torch.as_strided(tensor, tensor.shape, (tensor.shape[1], 1))


def spoiled(place: Any) -> Callable[..., Any]:
    def act(made: Any, *_: Any) -> Any:
        made = made.clone()
        made[place] *= 0.5
        return made

    return act


def by_rows(act: Callable[[dict[str, Any], Any], Any], name: str = "X") -> tuple[str, Wrong]:
    return "rows", changed(rows, **{name: lambda _, a, g: act(a, g)})


def by_softmax(act: Callable[[dict[str, Any], Any, Any], Any]) -> tuple[str, Wrong]:
    return "softmax", changed(softmax, X=lambda _, a, g: act(a, inside(a, a["OUT"]), g))


def neighbour(a: dict[str, Any]) -> Any:
    """The element that lies before a tensor's first one."""
    return torch.as_strided(a["W"], (1,), (1,), max(a["W"].storage_offset() - 1, 0))


def beyond(a: dict[str, Any]) -> Any:
    return (torch.arange(12) >= a["n"]).float()


WRONG: dict[str, tuple[str, Wrong]] = {
    "the sign": ("rows", changed(rows, X=lambda d, *_: -d)),
    "5 % too large": ("rows", changed(rows, X=lambda d, *_: d * 1.05)),
    "one weight for another": ("rows", changed(rows, X=lambda d, *_: d.roll(1, 1))),
    "no derivative by the weight": ("rows", changed(rows, W=lambda d, *_: d * 0)),
    "the mean for the sum of rows": ("rows", changed(rows, W=lambda d, *_: d / 4)),
    "the last row is left out": ("rows", changed(rows, X=spoiled(3))),
    "one element": ("rows", changed(rows, W=spoiled(7))),
    "a number is added": ("rows", changed(rows, X=lambda d, *_: d + 0.01)),
    "the sine for the cosine": by_rows(lambda a, g: inside(a, g * a["W"] * a["X"].sin())),
    "squared": by_rows(lambda a, g: inside(a, (g * g * a["X"].sin()).sum(0)), "W"),
    "beyond the mask": by_rows(lambda a, g: g * a["W"] * a["X"].cos()),
    "of one size": ("rows", changed(rows, X=lambda d, a, _: d * (1 if a["n"] == 11 else 0.9))),
    "packed rows": by_rows(lambda a, g: inside(a, g * a["W"] * packed(a, "X").cos())),
    "the neighbour of a tensor": ("rows", changed(rows, W=lambda d, a, _: d + 0 * neighbour(a))),
    "no sum": by_softmax(lambda a, y, g: y * g),
    "the sum of another axis": by_softmax(lambda a, y, g: y * (g - (g * y).sum(0))),
    "by the input": by_softmax(lambda a, y, g: y * (g - (g * a["X"]).sum(1, keepdim=True))),
    "the sum beyond the mask": by_softmax(
        lambda a, y, g: y * (g - (g * (y + beyond(a))).sum(1, keepdim=True))
    ),
    "not turned": ("product", changed(product, A=lambda _, a, g: g @ a["B"])),
    "one for the other": (
        "product",
        lambda a, g: dict(zip("BA", product(a, g).values(), strict=True)),
    ),
    "all of the sum": ("product", changed(product, B=lambda _, a, g: a["A"].T @ g)),
    "no number": ("product", changed(product, A=lambda d, *_: d / 0.0 * 0.0)),
}
# Those that only another size or another layout shows.
HIDDEN = ("of one size", "packed rows", "the sum beyond the mask", "all of the sum")


def certified(name: str, backward: Wrong | None, whole: bool = True) -> Any:
    kernel, given, more = CALLS[name]
    given = {n: torch.randn(v) if isinstance(v, tuple) else v for n, v in given.items()}
    own = None if backward is None else lambda a, behind: backward(a, behind["OUT"])
    grid = (1,) if name == "product" else (4,)
    shape = (16, 16) if name == "product" else (4, 12)
    outputs = {"OUT": lambda _: torch.zeros(shape)}
    f = pb.triton.op(kernel, grid=grid, outputs=outputs, backward=own)
    return pb.triton.check(f, **given, **(more if whole else {}))


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_backward_is_seen(name: str) -> None:
    with pytest.raises(GradientError, match="E426"):
        certified(*WRONG[name])
    if name in HIDDEN:
        certified(*WRONG[name], whole=False)


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_backward_is_certified(name: str) -> None:
    for backward in (RIGHT[name], None):
        report = certified(name, backward)
        assert report.linear < 1e-4 and max(report.differences.values()) < 5e-3
        assert "what lies among no numbers" in report.layouts
        strides, sizes = CALLS[name][2].get("strides", {}), CALLS[name][2]["sizes"]
        assert len(report.layouts) == 1 + len(strides) and len(report.sizes) == 2 * len(sizes)


def test_what_is_no_stride_and_no_size_is_named() -> None:
    kernel, given, _ = CALLS["rows"]
    given = {n: torch.randn(v) if isinstance(v, tuple) else v for n, v in given.items()}
    f = pb.triton.op(kernel, grid=(4,), outputs="OUT")
    with pytest.raises(ArgumentError, match="n is no stride of X"):
        pb.triton.check(f, **given, strides={"n": "X"})
    with pytest.raises(ArgumentError, match="W is no size"):
        pb.triton.check(f, **given, sizes=("W",))
