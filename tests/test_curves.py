"""Interpolation, slopes of samples, convolutions, polynomials, angles: beside NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.errors import PullbackError

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)
PLACES, HEIGHTS = np.sort(RNG.uniform(0, 4, 7)), RNG.normal(size=7)
AT = RNG.uniform(-2, 6, (3, 5))


def compare(own: Any, theirs: Any) -> None:
    found = list(own) if isinstance(own, list | tuple) else [own]
    wanted = list(theirs) if isinstance(theirs, list | tuple) else [theirs]
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        assert tuple(a.shape) == np.shape(b)
        np.testing.assert_allclose(a.numpy(), b, rtol=1e-11, atol=1e-11)


def test_interpolation() -> None:
    x, xp, fp = map(pb.tensor, (AT, PLACES, HEIGHTS))
    compare(pb.interp(x, xp, fp), np.interp(AT, PLACES, HEIGHTS))
    compare(pb.interp(x, xp, fp, -1.0, 2.5), np.interp(AT, PLACES, HEIGHTS, -1.0, 2.5))
    compare(pb.interp(x, xp, fp, period=3.0), np.interp(AT, PLACES, HEIGHTS, period=3.0))
    one = PLACES[:1], HEIGHTS[:1]
    compare(pb.interp(x, *map(pb.tensor, one)), np.interp(AT, *one))
    compare(pb.interp(xp, xp, fp), HEIGHTS)
    assert pb.interp(pb.zeros((0, 3)), xp, fp).shape == (0, 3)
    nowhere = pb.interp(pb.tensor([np.nan, np.inf, -np.inf]), xp, fp).numpy()
    np.testing.assert_allclose(nowhere, [np.nan, HEIGHTS[-1], HEIGHTS[0]], rtol=1e-6)
    twice = np.array([0.0, 1.0, 1.0, 2.0])  # a step: the later sample holds from there on
    at = np.array([0.5, 1.0, 1.5])
    compare(pb.interp(*map(pb.tensor, (at, twice, HEIGHTS[:4]))), np.interp(at, twice, HEIGHTS[:4]))


@pytest.mark.parametrize("count", [2, 3, 5, 8])
@pytest.mark.parametrize("order", [1, 2])
def test_slopes_of_samples(count: int, order: int) -> None:
    f, places = RNG.normal(size=(count, 6)), np.sort(RNG.uniform(0, 3, count))
    own = pb.tensor(f)
    if count <= order:
        with pytest.raises(PullbackError, match="E178"):
            pb.gradient(own, axis=0, edge_order=order)
        return
    how = {"edge_order": order}
    compare(pb.gradient(own, **how), np.gradient(f, **how))
    compare(pb.gradient(own, 0.5, axis=0, **how), np.gradient(f, 0.5, axis=0, **how))
    compare(pb.gradient(own, pb.tensor(places), 0.3, **how), np.gradient(f, places, 0.3, **how))


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
def test_convolutions_of_two_rows(mode: str) -> None:
    for n in (1, 2, 3, 7, 8):
        for m in (1, 2, 3, 4, 9):
            a, v = RNG.normal(size=n), RNG.normal(size=m)
            compare(pb.convolve(*map(pb.tensor, (a, v)), mode), np.convolve(a, v, mode))
            compare(pb.correlate(*map(pb.tensor, (a, v)), mode), np.correlate(a, v, mode))


def test_polynomials() -> None:
    for count in (0, 1, 2, 6):
        p = RNG.normal(size=count)
        compare(pb.polyval(pb.tensor(p), pb.tensor(AT)), np.polyval(p, AT))
    assert pb.polyval(pb.tensor([2, 1]), pb.tensor([3, 4])).tolist() == [7, 9]


def test_angles_that_go_on() -> None:
    walk = np.cumsum(RNG.uniform(-4, 4, (3, 20)), 1)
    own = pb.tensor(walk)
    compare(pb.unwrap(own), np.unwrap(walk))
    compare(pb.unwrap(own, 4.0, axis=0), np.unwrap(walk, 4.0, axis=0))
    compare(pb.unwrap(own, period=3.0), np.unwrap(walk, period=3.0))
    assert pb.unwrap(pb.zeros((2, 0))).shape == (2, 0)
    half = np.array([0.0, np.pi, 0.0, -np.pi])
    compare(pb.unwrap(pb.tensor(half)), np.unwrap(half))


SMOOTH: dict[str, tuple[Callable[..., Any], list[Array]]] = {
    "interp": (pb.interp, [AT, PLACES, HEIGHTS]),
    "interp around": (lambda x, h: pb.interp(x, PLACES, h, period=5.0), [AT, HEIGHTS]),
    "gradient": (lambda f, x: pb.gradient(f, x, edge_order=2), [HEIGHTS, PLACES]),
    "gradient by axes": (pb.gradient, [AT]),
    "convolve": (lambda a, v: pb.convolve(a, v, "same"), [HEIGHTS, AT[0]]),
    "correlate": (pb.correlate, [HEIGHTS, AT[0]]),
    "polyval": (pb.polyval, [HEIGHTS[:4], AT]),
    "unwrap": (pb.unwrap, [AT]),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_derivatives(name: str) -> None:
    function, arrays = SMOOTH[name]
    report = pb.check_grads(function, arrays, layouts=("contiguous",))
    assert report, report


def test_inside_a_program_and_mapped() -> None:
    rows = RNG.normal(size=(4, 9)).astype(np.float32)
    kernel = np.array([0.25, 0.5, 0.25], np.float32)
    run = pb.jit(pb.vmap(lambda row: pb.convolve(row, kernel, "same")))
    wanted = np.stack([np.convolve(row, kernel, "same") for row in rows])
    np.testing.assert_allclose(run(rows), wanted, rtol=1e-6, atol=1e-6)
    half = pb.gradient(pb.tensor(rows, dtype="float16"), axis=1)
    assert half.dtype == pb.float16


REFUSED: dict[str, Callable[[], Any]] = {
    "E178": lambda: pb.gradient(pb.ones(5), pb.ones(4)),
    "E178 steps": lambda: pb.gradient(pb.ones((3, 4)), 1.0, 1.0, 1.0),
    "E178 none": lambda: pb.interp(pb.ones(2), pb.ones(0), pb.ones(0)),
    "E178 nothing": lambda: pb.convolve(pb.ones(3), pb.ones(0)),
    "E178 weights": lambda: pb.average(pb.ones((2, 3)), axis=1, weights=pb.ones(2)),
    "E178 no axis": lambda: pb.average(pb.ones((2, 3)), weights=pb.ones(3)),
    "E175": lambda: pb.interp(pb.ones(2), pb.ones(3), pb.ones(4)),
    "E175 rank": lambda: pb.convolve(pb.ones((2, 3)), pb.ones(3)),
    "E176": lambda: pb.percentile(pb.ones(3), 101),
    "E176 order": lambda: pb.gradient(pb.ones(5), edge_order=3),
    "E124": lambda: pb.correlate(pb.ones(3), pb.ones(2), "some"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_code(name: str) -> None:
    with pytest.raises(PullbackError, match=name[:4]):
        REFUSED[name]()
