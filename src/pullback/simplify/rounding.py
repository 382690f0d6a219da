"""16-bit floats are stored, not computed with: a definition of theirs in float32, rounded once.

    y: float16;  y[i] = a[i] * b[i] + c[i]  ->  y[i] = float16(float32(a[i]) * float32(b[i]) + ..)
    s: float16;  s = sum[k] a[k] * b[k]     ->  t: float32 = sum[k] float32(a[k]) * float32(b[k])
                                                s = float16(t)

A value is rounded where its type ends: at the end of its definition, where it is compared and where
it is cast. As a cast says so, and no pass drops it, whoever reads a value reads the same bits.
"""

from __future__ import annotations

from dataclasses import replace

from pullback.ir import expr as E
from pullback.ir.dtype import float32, is_short
from pullback.ir.expr import Cast, Const, Expr, Exprs, If
from pullback.ir.graph import PROD, SUM, Accumulate, Definition, Keep, Map, identity
from pullback.ir.meaning import constant
from pullback.ir.node import Node, walk

ARITHMETIC = (E.Add, E.Mul, E.Div, E.FloorDiv, E.Mod, E.Unary)


def parts(definition: Definition) -> tuple[Definition, ...]:
    """`definition` as definitions that compute with no 16-bit floats; the last one is its value.

    A sum or product (of a whole axis, a running one, of writes) becomes one of float32 and a map.
    """
    d = definition
    form = definition.form
    halves = Halves()
    if not is_short(d.dtype) or isinstance(form, Map) or form.combiner not in (SUM, PROD):
        roots = tuple(halves.rounded(r) for r in d.roots)
        return (d,) if roots == d.roots else (_with(d, roots),)
    kind = d.dtype
    wide = _with(d, (halves.wide(d.body), *map(halves.rounded, d.roots[1:])))
    value = Cast(identity(wide), kind)
    return wide, replace(d, body=value, form=Map())


def _with(d: Definition, roots: Exprs) -> Definition:
    form = replace(d.form, at=roots[1:]) if isinstance(d.form, Accumulate) else d.form
    keep = Keep.AUTO if d.keep is Keep.ALWAYS and roots[0].dtype != d.dtype else d.keep
    return replace(d, body=roots[0], form=form, keep=keep)


class Halves:
    """Scalar expressions in which 16-bit floats are computed with, written without."""

    def __init__(self) -> None:
        self._rounded: dict[Node, Expr] = {}
        self._wide: dict[Expr, Expr] = {}

    def rounded(self, root: Expr) -> Expr:
        """`root`, of its own type."""
        for node in walk(root, skip=self._rounded):
            assert isinstance(node, Expr)
            self._rounded[node] = self._plain(node)
        return self._rounded[root]

    def wide(self, root: Expr) -> Expr:
        """`root`, of 16 bits, in float32: as it is before it is rounded."""
        self.rounded(root)
        return self._wider(root)

    def _plain(self, node: Expr) -> Expr:
        """A node whose children are done; the form in float32 is kept where it differs."""
        if not is_short(node.dtype):
            return node.with_children(tuple(self._rounded[c] for c in node.children))
        if isinstance(node, Const):
            self._wide[node] = Const(node.value, float32)
            return Const(float(constant(node)), node.kind)
        if isinstance(node, ARITHMETIC):
            kids = [self._wider(c) for c in node.children if isinstance(c, Expr)]
            self._wide[node] = node.with_children(tuple(kids))
            return Cast(self._wide[node], node.dtype)
        if isinstance(node, If) and (node.then in self._wide or node.otherwise in self._wide):
            condition = self._rounded[node.condition]
            self._wide[node] = If(condition, self._wider(node.then), self._wider(node.otherwise))
        return node.with_children(tuple(self._rounded[c] for c in node.children))

    def _wider(self, node: Expr) -> Expr:
        wide = self._wide.get(node)
        if wide is None:
            wide = self._wide[node] = Cast(self._rounded[node], float32)
        return wide
