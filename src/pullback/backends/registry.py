"""Backends by name: those of this package, of other packages, of a file."""

from __future__ import annotations

import importlib.util
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from pullback.backends.base import Backend, Compiler, GraphInterpreter, KernelInterpreter
from pullback.backends.c.backend import C
from pullback.backends.llvm.backend import LLVM
from pullback.backends.opencl.backend import OpenCL
from pullback.backends.reference.backend import Kernels, Reference
from pullback.errors import UnsupportedError

GROUP = "pullback.backends"
OWN: dict[str, Backend] = {b.name: b for b in (LLVM(), C(), OpenCL(), Reference(), Kernels())}


def names() -> list[str]:
    """Every backend that is installed."""
    return list(dict.fromkeys([*OWN, *(p.name for p in entry_points(group=GROUP))]))


def named(name: str) -> Backend:
    """The backend of this name; a path to a Python file is one, too.

    Raises: UnsupportedError for one that is not there, that fails to load or is no backend.
    """
    return OWN.get(name) or _foreign(str(name))


@cache
def _foreign(name: str) -> Backend:
    """A backend of another package or of a file."""
    if name.endswith(".py"):
        return _checked(name, _of_file(Path(name)))
    for point in entry_points(group=GROUP):
        if point.name == name:
            try:
                return _checked(name, point.load())
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
                what = f"backend {name!r} of {point.value} fails to import: {said}"
                raise UnsupportedError(what, code="E313") from error
    known = ", ".join(names())
    raise UnsupportedError(f"no backend {name!r}", help=f"use one of {known}", code="E313")


def _of_file(path: Path) -> Any:
    """What a file calls `backend`."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise UnsupportedError(f"no backend {str(path)!r}", help="no such file", code="E313")
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        what = f"backend {path} fails to import: {type(error).__name__}: {error}"
        raise UnsupportedError(what, code="E313") from error
    return getattr(module, "backend", None)


def _checked(name: str, backend: Any) -> Backend:
    """An object, or the class of one, that keeps one of the protocols."""
    made = backend() if isinstance(backend, type) else backend
    if isinstance(made, Compiler | GraphInterpreter | KernelInterpreter):
        return made
    what = f"backend {name!r} is {type(made).__name__}"
    wants = "an object with `name` and `compile`, `compute` or `launch`: backends/base.py"
    raise UnsupportedError(what, help=wants, code="E313")
