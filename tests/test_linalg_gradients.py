"""Derivatives of linear algebra, first and second, on values and in programs, loops, batches."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import pullback as pb
from linalg_support import definite, derivatives, drawn, well
from pullback.errors import SingularError

L = pb.linalg


def free(w: Any, v: Any) -> Any:
    """Eigenvectors but for their signs."""
    return w, v * v


def unturned(a: Any) -> Any:
    """What depends on eigenvectors, but not on their phases."""
    values, vectors = L.eig(a)
    return pb.abs(vectors) ** 3 * pb.exp(values).real, pb.matmul(
        vectors.mT.conj(), vectors
    ).square()


CASES: dict[str, tuple[Any, list[Any]]] = {
    "cholesky": (L.cholesky, [definite(2, 4, 4)]),
    "solve_triangular": (
        lambda a, b: L.solve_triangular(a, b, upper=True, left=False, unitriangular=True),
        [well(4, 4), drawn(2, 3, 4)],
    ),
    "solve": (L.solve, [well(2, 4, 4), drawn(4, 3)]),
    "inv": (L.inv, [well(2, 4, 4)]),
    "det": (L.det, [well(2, 4, 4)]),
    "slogdet": (lambda a: L.slogdet(a)[1], [well(2, 4, 4)]),
    "lu": (lambda a: L.lu(a)[1:], [well(4, 4)]),
    "qr": (lambda a: tuple(L.qr(a)), [drawn(2, 5, 3)]),
    "qr, more columns": (lambda a: tuple(L.qr(a)), [drawn(3, 5)]),
    "eigh": (lambda a: free(*L.eigh(a)), [definite(2, 4, 4)]),
    "svd": (lambda a: (lambda u, s, v: (u * u, s, v * v))(*L.svd(a, full_matrices=False)),
            [drawn(5, 3)]),
    "svd, more columns": (
        lambda a: (lambda u, s, v: (u * u, s, v * v))(*L.svd(a, full_matrices=False)),
        [drawn(3, 4)],
    ),
    "svd in full": (lambda a: L.svd(a).S, [drawn(3, 4)]),
    "eigvals": (lambda a: (L.eigvals(a).square(), pb.exp(L.eigvals(a)).real), [drawn(2, 4, 4)]),
    "eig": (unturned, [drawn(4, 4)]),
    "pinv": (L.pinv, [drawn(2, 5, 3)]),
    "pinv of rank 2": (lambda a, b: L.pinv(a @ b, rtol=1e-8), [drawn(5, 2), drawn(2, 4)]),
    "lstsq": (lambda a, b: L.lstsq(a, b)[:2], [drawn(3, 5), drawn(3)]),
    "matrix_exp": (L.matrix_exp, [drawn(2, 3, 3)]),
    "matrix_power": (lambda a: L.matrix_power(a, -3), [well(3, 3)]),
    "norm": (lambda a: (L.vector_norm(a, 3, 0), L.norm(a, "nuc"), L.norm(a, 1)), [well(3, 4)]),
}  # fmt: skip


# Of values, by LAPACK, by default one for each factorisation that others are made of.
FACTORS = ("cholesky", "solve", "det", "qr", "eigh", "svd", "matrix_exp")


def slow(names: Iterable[str], kept: Container[str]) -> list[Any]:
    """All names; those that are not kept are left to the gate."""
    return [n if n in kept else pytest.param(n, marks=pytest.mark.slow) for n in names]


@pytest.mark.sampled(21)
@pytest.mark.parametrize("name", CASES)
def test_derivatives(name: str) -> None:
    function, given = CASES[name]
    derivatives(function, given, compiled=True, second=True)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", slow(CASES, FACTORS))
def test_derivatives_of_values(name: str) -> None:
    function, given = CASES[name]
    derivatives(function, given, compiled=False, second=name in ("cholesky", "eigh"))


WRITTEN_OUT: dict[str, tuple[Any, list[Any]]] = {
    "solve": (L.solve, [well(3, 3), drawn(3, 2)]),
    "cholesky": (L.cholesky, [definite(3, 3)]),
    "lu": (lambda a: L.lu(a)[1:], [well(3, 3)]),
    "eigvalsh": (L.eigvalsh, [definite(3, 3)]),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", slow(WRITTEN_OUT, ("solve", "cholesky")))
def test_loops_written_out_are_checked(name: str) -> None:
    """Without any derivative by hand: those of the loops themselves are right too."""
    function, given = WRITTEN_OUT[name]
    assert pb.check_grads(function, given, layouts=("contiguous",))


@pytest.mark.parametrize("rank", [1, 2, 3, 4])
def test_determinants_of_singular_matrices(rank: int) -> None:
    a = drawn(4, rank) @ drawn(rank, 4)
    wanted = np.array([[(-1) ** (i + j) * np.linalg.det(np.delete(np.delete(a, i, 0), j, 1))
                        for j in range(4)] for i in range(4)])  # fmt: skip
    for slope in (pb.grad(L.det), pb.jit(pb.grad(L.det))):
        found = slope(pb.tensor(a)).numpy()
        np.testing.assert_allclose(found, wanted, atol=1e-10)
    small = np.outer([1.0, 2.0, 3.0], [1.0, -1.0, 2.0])
    derivatives(L.det, [small], compiled=True)


def test_equal_eigenvalues() -> None:
    same = pb.eye(3, dtype="float64")
    assert np.allclose(pb.grad(lambda a: pb.sum(L.eigvalsh(a)))(same).numpy(), np.eye(3))
    found = pb.grad(lambda a: pb.sum(L.eigh(a).eigenvectors))(same).numpy()
    assert not np.isfinite(found).all()


BODIES: dict[str, Any] = {
    "solve": lambda a, x: pb.tanh(L.solve(a, x)),
    "cholesky": lambda a, x: pb.tanh(L.cholesky(a + pb.sum(x * x) * 0.1) @ x),
    "eigh": lambda a, x: pb.tanh(L.eigvalsh(a + pb.sum(x * x) * 0.1) * x.T).T,
    "matrix_exp": lambda a, x: pb.tanh(L.matrix_exp(a * 0.1) @ x),
}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", BODIES)
def test_in_loops(name: str) -> None:
    body = BODIES[name]

    def repeated(a: Any, x: Any) -> Any:
        return pb.loop(2, lambda i, x: body(a, x), x)

    derivatives(repeated, [definite(3, 3), drawn(3, 2)], compiled=True, second=name == "solve")


@pytest.mark.slow
def test_over_samples() -> None:
    samples = pb.tensor(definite(3, 4, 4))

    def function(a: Any) -> Any:
        inner = pb.sum(pb.sin(L.cholesky(a))) * L.slogdet(a)[1]
        return inner * L.det(a) + pb.sum(L.eigvalsh(a) ** 3) + pb.sum(L.pinv(a[:, :2]))

    slope = pb.grad(function)
    wanted = np.stack([slope(s).numpy() for s in samples])
    np.testing.assert_allclose(pb.jit(pb.vmap(slope))(samples).numpy(), wanted, rtol=1e-9)
    whole = pb.jit(pb.grad(lambda s: pb.sum(pb.vmap(function)(s))))
    np.testing.assert_allclose(whole(samples).numpy(), wanted, rtol=1e-9)


def test_loops_over_samples() -> None:
    samples, x = pb.tensor(definite(3, 3, 3)), pb.tensor(drawn(3, 2))

    def function(a: Any) -> Any:
        return pb.sum(pb.loop(2, lambda i, x: BODIES["solve"](a, x), x))

    wanted = np.stack([pb.grad(function)(s).numpy() for s in samples])
    whole = pb.jit(pb.grad(lambda s: pb.sum(pb.vmap(function)(s))))
    np.testing.assert_allclose(whole(samples).numpy(), wanted, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_jacobians() -> None:
    a, b = pb.tensor(well(4, 4)), pb.tensor(drawn(4, 2))
    for function in (lambda x: L.solve(x, b), L.inv, L.cholesky, lambda x: L.svdvals(x)):
        own = a if function is not L.cholesky else pb.tensor(definite(4, 4))
        eager = pb.jacobian(function)(own).numpy()
        program = pb.jit(lambda x, f=function: pb.jacobian(f)(x))(own).numpy()
        np.testing.assert_allclose(eager, program, rtol=1e-9, atol=1e-12)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("least, scale", [(1e-12, 1.0), (1e-9, 1.7e-8)])
def test_cofactors_near_a_singular_matrix_keep_their_digits(least: float, scale: float) -> None:
    """And those whose determinant is too small for a whole number of digits: 1e-320."""
    left, right = (np.linalg.qr(drawn(40, 40))[0] for _ in range(2))
    values = np.append(np.linspace(0.9, 1.1, 39), least) * scale
    others = np.array([np.delete(values, n).prod() for n in range(40)])
    wanted = np.linalg.det(left) * np.linalg.det(right) * (left * others) @ right
    for slope in (pb.grad(L.det), pb.jit(pb.grad(L.det))):
        cofactors = slope(pb.tensor((left * values) @ right)).numpy()
        error = np.abs(cofactors - wanted).max() / np.abs(wanted).max()
        assert error < 1e-12, f"{error} of {wanted}"


@pytest.mark.parametrize("name", ["solve", "cholesky", "slogdet"])
def test_large_matrices_go_in_blocks(name: str) -> None:
    a, b = pb.tensor(definite(90, 90)), pb.tensor(drawn(90, 2))
    function = {
        "solve": lambda x: pb.sum(L.solve(x, b)),
        "cholesky": lambda x: pb.sum(pb.sin(L.cholesky(x))),
        "slogdet": lambda x: L.slogdet(x)[1],
    }[name]
    alone = replace(pb.Options.from_environment(), host=False)
    eager = pb.grad(function)(a).numpy()
    program = pb.jit(pb.grad(function), options=alone)(a).numpy()
    np.testing.assert_allclose(eager, program, rtol=1e-8, atol=1e-10)


def minors(a: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    n = len(a)
    return np.array([[(-1) ** (i + j) * np.linalg.det(np.delete(np.delete(a, i, 0), j, 1))
                      for j in range(n)] for i in range(n)])  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("method", ["auto", "generated"])
@pytest.mark.parametrize("rank", [5, 4, 3, 2])
def test_second_derivatives_of_determinants_of_singular_matrices(rank: int, method: str) -> None:
    """Against differences of minors, which are polynomials and have no pole there."""
    draw = np.random.default_rng(rank)
    a = draw.normal(size=(5, rank)) @ draw.normal(size=(rank, 5))
    along = draw.normal(size=(5, 5))
    step = 1e-4
    wanted = (minors(a + step * along) - minors(a - step * along)) / (2 * step)

    def slope(x: pb.Tensor) -> pb.Tensor:
        return pb.sum(pb.grad(lambda y: L.det(y, method=method))(x) * pb.tensor(along))

    for second in (pb.grad(slope), pb.jit(pb.grad(slope))):
        np.testing.assert_allclose(second(pb.tensor(a)).numpy(), wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_third_derivatives_of_determinants() -> None:
    draw = np.random.default_rng(0)
    along = pb.tensor(draw.normal(size=(4, 4)))

    def bent(x: pb.Tensor) -> pb.Tensor:
        slope = pb.grad(lambda y: pb.sum(pb.grad(L.det)(y) * along))(x)
        return pb.sum(pb.square(slope))

    for a in (draw.normal(size=(4, 4)), np.eye(4)):
        found = pb.grad(bent)(pb.tensor(a)).numpy()
        np.testing.assert_allclose(pb.jit(pb.grad(bent))(pb.tensor(a)).numpy(), found, rtol=1e-8)
        step = np.zeros((4, 4))
        for i, j in ((0, 0), (1, 2), (3, 1)):
            step[...] = 0.0
            step[i, j] = 1e-5
            ends = [bent(pb.tensor(a + s * step)).item() for s in (1, -1)]
            np.testing.assert_allclose(found[i, j], (ends[0] - ends[1]) / 2e-5, rtol=1e-6)
    singular = draw.normal(size=(4, 3)) @ draw.normal(size=(3, 4))
    with pytest.raises(SingularError, match="third derivative") as caught:
        pb.grad(bent)(pb.tensor(singular)).numpy()
    assert caught.value.code == "E352"


def test_pytorchs_gradients() -> None:
    torch = pytest.importorskip("torch")
    a = definite(5, 5)
    pairs = [
        (lambda x: pb.sum(pb.sin(L.cholesky(x))), lambda x: torch.linalg.cholesky(x).sin().sum()),
        (lambda x: pb.sum(pb.sin(L.matrix_exp(x / 9.0))),
         lambda x: torch.linalg.matrix_exp(x / 9).sin().sum()),
        (lambda x: L.norm(L.pinv(x[:, :3])),
         lambda x: torch.linalg.norm(torch.linalg.pinv(x[:, :3]))),
        (lambda x: pb.sum(L.svdvals(x[:3])), lambda x: torch.linalg.svdvals(x[:3]).sum()),
    ]  # fmt: skip
    for ours, theirs in pairs:
        given = torch.tensor(a, requires_grad=True)
        theirs(given).backward()
        found = pb.grad(ours)(pb.tensor(a)).numpy()
        wanted = given.grad.numpy()
        symmetric = np.allclose(found, found.T)
        wanted = (wanted + wanted.T) / 2 if symmetric else wanted
        np.testing.assert_allclose(found, wanted, rtol=1e-8, atol=1e-10)
