"""Small pieces of HTML and SVG for notebooks; every text is escaped."""

from __future__ import annotations

from collections.abc import Iterable
from functools import singledispatch
from html import escape
from typing import Any

from pullback.errors import InvalidIR

# Of a picture, pixels.
WIDTH = 640
HEIGHT = 160
THIN = 0.2


@singledispatch
def html(shown: Any) -> str:
    """What a notebook shows. Who makes texts of a kind of thing registers how, as texts are made
    of things, and not things of texts.
    """
    raise InvalidIR(f"no notebook shows a {type(shown).__name__}")


def panel(title: str, *texts: str) -> str:
    """A title and texts as they are: `<div><b>title</b><pre>text</pre></div>`."""
    body = "".join(f"<pre>{escape(t)}</pre>" for t in texts if t)
    return f"<div><b>{escape(title)}</b>{body}</div>"


def fold(title: str, text: str) -> str:
    """A text that is shown when its title is clicked."""
    return f"<details><summary>{escape(title)}</summary><pre>{escape(text)}</pre></details>"


def table(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Rows of texts under their heads."""
    lines = [_cells("th", heads), *(_cells("td", row) for row in rows)]
    return f"<table>{''.join(lines)}</table>"


def _cells(tag: str, texts: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(t)}</{tag}>" for t in texts) + "</tr>"


def picture(shapes: Iterable[str]) -> str:
    """An SVG of shapes."""
    size = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{"".join(shapes)}</svg>'


def block(x: float, y: float, width: float, height: float, fill: str, title: str) -> str:
    """A rectangle with a text for the pointer; nothing where it is too thin to be seen."""
    if height <= THIN:
        return ""
    place = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect {place} fill="{fill}"><title>{escape(title)}</title></rect>'
