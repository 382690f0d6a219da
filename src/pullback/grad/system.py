"""Integer systems: linear forms, boxes, and index expressions read into them.

The atoms of a `Form` are numbers of variables. Parameters are
the coordinates of the tensor whose adjoint is sought, and symbolic extents. Unknowns are the axes
of the definition that reads it, and a quotient and a remainder for every ``//`` and ``%``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from fractions import Fraction
from math import ceil, floor

from pullback.algebra.affine import LinearForm
from pullback.errors import InvalidIR
from pullback.ir import expr as E
from pullback.ir.expr import Dim, Expr, Extent, Pin
from pullback.ir.node import Node, walk

Form = LinearForm[int]


def constant(value: int) -> Form:
    return Form((), value)


def variable(v: int) -> Form:
    return Form(((v, 1),))


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
        self._split: dict[tuple[frozenset[tuple[int, int]], int, int], tuple[Form, Form]] = {}

    def fresh(self, extent: Form | None = None, lower: int = 0) -> int:
        """A new variable; with an extent, ``lower <= v < lower + extent``."""
        v = self.count
        self.count += 1
        if extent is not None:
            self.lower[v] = lower
            self.upper[v] = extent.shifted(lower - 1)
        return v

    def unknown(self, extent: Form, lower: int = 0) -> int:
        """A new unknown with its box as inequalities."""
        v = self.fresh(extent, lower)
        self.unknowns.append(v)
        self.inequalities.append(variable(v).shifted(-lower))
        self.inequalities.append(self.upper[v].minus(variable(v)))
        return v

    def floor(self, form: Form, divisor: int, exact: bool = False) -> Form:
        """``floor(form / divisor)`` as a derived parameter; `exact`: known to divide."""
        if divisor == 1:
            return form
        v = self.fresh()
        self.floors[v] = (form, divisor, exact)
        return variable(v)

    def extent(self, extent: Extent) -> Form:
        """An extent as a form; a symbolic one is a parameter."""
        if isinstance(extent, int):
            return constant(extent)
        if extent not in self.dims:
            v = self.fresh()
            self.dims[extent] = v
            self.lower[v] = extent.lo
            self.upper[v] = constant(extent.hi)
        return variable(self.dims[extent])

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
            return variable(self.domain[node.number])
        if isinstance(node, E.Size):
            return self.extent(node.dim)
        if not isinstance(node, E.Add | E.Mul | E.FloorDiv | E.Mod):
            return None
        left = self._forms[node.left]
        right = self._forms[node.right]
        if isinstance(node, E.Add):
            return left.plus(right)
        if isinstance(node, E.Mul):
            return left.product(right)
        if not right.is_constant or right.const <= 0:
            return None
        return self.divided(left, right.const)[isinstance(node, E.Mod)]

    def divided(self, form: Form, divisor: int) -> tuple[Form, Form]:
        """``form = divisor * q + r``, ``0 <= r < divisor``: the mixed-radix split, shared."""
        key = frozenset(form.terms), form.const, divisor
        if key in self._split:
            return self._split[key]
        first = ceil(self.least(form)) // divisor
        last = floor(self.most(form)) // divisor
        if first == last:
            quotient = constant(first)
            remainder = form.plus(quotient, -divisor)
        else:
            q = self.unknown(constant(last - first + 1), first)
            r = self.unknown(constant(divisor))
            quotient = variable(q)
            remainder = variable(r)
            self.equations.append(form.plus(quotient, -divisor).minus(remainder))
        self._split[key] = quotient, remainder
        return quotient, remainder

    def most(self, form: Form) -> Fraction:
        """An upper bound over all boxes. Raises: KeyError where a variable has no box."""
        return -self.least(form.times(-1))

    def least(self, form: Form) -> Fraction:
        """A lower bound over all boxes. Raises: KeyError where a variable has no box.

        Floors are expanded newest first, ``floor(n / c) = (n - rho) / c`` with ``0 <= rho < c``,
        so that correlated ones cancel; symbolic upper bounds before the extents themselves.
        """
        total = Fraction(form.const)
        todo = defaultdict(Fraction, {v: Fraction(c) for v, c in form.terms})
        while floors := [v for v in todo if v in self.floors]:
            newest = max(floors)
            share = todo.pop(newest)
            inner, divisor, exact = self.floors[newest]
            total += share * Fraction(inner.const, divisor)
            for v, c in inner.terms:
                todo[v] += share * Fraction(c, divisor)
            if share > 0 and not exact:
                total -= share * Fraction(divisor - 1, divisor)
        sizes = set(self.dims.values())
        for v in [v for v in todo if v not in sizes]:
            share = todo.pop(v)
            if not share:
                continue
            edge = constant(self.lower[v]) if share > 0 else self.upper[v]
            total += share * edge.const
            for u, c in edge.terms:
                todo[u] += share * c
        for v, share in todo.items():
            total += share * (self.lower[v] if share > 0 else self.upper[v].const)
        return total

    def unfloored(self, form: Form) -> Form:
        """An equivalent of ``form >= 0`` with fewer floors.

        ``n // c + r >= 0 -> n + c r >= 0``, ``r - n // c >= 0 -> c r + c - 1 - n >= 0``.
        """
        while floors := [v for v in form.atoms if v in self.floors]:
            v = max(floors)
            inner, divisor, exact = self.floors[v]
            sign = form.of(v)
            if abs(sign) != 1 and not exact:
                break
            form = form.without(v).times(divisor).plus(inner, sign)
            if sign < 0 and not exact:
                form = form.shifted(divisor - 1)
        return form

    def rejoined(self, form: Form) -> tuple[Form, list[tuple[Form, int, int]]]:
        """Remainders in a form: ``k n - k c (n // c)`` as (n, c, k), and the rest."""
        remainders: list[tuple[Form, int, int]] = []
        for v in sorted((v for v in form.atoms if v in self.floors), reverse=True):
            inner, divisor, exact = self.floors[v]
            factor, odd = divmod(-form.of(v), divisor)
            if odd or not factor or any(form.of(u) != factor * c for u, c in inner.terms):
                continue
            form = form.without(v).plus(inner, -factor)
            if not exact:
                remainders.append((inner, divisor, factor))
        return form, remainders

    def size_of(self, form: Form) -> Extent | None:
        """The form as an extent: a constant or exactly one symbolic extent, else None."""
        if form.is_constant:
            return max(0, form.const)
        for dim, v in self.dims.items():
            if form.single == v and not isinstance(dim, Pin):
                return dim
        return None

    def range_of(self, v: int) -> int:
        """The largest number of values that variable `v` takes."""
        if v not in self.upper:
            raise InvalidIR(f"variable {v} has no box")
        return floor(self.most(self.upper[v])) - self.lower[v] + 1
