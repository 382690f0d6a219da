"""`pullback explain`: what becomes of a definition, or of the programs of a script."""

from __future__ import annotations

import re
import runpy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from pullback.cli.command import Misuse, Output, command
from pullback.cli.pages import pages
from pullback.cli.shapes import data_indices, shapes_of, size_of, typed
from pullback.cli.stages import STAGES, WHOLE, chosen, parts
from pullback.config import Options
from pullback.ir.dtype import DType, float32, int64
from pullback.ir.graph import Variable
from pullback.tensor.autograd import grad
from pullback.tensor.creation import zeros
from pullback.tensor.program import Jit
from pullback.tensor.tensor import Tensor

EXAMPLE = """\
pullback explain "c[i, j] = sum[k](a[i, k] * b[k, j])" --shape a=2,3 --shape b=3,4
pullback explain "y[i] = sum[k](x[2*i + k] * w[k])" --shape w=3 --size i=3 --stage adjoint
pullback explain train.py --stage llvm --timings
pullback explain E110"""

HEAD = "head"  # the name of what a derivative is multiplied by

Shapes = dict[str, tuple[int, ...]]


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
    it shows the page: what it means, an example, the repair.
    """
    if re.fullmatch(r"[Ee]\d{3}", what):
        _code(out, what.upper())
        return
    if what.endswith(".py"):
        if wrt and stage != "adjoint":
            raise click.UsageError("--wrt of a script goes with --stage adjoint")
        out.notice(f"running {what}")
        made = _script(Path(what))
    else:
        given = shapes_of(what, shapes)
        by = wrt if stage != "adjoint" else ()
        with out.working("compiling"):
            made = {what: _definition(what, given, dict(map(size_of, sizes)), by, timings)}
    for name, function in made.items():
        _show(out, name, function, stage, wrt, timings)


def _code(out: Output, code: str) -> None:
    """The page of an error. Raises: Misuse where there is none."""
    page = pages().get(code)
    if page is None:
        raise Misuse(f"there is no error {code}; docs/errors.md lists them all")
    out.show(f"{code} {page.title}\n\n{page.text.strip()}")
    out.tell(code=code, title=page.title, example=page.example, message=page.message)


def _script(path: Path) -> dict[str, Jit]:
    """Run a script: every jitted function that it called. Raises: Misuse where there is none."""
    if not path.is_file():
        raise Misuse(f"{path} does not exist")
    found = runpy.run_path(str(path), run_name="__main__")
    called = {n: v for n, v in found.items() if isinstance(v, Jit) and v.last is not None}
    if not called:
        raise Misuse(f"{path} has no jitted function at its top level that it calls")
    return called


def _definition(
    text: str, shapes: Shapes, sizes: Mapping[str, int], wrt: Sequence[str], timed: bool
) -> Jit:
    """Compile a definition over zeros, and its gradient by `wrt`; past the cache if it is timed."""
    if wrt and HEAD in shapes:
        raise click.UsageError(f"with --wrt no input can be named {HEAD!r}")
    kinds = _kinds(text, shapes)
    given = {name: zeros(shape, dtype=kinds[name]) for name, shape in shapes.items()}

    def function(**inputs: Any) -> Any:
        head = inputs.pop(HEAD, None)
        result = _last(typed(text, sizes, inputs))
        if head is None:
            return result
        return (result, *grad(result, [inputs[name] for name in wrt], head=head))

    if wrt:
        inputs = {n: Tensor(Variable(n, s, kinds[n])) for n, s in shapes.items()}
        chosen([x.value for x in inputs.values()], wrt)
        result = _last(typed(text, sizes, inputs))
        given[HEAD] = zeros(result.shape, dtype=result.dtype)
    options = Options.from_environment()
    compiled = Jit(function, options=replace(options, cache=None) if timed else options)
    compiled(**given)
    return compiled


def _last(made: Any) -> Tensor:
    last: Tensor = made[-1] if isinstance(made, tuple) else made
    return last


def _kinds(text: str, shapes: Shapes) -> dict[str, DType]:
    """float32, but int64 for what stands in an index."""
    places = data_indices(text, shapes)
    return {name: int64 if name in places else float32 for name in shapes}


def _show(
    out: Output, name: str, function: Jit, stage: str, wrt: Sequence[str], timings: bool
) -> None:
    found = parts(function.program, stage, wrt)
    spent = function.program.timings if timings else {}
    if name.isidentifier():
        out.show(f"# {name}")
    for part, text in found:
        out.show(text if len(found) == 1 else f"== {part}\n{text}\n")
    if timings:
        out.show(_timings(spent))
    texts = [{"name": part, "text": text} for part, text in found]
    seconds = {"seconds": spent} if timings else {}
    out.tell(name=name, stage=stage, parts=texts, **seconds)


def _timings(seconds: Mapping[str, float]) -> str:
    """Milliseconds by stage, longest first; `record` stands for all that the cache spared."""
    total = sum(seconds.values())
    lines = ["== compiler, ms"]
    for name, spent in sorted(seconds.items(), key=lambda item: -item[1]):
        lines.append(f"{name:10} {spent * 1e3:9.2f} {spent / total:6.1%}")
    return "\n".join([*lines, f"{'total':10} {total * 1e3:9.2f}"])
