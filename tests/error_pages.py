"""Runs the example of an error's page, and gives the message that it ends with."""

from __future__ import annotations

import os
import re
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pullback.cli.pages import Page, pages
from pullback.errors import PAGES, PullbackError


@contextmanager
def undisturbed(folder: Path) -> Iterator[None]:
    """What an example changes of the process is changed back."""
    environment, modules, place = dict(os.environ), dict(sys.modules), Path.cwd()
    owner: Any = getattr(os, "getuid", None)
    os.environ["PULLBACK_CACHE"] = "off"
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(place)
        os.environ.clear()
        os.environ.update(environment)
        for name in [n for n, m in sys.modules.items() if m is None and n not in modules]:
            del sys.modules[name]
        sys.modules.update({n: m for n, m in modules.items() if sys.modules.get(n) is not m})
        if owner is not None:
            os.getuid = owner


def raised(page: Page, folder: Path) -> BaseException | None:
    """What the example raises, if anything."""
    script = folder / "example.py"
    script.write_text(page.example)
    with undisturbed(folder):
        try:
            runpy.run_path(str(script))
        except Exception as error:
            cause = error.__cause__  # a command tells what a mistake of the user's said
            return cause if isinstance(cause, PullbackError) else error
    return None


def message(error: BaseException, folder: Path) -> str:
    """Class and message, without what differs between machines."""
    notes = getattr(error, "__notes__", [])
    lines = "\n".join([f"{type(error).__name__}: {error}", *notes])
    lines = re.sub(r"this processor \(.*?\)", "this processor (its name)", lines)
    return lines.replace(f"{folder}/", "") + "\n"


def document() -> str:
    """docs/errors.md: the pages, and before them a table of all codes."""
    head, _, rest = PAGES.read_text(encoding="utf-8").partition("\n## ")
    rows = [f"| [{p.code}](#{_anchor(p)}) | {p.title} |" for p in pages().values()]
    table = "\n".join(["| code | |", "|---|---|", *rows])
    return f"{head}\n{table}\n\n## {rest}"


def _anchor(page: Page) -> str:
    """Where a heading is linked to."""
    text = f"{page.code} {page.title}".lower()
    return re.sub(r"[^\w -]", "", text).replace(" ", "-")
