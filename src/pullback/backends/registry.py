"""Backends by name: those of this package, of other packages, of a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache, partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from pullback.backends import base
from pullback.backends.base import Backend, Compiler, GraphInterpreter, KernelInterpreter, Text
from pullback.backends.loops.backend import Loops
from pullback.config import BACKEND, installed, module_of
from pullback.errors import UnsupportedError
from pullback.ir.graph import Graph, Value, Variable

GROUP = "pullback.backends"
ORACLE = "reference"
# Those of this package: a module and a class, imported when they are asked for.
OWN = {
    "llvm": "llvm.backend.LLVM", "c": "c.backend.C", "opencl": "opencl.backend.OpenCL",
    "nvptx": "nvptx.backend.NVPTX", "triton": "triton.backend.Triton",
    "triton-cuda": "triton.launched.TritonCuda", "reference": "reference.backend.Reference",
    "kernels": "reference.backend.Kernels",
}  # fmt: skip
GPU = "gpu"  # what launches on a device: Triton's kernels where Triton is, else those of LLVM
# What each protocol asks for, by what tells it from the others.
PROTOCOLS = {
    "compile": (Compiler, ("name", *(n for n in dir(Compiler) if not n.startswith("_")))),
    "run_graph": (GraphInterpreter, ("name",)),
    "run_kernel": (KernelInterpreter, ("name", "machine")),
}


def names() -> list[str]:
    """Every backend that is installed."""
    return list(dict.fromkeys([*OWN, GPU, *(p.name for p in installed(GROUP))]))


def named(name: str) -> Backend:
    """The backend of this name; a path to a Python file is one, too.

    Raises: UnsupportedError for one that is not there, that fails to load or is no backend.
    """
    name = str(name)
    if name == GPU:
        name = "nvptx" if find_spec("triton") is None else "triton-cuda"
    if name in OWN:
        return _own(OWN[name])
    return _of_file(*_version(Path(name))) if name.endswith(".py") else _foreign(name)


def compiler(name: str) -> Compiler:
    """The compiler of this name. Raises: UnsupportedError for an interpreter, too."""
    backend = named(name)
    if isinstance(backend, Compiler):
        return backend
    raise UnsupportedError(f"backend {name!r} interprets: it makes no code", code="E313")


def by_nests() -> dict[str, Loops]:
    """Those of this package that go by way of loop nests."""
    return {name: backend for name in OWN if isinstance(backend := named(name), Loops)}


def of_nests(name: str) -> Loops:
    """The backend of this name that makes code of loop nests. Raises: UnsupportedError."""
    backend = named(name)
    if isinstance(backend, Loops):
        return backend
    raise UnsupportedError(f"backend {name!r} does not go by way of loop nests", code="E313")


def texts() -> Mapping[str, Text]:
    """What the backends of this package show of a kernel; of equal names the first one's."""
    every = map(named, OWN)
    pairs = [p for b in every if isinstance(b, base.Explained) for p in b.texts().items()]
    return dict(pairs) | dict(reversed(pairs))


def oracle(wanted: Sequence[Value], values: Mapping[Variable, Any]) -> list[np.ndarray[Any, Any]]:
    """The arrays of `wanted`, in order, by the interpreter that backends are held to.

    Raises: IndexRangeError.
    """
    interpreter = named(ORACLE)
    assert isinstance(interpreter, GraphInterpreter), "it runs definitions"
    targets = [Variable(v.name, v.shape, v.dtype) for v in wanted]
    made = interpreter.run_graph(Graph(tuple(zip(targets, wanted, strict=True))), values)
    return [made[target] for target in targets]


@cache
def _own(place: str) -> Backend:
    """A backend of this package, one for all of its names."""
    module, _, kind = place.rpartition(".")
    return _checked(kind, getattr(import_module(f"{base.__package__}.{module}"), kind))


@cache
def _foreign(name: str) -> Backend:
    """A backend of another package."""
    for point in installed(GROUP):
        if point.name == name:
            return _checked(name, _loaded(f"{point.name!r} of {point.value}", point.load))
    known = names()
    close = get_close_matches(name, known, 1)
    meant = f"did you mean {close[0]!r}? " if close else ""
    help = f"{meant}use one of {', '.join(known)}, or the path of a Python file"
    raise UnsupportedError(f"no backend {name!r}", help=help, code="E313")


def _version(path: Path) -> tuple[Path, int]:
    """A file, and when it was changed: a name may stand for another one later."""
    try:
        return path.resolve(), path.stat().st_mtime_ns
    except OSError as error:
        what = f"no backend {str(path)!r}"
        raise UnsupportedError(what, help=f"{error.strerror}", code="E313") from error


@cache
def _of_file(path: Path, changed: int) -> Backend:
    """What a file calls `backend`."""
    module = _loaded(str(path), partial(module_of, path))
    if not hasattr(module, "backend"):
        help = "name an object `backend` in it: backends/base.py says what it has"
        raise UnsupportedError(f"{path} has no `backend`", help=help, code="E313")
    return _checked(str(path), module.backend)


def _loaded(what: str, load: Callable[[], Any]) -> Any:
    try:
        return load()
    except Exception as error:
        said = f"backend {what} fails to import: {type(error).__name__}: {error}"
        raise UnsupportedError(said, code="E313") from error


def _checked(name: str, backend: Any) -> Backend:
    """An object, or the class of one, that keeps one of the protocols."""
    made = _loaded(repr(name), backend) if isinstance(backend, type) else backend
    if isinstance(made, Compiler | GraphInterpreter | KernelInterpreter):
        return made
    what = f"backend {name!r} is {type(made).__name__}"
    wants = f"an object with `name` and one of {', '.join(PROTOCOLS)}: backends/base.py"
    for method, (protocol, needs) in PROTOCOLS.items():
        if hasattr(made, method):
            lacks = ", ".join(n for n in needs if not hasattr(made, n))
            what = f"backend {name!r} has `{method}` and lacks {lacks}"
            wants = f"derive its class from backends.base.{protocol.__name__}"
    raise UnsupportedError(what, help=wants, code="E313")


named(BACKEND)  # what nearly every process compiles by; the others wait until they are asked for
