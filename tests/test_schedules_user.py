"""Schedules by hand: each move applied and refused, files, and random ones beside the model's."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import pullback as pb
from lower_support import HOST
from pullback.backends.host.compare import close
from pullback.config import Options
from pullback.errors import OptionError
from pullback.ir.kernel import Kernel
from pullback.ir.text import show
from pullback.lower.kernel import lower
from pullback.schedule.schedule import Left, Place, Right, TileLoops, Way
from pullback.tensor.run.schedules import UserSchedule
from pullback.tensor.run.tune import PRICED, Bench
from pullback.viewer.page import collect

OPTIONS = Options(threads=2, cache=None)
RNG = np.random.default_rng(0)
A = RNG.uniform(0.1, 1.0, (40, 48)).astype(np.float32)
B = RNG.uniform(0.1, 1.0, (48, 36)).astype(np.float32)
X = RNG.uniform(0.1, 1.0, (24, 30)).astype(np.float32)


def product(a: pb.Tensor, b: pb.Tensor) -> Any:
    return pb.define("c[i, j] = sum[k](a[i, k] * b[k, j])", a=a, b=b)


def made(function: Callable[..., Any], *arguments: Any, kernel: Any = None) -> UserSchedule:
    return pb.schedule(pb.jit(function, options=OPTIONS), *arguments, kernel=kernel)


def run(function: Callable[..., Any], schedules: Any, *arguments: Any) -> np.ndarray[Any, Any]:
    found = pb.jit(function, options=OPTIONS, schedules=schedules)(*arguments)
    return np.array(found.numpy())


@pytest.fixture(scope="module")
def matmul() -> UserSchedule:
    return made(product, A, B)


@pytest.fixture(scope="module")
def rows() -> UserSchedule:
    """A product, and stages of its rows."""
    return made(lambda a, b: pb.nn.functional.softmax(a @ b, -1), A, B)


# --- moves


def test_moves_make_new_schedules(matmul: UserSchedule) -> None:
    moved = matmul.tile(i=8, j=16).parallel(4).block(rows=3, vectors=1).reorder("j", "i")
    found = moved.schedule
    assert (found.tile, found.tasks, found.order) == ((8, 16), 4, (1, 0))
    loops = found.steps[0].loops
    assert isinstance(loops, TileLoops) and (loops.rows, loops.columns) == (
        3,
        min(16, HOST.lanes(4)),
    )
    assert matmul.choices == () and moved.tile(9).schedule.tile == (9, 16)
    assert moved.same_sums(matmul)
    assert np.array_equal(run(product, moved, A, B), run(product, (), A, B))


def test_a_plain_nest_becomes_a_tuned_one(matmul: UserSchedule) -> None:
    plain = matmul.plain()
    steps = plain.schedule.steps
    assert [s.way for s in steps] == [Way.SWEEP] and steps[0].vector is None
    assert (plain.schedule.tile, plain.schedule.tasks) == ((40, 36), 1)
    lanes = plain.vectorize("j").unroll(4)
    assert lanes.schedule.steps[0].vector == 1 and lanes.same_sums(plain)
    tiles = lanes.tile(i=20).block(rows=4)
    assert tiles.schedule.steps[0].way is Way.TILES and not tiles.same_sums(lanes)
    packed = tiles.pack()
    loops = packed.schedule.steps[0].loops
    assert isinstance(loops, TileLoops) and loops.right is not Right.IN_PLACE
    assert packed.plain() == plain
    wanted = A.astype(np.float64) @ B.astype(np.float64)
    for moved in (plain, lanes, tiles, packed):
        assert np.allclose(run(product, moved, A, B), wanted, rtol=1e-6), moved
    assert np.array_equal(run(product, plain, A, B), run(product, lanes, A, B))
    assert np.array_equal(run(product, tiles, A, B), run(product, packed, A, B))


def test_a_plain_nest_has_one_of_all(matmul: UserSchedule) -> None:
    found = matmul.plain().schedule
    assert found.steps[0].loops.unroll == 1 and found.scratch_bytes == 0  # type: ignore[union-attr]
    assert "vector" not in show(lower(matmul.kernel, found))


def test_plain_is_one_loop_nest_for_each_stage(rows: UserSchedule) -> None:
    found = rows.plain().schedule
    assert [s.stages for s in found.steps] == [(n,) for n in range(len(rows.kernel.stages))]
    assert all(s.vector is None for s in found.steps) and found.tasks == 1


def test_columns_follow_the_lanes(matmul: UserSchedule) -> None:
    turned = matmul.vectorize("i")
    assert turned.schedule.steps[0].product.column == 0  # type: ignore[union-attr]
    across = matmul.vectorize("k")
    assert across.schedule.steps[0].way is Way.SWEEP and across.schedule.steps[0].vector == 2
    assert matmul.vectorize(None).schedule.steps[0].vector is None


# The strategies of AbstractTensor.lisp's runtimes by their names: each is a move of a schedule.
# `scalar` and `disabled` are one thing here: a loop without lanes.
STRATEGIES: dict[str, Callable[[UserSchedule], UserSchedule]] = {
    "vector": lambda s: s.vectorize("j").unroll(1),
    "unroll": lambda s: s.vectorize("j").unroll(4),
    "disabled": lambda s: s.vectorize(None),
    "scalar": lambda s: s.plain(),
}
WIDE = {"vector": (1, 3), "unroll": (4, 9), "disabled": (0, 0), "scalar": (0, 0)}


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_source_of_a_strategy_of_vectorising(name: str) -> None:
    options = Options(threads=1, target="x86-64-v3", cache=None)
    x = RNG.normal(size=(6, 64)).astype(np.float32)
    own = STRATEGIES[name](pb.schedule(pb.jit(pb.sin, options=options), x))
    jitted = pb.jit(pb.sin, options=options, schedules=[own])
    np.testing.assert_allclose(jitted(x).numpy(), np.sin(x), rtol=1e-6, atol=1e-6)
    source = jitted.program.source()
    least, most = WIDE[name]
    assert least <= source.count("load <8 x float>") <= most
    assert source.count("load <8 x float>") == source.count("store <8 x float>")


FIVE = np.ones((2, 3, 4, 5, 6), np.float32)
LOOPS: dict[str, tuple[Callable[..., Any], Any, Any, str]] = {
    "flatten": (pb.sin, FIVE, None, r"for \(int64_t (\w+) = 0; \1 < 720;"),
    "ndarray": (lambda x: pb.sin(x[:, :, ::2]), FIVE, None,
                r"(?s) < 12;.*for \(int64_t (\w+) = 0; \1 < 30;"),
    "static": (pb.sin, X, None, r"for \(int64_t (\w+) = 0; \1 < 720;"),
    "dynamic": (pb.sin, X, [(pb.dim("n", 1, 64), 30)], r"for \(int64_t (\w+) = 0; \1 < v_\d+;"),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOPS)
def test_the_source_of_indexing_and_scoping(name: str) -> None:
    function, x, shapes, loop = LOOPS[name]
    options = Options(backend="c", threads=1, target="x86-64-v3", cache=None)
    jitted = pb.jit(function, options=options, shapes=shapes)
    jitted(x)
    source = jitted.program.source().partition("restrict x_a0")[2]
    assert re.search(loop, source), source
    assert name not in ("flatten", "static") or source.count("for (") == 1


def test_a_stage_leaves_its_register() -> None:
    def layer(a: pb.Tensor, b: pb.Tensor) -> Any:
        return pb.tanh(a @ b)

    s = made(layer, A, B)
    moved = s.place(0, "scratch")
    homes = [t.schedule.residences[0].place for t in (s, moved, moved.place(0, "register"))]
    assert homes == [Place.REGISTER, Place.SCRATCH, Place.REGISTER]
    assert moved.same_sums(s) and len(moved.schedule.steps) == 2
    assert np.array_equal(run(layer, moved, A, B), run(layer, (), A, B))
    assert s.place(0, "memory").schedule.residences[0].place is Place.MEMORY


def test_a_stage_kept_in_a_later_result_can_live_in_scratch() -> None:
    def softmax(x: pb.Tensor) -> Any:
        return pb.softmax(x, axis=1)

    s = made(softmax, X)
    (held,) = [n for n, r in enumerate(s.schedule.residences) if r.host is not None]
    moved = s.place(held, "scratch")
    homes = [t.schedule.residences[held].place for t in (s, moved, moved.place(held, "memory"))]
    assert homes == [Place.MEMORY, Place.SCRATCH, Place.MEMORY]
    assert np.array_equal(run(softmax, moved, X), run(softmax, (), X))
    assert "asked for: place" in str(moved)


REFUSED: dict[str, tuple[Callable[[UserSchedule], Any], str]] = {
    "tile of no axis": (lambda s: s.tile(k=4), "outer axes are i, j"),
    "tile of nothing": (lambda s: s.tile(i=0), "tile.0 = 0"),
    "tile beyond": (lambda s: s.tile(i=41), "from 1 to 40"),
    "a broken tile": (lambda s: s.tile(i=2.5), "whole number"),
    "tiles of three axes": (lambda s: s.tile(1, 2, 3), "outer axis"),
    "an axis twice": (lambda s: s.reorder("i", "i"), "each axis once"),
    "no tasks": (lambda s: s.parallel(0), "tasks = 0"),
    "lanes of no axis": (lambda s: s.vectorize("z"), "axes of 0 are i, j, k"),
    "no such stage": (lambda s: s.vectorize("i", stage=3), "its stages are 0 c"),
    "unrolled register tiles": (lambda s: s.unroll(2), "block"),
    "vectors that no register holds": (lambda s: s.block(vectors=99), "vectors.0 = 99"),
    "panels of a plain loop": (lambda s: s.plain().pack(), "block"),
    "panels of what must be packed": (lambda s: s.vectorize("i").pack(False), "side by side"),
    "a result elsewhere": (lambda s: s.place(0, "scratch"), "others read"),
    "nowhere": (lambda s: s.place(0, "disk"), "register, scratch or memory"),
    "no such choice": (lambda s: s.choose("speed", 9), "free are"),
    "a first stage apart": (lambda s: s.apart(0), "apart.0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_moves_are_refused_with_what_is_free(matmul: UserSchedule, name: str) -> None:
    move, reason = REFUSED[name]
    with pytest.raises(OptionError, match=reason) as error:
        move(matmul)
    assert error.value.code == "E381" and __file__ in str(error.value)


def test_which_stage_is_asked(rows: UserSchedule) -> None:
    with pytest.raises(OptionError, match=r"which stage\?"):
        rows.vectorize(None)
    step = rows.schedule.steps[-1]
    assert rows.vectorize(None, stage=step.stages[0]).schedule.steps[-1].vector is None


def test_parts_of_sums_keep_their_order() -> None:
    s = made(lambda x: pb.sum(pb.exp(x)), np.ones(400_000, np.float32))
    assert s.kernel.stages[0].partial
    with pytest.raises(OptionError, match="parts of one sum"):
        s.reorder("i")
    with pytest.raises(OptionError, match="each task keeps its part"):
        s.place(0, "scratch")
    assert not s.tile(i=1000).same_sums(s)


def test_an_order_turns_the_loops(matmul: UserSchedule) -> None:
    s = matmul.plain().tile(i=10, j=4)
    turned = s.reorder("j")
    nests = [show(lower(t.kernel, t.schedule)) for t in (s, turned)]
    loops = [[line.strip() for line in nest.splitlines() if "seq t" in line] for nest in nests]
    assert loops == [["seq t0 in 0..4:", "seq t1 in 0..9:"], ["seq t0 in 0..9:", "seq t1 in 0..4:"]]
    assert turned.same_sums(s)
    assert np.array_equal(run(product, turned, A, B), run(product, s, A, B))
    levels = [t.schedule.steps[0].level for t in (s, turned)]
    assert levels == [2, 2] and turned.reorder("i", "j").schedule.order == ()


def test_an_order_hoists_what_it_lets(rows: UserSchedule) -> None:
    """Stages stand inside of as many loops as they need, in the order that there is."""

    def outer(x: pb.Tensor, y: pb.Tensor) -> Any:
        return pb.define("z[i, j] = sum[k](x[i, k] * x[i, k]) * y[i, j]", x=x, y=y)

    s = made(outer, X, X)
    assert len(s.kernel.outer) < 2 or s.reorder("j").schedule.order == (1, 0)
    orders = [s.choose("order", n) for n in s.free.get("order", ())]
    for turned in orders:
        assert np.array_equal(run(outer, turned, X, X), run(outer, (), X, X))


def test_tasks_need_tiles(matmul: UserSchedule) -> None:
    with pytest.raises(OptionError, match="too few for 4 tasks"):
        matmul.tile(i=40, j=36).parallel(4)
    assert matmul.tile(i=10, j=36).parallel(4).schedule.tasks == 4


def test_columns_that_tiles_cut_to_one() -> None:
    """They are plain sums then, which add up in another order."""

    def weights(x: pb.Tensor, d: pb.Tensor) -> Any:
        return pb.define("w[o, r] = sum[n, p](d[n, o, p] * x[n, r + p])", x=x, d=d, sizes={"r": 3})

    x, d = RNG.uniform(size=(2, 15)), RNG.uniform(size=(2, 8, 13))
    s = made(weights, x.astype(np.float32), d.astype(np.float32)).block().vectorize("i")
    narrow, wide = s.tile(i=1), s.tile(i=4)
    assert not narrow.same_sums(s) and wide.same_sums(s)


def test_operands_are_where_they_are_asked_for() -> None:
    def product(a: pb.Tensor, b: pb.Tensor) -> Any:
        return pb.define("c[i, j] = sum[k]((a[i, k] + a[i, k] * a[i, k]) * b[k, j])", a=a, b=b)

    a, b = (RNG.uniform(size=(160, 160)).astype(np.float32) for _ in range(2))
    s = made(product, a, b).tile(i=40, j=80).vectorize("j").block(rows=4, vectors=2)
    own = s.schedule.steps[0].loops
    assert isinstance(own, TileLoops)
    wanted = run(product, s, a, b)
    moves = [("left.0", 0), ("left.0", 1), ("right.0", 0), ("right.0", 1), ("right.0", 3)]
    seen = set()
    for name, value in moves:
        moved = s.choose(name, value)
        loops = moved.schedule.steps[0].loops
        assert isinstance(loops, TileLoops) and moved.same_sums(s)
        found = loops.left if name == "left.0" else loops.right
        assert found is [*(Left if name == "left.0" else Right)][value]
        assert np.array_equal(run(product, moved, a, b), wanted), moved
        seen.add((loops.left, loops.right))
    assert len(seen) >= 4
    deep = s.block(terms=128)
    ahead = deep.choose("right.0", 0).choose("ahead.0", 1).schedule.steps[0].loops
    assert isinstance(ahead, TileLoops) and ahead.ahead and ahead.terms == 128
    assert np.array_equal(
        run(product, deep.choose("scattered.0", 1), a, b), run(product, deep, a, b)
    )
    with pytest.raises(OptionError, match="one of"):
        deep.choose("right.0", 3)


def test_panels_of_what_a_tile_computes_are_refused() -> None:
    """A gradient's columns are made in the tile that sums over them."""

    def layer(x: pb.Tensor, w: pb.Tensor, v: pb.Tensor) -> Any:
        return pb.grad(lambda w, v: pb.sum((pb.tanh(x @ w) @ v) ** 2), argnums=(0, 1))(w, v)

    f = pb.jit(layer, options=OPTIONS)
    f(*(RNG.uniform(size=size).astype(np.float32) for size in ((32, 40), (40, 48), (48, 10))))
    refused = []
    for number in range(len(f.program.distinct())):
        s = pb.schedule(f, kernel=number)
        for name in [n for n in s.free if n.startswith("right")]:
            try:
                s.choose(name, 1)
            except OptionError as error:
                refused.append(str(error))
    assert any("is computed in the tile" in text for text in refused)


# --- kernels


def test_a_kernel_by_name_or_number() -> None:
    def gradients(a: pb.Tensor, b: pb.Tensor) -> Any:
        return pb.grad(lambda a, b: pb.sum(pb.sin(a @ b) ** 2), argnums=(0, 1))(a, b)

    f = pb.jit(gradients, options=OPTIONS)
    with pytest.raises(OptionError, match="no program") as error:
        pb.schedule(f)
    assert error.value.code == "E380"
    wide = RNG.uniform(size=(600, 600)).astype(np.float32)
    wanted = [g.numpy().copy() for g in f(wide, wide)]
    kernels = f.program.distinct()
    assert len(kernels) > 1
    with pytest.raises(OptionError, match="which kernel"):
        pb.schedule(f)
    with pytest.raises(OptionError, match="no kernel 'none'"):
        pb.schedule(f, kernel="none")
    last = pb.schedule(f.program, kernel=len(kernels) - 1)
    assert last.kernel is kernels[-1] or last.kernel.name == kernels[-1].name
    every = [pb.schedule(f, kernel=n).tile(200).parallel(3) for n in range(len(kernels))]
    g = pb.jit(gradients, options=OPTIONS, schedules=every)
    for s, found, right in zip(every, g(wide, wide), wanted, strict=False):
        assert np.array_equal(found.numpy(), right)
        assert g.program.chosen(s.kernel, s.target).tasks == 3


def test_interpreters_and_budgets_take_none(matmul: UserSchedule) -> None:
    for backend in ("reference", "kernels"):
        with pytest.raises(OptionError, match=backend) as error:
            pb.jit(product, options=Options(backend=backend), schedules=matmul)(A, B)
        assert error.value.code == "E384"
    with pytest.raises(OptionError, match="budget"):
        pb.jit(product, memory="1GB", schedules=matmul)(A, B)


def test_a_page_shows_the_schedule_of_each_program(matmul: UserSchedule) -> None:
    programs = {}
    for name, schedules in (("model", ()), ("hand", [matmul.tile(i=8)]), ("again", ())):
        f = pb.jit(product, options=OPTIONS, schedules=schedules)
        f(A, B)
        programs[name] = f.program
    data = collect("schedules", programs)
    shown = [p["kernels"][0]["schedule"] for p in data["programs"]]
    assert "asked for: tile.0 = 8" in shown[1] and "asked" not in shown[0]
    assert shown[0] == shown[2] and len(data["codes"]) == 2


@pytest.mark.parametrize("vectors", [1, 2, 3, 4])
def test_lanes_of_three_vectors_end_where_a_tile_does(vectors: int) -> None:
    """Of a tile that is cut off, whole groups of vectors are counted, whatever their number."""

    def layer(a: pb.Tensor, b: pb.Tensor) -> Any:
        return pb.tanh(a @ b)

    a, b = RNG.uniform(size=(33, 40)), RNG.uniform(size=(40, 35))
    s = made(layer, a, b)
    if vectors not in s.free["vectors.0"]:
        pytest.skip("this processor has registers for fewer vectors")
    found = run(layer, s.tile(8, 32).block(vectors=vectors), a, b)
    assert np.array_equal(found, run(layer, (), a, b))


# --- searches


def test_a_search_by_any_measure(matmul: UserSchedule) -> None:
    def far(s: UserSchedule) -> float:
        tile = s.schedule.tile
        return abs(tile[0] - 4) + abs(tile[1] - 6) + (0 if s.schedule.order else 3)

    found = matmul.best(far, tries=300)
    assert (found.schedule.tile, found.schedule.order) == ((4, 6), (1, 0))
    assert matmul.best(far, tries=1).choices == ()
    assert found.best(far, tries=1) == found


def test_a_search_by_a_stopwatch(matmul: UserSchedule) -> None:
    plain = matmul.plain()
    for search in ("beam", "random", "price"):
        found = plain.tuned(seconds=0.3, search=search, options=OPTIONS)
        assert np.allclose(run(product, found, A, B), A @ B, rtol=1e-5)
    with pytest.raises(OptionError, match="beam"):
        plain.tuned(search="luck")


def test_a_price_is_of_the_schedule(matmul: UserSchedule) -> None:
    assert matmul.price.ns < matmul.plain().price.ns
    cheap = matmul.plain().best(lambda s: s.price.ns, tries=30)
    assert cheap.price.ns < matmul.plain().price.ns / 2


def test_a_search_by_price_measures_few(matmul: UserSchedule) -> None:
    bench = Bench(matmul.kernel, OPTIONS)
    outcome = bench.tuned(1.0, ["price"])
    assert outcome.tries <= PRICED + 1 and list(outcome.found_us) == ["price"]
    assert bench.priced([(("tile.0", 4),), (("tile.0", 999),)])[1] == inf


# --- files


def test_a_schedule_is_saved_and_read_back(matmul: UserSchedule, tmp_path: Path) -> None:
    path = tmp_path / "product.json"
    moved = matmul.tile(i=8, j=36).parallel(5).block(rows=4)
    moved.save(path)
    assert matmul.load(path) == moved and json.loads(path.read_text())["kernel"] == "c"
    f = pb.jit(product, options=OPTIONS, schedules=path)
    assert np.array_equal(f(A, B).numpy(), run(product, (), A, B))
    (kernel,) = f.program.kernels
    assert f.program.chosen(kernel, matmul.target).tile == (8, 36)
    assert "asked for: rows.0 = 4, tasks = 5" in f.program.explain()


def test_the_cache_knows_schedules(matmul: UserSchedule, tmp_path: Path) -> None:
    options = Options(threads=2, cache=tmp_path)
    compiled = []
    for rows in (3, 4, 3):
        f = pb.jit(product, options=options, schedules=matmul.block(rows=rows))
        f(A, B)
        compiled.append(f.program.stats.compiled)
    assert compiled == [1, 1, 0]


DAMAGED = {
    "empty": "",
    "a list": "[]",
    "nothing": "{}",
    "another version": '{"schedule": 99, "structure": "a", "choices": {}}',
    "no choices": '{"schedule": 1, "structure": "a"}',
    "text for a number": '{"schedule": 1, "structure": "a", "choices": {"tasks": "2"}}',
    "a true number": '{"schedule": 1, "structure": "a", "choices": {"tasks": true}}',
    "a number for text": '{"schedule": 1, "structure": 5, "choices": {}}',
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_files_are_named(matmul: UserSchedule, tmp_path: Path, name: str) -> None:
    path = tmp_path / "some.json"
    path.write_text(DAMAGED[name])
    for read in (matmul.load, lambda p: pb.jit(product, schedules=p)):
        with pytest.raises(OptionError, match=r"some\.json") as error:
            read(path)
        assert error.value.code == "E382" and __file__ in str(error.value)


def test_files_that_are_not_there(matmul: UserSchedule, tmp_path: Path) -> None:
    for act in (matmul.load, matmul.save):
        with pytest.raises(OptionError, match="other") as error:
            act(tmp_path / "other" / "x.json")
        assert error.value.code == "E382"


def test_schedules_of_other_kernels(
    matmul: UserSchedule, rows: UserSchedule, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "rows.json"
    rows.save(path)
    with pytest.raises(OptionError, match="another kernel") as error:
        matmul.load(path)
    assert error.value.code == "E383"
    with pytest.raises(OptionError, match="no schedule that is given"):
        run(product, path, A, B)
    with pytest.raises(OptionError, match="no schedule that is given"):
        run(product, matmul, A[:39], B)
    with caplog.at_level(logging.WARNING, logger="pullback"):
        run(product, [matmul, path], A, B)
    assert "for no kernel" in caplog.text
    with pytest.raises(OptionError, match="differ"):
        run(product, [matmul.tile(i=8), matmul.tile(i=4)], A, B)
    for wrong in (5, [5], None):
        with pytest.raises(OptionError, match="schedules="):
            pb.jit(product, schedules=wrong)  # type: ignore[arg-type]


# --- any legal schedule


def _scatter(x: pb.Tensor) -> Any:
    at = pb.astype(pb.floor(x[:, 0] * 5.0), "int64")
    return pb.define("y[p, j] = sum[i](where(at[i] == p, x[i, j], 0))", x=x, at=at, sizes={"p": 6})


CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "product": (product, (A, B)),
    "turned product": (lambda a, b: pb.sin(a.T) @ b, (A, A)),
    "rows": (lambda a, b: pb.nn.functional.softmax(a @ b, -1), (A, B)),
    "layer norm": (lambda x: pb.nn.functional.layer_norm(x, (30,)), (X,)),
    "map": (lambda x: pb.exp(x.T) * 2.0 + pb.sin(x.T), (X,)),
    "batches": (lambda a: a @ pb.tanh(a.mT), (RNG.uniform(size=(3, 17, 20)),)),
    "running sum": (lambda x: pb.cumulative_sum(x * x, axis=1), (X,)),
    "tall sum": (lambda x: pb.sum(x * x, axis=0), (RNG.uniform(size=(3000, 5)),)),
    "whole sum": (lambda x: pb.sum(x * x), (RNG.uniform(size=200_000).astype(np.float32),)),
    "guarded": (_scatter, (X,)),
    "triangle": (lambda x: pb.tril(x @ x.T) @ x, (X,)),
}
DRAWS = 20  # of each


def drawn(s: UserSchedule, random: Random) -> UserSchedule:
    """A few choices at random, one after the other; what others rule out is left."""
    for _ in range(random.randint(1, 6)):
        name = random.choice(list(s.free))
        try:
            s = s.choose(name, random.choice(s.free[name]))
        except OptionError:
            continue
    return s


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CASES)
def test_random_schedules_give_the_same_results(name: str) -> None:
    function, arguments = CASES[name]
    compiled = pb.jit(function, options=OPTIONS)
    compiled(*arguments)
    random = Random(name)
    for number, kernel in enumerate(compiled.program.distinct()):
        own = pb.schedule(compiled, kernel=number)
        bench = Bench(kernel, OPTIONS)
        known: set[Any] = set()
        for _ in range(DRAWS // len(compiled.program.distinct())):
            s = drawn(own, random)
            if s.choices not in known:
                known.add(s.choices)
                _same(bench, kernel, s, own)
        assert len(known) > 3


def _same(bench: Bench, kernel: Kernel, s: UserSchedule, own: UserSchedule) -> None:
    found = bench.results(bench.compiled(s.choices))
    for value, wanted, variable in zip(found, bench.wanted, kernel.writes, strict=True):
        if s.same_sums(own):
            assert np.array_equal(value, wanted), s.choices
        else:
            assert close(value, wanted, variable.dtype), s.choices
