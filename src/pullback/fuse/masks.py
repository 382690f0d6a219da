"""Which way a branch went, told by what it gave, so that only that need be stored.

``y[i] = 0 < z[i] ? z[i] : 0; dz[i] = 0 < z[i] ? dy[i] : 0  ->  dz[i] = 0 < y[i] ? dy[i] : 0``

Where the condition holds y is z, and where it does not y is a constant of which it does not hold
either: so it holds of y exactly where it holds of z, NaN included.
"""

from __future__ import annotations

from collections.abc import Callable

from pullback.cost.facts import is_identity, study
from pullback.fuse.inline import Inlined, Role, readers
from pullback.ir import expr as E
from pullback.ir.expr import Const, Expr, If, Take, takes
from pullback.ir.graph import Definition, Map, placed_at, replace_reads
from pullback.ir.node import Memo

Simplify = Callable[[Expr], Expr]


def told_by_results(scene: Inlined, outputs: set[Definition], simplify: Simplify) -> None:
    """Conditions over z become conditions over y where then nobody else reads z."""
    users = readers(scene)
    rank = {d: n for n, d in enumerate(scene.order)}
    for y in scene.order:
        z = _chosen(scene, y, simplify)
        if z is None or z in outputs or scene.roles[z] is not Role.NODE:
            continue
        every = dict.fromkeys(use.user for use in users.get(z, ()))
        others = [d for d in every if d is not y]
        bodies = {d: _retold(scene, d, y, z) for d in others if rank[y] < rank[d]}
        if len(bodies) < len(others):
            continue
        if any(take.source is z for take in takes(bodies.values())):
            continue
        for definition, body in bodies.items():
            scene.bodies[definition] = body
            scene.facts[definition] = study(body, scene.forms[definition])


def _chosen(scene: Inlined, y: Definition, simplify: Simplify) -> Definition | None:
    """`z` where a stored y is ``c(z) ? z : k``, in place, and c(k) is false."""
    if scene.roles[y] is not Role.NODE or not isinstance(scene.forms[y], Map):
        return None
    match scene.bodies[y]:
        case If(condition, Take(Definition() as source) as take, Const() as constant):
            binds = [access.bind for access in scene.facts[y].accesses]
            if not all(len(b) == len(y.shape) and is_identity(b, y.shape) for b in binds):
                return None
            if any(inside is not take for inside in takes(condition)):
                return None
            never = simplify(replace_reads(condition, lambda _: constant))
            return source if E.is_const(never, False) else None
    return None


def _retold(scene: Inlined, definition: Definition, y: Definition, z: Definition) -> Expr:
    """A body with y's condition over z asked of y."""
    whole = scene.bodies[y]
    assert isinstance(whole, If)
    condition = whole.condition
    of_y = replace_reads(condition, lambda take: take.of(y))
    known: Memo = {}
    for take in takes(scene.bodies[definition]):
        if take.source is z:
            known[placed_at(condition, take.indices)] = placed_at(of_y, take.indices)
    return E.rewritten(scene.bodies[definition], known.get)
