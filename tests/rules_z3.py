"""Scalar expressions as z3 terms, so that a rewrite can be proved for every value of its leaves.

int64 is a bit vector, or, for index arithmetic too small to wrap, an unbounded integer (`whole`).
Reads are uninterpreted functions of their indices; so are exp, log, sin and float quotients.
"""

from __future__ import annotations

from typing import Any

import pytest

from pullback.ir import expr as E
from pullback.ir.dtype import DType
from pullback.ir.expr import Expr
from pullback.ir.meaning import constant
from pullback.ir.node import walk

z3 = pytest.importorskip("z3", reason="z3-solver is not installed (extra dev)")
FLOATS = {"float16": (5, 11), "bfloat16": (8, 8), "float32": (8, 24), "float64": (11, 53)}
# A law of IEEE arithmetic does not depend on the number of digits; proofs of products do.
SHORT = FLOATS | {"float32": (4, 6), "float64": (5, 9)}
# Of z3's own steps in one proof, whose number does not depend on the machine or what else runs on
# it: a float32 made an integer by way of float64 takes 32 million (10 s on an idle core), the next
# 2 million.
STEPS = 100_000_000


class Terms:
    """The terms of expressions, and the bounds of their axes."""

    def __init__(self, whole: bool = False, short: bool = False) -> None:
        self.whole = whole
        self.floats = SHORT if short else FLOATS
        self.bounds: dict[str, Any] = {}

    def sort(self, kind: DType) -> Any:
        if kind.is_bool:
            return z3.BoolSort()
        if kind.is_float:
            return z3.FPSort(*self.floats[kind.name])
        return z3.IntSort() if self._unbounded(kind) else z3.BitVecSort(kind.bits)

    def _unbounded(self, kind: DType) -> bool:
        return self.whole and kind.is_integer and kind.bits == 64

    def of(self, root: Expr) -> Any:
        found: dict[Any, Any] = {}
        for node in walk(root):
            if isinstance(node, Expr):
                args = [found[c] for c in node.children if isinstance(c, Expr)]
                found[node] = self._term(node, args)
        return found[root]

    def _term(self, e: Expr, args: list[Any]) -> Any:
        match e:
            case E.Const():
                return self._literal(e)
            case E.Axis():
                term = z3.Const(f"axis{e.number}", self.sort(e.dtype))
                assert isinstance(e.extent, int)
                self.bounds[str(term)] = z3.And(term >= 0, term < e.extent)
                return term
            case E.Take():
                return self._function(f"read {e.source.name}", e.dtype, args)
            case E.If():
                return z3.If(*args)
            case E.Cast():
                return self.cast(args[0], e.value.dtype, e.to)
            case E.Binary():
                return self._binary(e, *args)
        return self._function(f"{type(e).__name__} {e.dtype}", e.dtype, args)

    def _function(self, name: str, kind: DType, args: list[Any]) -> Any:
        return z3.Function(name, *(a.sort() for a in args), self.sort(kind))(*args)

    def _literal(self, e: E.Const) -> Any:
        if e.dtype.is_bool:
            return z3.BoolVal(bool(e.value))
        if e.dtype.is_float:
            return z3.FPVal(float(constant(e)), self.sort(e.dtype))
        if self._unbounded(e.dtype):
            return z3.IntVal(int(e.value))
        return z3.BitVecVal(int(e.value), e.dtype.bits)

    def _binary(self, e: E.Binary, a: Any, b: Any) -> Any:
        kind = e.left.dtype
        if isinstance(e, E.Equal):
            return z3.fpEQ(a, b) if kind.is_float else a == b
        if isinstance(e, E.Less):
            return _less(a, b, kind)
        if kind.is_bool:
            return _boolean(e, a, b)
        if kind.is_float:
            return self._float(e, a, b)
        if isinstance(e, E.FloorDiv | E.Mod):
            return self._division(e, a, b, kind)
        if isinstance(e, E.Add | E.Mul):
            return a + b if isinstance(e, E.Add) else a * b
        return a & b if isinstance(e, E.And) else a | b if isinstance(e, E.Or) else a ^ b

    def _float(self, e: E.Binary, a: Any, b: Any) -> Any:
        nearest = z3.RNE()
        match e:
            case E.Add():
                return z3.fpAdd(nearest, a, b)
            case E.Mul():
                return z3.fpMul(nearest, a, b)
            case E.Div():
                return z3.fpDiv(nearest, a, b)
        return self._function(f"{type(e).__name__} {e.dtype}", e.dtype, [a, b])

    def _division(self, e: E.Binary, a: Any, b: Any, kind: DType) -> Any:
        """Floors; 0 where the divisor is 0."""
        if self._unbounded(kind):
            floor = z3.If(b > 0, a / b, (-a) / (-b))  # z3's remainder is never negative
            return z3.If(b == 0, 0, floor if isinstance(e, E.FloorDiv) else a - b * floor)
        if kind.kind == "u":
            found = z3.UDiv(a, b) if isinstance(e, E.FloorDiv) else z3.URem(a, b)
            return z3.If(b == 0, z3.BitVecVal(0, kind.bits), found)
        rest = z3.SRem(a, b)
        below = z3.And(rest != 0, (rest < 0) != (b < 0))
        floor = z3.If(below, a / b - 1, a / b)
        found = floor if isinstance(e, E.FloorDiv) else z3.If(below, rest + b, rest)
        return z3.If(b == 0, z3.BitVecVal(0, kind.bits), found)

    def cast(self, a: Any, source: DType, to: DType) -> Any:
        """Integers wrap, floats round to even or truncate and saturate, NaN gives 0."""
        if source == to:
            return a
        if to.is_bool:
            return z3.Not(z3.fpIsZero(a)) if source.is_float else a != 0
        if source.is_bool:
            one, zero = (self._literal(E.const(v, to)) for v in (1, 0))
            return z3.If(a, one, zero)
        if to.is_float:
            signed = z3.fpFPToFP if source.is_float else z3.fpSignedToFP
            whole = z3.fpUnsignedToFP if source.kind == "u" else signed
            return whole(z3.RNE(), a, self.sort(to))
        if source.is_float:
            return self._saturated(a, to)
        if to.bits <= source.bits:
            return z3.Extract(to.bits - 1, 0, a)
        more = to.bits - source.bits
        return z3.SignExt(more, a) if source.kind == "i" else z3.ZeroExt(more, a)

    def _saturated(self, a: Any, to: DType) -> Any:
        lo, hi = to.range()
        value = z3.fpRoundToIntegral(z3.RTZ(), a)
        # powers of two (or 0), so they are exact; infinite where the format ends below them
        top, bottom = (z3.FPVal(float(n), a.sort()) for n in (hi + 1, lo))
        convert = z3.fpToSBV if to.kind == "i" else z3.fpToUBV
        inside = convert(z3.RTZ(), value, z3.BitVecSort(to.bits))
        high = z3.If(value >= top, z3.BitVecVal(hi, to.bits), inside)
        found = z3.If(value <= bottom, z3.BitVecVal(lo, to.bits), high)
        return z3.If(z3.fpIsNaN(a), z3.BitVecVal(0, to.bits), found)


def _less(a: Any, b: Any, kind: DType) -> Any:
    if kind.is_bool:
        return z3.And(z3.Not(a), b)
    return z3.ULT(a, b) if kind.kind == "u" else a < b


def _boolean(e: E.Binary, a: Any, b: Any) -> Any:
    match e:
        case E.Add() | E.Or():
            return z3.Or(a, b)
        case E.Mul() | E.And():
            return z3.And(a, b)
        case E.Xor():
            return z3.Xor(a, b)
    raise AssertionError(f"{type(e).__name__} of booleans")


def proved(claim: Any, terms: Terms) -> bool:
    """Whether `claim` holds for all values of the leaves, axes inside their extents.

    Raises: AssertionError with the values for which it does not hold.
    """
    solver = z3.Solver()
    solver.set("rlimit", STEPS)
    solver.add(*terms.bounds.values(), z3.Not(claim))
    found = solver.check()
    assert found != z3.sat, solver.model()
    return bool(found == z3.unsat)


def agree(a: Expr, b: Expr, whole: bool) -> bool:
    """Whether two expressions are proved equal, NaN for NaN and -0.0 for -0.0.

    float32 and float64 are shorter where there are products or quotients of them.
    """
    products = (n for n in walk(a) if isinstance(n, E.Mul | E.Div) and n.dtype.is_float)
    terms = Terms(whole, short=any(products))
    x, y = terms.of(a), terms.of(b)
    return proved(x == y, terms)
