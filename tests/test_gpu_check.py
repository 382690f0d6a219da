"""The script that checks a GPU: without one, and what it writes."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from test_tune_device import checked

SCRIPT = Path(__file__).parent.parent / "scripts" / "gpu_check.py"


@pytest.mark.slow
def test_without_a_device_it_says_so(tmp_path: Path) -> None:
    environment = {"PULLBACK_CUDA": "libabsent.so", "PYTHONPATH": str(SCRIPT.parents[1] / "src")}
    line = [sys.executable, str(SCRIPT), "-o", str(tmp_path / "made")]
    done = subprocess.run(line, capture_output=True, text=True, env=environment)
    assert done.returncode == 3 and "no device" in done.stdout and "E440" in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_crash_of_one_section_ends_no_other(tmp_path: Path) -> None:
    """The processes of sections, of which one dies and one is killed for its time."""
    text = SCRIPT.read_text().replace(
        "SECTIONS[name][0](Room(fake, path))",
        '{"dies": os.abort, "lasts": lambda: (tell(path), time.sleep(19)), "runs": dict}[name]()',
    )
    start, end = text.index("SECTIONS: dict"), text.index("# --- processes")
    table = 'SECTIONS = {"dies": (None, 60), "lasts": (None, 12), "runs": (None, 60)}\n\n'
    text = text.replace(
        "def one(",
        "def tell(path: Path) -> None:\n"
        "    room = Room.__new__(Room)\n"
        "    room.facts, room.path = {}, path\n"
        "    room.tell('told before', 7)\n\n\n"
        "def one(",
    )
    path = tmp_path / "check.py"
    parent = f"ROOT = Path({str(SCRIPT.parents[1])!r})"
    text = (text[:start] + table + text[end:]).replace("import argparse", "import argparse, os")
    path.write_text(text.replace("ROOT = Path(__file__).parent.parent", parent))
    line = [sys.executable, str(path), "--fake", "-o", str(tmp_path / "made")]
    done = subprocess.run(line, capture_output=True, text=True)
    states = [row.split()[0] for row in done.stdout.splitlines()[:3]]
    assert done.returncode == 1 and states == ["fail", "fail", "pass"], done.stdout + done.stderr
    told = (tmp_path / "made.md").read_text()
    assert (
        "ended with -6" in told
        and "longer than 12" in told
        and "told before: 7" in told
        and "| runs | pass |" in told
    )


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
def test_what_is_tuned_is_a_file_of_the_package(tmp_path: Path) -> None:
    """Beside the results; of no device there is nothing to commit."""
    line = [sys.executable, str(SCRIPT), "tuning", "--fake", "-o", str(tmp_path / "made")]
    done = subprocess.run(line, capture_output=True, text=True)
    assert done.returncode == 0 and "schedules" not in done.stdout, done.stdout + done.stderr
    told = (tmp_path / "made.md").read_text()
    assert re.search(r"product matmul: [\d.]+ us \([\d.]+ priced\), at best .* 0 refused", told)
    checked(tmp_path / "made.schedules.json")
