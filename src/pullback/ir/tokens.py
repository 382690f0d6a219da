"""A line of text as tokens: what the readers of dumped stages share."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NoReturn, TypeVar

from pullback.errors import SyntaxFormError

_FLOATS = "f64|f16|bf16|f8E4M3FN|f8E5M2"
_TOKEN = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.(?!\.)\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+|\d+|inf(?![\w.])|nan(?![\w.])"
    rf"|(?:inf|nan)(?={_FLOATS})))(?P<suffix>{_FLOATS}|i32|i16|i8|u8|u16|u32|u64)?"
    r"|(?P<name>[^\W\d]\w*(?:\.\w+)*|\$\d+)|(?P<symbol>==|//|->|\.\.|[-+*/%<&|^~()\[\],=:;]))"
)
T = TypeVar("T")
WHOLE = 18  # digits of an extent or a count: an int64 holds it


@dataclass(slots=True)
class Tokens:
    """One line, cut into tokens, the last of them empty; errors point into it."""

    line: str
    number: int
    items: list[tuple[str, str, int]] = field(default_factory=list)
    at: int = 0
    depth: int = 0

    def __post_init__(self) -> None:
        place = 0
        text = self.line.rstrip()
        while place < len(text):
            token = _TOKEN.match(text, place)
            if token is None:
                self.fail("unknown character", place)
            kind = token.lastgroup or ""
            if kind == "suffix":
                kind = "number"
            start = token.start(kind)
            self.items.append((kind, text[start : token.end()], start))
            place = token.end()
        self.items.append(("", "", len(self.line)))

    @property
    def next(self) -> str:
        """The next token's text, empty at the end."""
        return self.items[self.at][1]

    @property
    def kind(self) -> str:
        return self.items[self.at][0]

    def take(self, wanted: str | None = None) -> str:
        """Pass one token. Raises: SyntaxFormError where it is not `wanted`."""
        text = self.next
        if not text or (wanted is not None and text != wanted):
            self.fail(f"expected {wanted!r}" if wanted else "unexpected end")
        self.at += 1
        return text

    def skip(self, text: str) -> bool:
        """Pass a token where it is the next one."""
        if self.next != text:
            return False
        self.at += 1
        return True

    def phrase(self, text: str) -> bool:
        """Pass several tokens where they are the next ones."""
        wanted = text.split()
        ahead = [item[1] for item in self.items[self.at : self.at + len(wanted)]]
        if ahead != wanted:
            return False
        self.at += len(wanted)
        return True

    def said(self, text: str) -> None:
        """Pass several tokens. Raises: SyntaxFormError where others stand."""
        for word in text.split():
            self.take(word)

    def number_after(self, text: str) -> int | None:
        """Pass several tokens and the whole number behind them, where they are the next ones."""
        return self.whole() if self.phrase(text) else None

    def end(self) -> None:
        """Raises: SyntaxFormError where anything follows."""
        if self.next:
            self.fail("unexpected text")

    def listed(self, start: str, end: str, item: Callable[[], T]) -> list[T]:
        """Pass items between brackets, with commas between them."""
        self.take(start)
        items: list[T] = []
        while not self.skip(end):
            if items:
                self.take(",")
            items.append(item())
        return items

    def whole(self) -> int:
        """Pass a whole number. Raises: SyntaxFormError where something else stands."""
        text = self.next
        if not text.isdecimal() or len(text) > WHOLE:
            self.fail("expected a whole number")
        self.at += 1
        return int(text)

    def one_of(self, known: Mapping[str, T], what: str) -> T:
        """Pass one of some names, for what it stands for. Raises: SyntaxFormError for another."""
        meant = known.get(self.next)
        if meant is None:
            self.fail(what)
        self.at += 1
        return meant

    def fail(self, what: str, place: int | None = None) -> NoReturn:
        if place is None:
            place = self.items[self.at][2]
        caret = f"the caret marks the place\n   | {self.line}\n   | {' ' * place}^"
        raise SyntaxFormError(f"line {self.number}: {what}", help=caret, code="E172")
