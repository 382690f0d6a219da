"""Solving ``A(v) = x`` for the domain `v`: which points of a box read element `x`.

Mixed radix first (`system`), then unit coefficients, divisibility guards and Euclid steps, then
each free unknown gets a loop of the smallest trip count that its bounds allow (deskewing: a window
``x = 2i + k, 0 <= k < 3`` loops twice over `i`, not over all of them), then guards that follow from
the boxes are dropped.
"""

from __future__ import annotations

from itertools import product
from math import ceil, floor, gcd
from typing import Literal

from pullback.config import Pair, frozen
from pullback.grad.system import Form, System, constant, variable
from pullback.ir.expr import Extent

Kind = Literal["ge", "eq", "div"]


@frozen
class Condition:
    """``form >= 0``, ``form == 0`` or ``form % modulus == 0``."""

    kind: Kind
    form: Form
    modulus: int = 1


@frozen
class Remaining:
    """One remaining loop: variable ``0 <= v < extent``."""

    variable: int
    extent: Extent


@frozen
class Solution:
    """Every domain axis as a form over parameters, loops and floors; the guards that remain."""

    system: System
    axes: tuple[Form, ...]
    loops: tuple[Remaining, ...]
    guards: tuple[Condition, ...]


class Unsolvable(Exception):
    """The map has no finite inverse in this form: an unknown is not bounded."""


class Empty(Exception):
    """No point of the domain satisfies the system."""


def invert(system: System) -> Solution:
    """Solve the equations of `system` for its unknowns.

    Raises: Unsolvable; Empty where nothing reads any element.
    """
    return _Solver(system).run()


@frozen
class _Bounded:
    """One way to enumerate unknown `v`: ``scale * v >= low``, `trips` values at most."""

    rank: tuple[int, int, int, int, int]
    v: int
    scale: int
    low: Form
    extent: Extent


def _divisible(form: Form, modulus: int) -> Condition:
    """``form % modulus == 0``; of one variable ``2 x + 1`` by 3 as ``(x - 1) % 3 == 0``.

    Raises: Empty where no value of the variable will do.
    """
    if len(form.terms) > 1:
        return Condition("div", form, modulus)
    ((v, factor),), rest = form
    common = gcd(factor, modulus)
    if rest % common:
        raise Empty
    period = modulus // common
    first = -rest // common * pow(factor // common, -1, period) % period
    return Condition("div", variable(v).shifted(-first), period)


def _tightened(form: Form) -> Form:
    """``2 x + 3 >= 0 -> x + 1 >= 0``: integers leave no room between."""
    common = gcd(*(c for _, c in form.terms))
    return form if common < 2 else form.over(common)


class _Solver:
    def __init__(self, system: System) -> None:
        self.system = system
        self.equations = list(system.equations)
        self.inequalities = list(system.inequalities)
        self.free = list(system.unknowns)
        self.known: dict[int, Form] = {}
        self.guards: list[Condition] = []
        self.loops: dict[int, Remaining] = {}

    def run(self) -> Solution:
        for v in list(self.free):
            only = constant(self.system.lower[v])
            if self.system.upper[v] == only:
                self._substitute(v, only)
        while self.equations:
            self._eliminate()
        while self.free:
            self._enumerate()
        for form in self._tight():
            self._demand(form)
        axes = tuple(self.known[v] for v in self.system.domain)
        loops = tuple(self.loops[v] for v in sorted(self.loops))
        return Solution(self.system, axes, loops, tuple(self.guards))

    def _substitute(self, v: int, by: Form) -> None:
        self.free.remove(v)
        self.equations = [e.replaced(v, by) for e in self.equations]
        self.inequalities = [_tightened(e.replaced(v, by)) for e in self.inequalities]
        self.known = {u: e.replaced(v, by) for u, e in self.known.items()}
        self.known[v] = by

    def _eliminate(self) -> None:
        """Use up one equation, or make its smallest coefficient smaller."""
        unit = self._unit()
        if unit is not None:
            n, v = unit
            equation = self.equations.pop(n)
            self._substitute(v, equation.without(v).times(-equation.of(v)))
            return
        equation = self.equations[0]
        part = Form(tuple((v, c) for v in self.free if (c := equation.of(v))))
        if part.is_constant:
            self._equal(self.equations.pop(0))
            return
        common = gcd(*(c for _, c in part.terms))
        if common > 1:
            self.equations[0] = self._divide(equation, part, common)
            return
        v, least = min(part.terms, key=lambda term: (abs(term[1]), term[0]))
        w = self.system.fresh()
        step = variable(w)
        for u, c in part.without(v).terms:
            step = step.plus(variable(u), -(c // least))
        self.free.append(w)
        self._substitute(v, step)

    def _unit(self) -> Pair | None:
        """The (equation, unknown) with coefficient 1 or -1 of largest extent; first on ties."""
        best: Pair | None = None
        most = -1
        for n, equation in enumerate(self.equations):
            for v in self.free:
                if abs(equation.of(v)) != 1:
                    continue
                size = self.system.range_of(v) if v in self.system.upper else 1 << 62
                if size > most:
                    best = (n, v)
                    most = size
        return best

    def _equal(self, form: Form) -> None:
        if form.is_constant:
            if form.const:
                raise Empty
            return
        low = self.system.least(form)
        high = self.system.most(form)
        if low > 0 or high < 0:
            raise Empty
        if low != 0 or high != 0:
            self.guards.append(Condition("eq", form))

    def _divide(self, equation: Form, part: Form, common: int) -> Form:
        """``common * p + rest == 0 -> p + rest / common == 0`` where common divides rest.

        ``2 j - x == 0 -> j - x // 2 == 0``, rather than ``j + x // 2 - x == 0``.
        """
        rest = equation.minus(part)
        if all(c < 0 for _, c in rest.terms):
            rest = rest.times(-1)
            part = part.times(-1)
        # Of x and -x the one whose coefficients are positive has the simpler quotient.
        sign = -1 if rest.terms and rest.terms[0][1] < 0 else 1
        rest = rest.times(sign)
        loose = Form(
            tuple((v, c % common) for v, c in rest.terms if c % common), rest.const % common
        )
        reduced = part.plus(rest.minus(loose), sign).over(common)
        if loose.is_constant:
            if loose.const:
                raise Empty
            return reduced
        self.guards.append(_divisible(loose, common))
        return reduced.plus(self.system.floor(loose, common, exact=True), sign)

    def _box(self, v: int) -> tuple[int | None, int | None]:
        """Constant bounds of a free unknown from the inequalities that hold it alone."""
        low: int | None = None
        high: int | None = None
        for form in self.inequalities:
            c = form.of(v)
            rest = form.without(v)
            if not c or not set(rest.atoms) <= set(self.system.dims.values()):
                continue
            most = self.system.most(rest)
            if c > 0:
                bound = ceil(-most / c)
                low = bound if low is None else max(low, bound)
            else:
                bound = floor(most / -c)
                high = bound if high is None else min(high, bound)
        return low, high

    def _relaxed(self, form: Form, v: int) -> tuple[Form, int] | None:
        """`form` without `v`, other free unknowns at their box's edge (one elimination step)."""
        rest = form.without(v)
        relaxed = 0
        for u, c in rest.terms:
            if u not in self.free:
                continue
            low, high = self._box(u)
            edge = high if c > 0 else low
            if edge is None:
                return None
            rest = rest.replaced(u, constant(edge))
            relaxed += 1
        return rest, relaxed

    def _candidates(self, v: int) -> list[_Bounded]:
        lows: list[tuple[int, Form, int]] = []
        highs: list[tuple[int, Form, int]] = []
        for form in self.inequalities:
            c = form.of(v)
            bounds = self._relaxed(form, v) if c else None
            if bounds is not None:
                (lows if c > 0 else highs).append((abs(c), *bounds))
        pairs = product(lows, highs)
        every = (self._bounded(v, *low, *high) for low, high in pairs)
        return [bounded for bounded in every if bounded is not None]

    def _bounded(
        self, v: int, a: int, low: Form, first: int, b: int, high: Form, second: int
    ) -> _Bounded | None:
        """From ``a v + low >= 0`` and ``high - b v >= 0``: at most that many values of `v`."""
        width = high.times(a).plus(low, b)
        try:
            trips = floor(self.system.most(width) / (a * b)) + 1
        except KeyError:
            return None
        exact = self.system.size_of(width.shifted(1)) if a == b == 1 else None
        extent: Extent = trips if exact is None else exact
        rank = (trips, first + second, a, len(low.terms) + (low.const != 0), v)
        return _Bounded(rank, v, a, low.times(-1), extent)

    def _enumerate(self) -> None:
        """Turn the free unknown of smallest trip count into a loop, or into a value if it is 1."""
        candidates = [c for v in self.free for c in self._candidates(v)]
        if not candidates:
            raise Unsolvable
        best = min(candidates, key=lambda c: c.rank)
        if best.rank[0] <= 0:
            raise Empty
        low = best.low
        if best.scale > 1:
            low = self.system.floor(low.shifted(best.scale - 1), best.scale)
        if best.extent != 1:
            t = self.system.fresh(self.system.extent(best.extent))
            self.loops[best.v] = Remaining(t, best.extent)
            low = low.plus(variable(t))
        self._substitute(best.v, low)

    def _tight(self) -> list[Form]:
        """The inequalities, of those that differ in the constant alone the strictest."""
        strictest: dict[frozenset[Pair], Form] = {}
        for form in map(self.system.unfloored, self.inequalities):
            key = frozenset(form.terms)
            old = strictest.get(key)
            if old is None or form.const < old.const:
                strictest[key] = form
        return list(strictest.values())

    def _demand(self, form: Form) -> None:
        """Keep ``form >= 0`` unless it follows; forms are integers, so > -1 suffices."""
        if self.system.least(form) > -1:
            return
        if self.system.most(form) < 0:
            raise Empty
        self.guards.append(Condition("ge", form))
