"""Arguments of wrong Python types: an error with a code, at the user's line, never Python's own."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.errors import DTypeError, IndexRangeError, PullbackError, ShapeError
from pullback.nn.spatial.pooling import Share
from wrong_kinds import WRONG, calls, functions, raw_error

X = pb.tensor([1.0, 2.0, 3.0])
BINARY = [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod,
    operator.pow, operator.and_, operator.or_, operator.xor, operator.lshift, operator.rshift,
    operator.lt, operator.le, operator.gt, operator.ge,
]  # fmt: skip
HERE = __file__.rpartition("/")[2]


def test_no_public_function_lets_an_error_of_pythons_out() -> None:
    """One wrong value for each parameter, another one at every turn."""
    raw: list[str] = []
    turn = 0
    for name, function in functions():
        listed = list(calls(name, function))
        for start in range(0, len(listed), len(WRONG)):
            label, call = listed[start + turn % len(WRONG)]
            turn += 7
            if found := raw_error(call):
                raw.append(f"{label}: {found}")
    assert turn > 7 * 900
    assert not raw, "\n".join(raw)


@pytest.mark.parametrize("strange", [None, [1, 2], (1,), {}, {1}, object(), "text", b"x", 1j])
@pytest.mark.parametrize("operation", BINARY)
def test_operators_of_tensors_and_scalars(operation: Callable[..., Any], strange: Any) -> None:
    def coded(left: Any, right: Any) -> None:
        with pytest.raises(PullbackError) as caught:
            operation(left, right)
        assert HERE in str(caught.value)

    if not isinstance(strange, complex):  # beside which a tensor is complex
        coded(X, strange)
        coded(strange if not isinstance(strange, str | bytes) else None, X)
    k = pb.axis(3, "k")
    coded(k, strange)
    coded(strange if not isinstance(strange, str | bytes) else None, k)
    coded(pb.dim("n", 1, 5), strange)


def test_what_operators_leave_to_the_other_class() -> None:
    class Own:
        def __radd__(self, other: Any) -> str:
            return "mine"

        def __gt__(self, other: Any) -> str:
            return "more"

    assert X + Own() == "mine"
    assert operator.lt(X, Own()) == "more"
    assert (X == None) is False  # noqa: E711  # what Python says
    assert (X != "text") is True
    assert [1, 2] * pb.tensor(2) == [1, 2, 1, 2]
    with pytest.raises(DTypeError, match="subtract of a Tensor and a Own") as caught:
        X - Own()
    assert caught.value.code == "E143"


def test_numbers_of_numpy_in_definitions_have_their_type() -> None:
    for one in (np.float32(1.5), np.float64(1.1), np.int64(3), np.float16(0.5)):
        for combined in (
            pb.compute((3,), lambda i, one=one: X[i] * one),
            pb.compute((3,), lambda i, one=one: one * X[i]),
        ):
            assert combined.dtype == (X * one).dtype
            np.testing.assert_array_equal(combined.numpy(), (X * one).numpy())
    with pytest.raises(DTypeError, match="multiply of a scalar expression and a NumPy array"):
        pb.compute((3,), lambda i: X[i] * np.ones(3))


def test_extents_are_no_numbers_and_have_no_size_outside_of_programs() -> None:
    n = pb.dim("n", 1, 8)
    for call in (lambda: n < 3, lambda: n & 1, lambda: float(n), lambda: range(n)):
        with pytest.raises(ShapeError) as caught:
            call()
        assert caught.value.code == "E120"
    for made in (
        lambda: pb.zeros((n, 2)),
        lambda: pb.arange(n),
        lambda: pb.compute((3,), lambda i: X[i] * n),
        lambda: pb.sum(pb.ones((2, n))),
        lambda: X * (n + 1),
        lambda: n / X,
    ):
        with pytest.raises(ShapeError) as caught:
            made().numpy()
        assert caught.value.code == "E129"
    for shape in ((n + 1,), (2 * n,)):
        with pytest.raises(ShapeError) as caught:
            pb.zeros(shape)
        assert caught.value.code == "E119"
    for foreign in (np.ones(3), [0], "0"):
        with pytest.raises(DTypeError) as wrong:
            n * foreign
        assert wrong.value.code == "E143"
    ramp = pb.jit(lambda x: pb.compute(x.shape, lambda i: n * x[i]), shapes=[(n,)])
    assert ramp(X).tolist() == [3.0, 6.0, 9.0]


def test_an_argument_is_named_at_the_users_line() -> None:
    with pytest.raises(DTypeError) as caught:
        pb.cov(X, fweights={})
    assert caught.value.code == "E361"
    assert "fweights of cov is a value of type dict" in str(caught.value)
    assert HERE in str(caught.value)
    with pytest.raises(DTypeError, match="sum: missing a required argument"):
        pb.sum()


def test_an_error_of_the_users_own_stays_what_it_is() -> None:
    def body(carry: Any, x: Any) -> Any:
        return len(3), x

    for start in (X[0], {"a tree": X[0]}):  # which elsewhere would be no argument
        with pytest.raises(TypeError, match="has no len") as caught:
            pb.scan(body, start, X)
        assert not isinstance(caught.value, PullbackError)
    with pytest.raises(ZeroDivisionError):
        pb.compute((3,), lambda i: X[i] * (1 // 0))


def test_dir_shows_what_is_public() -> None:
    shown = {n for n in dir(X) if not n.startswith("__")}
    assert {"T", "sum", "at", "numpy", "shape", "requires_grad"} <= shown
    internal = {"value", "waits", "holding", "outside", "remembers", "rebind"}
    assert not internal & shown and not any(n.startswith("_") for n in shown)
    assert "assign" in dir(pb.State(X)) and not internal & set(dir(pb.State(X)))
    assert [n for n in dir(pb.axis(3)) if n[0] != "_"] == ["astype", "dtype"]
    assert {"__add__", "__array__"} <= set(dir(X))


def test_the_longest_part_of_an_axis() -> None:
    """By its formula, as by looking at each: also of more parts than anyone can look at."""
    for extent in range(24):
        for parts in range(1, 40):
            each = [-(-(y + 1) * extent // parts) - y * extent // parts for y in range(parts)]
            assert Share(extent, parts).size == max(each), (extent, parts)
    with pytest.raises(PullbackError):
        pb.nn.functional.adaptive_avg_pool1d(pb.ones((2, 3, 4)), 10**400)


@pytest.mark.parametrize("n", [0, 1, 4, 5, 9, 10**400])
def test_differences_of_differences_end(n: int) -> None:
    x = np.arange(10.0).reshape(2, 5) ** 2
    np.testing.assert_array_equal(pb.diff(pb.tensor(x), n=n).numpy(), np.diff(x, n=min(n, 9)))


@pytest.mark.parametrize("places", ["full", "arange", "more"])
def test_a_formula_as_an_index_is_checked(places: str) -> None:
    """Written into the reader it would be an index that no run looks at."""
    table = pb.tensor(np.arange(6.0).reshape(2, 3))
    given = {"full": pb.full((4,), 7), "arange": pb.arange(4), "more": pb.arange(3) - 2}[places]
    with pytest.raises(IndexRangeError, match="out of range"):
        np.asarray(pb.nn.functional.embedding(given, table))
    with pytest.raises(IndexRangeError, match="out of range"):
        np.asarray(pb.compute(given.shape, lambda i: table[given[i], 0]))
    inside = pb.nn.functional.embedding(pb.arange(4) % 2, table)
    assert np.array_equal(np.asarray(inside), np.asarray(table)[[0, 1, 0, 1]])


def test_gammas_of_what_is_no_number_end() -> None:
    """Their neighbours are as they are."""
    given = np.array([1e300, np.inf, 1.0])
    drawn = np.asarray(pb.random.gamma(given, dtype="float64"))
    assert np.isclose(drawn[0], 1e300, rtol=1e-6)
    assert np.isnan(drawn[1])
    assert 0 < drawn[2] < 50
