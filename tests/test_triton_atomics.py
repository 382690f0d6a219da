"""Accumulating writes on a GPU: owners, parts, shares and atomics compute the same."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.backends.reference.kernels import run_kernel
from pullback.backends.registry import named as backend_of
from pullback.backends.triton import atomics, choose, plan
from pullback.backends.triton.backend import interpreted, loaded, orders
from pullback.backends.triton.blocks import Group, Way
from pullback.backends.triton.choose import best, start
from pullback.backends.triton.machine import named, names
from pullback.backends.triton.offline import compiled
from pullback.backends.triton.price import Work
from pullback.backends.triton.schedule import BlockSchedule, parsed
from pullback.backends.triton.text import prices_text, read_back, schedules_text
from pullback.config import Options
from pullback.errors import IndexRangeError, OptionError
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
    uint32,
    uint64,
)
from pullback.ir.expr import Axis
from pullback.ir.graph import COMBINERS, Accumulate, Combiner, Definition, Variable, read
from pullback.ir.kernel import Kernel, Stage

ABSENT = importlib.util.find_spec("triton") is None
needs_triton = pytest.mark.skipif(ABSENT, reason="Triton is not installed")
pytestmark = [needs_triton, pytest.mark.torch]
H100 = named("h100")
Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)
N = 36
I, V = RNG.integers(0, 9, N), RNG.normal(size=N).astype(np.float32)

# Owners, in parts, in shares, in both; at once, and to parts of their own.
OWNERS = [
    BlockSchedule(4),
    BlockSchedule(2, chunks=4),
    BlockSchedule(4, shares=4),
    BlockSchedule(8, chunks=2, shares=8),
]
ATOMIC = [BlockSchedule(32, atomic=True), BlockSchedule(16, chunks=8, atomic=True)]


def kernel_of(
    name: str, kind: DType, terms: int, places: int, combiner: Combiner | None = None
) -> Kernel:
    """``y[at[i]] = combine v[i]``"""
    at, v = Variable("at", (terms,), int64), Variable("v", (terms,), kind)
    i = Axis(0, terms)
    form = Accumulate(combiner or COMBINERS[name], (terms,), (read(at, i),))
    target = Definition("y", (places,), read(v, i), form)
    store = Variable("y", (places,), kind)
    return Kernel("scattered", (), (Stage(target, form, target.body, (), store),))


def wide(rows: int, columns: int) -> Kernel:
    """``y[at[i], j, to[i]] += v[i, j] * 2``, where ``j`` is an axis of both."""
    at, to = (Variable(n, (rows,), int64) for n in ("at", "to"))
    v, store = Variable("v", (rows, columns), float32), Variable("y", (6, columns, 3), float32)
    i, j = Axis(0, rows), Axis(1, columns)
    form = Accumulate(COMBINERS["sum"], (rows, columns), (read(at, i), j, read(to, i)))
    body = E.Mul(read(v, i, j), E.const(2, float32))
    target = Definition("y", store.shape, body, form)
    return Kernel("wide", (), (Stage(target, form, target.body, (), store),))


def scattered(kernel: Kernel) -> Group:
    """The accumulating write of a kernel, as somebody chooses its schedule."""
    asked: list[Group] = []

    def noted(group: Group) -> BlockSchedule:
        asked.append(group)
        return start(group)

    plan.scheduled(kernel, noted)
    (own,) = (group for group in asked if group.way is Way.SCATTER)
    return own


def by(kernel: Kernel, schedule: BlockSchedule, values: dict[Variable, Array]) -> Array:
    """What a kernel writes by a schedule."""
    made = plan.launches(kernel, lambda g: schedule if g.way is Way.SCATTER else start(g))
    return interpreted(kernel, made, loaded(made), values)[kernel.writes[0]]


def drawn(kind: DType, terms: int, odd: bool = True) -> Array:
    """Small numbers of both signs; of floats both zeros, infinities and NaN of both signs."""
    made = np.random.default_rng(terms).integers(-9, 10, terms)
    if kind.is_bool:
        return made > 5
    if not kind.is_float:
        return (made if kind.range()[0] < 0 else made + 9).astype(kind.numpy)
    values = (made / 4).astype(kind.numpy)
    if odd and terms > 20:
        values[[1, 5, 6, 9, 13]] = [np.nan, np.inf, -np.inf, -0.0, np.copysign(np.nan, -1)]
    return values


CASES = [
    *((n, k) for n in ("sum", "prod") for k in (float16, bfloat16, float32, float64, int64)),
    *((n, k) for n in ("max", "min") for k in (float16, bfloat16, float32, float64, int64)),
    *((n, k) for n in ("sum", "max", "min") for k in (int8, int32, uint32, uint64)),
    ("any", bool_),
    ("all", bool_),
]


@pytest.mark.parametrize(("name", "kind"), CASES, ids=[f"{n} {k}" for n, k in CASES])
def test_every_way_computes_the_same(name: str, kind: DType) -> None:
    """With many terms to a place, places without any, NaN and infinities."""
    terms = 30
    kernel = kernel_of(name, kind, terms, 7)
    at, v = kernel.reads if kernel.reads[0].name == "at" else kernel.reads[::-1]
    places = np.random.default_rng(1).integers(0, 5, terms)
    places[[1, 5, 6, 9, 13]] = [0, 1, 2, 3, 6]  # what is odd, each at a place of few others
    values = {at: places, v: drawn(kind, terms)}
    wanted = run_kernel(kernel, values, [])[kernel.writes[0]]
    group, tried = scattered(kernel), 0
    for schedule in (*OWNERS, *ATOMIC):
        if Work.of(group, H100).refusal(schedule) is not None:
            continue
        tried += 1
        got = by(kernel, schedule, values)
        assert got.dtype == wanted.dtype
        if kind.is_float and name in ("sum", "prod"):
            error = {16: 2e-2, 32: 1e-5, 64: 1e-12}[kind.bits]
            np.testing.assert_allclose(
                got.astype(float), wanted.astype(float), rtol=error, atol=error
            )
        else:
            np.testing.assert_array_equal(got.astype(float), wanted.astype(float))
    at_once = atomics.refused(group.stages[0], deterministic=False) is None
    assert tried == len(OWNERS) + at_once * len(ATOMIC)
    assert at_once == (name in atomics.WORDS and kind not in (int8, bool_))


@pytest.mark.parametrize("schedule", [*OWNERS, *ATOMIC], ids=str)
def test_several_indices_and_an_axis_of_both(schedule: BlockSchedule) -> None:
    kernel = wide(23, 5)
    rng = np.random.default_rng(0)
    values = {
        v: rng.integers(0, {"at": 6, "to": 3}[v.name], 23)
        if v.name != "v"
        else rng.integers(-9, 9, (23, 5)).astype(np.float32)
        for v in kernel.reads
    }
    wanted = run_kernel(kernel, values, [])[kernel.writes[0]]
    np.testing.assert_array_equal(by(kernel, schedule, values), wanted)


@pytest.mark.parametrize("terms", [0, 1, 3])
@pytest.mark.parametrize("schedule", [*OWNERS, *ATOMIC], ids=str)
def test_few_terms_and_none(terms: int, schedule: BlockSchedule) -> None:
    kernel = kernel_of("max", float32, terms, 3)
    values = {v: np.zeros(terms, v.dtype.numpy) for v in kernel.reads}
    wanted = np.full(3, -np.inf, np.float32)
    wanted[: min(terms, 1)] = 0
    np.testing.assert_array_equal(by(kernel, schedule, values), wanted)


def test_the_order_of_owners_is_that_of_a_processor() -> None:
    """Shares leave each place its terms in order: the bits are those of a plain loop."""
    kernel = kernel_of("sum", float32, N, 7)
    values = {v: I % 7 if v.name == "at" else V for v in kernel.reads}
    wanted = np.zeros(7, np.float32)
    np.add.at(wanted, I % 7, V)
    assert not np.array_equal(wanted, np.bincount(I % 7, V).astype(np.float32))
    np.testing.assert_array_equal(by(kernel, BlockSchedule(4, shares=4), values), wanted)


def test_an_order_of_the_user_s_stays_with_its_owner() -> None:
    """A combiner that nobody here knows has neither parts nor atomics."""
    last = Combiner("last", lambda t: E.const(0, t), lambda a, b: b)
    kernel = kernel_of("", float32, 30, 5, last)
    order = np.arange(30) % 5
    values = {v: order if v.name == "at" else np.arange(30, dtype="f") for v in kernel.reads}
    group = scattered(kernel)
    assert atomics.refused(group.stages[0], deterministic=False) == "a GPU has no atomic last"
    schedule = best(group, H100)
    assert schedule.chunks == 1 and not schedule.atomic
    assert "order may matter" in str(Work.of(group, H100).refusal(BlockSchedule(4, chunks=2)))
    for own in (BlockSchedule(1), BlockSchedule(4, shares=4)):
        np.testing.assert_array_equal(by(kernel, own, values), np.arange(25.0, 30))


# --- programs


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more programs than the interpreter runs in a moment."""
    monkeypatch.setattr(choose, "MOST_PARTS", 4)
    monkeypatch.setattr(choose, "MOST_SHARES", 2)


def index_add(x: Any, i: Any, v: Any) -> Any:
    return pb.index_add(x, i, v)


def embedding(w: Any, t: Any, g: Any) -> Any:
    return pb.grad(lambda w: pb.sum(pb.nn.functional.embedding(t, w) * g))(w)


def spread(mass: Any, at: Any, grid: Any) -> Any:
    """Particles to a grid, each to its cell and the next, by weight."""
    cell = pb.astype(pb.floor(at), pb.int64)
    rest = at - pb.floor(at)
    return pb.index_add(pb.index_add(grid, cell, mass * (1 - rest)), cell + 1, mass * rest)


def masked(x: Any, i: Any, v: Any) -> Any:
    return pb.index_add(x, pb.where(i < 4, i, 0), pb.where(i < 4, v, 0.0))


PROGRAMS: dict[str, tuple[Callable[..., Any], list[Array]]] = {
    "index_add": (index_add, [np.ones(9, np.float32), I, V]),
    "rows": (index_add, [np.ones((9, 5), np.float32), I, RNG.normal(size=(N, 5))]),
    "halves": (index_add, [np.ones(9, np.float16), I, V.astype(np.float16)]),
    "a histogram": (lambda i: pb.bincount(i, 12), [I]),
    "an embedding": (
        embedding,
        [RNG.normal(size=(9, 4)), I, RNG.normal(size=(N, 4))],
    ),
    "particles": (spread, [V, RNG.uniform(0, 8, N).astype(np.float32), np.zeros(10, np.float32)]),
    "masked": (masked, [np.zeros(4, np.float32), I, V]),
    "maxima": (
        lambda x, i, v: pb.scatter_reduce(x, i, v, "amax", axis=0),
        [np.full(9, -0.5, np.float32), I, V],
    ),
    "two axes": (
        lambda x, i, v: pb.scatter_add(x, i, v, axis=1),
        [np.zeros((7, 9), np.float32), I.reshape(4, 9), V.reshape(4, 9)],
    ),
}


@pytest.mark.parametrize("deterministic", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_in_both_modes(few: None, name: str, deterministic: bool) -> None:
    function, given = PROGRAMS[name]
    made = []
    for backend in ("triton", "reference"):
        options = Options(backend=backend, cache=None, deterministic=deterministic)
        made.append(pb.jit(function, options=options)(*given).numpy())
    got, want = made
    assert got.dtype == want.dtype
    error = 2e-2 if got.dtype == np.float16 else 1e-5
    np.testing.assert_allclose(got, want, rtol=error, atol=error)
    if got.dtype.kind in "iu" or name == "maxima":
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("deterministic", [False, True])
def test_sizes_that_are_known_late(few: None, deterministic: bool) -> None:
    n = pb.Dim("n", lo=0, hi=5000)
    options = Options(backend="triton", cache=None, deterministic=deterministic)
    late = pb.jit(index_add, shapes=[(7,), (n,), (n,)], options=options)
    for size in (0, 1, 33):
        i, v = I[:size] % 7, np.round(V[:size] * 8)
        want = np.bincount(i, v, minlength=7).astype(np.float32)
        np.testing.assert_array_equal(late(np.zeros(7, np.float32), i, v).numpy(), want)


@pytest.mark.parametrize("deterministic", [False, True])
def test_an_index_out_of_range_tells_the_line(few: None, deterministic: bool) -> None:
    options = Options(backend="triton", cache=None, deterministic=deterministic)
    add = pb.jit(lambda x, i, v: pb.index_add(x, i, v), options=options)
    given = np.zeros(9, np.float32), I.copy(), V
    add(*given)
    given[1][27] = 9
    with pytest.raises(IndexRangeError, match="index 9 is out of range") as told:
        add(*given)
    assert told.value.code == "E106" and "pb.index_add(x, i, v)" in str(told.value)


@pytest.mark.parametrize("schedule", [*OWNERS, *ATOMIC], ids=str)
def test_every_way_checks(schedule: BlockSchedule) -> None:
    kernel = kernel_of("sum", float32, 50, 7)
    for wrong in (-1, 7, 1 << 40):
        places = np.arange(50) % 7
        places[31] = wrong
        values = {v: places if v.name == "at" else np.ones(50) for v in kernel.reads}
        with pytest.raises(IndexRangeError, match=f"index {wrong} is out of range"):
            by(kernel, schedule, {v: a.astype(v.dtype.numpy) for v, a in values.items()})


# --- what is chosen


MILLION = 1 << 20


def chosen(kernel: Kernel, gpu: str = "h100", deterministic: bool = False) -> BlockSchedule:
    return best(scattered(kernel), named(gpu), deterministic=deterministic)


@pytest.mark.parametrize("gpu", names())
def test_a_million_terms_fill_a_gpu(gpu: str) -> None:
    """Counted at the launch, not at the price; without atomics too, if by a tenth of them."""
    kernel = kernel_of("sum", float32, MILLION, 50_000)
    for deterministic, least in ((False, 4096), (True, 512)):
        choosing = plan.Chooser(named(gpu), deterministic=deterministic)
        ((group, schedule),) = [
            pair for pair in plan.scheduled(kernel, choosing) if pair[0].way is Way.SCATTER
        ]
        launch = plan.written("y", [(group, schedule)])[0]
        programs = prod(-(-prod(map(E.upper, shape)) // block) for shape, block in launch.grid)
        assert programs >= least and schedule.atomic != deterministic
        assert programs == Work.of(group, named(gpu)).programs(schedule)
        assert ("tl.atomic_add(" in launch.source) != deterministic


def test_few_places_are_many_by_parts() -> None:
    """Ten bins stand in a row for each term; with parts they do not."""
    few, many = kernel_of("sum", int32, MILLION, 10), kernel_of("sum", int32, MILLION, 50_000)
    assert chosen(few).atomic and chosen(few).chunks > 1
    assert chosen(many).atomic and chosen(many).chunks == 1
    work, spread = Work.of(scattered(few), H100), replace(chosen(few), chunks=1)
    own = dict(work.price(spread).memories)["atomics"]
    assert own == pytest.approx(MILLION / 10 / H100.rate("atomic", "place"))
    assert work.price(chosen(few)).ns < 0.2 * work.price(spread).ns


def test_what_is_deterministic_has_owners() -> None:
    """Sums of floats alone: those of integers and maxima have no order."""
    for name, kind, same in (
        ("sum", float32, False),
        ("sum", float64, False),
        ("sum", bfloat16, False),
        ("sum", int32, True),
        ("max", float32, True),
        ("min", int64, True),
    ):
        kernel = kernel_of(name, kind, MILLION, 1000)
        assert chosen(kernel).atomic
        assert chosen(kernel, deterministic=True).atomic == same, (name, kind)


def test_owners_in_parts_and_shares_are_bearable() -> None:
    """In parts where there are few places, in shares where rows are wide."""
    histogram = kernel_of("sum", float32, MILLION, 10)
    table = gradient(8192, 50_000, 768)
    for kernel, least in ((histogram, 100), (table, 10)):
        group = scattered(kernel)
        schedule = best(group, H100, deterministic=True)
        work = Work.of(group, H100)
        one = work.price(replace(schedule, chunks=1, shares=1)).ns
        assert least * work.price(schedule).ns < one
    assert chosen(histogram, deterministic=True).chunks >= 512
    assert chosen(table, deterministic=True).chunks == 1
    assert chosen(table, deterministic=True).shares >= 16


def gradient(tokens: int, words: int, columns: int) -> Kernel:
    """``y[at[i], j] += v[i, j]``"""
    at, v = Variable("at", (tokens,), int64), Variable("v", (tokens, columns), float32)
    i, j = Axis(0, tokens), Axis(1, columns)
    form = Accumulate(COMBINERS["sum"], (tokens, columns), (read(at, i), j))
    target = Definition("y", (words, columns), read(v, i, j), form)
    stage = Stage(target, form, target.body, (), Variable("y", target.shape, float32))
    return Kernel("gradient", (), (stage,))


def test_parts_are_bounded() -> None:
    """By what is near: a table of 150 MB has one."""
    for kernel in (gradient(8192, 50_000, 768), kernel_of("sum", float32, MILLION, 50_000)):
        group = scattered(kernel)
        (stage,) = group.stages
        most = atomics.most_parts(group)
        assert most == 1 or atomics.parts_bytes(stage, most) <= atomics.NEAR


# --- as people see it


def test_the_reason_is_told_and_the_text_read_back() -> None:
    kernel = kernel_of("sum", float32, MILLION, 50_000)
    choosing = plan.Chooser(H100)
    text = schedules_text(kernel, choosing)
    filled, own, why = text.splitlines()
    assert filled.startswith("0 block y_empty: ") and own.endswith("; tf32x3, by pointers; atomic")
    assert "atomic additions: 1,048,576 terms to 50,000 places, " in why
    assert why.endswith("x cheaper than owners") and why.startswith("# ")
    assert why[2:] in prices_text(kernel, choosing, H100)
    assert [s for _, s in read_back(kernel, text, H100)] == [
        s for _, s in plan.scheduled(kernel, choosing)
    ]
    edited = own.replace("; atomic", "; shares 4")
    assert [s.shares for _, s in read_back(kernel, f"{filled}\n{edited}", H100)] == [1, 4]
    same = schedules_text(kernel, plan.Chooser(H100, deterministic=True))
    assert "# owners: sums of floats are the same bits every time (deterministic=True)" in same
    product = schedules_text(kernel_of("prod", float32, 90, 7), choosing)
    assert "# owners: a GPU has no atomic prod" in product


def test_what_a_launch_cannot_be_is_refused() -> None:
    choosing = plan.Chooser(H100)
    product, whole = kernel_of("prod", float32, 90, 7), kernel_of("sum", float32, 90, 7)
    for kernel, line, change, what in (
        (product, 1, "; atomic", "no atomic prod"),
        (kernel_of("sum", int8, 90, 7), 1, "; atomic", "no atomic additions of int8"),
        (whole, 0, "; atomic", "of accumulating writes alone"),
        (whole, 1, "; shares 4; atomic", "shares of places"),
    ):
        lines = [n for n in schedules_text(kernel, choosing).splitlines() if n[0] != "#"]
        kept, by, _ = lines[line].partition("; tf32x3, by pointers")
        lines[line] = kept + by + change
        with pytest.raises(OptionError, match=what) as told:
            read_back(kernel, "\n".join(lines), H100)
        assert told.value.code == "E381"
    for text in ("; shares 3", "; atomic; shares 4", "; at once"):
        with pytest.raises(OptionError) as told:
            parsed(str(BlockSchedule(4)) + text)
        assert told.value.code == "E382"
    for schedule in (*OWNERS, *ATOMIC):
        assert parsed(str(schedule)) == schedule


def test_the_option_reaches_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """By name or by the environment; what is kept of programs is kept apart."""
    backend = backend_of("triton")
    made = [backend.machine(Options(deterministic=d)) for d in (False, True)]
    assert [m.deterministic for m in made] == [False, True] and repr(made[0]) != repr(made[1])
    assert made[0].profile.text != made[1].profile.text
    assert not Options.from_environment().deterministic
    monkeypatch.setenv("PULLBACK_DETERMINISTIC", "1")
    assert Options.from_environment().deterministic


# --- what a compiler makes of it

ADDS = re.compile(r"\b(red|atom)\.")


@pytest.mark.parametrize("capability", [80, 90])
def test_compiled_code_adds_at_once_or_does_not(capability: int) -> None:
    gpu = named({80: "a100", 90: "h100"}[capability])
    kinds = [("sum", k) for k in (float16, bfloat16, float32, float64, int32, int64)]
    kinds += [(n, k) for n in ("max", "min") for k in (float32, float64, int32, uint64)]
    for deterministic in (False, True):
        for name, kind in kinds:
            kernel = kernel_of(name, kind, 100_000, 1000)
            made = plan.launches(kernel, plan.Chooser(gpu, deterministic=deterministic))
            texts = [code.texts["ptx"] for code in compiled(orders(made), capability)]
            adds = [bool(ADDS.search(text)) for text in texts]
            floats = kind.is_float and name == "sum"
            assert any(adds) == (not (deterministic and floats)), (name, kind)
            assert not adds[0], "identities are stored"
            if any(adds):
                (code,) = (t for t, own in zip(texts, adds, strict=True) if own)
                assert ".relaxed" in code and "fence" not in code and ".local" not in code


# --- on a device that is none


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    import fake_triton

    yield fake_triton.device(monkeypatch)[1].fake


@pytest.mark.parametrize("deterministic", [False, True])
def test_every_turn_begins_with_the_identity(few: None, fake: Any, deterministic: bool) -> None:
    """By a launch before it on the same stream, which graphs replay too."""
    options = Options(backend="triton-cuda", cache=None, deterministic=deterministic)

    def turns(x: Any, i: Any, v: Any) -> Any:
        return pb.loop(5, lambda n, h: pb.index_add(pb.zeros_like(h), i, v + n) + 0.5 * h, x)

    made = pb.jit(turns, options=options)
    given = np.zeros(9, np.float32), I, np.round(V * 8)
    want = np.zeros(9, np.float32)
    for n in range(5):
        want = np.bincount(I, given[2] + n, minlength=9) + 0.5 * want
    for _ in range(3):
        np.testing.assert_allclose(made(*given).numpy(), want, rtol=1e-5)
    assert made.program.runner.own.replays >= 4 and fake.launched
    wrong = pb.jit(index_add, options=options)
    with pytest.raises(IndexRangeError, match="index 9 is out of range"):
        wrong(np.zeros(9, np.float32), I + 1, V)
