"""Products taken apart: what does not depend on a loop leaves the sum over it."""

from __future__ import annotations

import functools

from pullback.algebra.affine import flat
from pullback.config import frozen
from pullback.ir import expr as E
from pullback.ir.dtype import DType
from pullback.ir.expr import Expr, Exprs


def scale(e: Expr | None, factor: float, kind: DType) -> Expr:
    """``e * factor``, the literal last; no `e` is 1."""
    if e is None:
        return E.const(factor, kind)
    return e if factor == 1 else E.Mul(e, E.const(factor, kind))


@frozen
class Quotient:
    """``above[0] * above[1] .. / below[0] / .. * factor`` of type `kind`."""

    above: Exprs
    below: Exprs
    factor: float
    kind: DType

    @classmethod
    def of(cls, e: Expr) -> Quotient:
        """The factors of `e`, in order."""
        above: list[Expr] = []
        below: list[Expr] = []
        factor: float = 1
        todo = [e]
        while todo:
            part = todo.pop()
            if isinstance(part, E.Mul):
                todo += [part.right, part.left]
            elif isinstance(part, E.Div):
                below.append(part.right)
                todo.append(part.left)
            elif isinstance(part, E.Const):
                factor *= part.value
            else:
                above.append(part)
        return cls(tuple(above), tuple(reversed(below)), factor, e.dtype)

    @property
    def trivial(self) -> bool:
        """Whether it is the literal 1."""
        return not self.above and not self.below and self.factor == 1

    def expression(self) -> Expr:
        whole: Expr | None = None
        for part in self.above:
            whole = part if whole is None else E.Mul(whole, part)
        if not self.below:
            return scale(whole, self.factor, self.kind)
        if whole is None:
            whole = E.const(1, self.kind)
        return scale(self._divided(whole), self.factor, self.kind)

    def _divided(self, whole: Expr) -> Expr:
        for part in self.below:
            whole = E.Div(whole, part)
        return whole

    def split(self, loops: frozenset[int]) -> tuple[Quotient, Quotient]:
        """(outside, inside): factors free of the axes `loops`, with the literal, and the rest."""
        above = [p for p in self.above if p.axes.isdisjoint(loops)]
        below = [p for p in self.below if p.axes.isdisjoint(loops)]
        outside = Quotient(tuple(above), tuple(below), self.factor, self.kind)
        return outside, Quotient(
            tuple(p for p in self.above if p not in above),
            tuple(p for p in self.below if p not in below),
            1,
            self.kind,
        )

    def taken_apart(self) -> Quotient:
        """Sums among the factors without what their terms share. ``(a b + a c) -> a * (b + c)``"""
        above: list[Expr] = []
        below = list(self.below)
        for part in self.above:
            outer, rest = _shared(part)
            above += [*outer.above, rest]
            below += outer.below
        return Quotient(tuple(above), tuple(below), self.factor, self.kind)

    def literal(self) -> tuple[Quotient, Quotient]:
        """(the literal, the rest)."""
        return Quotient((), (), self.factor, self.kind), Quotient(
            self.above, self.below, 1, self.kind
        )


def uncast(factor: Expr) -> Expr:
    """What a factor is, but for a float type that holds it: ``float32(x[i]) -> x[i]``"""
    if not isinstance(factor, E.Cast) or not (factor.to.is_float and factor.value.dtype.is_float):
        return factor
    return factor.value if factor.to.bits > factor.value.dtype.bits else factor


def _shared(e: Expr) -> tuple[Quotient, Expr]:
    """What all terms of a sum share, and what is left of it."""
    terms = [Quotient.of(part) for part in flat(e, E.Add)]
    if len(terms) == 1:
        return Quotient((), (), 1, e.dtype), e
    above = [p for p in dict.fromkeys(terms[0].above) if all(p in t.above for t in terms)]
    below = [p for p in dict.fromkeys(terms[0].below) if all(p in t.below for t in terms)]
    rest = [_less(t, above, below).expression() for t in terms]
    return Quotient(tuple(above), tuple(below), 1, e.dtype), functools.reduce(E.Add, rest)


def _less(product: Quotient, above: list[Expr], below: list[Expr]) -> Quotient:
    """A product without these factors, each once."""
    left = [list(product.above), list(product.below)]
    for have, without in zip(left, (above, below), strict=True):
        for part in without:
            have.remove(part)
    return Quotient(tuple(left[0]), tuple(left[1]), product.factor, product.kind)
