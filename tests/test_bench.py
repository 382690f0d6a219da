"""The suite of benchmarks: its statistics, its table, who is measured beside whom, and when."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner

from pullback.cli.bench import bench, workloads

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

from suite import __main__ as suite
from suite import measure, table
from suite.classes import CLASSES, made, packed
from suite.contraction import Product
from suite.limits import Limits
from suite.measure import Run, Setting
from suite.memory_bound import Chain, LayerNorm, Rotary, Softmax
from suite.systems import Pullback
from suite.workload import Operation

SUMS = [[2.0, 0.1, 0.5]]
STUB = """#!{python}
import json, sys
system = json.loads(sys.argv[3])
facts = {facts}[system["system"]]
print("what a library prints")
print(json.dumps(facts), flush=True)
for line in sys.stdin:
    with open({log!r}, "a") as log:
        log.write(system["system"] + str(system["threads"]) + " ")
    print(json.dumps({{"seconds": facts["took"] / system["threads"], "memory": 10}}), flush=True)
"""


def run(system: str, threads: int, *times: float, mode: str = "", sums: Any = SUMS) -> Run:
    return Run(system, mode, threads, 0.5, list(times), sums)


def stub(folder: Path, **facts: dict[str, Any]) -> dict[str, str]:
    """Interpreters that answer as workers do, and note when each was asked for a time."""
    path = folder / "python"
    log = str(folder / "log")
    path.write_text(STUB.format(python=sys.executable, facts=facts, log=log))
    path.chmod(0o755)
    return dict.fromkeys(facts, str(path))


def answer(took: float, sums: Any = SUMS) -> dict[str, Any]:
    return {"cold": 1.0, "shapes": {}, "moved": 100, "sums": sums, "took": took}


def test_a_ratio_is_of_medians_and_never_with_more_threads_than_the_peer() -> None:
    ours = [run("pullback", 1, 4.0, 5.0, 90.0), run("pullback", 2, 1.0)]
    slow = [run("torch", 1, 10.0, mode="eager"), run("torch", 2, 20.0, mode="eager")]
    found = table.row("w", [*ours, *slow], ["eager"], 1e-3)
    assert found.ratios["eager"].value == 2.0  # 10 over 5, though we need 1 on two threads
    assert (found.own, found.threads) == (1.0, 2)
    quick = [run("torch", 1, 10.0, mode="eager"), run("torch", 2, 2.0, mode="eager")]
    assert table.row("w", [*ours, *quick], ["eager"], 1e-3).ratios["eager"].value == 2.0


def test_a_peer_is_taken_in_its_best_mode() -> None:
    modes = [run("torch", 2, 9.0, mode="compile"), run("torch", 2, 6.0, mode="compile loss")]
    eager = run("torch", 2, 1.0, mode="eager")
    runs = [run("pullback", 1, 3.0), *modes, eager]
    found = table.row("w", runs, ["compile", "jax"], 1e-3)
    assert (found.ratios["compile"].value, found.ratios["compile"].mode) == (2.0, "compile loss")
    assert found.ratios["jax"].trouble == "-"


def test_results_that_differ_and_losses_are_marked() -> None:
    ours = run("pullback", 1, 4.0)
    other = run("jax", 1, 3.0, sums=[[2.0, 0.1, 0.6]])
    found = table.row("w", [ours, other], ["jax"], 1e-3, lambda threads, moved: 1.0)
    assert table.cell(found.ratios["jax"]) == "**0.75** (1 thread) RESULT DIFFERS"
    assert table.line(found, ["jax"], table.time_of).split(" | ")[1:4] == [
        "4 s, 1 thread", "1 s", "25%",
    ]  # fmt: skip
    same = table.row("w", [ours, run("jax", 2, 8.0)], ["jax"], 1e-3)
    assert table.cell(same.ratios["jax"]) == "2.00"
    bound = table.row("w", [ours, run("jax", 2, 8.0)], ["jax"], 1e-3, lambda threads, moved: 1.0)
    assert bound.ratios["jax"].most == 8.0


def test_a_class_is_reached_by_its_mean_and_its_worst_row() -> None:
    def row(name: str, value: float) -> table.Row:
        return table.Row(name, 1.0, 1, 0.0, {"jax": table.Ratio(value, 2, most=2 * value)})

    rows = [row("a", 4.0), row("b", 1.0), row("c", math.nan)]
    reached = table.summary_line("k", rows, [row("d", 0.5)], "jax", 2.0, 1.0)
    assert reached == "| k | jax | 2.00 | **0.50** | 4.00 | 2.0 | 1.00 b | yes |"
    assert table.summary_line("k", rows, [], "jax", 2.0, 1.1).endswith("| **no** |")
    assert table.summary_line("k", rows, [], "jax", 2.1, 0.0).endswith("| **no** |")


def test_workers_take_turns(tmp_path: Path) -> None:
    """Each round asks everybody once; what is not JSON is passed over."""
    pythons = stub(tmp_path, pullback=answer(2.0), jax=answer(6.0))
    setting = Setting(rounds=3, peers=("jax",), pythons=pythons)
    w = Softmax(8, 8)
    runs = measure.warm(w, setting)
    turns = (tmp_path / "log").read_text().split()
    assert turns == ["pullback1", "pullback2", "jax1", "jax2"] * 3
    found = table.row(w.name, runs, ["jax"], w.tolerance)
    ratio = found.ratios["jax"]
    assert (ratio.value, ratio.threads, ratio.trouble) == (3.0, 2, "")


def test_a_peer_that_is_missing_or_fails_is_named(tmp_path: Path) -> None:
    pythons = stub(tmp_path, pullback=answer(2.0), jax={"missing": "jax", "took": 0})
    setting = Setting(1, False, ("jax",), pythons)
    found = table.row("w", measure.warm(Softmax(8, 8), setting), ["jax"], 1e-3)
    assert table.cell(found.ratios["jax"]) == "jax is not installed"
    broken = dataclasses.replace(setting, pythons=pythons | {"jax": "/bin/false"})
    found = table.row("w", measure.warm(Softmax(8, 8), broken), ["jax"], 1e-3)
    assert table.cell(found.ratios["jax"]).startswith("failed")


def test_starts_and_memory(tmp_path: Path) -> None:
    w = next(w for w in CLASSES["memory"].workloads)
    pythons = stub(tmp_path, pullback=answer(2.0), jax=answer(1.0))
    setting = Setting(2, False, ("jax",), pythons)
    runs = measure.memory(w, setting)
    assert [(r.mode, r.memory) for r in runs] == [("", 10)] * 2 + [("step", 10)] * 2
    assert [r.times for r in measure.cold(w, setting)] == [[1.0, 1.0]] * 4


def test_the_physical_limit_is_the_tighter_one() -> None:
    roof = Limits({1: 100.0}, {1: {10: 50.0, 1000: 5.0}})
    assert roof.seconds(400.0, 10, 1) == 4.0
    assert roof.seconds(0.0, 10, 1) == 0.2
    assert roof.seconds(0.0, 11, 1) == 2.2  # does not fit the nearer memory
    assert roof.seconds(0.0, 5000, 1) == 1000.0


def test_workloads_travel_and_have_names_of_their_own() -> None:
    for kind in CLASSES.values():
        assert all(made(packed(w)) == w for w in kind.workloads)
        assert len({w.name for w in kind.workloads}) == len(kind.workloads)


def test_drawn_sizes_follow_the_seed_and_the_ranges() -> None:
    for class_name, kind in CLASSES.items():
        drawn = suite.drawn_of(class_name, 3)
        if kind.kind != "warm":
            assert not drawn
            continue
        assert len(drawn) == len({w.name for w in drawn}) == suite.DRAWN
        assert drawn == suite.drawn_of(class_name, 3) != suite.drawn_of(class_name, 4)
        for w in drawn:
            for name, (least, most, _) in w.ranges.items():
                assert least <= w.sizes[name] <= most


def test_mistakes_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        suite.select(["no such"])
    assert caught.value.code == 2 and "--list" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        suite.settings(suite.arguments().parse_args(["--peers", "mxnet"]))
    assert "mxnet" in capsys.readouterr().err


def test_the_command_finds_the_suite_or_says_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = Path(__file__).parent.parent
    assert workloads((tmp_path, root)) == root / "benchmarks"
    with pytest.raises(click.ClickException, match="run this in a checkout"):
        workloads((tmp_path,))
    monkeypatch.chdir(root)
    found = CliRunner().invoke(bench, ["--list", "--only", "attention"])
    assert found.exit_code == 0 and "4x8x2048x64 causal both" in found.output


@pytest.mark.parametrize(
    "w",
    [Softmax(5, 7), Chain(3, 4), LayerNorm(4, 6), Rotary(1, 2, 3, 8), Product(3, 4, 5, "nt")],
    ids=lambda w: w.name,
)
def test_the_same_maths_here_and_in_numpy(w: Operation) -> None:
    arrays = w.data(np.random.default_rng(0))
    (ours,) = Pullback(1, "").operation(w, arrays).first()
    theirs = w.numpy(Joined(), *arrays)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


class Joined:
    """What the NumPy texts need of a system."""

    def join(self, parts: list[Any], axis: int) -> Any:
        return np.concatenate(parts, axis)


@pytest.mark.slow
def test_one_workload_from_end_to_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    roof = Limits({1: 1e11}, {1: {1 << 20: 1e10}})
    monkeypatch.setattr("suite.limits.measured", lambda counts, clock: roof)
    options = ["--quick", "--rounds", "1", "--busy", "--peers", "numpy"]
    monkeypatch.setattr("sys.argv", ["bench", *options, "--only", "product 64x64x64"])
    suite.main()
    lines = capsys.readouterr().out.splitlines()
    (row,) = [line for line in lines if line.startswith("| product 64x64x64 nn")]
    assert "failed" not in row and "DIFFERS" not in row and "5.24 us" in row
    assert any(line.startswith("| contraction | numpy |") for line in lines)


def test_an_older_source_is_a_peer(tmp_path: Path) -> None:
    """A checkout or a commit; its process has its own package first on the path."""
    (tmp_path / "src" / "pullback").mkdir(parents=True)
    with suite.source(str(tmp_path)) as older:
        assert older == str(tmp_path / "src")
        path = measure._environment(1, "", {measure.SOURCE: older})["PYTHONPATH"].split(":")
    assert path[:2] == [str(measure.ROOT), older]
    with pytest.raises(SystemExit), suite.source("no-such-commit"):
        pass


def test_backends_are_peers() -> None:
    options = suite.arguments().parse_args(["--backends", "c,kernels"])
    setting = suite.settings(options, "older/src")
    assert setting.threads == (1,) and setting.clock == "processor"
    runs = measure.variants(Softmax(), setting)
    assert [r.system for r in runs] == ["pullback", "c", "kernels", "before"]
    assert measure._environment(1, "", setting.own["c"])["PULLBACK_BACKEND"] == "c"
    times = [run(r.system, 1, 2.0 if r.system == "c" else 1.0) for r in runs]
    assert table.row("", times, setting.peers, 1e-3).ratios["c"].value == 2.0


def recorded(folder: Path, *runs: Run) -> str:
    """A file as `--out` writes it, of one workload."""
    path = folder / "before.json"
    made = {"tiny": {"w": [dataclasses.asdict(r) for r in runs]}}
    path.write_text(json.dumps(made))
    return str(path)


@pytest.mark.parametrize(
    ("times", "tolerance", "told"),
    [
        ((3.2, 2.19), "10", ""),
        (
            (3.2, 2.21),
            "10",
            "SLOWER tiny: w pullback, 2 threads: 2.21e+06 us, was 2e+06 us (+10 %)",
        ),
        ((2.19,), "5", "(+9 %)"),
        ((1.0,), "10", ""),
        ((), "10", "no time, was 2e+06 us"),
    ],
)
def test_a_row_slower_than_before_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    times: tuple[float, ...],
    tolerance: str,
    told: str,
) -> None:
    """By its least time; what peers take is no matter, nor what only one of both has."""
    before = [run("pullback", 2, 9.0, 2.0), run("torch", 2, 1.0), run("c", 2, 1.0)]
    path = recorded(tmp_path, *before)
    rows = [run("pullback", 2, *times), run("torch", 2, 9.0), run("pullback", 1, 9.0)]
    now = {"tiny": {"w": [dataclasses.asdict(r) for r in rows]}}
    monkeypatch.setattr(suite, "measured", lambda *given: now)
    out = tmp_path / "now.json"
    options = ["--against", path, "--tolerance", tolerance, "--out", str(out)]
    monkeypatch.setattr("sys.argv", ["bench", *options])
    with pytest.raises(SystemExit) as ended:
        suite.main()
    shown = capsys.readouterr().out
    assert ended.value.code == bool(told) and told in shown
    assert f"1 rows beside the earlier ones, {int(bool(told))} slower" in shown
    assert json.loads(out.read_text()) == now


def test_against_what_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Another clock or nothing in common is an error, not a pass; so is what is no record."""
    path = recorded(tmp_path, run("pullback", 1, 2.0))
    busy = dataclasses.replace(run("pullback", 1, 2.0), clock="processor")
    now = {"tiny": {"w": [dataclasses.asdict(busy)]}}
    monkeypatch.setattr(suite, "measured", lambda *given: now)
    (tmp_path / "text").write_text("no json")
    (tmp_path / "list").write_text("[1]")
    for given, says in (
        (path, "no row of it was measured"),
        (str(tmp_path / "text"), "is not what --out writes"),
        (str(tmp_path / "list"), "is not what --out writes"),
        (str(tmp_path / "none"), "is not what --out writes"),
    ):
        monkeypatch.setattr("sys.argv", ["bench", "--against", given])
        with pytest.raises(SystemExit) as ended:
            suite.main()
        assert ended.value.code == 2 and says in capsys.readouterr().err


@pytest.mark.slow
def test_backends_from_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command compares two backends, writes every time, and holds the next run to it."""
    roof = Limits({1: 1e11}, {1: {1 << 20: 1e10}})
    monkeypatch.setattr("suite.limits.measured", lambda counts, clock: roof)
    out = tmp_path / "times.json"
    only = [
        "--backends",
        "kernels",
        "--rounds",
        "1",
        "--sizes",
        "fixed",
        "--only",
        "product 64x64x64 nn",
    ]
    monkeypatch.setattr("sys.argv", ["bench", *only, "--out", str(out)])
    suite.main()
    (runs,) = json.loads(out.read_text())["contraction"].values()
    assert [(r["system"], r["clock"], len(r["times"])) for r in runs] == [
        ("pullback", "processor", 1), ("kernels", "processor", 1),
    ]  # fmt: skip
    monkeypatch.setattr("sys.argv", ["bench", *only, "--against", str(out), "--tolerance", "1e6"])
    with pytest.raises(SystemExit) as ended:
        suite.main()
    assert ended.value.code == 0
