"""Places of outputs that several lanes or programs store at once: proved, found out, or refused."""

from __future__ import annotations

from typing import Any

import pytest

import pullback as pb
from pullback.errors import GradientError

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
triton = pytest.importorskip("triton", reason="Triton is not installed")

import triton_stores as corpus  # noqa: E402  # it needs Triton

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("one_seed"),
    pytest.mark.filterwarnings("ignore"),
]
PLACES = [3, 0, 1, 2, 7, 6, 5, 4, 9, 8, 15, 14, 10, 11, 12, 13]


def made(launches: int = 2) -> Any:
    return pb.triton.op(
        corpus.placed_kernel, grid=(launches,), outputs={"OUT": lambda _: torch.zeros(40)}
    )


def called(f: Any, kind: str, at: Any = PLACES, n: int = 16, p: float = 1.0) -> Any:
    x = torch.randn(16, requires_grad=True)
    out = f(x, torch.tensor(at), n, p, KIND=kind, BLOCK=8)
    (grown,) = torch.autograd.grad(out, x, torch.arange(1.0, 41))
    return x.detach(), grown


@pytest.mark.parametrize("kind", ["rows", "parts", "twice", "one each", "added"])
def test_what_is_proved_costs_nothing(kind: str, monkeypatch: Any) -> None:
    f = made()
    called(f, kind)
    assert not f.watching
    monkeypatch.setattr(f, "stored_apart", None)
    called(f, kind)  # and is proved once


@pytest.mark.parametrize(
    "kind", ["steps", "quotients", "one of two", "a branch", "numbers", "stored and added"]
)
def test_what_numbers_decide_is_found_out_once(kind: str, monkeypatch: Any) -> None:
    """The places are of a call's numbers alone: a second call of the same ones launches no more."""
    f = made()
    x, grown = called(f, kind)
    slope = torch.arange(1.0, 17) * 2 * x
    if kind in ("one of two", "a branch"):
        slope = torch.cat([torch.zeros(8), torch.arange(1.0, 9) * 2 * x[8:]])
    torch.testing.assert_close(grown, slope * 2 if kind == "steps" else slope)
    assert f.watching
    monkeypatch.setattr(f, "shared", None)
    called(f, kind)


def test_places_that_are_loaded_are_found_out_at_each_call() -> None:
    f = made()
    x, grown = called(f, "loaded")
    torch.testing.assert_close(grown, (torch.tensor(PLACES) + 1) * 2 * x)
    assert not f.apart
    with pytest.raises(GradientError, match="E431"):
        called(f, "loaded", [3, *PLACES[1:12], 3, *PLACES[13:]])
    with pytest.raises(GradientError, match="E431"):
        called(f, "loaded", [3, 3, *PLACES[2:]])


@pytest.mark.parametrize("kind", ["lanes", "programs", "all one", "one of all", "added by another"])
def test_what_is_stored_several_times_is_refused(kind: str) -> None:
    """Whether the values are equal or not: what comes from behind would be counted for each."""
    f = made()
    for _ in range(2):
        with pytest.raises(GradientError, match=r"stores a place of OUT several times .*E431"):
            called(f, kind)
    with pytest.raises(GradientError, match="E431"):
        pb.triton.check(f, torch.randn(16), torch.tensor(PLACES), 16, 1.0, KIND=kind, BLOCK=8)
    x = torch.randn(16)
    assert f(x, torch.tensor(PLACES), 16, 1.0, KIND=kind, BLOCK=8).shape == (40,)  # no gradient


def test_other_numbers_are_found_out_anew() -> None:
    f = made()
    called(f, "numbers", n=16)
    with pytest.raises(GradientError, match="E431"):
        called(f, "numbers", n=12)
    called(f, "numbers", n=20)
    assert len(f.apart) == 2


def test_a_number_that_is_none_of_whole_ones_decides_too() -> None:
    """Of three programs the second and the third store, or none of them."""
    f = made(3)
    x = torch.randn(24, requires_grad=True)
    call = lambda p: f(x, torch.tensor(PLACES), 16, p, KIND="by a number", BLOCK=8)
    call(0.0)
    with pytest.raises(GradientError, match="E431"):
        call(1.0)


def test_another_grid_is_found_out_anew() -> None:
    grid = [1]
    f = pb.triton.op(
        corpus.placed_kernel, grid=lambda _: grid, outputs={"OUT": lambda _: torch.zeros(40)}
    )
    called(f, "quotients of each")
    grid[0] = 2
    with pytest.raises(GradientError, match="E431"):
        called(f, "quotients of each")


def test_a_place_that_gets_a_number_from_several() -> None:
    """It has no derivative to count twice; the kernel is refused all the same, by its name."""
    with pytest.raises(GradientError, match="E431"):
        called(made(), "no number of an input")
