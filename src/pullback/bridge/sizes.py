"""Graphs that PyTorch traced with symbolic sizes: one program for all of them.

``x (s0, 8), s0 in 2..512  ->  a program over pb.dim("s0", 2, 512), called with 20, 300, ..``

A size that is a symbol is an extent, one that is a product of them a group of axes (`folds.py`),
and a size as a number counts ones. Where a rule wants to know a number, the graph has a program
for each size, and the report says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import sympy
import torch
from torch.fx import Node

from pullback.bridge import device, folds, grown, numbers
from pullback.bridge.derived import Derived
from pullback.bridge.folds import Fold
from pullback.bridge.layout import memory
from pullback.bridge.lying import Lying, actual, led, out, room
from pullback.bridge.programs import CPU, KINDS, MOST, TYPES, array, kind_of, over_memory
from pullback.bridge.record import RECORD
from pullback.bridge.signature import Parameter, Signature
from pullback.config import Options
from pullback.errors import ShapeError
from pullback.ir.expr import Dim, Extent
from pullback.ir.graph import Variable
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.face.tree import flatten
from pullback.tensor.library.creation import ones
from pullback.tensor.library.ops import astype, permute_dims
from pullback.tensor.library.ops import sum as sum_of
from pullback.tensor.record.trace import Trace, settled, tracing
from pullback.tensor.run.entry import Entry
from pullback.tensor.run.program import Jit

LEAST = 16  # elements: the smallest upper bound of a size for which the user told none

Applied = Callable[[Node, Any, Any], Any]
Dims = Mapping[Any, Dim]
"""The extent of each symbol."""


class Source(NamedTuple):
    """Where a call tells a symbol: an argument, its axis (-1: it is a size), and by how much the
    size there is more than the symbol.
    """

    place: int
    axis: int
    more: int


@dataclass(frozen=True, slots=True)
class Size:
    """A size that is no extent: an expression of symbols."""

    expression: Any


def expression(size: Any) -> Any:
    """What a size is: a number, a symbol, or an expression of symbols."""
    return sympy.Integer(size) if isinstance(size, int) else size.node.expr


def symbolic(node: Node) -> bool:
    """Whether a size of what a node gives is no number."""
    value = node.meta.get("val")
    every = value if isinstance(value, list | tuple) else [value]
    sizes = [s for v in every for s in (v.shape if isinstance(v, torch.Tensor) else [v])]
    return any(isinstance(s, torch.SymInt) for s in sizes)


class Sized:
    """A graph for sizes within bounds; a bound that the user told, or twice what came.

    `places` are its arguments, tensors and sizes; `orders`: in which results lie, where that is not
    row-major; `writes`: results, by number, that are written into the argument at a place.
    `alike`: symbols that were the same number are taken for one, which each call checks (keys and
    values of a cache are as long as each other, which no graph says).

    Raises: what a rule raises that wants a number.
    """

    def __init__(
        self,
        places: Sequence[Node],
        steps: Sequence[Node],
        results: Sequence[Node],
        orders: Sequence[Sequence[int] | None],
        writes: Mapping[int, int],
        options: Options | None,
        applied: Applied,
        place: torch.device,
        alike: bool = False,
    ) -> None:
        self._places, self._steps, self._outputs = places, steps, results
        self._applied, self._writes, self._orders = applied, writes, orders
        self._same: dict[Any, Any] = {}
        self._symbols = self._sources()
        self._equal: list[tuple[Source, Any]] = []
        if alike:
            self._unite()
        self._sums = grown.sums([*places, *steps], self._expression)
        self._shapes = {n: self._atoms(n) for n in places}
        self._open = [n for n, p in enumerate(places) if _is_tensor(p) and symbolic(p)]
        self._strided = [
            n
            for n in self._open
            if _is_strided(places[n].meta["val"])
            and all(len(g) == 1 for g in self._shapes[places[n]])
        ]
        if any(place in self._open for place in writes.values()):
            raise ShapeError("a write into an argument of symbolic size", code="E120")
        names = [Parameter(f"{p.name}_", "Tensor" if _is_tensor(p) else "int") for p in places]
        derived = Derived("graph", Signature(tuple(names), len(results)), self._traced)
        self._place = place
        own = options if place == CPU else device.placed_on(place, options)
        self._jit = Jit(over_memory(derived, writes), options=own)
        self._dims: Dims = {}
        self._programs: dict[Any, Sizing] = {}
        self._try()

    @property
    def traces(self) -> int:
        """How often a program was made."""
        return self._jit.traces

    def _sources(self) -> dict[Any, Source]:
        """Where a call tells each symbol.

        Raises: ShapeError for a symbol that no argument has, alone or beside a number.
        """
        sources: dict[Any, Source] = {}
        wanted = set()
        for place, node in enumerate(self._places):
            value = node.meta["val"]
            sizes = enumerate(value.shape) if _is_tensor(node) else [(-1, value)]
            for axis, size in sizes:
                if not isinstance(size, torch.SymInt):
                    continue
                own = expression(size)
                wanted |= own.free_symbols
                more, alone = own.as_coeff_Add()
                if alone.is_Symbol and (alone not in sources or (more == 0 != sources[alone].more)):
                    sources[alone] = Source(place, axis, int(more))
        if lost := wanted - sources.keys():
            raise ShapeError(f"no argument has the size {min(map(str, lost))}", code="E120")
        return sources

    def _unite(self) -> None:
        """One symbol for those that were the same number. Raises: ShapeError where none were."""
        first: dict[int, Any] = {}
        for symbol, (_, number) in self._told().items():
            self._same[symbol] = first.setdefault(number, symbol)
        self._same = {s: one for s, one in self._same.items() if s is not one}
        if not self._same:
            raise ShapeError("no two sizes that were the same", code="E120")
        self._equal = [(self._symbols.pop(s), one) for s, one in self._same.items()]

    def _expression(self, size: Any) -> Any:
        """What a size is, of symbols that are not taken for others."""
        return expression(size).xreplace(self._same)

    def _sized(self, ranges: Mapping[Any, tuple[int, int]]) -> Dims:
        """The extents of symbols, and of sums of them."""
        whole = {**ranges, **{own: grown.bounds(own, ranges) for own in self._sums}}
        names = {own: f"sum{n}" for n, own in enumerate(self._sums)}
        return {s: Dim(names.get(s, str(s)), *r) for s, r in whole.items()}

    def _try(self) -> None:
        """On shapes alone. Raises: what a rule raises."""
        self._dims = self._sized({s: _range(n, a) for s, (n, a) in self._told().items()})
        trace = Trace()
        with tracing(trace):
            given = []
            for node in self._places:
                meta = node.meta["val"]
                own = _is_tensor(node)
                shape = self._extents(node) if own else ()
                kind = TYPES[meta.dtype] if own else None
                given.append(Tensor(trace.fresh("argument", shape, kind)) if kind else meta)
            self._traced(*given)

    def _told(self) -> dict[Any, tuple[Any, int]]:
        """Each symbol with its bounds, as PyTorch has them, and the number that it was."""
        told = {}
        for symbol, (place, axis, more) in self._symbols.items():
            value = self._places[place].meta["val"]
            size = value if axis < 0 else value.shape[axis]
            told[symbol] = size.node.shape_env.var_to_range[symbol], size.node.hint - more
        return told

    def _extents(self, node: Node) -> tuple[Extent, ...]:
        """The shape of an argument, each symbol on an axis of its own."""
        return tuple([self._extent(e) for group in self._shapes[node] for e in group])

    def _extent(self, own: Any) -> Extent:
        return int(own) if own.is_Integer else self._dims[own]

    def _of(self, extent: Extent) -> Any:
        """The expression of an extent."""
        return sympy.Integer(extent) if isinstance(extent, int) else self._back[extent.name]

    @property
    def _back(self) -> dict[str, Any]:
        return {dim.name: symbol for symbol, dim in self._dims.items()}

    def _traced(self, *args: Any) -> tuple[Tensor, ...]:
        """The graph on tensors with symbolic extents."""
        values: dict[Node, Any] = {}
        for node, value in zip(self._places, args, strict=True):
            if _is_tensor(node):
                lengths = [len(group) for group in self._shapes[node]]
                values[node] = folds.grouped(value, lengths).plain
        for node in self._steps:
            if isinstance(node.meta.get("val"), torch.SymInt | torch.SymFloat | int):
                continue
            given, named = torch.fx.map_arg(
                (node.args, node.kwargs),
                lambda n: values[n] if n in values else self._number(n.meta["val"]),
            )
            made = self._apply(node, given, named)
            values[node] = self._checked(made, node.meta.get("val"))
        tensors = [Fold.of(values[n]).tensor for n in self._outputs]
        for n, order in enumerate(self._orders):
            tensors[n] = tensors[n] if order is None else permute_dims(tensors[n], order)
        return tuple(tensors)

    def _atoms(self, node: Node) -> list[list[Any]]:
        """The sizes of an argument, each as what it is a product of; in the order in which a shape
        of the graph has them.

        Raises: ShapeError for a size that is no product.
        """
        if not _is_tensor(node):
            return []
        return [self._factors(self._expression(s)) for s in node.meta["val"].shape]

    def _factors(self, own: Any) -> list[Any]:
        known = {*self._symbols, *self._sums}
        if own.is_Integer or own in known:
            return [own]
        for node in (*self._places, *self._steps):
            if not _is_tensor(node):
                continue
            sizes = [self._expression(s) for s in node.meta["val"].shape]
            for count in (2, 3):
                for start in range(len(sizes) - count + 1):
                    run = sizes[start : start + count]
                    plain = all(e.is_Integer or e in known for e in run)
                    if plain and sympy.Mul(*run) == own:
                        return [e for e in run if e != 1]
        coefficient, factors = _product(own)
        if not coefficient.is_Integer or not all(f in known for f in factors):
            raise ShapeError(f"the size {own} of an argument", code="E120")
        return [*factors, *([coefficient] if coefficient != 1 else [])]

    def _number(self, size: Any) -> Any:
        """A size as rules have it: a number, an extent, or what only views take."""
        own = self._expression(size)
        return self._extent(own) if own.is_Integer or own in self._dims else Size(own)

    def _apply(self, node: Node, given: Any, named: Any) -> Any:
        """What a node gives; of folds, and of sizes that are numbers, what is said here."""
        if node.target in folds.VIEWS:
            shape = [self._expression(s) for s in node.meta["val"].shape]
            return folds.viewed(given[0], shape, self._of)
        if (made := self._grown(node, given, named)) is not None:
            return made
        pointwise = torch.Tag.pointwise in getattr(node.target, "tags", ())
        if pointwise:
            given = [self._counted(g, node) for g in given]
        if not any(isinstance(g, Fold) for g in _leaves((given, named))):
            return self._applied(node, given, named)
        if pointwise or node.target in _SAME:
            return self._each(node, given, named)
        rule = _FOLDED.get(node.target)
        if rule is None:
            raise ShapeError(f"{node.target} of a shape that is a product of sizes", code="E120")
        return rule(*given, **named)

    def _grown(self, node: Node, given: Any, named: Any) -> Any:
        """What is joined or cut along a symbolic axis; None for what is not, or for folds."""
        rule = grown.RULES.get(node.target)
        if rule is None or any(isinstance(v, Fold) for v in _leaves((given, named))):
            return None
        meta = node.meta["val"]
        every = meta if isinstance(meta, list | tuple) else [meta]
        shapes = [[self._expression(s) for s in getattr(one, "shape", ())] for one in every]
        if not all(e.is_Integer or e in self._dims for shape in shapes for e in shape):
            return None
        made = [tuple(map(self._extent, shape)) for shape in shapes]
        promised = made if every is meta else made[0]
        return rule(promised, self._count, node, *given, **named)

    def _each(self, node: Node, given: Sequence[Any], named: Any) -> Any:
        places = [n for n, g in enumerate(given) if isinstance(g, Fold | Tensor)]

        def function(*tensors: Any) -> Any:
            whole = list(given)
            for n, tensor in zip(places, tensors, strict=True):
                whole[n] = tensor
            return self._applied(node, whole, named)

        return folds.each(function, [given[n] for n in places])

    def _counted(self, value: Any, node: Node) -> Any:
        """A size as a number among elements: as many ones."""
        if not isinstance(value, Size | Dim):
            return value
        number = self._count(value)
        kind = TYPES[node.meta["val"].dtype]
        return astype(number, kind) if kind.is_float else number

    def _count(self, value: Any) -> Any:
        """A size as a number; what is none passes. Raises: ShapeError for what has no formula."""
        if not isinstance(value, Size | Dim):
            return value
        own = value.expression if isinstance(value, Size) else self._of(value)
        return numbers.valued(own, self._ones)

    def _ones(self, own: Any) -> Any:
        """An extent as a number; None for what is none."""
        dim = self._dims.get(own)
        return None if dim is None else sum_of(ones((dim,), dtype="int64"))

    def _checked(self, made: Any, meta: Any) -> Any:
        """Of the type and the shape that the graph promised. Raises: ShapeError for another."""
        if isinstance(made, list | tuple):
            return type(made)(self._checked(v, m) for v, m in zip(made, meta, strict=True))
        if not isinstance(meta, torch.Tensor) or made is None:
            return made
        fold = Fold.of(made if isinstance(made, Fold | Tensor) else Tensor(made))
        promised = tuple([self._expression(s) for s in meta.shape])
        if fold.shape(self._of) != promised:
            what = f"a rule gives {fold.shape(self._of)}, not {promised}"
            raise ShapeError(what, code="E120")
        kind = TYPES[meta.dtype]
        tensor = fold.tensor if fold.tensor.dtype == kind else astype(fold.tensor, kind)
        return Fold(tensor, fold.groups).plain

    def run(self, args: Sequence[Any]) -> tuple[Any, ...] | None:
        """The results; None where a size has no place within bounds."""
        sizes = {s: _told_by(args, source) for s, source in self._symbols.items()}
        if any(_told_by(args, source) != sizes[one] for source, one in self._equal):
            return None
        if any(size > self._dims[s].hi for s, size in sizes.items()):
            self._grow(sizes)
        sizes |= {own: grown.valued(own, sizes) for own in self._sums}
        if not all(self._dims[s].lo <= size <= self._dims[s].hi for s, size in sizes.items()):
            return None
        lying = self._lying(args)
        return self._sizing(args, lying).run(args, sizes, lying)

    def _grow(self, sizes: Mapping[Any, int]) -> None:
        """Bounds for larger sizes; not beyond those that the user told."""
        ranges = {}
        for symbol, (told, _) in self._told().items():
            old = self._dims[symbol]
            ranges[symbol] = old.lo, max(old.hi, _range(told, sizes[symbol])[1])
        self._dims = self._sized(ranges)

    def _sizing(self, args: Sequence[Any], lying: Mapping[int, Lying]) -> Sizing:
        """A program within the bounds, for arguments that lie like these."""
        with self._jit.lock:
            fixed = [n for n, a in enumerate(args) if n not in self._open]
            lies = tuple([_lies(args[n]) if _is_tensor(self._places[n]) else 0 for n in fixed])
            key = (tuple(self._dims.values()), lies, *lying.values())
            sizing = self._programs.get(key)
            if sizing is None or not sizing.entry.fits():
                sizing = self._programs[key] = self._made(args, lying)
            return sizing

    def _lying(self, args: Sequence[Any]) -> dict[int, Lying]:
        """How arguments lie that are read where they do."""
        lying = {}
        for n in self._strided:
            own = enumerate(self._extents(self._places[n]))
            lying[n] = Lying.of(args[n], {axis: e for axis, e in own if isinstance(e, Dim)})
        return lying

    def _made(self, args: Sequence[Any], lying: Mapping[int, Lying]) -> Sizing:
        tensors = [n for n, p in enumerate(self._places) if _is_tensor(p)]
        boxes: list[tuple[Extent, ...]] = []
        layouts: list[Any] = [None] * len(args)
        whole = [p.meta["val"] for p in self._places]
        for n in tensors:
            shape, strides = tuple(args[n].shape), tuple(args[n].stride())
            if n in lying:
                boxes.append(lying[n].box)
                layouts[n] = lying[n]
            elif n in self._open:
                boxes.append(self._extents(self._places[n]))
            else:
                boxes.append(memory(shape, strides))
                layouts[n] = shape, strides
            name = f"{self._places[n].name}_"
            whole[n] = Tensor(Variable(name, boxes[-1], kind_of(args[n])))
        numbers = [0 if isinstance(w, torch.SymInt) else w for w in whole]
        given = flatten(((tuple(layouts), *numbers), {}))
        entry = self._jit.trace(given, boxes)
        RECORD.compiled(entry.executable)
        opened = {n: box for n, box in zip(tensors, boxes, strict=True) if n in self._open}
        shapes = [tuple(map(self._expression, n.meta["val"].shape)) for n in self._outputs]
        promised = [
            shape if order is None else tuple([shape[a] for a in order])
            for shape, order in zip(shapes, self._orders, strict=False)
        ]
        return Sizing(entry, tensors, opened, dict(self._dims), promised, self._place)


class Sizing:
    """A program for sizes within bounds: what lies like the largest is copied there and back."""

    def __init__(
        self,
        entry: Entry,
        tensors: Sequence[int],
        shapes: Mapping[int, tuple[Extent, ...]],
        dims: Dims,
        promised: Sequence[tuple[Any, ...]],
        place: torch.device,
    ) -> None:
        self.entry, self._place = entry, place
        self._tensors, self._shapes, self._dims, self._promised = tensors, shapes, dims, promised
        self._names = {dim.name: symbol for symbol, dim in dims.items()}

    def run(
        self, args: Sequence[Any], sizes: Mapping[Any, int], lying: Mapping[int, Lying]
    ) -> tuple[Any, ...]:
        """The results: new tensors, in row-major order."""
        named = {dim.name: sizes[symbol] for symbol, dim in self._dims.items()}
        run = self._here if self._place == CPU else self._there
        shapes = [[_value(e, sizes) for e in shape] for shape in self._promised]
        return tuple(
            [t.view(shape) for t, shape in zip(run(args, named, lying), shapes, strict=True)]
        )

    def _there(
        self, args: Sequence[Any], sizes: Mapping[str, int], lying: Mapping[int, Lying]
    ) -> list[Any]:
        """On a device, where what lies in another way is copied."""
        held = list(args)
        for n in self._shapes:
            lies = lying.get(n)
            if lies is None or lies.copied:
                held[n] = (args[n] if lies is None else lies.rows(args[n], sizes)).contiguous()
        outputs = self.entry.outputs
        made = [
            device.made_on(self._place, actual(v.shape, sizes), KINDS[v.dtype]) for v in outputs
        ]
        device.launch(self.entry, [held[n] for n in self._tensors], made, sizes)
        return made

    def _here(
        self, args: Sequence[Any], sizes: Mapping[str, int], lying: Mapping[int, Lying]
    ) -> list[Any]:
        """On this processor, by way of rooms for what does not lie as the program has it."""
        go, outputs = self.entry.executable.runner.go, self.entry.outputs
        direct = go is None
        held = [self._passed(n, args[n], sizes, direct, lying.get(n)) for n in self._tensors]
        made = [room(v.shape, KINDS[v.dtype], sizes, direct) for v in outputs]
        given = [t.data_ptr() for t in held] + [v.at for v in settled(self.entry.read)]
        given += [t.data_ptr() for t in made]
        if go is None:
            state = self.entry.executable.program.state
            pairs = zip(state, given, strict=True)
            self.entry.executable.run({v: array(v, at, sizes) for v, at in pairs})
        else:
            go([*given, *(sizes[name] for name in self.entry.executable.runner.sizes)])
        return [out(t, v.shape, sizes) for t, v in zip(made, outputs, strict=True)]

    def _passed(
        self, place: int, tensor: Any, sizes: Mapping[str, int], direct: bool, lies: Lying | None
    ) -> Any:
        """An argument as the program reads it."""
        shape = self._shapes.get(place)
        if shape is None:
            return tensor
        if lies is not None:
            return lies.passed(tensor, sizes, direct)
        own = tensor.contiguous()
        if direct or led(shape):
            return own
        sized = actual(shape, sizes)
        held = room(shape, tensor.dtype, sizes, direct)
        held[tuple(map(slice, sized))].copy_(own.view(sized))
        return held


def _is_strided(meta: Any) -> bool:
    """Whether strides are numbers, and not those of rows."""
    steps = meta.stride()
    rows = (*(a * b for a, b in zip(steps[1:], meta.shape[1:], strict=True)), 1)
    pairs = zip(steps, rows, strict=True)
    numbers = all(isinstance(s, int) for s in steps)
    return numbers and not all(isinstance(b, int) and a == b for a, b in pairs)


def _product(own: Any) -> tuple[Any, list[Any]]:
    """A size as a number times factors: ``3 s^2  ->  3, [s, s]``"""
    coefficient, factors = own.as_coeff_mul()
    powers = [f.as_base_exp() for f in factors]
    whole = (
        [base for base, times in powers for _ in range(int(times))]
        if all(times.is_Integer and times > 0 for _, times in powers)
        else factors
    )
    return coefficient, list(whole)


def _leaves(value: Any) -> list[Any]:
    """Arguments, also those in lists."""
    if isinstance(value, dict):
        return _leaves(list(value.values()))
    if isinstance(value, list | tuple):
        return [leaf for v in value for leaf in _leaves(v)]
    return [value]


def _told_by(args: Sequence[Any], source: Source) -> int:
    """A symbol, by the arguments of a call."""
    place, axis, more = source
    size: int = args[place] if axis < 0 else args[place].shape[axis]
    return size - more


def _value(own: Any, sizes: Mapping[Any, int]) -> int:
    return int(own.subs(sizes))


def _lies(tensor: Any) -> Any:
    return tensor.dtype, tuple(tensor.shape), tuple(tensor.stride())


def _is_tensor(node: Node) -> bool:
    return isinstance(node.meta.get("val"), torch.Tensor)


def _range(told: Any, number: int) -> tuple[int, int]:
    """Bounds of a size: those that the user told, or a power of two that holds it twice."""
    grown = max(LEAST, 1 << (2 * number - 1).bit_length())
    return max(1, int(told.lower)), int(told.upper) if told.upper <= MOST else grown


def _transposed(x: Any, a: int = 0, b: int = 1) -> Any:
    order = list(range(len(Fold.of(x).groups)))
    order[a], order[b] = order[b], order[a]
    return folds.permuted(x, order)


def _summed(x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    del dtype  # the result is of the type that the graph promised
    return folds.summed(x, [dim] if isinstance(dim, int) else dim, keepdim)


aten = torch.ops.aten
_SAME = {aten.clone.default, aten.detach.default, aten.alias.default, aten._to_copy.default}
_FOLDED: dict[Any, Callable[..., Any]] = {
    aten.mm.default: folds.product,
    aten.addmm.default: folds.added,
    aten.t.default: _transposed,
    aten.transpose.int: _transposed,
    aten.permute.default: folds.permuted,
    aten.sum.dim_IntList: _summed,
    aten.sum.default: _summed,
}
