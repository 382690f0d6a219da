"""What a command looks at: programs of a script or of a definition as text; module:function."""

from __future__ import annotations

import importlib
import inspect
import os
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from pullback.cli.command import Misuse
from pullback.cli.shapes import data_indices, parsed, typed
from pullback.cli.stages import chosen
from pullback.config import Options
from pullback.ir.dtype import DType, float32, int64
from pullback.ir.graph import Variable
from pullback.runtime.executable import Executable
from pullback.tensor.derive.autograd import grad
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.library.creation import zeros
from pullback.tensor.run.program import Jit

HEAD = "head"  # the name of what a derivative is multiplied by

Shapes = Mapping[str, tuple[int, ...]]


@contextmanager
def environment(values: Mapping[str, str | None]) -> Iterator[None]:
    """Variables of this process for a while: scripts and models read them by themselves."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update({n: v for n, v in values.items() if v is not None})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def of_script(path: Path, arguments: Sequence[str] = ()) -> dict[str, Jit[..., Any]]:
    """Run a script: every jitted function that it called. Raises: Misuse where there is none."""
    called = _jitted(_ran(path, arguments))
    if not called:
        raise Misuse(f"{path} has no jitted function at its top level that it calls")
    return called


def programs_of(path: Path) -> list[Executable]:
    """Run a script: the programs of its jitted functions, and all that ran for PyTorch, those of
    `torch.compile` and of `pb.torch`. Raises: Misuse where there is none.
    """
    before = _for_pytorch()
    programs = [f.program for f in _jitted(_ran(path, ())).values()]
    programs += [p for p in _for_pytorch() if not any(p is other for other in before)]
    if not programs:
        what = f"{path} has no jitted function at its top level that it calls"
        raise Misuse(f"{what}, and runs nothing for PyTorch")
    return programs


def _for_pytorch() -> list[Executable]:
    """What this process has run for PyTorch so far."""
    bridge = sys.modules.get("pullback.bridge.record")
    return [] if bridge is None else [*bridge.RECORD.programs.values()]


def _jitted(names: Mapping[str, Any]) -> dict[str, Jit[..., Any]]:
    return {n: v for n, v in names.items() if isinstance(v, Jit) and v.last is not None}


def _ran(path: Path, arguments: Sequence[str]) -> dict[str, Any]:
    """What stands at the top level of a script after it ran."""
    if not path.is_file():
        raise Misuse(f"{path} is no file" if path.exists() else f"{path} does not exist")
    sys.argv = [str(path), *arguments]
    return runpy.run_path(str(path), run_name="__main__")


def of_definition(
    text: str,
    shapes: Shapes,
    sizes: Mapping[str, int],
    wrt: Sequence[str],
    options: Options,
    runs: int = 1,
) -> Jit[..., Any]:
    """Compile a definition over zeros, and its gradient by `wrt`, and run it.

    Raises: Misuse for a name in `wrt` that is no floating input.
    """
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
    compiled = Jit(function, options=options)
    for _ in range(runs):
        compiled(**given)
    return compiled


def _last(made: Any) -> Tensor:
    last: Tensor = made[-1] if isinstance(made, tuple) else made
    return last


def _kinds(text: str, shapes: Shapes) -> dict[str, DType]:
    """float32, but int64 for what stands in an index."""
    places = data_indices(text, shapes)
    return {name: int64 if name in places else float32 for name in shapes}


def function_at(
    place: str, options: Sequence[str]
) -> tuple[Callable[..., Any], list[tuple[int, ...]]]:
    """A function by ``module:function``, and the shapes of its parameters without a default.

    Raises: click.UsageError where there is no such function, or a shape is missing.
    """
    function = function_named(place)
    shapes = dict(map(parsed, options))
    needed = [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.default is inspect.Parameter.empty
    ]
    missing = [n for n in needed if n not in shapes]
    if missing:
        raise click.UsageError(f"the shape of {missing[0]}? --shape {missing[0]}=2,3")
    return function, [shapes[n] for n in needed]


def function_named(place: str) -> Callable[..., Any]:
    """``module:function`` or ``file.py:function``.

    Raises: click.UsageError where there is no such function; Misuse where there is no such file.
    """
    home, _, name = place.rpartition(":")
    if home.endswith(".py"):
        if not Path(home).is_file():
            raise Misuse(f"{home} does not exist")
        function = runpy.run_path(home).get(name)
    else:
        home, _, name = place.partition(":")
        function = getattr(_module(home, place), name, None)
    if not callable(function):
        raise click.UsageError(f"{home} has no function {name!r}: give module:function")
    named: Callable[..., Any] = function
    return named


def _module(home: str, place: str) -> Any:
    if not all(part.isidentifier() for part in home.split(".")):
        raise click.UsageError(f"{place!r}: neither a definition nor module:function")
    sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(home)
    except ImportError as problem:
        raise click.UsageError(f"{home}: {problem}") from problem
