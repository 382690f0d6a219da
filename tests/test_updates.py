"""Elements replaced: `x[i] = v` outside of programs, `x.at[i].set(v)` everywhere, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.errors import (
    DTypeError,
    GradientError,
    IndexRangeError,
    ShapeError,
    UnsupportedError,
)

Array = np.ndarray[Any, Any]

KEYS: list[tuple[Any, ...]] = [
    (1,),
    (-1, slice(None, None, -2)),
    (slice(None, None, 3),),
    (slice(3, 0, -2), slice(0, 6, 2)),
    (Ellipsis, 2),
    (None, 1),
    (slice(2, 2),),
    (),
    (np.array([0, 2, 2, -1]),),
    (np.array([[0, -1], [2, 2]]), slice(1, 3)),
    (slice(None), np.array([1, 1, -1])),
    (np.array([1, 1]), np.array([2, 2])),
    (np.array([], np.int64),),
]
COMBINED: dict[str, Callable[..., Any]] = {
    "add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide,
    "power": np.power, "max": np.maximum, "min": np.minimum,
}  # fmt: skip


def drawn(*shape: int) -> Array:
    return np.random.default_rng(7).uniform(0.5, 2.0, shape)


def tensors(key: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(pb.asarray(k) if isinstance(k, np.ndarray) else k for k in key)


def updated(x: Array, key: tuple[Any, ...], op: str, v: Array) -> Array:
    found = x.copy()
    if op == "set":
        found[key] = v
    else:
        COMBINED[op].at(found, key, v)
    return found


@pytest.mark.sampled(10)
@pytest.mark.parametrize("op", ["set", *COMBINED])
def test_every_operation_at_every_kind_of_index(op: str) -> None:
    x = drawn(4, 6)
    for key in KEYS:
        v = drawn(*x[key].shape)
        mine = tensors(key)
        wanted = updated(x, key, op, v)
        eager = getattr(pb.asarray(x).at[mine], op)(pb.asarray(v))
        np.testing.assert_allclose(eager.numpy(), wanted, rtol=1e-12)

        def program(a: Any, b: Any, mine: Any = mine) -> Any:
            return getattr(a.at[mine], op)(b)

        traced = pb.jit(program)(pb.asarray(x), pb.asarray(v))
        np.testing.assert_array_equal(traced.numpy(), eager.numpy())
    with pytest.raises(IndexRangeError):
        getattr(pb.asarray(x).at[pb.tensor([4])], op)(1.0).numpy()


@pytest.mark.parametrize("op", ["set", "add", "max", "multiply"])
def test_derivatives_by_the_tensor_and_by_the_values(op: str) -> None:
    x = drawn(3, 4)
    for key in KEYS[1:4] + KEYS[9:11]:
        short = tuple(np.minimum(k, 2) if isinstance(k, np.ndarray) else k for k in key)
        if op == "multiply" and any(isinstance(k, np.ndarray) for k in key):
            continue  # the rule by hand is checked below
        v = drawn(*x[short].shape) + 0.1
        mine = tensors(short)

        def function(a: Any, b: Any, mine: Any = mine) -> Any:
            return getattr(a.at[mine], op)(b)

        report = pb.check_grads(function, [x, v], layouts=("contiguous",), native=False)
        assert report.passed, str(report)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("op", ["multiply", "divide", "power"])
def test_products_at_places_that_are_data(op: str) -> None:
    """First and second derivatives beside differences; a factor of 0 has the others' product."""
    places, weights = pb.tensor([0, 2, 2, 2]), pb.asarray(drawn(3))
    x = pb.asarray(drawn(3))

    def loss(v: Any) -> Any:
        return pb.sum(getattr(x.at[places], op)(v) * weights)

    plain, zero = np.array([2.0, 3.0, 0.5, 1.5]), np.array([2.0, 0.0, 0.5, 1.5])
    for v in (plain, zero) if op == "multiply" else (plain,):
        slope = pb.grad(loss)(v)
        steps = 1e-6 * np.eye(4)
        ends = [(float(loss(pb.asarray(v + s))), float(loss(pb.asarray(v - s)))) for s in steps]
        np.testing.assert_allclose(slope, [(a - b) / 2e-6 for a, b in ends], atol=1e-7)
        np.testing.assert_allclose(float(pb.jvp(loss, [v], [np.ones(4)])[1]), slope.sum())
        np.testing.assert_allclose(pb.jit(pb.grad(loss))(v), slope)
    along = pb.hvp(loss, plain, np.ones(4))
    wanted = (pb.grad(loss)(plain + 1e-6) - pb.grad(loss)(plain - 1e-6)) / 2e-6
    np.testing.assert_allclose(along, wanted, atol=1e-5)


@pytest.mark.slow
def test_masks_choose_in_programs_and_select_outside() -> None:
    x, mask = drawn(4, 3), drawn(4, 3) > 1.2
    rows = mask[:, 0]
    t = pb.asarray(x)
    for key, mine in [
        ((mask,), (pb.asarray(mask),)),
        ((mask,), (mask,)),
        ((mask,), (mask.tolist(),)),
        ((rows,), (pb.asarray(rows),)),
        ((rows, slice(1, 3)), (pb.asarray(rows), slice(1, 3))),
        ((slice(None), mask[1]), (slice(None), pb.asarray(mask[1]))),
        ((Ellipsis, mask[1]), (Ellipsis, pb.asarray(mask[1]))),
        ((rows, 1), (pb.asarray(rows), 1)),
    ]:
        np.testing.assert_array_equal(t[mine].numpy(), x[key])
        new = drawn(*x[key].shape) * 3
        np.testing.assert_array_equal(t.at[mine].set(new).numpy(), updated(x, key, "set", new))
    slope = pb.grad(lambda a: pb.sum(pb.square(a[pb.asarray(mask)])))(x)
    np.testing.assert_allclose(slope, np.where(mask, 2 * x, 0))
    for op in ("set", "add", "max"):
        for value in (1.5, drawn(3), drawn(1, 3)):
            if op != "set" and np.ndim(value) == 2:
                continue
            inside = pb.jit(lambda a, m, v, op=op: getattr(a.at[m], op)(v))
            given = pb.asarray(value) if isinstance(value, np.ndarray) else pb.tensor(value)
            found = inside(t, pb.asarray(rows), given.astype("float64"))
            np.testing.assert_array_equal(found.numpy(), updated(x, (rows,), op, np.asarray(value)))
    with pytest.raises(UnsupportedError, match="mask"):
        pb.jit(lambda a, m, v: a.at[m].set(v))(t, pb.asarray(mask), pb.ones(3))
    with pytest.raises(IndexRangeError, match="E191"):
        t[pb.asarray(mask.T)]
    one = pb.asarray(np.asarray(2.0))
    one[pb.tensor(False)] = pb.asarray(np.zeros(0))
    assert one.tolist() == 2.0
    one[pb.tensor(True)] = pb.asarray(np.ones(1))
    assert one.tolist() == 1.0
    assert t[True].shape == (1, 4, 3) and t[pb.tensor(False)].shape == (0, 4, 3)


def test_assignment_gives_the_name_another_value() -> None:
    x = drawn(4, 3)
    t, own = pb.asarray(x.copy()), x.copy()
    before, part = t * 1.0, t[1:]
    alias = t
    for key, value in [
        ((1, 2), 5.0),
        ((slice(None, None, -2),), drawn(3)),
        ((own > 1.5,), 0.25),
        ((np.array([0, -1, 0]), 1), np.array([1.0, 2.0, 3.0])),
        ((Ellipsis,), drawn(4, 3) + 1.0),
    ]:
        t[tensors(key)] = pb.asarray(value) if isinstance(value, np.ndarray) else value
        own[key] = value
        np.testing.assert_array_equal(t.numpy(), own)
    assert alias is t and np.array_equal(before.numpy(), x) and np.array_equal(part.numpy(), x[1:])
    t[0] += 1.0
    np.testing.assert_array_equal(t.numpy()[0], own[0] + 1.0)

    def last(v: Any) -> Any:
        y = pb.zeros(3, dtype="float64")
        y[1] = v * v
        y[pb.tensor([2])] = v
        y[y > 100.0] = 0.0
        return pb.sum(y * pb.asarray([1.0, 2.0, 3.0]).astype("float64"))

    assert float(pb.grad(last)(np.asarray(3.0))) == 15.0
    state = pb.State(pb.zeros(3))
    state[1] = 2.0
    assert state.numpy().tolist() == [0.0, 2.0, 0.0]


def test_what_is_refused() -> None:
    x = pb.zeros(4)
    with pytest.raises(UnsupportedError, match=r"\.at\[index\]"):
        pb.jit(lambda x: x.__setitem__(0, 1.0))(x)
    with pytest.raises(GradientError, match="E346"):
        pb.tensor([1.0], requires_grad=True)[0] = 2.0
    with pytest.raises(DTypeError, match="E190"):
        pb.zeros(4, dtype="int32")[0] = 2.5
    with pytest.raises(DTypeError, match="E190"):
        pb.zeros(4, dtype="int32").at[0].divide(2)
    with pytest.raises(ShapeError, match=r"\(3,\) and \(2,\)"):
        x.at[:2].set(pb.ones(3))
    with pytest.raises(IndexRangeError, match="index 4"):
        x[4] = 1.0
    with pytest.raises(IndexRangeError):
        x[pb.tensor([9])] = 1.0
        x.numpy()


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "int8", "bool"])
def test_other_types(kind: str) -> None:
    x = pb.zeros((3, 2), dtype=kind)
    x[1] = True
    assert x.astype("int32").tolist() == [[0, 0], [1, 1], [0, 0]]
    y = x.at[pb.tensor([0, 0, 2])].set(pb.ones((3, 2), dtype="bool"))
    assert y.dtype == x.dtype and y.astype("int32").tolist() == [[1, 1]] * 3


def test_functions_of_array_api_extra() -> None:
    extra = pytest.importorskip("array_api_extra", reason="array-api-extra is not installed")
    x = pb.asarray(drawn(5))
    assert extra.at(x)[1].set(7.0, copy=True).tolist()[1] == 7.0 and x.tolist()[1] != 7.0
    assert (
        extra.at(x, x > 1.0).multiply(0.0, copy=True).tolist()
        == np.where(x.numpy() > 1, 0, x.numpy()).tolist()
    )
    np.testing.assert_allclose(extra.cov(pb.asarray(drawn(3, 9))).numpy(), np.cov(drawn(3, 9)))
    assert extra.atleast_nd(x, ndim=2).shape == (1, 5) and extra.nunique(x).shape == ()
