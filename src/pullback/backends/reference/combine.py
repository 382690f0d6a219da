"""Combining arrays: reductions, scans and accumulating writes of the reference interpreters.

Floating sums and products are accumulated in float64 and rounded once, so that the oracle is at
least as exact as anything compared with it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from pullback.ir.dtype import DType
from pullback.ir.expr import Expr
from pullback.ir.graph import Accumulate, Combiner, Form, Reduce, Variable, read
from pullback.ir.meaning import Array, apply
from pullback.ir.node import Node, walk

_UFUNCS: dict[str, np.ufunc] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
    "any": np.logical_or,
    "all": np.logical_and,
}


def any_of(masks: Sequence[Array]) -> Array:
    """The union of masks that broadcast."""
    return np.asarray(reduce(np.logical_or, masks))


def wide(kind: DType) -> np.dtype[Any]:
    """The type that values of `kind` are accumulated in."""
    return np.dtype(np.float64) if kind.is_float else kind.numpy


def start(form: Form, shape: Sequence[int], kind: DType) -> Array:
    """An array of identities for combining forms, of zeros for others."""
    if isinstance(form, Reduce | Accumulate):
        return np.full(shape, form.combiner.identity(kind).value, wide(kind))
    return np.zeros(shape, wide(kind))


def finished(work: Array, kind: DType) -> Array:
    """Accumulated values rounded to their type."""
    with np.errstate(all="ignore"):
        return work.astype(kind.numpy)


def joined(left: Array, right: Array, combiner: Combiner, kind: DType) -> Array:
    """``join(left, right)`` element by element."""
    with np.errstate(all="ignore"):
        ufunc = _UFUNCS.get(combiner.name)
        if ufunc is not None:
            return np.asarray(ufunc(left, right), dtype=wide(kind))
        return _join(left, right, combiner, kind)


def _join(left: Array, right: Array, combiner: Combiner, kind: DType) -> Array:
    """A combiner that has no ufunc: its expression in primitives, evaluated."""
    a, b = (read(Variable(name, (), kind)) for name in "ab")
    known: dict[Node, Any] = {a: finished(left, kind), b: finished(right, kind)}
    root = combiner.join(a, b)
    for node in walk(root, skip=known):
        assert isinstance(node, Expr)
        known[node] = apply(node, [known[c] for c in node.children])
    return np.asarray(known[root], dtype=wide(kind))


def reduced(values: Array, combiner: Combiner, over: tuple[int, ...], kind: DType) -> Array:
    """`values` combined over the last axes `over`."""
    identity = combiner.identity(kind).value
    ufunc = _UFUNCS.get(combiner.name)
    with np.errstate(all="ignore"):
        values = values.astype(wide(kind))
        if ufunc is not None:
            return np.asarray(ufunc.reduce(values, axis=over, initial=identity))
    kept = values.ndim - len(over)
    count = math.prod(values.shape[kept:])
    flat = values.reshape(*values.shape[:kept], count)
    out = np.full(flat.shape[:-1], identity, wide(kind))
    for n in range(flat.shape[-1]):
        out = joined(out, flat[..., n], combiner, kind)
    return out


def scanned(values: Array, combiner: Combiner, axis: int, kind: DType) -> Array:
    """Running combinations along `axis`, each including its own place."""
    ufunc = _UFUNCS.get(combiner.name)
    if ufunc is not None:
        with np.errstate(all="ignore"):
            return np.asarray(ufunc.accumulate(values, axis=axis))
    moved = np.moveaxis(values.copy(), axis, 0)
    for n in range(1, len(moved)):
        moved[n] = joined(moved[n - 1], moved[n], combiner, kind)
    return np.moveaxis(moved, 0, axis)


def scatter(
    out: Array, combiner: Combiner, at: Sequence[Array], values: Array, kind: DType
) -> None:
    """``out[at] = join(out[at], value)`` for every value, in row-major order."""
    ufunc = _UFUNCS.get(combiner.name)
    where = tuple(np.ascontiguousarray(i).ravel() for i in at)
    flat = values.ravel().astype(out.dtype)
    if not at:
        every = tuple(range(values.ndim))
        out[()] = joined(out, reduced(values, combiner, every, kind), combiner, kind)
        return
    if ufunc is not None:
        with np.errstate(all="ignore"):
            ufunc.at(out, where, flat)
        return
    for n in range(flat.size):
        place = tuple(w[n] for w in where)
        out[place] = joined(out[place], flat[n], combiner, kind)
