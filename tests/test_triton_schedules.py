"""Block schedules: numbers of GPUs, prices, moves, text; what any schedule computes is the same."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from pullback.backends.reference.kernels import run_kernel
from pullback.backends.triton import plan
from pullback.backends.triton.backend import Triton, interpreted, loaded
from pullback.backends.triton.blocks import Group, Way, groups
from pullback.backends.triton.choose import best, moves, start
from pullback.backends.triton.machine import HERE, Gpu, chosen, named, names
from pullback.backends.triton.price import Work
from pullback.backends.triton.schedule import BlockSchedule, Precision, Reads, parsed
from pullback.backends.triton.text import read_back, schedules_text
from pullback.cli.main import commands
from pullback.config import Options
from pullback.errors import OptionError
from pullback.ir import expr as E
from pullback.ir.dtype import DType, bfloat16, float16, float32, float64
from pullback.ir.graph import MAP, Definition, Variable, define, read
from pullback.ir.kernel import Kernel, Stage
from test_triton import exact, needs_triton

H100 = named("h100")


def product(rows: int, terms: int, columns: int, kind: DType = float32, after: int = 0) -> Kernel:
    """A product of two matrices, with maps after it."""
    a, b = Variable("a", (rows, terms), kind), Variable("b", (terms, columns), kind)

    def body(i: E.Axis, j: E.Axis, k: E.Axis) -> E.Expr:
        return E.Mul(read(a, i, k), read(b, k, j))

    value = define("y", (rows, columns), body, over=(terms,))
    out = Variable("out", (rows, columns), kind)
    stages = [Stage(value, value.form, value.body, (), None if after else out)]
    for n in range(after):
        last = stages[-1].target
        twice = E.Add(read(last, *last.axes[:2]), read(value, *last.axes[:2]))
        target = Definition(f"after{n}", (rows, columns), twice)
        stages.append(Stage(target, MAP, twice, (), out if n == after - 1 else None))
    return Kernel("product", (), tuple(stages))


def copy(count: int) -> Kernel:
    v, out = Variable("v", (count,), float32), Variable("out", (count,), float32)
    target = define("copied", (count,), lambda i: E.Add(read(v, i), E.const(1, float32)))
    return Kernel("copy", (), (Stage(target, MAP, target.body, (), out),))


def rows(count: int, length: int) -> Kernel:
    v, out = Variable("v", (count, length), float32), Variable("out", (count,), float32)
    total = define("total", (count,), lambda i, k: read(v, i, k), over=(length,))
    return Kernel("rows", (), (Stage(total, total.form, total.body, (), out),))


def only(kernel: Kernel) -> Group:
    (group,) = groups(kernel)
    return group


# --- machines


@pytest.mark.parametrize("name", names())
def test_every_number_names_its_source(name: str) -> None:
    """And says that it is not measured; what runs side by side fits what there is."""
    text = (HERE / f"{name}.toml").read_text()
    data = tomllib.loads(text)
    tables = [t for t in data.values() if isinstance(t, dict)] + data["memory"]
    assert all(len(table["source"]) > 20 for table in tables)
    assert "none measured here" in text
    gpu = named(name)
    assert gpu.count("block_shared") <= gpu.count("shared")
    rates = [m.rate for m in gpu.memories]
    assert rates == sorted(rates, reverse=True)
    assert [m.latency for m in gpu.memories] == sorted(m.latency for m in gpu.memories)


def test_a_gpu_by_target_name_or_file(tmp_path: Path) -> None:
    assert chosen(Options()).name == "h100"
    assert [chosen(Options(target=f"sm_{n}")).name for n in (80, 90, 100)] == [
        "a100",
        "h100",
        "b200",
    ]
    assert chosen(Options(target="sm_90a", machine="h200")).name == "h200"
    mine = tmp_path / "mine.toml"
    mine.write_text((HERE / "a100.toml").read_text().replace('"a100"', '"mine"'))
    assert chosen(Options(machine=str(mine))).name == "mine"
    for wrong in ({"target": "sm_70"}, {"machine": "zen4"}, {"target": "sm_80", "machine": "h200"}):
        with pytest.raises(OptionError) as told:
            chosen(Options(**wrong))
        assert told.value.code == "E375"
    mine.write_text(mine.read_text().replace("launch = 500", "launch = -1"))
    named.cache_clear()
    with pytest.raises(OptionError, match="launch of") as told:
        chosen(Options(machine=str(mine)))
    assert told.value.code == "E376"


# --- prices


def test_a_copy_costs_its_bytes() -> None:
    """A large one runs at the rate of memory, on each GPU its own."""
    for name in names():
        gpu = named(name)
        work = Work.of(only(copy(1 << 28)), gpu)
        ns = work.price(best(work.group, gpu)).ns
        assert 1.0 <= ns * gpu.memory("memory").rate / (2 * 4 * 2**28) < 1.02


def test_memory_gives_its_rate_to_many_alone() -> None:
    """One program has too few bytes in flight."""
    work = Work.of(only(copy(1024)), H100)
    few, many = work.price(BlockSchedule(1024)), Work.of(only(copy(1 << 24)), H100)
    ns = dict(few.memories)["memory"] / 1024
    assert ns > 20 * dict(many.price(BlockSchedule(1024)).memories)["memory"] / (1 << 24)


def test_a_large_product_is_near_the_peak() -> None:
    """In tiles that people choose by hand: 128 x 256 or so, eight warps; small ones fill a GPU."""
    work = Work.of(only(product(8192, 8192, 8192, bfloat16)), H100)
    schedule = best(work.group, H100)
    assert schedule.rows * schedule.columns >= 128 * 128 and schedule.warps >= 4
    share = 8192**3 / work.price(schedule).ns / H100.rate("tensor", "bfloat16")
    assert 0.6 < share < 1
    small = Work.of(only(product(512, 512, 512, bfloat16)), H100)
    assert small.programs(best(small.group, H100)) >= 48
    a100 = Work.of(work.group, named("a100"))
    assert a100.price(best(work.group, named("a100"))).ns > 2 * work.price(schedule).ns


def test_few_rows_of_many_terms_are_split() -> None:
    tall, long = only(product(64, 16384, 64)), only(rows(4, 1 << 20))
    for group in (tall, long):
        schedule = best(group, H100)
        work = Work.of(group, H100)
        assert schedule.chunks > 4
        assert work.price(schedule).ns < 0.5 * work.price(replace(schedule, chunks=1)).ns


def test_what_a_gpu_refuses_says_why() -> None:
    work = Work.of(only(product(512, 512, 512)), H100)
    wrong = {
        "bytes of shared memory, at most 232448": BlockSchedule(128, 128, 64, warps=8, stages=5),
        "registers of a thread, at most": BlockSchedule(256, 256, 16, warps=4, stages=2),
        "threads of a program": BlockSchedule(64, 64, 32, warps=64),
    }
    for reason, schedule in wrong.items():
        assert reason in str(work.refusal(schedule))
    assert work.refusal(best(work.group, H100)) is None


@pytest.mark.parametrize("gpu", [named(n) for n in names()], ids=names())
def test_the_best_is_no_worse_than_the_start_and_than_its_neighbours(gpu: Gpu) -> None:
    kernels = [copy(999), copy(10**6), rows(7, 33), rows(3, 10**6), rows(10**5, 100)]
    kernels += [product(*s, k) for s in ((70, 33, 67), (300, 300, 2)) for k in (float64, float16)]
    for kernel in kernels:
        (group, *_) = groups(kernel)
        work = Work.of(group, gpu)
        made = best(group, gpu)
        assert made == best(group, gpu)
        price = work.price(made).ns
        assert price <= work.price(start(group)).ns
        near = [s for s in moves(group, made) if work.refusal(s) is None]
        assert all(0.98 * price <= work.price(s).ns for s in near)
        parts = work.price(made)
        longest = max(parts.lanes, parts.tensor, *(ns for _, ns in parts.memories))
        assert price >= longest + parts.launch


# --- text


def test_schedules_print_and_read_back() -> None:
    kernel = product(64, 16384, 64)
    choose = plan.chooser(H100, Precision.TF32)
    text = schedules_text(kernel, choose)
    again = read_back(kernel, text, H100)
    assert [s for _, s in again] == [s for _, s in plan.scheduled(kernel, choose)]
    assert text.startswith("0 product y: ") and text.count("; tf32, by pointers\n") == 1
    once = text.splitlines()[0].replace("parts 32", "parts 1")
    edited = read_back(kernel, once, H100)
    assert [s.chunks for _, s in edited] == [1]
    for wrong, code in (
        (text.replace("y:", "z:"), "E383"),
        (text + "\n" + once, "E383"),
        ("", "E383"),
        (text.replace("3 stages", "many stages"), "E382"),
        (text.replace(" 64 at once", " 48 at once").replace(" 32 at once", " 48 at once"), "E382"),
        (once.replace("3 stages", "99 stages"), "E381"),
    ):
        with pytest.raises(OptionError) as told:
            read_back(kernel, wrong, H100)
        assert told.value.code == code, wrong


PARTS = "4 warps, 3 stages; groups of 1, parts"
CHOSEN: dict[str, tuple[Callable[[], Kernel], list[str]]] = {
    "halves": (
        lambda: product(4096, 4096, 4096, bfloat16, after=1),
        [
            "0 product y, after0: 256 x 128, 32 at once; "
            "8 warps, 3 stages; groups of 1, parts 1; tf32x3, by descriptors"
        ],
    ),
    "few rows": (
        lambda: product(64, 16384, 64),
        [
            f"0 product y: 32 x 32, 32 at once; {PARTS} 32; tf32x3, by pointers",
            f"1 block y: 128 x 1, 1 at once; {PARTS} 1; tf32x3, by pointers",
        ],
    ),
    "long rows": (
        lambda: rows(4096, 20000),
        [f"0 loop total: 8 x 1, 512 at once; {PARTS} 1; tf32x3, by pointers"],
    ),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_what_an_h100_runs(name: str) -> None:
    """A price that changes what is chosen is seen here."""
    make, wanted = CHOSEN[name]
    assert schedules_text(make(), plan.chooser(H100)).splitlines() == wanted


def test_each_gpu_has_schedules_of_its_own() -> None:
    """Hopper's widest instruction takes taller tiles; more multiprocessors, more parts."""
    for name in ("halves", "few rows"):
        kernel = CHOSEN[name][0]()
        texts = [schedules_text(kernel, plan.chooser(named(gpu))) for gpu in ("h100", "a100")]
        assert texts[0] != texts[1]


def test_a_schedule_s_text_is_itself() -> None:
    draw = random.Random(0)
    for _ in range(50):
        numbers = [1 << draw.randrange(8) for _ in range(5)]
        choices = draw.choice(list(Precision)), draw.choice(list(Reads))
        made = BlockSchedule(*numbers, draw.randrange(9), 8, *choices)
        assert parsed(str(made)) == made


# --- what they compute


def walked(group: Group, draw: random.Random, steps: int) -> BlockSchedule:
    """A schedule some moves from the first one, that the GPU takes."""
    work, schedule = Work.of(group, H100), start(group)
    for _ in range(steps):
        near = [s for s in moves(group, schedule) if work.refusal(s) is None]
        schedule = draw.choice(near)
    return schedule


KERNELS = {
    "product": lambda: product(70, 300, 67),
    "maps after it": lambda: product(40, 130, 33, float32, after=2),
    "halves": lambda: product(33, 150, 20, bfloat16, after=1),
    "doubles": lambda: product(33, 70, 20, float64),
    "rows": lambda: rows(5, 9000),
    "short rows": lambda: rows(50, 33),
    "map": lambda: copy(3000),
}


@needs_triton
@pytest.mark.torch
@pytest.mark.parametrize("name", KERNELS)
def test_every_schedule_computes_the_same(name: str) -> None:
    kernel = KERNELS[name]()
    values = {v: exact(*v.shape).astype(v.dtype.numpy) for v in kernel.reads}
    (out,) = kernel.writes
    wanted = run_kernel(kernel, values, [])[out]
    draw, seen = random.Random(name), set()
    for steps in (0, 3, 6, 9):
        scheduled = plan.scheduled(kernel, lambda group, n=steps: walked(group, draw, n))
        seen |= {schedule for _, schedule in scheduled}
        made = plan.written(kernel.name, scheduled)
        got = interpreted(kernel, made, loaded(made), values)[out]
        np.testing.assert_array_equal(got.astype(float), wanted.astype(float))
    assert len(seen) > 2


@needs_triton
@pytest.mark.torch
@pytest.mark.parametrize("group", [1, 2, 4])
@pytest.mark.parametrize("chunks", [1, 4])
def test_tiles_in_any_order_and_in_parts(group: int, chunks: int) -> None:
    """Every tile is made once: 5 rows of tiles are no multiple of a group."""
    kernel = product(70, 300, 67)
    a, b = kernel.reads
    values = {a: exact(70, 300), b: exact(300, 67)}
    schedule = BlockSchedule(16, 32, 16, chunks, group=group)
    scheduled = plan.scheduled(kernel, lambda g: schedule if g.way is Way.PRODUCT else start(g))
    made = plan.written("product", scheduled)
    assert len(made) == (2 if chunks > 1 else 1)
    got = interpreted(kernel, made, loaded(made), values)[kernel.writes[0]]
    np.testing.assert_array_equal(got, values[a] @ values[b])


@needs_triton
@pytest.mark.torch
def test_float64_has_dots_of_its_own() -> None:
    """Their sums have all bits."""
    kernel = product(33, 500, 20, float64)
    a, b = kernel.reads
    draw = np.random.default_rng(0)
    values = {a: draw.normal(size=(33, 500)), b: draw.normal(size=(500, 20))}
    (launch, *_) = plan.launches(kernel)
    assert "tl.dot(" in launch.source and "out_dtype=tl.float64" in launch.source
    got = Triton().run_kernel(kernel, values)[kernel.writes[0]]
    np.testing.assert_allclose(got, values[a] @ values[b], rtol=0, atol=1e-12)


# --- as people see them


SOURCE = """
import numpy as np
import pullback as pb

f = pb.jit(lambda x, w: pb.nn.functional.softmax(x @ w, dim=1))
f(np.ones((64, 128), np.float32), np.ones((128, 64), np.float32))
"""


def explained(tmp_path: Path, stage: str, **environment: str) -> str:
    path = tmp_path / "example.py"
    path.write_text(SOURCE)
    own = {"PULLBACK_BACKEND": "triton", **environment}
    made = CliRunner().invoke(commands, ["explain", str(path), "--stage", stage], env=own)
    assert made.exit_code == 0, made.output
    return made.output


@needs_triton
@pytest.mark.torch
def test_explain_shows_every_text(tmp_path: Path) -> None:
    assert "tl.dot(" in explained(tmp_path, "triton")
    assert "0 product matmul: 16 x 16" in explained(tmp_path, "schedule")
    assert "1 block max, exps, norm, softmax: " in explained(tmp_path, "price")
    assert "tt.dot" in explained(tmp_path, "ttir")
    own = {"PULLBACK_TARGET": "sm_80+tf32"}
    assert "; tf32, by pointers\n" in explained(tmp_path, "schedule", **own)
    assert ".target sm_80\n" in explained(tmp_path, "ptx", **own)
