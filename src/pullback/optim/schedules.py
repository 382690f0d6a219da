"""Learning-rate schedules as data, evaluated inside the compiled step from the step counter.

warmup(40) + linear(1.0, 0.0, 660)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from pullback.errors import ShapeError
from pullback.ir import expr as E
from pullback.ir import functions as F
from pullback.ir.dtype import float64
from pullback.ir.expr import Add, Expr, If, Less, Mul
from pullback.tensor.face.dialect import shown
from pullback.tensor.shaped import shaped

__all__ = ["Piece", "Schedule", "constant", "cosine", "linear", "piecewise", "warmup"]
__dir__ = shown(__all__)


@dataclass(frozen=True, slots=True)
class Piece:
    """A factor going from `start` to `end` within `steps` steps, `end` itself excluded.

    With ``f = step / steps``: linear is ``start + (end - start) f``, cosine is
    ``end + (start - end) (1 + cos(pi f)) / 2``.

    Example:
        >>> isinstance(pb.optim.schedules.linear(1.0, 0.0, 10).pieces[0], pb.optim.schedules.Piece)
        True
    """

    steps: int
    start: float
    end: float
    curve: str = "linear"

    def at(self, step: float) -> float:
        """The factor `step` steps after the piece began."""
        f = step / self.steps
        if self.curve == "cosine":
            return self.end + (self.start - self.end) * (1.0 + math.cos(math.pi * f)) / 2.0
        return self.start + (self.end - self.start) * f

    def expression(self, step: Expr) -> Expr:
        """The same as a scalar expression; `step` is a float64."""
        f = Mul(step, E.const(1.0 / self.steps, float64))
        if self.curve == "cosine":
            wave = F.cos(Mul(f, E.const(math.pi, float64)))
            half = E.const((self.start - self.end) / 2.0, float64)
            return Add(E.const(self.end, float64), Mul(half, Add(E.const(1, float64), wave)))
        rise = E.const(self.end - self.start, float64)
        return Add(E.const(self.start, float64), Mul(rise, f))


@dataclass(frozen=True, slots=True)
class Schedule:
    """Pieces one after the other; the last one's `end` stays.

    Example:
        >>> schedule = pb.optim.schedules.constant(0.5)
        >>> isinstance(schedule, pb.optim.Schedule)
        True
    """

    pieces: tuple[Piece, ...]

    def __add__(self, other: Schedule) -> Schedule:
        return Schedule(self.pieces + other.pieces)

    def at(self, step: int) -> float:
        """The factor at a step, counted from 0."""
        begin = 0
        for piece in self.pieces:
            if step < begin + piece.steps:
                return piece.at(step - begin)
            begin += piece.steps
        return self.pieces[-1].end

    def expression(self, step: Expr) -> Expr:
        """The factor as a scalar expression of a float64 step."""
        factor: Expr = E.const(self.pieces[-1].end, float64)
        begin = sum(p.steps for p in self.pieces)
        for piece in reversed(self.pieces):
            end = begin
            begin -= piece.steps
            inside = piece.expression(Add(step, E.const(-float(begin), float64)))
            factor = If(Less(step, E.const(float(end), float64)), inside, factor)
        return factor


def constant(value: float = 1.0) -> Schedule:
    """``value``

    Example:
        >>> w = nn.Parameter(pb.ones(2))
        >>> schedule = pb.optim.schedules.constant(0.5)
        >>> optimizer = pb.optim.SGD([w], lr=0.1, schedule=schedule)
        >>> len(schedule.pieces)
        1
    """
    return Schedule((Piece(1, value, value),))


@shaped("", where="int(steps) >= 1")
def linear(start: float, end: float, steps: int) -> Schedule:
    """From `start` to `end` in a straight line.

    Example:
        >>> w = nn.Parameter(pb.ones(2))
        >>> schedule = pb.optim.schedules.linear(1.0, 0.0, 10)
        >>> optimizer = pb.optim.SGD([w], lr=0.1, schedule=schedule)
        >>> len(schedule.pieces)
        1
    """
    return _one(Piece(steps, start, end))


@shaped("", where="int(steps) >= 1")
def cosine(start: float, end: float, steps: int) -> Schedule:
    """From `start` to `end` along half a cosine.

    Example:
        >>> w = nn.Parameter(pb.ones(2))
        >>> schedule = pb.optim.schedules.cosine(1.0, 0.0, 10)
        >>> optimizer = pb.optim.SGD([w], lr=0.1, schedule=schedule)
        >>> len(schedule.pieces)
        1
    """
    return _one(Piece(steps, start, end, "cosine"))


@shaped("", where="int(steps) >= 1")
def warmup(steps: int) -> Schedule:
    """``(step + 1) / steps``, which is 1 at the last of them.

    Example:
        >>> w = nn.Parameter(pb.ones(2))
        >>> schedule = pb.optim.schedules.warmup(4)
        >>> optimizer = pb.optim.SGD([w], lr=0.1, schedule=schedule)
        >>> len(schedule.pieces)
        1
    """
    return _one(Piece(steps, 1.0 / steps, 1.0 + 1.0 / steps))


def piecewise(values: Sequence[tuple[int, float]]) -> Schedule:
    """``value`` from each ``(step, value)`` on; the first step is 0.

    Raises: ShapeError where the steps do not start at 0 and rise.

    Example:
        >>> w = nn.Parameter(pb.ones(2))
        >>> schedule = pb.optim.schedules.piecewise([(0, 1.0), (10, 0.5)])
        >>> optimizer = pb.optim.SGD([w], lr=0.1, schedule=schedule)
        >>> len(schedule.pieces)
        2
    """
    begins = [step for step, _ in values]
    if not begins or begins[0] != 0 or begins != sorted(set(begins)):
        raise ShapeError(f"steps {begins} must start at 0 and rise", code="E123")
    ends = [*begins[1:], begins[-1] + 1]
    pieces = [
        Piece(end - begin, value, value) for (begin, value), end in zip(values, ends, strict=True)
    ]
    return Schedule(tuple(pieces))


def _one(piece: Piece) -> Schedule:
    return Schedule((piece,))
