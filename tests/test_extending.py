"""docs/extending.md, followed to the letter: what the page says is done, in a copy of the package.

Rules outside of the package are in test_rules.py, a backend in a package in test_backend_package.py
and the project that `pullback new --backend` writes in test_new.py.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import pullback as pb

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "extending.md").read_text()
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def section(number: int) -> str:
    return PAGE.split(f"\n## {number}. ")[1].split("\n## ")[0]


def blocks(number: int, language: str) -> list[str]:
    return [text for kind, text in BLOCK.findall(section(number)) if kind == language]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """The package with what its tests of names need."""
    for folder in ("src", "docs", "scripts"):
        skip = shutil.ignore_patterns("__pycache__", "*.png", "*.svg")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=skip)
    (tmp_path / "tests").mkdir()
    for path in (*(ROOT / "tests").glob("*.py"), ROOT / "tests" / "long.txt"):
        shutil.copy(path, tmp_path / "tests")
    for name in ("pyproject.toml", "pullback_cli.py"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def appended(copy: Path, text: str) -> None:
    """A block of the page at the end of the file that its first line names."""
    first, _, rest = text.partition("\n")
    path = copy / first.removeprefix("# ")
    path.write_text(path.read_text() + "\n\n" + rest.strip() + "\n")


def listed(path: Path, name: str, after: str) -> None:
    """A name beside another one, in what a file imports and in its `__all__`."""
    text = path.read_text()
    assert text.count(f"    {after},\n") == 1 and text.count(f'    "{after}",\n') == 1
    text = text.replace(f"    {after},\n", f"    {after},\n    {name},\n")
    path.write_text(text.replace(f'    "{after}",\n', f'    "{after}",\n    "{name}",\n'))


def run(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    paths = os.pathsep.join(map(str, (copy / "src", copy, copy / "tests")))
    own = {**os.environ, "PYTHONPATH": paths, "PULLBACK_CACHE": "off"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=copy, env=own, capture_output=True, text=True, timeout=240
    )


def passes(copy: Path, *arguments: str) -> str:
    """What pytest says of a share of the copy's tests, which pass."""
    done = run(copy, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *arguments)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    return done.stdout


def test_a_function(copy: Path) -> None:
    pytest.importorskip("ruff", reason="it formats the stubs")
    (text,) = blocks(1, "py")
    appended(copy, text)
    listed(copy / "src/pullback/nn/functional.py", "squareplus", "softsign")
    listed(copy / "src/pullback/nn/__init__.py", "Squareplus", "Softsign")
    reference = copy / "docs/reference.md"
    page = reference.read_text()
    page = page.replace("`Softsign`, ", "`Softsign`, `Squareplus`, ")
    line = "| `softsign` | `x / (1 + \\|x\\|)` |\n"
    page = page.replace(line, line + "| `squareplus` | `(x + sqrt(x^2 + 4)) / 2` |\n")
    reference.write_text(page)
    stubs = run(copy, "scripts/stubs.py")
    assert stubs.returncode == 0, stubs.stderr
    assert "class Squareplus(Layer)" in (copy / "src/pullback/nn/__init__.pyi").read_text()
    named = "functional and not examples_run and not typed"
    passes(copy, "tests/test_reference.py", "tests/test_names.py", "-k", named)
    check = (
        "import numpy as np, pullback as pb; from pullback import nn; F = nn.functional\n"
        "x = np.linspace(-3, 3, 7); y = F.squareplus(pb.tensor(x)).numpy()\n"
        "assert np.allclose(y, (x + np.sqrt(x * x + 4)) / 2)\n"
        "assert pb.check_grads(F.squareplus, [x])\n"
        "assert nn.Squareplus()(pb.tensor([0.0])).item() == 1.0\n"
    )
    done = run(copy, "-c", check)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_simplification_rule(copy: Path) -> None:
    for text in blocks(3, "py"):
        appended(copy, text)
    wanted = "mod_twice or has_examples"
    shown = passes(copy, "tests/test_simplify_rules.py", "-k", wanted)
    assert shown.count(".") >= 3, "its examples, on anything, and that every rule has some"


def test_a_backend_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = (t for t in blocks(6, "python") if "class Counting" in t)
    path = tmp_path / "counting.py"
    path.write_text(text + "\n\nbackend = Counting()\n")
    f = lambda x: pb.sum(pb.exp(x))
    made = pb.jit(f, options=pb.Options(backend=str(path)))(pb.ones(3))
    np.testing.assert_allclose(made.numpy(), 3 * np.e, rtol=1e-6)
    script = "import pullback as pb; print(pb.sum(pb.ones(4)).item())"
    own = {**os.environ, "PULLBACK_BACKEND": str(path)}
    done = subprocess.run(
        [sys.executable, "-c", script], env=own, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "4.0\n", done.stderr


@pytest.mark.slow
def test_a_move(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The block runs with the page (test_docs.py); its move in a file of its own does, too."""
    (text,) = (t for t in blocks(5, "python") if "def deep" in t)
    (tmp_path / "my_moves.py").write_text("import numpy as np\nimport pullback as pb\n\n" + text)
    done = subprocess.run(
        [sys.executable, "my_moves.py"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
