"""`pullback explain`: what becomes of a definition, or of the programs of a script."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from pullback.cli.command import Misuse, Output, command
from pullback.cli.pages import pages
from pullback.cli.programs import of_definition, of_script
from pullback.cli.shapes import shapes_of, size_of
from pullback.cli.stages import STAGES, WHOLE, parts
from pullback.config import Options
from pullback.tensor.run.images import image_of_file
from pullback.tensor.run.program import Jit

IMAGE = ".image"
EXAMPLE = """\
pullback explain "c[i, j] = sum[k](a[i, k] * b[k, j])" --shape a=2,3 --shape b=3,4
pullback explain "y[i] = sum[k](x[2*i + k] * w[k])" --shape w=3 --size i=3 --stage adjoint
pullback explain train.py --stage loops --timings
pullback explain E110"""


@command(example=EXAMPLE)
@click.argument("what", type=click.Path())
@click.option("--shape", "shapes", multiple=True, help="a=2,3: the shape of an input")
@click.option("--size", "sizes", multiple=True, help="i=8: the extent of an axis")
@click.option("--wrt", multiple=True, help="an input: the derivative by it too")
@click.option("--stage", type=click.Choice(STAGES), default=WHOLE, help="what to show")
@click.option("--timings", is_flag=True, help="how long each stage of the compiler took")
def explain(
    out: Output,
    what: str,
    shapes: tuple[str, ...],
    sizes: tuple[str, ...],
    wrt: tuple[str, ...],
    stage: str,
    timings: bool,
) -> None:
    """Show what the compiler makes of WHAT, at every stage or at one.

    WHAT is a Python script, whose jitted functions are shown after it ran, or a definition as
    text; of several, with ";" between, the last is the result. With --wrt the program is that of
    the result and its gradient; --stage adjoint shows how that is derived. Of the code of an error
    it shows the page: what it means, an example, the repair; of a saved program, a file that ends
    in .image, what it holds.
    """
    if re.fullmatch(r"[Ee]\d{3}", what):
        _code(out, what.upper())
        return
    if what.endswith(IMAGE):
        text, _ = image_of_file(what)
        out.show(text)
        out.tell(name=what, stage="image", parts=[{"name": "image", "text": text}])
        return
    if what.endswith(".py"):
        if wrt and stage != "adjoint":
            raise click.UsageError("--wrt of a script goes with --stage adjoint")
        with out.running(what):
            made = of_script(Path(what))
    else:
        given = shapes_of(what, shapes)
        by = wrt if stage != "adjoint" else ()
        options = Options.from_environment()
        if timings:
            options = replace(options, cache=None)
        with out.working("compiling"):
            made = {what: of_definition(what, given, dict(map(size_of, sizes)), by, options)}
    for name, function in made.items():
        _show(out, name, function, stage, wrt, timings)


def _code(out: Output, code: str) -> None:
    """The page of an error. Raises: Misuse where there is none."""
    page = pages().get(code)
    if page is None:
        raise Misuse(f"there is no error {code}; docs/errors.md lists them all")
    out.show(f"{code} {page.title}\n\n{page.text.strip()}")
    out.tell(code=code, title=page.title, example=page.example, message=page.message)


def _show(
    out: Output, name: str, function: Jit[..., Any], stage: str, wrt: Sequence[str], timings: bool
) -> None:
    texts_by_part = parts(function.program, stage, wrt)
    spent = function.program.timings if timings else {}
    if name.isidentifier():
        out.show(f"# {name}")
    for part, text in texts_by_part:
        out.show(text if len(texts_by_part) == 1 else f"== {part}\n{text}\n")
    if timings:
        out.show(_timings(spent))
    texts = [{"name": part, "text": text} for part, text in texts_by_part]
    seconds = {"seconds": spent} if timings else {}
    out.tell(name=name, stage=stage, parts=texts, **seconds)


def _timings(seconds: Mapping[str, float]) -> str:
    """Milliseconds by stage, longest first; `record` stands for all that the cache spared."""
    total = sum(seconds.values())
    lines = ["== compiler, ms"]
    for name, spent in sorted(seconds.items(), key=lambda item: -item[1]):
        lines.append(f"{name:10} {spent * 1e3:9.2f} {spent / total:6.1%}")
    return "\n".join([*lines, f"{'total':10} {total * 1e3:9.2f}"])
