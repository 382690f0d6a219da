"""Schedules of launches by measured time, on a device that is none: its clock is a function."""

from __future__ import annotations

import ctypes
import json
import logging
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import fake_triton
import fake_warps
import pullback as pb
from fake_cuda import FakeCuda, Kernel
from pullback.backends.base import Launched
from pullback.backends.registry import compiler
from pullback.backends.triton import offline, plan, tune
from pullback.backends.triton.blocks import Group
from pullback.backends.triton.launched import TritonCuda
from pullback.backends.triton.machine import named
from pullback.backends.triton.measured import offered, read, signature
from pullback.backends.triton.schedule import BlockSchedule, Precision, parsed
from pullback.backends.triton.text import read_back, schedules_text
from pullback.cli.main import commands
from pullback.config import Options
from pullback.errors import DeviceError, OptionError, UnsupportedError
from pullback.ir.kernel import Kernel as Fused
from pullback.runtime import tuned as records
from pullback.runtime.tuned import FILE, Key, Records, Tuned
from pullback.tensor.run import tuning
from pullback.tensor.run.tune import inputs, kernels_of
from test_nvptx import HAS_C
from test_triton_schedules import copy, product, rows

pytestmark = [
    pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.torch,  # the stage of the gate that has Triton
]
RNG = np.random.default_rng(0)
A = RNG.uniform(0.1, 1.0, (16, 33)).astype(np.float32)
B = RNG.uniform(0.1, 1.0, (33, 16)).astype(np.float32)
H100 = named("h100")
NAME = "triton-cuda"
FAST = 32  # threads: one warp


def multiplied(a: Any, b: Any) -> Any:
    return a @ b


@dataclass(frozen=True)
class On:
    """The stand-in, and the folder of its records."""

    fake: FakeCuda
    blocks: fake_triton.Blocks
    cache: Path

    @property
    def options(self) -> Options:
        return Options(backend=NAME, cache=self.cache)

    def program(self, function: Any = multiplied, *given: Any, **changes: Any) -> Any:
        """A jitted function that ran, and what it gave."""
        made = pb.jit(function, options=replace(self.options, **changes))
        return made, made(*(given or (A, B))).numpy()

    def tuned(self, kernel: Fused, seconds: float = 60.0) -> list[Launched]:
        """What is found of a kernel's launches."""
        backend = compiler(NAME)
        target = backend.machine(self.options)
        return backend.measured(kernel, lambda: inputs(kernel), target, (), seconds)


@pytest.fixture
def on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[On]:
    """Programs of one warp are the fastest, by the blocks that they have."""
    blocks = fake_triton.device(monkeypatch)[1]
    blocks.fake.lasts = lambda name, count, threads: 1.0 + 0.1 * count + abs(threads - FAST) / 32
    for name, few in {
        "MEASURED": 4,
        "PRICED": 3,
        "BATCH": 4,
        "ROUNDS": 1,
        "LAST_ROUNDS": 1,
    }.items():
        monkeypatch.setattr(tune, name, few)
    yield On(blocks.fake, blocks, tmp_path / "kept")


@pytest.fixture
def first(on: On, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two candidates, no neighbours; what is compiled later is faster."""
    on.fake.lasts = lambda name, count, threads: 90.0 / int(name.rpartition("_")[2]) ** 2
    monkeypatch.setattr(tune, "MEASURED", 2)
    monkeypatch.setattr(tune.Bench, "near", lambda self, times: [])


def one(kernel: Fused) -> tuple[Group, BlockSchedule]:
    """The only group of a kernel, and its priced schedule."""
    ((group, _),) = plan.units(kernel)
    return group, plan.chooser(H100).best(group)


# --- which launch, and which schedules it may have


def test_a_launch_is_known_by_its_structure() -> None:
    same = [signature(one(make())[0]) for make in (lambda: product(16, 33, 16),) * 2]
    assert same[0] == same[1]
    others = [product(16, 33, 15), product(16, 33, 16, after=1), copy(256), rows(16, 33)]
    assert len({same[0], *(signature(one(k)[0]) for k in others)}) == 5


def test_an_accumulating_write_is_another_launch_where_it_has_the_same_bits() -> None:
    """What adds by atomics is no record for what may not, and nothing else is measured again."""
    function = pb.jit(
        lambda x: pb.grad(pb.sum(x[PLACES] ** 2), [x])[0], options=pb.Options(cache=None)
    )
    function(A[:5])
    every = [g for k in function.program.kernels for g, _ in plan.units(k, plan.chooser(H100))]
    ways = {g.way.value: signature(g) != signature(g, deterministic=True) for g in every}
    assert ways.pop("scatter") and not any(ways.values())


KERNELS = [product(64, 16384, 64), rows(4, 1 << 20), copy(999)]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)
def test_what_moves_lead_to_is_offered(kernel: Fused) -> None:
    group, best = one(kernel)
    near = list(tune.moves(group, best))
    far = [s for n in near for s in tune.moves(group, n)][::7]
    assert len(far) > 4 and all(offered(group, best, s) for s in [best, *near, *far])


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"chunks": 64}, "no moves"),
        ({"rows": 1 << 13}, "no moves"),
        ({"columns": 2}, "no moves"),
        ({"stages": 0}, "no moves"),
        ({"precision": Precision.TF32}, "no moves"),
        ({"warps": 64}, "threads of a program"),
    ],
    ids=str,
)
def test_what_a_launch_may_not_have_is_refused(change: dict[str, Any], why: str) -> None:
    """Of maps that have no parts, no columns: code of such a schedule would be wrong."""
    group, best = one(copy(1 << 20))
    assert read(group, best, H100, str(best)) == best
    with pytest.raises(OptionError, match=why):
        read(group, best, H100, str(replace(best, **change)))


# --- what is found


def test_the_fastest_by_the_clock_is_found(on: On) -> None:
    made, wanted = on.program()
    (kernel,) = kernels_of([made.program])
    (found,) = on.tuned(kernel)
    best = parsed(found.block)
    assert 32 * best.warps == FAST and (best.rows, best.columns, best.chunks) == (16, 16, 1)
    assert found.us < found.default_us and found.refused == 0 and found.tries > 8
    assert found.name == "product matmul"
    np.testing.assert_allclose(wanted, A @ B, rtol=1e-5)


def test_what_the_price_chose_stays_where_nothing_is_faster(on: On, first: None) -> None:
    on.fake.lasts = lambda name, count, threads: 1.0
    (found,) = on.tuned(product(16, 33, 16))
    assert found.block == "" and found.us == found.default_us == pytest.approx(1e3)


def planted(blocks: fake_triton.Blocks, spoil: Callable[[Kernel, list[int]], None]) -> None:
    """Kernels of one warp, the fastest, do something else."""
    plain = blocks.add

    def add(launch: Any, binary: Any) -> None:
        plain(launch, binary)
        own = blocks.fake.kernels[binary.name]
        if 32 * launch.warps == FAST:
            run = lambda given, count, each: spoil(own, (given, count, each))
            blocks.fake.kernels[binary.name] = Kernel(run, own.touched)

    blocks.add = add  # type: ignore[method-assign]


def changed(own: Kernel, how: Any) -> None:
    """One element of the result, in its first half of digits."""
    own.run(*how)
    assert own.touched is not None
    address = next(at for at, size, writes in own.touched(how[0]) if writes and size == 16 * 16 * 4)
    ctypes.c_float.from_address(address + 4 * 255).value *= 1.01


def nothing(own: Kernel, how: Any) -> None:
    """What another candidate left there is not taken for its result."""


@pytest.mark.parametrize("spoil", [changed, nothing])
def test_a_candidate_with_other_results_is_told_and_not_taken(
    spoil: Any, on: On, caplog: pytest.LogCaptureFixture
) -> None:
    planted(on.blocks, spoil)
    with caplog.at_level(logging.WARNING, logger="pullback"):
        (found,) = on.tuned(product(16, 33, 16))
    assert found.refused > 0 and "; 1 warps" in caplog.text and "gives other results" in caplog.text
    assert "; 1 warps" not in found.block


def failing(binaries: Any) -> Any:
    raise DeviceError("Triton fails to compile: no registers", code="E415")


def large(binaries: Any) -> Any:
    """Of more shared memory than the price has expected: the driver refuses it."""
    return [replace(binary, shared=1 << 20) for binary in binaries]


@pytest.mark.parametrize(
    ("change", "why"), [(failing, "no registers"), (large, "CUDA_ERROR_INVALID_VALUE")]
)
def test_a_candidate_that_does_not_run_is_told_and_not_taken(
    change: Any, why: str, on: On, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    plain = on.blocks.binaries

    def binaries(orders: Any, capability: int) -> Any:
        made = plain(orders, capability)
        return change(made) if any(32 * order.warps == FAST for order in orders) else made

    monkeypatch.setattr(offline, "compiled", binaries)
    with caplog.at_level(logging.WARNING, logger="pullback"):
        (found,) = on.tuned(product(16, 33, 16))
    assert "; 1 warps" in caplog.text and why in caplog.text
    assert found.refused > 0 and "; 1 warps" not in found.block and found.us < found.default_us


def test_no_file_is_written_while_one_is_compiled(
    on: On, first: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Schedules that differ in warps or stages have one text, and one file."""
    running, most = 0, 0
    written, plain = tune.orders, on.blocks.binaries

    def orders(made: Any) -> Any:
        assert not running, "a worker may be reading it"
        return written(made)

    def compiled(asked: Any, capability: int) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        time.sleep(0.05)
        running -= 1
        return plain(asked, capability)

    monkeypatch.setattr(tune, "orders", orders)
    monkeypatch.setattr(tune, "processors", lambda: 2)
    monkeypatch.setattr(offline, "compiled", compiled)
    assert on.tuned(copy(600))[0].refused == 0 and most == 2


def test_out_of_time_it_has_what_it_found(on: On, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second passes whenever somebody asks what time it is."""
    now = iter(range(10**6))
    monkeypatch.setattr(tune.time, "perf_counter", lambda: float(next(now)))
    assert on.tuned(product(16, 33, 16), 0.0) == [] and on.blocks.compiled == 0
    (few,) = on.tuned(product(16, 33, 16), 3.0)
    (more,) = on.tuned(product(16, 33, 16), 12.0)
    assert 1 < few.tries <= 5 < more.tries and more.us < few.us <= few.default_us


def test_runs_of_a_round_are_as_many_as_it_has_time_for(
    on: On, first: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 48 us, twenty in a graph; its time is that of one."""
    on.fake.lasts = lambda name, count, threads: 0.048
    monkeypatch.setattr(tune, "MEASURED", 0)
    (found,) = on.tuned(copy(64))
    assert found.us == pytest.approx(48) and found.tries == 1
    replayed = on.fake.calls.count("cuGraphLaunch")
    assert replayed == 3 and len(on.fake.launched) == 2 + 2 + 20


# --- all ways of launches, whose memory is the tuner's own


def attention(x: Any) -> Any:
    return pb.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)


SMALL = RNG.uniform(0.1, 1.0, (1, 17, 16)).astype(np.float32)
PLACES = np.array([3, 0, 3, 1, 2, 3], np.int64)
WAYS: dict[str, tuple[Any, tuple[Any, ...], set[str]]] = {
    "attention": (attention, (SMALL,), {"stream"}),
    "its slopes": (lambda x: pb.grad(pb.sum(attention(x) ** 2), [x])[0], (SMALL,), {"stream"}),
    "scatter": (lambda x: pb.grad(pb.sum(x[PLACES] ** 2), [x])[0], (A[:5],), {"scatter"}),
    "scan": (lambda x: pb.cumulative_sum(x, axis=1), (A,), {"scan"}),
    "parts": (lambda x: pb.sum(x * x), (RNG.uniform(size=20000).astype(np.float32),), {"loop"}),
    "softmax of a product": (
        lambda a, b: pb.nn.functional.softmax(a @ b, dim=1), (A, B), {"product", "block"},
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n == "its slopes")) for n in WAYS]
)
def test_every_launch_of_a_program_is_measured(
    name: str, on: On, first: None, caplog: pytest.LogCaptureFixture
) -> None:
    function, given, ways = WAYS[name]
    made, got = on.program(function, *given, tune=600.0)
    found = records.read(on.cache / FILE).values()
    assert ways <= {record.kernel.split()[0] for record in found}
    assert any(record.block for record in found) and "measured: " in made.program.explain()
    assert "gives other results" not in caplog.text
    wanted = pb.jit(function, options=Options(cache=None))(*given).numpy()
    np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=1e-4)


def test_states_are_what_they_were(on: On) -> None:
    """A launch in place is run many times, on copies: of the state it is one step."""
    w = pb.State(pb.full((600,), 2.0))

    @pb.jit(options=replace(on.options, tune=60.0))
    def step(x: pb.Tensor) -> None:
        w.assign(w * x)

    x = np.full(600, 0.5, np.float32)
    step(x)
    assert len(records.read(on.cache / FILE)) == 1 and len(on.fake.launched) > 10
    np.testing.assert_array_equal(w.numpy(), np.ones(600))
    step(x)
    np.testing.assert_array_equal(w.numpy(), np.full(600, 0.5))


def test_indices_that_are_computed_from_data_are_zeros(on: On, first: None) -> None:
    """What is drawn leads out of the axis."""
    made, wanted = on.program(lambda w, i: w[i * 60], A[:7], np.zeros(5, np.int64), tune=60.0)
    np.testing.assert_array_equal(wanted, A[[0] * 5])
    assert len(records.read(on.cache / FILE)) == len(made.program.kernels)


# --- what is kept


def kept_of(on: On, block: str = "", **changes: Any) -> Records:
    """A record of the product, as if it had been measured."""
    backend = compiler(NAME)
    target = backend.machine(on.options)
    device = backend.device(target)
    assert device is not None
    made, _ = on.program(cache=None)
    ((group, _),) = plan.units(made.program.kernels[0])
    key = replace(Key.on(device, signature(group), NAME), **changes)
    return {key: Tuned("product matmul", (), 9.0, 4.0, block)}


OTHER = "16 x 16, 16 at once; 1 warps, 4 stages; groups of 1, parts 1; tf32x3, by pointers"


def threads_of(on: On) -> int:
    """Of the last launch."""
    return on.fake.launched[-1][2]


def test_what_was_found_is_used_without_measuring(on: On, monkeypatch: pytest.MonkeyPatch) -> None:
    _, got = on.program(tune=60.0)
    ((key, record),) = records.read(on.cache / FILE).items()
    assert (key.cpu, key.threads, key.backend) == (on_name(on), 0, NAME)
    assert re.fullmatch(r"sm_90 Triton \d+\.\d+\.\d+", key.target)
    assert record.us < record.default_us and 32 * parsed(record.block).warps == FAST
    assert threads_of(on) == FAST, "by this process"
    monkeypatch.setattr(tune, "Bench", lambda *_: pytest.fail("measured again"))
    monkeypatch.setattr(tuning, "inputs", lambda kernel: pytest.fail("drawn again"))
    for changes in ({}, {"tune": 60.0}):
        before = len(on.fake.launched)
        later, same = on.program(**changes)
        assert len(on.fake.launched) == before + 1 and threads_of(on) == FAST
        assert np.array_equal(got, same)
        assert f"measured: {record.us:.1f} us, as priced" in later.program.explain()
        assert str(on.cache / FILE) in later.program.explain()


def on_name(on: On) -> str:
    return compiler(NAME).device(compiler(NAME).machine(on.options)).name  # type: ignore[union-attr]


def test_without_a_folder_it_is_the_program_s_own(on: On) -> None:
    made, got = on.program(tune=60.0, cache=None)
    assert threads_of(on) == FAST and "measured: " in made.program.explain()
    np.testing.assert_allclose(got, A @ B, rtol=1e-5)
    on.program(cache=None)
    assert threads_of(on) != FAST and not on.cache.exists()


def test_that_the_price_is_best_is_kept_too(on: On, first: None) -> None:
    on.fake.lasts = lambda name, count, threads: 1.0
    made, _ = on.program(tune=60.0)
    assert [r.block for r in records.read(on.cache / FILE).values()] == [""]
    assert "measured" not in made.program.explain()
    compiled = on.blocks.compiled
    on.program(tune=60.0)
    assert on.blocks.compiled == compiled, "nothing is measured again"


def test_a_record_changes_the_code(on: On) -> None:
    """Of a program that was kept before it, too."""
    _, wanted = on.program()
    assert threads_of(on) != FAST
    records.write(on.cache / FILE, kept_of(on, OTHER))
    made, got = on.program()
    assert threads_of(on) == FAST
    np.testing.assert_allclose(got, wanted, rtol=1e-5)
    text = made.program.explain()
    assert f"0 product matmul: {OTHER}  # measured: 4.0 us, as priced 9.0; {on.cache}" in text
    (on.cache / FILE).unlink()
    on.program()
    assert threads_of(on) != FAST


@pytest.mark.parametrize(
    "change",
    [
        {"cpu": "NVIDIA H200"}, {"target": "sm_90 Triton 1.0.0"}, {"version": 0}, {"threads": 2},
        {"target": "sm_90+tf32 Triton 3.9.0"}, {"backend": "nvptx"}, {"structure": "ab"},
    ],
    ids=str,
)  # fmt: skip
def test_records_of_others_are_not_used(change: dict[str, Any], on: On) -> None:
    records.write(on.cache / FILE, kept_of(on, OTHER, **change))
    made, _ = on.program()
    assert threads_of(on) != FAST and "measured" not in made.program.explain()


@pytest.mark.parametrize(
    "wrong",
    [
        "fast", OTHER.replace("tf32x3", "tf32"), OTHER.replace("parts 1", "parts 64"),
        OTHER.replace("1 warps", "64 warps"), OTHER.replace("16 at", "24 at"),
        OTHER.replace("16 x", "8 x"),
    ],
)  # fmt: skip
def test_a_record_that_does_not_fit_is_ignored_by_name(
    wrong: str, on: On, caplog: pytest.LogCaptureFixture
) -> None:
    _, wanted = on.program()
    records.write(on.cache / FILE, kept_of(on, wrong))
    with caplog.at_level(logging.WARNING, logger="pullback"):
        made, got = on.program()
    assert f"{on.cache / FILE}: a record is ignored" in caplog.text
    assert np.array_equal(got, wanted) and "measured" not in made.program.explain()


@pytest.mark.parametrize("text", ["{", '{"records": [{"block": 3}]}'])
def test_a_damaged_file_is_ignored_by_name(
    text: str, on: On, caplog: pytest.LogCaptureFixture
) -> None:
    on.cache.mkdir(mode=0o700)
    (on.cache / FILE).write_text(text)
    with caplog.at_level(logging.WARNING, logger="pullback"):
        on.program()
    assert f"{on.cache / FILE} is no file of tuned schedules" in caplog.text


def test_a_block_that_is_no_text_is_damage(on: On, tmp_path: Path) -> None:
    path = tmp_path / "one.json"
    records.write(path, kept_of(on, OTHER))
    path.write_text(path.read_text().replace(json.dumps(OTHER), "7"))
    with pytest.raises(pb.errors.CacheError, match="E511"):
        records.read(path)


def test_schedules_of_the_package_are_used_but_for_own_records(
    on: On, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "h100.json"
    plain = TritonCuda.device
    monkeypatch.setattr(TritonCuda, "device", lambda s, t: replace(plain(s, t), file=file))
    records.write(file, kept_of(on, OTHER), {"on": "somewhere"})
    for cache in (None, on.cache):
        made, _ = on.program(cache=cache)
        assert threads_of(on) == FAST and f"; {file}" in made.program.explain()
    records.write(on.cache / FILE, kept_of(on, OTHER.replace("1 warps", "8 warps")))
    on.program()
    assert threads_of(on) == 256
    records.write(on.cache / FILE, kept_of(on))
    made, _ = on.program()
    assert threads_of(on) != FAST and "measured" not in made.program.explain(), "the price is best"


def test_a_schedule_with_a_note_is_read_back(on: On) -> None:
    kernel = product(16, 33, 16)
    ((group, _),) = plan.units(kernel)
    choose = plan.chooser(H100, blocks=((signature(group), OTHER, "4.0 us; mine.json"),))
    text = schedules_text(kernel, choose)
    assert text.endswith("  # measured: 4.0 us; mine.json")
    ((_, schedule),) = read_back(kernel, text, H100)
    assert str(schedule) == OTHER


FILES = sorted((Path(plan.__file__).parents[2] / "machine" / "gpu").glob("*.json"))


def checked(path: Path) -> None:
    """A file of the package says where, when and of what, and holds launches alone."""
    told = json.loads(path.read_text())
    assert all(len(told[name]) > 4 for name in ("on", "date", "pullback", "commit", "times"))
    assert told["records"] and "triton-cuda: Triton" in told["on"]
    for key, record in records.read(path).items():
        assert (key.threads, key.backend, key.version) == (0, NAME, records.VERSION)
        assert record.choices == () and (not record.block or str(parsed(record.block)))
        assert key.cpu in told["on"] and key.target.split()[-1] in told["on"]


def test_what_a_file_of_the_package_holds(on: On, tmp_path: Path) -> None:
    path = tmp_path / "h100.json"
    records.write(path, kept_of(on, OTHER), tuning.origin(on.options, commit="60dada95"))
    for file in (path, *FILES):
        checked(file)
    records.write(path, kept_of(on, OTHER))
    with pytest.raises(KeyError):
        checked(path)


# --- who asks


TEXT = ("c[i, j] = sum[k](a[i, k] * b[k, j])", "--shape", "a=16,33", "--shape", "b=33,16")


def call(on: On, *arguments: str) -> Any:
    environment = {"PULLBACK_CACHE": str(on.cache)}
    return CliRunner().invoke(commands, ["tune", *arguments], env=environment)


def test_the_command_measures_launches(on: On, first: None, tmp_path: Path) -> None:
    save = tmp_path / "mine.json"
    done = call(on, *TEXT, "--backend", NAME, "--save", str(save))
    assert done.exit_code == 0, done.output
    heads = "| launch | price us | priced us | best us | gain | tries | refused | schedule |"
    assert done.output.startswith(heads) and "| product " in done.output
    assert "1 of 1 are faster otherwise" in done.output
    own = records.read(on.cache / FILE)
    assert records.read(save) == own and len(own) == 1
    told = json.loads(save.read_text())
    assert "a device that is none" in told["on"] and re.match(r"\d{4}-\d\d-\d\d$", told["date"])
    again = call(on, *TEXT, "--backend", NAME, "--json")
    (row,) = map(json.loads, again.output.splitlines())
    assert row["tries"] == 4, "the cheapest, two near it, and what is kept"
    assert call(on, *TEXT, "--merge", str(save)).exit_code != 0


def test_a_script_s_launches_are_measured(on: On, first: None, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import numpy as np\nimport pullback as pb\n"
        "f = pb.jit(lambda x: x * 2.0 + 1.0)\nf(np.ones(600, np.float32))\n"
    )
    done = call(on, str(script), "--backend", NAME)
    assert done.exit_code == 0, done.output
    assert "| block " in done.output and len(records.read(on.cache / FILE)) == 1


@pytest.mark.skipif(not HAS_C, reason="there is no C compiler for threads")
def test_the_other_backend_of_devices_measures_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake_warps.device(monkeypatch)
    with pytest.raises(UnsupportedError, match="measures no schedules") as told:
        pb.jit(multiplied, options=Options(backend="nvptx", cache=tmp_path, tune=1.0))(A, B)
    assert told.value.code == "E197"
