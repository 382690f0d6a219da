"""Rewrite rules: one named function per law, found by exact node type.

A rule sees a node whose children are in normal form and returns something better, or None. Rules
on floats keep every value, NaN, infinity and the sign of a zero.
Dropping an operand drops its reads (and their range checks) as dead code does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import islice
from math import copysign
from typing import Any

from pullback.algebra.affine import Affine, affine, to_expr
from pullback.algebra.bounds import Intervals, Prover
from pullback.algebra.division import divide, rejoin, remainder
from pullback.config import UserRule
from pullback.errors import InvalidIR
from pullback.ir.dtype import DType, bool_, float32, int64, is_short
from pullback.ir.expr import (
    DEAR,
    Add,
    And,
    Binary,
    Cast,
    Comparison,
    Const,
    Div,
    Equal,
    Exp,
    Expr,
    FloorDiv,
    If,
    Less,
    Log,
    Mod,
    Mul,
    Or,
    Sin,
    Sqrt,
    Xor,
    const,
    divisor,
    is_const,
    logical_not,
)
from pullback.ir.meaning import apply, constant
from pullback.ir.node import Memo, Node, walk
from pullback.simplify.guards import reads_data

FUEL = 200_000  # rewrites in one call; far above anything real, far below forever
USERS_FUEL = 20_000  # with rules that nobody has tried: a growing expression is slow by then
NESTED = 400  # nodes searched below an `If` for conditions that it decides


@dataclass(slots=True)
class Simplification:
    """Facts kept between the rules of one simplification."""

    intervals: Intervals = field(default_factory=Intervals)

    def form(self, e: Expr) -> Affine:
        return affine(e, self.intervals.forms)

    def prove(self, condition: Expr, *given: Expr) -> bool | None:
        return Prover(given, self.intervals).prove(condition)


Rule = Callable[[Any, Simplification], Expr | None]
"""Of a node of the types that it is registered on."""


class Rules:
    """A registry of rules by the exact node type that each looks at."""

    def __init__(self) -> None:
        self.by_type: dict[type[Expr], list[Rule]] = {}
        self.fuel = FUEL

    def on(self, *types: type[Expr]) -> Callable[[Rule], Rule]:
        """Register the decorated rule, after those already there."""

        def register(rule: Rule) -> Rule:
            for cls in types:
                self.by_type.setdefault(cls, []).append(rule)
            return rule

        return register

    def also(self, rules: Iterable[UserRule]) -> Rules:
        """These, and after them a user's."""
        both = Rules()
        both.fuel = USERS_FUEL
        both.by_type = {cls: list(own) for cls, own in self.by_type.items()}
        for cls, law in (pair for rule in rules for pair in rule.laws):
            both.on(cls)(law)
        return both

    @property
    def names(self) -> tuple[str, ...]:
        """Every rule, once, in order."""
        every = (rule.__name__ for rules in self.by_type.values() for rule in rules)
        return tuple(dict.fromkeys(every))


class Simplifier:
    """The driver: innermost first, each node once, until no rule fires."""

    def __init__(self, rules: Rules | None = None, fuel: int = 0) -> None:
        self.rules = RULES if rules is None else rules
        self.fuel = fuel or self.rules.fuel
        self.context = Simplification()
        self.normal: dict[Expr, Expr] = {}
        self.fired: dict[str, int] = {}

    def __call__(self, root: Expr) -> Expr:
        """The normal form of `root`. Raises: InvalidIR when the rules do not come to an end."""
        forward: dict[Expr, Expr] = {}
        fuel = self.fuel
        stack = [root]
        while stack:
            node = stack[-1]
            if node in self.normal:
                stack.pop()
                continue
            target = forward.get(node)
            if target is None:
                target = self._advance(node, stack)
                if target is None:
                    continue
                forward[node] = target
            if target is node or target in self.normal:
                self.normal[node] = self.normal.get(target, target)
                stack.pop()
                continue
            stack.append(target)
            fuel -= 1
            if fuel < 0:
                busy = sorted(self.fired, key=lambda name: -self.fired[name])
                raise InvalidIR(f"simplify does not come to an end: {', '.join(busy[:4])}")
        return self.normal[root]

    def _advance(self, node: Expr, stack: list[Expr]) -> Expr | None:
        """The next form of `node`; None while children are still to be done."""
        kids = [c for c in node.children if isinstance(c, Expr)]
        pending = [k for k in kids if k not in self.normal]
        if pending:
            stack += reversed(pending)
            return None
        fresh = node.with_children(tuple(self.normal[k] for k in kids))
        if fresh is not node:
            return fresh
        return self._rewrite(node)

    def _rewrite(self, node: Expr) -> Expr:
        for rule in self.rules.by_type.get(type(node), ()):
            better = rule(node, self.context)
            if better is None or better is node:
                continue
            if better.dtype != node.dtype:
                raise InvalidIR(f"{rule.__name__}: {node.dtype} became {better.dtype}")
            self.fired[rule.__name__] = self.fired.get(rule.__name__, 0) + 1
            return better
        return node


RULES = Rules()


def simplify(e: Expr) -> Expr:
    """The normal form of a scalar expression: same value, fewer operations; idempotent."""
    return Simplifier()(e)


def _index(e: Expr) -> bool:
    return e.dtype == int64


@RULES.on(
    Add, Mul, Div, FloorDiv, Mod, Less, Equal, And, Or, Xor,
    Exp, Log, Sqrt, Sin, Cast,
)  # fmt: skip
def fold(e: Expr, _: Simplification) -> Expr | None:
    """``f(2, 3) -> its value``, computed as the interpreter does; of 16-bit floats unrounded.

    A logarithm stays one: rounded, it would spoil the power that it is part of.
    """
    literals = [c for c in e.children if isinstance(c, Const)]
    if len(literals) != len(e.children) or isinstance(e, Log):
        return None
    if is_short(e.dtype) and not isinstance(e, Cast):
        wide = [constant(Const(c.value, float32)) for c in literals]
        return Const(float(apply(e, wide, float32)), e.dtype)
    value = apply(e, [constant(c) for c in literals])
    return Const(e.dtype.python(value), e.dtype)


@RULES.on(Add, Mul, And, Or, Xor, Equal)
def constant_right(e: Binary, _: Simplification) -> Expr | None:
    """``2 + x -> x + 2``"""
    if isinstance(e.left, Const) and not isinstance(e.right, Const):
        return type(e)(e.right, e.left)
    return None


@RULES.on(Add)
def add_zero(e: Add, _: Simplification) -> Expr | None:
    """``x + 0 -> x``; of floats ``x + -0.0 -> x``, for -0.0 + 0.0 is 0.0."""
    zero = e.right
    if not is_const(zero, 0):
        return None
    exact = not e.dtype.is_float or (isinstance(zero, Const) and copysign(1.0, zero.value) < 0)
    return e.left if exact else None


@RULES.on(Mul)
def multiply_one(e: Mul, _: Simplification) -> Expr | None:
    """``x * 1 -> x``"""
    return e.left if is_const(e.right, 1) else None


@RULES.on(Mul)
def multiply_zero(e: Mul, _: Simplification) -> Expr | None:
    """``x * 0 -> 0`` of integers; of floats x may be NaN or infinite."""
    return e.right if is_const(e.right, 0) and not e.dtype.is_float else None


@RULES.on(Mul)
def signs(e: Mul, _: Simplification) -> Expr | None:
    """``(x * a) * b -> x * (a*b)`` where a or b is -1, which is exact: ``-(-x) -> x``."""
    inner = e.left
    b = e.right
    if not (isinstance(inner, Mul) and isinstance(b, Const) and isinstance(inner.right, Const)):
        return None
    if is_const(b, -1) or is_const(inner.right, -1):
        return Mul(inner.left, const(b.value * inner.right.value, e.dtype))
    return None


@RULES.on(Div)
def divide_constant(e: Div, _: Simplification) -> Expr | None:
    """``x / c -> x * (1/c)`` where c is a power of two, so that 1/c is exact."""
    if not isinstance(e.right, Const) or not math.isfinite(e.right.value) or e.right.value == 0:
        return None
    mantissa, exponent = math.frexp(e.right.value)
    safe = {"float8_e4m3fn": 6, "float8_e5m2": 12, "float16": 12}.get(e.dtype.name, 120)
    if abs(mantissa) != 0.5 or abs(exponent) > safe:
        return None
    return Mul(e.left, Const(1.0 / e.right.value, e.dtype))


@RULES.on(Add, Mul, And, Or, Xor)
def constants_meet(e: Binary, _: Simplification) -> Expr | None:
    """``(x op a) op b -> x op (a op b)`` of integers and booleans."""
    inner = e.left
    if e.dtype.is_float or not isinstance(e.right, Const) or type(inner) is not type(e):
        return None
    assert isinstance(inner, Binary)
    if not isinstance(inner.right, Const):
        return None
    return type(e)(inner.left, type(e)(inner.right, e.right))


@RULES.on(And, Or)
def absorbing(e: And | Or, _: Simplification) -> Expr | None:
    """``b & True -> b``, ``b & False -> False``, ``b | False -> b``, ``b | True -> True``"""
    if not isinstance(e.right, Const):
        return None
    ones = -1 if e.dtype.kind == "i" else e.dtype.range()[1]
    if e.right.value not in (0, ones):
        return None
    unit = (e.right.value == ones) == isinstance(e, And)
    return e.left if unit else e.right


@RULES.on(And, Or)
def same_twice(e: And | Or, _: Simplification) -> Expr | None:
    """``b & b -> b``, ``b | b -> b``"""
    return e.left if e.left is e.right else None


@RULES.on(Xor)
def exclusive(e: Xor, _: Simplification) -> Expr | None:
    """``b ^ False -> b``, ``b ^ b -> False``"""
    if is_const(e.right, 0):
        return e.left
    return const(0, e.dtype) if e.left is e.right else None


@RULES.on(Xor)
def negated_comparison(e: Xor, context: Simplification) -> Expr | None:
    """``not (a < b) -> b < a + 1`` of int64 that does not wrap"""
    inner = e.left
    if not (is_const(e.right, True) and isinstance(inner, Less) and _index(inner.left)):
        return None
    bumped = context.form(inner.left).shifted(1)
    if not context.intervals.exact(bumped):
        return None
    return Less(inner.right, to_expr(bumped))


@RULES.on(And)
def conjunction(e: And, context: Simplification) -> Expr | None:
    """``a & b -> a`` where a implies b, ``-> False`` where they contradict"""
    if not e.dtype.is_bool:
        return None
    for one, other in ((e.left, e.right), (e.right, e.left)):
        decided = context.prove(other, one)
        if decided is not None:
            return one if decided else const(False, bool_)
    return None


@RULES.on(Or)
def disjunction(e: Or, context: Simplification) -> Expr | None:
    """``a | b -> a`` where not a excludes b, ``-> True`` where not a implies b"""
    if not e.dtype.is_bool:
        return None
    for one, other in ((e.left, e.right), (e.right, e.left)):
        decided = context.prove(other, logical_not(one))
        if decided is not None:
            return const(True, bool_) if decided else one
    return None


@RULES.on(Less, Equal)
def decided(e: Expr, context: Simplification) -> Expr | None:
    """``i < 10 -> True`` where bounds decide it; ``x == x -> True`` of integers"""
    truth = context.prove(e)
    return None if truth is None else const(truth, bool_)


@RULES.on(Equal)
def equal_truth(e: Equal, _: Simplification) -> Expr | None:
    """``b == True -> b``, ``b == False -> not b`` of booleans"""
    if not e.left.dtype.is_bool or not isinstance(e.right, Const):
        return None
    return e.left if e.right.value else logical_not(e.left)


@RULES.on(Less, Equal)
def comparison(e: Comparison, context: Simplification) -> Expr | None:
    """``2*i + 1 < 2*j -> i < j``: terms on the side where they are positive, no common factor"""
    if not _index(e.left):
        return None
    left = context.form(e.left)
    right = context.form(e.right)
    exact = context.intervals.exact
    difference = right.minus(left)
    if not (exact(left) and exact(right)) or not difference.terms:
        return None
    if isinstance(e, Equal) and _sided(left, right, difference):
        return None
    new = _less(difference) if isinstance(e, Less) else _equal(difference)
    if new is None:
        return const(False, bool_)
    if not (exact(new[0]) and exact(new[1])):
        return None
    return type(e)(to_expr(new[0]), to_expr(new[1]))


@RULES.on(Less)
def of_quotient(e: Less, context: Simplification) -> Expr | None:
    """``x // c < n -> x < c*n``, ``n < x // c -> c*n + c - 1 < x`` of int64 that does not wrap"""
    for quotient, other, low in ((e.left, e.right, False), (e.right, e.left, True)):
        if not isinstance(quotient, FloorDiv) or not (by := divisor(quotient)):
            continue
        scaled = context.form(other).times(by).shifted((by - 1) * low)
        if context.intervals.exact(scaled):
            bound, x = to_expr(scaled), quotient.left
            return Less(bound, x) if low else Less(x, bound)
    return None


def _sided(left: Affine, right: Affine, difference: Affine) -> bool:
    """Whether an equation is in normal form already; which side is which means nothing."""
    positive = all(c > 0 for _, c in (*left.terms, *right.terms))
    apart = len(left.terms) + len(right.terms) == len(difference.terms)
    common = math.gcd(*(c for _, c in difference.terms))
    return positive and apart and common == 1 and left.const == 0 and bool(left.terms)


def _sides(form: Affine) -> tuple[Affine, Affine]:
    """``form = positive - negative`` with positive coefficients in both, constants left out."""
    negative = form.select(lambda c: c < 0).times(-1)
    return form.select(lambda c: c > 0), negative


def _less(difference: Affine) -> tuple[Affine, Affine]:
    """``difference > 0`` as ``left < right``"""
    common = math.gcd(*(c for _, c in difference.terms))
    const_term = (difference.const - 1) // common
    positive, negative = _sides(difference.over(common))
    if not negative.terms:
        return Affine((), -const_term - 1), positive
    return negative, positive.shifted(const_term + 1)


def _equal(difference: Affine) -> tuple[Affine, Affine] | None:
    """``difference == 0`` as ``left == right``; None where the common factor excludes it"""
    common = math.gcd(*(c for _, c in difference.terms))
    if difference.const % common:
        return None
    sign = 1 if difference.terms[0][1] > 0 else -1
    positive, negative = _sides(difference.times(sign).over(common))
    return positive, negative.shifted(-sign * difference.const // common)


@RULES.on(Add, Mul)
def linear(e: Expr, context: Simplification) -> Expr | None:
    """``(i + 2) * 3 + i -> i*4 + 6``, ``(x // c)*c + x % c -> x`` of int64"""
    if not _index(e):
        return None
    form = context.form(e)
    if form.single is e:
        return None
    return to_expr(rejoin(form, context.intervals))


@RULES.on(FloorDiv, Mod)
def divide_trivially(e: FloorDiv | Mod, _: Simplification) -> Expr | None:
    """``x // 1 -> x``, ``x % 1 -> 0``, ``x // 0 -> 0``, ``x % 0 -> 0`` of integers"""
    if e.dtype.is_float or not isinstance(e.right, Const) or e.right.value not in (0, 1):
        return None
    whole = isinstance(e, FloorDiv) and e.right.value == 1
    return e.left if whole else const(0, e.dtype)


@RULES.on(FloorDiv, Mod)
def parted(e: FloorDiv | Mod, context: Simplification) -> Expr | None:
    """``(c*q + r) // c -> q``, ``(c*q + r) % c -> r`` with 0 <= r < c; of int64
    ``(x // b) // c -> x // (b*c)``, ``(x % (a*c)) % c -> x % c``
    """
    by = divisor(e)
    part = divide if isinstance(e, FloorDiv) else remainder
    form = part(context.form(e.left), by, context.intervals) if by else None
    return None if form is None else to_expr(form)


@RULES.on(FloorDiv, Mod)
def below_divisor(e: FloorDiv | Mod, context: Simplification) -> Expr | None:
    """``x // n -> 0``, ``x % n -> x`` where 0 <= x < n is proved, n not a constant"""
    if e.dtype.is_float or isinstance(e.right, Const):
        return None
    negative = context.prove(Less(e.left, const(0, e.dtype)))
    if negative is not False or context.prove(Less(e.left, e.right)) is not True:
        return None
    return const(0, e.dtype) if isinstance(e, FloorDiv) else e.left


@RULES.on(Cast)
def cast_same(e: Cast, _: Simplification) -> Expr | None:
    """``cast(x: T, T) -> x``"""
    return e.value if e.value.dtype == e.to else None


@RULES.on(Cast)
def cast_twice(e: Cast, _: Simplification) -> Expr | None:
    """``cast(cast(x, wide), T) -> cast(x, T)`` where the wide type holds every value of x"""
    if not isinstance(e.value, Cast):
        return None
    inner = e.value.value
    if not holds(e.value.to, inner.dtype) or not _through(inner.dtype, e.value.to, e.to):
        return None
    return Cast(inner, e.to)


@RULES.on(Cast)
def cast_choice(e: Cast, _: Simplification) -> Expr | None:
    """``cast(c ? x : 0) -> c ? cast(x) : cast(0)`` of floats: a guard stands outside of casts"""
    inner = e.value
    if not (isinstance(inner, If) and e.to.is_float and inner.dtype.is_float):
        return None
    if not isinstance(inner.then, Const) and not isinstance(inner.otherwise, Const):
        return None
    return If(inner.condition, Cast(inner.then, e.to), Cast(inner.otherwise, e.to))


def holds(wide: DType, narrow: DType) -> bool:
    """Whether every value of `narrow` is a value of `wide`."""
    if wide == narrow or narrow.is_bool:
        return True
    if wide.is_bool or (narrow.is_float and not wide.is_float):
        return False
    if wide.is_float and narrow.is_float:
        return wide.bits > narrow.bits
    if wide.is_float:
        digits = {
            "float8_e4m3fn": 4, "float8_e5m2": 3, "float16": 11, "bfloat16": 8, "float32": 24,
            "float64": 53,
        }[wide.name]  # fmt: skip
        return narrow.bits - (narrow.kind == "i") <= digits
    lo, hi = narrow.range()
    return wide.range()[0] <= lo and hi <= wide.range()[1]


def _through(source: DType, middle: DType, to: DType) -> bool:
    """Whether casts from `source` and `middle` to `to` agree: integers wrap, floats saturate."""
    if middle.is_float and source.is_integer and to.is_integer:
        return holds(to, source)
    return True


@RULES.on(If)
def if_constant(e: If, _: Simplification) -> Expr | None:
    """``True ? a : b -> a``, ``c ? a : a -> a``"""
    if e.then is e.otherwise:
        return e.then
    if not isinstance(e.condition, Const):
        return None
    return e.then if e.condition.value else e.otherwise


@RULES.on(If)
def if_not(e: If, _: Simplification) -> Expr | None:
    """``not c ? a : b -> c ? b : a``"""
    condition = e.condition
    if isinstance(condition, Xor) and is_const(condition.right, True):
        return If(condition.left, e.otherwise, e.then)
    return None


@RULES.on(If)
def if_truth(e: If, _: Simplification) -> Expr | None:
    """``c ? True : False -> c``, ``c ? False : True -> not c``"""
    if not e.dtype.is_bool:
        return None
    if is_const(e.then, True) and is_const(e.otherwise, False):
        return e.condition
    if is_const(e.then, False) and is_const(e.otherwise, True):
        return logical_not(e.condition)
    return None


@RULES.on(If)
def if_nested(e: If, context: Simplification) -> Expr | None:
    """``c ? (d ? a : b) : z -> c ? a : z`` where c implies d, alike for each branch of each If

    Not inside what is dear and in both branches: ``z = exp(-|x|); x < 0 ? z : 1 - z`` has one exp.
    """
    kept = _dear(e.then).intersection(_dear(e.otherwise))
    then = _decide_inside(e.then, e.condition, kept, context)
    otherwise = _decide_inside(e.otherwise, logical_not(e.condition), kept, context)
    if then is None and otherwise is None:
        return None
    return If(e.condition, then or e.then, otherwise or e.otherwise)


def _dear(branch: Expr) -> set[Node]:
    return {n for n in islice(walk(branch), NESTED) if isinstance(n, DEAR)}


def _decide_inside(
    branch: Expr, given: Expr, kept: Collection[Node], context: Simplification
) -> Expr | None:
    """`branch` outside of `kept`, the conditions of its inner Ifs that `given` decides replaced."""
    inner: dict[Node, None] = {}
    for count, node in enumerate(walk(branch, skip=kept)):
        if isinstance(node, If):
            inner[node.condition] = None
        if count > NESTED:
            return None
    if not inner:
        return None
    prover = Prover((given,), context.intervals)
    memo: Memo = {}
    for condition in inner:
        assert isinstance(condition, Expr)
        truth = prover.prove(condition)
        if truth is not None:
            memo[condition] = const(truth, bool_)
    return None if not memo else _replaced(branch, memo | {n: n for n in kept})


def _replaced(branch: Expr, memo: Memo) -> Expr:
    for node in walk(branch, skip=memo):
        memo[node] = node.with_children(tuple(memo[c] for c in node.children))
    replaced = memo[branch]
    assert isinstance(replaced, Expr)
    return replaced


@RULES.on(If)
def if_merged(e: If, _: Simplification) -> Expr | None:
    """``c ? (d ? a : z) : z -> c & d ? a : z``, ``c ? a : (d ? a : z) -> c | d ? a : z``

    Only where d reads nothing, for it would no longer be guarded by c.
    """
    then = e.then
    other = e.otherwise
    if isinstance(then, If) and then.otherwise is other and not reads_data(then.condition):
        return If(And(e.condition, then.condition), then.then, other)
    if isinstance(other, If) and other.then is then and not reads_data(other.condition):
        return If(Or(e.condition, other.condition), then, other.otherwise)
    return None
