"""`pullback explain`: what becomes of a definition, or of the programs of a script."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import click

from pullback.composite.text import define
from pullback.tensor.creation import zeros
from pullback.tensor.program import Jit


@click.command()
@click.argument("what")
@click.option("--shape", "shapes", multiple=True, help="a=2,3: the shape of an input")
@click.option("--source", is_flag=True, help="the generated code too")
def explain(what: str, shapes: tuple[str, ...], source: bool) -> None:
    """Show WHAT at both levels: definitions and kernels.

    WHAT is a Python script, whose jitted functions are shown after it ran, or a definition as
    text: "c[i, j] = sum[k](a[i, k] * b[k, j])" with --shape a=2,3 --shape b=3,4.
    """
    if what.endswith(".py"):
        _script(Path(what), source)
        return
    _definition(what, dict(map(_shape, shapes)), source)


def _script(path: Path, source: bool) -> None:
    """Run a script, then show every jitted function that it called."""
    if not path.is_file():
        raise click.ClickException(f"{path} does not exist")
    found = runpy.run_path(str(path), run_name="__main__")
    called = {n: v for n, v in found.items() if isinstance(v, Jit) and v.last is not None}
    if not called:
        raise click.ClickException(f"{path} has no jitted function at its top level that it calls")
    for name, function in called.items():
        click.echo(f"# {name}")
        _show(function, source)


def _definition(text: str, shapes: dict[str, tuple[int, ...]], source: bool) -> None:
    """Compile a definition over zeros and show it."""
    given = {name: zeros(*shape) for name, shape in shapes.items()}

    def function(inputs: dict[str, Any]) -> Any:
        return define(text, **inputs)

    compiled = Jit(function)
    compiled(given)
    _show(compiled, source)


def _show(function: Jit, source: bool) -> None:
    click.echo(function.program.explain())
    if source:
        click.echo(function.program.source())


def _shape(option: str) -> tuple[str, tuple[int, ...]]:
    """``a=2,3 -> ("a", (2, 3))``. Raises: click.BadParameter."""
    name, equals, extents = option.partition("=")
    try:
        shape = tuple(int(e) for e in extents.split(",") if e.strip())
    except ValueError:
        shape = ()
        equals = ""
    if not equals or not name.isidentifier():
        raise click.BadParameter(f"{option!r} is not of the form a=2,3", param_hint="--shape")
    return name, shape
