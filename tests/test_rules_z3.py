"""Every rewrite rule, and every bound, proved by z3 for all values of the leaves."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expressions import AXES, conditions, expressions, numbers
from pullback.algebra.bounds import bounds, prove
from pullback.ir import expr as E
from pullback.ir.dtype import DType, bfloat16, bool_, float16, int8, int32, int64, uint8
from pullback.ir.expr import Expr, const
from pullback.ir.graph import Variable, read
from pullback.ir.meaning import constant
from pullback.ir.node import walk
from pullback.simplify.rules import RULES, Simplifier, simplify
from rules_z3 import Terms, agree, proved, z3
from test_simplify_rules import FIRES, only

# What z3 cannot express, and why. What it can of this rule is proved below, literal by literal.
EXCEPT = {"fold": "exp, log, sqrt, sin, // and % of floats are no arithmetic of z3's"}
# Rules about index arithmetic, where int64 values are small and division is linear.
INDEX = {"negated_comparison", "decided", "comparison", "linear", "parted"}
INDEX |= {"of_quotient", "conjunction", "disjunction", "below_divisor", "if_nested", "if_merged"}
SETTINGS = settings(max_examples=40, deadline=None, derandomize=True)
NAMES = [n for n in RULES.names if n not in EXCEPT]
SMALL = (bool_, int32)


@st.composite
def digits(draw: st.DrawFn) -> Expr:
    """``(c*i + d*j + e*k + f) // m``, ``% m`` or a sum with it; factors in common are likely."""
    found: Expr = E.index(draw(st.integers(-6, 6)))
    for axis in AXES:
        factor = draw(st.sampled_from([0, 1, 1, 2, 3, 4, 6, 8, 12, -1, -2, -4]))
        found = E.Add(found, E.Mul(axis, E.index(factor)))
    for _ in range(draw(st.integers(1, 3))):
        operation = draw(st.sampled_from([E.FloorDiv, E.Mod]))
        divided = operation(found, E.index(draw(st.sampled_from([2, 3, 4, 6, 8, 12]))))
        found = E.Add(divided, draw(st.sampled_from([E.index(0), found, *AXES])))
    return found


def data_of_int64(e: Expr) -> bool:
    return any(isinstance(n, E.Take) and n.dtype.bits == 64 and n.dtype.is_integer for n in walk(e))


def whole(e: Expr) -> bool:
    """Whether int64 arithmetic may be taken over unbounded integers: no data, small literals."""
    large = (n for n in walk(e) if isinstance(n, E.Const) and n.dtype.is_integer)
    return not data_of_int64(e) and all(abs(int(n.value)) < 1000 for n in large)


def test_the_exceptions_are_rules() -> None:
    assert set(EXCEPT) < set(RULES.names)


@pytest.mark.parametrize("name", NAMES)
def test_rule_is_proved_where_it_fires(name: str) -> None:
    for e in FIRES[name]:
        found = Simplifier(only(name))(e)
        assert found is not e
        assert agree(e, found, whole(e)), (e, found)


@pytest.mark.parametrize("name", [n for n in NAMES if n not in INDEX])
def test_rule_is_proved_on_small_types(name: str) -> None:
    @SETTINGS
    @given(st.sampled_from(SMALL).flatmap(lambda k: expressions(k, 3)))
    def law(e: Expr) -> None:
        found = Simplifier(only(name))(e)
        if found is not e and not data_of_int64(e):
            agree(e, found, False)

    law()


@pytest.mark.parametrize("name", sorted(INDEX))
def test_rule_is_proved_on_index_arithmetic(name: str) -> None:
    @settings(SETTINGS, max_examples=100)
    @given(digits() | numbers() | conditions())
    def law(e: Expr) -> None:
        found = Simplifier(only(name))(e)
        assert found is e or agree(e, found, whole=True), (e, found)

    law()


@settings(SETTINGS, max_examples=500)
@given(digits() | numbers(3) | conditions())
def test_simplified_index_arithmetic_is_proved(e: Expr) -> None:
    assert agree(e, simplify(e), whole=True), e


@pytest.mark.parametrize("kind", [float16, bfloat16], ids=str)
def test_float_rules_for_every_value(kind: DType) -> None:
    x = read(Variable("x", (1,), kind), E.index(0))
    literals = [1.0, -1.0, 2.0, 0.25, -0.5, 2.0**12, 2.0**-12]
    rules = only("multiply_one", "signs", "divide_constant", "add_zero", "constant_right")
    for value in literals:
        c = const(value, kind)
        for e in (E.Mul(x, c), E.Div(x, c), E.Mul(E.Mul(x, c), const(-1, kind)), E.Add(c, x)):
            assert agree(e, Simplifier(rules)(e), False), e
    for zero in (0.0, -0.0):
        e = E.Add(x, const(zero, kind))
        assert agree(e, Simplifier(rules)(e), False)


INF, NAN = math.inf, math.nan
EDGES: dict[DType, list[Any]] = {
    bool_: [False, True], int8: [0, 1, -1, 5, -7, 127, -128], uint8: [0, 1, 2, 9, 255],
    int32: [0, 1, -1, 6, -(2**31), 2**31 - 1], int64: [0, 1, -1, 7, -(2**63), 2**63 - 1],
    float16: [0.0, -0.0, 1.0, -2.5, 0.1, 65504.0, 6e-8, INF, -INF, NAN],
    bfloat16: [0.0, -0.0, 1.0, -2.5, 0.1, 3e38, 1e-40, INF, -INF, NAN],
}  # fmt: skip
COMPARED = (E.Less, E.Equal, E.Add, E.Mul)
WHOLE = (*COMPARED, E.And, E.Or, E.Xor, E.FloorDiv, E.Mod)
FOLDED = {"b": (*COMPARED, E.And, E.Or, E.Xor), "f": (*COMPARED, E.Div), "i": WHOLE, "u": WHOLE}


@pytest.mark.parametrize("kind", EDGES, ids=str)
def test_folded_literals_are_proved(kind: DType) -> None:
    fold = Simplifier(only("fold"))
    literals = [const(constant(const(v, kind)), kind) for v in EDGES[kind]]  # of its own digits
    pairs = [op(a, b) for op in FOLDED[kind.kind] for a in literals for b in literals]
    for e in [*pairs, *(E.Cast(a, to) for a in literals for to in EDGES)]:
        found = fold(e)
        assert isinstance(found, E.Const), e
        assert agree(e, found, False), (e, found)


def test_casts_of_casts_are_proved() -> None:
    kinds = (bool_, int8, uint8, int32, float16, bfloat16)
    for source in kinds:
        x = read(Variable("x", (1,), source), E.index(0))
        for middle in kinds:
            for to in kinds:
                e = E.Cast(E.Cast(x, middle), to)
                found = Simplifier(only("cast_twice", "cast_same"))(e)
                assert found is e or agree(e, found, False), (source, middle, to)


@settings(SETTINGS, max_examples=150)
@given(digits() | numbers(3))
def test_bounds_hold(e: Expr) -> None:
    lo, hi = bounds(e)
    terms = Terms(whole=True)
    x = terms.of(e)
    assert proved(z3.And(x >= lo, x <= hi), terms)


@settings(SETTINGS, max_examples=150)
@given(numbers(2), conditions())
def test_bounds_hold_under_guards(e: Expr, guard: Expr) -> None:
    lo, hi = bounds(e, [guard])
    terms = Terms(whole=True)
    x = terms.of(e)
    assert proved(z3.Implies(terms.of(guard), z3.And(x >= lo, x <= hi)), terms)


@settings(SETTINGS, max_examples=150)
@given(conditions(), conditions())
def test_what_is_decided_under_a_guard_is_proved(claim: Expr, guard: Expr) -> None:
    found = prove(claim, [guard])
    if found is None:
        return
    terms = Terms(whole=True)
    given_, claimed = terms.of(guard), terms.of(claim)
    assert proved(z3.Implies(given_, claimed == found), terms)


def test_a_wrong_rule_is_refuted() -> None:
    i, j = E.Axis(0, 3), E.Axis(1, 4)
    with pytest.raises(AssertionError, match="axis"):
        agree(E.FloorDiv(E.Add(i, j), E.index(2)), E.FloorDiv(i, E.index(2)), whole=True)
    x = read(Variable("x", (1,), float16), E.index(0))
    with pytest.raises(AssertionError):
        agree(E.Mul(x, const(0, float16)), const(0, float16), False)
