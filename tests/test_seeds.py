"""The page of promises: each is there once, with what became of it and a test that exists."""

from __future__ import annotations

import ast
import functools
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import gguf_support
import pullback as pb
from pullback.cli.main import commands

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "seeds.md"
# How many promises each system has; P: the plans of the first.
PROMISES = {"A": 48, "P": 37, "B": 42, "S": 7, "I": 11, "C": 70, "K": 19, "D": 19}
STATUS = ("works", "differently", "no")


def rows() -> list[list[str]]:
    lines = re.findall(r"^\| ([A-Z]\d+ \|.*) \|$", PAGE.read_text(), re.MULTILINE)
    return [[cell.strip() for cell in line.split("|")] for line in lines]


@functools.cache
def names_in(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_promise_has_one_row() -> None:
    found = [row[0] for row in rows()]
    wanted = [f"{kind}{n}" for kind, last in PROMISES.items() for n in range(1, last + 1)]
    assert found == wanted


def test_every_row_says_what_became_of_it() -> None:
    for place, promise, status, why, shown in rows():
        assert promise and status in STATUS, place
        assert bool(why) == (status != "works"), f"{place}: {status}, {why!r}"
        assert bool(shown) == (status != "no"), f"{place}: {status}, {shown!r}"


def test_every_test_that_is_named_exists() -> None:
    for place, *_, shown in rows():
        for path, name in re.findall(r"`(tests/\w+\.py)::(\w+)`", shown):
            assert name in names_in(ROOT / path), f"{place}: {path} has no {name}"
        one = r"`tests/test_\w+\.py::test_\w+`"
        assert not shown or re.fullmatch(f"{one}(, {one})*", shown), place


def test_the_page_counts_its_rows() -> None:
    kinds = [row[2] for row in rows()]
    works, differently, no = (kinds.count(s) for s in STATUS)
    told = f"{len(kinds)} rows: {works} work, {differently} differently, {no} not."
    assert told in PAGE.read_text(), told


def launches(function: Any, *arguments: Any) -> list[str]:
    jitted = pb.jit(function)
    jitted(*arguments)
    return [str(kernel) for kernel in jitted.program.kernels]


def test_what_nobody_reads_costs_no_kernel() -> None:
    """Row A16."""
    x = pb.tensor(np.float32([[1, 2], [3, 4]]))

    def plain(x: Any) -> Any:
        return pb.softmax(x @ x, axis=-1)

    def with_a_branch(x: Any) -> Any:
        pb.exp(x @ x.T).sum()
        return pb.softmax(x @ x, axis=-1)

    assert launches(plain, x) == launches(with_a_branch, x)


def test_twenty_maps_are_one_kernel() -> None:
    """Row A23."""

    def maps(x: Any) -> Any:
        first, second = x, x
        for n in range(10):
            first, second = pb.sin(first + n), first * second
        return first + second

    assert len(launches(maps, pb.tensor(np.float32([1, 2, 3])))) == 1


def test_four_levels_of_debug() -> None:
    """Row C4: each level shows more than the one before."""
    words = ["compile", "-i", str(ROOT / "ops/double.toml"), "--test", "M=4", "--debug"]
    shown = [CliRunner().invoke(commands, [*words, str(n)]) for n in range(5)]
    assert [one.exit_code for one in shown] == [0] * 5, shown[-1].output
    lines = [len(one.output.splitlines()) for one in shown]
    assert lines == sorted(lines) and lines[0] < lines[2] < lines[4], lines


def stable(text: str) -> list[str]:
    """Lines without times, errors and sizes of files."""
    lines = re.sub(r"\d[\d.,]*(e-\d+)?(?= s| ms| bytes|, #|, \d)", "#", text).splitlines()
    return [line for line in lines if line]


def test_the_commands_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each shows what stands there; `pullback demo` has a test of its own."""
    if shutil.which("cc") is None:
        pytest.skip("there is no C compiler")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PULLBACK_CACHE", str(tmp_path / "cache"))
    shutil.copytree(ROOT / "ops", tmp_path / "ops")
    (tmp_path / "examples").mkdir()
    shutil.copy(ROOT / "examples" / "net.daten", tmp_path / "examples")
    gguf_support.small(tmp_path / "small.gguf")
    block = (ROOT / "README.md").read_text().split("```text\n$ pullback compile")[1].split("```")[0]
    for part in f"compile{block}".split("$ pullback "):
        line, _, shown = part.partition("\n")
        done = CliRunner().invoke(commands, shlex.split(line))
        assert stable(done.output) == stable(shown), line
