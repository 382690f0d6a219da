"""Powers of float64, to a unit in the last place: a logarithm in two float64, then exp.

A power magnifies the error of its logarithm by up to 745, so that has to be right to 65 bits.
"""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

from pullback.backends.llvm.floats import Floats
from pullback.backends.llvm.text import Builder, Val
from pullback.backends.llvm.vmath64 import exp, parts_of_any

# ln 2 in a short number, whose products with exponents are exact, and the rest of it
LN2, LN2_REST = 0.6931471805598903, 5.497923018708371e-14
# 2 atanh(s) = 2 s + s z (2/3 + z (2/5 + 2/7 z + ..)), z = s**2 <= 0.0295
THIRD, THIRD_REST = 2 / 3, 3.700743415417188e-17
SERIES = tuple(2 / k for k in range(23, 3, -2))
FAR = 800.0  # e**FAR is infinite and e**-FAR zero

Pair = tuple[Val, Val]


def _sum(f: Floats, a: Val, b: Val) -> Pair:
    """``a + b`` and what it lost."""
    s = f.add(a, b)
    t = f.sub(s, a)
    return s, f.add(f.sub(a, f.sub(s, t)), f.sub(b, t))


def _product(f: Floats, a: Val, b: Val) -> Pair:
    """``a b`` and what it lost."""
    p = f.mul(a, b)
    return p, f.exact(a, b, f.neg(p))


def _log_mantissa(f: Floats, m: Val) -> Pair:
    """``ln m = 2 atanh((m - 1) / (m + 1))`` of m in [sqrt 1/2, sqrt 2), in two parts."""
    over, under = f.sub(m, 1.0), f.add(m, 1.0)
    rest = f.sub(m, f.sub(under, 1.0))
    s = f.div(over, under)
    left = f.exact(f.neg(s), under, over)
    s_low = f.div(f.exact(f.neg(s), rest, left), under)
    z, z_low = _product(f, s, s)
    z_low = f.fma(f.add(s, s), s_low, z_low)
    tail = f.mul(z, f.poly(z, SERIES))
    c, c_low = _sum(f, f.real(THIRD), tail)
    c_low = f.add(c_low, THIRD_REST)
    w, w_low = _product(f, s, z)
    w_low = f.fma(s, z_low, f.fma(s_low, z, w_low))
    v, v_low = _product(f, w, c)
    v_low = f.fma(w, c_low, f.fma(w_low, c, v_low))
    high, low = _sum(f, f.add(s, s), v)
    return high, f.add(low, f.fma(s_low, 2.0, v_low))


def _log(f: Floats, x: Val) -> Pair:
    """``ln x`` in two parts; the second is 0 where x is 0, infinite or no logarithm exists."""
    m, power = parts_of_any(f, x)
    near, near_low = _log_mantissa(f, m)
    high, low = _sum(f, f.mul(power, LN2), near)
    low = f.add(low, f.fma(power, LN2_REST, near_low))
    total = f.add(high, low)
    low = f.sub(low, f.sub(total, high))
    edge = f.select(f.is_("oeq", x, 0.0), -math.inf, math.nan)
    edge = f.select(f.is_("oeq", x, math.inf), math.inf, edge)
    plain = f.b.binary("and", f.is_("ogt", x, 0.0), f.is_("olt", x, math.inf))
    return f.select(plain, total, edge), f.select(plain, low, 0.0)


def _literal_log(f: Floats, value: float) -> Pair:
    """``ln`` of a literal."""
    if not 0 < value < math.inf:
        high = -math.inf if value == 0 else value if value > 0 else math.nan
        return f.real(high), f.real(0.0)
    with localcontext() as context:
        context.prec = 60
        exact = Decimal(value).ln()
        return f.real(float(exact)), f.real(float(exact - Decimal(float(exact))))


def power(b: Builder, x: Val, y: Val) -> Val:
    """``e ** (y ln x)`` of float64."""
    literal = x.literal
    x, y = b.unify(x, y)
    f = Floats(b, x)
    high, low = _log(f, x) if literal is None else _literal_log(f, float(literal))
    p, lost = _product(f, y, high)
    lost = f.fma(y, low, lost)
    return exp(b, p, f.select(f.is_("olt", f.abs(p), FAR), lost, 0.0))
