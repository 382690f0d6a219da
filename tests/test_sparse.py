"""Sparse products beside SciPy's and their derivatives; loops between bounds that are data."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback import sparse as S
from pullback.backends.nests.analysis import Facts, plan_lanes
from pullback.backends.nests.ranges import lowered
from pullback.errors import PullbackError
from pullback.ir import dtype as D
from pullback.ir import expr as E
from pullback.ir.graph import SUM, read
from pullback.tensor.face.tensor import Tensor, value_of
from pullback.tensor.values.elementwise import axes_of, cast, literal
from pullback.tensor.values.updates import Places, accumulated

RNG = np.random.default_rng(11)
sp = pytest.importorskip("scipy.sparse")

STORED = "store", "load"
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


@pytest.mark.sampled(6)
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


@pytest.mark.sampled(3)
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


@pytest.mark.sampled(8)
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
    """A look at the places of a block first; where it is passed, loops have no checks, and rows go
    in chunks.
    """
    a = drawn(50, 60, 0.5)
    text = nest(lambda *t: S.csr_matmul(*t), *parts(a), pb.ones(60, dtype="float64"))
    quick, slow = text.split("if rising")[1].split("if ~(rising")
    assert "from_" in quick and "check" not in quick and "beside" in quick
    assert "check" in slow and f"in 0..{a.nnz}" not in quick + slow


def uneven(rows: int, columns: int, longest: int, dtype: Any = np.float64) -> Any:
    """Rows of 0 to `longest` values, in blocks; values of all neighbours are wild."""
    rng = np.random.default_rng(rows)
    counts = rng.integers(0, longest + 1, rows)
    pointers = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    indices = rng.integers(0, columns, pointers[-1]).astype(np.int32)
    values = rng.normal(size=pointers[-1]).astype(dtype)
    return sp.csr_matrix((values, indices, pointers), (rows, columns))


@pytest.mark.parametrize("backend", ["llvm", pytest.param("c", marks=pytest.mark.slow)])
@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize(("rows", "longest"), [(900, 40), (5000, 3), (1, 20), (60, 400), (33, 7)])
def test_rows_of_all_lengths(rows: int, longest: int, dtype: str, backend: str) -> None:
    """Chunks end with their row: what the next one has, NaN and infinity too, is left out."""
    a = uneven(rows, 70, longest, dtype)
    x = dense(70, None, dtype)
    wild = RNG.integers(0, rows, max(1, rows // 9))
    for n, row in enumerate(wild):
        a.data[a.indptr[row] : a.indptr[row + 1]] = (np.nan, np.inf)[n % 2]
    options = pb.Options(backend=backend)
    y = pb.jit(S.csr_matmul, options=options)(*parts(a), pb.tensor(x)).numpy()
    rest = np.setdiff1d(np.arange(rows), wild)
    want = a.astype(np.float64) @ x.astype(np.float64)
    most = {"float64": 1e-13, "float32": 1e-5, "float16": 2e-2}[dtype]
    same(y[rest], want[rest], most)
    np.testing.assert_array_equal(np.isfinite(y), np.isfinite(want))


@pytest.mark.parametrize("backend", ["llvm", pytest.param("c", marks=pytest.mark.slow)])
@pytest.mark.parametrize("place", [0, 1, 4095, 4096, 4100, 9001, -8, -1])
@pytest.mark.parametrize("bad", [70, -1, 2**31 - 1, -(2**31)])
def test_a_wrong_place_of_any_block_raises(place: int, bad: int, backend: str) -> None:
    a = uneven(900, 70, 40)
    assert a.nnz > 3 * 4096
    indices = a.indices.copy()
    indices[place] = bad
    given = pb.tensor(a.data), pb.tensor(indices), pb.tensor(a.indptr)
    for run, x, threads in (
        (S.csr_matmul, pb.ones(70), 1),
        (lambda *t: S.csr_transposed_matmul(*t, 70), pb.ones(900), 1),
        (S.csr_matmul, pb.ones((70, 5)), 1),
        (S.csr_matmul, pb.ones((70, 64)), 2),  # a task has some of the rows
        (lambda *t: S.csr_transposed_matmul(*t, 70), pb.ones((900, 64)), 2),  # or of the columns
    ):
        with pytest.raises(PullbackError, match=f"{bad}") as told:
            pb.jit(run, options=pb.Options(backend=backend, threads=threads))(*given, x).numpy()
        assert told.value.code == "E106", told.value


@pytest.mark.parametrize("threads", [1, 2])
def test_blocks_of_transposes_and_matrices(threads: int) -> None:
    a = uneven(900, 70, 40)
    options = pb.Options(threads=threads)
    for wide in (None, 5, 70):
        x, g = dense(70, wide), dense(900, wide)
        y = pb.jit(S.csr_matmul, options=options)(*parts(a), pb.tensor(x))
        same(y.numpy(), a @ x, 1e-12)
        turned = pb.jit(lambda *t: S.csr_transposed_matmul(*t, 70), options=options)
        same(turned(*parts(a), pb.tensor(g)).numpy(), a.T @ g, 1e-12)


@pytest.mark.parametrize("at", [(450, 0), (450, 14000), (1, 14000), (899, 5)])
def test_pointers_that_fall_in_any_block(at: tuple[int, int]) -> None:
    """Rows that leave their block are looked at one by one; nothing else is read, and E106 told."""
    a = uneven(900, 70, 40)
    pointers = a.indptr.copy()
    pointers[at[0]] = at[1]
    given = pb.tensor(a.data), pb.tensor(a.indices), pb.tensor(pointers)
    with pytest.raises(PullbackError, match="-1") as told:
        pb.jit(S.csr_matmul)(*given, pb.ones(70)).numpy()
    assert told.value.code == "E106", told.value


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


def between(v: Any, columns: Any, starts: Any, stops: Any, x: Any) -> Any:
    """``y[i] += v[p] x[columns[p]]`` for p from ``starts[i]`` to ``stops[i]``, in any order."""
    own, at, lo, hi, dense = map(value_of, (v, columns, starts, stops, x))
    (rows,), (count,) = lo.shape, own.shape
    i, p = axes_of((rows, count))
    begun = E.logical_not(E.Less(p, cast(read(lo, i), D.int64)))
    inside = E.And(begun, E.Less(p, cast(read(hi, i), D.int64)))
    term = E.Mul(read(own, p), read(dense, cast(read(at, p), D.int64)))
    body = E.If(inside, term, literal(0.0, own.dtype))
    row = E.If(inside, i, E.index(0))
    return Tensor(accumulated(Places((rows,), (rows, count), (row,)), body, SUM))


def test_rows_in_any_order_share_no_block() -> None:
    a = uneven(900, 70, 40)
    x = dense(70, None)
    ends = [a.indptr[:-1][::-1].copy(), a.indptr[1:][::-1].copy()]
    given = [pb.tensor(v) for v in (*ends, x)]
    y = pb.jit(between)(pb.tensor(a.data), pb.tensor(a.indices), *given)
    same(y.numpy(), (a @ x)[::-1], 1e-12)
    for place in (3, 7000, -3):
        indices = a.indices.copy()
        indices[place] = 70
        with pytest.raises(PullbackError, match="70"):
            pb.jit(between)(pb.tensor(a.data), pb.tensor(indices), *given).numpy()


@pytest.mark.parametrize("at", [0, 1, 450, 899])
def test_rows_that_ask_for_more_than_there_is(at: int) -> None:
    """Bounds beyond the values are those of the loop: what lies before and behind is not read."""
    a = uneven(900, 70, 40)
    x = dense(70, None)
    starts, stops = a.indptr[:-1].copy(), a.indptr[1:].copy()
    starts[at], stops[at] = -1000, a.nnz + 1000
    want = a @ x
    want[at] = (a.data * x[a.indices]).sum()
    given = [pb.tensor(v) for v in (a.data, a.indices, starts, stops, x)]
    same(pb.jit(between)(*given).numpy(), want, 1e-11)
    starts, stops = a.indptr[:-1].copy(), a.indptr[1:].copy()
    starts[0], stops[-1] = -1000, a.nnz + 1000
    given = [pb.tensor(v) for v in (a.data, a.indices, starts, stops, x)]
    same(pb.jit(between)(*given).numpy(), a @ x, 1e-12)


@pytest.mark.parametrize("longest", [7, 40])  # short rows take a mean one without a branch
@pytest.mark.parametrize("far", [17_000, 2**31 - 1])
def test_rows_that_end_before_they_begin(longest: int, far: int) -> None:
    """They are empty, wherever they would begin."""
    a = uneven(900, 70, longest)
    x = dense(70, None)
    starts, stops = a.indptr[:-1].copy(), a.indptr[1:].copy()
    empty = [1, 2, 300, 450]
    starts[empty] = far
    assert (starts >= stops)[empty].all()
    want = a @ x
    want[empty] = 0.0
    given = [pb.tensor(v) for v in (a.data, a.indices, starts, stops, x)]
    same(pb.jit(between)(*given).numpy(), want, 1e-12)


def test_other_guards_stay() -> None:
    """A guard whose other side is no identity bounds nothing."""
    n, x = pb.tensor(np.array([3, 1])), pb.tensor(np.arange(12.0).reshape(2, 6))
    assert "from_" in nest(guarded(0.0), x, n)
    assert pb.jit(guarded(0.0))(x, n).numpy().tolist() == [0.0 + 1 + 2, 6.0]
    assert "from_" not in nest(guarded(1.0), x, n)
    assert pb.jit(guarded(1.0))(x, n).numpy().tolist() == [0.0 + 1 + 2 + 3 + 5, 6.0]


@pytest.mark.parametrize("wide", [1, 2, 3, 5, 8, 12, 24, 28, 47])
def test_rows_are_added_to_without_masks(wide: int) -> None:
    """What was stored under a mask is not there for the next load: last lanes are powers of two."""
    x = RNG.standard_normal((9, wide)).astype(np.float32)
    rows, columns = RNG.integers(0, 4, 60), RNG.integers(0, 9, 60)
    values = RNG.standard_normal(60).astype(np.float32)
    made = pb.jit(lambda *given: pb.sparse.coo_matmul(*given, 4))
    got = made(values, rows, columns, x).numpy()
    want = np.zeros((4, wide))
    np.add.at(want, rows, values[:, None] * x[columns].astype(np.float64))
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    text = made.program.source()
    stores, loads = (re.findall(rf"call .*@llvm.masked.{w}.v\d+f32", text) for w in STORED)
    assert not loads and len(stores) <= 1, "of zeros, that it begins with"


def test_a_loop_has_no_more_lanes_than_elements() -> None:
    """The smallest power of two that holds them."""
    made = pb.jit(lambda *given: pb.sparse.coo_matmul(*given, 4))
    place = np.zeros(60, np.int64)
    for wide, lanes in ((8, 8), (4, 4), (3, 4)):
        made(np.ones(60, np.float32), place, place, np.ones((9, wide), np.float32))
        (kernel,) = made.program.kernels
        target = made.program.target
        routine = lowered(kernel, made.program.chosen(kernel, target))
        counts = plan_lanes(routine, target, Facts()).loops.values()
        assert {*counts} <= {lanes, target.lanes(4)} and lanes in counts
