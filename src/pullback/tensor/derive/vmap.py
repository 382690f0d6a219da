"""`pb.vmap`: a function of one sample as a function of many, by an axis in every definition."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from pullback.errors import ShapeError, UnsupportedError
from pullback.ir.expr import Axis, Extent
from pullback.ir.graph import Value, variables
from pullback.tensor.face.tensor import Tensor, from_array
from pullback.tensor.face.tree import Tree, flatten
from pullback.tensor.library.random import drawn_by
from pullback.tensor.record.lift import Lift
from pullback.tensor.record.recording import changes
from pullback.tensor.record.trace import current, placeholder, transformed
from pullback.tensor.shaped.given import functions
from pullback.tensor.values import elementwise as W
from pullback.tensor.values import views as V

RANDOMNESS = ("different", "same")
Axes = int | None | Sequence[int | None]


def vmap(
    function: Callable[..., Any],
    in_axes: Axes = 0,
    out_axes: Axes = 0,
    randomness: str = "different",
) -> Callable[..., Any]:
    """`function` over an axis of its arguments: ``vmap(f)(xs)[b] == f(xs[b])``.

    `in_axes` is one axis for all arguments, or one per argument (None: the same for every sample);
    `out_axes` says where the axis stands in the results. Random numbers drawn without a key are
    "different" for every sample, or the "same"; a key alone decides what is drawn with it.

    A branch whose condition differs by sample computes both sides; a loop runs until the last
    sample has ended. Both need `pb.jit` around them.
    Raises: ShapeError for axes that do not fit; UnsupportedError for states that are assigned what
    depends on the sample.

    Example:
        >>> pb.vmap(lambda a, b: pb.sum(a * b))(pb.ones((2, 3)), pb.ones((2, 3)))
        Tensor([3., 3.], dtype=float32)
    """
    if randomness not in RANDOMNESS:
        raise UnsupportedError(
            f"randomness={randomness!r}", help=f"one of {', '.join(RANDOMNESS)}", code="E312"
        )

    functions(function=function)

    @functools.wraps(function)
    def batched(*args: Any) -> Any:
        trees = [flatten(a, from_array) for a in args]
        places = _spread(in_axes, len(args), "in_axes", "arguments")
        extent = _extent(trees, places)
        known: dict[Value, Value] = {}
        given = [_sample(t, p, known) for t, p in zip(trees, places, strict=True)]
        with drawn_by(_number(extent, known) if randomness == "different" else None):
            out = transformed(function, *given)
        _refuse_states(known)
        parts = list(out) if isinstance(out, tuple) else [out]
        ends = _spread(out_axes, len(parts), "out_axes", "results")
        batch = Lift([extent], known)
        wholes = [_whole(batch, p, end) for p, end in zip(parts, ends, strict=True)]
        return tuple(wholes) if isinstance(out, tuple) else wholes[0]

    return batched


def _spread(axes: Axes, count: int, name: str, what: str) -> list[int | None]:
    """One axis per argument. Raises: ShapeError where there are more or fewer."""
    if axes is None or not isinstance(axes, Sequence):
        return [None if axes is None else V.whole(axes, name)] * count
    if len(axes) != count:
        raise ShapeError(f"{name} has {len(axes)} entries for {count} {what}", code="E134")
    return list(axes)


def _extent(trees: Sequence[Tree], places: Sequence[int | None]) -> Extent:
    """How many samples. Raises: ShapeError where that is not one number."""
    extents: dict[Extent, None] = {}
    for tree, place in zip(trees, places, strict=True):
        if place is not None:
            for handle in tree.handles:
                extents[handle.shape[V.normal_axis(place, len(handle.shape))]] = None
    if len(extents) != 1:
        raise ShapeError(
            f"vmap over axes of extents {list(extents)}: they must be one number",
            help="say which axis of which argument is the batch: in_axes=(0, None)",
            code="E173",
        )
    return next(iter(extents))


def _number(extent: Extent, known: dict[Value, Value]) -> Tensor:
    """The number of the sample, as one sample sees it."""
    numbers = W.make("sample", (extent,), Axis(0, extent))
    known[sample := placeholder("sample", (), numbers.dtype)] = numbers
    return Tensor(sample)


def _sample(tree: Tree, place: int | None, known: dict[Value, Value]) -> Any:
    """An argument as one sample sees it; `known` learns what stands for what."""
    if place is None:
        return tree.rebuild(tree.handles)
    leaves = []
    for handle in tree.handles:
        value = _moved(handle.value, place, 0)
        sample = placeholder(value.name, value.shape[1:], value.dtype)
        known[sample] = value
        leaves.append(Tensor(sample))
    return tree.rebuild(leaves)


def _moved(value: Value, start: int, end: int) -> Value:
    """An axis moved, the others in order."""
    rank = len(value.shape)
    order = list(range(rank))
    start = order.pop(V.normal_axis(start, rank))
    order.insert(V.normal_axis(end, rank), start)
    return value if order == list(range(rank)) else V.permute(value, order)


def _whole(batch: Lift, part: Any, end: int | None) -> Any:
    """A result for all samples. Raises: ShapeError where one without an axis depends on them."""
    tree = flatten(part, lambda leaf: leaf)
    values = [h.value for h in tree.handles]
    if end is not None:
        return tree.rebuild([Tensor(_moved(v, 0, end)) for v in batch(values)])
    batch.visit(values)
    if any(v in batch.known for v in values):
        raise ShapeError(
            "a result of vmap depends on the sample and has no axis for it: out_axes=None",
            code="E174",
        )
    return part


def _refuse_states(known: dict[Value, Value]) -> None:
    """Raises: UnsupportedError where a state has taken in a sample."""
    trace = current()
    if trace is None:
        return
    assigned = [*trace.local.values(), *changes(trace.recording, trace.cells)]
    if any(value in known for value in variables(assigned)):
        raise UnsupportedError(
            "vmap of an assignment that depends on the sample",
            help="return the value, and assign it outside of vmap",
            code="E321",
        )
