"""`pb.compute`: index expressions against NumPy, guards, and errors at the user's expression."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import pullback as pb
from pullback.errors import (
    DTypeError,
    FreeAxisError,
    IndexRangeError,
    PullbackError,
    ShapeError,
    TruthError,
)
from pullback.ir.graph import Definition, Map, Reduce
from pullback.tensor.record.trace import Handle

RNG = np.random.default_rng(3)
A, B, X = RNG.normal(size=(4, 5)), RNG.normal(size=(5, 3)), RNG.normal(size=6)


@pytest.fixture(autouse=True)
def _reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PULLBACK_BACKEND", "reference")


def close(found: Handle, wanted: object) -> None:
    assert isinstance(found, pb.Tensor)
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-12)


def test_a_product_is_one_reduction() -> None:
    a, b, k = pb.asarray(A), pb.asarray(B), pb.axis(5)
    c = pb.compute((4, 3), lambda i, j: pb.sum(a[i, k] * b[k, j], over=k))
    value = c.value
    assert isinstance(value, Definition) and isinstance(value.form, Reduce)
    assert value.sources == (a.value, b.value)
    close(c, A @ B)
    d = pb.compute((3, 4), lambda j, i: pb.sum(a[i, k] * b[k, j], over=k))
    close(d, (A @ B).T)


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "mean"])
def test_reductions_over_several_axes(name: str) -> None:
    a, k, l = pb.asarray(A), pb.axis(4), pb.axis(5)
    found = pb.compute((), lambda: getattr(pb, name)(a[k, l], over=(k, l)))
    close(found, getattr(np, name)(A))
    swapped = pb.compute((), lambda: getattr(pb, name)(a[k, l], over=(l, k)))
    close(swapped, getattr(np, name)(A))


def test_truth_and_places() -> None:
    a, k, l = pb.asarray(A), pb.axis(5), pb.axis(4)
    found = pb.compute(
        (4,),
        lambda i: (
            pb.any(a[i, k] > 1, over=k),
            pb.all(a[i, k] > -1, over=k),
            pb.argmax(a[i, k], over=k),
            pb.argmin(a[i, k], over=k),
        ),
    )
    wanted = ((A > 1).any(1), (A > -1).all(1), A.argmax(1), A.argmin(1))
    for one, other in zip(found, wanted, strict=True):
        assert (one.numpy() == other).all() and one.numpy().dtype == other.dtype
    flat = pb.compute((), lambda: pb.argmax(a[l, k], over=(l, k)))
    assert flat.item() == A.argmax()


def test_nested_reductions_become_definitions() -> None:
    a, k, l = pb.asarray(A), pb.axis(5), pb.axis(5)
    soft = pb.compute(
        (4, 5),
        lambda i, j: (
            pb.exp(a[i, j] - pb.max(a[i, k], over=k))
            / pb.sum(pb.exp(a[i, k] - pb.max(a[i, l], over=l)), over=k)
        ),
    )
    value = soft.value
    assert isinstance(value, Definition) and isinstance(value.form, Map)
    close(soft, pb.softmax(a).numpy())
    twice = pb.compute((4,), lambda i: pb.sum(a[i, k] * pb.sum(a[i, l], over=l), over=k))
    close(twice, A.sum(1) ** 2)


def test_a_guarded_read_is_never_made() -> None:
    x, n = pb.asarray(X), 6
    y = pb.compute((n,), lambda i: pb.where((i > 0) & (i < n - 1), x[i - 1] + x[i + 1], 0.0))
    wanted = np.zeros(6)
    wanted[1:-1] = X[:-2] + X[2:]
    close(y, wanted)
    close(pb.grad(y.sum(), x), [1, 1, 2, 2, 1, 1])


def test_a_guard_holds_for_reductions_inside_it() -> None:
    a, k = pb.asarray(A), pb.axis(5)
    y = pb.compute((4,), lambda i: pb.where(i > 0, pb.sum(a[i - 1, k], over=k), -1.0))
    close(y, [-1, *A.sum(1)[:-1]])
    z = pb.compute(
        (4, 5),
        lambda i, j: pb.where(
            j > 0, pb.where(i < 3, pb.sum(a[i + 1, k] * a[i, j - 1], over=k), 5.0), 7.0
        ),
    )
    wanted = np.full((4, 5), 5.0)
    wanted[:3, 1:] = A.sum(1)[1:, None] * A[:3, :-1]
    wanted[:, 0] = 7
    close(z, wanted)


def test_a_convolution() -> None:
    x, w, k = pb.asarray(X), pb.asarray(np.array([1.0, 2.0, 4.0])), pb.axis(3)
    found = pb.compute((4,), lambda i: pb.sum(x[i + k] * w[k], over=k))
    close(found, np.correlate(X, [1.0, 2.0, 4.0]))
    padded = pb.compute(
        (6,),
        lambda i: pb.sum(pb.where((i + k >= 1) & (i + k < 7), x[i + k - 1] * w[k], 0.0), over=k),
    )
    close(padded, np.correlate(X, [1.0, 2.0, 4.0], "same"))


def test_an_index_may_be_data() -> None:
    table, tokens = pb.asarray(A), pb.tensor([3, 0, 0])
    e = pb.compute((3, 5), lambda i, j: table[tokens[i], j])
    close(e, A[[3, 0, 0]])
    bad = pb.tensor([0, 4])
    with pytest.raises(IndexRangeError, match=r"index 4 .*axis 0"):
        pb.compute((2, 5), lambda i, j: table[bad[i], j]).numpy()
    less = pb.tensor([0, -1])
    with pytest.raises(IndexRangeError, match=r"index -1 .*axis 0"):
        pb.compute((2, 5), lambda i, j: table[less[i], j]).numpy()


def test_scalars_promote_as_tensors_do() -> None:
    x = pb.zeros(3)
    body = pb.compute((3,), lambda i: x[i] * 2.5 + i)
    assert body.dtype == pb.float32
    assert pb.compute((3,), lambda i: i).dtype == pb.int64
    assert pb.compute((3,), lambda i: i * 0.5).dtype == pb.float32
    assert pb.compute((3,), lambda i: 1).tolist() == [1, 1, 1]
    assert pb.compute((3,), lambda i: (i % 2 == 0) | (i > 1)).tolist() == [True, False, True]
    assert pb.compute((3,), lambda i: pb.clip(i, 1, 1)).tolist() == [1, 1, 1]
    assert pb.compute((3,), lambda i: pb.astype(i, "float64") ** 2).tolist() == [0, 1, 4]
    zero_d = pb.tensor(2.0)
    assert pb.compute((2,), lambda i: zero_d * i + zero_d).tolist() == [2, 4]
    assert pb.compute((2,), lambda *axes: axes[0] + 1).tolist() == [1, 2]


def test_symbolic_extents() -> None:
    n = pb.dim("n", 1, 8)
    x = pb.zeros((n, 3))
    k = pb.axis(n)
    y = pb.compute((3,), lambda j: pb.sum(x[k, j], over=k))
    z = pb.compute((n,), lambda i: pb.where(i > 0, x[i - 1, 0], 1.0))
    assert y.shape == (3,) and z.shape == (n,)


def _refused(kind: type[PullbackError], carets: str, make: Callable[[], object]) -> str:
    with pytest.raises(kind) as caught:
        make()
    text = str(caught.value)
    assert carets in text, text
    assert "^" in text
    return text


def test_errors_stand_at_the_users_expression() -> None:
    a, k = pb.asarray(A), pb.axis(5, "k")
    free = _refused(FreeAxisError, "a[i, k]", lambda: pb.compute((4,), lambda i: a[i, k] * 2))
    assert "k is bound by nothing" in free
    _refused(ShapeError, "a[i]", lambda: pb.compute((4,), lambda i: a[i]))
    _refused(ShapeError, "a[i, i, i]", lambda: pb.compute((4,), lambda i: a[i, i, i]))
    _refused(ShapeError, "a[i, :]", lambda: pb.compute((4,), lambda i: a[i, :]))
    _refused(DTypeError, "a[i, a[i, i]]", lambda: pb.compute((4,), lambda i: a[i, a[i, i]]))
    _refused(ShapeError, "pb.compute((4,)", lambda: pb.compute((4,), lambda i, j: a[i, j]))
    _refused(ShapeError, "i * a", lambda: pb.compute((4,), lambda i: i * a))
    outside = _refused(
        IndexRangeError, "a[i + 1, 0]", lambda: pb.compute((4,), lambda i: a[i + 1, 0])
    )
    assert "from 1 to 4" in outside and "pb.where" in outside
    _refused(
        IndexRangeError,
        "a[i, k - 1]",
        lambda: pb.compute((4,), lambda i: pb.sum(a[i, k - 1], over=k)),
    )
    _refused(
        DTypeError,
        "pb.sum(a[i, 0], over=3)",
        lambda: pb.compute((4,), lambda i: pb.sum(a[i, 0], over=3)),
    )
    _refused(DTypeError, "pb.sum(a[i, 0])", lambda: pb.compute((4,), lambda i: pb.sum(a[i, 0])))


def test_a_scalar_has_no_truth() -> None:
    x = pb.asarray(X)
    text = _refused(
        TruthError,
        "0 <= i < 3",
        lambda: pb.compute((6,), lambda i: pb.where(0 <= i < 3, x[i], 0.0)),
    )
    assert "(0 <= i) & (i < n)" in text
    with pytest.raises(TruthError):
        pb.compute((6,), lambda i: x[i] if i > 3 else 0.0)
    with pytest.raises(TruthError):
        pb.compute((6,), lambda i: float(x[i]))


def test_the_issue_example_of_gradients() -> None:
    a, b, k = pb.asarray(A), pb.asarray(B), pb.axis(5)
    c = pb.compute((4, 3), lambda i, j: pb.sum(a[i, k] * b[k, j], over=k))
    ga, gb = pb.grad(c.sum(), [a, b])
    close(ga, np.ones((4, 3)) @ B.T)
    close(gb, A.T @ np.ones((4, 3)))
