"""A bound of the price from below, known before a kernel has a schedule: what any schedule does."""

from __future__ import annotations

from math import prod

from pullback.cost.facts import size_bytes
from pullback.ir import expr as E
from pullback.ir.expr import Expr, upper
from pullback.ir.graph import SUM, Reduce
from pullback.ir.kernel import Kernel, Stage, Stages
from pullback.ir.node import walk
from pullback.ir.target import Target

FUNCTIONS = {E.Exp: "exp", E.Log: "log", E.Sqrt: "sqrt", E.Sin: "sin"}
CHOICES = (E.If, E.Less, E.Equal, E.FloorDiv, E.Mod)
WORDS = 4  # products of bytes that one instruction may add up


def bound(kernel: Kernel, target: Target) -> float:
    """Nanoseconds on one thread that no schedule of `kernel` undercuts by its price.

    Multiply-adds of full register tiles, functions of full vectors, each at most as often as its
    own axes say; or what is written past the caches, whichever takes longer. Where some of it
    depends on conditions, arithmetic is not counted: loops leave out what is zero.
    """
    machine = target.profile
    stages = kernel.every
    work = 0.0
    if not any(isinstance(node, CHOICES) for s in stages for node in walk(s.body)):
        work = max(_multiplied(stages, target), _functions(stages, target))
    written = sum(size_bytes(v) for v in kernel.writes)
    far = 0.0
    for nearer, memory in zip(machine.memories, machine.memories[1:], strict=False):
        if written > nearer.bytes:
            far = written / max(memory.write, memory.read) / 2
    return machine.rate("launch", "launch") + max(work, far)


def _multiplied(stages: Stages, target: Target) -> float:
    """Of products, one multiply-add a point."""
    products = 0.0
    for stage in stages:
        form = stage.form
        if isinstance(form, Reduce) and form.combiner is SUM and isinstance(stage.body, E.Mul):
            products += _points(stage, stage.body) / _lanes(stage.body, target) / WORDS
    unit = target.profile.rate("unit", "multiply_add")
    words = 1.0 if any(s.body.dtype.bits < 32 or s.body.dtype.is_integer for s in stages) else WORDS
    return products * unit * words


def _functions(stages: Stages, target: Target) -> float:
    time = 0.0
    for stage in stages:
        for node in walk(stage.body):
            if isinstance(node, E.Unary) and (name := FUNCTIONS.get(type(node))) is not None:
                table = target.profile.tables["float64" if node.dtype.bits == 64 else "float32"]
                time += table[name] * _points(stage, node) / _lanes(node, target)
    return time


def _points(stage: Stage, node: Expr) -> int:
    return prod(upper(stage.extents[axis]) for axis in node.axes)


def _lanes(node: Expr, target: Target) -> int:
    """Elements of a vector of the machine, whose times the tables are."""
    return max(1, target.profile.vector // max(4, node.dtype.itemsize))
