"""`pb.linalg` beside NumPy: on values, in programs, generated; shapes, types, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import pullback as pb
from linalg_support import definite, drawn, well
from pullback.errors import PullbackError, SingularError, UnsupportedError

L = pb.linalg
SIZES = (1, 5, 70)
ALONE = replace(pb.Options.from_environment(), host=False)


def turned(a: Any) -> Any:
    return np.swapaxes(a, -1, -2)


def ways(function: Callable[..., Any], *given: Any) -> list[Any]:
    """On values, as a program, and as one that calls no host."""
    inputs = [pb.tensor(x) for x in given]
    alone = pb.jit(function, options=ALONE)
    found = [function(*inputs), pb.jit(function)(*inputs), alone(*inputs)]
    return [tuple(p.numpy() for p in f) if isinstance(f, tuple) else f.numpy() for f in found]


def near(found: Any, wanted: Any, limit: float = 1e-12) -> None:
    assert np.shape(found) == np.shape(wanted)
    scale = max(1.0, float(np.abs(wanted).max(initial=0.0)))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=limit * scale)


# --- values --------------------------------------------------------------------------------------


@pytest.mark.sampled(3)
@pytest.mark.parametrize("n", SIZES)
def test_square_matrices(n: int) -> None:
    a, s, b = well(2, n, n), definite(n, n), drawn(2, n, 3)
    for found in ways(L.cholesky, s):
        near(found, np.linalg.cholesky(s))
    for found in ways(L.solve, a, b):
        near(a @ found, b, 1e-11)
    for found in ways(L.solve, s, b[0, :, 0]):
        near(s @ found, b[0, :, 0], 1e-11)
    for found in ways(L.inv, a):
        near(a @ found, np.broadcast_to(np.eye(n), a.shape), 1e-11)
    for found in ways(L.slogdet, a):
        near(found[0], np.linalg.slogdet(a)[0])
        near(found[1], np.linalg.slogdet(a)[1], 1e-11)
    for found in ways(L.det, a):
        np.testing.assert_allclose(found, np.linalg.det(a), rtol=1e-11)
    p, lower, upper = ways(L.lu, a)[1]
    near(p @ lower @ upper, a)
    assert np.array_equal(upper, np.triu(upper)) and np.abs(lower).max() <= 1.0


@pytest.mark.sampled(4)
@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("upper", [True, False])
@pytest.mark.parametrize("left", [True, False])
def test_triangular_systems(n: int, upper: bool, left: bool) -> None:
    a, b = drawn(n, n) / n + 2 * np.eye(n), drawn(2, n, n)
    side = np.triu(a) if upper else np.tril(a)
    unit = side - np.diag(np.diag(side)) + np.eye(n)
    for one, whole in ((False, side), (True, unit)):
        found = L.solve_triangular(a, b, upper=upper, left=left, unitriangular=one).numpy()
        near(whole @ found if left else found @ whole, b, 1e-11)


@pytest.mark.sampled(18)
@pytest.mark.parametrize("shape", [(1, 1), (5, 3), (3, 5), (6, 6), (2, 9, 9), (40, 33)])
@pytest.mark.parametrize("kind", ["drawn", "of rank 1", "zero"])
def test_orthogonal_factors(shape: tuple[int, ...], kind: str) -> None:
    a = drawn(*shape)
    a = a if kind == "drawn" else a[..., :1] * a[..., :1, :] if kind == "of rank 1" else a * 0
    m, n = shape[-2:]
    for q, r in ways(L.qr, a):
        near(q @ r, a)
        near(turned(q) @ q, np.broadcast_to(np.eye(min(m, n)), (*shape[:-2], min(m, n), min(m, n))))
        if kind == "drawn":
            near(q, np.linalg.qr(a)[0], 1e-11)
    for full in (True, False):
        wanted = np.linalg.svd(a, compute_uv=False)
        for u, s, v in ways(lambda x, f=full: L.svd(x, full_matrices=f), a):
            k = min(m, n)
            near(s, wanted)
            near((u[..., :k] * s[..., None, :]) @ v[..., :k, :], a)
            near(
                turned(u) @ u,
                np.broadcast_to(np.eye(u.shape[-1]), (*shape[:-2], *[u.shape[-1]] * 2)),
            )
            near(
                v @ turned(v),
                np.broadcast_to(np.eye(v.shape[-2]), (*shape[:-2], *[v.shape[-2]] * 2)),
            )
    for found in ways(L.pinv, a):
        near(found, np.linalg.pinv(a), 1e-10)
    for found in ways(L.matrix_rank, a):
        assert np.array_equal(found, np.linalg.matrix_rank(a))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("n", [1, 2, 5, 16])
@pytest.mark.parametrize("kind", ["drawn", "one", "degenerate", "graded"])
def test_eigenvalues(n: int, kind: str) -> None:
    a = drawn(2, n, n)
    a = a + turned(a)
    if kind == "one":
        a = np.broadcast_to(np.eye(n), a.shape)
    if kind == "degenerate":
        a = a[..., :1] * turned(a[..., :1])
    if kind == "graded":
        a = a * 10.0 ** -np.minimum.outer(np.arange(n), np.arange(n))
    for w, v in ways(L.eigh, a):
        near(w, np.linalg.eigvalsh(a))
        near((v * w[..., None, :]) @ turned(v), a)
        near(turned(v) @ v, np.broadcast_to(np.eye(n), a.shape))


@pytest.mark.parametrize("n", [0, 1, 2, 5, 16])
@pytest.mark.parametrize("kind", ["drawn", "one", "symmetric", "turning", "defective"])
def test_eigenvalues_of_any_matrix(n: int, kind: str) -> None:
    """On values and in a program, which calls LAPACK too; also where all of them are real."""
    a = drawn(2, n, n)
    if kind == "one":
        a = np.broadcast_to(np.eye(n), a.shape).copy()
    if kind == "symmetric":
        a = a + turned(a)
    if kind == "turning":
        a = a - turned(a)
    if kind == "defective":
        a = np.broadcast_to(np.eye(n) + np.eye(n, k=1), a.shape).copy()
    program = pb.jit(lambda x: tuple(L.eig(x)))
    for values, vectors in (L.eig(a), program(a)):
        w, v = values.numpy(), vectors.numpy()
        assert w.dtype == v.dtype == np.complex128
        near(a @ v, v * w[..., None, :], 1e-12)
        near(np.linalg.norm(v, axis=-2), np.ones((2, n)), 1e-12)
        near(w, np.linalg.eig(a)[0])
    assert [call.name for call in program.program.host_calls] == ["eig"]


def test_what_has_no_eigenvalues() -> None:
    with pytest.raises(SingularError, match="infs or NaNs"):
        L.eigvals(np.full((2, 2), np.nan))
    with pytest.raises(UnsupportedError, match=r"nobody to call .* \[E356\]"):
        pb.jit(lambda a: L.eigvals(a).real, options=pb.Options(host=False))(np.eye(3))


def test_float32_and_halves() -> None:
    assert L.eigvals(pb.eye(2)).dtype == pb.complex64
    a = definite(12, 12).astype(np.float32)
    for found in ways(lambda x: tuple(L.eigh(x)), a):
        assert found[0].dtype == np.float32
        near(found[0], np.linalg.eigvalsh(a.astype(float)), 1e-5)
    for kind in ("float16", "bfloat16"):
        half = pb.tensor(well(4, 4)).astype(kind)
        assert L.inv(half).dtype == pb.dtype(kind) and L.svd(half).S.dtype == pb.dtype(kind)
    assert L.inv(pb.tensor(np.eye(2, dtype=int))).dtype == pb.float32


def test_empty_ones() -> None:
    none = np.zeros((3, 0, 0))
    for function in (L.cholesky, L.inv, L.matrix_exp):
        for found in ways(function, none):
            assert found.shape == (3, 0, 0)
    for found in ways(L.det, none):
        near(found, np.ones(3))
    for found in ways(lambda x: tuple(L.eigh(x)), none):
        assert [f.shape for f in found] == [(3, 0), (3, 0, 0)]
    for m, n in ((0, 2), (2, 0)):
        for found in ways(lambda x: tuple(L.svd(x)), np.zeros((m, n))):
            assert [f.shape for f in found] == [(m, m), (0,), (n, n)]
        for found in ways(lambda x: tuple(L.qr(x)), np.zeros((m, n))):
            assert [f.shape for f in found] == [(m, 0), (0, n)]
    for found in ways(L.solve, np.zeros((0, 0)), np.zeros((0, 2))):
        assert found.shape == (0, 2)


def test_memory_of_any_order() -> None:
    whole = definite(6, 6)
    for a in (whole.T, whole[::-1, ::-1], np.asfortranarray(whole), whole[::2, ::2]):
        for found in ways(lambda x: L.solve(x, L.cholesky(x)), a):
            near(a @ found, np.linalg.cholesky(a), 1e-11)


@pytest.mark.slow
def test_ill_conditioned() -> None:
    n = 8
    a = 1.0 / (1.0 + np.add.outer(np.arange(n), np.arange(n)))  # Hilbert's, 1.5e10
    for found in ways(lambda x: tuple(L.svd(x)), a):
        near(found[1], np.linalg.svd(a)[1], 1e-14)
    for found in ways(L.solve, a, a @ np.ones(n)):
        near(found, np.ones(n), 1e-4)
        near(a @ found, a @ np.ones(n), 1e-14)
    for found in ways(L.cond, a):
        np.testing.assert_allclose(found, np.linalg.cond(a), rtol=1e-4)


@pytest.mark.slow
def test_least_squares() -> None:
    for shape in ((7, 3), (3, 7)):
        a, b = drawn(*shape), drawn(shape[0], 2)
        wanted = np.linalg.lstsq(a, b, rcond=None)
        for found in ways(lambda x, y: tuple(L.lstsq(x, y)), a, b):
            near(found[0], wanted[0])
            near(found[1], ((a @ wanted[0] - b) ** 2).sum(0))
            assert found[2] == 3
            near(found[3], wanted[3])


# --- products and norms --------------------------------------------------------------------------


def test_products() -> None:
    a, b, c, v = drawn(4, 6), drawn(6, 2), drawn(2, 5), drawn(5)
    near(L.multi_dot([a, b, c, v]).numpy(), a @ b @ c @ v)
    near(L.multi_dot([a[0], b]).numpy(), a[0] @ b)
    x, y = drawn(2, 1, 3), drawn(4, 3)
    near(L.cross(x, y).numpy(), np.cross(x, y))
    square = well(2, 4, 4)
    for n in (-2, -1, 0, 1, 5):
        near(L.matrix_power(square, n).numpy(), np.linalg.matrix_power(square, n), 1e-11)
    for offset in (-5, -1, 0, 2, 9):
        near(L.diagonal(a, offset=offset).numpy(), np.diagonal(a, offset))
        near(L.trace(a, offset=offset).numpy(), np.trace(a, offset))


def test_exponentials() -> None:
    linalg = pytest.importorskip("scipy.linalg")
    a = drawn(3, 5, 5) * np.array([1e-3, 1.0, 20.0])[:, None, None]
    for found in ways(L.matrix_exp, a):
        for one, wanted in zip(found, linalg.expm(a), strict=True):
            near(one, wanted, 1e-11)
    turn = np.array([[0.0, -np.pi], [np.pi, 0.0]])
    near(L.matrix_exp(turn).numpy(), -np.eye(2), 1e-14)
    near(L.matrix_exp(np.array([[-800.0]])).numpy(), np.exp([[-800.0]]))
    near(L.matrix_exp(np.float32([[30.0, 1.0], [0.0, 30.0]])).numpy(),
         linalg.expm(np.array([[30.0, 1.0], [0.0, 30.0]])), 1e-5)  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("order", [None, 0, 1, 2, 3, 0.5, -1, -2, np.inf, -np.inf])
def test_norms_of_vectors(order: Any) -> None:
    x = drawn(3, 4)
    for axis in (0, -1):
        for keep in (True, False):
            wanted = np.linalg.norm(x, order, axis, keep)
            near(L.norm(x, order, axis, keep).numpy(), wanted)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("order", [None, "fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf])
def test_norms_of_matrices(order: Any) -> None:
    x = drawn(3, 4, 5)
    for axis in ((0, 1), (-1, 0)):
        for keep in (True, False):
            wanted = np.linalg.norm(x, order, axis, keep)
            near(L.norm(x, order, axis, keep).numpy(), wanted)
    near(L.norm(x[0], order).numpy(), np.linalg.norm(x[0], order))
    if order not in (None, "fro", "nuc"):
        square = well(2, 4, 4)
        near(L.cond(square, order).numpy(), np.linalg.cond(square, order), 1e-11)
    else:
        near(L.norm(x).numpy(), np.linalg.norm(x))


def test_norms_at_zero() -> None:
    zero = pb.zeros(3, dtype="float64")
    for order in (0, 1, 1.5, 2, 3, np.inf):
        slope = pb.grad(lambda x, o=order: L.vector_norm(x, o))(zero).numpy()
        assert np.isfinite(slope).all()
    both = pb.grad(lambda x: L.vector_norm(x, np.inf))(pb.tensor([2.0, -2.0, 1.0])).numpy()
    assert both.tolist() == [0.5, -0.5, 0.0]


# --- what is refused -----------------------------------------------------------------------------


def test_what_has_no_factors() -> None:
    for call in (
        lambda: L.solve(np.zeros((3, 3)), np.ones(3)),
        lambda: L.inv(np.ones((2, 2))),
        lambda: L.cholesky(-np.eye(3)),
        lambda: L.matrix_power(np.zeros((2, 2)), -1),
    ):
        with pytest.raises(SingularError, match="E352"):
            call()
    zero = pb.zeros((3, 3))
    assert not np.isfinite(pb.jit(L.inv)(zero).numpy()).any()
    assert np.isnan(pb.jit(L.cholesky)(pb.tensor(-np.eye(2))).numpy()).any()
    assert pb.jit(L.det)(pb.zeros((5, 5))).item() == 0.0
    sign, size = pb.jit(lambda a: tuple(L.slogdet(a)))(zero)
    assert (sign.item(), size.item()) == (0.0, -np.inf)


def test_what_is_refused() -> None:
    a = pb.eye(3)
    big = pb.ones((2, 20, 20))
    wrong: list[tuple[str, Any]] = [
        ("E175", lambda: L.det(pb.ones((2, 3)))),
        ("E175", lambda: L.solve(a, pb.ones((4,)))),
        ("E175", lambda: L.solve(a, pb.ones((4, 1)))),
        ("E175", lambda: L.inv(pb.ones(3))),
        ("E175", lambda: L.solve_triangular(a, pb.ones((2, 3)), upper=True)),
        ("E175", lambda: L.lstsq(a, pb.ones((4, 2)))),
        ("E175", lambda: L.cross(pb.ones(4), pb.ones(4))),
        ("E176", lambda: L.matrix_power(a, 0.5)),
        ("E115", lambda: L.multi_dot([pb.ones((2, 3))])),
        ("E115", lambda: L.multi_dot([a, pb.ones((4, 2))])),
        ("E312", lambda: L.det(a, method="lapack")),
        ("E312", lambda: L.qr(a, mode="full")),
        ("E312", lambda: L.norm(a, "max")),
        ("E312", lambda: L.vector_norm(a, "fro")),
        ("E134", lambda: L.norm(pb.ones((2, 2, 2)), 1)),
        ("E134", lambda: L.matrix_norm(a, axis=(0, 0))),
        ("E353", lambda: pb.vmap(lambda x: L.inv(x, method="host"))(big)),
        ("E354", lambda: pb.vmap(L.inv)(big)),
        ("E355", lambda: pb.grad(lambda x: pb.sum(L.qr(x, mode="complete")[0]))(pb.ones((3, 2)))),
        ("E355", lambda: pb.grad(lambda x: pb.sum(L.svd(x).U))(pb.ones((3, 2)))),
    ]
    for code, call in wrong:
        with pytest.raises(PullbackError, match=code):
            call()
    with pytest.raises(UnsupportedError, match="E315"):
        n = pb.dim("n", 1, 8)
        pb.jit(L.inv, shapes=[(n, n)])(a)
