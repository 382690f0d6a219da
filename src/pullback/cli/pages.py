"""The pages of the error codes: sections of `errors.md` in the package."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pullback.errors import PAGES

_PAGE = re.compile(r"^### (E\d{3}) (.*?)$(.*?)(?=^##|\Z)", re.MULTILINE | re.DOTALL)
_BLOCK = r"^```{}\n(.*?)^```"


@dataclass(frozen=True, slots=True)
class Page:
    """One code: what it means, an example that raises it, its message, the repair."""

    code: str
    title: str
    text: str

    @property
    def example(self) -> str:
        return self._block("py")

    @property
    def message(self) -> str:
        return self._block("text")

    def _block(self, kind: str) -> str:
        match = re.search(_BLOCK.format(kind), self.text, re.MULTILINE | re.DOTALL)
        return "" if match is None else match[1]


def pages() -> dict[str, Page]:
    """All pages, by code, in the order of the file."""
    every = (Page(*m.groups()) for m in _PAGE.finditer(PAGES.read_text(encoding="utf-8")))
    return {page.code: page for page in every}
