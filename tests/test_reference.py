"""docs/reference.md names everything that is public, once, and nothing else."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

import pullback as pb
from pullback import fft, linalg, nn, optim, quantised, sparse, winograd
from pullback.cli.main import commands

PAGE = (Path(__file__).parent.parent / "docs" / "reference.md").read_text()
NAME = re.compile(r"`([^`]+)`")
MODULES = {
    "pullback (`pb`)": pb,
    "pullback.fft": fft,
    "pullback.linalg": linalg,
    "pullback.quantised": quantised,
    "pullback.sparse": sparse,
    "pullback.winograd": winograd,
    "pullback.random": pb.random,
    "pullback.special": pb.special,
    "pullback.rules": pb.rules,
    "pullback.nn": nn,
    "pullback.nn.functional": nn.functional,
    "pullback.optim": optim,
}


def rows(section: str) -> list[tuple[list[str], str]]:
    """The names and the text of each row of the tables of a section."""
    body = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    lines = [n for n in body.splitlines() if n.startswith("| `")]
    cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines]
    return [(NAME.findall(names), text.strip()) for names, text in cells]


@pytest.mark.parametrize("section", MODULES)
def test_every_public_name_has_its_line(section: str) -> None:
    module: ModuleType = MODULES[section]
    found = Counter(name for names, _ in rows(section) for name in names)
    public = Counter(module.__all__)
    assert not public - found, "public, and not in docs/reference.md"
    assert not found - public, "in docs/reference.md, and not public (or twice)"
    assert all(text for _, text in rows(section))


@pytest.mark.parametrize("module", MODULES.values(), ids=lambda m: m.__name__)
def test_public_names_exist_and_are_said_to(module: ModuleType) -> None:
    missing = [n for n in module.__all__ if not hasattr(module, n)]
    assert not missing
    functions = [getattr(module, n) for n in module.__all__]
    silent = [f.__name__ for f in functions if callable(f) and not inspect.getdoc(f)]
    assert not silent, "public, and without a docstring"


def test_every_command_has_its_line() -> None:
    names = [n.split()[1] for found, _ in rows("Command line") for n in found if " " in n]
    assert sorted(names) == sorted(commands.commands)
