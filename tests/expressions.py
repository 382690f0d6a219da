"""Random typed expressions over a small box, and their values under the interpreter."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from hypothesis import strategies as st

from pullback.backends.reference.definitions import Evaluator
from pullback.ir import expr as E
from pullback.ir.dtype import (
    DType,
    bool_,
    float32,
    float64,
    int16,
    int32,
    int64,
    uint16,
    uint64,
)
from pullback.ir.expr import Axis, Const, Expr, index
from pullback.ir.graph import Value, Variable, read

BOX = (3, 4, 2)
AXES = tuple(Axis(n, e) for n, e in enumerate(BOX))
LO, HI = int64.range()
SAMPLES: dict[DType, list[Any]] = {
    float32: [0.0, -0.0, 1.0, -1.5, math.nan, math.inf, -math.inf, 3e38, 1e-40, 7.0, 0.1, -2.0],
    float64: [0.0, -0.0, 1.0, -1.5, math.nan, math.inf, -math.inf, 1e308, 5e-324, 7.0, 0.1, -2.0],
    int64: [0, 1, -1, 2, 5, -7, LO, HI, LO + 1, 12, 100, 3],
    int32: [0, 1, -1, 2, 5, -7, -(2**31), 2**31 - 1, 9, 12, 100, 3],
    int16: [0, 1, -1, 2, 5, -7, -(2**15), 2**15 - 1, 9, 12, 100, 3],
    uint16: [0, 1, 2, 5, 7, 2**15 - 1, 2**15, 2**16 - 1, 9, 12, 100, 3],
    uint64: [0, 1, 2, 5, 7, 2**63 - 1, 2**63, 2**64 - 1, 9, 12, 100, 3],
    bool_: [True, False, True, True, False, False, True, False, True, False, False, True],
}
DATA = {kind: Variable(kind.name[0] + str(kind.bits), (3, 4), kind) for kind in SAMPLES}
ARRAYS: dict[Value, np.ndarray[Any, Any]] = {
    v: np.array(SAMPLES[kind], kind.numpy).reshape(3, 4) for kind, v in DATA.items()
}
LITERALS: dict[DType, list[Any]] = {
    float32: [0.0, -0.0, 1.0, -1.0, 2.0, 0.5, -3.0, math.inf],
    float64: [0.0, -0.0, 1.0, -1.0, 2.0, 0.5, -3.0, math.inf],
    int64: [0, 1, -1, 2, 3, 4, 6, 12, -5, HI],
    int32: [0, 1, -1, 2, 3, 4, 6, 12, -5, 2**31 - 1],
    int16: [0, 1, -1, 2, 3, 4, 6, 12, -5, 2**15 - 1],
    uint16: [0, 1, 2, 3, 4, 6, 12, 2**15, 2**16 - 1],
    uint64: [0, 1, 2, 3, 4, 6, 12, 2**63, 2**64 - 1],
    bool_: [True, False],
}
KINDS = (float32, float64, int64, int32, int16, uint16, uint64, bool_)


def values(e: Expr) -> np.ndarray[Any, Any]:
    """The values of an expression over the box."""
    return Evaluator([(0, n) for n in BOX], ARRAYS, {}).values([e])[0]


def same(a: Expr, b: Expr) -> bool:
    """Whether two expressions have the same values, signs of zeros included."""
    x, y = values(a), values(b)
    if a.dtype != b.dtype:
        return False
    equal = (x == y) | ((x != x) & (y != y))
    if a.dtype.is_float:
        equal &= (np.signbit(x) == np.signbit(y)) | (x != x)
    return bool(equal.all())


@st.composite
def leaves(draw: st.DrawFn, kind: DType) -> Expr:
    choice = draw(st.integers(0, 3))
    if kind == int64 and choice <= 1:
        return draw(st.sampled_from(AXES))
    if choice <= 2:
        return Const(draw(st.sampled_from(LITERALS[kind])), kind)
    return read(DATA[kind], AXES[0], AXES[1])


@st.composite
def expressions(draw: st.DrawFn, kind: DType, depth: int = 4) -> Expr:
    """An expression of type `kind`."""
    if depth == 0 or draw(st.integers(0, 5)) == 0:
        return draw(leaves(kind))

    def sub(k: DType) -> Expr:
        return draw(expressions(k, depth - 1))

    kinds = ["if", "cast", "take"]
    if kind.is_bool:
        kinds += ["less", "equal", "and", "or", "xor", "not"] * 2
    else:
        kinds += ["add", "mul", "negate", "add", "mul", "extreme"]
        kinds += ["floordiv", "mod"]
    if kind.is_integer:
        kinds += ["and", "or", "xor", "floordiv", "mod"]
    if kind.is_float:
        kinds += ["sqrt", "div"]
    return _made(draw(st.sampled_from(kinds)), kind, sub, draw)


def _made(name: str, kind: DType, sub: Any, draw: st.DrawFn) -> Expr:
    two = {
        "add": E.Add, "mul": E.Mul, "div": E.Div, "floordiv": E.FloorDiv, "mod": E.Mod,
        "and": E.And, "or": E.Or, "xor": E.Xor,
    }  # fmt: skip
    if name in two:
        left = sub(kind)
        if name in ("floordiv", "mod") and kind.is_integer and draw(st.booleans()):
            return two[name](left, Const(draw(st.integers(1, 7)), kind))
        right = left if draw(st.integers(0, 7)) == 0 else sub(kind)
        return two[name](left, right)
    if name in ("less", "equal"):
        inner = draw(st.sampled_from(KINDS))
        return (E.Less if name == "less" else E.Equal)(sub(inner), sub(inner))
    if name == "if":
        return E.If(sub(bool_), sub(kind), sub(kind))
    if name == "cast":
        return E.Cast(sub(draw(st.sampled_from(KINDS))), kind)
    if name == "not":
        return E.logical_not(sub(bool_))
    if name == "negate":
        return E.negate(sub(kind))
    if name == "extreme":
        return draw(st.sampled_from((E.maximum, E.minimum)))(sub(kind), sub(kind))
    if name == "sqrt":
        return E.Sqrt(sub(kind))
    row = E.Mod(sub(int64), index(3))
    return read(DATA[kind], row, AXES[1])


def numbers(count: int = 2) -> st.SearchStrategy[Expr]:
    """Index arithmetic over the box: sums, products with constants, quotients, remainders."""
    small = st.integers(-9, 9).map(index)
    positive = st.integers(1, 12).map(index)
    leaf = st.one_of(st.sampled_from(AXES), small)

    def wider(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
        return st.one_of(
            st.builds(E.Add, inner, inner),
            st.builds(E.Mul, inner, small),
            st.builds(E.FloorDiv, inner, positive),
            st.builds(E.Mod, inner, positive),
        )

    return st.recursive(leaf, wider, max_leaves=4 * count)


def conditions() -> st.SearchStrategy[Expr]:
    """Comparisons of index arithmetic, joined."""
    one = st.builds(E.Less, numbers(1), numbers(1)) | st.builds(E.Equal, numbers(1), numbers(1))
    join = st.builds(E.And, one, one) | st.builds(E.Or, one, one)
    return st.one_of(one, one.map(E.logical_not), join)
