"""`pullback generate`: a language model from a GGUF file goes on with a text."""

from __future__ import annotations

import time
from pathlib import Path

import click

from pullback.cli.command import Output, command
from pullback.gguf.generate import generate as tokens_behind
from pullback.gguf.generate import model
from pullback.gguf.reader import read
from pullback.gguf.tokens import Tokenizer

CUT = "\ufffd"  # what the first bytes of a character read as


@command(example='pullback generate model.gguf --prompt "Once upon a time" --tokens 50')
@click.argument("path", metavar="MODEL", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--prompt", required=True, help="what the text begins with")
@click.option("--tokens", "count", type=click.IntRange(min=1), default=100, show_default=True)
@click.option("--temperature", type=click.FloatRange(min=0.0), default=0.0, help="0: the likeliest")
@click.option("--top-k", type=click.IntRange(min=0), default=0, help="draw from so many; 0: all")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--context", type=click.IntRange(min=1), help="places for tokens")
def generate(
    output: Output,
    path: Path,
    prompt: str,
    count: int,
    temperature: float,
    top_k: int,
    seed: int,
    context: int | None,
) -> None:
    """Go on with a text by the language model in MODEL, a GGUF file.

    The text goes to standard output as it is made; --json tells tokens and times.
    """
    file = read(path)
    tokenizer = Tokenizer(file)
    given = tokenizer.encode(prompt)
    decoder = model(file, context)
    made: list[int] = []
    shown = prompt
    if output.to_people:
        click.echo(prompt, nl=False)
    start = time.perf_counter()
    first = start
    behind = tokens_behind(
        decoder, given, count, temperature=temperature, top_k=top_k, seed=seed, stop=tokenizer.ends
    )
    before = tokenizer.decode(given)
    for token in behind:
        first = first if made else time.perf_counter()
        made.append(token)
        text = tokenizer.decode([*given, *made])
        if output.to_people and not text.endswith(CUT):
            click.echo(text[len(before) + len(shown) - len(prompt) :], nl=False)
            shown = prompt + text[len(before) :]
    spent = time.perf_counter() - first
    if output.to_people:
        click.echo("")
    output.tell(
        event="generated",
        text=tokenizer.decode([*given, *made])[len(before) :],
        tokens=made,
        prompt_tokens=len(given),
        prompt_seconds=first - start,
        tokens_per_second=(len(made) - 1) / spent if len(made) > 1 else None,
    )
