"""Patches: maps that change a variable at one place of an axis, in place, run there alone.

``rows[i, j] = if(i == step, new[j], rows[i, j])  ->  for j: rows[step, j] = new[j]``
"""

from __future__ import annotations

from pullback.algebra.linear import linear
from pullback.config import frozen
from pullback.ir import expr as E
from pullback.ir.expr import Axis, Expr, Take
from pullback.ir.graph import Map, read
from pullback.ir.kernel import Stage
from pullback.schedule.regions import Bound, Region


@frozen
class Patch:
    """Along `axis` there is work at `place` only; `test` holds there."""

    axis: Axis
    place: Expr
    test: Expr

    @property
    def region(self) -> Region:
        """``axis - place >= 0, place - axis >= 0``"""
        form = linear(self.axis).minus(linear(self.place))
        return (Bound(form), Bound(form.times(-1)))


def patch(stages: list[Stage]) -> Patch | None:
    """The one place at which all of `stages` change their variables, if they are such maps."""
    patches = [_patch(s) for s in stages]
    first = patches[0]
    same = first is not None and all(p is not None and p.test is first.test for p in patches)
    return first if same else None


def _patch(stage: Stage) -> Patch | None:
    body = stage.body
    if stage.store is None or not isinstance(stage.form, Map) or not isinstance(body, E.If):
        return None
    axes = [Axis(n, e) for n, e in enumerate(stage.shape)]
    test = body.condition
    if not isinstance(test, E.Equal) or body.otherwise is not read(stage.store, *axes):
        return None
    for axis, place in ((test.left, test.right), (test.right, test.left)):
        if isinstance(axis, Axis) and not place.axes and isinstance(place, Take | E.Add):
            return Patch(axis, place, test)
    return None
