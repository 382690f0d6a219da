"""Planted faults fit the code: each text stands once, its tests exist, every room has some."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FILES = sorted((ROOT / "scripts" / "faults").glob("*.toml"))
FAULTS = {k: v for path in FILES for k, v in tomllib.loads(path.read_text()).items()}
ROOMS = ("grad", "simplify", "fuse", "schedule", "lower", "backends", "runtime", "nn", "optim")


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_can_be_planted(name: str) -> None:
    fault = FAULTS[name]
    text = (ROOT / fault["file"]).read_text()
    assert text.count(fault["old"]) == 1, fault["old"]
    assert fault["new"] != fault["old"]
    compile(text.replace(fault["old"], fault["new"]), fault["file"], "exec")
    for test in fault["tests"]:
        path, _, function = test.partition("::")
        assert f"def {function}" in (ROOT / path).read_text()


def test_no_two_faults_have_one_name() -> None:
    assert len(FAULTS) == sum(len(tomllib.loads(path.read_text())) for path in FILES)


def test_every_room_has_faults() -> None:
    assert len(FAULTS) >= 24
    rooms = {Path(fault["file"]).parts[2] for fault in FAULTS.values()}
    assert rooms >= set(ROOMS)
