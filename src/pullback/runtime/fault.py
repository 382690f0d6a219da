"""How a fault of the compiler is reported: a folder with every stage up to it, and what ran."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from traceback import format_exception

from pullback.config import Options

PACKAGES = ("pullback", "numpy", "llvmlite", "ml-dtypes")


def note(error: Exception, again: Callable[[Options], object], options: Options) -> str:
    """What to say below `error`, after compiling again with every stage written to a folder."""
    folder = options.dump
    if folder is None:
        folder = Path(tempfile.mkdtemp(prefix="pullback-fault-"))
        with suppress(Exception):
            again(replace(options, dump=folder, cache=None, debug=0))
    with suppress(OSError):
        (folder / "fault.txt").write_text(_facts(error, options), encoding="utf-8")
    graphs = sorted(folder.glob("*-traced-graph.txt"))
    resume = f"; `pullback resume {graphs[-1]}` runs into it again" if graphs else ""
    return (
        "This is a fault of the compiler, not of your program. Please report it with the folder "
        f"{folder}, which holds definitions, no data{resume}."
    )


def _facts(error: Exception, options: Options) -> str:
    lines = [f"{name} {version_of(name)}" for name in PACKAGES]
    lines += [f"Python {platform.python_version()}", platform.platform(), repr(options)]
    return "\n".join([*lines, "", *format_exception(error)])


def version_of(package: str) -> str:
    """Of an installed package; imported lazily, for nothing else wants it."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "from its source"
