"""Factors of products that are read by tensor descriptors: the same bits as by pointers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fake_triton
import pullback as pb
from fake_cuda import Violation
from pullback.backends.triton import function, offline, plan
from pullback.backends.triton.backend import Triton, chooser, interpreted, loaded, orders
from pullback.backends.triton.blocks import Group, Way
from pullback.backends.triton.choose import best
from pullback.backends.triton.descriptors import Rectangle, rectangles
from pullback.backends.triton.machine import HERE, chosen, named, names
from pullback.backends.triton.price import Work
from pullback.backends.triton.product import product_of
from pullback.backends.triton.schedule import BlockSchedule, Reads
from pullback.backends.triton.text import read_back, schedules_text
from pullback.config import Options
from pullback.errors import OptionError
from pullback.ir import expr as E
from pullback.ir.dtype import DType, bfloat16, float16, float32, float64, int64
from pullback.ir.expr import Dim, Expr
from pullback.ir.graph import Variable, define, read
from pullback.ir.kernel import Kernel, Stage
from test_triton_schedules import copy, only, product

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
H100 = named("h100")
Factors = Callable[..., tuple[Expr, Expr]]


def of(
    factors: Factors, shape: Sequence[int], over: Sequence[int], kind: DType = float32
) -> Kernel:
    """A sum of products of two factors."""

    def body(*axes: E.Axis) -> Expr:
        left, right = factors(*axes)
        return E.Mul(left, right)

    value = define("y", tuple(shape), body, over=tuple(over))
    out = Variable("out", tuple(shape), kind)
    return Kernel("product", (), (Stage(value, value.form, value.body, (), out),))


def wide(e: Expr) -> Expr:
    return E.Cast(e, float32)


def matrices(*shapes: tuple[int, ...], kind: DType = float32) -> list[Variable]:
    return [Variable("ab"[n], shape, kind) for n, shape in enumerate(shapes)]


def turned(kind: DType) -> Kernel:
    """Both factors lie along the other axis."""
    a, b = matrices((72, 40), (56, 72), kind=kind)
    return of(lambda i, j, k: (read(a, k, i), read(b, j, k)), (40, 56), (72,), kind)


def batch(kind: DType = float32) -> Kernel:
    """Two axes of matrices, in another order in the second factor."""
    a, b = matrices((2, 3, 17, 40), (3, 2, 40, 24), kind=kind)
    return of(
        lambda p, q, i, j, k: (read(a, p, q, i, k), read(b, q, p, k, j)),
        (2, 3, 17, 24),
        (40,),
        kind,
    )


def heads() -> Kernel:
    """``x[row, head, k] y[row, head, k]``: a batch that lies between rows and terms."""
    a, b = matrices((33, 3, 16), (24, 3, 16))
    return of(lambda h, i, j, k: (read(a, i, h, k), read(b, j, h, k)), (3, 33, 24), (16,))


def merged() -> Kernel:
    """Rows and terms of two axes, which run together."""
    a, b = matrices((5, 7, 4, 12), (4, 12, 20))
    return of(
        lambda i, m, j, k, n: (read(a, i, m, k, n), read(b, k, n, j)), (5, 7, 20), (4, 12), float32
    )


def reshaped() -> Kernel:
    """One axis, read as quotient and remainder of a row."""
    a, b = matrices((35, 4, 12), (48, 20))
    twelve = E.index(12)
    return of(
        lambda i, j, k: (read(a, i, E.FloorDiv(k, twelve), E.Mod(k, twelve)), read(b, k, j)),
        (35, 20),
        (48,),
    )


def part() -> Kernel:
    """Rows from the fifth on, every second one; terms from the eighth on."""
    a, b = matrices((80, 64), (64, 32))
    five, eight = E.index(5), E.index(8)

    def factors(i: Expr, j: Expr, k: Expr) -> tuple[Expr, Expr]:
        rows = E.Add(E.Mul(i, E.index(2)), five)
        return read(a, rows, E.Add(k, eight)), read(b, k, j)

    return of(factors, (33, 32), (50,))


def one_of_two() -> Kernel:
    """The first factor is computed: read by pointers."""
    a, b = matrices((33, 50), (50, 24))
    return of(lambda i, j, k: (E.Exp(read(a, i, k)), read(b, k, j)), (33, 24), (50,))


def kinds() -> Kernel:
    """A matrix of halves by one of float32: multiplied in float32."""
    a, b = Variable("a", (33, 48), bfloat16), Variable("b", (48, 24), float32)
    return of(lambda i, j, k: (wide(read(a, i, k)), read(b, k, j)), (33, 24), (48,))


def widened() -> Kernel:
    """Halves, multiplied as they are, summed to float32."""
    a, b = matrices((33, 48), (48, 24), kind=float16)
    return of(lambda i, j, k: (wide(read(a, i, k)), wide(read(b, k, j))), (33, 24), (48,))


SMALL = BlockSchedule(16, 32, 16, reads=Reads.DESCRIPTORS)
TILES = {
    "small": SMALL,
    "large": BlockSchedule(128, 64, 64, reads=Reads.DESCRIPTORS),
    "parts": replace(SMALL, rows=32, chunks=2, group=2),
}
KERNELS: dict[str, Callable[[], Kernel]] = {
    "odd rows": lambda: product(67, 76, 44),
    "maps after it": lambda: product(40, 132, 36, float32, after=2),
    "bfloat16": lambda: product(33, 88, 40, bfloat16, after=1),
    "float16": lambda: product(33, 88, 40, float16),
    "turned": lambda: turned(float32),
    "turned halves": lambda: turned(bfloat16),
    "batch": batch,
    "batch of halves": lambda: batch(float16),
    "heads": heads,
    "merged axes": merged,
    "reshaped": reshaped,
    "a part": part,
    "one of two": one_of_two,
    "two kinds": kinds,
    "widened": widened,
}
ALONE = {"one of two": 1}  # descriptors of a kernel; of all others: both factors


def run(kernel: Kernel, schedule: BlockSchedule, values: dict[Variable, Any]) -> tuple[Any, str]:
    """What a kernel writes whose product has this schedule, as bits, and its source."""

    def choose(group: Group) -> BlockSchedule:
        return schedule if group.way is Way.PRODUCT else best(group, H100)

    made = plan.written("product", plan.scheduled(kernel, choose))
    got = interpreted(kernel, made, loaded(made), values)[kernel.writes[0]]
    return got.view(np.uint16 if got.itemsize == 2 else np.uint32), made[0].source


def drawn(kernel: Kernel) -> dict[Variable, Any]:
    """Numbers that no sum holds exactly, infinities and NaN in the last row of the first array."""
    draw = np.random.default_rng(7)
    values = {v: draw.normal(size=v.shape).astype(v.dtype.numpy) for v in kernel.reads}
    first = values[kernel.reads[0]].reshape(-1)
    first[-1], first[-2] = np.inf, np.nan
    return values


@needs_triton
@pytest.mark.torch
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("tile", TILES)
def test_descriptors_and_pointers_give_the_same_bits(name: str, tile: str) -> None:
    kernel, schedule = KERNELS[name](), TILES[tile]
    values = drawn(kernel)
    got, text = run(kernel, schedule, values)
    wanted, pointers = run(kernel, replace(schedule, reads=Reads.POINTERS), values)
    np.testing.assert_array_equal(got, wanted)
    assert "make_tensor_descriptor" not in pointers
    assert text.count("tl.make_tensor_descriptor(") == ALONE.get(name, 2)
    loop = text.partition("for first in")[2].partition("tl.dot")[0]
    assert ("mask" in loop) == (name in ALONE) and loop.count(".load([") == ALONE.get(name, 2)


@needs_triton
@pytest.mark.torch
def test_coordinates_of_64_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A descriptor takes 32 of them: each is cut; a base has all."""
    monkeypatch.setattr(function, "narrow", lambda group: False)
    for kernel in (batch(), turned(float32)):
        values = drawn(kernel)
        for schedule in (TILES["large"], TILES["parts"]):
            got, text = run(kernel, schedule, values)
            wanted, _ = run(kernel, replace(schedule, reads=Reads.POINTERS), values)
            np.testing.assert_array_equal(got, wanted)
            assert "tl.program_id(0).to(tl.int64)" in text and "tl.cast(start, tl.int32)" in text


def test_where_factors_lie() -> None:
    """Base, stride of a batch, of rows, and along which axis they run."""

    def places(kernel: Kernel) -> list[tuple[int, tuple[tuple[int, int], ...], int, bool]]:
        (stage, *_) = kernel.stages
        wanted = product_of(stage)
        assert wanted is not None
        both = rectangles(stage, wanted)
        assert all(isinstance(r, Rectangle) for r in both)
        return [(r.begin, r.batch, r.stride, r.turned) for r in both if isinstance(r, Rectangle)]

    assert places(product(67, 76, 44)) == [(0, (), 76, False), (0, (), 44, False)]
    assert places(turned(float32)) == [(0, (), 40, True), (0, (), 72, True)]
    assert places(part()) == [(5 * 64 + 8, (), 128, False), (0, (), 32, False)]
    assert places(heads()) == [(0, ((0, 16),), 48, False), (0, ((0, 16),), 48, True)]
    left, right = places(batch())
    assert left == (0, ((0, 3 * 17 * 40), (1, 17 * 40)), 40, False)
    assert right == (0, ((0, 40 * 24), (1, 2 * 40 * 24)), 24, False)
    assert places(merged()) == [(0, (), 48, False), (0, (), 20, False)]
    assert places(reshaped()) == [(0, (), 48, False), (0, (), 20, False)]


def reason(kernel: Kernel) -> str:
    """Why the first factor of a product has no descriptor."""
    (stage, *_) = kernel.stages
    wanted = product_of(stage)
    assert wanted is not None
    left = rectangles(stage, wanted)[0]
    assert isinstance(left, str), left
    return left


def left_of(shape: tuple[int, ...], at: Callable[..., Sequence[Expr]]) -> Kernel:
    """A product whose first factor is read somewhere."""
    a, b = matrices(shape, (16, 24))
    return of(lambda i, j, k: (read(a, *at(i, k)), read(b, k, j)), (33, 24), (16,))


def windows() -> Kernel:
    """A convolution: terms of three axes, which do not run together."""
    x, w = matrices((2, 4, 10, 12), (8, 4, 3, 3))

    def factors(*axes: Expr) -> tuple[Expr, Expr]:
        n, o, i, j, c, p, q = axes
        return read(x, n, c, E.Add(i, p), E.Add(j, q)), read(w, o, c, p, q)

    return of(factors, (2, 8, 8, 10), (4, 3, 3))


def chosen_rows() -> Kernel:
    """Rows that data names."""
    rows = Variable("rows", (33,), int64)
    a, b = matrices((40, 16), (16, 24))
    return of(lambda i, j, k: (read(a, read(rows, i), k), read(b, k, j)), (33, 24), (16,))


def late() -> Kernel:
    """So many rows as a run brings."""
    n = Dim("n", 1, 64)
    a, b = Variable("a", (n, 16), float32), Variable("b", (16, 24), float32)
    value = define("y", (n, 24), lambda i, j, k: E.Mul(read(a, i, k), read(b, k, j)), over=(16,))
    out = Variable("out", (n, 24), float32)
    return Kernel("product", (), (Stage(value, value.form, value.body, (), out),))


def few() -> Kernel:
    a, b = matrices((2, 4), (4, 16))
    return of(lambda i, j, k: (read(a, i, k), read(b, k, j)), (2, 16), (4,))


def shared_terms() -> Kernel:
    """A batch that begins between two vectors."""
    a, b = matrices((33, 64), (3, 24, 16))
    return of(lambda h, i, j, k: (read(a, i, E.Add(k, h)), read(b, h, j, k)), (3, 33, 24), (16,))


REASONS: dict[str, Callable[[], Kernel]] = {
    "lies 132 bytes apart, no multiple of 16": lambda: product(70, 33, 68),
    "lies 4 bytes apart": lambda: left_of((33, 20), lambda i, k: (i, E.Add(k, E.index(1)))),
    "lies 4 bytes apart,": shared_terms,
    "is computed": one_of_two,
    "is of float64": lambda: product(64, 64, 64, float64),
    "has extents that a run brings": late,
    "is not proved to be read inside of its array": chosen_rows,
    "is read at places that are no sums": lambda: left_of(
        (33, 16), lambda i, k: (i, E.FloorDiv(E.Mul(k, k), E.index(15)))
    ),
    "has no rows of neighbours in memory": windows,
    "has no rows of neighbours": lambda: left_of((33, 64), lambda i, k: (i, E.Mul(k, E.index(4)))),
    "has no rows": lambda: left_of(
        (36, 16), lambda i, k: (E.Add(E.Mul(i, E.index(-1)), E.index(32)), k)
    ),
    "has rows that overlap": lambda: left_of(
        (148,), lambda i, k: (E.Add(E.Mul(i, E.index(4)), k),)
    ),
    "is an array of less than 64 bytes": few,
}


@pytest.mark.parametrize("text", REASONS)
def test_what_lies_in_no_rectangle_says_why(text: str) -> None:
    assert reason(REASONS[text]()).startswith(text)


# --- which is chosen


def test_pointers_where_a_gpu_has_no_copy_engine() -> None:
    """Of all machines: those of compute capability 9.0 and later have it."""
    group = only(product(4096, 4096, 4096, bfloat16))
    for name in names():
        gpu = named(name)
        has = gpu.capability >= 90
        assert (best(group, gpu).reads is Reads.DESCRIPTORS) == has, name
        refused = Work.of(group, gpu).refusal(replace(SMALL, reads=Reads.DESCRIPTORS))
        assert refused == (None if has else f"no descriptors on {gpu.target}")


def test_a_price_of_descriptors() -> None:
    """A trip for each and one more, which a large product hides; they copy by no instruction."""
    for size, wanted in ((64, Reads.POINTERS), (512, Reads.POINTERS), (4096, Reads.DESCRIPTORS)):
        work = Work.of(only(product(size, size, size, bfloat16)), H100)
        made = best(work.group, H100)
        assert made.reads is wanted
        by, other = (
            work.price(replace(made, reads=r)) for r in (Reads.DESCRIPTORS, Reads.POINTERS)
        )
        waves = round((by.latency - other.latency) / (3 * H100.memory("L2").latency), 6)
        assert waves >= 1 and waves == int(waves) and by.lanes < other.lanes
    mixed = Work.of(only(one_of_two()), H100)
    few, many = (mixed.needs(replace(SMALL, reads=r)) for r in (Reads.DESCRIPTORS, Reads.POINTERS))
    assert (few.trips, many.trips) == (2, 0) and 0 < few.lanes < many.lanes
    masked, whole = (Work.of(only(product(n, 64, 64)), H100) for n in (63, 64))
    rows = replace(SMALL, reads=Reads.POINTERS)
    assert masked.needs(rows).lanes > whole.needs(rows).lanes


def test_a_schedule_by_descriptors_is_read_back_or_refused() -> None:
    kernel = product(64, 16384, 64)
    text = schedules_text(kernel, plan.chooser(H100))
    first, second = text.splitlines()
    edited = first.replace("by pointers", "by descriptors")
    assert [s.reads for _, s in read_back(kernel, f"{edited}\n{second}", H100)] == [
        Reads.DESCRIPTORS,
        Reads.POINTERS,
    ]
    odd, sums = product(64, 33, 67), second.replace("by pointers", "by descriptors")
    for line, of_what, gpu, why in (
        (f"{edited}\n{second}", kernel, named("a100"), "no descriptors on sm_80"),
        (f"{first}\n{sums}", kernel, H100, "no descriptor: it is no product"),
        (
            schedules_text(odd, plan.chooser(H100)).replace("by pointers", "by descriptors"),
            odd,
            H100,
            "its left factor lies 132 bytes apart, no multiple of 16, "
            "its right factor lies 268 bytes apart, no multiple of 16",
        ),
    ):
        with pytest.raises(OptionError, match=why) as told:
            read_back(of_what, line, gpu)
        assert told.value.code == "E381"
    with pytest.raises(OptionError) as told:
        read_back(kernel, text.replace("by pointers", "by post"), H100)
    assert told.value.code == "E382"
    assert Work.of(only(copy(99)), H100).refusal(replace(SMALL, columns=1, step=1)) is not None


# --- what compilers make of them


def large(turned: bool, kind: DType, batch: int = 1) -> Kernel:
    """2048 rows, columns and terms."""
    n = 2048
    a, b = matrices((batch, n, n), (batch, n, n), kind=kind)

    def factors(h: Expr, i: Expr, j: Expr, k: Expr) -> tuple[Expr, Expr]:
        if turned:
            return read(a, h, k, i), read(b, h, j, k)
        return read(a, h, i, k), read(b, h, k, j)

    return of(factors, (batch, n, n), (n,), kind)


LARGE: dict[str, Callable[[], Kernel]] = {
    "halves": lambda: large(False, bfloat16),
    "turned halves": lambda: large(True, float16),
    "float32": lambda: large(False, float32),
    "turned batch": lambda: large(True, float32, 4),
    "parts": lambda: product(256, 65536, 256, bfloat16),
}
WIDE = {90: "wgmma.mma_async", 100: "tcgen05.mma"}  # what multiplies whole tiles


def code(kernel: Kernel, capability: int, reads: Reads) -> tuple[BlockSchedule, offline.Binary]:
    """The product of a kernel by the schedule that its GPU chooses, but for how it reads."""
    gpu = chosen(Options(target=f"sm_{capability}"))
    schedule = best(only(kernel), gpu)
    by = replace(schedule, reads=reads)
    choose = plan.chooser(gpu)
    made = plan.launches(
        kernel, replace(choose, by_hand=lambda g: by if g.way is Way.PRODUCT else choose.best(g))
    )
    return schedule, offline.compiled(orders(made[:1]), capability)[0]


@needs_triton
@pytest.mark.torch
@pytest.mark.parametrize("capability", [90, 100])
@pytest.mark.parametrize("name", LARGE)
def test_the_copy_engine_brings_blocks(name: str, capability: int) -> None:
    """By no more registers than pointers take, nothing of them in memory, to the same widest
    instruction; each program has memory for its two descriptors.
    """
    kernel = LARGE[name]()
    schedule, made = code(kernel, capability, Reads.DESCRIPTORS)
    _, other = code(kernel, capability, Reads.POINTERS)
    assert schedule.reads is Reads.DESCRIPTORS and (schedule.chunks > 1) == (name == "parts")
    text, pointers = made.texts["ptx"], other.texts["ptx"]
    assert "cp.async.bulk.tensor" in text and "cp.async.bulk" not in pointers
    assert "cp.async.ca.shared" not in text and "cp.async.cg.shared" not in text
    assert WIDE[capability] in text and WIDE[capability] in pointers
    assert made.registers <= other.registers and made.stack == other.stack == 0
    assert (made.scratch, made.align) == (2 * 128, 128)
    assert (other.scratch, other.align) == (0, 1)


def test_a_file_that_stands_alone_has_pointers() -> None:
    """Its arrays begin where the caller's do, and nobody brings memory for descriptors."""
    kernel, target = LARGE["halves"](), Triton().machine(Options(machine="h100"))
    (own,), (here,) = Triton().alone(kernel, target)[1], plan.launches(kernel, chooser(target))
    assert "make_tensor_descriptor" in here.source and "descriptor" not in own.source


@needs_triton
@pytest.mark.torch
def test_an_a100_has_pointers() -> None:
    schedule, made = code(LARGE["halves"](), 80, Reads.POINTERS)
    assert schedule.reads is Reads.POINTERS and made.scratch == 0
    assert "cp.async.c" in made.texts["ptx"] and "tensor" not in made.texts["ptx"]


# --- on a device


@pytest.fixture
def eager(tmp_path: Path) -> str:
    """An H100 whose second cache answers at once: small products are read by descriptors, too."""
    text = (HERE / "h100.toml").read_text()
    path = tmp_path / "eager.toml"
    path.write_text(text.replace("latency = 149.9", "latency = 0.001").replace("h100", "eager"))
    return str(path)


def two(x: Any, v: Any, w: Any) -> Any:
    """A temporary of 27 lines lies before the descriptors of the second product."""
    return (x @ v) @ w


def given(*shapes: tuple[int, int]) -> list[Any]:
    draw = np.random.default_rng(3)
    return [draw.integers(-4, 5, shape).astype(np.float32) for shape in shapes]


@needs_triton
@pytest.mark.torch
def test_descriptors_lie_in_the_arena(eager: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind a temporary, at a multiple of 128 bytes, nothing else's while they are used; a loop
    is a graph, whose replays find them at the same place.
    """
    fake_triton.device(monkeypatch)
    options = Options(backend="triton-cuda", machine=eager, cache=None)
    x, v, w = given((9, 64), (64, 48), (48, 32))
    made = pb.jit(two, options=options)
    np.testing.assert_array_equal(made(x, v, w).numpy(), x @ v @ w)
    image = made.program.runner.own.image
    assert [n % 128 for n in image.plan.scratch].count(64)
    assert all(code.engine.align == 128 for code in image.codes)
    square = given((32, 32))[0]
    looped = pb.jit(lambda h, s: pb.loop(3, lambda i, h: pb.tanh(h @ s), h), options=options)
    want = x = given((33, 32))[0]
    for _ in range(3):
        want = np.tanh(want @ square)
    for _ in range(2):
        np.testing.assert_allclose(looped(x, square).numpy(), want, rtol=1e-5, atol=1e-5)
    own = looped.program.runner.own
    assert own.replays == 3 and len(own._graphs) == 1
    assert any(code.engine.align == 128 for code in own.image.codes)


WRONG: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "too few bytes": ("beyond the end of its block", lambda b: replace(b, scratch=128)),
    "none": ("is something else's too", lambda b: replace(b, scratch=0)),
    "a wrong place": ("begins at", lambda b: replace(b, align=1)),
}


@needs_triton
@pytest.mark.torch
@pytest.mark.parametrize("name", WRONG)
def test_memory_that_does_not_do_is_told(
    name: str, eager: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the stand-in for the driver, where a compiler's word is not kept."""
    blocks = fake_triton.device(monkeypatch)[1]
    why, change = WRONG[name]
    told = lambda *asked: [change(b) for b in blocks.binaries(*asked)]
    monkeypatch.setattr(offline, "compiled", told)
    x, v, w = given((9, 64), (64, 48), (48, 32))
    made = pb.jit(two, options=Options(backend="triton-cuda", machine=eager, cache=None))
    with pytest.raises(Violation, match=why):
        made(x, v, w)


@needs_triton
@pytest.mark.torch
def test_descriptors_in_memory_that_is_gone(eager: str, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = fake_triton.device(monkeypatch)[1]
    made = pb.jit(two, options=Options(backend="triton-cuda", machine=eager, cache=None))
    arrays = given((9, 64), (64, 48), (48, 32))
    made(*arrays)
    own = made.program.runner.own
    own._arena = next(b.base for b in blocks.fake.blocks if not b.alive)
    with pytest.raises(Violation, match="that was freed"):
        made(*arrays)
