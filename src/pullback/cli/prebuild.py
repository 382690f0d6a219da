"""`pullback prebuild`: what files need to run, compiled before they do."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import numpy as np

import pullback as pb
from pullback.backends.base import Compiler
from pullback.backends.host.pool import Loader
from pullback.backends.registry import named
from pullback.cli.command import Misuse, Output, command
from pullback.cli.compile_file import numbers
from pullback.cli.programs import environment, programs_of
from pullback.cli.settings import RunError
from pullback.config import Options
from pullback.errors import MALFORMED, StateError, UnsupportedError
from pullback.operations import Operation, read
from pullback.operations.drawn import drawn
from pullback.runtime.cache import ObjectCache
from pullback.tensor.derive.autograd import grad
from pullback.tensor.run.program import jit

CACHE, BACKEND = "PULLBACK_CACHE", "PULLBACK_BACKEND"
CONFIG = "config.json"  # of a folder that holds a model
RANK = "~"
EXAMPLE = """\
pullback prebuild ops/ models/
pullback prebuild ops/gemm.toml --test "M=64,N=64,K=64" --test "M=1,N=64,K=64" --grad
pullback prebuild train.py model.onnx --test batch=8 -o code/
PULLBACK_CACHE=code/ python train.py"""

Sizes = Mapping[str, int]


@dataclass(slots=True)
class Asked:
    """Sets of sizes, whether derivatives are wanted, and the names of sizes that had a use."""

    sizes: Sequence[Sizes]
    grad: bool
    used: set[str] = field(default_factory=set)

    def of(self, sizes: Sizes, known: Sequence[str]) -> dict[str, int]:
        """Those of a set that a file knows."""
        own = {
            n: v for n, v in sizes.items() if n in known or (n.startswith("_") and RANK in known)
        }
        self.used |= own.keys()
        return own


Work = Callable[[Asked], None]


@command(example=EXAMPLE)
@click.argument("paths", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("-o", "--out", "folder", type=click.Path(path_type=Path), help="not into the cache")
@click.option("-t", "--test", "tests", multiple=True, metavar="M=..,N=..", help="sizes; repeatable")
@click.option("-r", "--backend", "--runtime", "backend", metavar="NAME", help="what compiles it")
@click.option("--grad", is_flag=True, help="adjoints of operations too")
def prebuild(
    out: Output,
    paths: tuple[Path, ...],
    folder: Path | None,
    tests: tuple[str, ...],
    backend: str | None,
    grad: bool,
) -> None:
    """Compile what PATHS need to run, so that their first run compiles nothing.

    A path is an operation.toml, a script.py (which runs), a model.onnx or .gguf, a folder with a
    model's config.json and safetensors, or a folder of these. Operations are compiled for the sizes
    of their [test], or those of each --test; models of Hugging Face for --test batch=..,tokens=..

    Code goes into the cache, or into the folder of -o, which PULLBACK_CACHE names later.
    """
    asked = Asked([numbers(t) for t in tests] or [{}], grad)
    work = [(file, _work(file)) for path in paths for file in _files(path)]
    fresh = folder is not None and not folder.exists()
    with environment({CACHE: None if folder is None else str(folder.absolute()), BACKEND: backend}):
        store = _store()
        try:
            first = _made(out, store, "the machine of programs", lambda _: _machine(store), asked)
            count = first + sum(_made(out, store, str(f), run, asked) for f, run in work)
            unused = {n for sizes in asked.sizes for n in sizes} - asked.used
            if unused:
                raise Misuse(f"--test: none of these files has a size {', '.join(sorted(unused))}")
        except BaseException:
            if fresh:
                shutil.rmtree(store.folder)
            raise
    where = "the cache" if folder is None else f"{folder}: {CACHE}={folder} has them run by it"
    files = "1 file" if len(work) == 1 else f"{len(work)} files"
    out.show(f"{files}, {count} objects of code and records into {where}")
    out.tell(files=len(work), objects=count, folder=str(store.folder))


def _store() -> ObjectCache:
    """Where code goes. Raises: Misuse where that is nowhere."""
    options = Options.from_environment()
    if options.cache is None:
        raise Misuse("the cache is off (PULLBACK_CACHE=off): -o gives a folder")
    if not isinstance(named(options.backend), Compiler):
        what = f"backend {options.backend!r} interprets programs: there is nothing to compile ahead"
        raise RunError(what, code="E531")
    return ObjectCache(options.cache)


def _machine(store: ObjectCache) -> None:
    """What runs any program; that of this process may have come out of another folder."""
    Loader().get(store)


def _made(out: Output, store: ObjectCache, file: str, work: Work, asked: Asked) -> int:
    """Run what compiles a file's programs; how many objects that made."""
    before = {e.key for e in store.entries()}
    running = out.running(file) if file.endswith(".py") else out.working(f"compiling {file}")
    with running:
        work(asked)
    new = [e for e in store.entries() if e.key not in before]
    size = sum(e.bytes for e in new)
    out.show(f"{file}: {len(new)} made, {size:,} bytes" if new else f"{file}: all there")
    out.tell(file=file, made=len(new), bytes=size)
    return len(new)


def _files(path: Path) -> list[Path]:
    """What a path stands for. Raises: StateError."""
    if not path.is_dir() or (path / CONFIG).is_file():
        return [path]
    inside = [p for p in sorted(path.iterdir()) if p.suffix in KINDS or (p / CONFIG).is_file()]
    if not inside:
        what = f"{path} holds nothing that can be compiled ahead"
        raise RunError(what, help=f"files of {', '.join(KINDS)}, or {CONFIG}", code="E530")
    return inside


def _work(path: Path) -> Work:
    """What compiles a file; a file of an operation is read already. Raises: RunError."""
    if path.suffix not in KINDS and (path / CONFIG).is_file():
        return lambda asked: _folder(path, asked)
    if path.suffix not in KINDS or not path.is_file():
        what = f"{path} is no file of {', '.join(KINDS)}" if path.exists() else f"{path}: no file"
        raise RunError(what, help=f"or a folder with {CONFIG}", code="E530")
    return KINDS[path.suffix](path)


def _operation(path: Path) -> Work:
    operation = read(path)

    def run(asked: Asked) -> None:
        for sizes in asked.sizes:
            _tried(operation, sizes, asked)

    return run


def _tried(operation: Operation, sizes: Sizes, asked: Asked) -> None:
    """As a jitted function, and as tensors are computed without one; with derivatives, both."""
    own = asked.of(sizes, [*operation.symbols, RANK])
    arrays, given = drawn(operation, own, np.random.default_rng(0))
    made = jit(lambda *stored: operation.of_stored(*stored, **given))(*arrays)
    for y in _several(operation.of_stored(*arrays, **given)):
        y.numpy()
    heads = [y.numpy() for y in _several(made) if y.dtype.is_float]
    floats = [n for n, a in enumerate(arrays) if a.dtype.kind == "f"]
    if not asked.grad or not floats or not heads:
        return

    def adjoints(given_heads: list[Any], *stored: Any) -> Any:
        every = _several(operation.of_stored(*stored, **given))
        results = [y for y in every if y.dtype.is_float]
        total = sum((y * h).sum() for y, h in zip(results, given_heads, strict=True))
        return grad(total, [stored[n] for n in floats])

    jit(adjoints)(heads, *arrays)


def _several(made: Any) -> tuple[Any, ...]:
    return made if isinstance(made, tuple) else (made,)


def _script(path: Path) -> Work:
    def run(_: Asked) -> None:
        programs_of(path)

    return run


def _onnx(path: Path) -> Work:
    def run(asked: Asked) -> None:
        model = pb.onnx.load(path)
        names = [e for port in model.inputs for e in port.shape or () if isinstance(e, str)]
        for sizes in asked.sizes:
            own = asked.of(sizes, names)
            given = {p.name: _zeros(path, p, own) for p in model.inputs}
            model.run(given)

    return run


def _zeros(path: Path, port: Any, sizes: Sizes) -> Any:
    """Raises: ShapeError for a size that nobody says."""
    for size in port.shape or ():
        if not isinstance(size, int) and size not in sizes:
            what = f"{path}: nothing says what {size} of `{port.name}` is"
            raise RunError(what, help=f"--test {size or 'N'}=..", code="E532")
    return np.zeros([sizes.get(e, e) for e in port.shape or ()], str(port.kind))


def _gguf(path: Path) -> Work:
    def run(_: Asked) -> None:
        decoder = pb.gguf.model(path)
        decoder.next([0])
        if decoder.places > 2:
            decoder.next([0, 0])

    return run


def _folder(path: Path, asked: Asked) -> None:
    """Raises: UnsupportedError, StateError, as the model does; ShapeError for no sizes."""
    loaders: dict[Any, Callable[..., Any]] = {
        "gpt2": pb.models.load_gpt2, "llama": pb.models.load_llama, "bert": pb.models.load_bert,
    }  # fmt: skip
    kind = _model_type(path)
    if kind not in loaders:
        what = f"{path} is of the model type {kind!r:.60}"
        raise UnsupportedError(what, help=f"known are {', '.join(loaders)}", code="E586")
    module = loaders[kind](path)
    for sizes in asked.sizes:
        own = asked.of(sizes, ["batch", "tokens"])
        if len(own) < 2:
            what = f"{path}: nothing says how many texts of how many tokens it reads"
            raise RunError(what, help='--test "batch=1,tokens=16"', code="E532")
        jit(module)(np.zeros((own["batch"], own["tokens"]), np.int64))


def _model_type(path: Path) -> str:
    """Raises: StateError for a configuration that cannot be read."""
    try:
        facts = json.loads((path / CONFIG).read_bytes())
    except (OSError, *MALFORMED) as error:
        raise StateError(f"{path / CONFIG} cannot be read: {error}", code="E586") from error
    return str(facts.get("model_type")) if isinstance(facts, dict) else "nothing"


KINDS: dict[str, Callable[[Path], Work]] = {
    ".toml": _operation, ".py": _script, ".onnx": _onnx, ".gguf": _gguf,
}  # fmt: skip
