"""What fusion needs to know of a definition: its accesses, its work, whether it is a view.

Work is counted in *weighted scalar operations* a point: 1 for an addition, more for what takes a
sequence of instructions. Index arithmetic counts only where it divides.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from pullback.config import Ints, frozen
from pullback.ir import expr as E
from pullback.ir.dtype import float8_e4m3fn, float8_e5m2, float32, int64
from pullback.ir.expr import Axis, Const, Expr, Extent, If, Size, Take, takes, upper
from pullback.ir.graph import Accumulate, Definition, Form, Reduce, Scan, Value, Variable, roots
from pullback.ir.node import walk
from pullback.machine.machine import Machine
from pullback.simplify.product import uncast

FREE: tuple[type[Expr], ...] = (Const, Axis, Size, Take)
# Additions that a node counts as where it takes a sequence of instructions. Judged, not measured,
# and of no one processor: fusion weighs by them. They decide, but stand in no file of a machine,
# and the count of thresholds leaves out `cost/`.
FLOPS: dict[type[Expr], int] = {
    E.Div: 4,
    E.FloorDiv: 4,
    E.Mod: 4,
    E.Exp: 10,
    E.Log: 12,
    E.Sqrt: 6,
    E.Sin: 16,
}
# Floats of 8 bits, and the type that they are widened to.
EIGHTHS = {float8_e4m3fn: float32, float8_e5m2: float32}
# Instructions that widen a vector of e4m3fn, or a number that all lanes get (two do of e5m2), and
# that round one: counted in the code for AVX2.
WIDENING = 9
ROUNDING = 14


@frozen
class Access:
    """One read of `source`: `bind[p]` is the reader's axis that *is* index `p`, else None.

    `axes` are all axes of the reader that the indices depend on.
    """

    source: Value
    bind: tuple[int | None, ...]
    axes: frozenset[int]


@frozen
class BodyFacts:
    """A body's accesses, weighted operations a point, node count."""

    accesses: tuple[Access, ...]
    flops: int
    nodes: int


def is_cheap(flops: int, machine: Machine, moves: int = 1, rate: str = "memory") -> bool:
    """Whether so many weighted operations take no longer than to move a float32 so many times, by a
    rate of whole kernels.
    """
    rates = machine.tables["whole"]
    return flops / rates["work"] <= moves * float32.itemsize / rates[rate]


def elements(shape: Iterable[Extent]) -> int:
    """Elements of a shape at its upper bounds."""
    return math.prod(upper(e) for e in shape)


def size_bytes(variable: Variable) -> int:
    """Size of a variable at its upper bounds, bytes."""
    return elements(variable.shape) * variable.dtype.itemsize


def points(definition: Definition) -> int:
    """How often the body is evaluated, at the upper bounds."""
    return elements(definition.extents)


def access(take: Take) -> Access:
    """The access pattern of a read. ``x[i, j+1] -> (x, (0, None))``"""
    shape = take.source.shape
    return Access(take.source, tuple(map(_exact, take.indices, shape)), take.axes)


def _exact(index: Expr, extent: Extent) -> int | None:
    same = isinstance(index, Axis) and index.extent == extent
    return index.number if same and isinstance(index, Axis) else None


def study(body: Expr, form: Form) -> BodyFacts:
    """One walk over a body (and write indices)."""
    accesses: dict[Access, None] = {}
    flops = 0
    nodes = 0
    for node in walk(roots(body, form)):
        nodes += 1
        if isinstance(node, Take):
            accesses[access(node)] = None
        elif isinstance(node, Expr) and not isinstance(node, FREE):
            flops += _weight(node)
    return BodyFacts(tuple(accesses), flops, nodes)


def compose(facts: BodyFacts, inlined: dict[Definition, BodyFacts]) -> BodyFacts:
    """The facts after substituting sources at their own coordinates, without a walk."""
    accesses: dict[Access, None] = {}
    for item in facts.accesses:
        if isinstance(item.source, Definition) and item.source in inlined:
            accesses.update(dict.fromkeys(inlined[item.source].accesses))
        else:
            accesses[item] = None
    parts = list(inlined.values())
    return BodyFacts(
        tuple(accesses),
        facts.flops + sum(p.flops for p in parts),
        facts.nodes + sum(p.nodes for p in parts),
    )


def _weight(node: Expr) -> int:
    if node.dtype == int64:
        return int(type(node) in FLOPS)
    return FLOPS.get(type(node), 1)


def is_view(body: Expr) -> bool:
    """Whether a body only moves elements, or widens them: ``i < n ? x[i] : y[i - n]``.

    ``x[i] + 1`` does not; neither does a cast that rounds.
    """
    stack = [body]
    seen: set[Expr] = set()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        if isinstance(node, If):
            if any(takes(node.condition)):
                return False
            stack += (node.then, node.otherwise)
        elif uncast(node) is not node:
            stack.append(uncast(node))
        elif not isinstance(node, FREE):
            return False
    return True


def split_axes(definition: Definition, form: Form) -> Ints:
    """Output axes whose coordinates are independent: candidates for outer axes."""
    rank = len(definition.shape)
    if isinstance(form, Scan):
        return tuple(a for a in range(rank) if a != form.axis)
    if isinstance(form, Accumulate):
        exact = (_exact(at, e) for at, e in zip(form.at, definition.shape, strict=True))
        return tuple(a for a in exact if a is not None)
    return tuple(range(rank))


def reduced_axes(definition: Definition, form: Form) -> Ints:
    """Numbers of the axes that a reduction sums over."""
    rank = len(definition.shape)
    return tuple(range(rank, rank + len(form.over))) if isinstance(form, Reduce) else ()


def is_identity(bind: tuple[int | None, ...], shape: tuple[Extent, ...]) -> bool:
    """Whether an access reads exactly the reader's own output coordinates."""
    return all(b == n or upper(e) == 1 for n, (b, e) in enumerate(zip(bind, shape, strict=True)))


def is_permutation(bind: tuple[int | None, ...], shape: tuple[Extent, ...]) -> bool:
    """Whether every index is an axis of its own; the index of a single element is free."""
    wide = [b for b, e in zip(bind, shape, strict=True) if upper(e) > 1]
    return None not in wide and len(set(wide)) == len(wide)
