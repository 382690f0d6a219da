"""Values of rules beside eager PyTorch at the edges: infinities, NaN, ties, one selection."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pullback as pb
from pullback.errors import IndexRangeError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch.nn import functional as F  # noqa: E402  # it needs PyTorch

from pullback.bridge.aten import RULES  # noqa: E402
from pullback.tensor.library import sorting  # noqa: E402

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("fresh_torch"),
    pytest.mark.filterwarnings("ignore"),  # of PyTorch's own compiler
]
EDGES = [torch.inf, -torch.inf, torch.nan, 0.0, 3.0, -3.0, 1.0, -1.0, 40.0, -40.0]


def compiled(function: Callable[..., Any]) -> Any:
    return torch.compile(
        function, backend=pb.torch.backend, options={"fallback": "error"}, dynamic=False
    )


def slopes(function: Callable[..., Any], x: Any) -> tuple[Any, Any]:
    given = x.clone().requires_grad_()
    y = function(given)
    return y.detach(), torch.autograd.grad(y.sum(), given)[0]


def near(own: Any, eager: Any) -> None:
    torch.testing.assert_close(own, eager, equal_nan=True)


# What eager gives for NaN backward depends on where it stands (lanes or what is left): not these.
VALUES: dict[str, Callable[..., Any]] = {
    "hardswish": F.hardswish,
    "sinc": torch.sinc,
    "i0": torch.i0,
    "i1": torch.special.i1,
    "silu": F.silu,
    "mish": F.mish,
    "hardsigmoid": F.hardsigmoid,
    "elu": F.elu,
    "softplus": F.softplus,
}
SLOPES: dict[str, Callable[..., Any]] = {
    "relu": F.relu,
    "threshold": lambda x: F.threshold(x, 0.5, 7.0),
    "smooth_l1": lambda x: F.smooth_l1_loss(x, torch.zeros_like(x), reduction="sum", beta=2.0),
    "smooth_l1 mean": lambda x: F.smooth_l1_loss(x, torch.full_like(x, 0.5)),
    "huber": lambda x: F.huber_loss(x, torch.zeros_like(x), reduction="none"),
    "leaky_relu": F.leaky_relu,
    "silu": F.silu,
}


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_functions_at_infinities_and_undefined_numbers(kind: Any) -> None:
    x = torch.tensor(EDGES, dtype=kind)

    def every(x: Any) -> list[Any]:
        return [f(x) for f in VALUES.values()]

    for name, own, eager in zip(VALUES, compiled(every)(x), every(x), strict=True):
        torch.testing.assert_close(own, eager, equal_nan=True, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("name", SLOPES)
def test_slopes_at_infinities_and_undefined_numbers(name: str) -> None:
    x = torch.tensor(EDGES)
    for own, eager in zip(slopes(compiled(SLOPES[name]), x), slopes(SLOPES[name], x), strict=True):
        near(own, eager)


def test_the_edges_of_hardswish() -> None:
    """Its slope is 1 at 3 and 0 at -3, as eager's."""
    x = torch.tensor([3.0, -3.0, 2.999, -2.999, 5.0, -5.0])
    for own, eager in zip(slopes(compiled(F.hardswish), x), slopes(F.hardswish, x), strict=True):
        near(own, eager)


def test_gelu_of_infinity_is_infinite() -> None:
    """Eager's answer depends on the number of elements: inf for one, NaN for many."""
    assert compiled(F.gelu)(torch.tensor([torch.inf] * 9)).tolist() == [torch.inf] * 9


@pytest.mark.parametrize(
    "kind", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.bool]
)
def test_ties_stay_in_order(kind: Any) -> None:
    """Where PyTorch promises an order, places are eager's; elsewhere they have eager's values."""
    x = torch.randint(0, 5, (3, 70)).to(kind)

    def promised(x: Any) -> Any:
        return [torch.sort(x, dim=-1, descending=d, stable=True) for d in (False, True)]

    for own, eager in zip(compiled(promised)(x), promised(x), strict=True):
        assert torch.equal(own[0], eager[0]) and torch.equal(own[1], eager[1])
    if kind == torch.bool:
        return

    def others(x: Any) -> Any:
        # `kthvalue` of 70 elements is sorted, `topk` of 4 selected
        return torch.sort(x, -1), torch.kthvalue(x, 9), torch.topk(x, 4), torch.topk(x, 60)

    for own, eager in zip(compiled(others)(x), others(x), strict=True):
        assert torch.equal(own[0], eager[0])
        places = own[1] if own[1].ndim == 2 else own[1][:, None]
        values = own[0] if own[0].ndim == 2 else own[0][:, None]
        assert torch.equal(x.gather(1, places), values)
        assert all(len(set(row.tolist())) == len(row) for row in places), "each place once"


@pytest.mark.parametrize("size", [40, 400, 700])
def test_undefined_numbers_are_the_largest(size: int) -> None:
    """Selected one by one, counted, and through the network."""
    special = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, 1.0])
    x = special[torch.randint(0, 5, (3, size))]
    x[2] = torch.arange(size)
    x[2, 5] = torch.nan
    for k in (1, 3, size // 3):
        for largest in (True, False):

            def top(x: Any, k: int = k, largest: bool = largest) -> Any:
                return torch.topk(x, k, largest=largest)

            values, places = compiled(top)(x)
            near(values, top(x)[0])
            near(x.gather(1, places), values)

    def down(x: Any) -> Any:
        return torch.sort(x, descending=True, stable=True)

    for own, eager in zip(compiled(down)(x), down(x), strict=True):
        near(own, eager)


def _counted(name: str, own: Any, calls: list[str]) -> Any:
    def run(*args: Any) -> Any:
        calls.append(name)
        return own(*args)

    return run


@pytest.mark.parametrize("k", [2, 60])
def test_the_largest_are_ordered_once(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    for name in ("_selected", "_by_counting", "_by_network"):
        monkeypatch.setattr(sorting, name, _counted(name, getattr(sorting, name), calls))
    RULES[torch.ops.aten.topk.default](pb.ones((3, 70)), k)
    assert calls == ["_selected" if k == 2 else "_by_counting"]


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_norms_of_weights(dim: int) -> None:
    """First axis, last, and one between; gradients by both parts."""
    v = torch.randn(3, 4, 5, requires_grad=True)
    g = torch.randn([n if k == dim else 1 for k, n in enumerate(v.shape)], requires_grad=True)

    def run(v: Any, g: Any) -> Any:
        return torch._weight_norm(v, g, dim)

    head = torch.randn(3, 4, 5)
    rows = [(f(v, g), f) for f in (compiled(run), run)]
    near(rows[0][0], rows[1][0])
    near(*(torch.autograd.grad(y, (v, g), head) for y, _ in rows))


def test_airys_function() -> None:
    """Beside SciPy's, on both sides of where its forms meet; nothing at infinity, as eager."""
    scipy = pytest.importorskip("scipy.special")
    x = torch.cat([torch.linspace(-30, 100, 4001), torch.tensor([2.09, -2.09, 0.0])]).double()
    own = compiled(torch.special.airy_ai)(x)
    exact = torch.from_numpy(scipy.airy(x.numpy())[0])
    torch.testing.assert_close(own, exact, rtol=1e-11, atol=1e-14)
    edges = torch.tensor([torch.inf, -torch.inf, torch.nan, 1e30])
    near(compiled(torch.special.airy_ai)(edges), torch.special.airy_ai(edges))


SEGMENTS = [[0, 1, 2, 2], [5, 0, 0, 0], [2, 3, 0, 0]]


@pytest.mark.parametrize("reduce", ["sum", "mean", "max", "min", "prod"])
@pytest.mark.parametrize("initial", [None, 2.0])
def test_segments(reduce: str, initial: Any) -> None:
    """Empty ones, ties, zeros of a product, NaN; along an axis that is not the first."""
    x = torch.randn(3, 5, 2)
    x[0, 3] = x[0, 4]
    x[1, 2] = 0.0
    x[2, 0, 0] = torch.nan if reduce in ("max", "sum") else 1.0
    x.requires_grad_()
    lengths = torch.tensor(SEGMENTS)
    offsets = F.pad(lengths.cumsum(1), (1, 0))

    def both(x: Any) -> Any:
        how = {"axis": 1, "initial": initial}
        return (
            torch.segment_reduce(x, reduce, lengths=lengths, **how),
            torch.segment_reduce(x, reduce, offsets=offsets, **how),
        )

    own, eager = compiled(both)(x), both(x)
    for mine, its in zip(own, eager, strict=True):
        near(mine, its)
        head = torch.rand(its.shape)
        near(*(torch.autograd.grad(y, x, head, retain_graph=True)[0] for y in (mine, its)))


def test_segments_that_are_no_whole_axis() -> None:
    """Lengths whose sum is not the extent raise while running, as eager does."""
    x = torch.randn(5)

    def f(x: Any, lengths: Any) -> Any:
        return torch.segment_reduce(x, "sum", lengths=lengths)

    run = compiled(f)
    near(run(x, torch.tensor([2, 3])), f(x, torch.tensor([2, 3])))
    for wrong in ([2, 2], [4, 4], [-1, 6]):
        with pytest.raises(IndexRangeError):
            run(x, torch.tensor(wrong))


@pytest.mark.parametrize("density", [False, True])
def test_histograms_of_points(density: bool) -> None:
    x, weight = torch.randn(40, 3), torch.rand(40)
    x[3] = x.amax(0)
    edges = [torch.tensor([-1.0, 0.0, 2.0]), torch.linspace(-2, 2, 4), torch.tensor([-3.0, 3.0])]

    def every(x: Any, weight: Any) -> Any:
        how = {"weight": weight, "density": density}
        return (
            torch.histogramdd(x, (2, 3, 4), **how),
            torch.histogramdd(x, (2, 3, 1), range=(-1.0, 1.0, -2.0, 2.0, 0.0, 1.0), **how),
            torch.histogramdd(x, edges, **how),
        )

    for own, eager in zip(compiled(every)(x, weight), every(x, weight), strict=True):
        near(own.hist, eager.hist)
        for mine, its in zip(own.bin_edges, eager.bin_edges, strict=True):
            near(mine, its)


@pytest.mark.parametrize(("name", "kind"), [("sort", "bfloat16"), ("kthvalue", "int64")])
def test_entries_of_opinfo_with_ties(name: str, kind: str) -> None:
    pytest.importorskip("expecttest")
    script = Path(__file__).parent.parent / "scripts" / "opinfo_compile.py"
    assert runpy.run_path(str(script))["judged"](name, 2, kind) == ("right", "")
