"""Conditions on indices, decided or made coarser where bounds allow.

``31 < 32*t + x  ->  0 < t`` for ``0 <= x < 32``: the same for every `x` of a tile.
"""

from __future__ import annotations

from pullback.algebra.linear import Linear, coarser, linear
from pullback.ir import expr as E
from pullback.ir.dtype import bool_, int64
from pullback.ir.expr import Expr, index
from pullback.ir.nest import Load
from pullback.ir.node import Node, walk

TRUE = E.Const(True, bool_)
FALSE = E.Const(False, bool_)

Values = dict[Expr, Expr]  # what variables, or other nodes, are replaced by


def folded(node: Expr) -> Expr:
    """`node` with a condition on indices simplified; its operands are already."""
    match node:
        case E.Less(E.FloorDiv(x) as left, E.Const(n)) if (by := E.divisor(left)) and _known(x):
            return less(x, index(by * int(n)))
        case E.Less(left, right) if left.dtype == int64:
            return less(left, right)
        case E.Equal(left, right) if left.dtype == int64:
            return equal(left, right, node)
        case E.And(left, right) if node.dtype.is_bool:
            return _joined(left, right, FALSE, node)
        case E.Or(left, right) if node.dtype.is_bool:
            return _joined(left, right, TRUE, node)
        case E.Xor(left, right) if node.dtype.is_bool:
            return _differ(left, right, node)
        case E.If(condition, then, otherwise) if isinstance(condition, E.Const):
            return then if condition.value else otherwise
    return node


def _known(e: Expr) -> bool:
    """Whether an index has bounds; data may wrap, times a divisor."""
    return linear(e).range()[1] < E.highest(int64).value


def less(left: Expr, right: Expr) -> Expr:
    """``0 <= high``, where ``right - left - 1 = step * high + low``."""
    gap = linear(right).minus(linear(left)).shifted(-1)
    lo, hi = gap.range()
    if lo >= 0 or hi < 0:
        return TRUE if lo >= 0 else FALSE
    high = coarser(gap)
    if high is None:
        return E.Less(left, right)
    return E.Less(index(-1), high.expr())


def equal(left: Expr, right: Expr, node: Expr) -> Expr:
    """``left == right``, false where bounds exclude it."""
    lo, hi = linear(left).minus(linear(right)).range()
    if lo > 0 or hi < 0:
        return FALSE
    return TRUE if lo == hi == 0 else node


def _joined(left: Expr, right: Expr, decided: Expr, node: Expr) -> Expr:
    """`node`, an `And` or `Or` that is `decided` where one side is."""
    if left is decided or right is decided:
        return decided
    if isinstance(left, E.Const):
        return right
    return left if isinstance(right, E.Const) else node


def _differ(left: Expr, right: Expr, node: Expr) -> Expr:
    if left is FALSE:
        return right
    if right is FALSE:
        return left
    return FALSE if left is right else node


def replaced(root: Expr, values: Values) -> Expr:
    """`root` with nodes replaced, offsets of loads in order again, guards decided again."""
    memo: dict[Node, Node] = dict(values.items())
    for node in walk(root, skip=memo):
        kids = tuple([memo[c] for c in node.children])
        new = node if kids == node.children else node.with_children(kids)
        if isinstance(new, Load) and new is not node:
            new = Load(new.array, linear(new.offset).expr())
        memo[node] = folded(new) if isinstance(new, Expr) and new is not node else new
    new_root = memo[root]
    assert isinstance(new_root, Expr)
    return new_root


def moved(form: Linear, values: Values) -> Expr:
    """An offset with variables replaced."""
    return linear(replaced(form.expr(), values)).expr()
