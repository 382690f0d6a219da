"""The compiled programs of an operator: tensors of PyTorch in, tensors of PyTorch out.

A call is a look-up by how its arguments lie in memory, and one row of addresses: programs read
strided tensors where they are and write into new ones. Nothing is copied.
"""

from __future__ import annotations

import inspect
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from ctypes import c_char
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pullback.bridge.derived import Derived
from pullback.bridge.layout import memory, placed
from pullback.config import Options
from pullback.errors import LIBRARY, DTypeError, Origin, UnsupportedError
from pullback.ir import dtype as D
from pullback.ir.dtype import DType
from pullback.ir.expr import Dim, Extent
from pullback.ir.graph import Variable
from pullback.ir.program import Feed, Receive, items
from pullback.tensor.entry import Entry
from pullback.tensor.program import Jit
from pullback.tensor.tensor import Tensor
from pullback.tensor.trace import Trace, settled, tracing
from pullback.tensor.tree import flatten

Outline = list[tuple[tuple[Any, ...], Any]]
"""Shape and PyTorch type of each result."""
Symbols = dict[str, tuple[Dim, Any]]
"""Symbolic sizes by what PyTorch calls them."""

TYPES: dict[Any, DType] = {
    kind: d for d in D.ALL if (kind := getattr(torch, d.name, None)) is not None
}
KINDS = {d: kind for kind, d in TYPES.items()}
_TORCH = str(Path(torch.__file__).parent)
MOST = 1 << 20  # of a symbolic extent, while shapes are worked out
_like = torch.empty_like
_Given = torch.Tensor


class Ready:
    """A program with what a call needs: how to run it, what the results are like."""

    __slots__ = ("_results", "_tensors", "entry", "go")

    def __init__(self, entry: Entry, tensors: Sequence[int]) -> None:
        self.entry = entry
        self._tensors = tensors
        # one element each: an empty tensor like them is made fastest
        self._results = [
            torch.empty((), dtype=KINDS[v.dtype]).expand(v.shape) for v in entry.outputs
        ]
        self.go: Callable[[list[int]], None] = entry.executable.runner.go or self._interpreted

    def run(self, args: Sequence[Any]) -> Any:
        """The results: new tensors, in row-major order."""
        results = [_like(r, memory_format=_ROWS) for r in self._results]
        given = [args[n].data_ptr() for n in self._tensors]
        if self.entry.read:
            captured = settled(self.entry.read)
            given += [v.at for v in captured]
        given += [r.data_ptr() for r in results]
        self.go(given)
        return results[0] if len(results) == 1 else tuple(results)

    def _interpreted(self, given: list[int]) -> None:
        """Run where the program wants arrays: on the reference backend."""
        state = self.entry.executable.program.state
        pairs = zip(state, given, strict=True)
        self.entry.executable.run({v: _array(v, at) for v, at in pairs})


_ROWS = torch.contiguous_format


class Programs:
    """Programs by types, shapes, strides and static arguments; `defaults` by place."""

    def __init__(
        self, function: Derived, defaults: Mapping[int, Any], options: Options | None
    ) -> None:
        self.function = function
        self.jit = Jit(_over_memory(function), options=options)
        self._defaults = [defaults.get(n) for n in range(len(function.signature.parameters))]
        self._count = len(self._defaults)
        self._known: dict[Any, Ready] = {}
        self._all: dict[Any, list[Ready]] = {}
        self._outlines: dict[Any, Outline] = {}

    def __call__(self, *args: Any) -> Any:
        """Run on tensors of this processor's memory."""
        if len(args) != self._count:
            args = self.filled(args)
        key = tuple(
            [(a.dtype, a.shape, a.stride()) if isinstance(a, _Given) else _static(a) for a in args]
        )
        ready = self._known.get(key)
        if ready is None or (ready.entry.flags and not ready.entry.fits()):
            ready = self._found(key, args)
        return ready.run(args)

    def filled(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """With the defaults at the end, which PyTorch leaves out."""
        return (*args, *self._defaults[len(args) :])

    def _found(self, key: Any, args: Sequence[Any]) -> Ready:
        with self.jit.lock:
            known = self._all.setdefault(key, [])
            ready = next((r for r in known if r.entry.fits()), None)
            if ready is None:
                ready = self._compiled(args)
                known.append(ready)
            self._known[key] = ready
            return ready

    def _compiled(self, args: Sequence[Any]) -> Ready:
        """Raises: UnsupportedError for a function that does more than give results."""
        tensors = [n for n, a in enumerate(args) if isinstance(a, _Given)]
        places = [(tuple(args[n].shape), tuple(args[n].stride())) for n in tensors]
        boxes = [memory(*place) for place in places]
        kinds = [kind_of(args[n]) for n in tensors]
        whole = list(args)
        for n, box, kind in zip(tensors, boxes, kinds, strict=True):
            whole[n] = Tensor(Variable(self.function.signature.parameters[n].name, box, kind))
        lying = dict(zip(tensors, places, strict=True))
        layouts = tuple([lying.get(n) for n in range(len(args))])
        given = flatten(((layouts, *whole), {}))
        entry = self.jit.trace(given, boxes)
        self.jit.last = entry
        self._refuse(entry)
        return Ready(entry, tensors)

    def _refuse(self, entry: Entry) -> None:
        name = self.function.name
        if entry.written:
            found = ", ".join(f"`{c._value.name}`" for c in entry.written)
            raise UnsupportedError(
                f"`{name}` assigns {found}: an operator of PyTorch has no state",
                origin=caller(),
                help="pass what it needs as an argument (random numbers: a key), return the rest",
            )
        if any(isinstance(i, Feed | Receive) for i in items(entry.executable.program.body)):
            what = f"`{name}` feeds or receives: an operator of PyTorch does not"
            raise UnsupportedError(what, origin=caller())

    def outline(self, args: tuple[Any, ...]) -> Outline:
        """What the results will be like; sizes stay symbolic where the function allows it."""
        args = self.filled(args)
        kept = sizes = _symbols(args)
        if not self._shapes(args, kept):
            kept = {n: s for n, s in sizes.items() if self._shapes(args, {n: s})}
            kept = kept if self._shapes(args, kept) else {}
        found = self._traced(args, lambda size: _extent(size, kept, int))
        back: dict[Extent, Any] = dict(kept.values())
        return [(tuple([back.get(e, e) for e in shape]), kind) for shape, kind in found]

    def _shapes(self, args: tuple[Any, ...], kept: Symbols) -> bool:
        """Whether shapes can be worked out with these sizes symbolic, the others as they happen
        to be. A function of the user may want numbers, and say so in any way.
        """
        if not kept:
            return True
        try:
            self._traced(args, lambda size: _extent(size, kept, lambda s: int(s.node.hint)))
        except Exception:
            return False
        return True

    def _traced(self, args: Sequence[Any], extent: Callable[[Any], Extent]) -> Outline:
        """Shapes and types, from a trace that is thrown away."""
        shapes = [tuple(map(extent, a.shape)) if isinstance(a, _Given) else None for a in args]
        kinds = [kind_of(a) if isinstance(a, _Given) else _static(a) for a in args]
        key = (*shapes, *kinds)
        found = self._outlines.get(key)
        if found is not None:
            return found
        trace = Trace()
        with tracing(trace):
            given = [
                a if shape is None else Tensor(trace.fresh("argument", shape, kind))
                for a, shape, kind in zip(args, shapes, kinds, strict=True)
            ]
            results = self.function.call(*given)
            found = [(r.shape, KINDS[r.dtype]) for r in results]
        self._outlines[key] = found
        return found


def _over_memory(function: Derived) -> Callable[..., Any]:
    """The function of variables over the memory of its arguments."""

    def traced(layouts: Sequence[Any], *args: Any) -> Any:
        pairs = zip(args, layouts, strict=True)
        whole = [a if lies is None else Tensor(placed(a.value, *lies)) for a, lies in pairs]
        return function.call(*whole)

    names = ["layouts", *(p.name for p in function.signature.parameters)]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    told = inspect.Signature([inspect.Parameter(n, kind) for n in names])
    setattr(traced, "__signature__", told)  # noqa: B010  # functions have none that mypy knows
    traced.__name__ = function.name
    return traced


def caller() -> Origin:
    """The innermost frame that is neither PyTorch's nor of this library."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((LIBRARY, _TORCH)):
        frame = frame.f_back
    return Origin(frame.f_code, frame.f_lasti)


def kind_of(tensor: Any) -> DType:
    """The element type. Raises: DTypeError for one that is not here."""
    found = TYPES.get(tensor.dtype)
    if found is None:
        known = ", ".join(str(kind) for kind in TYPES)
        raise DTypeError(
            f"a tensor of {tensor.dtype}", origin=caller(), help=f"one of {known}", code="E140"
        )
    return found


def _static(argument: Any) -> Any:
    """As a key: 0.0 and -0.0 are two, a NaN is one."""
    return argument.hex() if type(argument) is float else argument


def _symbols(args: Sequence[Any]) -> Symbols:
    """The symbolic sizes of tensors; equal ones are one extent."""
    found: Symbols = {}
    for size in (s for a in args if isinstance(a, _Given) for s in a.shape):
        if not isinstance(size, int):
            found.setdefault(str(size), (Dim(f"s{len(found)}", 2, MOST), size))
    return found


def _extent(size: Any, kept: Symbols, number: Callable[[Any], int]) -> Extent:
    """A size as the trace has it."""
    if isinstance(size, int):
        return size
    return kept[str(size)][0] if str(size) in kept else number(size)


def _array(variable: Variable, at: int) -> np.ndarray[Any, Any]:
    """An array over the memory of a tensor."""
    shape = tuple([int(e) for e in variable.shape if isinstance(e, int)])
    size = math.prod(shape) * variable.dtype.itemsize
    raw: Any = (c_char * size).from_address(at) if size else b""
    return np.ndarray(shape, variable.dtype.numpy, raw)
