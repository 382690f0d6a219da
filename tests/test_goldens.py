"""Kernels, schedules and nests of some seventy programs are as committed, on two processors.

Each process hashes with a seed of its own, so that a text which depends on it is found here, too.
"""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from golden_programs import programs

SCRIPT = Path(__file__).parent.parent / "scripts" / "goldens.py"
script = runpy.run_path(str(SCRIPT))


@pytest.mark.parametrize("name", programs())
def test_as_committed(name: str) -> None:
    changed, count = script["compared"](script["GOLDENS"], name, exact=True)
    again = f"again: python scripts/goldens.py --only '{name}'   (--accept where it is meant)"
    assert count == len(script["PROCESSORS"])
    assert not changed, "\n\n".join([*changed, again])


def test_every_file_is_of_a_program() -> None:
    kept = {path.stem for path in script["GOLDENS"].glob("*/*.txt")}
    assert kept == {name.replace(" ", "-") for name in programs()}


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The script on a folder of its own, where hashes have another seed."""
    command = [
        sys.executable,
        str(SCRIPT),
        "--only",
        "softmax",
        "--folder",
        str(folder),
        *arguments,
    ]
    env = os.environ | {"PYTHONHASHSEED": "7"}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_change_is_shown_and_accepted(tmp_path: Path) -> None:
    """Of one processor the text is another one, of the other there is none."""
    assert "is new" in run(tmp_path).stdout
    committed = (script["GOLDENS"] / "x86-64-v3" / "softmax.txt").read_text()
    path = tmp_path / "x86-64-v3" / "softmax.txt"
    path.parent.mkdir(exist_ok=True)
    path.write_text(committed.replace("\n1 tasks", "\n3 tasks", 1))
    changed = run(tmp_path)
    assert changed.returncode == 1 and "is new" in changed.stdout
    assert "\n-3 tasks over" in changed.stdout and "\n+1 tasks over" in changed.stdout
    assert run(tmp_path, "--accept").returncode == 0
    assert all(
        own.read_text() == (tmp_path / own.parent.name / own.name).read_text()
        for own in script["GOLDENS"].glob("*/softmax.txt")
    )
