"""Rendering is deterministic: two processes with other hash seeds write the same bytes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from small_programs import PROGRAMS

SCRIPT = Path(__file__).parent.parent / "scripts" / "replay.py"


def replay(seed: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = os.environ | {"PYTHONHASHSEED": str(seed)}
    command = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two renderings of everything, made at the same time."""
    folders = tmp_path_factory.mktemp("first"), tmp_path_factory.mktemp("second")
    processes = []
    for seed, folder in zip((1, 2), folders, strict=True):
        env = os.environ | {"PYTHONHASHSEED": str(seed)}
        command = [sys.executable, str(SCRIPT), str(folder)]
        processes.append(subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL))
    assert [p.wait() for p in processes] == [0, 0]
    return folders


def test_two_processes_render_the_same_bytes(rendered: tuple[Path, Path]) -> None:
    first, second = rendered
    names = sorted(p.name for p in first.glob("*.txt"))
    assert names == sorted(p.name for p in second.glob("*.txt"))
    assert len(names) == len(PROGRAMS) >= 40
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
        assert "kernel " in (first / name).read_text()


def test_a_changed_program_is_listed(rendered: tuple[Path, Path], tmp_path: Path) -> None:
    first, _ = rendered
    old = tmp_path / "old"
    old.mkdir()
    name = "softmax.txt"
    (old / name).write_text((first / name).read_text() + "another line\n")
    (old / "gone.txt").write_text("# gone: 1 kernels\n")
    new = tmp_path / "new"
    done = replay(3, str(new), "--only", "softmax", "--against", str(old))
    assert done.returncode == 1
    assert "changed  softmax.txt" in done.stdout
    assert "added    log-softmax.txt" in done.stdout
    assert "removed  gone.txt" in done.stdout
    same = replay(4, str(new), "--only", "softmax", "--against", str(new))
    assert same.returncode == 0 and "nothing changed" in same.stdout
