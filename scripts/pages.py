"""Writes the message of every example into the pages of the error codes, docs/errors.md, shapes.md.

`python scripts/pages.py` runs them all; `python scripts/pages.py E110 E111` runs those.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import shape_pages
from error_pages import document, message, raised
from pullback.cli.pages import Page, pages
from pullback.errors import PAGES

TEXT = re.compile(r"\n```text\n.*?^```\n", re.MULTILINE | re.DOTALL)


def written(page: Page) -> str:
    """The page with the message that its example ends with."""
    folder = Path(tempfile.mkdtemp())
    error = raised(page, folder)
    code = getattr(error, "code", None)
    if code != page.code:
        print(f"{page.code}: raised {code}: {error}", file=sys.stderr)
        return page.text
    bare = TEXT.sub("", page.text)
    shown = f"```py\n{page.example}```\n"
    assert shown in bare, page.code
    return bare.replace(shown, f"{shown}\n```text\n{message(error, folder)}```\n")


def main() -> None:
    source = PAGES.read_text(encoding="utf-8")
    for page in pages().values():
        if not sys.argv[1:] or page.code in sys.argv[1:]:
            source = source.replace(page.text, written(page))
    PAGES.write_text(source, encoding="utf-8")
    (ROOT / "docs" / "errors.md").write_text(document(), encoding="utf-8")
    (ROOT / "docs" / "shapes.md").write_text(shape_pages.document(), encoding="utf-8")


if __name__ == "__main__":
    main()
