"""`pullback check`: whether the derivatives of a definition or a function are right."""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import click
import numpy as np

from pullback.cli.command import WRONG, Output, command
from pullback.cli.programs import function_at
from pullback.cli.shapes import data_indices, shapes_of, size_of, typed
from pullback.tensor.derive.check import check_grads

EXAMPLE = """\
pullback check "c[i] = sum[k](a[i, k] * exp(b[k]))"
pullback check my_module:my_function --shape x=4,5"""


@command(example=EXAMPLE)
@click.argument("what")
@click.option("--shape", "shapes", multiple=True, help="a=2,3: the shape of an input")
@click.option("--size", "sizes", multiple=True, help="i=8: the extent of an axis")
@click.option("--low", type=float, default=-1.0, help="inputs are drawn above this")
@click.option("--high", type=float, default=1.0, help="and below this")
@click.option("--seed", type=click.IntRange(min=0), default=0)
@click.option("--tolerance", type=float, default=1e-6, help="of differences")
def check(
    out: Output,
    what: str,
    shapes: tuple[str, ...],
    sizes: tuple[str, ...],
    low: float,
    high: float,
    seed: int,
    tolerance: float,
) -> None:
    """Check every derivative of WHAT; exit code 1 where one is wrong.

    WHAT is a definition as text, "c[i] = sum[k](a[i, k] * exp(b[k]))", or module:function with a
    --shape for each parameter that has no default.
    """
    is_text = "=" in what
    function, drawn = _text(what, shapes, sizes) if is_text else _function(what, shapes)
    rng = np.random.default_rng(seed)
    inputs = [
        rng.uniform(low, high, shape) if below is None else rng.integers(0, below, shape)
        for shape, below in drawn
    ]
    with out.working("checking derivatives"):
        report = check_grads(function, inputs, tolerance=tolerance, seed=seed)
    out.show(str(report))
    out.tell(**json.loads(report.json()))
    sys.exit(0 if report else WRONG)


# A function and the shapes of its inputs; those with a number are integers below it.
Checkable = tuple[Callable[..., Any], list[tuple[tuple[int, ...], int | None]]]


def _text(text: str, options: Sequence[str], sizes: Sequence[str]) -> Checkable:
    shapes = shapes_of(text, options)
    extents = dict(map(size_of, sizes))

    def definition(*inputs: Any) -> Any:
        return typed(text, extents, dict(zip(shapes, inputs, strict=True)))

    named = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_ONLY) for n in shapes]
    signature = inspect.Signature(named)
    definition.__signature__ = signature  # type: ignore[attr-defined]  # reports name inputs by it
    below = data_indices(text, shapes)
    return definition, [(shape, below.get(name)) for name, shape in shapes.items()]


def _function(place: str, options: Sequence[str]) -> Checkable:
    function, shapes = function_at(place, options)
    return function, [(shape, None) for shape in shapes]
