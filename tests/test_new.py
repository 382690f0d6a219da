"""`pullback new`: the project that it writes works, and nothing is overwritten."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import pullback as pb
from pullback.backends import registry
from pullback.cli.main import commands
from pullback.cli.new import BACKEND, USED, project
from pullback.conformance.case import cells
from pullback.conformance.cases import SECTIONS
from pullback.conformance.run import conformance
from pullback.errors import UnsupportedError

NAME, DEVICE = "my_filter", "my_device"


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(commands, ["new", *arguments])


def run(*arguments: str, folder: str = NAME) -> subprocess.CompletedProcess[str]:
    """Python in the written folder."""
    env = {**os.environ, "PULLBACK_CACHE": str(Path("cache").resolve())}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)


def test_the_written_project_passes_its_test_and_finds_a_fault() -> None:
    assert call(NAME).exit_code == 0
    options = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist")
    done = run("-m", "pytest", *options)
    assert done.returncode == 0, done.stdout
    assert "2 passed" in done.stdout
    code = Path(NAME, f"{NAME}.py")
    code.write_text(code.read_text().replace("x[t-d, c] * w", "x[t-d, c] + w"))
    assert run("-m", "pytest", *options, "-k", "values").returncode == 1


@pytest.mark.slow
def test_the_benchmark_compares_and_prints_both() -> None:
    assert call(NAME).exit_code == 0
    path = Path(NAME, f"bench_{NAME}.py")
    path.write_text(path.read_text().replace("ROUNDS = 21", "ROUNDS = 1"))
    done = run(path.name)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^pullback +\d+\.\d+ ms\nNumPy +\d+\.\d+ ms$", done.stdout, re.MULTILINE)


def test_what_exists_stays() -> None:
    Path(NAME).mkdir()
    done = call(NAME)
    assert done.exit_code == 2 and "nothing is overwritten" in done.stderr
    assert not list(Path(NAME).iterdir())


@pytest.mark.parametrize("name", ["a-b", "1st", "class", "numpy", "step", "../up", ""])
def test_names_that_no_module_can_have(name: str) -> None:
    assert call(name).exit_code == 2
    assert not list(Path().iterdir())


@pytest.mark.slow
def test_a_backend_shows_what_is_missing_until_it_is_filled_in() -> None:
    """Its row is refused with the reason; one function written, it is green, and nothing else."""
    assert call("--backend", DEVICE).exit_code == 0
    path = Path(DEVICE, f"{DEVICE}.py").resolve()
    chosen = [c for c in cells(SECTIONS, "primitives: ") if c.case.name in ("Add", "Sqrt", "Sin")]

    def rows() -> dict[str, set[str]]:
        registry._foreign.cache_clear()
        verdicts = conformance(str(path), chosen)
        held = {c.case.name: set() for c in chosen}
        for v in verdicts:
            held[v.cell.case.name].add(v.why or v.state)
        return held

    refused = {n: {f"{DEVICE} has no {n} [E358]"} for n in ("Sqrt", "Sin")}
    assert rows() == {"Add": {"pass"}, **refused}
    path.write_text(path.read_text().replace('raise Missing("Sqrt")', "return np.sqrt(x)"))
    assert rows() == {"Add": {"pass"}, "Sqrt": {"pass"}, "Sin": refused["Sin"]}
    with pytest.raises(UnsupportedError, match="has no Sin") as error:
        pb.jit(pb.sin, options=pb.Options(backend=str(path)))(pb.ones(3))
    assert "test_new.py" in str(error.value), "the line that asks for it"
    options = ("-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", "program or seeds")
    done = run("-m", "pytest", *options, folder=DEVICE)
    assert done.returncode == 0 and "2 passed" in done.stdout, done.stdout


def test_a_project_of_a_backend_agrees_about_its_name() -> None:
    files = project(DEVICE, BACKEND)
    assert all("NAME" not in text for text in (*files, *files.values()))
    points = tomllib.loads(files["pyproject.toml"])["project"]["entry-points"]
    assert points == {registry.GROUP: {DEVICE: f"{DEVICE}:Backend"}}


def test_files_agree_about_the_name() -> None:
    files = project(NAME)
    assert all("NAME" not in text for text in (*files, *files.values()))
    assert tomllib.loads(files["pyproject.toml"])["project"]["name"] == NAME
    assert files[f"{NAME}.py"].count(NAME) == 3
    sources = "\n".join(text for path, text in files.items() if path.endswith(".py"))
    defined = set(re.findall(r"def (?!test_)(\w+)\(", sources)) - {NAME, "in_numpy"}
    assert defined <= set(USED)
