"""Whether the coordinates of a launch fit 32 bits: a GPU multiplies those in one instruction."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from pullback.algebra.bounds import bounds
from pullback.backends.triton.blocks import Group
from pullback.ir.dtype import int64
from pullback.ir.expr import Const, Expr, Shape, Take, upper
from pullback.ir.graph import Accumulate
from pullback.ir.kernel import Stage, stage_reads
from pullback.ir.node import walk

MOST = 2**31 - 1
# Coordinates beyond the last one, which masks leave out, of the largest block.
BEYOND = 1 << 16


def narrow(group: Group) -> bool:
    """Whether all offsets, and all index arithmetic that no data enters, are proved to lie in 32
    bits. Sums of int64 are none, nor is what a run says the extent of.
    """
    shapes = [group.extents, *(shape for stage in group.stages for shape in _shapes(stage))]
    whole = all(isinstance(e, int) for shape in shapes for e in shape)
    if not whole or any(prod(map(upper, shape)) > MOST - BEYOND for shape in shapes):
        return False
    return not any(s.body.dtype is int64 for s in group.stages) and all(map(_fits, group.stages))


def _shapes(stage: Stage) -> Iterator[Shape]:
    """Of all that is read, written and gone through."""
    yield from (take.source.shape for take in stage_reads(stage))
    yield stage.shape
    yield stage.form.domain if isinstance(stage.form, Accumulate) else stage.extents
    if stage.store is not None:
        yield stage.store.shape


def _fits(stage: Stage) -> bool:
    """Whether index arithmetic fits; what data enters is computed in 64 bits, as data is."""
    data: set[Expr] = set()
    for node in walk(stage.roots):
        if not isinstance(node, Expr):
            continue
        if isinstance(node, Take) or any(child in data for child in node.children):
            data.add(node)
        elif node.dtype is int64 and not isinstance(node, Const):
            low, high = bounds(node)
            if low < -MOST + BEYOND or high > MOST - BEYOND:
                return False
    return True
