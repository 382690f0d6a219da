"""`pullback explain`: what becomes of a definition, or of the programs of a script."""

from __future__ import annotations

import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from pullback.cli.shapes import data_indices, shapes_of, size_of, typed
from pullback.config import Options
from pullback.grad.report import adjoints_text
from pullback.ir.dtype import DType, float32, int64
from pullback.ir.graph import Variable
from pullback.tensor.creation import zeros
from pullback.tensor.program import Jit
from pullback.tensor.tensor import Tensor


@click.command()
@click.argument("what")
@click.option("--shape", "shapes", multiple=True, help="a=2,3: the shape of an input")
@click.option("--size", "sizes", multiple=True, help="i=8: the extent of an axis")
@click.option("--source", is_flag=True, help="the generated code too")
@click.option("--stage", type=click.Choice(["program", "adjoint"]), default="program")
@click.option("--timings", is_flag=True, help="how long each stage of the compiler took")
def explain(
    what: str,
    shapes: tuple[str, ...],
    sizes: tuple[str, ...],
    source: bool,
    stage: str,
    timings: bool,
) -> None:
    """Show WHAT at both levels: definitions and kernels; or the adjoints derived from it.

    WHAT is a Python script, whose jitted functions are shown after it ran, or a definition as
    text: "c[i, j] = sum[k](a[i, k] * b[k, j])" with --shape a=2,3 --shape b=3,4.
    """
    if what.endswith(".py"):
        if stage == "adjoint":
            raise click.UsageError("--stage adjoint shows a definition given as text")
        _script(Path(what), source, timings)
        return
    given = shapes_of(what, shapes)
    extents = dict(map(size_of, sizes))
    if stage == "adjoint":
        _adjoints(what, given, extents)
        return
    _definition(what, given, extents, source, timings)


def _script(path: Path, source: bool, timings: bool) -> None:
    """Run a script, then show every jitted function that it called."""
    if not path.is_file():
        raise click.ClickException(f"{path} does not exist")
    found = runpy.run_path(str(path), run_name="__main__")
    called = {n: v for n, v in found.items() if isinstance(v, Jit) and v.last is not None}
    if not called:
        raise click.ClickException(f"{path} has no jitted function at its top level that it calls")
    for name, function in called.items():
        click.echo(f"# {name}")
        _show(function, source, timings)


Shapes = dict[str, tuple[int, ...]]


def _adjoints(text: str, shapes: Shapes, sizes: dict[str, int]) -> None:
    """The adjoints of the last definition by everything that is given."""
    kinds = _kinds(text, shapes)
    given: dict[str, Any] = {n: Tensor(Variable(n, s, kinds[n])) for n, s in shapes.items()}
    made = typed(text, sizes, given)
    output = made[-1] if isinstance(made, tuple) else made
    floats = [x.value for n, x in given.items() if kinds[n].is_float]
    click.echo(adjoints_text(output.value, floats))


def _kinds(text: str, shapes: Shapes) -> dict[str, DType]:
    """float32, but int64 for what stands in an index."""
    places = data_indices(text, shapes)
    return {name: int64 if name in places else float32 for name in shapes}


def _definition(
    text: str, shapes: Shapes, sizes: dict[str, int], source: bool, timings: bool
) -> None:
    """Compile a definition over zeros and show it; past the cache if it is to be timed."""
    kinds = _kinds(text, shapes)
    given = {name: zeros(shape, dtype=kinds[name]) for name, shape in shapes.items()}

    def function(**inputs: Any) -> Any:
        return typed(text, sizes, inputs)

    options = Options.from_environment()
    compiled = Jit(function, options=replace(options, cache=None) if timings else options)
    compiled(**given)
    _show(compiled, source, timings)


def _show(function: Jit, source: bool, timings: bool) -> None:
    click.echo(function.program.explain())
    if source:
        click.echo(function.program.source())
    if timings:
        click.echo(_timings(function.program.timings))


def _timings(seconds: dict[str, float]) -> str:
    """Milliseconds by stage, longest first; `record` stands for all that the cache spared."""
    total = sum(seconds.values())
    lines = ["== compiler, ms"]
    for name, spent in sorted(seconds.items(), key=lambda item: -item[1]):
        lines.append(f"{name:10} {spent * 1e3:9.2f} {spent / total:6.1%}")
    return "\n".join([*lines, f"{'total':10} {total * 1e3:9.2f}"])
