"""Integer systems: linear forms, boxes, and index expressions read into them.

A `Form` maps variable numbers to integer coefficients; `ONE` carries the constant. Parameters are
the coordinates of the tensor whose adjoint is sought, and symbolic extents. Unknowns are the axes
of the definition that reads it, and a quotient and a remainder for every ``//`` and ``%``.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from math import ceil

from pullback.errors import InvalidIR
from pullback.ir import expr as E
from pullback.ir.expr import Dim, Expr, Extent, Pin
from pullback.ir.node import Node, walk

Form = dict[int, int]
ONE = -1


def constant(value: int) -> Form:
    return {ONE: value} if value else {}


def plus(a: Form, b: Form, times: int = 1) -> Form:
    """``a + times * b``."""
    total = dict(a)
    for v, c in b.items():
        coefficient = total.get(v, 0) + times * c
        if coefficient:
            total[v] = coefficient
        else:
            total.pop(v, None)
    return total


def times(a: Form, factor: int) -> Form:
    """``factor * a``."""
    return {v: c * factor for v, c in a.items()} if factor else {}


def replace(a: Form, v: int, by: Form) -> Form:
    """`a` with variable `v` replaced by a form."""
    c = a.get(v, 0)
    if not c:
        return a
    return plus({u: w for u, w in a.items() if u != v}, by, c)


class System:
    """Variables with boxes, equations ``form == 0`` and inequalities ``form >= 0``."""

    def __init__(self, shape: Iterable[Extent], extents: Iterable[Extent]) -> None:
        self.count = 0
        self.dims: dict[Dim, int] = {}
        self.lower: dict[int, int] = {}
        self.upper: dict[int, Form] = {}
        self.floors: dict[int, tuple[Form, int, bool]] = {}
        self.equations: list[Form] = []
        self.inequalities: list[Form] = []
        self.unknowns: list[int] = []
        self.parameters = [self.fresh(self.extent(e)) for e in shape]
        self.domain = [self.unknown(self.extent(e)) for e in extents]
        self._forms: dict[Node, Form] = {}
        self._split: dict[tuple[tuple[tuple[int, int], ...], int], tuple[Form, Form]] = {}

    def fresh(self, extent: Form | None = None, lower: int = 0) -> int:
        """A new variable; with an extent, ``lower <= v < lower + extent``."""
        v = self.count
        self.count += 1
        if extent is not None:
            self.lower[v] = lower
            self.upper[v] = plus(extent, constant(lower - 1))
        return v

    def unknown(self, extent: Form, lower: int = 0) -> int:
        """A new unknown with its box as inequalities."""
        v = self.fresh(extent, lower)
        self.unknowns.append(v)
        self.inequalities.append({v: 1} | constant(-lower))
        self.inequalities.append(plus(self.upper[v], {v: -1}))
        return v

    def floor(self, form: Form, divisor: int, exact: bool = False) -> Form:
        """``floor(form / divisor)`` as a derived parameter; `exact`: known to divide."""
        if divisor == 1:
            return form
        v = self.fresh()
        self.floors[v] = (form, divisor, exact)
        return {v: 1}

    def extent(self, extent: Extent) -> Form:
        """An extent as a form; a symbolic one is a parameter."""
        if isinstance(extent, int):
            return constant(extent)
        if extent not in self.dims:
            v = self.fresh()
            self.dims[extent] = v
            self.lower[v] = extent.lo
            self.upper[v] = constant(extent.hi)
        return {self.dims[extent]: 1}

    def form(self, e: Expr) -> Form | None:
        """An index expression as a form, ``//`` and ``%`` split by mixed radix; None if data."""
        known = self._forms
        for node in walk(e, skip=known):
            if not isinstance(node, Expr):
                return None
            linear = self._form(node)
            if linear is None:
                return None
            known[node] = linear
        return known[e]

    def _form(self, node: Expr) -> Form | None:
        if isinstance(node, E.Const):
            return constant(int(node.value)) if node.dtype.is_integer else None
        if isinstance(node, E.Axis):
            return {self.domain[node.number]: 1}
        if isinstance(node, E.Size):
            return self.extent(node.dim)
        if not isinstance(node, E.Add | E.Mul | E.FloorDiv | E.Mod):
            return None
        left, right = self._forms[node.left], self._forms[node.right]
        if isinstance(node, E.Add):
            return plus(left, right)
        if isinstance(node, E.Mul) and set(left) <= {ONE}:
            left, right = right, left
        if not set(right) <= {ONE}:
            return None
        factor = right.get(ONE, 0)
        if isinstance(node, E.Mul):
            return times(left, factor)
        if factor <= 0:
            return None
        quotient, remainder = self.divided(left, factor)
        return quotient if isinstance(node, E.FloorDiv) else remainder

    def divided(self, form: Form, divisor: int) -> tuple[Form, Form]:
        """``form = divisor * q + r``, ``0 <= r < divisor``: the mixed-radix split, shared."""
        key = (tuple(sorted(form.items())), divisor)
        if key in self._split:
            return self._split[key]
        first, last = ceil(self.least(form)) // divisor, -ceil(self.least(times(form, -1)))
        last //= divisor
        if first == last:
            quotient = constant(first)
            remainder = plus(form, quotient, -divisor)
        else:
            q = self.unknown(constant(last - first + 1), first)
            r = self.unknown(constant(divisor))
            quotient, remainder = {q: 1}, {r: 1}
            self.equations.append(plus(plus(form, quotient, -divisor), remainder, -1))
        self._split[key] = quotient, remainder
        return quotient, remainder

    def least(self, form: Form) -> Fraction:
        """A lower bound over all boxes. Raises: KeyError where a variable has no box.

        Floors are expanded newest first, ``floor(n / c) = (n - rho) / c`` with ``0 <= rho < c``,
        so that correlated ones cancel; symbolic upper bounds before the extents themselves.
        """
        total = Fraction(0)
        todo = {v: Fraction(c) for v, c in form.items()}
        while floors := [v for v in todo if v in self.floors]:
            newest = max(floors)
            share = todo.pop(newest)
            inner, divisor, exact = self.floors[newest]
            for v, c in inner.items():
                todo[v] = todo.get(v, Fraction(0)) + share * Fraction(c, divisor)
            if share > 0 and not exact:
                total -= share * Fraction(divisor - 1, divisor)
        sizes = set(self.dims.values())
        for v in [v for v in todo if v != ONE and v not in sizes]:
            share = todo.pop(v)
            edge = constant(self.lower[v]) if share > 0 else self.upper[v] if share else {}
            for u, c in edge.items():
                todo[u] = todo.get(u, Fraction(0)) + share * c
        total += todo.pop(ONE, Fraction(0))
        for v, share in todo.items():
            total += share * (self.lower[v] if share > 0 else self.upper[v].get(ONE, 0))
        return total

    def unfloored(self, form: Form) -> Form:
        """An equivalent of ``form >= 0`` with fewer floors.

        ``n // c + r >= 0 -> n + c r >= 0``, ``r - n // c >= 0 -> c r + c - 1 - n >= 0``.
        """
        while floors := [v for v in form if v in self.floors]:
            v = max(floors)
            inner, divisor, exact = self.floors[v]
            sign = form[v]
            if abs(sign) != 1 and not exact:
                break
            rest = times({u: c for u, c in form.items() if u != v}, divisor)
            form = plus(rest, inner, sign)
            if sign < 0 and not exact:
                form = plus(form, constant(divisor - 1))
        return form

    def rejoined(self, form: Form) -> tuple[Form, list[tuple[Form, int, int]]]:
        """Remainders in a form: ``k n - k c (n // c)`` as (n, c, k), and the rest."""
        remainders: list[tuple[Form, int, int]] = []
        for v in sorted((v for v in form if v in self.floors), reverse=True):
            inner, divisor, exact = self.floors[v]
            factor, odd = divmod(-form.get(v, 0), divisor)
            parts = [u for u in inner if u != ONE]
            if odd or not factor or any(form.get(u, 0) != factor * inner[u] for u in parts):
                continue
            form = plus(plus(form, {v: 1}, -form[v]), inner, -factor)
            if not exact:
                remainders.append((inner, divisor, factor))
        return form, remainders

    def size_of(self, form: Form) -> Extent | None:
        """The form as an extent: a constant or exactly one symbolic extent, else None."""
        if set(form) <= {ONE}:
            return max(0, form.get(ONE, 0))
        for dim, v in self.dims.items():
            if form == {v: 1} and not isinstance(dim, Pin):
                return dim
        return None

    def range_of(self, v: int) -> int:
        """The largest number of values that variable `v` takes."""
        if v not in self.upper:
            raise InvalidIR(f"variable {v} has no box")
        return -ceil(self.least(times(self.upper[v], -1))) - self.lower[v] + 1
