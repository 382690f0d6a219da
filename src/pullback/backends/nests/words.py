"""Loops over the elements of a 32-bit word that one instruction does.

``for u in 0..2: acc += float32(a[x + u]) * float32(b[y + u])  ->  Dot(a[x], b[y])``
"""

from __future__ import annotations

from dataclasses import dataclass

from pullback.backends.nests.analysis import Facts
from pullback.ir.dtype import bfloat16, float32, int8, int32, uint8
from pullback.ir.expr import Cast, Const, Expr, Mul, index
from pullback.ir.nest import Combine, For, Load, LoopKind, Var
from pullback.ir.node import rebuild
from pullback.ir.target import Target


@dataclass(frozen=True, slots=True)
class Dot:
    """A sum of the products of two words. Of bytes the first is unsigned, the second signed."""

    combine: Combine
    first: Load | Const
    second: Load | Const
    floats: bool


def dot_of(loop: For, facts: Facts, target: Target) -> Dot | None:
    """What a written-out loop is, if it is one instruction of the target."""
    combine = loop.body[0]
    if loop.kind is not LoopKind.UNROLL or len(loop.body) > 1 or not isinstance(combine, Combine):
        return None
    product = combine.value
    if combine.combiner.name != "sum" or not isinstance(product, Mul):
        return None
    turns = loop.hi.value if isinstance(loop.hi, Const) else 0
    sides = [_side(e, loop.var, facts) for e in (product.left, product.right)]
    one, other = sides
    if one is None or other is None or not isinstance(loop.lo, Const) or loop.lo.value != 0:
        return None
    kinds = {s.dtype for s in (one, other) if isinstance(s, Load)}
    if combine.register.dtype == float32 and kinds == {bfloat16}:
        both = isinstance(one, Load) and isinstance(other, Load) and turns == 2
        return Dot(combine, one, other, True) if both and "bfloat16" in target.dots else None
    if combine.register.dtype != int32 or turns != 4 or "int8" not in target.dots:
        return None
    for a, c in ((one, other), (other, one)):
        if _fits(a, (0, 255)) and _fits(c, (-128, 127)):
            return Dot(combine, a, c, False)
    return None


def _side(e: Expr, var: Var, facts: Facts) -> Load | Const | None:
    """A factor: neighbours along `var`, or the same number for all."""
    if isinstance(e, Const):
        return e
    inner = e.value if isinstance(e, Cast) else e
    if not isinstance(inner, Load) or inner.dtype not in (bfloat16, int8, uint8):
        return None
    form = facts.form(inner.offset)
    rest = form.without(var)
    alone = all(not _mentions(atom, var) for atom in rest.atoms)
    moved = rebuild(inner, lambda n: index(0) if n is var else None, {})
    return moved if alone and form.of(var) == 1 and isinstance(moved, Load) else None


def _mentions(e: Expr, var: Var) -> bool:
    todo: list[Expr] = [e]
    while todo:
        node = todo.pop()
        if node is var:
            return True
        todo += [c for c in node.children if isinstance(c, Expr)]
    return False


def _fits(side: Load | Const, bounds: tuple[int, int]) -> bool:
    if isinstance(side, Const):
        return bounds[0] <= side.value <= bounds[1]
    return side.dtype == (uint8 if bounds[0] == 0 else int8)
