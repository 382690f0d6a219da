"""The whole numbers of a kernel, for all programs and steps of a call at once: its addresses.

    value[turn, step, lane0, lane1] = part + part + ..

A *turn* is a program at one step of the loops around a loop, whose own numbers are *steps*. A part
is an array that has one element along what it does not depend on: rows and columns of a block stay
apart, whatever order a kernel takes its blocks in. A truth is what all of its parts say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from functools import reduce
from typing import Any

import numpy as np

from pullback.triton.facts import Facts, start_of
from pullback.triton.forward import order_of
from pullback.triton.nodes import Operation, Type, Value

Array = np.ndarray[Any, Any]
Parts = tuple[Array, ...]

# Elements of a part, 128 MiB of 64-bit numbers: what is larger is not known.
ROOM = 1 << 24

_WORDS: Mapping[str, Callable[[Array, Array], Array]] = {
    "slt": np.less, "sle": np.less_equal, "sgt": np.greater, "sge": np.greater_equal,
    "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip


class Indices:
    """Values of a kernel, by the numbers that it is given and its grid."""

    def __init__(
        self, facts: Facts, numbers: Mapping[str, int], grid: tuple[int, int, int]
    ) -> None:
        self.facts, self.numbers, self.grid = facts, numbers, grid
        places = np.indices(grid, np.int64).reshape(3, -1)
        self.turns: dict[Any, Array] = dict(zip("xyz", places, strict=True))
        self.counted: dict[Value, Array] = {}  # the number of a loop's step, from 0, by its counter
        self.steps = 1
        self.known: dict[Value, Parts | None] = {}

    def around(self, loop: Operation) -> bool:
        """Makes each step of a loop a turn; whether its steps are known."""
        bounds = self.bounds(loop)
        if bounds is None:
            return False
        count = len(self.turns["x"])
        low, high, step = (np.broadcast_to(b.reshape(-1), count) for b in bounds)
        times = np.maximum(0, -((low - high) // step))
        if times.sum() > ROOM:
            return False
        pick = np.repeat(np.arange(count), times)
        first = np.repeat(np.cumsum(times) - times, times)
        self.turns = {k: turns[pick] for k, turns in self.turns.items()}
        self.counted = {k: count[pick] for k, count in self.counted.items()}
        self.counted[_counter(loop)] = (np.arange(len(pick)) - first)[:, None]
        self.known.clear()
        return True

    def within(self, loop: Operation) -> bool:
        """Makes the numbers of a loop steps, the same ones at each turn; whether they are known."""
        bounds = self.bounds(loop)
        if bounds is None or any(b.size > 1 for b in bounds):
            return False
        low, high, step = (b.item() for b in bounds)
        times = max(0, -((low - high) // step))
        if times > ROOM:
            return False
        self.steps = times
        self.counted[_counter(loop)] = np.arange(times)[None, :]
        self.known.clear()
        return True

    def bounds(self, loop: Operation) -> tuple[Array, ...] | None:
        """Where a loop begins and ends, and its step, by turn."""
        if loop.name != "scf.for":
            return None
        made = [self.whole(v) for v in loop.operands[:3]]
        known = tuple(b for b in made if b is not None)
        return known if len(known) == 3 and (known[2] > 0).all() else None

    def whole(self, value: Value) -> Array | None:
        """A value as one part; nothing where it is not known, or too large."""
        parts = self.parts(value)
        return None if parts is None else _joined(parts, value.type)

    def parts(self, value: Value) -> Parts | None:
        """A value as parts; nothing where it is not known."""
        if value not in self.known:
            self.known[value] = self.made(value)
        return self.known[value]

    def made(self, value: Value) -> Parts | None:
        holder = self.facts.makers.get(value)
        if holder is not None:
            return self.result(holder)
        if value in self.facts.around:
            return self.carried(self.facts.around[value], value)
        if value.type.pointer:
            return ()
        number = self.numbers.get(value.name)
        return None if number is None else (_number(number),)

    def carried(self, loop: Operation, value: Value) -> Parts | None:
        """What a loop begins with, and what it grows by at each step."""
        count = self.counted.get(_counter(loop))
        if count is None:
            return None
        place = loop.regions[0].arguments.index(value) - 1
        start = loop.operands[0] if place < 0 else start_of(loop, value)
        step = loop.operands[2] if place < 0 else self.facts.step(loop, place)
        if step is None:
            return None
        return _added(self.parts(start), _times((count,), self.parts(step), len(value.type.shape)))

    def result(self, o: Operation) -> Parts | None:
        rank = len(o.results[0].type.shape)
        match o.name:
            case "arith.constant":
                return _constant(o, rank)
            case "tt.get_program_id":
                return (self.turns[o.attribute("word")][:, None],)
            case "tt.get_num_programs":
                return (_number(self.grid["xyz".index(o.attribute("word"))]),)
            case "tt.make_range":
                return (np.arange(int(o.attribute("start")), int(o.attribute("end")))[None, None],)
            case "tt.broadcast" | "arith.extsi":
                kept = o.name == "tt.broadcast" or o.operands[0].type.element != "i1"
                return self.parts(o.operands[0]) if kept else None
            case "tt.splat":
                return _each(self.parts(o.operands[0]), lambda p: _ranked(p, rank))
            case "tt.expand_dims":
                axis = 2 + int(o.attribute("axis"))
                return _each(self.parts(o.operands[0]), lambda p: np.expand_dims(p, axis))
            case "tt.trans":
                order = (0, 1, *(2 + k for k in order_of(o)))
                return _each(self.parts(o.operands[0]), lambda p: p.transpose(order))
            case "arith.addi" | "tt.addptr" | "arith.subi":
                one, two = map(self.parts, o.operands)
                less = o.name == "arith.subi"
                return _lined(_added(one, _each(two, np.negative) if less else two), o)
            case "arith.muli":
                one, two = map(self.parts, o.operands)
                return _times(one, two, rank)
            case "arith.andi" if o.results[0].type.element == "i1":
                one, two = map(self.parts, o.operands)
                return _added(one, two, np.logical_and)
        return self.elements(o)

    def elements(self, o: Operation) -> Parts | None:
        """An operation that makes one part of all."""
        rule = _WORDS.get(o.attribute("word")) if o.name == "arith.cmpi" else _RULES.get(o.name)
        known = [v for v in map(self.whole, o.operands) if v is not None]
        if rule is None or len(known) < len(o.operands):
            return None
        if math.prod(np.broadcast_shapes(*(v.shape for v in known))) > ROOM:
            return None
        if o.name in ("arith.divsi", "arith.remsi") and not known[1].all():
            return None
        return (rule(*known),)


def _joined(parts: Parts, type: Type) -> Array | None:
    """Parts as one; nothing where it is too large."""
    if math.prod(np.broadcast_shapes(*(p.shape for p in parts))) > ROOM:
        return None
    truth = type.element == "i1"
    start = np.full((1,) * (2 + len(type.shape)), truth, bool if truth else np.int64)
    return reduce(np.logical_and if truth else np.add, parts, start)


def _lined(parts: Parts | None, o: Operation) -> Parts | None:
    """Numbers along one axis are one part: the first row of a program goes with its rows, and what
    a program adds to an address does not.
    """
    type = o.results[0].type
    if parts is None or type.pointer or sum(n > 1 for n in type.shape) != 1:
        return parts
    made = _joined(parts, type)
    return None if made is None else (made,)


def _quotient(a: Array, b: Array) -> Array:
    """Rounded towards 0, as a device does."""
    return np.sign(a) * np.sign(b) * (abs(a) // abs(b))


_RULES: Mapping[str, Callable[..., Array]] = {
    "arith.divsi": _quotient,
    "arith.remsi": lambda a, b: a - b * _quotient(a, b),
    "arith.minsi": np.minimum,
    "arith.maxsi": np.maximum,
    "arith.select": np.where,
    "arith.ori": np.bitwise_or,
    "arith.andi": np.bitwise_and,
    "arith.xori": np.bitwise_xor,
}


def _counter(loop: Operation) -> Value:
    return loop.regions[0].arguments[0]


def _number(number: int) -> Array:
    return np.full((1, 1), number, np.int64)


def _constant(o: Operation, rank: int) -> Parts | None:
    text, type = o.attribute("value"), o.results[0].type
    if type.element == "i1":
        return (np.full((1, 1) + (1,) * rank, text in ("true", "1", "-1")),)
    return (_ranked(_number(int(text)), rank),) if text.lstrip("-").isdigit() else None


def _ranked(part: Array, rank: int) -> Array:
    """A number as a block of them."""
    return part.reshape(part.shape[:2] + (1,) * rank)


def _each(parts: Parts | None, made: Callable[[Array], Array]) -> Parts | None:
    return None if parts is None else tuple(map(made, parts))


def _added(one: Parts | None, two: Parts | None, by: Any = np.add) -> Parts | None:
    return None if one is None or two is None else _merged((*one, *two), by)


def _times(one: Parts | None, two: Parts | None, rank: int) -> Parts | None:
    """A product, where either is one part."""
    if one is None or two is None:
        return None
    if len(two) > 1:
        one, two = two, one
    if len(two) > 1:
        return None
    pairs = [(_full(a, rank), _full(b, rank)) for a in one for b in two]
    if any(math.prod(np.broadcast_shapes(a.shape, b.shape)) > ROOM for a, b in pairs):
        return None
    return _merged((a * b for a, b in pairs), np.add)


def _full(part: Array, rank: int) -> Array:
    return part if part.ndim == 2 + rank else _ranked(part, rank)


def _merged(parts: Iterable[Array], by: Any) -> Parts:
    """Parts that depend on the same are one."""
    made: dict[tuple[int, ...], Array] = {}
    for part in parts:
        made[part.shape] = by(made[part.shape], part) if part.shape in made else part
    return tuple(made.values())
