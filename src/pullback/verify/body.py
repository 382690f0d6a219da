"""Checks on one definition or stage: its axes, its types, its form, its reads."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from pullback.algebra.bounds import Intervals, Prover
from pullback.errors import Origin
from pullback.ir import expr as E
from pullback.ir.dtype import int64
from pullback.ir.expr import SCALARS, Axis, Expr, Exprs, Extent, Shape, Take, lower, upper
from pullback.ir.graph import Accumulate, Form, Reduce, Scan
from pullback.ir.node import Node, walk
from pullback.simplify.guards import Guards, contexts
from pullback.verify import points
from pullback.verify.points import has_data
from pullback.verify.report import fail


@dataclass(frozen=True, eq=False)
class Body:
    """What a definition and a stage have in common."""

    name: str
    shape: Shape
    extents: Shape
    form: Form
    roots: Exprs
    origin: Origin | None = None

    @functools.cached_property
    def nodes(self) -> tuple[Node, ...]:
        """Every node of the body, children first."""
        return tuple(walk(self.roots))

    @property
    def facts(self) -> tuple[object, ...]:
        """All that the checks look at."""
        return self.shape, self.extents, self.form, self.roots


class Proofs:
    """What has been checked in a program, so that nothing equal is checked again.

    `bodies`: those that passed, by their facts. `inside`: whether an index is good for an extent
    under guards.
    """

    def __init__(self) -> None:
        self.intervals = Intervals()
        self.bodies: set[tuple[object, ...]] = set()
        self.inside: dict[tuple[Expr, Extent, Guards], bool] = {}


Fault = str | None
Check = Callable[[Body, Proofs], Fault]
ALLOWED = frozenset((*SCALARS, E.Size))
# Kinds of operations that some types do not have.
ARITHMETIC = frozenset((E.Add, E.Mul, E.FloorDiv, E.Mod))
BITWISE = frozenset((E.And, E.Or, E.Xor))
FLOATING = frozenset(E.DEAR)
TYPED = ARITHMETIC | BITWISE | FLOATING


def own_axes(body: Body, _: Proofs) -> Fault:
    """The free axes of a body are its own, with its own extents."""
    for node in body.nodes:
        if not isinstance(node, Axis):
            continue
        if node.number >= len(body.extents):
            return f"axis {node.number} is free; the body has {len(body.extents)} axes"
        if node.extent != body.extents[node.number]:
            own = body.extents[node.number]
            return f"axis {node.number} runs to {node.extent} in the body, to {own} in the box"
    return None


def known_nodes(body: Body, _: Proofs) -> Fault:
    """Only primitives occur."""
    odd = next((n for n in body.nodes if type(n) not in ALLOWED), None)
    return None if odd is None else f"{type(odd).__name__} is not a primitive"


def operand_types(body: Body, _: Proofs) -> Fault:
    """Operations get operands of a type they are defined for; indices are int64."""
    for node in body.nodes:
        operation = type(node)
        if isinstance(node, Take):
            if any(i.dtype is not int64 for i in node.indices):
                return f"index of {node.source} is not int64"
        elif operation in TYPED:
            first = node.children[0]
            assert isinstance(first, Expr)
            kind = first.dtype
            wrong = (
                (operation in FLOATING and not kind.is_float)
                or (operation in ARITHMETIC and kind.is_bool)
                or (operation in BITWISE and kind.is_float)
            )
            if wrong:
                return f"{operation.__name__} of {kind}"
    return None


def form_fits(body: Body, _: Proofs) -> Fault:
    """The form agrees with the shape; the combiner with the type."""
    form = body.form
    kind = body.roots[0].dtype
    if isinstance(form, Scan) and not 0 <= form.axis < len(body.shape):
        return f"scans axis {form.axis} of {len(body.shape)}"
    if isinstance(form, Accumulate):
        if len(form.at) != len(body.shape):
            return f"{len(form.at)} write indices for {len(body.shape)} axes"
        if any(e.dtype != int64 for e in form.at):
            return "a write index is not int64"
    if isinstance(form, Reduce | Scan | Accumulate):
        logical = form.combiner.name in ("any", "all")
        if logical != kind.is_bool:
            return f"{form.combiner.name} of {kind}"
    return None


def reads_inside(body: Body, proofs: Proofs) -> Fault:
    """Every read whose index is not data is proved in bounds or guarded."""
    takes = [n for n in body.nodes if isinstance(n, Take) and not _plain(n)]
    paths = contexts(body.roots) if takes else {}
    for node in takes:
        for n, (position, extent) in enumerate(node.places):
            if isinstance(position, Axis) and position.extent == extent:
                continue
            for guards in paths[node]:
                if not _inside(position, extent, guards, proofs):
                    lo, hi = proofs.intervals.of(position)
                    return f"axis {n} of {node.source} ({extent}) is read at {lo}..{hi}"
    return None


def _plain(take: Take) -> bool:
    """Whether every index is an axis of the same extent."""
    return all(isinstance(p, Axis) and p.extent == e for p, e in take.places)


CHECKS: tuple[Check, ...] = (own_axes, known_nodes, operand_types, form_fits, reads_inside)


def verify_body(body: Body, after: str, proofs: Proofs) -> None:
    """Run every check. Raises: InvalidIR."""
    facts = body.facts
    if facts in proofs.bodies:
        return
    for check in CHECKS:
        fault = check(body, proofs)
        if fault is not None:
            raise fail(after, body.name, check.__name__, fault, body.origin)
    proofs.bodies.add(facts)


def _inside(position: Expr, extent: Extent, guards: Guards, proofs: Proofs) -> bool:
    key = position, extent, guards
    if key not in proofs.inside:
        proofs.inside[key] = proved(position, extent, guards, proofs.intervals)
    return proofs.inside[key]


def proved(position: Expr, extent: Extent, guards: Guards, intervals: Intervals) -> bool:
    """Whether an index is data, or lies inside an extent where guards hold."""
    ways = (Prover(given, intervals) for given in dict.fromkeys(((), guards)))
    if any(prover.inside(position, extent) for prover in ways) or has_data(position):
        return True
    if isinstance(position, E.If):
        test = position.condition
        sides = (position.then, test), (position.otherwise, E.logical_not(test))
        return all(proved(e, extent, (*guards, c), intervals) for e, c in sides)
    other = any(isinstance(n, Axis) and n.extent != extent for n in walk(position))
    tried = points.inside(position, (lower if other else upper)(extent), guards)
    if tried:
        return True
    doubtful = guards if tried is None else [g for g in guards if has_data(g)]
    return any(g.axes & position.axes for g in doubtful)
