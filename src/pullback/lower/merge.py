"""Neighbouring loops become one where every access is contiguous across them.

``for t in 64: for d in 128: y[t*128 + d]  ->  for i in 8192: y[i]``
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pullback.algebra.linear import Linear, linear
from pullback.ir import expr as E
from pullback.ir.dtype import float32
from pullback.ir.expr import Expr, index
from pullback.ir.nest import Load
from pullback.ir.node import Node, reach
from pullback.lower.context import Context, Coordinates, Nest, NestLoop
from pullback.lower.guards import Values
from pullback.machine.machine import LINE
from pullback.schedule.regions import with_atoms


def accesses(roots: Iterable[Expr]) -> tuple[list[Linear], set[Node]]:
    """Offsets of every load below `roots`, and every node that stands outside a linear term."""
    forms: list[Linear] = []

    def below(node: Node) -> Sequence[Node]:
        if not isinstance(node, Load):
            return node.children
        forms.append(linear(node.offset))
        return [child for atom in forms[-1].atoms for child in atom.children]

    return forms, set(reach(roots, below))


def merged(
    context: Context,
    loops: Nest,
    parts: list[int],
    roots: list[Expr],
    stores: list[Linear],
) -> tuple[Nest, Values]:
    """Loops after merging within parts (`parts[n]` numbers loop `n`'s), and values of old ones."""
    same = [n for n in range(1, len(loops)) if loops[n].whole and parts[n - 1] == parts[n]]
    if not same:
        return loops, {}
    forms, loose = accesses(roots)
    forms += stores
    for form in stores:
        loose.update(n for atom in form.atoms for n in atom.children)
    runs: list[list[int]] = [[0]]
    for number in range(1, len(loops)):
        before, here = loops[number - 1], loops[number]
        fits = (
            number in same
            and before.var not in loose
            and here.var not in loose
            and all(f.of(before.var) == f.of(here.var) * here.most for f in forms)
        )
        if fits:
            runs[-1].append(number)
        else:
            runs.append([number])
    if len(runs) == len(loops):
        return loops, {}
    values: Values = {}
    joined = [_run(context, [loops[n] for n in run], values) for run in runs]
    return joined, values


def split(
    context: Context, loops: Nest, roots: list[Expr], lane: int | None = None
) -> tuple[Nest, Values]:
    """Loops cut in two where offsets divide them: ``x // 8, x % 8 -> high, low``.

    Not the one over axis `lane` into pieces shorter than a cache line: vectors span several.
    """
    forms, _ = accesses(roots)
    wanted: dict[Expr, int] = {}
    for form in forms:
        for atom in form.atoms:
            if not isinstance(atom, E.FloorDiv | E.Mod) or not isinstance(atom.right, E.Const):
                continue
            divisor = int(atom.right.value)
            for var, coefficient in linear(atom.left).terms:
                if coefficient == 1 and divisor > 1:
                    wanted[var] = min(wanted.get(var, divisor), divisor)
    cut: Nest = []
    values: Values = {}
    for loop in loops:
        divisor = wanted.get(loop.var, 0)
        if lane in loop.axes and divisor < LINE // float32.itemsize:
            divisor = 0
        if not divisor or not loop.whole or loop.most % divisor or loop.most == divisor:
            cut.append(loop)
            continue
        high = context.var(loop.var.name.rstrip("0123456789"), loop.most // divisor)
        low = context.var(loop.var.name.rstrip("0123456789"), divisor)
        cut.append(NestLoop(loop.axes, high, index(loop.most // divisor), loop.most // divisor))
        cut.append(NestLoop(loop.axes, low, index(divisor), divisor))
        values[loop.var] = Linear(0, {high: divisor, low: 1}).expr()
    return cut, values


def _run(context: Context, run: Nest, values: Values) -> NestLoop:
    """One loop for a run of loops; sets the value of each old variable."""
    if len(run) == 1:
        return run[0]
    inner = 1
    for loop in run[1:]:
        inner *= loop.most
    most = run[0].most * inner
    var = context.var(run[-1].var.name.rstrip("0123456789"), most)
    digit = 1
    for loop in reversed(run):
        value: Expr = var if digit == 1 else E.FloorDiv(var, index(digit))
        values[loop.var] = value if loop is run[0] else E.Mod(value, index(loop.most))
        digit *= loop.most
    first, extent = (linear(e).times(inner).expr() for e in (run[0].first, run[0].extent))
    return NestLoop(tuple(a for loop in run for a in loop.axes), var, extent, most, first)


def revalued(axes: Coordinates, values: Values) -> Coordinates:
    """Values of axes after merging."""
    if not values:
        return axes
    forms = {axis: linear(value) for axis, value in axes.items()}
    return {a: with_atoms(f, lambda n: values.get(n, n)).expr() for a, f in forms.items()}
