"""Where an adjoint is 0 because a branch was not taken: there no partial is evaluated.

y = where(x < 1, x, s), s = sqrt(x):   ds[i] = x[i] < 1 ? 0 : dy[i],
dx[i] += x[i] < 1 ? 0 : ds[i] / (2 s[i]),   and not 0 / 0 where x is 0

A sum is 0 where no term is taken: ds[j] = sum[i] (c[i, j] ? dy[i, j] : 0) where any[i] c[i, j].
"""

from __future__ import annotations

from collections.abc import Sequence

from pullback.algebra.affine import affine, to_expr
from pullback.grad import fold
from pullback.grad.composites import tame
from pullback.grad.fold import Term
from pullback.ir import expr as E
from pullback.ir.expr import Axis, Expr, Exprs, Take
from pullback.ir.graph import ANY, SUM, Definition, Reduce, Value, beside, identity, placed_at
from pullback.ir.node import Node, size
from pullback.simplify import guards as G
from pullback.simplify.product import Quotient
from pullback.simplify.triangle import gap

GUARDS = 4  # of one adjoint that are written out where it is read
NODES = 60  # in one of them


class Masks:
    """For adjoints, the guards outside of which they are 0, over their own axes."""

    def __init__(self) -> None:
        self._known: dict[Value, Exprs] = {}

    def learn(self, adjoint: Value, summands: Sequence[Expr]) -> None:
        """Remember where every summand is 0."""
        zeros = [self._guards(s) for s in summands]
        if not zeros or not all(zeros):
            return
        if len(zeros) > 1:
            sides = [c for c in map(G.every, zeros) if c is not None]
            whole = sides[0]
            for side in sides[1:]:
                whole = whole if side is whole else E.Or(whole, side)
            zeros = [(whole,)]
        guards = zeros[0]
        if len(guards) > GUARDS or not all(map(_small, guards)):
            # A guard may keep a later one's reads inside: all are kept, as one tensor.
            whole = G.every(guards) or guards[0]
            mask = Definition(f"{adjoint!r}_mask", adjoint.shape, whole, stop=True)
            guards = (identity(mask),)
        self._known[adjoint] = guards

    def masked(self, adjoint: Value, indices: Sequence[Expr], value: Expr) -> Expr:
        """`value`, a read of `adjoint` at `indices`, under what is known of it."""
        guards = [placed_at(g, indices) for g in self._known.get(adjoint, ())]
        return G.guarded(guards, value)

    def _guards(self, e: Expr, sums: bool = True) -> Exprs:
        """``(c ? x : 0) * y -> c``; of a read of an adjoint, that adjoint's."""
        conditions: dict[Expr, None] = {}
        todo = [e]
        while todo:
            term = fold.opened(Term((), todo.pop()))
            conditions.update(dict.fromkeys(term.guards))
            part = term.value
            if isinstance(part, E.Mul):
                todo += [part.right, part.left]
            elif isinstance(part, E.Div):
                todo.append(part.left)
            elif isinstance(part, E.Cast):
                todo.append(part.value)
            elif isinstance(part, Take):
                own = self._known.get(part.source, ())
                if not own and sums:
                    own = self._of_sum(part.source)
                conditions.update((placed_at(g, part.indices), None) for g in own)
        return tuple(conditions)

    def _of_sum(self, value: Value) -> Exprs:
        """Where a sum has a term: what guards all of them, and whether any is taken.

        The second not of a contraction: the data of its conditions would be read once more.
        """
        if not isinstance(value, Definition):
            return ()
        form = value.form
        if not isinstance(form, Reduce) or form.combiner is not SUM:
            return ()
        guards = self._guards(value.body, sums=False)
        rank = len(value.shape)
        outer: list[Expr] = []
        inner: list[Expr] = []
        for guard in guards:
            if _moves(guard, rank):
                inner.append(guard)
                somewhere = _somewhere(guard, rank)
                outer += [] if somewhere is None else [somewhere]
            elif inner and G.reads_data(guard):
                inner.append(guard)  # those before may keep its reads inside
            else:
                outer.append(guard)
        factors = Quotient.of(fold.opened(Term((), value.body)).value).above
        taken = G.every(guards)
        few = sum(_moves(f, rank) for f in factors) < 2
        if few and taken is not None and any(map(G.reads_data, inner)):
            terms = Reduce(ANY, form.over)
            outer.append(identity(beside(value, f"{value!r}_taken", taken, terms)))
        return tuple(outer)


def _somewhere(guard: Expr, rank: int) -> Expr | None:
    """Where a comparison of indices holds for some place along the axes from `rank` on.

    ``k > i`` for some i: ``k > 0``. None where it tells nothing.
    """
    form = gap(guard)
    if form is None:
        return None
    for axis, step in form.terms:
        if isinstance(axis, Axis) and axis.number >= rank:
            form = form.without(axis)
            last = affine(E.extent_expr(axis.extent)).shifted(-1)
            form = form.plus(last.times(step)) if step > 0 else form
    difference = to_expr(form)
    return None if _moves(difference, rank) else E.Less(E.index(-1), difference)


def _moves(e: Expr, rank: int) -> bool:
    """Whether `e` varies along an axis from number `rank` on."""
    return any(n >= rank for n in e.axes)


def _small(guard: Expr) -> bool:
    return size(guard) <= NODES


def steep(definition: Definition) -> bool:
    """Whether a partial of the body may be infinite; of ``tanh(x)``, say, none is."""
    todo: list[Node] = [definition.body]
    seen: set[Node] = set()
    while todo:
        node = todo.pop()
        if node in seen or not isinstance(node, Expr) or not node.dtype.is_float:
            continue
        seen.add(node)
        if isinstance(node, E.Log | E.Sqrt | E.Exp):
            return True
        if isinstance(node, E.Div) and not isinstance(node.right, E.Const):
            return True
        inner = None if isinstance(node, Take) else tame(node)
        todo += node.children if inner is None else inner
    return False
