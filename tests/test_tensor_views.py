"""Views and indexing against NumPy: shapes drawn at random, guards, errors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import pullback as pb
from pullback.errors import DTypeError, IndexRangeError, ShapeError, UnsupportedError
from pullback.ir.expr import Take
from pullback.tensor.record.trace import Handle

RNG = np.random.default_rng(11)


@pytest.fixture(autouse=True)
def _reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULLBACK_BACKEND", "reference")


def same(found: Handle, wanted: np.ndarray[Any, Any]) -> None:
    assert isinstance(found, pb.Tensor)
    array = found.numpy()
    assert array.shape == wanted.shape and array.dtype == wanted.dtype
    np.testing.assert_array_equal(array, wanted)


def numbered(*shape: int) -> np.ndarray[Any, Any]:
    return np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)


sides = st.lists(st.integers(1, 4), max_size=4).map(tuple)


@settings(max_examples=80, deadline=None)
@given(sides, st.data())
def test_reshape(shape: tuple[int, ...], data: st.DataObject) -> None:
    x = numbered(*shape)
    factors = [f for e in shape for f in ([2, 2] if e == 4 else [e])]
    new: list[int] = [1]
    for factor in data.draw(st.permutations(factors)):
        new = [*new, factor] if data.draw(st.booleans()) else [*new[:-1], new[-1] * factor]
    if data.draw(st.booleans()):
        new[data.draw(st.integers(0, len(new) - 1))] = -1
    same(pb.asarray(x).reshape(*new), x.reshape(new))


def test_reshape_splits_no_more_than_it_must() -> None:
    body = pb.zeros((4, 6, 5)).reshape(4, 2, 3, 5).value.body
    assert isinstance(body, Take)
    assert [type(i).__name__ for i in body.indices] == ["Axis", "Add", "Axis"]


def test_reshape_errors() -> None:
    x = pb.zeros((2, 3))
    with pytest.raises(ShapeError, match="6 and 8 elements"):
        x.reshape(2, 4)
    with pytest.raises(ShapeError, match="only one extent"):
        x.reshape(-1, -1)
    with pytest.raises(ShapeError, match="cannot reshape"):
        x.reshape(4, -1)
    same(pb.zeros((0, 3)).reshape(3, 0), np.zeros((3, 0), np.float32))


def test_symbolic_extents_stay_whole() -> None:
    n = pb.dim("n", 1, 64)
    x = pb.zeros((n, 6))
    assert x.reshape(n, 2, 3).shape == (n, 2, 3)
    assert x.reshape(-1, 3, 2).shape == (n, 3, 2)
    assert x.reshape(1, n, 6).shape == (1, n, 6) and x[:, :2].shape == (n, 2)
    assert (x + pb.zeros((n, 1))).shape == (n, 6) and x.sum(0).shape == (6,)
    with pytest.raises(ShapeError):
        x.reshape(4, -1)
    with pytest.raises(ShapeError, match="do not broadcast"):
        x + pb.zeros((5, 6))


def test_axes_move() -> None:
    x = numbered(2, 3, 4)
    t = pb.asarray(x)
    same(pb.permute_dims(t, (2, 0, 1)), x.transpose(2, 0, 1))
    same(t.permute_dims(1, -1, 0), x.transpose(1, 2, 0))
    same(t.mT, x.swapaxes(-1, -2))
    same(t[0].T, x[0].T)
    same(pb.moveaxis(t, 0, -1), np.moveaxis(x, 0, -1))
    same(pb.expand_dims(t, (0, -1)), np.expand_dims(x, (0, -1)))
    same(pb.squeeze(pb.expand_dims(t, 1)), x)
    same(pb.flip(t), np.flip(x))
    same(pb.flip(t, -1), np.flip(x, -1))
    same(pb.roll(t, 2, 1), np.roll(x, 2, 1))
    same(pb.roll(t, -5), np.roll(x, -5))
    same(pb.roll(t, (1, -1), (0, 2)), np.roll(x, (1, -1), (0, 2)))
    with pytest.raises(ShapeError, match=r"use \.mT"):
        _ = t.T
    with pytest.raises(ShapeError, match="extent is not 1"):
        pb.squeeze(t, 0)
    with pytest.raises(ShapeError, match="each of 3 axes"):
        pb.permute_dims(t, (0, 0, 1))


def test_pieces_together() -> None:
    a, b, c = numbered(2, 3), numbered(2, 0), numbered(2, 5)
    ts = [pb.asarray(v) for v in (a, b, c, a)]
    same(pb.concat(ts, axis=1), np.concatenate([a, b, c, a], 1))
    same(pb.concat(ts, axis=None), np.concatenate([a, b, c, a], None))
    same(pb.stack([ts[0], ts[3], ts[0]], axis=1), np.stack([a, a, a], 1))
    for found, wanted in zip(pb.split(ts[2], [1, 3], axis=1), np.split(c, [1, 3], 1), strict=True):
        same(found, wanted)
    for found, wanted in zip(pb.unstack(ts[0], axis=1), a.T, strict=True):
        same(found, wanted)
    with pytest.raises(ShapeError, match="equal pieces"):
        pb.split(ts[2], 2, axis=1)
    with pytest.raises(ShapeError, match=r"axis 1 of `arrays\[1\]` has 5 elements"):
        pb.concat([ts[0], ts[2]], axis=0)
    mixed = pb.concat([pb.zeros(1, dtype="int32"), pb.zeros(1, dtype="float64")])
    assert mixed.dtype == pb.float64


def test_a_hundred_pieces_make_a_shallow_tree() -> None:
    rows = [pb.full((2,), float(n)) for n in range(100)]
    same(pb.concat(rows), np.repeat(np.arange(100, dtype=np.float32), 2))


def test_padding_and_repetition() -> None:
    x = numbered(2, 3)
    t = pb.asarray(x)
    same(pb.pad(t, ((1, 2), (0, 3)), 7.0), np.pad(x, ((1, 2), (0, 3)), constant_values=7))
    same(pb.pad(t, 1), np.pad(x, 1))
    same(pb.pad(pb.zeros((0,)), ((2, 0),), 1.0), np.ones(2, np.float32))
    same(pb.tile(t, (2, 1, 3)), np.tile(x, (2, 1, 3)))
    same(pb.repeat(t, 3, axis=1), np.repeat(x, 3, 1))
    same(pb.repeat(t, 2), np.repeat(x, 2))
    square = numbered(2, 4, 4)
    for k in (-2, 0, 1):
        same(pb.tril(pb.asarray(square), k=k), np.tril(square, k))
        same(pb.triu(pb.asarray(square), k=k), np.triu(square, k))
    with pytest.raises(ShapeError, match="negative width"):
        pb.pad(t, ((-1, 0), (0, 0)))


@settings(max_examples=150, deadline=None)
@given(hnp.array_shapes(max_dims=4, max_side=4, min_side=0), st.data())
def test_basic_indices(shape: tuple[int, ...], data: st.DataObject) -> None:
    x = numbered(*shape)
    index = data.draw(hnp.basic_indices(shape, allow_newaxis=True))
    same(pb.asarray(x)[index], np.asarray(x[index]))


@settings(max_examples=150, deadline=None)
@given(hnp.array_shapes(min_dims=2, max_dims=4, max_side=4), st.data())
def test_indices_that_are_data(shape: tuple[int, ...], data: st.DataObject) -> None:
    x = numbered(*shape)
    inner = data.draw(st.sampled_from([(), (1,), (3,), (2, 3)]))
    parts: list[Any] = []
    mine: list[Any] = []
    for extent in shape:
        kind = data.draw(st.sampled_from(["data", "slice", "place", "new"]))
        if kind == "new":
            parts.append(None)
            mine.append(None)
        if kind == "data":
            ids = RNG.integers(0, extent, size=inner)
            parts.append(ids)
            mine.append(pb.asarray(ids.astype(np.int32)) if extent % 2 else pb.asarray(ids))
        elif kind == "place":
            parts.append(extent - 1)
            mine.append(-1)
        else:
            parts.append(slice(None, None, -1))
            mine.append(slice(None, None, -1))
    same(pb.asarray(x)[tuple(mine)], np.asarray(x[tuple(parts)]))


def test_a_negative_index_that_is_data_counts_from_the_end() -> None:
    x = numbered(4, 3)
    t = pb.asarray(x)
    for kind in ("int8", "int32", "int64"):
        ids = np.array([[-1, 0], [3, -4]], kind)
        same(t[pb.asarray(ids)], x[ids])
        same(t[1:, pb.asarray(ids // 2)], x[1:, ids // 2])
        same(pb.take(t, pb.asarray(ids[0]), axis=0), np.take(x, ids[0], 0))
        same(pb.take_along_axis(t[:2], pb.asarray(ids % 2 - 1), 1), _along(x, ids % 2 - 1))
        same(pb.scatter_add(t, pb.asarray(ids[1]), t[:2]), _added(x, ids[1], x[:2]))


def _along(x: np.ndarray[Any, Any], ids: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.take_along_axis(x[:2], ids, 1)


def _added(
    x: np.ndarray[Any, Any], ids: np.ndarray[Any, Any], values: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    found = x.copy()
    np.add.at(found, ids, values)
    return found


def test_an_index_out_of_range_raises() -> None:
    x = pb.asarray(numbered(4, 3))
    for bad in (-5, 4):
        with pytest.raises(IndexRangeError, match=rf"index {bad} .*axis 0"):
            x[pb.tensor([0, bad])].numpy()
    with pytest.raises(IndexRangeError, match="index 3 is outside axis 1") as caught:
        x[:, 3]
    assert "x[:, 3]" in str(caught.value) and "^^^^^^^" in str(caught.value)
    with pytest.raises(IndexRangeError, match="3 indices"):
        x[0, 0, 0]
    with pytest.raises(DTypeError, match="no index"):
        x[pb.tensor([1.0])]
    with pytest.raises(UnsupportedError, match="mask"):
        pb.jit(lambda x: x[x > 1])(x)
    for one in (lambda: x.sum(axis=2), lambda: pb.nn.functional.softmax(x, dim=-3)):
        with pytest.raises(ShapeError) as both:
            one()
        assert isinstance(both.value, IndexError) and both.value.code == "E112"


def test_gathers() -> None:
    x = numbered(4, 3)
    ids = np.array([[2, 0], [1, 1], [0, 2], [1, 0]])
    same(pb.take(pb.asarray(x), pb.tensor([2, 0, 2]), axis=0), np.take(x, [2, 0, 2], 0))
    same(pb.take(pb.asarray(x), [2, 0], axis=-1), np.take(x, [2, 0], -1))
    found = pb.take_along_axis(pb.asarray(x), pb.asarray(ids), axis=1)
    same(found, np.take_along_axis(x, ids, 1))
    one = pb.take_along_axis(pb.asarray(x), pb.asarray(ids[:1]), axis=-1)
    same(one, np.take_along_axis(x, np.broadcast_to(ids[:1], (4, 2)), 1))


def test_gradients_through_views_add_up() -> None:
    x = pb.asarray(numbered(3, 4))
    y = pb.concat([x, pb.flip(x, 0)], axis=1)[:, 2:6].reshape(4, 3) * 2.0
    wanted = np.zeros((3, 4), np.float32)
    wanted[:, 2:] += 2
    wanted[:, :2] += 2
    same(pb.grad(y.sum(), x), wanted)
    z = x[pb.tensor([0, 0, 2])].sum()
    same(pb.grad(z, x), np.array([[2] * 4, [0] * 4, [1] * 4], np.float32))
