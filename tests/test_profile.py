"""Launches that are timed, and the command that shows them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import pullback as pb
from pullback.cli.main import commands
from pullback.config import Options
from pullback.errors import OptionError

SCRIPT = """
import numpy as np
import pullback as pb

data = np.ones((64, 32), np.float32)
w = pb.nn.Parameter(pb.zeros((32, 32)))

@pb.jit
def train():
    def step():
        x = pb.Feeder(lambda: data, shape=(64, 32))
        loss = ((x @ w - x) ** 2).sum()
        (slope,) = pb.grad(loss, [w])
        w.assign(w - 0.001 * slope)
        pb.Receiver(lambda value: None, loss, every=4)
    pb.loop(20, step)

train()
"""


def test_every_run_of_a_launch_is_counted() -> None:
    function = pb.jit(lambda a: pb.exp(a @ a).sum(), options=Options(profile=True))
    a = np.ones((40, 40), np.float32) / 40
    for _ in range(7):
        function(a)
    found = function.program.profile
    assert [t.runs for t in found.launches] == [7] * len(function.program.kernels)
    assert all(t.spent > 0 for t in found.launches)
    assert sum(t.work.flops for t in found.launches) >= 2 * 40**3
    assert found.launches[0].origin is not None
    assert found.launches[0].origin.place.startswith(__file__)
    assert len(found.spans) == 7 * len(found.launches)
    ends = [s.end for s in found.spans]
    assert ends == sorted(ends)
    assert [s.launch for s in found.spans] == list(range(len(found.launches))) * 7


def test_a_program_that_takes_no_times_says_how() -> None:
    function = pb.jit(lambda a: a + 1.0)
    function(np.ones(3, np.float32))
    with pytest.raises(OptionError, match="PULLBACK_PROFILE"):
        _ = function.program.profile


def test_the_command_shows_launches_and_writes_a_timeline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULLBACK_PROFILE", "0")
    script, trace = tmp_path / "train.py", tmp_path / "trace.json"
    script.write_text(SCRIPT)
    done = CliRunner().invoke(commands, ["profile", str(script), "--json", "--trace", str(trace)])
    assert done.exit_code == 0, done.output
    rows = [json.loads(line) for line in done.output.splitlines()]
    assert {r["runs"] for r in rows} == {20}
    assert all(r["line"].startswith(str(script)) for r in rows)
    assert all(0 < r["mean_us"] * r["runs"] * 1e-3 <= r["total_ms"] * 1.001 for r in rows)
    events = json.loads(trace.read_text())["traceEvents"]
    lanes = {e["args"]["name"]: e["tid"] for e in events if e["ph"] == "M"}
    count = {
        lane: sum(e["ph"] == "X" and e["tid"] == n for e in events) for lane, n in lanes.items()
    }
    assert count == {"steps": 20 * len(rows), "feeder": 20, "receiver": 5}
    shown = CliRunner().invoke(commands, ["profile", str(script)])
    assert "roofline" in shown.output


def test_a_script_of_its_own_options_is_timed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULLBACK_PROFILE", "0")
    script = tmp_path / "own.py"
    script.write_text(SCRIPT.replace("@pb.jit\n", "@pb.jit(options=pb.Options(threads=1))\n"))
    done = CliRunner().invoke(commands, ["profile", str(script), "--json"])
    assert done.exit_code == 0, done.output
    assert {json.loads(line)["runs"] for line in done.output.splitlines()} == {20}


def test_a_script_without_programs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULLBACK_PROFILE", "0")
    script = tmp_path / "empty.py"
    script.write_text("x = 1\n")
    done = CliRunner().invoke(commands, ["profile", str(script)])
    assert done.exit_code == 2
    assert "no jitted function" in done.output
