"""Statistics beside NumPy and PyTorch; derivatives checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.errors import PullbackError
from pullback.stats.order import CHOSEN, PLOTTING
from pullback.tensor.library import sorting

Array = np.ndarray[Any, Any]
torch = pytest.importorskip("torch")
RNG = np.random.default_rng(0)
A = RNG.normal(size=(4, 5))
HOLES = np.where(RNG.random((4, 5)) < 0.3, np.nan, A)
HOLES[2] = np.nan
CUBE = RNG.normal(size=(3, 4, 5))
FEW = RNG.integers(0, 4, (6, 7))
EDGES = np.array([-1.0, 0.0, 0.25, 2.0])
TIMES, WEIGHTS = np.array([1, 2, 1, 3, 1]), np.array([0.5, 1.0, 2.0, 0.1, 1.0])
Case = tuple[Callable[..., Any], Callable[..., Any], Sequence[Array]]
CASES: dict[str, Case] = {
    "median": (lambda x: pb.median(x, axis=1), lambda x: np.median(x, 1), [A]),
    "median of all": (pb.median, np.median, [A]),
    "median of two axes": (
        lambda x: pb.median(x, axis=(0, 2), keepdims=True),
        lambda x: np.median(x, (0, 2), keepdims=True), [CUBE],
    ),
    "median of integers": (pb.median, np.median, [FEW]),
    "median with NaN": (lambda x: pb.median(x, axis=0), lambda x: np.median(x, 0), [HOLES]),
    "nanmedian": (lambda x: pb.nanmedian(x, axis=1), lambda x: np.nanmedian(x, 1), [HOLES]),
    "quantiles": (
        lambda x: pb.quantile(x, [0.0, 0.3, 1.0], axis=0, keepdims=True),
        lambda x: np.quantile(x, [0.0, 0.3, 1.0], 0, keepdims=True), [CUBE],
    ),
    "quantiles that are data": (
        lambda x, q: pb.quantile(x, q, axis=1), lambda x, q: np.quantile(x, q, 1),
        [A, np.array([[0.1, 0.6]])],
    ),
    "nanquantile": (
        lambda x: pb.nanquantile(x, 0.7, axis=0), lambda x: np.nanquantile(x, 0.7, 0), [HOLES]
    ),
    **{
        f"quantile {method}": (
            lambda x, m=method: pb.quantile(x, np.linspace(0, 1, 21).tolist(), axis=1, method=m),
            lambda x, m=method: np.quantile(x, np.linspace(0, 1, 21), 1, method=m), [A],
        )
        for method in (*PLOTTING, *CHOSEN)
    },
    "kthvalue": (
        lambda x: pb.kthvalue(x, 2, axis=0),
        lambda x: [t.numpy() for t in torch.kthvalue(torch.tensor(x), 2, 0)], [A],
    ),
    "mode": (
        lambda x: pb.mode(x, axis=1, keepdims=True),
        lambda x: [t.numpy() for t in torch.mode(torch.tensor(x), 1, True)], [FEW],
    ),
    "msort": (pb.msort, lambda x: np.sort(x, 0), [A]),
    "nansum": (lambda x: pb.nansum(x, axis=1), lambda x: np.nansum(x, 1), [HOLES]),
    "nanmean": (lambda x: pb.nanmean(x, axis=1), lambda x: np.nanmean(x, 1), [HOLES]),
    "count_nonzero": (
        lambda x: pb.count_nonzero(x, axis=0), lambda x: np.count_nonzero(x, 0), [FEW]
    ),
    "var_mean": (
        lambda x: pb.var_mean(x, 1, correction=1.0), lambda x: [x.var(1, ddof=1), x.mean(1)], [A]
    ),
    "std_mean": (lambda x: pb.std_mean(x, 1), lambda x: [x.std(1), x.mean(1)], [A]),
    "aminmax": (lambda x: pb.aminmax(x, 1), lambda x: [x.min(1), x.max(1)], [A]),
    "cov": (pb.cov, np.cov, [A]),
    "cov of columns": (
        lambda x: pb.cov(x, rowvar=False, correction=0.0),
        lambda x: np.cov(x, rowvar=False, ddof=0), [A],
    ),
    "cov with weights": (
        lambda x, f, a: pb.cov(x, fweights=f, aweights=a),
        lambda x, f, a: np.cov(x, fweights=f, aweights=a), [A, TIMES, WEIGHTS],
    ),
    "cov of one": (pb.cov, np.cov, [A[0]]),
    "corrcoef": (pb.corrcoef, np.corrcoef, [A]),
    **{
        f"nan{name}": (
            lambda x, n=f"nan{name}": getattr(pb, n)(x, axis=1),
            lambda x, n=f"nan{name}": getattr(np, n)(x, 1), [HOLES],
        )
        for name in ("max", "min", "var", "std")
    },
    "nanvar of all, corrected": (
        lambda x: pb.nanvar(x, correction=1.0, keepdims=True),
        lambda x: np.nanvar(x, ddof=1, keepdims=True), [HOLES],
    ),
    "nanmax of integers": (lambda x: pb.nanmax(x, axis=0), lambda x: np.nanmax(x, 0), [FEW]),
    "ptp": (lambda x: pb.ptp(x, axis=(0, 2)), lambda x: np.ptp(x, (0, 2)), [CUBE]),
    "average": (lambda x: pb.average(x, axis=1), lambda x: np.average(x, 1), [A]),
    "average of weights": (
        lambda x, w: pb.average(x, axis=1, weights=w, keepdims=True),
        lambda x, w: np.average(x, 1, w, keepdims=True), [CUBE, np.array([0.5, 1, 2, 0.1])],
    ),
    "average of all, weighed": (
        lambda x, w: pb.average(x, weights=w), lambda x, w: np.average(x, weights=w), [A, A**2]
    ),
    "percentile": (
        lambda x: pb.percentile(x, [0, 30, 100], axis=0),
        lambda x: np.percentile(x, [0, 30, 100], 0), [CUBE],
    ),
    "nanpercentile": (
        lambda x: pb.nanpercentile(x, 70, axis=0), lambda x: np.nanpercentile(x, 70, 0), [HOLES]
    ),
    "diff": (lambda x: pb.diff(x, n=2, axis=0), lambda x: np.diff(x, 2, 0), [A]),
    "diff between": (
        lambda x, p: pb.diff(x, prepend=p, append=0.0),
        lambda x, p: np.diff(x, prepend=p, append=0.0), [A, A[:, :2]],
    ),
    "diff of nothing": (lambda x: pb.diff(x, n=7, axis=0), lambda x: np.diff(x, 7, 0), [A]),
    "trapezoid": (
        lambda y: pb.trapezoid(y, axis=0, dx=0.5), lambda y: np.trapezoid(y, dx=0.5, axis=0), [A]
    ),
    "trapezoid at": (
        lambda y, x: pb.trapezoid(y, x, axis=1), lambda y, x: np.trapezoid(y, x, axis=1),
        [CUBE, np.array([0.0, 1.0, 1.5, 4.0])],
    ),
    "cumulative_trapezoid": (
        lambda y: pb.cumulative_trapezoid(y),
        lambda y: torch.cumulative_trapezoid(torch.tensor(y)).numpy(), [A],
    ),
    "bincount": (lambda x: pb.bincount(x, 6), lambda x: np.bincount(x, minlength=6), [FEW[0]]),
    "bincount of all": (pb.bincount, np.bincount, [FEW[0]]),
    "bincount of weights": (
        lambda x, w: pb.bincount(x, 4, weights=w),
        lambda x, w: np.bincount(x, w, minlength=4), [FEW[0], RNG.normal(size=7)],
    ),
    "histogram": (lambda x: pb.histogram(x, 5), lambda x: np.histogram(x, 5), [A]),
    "histogram within": (
        lambda x: pb.histogram(x, 4, range=(-1.0, 0.5), density=True),
        lambda x: np.histogram(x, 4, (-1.0, 0.5), density=True), [A],
    ),
    "histogram of edges": (
        lambda x, w: pb.histogram(x, EDGES.tolist(), weights=w),
        lambda x, w: np.histogram(x, EDGES, weights=w), [HOLES[:2], A[:2]],
    ),
    "histc": (
        lambda x: pb.histc(x, 4, min=-1, max=1),
        lambda x: torch.histc(torch.tensor(x), 4, -1, 1).numpy(), [A],
    ),
    "histc of one value": (
        lambda x: pb.histc(x, 3), lambda x: torch.histc(torch.tensor(x), 3).numpy(), [np.ones(4)]
    ),
}  # fmt: skip


def listed(found: Any) -> list[Any]:
    return list(found) if isinstance(found, tuple | list) else [found]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_values(name: str) -> None:
    own, theirs, arrays = CASES[name]
    found = listed(own(*(pb.tensor(a) for a in arrays)))
    wanted = listed(theirs(*arrays))
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert tuple(a.shape) == np.shape(b)
        kind = 1e-13 if a.dtype != pb.float32 else 1e-6
        np.testing.assert_allclose(a.numpy(), b, rtol=kind, atol=kind)


SMOOTH = [
    "median", "median of two axes", "nanmedian", "quantiles", "quantiles that are data",
    "quantile hazen", "quantile nearest", "kthvalue", "nansum", "nanmean", "var_mean", "aminmax",
    "cov", "cov with weights", "corrcoef", "diff between", "trapezoid at",
    "cumulative_trapezoid", "bincount of weights", "nanmax", "nanvar", "nanstd", "ptp",
    "average of weights", "average of all, weighed", "percentile",
]  # fmt: skip


@pytest.mark.parametrize("name", SMOOTH)
def test_derivatives(name: str) -> None:
    own, _, arrays = CASES[name]
    if name.startswith("nan"):
        arrays = [np.where(np.isnan(a), np.nan, a)[:2] for a in arrays]
        for slope in [pb.grad(pb.sum(own(x)), x).numpy() for x in map(pb.tensor, arrays)]:
            assert np.isfinite(slope).all()
        arrays = [A]
    floats = [a.astype(np.float64) if a.dtype.kind == "f" else a for a in arrays]
    native = name in ("quantiles", "cov with weights", "bincount of weights")
    report = pb.check_grads(own, floats, layouts=("contiguous",), native=native, second=native)
    assert report, report


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("size", [0, 1, 2, 7, 8, 33])
def test_places_among_sorted(side: str, size: int) -> None:
    rng = np.random.default_rng(size)
    for kind in ("float64", "float32", "int64", "uint8"):
        edges = np.sort(rng.integers(0, 9, size)).astype(kind)
        wanted = rng.integers(0, 10, (3, 4)).astype(kind)
        if kind == "float64" and size > 2:
            edges[-1] = np.nan
            wanted[0, :3] = np.nan, np.inf, -np.inf
        found = pb.searchsorted(pb.tensor(edges), pb.tensor(wanted), side=side)
        assert found.dtype == pb.int64
        np.testing.assert_array_equal(found.numpy(), np.searchsorted(edges, wanted, side))


def test_places_in_rows_and_in_a_given_order() -> None:
    rows = np.sort(RNG.normal(size=(2, 3, 8)), -1)
    wanted = RNG.normal(size=(2, 3, 5))
    found = pb.searchsorted(pb.tensor(rows), pb.tensor(wanted)).numpy()
    theirs = torch.searchsorted(torch.tensor(rows), torch.tensor(wanted)).numpy()
    np.testing.assert_array_equal(found, theirs)
    mixed = RNG.permutation(rows[0, 0])
    order = np.argsort(mixed)
    args = pb.tensor(mixed), pb.tensor(wanted)
    found = pb.searchsorted(*args, sorter=pb.tensor(order)).numpy()
    np.testing.assert_array_equal(found, np.searchsorted(mixed, wanted, sorter=order))


def test_bins() -> None:
    x, edges = pb.tensor(FEW), pb.tensor([0, 1, 3])
    for right in (False, True):
        found = pb.digitize(x, edges, right=right).numpy()
        np.testing.assert_array_equal(found, np.digitize(FEW, [0, 1, 3], right))
        theirs = torch.bucketize(torch.tensor(FEW), torch.tensor([0, 1, 3]), right=right)
        np.testing.assert_array_equal(pb.bucketize(x, edges, right=right).numpy(), theirs)


def test_where_running_extremes_stand() -> None:
    x = RNG.integers(0, 5, (3, 9)).astype(float)
    x[1, 4] = np.nan
    for name, theirs in (("argmax", torch.cummax), ("argmin", torch.cummin)):
        found = getattr(pb, f"cumulative_{name}")(pb.tensor(x), axis=1).numpy()
        np.testing.assert_array_equal(found, theirs(torch.tensor(x), 1).indices.numpy())


def test_half_types_are_averaged_in_float32() -> None:
    x = np.full(4096, 100.0, np.float16)
    assert pb.nanmean(pb.tensor(x)).item() == 100.0


def test_inside_programs() -> None:
    @pb.jit
    def stats(x: pb.Tensor) -> Any:
        few = pb.astype(pb.clip(x, 0.0, 3.0), "int64")
        return (
            pb.quantile(x, [0.25, 0.75]), pb.histogram(x, 4, range=(-1.0, 1.0))[0],
            pb.bincount(pb.reshape(few, (-1,)), 4), pb.median(x, axis=0),
        )  # fmt: skip

    found = [t.numpy() for t in stats(pb.tensor(A))]
    few = np.clip(A, 0, 3).astype(int).ravel()
    wanted = (
        np.quantile(A, [0.25, 0.75]), np.histogram(A, 4, (-1, 1))[0],
        np.bincount(few, minlength=4), np.median(A, 0),
    )  # fmt: skip
    for own, theirs in zip(found, wanted, strict=True):
        np.testing.assert_allclose(own, theirs, rtol=1e-14)


X = pb.tensor(A)
WRONG: dict[str, tuple[str, Callable[[], Any]]] = {
    "quantile": ("E176", lambda: pb.quantile(X, 1.5)),
    "quantile by a method": ("E124", lambda: pb.quantile(X, 0.5, method="best")),
    "quantile of nothing": ("E118", lambda: pb.median(pb.zeros((0,)))),
    "kthvalue": ("E176", lambda: pb.kthvalue(X, 6)),
    "kthvalue of 0": ("E176", lambda: pb.kthvalue(X, 0)),
    "bincount": ("E123", lambda: pb.bincount(pb.tensor([1]), -1)),
    "bincount of rows": ("E175", lambda: pb.bincount(pb.tensor([[1]]), 2)),
    "bincount of floats": ("E177", lambda: pb.bincount(pb.tensor([1.0]), 2)),
    "bincount of weights": ("E175", lambda: pb.bincount(pb.tensor([1]), 2, weights=pb.ones(2))),
    "bincount beyond": ("E106", lambda: pb.bincount(pb.tensor([5]), 2).numpy()),
    "histogram": ("E123", lambda: pb.histogram(X, 0)),
    "histogram turned": ("E123", lambda: pb.histogram(X, 3, range=(1.0, 0.0))),
    "histc": ("E176", lambda: pb.histc(X, 0)),
    "searchsorted": ("E124", lambda: pb.searchsorted(pb.ones(3), X, side="up")),
    "searchsorted in rows": ("E110", lambda: pb.searchsorted(pb.ones((3, 4)), X)),
    "diff": ("E176", lambda: pb.diff(X, n=-1)),
    "cov": ("E175", lambda: pb.cov(pb.ones((2, 2, 2)))),
}


@pytest.mark.parametrize("name", WRONG)
def test_refused_by_code(name: str) -> None:
    code, call = WRONG[name]
    with pytest.raises(PullbackError) as caught:
        call()
    assert caught.value.code == code


def test_an_adjoint_of_a_quantile_goes_where_its_element_was() -> None:
    """Of equal elements to the one that a stable sort puts there."""
    x = np.array([[2.0, 1.0, 2.0, 2.0, np.inf, 2.0], [-0.0, 0.0, 3.0, 0.0, -1.0, -np.inf]])
    ranks = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    for number, rank in enumerate(ranks):
        got = pb.grad(lambda v, q=rank: pb.sum(pb.quantile(v, q, axis=1)))(x)
        want = np.zeros_like(x)
        for row, order in enumerate(np.argsort(x, axis=1, kind="stable")):
            want[row, order[number]] = 1.0
        np.testing.assert_array_equal(np.asarray(got), want, f"at {rank}")


def test_no_quantile_sorts_twice_for_its_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    hosted = sorting.by_host

    def watched(*given: Any, places: bool) -> Any:
        asked.append(places)
        return hosted(*given, places=places)

    monkeypatch.setattr(sorting, "by_host", watched)
    x = np.random.default_rng(0).standard_normal(100_003).astype(np.float32)
    slope = np.asarray(pb.jit(pb.grad(pb.median))(x))
    assert asked and not any(asked), "places of all elements"
    assert np.flatnonzero(slope).tolist() == [int(np.argsort(x)[50_001])]
