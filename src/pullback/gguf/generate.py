"""Tokens after tokens: the likeliest, or drawn by how likely they are."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

from pullback.errors import ArgumentError, StateError, UnsupportedError
from pullback.gguf.decoder import Decoder
from pullback.gguf.gpt2 import GPT2
from pullback.gguf.llama import Llama
from pullback.gguf.reader import File, read

MODELS: dict[str, type[Any]] = {"gpt2": GPT2, "llama": Llama}


def model(file: File | str | os.PathLike[str], context: int | None = None) -> Decoder:
    """The decoder of a file, with place for `context` tokens (the model's most, or 2048).

    Raises: UnsupportedError for another architecture (E583).

    Example:
        >>> pb.gguf.write("m.gguf", {"general.architecture": "mamba"}, {})
        >>> try:
        ...     pb.gguf.model("m.gguf")
        ... except NotImplementedError as error:
        ...     print(error.code)
        E583
    """
    opened = file if isinstance(file, File) else read(file)
    family = opened.fact("general.architecture", str)
    if family not in MODELS:
        what = f"{opened.path} is of the architecture `{family:.60}`"
        raise UnsupportedError(what, help=f"these are run: {', '.join(MODELS)}", code="E583")
    made: Decoder = MODELS[family](opened, context)
    return made


def generate(
    decoder: Decoder,
    tokens: Any,
    count: int,
    *,
    temperature: float = 0.0,
    top_k: int = 0,
    seed: int = 0,
    stop: Collection[int] = (),
) -> Iterator[int]:
    """`count` tokens behind `tokens`, one after the other; the last ends with one of `stop`.

    ``p = softmax(scores / temperature)``, of the `top_k` best where that is not 0; temperature 0
    takes the best. The same seed draws the same tokens.

    Raises: ArgumentError for settings out of range, StateError where scores are NaN.
    """
    if not 0.0 <= temperature < np.inf or top_k < 0 or count < 0:
        what = f"temperature {temperature}, top_k {top_k}, {count} tokens"
        raise ArgumentError(what, help="none may be negative or infinite", code="E585")
    rng = np.random.default_rng(seed)
    given = list(tokens)
    for left in range(count, 0, -1):
        token = chosen(decoder.next(given), temperature, top_k, rng)
        if token in stop:
            return
        yield token
        given = [token]
        if left > 1 and decoder.done >= decoder.places:
            what = (
                f"the context of {decoder.places} places is full, {left - 1} tokens before the end"
            )
            raise ArgumentError(what, code="E585")


def chosen(
    scores: np.ndarray[Any, Any], temperature: float, top_k: int, rng: np.random.Generator
) -> int:
    """One word by its scores. Raises: StateError where one is NaN."""
    if np.isnan(scores).any():
        raise StateError("a score is NaN: the weights hold NaN or overflow", code="E587")
    if not temperature:
        return int(scores.argmax())
    wide = scores.astype(np.float64)
    kept = np.argsort(-wide, kind="stable")[: top_k or None]
    p = np.exp((wide[kept] - wide[kept[0]]) / temperature)
    return int(rng.choice(kept, p=p / p.sum()))
