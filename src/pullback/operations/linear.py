"""Linear equations in fractions, one after the other: what they say of each symbol."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from math import gcd

from pullback.errors import ShapeError

MOST = 100  # equations, and symbols, of a system
Said = tuple[Fraction, str]  # a value, and who says so


@dataclass(frozen=True, slots=True)
class Row:
    """``sum of factors * symbols = value``, made of the equations of `by`."""

    factors: Mapping[str, Fraction]
    value: Fraction
    by: tuple[str, ...]

    def less(self, times: Fraction, other: Row) -> Row:
        """``self - times * other``"""
        names = {**self.factors, **other.factors}
        factors = {
            n: self.factors.get(n, Fraction(0)) - times * other.factors.get(n, Fraction(0))
            for n in names
        }
        by = tuple(dict.fromkeys((*self.by, *other.by)))
        left = {n: f for n, f in factors.items() if f}
        return Row(left, self.value - times * other.value, by)


@dataclass(slots=True)
class System:
    """Equations in reduced form: the symbol of each row stands in no other."""

    rows: dict[str, Row] = field(default_factory=dict)

    def add(self, factors: Mapping[str, int], value: int, by: str) -> tuple[str, str] | None:
        """One more equation; where it contradicts the others, what its left side is by those.

        Raises: ShapeError for more equations or symbols than `MOST`, and for an equation that no
            whole numbers solve.
        """
        if value % (gcd(*factors.values()) or 1):
            left = " + ".join(f"{f}*{n}" for n, f in factors.items())
            raise ShapeError(f"{left} = {value} of no whole numbers, by {by}", code="E552")
        row = Row({n: Fraction(f) for n, f in factors.items()}, Fraction(value), (by,))
        for name, known in self.rows.items():
            if name in row.factors:
                row = row.less(row.factors[name], known)
        if not row.factors:
            return (str(value - row.value), " and ".join(row.by[1:])) if row.value else None
        name, factor = next(iter(row.factors.items()))
        if len(self.rows) >= MOST or len(row.factors) > MOST:
            raise ShapeError(f"more than {MOST} equations at once", code="E553")
        row = Row({n: f / factor for n, f in row.factors.items()}, row.value / factor, row.by)
        for other, known in self.rows.items():
            if name in known.factors:
                self.rows[other] = known.less(known.factors[name], row)
        self.rows[name] = row
        return None

    def solution(self) -> dict[str, Said]:
        """Symbols of which nothing is left open."""
        alone = {n: row for n, row in self.rows.items() if len(row.factors) == 1}
        return {n: (row.value, " and ".join(row.by)) for n, row in alone.items()}
