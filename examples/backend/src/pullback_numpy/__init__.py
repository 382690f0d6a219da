"""A backend for pullback: every definition with NumPy over its whole box of axes.

Sums of products go through `numpy.einsum` to BLAS. Reads are clipped into their arrays; one that
was out of range marks its lanes, `If` drops the marks of lanes that it does not take, and a mark
that reaches a result is the user's mistake.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pullback.errors import IndexRangeError, UnsupportedError
from pullback.ir import expr as E
from pullback.ir.expr import Dim, Expr, Extent
from pullback.ir.graph import SUM, Accumulate, Definition, Graph, Reduce, Scan, Value, Variable
from pullback.ir.meaning import apply, constant
from pullback.ir.node import walk

Array = np.ndarray[Any, Any]
Sizes = dict[Dim, int]
Marks = Array | bool  # where a value stands for nothing

LARGEST = 1 << 28  # elements of a box that is computed at once
UFUNCS = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum,
    "any": np.logical_or, "all": np.logical_and,
}  # fmt: skip


class NumPy:
    """What pullback asks for: a name, and new contents of all that a graph assigns."""

    name = "numpy"

    def run_graph(self, graph: Graph, values: Mapping[Variable, Array]) -> dict[Variable, Array]:
        """Every definition once, sources before users.

        Raises: UnsupportedError for what is refused; IndexRangeError for a place outside.
        """
        sizes = {
            extent: size
            for variable, array in values.items()
            for extent, size in zip(variable.shape, np.shape(array), strict=True)
            if isinstance(extent, Dim)
        }
        known: dict[Value, Array] = {v: np.asarray(values[v]) for v in graph.inputs}
        with np.errstate(all="ignore"):
            for definition in graph.definitions:
                known[definition] = computed(definition, known, sizes)
        return {variable: known[value] for variable, value in graph.assigns}


def length(extent: Extent, sizes: Sizes) -> int:
    """What an extent is in this call."""
    return extent if isinstance(extent, int) else sizes[extent]


def computed(d: Definition, known: Mapping[Value, Array], sizes: Sizes) -> Array:
    """One definition, by its form."""
    form, kind = d.form, d.body.dtype.numpy
    box = tuple(length(e, sizes) for e in d.extents)
    product = einsum(d, box, known) if isinstance(form, Reduce) else None
    if product is not None:
        return product.astype(kind)
    if math.prod(box) > LARGEST:
        what = f"numpy: {d.name} has {math.prod(box)} terms, more than it holds at once"
        raise UnsupportedError(what, origin=d.origin, code="E358")
    ends = Box(box, known, sizes)
    if isinstance(form, Accumulate):
        return scattered(d, form, ends, tuple(length(e, sizes) for e in d.shape))
    found = ends.value(d.body, d)
    if isinstance(form, Reduce):
        over = tuple(range(len(d.shape), len(box)))
        wide, initial = working(d.body), form.combiner.identity(d.body.dtype).value
        combined = ufunc(form, d).reduce(found.astype(wide), axis=over, initial=initial)
        return np.asarray(combined).astype(kind)
    if isinstance(form, Scan):
        wide = working(d.body)
        return ufunc(form, d).accumulate(found, axis=form.axis, dtype=wide).astype(kind)
    return found.astype(kind)


def working(body: Expr) -> np.dtype[Any]:
    """What is added up: 16-bit floats in float32, so that a sum is rounded once."""
    half = body.dtype.is_float and body.dtype.bits == 16
    return np.dtype(np.float32) if half else body.dtype.numpy


def ufunc(form: Reduce | Scan | Accumulate, d: Definition) -> np.ufunc:
    """What combines two values. Raises: UnsupportedError for a combiner that NumPy has not."""
    found = UFUNCS.get(form.combiner.name)
    if found is None:
        what = f"numpy: {d.name} combines by {form.combiner.name}"
        raise UnsupportedError(what, origin=d.origin, code="E358")
    return found


def scattered(d: Definition, form: Accumulate, box: Box, shape: tuple[int, ...]) -> Array:
    """``out[at(v)] = combine(out[at(v)], body(v))`` over the domain, in its order."""
    identity = form.combiner.identity(d.body.dtype).value
    out = np.full(shape, identity, working(d.body))
    places = [box.value(e, d).ravel() for e in form.at]
    for place, size in zip(places, shape, strict=True):
        check(d, (place < 0) | (place >= size))
    values = box.value(d.body, d).ravel().astype(out.dtype)
    combine = ufunc(form, d)
    if places:
        combine.at(out, tuple(places), values)
    else:
        out[()] = combine.reduce(values, initial=identity)
    return out.astype(d.body.dtype.numpy)


def check(d: Definition, marks: Marks) -> None:
    """Raises: IndexRangeError where a value that stands for nothing is a result."""
    if np.any(marks):
        raise IndexRangeError(f"{d.name} reads or writes outside of an array", origin=d.origin)


class Box:
    """Scalar expressions over a box of axes, each a dimension of every value, or broadcast."""

    def __init__(self, shape: tuple[int, ...], arrays: Mapping[Value, Array], sizes: Sizes) -> None:
        self.shape, self.arrays, self.sizes = shape, arrays, sizes
        self.known: dict[Any, Array] = {}
        self.marks: dict[Any, Marks] = {}

    def value(self, root: Expr, d: Definition) -> Array:
        """The value of `root` everywhere in the box."""
        for node in walk(root, skip=self.known):
            self.known[node], self.marks[node] = self._value(node)
        check(d, np.broadcast_to(self.marks[root], self.shape))
        return np.broadcast_to(self.known[root], self.shape)

    def _value(self, node: Any) -> tuple[Array, Marks]:
        """A value, and where it stands for nothing."""
        if isinstance(node, E.Const):
            return constant(node), False
        if isinstance(node, E.Size):
            return np.asarray(length(node.dim, self.sizes)), False
        if isinstance(node, E.Axis):
            shape = [1] * len(self.shape)
            shape[node.number] = -1
            return np.arange(self.shape[node.number]).reshape(shape), False
        if isinstance(node, E.Take):
            return self._read(node)
        kids = [self.known[c] for c in node.children]
        marks = [self.marks[c] for c in node.children]
        if isinstance(node, E.If) and any(m is not False for m in marks[1:]):
            return apply(node, kids), marks[0] | np.where(kids[0], *marks[1:])
        wrong: Marks = False
        for mark in marks:
            wrong = wrong | mark
        return apply(node, kids), wrong

    def _read(self, node: E.Take) -> tuple[Array, Marks]:
        array = self.arrays[node.source]
        wrong: Marks = False
        places = []
        for index, size in zip(node.indices, array.shape, strict=True):
            place = self.known[index]
            outside = (place < 0) | (place >= size)
            wrong = wrong | self.marks[index] | (outside if outside.any() else False)
            places.append(np.clip(place, 0, max(size - 1, 0)))
        if array.size == 0:
            return np.zeros(np.broadcast_shapes(*(p.shape for p in places)), array.dtype), wrong
        return np.asarray(array[tuple(places)]), wrong


def einsum(d: Definition, box: Sequence[int], known: Mapping[Value, Array]) -> Array | None:
    """A sum of products of arrays at plain axes, as BLAS computes it; None for anything else."""
    factors = flat(d.body)
    plain = all(isinstance(f, E.Take) and axes(f) is not None for f in factors)
    large = d.body.dtype.is_float and d.body.dtype.bits >= 32
    if not (plain and large and len(factors) > 1 and d.form.combiner is SUM):
        return None
    given: list[Any] = []
    for factor in factors:
        numbers = axes(factor)
        part = known[factor.source][tuple(slice(box[n]) for n in numbers)]
        if part.shape != tuple(box[n] for n in numbers):
            return None  # it reads beyond an array
        given += [part, numbers]
    if {n for numbers in given[1::2] for n in numbers} != set(range(len(box))):
        return None  # an axis that nothing reads: a sum of equal terms, or a broadcast
    return np.einsum(*given, list(range(len(d.shape))), optimize=True)


def flat(body: Expr) -> Sequence[Any]:
    """The factors of a product."""
    return [*flat(body.left), *flat(body.right)] if isinstance(body, E.Mul) else [body]


def axes(read: E.Take) -> list[int] | None:
    """The numbers of the axes that index a read, if that is all that does."""
    if not all(isinstance(i, E.Axis) for i in read.indices):
        return None
    numbers = [i.number for i in read.indices]
    return numbers if len(set(numbers)) == len(numbers) else None
