"""Text as numbers: a vocabulary of characters, a split, batches that depend on the step alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np

from pullback.errors import PullbackError

Array = np.ndarray[Any, Any]
VALIDATION = 0.1  # of the characters, the last ones
IGNORED = -100  # a target that does not count


class TextError(PullbackError, ValueError):
    """A text is too short, or holds characters that the model has not seen."""

    code = "E601"
    placed = False


@dataclass(frozen=True, eq=False, slots=True)
class Text:
    """Characters as their places in `characters`, split in two."""

    characters: str
    train: Array
    valid: Array

    def decode(self, tokens: Array) -> str:
        """Numbers back to characters."""
        return "".join(self.characters[int(t)] for t in tokens)


def read_text(path: Path | None) -> str:
    """A file's text; without one the English help texts that ship with every CPython.

    Raises: TextError where the file is no UTF-8 text.
    """
    if path is None:
        return "".join(topics.values())
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise TextError(f"{path} is not UTF-8 text: {error.reason}") from error


def split(text: str, context: int, characters: str | None = None) -> Text:
    """Number the characters and cut off the validation split.

    Raises: TextError for a text too short for `context`, or unknown characters.
    """
    known = "".join(sorted(set(text))) if characters is None else characters
    places = {c: n for n, c in enumerate(known)}
    unknown = sorted(set(text) - places.keys())
    if unknown:
        raise TextError(f"the model has not seen the characters {unknown[:10]}")
    numbers = np.array([places[c] for c in text], np.int32)
    cut = len(numbers) - int(len(numbers) * VALIDATION)
    train, valid = numbers[:cut], numbers[cut:]
    if len(train) <= context + 1 or len(valid) < 2:
        raise TextError(
            f"a text of {len(numbers)} characters is too short for a context of {context}",
            help="use a longer text or a smaller --context",
        )
    return Text(known, train, valid)


def batch(tokens: Array, step: int, seed: int, size: int, context: int) -> tuple[Array, Array]:
    """Inputs and targets of one step, (size, context) each: a function of seed and step."""
    draws = np.random.Generator(np.random.Philox(key=[seed, step]))
    starts = draws.integers(0, len(tokens) - context, size)
    rows = starts[:, None] + np.arange(context)
    return tokens[rows], tokens[rows + 1]


def windows(tokens: Array, size: int, context: int) -> list[tuple[Array, Array]]:
    """Batches in which every token but the first is a target exactly once.

    Windows overlap by half, and only the second half of one counts (of the first all), so that a
    prediction sees at least half a context. Targets that do not count are IGNORED.
    """
    half = max(1, context // 2)
    inputs, targets = [], []
    done = 1
    while done < len(tokens):
        end = min(max(done - 1 + half, context), len(tokens) - 1)
        start = max(0, end - context)
        row = np.zeros(context, np.int32)
        wanted = np.full(context, IGNORED, np.int32)
        row[: end - start] = tokens[start:end]
        wanted[done - 1 - start : end - start] = tokens[done : end + 1]
        inputs.append(row)
        targets.append(wanted)
        done = end + 1
    while len(inputs) % size:
        inputs.append(np.zeros(context, np.int32))
        targets.append(np.full(context, IGNORED, np.int32))
    pairs = (np.stack(inputs), np.stack(targets))
    return [(pairs[0][n : n + size], pairs[1][n : n + size]) for n in range(0, len(inputs), size)]
