"""Weights of few bits: the stated error, the layout, derivatives, what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import quantised as Q
from pullback.errors import PullbackError

RNG = np.random.default_rng(7)
SIZES = [  # rows, columns, bits, group
    (3, 4, 8, None), (70, 33, 8, None), (70, 33, 4, None), (130, 32, 4, 16), (64, 48, 8, 12),
    (0, 5, 8, None), (5, 0, 8, None), (5, 0, 4, None), (1, 1, 4, None), (65, 6, 4, 2),
    (65, 256, 4, None),
]  # fmt: skip


def first_bad(got: Any, want: Any, most: Any) -> str:
    """The first element that is further away than it may be."""
    bad = np.argwhere(~(np.abs(got - want) <= most))
    if not len(bad):
        return ""
    at = tuple(bad[0])
    return f"{at}: got {got[at]}, want {want[at]}, at most {np.broadcast_to(most, got.shape)[at]}"


def close(got: Any, want: Any, rtol: float = 1e-5) -> None:
    wrong = first_bad(got, want, rtol * (1 + np.abs(want)))
    assert got.shape == want.shape and not wrong, wrong


def drawn(rows: int, columns: int) -> Any:
    return RNG.normal(size=(rows, columns)).astype(np.float32)


def scales_of(w: Any, bits: int, group: int | None) -> Any:
    """The scale of each element, as the docstring says."""
    rows, columns = w.shape
    if not w.size:
        return np.zeros((rows, columns))
    width = group or columns
    largest = np.abs(w).reshape(rows, columns // width, width).max(-1)
    return np.repeat(largest / (127 if bits == 8 else 7), width, axis=1)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("rows", "columns", "bits", "group"), SIZES)
def test_the_error_is_as_stated(rows: int, columns: int, bits: int, group: int | None) -> None:
    W, x = drawn(rows, columns), RNG.normal(size=(2, 3, columns)).astype(np.float32)
    w = Q.weights(pb.tensor(W), bits, group)
    scale = scales_of(W, bits, group)
    dense = w.dense().numpy()
    wrong = first_bad(dense, W, scale / 2 * 1.0001)
    assert not wrong, wrong
    exact = x.astype(np.float64) @ W.T.astype(np.float64)
    found = pb.jit(Q.linear)(pb.tensor(x), w).numpy()
    wrong = first_bad(found, exact, np.abs(x) @ scale.T / 2 + 1e-5)
    assert found.shape == exact.shape and not wrong, wrong
    close(found, x @ dense.T)


@pytest.mark.parametrize(("rows", "columns"), [(70, 33), (3, 4), (0, 5), (5, 0), (64, 64)])
def test_bytes_by_bytes(rows: int, columns: int) -> None:
    W, x = drawn(rows, columns), drawn(3, columns)
    w = Q.weights(pb.tensor(W))
    q, scale = Q.activations(pb.tensor(x))
    sums = Q.integer_product(q, w)
    whole = np.round(w.dense().numpy() / np.maximum(scales_of(W, 8, None), 1e-30)).astype(int)
    assert sums.dtype is pb.int32
    np.testing.assert_array_equal(sums.numpy(), q.numpy().astype(np.int64) @ whole.T)
    a, b = scale.numpy()[:, None, None], scales_of(W, 8, None)[None]
    if columns:
        bound = np.abs(x)[:, None] * b / 2 + np.abs(W)[None] * a / 2 + a * b / 4
        found, exact = Q.linear8(q, scale, w).numpy(), x.astype(np.float64) @ W.T
        wrong = first_bad(found, exact, bound.sum(-1) * 1.0001 + 1e-6)
        assert not wrong, wrong


@pytest.mark.sampled(4)
@pytest.mark.parametrize("backend", ["c", "kernels", "reference"])
@pytest.mark.parametrize(("bits", "group"), [(8, None), (4, 6), (4, None)])
def test_on_other_backends(backend: str, bits: int, group: int | None) -> None:
    W, x = drawn(67, 12), pb.tensor(drawn(2, 12))
    w = Q.weights(pb.tensor(W), bits, group)
    want = x.numpy() @ w.dense().numpy().T
    close(pb.jit(Q.linear, options=pb.Options(backend=backend))(x, w).numpy(), want)


def test_extremes_of_bytes() -> None:
    """The largest sums that 32 bits hold."""
    columns = Q.products.MOST
    values = pb.full((1, columns, 64), -128, dtype="int8")
    w = Q.Weights(values, pb.ones((1, 1, 64)), 1, columns)
    x = pb.full((1, columns), -128, dtype="int8")
    assert int(Q.integer_product(x, w).numpy()[0, 0]) == 128 * 128 * columns < 2**31


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("bits", "group"), [(8, None), (8, 4), (4, None), (4, 4)])
def test_derivatives(bits: int, group: int | None) -> None:
    """By activations W, by scales what the integers add up to; beside differences in float64."""
    W, x = drawn(5, 8), RNG.normal(size=(3, 8))
    w = Q.weights(pb.tensor(W), bits, group)
    wide = replace(w, scales=pb.astype(w.scales, "float64"))
    head = RNG.normal(size=(3, 5))

    def loss(x: Any, s: Any) -> Any:
        return pb.sum(Q.linear(x, replace(wide, scales=s)) * pb.tensor(head))

    dx, ds = pb.grad(loss, argnums=(0, 1))(pb.tensor(x), wide.scales)
    close(dx.numpy(), head @ wide.dense().numpy(), 1e-12)
    v = RNG.normal(size=wide.scales.shape)
    ahead, behind = (
        float(loss(pb.tensor(x), wide.scales + pb.tensor(v * h)).numpy()) for h in (0.5, -0.5)
    )
    assert abs((ds.numpy() * v).sum() - (ahead - behind)) < 1e-9  # linear in the scales


def test_derivatives_of_bytes_by_scales() -> None:
    w = Q.weights(pb.tensor(drawn(5, 8)))
    q, scale = Q.activations(pb.tensor(drawn(3, 8)))

    def loss(a: Any, b: Any) -> Any:
        return pb.sum(Q.linear8(q, a, replace(w, scales=b)) ** 2)

    da, db = pb.grad(loss, argnums=(0, 1))(scale, w.scales)
    y = Q.linear8(q, scale, w).numpy()
    close(da.numpy(), 2 * (y * y).sum(1) / scale.numpy(), 1e-4)
    close(db.numpy()[0, 0, :5], 2 * (y * y).sum(0) / w.scales.numpy()[0, 0, :5], 1e-4)
    with pytest.raises(PullbackError, match="E204"):
        pb.grad(lambda q: pb.sum(Q.linear8(q, scale, w)))(q)
    with pytest.raises(PullbackError, match="E202"):
        pb.grad(lambda s: pb.sum(Q.integer_product(q, replace(w, scales=s))))(w.scales)


def test_what_is_not_finite_shows() -> None:
    W = drawn(3, 4)
    W[1, 2] = np.inf
    found = Q.linear(pb.ones((1, 4)), Q.weights(pb.tensor(W))).numpy()[0]
    assert np.isnan(found[1]) and np.isfinite(found[[0, 2]]).all()
    x = np.array([[1.0, np.nan], [1.0, 2.0]], np.float32)
    assert np.isnan(Q.activations(pb.tensor(x))[1].numpy()).tolist() == [True, False]


def test_a_row_of_zeros_and_halves() -> None:
    W = np.array([[0, 0, 0, 0], [127, 0.5, 1.5, -2.5]], np.float32)
    w = Q.weights(pb.tensor(W))
    np.testing.assert_array_equal(w.dense().numpy(), [[0, 0, 0, 0], [127, 0, 2, -2]])


def test_half_floats_are_added_up_in_float32() -> None:
    W = np.full((2, 2048), 100.0, np.float32)
    y = Q.linear(pb.ones((1, 2048), dtype="float16"), Q.weights(pb.tensor(W)))
    assert y.dtype is pb.float32
    close(y.numpy(), np.full((1, 2), 204800.0))


def test_symbolic_rows_of_activations() -> None:
    w = Q.weights(pb.tensor(drawn(5, 8)), 4, 4)
    program = pb.jit(lambda x: Q.linear(x, w), shapes=[(pb.dim("b", 1, 8), 8)])
    for rows in (1, 3, 8):
        x = drawn(rows, 8)
        close(program(pb.tensor(x)).numpy(), x @ w.dense().numpy().T)


def parts() -> Any:
    return Q.weights(pb.ones((70, 8)), 4, 4)


WRONG = {
    "other columns": lambda: Q.linear(pb.ones((2, 7)), parts()),
    "more rows than panels": lambda: Q.linear(pb.ones((2, 8)), replace(parts(), rows=129)),
    "fewer panels": lambda: Q.linear(pb.ones((2, 8)), replace(parts(), rows=64)),
    "columns": lambda: Q.linear(pb.ones((2, 9)), replace(parts(), columns=9)),
    "bits": lambda: Q.linear(pb.ones((2, 8)), replace(parts(), bits=8)),
    "no such bits": lambda: replace(parts(), bits=3).dense(),
    "scales of a panel": lambda: replace(parts(), scales=pb.ones((1, 2, 64))).dense(),
    "groups": lambda: replace(parts(), scales=pb.ones((2, 3, 64))).dense(),
    "rank of scales": lambda: replace(parts(), scales=pb.ones((2, 64))).dense(),
    "type": lambda: replace(parts(), values=pb.ones((2, 4, 64))).dense(),
    "activations and scales": lambda: Q.linear8(
        pb.ones((3, 8), dtype="int8"), pb.ones((2,)), Q.weights(pb.ones((5, 8)))
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_parts_that_do_not_fit(name: str) -> None:
    with pytest.raises(PullbackError, match="E590"):
        WRONG[name]()


def test_what_does_not_exist() -> None:
    for bits, group in ((2, None), (8, 3), (4, 1), (8, 0), (8, -4), (8, 2.0), (4, 16)):
        with pytest.raises(PullbackError, match="E591"):
            Q.weights(pb.ones((4, 8)), bits, group)  # type: ignore[arg-type]
    with pytest.raises(PullbackError, match="E591"):
        Q.integer_product(pb.ones((2, 8), dtype="int32"), Q.weights(pb.ones((4, 8))))
    wide = Q.Weights(
        pb.zeros((1, 2**17, 64), dtype="int8"), pb.ones((1, 1, 64)), 1, 2**17
    )  # fmt: skip
    with pytest.raises(PullbackError, match="E592"):
        Q.integer_product(pb.zeros((1, 2**17), dtype="int8"), wide)
    with pytest.raises(PullbackError, match="E592"):
        Q.linear8(pb.ones((2, 8), dtype="int8"), pb.ones((2,)), Q.weights(pb.ones((4, 8)), 8, 4))
