"""`pb.compute`: a tensor as an index expression, and what closing a definition takes.

    compute((m, n), lambda i, j: sum(a[i, k] * b[k, j], over=k))

Reductions inside become definitions of their own, under the guards that they stand under.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pullback.algebra.bounds import Intervals, bounds, in_bounds
from pullback.errors import FreeAxisError, IndexRangeError, Origin, ShapeError
from pullback.ir import expr as E
from pullback.ir.expr import Axis, Expr, Extent, If, Take
from pullback.ir.graph import COMBINERS, Definition, Map, Reduce, read, substitute
from pullback.ir.node import Node, rebuild, walk
from pullback.tensor.define.combine import Part, combined, whole
from pullback.tensor.face import handles
from pullback.tensor.face.handles import Fold, Inner, ScalarHandle, as_expr, axis_name, new_axis
from pullback.tensor.face.tensor import Tensor, shape_of
from pullback.tensor.record.trace import wrap
from pullback.tensor.values.elementwise import show
from pullback.tensor.values.views import conjunction
from pullback.verify.body import proved

Guards = tuple[Expr, ...]


def axis(extent: Extent, name: str = "") -> ScalarHandle:
    """An axis ``0 <= k < extent`` for a reduction to run over.

    Example:
        >>> x = pb.ones((2, 3))
        >>> k = pb.axis(3)
        >>> pb.compute((2,), lambda i: pb.sum(x[i, k], over=k))
        Tensor([3., 3.], dtype=float32)
    """
    return new_axis(shape_of(extent)[0], name)


def compute(shape: Any, function: Callable[..., Any], *, name: str = "compute") -> Any:
    """The tensor ``out[i, j] = function(i, j)``; a tuple of them where `function` gives a tuple.

    Raises: FreeAxisError, ShapeError, IndexRangeError at the user's expression.

    Example:
        >>> x = pb.tensor([1.0, 2.0])
        >>> pb.compute((2, 2), lambda i, j: x[i] * x[j]).tolist()
        [[1.0, 2.0], [2.0, 4.0]]
    """
    origin = Origin.of_caller()
    extents = shape_of(shape)
    names = _parameters(function, len(extents), origin)
    own = [new_axis(e, n) for e, n in zip(extents, names, strict=True)]
    result = function(*own)
    if isinstance(result, tuple | list):
        return tuple(close(own, r, name, origin) for r in result)
    return close(own, result, name, origin)


def parameters_of(function: Callable[..., Any], origin: Origin) -> list[inspect.Parameter]:
    """What a function takes. Raises: ShapeError where Python does not know."""
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        what = f"{function!r} does not tell which indices it takes"
        raise ShapeError(what, origin=origin, help="a lambda of them", code="E135") from None


def _parameters(function: Callable[..., Any], rank: int, origin: Origin) -> list[str]:
    """The names of the axes. Raises: ShapeError where the function takes another number."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = parameters_of(function, origin)
    if any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in parameters):
        return [f"i{n}" for n in range(rank)]
    taken = [p.name for p in parameters if p.kind in kinds]
    needed = [p for p in parameters if p.kind in kinds and p.default is inspect.Parameter.empty]
    if not len(needed) <= rank <= len(taken):
        raise ShapeError(
            f"a shape with {rank} axes and a function of {len(needed)} indices",
            origin=origin,
            code="E135",
        )
    return taken[:rank]


def close(own: Sequence[ScalarHandle], result: Any, name: str, origin: Origin) -> Tensor:
    """The tensor ``out[own] = result``.

    Raises: FreeAxisError where another axis is left, IndexRangeError for a read outside.
    """
    body = as_expr(result)
    axes = [h.expr for h in own if isinstance(h.expr, Axis)]
    check_free(body, axes, origin)
    if isinstance(body, Fold) and body.axes == frozenset(a.number for a in axes):
        return Tensor(_reduction(body, axes, (), name, origin))
    closed = hoist(body, (), origin)
    check_reads(closed, origin)
    return Tensor(wrap(_definition(name, closed, axes, origin)))


def check_free(body: Expr, axes: Sequence[Axis], origin: Origin) -> None:
    """Raises: FreeAxisError where `body` uses an axis that nothing binds."""
    free = body.axes - {a.number for a in axes}
    if not free:
        return
    number = min(free)
    culprit = _innermost(body, number)
    where = handles.origin_of(culprit) or origin
    axis_used = next(n for n in _scope(culprit) if isinstance(n, Axis) and n.number == number)
    raise FreeAxisError(
        f"{axis_name(axis_used)} is bound by nothing",
        origin=where,
        help="reduce over it (pb.sum(.., over=k)) or make it an axis of the result",
    )


def _innermost(body: Expr, number: int) -> Expr:
    """The smallest expression with a known place that uses axis `number`."""
    smallest = body
    for node in _scope(body):
        used = isinstance(node, Expr) and number in node.axes
        if used and not isinstance(node, Axis) and isinstance(node, Expr):
            if handles.origin_of(node) is not None:
                return node
            smallest = node
    return smallest


def _scope(root: Expr) -> list[Node]:
    """The nodes of `root`, children first."""
    order: list[Node] = []
    seen: set[Node] = set()
    stack: list[tuple[Node, bool]] = [(root, False)]
    while stack:
        node, ready = stack.pop()
        if ready:
            order.append(node)
        elif node not in seen:
            seen.add(node)
            stack.append((node, True))
            kids = node.inside if isinstance(node, Inner) else node.children
            stack.extend((c, False) for c in reversed(kids))
    return order


# --- reductions become definitions ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Found:
    """A node, and the condition under which it is looked at: None where that is always."""

    node: Expr
    need: Expr | None


def _guarded(root: Expr, kind: type[Expr]) -> list[_Found]:
    """Every node of `kind` in `root`, not looking inside reductions, with its condition.

    ``where(c, a, b)``: a is needed where the whole is and c holds. One pass, parents first.
    """
    order = [n for n in walk(root, skip=_Inside(root)) if isinstance(n, Expr)]
    always: set[Expr] = {root}
    need: dict[Expr, Expr] = {}
    for node in reversed(order):
        if isinstance(node, Inner):
            continue
        mine = None if node in always else need[node]
        for child, guard in _edges(node):
            both = [g for g in (mine, guard) if g is not None]
            if not both:
                always.add(child)
            elif child not in always:
                here = conjunction(both)
                known = need.get(child)
                need[child] = here if known is None or known is here else E.Or(known, here)
    return [_Found(n, None if n in always else need[n]) for n in order if isinstance(n, kind)]


class _Inside:
    """The nodes that stand only inside the reductions of `root`."""

    def __init__(self, root: Expr) -> None:
        self.outside: set[Node] = set()
        stack: list[Node] = [root]
        while stack:
            node = stack.pop()
            if node not in self.outside:
                self.outside.add(node)
                stack.extend(() if isinstance(node, Inner) else node.children)

    def __contains__(self, node: object) -> bool:
        return node not in self.outside


def _edges(node: Expr) -> list[tuple[Expr, Expr | None]]:
    """The children of a node, each with the guard before it."""
    if isinstance(node, If):
        other = E.logical_not(node.condition)
        return [(node.condition, None), (node.then, node.condition), (node.otherwise, other)]
    return [(c, None) for c in node.children if isinstance(c, Expr)]


def hoist(root: Expr, outer: Guards, origin: Origin) -> Expr:
    """`root` with every reduction read from a definition of its own.

    ``sum[k](x[i, k]) / n -> s[i] / n``
    """
    memo: dict[Node, Node] = {}
    for guarded in _guarded(root, Inner):
        if not isinstance(guarded.node, Inner):
            continue
        need = guarded.need
        guards = outer if need is None else (*outer, hoist(need, outer, origin))
        memo[guarded.node] = _as_read(guarded.node, guards, origin)
    if not memo:
        return root
    closed = rebuild(root, lambda node: None, memo)
    assert isinstance(closed, Expr)
    return closed


def _as_read(inner: Inner, guards: Guards, origin: Origin) -> Expr:
    """A read of the definition that computes `inner` for all values of its free axes."""
    guarded = guards if any(_may_miss(e) for e in inner.inside) else ()
    numbers = set(inner.axes)
    for guard in guarded:
        numbers |= guard.axes
    known = {n.number: n for n in _scope(inner) if isinstance(n, Axis)}
    for guard in guarded:
        known |= {n.number: n for n in _scope(guard) if isinstance(n, Axis)}
    axes = [known[n] for n in sorted(numbers)]
    if isinstance(inner, Part):
        return whole(inner, _components(inner, axes, guarded, origin), axes)
    assert isinstance(inner, Fold)
    return read(_reduction(inner, axes, guarded, inner.combiner, origin), *axes)


def _components(
    part: Part, axes: Sequence[Axis], guards: Guards, origin: Origin
) -> list[Definition]:
    """The definitions that all components of one combination share."""
    key = (part.bodies, part.results, guards)
    made = part.joining.made.get(key)
    if made is None:
        # Where a guard fails, nothing is read: neither by the values nor by what combines them.
        others = [*part.starts, *(read(v) for v in part.joining.rows[0])]
        closed = []
        for e, other in zip(part.inside, others, strict=True):
            body = hoist(e, guards, origin)
            closed.append(If(conjunction(guards), body, other) if guards else body)
            check_reads(closed[-1], origin)
        numbered = [_renumbered(e, [*axes, *part.over]) for e in closed]
        count = len(part.bodies)
        made = combined(part, axes, numbered[:count], numbered[count:], origin)
        part.joining.made[key] = made
    return made


def _may_miss(body: Expr) -> bool:
    """Whether a read in `body` cannot be proved to lie in bounds."""
    if any(isinstance(n, Part) for n in walk(body)):
        return True
    for guarded in _guarded(_without_folds(body), Take):
        given = () if guarded.need is None else (guarded.need,)
        if isinstance(guarded.node, Take) and not all(in_bounds(guarded.node, given)):
            return True
    return False


def _without_folds(body: Expr) -> Expr:
    """The bodies of inner reductions in the place of those."""
    opened = rebuild(body, lambda n: n.body if isinstance(n, Fold) else None, {})
    assert isinstance(opened, Expr)
    return opened


def _reduction(
    fold: Fold, axes: Sequence[Axis], guards: Guards, name: str, origin: Origin
) -> Definition:
    """``out[axes] = combine over fold.over of body``, the identity where a guard fails."""
    combiner = COMBINERS[fold.combiner]
    body = hoist(fold.body, guards, origin)
    if guards:
        body = If(conjunction(guards), body, combiner.identity(body.dtype))
    check_reads(body, origin)
    numbered = _renumbered(body, [*axes, *fold.over])
    form = Reduce(combiner, tuple(a.extent for a in fold.over))
    place = handles.origin_of(fold) or origin
    shape = tuple(a.extent for a in axes)
    return wrap(Definition(name, shape, numbered, form, origin=place))


def _renumbered(body: Expr, axes: Sequence[Axis]) -> Expr:
    return substitute(body, {a.number: Axis(n, a.extent) for n, a in enumerate(axes)})


def _definition(name: str, body: Expr, axes: Sequence[Axis], origin: Origin) -> Definition:
    shape = tuple(a.extent for a in axes)
    return Definition(name, shape, _renumbered(body, axes), Map(), origin=origin)


# --- reads that are certainly wrong ---------------------------------------------------------------


def check_reads(body: Expr, origin: Origin) -> None:
    """Raises: IndexRangeError for an unguarded read that leaves its axis, data apart."""
    known = Intervals()
    for guarded in _guarded(body, Take):
        take = guarded.node
        if not isinstance(take, Take):
            continue
        given = () if guarded.need is None else (guarded.need,)
        for n, (place, extent) in enumerate(zip(take.indices, take.source.shape, strict=True)):
            if not proved(place, extent, given, known):
                lo, hi = bounds(place)
                raise IndexRangeError(
                    f"an index of {take.source} runs from {lo} to {hi},"
                    f" axis {n} of {show(take.source.shape)} has {extent} elements",
                    origin=handles.origin_of(take) or origin,
                    help="guard the read: pb.where(condition, x[..], other) never reads the other",
                    code="E152",
                )
