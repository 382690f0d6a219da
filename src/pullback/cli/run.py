"""`pullback run`: a daten program, once, with its gradients, or trained."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from pullback.cli.command import Misuse, Output, command
from pullback.cli.compile_file import numbers
from pullback.cli.files import written
from pullback.config import Options
from pullback.daten.model import Model, parse, read
from pullback.daten.train import Settings, settings_of, train
from pullback.errors import StateError
from pullback.ir.kernel import Kernel

EXAMPLE = """\
pullback run model.daten --mode train --feed data.npz --save model.safetensors
pullback run model.daten --load model.safetensors --feed data.npz
pullback run --shape "A[3, 4]" --mode grad -e "modules:
  function dot: A[M, N] B[M, N] -> C[M, K]
    C[m, k] = sum[n](A[m, n] * B[k, n])
parameters:
  A{Grad}
main:
  output = (dot A B)" """
SHAPE = re.compile(r"\s*(\w+)\s*\[\s*((\d{1,9}\s*(,\s*\d{1,9}\s*)*)?)\]\s*")
LINES = 10  # of losses that are shown
MOST_FED = 1 << 34  # bytes of the arrays of a file


@command(example=EXAMPLE)
@click.argument("path", metavar="FILE", required=False)
@click.option("-e", "--text", metavar="TEXT", help="the program itself")
@click.option("-m", "--mode", type=click.Choice(["infer", "grad", "train"]), default="infer")
@click.option("--feed", metavar="FILE.npz", help="data by name; drawn where it is not given")
@click.option("--load", metavar="FILE", help="parameters, as safetensors")
@click.option("--save", metavar="FILE", help="where parameters go, as safetensors")
@click.option("-o", "--out", "results", metavar="FILE.npz", help="where outputs go")
@click.option("-r", "--runtime", "--backend", "backend", metavar="NAME", help="what compiles it")
@click.option("-p", "--plugin", "plugins", multiple=True, metavar="FILE",
              help="modules (.toml, .daten, a folder), or a backend (.py)")  # fmt: skip
@click.option("--sizes", metavar="M=..,N=..", default="", help="sizes of symbols")
@click.option("--shape", "shapes", multiple=True, metavar="A[3,4]", help="of a tensor without one")
@click.option("--steps", type=click.IntRange(min=1), help="of training")
@click.option("--lr", type=click.FloatRange(min=0.0, min_open=True), help="the learning rate")
@click.option("--batch", type=click.IntRange(min=1), help="rows of data a step")
@click.option("--optimizer", metavar="NAME", help="sgd, adam, adamw, rmsprop")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
def run(
    output: Output,
    path: str | None,
    text: str | None,
    mode: str,
    feed: str | None,
    load: str | None,
    save: str | None,
    results: str | None,
    backend: str | None,
    plugins: tuple[str, ...],
    sizes: str,
    shapes: tuple[str, ...],
    seed: int,
    **training: Any,
) -> None:
    """Run FILE, a daten program: modules, parameters and what is computed, in one text.

    infer computes the outputs, grad also the gradients of the parameters that are marked {Grad},
    train minimises `loss` by them. What is computed is listed kernel by kernel.
    """
    if (path is None) == (text is None):
        raise click.UsageError("either FILE or -e TEXT")
    if mode == "train" and results is not None:
        raise click.UsageError("--out: a training has no outputs; --save FILE keeps parameters")
    backends = [p for p in plugins if p.endswith(".py")]
    modules = [p for p in plugins if not p.endswith(".py")]
    if len(backends) + (backend is not None) > 1:
        raise click.UsageError("one backend: --backend NAME, or one --plugin FILE.py")
    model = read(path, modules) if path is not None else parse(text or "", Path.cwd(), modules)
    own = settings_of(model, **training)
    options = Options.from_environment()
    chosen = backend or next(iter(backends), None)
    model.options = options if chosen is None else replace(options, backend=chosen)
    model.seed, model.sizes, model.shapes = seed, numbers(sizes, "--sizes"), _shapes(shapes)
    if load is not None:
        model.load(load)
    data = fed(feed) if feed is not None else {}
    if mode == "train":
        _train(output, model, own, data)
    else:
        _once(output, model, mode == "grad", data, results)
    _kernels(output, model)
    if save is not None:
        model.save(save)
        output.show(f"parameters: {save}")


def _once(
    output: Output, model: Model, slopes: bool, data: Mapping[str, Any], path: str | None
) -> None:
    """Outputs, and gradients where they are asked for."""
    with output.working(f"running {model.path}"):
        made, gradients = model.gradients(**data) if slopes else (model.infer(**data), {})
    named = {**made, **{f"d{name}": array for name, array in gradients.items()}}
    for name, array in named.items():
        output.show(f"{name} {list(array.shape)}")
        output.show(np.array2string(array, precision=5, threshold=40))
        output.tell(name=name, shape=array.shape, values=array.tolist())
    if path is not None:
        written(path, archived(made))


def _train(output: Output, model: Model, own: Settings, data: Mapping[str, Any]) -> None:
    """Losses, some of them as they come."""
    every = max(1, own.steps // LINES)

    def told(step: int, loss: float) -> None:
        if step == 1 or step % every == 0 or step == own.steps:
            output.show(f"step {step}: loss {loss:.4g}")

    if model.goal() != ("loss",):
        output.show(f"no loss: the sum of {model.goal()[0]} is minimised")
    losses = train(model, own, data, told)
    for step, loss in enumerate(losses, 1):
        output.tell(step=step, loss=loss)


def _kernels(output: Output, model: Model) -> None:
    """What is computed, kernel by kernel: what each one stores."""
    assert model.program is not None
    kernels = model.program.kernels
    output.show(f"kernels: {len(kernels)}")
    for kernel in kernels:
        stored = list(dict.fromkeys(_stored(kernel, model.text.parameters)))
        output.show(f"  {kernel.name}: {', '.join(stored)}")
        output.tell(kernel=kernel.name, stores=stored)


def _stored(kernel: Kernel, parameters: Container[str]) -> Iterator[str]:
    for part in kernel.parts:
        yield from _stored(part, parameters)
    for stage in (*kernel.stages, *kernel.finish):
        if stage.store is not None:
            own = stage.store.name
            yield own if own in parameters else stage.target.name


def archived(arrays: Mapping[str, np.ndarray[Any, Any]]) -> bytes:
    """Arrays by name as `np.savez` writes them, which takes no array called `file`."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as entries:
        for name, array in arrays.items():
            with entries.open(f"{name}.npy", "w") as entry:
                np.lib.format.write_array(entry, array, allow_pickle=False)
    return whole.getvalue()


def fed(path: str) -> dict[str, np.ndarray[Any, Any]]:
    """The arrays of a file by name. Raises: StateError where it is none."""
    try:
        with zipfile.ZipFile(path) as whole:
            size = sum(entry.file_size for entry in whole.infolist())
        if size > MOST_FED:
            raise StateError(f"{path} holds {size} bytes", code="E559")
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, zipfile.BadZipFile, EOFError, KeyError, TypeError,
            SyntaxError, NotImplementedError, RuntimeError) as problem:  # fmt: skip
        if isinstance(problem, StateError):
            raise
        what = f"{path} is no file of arrays: {problem}"
        raise StateError(what, help="np.savez(path, x=..)", code="E559") from problem


def _shapes(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """``A[3, 4]`` by name. Raises: Misuse."""
    made: dict[str, tuple[int, ...]] = {}
    for text in texts:
        match = SHAPE.fullmatch(text)
        if match is None:
            raise Misuse(f"--shape: {text!r} is no shape: write it like A[3, 4]")
        made[match[1]] = tuple(int(n) for n in match[2].split(",") if n.strip())
    return made
