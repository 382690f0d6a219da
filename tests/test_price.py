"""The price of launches: read from loop nests, beside times, and never below the bound."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

import pullback as pb
from price_bound import bound
from pullback.backends.host.processor import named_target
from pullback.backends.nests.analysis import Facts, Varying
from pullback.backends.nests.ports import Lane, Reader
from pullback.backends.nests.price import Walk, nest_price, price
from pullback.backends.nests.reuse import crowded, spanned
from pullback.backends.nests.samples import ROUGH, SAMPLES, sampled
from pullback.cost.price import Price
from pullback.ir import expr as E
from pullback.ir.dtype import float32
from pullback.ir.expr import index
from pullback.ir.graph import SUM
from pullback.ir.kernel import Kernel
from pullback.ir.nest import (
    Array,
    Combine,
    Declare,
    For,
    Load,
    LoopKind,
    Peek,
    Register,
    Routine,
    Store,
    Transpose,
    Var,
)
from pullback.ir.target import Target
from pullback.lower.kernel import lower
from pullback.lower.whole import scheduled
from pullback.machine.machine import chosen
from pullback.schedule.tiling import revisited_bytes

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from suite import model  # noqa: E402

TARGET = named_target("x86-64-v4").on(chosen("zen5"))


def kernels(function: Any, *shapes: tuple[int, ...]) -> list[Kernel]:
    drawn = function, model.floats(*shapes)
    return list(model.kernels(Random(0), lambda _: drawn, TARGET))


def priced(function: Any, *shapes: tuple[int, ...], target: Target = TARGET) -> Price:
    (kernel,) = kernels(function, *shapes)
    return price(kernel, scheduled(kernel, target), target)


def faster(table: str, name: str, times: float) -> Target:
    """The machine with one number changed."""
    machine = TARGET.profile
    changed = {**machine.tables[table], name: machine.tables[table][name] / times}
    tables = MappingProxyType({**machine.tables, table: MappingProxyType(changed)})
    return replace(TARGET, machine=replace(machine, tables=tables))


def test_a_product_costs_its_multiply_adds() -> None:
    found = priced(lambda a, b: a @ b, (256, 256), (256, 256))
    peak = 256**3 / 16 * TARGET.profile.rate("unit", "multiply_add")
    assert peak <= found.arithmetic <= 1.1 * peak
    assert found.ns <= 1.4 * peak


def test_a_distance_is_no_product() -> None:
    shapes = (256, 64), (256, 64)
    product = priced(lambda a, b: a @ pb.permute_dims(b, (1, 0)), *shapes)
    distance = priced(lambda a, b: pb.sum(pb.abs(a[:, None] - b[None]), axis=2), *shapes)
    assert distance.ns > 2 * product.ns


def test_a_distance_is_grouped_as_none() -> None:
    """Its value and a gradient share a launch, which rows of a product would forbid."""

    def function(a: Any, b: Any, head: Any) -> Any:
        y = pb.sum(pb.abs(a[:, None] - b[None]), axis=2)
        return [y, *pb.grad(y, [a, b], head=head)]

    assert len(kernels(function, (256, 64), (256, 64), (256, 256))) == 2


def test_memories_by_footprint() -> None:
    near = priced(lambda x: x * 2.0, (1024,))
    assert not any(ns for _, ns in near.memories)
    for name, size in (("L2", 1 << 16), ("L3", 1 << 20), ("memory", 1 << 24)):
        parts = dict(priced(lambda x: x * 2.0, (size,)).memories)
        assert max(parts, key=parts.__getitem__) == name
        memory = next(m for m in TARGET.profile.memories if m.name == name)
        wanted = 4 * size / memory.read + 4 * size / memory.write
        assert parts[name] == pytest.approx(wanted, rel=0.3)


def test_a_transposed_copy_costs_more_than_a_plain_one() -> None:
    plain = priced(lambda x: x * 2.0, (512, 512))
    turned = priced(lambda x: pb.permute_dims(x, (1, 0)) * 2.0, (512, 512))
    assert turned.ns > 1.5 * plain.ns


def test_functions_by_their_table() -> None:
    slow, fast = TARGET, faster("float32", "exp", 2.0)
    before, after = (priced(pb.exp, (256,), target=t) for t in (slow, fast))
    assert before.arithmetic > 1.5 * after.arithmetic


def test_a_quotient_by_a_power_of_two_is_a_shift() -> None:
    def quotients(by: int) -> float:
        return priced(
            lambda x: pb.astype(pb.astype(x, "int32") // by, "float32"), (4096,)
        ).arithmetic

    assert quotients(5) > 1.5 * quotients(16)


def test_integers_are_priced_in_front_of_loops() -> None:
    """``y[64 i + k] = x[64 (5 i % 7) + k]``: a remainder for each i, not for each k."""
    x, y = Array("x", float32, 448), Array("y", float32, 6400)
    i, k = Var("i", 0, 99), Var("k", 0, 63)

    def nest(changing: Var) -> float:
        row = E.Mod(E.Mul(changing, index(5)), index(7))
        read = Load(x, E.Add(E.Mul(row, index(64)), k))
        store = Store(y, E.Add(E.Mul(i, index(64)), k), read)
        inner = For(k, index(0), index(64), (store,))
        body = (For(i, index(0), index(100), (inner,)),)
        routine = Routine("rows", (x, y), (), (), (), Var("task", 0, 0), 1, body)
        return nest_price(routine, TARGET).arithmetic

    assert nest(k) > 1.5 * nest(i)


def test_sums_that_wait_for_one_another() -> None:
    """One sum after the other, and four beside one another."""

    def one(count: int) -> float:
        x, y = Array("x", float32, 4096), Array("y", float32, count)
        total, k, r = Register("s", float32, (count,)), Var("k", 0, 1023), Var("r", 0, count - 1)
        place = E.Add(E.Mul(k, index(count)), r)
        step = Combine(total, (r,), SUM, Load(x, place))
        body = (
            Declare(total, E.Const(0.0, float32)),
            For(k, index(0), index(1024), (each(r, count, step),)),
            each(r, count, Store(y, r, Peek(total, (r,)))),
        )
        routine = Routine("sums", (x, y), (), (), (), Var("task", 0, 0), 1, body)
        return nest_price(routine, TARGET).arithmetic

    def each(r: Var, count: int, *body: Any) -> For:
        return For(r, index(0), index(count), body, LoopKind.UNROLL)

    assert one(1) == pytest.approx(1024 * TARGET.profile.rate("unit", "chain"), rel=0.1)
    assert one(2) < 1.2 * one(1)


def test_tasks_and_launches_are_parts() -> None:
    found = priced(lambda x: pb.exp(x), (1024, 1024))
    assert found.tasks > 0 and found.launch > 0 and "tasks" in str(found)
    assert found.ns >= found.arithmetic


def test_triangles_cost_half() -> None:
    def lower_part(a: Any) -> Any:
        k = pb.axis(256)
        return pb.compute((256,), lambda i: pb.sum(pb.where(k <= i, a[i, k], 0.0), over=k))

    half, whole = priced(lower_part, (256, 256)), priced(lambda a: pb.sum(a, axis=1), (256, 256))
    assert half.ns < 0.9 * whole.ns


def test_turns_stand_for_all() -> None:
    for turns in (1, 2, 7, 8, 9, 100):
        found = sampled(turns, 1)
        assert sum(count for _, count in found) == pytest.approx(turns)
        assert found[-1] == (turns - 1, 1.0)
    assert spanned([(64, 8), (4, 16)], 4) == 8 * 64
    assert spanned([(4096, 8), (4, 16)], 4) == 8 * 64


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", model.CLASSES)
def test_the_bound_is_below(kind: str) -> None:
    rng = Random(len(kind))
    for _ in range(4):
        for kernel in model.kernels(rng, model.CLASSES[kind], TARGET):
            found = price(kernel, scheduled(kernel, TARGET), TARGET)
            assert 0 < bound(kernel, TARGET) <= found.ns, kernel.name
            assert np.isfinite(found.ns)


def test_explain_prints_the_parts() -> None:
    program = pb.jit(lambda x: pb.exp(x))
    program(pb.ones((64, 64)))
    assert "price " in program.program.explain() and "arithmetic" in program.program.explain()


def test_the_model_is_measured(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    model.report(5, 4, "elementwise", str(out))
    shown = capsys.readouterr().out
    assert "median factor" in shown and "worst" in shown and '"factor"' in out.read_text()


def test_a_nest_without_a_kernel() -> None:
    (kernel,) = kernels(lambda x: x + 1.0, (100,))
    routine = lower(kernel, scheduled(kernel, TARGET))
    assert nest_price(routine, TARGET).ns == price(kernel, scheduled(kernel, TARGET), TARGET).ns
    assert revisited_bytes(kernel, (), ()) == 0


def panel(rows: int, columns: int) -> float:
    """The price of a panel that is copied, in units of a whole element's."""
    size = rows * columns
    source, target = Array("x", float32, size), Array("y", float32, size)
    zero = index(0)
    copy = Transpose(target, zero, rows, source, zero, columns, index(rows), index(columns))
    routine = Routine("copy", (source, target), (), (), (), Var("task", 0, 0), 1, (copy,))
    busy = nest_price(routine, TARGET).packing
    return busy / TARGET.profile.rate("unit", "pack")


def test_a_block_at_an_edge_costs_a_whole_one_masked() -> None:
    """90 x 3 elements of stride 2: 34 ns for 20, a whole block of 16 x 16 8.3, one Zen 5 core. Of
    few squares the size is known.
    """
    masked = TARGET.profile.rate("unit", "pack_masked") / TARGET.profile.rate("unit", "pack")
    assert panel(32, 16) == pytest.approx(512, rel=0.02)
    assert panel(20, 3) == pytest.approx(512, rel=0.02)
    assert panel(90, 3) == pytest.approx(6 * 256 * masked, rel=0.02)
    assert panel(64, 20) == pytest.approx(64 * 16 * (1 + masked), rel=0.02)


def test_a_panel_is_written_by_whole_lines() -> None:
    """Square blocks fill lines: 32 x 4096 elements move twice their bytes, not a line each."""
    assert panel(32, 4096) < 4 * 32 * 4096


def test_sums_are_added_up_together() -> None:
    """Sixteen vectors become one by 15 times two shuffles and an addition, one by four halvings."""
    reader, lane = (
        Reader(TARGET, TARGET.profile, Facts(), {}),
        Lane(Varying(Var("i", 0, 15), frozenset()), 16, 1),
    )
    shuffle, plain = (TARGET.profile.rate("unit", name) for name in ("shuffle", "plain"))
    assert reader.folded(lane, 1) == pytest.approx(4 * (shuffle + plain))
    assert reader.folded(lane, 16) == pytest.approx(15 * (2 * shuffle + plain))
    assert reader.folded(lane, 32) == pytest.approx(2 * reader.folded(lane, 16))


def test_lines_that_share_places_of_a_cache() -> None:
    """32 rows 18 KB apart have two places of a cache of 4 KB a way, 16 rows each."""
    assert crowded([(18432, 32)], 4, 4096) == 16
    assert crowded([(18432, 32), (36, 8)], 4, 4096) == 16
    assert crowded([(4096, 51)], 4, 4096) == 51
    assert crowded([(64, 32)], 64, 4096) == 1
    assert crowded([], 4, 4096) == 1


def test_results_that_share_places_are_fetched_again() -> None:
    """51 channels of 32 x 32 in lanes, 4 KB apart: 505 us, before they went there by squares; a row
    of a picture in lanes 63.
    """
    convolve = partial(model.F.conv2d, stride=1, padding=1)
    (kernel,) = (
        k for k in kernels(convolve, (2, 8, 32, 32), (51, 8, 3, 3)) if len(k.stages[-1].shape) == 4
    )
    last = len(kernel.stages) - 1
    one, other = (
        price(kernel, scheduled(kernel, TARGET, ((f"column.{last}", column),)), TARGET)
        for column in (1, 3)
    )
    near = dict(one.memories)["L2"]
    assert near > 10 * dict(other.memories)["L2"]
    assert one.ns > 1.5 * other.ns


def test_bounds_that_loops_decide_are_no_data() -> None:
    """The rows of a picture at its edge: fewer terms, and no reads at random."""
    convolve = partial(model.F.conv2d, padding=1)
    (kernel,) = kernels(convolve, (4, 16, 16, 16), (15, 16, 3, 3))
    last = len(kernel.stages) - 1
    made = price(kernel, scheduled(kernel, TARGET, ((f"column.{last}", 1),)), TARGET)
    assert dict(made.memories)["L2"] < made.arithmetic / 4


def test_rough_prices_are_near_exact_ones() -> None:
    """Edges of tiles are looked at: all of the two of 256 and 29 rows."""
    (kernel,) = kernels(lambda a, b: a.T @ b, (97, 285), (97, 202))
    for column in (0, 1):
        made = scheduled(kernel, TARGET, (("column.0", column), ("tasks", 1)))
        rough, exact = (price(kernel, made, TARGET, n).ns for n in (ROUGH, SAMPLES))
        assert rough == pytest.approx(exact, rel=0.1)


def test_turns_that_are_alike_are_looked_at_once() -> None:
    """Of nine tiles of rows the last is another: two groups, which stand for eight and one."""
    (kernel,) = kernels(lambda a, b: a @ b.T, (285, 64), (64, 64))
    made = scheduled(kernel, TARGET, (("column.0", 1), ("tasks", 1), ("tile.0", 32)))
    routine = lower(kernel, made)
    (loop,) = (s for s in routine.body if isinstance(s, For))
    walker = Walk(routine, TARGET, SAMPLES)
    walker.at.values[routine.task] = 0.0
    groups = walker.at.alike(loop, 0, 9, 1, SAMPLES)
    assert sorted(count for _, count in groups) == [1, 8]
    rough, exact = (nest_price(routine, TARGET, n).ns for n in (ROUGH, SAMPLES))
    assert rough == pytest.approx(exact, rel=0.05)


def test_rows_at_places_that_are_data() -> None:
    """Each row that is read comes again where the array leaves the second level: what is priced
    grows with the number of places, and with the bytes of a row.
    """

    def ns(count: int, columns: int) -> float:
        def read(x: Any, at: Any) -> Any:
            return pb.sum(x[at], axis=0)

        shapes = (pb.zeros((20_000, columns)), pb.zeros((count,), dtype=pb.int32))
        compiled = pb.jit(read, options=pb.Options(backend="llvm"))
        compiled(*shapes)
        own = compiled.program.distinct()
        memories = [dict(price(k, scheduled(k, TARGET), TARGET).memories) for k in own]
        return sum(sum(memory.values()) for memory in memories)

    assert 1.8 < ns(400_000, 64) / ns(200_000, 64) < 2.2
    assert 1.7 < ns(200_000, 128) / ns(200_000, 64) < 3


def test_rows_of_a_sparse_matrix() -> None:
    """Rows share the values among them: of ten times as many rows each has a tenth."""

    def arithmetic(rows: int) -> float:
        pointers = pb.tensor(np.linspace(0, 100_000, rows + 1).astype(np.int32))
        places = pb.zeros((100_000,), dtype=pb.int32)
        compiled = pb.jit(pb.sparse.csr_matmul, options=pb.Options(backend="llvm"))
        compiled(pb.zeros((100_000,)), places, pointers, pb.zeros((5_000, 16)))
        own = compiled.program.distinct()
        return max(price(k, scheduled(k, TARGET), TARGET).arithmetic for k in own)

    assert 5e4 < arithmetic(10_000) < 1e6
    assert 0.5 < arithmetic(1_000) / arithmetic(10_000) < 1.1


def test_two_places_that_are_data_are_one_place_a_turn() -> None:
    """``y[r[i], c[i]] += v[i]`` costs about what ``y[k[i]] += v[i]`` does, of as many elements."""
    n = 64
    places = np.zeros((4096, 2), np.int64)
    v = np.zeros((4096, 8), np.float32)

    def written(v: Any, at: Any) -> Any:
        return pb.define(
            "y[i,j,c] = sum[p](where((A[p,0] == i) & (A[p,1] == j), v[p,c], 0))",
            A=at, v=v, sizes={"i": n, "j": n},
        )  # fmt: skip

    def flat(v: Any, at: Any) -> Any:
        return pb.define(
            "y[k,c] = sum[p](where(A[p,0] * 64 + A[p,1] == k, v[p,c], 0))",
            A=at, v=v, sizes={"k": n * n},
        )  # fmt: skip

    def ns(function: Any) -> float:
        compiled = pb.jit(function, options=pb.Options(backend="llvm"))
        compiled(v, places)
        return sum(price(k, scheduled(k, TARGET), TARGET).ns for k in compiled.program.distinct())

    assert 0.4 < ns(written) / ns(flat) < 3
