"""Values that are the same in every lane are computed once, before the loop.

``for j: y[j] = t[clamp(k[i]), j]  ->  r = clamp(k[i]); for j: y[j] = t[r, j]``
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pullback.algebra.bounds import Intervals
from pullback.algebra.linear import linear
from pullback.ir import expr as E
from pullback.ir.dtype import int64
from pullback.ir.expr import Expr, evaluated
from pullback.ir.nest import (
    Array,
    Check,
    Combine,
    Declare,
    For,
    Guard,
    Load,
    Mark,
    Native,
    Peek,
    Register,
    Set,
    Stmts,
    Store,
    StoreCombine,
    Var,
)
from pullback.ir.node import Node, reach, walk
from pullback.ir.statements import roots, with_roots
from pullback.lower.context import Context
from pullback.lower.guards import Values, replaced

# What is worth a register of its own. Additions and products of integers fold into addresses.
COSTLY = (E.Div, E.FloorDiv, E.Mod, E.Unary, E.If, E.Cast, Load, Native)


def hoisted(context: Context, loop: For) -> Stmts:
    """`loop` with the lane-invariant values of its body declared before it."""
    if any(isinstance(s, For | Guard) for s in loop.body):
        return [loop]
    own, written = _own(loop)
    values = [e for s in loop.body if not isinstance(s, Check) for e in roots(s)]
    always = {*reach(values, evaluated), *_harmless(values)}
    asked = [s for s in loop.body if isinstance(s, Check)]
    steady = _steady([*values, *(c.index for c in asked)], own, written)
    chosen = _largest(values, steady, always)
    checks = [c for c in asked if c.index in steady]
    if not chosen and not checks:
        return [loop]
    before: Stmts = [Check(_once(loop, c.index), c.extent, c.site) for c in checks]
    named: Values = {}
    for value in chosen:
        register = context.register("u", value.dtype)
        before.append(Declare(register, _once(loop, value)))
        named[value] = Peek(register, ())

    def new(value: Expr) -> Expr:
        again = replaced(value, named)
        return again if again is value or again.dtype is not int64 else linear(again).expr()

    rest = [s for s in loop.body if s not in checks]
    body = tuple(s if isinstance(s, Check) else with_roots(s, new) for s in rest)
    if all(isinstance(s, Mark) for s in body):
        return before
    return [*before, replace(loop, body=body)]


def _once(loop: For, value: Expr) -> Expr:
    """`value`, not evaluated where a loop between computed bounds has no iteration: its reads are
    in bounds only where there is one.
    """
    reads = any(isinstance(n, Load) for n in walk(value))
    plain = isinstance(loop.lo, E.Const) and isinstance(loop.hi, E.Const | Var)
    if plain or not reads:
        return value
    return E.If(E.Less(loop.lo, loop.hi), value, E.const(0, value.dtype))


def _own(loop: For) -> tuple[set[Var | Register], set[Array]]:
    """What changes inside the loop: its variable and registers, and the arrays it writes."""
    registers = {s.register for s in loop.body if isinstance(s, Declare | Set | Combine)}
    written = {s.array for s in loop.body if isinstance(s, Store | StoreCombine)}
    return {loop.var, *registers}, written


def _steady(values: list[Expr], own: set[Var | Register], written: set[Array]) -> set[Node]:
    """Nodes with one value for all lanes."""
    steady: set[Node] = set()
    for node in walk(values):
        if isinstance(node, Var) and node in own:
            continue
        if isinstance(node, Peek) and node.register in own:
            continue
        if isinstance(node, Load) and node.array in written:
            continue
        if all(child in steady for child in node.children):
            steady.add(node)
    return steady


def _largest(values: list[Expr], steady: set[Node], always: set[Node]) -> list[Expr]:
    """The outermost steady nodes that are worth a register, in order of appearance."""

    def worth(node: Node) -> bool:
        if not isinstance(node, Expr) or node not in steady or node not in always:
            return False
        return isinstance(node, COSTLY) or (node.dtype.is_float and bool(node.children))

    def below(node: Node) -> Sequence[Node]:
        return () if worth(node) else node.children

    return [n for n in reach(values, below) if isinstance(n, Expr) and worth(n)]


def _harmless(values: list[Expr]) -> set[Node]:
    """Nodes that may be computed where nobody asks for them: all that they read is there."""
    harmless: set[Node] = set()
    intervals = Intervals()
    for node in walk(values):
        if isinstance(node, Load):
            lo, hi = intervals.of(node.offset)
            if lo < 0 or hi >= node.array.size:
                continue
        if harmless.issuperset(node.children):
            harmless.add(node)
    return harmless
