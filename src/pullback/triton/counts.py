"""How many lanes of a mask hold, by a number that the kernel computes itself.

    sum over lanes of (a + lane < n)  =  min(n - a, lanes)      where n - a >= 0 at each step

It is said for the numbers and the grid of a call. Of several axes it is a product.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from pullback.triton.forward import kind_of
from pullback.triton.moments import ALL, Counted
from pullback.triton.nodes import Operation, Value
from pullback.triton.sharing import Form, Reach

# A number, and factors that are none: sums, and what is taken where they are more.
Product = tuple[int, tuple[tuple[tuple[tuple[str, int], ...], int], ...]]


def counted(reach: Reach) -> Counted:
    """The masks of loads in loops, by numbers that a loop adds up: how many of their lanes hold."""
    return frozenset(
        (load.operands[1].name, axis, count.name)
        for loop in reach.facts.function.block.walk()
        if loop.name == "scf.for"
        for count in _added(reach, loop)
        for load in loop.regions[0].operations
        if load.name == "tt.load" and len(load.operands) > 1
        for axis in (ALL, *range(len(load.operands[1].type.shape)))
        if _agree(reach, load, axis, count)
    )


def _added(reach: Reach, loop: Operation) -> Iterator[Value]:
    """Numbers that a loop adds to those that it carries, and makes at each step."""
    body = loop.regions[0]
    for carried, end in zip(body.arguments[1:], body.yields, strict=True):
        holder = reach.facts.makers.get(end)
        if holder is None or holder.name not in ("arith.addi", "arith.addf"):
            continue
        if carried in holder.operands and not carried.type.shape:
            yield from (v for v in holder.operands if v != carried)


def _agree(reach: Reach, load: Operation, axis: int, count: Value) -> bool:
    extents = reach.extents(load)
    if extents is None:
        return False
    lanes = _Lanes(reach, extents)
    held = lanes.held(load.operands[1], axis)
    return held is not None and held == lanes.product(count)


class _Lanes:
    """Numbers as products of sums, whose parts have so many values."""

    def __init__(self, reach: Reach, extents: Mapping[str, int]) -> None:
        self.reach, self.extents = reach, extents

    def held(self, mask: Value, axis: int) -> Product | None:
        """How many lanes hold along an axis, or along all; nothing, where that is not known."""
        bounds, shape = self.reach.bounds(mask), mask.type.shape
        if len(bounds) < self.conditions(mask):
            return None
        free = {f"lane{k}": n for k, n in enumerate(shape) if axis in (ALL, k)}
        extents = {**self.extents, **{f"lane{k}": n for k, n in enumerate(shape)}}
        own, parts = _Lanes(self.reach, extents), list[Product]()
        for bound in bounds:
            lane, *more = [atom for atom in bound if atom in free] or [""]
            if not lane and own.range(bound)[1] < 0:
                continue
            rest = {atom: -by for atom, by in bound.items() if atom != lane}
            if not lane or more or bound[lane] != 1 or own.range(rest)[0] < 0:
                return None
            parts.append(own.least(rest, free.pop(lane)))
        return _product([*parts, *((n, ()) for n in free.values())])

    def conditions(self, mask: Value) -> int:
        """How many conditions a mask is made of."""
        holder = self.reach.facts.makers.get(mask)
        inner = ("tt.splat", "tt.broadcast", "tt.expand_dims", "arith.andi")
        if holder is None or holder.name not in inner:
            return 1
        return sum(map(self.conditions, holder.operands))

    def product(self, value: Value) -> Product | None:
        """A number that the kernel computes; nothing, where it is none that is known."""
        holder = self.reach.facts.makers.get(value)
        operands = () if holder is None else holder.operands
        if holder is not None and holder.name in ("arith.extsi", "arith.sitofp"):
            return self.product(operands[0])
        if holder is not None and holder.name == "arith.muli":
            parts = [made for made in map(self.product, operands) if made is not None]
            return _product(parts) if len(parts) == 2 else None
        if holder is not None and holder.name == "arith.minsi":
            one, two = sorted(map(self.reach.form, operands), key=lambda f: f is None or len(f))
            if one is None or two is None or not one.keys() <= {""}:
                return None
            return self.least(two, one.get("", 0))
        if holder is not None and holder.name == "tt.reduce" and kind_of(holder) == "sum":
            cast = self.reach.facts.makers.get(operands[0])
            truth = cast is not None and cast.name in ("arith.uitofp", "arith.extui")
            axis = int(holder.attribute("axis"))
            return self.held(cast.operands[0], axis) if cast is not None and truth else None
        form = self.reach.form(value)
        return None if form is None else self.least(form, self.range(form)[1])

    def least(self, form: Form, most: int) -> Product:
        """``min(form, most)``"""
        low, high = self.range(form)
        if low >= most or low == high:
            return min(low, most), ()
        return 1, ((tuple(sorted(form.items())), min(high, most)),)

    def range(self, form: Form) -> tuple[int, int]:
        """The least and the most that a sum is."""
        ends = [by * (self.extents[atom] - 1) for atom, by in form.items() if atom]
        low, high = (sum(f(0, end) for end in ends) for f in (min, max))
        return form.get("", 0) + low, form.get("", 0) + high


def _product(parts: Sequence[Product]) -> Product:
    number = math.prod(one for one, _ in parts)
    return number, tuple(sorted(factor for _, factors in parts for factor in factors))
