"""The page: templates of this folder with the data inside, complete without a network.

Whatever text the data holds cannot end its element, and the page may run no script but its own.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pullback.runtime.executable import Executable
from pullback.viewer.code import Codes
from pullback.viewer.data import Curve, Json, program_data

SCRIPTS = ("base.js", "graph.js", "details.js", "charts.js", "main.js")
ASSEMBLED = 12  # kernel structures whose machine code is made unless all are asked for

Roof = tuple[float, float]


def page(
    title: str,
    programs: Mapping[str, Executable],
    roof: Roof | None = None,
    curves: Sequence[Curve] = (),
    assembled: int | None = ASSEMBLED,
) -> str:
    """The HTML of `programs`. `roof`: GFLOP/s and GB/s that this computer reaches."""
    return render(collect(title, programs, roof, curves, assembled))


def write(path: Path, text: str) -> None:
    """The whole page or none of it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def collect(
    title: str,
    programs: Mapping[str, Executable],
    roof: Roof | None = None,
    curves: Sequence[Curve] = (),
    assembled: int | None = ASSEMBLED,
) -> Json:
    """The data of a page: what `program_data` says of each program, and their code, once."""
    codes = Codes(assembled)
    shown = [program_data(name, program, codes, curves) for name, program in programs.items()]
    return {
        "title": title,
        "roof": None if roof is None else {"gflops": roof[0], "gbytes": roof[1]},
        "programs": shown,
        "codes": codes.packed,
    }


def render(data: Json) -> str:
    """Data -> HTML."""
    style, script = _text("page.css"), "\n".join(map(_text, SCRIPTS))
    parts = {
        "title": html.escape(str(data["title"])),
        "style": style,
        "script": script,
        "style_hash": _hash(style),
        "script_hash": _hash(script),
        "data": _inert(data),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _text("page.html"))


def _text(name: str) -> str:
    return resources.files("pullback.viewer").joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """What a content security policy calls a text that it allows."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _inert(data: Json) -> str:
    """JSON without ``<``, ``>`` and ``&``: nothing in it means anything to HTML."""
    text = json.dumps(_finite(data), separators=(",", ":"), allow_nan=False)
    for mark in "<>&":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


def _finite(data: Any) -> Any:
    """Data with null for numbers that JSON does not have."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {name: _finite(value) for name, value in data.items()}
    if isinstance(data, list | tuple):
        return [_finite(value) for value in data]
    return data
