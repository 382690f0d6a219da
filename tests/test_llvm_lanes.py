"""Vector loops: every length, every stride, masks and reductions; buffers between guard pages."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from llvm_support import AVX2, AVX512, HOST, TARGETS, Fenced, load, loop, routine, vector, zero
from pullback.backends.llvm.emit import emit_routine
from pullback.backends.nests.analysis import Facts, plan_lanes
from pullback.errors import InvalidIR
from pullback.ir import expr as E
from pullback.ir.dtype import (
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int8,
    int32,
    int64,
    uint8,
)
from pullback.ir.expr import Expr, index
from pullback.ir.graph import ALL, ANY, MAX, MIN, PROD, SUM, Combiner
from pullback.ir.nest import (
    Array,
    Combine,
    Declare,
    Guard,
    Load,
    Peek,
    Register,
    Set,
    Store,
    StoreCombine,
    Var,
)
from pullback.ir.target import Target

LENGTHS = range(71)
KINDS = [bool_, int8, uint8, float16, bfloat16, int32, float32, int64, float64]
SIZE = Var("n", 0, 70)
V = Var("v", 0, 69)


def data(kind: DType, count: int) -> np.ndarray[Any, Any]:
    random = np.random.default_rng(count)
    if kind.is_bool:
        return random.random(count) < 0.5
    if kind.is_float:
        return random.normal(size=count).astype(kind.numpy)
    return random.integers(0, 100, count).astype(kind.numpy)


def doubled(x: Expr) -> Expr:
    return E.Xor(x, E.Const(True, bool_)) if x.dtype.is_bool else E.Add(x, x)


def doubled_array(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return ~x if x.dtype == np.bool_ else x + x


def fenced_run(
    offset: Callable[[Expr, Expr], Expr], kind: DType, target: Target, stride: int
) -> None:
    """``y[offset] = 2 x[offset]`` for every length, against both fences."""
    count = 70 * stride
    x, y = Array("x", kind, count), Array("y", kind, count)
    at = offset(V, SIZE)
    call = load(
        [routine([x, y], [vector(V, SIZE, Store(y, at, doubled(Load(x, at))))], [SIZE])], target
    )[0]
    for n in LENGTHS:
        span = max(0, (n - 1) * stride + 1)
        values = data(kind, span)
        for at_end in (True, False):
            source = Fenced(values, at_end)
            out = Fenced(np.zeros_like(values), at_end)
            call([source.array, out.array], [n])
            wanted = np.zeros_like(values)
            wanted[::stride] = doubled_array(values[::stride])
            np.testing.assert_array_equal(out.array.astype(np.float64), wanted.astype(np.float64))


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_contiguous(kind: DType, target: Target) -> None:
    fenced_run(lambda v, n: v, kind, target, 1)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_reversed(kind: DType) -> None:
    fenced_run(lambda v, n: E.Add(E.Add(n, index(-1)), E.negate(v)), kind, HOST, 1)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("stride", [2, 3, 4, 5])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_strided(kind: DType, stride: int, target: Target) -> None:
    fenced_run(lambda v, n: E.Mul(v, index(stride)), kind, target, stride)


@pytest.mark.parametrize("stride", [2, 3, 4])
def test_the_last_lanes_of_a_stride_are_picked_too(stride: int) -> None:
    """Out of vectors under a mask, as the others are out of whole ones: no gather."""
    x, y = Array("x", float32, 70 * stride), Array("y", float32, 70)
    store = Store(y, V, doubled(Load(x, E.Mul(V, index(stride)))))
    for length, sizes in ((SIZE, [SIZE]), (70, [])):
        text = emit_routine(routine([x, y], [vector(V, length, store)], sizes), AVX2)
        assert "gather" not in text
        assert text.count("masked.load") >= stride


def test_the_stack_begins_with_a_whole_vector() -> None:
    """Vectors that wait there would cross lines where a call leaves 16 bytes of one."""
    x, y = Array("x", float32, 70), Array("y", float32, 70)
    text = emit_routine(routine([x, y], [vector(V, 70, Store(y, V, Load(x, V)))]), AVX2)
    (head,) = (line for line in text.splitlines() if "@body(" in line)
    assert '"stackrealign"' in head


@pytest.mark.sampled(6)
@pytest.mark.parametrize("shift", [0, 1, 4, 8])
@pytest.mark.parametrize("times", [2, 3, 4, 8])
@pytest.mark.parametrize("kind", [float32, float64, int8], ids=str)
def test_repeated(kind: DType, times: int, shift: int) -> None:
    """``y[v] = x[(v + shift) // times] where (v + shift) % times < 2 else 0``, at both fences."""
    x, y = Array("x", kind, 80), Array("y", kind, 70)
    at = E.Add(V, index(shift))
    value = Load(x, E.FloorDiv(at, index(times)))
    picked = E.If(E.Less(E.Mod(at, index(times)), index(2)), value, E.const(0, kind))
    call = load([routine([x, y], [vector(V, SIZE, Store(y, V, picked))], [SIZE])])[0]
    for n in LENGTHS[1:]:
        places = np.arange(n) + shift
        values = data(kind, int(places[-1]) // times + 1)
        wanted = np.where(places % times < 2, values[places // times], 0)
        for at_end in (True, False):
            out = Fenced(np.zeros(n, kind.numpy), at_end)
            call([Fenced(values, at_end).array, out.array], [n])
            np.testing.assert_array_equal(out.array, wanted)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("place", [0, 1, 3])
@pytest.mark.parametrize("times", [2, 4, 8])
@pytest.mark.parametrize("kind", [float32, float64, int8], ids=str)
def test_one_of_each_group(kind: DType, times: int, place: int, target: Target) -> None:
    """``y[v] = x[v // times * times + place]``, at both fences: no gather, nothing read beyond."""
    x, y = Array("x", kind, 80), Array("y", kind, 70)
    first = E.Mul(E.FloorDiv(V, index(times)), index(times))
    value = Load(x, E.Add(first, index(place)))
    made = routine([x, y], [vector(V, SIZE, Store(y, V, value))], [SIZE])
    assert "gather" not in emit_routine(made, target)
    call = load([made], target)[0]
    for n in LENGTHS[1:]:
        places = np.arange(n) // times * times + place
        values = data(kind, int(places[-1]) + 1)
        for at_end in (True, False):
            out = Fenced(np.zeros(n, kind.numpy), at_end)
            call([Fenced(values, at_end).array, out.array], [n])
            np.testing.assert_array_equal(out.array, values[places])


@pytest.mark.parametrize("stride", [2, 3, 4])
def test_lanes_that_lie_apart_are_stored_under_masks(stride: int) -> None:
    """Where the processor has registers for masks: no scatter."""
    x, y = Array("x", float32, 70), Array("y", float32, 70 * stride)
    store = Store(y, E.Mul(V, index(stride)), doubled(Load(x, V)))
    text = emit_routine(routine([x, y], [vector(V, SIZE, store)], [SIZE]), AVX512)
    assert "scatter" not in text
    assert text.count("call void @llvm.masked.store") >= stride


@pytest.mark.parametrize("unroll", [1, 2, 4])
@pytest.mark.parametrize("n", [1, 5, 16, 17, 31, 32, 33, 64, 70])
def test_literal_lengths(n: int, unroll: int) -> None:
    x, y = Array("x", float32, n), Array("y", float32, n)
    at = Var("v", 0, n - 1)
    body = vector(at, n, Store(y, at, doubled(Load(x, at))), unroll=unroll)
    source = Fenced(data(float32, n))
    out = Fenced(np.zeros(n, np.float32))
    load([routine([x, y], [body])])[0]([source.array, out.array])
    np.testing.assert_array_equal(out.array, 2 * source.array)


def halved(value: Expr, levels: int) -> Expr:
    """``value = v < 2^k ? value : value / 2`` so many times, from the largest power down."""
    for k in reversed(range(levels)):
        half = E.Mul(value, E.Const(0.5, float32))
        value = E.If(E.Less(V, index(2**k)), value, half)
    return value


@pytest.mark.parametrize("n", [1, 2, 3, 5, 6, 7, 13, 31, 60])
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("kind", [int8, bfloat16, float32, float64], ids=str)
def test_literal_lengths_either_way(kind: DType, target: Target, n: int) -> None:
    """The last lanes in parts, along memory and against it, between fences."""
    x, y, z = (Array(name, kind, n) for name in "xyz")
    back = E.Add(index(n - 1), E.negate(V))
    stores = Store(y, V, doubled(Load(x, V))), Store(z, back, doubled(Load(x, V)))
    made = routine([x, y, z], [vector(V, n, *stores)])
    call = load([made], target)[0]
    values = data(kind, n)
    for at_end in (True, False):
        source = Fenced(values, at_end)
        one, other = (Fenced(np.zeros_like(values), at_end) for _ in range(2))
        call([source.array, one.array, other.array], [])
        wanted = doubled_array(values).astype(np.float64)
        np.testing.assert_array_equal(one.array.astype(np.float64), wanted)
        np.testing.assert_array_equal(other.array.astype(np.float64), wanted[::-1])


def test_no_store_of_known_lanes_is_under_a_mask() -> None:
    """Where a processor has no registers for masks; of unknown lengths the last vector alone is."""
    x, y = Array("x", float32, 70), Array("y", float32, 70)
    store = Store(y, V, doubled(Load(x, V)))
    for length, sizes, times in ((60, [], 0), (SIZE, [SIZE], 1)):
        text = emit_routine(routine([x, y], [vector(V, length, store, unroll=4)], sizes), AVX2)
        assert text.count("call void @llvm.masked.store") == times


def test_what_both_sides_read_is_computed_once() -> None:
    """Not once for each way through the Ifs: code is as long as the expression."""
    x, y = Array("x", float32, 70), Array("y", float32, 70)

    def code(levels: int) -> str:
        body = vector(V, SIZE, Store(y, V, halved(Load(x, V), levels)))
        return emit_routine(routine([x, y], [body], [SIZE]), HOST)

    short, long = code(4), code(8)
    assert short.count(" fmul ") and long.count(" fmul ") == 2 * short.count(" fmul ")
    assert long.count("load <") == short.count("load <")
    body = vector(V, SIZE, Store(y, V, halved(Load(x, V), 8)))
    call = load([routine([x, y], [body], [SIZE])])[0]
    source = Fenced(data(float32, 70))
    out = Fenced(np.zeros(70, np.float32))
    call([source.array, out.array], [70])
    wanted = source.array.copy()
    for k in reversed(range(8)):
        wanted[2**k :] /= 2
    np.testing.assert_array_equal(out.array, wanted)


def test_what_both_sides_guard_stays_guarded() -> None:
    """``x[v + 1]`` is read where the test within each side holds: the fence is not touched."""
    x, y = Array("x", float32, 70), Array("y", float32, 70)
    here, after = Load(x, V), Load(x, E.Add(V, index(1)))
    inside = E.Less(E.Add(V, index(1)), SIZE)
    first = E.If(inside, after, zero(float32))
    second = E.If(inside, E.Mul(after, here), zero(float32))
    picked = E.If(E.Less(here, zero(float32)), first, second)
    call = load([routine([x, y], [vector(V, SIZE, Store(y, V, picked))], [SIZE])])[0]
    for n in LENGTHS[1:]:
        source, out = Fenced(data(float32, n)), Fenced(np.zeros(n, np.float32))
        call([source.array, out.array], [n])
        own = source.array
        next_one = np.append(own[1:], np.float32(0))
        wanted = np.where(own < 0, next_one, next_one * own)
        wanted[-1] = 0
        np.testing.assert_array_equal(out.array, wanted)


def test_gather_and_scatter_by_data() -> None:
    """``y[order[v]] = x[order[v]]`` with int64 and int32 indices."""
    for kind in (int64, int32):
        x, y, order = Array("x", float32, 70), Array("y", float32, 70), Array("o", kind, 70)
        at: Expr = Load(order, V)
        at = at if kind is int64 else E.Cast(at, int64)
        call = load([routine([x, y, order], [vector(V, SIZE, Store(y, at, Load(x, at)))], [SIZE])])[
            0
        ]
        for n in LENGTHS:
            picks = np.random.default_rng(n).permutation(n).astype(kind.numpy)
            arrays = [Fenced(data(float32, n)), Fenced(np.zeros(n, np.float32)), Fenced(picks)]
            call([a.array for a in arrays], [n])
            np.testing.assert_array_equal(arrays[1].array, arrays[0].array)


def test_the_untaken_branch_is_not_read() -> None:
    """``v >= 2 and v < n - 3 ? (x < 0 ? z : x)[v - 2] : -1``: shifted reads at both fences."""
    x, y, z = Array("x", float32, 70), Array("y", float32, 70), Array("z", float32, 70)
    inside = E.And(E.Less(index(1), V), E.Less(V, E.Add(SIZE, index(-3))))
    shifted, other = (Load(a, E.Add(V, index(-2))) for a in (x, z))
    nested = E.If(E.Less(shifted, zero(float32)), other, shifted)
    store = Store(y, V, E.If(inside, nested, E.Const(-1.0, float32)))
    for build in (vector, loop):
        call = load([routine([x, y, z], [build(V, SIZE, store)], [SIZE])])[0]
        for n in LENGTHS:
            source = Fenced(data(float32, max(0, n - 5)), at_end=n % 2 == 0)
            negative = Fenced(100 * source.array, at_end=n % 2 == 0)
            out = Fenced(np.zeros(n, np.float32))
            call([source.array, out.array, negative.array], [n])
            wanted = np.full(n, -1, np.float32)
            wanted[2 : max(2, n - 3)] = np.where(source.array < 0, negative.array, source.array)
            np.testing.assert_array_equal(out.array, wanted)


def test_uniform_condition_and_broadcast_read() -> None:
    """``flag[0] ? x[0] : 7`` where x is not there at all when the flag is off."""
    flag, x, y = Array("f", bool_, 1), Array("x", float32, 1), Array("y", float32, 70)
    value = E.If(Load(flag, index(0)), Load(x, index(0)), E.Const(7.0, float32))
    call = load([routine([flag, x, y], [vector(V, SIZE, Store(y, V, value))], [SIZE])])[0]
    nothing = Fenced(np.zeros(0, np.float32))
    out = np.zeros(33, np.float32)
    call([np.array([False]), nothing.array, out], [33])
    np.testing.assert_array_equal(out, 7)
    call([np.array([True]), np.array([3], np.float32), out], [33])
    np.testing.assert_array_equal(out, 3)


def test_lane_varying_guard() -> None:
    """Inside a guard neither memory nor a lane's register changes where it is off."""
    x, y, z = Array("x", float32, 70), Array("y", float32, 70), Array("z", float32, 70)
    r = Register("r", float32)
    odd = E.Equal(E.Mod(V, index(2)), index(1))
    body = [
        Declare(r, E.Const(5.0, float32)),
        Guard(odd, (Set(r, (), Load(x, E.FloorDiv(V, index(2)))), Store(z, V, Peek(r, ())))),
        Store(y, V, Peek(r, ())),
    ]
    call = load([routine([x, y, z], [vector(V, SIZE, *body)], [SIZE])])[0]
    for n in LENGTHS:
        source = Fenced(data(float32, n // 2))
        y_out, z_out = Fenced(np.zeros(n, np.float32)), Fenced(np.full(n, 9, np.float32))
        call([source.array, y_out.array, z_out.array], [n])
        flags = np.arange(n) % 2 == 1
        picked = np.zeros(n, np.float32)
        picked[flags] = source.array
        np.testing.assert_array_equal(y_out.array, np.where(flags, picked, 5))
        np.testing.assert_array_equal(z_out.array, np.where(flags, picked, 9))


def test_uniform_guard_and_loop_inside_lanes() -> None:
    """Column sums: ``for v in lanes: r = 0; for k: if k != 2: r += x[k, v]``."""
    rows, k, r = 5, Var("k", 0, 4), Register("r", float32)
    x, y = Array("x", float32, 350), Array("y", float32, 70)
    at = E.Add(E.Mul(k, SIZE), V)
    keep = E.logical_not(E.Equal(k, index(2)))
    inner = loop(k, rows, Guard(keep, (Combine(r, (), SUM, Load(x, at)),)))
    body = vector(V, SIZE, Declare(r, zero(float32)), inner, Store(y, V, Peek(r, ())))
    call = load([routine([x, y], [body], [SIZE])])[0]
    for n in LENGTHS:
        source, out = Fenced(data(float32, rows * n)), Fenced(np.zeros(n, np.float32))
        call([source.array, out.array], [n])
        wanted = source.array.reshape(rows, n)[[0, 1, 3, 4]].sum(0)
        np.testing.assert_allclose(out.array, wanted, rtol=1e-5, atol=1e-6)


REDUCERS: list[tuple[Combiner, list[DType], Any]] = [
    (SUM, [int32, int64, float16, float32, float64], np.sum),
    (PROD, [int32, float64], np.prod),
    (MAX, [int8, uint8, int64, float32, float64, bfloat16], np.max),
    (MIN, [int8, int64, float32], np.min),
    (ANY, [bool_], np.any),
    (ALL, [bool_], np.all),
]


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize(
    ("combiner", "kind", "wanted"),
    [pytest.param(c, k, f, id=f"{c.name}-{k}") for c, kinds, f in REDUCERS for k in kinds],
)
def test_reductions(combiner: Combiner, kind: DType, wanted: Any, target: Target) -> None:
    x, y, r = Array("x", kind, 200), Array("y", kind, 1), Register("r", kind)
    start = combiner.identity(kind)
    size, v = Var("n", 0, 200), Var("v", 0, 199)
    body = [
        Declare(r, start),
        vector(v, size, Combine(r, (), combiner, Load(x, v)), unroll=4),
        Store(y, index(0), Peek(r, ())),
    ]
    call = load([routine([x, y], body, [size])], target)[0]
    for n in [*range(0, 70, 3), 128, 200]:
        values = data(kind, n)
        if combiner is ALL:
            values |= n % 2 == 0
        values = np.clip(values, 1, 2).astype(kind.numpy) if combiner is PROD else values
        out = np.zeros(1, kind.numpy)
        call([Fenced(values).array, out], [n])
        exact = wanted(values.astype(np.float64) if kind.is_float else values) if n else start.value
        if kind.is_integer and combiner in (SUM, PROD):
            exact = wanted(values, dtype=kind.numpy)
        tolerance = {16: 1e-2, 32: 1e-5}.get(kind.bits, 1e-12)
        np.testing.assert_allclose(float(out[0]), float(exact), rtol=tolerance, atol=tolerance)


def totals(count: int, kind: DType, target: Target, beside: bool) -> np.ndarray[Any, Any]:
    """The sums of `count` rows of 70, taken in one loop; stored in lanes if `beside`."""
    x, y, r = Array("x", kind, 70 * count), Array("y", kind, count), Register("r", kind, (count,))
    v, j, out = Var("v", 0, 69), Var("j", 0, count - 1), Var("o", 0, count - 1)
    term = Load(x, E.Add(E.Mul(j, index(70)), v))
    store = Store(y, out, Peek(r, (out,)))
    body = [
        Declare(r, SUM.identity(kind)),
        vector(v, 70, loop(j, count, Combine(r, (j,), SUM, term), unroll=True)),
        vector(out, count, store) if beside else loop(out, count, store, unroll=True),
    ]
    found = np.zeros(count, kind.numpy)
    load([routine([x, y], body)], target)[0]([data(kind, 70 * 33)[: 70 * count], found])
    return found


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("kind", [float32, float64, int32], ids=str)
@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 15, 16, 17, 33])
def test_lanes_of_several_sums_are_joined_together(count: int, kind: DType, target: Target) -> None:
    """Each total has its place, and its bits do not depend on how many go together."""
    single = one_by_one(kind, target)
    for beside in (False, True):
        found = totals(count, kind, target, beside)
        np.testing.assert_array_equal(found, single[:count])


@functools.cache
def one_by_one(kind: DType, target: Target) -> np.ndarray[Any, Any]:
    """Each of 33 rows by itself."""
    x, y, r = Array("x", kind, 70), Array("y", kind, 1), Register("r", kind)
    v = Var("v", 0, 69)
    add = vector(v, 70, Combine(r, (), SUM, Load(x, v)))
    body = [Declare(r, SUM.identity(kind)), add, Store(y, index(0), Peek(r, ()))]
    call = load([routine([x, y], body)], target)[0]
    found = np.zeros((33, 1), kind.numpy)
    for row, out in zip(data(kind, 70 * 33).reshape(33, 70), found, strict=True):
        call([row, out])
    np.testing.assert_allclose(found[:, 0], data(kind, 70 * 33).reshape(33, 70).sum(1), rtol=1e-4)
    return found[:, 0]


@pytest.mark.parametrize("combiner", [MAX, MIN, SUM], ids=lambda c: c.name)
def test_reductions_keep_nan(combiner: Combiner) -> None:
    x, y, r = Array("x", float32, 69), Array("y", float32, 1), Register("r", float32)
    v = Var("v", 0, 68)
    body = [
        Declare(r, combiner.identity(float32)),
        vector(v, 69, Combine(r, (), combiner, Load(x, v))),
        Store(y, index(0), Peek(r, ())),
    ]
    call = load([routine([x, y], body)])[0]
    for place in range(69):
        values = data(float32, 69)
        values[place] = np.nan
        out = np.zeros(1, np.float32)
        call([values, out])
        assert np.isnan(out[0])


def test_two_reductions_and_a_custom_combiner() -> None:
    """A sum of squares beside ``join(a, b) = a + b + a b``, whose identity is 0."""
    own = Combiner("own", lambda t: zero(t), lambda a, b: E.Add(E.Add(a, b), E.Mul(a, b)))
    x, y = Array("x", float64, 70), Array("y", float64, 2)
    r, s = Register("r", float64), Register("s", float64, (2,))
    value = Load(x, V)
    body = [
        Declare(r, zero(float64)),
        Declare(s, E.Const(1.0, float64)),
        vector(
            V, SIZE, Combine(r, (), own, value), Combine(s, (index(1),), SUM, E.Mul(value, value))
        ),
        Store(y, index(0), Peek(r, ())),
        Store(y, index(1), Peek(s, (index(1),))),
    ]
    call = load([routine([x, y], body, [SIZE])])[0]
    for n in (0, 1, 7, 8, 40, 70):
        values, out = data(float64, n) * 0.3, np.zeros(2)
        call([values, out], [n])
        np.testing.assert_allclose(
            out, [np.prod(1 + values) - 1, 1 + np.sum(values**2)], rtol=1e-11
        )


@pytest.mark.parametrize("combiner", [SUM, MAX, PROD], ids=lambda c: c.name)
def test_store_combine(combiner: Combiner) -> None:
    join = {"sum": np.add, "max": np.maximum, "prod": np.multiply}[combiner.name]
    x, y = Array("x", float32, 70), Array("y", float32, 140)
    at = E.Mul(V, index(2))
    call = load(
        [routine([x, y], [vector(V, SIZE, StoreCombine(y, at, combiner, Load(x, V)))], [SIZE])]
    )[0]
    for n in LENGTHS:
        source, out = Fenced(data(float32, n)), Fenced(data(float32, max(0, 2 * n - 1)))
        wanted = out.array.copy()
        wanted[::2] = join(wanted[::2], source.array)
        call([source.array, out.array], [n])
        np.testing.assert_array_equal(out.array, wanted)


def test_scalar_store_combine_by_data() -> None:
    """An accumulating write in order: ``y[o[k]] += x[k]``, indices repeat."""
    x, o, y = Array("x", float32, 50), Array("o", int32, 50), Array("y", float32, 7)
    k = Var("k", 0, 49)
    at = E.Cast(Load(o, k), int64)
    call = load([routine([x, o, y], [loop(k, 50, StoreCombine(y, at, SUM, Load(x, k)))])])[0]
    values, picks = data(float32, 50), np.random.default_rng(0).integers(0, 7, 50).astype(np.int32)
    out = np.zeros(7, np.float32)
    call([values, picks, out])
    np.testing.assert_allclose(out, np.bincount(picks, values, 7), rtol=1e-5)


def test_mixed_widths_in_one_loop() -> None:
    """int8, bool and float64 side by side: lanes by the widest."""
    a, f, y = Array("a", int8, 70), Array("f", bool_, 70), Array("y", float64, 70)
    value = E.If(Load(f, V), E.Cast(Load(a, V), float64), E.Cast(V, float64))
    call = load([routine([a, f, y], [vector(V, SIZE, Store(y, V, value))], [SIZE])])[0]
    for n in LENGTHS:
        items = [Fenced(data(int8, n)), Fenced(data(bool_, n)), Fenced(np.zeros(n))]
        call([i.array for i in items], [n])
        wanted = np.where(items[1].array, items[0].array, np.arange(n))
        np.testing.assert_array_equal(items[2].array, wanted)


def test_misuse_is_refused() -> None:
    x = Array("x", float32, 4)
    inner, outer = Var("i", 0, 3), Var("o", 0, 3)
    store = Store(x, inner, zero(float32))
    with pytest.raises(InvalidIR, match="inside another"):
        load([routine([x], [vector(outer, 4, vector(inner, 4, store))])])
    with pytest.raises(InvalidIR, match="every lane stores"):
        load([routine([x], [vector(inner, 4, Store(x, index(0), zero(float32)))])])
    with pytest.raises(InvalidIR, match="outside its loop"):
        load([routine([x], [Store(x, inner, zero(float32))])])
    with pytest.raises(InvalidIR, match="not declared"):
        load([routine([], [vector(inner, 4, store)])])


def test_integers_stand_in_front_of_loops() -> None:
    """``for i: for k: y[9 i + k] = x[9 (5 i % 7) + k]``: one remainder for all k, also where the
    loop between is written out.
    """
    x, y = Array("x", float32, 63), Array("y", float32, 6 * 63)
    i, k, r = Var("i", 0, 5), Var("k", 0, 8), Var("r", 0, 6)
    row = E.Mod(E.Add(E.Mul(i, index(5)), r), index(7))
    read = Load(x, E.Add(E.Mul(row, index(9)), k))
    at = E.Add(E.Mul(E.Add(E.Mul(i, index(7)), r), index(9)), k)
    nest = loop(i, 6, loop(k, 9, loop(r, 7, Store(y, at, read), unroll=True)))
    own = routine([x, y], [nest])
    lines = emit_routine(own, HOST).splitlines()
    heads = [n for n, line in enumerate(lines) if line.startswith("loop") and line[-1] == ":"]
    rests = [n for n, line in enumerate(lines) if " urem " in line or " srem " in line]
    assert len(heads) == 2, heads
    assert len(rests) == 7, rests
    assert heads[0] < min(rests), "a remainder of i stands inside of its loop"
    assert max(rests) < heads[1], "a remainder is computed again in each turn of k"
    given, made = np.arange(63, dtype=np.float32), np.zeros(6 * 63, np.float32)
    load([own])[0]([given, made])
    wanted = [given.reshape(7, 9)[(5 * n + m) % 7] for n in range(6) for m in range(7)]
    np.testing.assert_array_equal(made.reshape(42, 9), wanted)


@pytest.mark.parametrize("kind", [float32, float64])
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_the_last_vector_of_a_tile_is_as_wide_as_what_is_left(target: Target, kind: DType) -> None:
    """Sums of rows in registers, of every width; what lies behind is not touched."""
    lanes = target.lanes(kind.itemsize)
    for width in range(1, 3 * lanes):
        i, j = Var("i", 0, 4), Var("j", 0, width - 1)
        tile = Register("tile", kind, (width,))
        x, y = Array("x", kind, 5 * width), Array("y", kind, width)
        read = Load(x, E.Add(E.Mul(i, index(width)), j))
        add = vector(j, width, Combine(tile, (j,), SUM, E.Mul(read, read)))
        store = vector(j, width, Store(y, j, Peek(tile, (j,))))
        own = routine([x, y], [Declare(tile, zero(kind)), loop(i, 5, add), store])
        left, tails = width % lanes, plan_lanes(own, target, Facts()).tails
        if width > lanes and left:
            assert tails[tile] == tails[j] == 1 << (left - 1).bit_length()
        source, out = Fenced(data(kind, 5 * width)), Fenced(np.zeros(width, kind.numpy))
        load([own], target)[0]([source.array, out.array])
        wanted = (source.array.reshape(5, width) ** 2).sum(0)
        np.testing.assert_allclose(out.array, wanted, rtol=1e-5)


def test_a_tile_has_whole_vectors_where_another_loop_needs_them() -> None:
    """Where lanes are added up, or a loop has other ends, all loops over a tile have whole ones."""
    j, k = Var("j", 0, 17), Var("k", 0, 8)
    tile, total = Register("tile", float32, (18,)), Register("total", float32)
    x, y = Array("x", float32, 18), Array("y", float32, 1)
    fill = vector(j, 18, Set(tile, (j,), Load(x, j)))
    added = vector(j, 18, Combine(total, (), SUM, Peek(tile, (j,))))
    short = vector(k, 9, Set(tile, (k,), E.Const(1.0, float32)))
    begin = [Declare(tile, zero(float32)), Declare(total, zero(float32)), fill]
    end = Store(y, index(0), Peek(total, ()))
    summed = routine([x, y], [*begin, added, end])
    for own in (summed, routine([x, y], [*begin, short, end])):
        tails = plan_lanes(own, AVX2, Facts()).tails
        assert tails[tile] == tails[j] == AVX2.lanes(4)
    source, out = Fenced(data(float32, 18)), Fenced(np.zeros(1, np.float32))
    load([summed], AVX2)[0]([source.array, out.array])
    np.testing.assert_allclose(out.array, source.array.sum(), rtol=1e-5)
