"""Sums over processes, and pieces that go to all or to one: operations with derivatives.

    all_reduce      y_r = sum[s] x_s            dx_r = sum[s] dy_s           all_reduce
    all_gather      y_r = x_0, x_1, ..          dx_r = (sum[s] dy_s)[r]      reduce_scatter
    reduce_scatter  y_r = (sum[s] x_s)[r]       dx_r = dy_0, dy_1, ..        all_gather

Each is the transpose of another: a gradient is that of the sum over ranks of what each rank
differentiates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from pullback.distributed.group import Group, group_of
from pullback.distributed.transport import (
    ALL_GATHER,
    ALL_REDUCE,
    REDUCE_SCATTER,
    Array,
    DistributedError,
)
from pullback.errors import Origin
from pullback.ir.dtype import float32
from pullback.ir.expr import Extent
from pullback.ir.graph import Definition, Rule, Value
from pullback.tensor.face.tensor import Tensor, value_of
from pullback.tensor.forms.collective import Collective, CollectiveForm, Native, recorded
from pullback.tensor.forms.hosted import Kind
from pullback.tensor.record.held import computable
from pullback.tensor.record.trace import array_of, bind, current, realize, written_out
from pullback.tensor.values import elementwise as W

OPS = ("sum", "mean")
Move = Callable[[Value, Group], Value]


def all_reduce(x: Any, op: str = "sum", *, group: Group | None = None) -> Tensor:
    """The sum over all ranks, on each of them; ``op="mean"``: of what is divided by their number.

    ``y_r = sum[s] x_s``

    Shapes: one shape and type on every rank; 16-bit floats are added in float32.
    Raises: DistributedError for what cannot be added, and where ranks differ, end or hang.

    Example:
        >>> pb.distributed.all_reduce(pb.tensor([1.0, 2.0]))
        Tensor([1., 2.], dtype=float32)
    """
    own = group_of(group)
    return _summed(_share(x, op, own), ALL_REDUCE, own)


def all_gather(x: Any, *, group: Group | None = None) -> Tensor:
    """What every rank has, one after the other along the first axis, on each rank.

    ``y_r[s n + i, ..] = x_s[i, ..]``

    Shapes: one shape and type on every rank, (n, ..) -> (ranks n, ..).
    Raises: DistributedError for a number without axes, and where ranks differ, end or hang.

    Example:
        >>> pb.distributed.all_gather(pb.tensor([1.0, 2.0]))
        Tensor([1., 2.], dtype=float32)
    """
    given, own = Tensor(value_of(x)), group_of(group)
    if not given.shape:
        raise _refused("all_gather of a number", "pb.reshape(x, (1,)) has an axis")
    return Tensor(_moved(ALL_GATHER, _static(given), own))


def reduce_scatter(x: Any, op: str = "sum", *, group: Group | None = None) -> Tensor:
    """This rank's part, along the first axis, of the sum over all ranks, or of its mean.

    ``y_r[i, ..] = sum[s] x_s[r n + i, ..]``

    Shapes: one shape and type on every rank, (ranks n, ..) -> (n, ..).
    Raises: DistributedError for an axis that is no multiple of the number of ranks, and as
        `all_reduce`.

    Example:
        >>> pb.distributed.reduce_scatter(pb.tensor([1.0, 2.0]))
        Tensor([1., 2.], dtype=float32)
    """
    own = group_of(group)
    given = _share(x, op, own)
    if not given.shape or _static(given).shape[0] % own.size:
        raise _refused(
            f"reduce_scatter of {list(given.shape)} over {own.size} ranks",
            "the first axis is a multiple of the number of ranks",
        )
    return _summed(given, REDUCE_SCATTER, own)


def _share(x: Any, op: str, group: Group) -> Tensor:
    """What a rank adds to the sum. A mean is divided before: what reads it is a view of it."""
    if op not in OPS:
        raise _refused(f"op={op!r}", "one of " + ", ".join(OPS))
    given = Tensor(value_of(x))
    if op == "mean" and not given.dtype.is_float:
        raise _refused(f"the mean of {given.dtype}", "cast it to a float")
    return given / group.size if op == "mean" and group.size > 1 else given


def _summed(x: Tensor, kind: str, group: Group) -> Tensor:
    """By a collective that adds, of a type that all transports add."""
    own = _static(x).dtype
    if own.name == "bool":
        raise _refused("a sum of bool", "cast it to an integer")
    if own.is_float and own.bits < 32:
        return Tensor(_moved(kind, x.astype(float32), group)).astype(own)
    return Tensor(_moved(kind, x, group))


def _static(x: Tensor) -> Tensor:
    """Raises: DistributedError for a symbolic extent: ranks would not know of each other's."""
    if not all(isinstance(e, int) for e in x.shape):
        what = f"a collective of shape {W.show(x.value.shape)}"
        raise _refused(what, "sizes that are known when a program is made")
    return x


def _refused(what: str, help_text: str) -> DistributedError:
    origin = Origin.of_caller()
    return DistributedError(what, origin=origin, help=help_text, code="E614")


# --- one collective ------------------------------------------------------------------------------


def _moved(kind: str, x: Tensor, group: Group) -> Value:
    """By a call in the program that is being traced, or now."""
    if group.size == 1:
        return W.copy(x.value, kind)
    trace = current()
    if trace is None:
        y = W.copy(_now(kind, x, group), kind)
    else:
        if written_out():
            raise _unknown(kind)
        if not trace.host:
            raise _refused(f"{kind} in a program that calls no host", "PULLBACK_HOST=1")
        if group.look not in trace.looks:
            trace.looks.append(group.look)
        origin = Origin.of_caller()
        host = _collective(kind, group, len(x.shape))
        y = W.copy(
            recorded(CollectiveForm(trace, host, [x.value], strict=True, origin=origin)), kind
        )
    _attach(kind, group, x.value, y)
    return y


def _now(kind: str, x: Tensor, group: Group) -> Value:
    """Outside of a program: of a tensor that has a value."""
    if written_out() or not computable(x.value):
        raise _unknown(kind)
    own = Tensor(x.value)
    realize([own])
    source = np.asarray(array_of(own), order="C")
    said = f"{kind} of {source.dtype}{list(source.shape)}"
    group.agree("the collective", said, Origin.of_caller())
    ((shape, dtype),) = _results(kind, group, [(source.shape, x.dtype)])
    target = np.empty([int(str(e)) for e in shape], dtype.numpy)
    group.run(kind, source, target)
    return bind(target, kind, copy=False)


def _unknown(kind: str) -> DistributedError:
    return DistributedError(
        f"{kind} of a tensor without a value, outside of a program",
        origin=Origin.of_caller(),
        help="pb.jit around pb.vmap, pb.jacobian, .. makes it a program",
        code="E615",
    )


def _results(kind: str, group: Group, kinds: Sequence[Kind], lead: int = 0) -> Sequence[Kind]:
    """Shape and type of what comes, behind `lead` axes of many samples."""
    ((shape, dtype),) = kinds
    size = group.size
    by: dict[str, Callable[[int], int]] = {
        ALL_REDUCE: lambda n: n,
        ALL_GATHER: lambda n: n * size,
        REDUCE_SCATTER: lambda n: n // size,
    }
    extents: list[Extent] = list(shape)
    if len(extents) > lead and isinstance(first := extents[lead], int):
        extents[lead] = by[kind](first)
    return [(tuple(extents), dtype)]


def _collective(kind: str, group: Group, rank: int) -> Collective:
    """The calls of one; `rank` is how many axes a sample has."""

    def results(kinds: Sequence[Kind]) -> Sequence[Kind]:
        return _results(kind, group, kinds, len(kinds[0][0]) - rank)

    def start(x: Array, y: Array, ticket: Array) -> None:
        lead = x.ndim - rank
        source, target = x, y
        if kind == REDUCE_SCATTER and lead:  # blocks of ranks to the front
            source = np.ascontiguousarray(np.moveaxis(_blocks(x, lead, group.size), lead, 0))
        if kind == ALL_GATHER and lead:
            target = np.empty((group.size, *x.shape), x.dtype)
        ticket[...] = group.start(kind, source, target)
        if target is not y:
            group.after(int(ticket), partial(_spread, target, y, lead, group.size))

    def wait(ticket: Array, x: Array, y: Array, again: Array) -> None:
        group.wait(int(ticket))

    def natives(x: Kind, y: Kind) -> tuple[Native, Native] | None:
        return group.transport.natives(kind, x, y) if len(x[0]) == rank else None

    return Collective(kind, group.transport.library, start, results, start, wait, natives)


def _blocks(x: Array, lead: int, size: int) -> Array:
    """The first axis of a sample as blocks of ranks."""
    return x.reshape(*x.shape[:lead], size, -1, *x.shape[lead + 1 :])


def _spread(gathered: Array, y: Array, lead: int, size: int) -> None:
    """Blocks of ranks behind the axes of samples."""
    _blocks(y, lead, size)[...] = np.moveaxis(gathered, 0, lead)


# --- derivatives ---------------------------------------------------------------------------------

TRANSPOSE = {ALL_REDUCE: ALL_REDUCE, ALL_GATHER: REDUCE_SCATTER, REDUCE_SCATTER: ALL_GATHER}


def _attach(kind: str, group: Group, x: Value, y: Definition) -> None:
    """Give `y` its rule: linear, so that a tangent moves as the value, an adjoint back."""
    if not x.dtype.is_float:
        return

    def pull(heads: Sequence[Value]) -> Sequence[Value | None]:
        return [_moved(TRANSPOSE[kind], Tensor(heads[0]), group)]

    def push(tangents: Sequence[Value]) -> Sequence[Value]:
        return [_moved(kind, Tensor(tangents[0]), group)]

    def again(here: Callable[[Value], Value]) -> Rule | None:
        copy = here(y)
        if isinstance(copy, Definition):
            _attach(kind, group, here(x), copy)
            return copy.rule
        return None

    y.rule = Rule(kind, (y,), (x,), pull, push, again)
