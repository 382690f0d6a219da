"""BERT's tokens: words, and pieces of words that the vocabulary does not hold whole."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

LONGEST = 100  # characters of a word
IDEOGRAPHS = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip


@dataclass(frozen=True)
class WordPiece:
    """A vocabulary: the number of each piece. Those that go on in a word begin with `##`."""

    numbers: dict[str, int]

    @classmethod
    def read(cls, path: Path) -> WordPiece:
        """The vocabulary of a file, one piece a line."""
        lines = path.read_text(encoding="utf-8").split("\n")
        return cls({line: number for number, line in enumerate(lines) if line})

    def __call__(self, text: str) -> list[int]:
        """The numbers of a sentence, between its two marks."""
        pieces = [piece for word in words(text) for piece in self.cut(word)]
        return [self.numbers[p] for p in ("[CLS]", *pieces, "[SEP]")]

    def cut(self, word: str) -> list[str]:
        """The longest pieces, from the left."""
        found: list[str] = []
        rest = word if len(word) <= LONGEST else ""
        while rest:
            mark = "##" if found else ""
            ends = (n for n in range(len(rest), 0, -1) if mark + rest[:n] in self.numbers)
            end = next(ends, 0)
            if not end:
                return ["[UNK]"]
            found.append(mark + rest[:end])
            rest = rest[end:]
        return found or ["[UNK]"]

    def table(
        self, texts: list[str], limit: int
    ) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Sentences as rows of one length, and which places are real."""
        rows = [self(text) for text in texts]
        rows = [row if len(row) <= limit else [*row[: limit - 1], row[-1]] for row in rows]
        length = max(map(len, rows))
        filling = self.numbers["[PAD]"]
        tokens = [row + [filling] * (length - len(row)) for row in rows]
        real = [[n < len(row) for n in range(length)] for row in rows]
        return np.array(tokens, np.int32), np.array(real)


def words(text: str) -> Iterator[str]:
    """Lower case without accents, cut at spaces and round every mark."""
    clean = "".join(" " if c.isspace() else c for c in text if not _ignored(c))
    plain = [c for c in unicodedata.normalize("NFD", clean) if unicodedata.category(c) != "Mn"]
    spaced = (f" {c} " if _alone(c) else c.lower() for c in plain)
    yield from "".join(spaced).split()


def _ignored(c: str) -> bool:
    """Control characters, and what could not be decoded."""
    control = unicodedata.category(c).startswith("C") and c not in "\t\n\r"
    return control or c in "\0\ufffd"


def _alone(c: str) -> bool:
    """Whether a character is a word of its own: marks of ASCII and of Unicode, ideographs."""
    mark = c.isascii() and not c.isalnum() and not c.isspace()
    ideograph = any(low <= ord(c) <= high for low, high in IDEOGRAPHS)
    return mark or ideograph or unicodedata.category(c).startswith("P")
