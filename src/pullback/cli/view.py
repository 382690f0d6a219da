"""`pullback view`: one page that shows programs whole."""

from __future__ import annotations

import os
import webbrowser
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import click

from pullback.cli.command import Misuse, Output, command
from pullback.cli.profile import roofline
from pullback.cli.programs import of_definition, of_script
from pullback.cli.shapes import shapes_of, size_of
from pullback.config import Options
from pullback.runtime.executable import Executable
from pullback.viewer.data import Json
from pullback.viewer.page import ASSEMBLED, collect, render, write
from pullback.viewer.pictures import dot, svg

PICTURE = click.Path(dir_okay=False, path_type=Path)
RUNS = 20  # of a definition, to be timed
EXAMPLE = """\
pullback view train.py
pullback view train.py --svg train.svg --dot train.dot
pullback view "y[i] = sum[k](x[i + k] * w[k])" --shape w=5 --size i=1000 --wrt x --out y.html"""


@command(example=EXAMPLE)
@click.argument("what", type=click.Path())
@click.argument("arguments", nargs=-1)
@click.option("--shape", "shapes", multiple=True, help="a=2,3: the shape of an input")
@click.option("--size", "sizes", multiple=True, help="i=8: the extent of an axis")
@click.option("--wrt", multiple=True, help="an input: the derivative by it too")
@click.option("--assembly", is_flag=True, help=f"of all kernels, not of the {ASSEMBLED} largest")
@click.option("--out", "path", type=PICTURE, help="the page")
@click.option("--dot", "dots", type=PICTURE, help="the kernels as a graph, for Graphviz")
@click.option("--svg", "svgs", type=PICTURE, help="the kernels as a picture")
@click.option("--open", "opened", is_flag=True, help="show it in the browser")
def view(
    output: Output,
    what: str,
    arguments: tuple[str, ...],
    shapes: tuple[str, ...],
    sizes: tuple[str, ...],
    wrt: tuple[str, ...],
    assembly: bool,
    path: Path | None,
    dots: Path | None,
    svgs: Path | None,
    opened: bool,
) -> None:
    """Write a page of what becomes of WHAT: definitions, kernels, code, memory, time.

    WHAT is a Python script, which is run with its ARGUMENTS and whose jitted functions are shown,
    or a definition as text, as `explain` takes it. The page is one file and needs no network.
    With --dot or --svg, pictures of kernels, stages and variables alone; a page with --out or
    --open. Of several programs each has a file, NAME-FUNCTION.svg.
    """
    pictures = {target: draw for target, draw in ((dots, dot), (svgs, svg)) if target is not None}
    if path is None and (opened or not pictures):
        path = Path(f"{Path(what).stem if what.endswith('.py') else 'definition'}.html")
    for target in (*pictures, *([] if path is None else [path])):
        has_folder(target)
    if what.endswith(".py"):
        if shapes or sizes or wrt:
            raise click.UsageError("--shape, --size and --wrt are for a definition given as text")
        os.environ["PULLBACK_PROFILE"] = "1"
        with output.running(what):
            functions = of_script(Path(what), arguments)
        programs = {name: function.program for name, function in functions.items()}
    else:
        with output.working("compiling"):
            programs = {what: _definition(what, shapes, sizes, wrt)}
    for target, draw in pictures.items():
        _draw(output, target, draw, programs)
    if path is not None:
        _page(output, what, programs, path, None if assembly else ASSEMBLED)
        if opened:
            webbrowser.open(path.resolve().as_uri())


def _draw(
    output: Output,
    path: Path,
    draw: Callable[[Executable], str],
    programs: Mapping[str, Executable],
) -> None:
    """A picture of each program."""
    for name, program in programs.items():
        own = path if len(programs) == 1 else path.with_stem(f"{path.stem}-{name}")
        save(own, draw(program))
        output.show(f"{own}: {own.stat().st_size:,} bytes")
        output.tell(picture=str(own), program=name, kernels=len(program.kernels))


def _page(
    output: Output, what: str, programs: Mapping[str, Executable], path: Path, most: int | None
) -> None:
    """The page of all programs."""
    with output.working("looking at the programs"):
        data = collect(what, programs, roofline(), assembled=most)
        text = render(data)
    save(path, text)
    size = path.stat().st_size
    output.show(f"{path}: {size:,} bytes")
    output.tell(page=str(path), bytes=size, programs=list(map(_counts, data["programs"])))


def _definition(
    text: str, shapes: tuple[str, ...], sizes: tuple[str, ...], wrt: tuple[str, ...]
) -> Executable:
    """The program of a definition, run a few times over zeros."""
    options = replace(Options.from_environment(), profile=True)
    extents = dict(map(size_of, sizes))
    return of_definition(text, shapes_of(text, shapes), extents, wrt, options, RUNS).program


def has_folder(path: Path) -> None:
    """Before any work is done. Raises: Misuse where the folder of a page is not there."""
    if not path.parent.is_dir():
        raise Misuse(f"{path} cannot be written: there is no folder {path.parent}")


def save(path: Path, text: str) -> None:
    """Write a page, whole or not at all.

    Raises: Misuse where nothing can be written there.
    """
    try:
        write(path, text)
    except OSError as error:
        raise Misuse(f"{path} cannot be written: {error.strerror}") from error


def _counts(program: Json) -> Json:
    """What is in the page, for programs that call this one."""
    sizes = {key: len(program[key]) for key in ("nodes", "kernels")}
    return {"name": program["name"], **sizes}
