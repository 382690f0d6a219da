"""Loops cut where tests and quotients of their variables change, so that none computes both sides.

``for j < 96: y[j] = if(j < 64, f(j), g(j))  ->  for j in 0..64: y[j] = f(j); for j in 64..96: ..``
``for j < 64: y[j] = x[(j + 61) % 64]  ->  for j in 0..3: y[j] = x[j + 61]; for j in 3..64: ..``
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from itertools import pairwise

from pullback.algebra.linear import Linear, linear
from pullback.config import Cap, Ints, frozen
from pullback.ir import expr as E
from pullback.ir.dtype import bool_, int64
from pullback.ir.expr import Axis, Expr, Exprs, index, upper
from pullback.ir.graph import Map
from pullback.ir.kernel import Stage
from pullback.ir.node import walk
from pullback.lower.bounds import assuming
from pullback.lower.patch import patch

# Each piece is code of its own, which takes time to compile.
MOST_PIECES: Cap = 4
MOST_PARTS: Cap = 4  # of the loops around lanes, all together

Within = Mapping[int, tuple[int, int]]  # coordinates of an axis, ``first <= .. < end``
EVERYWHERE: Within = {}


@frozen
class Piece:
    """``first <= j < end``, where the nodes of `known` have one form each."""

    first: int
    end: int
    known: dict[Expr, Expr]


@frozen
class _Forms:
    """What a node is before the first of `limits`, between it and the next, .."""

    limits: Ints
    values: Exprs


@frozen
class StagePart:
    """Stages where coordinates of axes lie `within` bounds, and the forms that they have there."""

    stages: list[Stage]
    within: Within


def stage_parts(stages: list[Stage], around: Iterable[int]) -> list[StagePart]:
    """The parts of the box of maps by axes of loops `around` lanes; one of all else."""
    if patch(stages) is not None or not all(isinstance(s.form, Map) for s in stages):
        return [StagePart(stages, EVERYWHERE)]
    extents = stages[0].extents
    axes = [Axis(n, extents[n]) for n in around if isinstance(extents[n], int)]
    return _parts(StagePart(stages, EVERYWHERE), axes, MOST_PARTS)


def _parts(part: StagePart, axes: list[Axis], most: int) -> list[StagePart]:
    """The parts of a part, by these axes."""
    if not axes:
        return [part]
    cut = pieces((s.body for s in part.stages), axes[0], 1)
    if not 1 < len(cut) <= most:
        return _parts(part, axes[1:], most)
    made = []
    for piece in cut:
        stages = [assuming(s, piece.known) for s in part.stages]
        within = {**part.within, axes[0].number: (piece.first, piece.end)}
        made += _parts(StagePart(stages, within), axes[1:], most // len(cut))
    return made


def pieces(bodies: Iterable[Expr], axis: Axis, width: int) -> list[Piece]:
    """The pieces of `axis`, `width` elements at a time; one where nothing is gained: uncut, each
    vector computes two sides. Without lanes quotients are left: they cost one instruction a row.

    Zen 3, one thread: 64 x 64 x 64 with zeros around two axes 118 -> 65 us, rolled by 3 168 -> 55.
    """
    extent = upper(axis.extent)
    forms = _forms(tuple(bodies), axis, width > 1)
    cuts = [0, extent]
    for limit in dict.fromkeys(limit for form in forms.values() for limit in form.limits):
        more = sorted({*cuts, limit})
        turns = sum(-(-(b - a) // width) for a, b in pairwise(more))
        if len(more) <= MOST_PIECES + 1 and turns < 2 * -(-extent // width):
            cuts = more
    return [Piece(a, b, _known(forms, a, b)) for a, b in pairwise(cuts)]


def _known(forms: dict[Expr, _Forms], first: int, end: int) -> dict[Expr, Expr]:
    """Nodes of one form in ``first..end``."""
    known = {}
    for node, form in forms.items():
        place = bisect_right(form.limits, first)
        if place == bisect_right(form.limits, end - 1):
            known[node] = form.values[place]
    return known


def _forms(bodies: Exprs, axis: Axis, lanes: bool) -> dict[Expr, _Forms]:
    """Tests of `axis` against numbers, and quotients and remainders of it that change seldom.

    ``j < 64 -> True until 64, then False; (j + 61) % 64 -> j + 61 until 3, then j - 3``

    Not quotients that tests ask for: what such a test excludes would stand there undecided.
    """
    forms: dict[Expr, _Forms] = {}
    extent = upper(axis.extent)
    nodes = list(walk(bodies))
    tested = set(walk([n for n in nodes if isinstance(n, E.Comparison)])) if lanes else set()
    for node in nodes:
        form = None
        if isinstance(node, E.Less) and node.left.dtype == int64:
            form = _test(node, axis, extent)
        elif lanes and isinstance(node, E.FloorDiv | E.Mod) and node not in tested:
            form = _quotient(node, axis, extent)
        if form is not None and isinstance(node, Expr):
            forms[node] = form
    return forms


def _test(test: E.Less, axis: Axis, extent: int) -> _Forms | None:
    """``factor * j + constant > 0`` of one axis."""
    form = linear(test.right).minus(linear(test.left))
    factor = form.of(axis)
    if len(form.terms) != 1 or factor == 0:
        return None
    below = factor < 0
    limit = -(-form.const // -factor) if below else -form.const // factor + 1
    values = (E.const(below, bool_), E.const(not below, bool_))
    if 0 < limit < extent:
        return _Forms((limit,), values)
    return _Forms((), values[limit <= 0 :][:1])


def _quotient(node: E.FloorDiv | E.Mod, axis: Axis, extent: int) -> _Forms | None:
    """``(constant + j) // divisor``, or its remainder, of at most so many values as pieces."""
    if node.dtype != int64 or not isinstance(node.right, E.Const):
        return None
    form, n = linear(node.left), int(node.right.value)
    factor = form.of(axis)
    if len(form.terms) != 1 or abs(factor) != 1 or n <= 0:
        return None
    first, last = form.const // n, (form.const + factor * (extent - 1)) // n
    if abs(last - first) >= MOST_PIECES:
        return None
    quotients = range(first, last + factor, factor)
    # Rising, a quotient begins at its first multiple; falling, past the last of the one before.
    limits = [factor * (n * q - form.const) for q in quotients[1:]]
    if factor < 0:
        limits = [form.const - n * (q + 1) + 1 for q in quotients[1:]]
    if isinstance(node, E.FloorDiv):
        return _Forms(tuple(limits), tuple(map(index, quotients)))
    return _Forms(tuple(limits), tuple(form.plus(Linear(-n * q)).expr() for q in quotients))
