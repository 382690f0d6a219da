"""Every rewrite rule keeps the value; the driver comes to an end and is idempotent."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from expressions import AXES, DATA, KINDS, expressions, same, values
from pullback.backends.reference.definitions import Evaluator
from pullback.errors import InvalidIR
from pullback.ir import expr as E
from pullback.ir import functions
from pullback.ir.dtype import (
    ALL,
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int32,
    int64,
    uint8,
)
from pullback.ir.expr import Const, Expr, const, index, logical_not
from pullback.ir.graph import Variable, read
from pullback.ir.meaning import constant
from pullback.ir.node import walk
from pullback.simplify.rules import RULES, Rule, Rules, Simplification, Simplifier, holds, simplify
from pullback.tensor.values.functions import silu

I, J, K = AXES
F = read(DATA[float32], I, J)
D = read(DATA[float64], I, J)
N = read(DATA[int64], I, J)
M = read(DATA[int32], I, J)
B = read(DATA[bool_], I, J)
C = E.Less(F, const(1, float32))
QUICK = settings(max_examples=30, deadline=None)


def f(x: float) -> Const:
    return const(x, float32)


def div(a: Expr, b: int) -> Expr:
    return E.FloorDiv(a, index(b))


def mod(a: Expr, b: int) -> Expr:
    return E.Mod(a, index(b))


FIRES: dict[str, list[Expr]] = {
    "fold": [
        E.Add(f(1), f(2)), E.Add(const(2**31 - 1, int32), const(1, int32)),
        E.FloorDiv(index(-7), index(2)), E.Mod(index(-7), index(0)), E.Cast(f(3e9), int32),
        E.Cast(f(float("nan")), uint8), E.Add(const(1, bfloat16), const(1 / 512, bfloat16)),
        E.Cast(index(-1), uint8), E.Div(f(1), f(-0.0)), E.Less(f(float("nan")), f(1)),
    ],
    "constant_right": [E.Add(f(2), F), E.Equal(f(2), F), E.Mul(index(2), N)],
    "add_zero": [E.Add(F, f(-0.0)), E.Add(D, const(-0.0, float64)), E.Add(M, const(0, int32))],
    "multiply_one": [E.Mul(F, f(1)), E.Mul(M, const(1, int32))],
    "multiply_zero": [E.Mul(M, const(0, int32))],
    "signs": [E.Mul(E.Mul(F, f(-1)), f(-1)), E.Mul(E.Mul(F, f(-1)), f(3)), E.negate(E.negate(D))],
    "divide_constant": [E.Div(F, f(4)), E.Div(D, const(-0.5, float64))],
    "constants_meet": [E.Add(E.Add(M, const(3, int32)), const(2**31 - 1, int32)),
                       E.Xor(E.Xor(B, const(True, bool_)), const(True, bool_))],
    "absorbing": [E.And(B, const(True, bool_)), E.And(B, const(False, bool_)),
                  E.Or(M, const(-1, int32)), E.Or(M, const(0, int32)), E.And(M, const(-1, int32))],
    "same_twice": [E.And(B, B), E.Or(M, M)],
    "exclusive": [E.Xor(B, const(False, bool_)), E.Xor(M, M), E.Xor(M, const(0, int32))],
    "negated_comparison": [logical_not(E.Less(I, J))],
    "conjunction": [E.And(E.Less(I, index(1)), E.Less(I, index(2))),
                    E.And(E.Less(I, index(1)), E.Less(index(1), I)), E.And(B, logical_not(B))],
    "disjunction": [E.Or(E.Less(I, index(1)), E.Less(I, index(2))),
                    E.Or(E.Less(I, index(2)), E.Less(index(0), I)), E.Or(B, logical_not(B))],
    "decided": [E.Less(I, index(3)), E.Equal(M, M), E.Less(F, F), E.Equal(I, index(7))],
    "equal_truth": [E.Equal(B, const(True, bool_)), E.Equal(B, const(False, bool_))],
    "comparison": [E.Less(E.Add(E.Mul(I, index(2)), index(1)), E.Mul(J, index(2))),
                   E.Equal(E.Mul(I, index(2)), E.Add(E.Mul(J, index(2)), index(1))),
                   E.Less(E.Mul(I, index(-3)), index(-4))],
    "of_quotient": [E.Less(div(J, 2), I), E.Less(I, div(E.Add(J, I), 3)),
                    E.Less(div(E.Add(E.Mul(I, index(3)), J), 4), index(1))],
    "linear": [E.Add(E.Mul(E.Add(I, index(2)), index(3)), I), E.Add(N, E.Add(N, index(2**62))),
               E.Add(E.Mul(div(J, 3), index(3)), mod(J, 3))],
    "divide_trivially": [E.FloorDiv(M, const(1, int32)), E.Mod(M, const(1, int32)),
                         E.FloorDiv(M, const(0, int32)), E.Mod(N, index(0))],
    "parted": [div(E.Add(E.Mul(I, index(4)), J), 4), div(div(J, 2), 2),
                 div(mod(E.Add(J, I), 4), 2), div(E.Add(E.Mul(I, index(-7)), J), 5),
               mod(E.Add(E.Mul(I, index(4)), J), 4), mod(mod(E.Add(J, I), 4), 2), mod(J, 4),
               mod(E.Add(E.Mul(I, index(-7)), index(-1)), 5)],
    "below_divisor": [E.FloorDiv(K, E.Add(I, index(2))), E.Mod(K, E.Add(I, index(2)))],
    "cast_same": [E.Cast(F, float32)],
    "cast_choice": [
        E.Cast(E.If(C, F, f(0)), float64), E.Cast(E.If(C, f(0.1), F), bfloat16),
    ],
    "cast_twice": [E.Cast(E.Cast(M, int64), int32), E.Cast(E.Cast(F, float64), int32),
                   E.Cast(E.Cast(B, float32), int32)],
    "if_constant": [E.If(const(True, bool_), F, f(1)), E.If(C, F, F),
                    E.If(const(False, bool_), read(DATA[float32], index(9), J), F)],
    "if_not": [E.If(logical_not(C), F, f(2))],
    "if_truth": [E.If(C, const(True, bool_), const(False, bool_)),
                 E.If(C, const(False, bool_), const(True, bool_))],
    "if_nested": [E.If(C, E.If(C, F, f(1)), f(2)), E.If(C, f(1), E.Add(E.If(C, F, f(2)), f(3))),
                  E.If(E.Less(I, index(1)), E.If(E.Less(I, index(2)), F, f(7)), f(2))],
    "if_merged": [E.If(C, E.If(E.Less(I, J), F, f(0)), f(0)),
                  E.If(C, f(0), E.If(E.Less(I, J), f(0), F))],
}  # fmt: skip


def only(*names: str) -> Rules:
    rules = Rules()
    for cls, every in RULES.by_type.items():
        rules.by_type[cls] = [r for r in every if r.__name__ in names]
    return rules


def test_every_rule_has_examples_and_a_law() -> None:
    assert set(FIRES) == set(RULES.names)
    for rules in RULES.by_type.values():
        for rule in rules:
            assert "``" in (rule.__doc__ or ""), rule.__name__


@pytest.mark.parametrize("name", RULES.names)
def test_rule_fires_and_keeps_values(name: str) -> None:
    for e in FIRES[name]:
        found = Simplifier(only(name))(e)
        assert found is not e, e
        assert same(found, e), (e, found)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", RULES.names)
def test_rule_alone_on_anything(name: str) -> None:
    @QUICK
    @given(st.sampled_from(KINDS).flatmap(lambda k: expressions(k, 3)))
    def law(e: Expr) -> None:
        assert same(Simplifier(only(name))(e), e)

    law()


@pytest.mark.slow
@settings(max_examples=250, deadline=None)
@given(st.sampled_from(KINDS).flatmap(expressions))
def test_all_exact_rules(e: Expr) -> None:
    assert same(Simplifier(RULES)(e), e)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(KINDS).flatmap(lambda k: expressions(k, 4)))
def test_simplify_keeps_values_and_is_idempotent(e: Expr) -> None:
    found = simplify(e)
    assert same(found, e)
    assert simplify(found) is found


def test_a_logarithm_of_a_literal_stays_one() -> None:
    """Rounded, it would spoil the power that it is part of."""
    e = E.Log(const(0.75, float64))
    assert simplify(e) is e


@pytest.mark.parametrize("op", [E.Exp, E.Sqrt, E.Sin])
def test_fold_of_functions(op: type[E.Unary]) -> None:
    for kind in (float32, float64, bfloat16, float16):
        e = op(const(0.75, kind))
        want = float(values(e).flat[0])
        found = simplify(e)
        assert isinstance(found, E.Const)
        assert np.isclose(float(values(found).flat[0]), want, rtol=1e-6)


def test_floats_keep_what_may_be_nan() -> None:
    for e in (E.Mul(F, f(0)), E.Equal(F, F), E.Add(F, E.negate(F)), E.Div(F, F)):
        assert simplify(e) is e
    for divisor in (3.0, 0.0, 1e-40, float("inf"), float("nan")):
        e = E.Div(F, f(divisor))
        assert simplify(e) is e


def test_a_guard_is_not_lost() -> None:
    """``c ? (x[i] < 0 ? a : z) : z`` keeps x[i] under c."""
    inner = E.If(E.Less(read(DATA[float32], E.Add(I, index(1)), J), f(0)), F, f(0))
    e = E.If(E.Less(I, index(2)), inner, f(0))
    found = simplify(e)
    assert isinstance(found, E.If) and isinstance(found.then, E.If)
    assert same(found, e)


def test_shared_parts_are_done_once() -> None:
    e: Expr = F
    for _ in range(60):
        e = E.Add(E.maximum(e, f(1)), E.Mul(e, f(1)))
    assert simplify(e) is simplify(simplify(e))


@pytest.mark.slow
def test_deep_chain() -> None:
    e: Expr = F
    for _ in range(20_000):
        e = E.Exp(E.Mul(e, f(1)))
    found = simplify(e)
    assert isinstance(found, E.Exp)


def _there(e: Expr, _: Simplification) -> Expr | None:
    assert isinstance(e, E.Add)
    return E.Mul(e.left, e.right)


def _back(e: Expr, _: Simplification) -> Expr | None:
    assert isinstance(e, E.Mul)
    return E.Add(e.left, e.right)


def test_fuel_names_the_rules_that_loop() -> None:
    rules = Rules()
    there: Rule = rules.on(E.Add)(_there)
    rules.on(E.Mul)(_back)
    with pytest.raises(InvalidIR, match="_there"):
        Simplifier(rules, fuel=50)(E.Add(F, F))
    assert there is _there


@pytest.mark.parametrize(
    ("wide", "narrow", "want"),
    [(float64, int32, True), (float32, int32, False), (float32, uint8, True), (int32, uint8, True),
     (float32, bfloat16, True), (bfloat16, float16, False), (int64, float32, False)],
)  # fmt: skip
def test_holds(wide: DType, narrow: DType, want: bool) -> None:
    assert holds(wide, narrow) is want


def test_casts_of_casts_of_every_type() -> None:
    """``cast(cast(x, b), c)`` for all types, on the values where they differ."""
    extremes = [0, 1, -1, 127, 255, 256, 2049, 2**24 + 1, 2**31, -(2**31), 2**53 + 1, 0.75, -3.5]
    for source in ALL:
        fits = [x for x in extremes if source.is_float or float(x).is_integer()]
        x = Variable("x", (len(fits),), source)
        at = read(x, E.Axis(0, len(fits)))
        data = np.array([constant(const(v, source)) for v in fits])
        for middle in ALL:
            for to in ALL:
                e = E.Cast(E.Cast(at, middle), to)
                plain, short = (
                    Evaluator([(0, len(fits))], {x: data}, {}).values([one])[0]
                    for one in (e, simplify(e))
                )
                assert np.array_equal(plain, short, equal_nan=True), (source, middle, to)


@pytest.mark.parametrize("function", [functions.sigmoid, functions.tanh, silu])
def test_branches_share_one_exponential(function: Callable[[E.Expr], E.Expr]) -> None:
    """``z = exp(-|x|); x < 0 ? z r : r`` stays so: -|x| is not decided apart in each branch."""
    found = simplify(function(F))
    assert sum(isinstance(n, E.Exp) for n in walk(found)) == 1
