"""Products of few rows: an operand beyond the caches is read once, in order, and ahead of time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import pullback as pb
from lower_support import HOST, TABLES, ZEN5, agree, kernel, num, stage, start, variable
from pullback.errors import InvalidIR
from pullback.fuse import fuse
from pullback.ir import expr as E
from pullback.ir import functions as F
from pullback.ir.expr import index
from pullback.ir.graph import Graph, Value, define, read
from pullback.ir.kernel import Kernel
from pullback.ir.nest import Array, For, Guard, LoopKind, Prefetch, Routine, Stmt, Var
from pullback.ir.target import Target
from pullback.lower.kernel import lower
from pullback.machine.machine import chosen, parsed
from pullback.schedule.schedule import DotLoops, Left, Way
from pullback.simplify.graph import simplify_graph
from pullback.verify.nest import verify_routine
from test_large import product

# So little second-level cache that everything comes from memory.
SMALL = replace(HOST, l2=2048)


def all_of(body: Iterable[Stmt]) -> Iterator[Stmt]:
    for one in body:
        yield one
        if isinstance(one, For | Guard):
            yield from all_of(one.body)


def ahead(routine: Routine) -> list[Prefetch]:
    return [s for s in all_of(routine.body) if isinstance(s, Prefetch)]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rows", [1, 3, 8, 13, 16])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn"])
def test_an_operand_from_memory_is_prefetched(rows: int, layout: str) -> None:
    one = product(rows, 1100, 331, layout, "map")
    plan = start(one, HOST, (("column.0", 1),))
    assert plan.steps[0].way is (Way.DOTS if layout == "nt" else Way.TILES)
    routine = lower(one, plan)
    verify_routine(routine, "lower")
    assert ahead(routine)
    agree(one, routine, None, {}, native=True, scalar=False, tolerance=1e-3)


@pytest.mark.parametrize("layout", ["nn", "nt"])
def test_one_from_the_cache_is_not(layout: str) -> None:
    one = product(8, 110, 331, layout)
    assert not ahead(lower(one, start(one, HOST)))


def test_blocks_of_k_are_short_for_few_rows() -> None:
    every = [start(product(m, 1000, 1000, "nn"), HOST).steps[0].loops for m in (1, 4, 8, 63)]
    assert [loops.terms for loops in every] == [32, 32, 32, 63]


@pytest.mark.parametrize("rows", [33, 64, 128, 200])
def test_far_operands_are_read_once(rows: int) -> None:
    """All rows in one tile, and as many terms at a time: tiles of a few read all again."""
    plan = start(product(rows, 3000, 3000, "nn"), TABLES)
    assert plan.tile[0] == rows
    assert plan.steps[0].loops.terms == min(rows, TABLES.l2 // (16 * plan.tile[1]))


def test_operands_of_each_sample_are_near() -> None:
    """Eight of 256 x 3136: tiles of 64 rows read one at a time again."""
    x, w, y = variable("x", 64, 256), variable("w", 8, 256, 3136), variable("y", 8, 64, 3136)
    z = define(
        "z", (8, 64, 3136), lambda b, i, j, k: E.Mul(read(x, i, k), read(w, b, k, j)), over=(256,)
    )
    (one,) = fuse(simplify_graph(Graph(((y, z),))), HOST)
    assert start(one, HOST).steps[0].loops.terms is None


@pytest.mark.sampled(3)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn"])
def test_in_the_interpreter(layout: str) -> None:
    """A prefetch means nothing, also where it lies outside."""
    one = product(5, 70, 67, layout, "map")
    routine = lower(one, start(one, SMALL))
    assert ahead(routine)
    agree(one, routine, None, {}, native=False, scalar=True)


def prologue(rows: int, columns: int, terms: int) -> Kernel:
    """``y[i, j] = sum[k] relu(x[i, k] + b[k]) w[j, k]``"""
    x, b = variable("x", rows, terms), variable("b", terms)
    w, y = variable("w", columns, terms), variable("y", rows, columns)

    def body(i: E.Axis, j: E.Axis, k: E.Axis) -> E.Expr:
        return E.Mul(F.relu(E.Add(read(x, i, k), read(b, k))), read(w, j, k))

    z = define("z", (rows, columns), body, over=(terms,))
    return kernel((rows, columns), stage(z, (0, 1), y))


@pytest.mark.parametrize("rows", [1, 7])
def test_a_computed_left_operand_is_evaluated_first(rows: int) -> None:
    one = prologue(rows, 600, 500)
    plan = start(one, HOST)
    assert plan.steps[0].way is Way.DOTS
    routine = lower(one, plan)
    verify_routine(routine, "lower")
    agree(one, routine, None, {}, native=True, scalar=False, tolerance=1e-3)


def heads(rows: int) -> Kernel:
    """``y[i, j] = sum[k] (x[k // 16, i, k % 16] * n[k // 16, i]) w[j, k]``"""
    x, n = variable("x", 4, rows, 16), variable("n", 4, rows)
    w, y = variable("w", 64, 64), variable("y", rows, 64)

    def body(i: E.Axis, j: E.Axis, k: E.Axis) -> E.Expr:
        head, place = E.FloorDiv(k, index(16)), E.Mod(k, index(16))
        return E.Mul(E.Mul(read(x, head, i, place), read(n, head, i)), read(w, j, k))

    z = define("z", (rows, 64), body, over=(64,))
    return kernel((rows, 64), stage(z, (0, 1), y))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_terms_that_lie_as_one_again_are_one_loop(rows: int) -> None:
    """What was taken apart to compute an operand: else lanes are added up once a head."""
    one = heads(rows)
    routine = lower(one, start(one, HOST))
    sums = [s for s in all_of(routine.body) if isinstance(s, For) and s.kind is LoopKind.VECTOR]
    assert any(s.hi == index(64) for s in sums)
    agree(one, routine, None, {}, native=True, scalar=True)


def chain(rows: int) -> Kernel:
    """``tanh(tanh(x w^T) u^T) v^T`` of few rows, in one kernel by rows."""
    found: Value = variable("x", rows, 64)
    stages = []
    for size in (96, 64, 80):
        terms = found.shape[1]
        w = variable(f"w{size}", size, terms)
        z = define("z", (rows, size), partial(term, found, w), over=(terms,))
        found = define("h", z.shape, partial(curved, z))
        stages += [stage(z, (0, None)), stage(found, (0, None))]
    return kernel((rows,), *stages[:-1], stage(found, (0, None), variable("y", rows, 80)))


def term(x: Value, w: Value, i: E.Axis, j: E.Axis, k: E.Axis) -> E.Expr:
    return E.Mul(read(x, i, k), read(w, j, k))


def curved(z: Value, i: E.Axis, j: E.Axis) -> E.Expr:
    return F.tanh(read(z, i, j))


def test_a_chain_of_products_reads_its_weights_once() -> None:
    """All of a few rows are one tile, for some hundred bytes of scratch more."""
    assert start(chain(2), HOST).tile == (2,)


def test_rows_that_share_their_places_in_the_cache_are_copied() -> None:
    """``1024`` elements apart all rows lie in one set; ``1040`` they do not."""
    for terms, copies in ((1024, [8 * 1040]), (1040, [])):
        one = product(8, 300, terms, "nt")
        assert [a.size for a in lower(one, start(one, ZEN5)).scratch] == copies
        routine = lower(one, start(one, HOST))
        agree(one, routine, None, {}, native=True, scalar=False, tolerance=1e-3)


def test_few_rows_are_rows() -> None:
    """The operand of many rows is streamed, whichever side it stands on."""
    x, w, y = variable("x", 8, 700), variable("w", 900, 700), variable("y", 900, 8)
    z = define("z", (900, 8), lambda j, i, k: E.Mul(read(x, i, k), read(w, j, k)), over=(700,))
    one = kernel((900, 8), stage(z, (0, 1), y))
    step = start(one, HOST).steps[0]
    assert step.product is not None
    assert (step.way, step.product.row, step.product.column) == (Way.DOTS, 1, 0)
    agree(one, lower(one, start(one, HOST)), None, {}, native=True, scalar=False)


def test_prefetches_are_verified() -> None:
    task, array = Var("task", 0, 0), Array("a", num(1.0).dtype, 4)
    for known in (True, False):
        body = (Prefetch(array, index(100)),)
        routine = Routine("r", (array,) if known else (), (), (), (), task, 1, body)
        if known:
            verify_routine(routine, "lower")
            continue
        with pytest.raises(InvalidIR, match="not an array of the routine"):
            verify_routine(routine, "lower")


@pytest.mark.parametrize("vectors", [16, 32])
@pytest.mark.parametrize("l2", [2048, HOST.l2])
def test_registers_hold_the_sums_of_a_block(vectors: int, l2: int) -> None:
    """A vector for each sum and each column, and one for a row; all rows at once from memory."""
    target = replace(HOST, vectors=vectors, l2=l2)
    for rows in range(1, 8):
        loops = start(product(rows, 331, 110, "nt"), target).steps[0].loops
        assert isinstance(loops, DotLoops) and loops.ahead == (l2 == 2048)
        assert loops.rows * loops.columns + loops.columns + 1 <= vectors
        if loops.ahead and vectors == 32:
            assert loops.rows == rows


def test_a_function_of_few_rows_is_evaluated_in_lanes() -> None:
    """In place it were computed again for each panel, one element at a time."""
    x, w, y = variable("x", 1, 64), variable("w", 64, 64), variable("y", 1, 64)

    def body(i: E.Axis, j: E.Axis, k: E.Axis) -> E.Expr:
        return E.Mul(E.Exp(read(x, i, k)), read(w, k, j))

    z = define("z", (1, 64), body, over=(64,))
    one = kernel((1, 64), stage(z, (0, 1), y))
    loops = start(one, HOST).steps[0].loops
    assert getattr(loops, "left", None) is Left.EVALUATED


def test_a_machine_that_says_nothing_of_ways() -> None:
    """Its addresses do not meet, and its last cache is one thread's own."""
    known = replace(Target(), machine=chosen("zen4"))
    text = known.profile.text
    lines = [line for line in text.splitlines() if not line.startswith(("way", "cores"))]
    bare = parsed("\n".join(lines), "bare")
    assert bare.share == bare.memories[-2].bytes > known.profile.share
    one = product(8, 331, 4096, "nt")
    loops = [start(one, t).steps[0].loops for t in (known, replace(known, machine=bare))]
    pitches = [loop.pitch for loop in loops if isinstance(loop, DotLoops)]
    assert pitches == [4096 + known.lanes(4), None]


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_an_operand_that_is_cast_is_fetched_as_it_lies(kind: str) -> None:
    """Larger than a second-level cache; sums of small whole numbers, which are exact."""
    rng = np.random.default_rng(0)
    w = rng.integers(-4, 5, (2048, 2048)).astype(pb.dtype(kind).numpy)
    x = rng.integers(-4, 5, (8, 2048)).astype(np.float32)
    k = pb.axis(2048)

    def product(w: pb.Tensor, x: pb.Tensor) -> pb.Tensor:
        body = lambda m, n: pb.sum(pb.astype(w[n, k], pb.float32) * x[m, k], over=k)
        return pb.compute((8, 2048), body)

    got, want = pb.jit(product)(w, x).numpy(), x @ w.astype(np.float32).T
    assert np.array_equal(got, want), np.argwhere(got != want)[0]
