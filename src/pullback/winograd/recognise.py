"""Convolutions of 3 x 3 taps and stride 1 among definitions, by what they compute.

    y[.., u, v] = sum[c.., k, l] x[.., u +- k + a, v +- l + b] * w[.., k, l]       role OUTPUT
    dw[.., k, l] = sum[n.., u, v] g[.., u, v] * x[.., u +- k + a, v +- l + b]      role WEIGHT

Forward, the adjoint by the input (taps turned round) and the one by the weight. Groups, batches and
slices are in the other indices, which stay as they are; padding is a guard, which is looked at for
every pair of places.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from enum import Enum
from typing import Any

import numpy as np

from pullback.algebra.affine import affine
from pullback.config import Pair, frozen
from pullback.ir import expr as E
from pullback.ir.dtype import float32, float64
from pullback.ir.expr import Axis, Expr, Extent, If, Less, Mul, Take, is_const
from pullback.ir.graph import SUM, Definition, Reduce
from pullback.winograd.algorithms import TAPS

NEITHER = "no two axes of taps"


class Role(Enum):
    """What the taps are: summed over, or the result."""

    OUTPUT = "output"
    WEIGHT = "weight"


@frozen
class Slide:
    """One axis of space: index `place` of x is ``long + step tap + shift``, data in `inside`.

    `other` is the index of the other operand that is the tap (of a weight the long axis).
    """

    place: int
    other: int
    long: Axis
    tap: Axis
    step: int
    shift: int
    inside: Pair

    @property
    def extent(self) -> int:
        """How many places the taps are moved to."""
        assert isinstance(self.long.extent, int)
        return self.long.extent

    @property
    def first(self) -> int:
        """Where the first tap of the first place stands in x, taps in rising order."""
        return self.shift if self.step == 1 else self.shift - TAPS + 1


@frozen
class Convolution:
    """A definition as a convolution of `x` with `other`, along two axes of space."""

    definition: Definition
    role: Role
    x: Take
    other: Take
    slides: tuple[Slide, Slide]


def recognised(definition: Definition) -> Convolution | str:
    """The convolution that a definition is, or why it is none that is known here."""
    form = definition.form
    if not isinstance(form, Reduce) or form.combiner is not SUM:
        return "no sum"
    if definition.dtype not in (float32, float64):
        return f"sums of {definition.dtype}"
    conditions: list[Expr] = []
    factors = list(_factors(definition.body, conditions))
    reads = [e for e in factors if isinstance(e, Take) and not e.is_data]
    if len(reads) != 2 or len(factors) != 2:
        return "no product of two tensors"
    pairs = (reads, reads[::-1])
    either = [_convolution(definition, x, other, conditions) for x, other in pairs]
    whole = [one for one in either if isinstance(one, Convolution)]
    near = [one for one in either if one != NEITHER]
    return (whole or near or [NEITHER])[0]


def _factors(e: Expr, conditions: list[Expr]) -> Iterator[Expr]:
    """What is multiplied, and what must hold, else the product is zero."""
    if isinstance(e, Mul):
        yield from _factors(e.left, conditions)
        yield from _factors(e.right, conditions)
    elif isinstance(e, If) and is_const(e.otherwise, 0):
        conditions += _parts(e.condition)
        yield from _factors(e.then, conditions)
    else:
        yield e


def _parts(condition: Expr) -> Iterator[Expr]:
    if isinstance(condition, E.And):
        yield from _parts(condition.left)
        yield from _parts(condition.right)
    else:
        yield condition


def _convolution(
    definition: Definition, x: Take, other: Take, conditions: list[Expr]
) -> Convolution | str:
    places = range(len(x.indices))
    met = [m for m in (_met(definition, x, other, place) for place in places) if m is not None]
    why = NEITHER
    if len(met) == 2:
        why = f"taps of {met[0].summed.extent} x {met[1].summed.extent}"
    for role in Role:
        slides = [s for m in met if (s := m.slide(role)) is not None]
        if len(slides) != 2:
            continue
        inside = _guarded(slides, x, other, conditions)
        if not isinstance(inside, str):
            return Convolution(definition, role, x, other, inside)
        why = inside
    return why


@frozen
class _Met:
    """An index of x that is the sum of an axis of the result and one that is summed over."""

    place: int
    other: int
    kept: Axis
    summed: Axis
    steps: Pair
    shift: int

    def slide(self, role: Role) -> Slide | None:
        """What it is where the taps are summed, or the result; None where they are not three."""
        long, tap, (along, step) = self.kept, self.summed, self.steps
        if role is Role.WEIGHT:
            long, tap, step, along = tap, long, along, step
        if tap.extent != TAPS or along != 1 or step not in (1, -1):
            return None
        return Slide(self.place, self.other, long, tap, step, self.shift, (0, 0))


def _met(definition: Definition, x: Take, other: Take, place: int) -> _Met | None:
    form, rank = affine(x.indices[place]), len(definition.shape)
    atoms = sorted(((a.number, a, c) for a, c in form.terms if isinstance(a, Axis)))
    if len(form.terms) != 2 or len(atoms) != 2:
        return None
    (first, kept, one), (second, summed, two) = atoms
    at = [p for p, i in enumerate(other.indices) if i is summed]
    literal = all(isinstance(e, int) for e in (kept.extent, summed.extent, _at(x, place)))
    if first >= rank or second < rank or len(at) != 1 or not literal:
        return None
    if other.source.shape[at[0]] != summed.extent or abs(one) != 1 or abs(two) != 1:
        return None
    return _Met(place, at[0], kept, summed, (one, two), form.const)


def _at(take: Take, place: int) -> Extent:
    return take.source.shape[place]


def _guarded(
    slides: list[Slide], x: Take, other: Take, conditions: list[Expr]
) -> tuple[Slide, Slide] | str:
    """Two axes of space with what of x is inside; or what is between them."""
    first, second = slides
    made = []
    for slide, beside in ((first, second), (second, first)):
        own = {slide.long.number, slide.tap.number}
        if own & {beside.long.number, beside.tap.number}:
            return "an axis of both directions"
        elsewhere = [i for p, i in enumerate(x.indices) if p != slide.place]
        elsewhere += [i for p, i in enumerate(other.indices) if p != slide.other]
        if any(i.axes & own for i in elsewhere):
            return "an axis of space that is read twice"
        guard = [c for c in conditions if c.axes & own]
        if not all(c.axes <= own for c in guard):
            return "a guard over several axes"
        inside = _inside(slide, guard, _at(x, slide.place))
        if inside is None:
            return "a guard that is no padding"
        made.append(replace(slide, inside=inside))
    known = {a.number for s in slides for a in (s.long, s.tap)}
    if not all(c.axes & known for c in conditions):
        return "a guard beside the padding"
    return made[0], made[1]


def _inside(slide: Slide, guard: list[Expr], extent: Any) -> Pair | None:
    """The elements of x that take part; None where that does not depend on the element alone."""
    long, tap = np.meshgrid(np.arange(slide.extent), np.arange(TAPS), indexing="ij")
    known = {slide.long.number: long, slide.tap.number: tap}
    read = long + slide.step * tap + slide.shift
    holds = np.ones(read.shape, bool)
    for condition in guard:
        value = _value(condition, known)
        if value is None:
            return None
        holds &= value
    inside = set(read[holds].tolist())
    if inside & set(read[~holds].tolist()) or not inside:
        return None
    low, high = min(inside), max(inside) + 1
    within = low >= 0 and high <= extent and len(inside) == high - low
    return (low, high) if within else None


def _value(e: Expr, known: dict[int, Any]) -> Any:
    """A condition over two axes at every pair of their places; None for what is not known here."""
    if isinstance(e, Axis):
        return known[e.number]
    if isinstance(e, E.Const):
        return e.value
    if not isinstance(e, tuple(OPERATIONS)):
        return None
    left, right = (_value(c, known) if isinstance(c, Expr) else None for c in e.children)
    if left is None or right is None:
        return None
    return OPERATIONS[type(e)](left, right)


OPERATIONS: dict[type[Expr], Any] = {
    E.Add: np.add,
    E.Mul: np.multiply,
    E.FloorDiv: np.floor_divide,
    E.Mod: np.mod,
    Less: np.less,
    E.Equal: np.equal,
    E.And: np.logical_and,
    E.Or: np.logical_or,
    E.Xor: np.logical_xor,
}
