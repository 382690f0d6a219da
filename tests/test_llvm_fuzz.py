"""Random loop nests: native code against the interpreter of nests, which runs them backwards."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from llvm_support import TARGETS, Fenced, load, loop, routine, vector
from pullback.backends.reference.nests import run_routine
from pullback.ir import expr as E
from pullback.ir.dtype import (
    DType,
    bool_,
    float32,
    float64,
    int16,
    int32,
    int64,
    uint16,
    uint64,
)
from pullback.ir.expr import Const, Expr, index
from pullback.ir.graph import MAX, MIN, SUM
from pullback.ir.nest import (
    Array,
    Combine,
    Declare,
    Guard,
    Load,
    Native,
    Peek,
    Register,
    Routine,
    Set,
    Stmt,
    Store,
    StoreCombine,
    Var,
)

SEEDS = range(32)
ROWS, WIDTH = 3, 37
KINDS = [float32, float64, int32, int64, int16, uint16, uint64]


class Maker:
    """One random routine: rows in order, inside them statements over lanes."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.kind = self.random.choice(KINDS)
        size = ROWS * WIDTH
        self.inputs = [Array(f"x{n}", self.kind, size) for n in range(2)]
        self.flags = Array("f", bool_, size)
        self.picks = Array("p", int64, size)
        self.outputs = [Array(f"y{n}", self.kind, size) for n in range(3)]
        self.row = Var("r", 0, ROWS - 1)
        self.registers: list[Register] = []
        self.counters: list[Var] = []
        self.count = 0

    def name(self, stem: str) -> str:
        self.count += 1
        return f"{stem}{self.count}"

    def at(self, v: Expr) -> Expr:
        """An offset within the row: straight, reversed, strided, picked."""
        turn = self.random.randrange(6)
        inside = v
        if turn == 1:
            inside = E.subtract(index(WIDTH - 1), v)
        elif turn == 2:
            inside = E.Mod(E.Mul(v, index(3)), index(WIDTH))
        elif turn == 3:
            inside = Load(self.picks, self.flat(v))
        elif turn == 4:
            inside = E.FloorDiv(v, index(2))
        elif turn == 5 and self.counters:
            inside = self.random.choice(self.counters)
        return self.flat(inside)

    def flat(self, v: Expr) -> Expr:
        return E.Add(E.Mul(self.row, index(WIDTH)), v)

    def literal(self) -> Const:
        return E.const(self.random.randint(-3, 3), self.kind)

    def value(self, v: Expr, depth: int = 3) -> Expr:
        turn = self.random.randrange(10 if depth else 3)
        if turn == 0:
            return self.literal()
        if turn == 1 and self.registers:
            return Peek(self.random.choice(self.registers), ())
        if turn == 2 and self.random.random() < 0.3:
            return Load(self.random.choice(self.outputs), self.flat(v))
        if turn <= 2:
            return Load(self.random.choice(self.inputs), self.at(v))
        a, b = (self.value(v, depth - 1) for _ in range(2))
        if turn in (3, 4):
            return E.Add(a, b)
        if turn == 5:
            return E.Mul(a, self.literal())
        if turn == 6:
            return E.If(self.condition(v, depth - 1), a, b)
        if turn == 7:
            if self.kind == int64:
                return E.maximum(a, b)
            return Native(self.random.choice(["maximum", "minimum"]), (a, b))
        if turn == 8:
            return E.Cast(E.Add(v, index(self.random.randint(0, 3))), self.kind)
        return self.shifted(v, a)

    def shifted(self, v: Expr, other: Expr) -> Expr:
        """A neighbour, read only where it is there."""
        step = self.random.choice([-2, -1, 1, 3])
        there = E.Add(v, index(step))
        inside = E.And(E.Less(index(-1), there), E.Less(there, index(WIDTH)))
        return E.If(inside, Load(self.inputs[0], self.flat(there)), other)

    def condition(self, v: Expr, depth: int) -> Expr:
        turn = self.random.randrange(4)
        if turn == 0:
            return Load(self.flags, self.flat(v))
        if turn == 1:
            return E.Less(v, index(self.random.randrange(WIDTH)))
        if turn == 2:
            return E.Equal(E.Mod(self.row, index(2)), index(0))
        return E.Less(self.value(v, depth), self.literal())

    def body(self, v: Expr, depth: int) -> list[Stmt]:
        """Statements for one lane: registers, inner loops, guards, then a store."""
        known = list(self.registers)
        made = [s for _ in range(self.random.randint(1, 3)) for s in self.step(v, depth)]
        target = self.random.choice(self.outputs)
        made.append(Store(target, self.flat(v), self.value(v)))
        self.registers = known
        return made

    def step(self, v: Expr, depth: int) -> list[Stmt]:
        register = Register(self.name("r"), self.kind)
        declared = Declare(register, self.value(v, 1))
        turn = self.random.randrange(4)
        if turn == 0 and depth:
            k = Var(self.name("k"), 0, 4)
            self.counters.append(k)
            combine = Combine(register, (), self.random.choice([SUM, MAX, MIN]), self.value(v, 2))
            inner = loop(k, 5, combine, unroll=self.random.random() < 0.5)
            self.counters.pop()
            self.registers.append(register)
            return [declared, inner]
        if turn == 1:
            guarded = Guard(self.condition(v, 1), (Set(register, (), self.value(v, 2)),))
            self.registers.append(register)
            return [declared, guarded]
        if turn == 2:
            target = self.random.choice(self.outputs)
            return [StoreCombine(target, self.flat(v), SUM, self.value(v, 2))]
        self.registers.append(register)
        return [declared]

    def sweep(self) -> list[Stmt]:
        """One loop over lanes, or one in order; sometimes a reduction that later ones read."""
        v = Var(self.name("v"), 0, WIDTH - 1)
        lo = self.random.choice([0, 0, 2])
        hi = self.random.choice([WIDTH, WIDTH, 16, 20, 7])
        unroll = self.random.choice([1, 2, 4])
        if self.random.random() < 0.3:
            total = Register(self.name("t"), self.kind)
            combiner = self.random.choice([SUM, MAX, MIN])
            inner = Combine(total, (), combiner, self.value(v, 2))
            start = Declare(total, self.literal())
            found = [start, vector(v, hi, inner, lo=lo, unroll=unroll)]
            self.registers.append(total)
            return found
        body = self.body(v, 1)
        if self.random.random() < 0.2:
            return [loop(v, hi, *body)]
        return [vector(v, hi, *body, lo=lo, unroll=unroll)]

    def build(self) -> Routine:
        stmts = [s for _ in range(self.random.randint(1, 4)) for s in self.sweep()]
        arrays = [*self.inputs, self.flags, self.picks, *self.outputs]
        return routine(arrays, [loop(self.row, ROWS, *stmts)])


def arrays(kind: DType, seed: int) -> list[np.ndarray[Any, Any]]:
    source = np.random.default_rng(seed)
    size = ROWS * WIDTH
    values = [source.integers(-4, 5, size).astype(kind.numpy) for _ in range(2)]
    values += [source.random(size) < 0.5, source.integers(0, WIDTH, size)]
    return values + [np.zeros(size, kind.numpy) for _ in range(3)]


def compare(made: Sequence[Maker]) -> None:
    routines = [m.build() for m in made]
    for target in TARGETS:
        for maker, nest, call in zip(made, routines, load(routines, target), strict=True):
            given = arrays(maker.kind, 1)
            fenced = [Fenced(a) for a in given]
            call([f.array for f in fenced])
            run_routine(nest, given)
            for found, wanted in zip(fenced, given, strict=True):
                np.testing.assert_allclose(found.array, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", SEEDS)
def test_random_nests(seed: int) -> None:
    with np.errstate(all="ignore"):
        compare([Maker(seed)])
