"""What says how many there are, or along which axis: a coded error at the user's line, or right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.errors import PullbackError

X = pb.tensor(np.arange(12.0).reshape(4, 3))
WRONG: dict[str, tuple[str, Callable[[], Any]]] = {
    "ones": ("E119", lambda: pb.ones((-3, 2))),
    "full": ("E119", lambda: pb.full((-1,), 2)),
    "empty": ("E119", lambda: pb.empty(-1)),
    "broadcast_to": ("E119", lambda: pb.broadcast_to(pb.ones(1), (-4,))),
    "one_hot": ("E119", lambda: pb.one_hot(pb.tensor([1]), -1)),
    "one_hot of a fraction": ("E119", lambda: pb.one_hot(pb.tensor([1]), 2.5)),
    "eye": ("E119", lambda: pb.eye(-1)),
    "eye columns": ("E119", lambda: pb.eye(3, -1)),
    "uniform": ("E119", lambda: pb.random.uniform((-3,))),
    "integers": ("E119", lambda: pb.random.integers(5, shape=(2, -1))),
    "permutation": ("E123", lambda: pb.random.permutation(-3)),
    "compute": ("E119", lambda: pb.compute((-1,), lambda i: 1.0)),
    "axis": ("E119", lambda: pb.axis(-1)),
    "reshape": ("E119", lambda: pb.reshape(X, (-2, 2))),
    "repeat": ("E123", lambda: pb.repeat(X, -1)),
    "repeat by a fraction": ("E360", lambda: pb.repeat(X, 1.5)),
    "tile": ("E123", lambda: pb.tile(X, (-1,))),
    "topk": ("E123", lambda: pb.topk(X, -1)),
    "linspace": ("E123", lambda: pb.linspace(0, 1, -2)),
    "split": ("E125", lambda: pb.split(X, -2)),
    "split by a fraction": ("E360", lambda: pb.split(X, [0.5])),
    "arange to infinity": ("E123", lambda: pb.arange(0, float("inf"))),
    "arange from NaN": ("E123", lambda: pb.arange(float("nan"), 3.0)),
    "sum": ("E360", lambda: pb.sum(X, axis=0.0)),
    "sum of axes": ("E360", lambda: pb.sum(X, axis=(0, 1.0))),
    "sum along True": ("E360", lambda: pb.sum(X, axis=True)),
    "softmax": ("E360", lambda: pb.softmax(X, axis=0.5)),
    "expand_dims": ("E360", lambda: pb.expand_dims(X, 0.5)),
    "tril": ("E360", lambda: pb.tril(X, k=0.5)),
    "roll": ("E360", lambda: pb.roll(X, 1.5)),
    "roll of unlike lists": ("E134", lambda: pb.roll(X, (1, 2, 3), axis=(0, 1))),
    "moveaxis": ("E113", lambda: pb.moveaxis(X, (0, 0), (0, 1))),
    "meshgrid": ("E175", lambda: pb.meshgrid(X, pb.ones(3))),
    "meshgrid indexing": ("E124", lambda: pb.meshgrid(pb.ones(3), indexing="yx")),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_counts_is_a_whole_number_that_fits(name: str) -> None:
    code, call = WRONG[name]
    with pytest.raises(PullbackError) as caught:
        call()
    assert caught.value.code == code
    assert caught.value.origin is None or caught.value.origin.place.startswith(__file__)


def test_numbers_are_axes_of_one() -> None:
    found = pb.meshgrid(pb.tensor(1.0), pb.ones(3))
    wanted = np.meshgrid(1.0, np.ones(3))
    for own, theirs in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(own.numpy(), theirs)


@pytest.mark.parametrize(
    ("shift", "axis"), [((2, 1), 0), (1, (0, 1)), ((2, -5), (1, 0)), ((1, 2), None), (-7, None)]
)
def test_roll_as_numpy(shift: Any, axis: Any) -> None:
    found = pb.roll(X, shift, axis=axis).numpy()
    np.testing.assert_array_equal(found, np.roll(X.numpy(), shift, axis))


@pytest.mark.parametrize("k", [2**31, 2**62, 2**63, -(2**63), 2**70, -(2**70), np.int64(2**62)])
def test_diagonals_beyond_every_axis(k: int) -> None:
    x, above = np.ones((2, 3)), k > 0
    np.testing.assert_array_equal(pb.eye(2, 3, k=k).numpy(), 0 * x)
    np.testing.assert_array_equal(pb.tril(pb.tensor(x), k=k).numpy(), x * above)
    np.testing.assert_array_equal(pb.triu(pb.tensor(x), k=k).numpy(), x * (not above))
    assert len(pb.tril_indices(2, 3, k=k)[0]) == 6 * above
    assert len(pb.triu_indices(2, 3, k=k)[0]) == 6 * (not above)


def test_several_axes_move() -> None:
    x = np.arange(24).reshape(2, 3, 4)
    found = pb.moveaxis(pb.tensor(x), (0, 1), (-1, 0)).numpy()
    np.testing.assert_array_equal(found, np.moveaxis(x, (0, 1), (-1, 0)))


def test_pieces_are_cut_as_numpy_cuts() -> None:
    for cuts in ([2, 9], [-1], [3, 1], []):
        found = [t.numpy() for t in pb.split(X, cuts)]
        for own, theirs in zip(found, np.split(X.numpy(), cuts), strict=True):
            np.testing.assert_array_equal(own, theirs)
