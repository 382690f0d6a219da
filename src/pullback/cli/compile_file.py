"""`pullback compile`: an operation of a file, compiled, and tried beside the reference."""

from __future__ import annotations

import difflib
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from pullback.cli import files
from pullback.cli.command import WRONG, Misuse, Output, command
from pullback.cli.programs import function_named
from pullback.cli.timing import medians
from pullback.composite.syntax import Name, Number
from pullback.config import Options, parse_bytes
from pullback.errors import Origin
from pullback.operations import Operation, from_function, parse, read, written
from pullback.operations.drawn import drawn
from pullback.operations.notation import Size, signature
from pullback.tensor.library.creation import dim, zeros
from pullback.tensor.run.program import jit

ROUNDS = 5
BOUNDS = 1, 1 << 16  # of an extent that is a symbol
EXAMPLE = """\
pullback compile -i ops/gemm.toml --runtime c --test "M=100, N=100, K=100" --config OMP=1
pullback compile --test "N=8" -e 'name = "double"
inputs = ["x[N]"]
outputs = ["y[N]"]
code = "y[i] = 2 * x[i]"'"""
CONFIG = {
    "OMP": "1: a thread for each processor, 0: one thread",
    "THREADS": "how many threads",
    "MARCH": "the processor: native, x86-64-v3, ..",
    "SIMD_LEN": "floats in a vector of x86-64: 4, 8 or 16",
    "CC": "the compiler of the backend c",
    "MACHINE": "the numbers that schedules are chosen by: a name, or a file",
    "MEMORY": "bytes of temporaries: 64MB",
    "CACHE": "the folder of compiled code, or off",
    "DUMP": "a folder for every stage",
    "HOST": "0: nothing calls functions of the host",
    "CHECK": "1: each launch is looked at",
    "PROFILE": "1: launches are timed",
}
WORDS = ("MARCH", "CC", "MACHINE", "MEMORY", "CACHE", "DUMP")  # values that are no numbers
LANES = {4: "x86-64", 8: "x86-64-v3", 16: "x86-64-v4"}
# Of AbstractTensor.lisp's runtime, by name: why they are no settings here.
ELSEWHERE = {
    "SLEEF": "functions are generated, each with its bound",
    "ARM_NEON": "the processor says which vectors there are: MARCH",
    "OPT": "code is made by schedules, and compiled one way",
}


@command(example=EXAMPLE)
@click.option("-i", "--input", "path", metavar="FILE", help="the operation, as TOML")
@click.option("-e", "--text", metavar="TEXT", help="the TOML itself")
@click.option("--python", metavar="MODULE:FUNCTION", help="a function of Python, as an operation")
@click.option("--shape", "shapes", multiple=True, metavar="x[M,4]", help="of each of its inputs")
@click.option("-o", "--out", "target", metavar="FILE", help="write the operation, as TOML")
@click.option("-r", "--runtime", "--backend", "backend", metavar="NAME", help="what compiles it")
@click.option("-t", "--test", "tested", metavar="M=..,N=..", help="try it with these sizes")
@click.option("-c", "--config", metavar="KEY=VALUE,..", default="", help=", ".join(CONFIG))
@click.option("-d", "--debug", type=click.IntRange(0, 4), default=0, help="0 nothing .. 4 code")
@click.option("--seed", type=click.IntRange(min=0), default=0)
def compile(
    out: Output,
    path: str | None,
    text: str | None,
    python: str | None,
    shapes: tuple[str, ...],
    target: str | None,
    backend: str | None,
    tested: str | None,
    config: str,
    debug: int,
    seed: int,
) -> None:
    """Compile the operation of a TOML file and try it beside the reference.

    Inputs are drawn at random, sizes are those of --test, others as the file's own test has them.
    Exit code 1 where an output is further from the interpreter's than the file's tolerance.
    """
    if [path, text, python].count(None) != 2:
        raise click.UsageError("either -i FILE, -e TEXT or --python MODULE:FUNCTION")
    if shapes and python is None:
        raise click.UsageError("--shape is of an input of --python MODULE:FUNCTION")
    operation = operation_of(path, text, python, shapes)
    if target is not None:
        files.written(target, written(operation))
        out.show(f"{operation.name}: {target}")
    options = configured(replace(Options.from_environment(), debug=debug), config)
    if backend is not None:
        options = replace(options, backend=backend)
    arrays, given = drawn(operation, numbers(tested or ""), np.random.default_rng(seed))
    function = jit(lambda *stored: operation.of_stored(*stored, **given), options=options)
    start = time.perf_counter()
    with out.working(f"compiling {operation.name}"):
        made = function(*arrays)
    spent = time.perf_counter() - start
    out.show(f"{operation.name} on {options.backend}: {spent:.3f} s to compile and run once")
    out.tell(name=operation.name, backend=options.backend, first_seconds=spent)
    if tested is None:
        return
    oracle = jit(
        lambda *stored: operation.of_stored(*stored, **given),
        options=Options(backend="reference"),
    )
    start = time.thread_time()
    wanted = oracle(*arrays)
    slow = time.thread_time() - start
    took = medians({"compiled": lambda: function(*arrays)}, ROUNDS)["compiled"]
    _report(out, operation, (made, wanted), (took, slow))


def operation_of(
    path: str | None, text: str | None, python: str | None, shapes: Sequence[str]
) -> Operation:
    """The operation of a file, a text, or a function. Raises: PullbackError, click.UsageError."""
    if path is not None:
        return read(path)
    if python is None:
        return parse(text or "", Path.cwd())
    return from_function(function_named(python), *examples(shapes))


def examples(shapes: Sequence[str]) -> list[Any]:
    """Tensors of ``x{int64}[M, 4]``, symbols as extents. Raises: SyntaxFormError, Misuse."""
    made: list[Any] = []
    for text in shapes:
        one = signature(text, Origin.of_caller())
        extents: list[Any] = []
        for axis in one.axes:
            tree = axis.tree if isinstance(axis, Size) else None
            if isinstance(tree, Number):
                extents.append(int(tree.value))
            elif isinstance(tree, Name):
                extents.append(dim(tree.name, *BOUNDS))
            else:
                raise Misuse(f"--shape: {text}: an extent is a number or a symbol")
        made.append(zeros(tuple(extents), dtype=one.type or "float32"))
    return made


def _report(out: Output, operation: Operation, values: Any, times: tuple[float, float]) -> None:
    """Error and time of each output; ends with exit code 1 where one is wrong."""
    made, wanted = (v if isinstance(v, tuple) else (v,) for v in values)
    wrong = False
    for one, a, b in zip(operation.outputs, made, wanted, strict=True):
        got, want = a.numpy().astype(np.float64), b.numpy().astype(np.float64)
        same = (got == want) | (np.isnan(got) & np.isnan(want))
        error = float(np.max(np.where(same, 0.0, abs(got - want)), initial=0.0))
        size = float(np.max(abs(want), initial=1.0))
        bad = not error <= operation.test.tolerance * size
        wrong |= bad
        out.show(
            f"  {one.name} {list(got.shape)}: largest error {error:.2e}"
            f"{' WRONG' if bad else ''}, {times[0] * 1e3:.3f} ms,"
            f" reference {times[1] * 1e3:.3f} ms of this thread"
        )
        out.tell(output=one.name, error=error, wrong=bad, seconds=times[0], reference=times[1])
    sys.exit(WRONG if wrong else 0)


def numbers(text: str, option: str = "--test") -> dict[str, int]:
    """``"M=100, N=3" -> {"M": 100, "N": 3}``. Raises: Misuse."""
    sizes: dict[str, int] = {}
    for part in filter(str.strip, text.split(",")):
        name, _, value = (p.strip() for p in part.partition("="))
        if not value.isdecimal() or len(value) > 12:
            raise Misuse(f"{option}: {part.strip()!r} is no size: write it like M=100")
        sizes[name] = int(value)
    return sizes


def configured(options: Options, text: str) -> Options:
    """Options with what ``OMP=1,MARCH=native`` says. Raises: Misuse for an unknown key."""
    for part in filter(str.strip, text.split(",")):
        key, _, value = (p.strip() for p in part.partition("="))
        if key in ELSEWHERE:
            raise Misuse(f"--config: {key} is no setting: {ELSEWHERE[key]}")
        if key not in CONFIG:
            near = difflib.get_close_matches(key, CONFIG, 1)
            guess = f" did you mean {near[0]}?" if near else ""
            known = ", ".join(CONFIG)
            raise Misuse(f"--config: unknown key {key!r};{guess} these are known: {known}")
        if not value or (key not in WORDS and not (value.isdecimal() and len(value) < 6)):
            raise Misuse(f"--config: {key}={value!r} is none: {CONFIG[key]}")
        options = _set(options, key, value)
    return options


def _set(options: Options, key: str, value: str) -> Options:
    """Options with one setting. Raises: Misuse, OptionError."""
    match key:
        case "MARCH":
            return replace(options, target=None if value == "native" else value)
        case "SIMD_LEN":
            if int(value) not in LANES:
                raise Misuse(f"--config: SIMD_LEN={value}: {CONFIG[key]}")
            return replace(options, target=LANES[int(value)])
        case "OMP":
            return replace(options, threads=None if value != "0" else 1)
        case "THREADS":
            return replace(options, threads=int(value))
        case "CC":
            os.environ["PULLBACK_CC"] = value
            return options
        case "MEMORY":
            return replace(options, memory=parse_bytes(value))
        case "CACHE":
            return replace(options, cache=None if value == "off" else Path(value))
        case "DUMP":
            return replace(options, dump=Path(value))
        case "MACHINE":
            return replace(options, machine=value)
        case "HOST":
            return replace(options, host=value != "0")
        case "CHECK":
            return replace(options, check=value != "0")
    return replace(options, profile=value != "0")
