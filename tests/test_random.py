"""Random tensors: known answers, distributions, order of draws, keys."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest

import pullback as pb
from pullback.errors import DTypeError, ShapeError
from pullback.ir.graph import Definition
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.library.threefry import threefry, word


@pytest.fixture(autouse=True)
def _reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULLBACK_BACKEND", "reference")
    pb.random.manual_seed(0)


@pytest.mark.parametrize(
    ("key", "counter", "wanted"),
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF, 0xFFFFFFFF), (0xFFFFFFFF, 0xFFFFFFFF), (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_known_answers(
    key: tuple[int, int], counter: tuple[int, int], wanted: tuple[int, int]
) -> None:
    """The test vectors that Random123 publishes."""
    found = threefry((word(key[0]), word(key[1])), (word(counter[0]), word(counter[1])))
    assert tuple(Tensor(Definition("w", (), f)).item() for f in found) == wanted


def test_moments() -> None:
    n = 40_000
    u = pb.random.uniform((n,), 2.0, 4.0).numpy()
    assert u.dtype == np.float32 and u.min() >= 2 and u.max() < 4
    assert abs(u.mean() - 3) < 0.015 and abs(u.std() - 2 / 12**0.5) < 0.01
    z = pb.random.normal((n,), 1.0, 2.0, dtype="float64").numpy()
    assert abs(z.mean() - 1) < 0.05 and abs(z.std() - 2) < 0.05
    assert abs((((z - 1) / 2) ** 4).mean() - 3) < 0.2 and np.isfinite(z).all()
    b = pb.random.bernoulli(0.3, (n,)).numpy()
    assert b.dtype == np.bool_ and abs(b.mean() - 0.3) < 0.012
    i = pb.random.integers(-2, 4, (n,)).numpy()
    counts = np.bincount(i + 2, minlength=6)
    assert counts.size == 6 and ((counts - n / 6) ** 2 / (n / 6)).sum() < 25
    p = pb.random.bernoulli(pb.tensor([0.0, 1.0])).tolist()
    assert p == [False, True]


def test_neighbours_are_independent() -> None:
    u = pb.random.uniform((2, 20_000)).numpy() - 0.5
    assert abs((u[0] * u[1]).mean() * 12) < 0.03
    assert abs((u[0, 1:] * u[0, :-1]).mean() * 12) < 0.03
    v = pb.random.uniform((20_000,)).numpy() - 0.5
    assert abs((u[0] * v).mean() * 12) < 0.03


def test_draws_follow_in_program_order() -> None:
    first = [pb.random.normal((3,)), pb.random.uniform((3,)), pb.random.normal((3,))]
    looked = [t.numpy() for t in reversed(first)][::-1]
    pb.random.manual_seed(0)
    again = [pb.random.normal((3,)).numpy() for _ in range(1)]
    again += [pb.random.uniform((3,)).numpy(), pb.random.normal((3,)).numpy()]
    for one, other in zip(looked, again, strict=True):
        assert (one == other).all()
    assert (looked[0] != looked[2]).all()
    pb.random.manual_seed(1)
    assert (pb.random.normal((3,)).numpy() != looked[0]).all()


def test_a_key_decides_alone() -> None:
    key = pb.random.key(2**40 + 5)
    one = pb.random.normal((4,), key=key).numpy()
    pb.random.uniform((9,))
    assert (pb.random.normal((4,), key=key).numpy() == one).all()
    assert (pb.random.normal((2, 2), key=key).numpy().ravel() == one).all()
    assert (pb.random.normal((4,), key=pb.random.key(5)).numpy() != one).all()
    a, b = pb.random.split(key)
    assert (pb.random.normal((4,), key=a).numpy() != pb.random.normal((4,), key=b).numpy()).all()
    with pytest.raises(DTypeError, match=r"pb\.random\.key"):
        pb.random.normal((4,), key=pb.zeros(2))


def test_a_jitted_loop_draws_fresh_numbers_each_step() -> None:
    seen: list[np.ndarray] = []

    def step() -> None:
        pb.Receiver(lambda v: seen.append(np.array(v)), [pb.random.uniform((4,))])

    @pb.jit
    def run() -> None:
        pb.loop(range(3), step)

    run()
    run()
    flat = np.concatenate(seen)
    assert len(np.unique(flat)) == 24
    pb.random.manual_seed(0)
    eager = np.concatenate([pb.random.uniform((4,)).numpy() for _ in range(6)])
    assert (eager == flat).all()


@pytest.mark.parametrize("size", [0, 1, 2, 3, 10, 1000, 4097])
def test_a_permutation_is_one(size: int) -> None:
    found = pb.random.permutation(size).numpy()
    assert (np.sort(found) == np.arange(size)).all() and found.dtype == np.int64


@pytest.mark.slow
def test_permutations_are_evenly_spread() -> None:
    draws = 300
    shuffle = pb.jit(lambda key: pb.random.permutation(3, key=key))
    counts = dict.fromkeys(permutations(range(3)), 0)
    for seed in range(draws):
        counts[tuple(shuffle(pb.random.key(seed)).tolist())] += 1
    expected = draws / 6
    assert sum((c - expected) ** 2 / expected for c in counts.values()) < 20.5  # p = 0.001
    place = pb.random.permutation(10_000).numpy()
    grid = np.histogram2d(np.arange(10_000) // 1000, place // 1000, bins=10)[0]
    assert ((grid - 100) ** 2 / 100).sum() < 145


def test_rows_are_shuffled_whole() -> None:
    x = pb.arange(12).reshape(6, 2)
    y = pb.random.permutation(x).numpy()
    assert (np.sort(y[:, 0]) == np.arange(0, 12, 2)).all() and (y[:, 1] == y[:, 0] + 1).all()


def test_no_gradient_passes() -> None:
    w = pb.tensor([1.0, 2.0])
    mask = pb.random.bernoulli(0.5, (2,))
    y = pb.where(mask, w * 3.0, 0.0)
    assert (pb.grad(y.sum(), w).numpy() == mask.numpy() * 3).all()


def test_refusals() -> None:
    with pytest.raises(DTypeError):
        pb.random.uniform((2,), dtype="int32")
    with pytest.raises(DTypeError, match="does not fit"):
        pb.random.integers(0, 300, (2,), dtype="int8")
    with pytest.raises(ShapeError):
        pb.random.bernoulli(pb.zeros((3,)), (2,))
