"""`pullback generate`: a language model from a GGUF file goes on with a text."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from pullback.cli.command import Output, command
from pullback.gguf.generate import generate as tokens_behind
from pullback.gguf.generate import model
from pullback.gguf.reader import File, read
from pullback.gguf.tokens import Tokenizer

CUT = "\ufffd"  # what the first bytes of a character read as
Told = Callable[[list[int]], str]


@command(example='pullback generate model.gguf --prompt "Once upon a time" --tokens 50')
@click.argument("path", metavar="MODEL", type=click.Path(exists=True, dir_okay=False))
@click.option("--prompt", help="what the text begins with")
@click.option("--ids", help="numbers of tokens in its place, '1 15043'; numbers come out")
@click.option("--tokens", "count", type=click.IntRange(min=1), default=100, show_default=True)
@click.option("--temperature", type=click.FloatRange(min=0.0), default=0.0, help="0: the likeliest")
@click.option("--top-k", type=click.IntRange(min=0), default=0, help="draw from so many; 0: all")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--context", type=click.IntRange(min=1), help="places for tokens")
def generate(
    output: Output,
    path: str,
    prompt: str | None,
    ids: str | None,
    count: int,
    context: int | None,
    **drawn: Any,
) -> None:
    """Go on with a text by the language model in MODEL, a GGUF file.

    The text goes to standard output as it is made; --json tells tokens and times.
    """
    file = read(Path(path))
    given, text_of, ends = _numbers(ids, prompt) or _text(file, prompt)
    decoder = model(file, context)
    made: list[int] = []
    before, shown = text_of(given), ""
    start = first = time.perf_counter()
    try:
        for token in tokens_behind(decoder, given, count, stop=ends, **drawn):
            first = first if made else time.perf_counter()
            made.append(token)
            text = text_of([*given, *made])
            if output.to_people and not text.endswith(CUT):
                click.echo(text[len(shown) :], nl=False)
                shown = text
        if output.to_people:
            click.echo(text_of([*given, *made])[len(shown) :], nl=False)
    finally:
        if output.to_people and (made or shown):
            click.echo("")
    spent = time.perf_counter() - first
    output.tell(
        event="generated",
        text=text_of([*given, *made])[len(before) :],
        tokens=made,
        prompt_tokens=len(given),
        prompt_seconds=first - start,
        tokens_per_second=(len(made) - 1) / spent if len(made) > 1 else None,
    )


def _numbers(ids: str | None, prompt: str | None) -> tuple[list[int], Told, frozenset[int]] | None:
    """Tokens that were given as numbers, how some are shown, and none that ends the text."""
    if (ids is None) == (prompt is None):
        raise click.UsageError("either --prompt or --ids")
    if ids is None:
        return None
    try:
        given = [int(part) for part in ids.replace(",", " ").split()]
    except ValueError:
        raise click.BadParameter(f"{ids!r} are no numbers", param_hint="--ids") from None
    return given, lambda tokens: " ".join(map(str, tokens)), frozenset()


def _text(file: File, prompt: str | None) -> tuple[list[int], Told, frozenset[int]]:
    """The tokens of a text, how some are shown, and those that end the text."""
    tokenizer = Tokenizer(file)
    return tokenizer.encode(prompt or ""), tokenizer.decode, tokenizer.ends
