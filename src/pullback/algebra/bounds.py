"""Interval bounds of integer expressions, and proofs of comparisons from guards.

A fact is a linear form that is known to be ``>= 0``. To bound ``e`` from below, facts are
subtracted where they cancel a term: ``e >= e - k*fact``, whose interval may be tighter.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import reduce

from pullback.algebra.affine import Affine, affine, atom, factors, is_linear
from pullback.algebra.guards import demands, parts
from pullback.ir.dtype import bool_, int64
from pullback.ir.expr import (
    Add,
    And,
    Axis,
    Binary,
    Cast,
    Comparison,
    Const,
    Dim,
    Equal,
    Expr,
    Extent,
    FloorDiv,
    If,
    Less,
    Mod,
    Mul,
    Or,
    Size,
    Take,
    Xor,
    divisor,
    extent_expr,
    index,
    takes,
    upper,
)
from pullback.ir.nest import Var
from pullback.ir.node import Node, walk

Interval = tuple[int, int]
Fact = Affine
LO, HI = int64.range()
DEPTH = 3  # facts subtracted from one form, at most
MANY = 16  # facts from which only one is subtracted
LOGICAL = (And, Or, Xor)
DIVIDED = (FloorDiv, Mod)


class Intervals:
    """Interval bounds under facts; results are kept between calls.

    `leaves` gives bounds of int64 nodes that their own form does not tell.
    """

    def __init__(
        self, facts: Sequence[Fact] = (), leaves: dict[Expr, Interval] | None = None
    ) -> None:
        self.facts = strongest(facts)
        self.concluded: dict[tuple[Expr, bool], list[Fact]] = {}
        self.leaves: dict[Expr, Interval] = {} if leaves is None else leaves
        self.known: dict[Node, Interval] = {}
        self.forms: dict[Expr, Affine] = {}
        self.plain: Intervals = Intervals() if self.facts else self

    def of(self, e: Expr) -> Interval:
        """Smallest and largest value, both included, of an integer or boolean expression."""
        for node in walk(e, skip=self.known):
            if isinstance(node, Expr):
                self.known[node] = (0, 0) if node.dtype.is_float else self._bound(node)
        return self.known[e]

    def form(self, e: Expr) -> Affine:
        """The linear form of an int64 expression."""
        return affine(e, self.forms)

    def exact(self, form: Affine) -> bool:
        """Whether int64 arithmetic gives the form's exact value, without wrapping."""
        return _held(self.raw(form))

    def raw(self, form: Affine) -> Interval:
        """The interval of a linear form over exact integers, facts not used."""
        lo = hi = form.const
        for e, coefficient in form.terms:
            # Facts about an atom met before its turn may lead back to it: use none.
            a, b = self.known[e] if e in self.known else self.plain.of(e)
            if coefficient < 0:
                a, b = b, a
            lo = lo + coefficient * a
            hi = hi + coefficient * b
        return lo, hi

    def tight(self, form: Affine, extra: Sequence[Fact] = ()) -> Interval:
        """The interval of a linear form over exact integers, with facts."""
        facts = [*self.facts, *extra, *_implicit(form)]
        lo, hi = self.raw(form)
        if not facts or not form.terms:
            return lo, hi
        depth = DEPTH if len(facts) <= MANY else 1
        low = self._least(form, facts, depth)
        high = -self._least(form.times(-1), facts, depth)
        return max(lo, low), min(hi, high)

    def learn(self, atoms: Iterable[Expr]) -> bool:
        """Bound quotients and remainders by facts about what is inside; whether any was new."""
        if not self.facts:
            return False
        new = [e for e in atoms if isinstance(e, DIVIDED) and e not in self.known]
        for e in new:
            self.of(e)
        return bool(new)

    def _least(self, form: Affine, facts: Sequence[Fact], depth: int) -> int:
        best = self.raw(form)[0]
        if depth == 0:
            return best
        for n, fact in enumerate(facts):
            for factor in form.multiples(fact):
                if factor < 0:
                    continue
                rest = form.plus(fact, -factor)
                others = [*facts[:n], *facts[n + 1 :]]
                best = max(best, self._least(rest, others, depth - 1))
        return best

    def _bound(self, e: Expr) -> Interval:
        limits = e.dtype.range()
        interval = self._rule(e)
        if interval is None or interval[0] < limits[0] or interval[1] > limits[1]:
            return limits
        return interval

    def _rule(self, e: Expr) -> Interval | None:
        if isinstance(e, Const):
            return int(e.value), int(e.value)
        if isinstance(e, Var):
            return self._leaf(e, e.lo, e.hi)
        if isinstance(e, Axis):
            return self._leaf(e, 0, max(0, upper(e.extent) - 1))
        if isinstance(e, Size):
            return self._leaf(e, e.dim.lo, e.dim.hi)
        if isinstance(e, If):
            return self._choice(e)
        if isinstance(e, Cast):
            return None if e.value.dtype.is_float else self.known[e.value]
        if isinstance(e, Comparison):
            return 0, 1
        if isinstance(e, Binary) and not e.dtype.is_bool:
            return self._arithmetic(e)
        if e in self.leaves:
            return self._leaf(e, *self.leaves[e])
        if isinstance(e, Take) and e.dtype == int64:
            return self._leaf(e, LO, HI)
        return None

    def _leaf(self, e: Expr, lo: int, hi: int) -> Interval:
        self.known[e] = lo, hi
        if not self.facts:
            return lo, hi
        low, high = self.tight(atom(e))
        return (low, high) if low <= high else (lo, hi)

    def _arithmetic(self, e: Binary) -> Interval | None:
        if is_linear(e):
            form = self.form(e)
            if form.single is not e:
                return self.tight(form)
        left = self.known[e.left]
        right = self.known[e.right]
        if isinstance(e, Add):
            return left[0] + right[0], left[1] + right[1]
        if isinstance(e, Mul):
            corners = [a * b for a in left for b in right]
            return min(corners), max(corners)
        if isinstance(e, FloorDiv):
            return self._refined(e, floor_div(left, right))
        if isinstance(e, Mod):
            return self._refined(e, modulo(left, right))
        return bitwise(e, left, right)

    def _refined(self, e: Expr, whole: Interval) -> Interval:
        """`whole`, made tighter by facts about the quotient or remainder itself."""
        if not self.facts or e.dtype != int64:
            return whole
        return self._leaf(e, *whole)

    def _choice(self, e: If) -> Interval | None:
        if e.dtype.is_float:
            return None
        sides: list[Interval] = []
        for branch, positive in ((e.then, True), (e.otherwise, False)):
            known = self.known[branch]
            if e.dtype == int64:
                extra = facts_of(e.condition, self, positive)
                lo, hi = self.tight(self.form(branch), extra) if extra else known
                known = max(lo, known[0]), min(hi, known[1])
            known = self._clamped(e.condition, branch, positive, known)
            if known[0] <= known[1]:
                sides.append(known)
        if not sides:
            return None
        return min(s[0] for s in sides), max(s[1] for s in sides)

    def _clamped(self, test: Expr, branch: Expr, holds: bool, known: Interval) -> Interval:
        """Bounds of a branch that its own condition compares: ``x < 0 ? 0 : x`` is no less than 0.

        True of any `x`, even of a sum that may wrap around.
        """
        if not isinstance(test, Less):
            return known
        lo, hi = known
        left = self.known[test.left]
        right = self.known[test.right]
        if branch is test.left:
            if holds:
                return lo, min(hi, right[1] - 1)
            return max(lo, right[0]), hi
        if branch is test.right:
            if holds:
                return max(lo, left[0] + 1), hi
            return lo, min(hi, left[1])
        return known


def _held(interval: Interval) -> bool:
    """Whether int64 holds all of an interval."""
    return interval[0] >= LO and interval[1] <= HI


def strongest(facts: Iterable[Fact]) -> tuple[Fact, ...]:
    """Of facts that differ in their constant only, the one that implies the others."""
    least: dict[tuple[tuple[Expr, int], ...], int] = {}
    for fact in facts:
        known = least.get(fact.terms)
        least[fact.terms] = fact.const if known is None else min(known, fact.const)
    return tuple(Affine(terms, const) for terms, const in least.items() if terms)


def _implicit(form: Affine) -> list[Fact]:
    """What the atoms of a form are below, where that is symbolic; what quotients of symbolic sizes
    say: ``0 <= n - d * (n // d) < d``; what products with an axis say: ``i n <= (m - 1) n``.
    """
    facts: list[Fact] = []
    atoms = list(form.atoms)
    for e in atoms:
        if (end := _below(e)) is not None:
            most = affine(end)
            atoms += most.atoms
            facts.append(most.minus(atom(e)).shifted(-1))
        if isinstance(e, Mul):
            facts += _multiplied(e, form.atoms)
        if isinstance(e, FloorDiv) and (by := divisor(e)):
            rest = affine(e.left).plus(atom(e), -by)
            if any(isinstance(a, Size) for a in rest.atoms):
                facts += [rest, rest.times(-1).shifted(by - 1)]
    return facts


def _multiplied(e: Mul, atoms: Sequence[Expr]) -> list[Fact]:
    """``(m - 1) n - i n >= 0`` of a product ``i n``, i an axis below m, n nowhere negative.

    Products are spelled as they are among `atoms`: ``m n`` and ``n m`` are two atoms.
    """

    def spelled(parts: Sequence[Expr]) -> Affine:
        own = Counter(parts)
        same = (a for a in atoms if isinstance(a, Mul) and Counter(factors(a)) == own)
        return affine(next(same, reduce(Mul, parts)))

    facts: list[Fact] = []
    inner = factors(e)
    for n, part in enumerate(inner):
        rest = [*inner[:n], *inner[n + 1 :]]
        if isinstance(part, Axis) and all(Intervals().of(other)[0] >= 0 for other in rest):
            most = spelled([*factors(extent_expr(part.extent)), *rest])
            facts.append(most.minus(spelled(rest)).minus(atom(e)))
    return facts


def _below(e: Expr) -> Expr | None:
    """``axis < size``, ``a % n < n``, ``axis // n < m`` of ``m * n`` elements: n, not negative, is
    positive where there are any.
    """
    if isinstance(e, Axis):
        return extent_expr(e.extent) if isinstance(e.extent, Dim) else None
    if not isinstance(e, DIVIDED) or divisor(e) or e.dtype is not int64:
        return None
    rest, by = factors(_below(e.left) or index(1)), factors(e.right)
    divides = all(by.count(f) <= rest.count(f) and Intervals().of(f)[0] >= 0 for f in by)
    if isinstance(e, Mod):
        return e.right if divides or Intervals().of(e.right)[0] > 0 else None
    for factor in by if divides else ():
        rest.remove(factor)
    return reduce(Mul, rest or [index(1)]) if divides else None


def floor_div(left: Interval, right: Interval) -> Interval:
    """Bounds of ``left // right``, 0 where the divisor is 0."""
    lo, hi = right
    divisors = [d for d in (lo, -1, 1, hi) if d != 0 and lo <= d <= hi]
    corners = [a // d for a in left for d in divisors]
    if lo <= 0 <= hi:
        corners.append(0)
    return min(corners), max(corners)


def modulo(left: Interval, right: Interval) -> Interval:
    """Bounds of ``left % right``, 0 where the divisor is 0."""
    if right[0] == right[1] > 0 and left[0] // right[0] == left[1] // right[0]:
        return left[0] % right[0], left[1] % right[0]
    lo = min(0, right[0] + 1)
    hi = max(0, right[1] - 1)
    if left[0] >= 0 and right[0] >= 0:
        hi = min(hi, left[1])
    return lo, hi


def bitwise(e: Expr, left: Interval, right: Interval) -> Interval | None:
    """Bounds of bitwise operations on values that are not negative."""
    if left[0] < 0 or right[0] < 0:
        return None
    if isinstance(e, And):
        return 0, min(left[1], right[1])
    return 0, (1 << max(left[1], right[1]).bit_length()) - 1


def facts_of(condition: Expr, intervals: Intervals, holds: bool = True) -> list[Fact]:
    """What follows for int64 values where `condition` holds (or does not)."""
    key = condition, holds
    if key not in intervals.concluded:
        facts = intervals.concluded[key] = []
        for test, positive in parts(condition, holds):
            if isinstance(test, Comparison) and test.left.dtype is int64:
                facts += _comparison(test, intervals, positive)
    return intervals.concluded[key]


def _comparison(e: Comparison, intervals: Intervals, holds: bool) -> list[Fact]:
    """What `demands` says, where nothing wraps; ``not i == 1`` of i < 2 gives ``-i >= 0``."""
    left = intervals.form(e.left)
    right = intervals.form(e.right)
    if not (intervals.exact(left) and intervals.exact(right)):
        return []
    if isinstance(e, Less) or holds:
        return demands(e, holds, intervals.form)
    difference = right.minus(left)
    lo, hi = intervals.raw(difference)
    if lo == 0:
        return [difference.shifted(-1)]
    return [difference.times(-1).shifted(-1)] if hi == 0 else []


class Prover:
    """Decides boolean expressions under guards that are known to hold."""

    def __init__(self, given: Iterable[Expr] = (), base: Intervals | None = None) -> None:
        base = Intervals() if base is None else base
        self.holds: dict[Expr, bool] = {}
        facts: list[Fact] = []
        for guard in given:
            facts += facts_of(guard, base)
            self.holds.update(parts(guard))
        self.intervals = Intervals(facts, base.leaves) if facts else base

    def prove(self, condition: Expr) -> bool | None:
        """Whether `condition` must hold (True), cannot hold (False) or is not decided."""
        if isinstance(condition, Comparison):
            return self._decide(condition, {})
        known: dict[Node, bool | None] = {}
        for node in walk(condition, skip=_Opaque()):
            if isinstance(node, Expr):
                known[node] = self._decide(node, known)
        return known.get(condition, self.holds.get(condition))

    def inside(self, position: Expr, extent: Extent) -> bool | None:
        """Whether ``0 <= position < extent`` must hold, cannot hold, or is not decided."""
        below = self.prove(Less(position, extent_expr(extent)))
        negative = below is False or self.prove(Less(position, index(0)))
        if negative:
            return False
        return True if below and negative is False else None

    def _decide(self, e: Expr, known: dict[Node, bool | None]) -> bool | None:
        if e in self.holds:
            return self.holds[e]
        if isinstance(e, Const):
            return bool(e.value)
        if isinstance(e, Comparison):
            return self._compare(e)
        if not isinstance(e, LOGICAL):
            return None
        left = known.get(e.left)
        right = known.get(e.right)
        if isinstance(e, Xor):
            return None if left is None or right is None else left != right
        decisive = isinstance(e, Or)
        if left is decisive or right is decisive:
            return decisive
        return None if left is None or right is None else not decisive

    def _compare(self, e: Comparison) -> bool | None:
        if e.left.dtype.is_float:
            return False if isinstance(e, Less) and e.left is e.right else None
        if e.left.dtype != int64:
            return self._ranges(e)
        intervals = self.intervals
        left = intervals.form(e.left)
        right = intervals.form(e.right)
        if left == right:
            return isinstance(e, Equal)
        if not (_held(intervals.tight(left)) and _held(intervals.tight(right))):
            return self._ranges(e)
        gap = right.minus(left)
        sign = _sign(e, intervals.tight(gap))
        if sign is None and intervals.learn(gap.atoms):
            sign = _sign(e, intervals.tight(gap))
        return self._divided(gap) if sign is None and isinstance(e, Less) else sign

    def _divided(self, gap: Affine) -> bool | None:
        """Whether ``a - e // c > 0``, which is ``c a - e > 0``."""
        for quotient, coefficient in gap.terms:
            if coefficient == -1 and isinstance(quotient, FloorDiv):
                by, inner = quotient.right, self.intervals.form(quotient.left)
                if isinstance(by, Const) and by.value > 0 and self.intervals.exact(inner):
                    rest = gap.plus(self.intervals.form(quotient))
                    lo, hi = self.intervals.tight(rest.times(int(by.value)).minus(inner))
                    return True if lo > 0 else False if hi <= 0 else None
        return None

    def _ranges(self, e: Comparison) -> bool | None:
        left = self.intervals.of(e.left)
        right = self.intervals.of(e.right)
        sign = _sign(e, (right[0] - left[1], right[1] - left[0]))
        same = sign is None and isinstance(e, Equal) and e.left is e.right
        return True if same else sign


def _sign(e: Comparison, gap: Interval) -> bool | None:
    """What bounds of ``right - left`` say about a comparison."""
    lo, hi = gap
    if isinstance(e, Equal):
        if lo > 0 or hi < 0:
            return False
        return True if lo == hi == 0 else None
    if lo > 0:
        return True
    return False if hi <= 0 else None


class _Opaque:
    """Everything that is not boolean: a proof looks at the comparisons, not inside."""

    def __contains__(self, node: object) -> bool:
        return not isinstance(node, Expr) or node.dtype != bool_ or isinstance(node, Take)


def bounds(e: Expr, given: Iterable[Expr] = ()) -> Interval:
    """Smallest and largest value, both included, of an integer expression where `given` holds.

    ``(i * 4 + j) // 8`` with i < 8, j < 4 -> (0, 3)
    """
    return Prover(given).intervals.of(e)


def prove(condition: Expr, given: Iterable[Expr] = ()) -> bool | None:
    """Whether `condition` always holds (True), never (False), or is not decided (None).

    ``i - 1 < n, given i < n -> True``
    """
    return Prover(given).prove(condition)


def all_inside(e: Expr, guards: Iterable[Expr] = ()) -> bool:
    """Whether every read of an expression is proved to lie inside its tensor."""
    guards = tuple(guards)
    return all(all(in_bounds(take, guards)) for take in takes(e))


def in_bounds(take: Take, guards: Iterable[Expr] = ()) -> tuple[bool, ...]:
    """For each index of a read whether it is proved to lie inside its axis."""
    prover = Prover(guards)
    return tuple([bool(prover.inside(position, extent)) for position, extent in take.places])
