"""`pullback new`: a small project around an operation or a backend, from the files of a folder."""

from __future__ import annotations

import importlib.util
import keyword
from pathlib import Path

import click

from pullback.cli.command import Misuse, Output, command

OPERATION = Path(__file__).with_name("project")
BACKEND = Path(__file__).with_name("backend_project")
STANDS_FOR = "NAME"  # in the files and in their names
SUFFIX = ".txt"
USED = ("by_hand", "drawn", "head", "main", "step", "w", "x", "y")  # names of those files


EXAMPLE = """\
pullback new my_filter && cd my_filter && python -m pytest
pullback new --backend my_device && cd my_device && pullback test-backend my_device.py"""


@command(example=EXAMPLE)
@click.argument("name")
@click.option("--backend", is_flag=True, help="a backend and its test, where an operation stands")
def new(out: Output, name: str, backend: bool) -> None:
    """Write a folder NAME: an operation, its test, a benchmark, README and pyproject.toml.

    What exists is not overwritten.
    """
    folder = Path(name)
    if folder.exists():
        raise Misuse(f"{name} exists, and nothing is overwritten")
    files = project(name, BACKEND if backend else OPERATION)
    try:
        folder.mkdir()
    except OSError as problem:
        raise Misuse(f"{name}/ cannot be made: {problem.strerror}") from problem
    for path, text in files.items():
        (folder / path).write_text(text)
        out.show(f"{folder / path}")
    out.show(f"\nNext: cd {name} && python -m pytest")
    out.tell(folder=str(folder), files=list(files))


def project(name: str, source: Path = OPERATION) -> dict[str, str]:
    """The files of a project, by name, from those of `source`.

    Raises: Misuse for a name that no module can have.
    """
    if not name.isidentifier() or keyword.iskeyword(name):
        raise Misuse(f"{name!r} is no name of a Python module: letters, digits and _")
    if name in USED or importlib.util.find_spec(name) is not None:
        raise Misuse(f"{name!r} is the name of something else in Python")
    sources = sorted(source.glob(f"*{SUFFIX}"))
    return {
        path.name.removesuffix(SUFFIX).replace(STANDS_FOR, name): path.read_text().replace(
            STANDS_FOR, name
        )
        for path in sources
    }
