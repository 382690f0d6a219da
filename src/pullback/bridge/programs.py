"""The compiled programs of an operator: tensors of PyTorch in, tensors of PyTorch out.

A call is a look-up by how its arguments lie in memory, and one row of addresses: programs read
strided tensors where they are and write into new ones. Nothing is copied, but where a symbolic axis
lies behind another (`lying.py`).
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

import numpy as np
import torch

from pullback.backends.host.system import array_at
from pullback.bridge import device
from pullback.bridge.derived import Derived
from pullback.bridge.layout import apart, memory, placed
from pullback.bridge.lying import Axes, Lying, actual, led, out, room
from pullback.bridge.record import RECORD
from pullback.config import Options
from pullback.errors import LIBRARY, DTypeError, Origin, UnsupportedError
from pullback.ir import dtype as D
from pullback.ir.dtype import DType
from pullback.ir.expr import Dim, Extent
from pullback.ir.graph import Value, Variable
from pullback.ir.program import Feed, Receive, items
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.face.tree import flatten
from pullback.tensor.library.ops import permute_dims, reshape
from pullback.tensor.record.away import CUDA
from pullback.tensor.record.trace import Trace, current, settled, tracing
from pullback.tensor.run.entry import Entry
from pullback.tensor.run.program import Jit

Outline = list[tuple[tuple[Any, ...], Any]]
"""Shape and PyTorch type of each result."""
Dims = Sequence[Axes]
"""The symbolic axes of arguments, by place."""
DimsOf = Callable[[Sequence[Any]], Dims]
"""Those of the arguments of a call."""
Sizes = Mapping[Dim, int]
Symbols = dict[str, tuple[Dim, Any]]
"""Symbolic sizes by what PyTorch calls them."""

TYPES: dict[Any, DType] = {
    kind: d for d in D.ALL if (kind := getattr(torch, d.name, None)) is not None
}
KINDS = {d: kind for kind, d in TYPES.items()}
_TORCH = str(Path(torch.__file__).parent)
CPU = torch.device("cpu")
PLACES = CPU.type, CUDA  # where programs run
MOST = 1 << 20  # of a symbolic extent, while shapes are worked out
_like = torch.empty_like
_Given = torch.Tensor
_address = torch.Tensor.data_ptr


class Ready:
    """A program with what a call needs: how to run it, what the results are like."""

    __slots__ = (
        "_apart",
        "_copied",
        "_dense",
        "_named",
        "_plain",
        "_results",
        "_sizes",
        "_tensors",
        "entry",
        "go",
    )
    AWAY = False  # whether what runs it takes tensors of a device

    def __init__(
        self,
        entry: Entry,
        tensors: Sequence[int],
        count: int,
        sizes: Sizes | None = None,
        lying: Mapping[int, Lying] | None = None,
    ) -> None:
        self.entry = entry
        self._tensors = tensors
        self._plain = list(tensors) == list(range(count))  # each argument is a tensor
        named = self._named = {dim.name: size for dim, size in (sizes or {}).items()}
        self._sizes = [named[name] for name in entry.executable.runner.sizes]
        # one element each: an empty tensor like them is made fastest
        self._results = [
            torch.empty((), dtype=KINDS[v.dtype]).expand(actual(v.shape, named))
            for v in entry.outputs
        ]
        self.go: Callable[[list[int]], None] = entry.executable.runner.go or self._interpreted
        self._dense = entry.executable.runner.go is None and not self.AWAY
        places = lying or {}
        self._copied = {n: lies for n, lies in places.items() if lies.copied or self._dense}
        self._apart = bool(self._copied) or not all(led(v.shape) for v in entry.outputs)

    def run(self, args: Sequence[Any]) -> Any:
        """The results: new tensors, in row-major order."""
        if self._apart:
            results = self._copying(args)
        else:
            results = [_like(r, memory_format=_ROWS) for r in self._results]
            self.fill(args, results)
        return results[0] if len(results) == 1 else tuple(results)

    def _copying(self, args: Sequence[Any]) -> list[Any]:
        """The results, of arguments and by way of memory that the program has for them."""
        given = list(args)
        for n, lies in self._copied.items():
            given[n] = lies.passed(args[n], self._named, self._dense)
        outputs = self.entry.outputs
        rooms = [room(v.shape, KINDS[v.dtype], self._named, self._dense) for v in outputs]
        self.fill(given, rooms)
        return [out(r, v.shape, self._named) for r, v in zip(rooms, outputs, strict=True)]

    def fill(self, args: Sequence[Any], results: Sequence[Any]) -> None:
        """The results, into tensors that are as they will be."""
        tensors = args if self._plain else [args[n] for n in self._tensors]
        try:
            given = list(map(_address, tensors))
        except RuntimeError as error:  # of a layout that PyTorch does not tell a compiler
            raise _without_memory(args, self._tensors) from error
        if self.entry.read:
            captured = settled(self.entry.read)
            given += [v.at for v in captured]
        given += map(_address, results)
        given += self._sizes
        self.go(given)

    def _interpreted(self, given: list[int]) -> None:
        """Run where the program wants arrays: on the reference backend."""
        state = self.entry.executable.program.state
        pairs = zip(state, given, strict=True)
        self.entry.executable.run({v: array(v, at, self._named) for v, at in pairs})


_ROWS = torch.contiguous_format


class Launched(Ready):
    """A program of a device on tensors that lie there, in the order of PyTorch's current stream.

    What does not lie as the program has it is copied on the device.
    """

    __slots__ = ()
    AWAY = True

    def run(self, args: Sequence[Any]) -> Any:
        """The results: new tensors of PyTorch's allocator, in row-major order."""
        given = list(args)
        for n, lies in self._copied.items():
            given[n] = lies.rows(args[n], self._named).contiguous()
        place = torch.device(self.entry.executable.options.target)
        results = [device.made_on(place, r.shape, r.dtype) for r in self._results]
        self.fill(given, results)
        return results[0] if len(results) == 1 else tuple(results)

    def fill(self, args: Sequence[Any], results: Sequence[Any]) -> None:
        """The results, into tensors that are as they will be."""
        device.launch(self.entry, [args[n] for n in self._tensors], results, self._named)


def _without_memory(args: Sequence[Any], tensors: Sequence[int]) -> UnsupportedError:
    layouts = {str(args[n].layout) for n in tensors if args[n].layout != torch.strided}
    what = f"a tensor of layout {', '.join(sorted(layouts)) or 'unknown'}: programs read memory"
    return UnsupportedError(what, origin=caller(), help=".to_dense()", code="E387")


class Programs:
    """Programs by types, shapes, strides and static arguments; `defaults` by place.

    `dims`: the symbolic axes of tensors, for all sizes of which one program serves. `writes`:
    results that are written into the memory of an argument, which they fill, and by which place.
    `place`: the device where the tensors lie.
    """

    def __init__(
        self,
        function: Derived,
        defaults: Mapping[int, Any],
        options: Options | None,
        dims: DimsOf,
        writes: Mapping[int, int] | None = None,
        place: torch.device = CPU,
    ) -> None:
        self.function, self.place = function, place
        self.dims = dims
        own = options if place == CPU else device.placed_on(place, options)
        self.jit = Jit(over_memory(function, writes or {}), options=own)
        self.defaults = defaults
        self._defaults = [defaults.get(n) for n in range(len(function.signature.parameters))]
        self._count = len(self._defaults)
        self._known: dict[Any, Ready] = {}
        self._all: dict[Any, list[Entry]] = {}
        self._outlines: dict[Any, Outline] = {}

    def __call__(self, *args: Any) -> Any:
        """Run on tensors of its device."""
        if len(args) != self._count:
            args = self.filled(args)
        key = tuple(
            [(a.dtype, a.shape, a.stride()) if isinstance(a, _Given) else static(a) for a in args]
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
            opened = self.opened(args)
            lying = {n: Lying.of(args[n], axes) for n, axes in opened.items()}
            sizes = {dim: args[n].shape[a] for n, axes in opened.items() for a, dim in axes.items()}
            whole = tuple([(k[0], lying[n]) if n in lying else k for n, k in enumerate(key)])
            known = self._all.setdefault(whole, [])
            entry = next((e for e in known if e.fits()), None)
            if entry is None:
                entry = self._compiled(args, lying)
                known.append(entry)
            tensors = [n for n, a in enumerate(args) if isinstance(a, _Given)]
            kind = Ready if self.place == CPU else Launched
            ready = self._known[key] = kind(entry, tensors, len(args), sizes, lying)
            return ready

    def opened(self, args: Sequence[Any]) -> dict[int, Axes]:
        """The tensors that have symbolic axes: what shares an extent has one size, within its
        bounds. Else all that share it have sizes of their own.
        """
        symbolic = {
            n: {axis % a.ndim: dim for axis, dim in axes.items() if -a.ndim <= axis < a.ndim}
            for n, (axes, a) in enumerate(zip(self.dims(args), args, strict=True))
            if isinstance(a, _Given) and axes
        }
        sizes: dict[Dim, set[int]] = {}
        for n, axes in symbolic.items():
            for axis, dim in axes.items():
                sizes.setdefault(dim, set()).add(args[n].shape[axis])
        good = {d for d, own in sizes.items() if len(own) == 1 and d.lo <= min(own) <= d.hi}
        fitting = {
            n: {axis: dim for axis, dim in axes.items() if dim in good}
            for n, axes in symbolic.items()
        }
        return {n: axes for n, axes in fitting.items() if axes}

    def leads(self, args: Sequence[Any]) -> Dims:
        """The symbolic axes of the results for such arguments."""
        opened = self.opened(args)
        if not opened:
            return ({},) * self.function.signature.outputs
        every = [(a, opened.get(n, {})) for n, a in enumerate(args)]
        shapes = [
            tuple([axes.get(d, size) for d, size in enumerate(a.shape)])
            if isinstance(a, _Given)
            else None
            for a, axes in every
        ]
        results = self._traced(args, shapes)
        return [{d: e for d, e in enumerate(shape) if isinstance(e, Dim)} for shape, _ in results]

    def _compiled(self, args: Sequence[Any], lying: Mapping[int, Lying]) -> Entry:
        """Raises: UnsupportedError for a function that does more than give results."""
        tensors = [n for n, a in enumerate(args) if isinstance(a, _Given)]
        places = {n: (tuple(args[n].shape), tuple(args[n].stride())) for n in tensors}
        layouts = [lying.get(n, places.get(n)) for n in range(len(args))]
        boxes = [lying[n].box if n in lying else memory(*places[n]) for n in tensors]
        kinds = [kind_of(args[n]) for n in tensors]
        whole = list(args)
        for n, box, kind in zip(tensors, boxes, kinds, strict=True):
            whole[n] = Tensor(Variable(self.function.signature.parameters[n].name, box, kind))
        given = flatten(((tuple(layouts), *whole), {}))
        entry = self.jit.trace(given, boxes)
        RECORD.compiled(entry.executable)
        self.jit.last = entry
        self._refuse(entry)
        return entry

    def _refuse(self, entry: Entry) -> None:
        name = self.function.name
        if entry.written:
            assigned = ", ".join(f"`{c._value.name}`" for c in entry.written)
            raise UnsupportedError(
                f"`{name}` assigns {assigned}: an operator of PyTorch has no state",
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
        outlined = self._traced(args, _sized(args, lambda size: _extent(size, kept, int)))
        back: dict[Extent, Any] = dict(kept.values())
        return [(tuple([back.get(e, e) for e in shape]), kind) for shape, kind in outlined]

    def _shapes(self, args: tuple[Any, ...], kept: Symbols) -> bool:
        """Whether shapes can be worked out with these sizes symbolic, the others as they happen
        to be. A function of the user may want numbers, and say so in any way.
        """
        if not kept:
            return True
        try:
            hinted = _sized(args, lambda size: _extent(size, kept, lambda s: int(s.node.hint)))
            self._traced(args, hinted)
        except Exception:
            return False
        return True

    def _traced(self, args: Sequence[Any], shapes: Sequence[Any]) -> Outline:
        """Shapes and types of the results, from a trace that is thrown away."""
        kinds = [kind_of(a) if isinstance(a, _Given) else static(a) for a in args]
        key = (*shapes, *kinds)
        outline = self._outlines.get(key)
        if outline is not None:
            return outline
        trace = Trace()
        with tracing(trace):
            given = [
                a if shape is None else Tensor(trace.fresh("argument", shape, kind))
                for a, shape, kind in zip(args, shapes, kinds, strict=True)
            ]
            results = self.function.call(*given)
            outline = [(r.shape, KINDS[r.dtype]) for r in results]
        self._outlines[key] = outline
        return outline


def over_memory(function: Derived, writes: Mapping[int, int]) -> Callable[..., Any]:
    """The function of variables over the memory of its arguments, some of which it writes."""

    def traced(layouts: Sequence[Any], *args: Any) -> Any:
        pairs = zip(args, layouts, strict=True)
        whole = [a if lies is None else _laid(a.value, lies) for a, lies in pairs]
        results = function.call(*whole)
        for n, place in writes.items():
            assign(args[place], results[n], layouts[place])
        return tuple([r for n, r in enumerate(results) if n not in writes])

    names = ["layouts", *(p.name for p in function.signature.parameters)]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    told = inspect.Signature([inspect.Parameter(n, kind) for n in names])
    setattr(traced, "__signature__", told)  # noqa: B010  # functions have none that mypy knows
    traced.__name__ = function.name
    return traced


def assign(memory: Tensor, value: Tensor, lies: Any) -> None:
    """What the memory of an argument holds in the end; `lies`: None, or its shape and strides."""
    trace = current()
    assert trace is not None and isinstance(memory.value, Variable), "an argument of a trace"
    order = [] if lies is None else apart(*lies)
    rows = order == sorted(order)
    laid = value if rows else permute_dims(value, (*order, *_others(order, value.ndim)))
    whole = laid if laid.shape == memory.shape else reshape(laid, memory.shape)
    trace.recording.assign(memory.value, whole.value)


def _others(axes: Sequence[int], rank: int) -> list[int]:
    return [n for n in range(rank) if n not in axes]


def _laid(value: Value, lies: Any) -> Tensor:
    """A tensor in its memory."""
    return Tensor(lies.view(value) if isinstance(lies, Lying) else placed(value, *lies))


def caller() -> Origin:
    """The innermost frame that is neither PyTorch's, nor written by it, nor of this library."""
    frame = sys._getframe(1)
    while frame.f_back is not None and (
        frame.f_code.co_filename.startswith((LIBRARY, _TORCH)) or _is_written(frame.f_code)
    ):
        frame = frame.f_back
    return Origin(frame.f_code, frame.f_lasti)


def _is_written(code: CodeType) -> bool:
    """Whether it is what Dynamo made of a function: it has lines, and no columns."""
    return any(name.startswith("__compiled_fn_") for name in code.co_names)


def kind_of(tensor: Any) -> DType:
    """The element type. Raises: DTypeError for one that is not here."""
    element = TYPES.get(tensor.dtype)
    if element is None:
        known = ", ".join(str(kind) for kind in TYPES)
        raise DTypeError(
            f"a tensor of {tensor.dtype}", origin=caller(), help=f"one of {known}", code="E140"
        )
    return element


def static(argument: Any) -> Any:
    """As a key: 0.0 and -0.0 are two, a NaN is one."""
    return argument.hex() if type(argument) is float else argument


def _symbols(args: Sequence[Any]) -> Symbols:
    """The symbolic sizes of tensors; equal ones are one extent."""
    symbols: Symbols = {}
    for size in (s for a in args if isinstance(a, _Given) for s in a.shape):
        if not isinstance(size, int):
            symbols.setdefault(str(size), (Dim(f"s{len(symbols)}", 2, MOST), size))
    return symbols


def _sized(args: Sequence[Any], extent: Callable[[Any], Extent]) -> list[Any]:
    """The shapes of tensors; None for what is none."""
    return [tuple(map(extent, a.shape)) if isinstance(a, _Given) else None for a in args]


def _extent(size: Any, kept: Symbols, number: Callable[[Any], int]) -> Extent:
    """A size as the trace has it."""
    if isinstance(size, int):
        return size
    return kept[str(size)][0] if str(size) in kept else number(size)


def array(variable: Variable, at: int, sizes: Mapping[str, int]) -> np.ndarray[Any, Any]:
    """An array over the memory of a tensor."""
    return array_at(at, tuple(actual(variable.shape, sizes)), variable.dtype.numpy)
