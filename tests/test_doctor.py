"""`pullback doctor`: what it tells is so, and what is wrong is told."""

from __future__ import annotations

import importlib.metadata
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from pullback.backends.host.processor import host_target
from pullback.cli import doctor, requirements
from pullback.cli.main import commands
from pullback.cli.requirements import Requirement
from pullback.tensor.library import maths


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("PULLBACK_CACHE", str(folder))
    return folder


def told() -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code, and the findings by topic."""
    done = CliRunner().invoke(commands, ["doctor", "--json"])
    facts = json.loads(done.stdout)
    assert facts["passed"] == (done.exit_code == 0)
    return done.exit_code, {f["topic"]: f for f in facts["findings"]}


def test_a_good_house() -> None:
    code, found = told()
    assert code == 0
    assert found["numpy"]["says"].startswith(np.__version__)
    assert host_target().name in found["processor"]["says"]
    assert "0 entries" in found["cache"]["says"]
    shown = CliRunner().invoke(commands, ["doctor"]).output
    assert "self-test" in shown and "extra torch" in shown


def test_what_is_wrong_is_told(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.mkdir(mode=0o700)
    (cache / ("ab" * 20 + ".obj")).write_bytes(b"altered")
    monkeypatch.setenv("PULLBACK_THREADS", "none")
    monkeypatch.setenv("PULLBACK_TARGET", "z80")
    monkeypatch.setattr(maths, "tanh", maths.sin)
    code, found = told()
    assert code == 1
    wrong = {topic for topic, finding in found.items() if not finding["good"]}
    assert wrong == {"threads", "cache", "PULLBACK_TARGET", "self-test"}
    assert "1 altered" in found["cache"]["says"]


def test_backends_that_need_something(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is missing is told, and wrong where it was chosen."""
    monkeypatch.setenv("PULLBACK_CC", "absent-compiler")
    monkeypatch.setenv("PULLBACK_OPENCL", "absent-runtime.so")
    monkeypatch.setattr(doctor, "_self_test", lambda: doctor.Finding("self-test", "not here"))
    code, found = told()
    assert code == 0
    for name, says in (("c", "absent-compiler --version"), ("opencl", "absent-runtime.so")):
        assert found[f"backend {name}"]["says"].startswith("not there: ")
        assert says in found[f"backend {name}"]["says"]
    for name in ("c", "absent"):
        monkeypatch.setenv("PULLBACK_BACKEND", name)
        code, found = told()
        assert code == 1 and not found[f"backend {name}"]["good"]


def test_a_missing_package_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def installed(name: str) -> str:
        if name == "rich":
            raise importlib.metadata.PackageNotFoundError(name)
        return "1.9.9+cpu" if name == "torch" else "99.0"

    lines = ["rich>=13", "numpy>=2.0", 'torch>=2.6; extra == "torch"']
    monkeypatch.setattr(requirements, "requires", lambda name: lines)
    monkeypatch.setattr(requirements, "version", installed)
    monkeypatch.setattr(doctor, "_self_test", lambda: doctor.Finding("self-test", "not here"))
    code, found = told()
    assert code == 1
    assert found["rich"] == {
        "topic": "rich", "says": "not installed (needs >=13)", "good": False
    }  # fmt: skip
    assert found["numpy"]["good"] and "torch" not in found
    shown = CliRunner().invoke(commands, ["doctor"]).output
    assert "extra torch: lacks torch>=2.6: pip install 'pullback[torch]'" in shown


@pytest.mark.parametrize(
    ("version", "wanted", "fits"),
    [
        ("2.6.1", ">=2.6", True),
        ("2.5", ">=2.6", False),
        ("2.13.0+cpu", ">=2.6", True),
        ("0.50.0", "<0.51,>=0.50", True),
        ("0.51.0", "<0.51,>=0.50", False),
        ("1.0", "==1.0.0", True),
        ("1", "", True),
        (None, "", False),
    ],
)
def test_versions_that_will_do(version: str | None, wanted: str, fits: bool) -> None:
    assert Requirement("it", wanted, "", version).fits == fits
