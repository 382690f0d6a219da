"""Turns of a loop that stand for all, where what is inside depends on which it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set

from pullback.backends.nests.analysis import Facts
from pullback.backends.nests.regions import of_data
from pullback.ir import expr as E
from pullback.ir.expr import Expr
from pullback.ir.nest import For, Guard, Load, Native, Stmt, Var
from pullback.ir.node import walk
from pullback.ir.statements import statements

# Of two loops in one another; of those inside of these FEWER. ROUGH: where nothing but the order
# of prices matters.
SAMPLES = 8
FEWER = 3
ROUGH = 2
MOST_ALIKE = 64  # turns that are looked at one by one, whether the loops inside them are alike


def sampled(turns: int, before: int, samples: int = SAMPLES) -> list[tuple[float, float]]:
    """Some turns of a loop and how many each stands for: all of a few; else the last one, and
    the middles of equal parts of the others. `before`: those of the loops around.

    ``20  ->  (1, 2.7), (4, 2.7), .. (17, 2.7), (19, 1)``
    """
    most = samples if before <= samples else min(FEWER, samples - 1)
    if turns <= most:
        return [(float(n), 1.0) for n in range(turns)]
    if most == 1:
        return [(float(turns // 2), float(turns))]
    each = (turns - 1) / (most - 1)
    parts = [(float(int((n + 0.5) * each)), each) for n in range(most - 1)]
    return [*parts, (turns - 1.0, 1.0)]


class Samples:
    """Values of integer expressions at the samples of the loops around."""

    def __init__(self, facts: Facts, sizes: Set[Expr]) -> None:
        self.facts, self.sizes = facts, sizes
        self.values: dict[Var, float] = {}

    def alike(
        self, s: For, lo: float, turns: int, before: int, most: int
    ) -> list[tuple[float, float]]:
        """Turns that stand for all in which the loops inside have as many turns, if so few do."""
        groups: dict[tuple[float, ...], list[int]] = {}
        inside = list(self.deciding(s.body)) if turns <= MOST_ALIKE else []
        for turn in range(turns if turns <= MOST_ALIKE else 0):
            self.values[s.var] = lo + turn * s.step
            groups.setdefault(tuple(map(self.trip, inside)), []).append(turn)
        if not 0 < len(groups) <= most:
            return sampled(turns, before, most)
        return [(float(group[len(group) // 2]), float(len(group))) for group in groups.values()]

    def deciding(self, body: Iterable[Stmt]) -> Iterator[For | Guard]:
        """Guards and loops inside that may run another number of times; others are in the middle
        from now on.
        """
        for s in statements(tuple(body)):
            if isinstance(s, For) and isinstance(s.lo, E.Const) and isinstance(s.hi, E.Const):
                self.trip(s)
            elif isinstance(s, Guard | For):
                yield s

    def trip(self, s: For | Guard) -> float:
        """The turns of a loop, in the middle of those around it, or what a guard says."""
        if isinstance(s, Guard):
            return self.number(s.condition)
        lo, hi = self.number(s.lo), self.number(s.hi)
        self.values[s.var] = lo + (hi - lo) // 2
        return hi - lo

    def number(self, e: Expr) -> float:
        """A value at the samples of the loops around; what is data is in the middle."""
        form = self.facts.form(e) if e.dtype.is_integer and not e.dtype.is_bool else None
        if form is not None and (len(form.terms) != 1 or form.terms[0][0] is not e):
            return form.const + sum(c * self.number(a) for a, c in form.terms)
        match e:
            case E.Const():
                return float(e.value)
            case Var():
                return self.values.get(e, e.hi if e in self.sizes else (e.lo + e.hi) / 2)
            case E.FloorDiv():
                return self.number(e.left) // (self.number(e.right) or 1)
            case E.Mod():
                return self.number(e.left) % (self.number(e.right) or 1)
            case E.If():
                return self.number(e.then if self.number(e.condition) else e.otherwise)
            case Native(name="maximum" | "minimum"):
                return (max if e.name == "maximum" else min)(map(self.number, e.args))
        if of_data(e):
            if not e.dtype.is_bool:
                return sum(self.facts.interval(e)) / 2
            refuted = isinstance(e, E.Xor) and not any(isinstance(n, Load) for n in walk(e))
            return float(not refuted)  # what was looked at before holds
        return self.condition(e)

    def condition(self, e: Expr) -> float:
        match e:
            case E.Less():
                return float(self.number(e.left) < self.number(e.right))
            case E.Equal():
                return float(self.number(e.left) == self.number(e.right))
            case E.And():
                return float(self.number(e.left) and self.number(e.right))
            case E.Or():
                return float(self.number(e.left) or self.number(e.right))
            case E.Xor():
                return float(bool(self.number(e.left)) != bool(self.number(e.right)))
            case E.Cast():
                return self.number(e.value)
        return 1.0
