"""Loops that run only where there is work: bounds from affine conditions, tile by tile.

``for k in 0..n: if k <= i  ->  for k in 0..min(n, i + 1)``, with the largest `i` of a block.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from pullback.algebra.linear import UNKNOWN, Linear, atom_range, divide, linear
from pullback.config import frozen
from pullback.ir import expr as E
from pullback.ir.expr import Expr, index
from pullback.ir.kernel import Stage
from pullback.ir.nest import Guard, Stmts
from pullback.ir.node import Node, walk
from pullback.lower.context import Context, Coordinates, NestLoop, larger, smaller
from pullback.lower.guards import FALSE, TRUE, folded
from pullback.lower.translate import Translator
from pullback.schedule.regions import Bound, Region

# Least and largest value of variables that are not settled where a loop starts.
Spans = Mapping[Expr, tuple[Linear, Linear]]


def over_loops(context: Context, axes: Coordinates, region: Region) -> Region:
    """Bounds over the loop variables of a nest, for bounds over a stage's axes."""
    translate = Translator(context, axes)
    return tuple(Bound(linear(translate(b.form.expr())), b.tests) for b in region)


def spans(loops: Iterable[NestLoop]) -> dict[Expr, tuple[Linear, Linear]]:
    """All values of the variables of loops."""
    return {o.var: (linear(o.first), linear(o.extent).shifted(-1)) for o in loops}


def most(form: Linear, inner: Spans) -> Linear | None:
    """The largest value of `form` over the values of `inner`; None where nothing is known."""
    total = Linear(form.const)
    for atom, coefficient in form.terms:
        if atom in inner:
            total = total.plus(inner[atom][coefficient > 0], coefficient)
        elif any(n in inner for n in walk(atom)):
            limits = atom_range(atom)
            if limits == UNKNOWN:
                return None
            total = total.plus(Linear(limits[coefficient > 0]), coefficient)
        else:
            total = total.plus(Linear(0, {atom: 1}), coefficient)
    return total


@frozen
class Bounded:
    """A loop with its bounds, and the bounds that hold in every iteration of it."""

    loop: NestLoop
    below: Region = ()
    above: Region = ()

    @property
    def exact(self) -> Region:
        return self.below + self.above


def bounded(loop: NestLoop, region: Sequence[Bound], inner: Spans) -> Bounded:
    """`loop` where `region` may hold. ``i - k >= 0 -> k < i + 1``"""
    first, end = loop.first, loop.extent
    below: list[Bound] = []
    above: list[Bound] = []
    for bound in region:
        factor = bound.form.of(loop.var)
        rest = bound.form.without(loop.var)
        if factor == 0 or rest.hidden(loop.var):
            continue
        widest = most(rest, inner)
        if widest is None:
            continue
        exact = widest.terms == rest.terms and not any(n in inner for n in rest.atoms)
        quotient = divide(widest, abs(factor))[0]
        if factor > 0:
            first = _later(first, quotient.times(-1))
            below += [bound] * exact
        else:
            end = _sooner(end, quotient.shifted(1))
            above += [bound] * exact
    if first is loop.first and end is loop.extent:
        return Bounded(loop, tuple(below), tuple(above))
    first = _sooner(first, linear(loop.extent))
    end = _later(end, linear(first))
    return Bounded(replace(loop, first=first, extent=end), tuple(below), tuple(above))


def narrowed(loops: Sequence[NestLoop], region: Region, inner: Spans) -> list[Bounded]:
    """Loops, the first outermost, each where `region` may hold for all that are inside it."""
    return [
        bounded(loop, region, {**inner, **spans(loops[n + 1 :])}) for n, loop in enumerate(loops)
    ]


def somewhere(region: Region, inner: Spans) -> Expr:
    """Whether `region` may hold somewhere in `inner`."""
    condition: Expr = TRUE
    for bound in region:
        widest = most(bound.form, inner)
        if widest is not None:
            test = folded(E.Less(index(-1), widest.expr()))
            condition = folded(E.And(condition, test))
    return condition


def guarded(region: Region, inner: Spans, body: Stmts) -> Stmts:
    """`body` where `region` may hold somewhere in `inner`."""
    condition = somewhere(region, inner)
    if condition is FALSE:
        return []
    return body if condition is TRUE else [Guard(condition, tuple(body))]


def outer(region: Region, loops: Iterable[NestLoop]) -> Region:
    """The bounds that say nothing of the variables of `loops`."""
    own = {loop.var for loop in loops}
    return tuple(b for b in region if own.isdisjoint(n for a in b.form.atoms for n in walk(a)))


def settled(exact: Region, regions: Iterable[Region]) -> dict[Expr, bool]:
    """The tests that hold where `exact` does: no other bound has a part in them."""
    loose = {
        test
        for region in regions
        for bound in region
        for test, _ in bound.tests
        if not any(bound.same(e) for e in exact)
    }
    return {t: not failing for b in exact for t, failing in b.tests if t not in loose}


def assuming(stage: Stage, known: Mapping[Expr, Expr]) -> Stage:
    """`stage` where nodes in its body have the forms `known`, and what follows from them."""
    if not known:
        return stage
    forms: dict[Node, Node] = dict(known.items())
    return replace(stage, body=E.rewritten(stage.body, _settled, forms))


def _settled(node: Node) -> Node | None:
    return folded(node) if isinstance(node, E.And | E.Or | E.Xor | E.If) else None


def _later(first: Expr, second: Linear) -> Expr:
    """The larger of two bounds, one alone where ranges decide."""
    lo, hi = second.minus(linear(first)).range()
    if hi <= 0:
        return first
    return second.expr() if lo >= 0 else larger(first, second.expr())


def _sooner(first: Expr, second: Linear) -> Expr:
    """The smaller of two bounds, one alone where ranges decide."""
    lo, hi = second.minus(linear(first)).range()
    if lo >= 0:
        return first
    return second.expr() if hi <= 0 else smaller(first, second.expr())
