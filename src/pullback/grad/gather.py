"""The adjoint of one read: a gather over its inverse where that is cheap, else a scatter.

``c[i] = f(x[A(i)])`` -> ``dx[y] = sum over {i: A(i) = y} of g(i)``. Where the fibre is one point
the result has no loop; guards stay only where the fibre may be empty.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pullback.algebra.bounds import all_inside, in_bounds
from pullback.algebra.guards import demands, test_of
from pullback.cost.facts import elements
from pullback.grad.fold import Term
from pullback.grad.invert import Empty, Unsolvable, invert
from pullback.grad.render import Inverse, rendered
from pullback.grad.system import Form, System, variable
from pullback.grad.total import summed
from pullback.ir import expr as E
from pullback.ir.expr import Axis, Expr, Exprs, Extent, If, Shape, Take, upper
from pullback.ir.graph import SUM, Accumulate, Label, Moves, Value, identity, substitute
from pullback.ir.node import walk
from pullback.simplify import guards as G
from pullback.simplify.rules import Simplifier
from pullback.simplify.triangle import with_indices

# A visit that divides and is no product counts twice (a table of positions: 0.9 ms, written 0.1).
BOUND = 4  # a gather may do this many times the work of the read and of clearing the result
PIECES = 16  # at most so many affine pieces of one index (clamps: 3 per coordinate)


class Gatherer:
    """Adjoints of reads; inversions are remembered by map. `why` says what made one accumulate."""

    def __init__(self) -> None:
        self.why: dict[Value, str] = {}
        self._memo: dict[tuple[object, ...], Inverse | Empty | None] = {}
        self._affine: dict[tuple[Expr, Shape], bool] = {}
        self._simplify = Simplifier()

    def gather(self, extents: Sequence[Extent], take: Take, term: Term, label: Label) -> list[Expr]:
        """Summands of the adjoint of `take.source` from one read, over the source's axes.

        `term` is the adjoint of the read over a box of `extents`.
        """
        if any(upper(e) == 0 for e in (*extents, *take.source.shape)):
            return []
        pieces = split_pieces(take.indices)
        summands = []
        for conditions, indices in pieces:
            part = term
            for condition in conditions:
                part = part.under(condition)
            summand = self._piece(tuple(extents), Take(take.source, indices), part, label)
            summands += [] if summand is None else [summand]
        return summands

    def _piece(self, extents: Shape, take: Take, term: Term, label: Label) -> Expr | None:
        affine = tuple(g for g in term.guards if self._is_affine(g, extents))
        inverse = self._inverse(take.source.shape, extents, take.indices, affine)
        if isinstance(inverse, Empty):
            return None
        if inverse is None:
            return self._scatter(extents, take, term, label, "its index has no finite inverse")
        data = [n for n, i in enumerate(take.indices) if not self._is_affine(i, extents)]
        loops = range(len(take.source.shape), len(take.source.shape) + len(inverse.over))
        matches = []
        for n in data:
            index = self._at(take.indices[n], inverse)
            if not index.axes.isdisjoint(loops):
                return self._scatter(extents, take, term, label, f"index {n} is data")
            matches.append(E.Equal(index, Axis(n, take.source.shape[n])))
        rest = [self._at(g, inverse) for g in term.guards if g not in affine]
        guards = [*inverse.guards, *matches, *rest]
        value = self._at(term.value, inverse)
        shape = take.source.shape
        stepped = inverse.stepped(shape)
        if not inverse.over:
            return None if _never(guards) else G.guarded(_open([*stepped, *guards]), value)
        lattice = Lattice(shape, inverse.steps)
        guards = [self._changed(g, lattice.places) for g in guards]
        value = self._changed(value, lattice.places)
        if _never(guards) or elements(lattice.shape) == 0:
            return None
        hard = not isinstance(value, E.Mul) and any(map(E.divisor, walk([value, *guards])))
        limit = BOUND // (1 + hard) * (elements(extents) + elements(shape))
        total = summed(lattice.shape, inverse.over, _open(guards), value, label, limit)
        if total is None:
            why = f"gathering would visit more than {limit} points"
            return self._scatter(extents, take, term, label, why)
        return G.guarded(stepped, self._changed(total, lattice.numbers))

    def _scatter(self, extents: Shape, take: Take, term: Term, label: Label, why: str) -> Expr:
        """``dx = 0; for i: dx[A(i)] += g(i)``; where a guard fails, element 0 gains 0.

        Coordinates that need no guard keep theirs, so that they may run in parallel.
        """
        at = take.indices
        whole = G.every(term.guards)
        if whole is not None:
            sure = in_bounds(take)
            at = tuple(
                i if known and all_inside(i) else If(whole, i, E.index(0))
                for i, known in zip(at, sure, strict=True)
            )
        form = Accumulate(SUM, extents, at)
        body = term.expression()
        adjoint = label.define(take.source.shape, body, form)
        self.why[adjoint] = why
        return identity(adjoint)

    def _inverse(
        self,
        shape: Shape,
        extents: Shape,
        indices: Exprs,
        guards: Exprs,
    ) -> Inverse | Empty | None:
        """The inverse; None where there is none within the bound."""
        known = tuple(i if self._is_affine(i, extents) else None for i in indices)
        key = (shape, extents, known, guards)
        if key not in self._memo:
            self._memo[key] = _find(shape, extents, known, guards, self._simplify)
        return self._memo[key]

    def _is_affine(self, e: Expr, extents: Shape) -> bool:
        if isinstance(e, Axis):
            return True
        key = e, extents
        if key not in self._affine:
            self._affine[key] = _is_affine(e, extents)
        return self._affine[key]

    def _at(self, e: Expr, inverse: Inverse) -> Expr:
        return self._changed(e, inverse.axes)

    def _changed(self, e: Expr, axes: Mapping[int, Expr]) -> Expr:
        """`e` with its axes replaced, conditions and the indices of reads in normal form."""
        moved = substitute(e, axes)
        if all(isinstance(a, Axis | E.Const) for a in axes.values()):
            return moved
        if moved.dtype.is_bool:
            return self._simplify(moved)
        return with_indices(moved, self._simplify)


class Lattice:
    """The elements of a box whose coordinates are ``remainder`` modulo ``modulus``, as a box.

    ``x = 2 y + 1``: `places` has x by y, `numbers` y by x, where x is one of them.
    """

    def __init__(self, shape: Sequence[Extent], steps: Mapping[int, tuple[int, int]]) -> None:
        extents = list(shape)
        self.places: Moves = {}
        self.numbers: Moves = {}
        for n, (modulus, remainder) in steps.items():
            extent = shape[n]
            if not isinstance(extent, int):
                continue
            extents[n] = max(0, -((remainder - extent) // modulus))
            place = E.Mul(Axis(n, extents[n]), E.index(modulus))
            self.places[n] = E.Add(place, E.index(remainder))
            offset = E.Add(Axis(n, extent), E.index(-remainder))
            self.numbers[n] = E.FloorDiv(offset, E.index(modulus))
        self.shape = tuple(extents)


def _open(guards: Sequence[Expr]) -> list[Expr]:
    """The guards that may fail."""
    return [g for g in guards if not E.is_const(g, 1)]


def _never(guards: Sequence[Expr]) -> bool:
    return any(E.is_const(g, 0) for g in guards)


def _find(
    shape: Shape,
    extents: Shape,
    indices: tuple[Expr | None, ...],
    guards: Exprs,
    simplify: Simplifier,
) -> Inverse | Empty | None:
    system = System(shape, extents)
    for parameter, index in zip(system.parameters, indices, strict=True):
        form = None if index is None else system.form(index)
        if form is not None:
            system.equations.append(form.minus(variable(parameter)))
    for guard in guards:
        difference = _difference(system, guard)
        if difference is not None:
            kind, form = difference
            (system.equations if kind is E.Equal else system.inequalities).append(form)
    try:
        solution = invert(system)
    except Unsolvable:
        return None
    except Empty as empty:
        return empty
    return rendered(solution, shape, simplify)


def _is_affine(e: Expr, extents: Shape) -> bool:
    """Whether an index or a condition reads as integer forms over the axes."""
    system = System((), extents)
    if not e.dtype.is_bool:
        return system.form(e) is not None
    return _difference(system, e) is not None


def _difference(system: System, condition: Expr) -> tuple[type[Expr], Form] | None:
    """``a < b -> (Less, b - a - 1 >= 0)``, ``not a < b -> (Less, a - b >= 0)``, ``a == b``."""
    test, holds = test_of(condition)
    if not isinstance(test, E.Comparison) or not test.left.dtype.is_integer:
        return None
    left = system.form(test.left)
    right = system.form(test.right)
    if left is None or right is None or (isinstance(test, E.Equal) and not holds):
        return None
    gaps = demands(test, holds, {test.left: left, test.right: right}.__getitem__)
    return type(test), gaps[-1]


def split_pieces(indices: Exprs) -> list[tuple[Exprs, Exprs]]:
    """Selects in an index as pieces, none of data: ``x[c ? a : b] -> (c: x[a]), (not c: x[b])``."""
    done: list[tuple[Exprs, Exprs]] = []
    todo: list[tuple[Exprs, Exprs]] = [((), indices)]
    while todo:
        conditions, current = todo.pop()
        place = _select(current)
        if place is None or len(done) + len(todo) >= PIECES:
            done.append((conditions, current))
            continue
        n, select = place
        choices = (
            (G.negated(select.condition), select.otherwise),
            (select.condition, select.then),
        )
        for condition, branch in choices:
            changed = (*current[:n], branch, *current[n + 1 :])
            todo.append(((*conditions, condition), changed))
    return done


def _select(indices: Exprs) -> tuple[int, If] | None:
    for n, index in enumerate(() if any(map(G.reads_data, indices)) else indices):
        if isinstance(index, If):
            return n, index
    return None
