"""`pullback demo`: what it shows is right, and is what the README shows."""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import pullback as pb
from pullback.cli import demo
from pullback.cli.attention import attention, drawn, in_numpy, in_torch, step
from pullback.cli.main import commands
from pullback.cli.timing import medians
from pullback.tensor.run.program import Jit

README = (Path(__file__).parent.parent / "README.md").read_text()
CUT = "..."
TIME = re.compile(r"\d+\.\d+|\de[-+]\d+")


def call(*options: str) -> Result:
    return CliRunner().invoke(commands, ["demo", *options])


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without PyTorch, and few rounds."""
    monkeypatch.setenv("PULLBACK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setattr(demo, "ROUNDS", 2)


def stable(text: str) -> list[str]:
    """Lines without what differs from run to run: times, errors, widths of columns."""
    lines = [" ".join(TIME.sub("#", line).split()) for line in text.splitlines()]
    return [line for line in lines if line]


@pytest.mark.usefixtures("plain")
def test_the_readme_opens_with_what_the_command_shows() -> None:
    done = call()
    assert done.exit_code == 0, done.output
    shown = iter(stable(done.output))
    block = README.split("```text\n$ pullback demo\n")[1].split("```")[0]
    for line in stable(block):
        if line == CUT or line.startswith("PyTorch"):
            continue
        assert line in shown, f"not shown, or not there: {line}"


@pytest.mark.usefixtures("plain")
def test_facts_for_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = json.loads(call("--json").stdout)
    assert facts["passed"] is True
    assert {"differences", "dot product", "layout", "native"} <= {
        c["name"] for c in facts["checks"]
    }
    assert [t["name"] for t in facts["times"]] == ["pullback", "NumPy, by hand"]
    assert all(t["ms"] > 0 and t["error"] < 1e-5 for t in facts["times"])
    assert any(line.startswith("dkey[i, j] = sum") for line in facts["adjoint"])

    def wrong(*arrays: Any) -> list[Any]:
        return [1.001 * a for a in in_numpy(*arrays)]

    monkeypatch.setattr(demo, "in_numpy", wrong)
    assert call("--quiet").exit_code == 1


def test_by_hand_is_what_it_is_compared_with() -> None:
    arrays = drawn(12, 4, 3, np.float64)
    found = Jit(step)(*arrays)
    for own, other in zip(found, in_numpy(*arrays), strict=True):
        np.testing.assert_allclose(own.numpy(), other, rtol=1e-10, atol=1e-12)
    query, key, value, bias = arrays[:-1]
    row = 7
    s = np.array([query[row] @ key[row - d] / 8 + bias[d] for d in range(3)])
    p = np.exp(s) / np.exp(s).sum()
    wanted = sum(p[d] * value[row - d] for d in range(3))
    result = attention(*map(pb.tensor, arrays[:-1])).numpy()
    np.testing.assert_allclose(result[row], wanted)


@pytest.mark.torch
def test_torch_does_the_same() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    threads = torch.get_num_threads()
    arrays = drawn(12, 4, 3, np.float64)
    call = in_torch(arrays)
    torch.set_num_threads(threads)
    assert call is not None
    for own, other in zip(call(), in_numpy(*arrays), strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-10, atol=1e-12)


def test_times_are_medians_taken_in_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1.0, 0.0, 5.0, 0.0, 9.0, 0.0, 5.0, 0.0, 2.0, 0.0, 6.0])
    monkeypatch.setattr(time, "thread_time", lambda: next(clock))
    order = []
    calls = {name: lambda name=name: order.append(name) for name in "ab"}
    assert medians(calls, 3) == {"a": 2.0, "b": 5.0}
    assert order == ["a", "b"] * 4
