"""Work counted, not predicted: iterations, products and elements of definitions.

    s[i] = sum[k < 9](k <= i ? x[k] * w[i] : 0), i < 9
    81 iterations, 45 executed, 81 multiplications, 9 elements

`iterations` is the volume of every box, as if no condition were there. `executed` is what is left
when conditions on indices leave the loops: one without a loop axis goes outside all loops, one that
is linear in its innermost loop axis becomes a bound of that loop, and any other is a test inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple
from math import prod
from operator import add

import numpy as np

from pullback.algebra.affine import affine
from pullback.config import Cap, frozen
from pullback.grad.composites import arguments
from pullback.ir import expr as E
from pullback.ir.expr import Axis, Dim, Expr, Extent, If, upper
from pullback.ir.graph import Accumulate, Definition, Map, Reduce
from pullback.ir.meaning import Array, holds
from pullback.ir.node import Node, walk
from pullback.simplify import guards as G

Sizes = Mapping[Dim, int]
PRODUCTS = (E.Mul, E.Div, E.FloorDiv, E.Mod, E.Unary)
LARGEST: Cap = 1 << 24  # points of a box that are looked at; of a larger one all are executed


@frozen
class Cost:
    """Counts over all definitions. `multiplications`: ``* / // %`` and functions, index
    arithmetic too, in every iteration; a change of sign is none. `flops`: operations on floats
    where they are executed. `elements`: of every result.
    """

    iterations: int = 0
    executed: int = 0
    multiplications: int = 0
    flops: int = 0
    elements: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(*map(add, astuple(self), astuple(other)))


def cost(definitions: Iterable[Definition], sizes: Sizes | None = None) -> Cost:
    """The work of all `definitions`, each once; symbolic extents as in `sizes`, else at most."""
    return sum((_one(d, sizes or {}) for d in definitions), Cost())


def _one(definition: Definition, sizes: Sizes) -> Cost:
    box = [_size(e, sizes) for e in definition.extents]
    elements = prod(_size(e, sizes) for e in definition.shape)
    iterations = prod(box)
    executed = _executed(definition, box, sizes)
    cleared = elements if isinstance(definition.form, Accumulate) else 0
    return Cost(
        iterations + cleared,
        executed + cleared,
        _multiplications(definition) * iterations,
        _flops(definition) * executed,
        elements,
    )


def _size(extent: Extent, sizes: Sizes) -> int:
    return sizes.get(extent, extent.hi) if isinstance(extent, Dim) else extent


def _multiplications(definition: Definition) -> int:
    """Of one iteration; a function with a name (``tanh``) is one, as a backend may have it."""
    operations = 0
    seen: set[Node] = set()
    todo: list[Node] = list(definition.roots)
    while todo:
        node = todo.pop()
        if node in seen or not isinstance(node, Expr):
            continue
        seen.add(node)
        known = arguments(node)
        todo += node.children if known is None else known
        operations += known is not None or (isinstance(node, PRODUCTS) and not _is_sign(node))
    return operations


def _flops(definition: Definition) -> int:
    """Operations on floats of one iteration, names spelled out; a combination is one too."""
    nodes = [n for n in walk(definition.roots) if isinstance(n, E.Binary | E.Unary)]
    own = sum(1 for n in nodes if n.dtype.is_float and not _is_sign(n))
    return own + (not isinstance(definition.form, Map))


def _is_sign(node: Expr) -> bool:
    """``-x`` is spelled ``x * -1``."""
    sides = node.children if isinstance(node, E.Mul) else ()
    return any(isinstance(s, E.Const) and s.value == -1 for s in sides)


def _executed(definition: Definition, box: Sequence[int], sizes: Sizes) -> int:
    """Points of the box that the loops visit, the conditions on indices taken out of them."""
    if isinstance(definition.form, Accumulate):
        return prod(box)
    first = len(definition.shape)
    guards = [g for g in _guards(definition) if _bounds(g, first)]
    total = 1
    for axes, own in _groups(len(box), guards):
        total *= _points([box[a] for a in axes], axes, own, sizes)
    return total


def share(box: Sequence[int], conditions: Sequence[Expr]) -> float:
    """The part of a box where all conditions on its axes hold."""
    groups = _groups(len(box), conditions)
    return prod(_points([box[a] for a in axes], axes, own, {}) for axes, own in groups) / prod(box)


def _guards(definition: Definition) -> list[Expr]:
    """Conditions on indices alone outside of which the body gives a constant and adds nothing."""
    conditions: list[Expr] = []
    body = definition.body
    while isinstance(body, If) and _is_nothing(definition, body.otherwise):
        conditions += [c for c in G.conjuncts(body.condition) if not G.reads_data(c)]
        body = body.then
    return conditions


def _is_nothing(definition: Definition, e: Expr) -> bool:
    form = definition.form
    if not isinstance(form, Reduce):
        return isinstance(form, Map) and isinstance(e, E.Const)
    return e is form.combiner.identity(e.dtype)


def _bounds(guard: Expr, first: int) -> bool:
    """Whether a guard leaves its innermost loop: it has none, or is linear in that axis."""
    loops = [a for a in guard.axes if a >= first]
    if not loops:
        return True
    if isinstance(G.negated(guard), E.Less):
        guard = G.negated(guard)
    if not isinstance(guard, E.Comparison):
        return False
    inner = max(loops)
    form = affine(guard.right).minus(affine(guard.left))
    holders = [atom for atom in form.atoms if inner in atom.axes]
    return len(holders) == 1 and isinstance(holders[0], Axis)


def _groups(rank: int, guards: Sequence[Expr]) -> list[tuple[list[int], list[Expr]]]:
    """Axes that no guard ties together, apart: their counts multiply."""
    groups: list[tuple[set[int], list[Expr]]] = [({n}, []) for n in range(rank)]
    for guard in guards:
        joined = [g for g in groups if g[0] & guard.axes]
        groups = [g for g in groups if not g[0] & guard.axes]
        axes = set().union(*(g[0] for g in joined))
        groups.append((axes, [*(c for g in joined for c in g[1]), guard]))
    return [(sorted(axes), own) for axes, own in groups]


def _points(box: Sequence[int], axes: Sequence[int], guards: Sequence[Expr], sizes: Sizes) -> int:
    """Points of a box where all guards hold."""
    total = prod(box)
    if not guards or total > LARGEST:
        return total
    known: dict[Node, Array] = {}
    for node in walk(guards):
        if isinstance(node, Axis):
            place = axes.index(node.number)
            shape = [-1 if n == place else 1 for n in range(len(axes))]
            known[node] = np.arange(box[place]).reshape(shape)
        elif isinstance(node, E.Size):
            known[node] = np.asarray(sizes.get(node.dim, upper(node.dim)))
    return int(np.count_nonzero(holds(guards, known, box)))
