"""Planted faults fit the code: each text stands once, its tests exist, every room has some."""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "scripts" / "faults").glob("*.toml"))
ROOMS = ("grad", "simplify", "fuse", "schedule", "lower", "backends", "runtime", "nn", "optim")


def script() -> Any:
    """`scripts/mutate.py`, which plants them."""
    spec = importlib.util.spec_from_file_location("mutate", ROOT / "scripts" / "mutate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


FAULTS = {fault.name: fault for fault in script().load()}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_can_be_planted(name: str) -> None:
    fault = FAULTS[name]
    clean = (ROOT / fault.file).read_text()
    planted = fault.planted(clean)  # says so where a text is not there exactly once
    assert planted != clean
    if fault.file.endswith(".toml"):
        tomllib.loads(planted)
    elif fault.file.endswith(".py"):
        compile(planted, fault.file, "exec")
    assert fault.tests
    for test in fault.tests:
        path, _, function = test.partition("::")
        assert f"def {function.partition('[')[0]}" in (ROOT / path).read_text()


def test_no_two_faults_have_one_name() -> None:
    assert len(FAULTS) == sum(len(tomllib.loads(path.read_text())) for path in FILES)


def test_every_room_has_faults() -> None:
    assert len(FAULTS) >= 24
    files = [Path(fault.file) for fault in FAULTS.values() if fault.file.startswith("src/")]
    rooms = {path.parts[2] for path in files}
    assert rooms >= set(ROOMS)
