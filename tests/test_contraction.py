"""Products of narrow types: panels as they lie, dot instructions, epilogues."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pullback as pb
from lower_support import HOST, ZEN4, agree, kernel, num, stage, start, variable
from pullback.backends.host.processor import named_target
from pullback.backends.llvm.emit import emit_routine
from pullback.config import Options
from pullback.ir import expr as E
from pullback.ir import functions as F
from pullback.ir.dtype import DType, bfloat16, float32, int8, int32, uint8
from pullback.ir.expr import Axis, Dim, Expr, Extent
from pullback.ir.graph import define, read
from pullback.ir.kernel import Kernel
from pullback.ir.nest import Routine
from pullback.ir.target import Target
from pullback.ir.text import routine_text
from pullback.lower.kernel import lower
from pullback.lower.whole import scheduled, whole
from pullback.machine.machine import chosen
from pullback.schedule.choose import choose, schedule_with
from pullback.schedule.contraction import recognise
from pullback.schedule.schedule import TileLoops
from pullback.verify.nest import verify_routine

# Words whatever the processor; code for them only runs where it has the instructions.
WORDS = replace(HOST, dots=("bfloat16", "int8"))
SOME = settings(
    max_examples=25, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
Array = np.ndarray[Any, Any]
LAYOUTS = ("nn", "nt", "tn", "tt")
NARROW = {"bfloat16": (ml_dtypes.bfloat16, 1e-2), "float16": (np.float16, 1e-3)}


def sides(layout: str, m: int, k: int, n: int) -> tuple[Array, Array]:
    """Standard normal operands of an ``m x k`` by ``k x n`` product, as they lie."""
    rng = np.random.default_rng(m * k + n)
    a = rng.standard_normal((m, k) if layout[0] == "n" else (k, m))
    b = rng.standard_normal((k, n) if layout[1] == "n" else (n, k))
    return a, b


def plain(layout: str, a: Any, b: Any) -> Any:
    return (a if layout[0] == "n" else a.T) @ (b if layout[1] == "n" else b.T)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", NARROW)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", [(33, 77, 65), (64, 64, 64), (40, 300, 50)])
def test_narrow_floats(kind: str, layout: str, size: tuple[int, int, int]) -> None:
    dtype, tolerance = NARROW[kind]
    a, b = (side.astype(dtype) for side in sides(layout, *size))
    found = pb.jit(lambda x, y: plain(layout, x, y))(pb.tensor(a), pb.tensor(b)).numpy()
    want = plain(layout, a.astype(np.float64), b.astype(np.float64))
    assert found.dtype == dtype
    np.testing.assert_allclose(
        found.astype(np.float64), want, atol=tolerance * np.abs(want).max(), rtol=0
    )


Pair = tuple[DType, DType]
PAIRS = [(bfloat16, bfloat16), (int8, int8), (uint8, int8), (int8, uint8), (uint8, uint8)]


def product(m: Extent, n: Extent, k: Extent, layout: str, pair: Pair, ending: str = "") -> Kernel:
    """``a b`` in 32 bits; then nothing, a map, or a prologue on a side ("left", "right")."""
    a = variable("a", *((m, k) if layout[0] == "n" else (k, m)), kind=pair[0])
    b = variable("b", *((k, n) if layout[1] == "n" else (n, k)), kind=pair[1])
    wide = float32 if pair[0] is bfloat16 else int32
    y = variable("y", m, n, kind=wide)

    def side(e: Expr, computed: bool) -> Expr:
        return E.Cast(F.relu(e) if computed else e, wide)

    def body(i: Axis, j: Axis, t: Axis) -> Expr:
        one = read(a, i, t) if layout[0] == "n" else read(a, t, i)
        other = read(b, t, j) if layout[1] == "n" else read(b, j, t)
        return E.Mul(side(one, ending == "left"), side(other, ending == "right"))

    z = define("z", (m, n), body, over=(k,))
    if ending == "map":
        out = define("out", (m, n), lambda i, j: F.relu(E.Add(read(z, i, j), num(-3, wide))))
        return kernel((m, n), stage(z, (0, 1)), stage(out, (0, 1), y))
    return kernel((m, n), stage(z, (0, 1), y))


def blocked(one: Kernel, tile: tuple[int, ...], tasks: int, terms: int, target: Target) -> Routine:
    plan = schedule_with(one, target, tile, tasks)
    steps = tuple(s if s.product is None else replace(s, terms=terms) for s in plan.steps)
    routine = lower(one, whole(one, replace(plan, steps=steps), target))
    verify_routine(routine, "lower")
    return routine


def operands(one: Kernel, seed: int) -> dict[Any, Array]:
    """Every byte there is; standard normal floats."""
    rng = np.random.default_rng(seed)
    found = {}
    for v in one.reads:
        if v.dtype.is_float:
            found[v] = rng.standard_normal(v.shape).astype(v.dtype.numpy)
        else:
            lo, hi = v.dtype.range()
            found[v] = rng.integers(lo, hi + 1, v.shape).astype(v.dtype.numpy)
    return found


@pytest.mark.slow
@given(
    m=st.integers(17, 60),
    n=st.integers(2, 90),
    k=st.integers(8, 70),
    terms=st.sampled_from([4, 8, 100]),
    layout=st.sampled_from(LAYOUTS),
    pair=st.sampled_from(PAIRS),
    ending=st.sampled_from(["", "map", "left", "right"]),
    data=st.data(),
)
@SOME
def test_words(
    m: int, n: int, k: int, terms: int, layout: str, pair: Pair, ending: str, data: st.DataObject
) -> None:
    one = product(m, n, k, layout, pair, ending)
    tile = tuple(data.draw(st.integers(1, e)) for e in (m, n))
    routine = blocked(one, tile, data.draw(st.integers(1, 3)), terms, HOST)
    given = operands(one, m * n)
    tolerance = 1e-4 if pair[0] is bfloat16 else 0
    agree(one, routine, given, {}, native=True, scalar=False, tolerance=tolerance)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("pair", [PAIRS[0], PAIRS[1], PAIRS[4]], ids=str)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn"])
def test_words_in_the_interpreter(pair: Pair, layout: str) -> None:
    """Complete words, then one that k does not fill, in two blocks."""
    for k, terms in ((8, 100), (13, 2)):
        one = product(17, 5, k, layout, pair)
        routine = blocked(one, (17, 5), 1, terms, WORDS)
        agree(one, routine, operands(one, k), {}, native=False, scalar=True)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("pair", PAIRS[:2], ids=str)
def test_words_of_whole_groups_but_for_the_last(pair: Pair) -> None:
    """Words are copied in groups of eight; where k leaves the last word of a group incomplete."""
    word = 2 if pair[0] is bfloat16 else 4
    for k in {16 * word - 1, 15 * word + 1, 24 * word - 1}:
        one = product(17, 3, k, "nn", pair)
        routine = blocked(one, (17, 3), 1, 200, WORDS)
        agree(one, routine, operands(one, k), {}, native=False, scalar=True)


def test_words_of_run_time_rows_and_columns() -> None:
    rows, columns = Dim("m", 1, 60), Dim("n", 1, 60)
    for pair in PAIRS[:2]:
        one = product(rows, columns, 13, "nn", pair)
        routine = blocked(one, (60, 60), 1, 100, HOST)
        agree(one, routine, None, {rows: 47, columns: 23}, native=True, scalar=False)


@pytest.mark.parametrize(("pair", "name"), [(PAIRS[0], "dpbf16ps"), (PAIRS[1], "vpdpbusd")])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_words_are_one_instruction(pair: Pair, name: str, layout: str) -> None:
    one = product(64, 64, 64, layout, pair)
    text = emit_routine(lower(one, scheduled(one, WORDS)), WORDS)
    assert name in text
    assert "@llvm.masked.gather" not in text
    assert "@llvm.masked.scatter" not in text
    assert name not in emit_routine(lower(one, scheduled(one, HOST)), replace(HOST, dots=()))


def test_few_rows_stay_as_they_are() -> None:
    one = product(16, 64, 64, "nn", PAIRS[0])
    words = replace(ZEN4, dots=WORDS.dots)
    assert all(s.product is None or s.product.word == 1 for s in start(one, words).steps)


@pytest.mark.parametrize("rows", [12, 16])
def test_few_rows_that_are_packed_anyway_are_words(rows: int) -> None:
    """Turned, they would be copied into panels of float32."""
    one = product(rows, 64, 64, "nt", PAIRS[0])
    known = recognise(one.stages[0], WORDS, 1)
    assert known is not None and known.word == 2


@pytest.mark.parametrize("pair", PAIRS[1:], ids=str)
def test_bytes_at_their_extremes(pair: Pair) -> None:
    """Nothing saturates: 5000 products of the largest bytes."""
    one = product(20, 20, 5000, "nn", pair)
    given = {v: np.full(v.shape, v.dtype.range()[0] or 255, v.dtype.numpy) for v in one.reads}
    agree(one, blocked(one, (20, 20), 1, 1000, HOST), given, {}, True, False, tolerance=0)


def launched(f: Any, *arrays: Array) -> tuple[Array, Kernel, str]:
    """The result of a function, its only kernel, and the text of that kernel's loops."""
    jitted = pb.jit(f)
    found = jitted(*(pb.tensor(a) for a in arrays)).numpy()
    executable = jitted.last.executable
    (one,) = executable.kernels
    routine = lower(one, scheduled(one, executable.target))
    return found, one, routine_text(routine)


def case(name: str) -> tuple[Any, tuple[Array, ...]]:
    """Everyday code around one product of 64 x 96 x 80."""
    rng = np.random.default_rng(3)
    x, w, y = (rng.standard_normal(s).astype(np.float32) for s in ((64, 96), (96, 80), (64, 80)))
    q = rng.integers(-127, 128, w.shape).astype(np.int8)
    mask, keep = rng.random(w.shape) > 0.5, rng.random(x.shape) > 0.5
    scale, bias = w[0], y[0]
    cases: dict[str, tuple[Any, tuple[Array, ...]]] = {
        "dequantised": (lambda x, q, s: x @ (q.astype(np.float32) * s), (x, q, scale)),
        "zero point": (lambda x, q, s: x @ ((q.astype(np.float32) - 8.0) * s), (x, q, scale)),
        "masked": (lambda x, w, m: x @ (w * m.astype(np.float32)), (x, w, mask)),
        "dropout": (lambda x, w, k: (x * 2.0 * k.astype(np.float32)) @ w, (x, w, keep)),
        "residual": (lambda x, w, y: (x @ w) * 0.5 + y, (x, w, y)),
        "update": (lambda x, g, w: w - 0.5 * (x.T @ g), (x, y, w)),
        "bias": (lambda x, w, b: abs(x @ w + b), (x, w, bias)),
    }
    return cases[name]


PROLOGUES = ("dequantised", "zero point", "masked", "dropout")


def close(found: Array, want: Array) -> None:
    np.testing.assert_allclose(found, want, rtol=0, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("name", PROLOGUES)
def test_a_prologue_is_part_of_the_packing(name: str) -> None:
    """One kernel: a side is computed once, where it is copied near; the sums read the copy."""
    f, arrays = case(name)
    found, one, text = launched(f, *arrays)
    close(found, f(*arrays))
    assert len(one.writes) == 1
    lines = [line.strip() for line in text.splitlines()]
    computed = [line for line in lines if "float32(" in line]
    assert computed
    assert all(line.startswith(("panel", "left", "tile")) for line in computed)


@pytest.mark.parametrize("name", ["residual", "update", "bias"])
def test_an_epilogue_runs_on_the_register_tile(name: str) -> None:
    """One kernel, one step: the maps follow each block, and nothing of the sums is stored."""
    f, arrays = case(name)
    found, one, _ = launched(f, *arrays)
    close(found, f(*arrays))
    plan = choose(one, HOST)
    (step,) = plan.steps
    assert step.product is not None
    assert len(step.stages) == len(one.stages) == 2
    assert one.stages[0].store is None
    assert plan.scratch_bytes == 0


def test_a_dequantised_side_keeps_its_columns_in_lanes() -> None:
    """Its rows are contiguous though it is computed: results are not scattered."""
    f, arrays = case("dequantised")
    _, one, _ = launched(f, *arrays)
    assert start(one, HOST).steps[0].vector == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["bfloat16", "int8"])
def test_threads_do_not_change_bits(kind: str) -> None:
    rng = np.random.default_rng(5)
    a, b = rng.integers(-9, 9, (300, 320)), rng.standard_normal((320, 280))
    dtype = ml_dtypes.bfloat16 if kind == "bfloat16" else np.int8
    one, other = a.astype(dtype), (b * 9).astype(dtype)

    def f(x: Any, y: Any) -> Any:
        return x @ y if kind == "bfloat16" else x.astype(np.int32) @ y.astype(np.int32)

    found = []
    for threads in (1, 2, 4):
        jitted = pb.jit(f, options=Options(threads=threads, cache=None))
        found.append(jitted(pb.tensor(one), pb.tensor(other)).numpy())
    assert found[0].tobytes() == found[1].tobytes() == found[2].tobytes()


@pytest.mark.parametrize(("channels", "column"), [(512, 1), (64, 0)])
def test_lanes_lie_where_lines_are_soon_full(channels: int, column: int) -> None:
    """A result 18 KB from the next one takes a line of its own, nine times for a 3x3 weight."""
    c, n, size = channels, 2, 7
    dy, x = variable("dy", n, c, size, size), variable("x", n, c, size + 2, size + 2)

    def body(o: Any, i: Any, p: Any, q: Any, m: Any, y: Any, z: Any) -> Any:
        return E.Mul(read(dy, m, o, y, z), read(x, m, i, E.Add(y, p), E.Add(z, q)))

    gradient = define("dw", (c, c, 3, 3), body, over=(n, size, size))
    one = kernel((), stage(gradient, (), variable("w", c, c, 3, 3)))
    (step,) = start(one, named_target("x86-64-v4")).steps
    assert step.vector == column


@pytest.mark.parametrize(("channels", "apart"), [(64, True), (32, False)])
def test_blocks_that_lie_apart_are_on_their_way(channels: int, apart: bool) -> None:
    """Weights of an adjoint are packed by 32 channels of each output; of 32 they are one stream."""
    rng = np.random.default_rng(0)
    dy = rng.standard_normal((1, channels, 7, 7)).astype("float32")
    w = rng.standard_normal((channels, channels, 3, 3)).astype("float32")

    def adjoint(dy: Any, w: Any) -> Any:
        x = pb.zeros(dy.shape)
        return pb.vjp(lambda x: pb.nn.functional.conv2d(x, w, padding=1), x)[1](dy)[0]

    jitted = pb.jit(adjoint)
    jitted(pb.tensor(dy), pb.tensor(w))
    wide = named_target("x86-64-v4")
    routines = [lower(k, scheduled(k, wide)) for k in jitted.last.executable.kernels]
    assert any("prefetch" in routine_text(r) for r in routines) is apart


def test_few_columns_are_no_lanes_where_rows_are_many() -> None:
    x, w = variable("x", 64, 1000), variable("w", 1000, 2)
    y = define("y", (64, 2), lambda i, j, k: E.Mul(read(x, i, k), read(w, k, j)), over=(1000,))
    one = kernel((), stage(y, (), variable("y", 64, 2)))
    product = start(one, named_target("x86-64-v4")).steps[0].product
    assert product is not None and product.column == 0


@pytest.mark.parametrize(("terms", "rows"), [(2048, 8), (2000, 14)])
def test_rows_that_meet_in_the_cache_are_as_many_as_it_holds(terms: int, rows: int) -> None:
    """Rows 8 KB apart lie at one place of each of its ways: 196 x 2048 of 512 columns 5.2 ms by 14
    rows, 4.1 by 8, one Zen 4 core.
    """
    x, w = variable("x", 196, terms), variable("w", 512, terms)
    y = define("y", (196, 512), lambda i, j, k: E.Mul(read(x, i, k), read(w, j, k)), over=(terms,))
    one = kernel((196,), stage(y, (0, None), variable("y", 196, 512)))
    target = named_target("x86-64-v4").on(chosen("zen4"))
    (step,) = scheduled(one, target, (("column.0", 1), ("tile.0", 98))).steps
    assert isinstance(step.loops, TileLoops)
    assert step.loops.rows == rows
