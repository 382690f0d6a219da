"""Files that commands are told to read and write: whole, or a coded error and nothing."""

from __future__ import annotations

from pathlib import Path

from pullback.cli.settings import RunError
from pullback.nn.base.weights import READABLE
from pullback.runtime.cache import write_whole


def written(path: str | Path, data: str | bytes) -> None:
    """Replace a file by a text or bytes. Raises: RunError; nothing is half written then."""
    try:
        write_whole(Path(path), data.encode() if isinstance(data, str) else data, mode=READABLE)
    except OSError as problem:
        what = f"{path} cannot be written: {problem.strerror}"
        raise RunError(what, code="E619") from problem


def text_of(path: str | Path) -> str:
    """The text of a file. Raises: RunError."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        said = problem.strerror if isinstance(problem, OSError) else "it is no UTF-8"
        raise RunError(f"{path} cannot be read: {said}", code="E619") from problem
