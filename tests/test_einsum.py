"""`pb.einsum`: an ellipsis, axes of one, repeated names, names in lists, what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.errors import ShapeError

RNG = np.random.default_rng(3)

EQUATIONS = {
    "...ij,...jk->...ik": [(2, 1, 3, 4), (5, 4, 2)],
    "...ij,...jk": [(2, 3, 4), (4, 2)],
    " ... i i -> ... i ": [(2, 3, 3)],
    "...i->...i": [(4,)],
    "i...,...j->j...i": [(2, 3), (1, 4)],
    "a...b,b...c->...ac": [(2, 3, 4), (4, 1, 2)],
    "...,...": [(2, 1), (3,)],
    "ii": [(3, 3)],
    "ba": [(2, 3)],
    "ij,j->i": [(2, 1), (5,)],
    ",->": [(), ()],
    "...i,...i->...": [(0, 3), (1, 3)],
}


@pytest.mark.parametrize("equation", EQUATIONS)
def test_equations(equation: str) -> None:
    given = [RNG.normal(size=s) for s in EQUATIONS[equation]]
    wanted = np.einsum(equation, *given)
    found = pb.einsum(equation, *map(pb.tensor, given)).numpy()
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=1e-13, atol=1e-13)
    if wanted.size:
        assert pb.check_grads(lambda *t: pb.einsum(equation, *t), given, layouts=("contiguous",))


def test_an_ellipsis_that_the_result_leaves_out_is_summed() -> None:
    a, b = RNG.normal(size=(2, 3, 4)), RNG.normal(size=(2, 5))
    wanted = np.einsum("nik,nj->ij", a, b)
    np.testing.assert_allclose(pb.einsum("...ik,...j->ij", a, b).numpy(), wanted, rtol=1e-13)


def test_names_in_lists() -> None:
    a, b = RNG.normal(size=(2, 3)), RNG.normal(size=(3, 4))
    found = pb.einsum(pb.tensor(a), [0, 1], pb.tensor(b), [1, 2], [2, 0])
    np.testing.assert_allclose(found.numpy(), (a @ b).T, rtol=1e-13)
    found = pb.einsum(pb.tensor(a), [..., 1], pb.tensor(b), [1, 2])
    np.testing.assert_allclose(found.numpy(), a @ b, rtol=1e-13)


WRONG: list[Any] = [
    "..ij->ij", "ij->k", "ij->ii", "i1->i", "ij->i->j", "...i...->i", "ijk->i", "ij->...ij",
    "ij,jk->ik", "", "...ijk->i",
]  # fmt: skip


@pytest.mark.parametrize("equation", WRONG)
def test_what_is_no_equation(equation: str) -> None:
    with pytest.raises(ShapeError, match="E116"):
        pb.einsum(equation, pb.ones((2, 3)))


def test_sizes_that_differ() -> None:
    with pytest.raises(ShapeError, match="of an ellipsis is 2 and 3"):
        pb.einsum("...i,...i->...", pb.ones((2, 4)), pb.ones((3, 4)))
    with pytest.raises(ShapeError, match="without subscripts"):
        pb.einsum(pb.ones((2, 3)))
