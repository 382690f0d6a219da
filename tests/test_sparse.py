"""Sparse products beside SciPy's and their derivatives; loops between bounds that are data."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import sparse as S
from pullback.errors import PullbackError
from pullback.ir import dtype as D
from pullback.ir import expr as E
from pullback.ir.graph import SUM, read
from pullback.tensor.face.tensor import Tensor, value_of
from pullback.tensor.values.elementwise import axes_of, cast, literal
from pullback.tensor.values.updates import Places, accumulated

RNG = np.random.default_rng(11)
sp = pytest.importorskip("scipy.sparse")

CASES = [  # rows, columns, density, columns of the dense operand
    (20, 30, 0.2, None), (20, 30, 0.2, 5), (7, 3, 0.5, None), (1, 1, 1.0, 3), (40, 50, 0.0, 4),
    (0, 5, 0.0, None), (5, 0, 0.0, 2), (12, 80, 0.7, 70), (3, 90, 1.0, None), (9, 9, 0.3, 1),
]  # fmt: skip


def drawn(rows: int, columns: int, density: float, dtype: Any = np.float64) -> Any:
    if not rows * columns:
        return sp.csr_matrix((rows, columns), dtype=dtype)
    seed = rows * 100 + columns
    return sp.random(rows, columns, density, format="csr", dtype=dtype, random_state=seed)


def dense(rows: int, wide: int | None, dtype: Any = np.float64) -> Any:
    return RNG.normal(size=(rows,) if wide is None else (rows, wide)).astype(dtype)


def parts(a: Any) -> tuple[pb.Tensor, pb.Tensor, pb.Tensor]:
    return pb.tensor(a.data), pb.tensor(a.indices), pb.tensor(a.indptr)


def same(got: Any, want: Any, most: float = 0.0) -> None:
    """Element by element; of several that differ the first is told."""
    assert got.shape == want.shape, (got.shape, want.shape)
    bad = np.argwhere(~(np.abs(got - want) <= most * (1 + np.abs(want))))
    assert not len(bad), f"{tuple(bad[0])}: got {got[tuple(bad[0])]}, want {want[tuple(bad[0])]}"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(("rows", "columns", "density", "wide"), CASES)
def test_as_scipy(rows: int, columns: int, density: float, wide: int | None, dtype: str) -> None:
    a = drawn(rows, columns, density, dtype)
    values, indices, pointers = parts(a)
    x, g = dense(columns, wide, dtype), dense(rows, wide, dtype)
    most = 1e-13 if dtype == "float64" else 1e-5
    same(S.csr_matmul(values, indices, pointers, pb.tensor(x)).numpy(), a @ x, most)
    turned = S.csr_transposed_matmul(values, indices, pointers, pb.tensor(g), columns)
    same(turned.numpy(), a.T @ g, most)
    row = S.csr_rows(pointers, a.nnz)
    np.testing.assert_array_equal(row.numpy(), np.repeat(np.arange(rows), np.diff(a.indptr)))
    same(S.coo_matmul(values, row, indices, pb.tensor(x), rows).numpy(), a @ x, most)


@pytest.mark.parametrize(("rows", "columns", "density", "wide"), CASES)
@pytest.mark.parametrize("form", ["csr", "transposed", "coo"])
def test_derivatives(rows: int, columns: int, density: float, wide: int | None, form: str) -> None:
    """By values ``g[row] x[column]``, by the dense operand the transposed product."""
    a = drawn(rows, columns, density)
    values, indices, pointers = parts(a)
    at = a.tocoo()
    ends = (rows, columns) if form == "transposed" else (columns, rows)
    x, g = dense(ends[0], wide), dense(ends[1], wide)
    head, place = pb.tensor(g), (pb.tensor(at.row), pb.tensor(at.col))
    out, into = (at.col, at.row) if form == "transposed" else (at.row, at.col)

    def product(v: Any, x: Any) -> Any:
        if form == "coo":
            return S.coo_matmul(v, *place, x, rows)
        if form == "csr":
            return S.csr_matmul(v, indices, pointers, x)
        return S.csr_transposed_matmul(v, indices, pointers, x, columns)

    def loss(v: Any, x: Any) -> Any:
        return pb.sum(product(v, x) * head)

    dv, dx = pb.jit(pb.grad(loss, argnums=(0, 1)))(values, pb.tensor(x))
    same(dx.numpy(), (a if form == "transposed" else a.T) @ g, 1e-13)
    terms = g[out] * x[into]
    same(dv.numpy(), terms.reshape(a.nnz, -1).sum(1) if terms.size else np.zeros(a.nnz), 1e-13)


@pytest.mark.slow
def test_differences_and_second_derivatives() -> None:
    a = drawn(6, 5, 0.4)
    values, indices, pointers = parts(a)
    x = pb.tensor(dense(5, 2))

    def f(v: Any, x: Any) -> Any:
        return pb.sin(S.csr_matmul(v, indices, pointers, x))

    def back(v: Any, g: Any) -> Any:
        return pb.sin(S.csr_transposed_matmul(v, indices, pointers, g, 5))

    assert pb.check_grads(f, [a.data, x.numpy()], layouts=("contiguous",))
    assert pb.check_grads(back, [a.data, dense(6, 2)], layouts=("contiguous",))
    slope = pb.grad(lambda v: pb.sum(f(v, x)))
    assert pb.check_grads(slope, [a.data], layouts=("contiguous",))
    tangent = pb.tensor(RNG.normal(size=a.nnz))
    _, moved = pb.jvp(lambda v: S.csr_matmul(v, indices, pointers, x), [values], [tangent])
    b = a.copy()
    b.data = tangent.numpy()
    same(moved.numpy(), b @ x.numpy(), 1e-13)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("backend", ["c", "kernels", "reference"])
@pytest.mark.parametrize("wide", [None, 5])
def test_on_other_backends(backend: str, wide: int | None) -> None:
    a = drawn(13, 11, 0.5)
    values, indices, pointers = parts(a)
    x = dense(11, wide)

    def both(v: Any, x: Any) -> Any:
        y = S.csr_matmul(v, indices, pointers, x)
        return y, S.csr_transposed_matmul(v, indices, pointers, y, 11)

    options = pb.Options(backend=backend)
    y, back = pb.jit(both, options=options)(values, pb.tensor(x))
    same(y.numpy(), a @ x, 1e-13)
    same(back.numpy(), a.T @ (a @ x), 1e-13)
    slope = pb.jit(pb.grad(lambda v: pb.sum(both(v, pb.tensor(x))[0] ** 2)), options=options)
    y = a @ x
    terms = (2 * y[a.tocoo().row] * x[a.indices]).reshape(a.nnz, -1).sum(1)
    same(slope(values).numpy(), terms, 1e-12)


def test_several_of_one_place_and_columns_out_of_order() -> None:
    values, indices = pb.tensor([1.0, 2.0, 4.0]), pb.tensor([1, 0, 1])
    y = S.csr_matmul(values, indices, pb.tensor([0, 3]), pb.tensor([10.0, 1.0]))
    assert y.numpy().tolist() == [25.0]
    y = S.coo_matmul(values, pb.tensor([0, 0, 0]), indices, pb.tensor([10.0, 1.0]), 1)
    assert y.numpy().tolist() == [25.0]


def test_types_of_places_and_values() -> None:
    a = drawn(5, 4, 0.6, np.float32)
    for kind in ("int8", "int64", "uint16"):
        places = [pb.tensor(p.astype(kind)) for p in (a.indices, a.indptr)]
        y = S.csr_matmul(pb.tensor(a.data), *places, pb.ones(4, dtype="float64"))
        assert y.dtype is pb.float64
        same(y.numpy(), a.astype(np.float64) @ np.ones(4), 1e-6)


# --- what is refused -----------------------------------------------------------------------------

V, IX, P, X = pb.ones(3), pb.tensor([0, 1, 0]), pb.tensor([0, 1, 3]), pb.ones(2)
SIZES = {
    "indices": lambda: S.csr_matmul(V, IX[:2], P, X),
    "values": lambda: S.csr_matmul(V[:2], IX, P, X),
    "rank of values": lambda: S.csr_matmul(pb.ones((3, 1)), IX, P, X),
    "kind of indices": lambda: S.csr_matmul(V, pb.ones(3), P, X),
    "no pointers": lambda: S.csr_matmul(V, IX, P[:0], X),
    "rank": lambda: S.csr_matmul(V, IX, P, pb.ones((2, 2, 2))),
    "no rows": lambda: S.csr_matmul(V, IX, P, pb.ones((0, 2))),
    "rows of the transpose": lambda: S.csr_transposed_matmul(V, IX, P, pb.ones(3), 2),
    "columns": lambda: S.csr_transposed_matmul(V, IX, P, X, -1),
    "no columns": lambda: S.csr_transposed_matmul(V, IX, P, X, 0),
    "rows of coo": lambda: S.coo_matmul(V, IX[:1], IX, X, 2),
    "no rows of coo": lambda: S.coo_matmul(V, IX, IX, X, 0),
}


@pytest.mark.parametrize("name", SIZES)
def test_wrong_sizes(name: str) -> None:
    with pytest.raises(PullbackError, match=r"E593|E17[57]"):
        SIZES[name]()


DATA = {
    "a column too many": ([0, 2, 0], [0, 1, 3], 2),
    "a negative column": ([0, -1, 0], [0, 1, 3], -1),
    "pointers that fall": ([0, 1, 0], [0, 4, 3], 1),
    "pointers that fall back": ([0, 1, 0], [0, 2, 1], 1),
    "pointers that begin late": ([0, 1, 0], [1, 2, 3], 1),
    "pointers that end early": ([0, 1, 0], [0, 1, 2], 1),
    "negative pointers": ([0, 1, 0], [0, -1, 3], 1),
}


SLOW_C = pytest.param("c", marks=pytest.mark.slow)  # its compiler takes a while


@pytest.mark.parametrize("backend", ["llvm", SLOW_C, "kernels"])
@pytest.mark.parametrize("name", DATA)
def test_wrong_places(name: str, backend: str) -> None:
    """They raise where the program runs, whatever loop would have met them."""
    indices, pointers, value = DATA[name]
    given = pb.ones(3), pb.tensor(indices), pb.tensor(pointers)
    options = pb.Options(backend=backend)
    by, back = S.csr_matmul, S.csr_transposed_matmul
    for wide in ((2,), (2, 4)):
        for run in (
            lambda x: by(*given, x), lambda x: back(*given, x, 2),
        ):  # fmt: skip
            with pytest.raises(PullbackError, match=f"{value}") as told:
                pb.jit(run, options=options)(pb.ones(wide)).numpy()
            assert told.value.code == "E106", told.value


# --- loops between bounds ------------------------------------------------------------------------


def nest(function: Any, *given: Any) -> str:
    program = pb.jit(function, options=pb.Options(cache=None))
    program(*given)
    shown = program.program
    return str(shown._rendered("loops", shown.target))


def test_loops_run_over_a_row() -> None:
    """One pass over the places first; where it is passed, loops have neither checks nor guards."""
    a = drawn(50, 60, 0.5)
    text = nest(lambda *t: S.csr_matmul(*t), *parts(a), pb.ones(60, dtype="float64"))
    quick, slow = text.split("if passed")[1].split("if ~passed")
    assert "from_" in quick and "check" not in quick and "if(" not in quick
    assert "check" in slow and f"in 0..{a.nnz}" not in quick + slow


def test_rows_of_matrices_wait_in_registers() -> None:
    a = drawn(50, 60, 0.5)
    text = nest(lambda *t: S.csr_matmul(*t), *parts(a), pb.ones((60, 16), dtype="float64"))
    assert "float64[16] kept" in text and "within 0.." in text


def guarded(other: float) -> Any:
    """``y[i] += if(p < n[i], x[i, p], other)``, a row after the other."""

    def f(x: Any, n: Any) -> Any:
        own, ends = value_of(x), value_of(n)
        i, p = axes_of((2, 6))
        inside = E.Less(p, cast(read(ends, i), D.int64))
        body = E.If(inside, read(own, i, p), literal(other, own.dtype))
        row = E.If(inside, i, E.index(0))
        return Tensor(accumulated(Places((2,), (2, 6), (row,)), body, SUM))

    return f


def test_other_guards_stay() -> None:
    """A guard whose other side is no identity bounds nothing."""
    n, x = pb.tensor(np.array([3, 1])), pb.tensor(np.arange(12.0).reshape(2, 6))
    assert "from_" in nest(guarded(0.0), x, n)
    assert pb.jit(guarded(0.0))(x, n).numpy().tolist() == [0.0 + 1 + 2, 6.0]
    assert "from_" not in nest(guarded(1.0), x, n)
    assert pb.jit(guarded(1.0))(x, n).numpy().tolist() == [0.0 + 1 + 2 + 3 + 5, 6.0]
