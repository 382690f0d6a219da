"""The code of README and docs runs; links lead somewhere; the commands exist."""

from __future__ import annotations

import ast
import functools
import re
import runpy
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import pullback as pb
from pullback.cli.main import commands

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\(([^)#:]+)\)")
ROOMS = ("src", "ops", "tests", "scripts", "benchmarks", "examples")
GIVEN = ("script.py", "train_loader.py")  # the reader's own, and what a command writes
README_LINES = 10  # of prose, the table and the commands left out


def blocks_of(text: str, language: str) -> list[str]:
    return [code for kind, code in BLOCK.findall(text) if kind == language]


def blocks(page: Path, language: str) -> list[str]:
    return blocks_of(page.read_text(), language)


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PULLBACK_CACHE", str(tmp_path / "cache"))


# Pages that need a package.
EXTRAS = {"pytorch": "torch", "layers": "torch", "jax": "jax", "triton": "triton",
          "onnx": "onnx"}  # fmt: skip


def marks(page: Path) -> list[pytest.MarkDecorator]:
    package = EXTRAS.get(page.stem)
    if package is None:
        return []
    return [
        getattr(pytest.mark, "torch" if package == "triton" else package),
        pytest.mark.skipif(find_spec(package) is None, reason=f"{package} is not installed"),
        pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of its own imports
    ]


RUN = [pytest.param(p, marks=marks(p)) for p in PAGES]


@pytest.mark.parametrize("page", RUN, ids=lambda p: p.name)
def test_python_blocks_run(page: Path, tmp_path: Path) -> None:
    code = "\n".join(blocks(page, "python"))
    script = tmp_path / f"{page.stem}.py"
    script.write_text(code)
    found = runpy.run_path(str(script))
    if page.name == "walk.md":
        check_listings(page, found["folder"])


def check_listings(page: Path, folder: Path) -> None:
    """The lines of each listing stand in that order in one of the dumped files."""
    dumped = [path.read_text().splitlines() for path in folder.glob("0*.txt")]
    listings = [block.splitlines() for block in blocks(page, "text")]
    assert len(listings) >= 8
    for listing in listings:
        assert any(in_order([n for n in listing if n.strip() != "..."], f) for f in dumped), listing


def in_order(lines: list[str], text: list[str]) -> bool:
    """Whether lines stand in a text in their order; "..." in one of them is any text."""
    rest = iter(text)
    forms = [re.escape(line).replace(r"\.\.\.", ".*") for line in lines]
    return all(any(re.fullmatch(form, one) for one in rest) for form in forms)


def test_the_tutorial_asserts_what_it_says() -> None:
    code = "\n".join(blocks(ROOT / "docs" / "tutorial.md", "python"))
    assert sum(isinstance(n, ast.Assert) for n in ast.walk(ast.parse(code))) >= 8


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(CODE.sub("", BLOCK.sub("", page.read_text()))):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_files_that_are_named_exist(page: Path) -> None:
    known = [f"/{p.relative_to(ROOT)}" for room in ROOMS for p in (ROOT / room).rglob("*")]
    text = re.sub(r"^```(python|sh)\n.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for name in re.findall(r"`([\w/.]+\.(?:py|toml))`", text):
        assert any(k.endswith(f"/{name}") for k in known) or name in GIVEN, name


def test_every_option_is_told() -> None:
    text = (ROOT / "docs" / "programs.md").read_text()
    names = re.findall(r"PULLBACK_\w+", (ROOT / "src" / "pullback" / "config.py").read_text())
    names += [
        f"PULLBACK{n}" for n in re.findall(r"`(_[A-Z]+)`", pb.Options.from_environment.__doc__)
    ]
    missing = [n for n in names if f"`{n}`" not in text]
    missing += [f.name for f in fields(pb.Options) if f"`{f.name}`" not in text]
    assert not missing


def test_links_stay_among_the_pages() -> None:
    """A page is part of a site too, which has nothing but docs/."""
    for page in (ROOT / "docs").glob("*.md"):
        for target in LINK.findall(CODE.sub("", BLOCK.sub("", page.read_text()))):
            assert (page.parent / target).resolve().is_relative_to(ROOT / "docs"), (page, target)


def refusals() -> set[str]:
    """The codes of all that the library refuses by name."""
    calls = [
        node
        for path in (ROOT / "src").rglob("*.py")
        if "UnsupportedError(" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "UnsupportedError"
    ]
    codes = [ast.literal_eval(k.value) for c in calls for k in c.keywords if k.arg == "code"]
    return {str(code) for code in codes}


def test_every_refusal_is_among_the_limits() -> None:
    text = (ROOT / "docs" / "limits.md").read_text()
    codes = refusals()
    assert len(codes) >= 20
    assert not [code for code in sorted(codes) if f"[{code}](errors.md" not in text]


def test_links_to_errors_are_to_their_places() -> None:
    heads = re.findall(r"^### (.*)$", (ROOT / "docs" / "errors.md").read_text(), re.MULTILINE)
    places = {re.sub(r"[^a-z0-9 -]", "", head.lower()).replace(" ", "-") for head in heads}
    for page in PAGES:
        for place in re.findall(r"\(errors\.md#([^)]*)\)", page.read_text()):
            assert place in places, (page.name, place)


@functools.cache
def help_of(*names: str) -> str:
    """What a command says of itself; `bench` asks another process."""
    shown = CliRunner().invoke(commands, [*names, "--help"])
    assert shown.exit_code == 0, names
    return shown.output


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_commands_exist(page: Path) -> None:
    for line in "\n".join(blocks(page, "sh")).splitlines():
        command = re.search(r"pullback (\w+)(?: (ls|clear|verify))?", line)
        if command is None:
            continue
        shown = help_of(*(n for n in command.groups() if n))
        for option in re.findall(r" (--\w+)", line[command.start() :].split("#")[0]):
            assert option in shown, f"{option} in {line}"


def test_the_picture_of_the_passes_names_what_is_there() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text()
    assert len(page.splitlines()) < 250
    (picture,) = [text for text in blocks_of(page, "text") if text.startswith("your function")]
    places = re.findall(r"\b((?:\w+/)+(?:\w+\.py)?)", picture)
    assert len(places) > 10
    assert not [p for p in places if not (ROOT / "src" / "pullback" / p).exists()]
    order = ["simplify_graph(", "prepare(", "fuse(", "verify_kernel("]
    passes = (ROOT / "src" / "pullback" / "pipeline.py").read_text().split("def fuse_graph(")[1]
    assert [passes.index(name) for name in order] == sorted(passes.index(name) for name in order)


def test_readme_is_short() -> None:
    text = BLOCK.sub("", (ROOT / "README.md").read_text())
    prose = [n for n in text.splitlines() if n.strip() and not n.startswith("|")]
    assert len(prose) <= README_LINES


@pytest.mark.parametrize("name", ["seed_example_1.py", "seed_example_2.py"])
def test_examples_define_their_programs(name: str) -> None:
    found: dict[str, Any] = runpy.run_path(str(ROOT / "examples" / name))
    assert found["STEPS"] in (100, 1000)
    assert found["pb"] is pb
