"""Numbers added at places that are data, from several parts of a block in turn."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.backends.nests.parts import in_parts
from pullback.errors import PullbackError
from pullback.ir.dtype import float32, int64
from pullback.ir.expr import index
from pullback.ir.graph import SUM
from pullback.ir.nest import Array, For, Load, Routine, StoreCombine, Var

RNG = np.random.default_rng(7)
KEYS = 50
COUNTS = (1, 3, 4, 5, 7, 4095, 4096, 4097, 4099, 4103, 8192, 9001)
REDUCED = {"sum": np.add, "prod": np.multiply, "amax": np.maximum, "amin": np.minimum}
BACKENDS = ["llvm", pytest.param("c", marks=pytest.mark.slow)]


def scattered(reduce: str, **options: Any) -> Any:
    """``y[at[p]] joined= x[p]``"""
    return pb.jit(
        lambda y, at, x: pb.scatter_reduce(y, at, x, reduce), options=pb.Options(**options)
    )


@pytest.mark.sampled(5)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("ordered", [True, False])
def test_any_number_of_them(count: int, ordered: bool, backend: str) -> None:
    at = RNG.integers(0, KEYS, count)
    at = np.sort(at) if ordered else at
    for reduce, joined in REDUCED.items():
        x = RNG.normal(size=count) if reduce != "prod" else 2.0 ** RNG.integers(-1, 2, count)
        want = np.ones(KEYS)
        joined.at(want, at, x)
        got = scattered(reduce, backend=backend)(*map(pb.tensor, (np.ones(KEYS), at, x))).numpy()
        most = 1e-12 if reduce == "sum" else 0.0
        bad = np.argwhere(~(np.abs(got - want) <= most * (1 + np.abs(want))))
        assert not len(bad), f"{reduce} {bad[0]}: got {got[bad[0]]}, want {want[bad[0]]}"


@pytest.mark.parametrize("kind", ["int32", "int64"])
def test_integers_are_exact_and_keys_of_any_type(kind: str) -> None:
    at = RNG.integers(0, KEYS, 9001).astype(kind)
    x = RNG.integers(-(2**30), 2**30, 9001)
    want = np.zeros(KEYS, np.int64)
    np.add.at(want, at, x)
    got = scattered("sum")(*map(pb.tensor, (np.zeros(KEYS, np.int64), at, x)))
    np.testing.assert_array_equal(got.numpy(), want)


def test_what_is_not_finite_stays_where_it_is() -> None:
    at = np.arange(9001) % KEYS
    x = np.ones(9001)
    x[at == 3], x[at == 5], x[at == 7] = np.nan, np.inf, -np.inf
    got = scattered("sum")(*map(pb.tensor, (np.zeros(KEYS), at, x))).numpy()
    assert np.isnan(got[3]) and got[5] == np.inf and got[7] == -np.inf
    np.testing.assert_array_equal(np.isfinite(got), ~np.isin(np.arange(KEYS), (3, 5, 7)))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("place", [0, 1023, 1024, 4095, 4096, 9000])
@pytest.mark.parametrize("bad", [KEYS, 2**31 - 1, -(2**31)])
def test_a_wrong_place_of_any_block_raises(place: int, bad: int, backend: str) -> None:
    at = RNG.integers(0, KEYS, 9001).astype(np.int32)
    columns = RNG.integers(0, KEYS, 9001).astype(np.int32)
    given = pb.tensor(np.ones(9001)), pb.tensor(at), pb.tensor(columns)
    product = pb.jit(lambda *t: pb.sparse.coo_matmul(*t, KEYS), options=pb.Options(backend=backend))
    product(*given, pb.ones(KEYS)).numpy()
    for n, places in ((1, at), (2, columns)):
        wrong = places.copy()
        wrong[place] = bad
        other = [*given[:n], pb.tensor(wrong), *given[n + 1 :]]
        with pytest.raises(PullbackError, match=f"{bad}") as told:
            product(*other, pb.ones(KEYS)).numpy()
        assert told.value.code == "E106", told.value


def rows_of(count: int, wide: int, dtype: Any = np.float64) -> tuple[Any, ...]:
    """Values, their rows and columns, and a matrix of `wide` columns."""
    at = np.sort(RNG.integers(0, KEYS, count)).astype(np.int32)
    return (
        RNG.normal(size=count).astype(dtype),
        at,
        RNG.integers(0, KEYS, count).astype(np.int32),
        RNG.normal(size=(KEYS, wide)).astype(dtype),
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("wide", [1, 3, 16, 64, 65, 130])
@pytest.mark.parametrize("count", [5, 4097, 40_001])
def test_rows_of_numbers(count: int, wide: int, backend: str) -> None:
    """By one task and by several, each of which has a part of a row; up to 64 in parts."""
    given = v, at, columns, x = rows_of(count, wide)
    want = np.zeros((KEYS, wide))
    np.add.at(want, at, v[:, None] * x[columns])
    for threads in (1, 2):
        options = pb.Options(backend=backend, threads=threads)
        run = pb.jit(lambda *t: pb.sparse.coo_matmul(*t, KEYS), options=options)
        got = run(*map(pb.tensor, given)).numpy()
        bad = np.argwhere(~(np.abs(got - want) <= 1e-11))
        assert not len(bad), f"{bad[0]}: got {got[tuple(bad[0])]}, want {want[tuple(bad[0])]}"
        program = run.program
        target = program.target
        texts = [
            program.texts["loops"](k, program.chosen(k, target), target) for k in program.kernels
        ]
        assert any("_part" in t for t in texts) is (wide <= 64), texts


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("place", [0, 4095, 40_000])
@pytest.mark.parametrize("bad", [KEYS, -1])
def test_a_wrong_place_of_any_row_raises(place: int, bad: int, threads: int) -> None:
    given = rows_of(40_001, 24)
    options = pb.Options(threads=threads)
    product = pb.jit(lambda *t: pb.sparse.coo_matmul(*t, KEYS), options=options)
    for n in (1, 2):
        wrong = [g.copy() for g in given]
        wrong[n][place] = bad
        with pytest.raises(PullbackError, match=f"{bad}") as told:
            product(*map(pb.tensor, wrong)).numpy()
        assert told.value.code == "E106", told.value


@pytest.mark.parametrize("wide", [64, 100, 128])
def test_the_same_bits_whatever_number_of_threads_was_asked_for(wide: int) -> None:
    """A program for one thread has a task for whole rows, one for two a task for each half."""
    given = [pb.tensor(g) for g in rows_of(60_000, wide, np.float32)]
    tasks = set()
    results = []
    for threads in (1, 2, None):
        options = pb.Options(threads=threads)
        run = pb.jit(lambda *t: pb.sparse.coo_matmul(*t, KEYS), options=options)
        results.append(run(*given).numpy())
        tasks.add(max(run.program.chosen(k, run.program.target).tasks for k in run.program.kernels))
    assert 1 in tasks
    for other in results[1:]:
        np.testing.assert_array_equal(other, results[0])


def test_a_loop_that_reads_its_target_stays() -> None:
    """``y[at[p]] += y[p]``: the next turn may read what this one wrote."""
    y, x = (Array(name, float32, 9000) for name in "yx")
    at = Array("at", int64, 9000)
    p = Var("p", 0, 8999)

    def nest(read: Array) -> Routine:
        one = StoreCombine(y, Load(at, p), SUM, Load(read, p))
        loop = For(p, index(0), index(9000), (one,))
        return Routine("adds", (y, x, at), (), (), (), Var("task", 0, 0), 1, (loop,))

    empty = replace(nest(x), body=(For(p, index(0), index(9000), ()),))
    assert in_parts(empty).body[0] is empty.body[0]
    for read, stays in ((y, True), (x, False)):
        made = nest(read)
        assert (in_parts(made).body[0] is made.body[0]) is stays, f"of {read}"


def test_the_same_bits_each_time_on_any_threads() -> None:
    at, x = RNG.integers(0, KEYS, 9001), RNG.normal(size=9001).astype(np.float32)
    given = [pb.tensor(v) for v in (np.zeros(KEYS, np.float32), at, x)]
    first = scattered("sum", threads=1)(*given).numpy()
    for threads in (1, 2, 4):
        got = scattered("sum", threads=threads)(*given).numpy()
        np.testing.assert_array_equal(got, first)
