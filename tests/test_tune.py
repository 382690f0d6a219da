"""Schedules by measured time: choices, searches, records, and the command."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import pullback as pb
from lower_support import start
from pullback.backends.host.processor import host_target
from pullback.backends.loops import backend as loops
from pullback.cli.main import commands
from pullback.cli.tune import merged
from pullback.config import Options
from pullback.errors import CacheError, InvalidIR, OptionError
from pullback.ir.kernel import Kernel
from pullback.ir.nest import Routine
from pullback.ir.signature import kernel_digest
from pullback.runtime import tuned as records
from pullback.runtime.executable import Executable
from pullback.runtime.tuned import FILE, Chooser, Key, Records, Tuned, read, write
from pullback.schedule.choices import Choices, choices_of
from pullback.schedule.choose import choose
from pullback.schedule.moves import Space
from pullback.tensor.run.search import Trials, best, draws
from pullback.tensor.run.tune import Bench, Outcome, kernels_of

measures = sys.modules["pullback.tensor.run.tune"]  # the name `pb.tensor` is a function
HOST = host_target()
RNG = np.random.default_rng(0)
A = RNG.uniform(0.1, 1.0, (40, 24)).astype(np.float32)
B = RNG.uniform(0.1, 1.0, (24, 36)).astype(np.float32)


def rows(a: pb.Tensor, b: pb.Tensor) -> Any:
    """A product, a row statistic, a map."""
    return pb.nn.functional.softmax(a @ b, -1)


def compiled(options: Options) -> tuple[Executable, np.ndarray[Any, Any]]:
    function = pb.jit(rows, options=options)
    result = function(A, B).numpy().copy()
    return function.program, result


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(threads=2, cache=tmp_path / "cache")


@pytest.fixture(scope="module")
def kernel() -> Kernel:
    program, _ = compiled(Options(threads=2, cache=None))
    (found,) = kernels_of([program])
    return found


# --- searches, over a cost that is no measurement


class Grid:
    """Three numbers, each changed by one; what was offered is not offered again."""

    SIZES = (9, 9, 5)

    def __init__(self) -> None:
        self.known: set[Choices] = {()}

    def new(self, place: dict[str, int]) -> list[Choices]:
        found = choices_of({n: v for n, v in place.items() if v})
        inside = all(0 <= place[n] < size for n, size in zip("xyz", self.SIZES, strict=True))
        if not inside or found in self.known:
            return []
        self.known.add(found)
        return [found]

    def near(self, choices: Choices) -> list[Choices]:
        at = {"x": 0, "y": 0, "z": 0, **dict(choices)}
        return [c for n in at for by in (1, -1) for c in self.new({**at, n: at[n] + by})]

    def draw(self, random: Random) -> Choices | None:
        for _ in range(50):
            drawn = [random.randrange(size) for size in self.SIZES]
            found = self.new(dict(zip("xyz", drawn, strict=True)))
            if found:
                return found[0]
        return None


def cost(choices: Choices) -> float:
    """Least at (6, 7, 3), with a ridge: y weighs more where x is high. (0, 1, z) is refused."""
    at = {"x": 0, "y": 0, "z": 0, **dict(choices)}
    if at["y"] == 1 and at["x"] < 2:
        return inf
    return 10.0 + (at["x"] - 6) ** 2 + abs(at["y"] - 7) * (1 + at["x"]) / 4 + (at["z"] - 3) ** 2


def measured(most: int) -> Trials:
    found = Trials(lambda batch: [cost(c) for c in batch], lambda: len(found.times) < most)
    return found


BEST = (("x", 6), ("y", 7), ("z", 3))


def test_a_beam_finds_the_best_of_a_known_cost() -> None:
    trials = measured(200)
    assert best([()], Grid(), trials) == BEST
    assert len(trials.times) < 200, "it ends by itself"


def test_random_draws_need_more_tries() -> None:
    ours, other = measured(100), measured(100)
    found, drawn = best([()], Grid(), ours), draws([()], Grid(), other)
    assert cost(found) < cost(drawn) < cost(())
    assert draws([()], Grid(), measured(1000)) == BEST, "all of them in the end"


def test_a_search_is_a_function_of_its_seed() -> None:
    for search in (best, draws):
        first, second = measured(60), measured(60)
        search([()], Grid(), first, seed=3), search([()], Grid(), second, seed=3)
        assert list(first.times) == list(second.times)


def test_a_start_that_is_refused_is_not_the_best() -> None:
    assert best([(("y", 1),), ()], Grid(), measured(1)) == ()
    assert draws([()], Grid(), measured(0)) == ()


# --- choices of a schedule


def test_choices_change_what_they_name(kernel: Kernel) -> None:
    model = choose(kernel, HOST)
    given = choices_of({"tile.0": 8, "tasks": 4, "unroll.4": 1, "vectors.0": 2, "rows.0": 3})
    found = choose(kernel, HOST, given)
    assert (found.tile, found.tasks) == ((8,), 4) and model.tile != (8,)
    asked = {step.stages[0]: dict(step.asked) for step in found.steps}
    assert asked[4] == {"unroll": 1} and asked[0] == {"rows": 3, "vectors": 2}
    assert [s.stages for s in found.steps] == [s.stages for s in model.steps]
    parted = choose(kernel, HOST, (("apart.3", 1),))
    assert len(parted.steps) == len(model.steps) + 1
    swept = choose(kernel, HOST, (("column.0", -1), ("lanes.0", 1)))
    assert swept.steps[0].product is None and swept.steps[0].vector == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"tile.0": 41},
        {"tile.0": 0},
        {"tile.1": 8},
        {"tasks": 99},
        {"lanes.0": 1},
        {"column.0": 2},
        {"speed": 9},
    ],
    ids=str,
)
def test_choices_that_a_kernel_does_not_have_are_refused(
    kernel: Kernel, wrong: dict[str, int]
) -> None:
    with pytest.raises(OptionError, match=next(iter(wrong))):
        choose(kernel, HOST, choices_of(wrong))


def test_tiles_without_room_are_refused(kernel: Kernel) -> None:
    small = replace(HOST, l2=1024)
    with pytest.raises(OptionError, match="no room"):
        choose(kernel, small, (("tile.0", 40),))


def test_a_kernel_with_a_tiling_keeps_it(kernel: Kernel) -> None:
    fixed = replace(kernel, tiling=((5,), 2))
    assert choose(fixed, HOST).tile == (5,)
    with pytest.raises(OptionError):
        choose(fixed, HOST, (("tile.0", 8),))


def test_a_space_offers_each_schedule_once(kernel: Kernel) -> None:
    space, random = Space(kernel, HOST), Random(0)
    found = [*space.near(()), *(space.draw(random) for _ in range(20))]
    schedules = [choose(kernel, HOST, c) for c in found if c is not None]
    assert len(set(schedules)) == len(schedules) > 40
    assert choose(kernel, HOST) not in schedules


# --- measuring


def test_every_schedule_computes_the_same(kernel: Kernel) -> None:
    bench, random = Bench(kernel, Options(threads=2, cache=None)), Random(1)
    space = Space(kernel, HOST)
    fixed: list[Choices] = [(("column.0", 0),), (("column.0", -1),), (("packed.0", 1),)]
    drawn = [c for c in (space.draw(random) for _ in range(6)) if c is not None]
    for choices in [*fixed, *drawn]:
        assert bench.checked(choices) is not None, choices
    assert bench.refused == 0


def test_what_the_verifier_refuses_is_not_run(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(kernel, Options(threads=2, cache=None))

    def refuse(routine: Routine, after: str) -> None:
        raise InvalidIR(f"{routine.name} after {after}")

    monkeypatch.setattr(loops, "verify_routine", refuse)
    assert bench.measure([(("tasks", 1),)]) == [inf]
    assert bench.refused == 1


def test_what_gives_other_results_is_refused(kernel: Kernel) -> None:
    bench = Bench(kernel, Options(threads=2, cache=None))
    bench.wanted = [w * 1.01 for w in bench.wanted]
    assert bench.checked((("tasks", 1),)) is None and bench.refused == 1


def test_what_a_kernel_overwrites_is_restored() -> None:
    w = pb.State(pb.ones((64,)))

    @pb.jit(options=Options(threads=1, cache=None))
    def step(x: pb.Tensor) -> None:
        w.assign(w * x)

    step(np.full(64, 0.5, np.float32))
    (kernel,) = kernels_of([step.program])
    bench = Bench(kernel, Options(threads=1, cache=None))
    first = bench.results(bench.default)
    bench.race([bench.default])
    assert np.array_equal(bench.results(bench.default), first)


def test_indices_are_drawn_in_range() -> None:
    function = pb.jit(lambda w, i: pb.take(w, i, axis=0), options=Options(cache=None))
    function(np.ones((7, 5), np.float32), np.array([6, 0, 3]))
    (kernel,) = kernels_of([function.program])
    bench = Bench(kernel, Options(threads=1, cache=None))
    integers = [a for a in bench.arrays.values() if a.dtype.kind == "i"]
    assert len(integers) == 1 and integers[0].max() < 7


# --- records


def record(kernel: Kernel, choices: dict[str, int], threads: int = 2, us: float = 5.0) -> Records:
    return {Key.of(kernel, HOST, threads): Tuned("y", choices_of(choices), 10.0, us)}


def test_records_survive_a_file(kernel: Kernel, tmp_path: Path) -> None:
    path = tmp_path / "new" / FILE
    assert read(path) == {}
    found = record(kernel, {"tile.0": 8, "tasks": 4}) | record(kernel, {"tasks": 1}, threads=1)
    write(path, found)
    assert read(path) == found
    assert os.listdir(path.parent) == [FILE]
    rows = json.loads(path.read_text())["records"]
    assert {row["threads"] for row in rows} == {1, 2}
    assert all(row["target"].startswith(HOST.name) for row in rows)


def test_records_are_written_whole_or_not_at_all(
    kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / FILE
    write(path, record(kernel, {"tasks": 4}))
    before = path.read_text()

    def full(handle: int) -> None:
        raise OSError(28, "no space left")

    monkeypatch.setattr(os, "replace", lambda a, b: full(0))
    with pytest.raises(CacheError, match="no space left"):
        write(path, record(kernel, {"tasks": 1}))
    assert path.read_text() == before and os.listdir(tmp_path) == [FILE]


def test_of_two_records_the_better_one_stays(kernel: Kernel) -> None:
    slow, fast = record(kernel, {"tasks": 4}, us=8.0), record(kernel, {"tasks": 1}, us=4.0)
    other = record(kernel, {"tasks": 2}, threads=7)
    assert merged([slow, fast, other]) == merged([other, fast, slow]) == fast | other
    assert merged([fast, fast]) == fast


@pytest.mark.parametrize(
    "text",
    ["", "{}", '{"records": [1]}', '{"records": [{"structure": "ab"}]}', "[]"],
    ids=["empty", "nothing", "number", "part", "list"],
)
def test_a_damaged_file_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / FILE
    path.write_text(text)
    with pytest.raises(CacheError, match=FILE):
        read(path)


@pytest.mark.parametrize("field", ["threads", "us", "cpu", "choices"])
def test_a_wrong_field_is_damage(kernel: Kernel, tmp_path: Path, field: str) -> None:
    path = tmp_path / FILE
    write(path, record(kernel, {"tasks": 4}))
    found = json.loads(path.read_text())
    wrong = {"threads": "2", "us": -1.0, "cpu": 5, "choices": {"tasks": 1.5}}
    found["records"][0][field] = wrong[field]
    path.write_text(json.dumps(found))
    with pytest.raises(CacheError, match=FILE):
        read(path)


def test_the_key_is_of_the_structure(kernel: Kernel, options: Options) -> None:
    program, _ = compiled(options)
    assert kernel_digest(program.kernels[0]) == kernel_digest(kernel), "traced again, names apart"
    wide = pb.jit(rows, options=options)
    wide(A, np.concatenate([B, B], 1))
    single = kernel_digest(wide.program.kernels[0])
    wide(A.astype(np.float64), np.concatenate([B, B], 1).astype(np.float64))
    keys = {kernel_digest(kernel), single, kernel_digest(wide.program.kernels[0])}
    assert len(keys) == 3


def test_a_record_changes_the_schedule_and_no_result(kernel: Kernel, options: Options) -> None:
    assert options.cache is not None
    plain, wanted = compiled(options)
    assert plain.chosen(kernel, HOST) == start(kernel, HOST)
    write(options.cache / FILE, record(kernel, {"tile.0": 8, "tasks": 4, "unroll.4": 1}))
    tuned, found = compiled(options)
    schedule = tuned.chosen(kernel, HOST)
    assert (schedule.tile, schedule.tasks) == ((8,), 4)
    assert "4 tasks over tiles of (8,)" in tuned.explain()
    assert "4 tasks over tiles of (8,)" not in plain.explain()
    assert tuned.stats.compiled == 1, "what the default left behind is not taken"
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
    again, same = compiled(options)
    assert again.stats.compiled == 0 and np.array_equal(same, found)
    (options.cache / FILE).unlink()
    last, before = compiled(options)
    assert last.stats.compiled == 0 and np.array_equal(before, wanted)


def test_records_of_others_are_not_used(kernel: Kernel, options: Options) -> None:
    key, found = next(iter(record(kernel, {"tile.0": 8}).items()))
    changes: Sequence[dict[str, Any]] = (
        {"threads": 3}, {"cpu": "other"}, {"target": "x86-64"}, {"version": 0}, {"structure": "ab"},
    )  # fmt: skip
    assert (
        Chooser({key: found}, 2, start=start)(kernel, HOST).tile
        == (8,)
        != choose(kernel, HOST).tile
    )
    for change in changes:
        other = Chooser({replace(key, **change): found}, 2, start=start)
        assert other(kernel, HOST) == start(kernel, HOST), change
    less = replace(HOST, cpu="other")
    assert Chooser({key: found}, 2, start=start)(kernel, less) == start(kernel, less)
    assert options.cache is not None
    write(options.cache / FILE, {key: found})
    bound = pb.jit(rows, options=options, memory="1MB")
    bound(A, B)
    assert bound.program.chosen(kernel, HOST) == start(kernel, HOST), "a budget was planned for"


def test_a_record_that_does_not_fit_is_ignored_by_name(
    kernel: Kernel, options: Options, caplog: pytest.LogCaptureFixture
) -> None:
    assert options.cache is not None
    write(options.cache / FILE, record(kernel, {"tile.0": 70}))
    with caplog.at_level(logging.WARNING, logger="pullback"):
        program, _ = compiled(options)
    assert str(options.cache / FILE) in caplog.text and "tile.0 = 70" in caplog.text
    assert program.chosen(kernel, HOST) == start(kernel, HOST)


def test_a_damaged_file_is_ignored_by_name(
    options: Options, caplog: pytest.LogCaptureFixture
) -> None:
    assert options.cache is not None
    options.cache.mkdir(mode=0o700)
    (options.cache / FILE).write_text("{")
    with caplog.at_level(logging.WARNING, logger="pullback"):
        compiled(options)
    assert str(options.cache / FILE) in caplog.text


# --- the command


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PULLBACK_CACHE", str(tmp_path / "kept"))
    return tmp_path / "kept"


def call(*arguments: str) -> Any:
    return CliRunner().invoke(commands, ["tune", *arguments])


PRODUCT = ("c[i, j] = sum[k](a[i, k] * b[k, j])", "--shape", "a=24,30", "--shape", "b=30,20")


def test_the_command_writes_what_it_gains(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "MARGIN", 0.0)  # anything counts as faster
    done = call(*PRODUCT, "--budget", "0.2", "--search", "beam", "--json")
    assert done.exit_code == 0, done.output
    (row,) = map(json.loads, done.output.splitlines())
    assert row["tries"] >= 1 and row["default_us"] > 0 and row["refused"] == 0
    kept = read(folder / FILE)
    assert [dict(r.choices) for r in kept.values()] == ([row["choices"]] if row["choices"] else [])
    shown = call(*PRODUCT, "--budget", "0.2")
    heads = "| kernel | line | default us | beam us | random us | gain | tries |"
    assert shown.output.startswith(heads) and "the command line" in shown.output


def test_the_command_takes_scripts_and_functions(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "tuned_script.py"
    script.write_text(
        "import numpy as np\nimport pullback as pb\n"
        "def scaled(x):\n    return x * 2.0\n"
        "double = pb.jit(scaled)\ndouble(np.ones(50, np.float32))\n"
    )
    monkeypatch.chdir(tmp_path)
    for given in ([str(script)], ["tuned_script:scaled", "--shape", "x=50"]):
        done = call(*given, "--budget", "0", "--search", "random")
        assert done.exit_code == 0, done.output
        assert "tuned_script.py:4" in done.output and "| 1.00 | 0 |" in done.output
    assert not (folder / FILE).exists(), "nothing was found"


def test_the_command_merges_files(kernel: Kernel, folder: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    write(one, record(kernel, {"tasks": 4}, us=8.0) | record(kernel, {"tasks": 2}, threads=9))
    write(two, record(kernel, {"tasks": 1}, us=4.0))
    done = call("--merge", str(one), str(two))
    assert done.exit_code == 0 and "2 records" in done.output
    assert read(folder / FILE) == merged([read(one), read(two)])
    two.write_text("no records")
    before = (folder / FILE).read_text()
    failed = call("--merge", str(one), str(two))
    assert failed.exit_code == 2 and "two.json" in failed.stderr
    assert (folder / FILE).read_text() == before


def test_a_program_is_measured_where_it_is_compiled(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A faster schedule is taken, in this process and the next; what was measured is not again."""
    assert options.cache is not None
    asked: list[float] = []

    def tuned(self: Bench, seconds: float, *_: Any) -> Outcome:
        asked.append(seconds)
        return Outcome(self.kernel, 2.0, {"beam": 1.0}, (("tile.0", 8),), 1, 0)

    monkeypatch.setattr(Bench, "tuned", tuned)
    for cache in (options.cache, options.cache, None):
        program, results = compiled(replace(options, tune=2.0, cache=cache))
        assert program.chosen(program.kernels[0], HOST).tile == (8,)
        np.testing.assert_allclose(results, compiled(options)[1], rtol=1e-5)
    assert len(asked) == 2 and 0 < min(asked) <= max(asked) <= 2.0
    assert [r.choices for r in read(options.cache / FILE).values()] == [(("tile.0", 8),)]


def test_what_is_as_good_as_it_gets_is_not_measured_again(
    options: Options, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert options.cache is not None
    calls: list[Bench] = []
    _, wanted = compiled(options)

    def tuned(self: Bench, *_: Any) -> Outcome:
        calls.append(self)
        return Outcome(self.kernel, 2.0, {"beam": 2.0}, (), 1, 0)

    monkeypatch.setattr(Bench, "tuned", tuned)
    for _ in range(2):
        _, results = compiled(replace(options, tune=1.0))
        assert np.array_equal(results, wanted)
    measured = read(options.cache / FILE)
    assert len(calls) == 1 and len(measured) == 1
    assert not Chooser(measured, 2, start=start).digest, "programs that are kept stay as they are"


@pytest.mark.parametrize("tune", [-1.0, float("nan"), float("inf"), True, "10"])
def test_what_are_no_seconds(tune: Any) -> None:
    with pytest.raises(OptionError, match="E225"):
        Options(tune=tune)


def test_what_cannot_be_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    assert call("nowhere.py").exit_code == 2
    assert call("--merge", "nowhere.json").exit_code == 2
    monkeypatch.setenv("PULLBACK_CACHE", "off")
    done = call(*PRODUCT)
    assert done.exit_code == 2 and "PULLBACK_CACHE" in done.stderr


def test_the_version_is_in_the_key() -> None:
    assert Key("ab", "cpu", "target", 2).version == records.VERSION
