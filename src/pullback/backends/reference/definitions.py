"""The oracle: definitions evaluated with NumPy exactly as traced, slow and obviously right.

16-bit floats are computed with in float32 and rounded where a definition ends, and where they are
compared or cast.

A body is evaluated over its whole box of axes at once. Both branches of an `If` are computed, with
indices clipped; a read out of range marks its lanes as bad, an `If` drops the marks of the lanes it
does not take, and a mark that reaches the body's root raises.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from pullback.backends.reference import combine
from pullback.backends.reference.named import named
from pullback.errors import IndexRangeError, InvalidIR, Origin
from pullback.ir import expr as E
from pullback.ir.dtype import float32, is_short
from pullback.ir.expr import Dim, Expr, Extent, Take
from pullback.ir.graph import (
    Accumulate,
    Definition,
    Form,
    Graph,
    Reduce,
    Scan,
    Value,
    Variable,
    topological,
    variables,
)
from pullback.ir.meaning import Array, apply, constant
from pullback.ir.node import walk

Sizes = Mapping[Dim, int]
Range = tuple[int, int]
Starts = Mapping[Value, tuple[int, ...]]
BUDGET = 1 << 25  # elements held at once while one block of a body is evaluated


def extent_of(extent: Extent, sizes: Sizes) -> int:
    """The run-time value of an extent. Raises: InvalidIR when it is not given."""
    if isinstance(extent, int):
        return extent
    if extent not in sizes:
        raise InvalidIR(f"no size given for {extent}")
    return sizes[extent]


def shape_of(shape: Iterable[Extent], sizes: Sizes) -> tuple[int, ...]:
    """The run-time shape."""
    return tuple(extent_of(e, sizes) for e in shape)


def infer_sizes(arrays: Mapping[Variable, Array]) -> dict[Dim, int]:
    """Symbolic extents read off the arrays' shapes. Raises: InvalidIR when two disagree."""
    sizes: dict[Dim, int] = {}
    for variable, array in arrays.items():
        for extent, size in zip(variable.shape, array.shape, strict=True):
            if isinstance(extent, Dim) and sizes.setdefault(extent, size) != size:
                raise InvalidIR(f"{extent} is {sizes[extent]} and {size}")
    return sizes


def fitted(variable: Variable, array: Array, sizes: Sizes) -> Array:
    """`array` cut to the run-time shape (it may have the upper bounds' shape instead)."""
    array = np.asarray(array)
    if array.dtype != variable.dtype.numpy:
        raise InvalidIR(f"{variable} is {variable.dtype}, its array {array.dtype}")
    shape = shape_of(variable.shape, sizes)
    if array.ndim != len(shape) or any(a < s for a, s in zip(array.shape, shape, strict=True)):
        raise InvalidIR(f"{variable} has shape {shape}, its array {array.shape}")
    return array[tuple(slice(s) for s in shape)]


def blocks(extents: Sequence[int], limit: int) -> Iterator[tuple[Range, ...]]:
    """Sub-boxes of at most about `limit` elements that cover a box, in row-major order."""
    steps: list[int] = []
    room = max(1, limit)
    for extent in reversed(extents):
        step = max(1, min(extent, room))
        steps.insert(0, step)
        room = max(1, room // step)
    spans = [
        [(lo, min(lo + step, extent)) for lo in range(0, extent, step)]
        for extent, step in zip(extents, steps, strict=True)
    ]
    return product(*spans)


class Evaluator:
    """Scalar expressions over one box of axes; every value has one array dimension per axis."""

    def __init__(
        self,
        ranges: Sequence[Range],
        arrays: Mapping[Value, Array],
        sizes: Sizes,
        origin: Origin | None = None,
        starts: Starts | None = None,
    ) -> None:
        self.rank = len(ranges)
        self.arrays = arrays
        self.sizes = sizes
        self.origin = origin
        self.starts = {} if starts is None else starts
        self.known: dict[Expr, Array] = {}
        self.bad: dict[Expr, Array] = {}
        self.ranges = tuple(ranges)
        self.shape = tuple(hi - lo for lo, hi in ranges)

    def values(self, roots: Sequence[Expr], *, rounded: bool = True) -> list[Array]:
        """The values of `roots`, broadcast over the box; 16-bit floats `rounded` or in float32.

        Raises: IndexRangeError when a read that is taken lies outside its axis.
        """
        for node in walk(roots, skip=self.known):
            if not isinstance(node, Expr):
                raise InvalidIR(f"{node} is not a scalar expression")
            self.known[node] = self._value(node)
            self._mark(node)
        for root in roots:
            self._raise(root)
        arrays = [self._rounded(root) if rounded else self.known[root] for root in roots]
        return [np.broadcast_to(array, self.shape) for array in arrays]

    def _value(self, node: Expr) -> Array:
        if isinstance(node, E.Const):
            return constant(node).reshape((1,) * self.rank)
        if isinstance(node, E.Size):
            size = extent_of(node.dim, self.sizes)
            return np.full((1,) * self.rank, size, dtype=np.int64)
        if isinstance(node, E.Axis):
            return self._axis(node)
        if isinstance(node, Take):
            return self._take(node)
        kids = [c for c in node.children if isinstance(c, Expr)]
        if is_short(node.dtype) and not isinstance(node, E.Cast):
            return self._half(node, kids)
        known = named(node) if node.dtype.is_float else None
        if known is not None:
            return known[0](*(self.known[a] for a in known[1]))
        return apply(node, [self._rounded(c) for c in kids])

    def _half(self, node: Expr, kids: list[Expr]) -> Array:
        """Arithmetic of short floats, and what chooses among its results, in float32."""
        chosen = [k for k in kids if not k.dtype.is_bool]
        if isinstance(node, E.If) and all(self.known[k].dtype == k.dtype.numpy for k in chosen):
            return apply(node, [self.known[k] for k in kids])
        return apply(node, [self._wide(k) for k in kids], float32)

    def _wide(self, e: Expr) -> Array:
        if isinstance(e, E.Const) and is_short(e.dtype):
            return np.full((1,) * self.rank, e.value, np.float32)
        return self.known[e] if e.dtype.is_bool else self.known[e].astype(np.float32)

    def _rounded(self, e: Expr) -> Array:
        """What is compared or cast is of its own type."""
        value = self.known[e]
        with np.errstate(all="ignore"):
            return value if value.dtype == e.dtype.numpy else value.astype(e.dtype.numpy)

    def _axis(self, node: E.Axis) -> Array:
        if node.number >= self.rank:
            raise InvalidIR(f"axis {node.number} in a box of {self.rank}")
        lo, hi = self.ranges[node.number]
        shape = [1] * self.rank
        shape[node.number] = hi - lo
        return np.arange(lo, hi, dtype=np.int64).reshape(shape)

    def _take(self, node: Take) -> Array:
        array = self.arrays[node.source]
        indices = self._indices(node)
        outside: list[Array] = []
        for n, (index, extent) in enumerate(zip(indices, array.shape, strict=True)):
            wrong = (index < 0) | (index >= extent)
            if wrong.any():
                outside.append(wrong)
                indices[n] = np.clip(index, 0, max(0, extent - 1))
        if outside:
            self.bad[node] = np.asarray(combine.any_of(outside))
        if array.size == 0:
            shape = np.broadcast_shapes((1,) * self.rank, *(i.shape for i in indices))
            return np.zeros(shape, array.dtype)
        elements = np.asarray(array[tuple(indices)])
        return elements if indices else elements.reshape((1,) * self.rank)

    def _indices(self, node: Take) -> list[Array]:
        """Indices into the array at hand, which may hold only a part of the source."""
        indices = [self.known[i] for i in node.indices]
        start = self.starts.get(node.source)
        if start is None:
            return indices
        return [i - s for i, s in zip(indices, start, strict=True)]

    def _mark(self, node: Expr) -> None:
        kids = [c for c in node.children if c in self.bad]
        if not kids:
            return
        if not isinstance(node, E.If):
            own = [self.bad[node]] if node in self.bad else []
            self.bad[node] = combine.any_of(own + [self.bad[k] for k in kids if k in self.bad])
            return
        taken = self.known[node.condition]
        then, otherwise = (self.bad.get(b, np.asarray(False)) for b in (node.then, node.otherwise))
        marks = [np.asarray(np.where(taken, then, otherwise))]
        if node.condition in self.bad:
            marks.append(self.bad[node.condition])
        anywhere = combine.any_of(marks)
        if anywhere.any():
            self.bad[node] = anywhere

    def _raise(self, root: Expr) -> None:
        if root not in self.bad or not np.broadcast_to(self.bad[root], self.shape).any():
            return
        lanes = np.argwhere(np.broadcast_to(self.bad[root], self.shape))
        lane = tuple(int(i) for i in lanes[0])
        node = root
        while not (isinstance(node, Take) and self._own(node, lane)):
            node = self._culprit(node, lane)
        n, value = self._own(node, lane)[0]
        extent = self.arrays[node.source].shape[n]
        where = ", ".join(str(lo + i) for i, (lo, _) in zip(lane, self.ranges, strict=True))
        raise IndexRangeError(
            f"index {value} is outside axis {n} of {node.source}, which has {extent} elements"
            f" (at [{where}])",
            origin=node.origin or self.origin,
        )

    def _at(self, array: Array, lane: tuple[int, ...]) -> int:
        return int(np.broadcast_to(array, self.shape)[lane])

    def _own(self, node: Take, lane: tuple[int, ...]) -> list[tuple[int, int]]:
        """(axis, value) of the indices of a read that are out of range at `lane`."""
        shape = self.arrays[node.source].shape
        places = [(n, self._at(i, lane)) for n, i in enumerate(self._indices(node))]
        return [(n, v) for n, v in places if not 0 <= v < shape[n]]

    def _culprit(self, node: Expr, lane: tuple[int, ...]) -> Expr:
        kids: list[Expr] = [c for c in node.children if isinstance(c, Expr)]
        if isinstance(node, E.If):
            taken = self._at(self.known[node.condition], lane)
            kids = [node.condition, node.then if taken else node.otherwise]
        return next(k for k in kids if k in self.bad and self._at(self.bad[k], lane))


def _contraction(
    definition: Definition, arrays: Mapping[Value, Array], box: Sequence[int]
) -> Array | None:
    """A sum of products of two plain reads, summed in float64; None where it is not one.

    ``c[i, j] = sum[k](a[i, k] * b[k, j])``
    """
    form, body = definition.form, definition.body
    if not isinstance(form, Reduce) or form.combiner.name != "sum" or not body.dtype.is_float:
        return None
    if not isinstance(body, E.Mul):
        return None
    operands: list[Any] = []
    for take in (body.left, body.right):
        if not isinstance(take, Take):
            return None
        plain = [i.number for i in take.indices if isinstance(i, E.Axis)]
        array = arrays[take.source]
        if len(plain) != len(take.indices) or len(plain) != len(set(plain)):
            return None
        if any(box[a] > s for a, s in zip(plain, array.shape, strict=True)):
            return None
        cut = array[tuple(slice(box[a]) for a in plain)]
        operands += [cut.astype(np.float64), plain]
    if len(body.axes) != len(box):
        return None
    operands.append(list(range(len(definition.shape))))
    return np.asarray(np.einsum(*operands, optimize=True))


@dataclass(frozen=True, slots=True)
class Work:
    """A body to evaluate over one box of axes (all of it, or the part of one tile)."""

    definition: Definition
    form: Form
    roots: tuple[Expr, ...]
    box: tuple[Range, ...]
    arrays: Mapping[Value, Array]
    sizes: Sizes
    starts: Starts | None = None

    def evaluated(self) -> Iterator[tuple[tuple[Range, ...], list[Array]]]:
        """Values of the roots, sub-box by sub-box."""
        nodes = sum(1 for _ in walk(self.roots))
        counts = [hi - lo for lo, hi in self.box]
        for block in blocks(counts, max(1 << 12, BUDGET // nodes)):
            shifted = zip(block, self.box, strict=True)
            ranges = tuple((lo + start, hi + start) for (lo, hi), (start, _) in shifted)
            origin = self.definition.origin
            evaluator = Evaluator(ranges, self.arrays, self.sizes, origin, self.starts)
            yield block, evaluator.values(self.roots, rounded=False)

    def gathered(self) -> Array:
        """The values of a map, reduction or scan over the box, in the accumulating type."""
        kind, form = self.roots[0].dtype, self.form
        rank = len(self.definition.shape)
        work = combine.start(form, [hi - lo for lo, hi in self.box[:rank]], kind)
        for block, (body,) in self.evaluated():
            place = tuple(slice(lo, hi) for lo, hi in block[:rank])
            if isinstance(form, Reduce):
                part = combine.reduced(body, form.combiner, tuple(range(rank, body.ndim)), kind)
                work[place] = combine.joined(work[place], part, form.combiner, kind)
            else:
                work[place] = body
        if isinstance(form, Scan):
            return combine.scanned(work, form.combiner, form.axis, kind)
        return work

    def scattered(self, out: Array) -> None:
        """Adds the values of an accumulating write to `out`."""
        assert isinstance(self.form, Accumulate)
        for _, (body, *at) in self.evaluated():
            _check_targets(self.definition, at, out.shape)
            combine.scatter(out, self.form.combiner, at, body, self.definition.dtype)


def _compute(definition: Definition, arrays: Mapping[Value, Array], sizes: Sizes) -> Array:
    box = shape_of(definition.extents, sizes)
    kind = definition.dtype
    if (quick := _contraction(definition, arrays, box)) is not None:
        return combine.finished(quick, kind)
    ranges = tuple((0, extent) for extent in box)
    work = Work(definition, definition.form, definition.roots, ranges, arrays, sizes)
    if not isinstance(definition.form, Accumulate):
        return combine.finished(work.gathered(), kind)
    out = combine.start(definition.form, shape_of(definition.shape, sizes), kind)
    work.scattered(out)
    return combine.finished(out, kind)


def _check_targets(definition: Definition, at: Sequence[Array], shape: Sequence[int]) -> None:
    for n, (index, extent) in enumerate(zip(at, shape, strict=True)):
        wrong = index[(index < 0) | (index >= extent)]
        if wrong.size:
            raise IndexRangeError(
                f"index {int(wrong.flat[0])} is outside axis {n} of {definition}, which has"
                f" {extent} elements",
                origin=definition.origin,
            )


def evaluate_values(
    wanted: Sequence[Value],
    env: Mapping[Variable, Array],
    sizes: Sizes | None = None,
) -> list[Array]:
    """The arrays of `wanted`, in order. Sizes not given are read off the arrays' shapes.

    Raises: IndexRangeError when a data index lies outside its axis.
    """
    needed = variables(wanted)
    missing = [v for v in needed if v not in env]
    if missing:
        raise InvalidIR(f"no array for {missing}")
    given = {v: np.asarray(env[v]) for v in needed}
    known = infer_sizes(given) if sizes is None else sizes
    arrays: dict[Value, Array] = {v: fitted(v, a, known) for v, a in given.items()}
    for definition in topological(wanted):
        arrays[definition] = _compute(definition, arrays, known)
    return [arrays[v] for v in wanted]


def evaluate(
    graph: Graph,
    values: Mapping[Variable, Array],
    sizes: Sizes | None = None,
) -> dict[Variable, Array]:
    """New contents of every variable that `graph` assigns, from the old contents `values`.

    Raises: IndexRangeError when a data index lies outside its axis.
    """
    arrays = evaluate_values([v for _, v in graph.assigns], values, sizes)
    return {
        target: np.array(array) for (target, _), array in zip(graph.assigns, arrays, strict=True)
    }
