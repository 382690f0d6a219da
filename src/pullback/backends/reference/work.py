"""How much a loop nest does: iterations counted from its bounds, without running them.

``for m in 0..4: for k in 0..8*m + 8: acc += a*b  ->  80 multiply-adds``
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from pullback.backends.reference.nests import Machine
from pullback.ir import expr as E
from pullback.ir import nest as N
from pullback.ir.node import Node, walk


@dataclass(frozen=True, slots=True)
class Work:
    """Executed statements. `multiply_adds`: sums of products of floats; `terms`: all that is
    combined, those included; `stores`: elements written plainly, copies of panels included.
    """

    multiply_adds: int = 0
    terms: int = 0
    stores: int = 0

    def __add__(self, other: Work) -> Work:
        return Work(
            self.multiply_adds + other.multiply_adds,
            self.terms + other.terms,
            self.stores + other.stores,
        )

    def times(self, count: int) -> Work:
        """The same again and again."""
        return Work(self.multiply_adds * count, self.terms * count, self.stores * count)


def executed(routine: N.Routine, sizes: Sequence[int] = ()) -> Work:
    """What one launch of `routine` executes. A guard over data counts as taken.

    An integer that bounds a loop (the step of a scan) is taken to be 0.
    """
    count = _Count(Machine(routine))
    for array in routine.arguments:
        if array.size == 1 and array.dtype.is_integer:
            count.machine.memory[array] = np.zeros(1, array.dtype.numpy)
    for var, size in zip(routine.sizes, sizes, strict=True):
        count.machine.bind(var, size)
    total = Work()
    for task in range(routine.tasks):
        count.machine.bind(routine.task, task)
        total += count.block(routine.body)
    return total + count.block(routine.finish)


@dataclass(slots=True)
class _Count:
    machine: Machine
    control: dict[N.For, set[Node]] = field(default_factory=dict)

    def block(self, body: Iterable[N.Stmt]) -> Work:
        total = Work()
        for statement in body:
            total += self.statement(statement)
        return total

    def statement(self, s: N.Stmt) -> Work:
        match s:
            case N.For():
                return self.loop(s)
            case N.Guard():
                return self.block(s.body) if self.taken(s.condition) else Work()
            case N.Combine() | N.StoreCombine():
                product = isinstance(s.value, E.Mul) and s.value.dtype.is_float
                return Work(int(product and s.combiner.name == "sum"), 1)
            case N.Store():
                return Work(stores=1)
            case N.Transpose():
                words = self.machine.integer(s.rows) * self.machine.integer(s.columns)
                return Work(stores=words * s.word)
        return Work()

    def taken(self, condition: E.Expr) -> bool:
        if any(isinstance(n, N.Load | N.Peek) for n in walk(condition)):
            return True
        return bool(self.machine.value(condition))

    def loop(self, s: N.For) -> Work:
        """Turn by turn only where bounds or guards inside depend on the variable."""
        numbers = range(self.machine.integer(s.lo), self.machine.integer(s.hi), s.step)
        if s not in self.control:
            self.control[s] = set(walk(_control(s.body)))
        if s.var not in self.control[s]:
            return self.turn(s, numbers[0]).times(len(numbers)) if numbers else Work()
        total = Work()
        for number in numbers:
            total += self.turn(s, number)
        return total

    def turn(self, s: N.For, number: int) -> Work:
        self.machine.bind(s.var, number)
        return self.block(s.body)


def _control(body: Iterable[N.Stmt]) -> list[E.Expr]:
    """Every expression that decides what runs."""
    roots: list[E.Expr] = []
    stack = list(body)
    while stack:
        s = stack.pop()
        match s:
            case N.For():
                roots += [s.lo, s.hi]
                stack.extend(s.body)
            case N.Guard():
                roots.append(s.condition)
                stack.extend(s.body)
            case N.Transpose():
                roots += [s.rows, s.columns]
    return roots
