"""Functional updates beside PyTorch; derivatives checked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.errors import PullbackError

Array = np.ndarray[Any, Any]
torch = pytest.importorskip("torch")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(5, 6))
VALUES = RNG.normal(size=(4, 5))
ROWS = np.array([[0, 4, 0, 1, 2], [0, 1, 0, 1, 3], [2, 2, 0, 1, 3]])  # smaller than X beside
SOME = np.array([3, 0, 3])
MASK = RNG.random((5, 6)) < 0.4
Case = tuple[Callable[..., Any], Callable[..., Any], Sequence[Array]]


def over(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of PyTorch over arrays."""
    return lambda *arrays: function(*map(torch.tensor, arrays)).numpy()


CASES: dict[str, Case] = {
    "gather": (
        lambda x, i: pb.gather(x, i, axis=0), over(lambda x, i: x.gather(0, i)), [X, ROWS]
    ),
    "gather along the last": (
        lambda x, i: pb.gather(x, i, axis=1), over(lambda x, i: x.gather(1, i)), [X, ROWS]
    ),
    "scatter": (
        lambda x, i, v: pb.scatter(x, i, v, axis=1),
        over(lambda x, i, v: x.scatter(1, i, v)), [X, np.argsort(VALUES[:3], 1), VALUES],
    ),
    "scatter of a number": (
        lambda x, i: pb.scatter(x, i, 2.5), over(lambda x, i: x.scatter(0, i, 2.5)), [X, ROWS]
    ),
    "scatter_add": (
        lambda x, i, v: pb.scatter_add(x, i, v, axis=1),
        over(lambda x, i, v: x.scatter_add(1, i, v)), [X, ROWS, VALUES],
    ),
    **{
        f"scatter_reduce {reduce}{'' if own else ' alone'}": (
            lambda x, i, v, r=reduce, o=own: pb.scatter_reduce(x, i, v, r, axis=0, include_self=o),
            over(
                lambda x, i, v, r=reduce, o=own: x.scatter_reduce(0, i, v, r, include_self=o)
            ),
            [X, ROWS, VALUES],
        )
        for reduce in ("sum", "prod", "mean", "amax", "amin")
        for own in (True, False)
    },
    "index_add": (
        lambda x, i, v: pb.index_add(x, i, v, axis=1, alpha=0.5),
        over(lambda x, i, v: x.index_add(1, i, v, alpha=0.5)), [X, SOME, X[:, :3] * 2],
    ),
    "index_copy": (
        lambda x, i, v: pb.index_copy(x, i, v), over(lambda x, i, v: x.index_copy(0, i, v)),
        [X, SOME[1:], X[2:4]],
    ),
    "index_fill": (
        lambda x, i: pb.index_fill(x, i, 3.0, axis=1),
        over(lambda x, i: x.index_fill(1, i, 3.0)), [X, SOME],
    ),
    **{
        f"index_reduce {reduce} {own}": (
            lambda x, i, v, r=reduce, o=own: pb.index_reduce(x, i, v, r, include_self=o),
            over(
                lambda x, i, v, r=reduce, o=own: x.index_reduce(0, i, v, r, include_self=o)
            ),
            [X, SOME, X[:3] * 2],
        )
        for reduce, own in (("prod", True), ("mean", False), ("amax", False))
    },
    "index_put": (
        lambda x, i, v: pb.index_put(x, (None, i), v, accumulate=True),
        over(lambda x, i, v: x.clone().index_add_(1, i, v)), [X, SOME, X[:, :3]],
    ),
    "index_put to pairs": (
        lambda x, i, v: pb.index_put(x, (i, i), v),
        over(lambda x, i, v: x.index_put((i, i), v)), [X, SOME[:2], X[0, :2]],
    ),
    "put": (
        lambda x, i, v: pb.put(x, i, v, accumulate=True),
        over(lambda x, i, v: x.put(i, v, accumulate=True)), [X, np.array([7, 29, 7]), X[0, :3]],
    ),
    "masked_fill": (
        lambda x, m: pb.masked_fill(x, m, -2.0),
        over(lambda x, m: x.masked_fill(m, -2.0)), [X, MASK[0]],
    ),
    "masked_fill by data": (
        lambda x, m, v: pb.masked_fill(x, m, v),
        over(lambda x, m, v: x.masked_fill(m, v)), [X, MASK, np.array(0.5)],
    ),
    "masked_scatter": (
        pb.masked_scatter, over(lambda x, m, s: x.masked_scatter(m, s)), [X, MASK, X[::-1] * 3]
    ),
    "select_scatter": (
        lambda x, v: pb.select_scatter(x, v, 1, -2),
        over(lambda x, v: x.select_scatter(v, 1, -2)), [X, X[:, 0] * 2],
    ),
    "slice_scatter": (
        lambda x, v: pb.slice_scatter(x, v, 1, 1, 6, 2),
        over(lambda x, v: x.slice_scatter(v, 1, 1, 6, 2)), [X, X[:, :3] * 2],
    ),
    "diagonal_scatter": (
        lambda x, v: pb.diagonal_scatter(x, v, offset=-1),
        over(lambda x, v: x.diagonal_scatter(v, -1)), [X, X[0, :4] * 2],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:index_reduce")
def test_values(name: str) -> None:
    own, theirs, arrays = CASES[name]
    found = own(*map(pb.tensor, arrays))
    wanted = theirs(*(a.copy() for a in arrays))
    assert tuple(found.shape) == wanted.shape
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("name", [n for n in CASES if "prod" not in n])
def test_derivatives(name: str) -> None:
    own, _, arrays = CASES[name]
    arrays = [np.array(a, order="C") for a in arrays]
    assert (report := pb.check_grads(own, arrays, layouts=("contiguous",))), report


@pytest.mark.parametrize("alone", [False, True])
def test_derivatives_of_products(alone: bool) -> None:
    values = VALUES[:3].copy()
    values[0, 0] = values[1, 2] = values[0, 2] = 0.0
    given = [torch.tensor(a, requires_grad=True) for a in (X, values)]
    heads = RNG.normal(size=X.shape)
    wanted = given[0].scatter_reduce(
        0, torch.tensor(ROWS), given[1], "prod", include_self=not alone
    )
    theirs = torch.autograd.grad((wanted * torch.tensor(heads)).sum(), given)
    x, v = pb.tensor(X), pb.tensor(values)
    found = pb.scatter_reduce(x, pb.tensor(ROWS), v, "prod", include_self=not alone)
    own = pb.grad(pb.sum(found * pb.tensor(heads)), [x, v])
    for a, b in zip(own, theirs, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-13, atol=1e-13)


def test_integers_and_truths() -> None:
    x = np.array([4, 0, 7, 1])
    places, values = np.array([0, 0, 2]), np.array([5, 6, 1])
    for reduce in ("sum", "prod", "mean", "amax", "amin"):
        found = pb.scatter_reduce(pb.tensor(x), pb.tensor(places), pb.tensor(values), reduce)
        wanted = torch.tensor(x).scatter_reduce(
            0, torch.tensor(places), torch.tensor(values), reduce
        )
        np.testing.assert_array_equal(found.numpy(), wanted.numpy())
    truths = pb.tensor([False, True, True, False])
    new = pb.tensor([False, True, False])
    at = pb.tensor(places)
    assert pb.scatter_reduce(truths, at, new, "any").tolist() == [True, True, True, False]
    alone = pb.scatter_reduce(truths, at, new, "any", include_self=False)
    assert alone.tolist() == [True, True, False, False]
    assert pb.scatter_reduce(truths, at, new, "min").tolist() == [False, True, False, False]


def test_the_last_value_stays() -> None:
    found = pb.scatter(pb.zeros(3), pb.tensor([1, 1, -1]), pb.tensor([5.0, 6.0, 7.0]))
    assert found.tolist() == [0.0, 6.0, 7.0]


def test_nothing_is_written() -> None:
    none = pb.zeros((0, 6), dtype="int64")
    for reduce in ("set", "sum", "mean", "amax"):
        found = pb.scatter(pb.tensor(X), none, pb.zeros((0, 6)), reduce=reduce)
        np.testing.assert_array_equal(found.numpy(), X)


def test_half_types_keep_their_type() -> None:
    x = pb.tensor(X, dtype="bfloat16")
    found = pb.masked_fill(x, pb.tensor(MASK), 1e30)
    assert found.dtype == pb.bfloat16


T, I = pb.tensor(X), pb.tensor(ROWS)
WRONG: dict[str, tuple[str, Callable[[], Any]]] = {
    "gather": ("E175", lambda: pb.gather(T, pb.zeros((6, 7), dtype="int64"), axis=0)),
    "gather of rank": ("E175", lambda: pb.gather(T, pb.tensor([0]), axis=0)),
    "gather by floats": ("E177", lambda: pb.gather(T, T, axis=0)),
    "gather outside": ("E106", lambda: pb.gather(T, I * 9, axis=0).numpy()),
    "scatter": ("E110", lambda: pb.scatter(T, I, pb.ones((2, 5)))),
    "scatter by": ("E124", lambda: pb.scatter(T, I, 1.0, reduce="median")),
    "scatter of floats": ("E190", lambda: pb.scatter(I, I, 1.5)),
    "index_add": ("E175", lambda: pb.index_add(T, pb.tensor([0, 1]), T)),
    "index_add of rows": ("E175", lambda: pb.index_add(T, I, T)),
    "masked_fill": ("E177", lambda: pb.masked_fill(T, T, 1.0)),
    "masked_scatter": ("E142", lambda: pb.masked_scatter(T, T > 0, I)),
    "masked_scatter of few": (
        "E106", lambda: pb.masked_scatter(T, pb.ones((5, 6), dtype="bool"), T[0]).numpy()
    ),
    "select_scatter": ("E175", lambda: pb.select_scatter(T, T, 0, 1)),
    "select_scatter outside": ("E155", lambda: pb.select_scatter(T, T[0], 0, 5)),
    "slice_scatter": ("E110", lambda: pb.slice_scatter(T, T, 0, 1, 3)),
    "diagonal_scatter": ("E110", lambda: pb.diagonal_scatter(T, T[0])),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_refused_by_code(name: str) -> None:
    code, call = WRONG[name]
    with pytest.raises(PullbackError) as caught:
        call()
    assert caught.value.code == code
