"""What is handed out: the wheel, its facts, the scripts of a contributor."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SCRIPTS = ("setup", "check", "test", "docs", "bench")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    pytest.importorskip("hatchling", reason="of the extra `test`")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.iterdir()
    assert path.name == f"pullback-{PROJECT['version']}-py3-none-any.whl"
    return zipfile.ZipFile(path)


def test_the_wheel_holds_the_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    source = ROOT / "src"
    files = {str(p.relative_to(source)) for p in source.rglob("*") if p.is_file()}
    wanted = {name for name in files if "__pycache__" not in name}
    found = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert found == wanted
    assert "pullback/py.typed" in found


def test_the_wheel_says_what_it_is(wheel: zipfile.ZipFile) -> None:
    facts = {Path(n).name: n for n in wheel.namelist() if ".dist-info/" in n}
    metadata = wheel.read(facts["METADATA"]).decode()
    assert "License-Expression: Apache-2.0" in metadata
    assert "Requires-Python: >=3.11" in metadata
    assert "Classifier: Typing :: Typed" in metadata
    assert b"Apache License" in wheel.read(facts["LICENSE"])
    assert "pullback = pullback_cli:main" in wheel.read(facts["entry_points.txt"]).decode()
    assert "Root-Is-Purelib: true" in wheel.read(facts["WHEEL"]).decode()


def test_no_library_but_the_small_ones_is_pulled_in() -> None:
    names = [re.split(r"[<>=]", wanted)[0] for wanted in PROJECT["dependencies"]]
    assert names == ["numpy", "llvmlite", "ml-dtypes", "safetensors", "click", "rich"]


def test_the_version_is_one() -> None:
    version = PROJECT["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {version}\n" in (ROOT / "CHANGELOG.md").read_text()


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_scripts_of_a_contributor(name: str) -> None:
    path = ROOT / "scripts" / name
    assert os.access(path, os.X_OK)
    subprocess.run(["bash", "-n", str(path)], check=True)
    assert f"`scripts/{name}`" in (ROOT / "CONTRIBUTING.md").read_text()
