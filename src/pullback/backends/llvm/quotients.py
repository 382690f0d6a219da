"""Floors and remainders of quotients of floats, exact: computed in float64, float32 in its lanes.

With ``n`` the rounded quotient without its fraction, ``a - n c`` fits a float64 wherever n is below
2**53, so one fused multiply-add leaves it without an error, and its sign tells whether n is one
too many. Larger quotients are C's `fmod`, lane by lane.
"""

from __future__ import annotations

from pullback.backends.llvm.floats import Floats, by_lane, where_rare
from pullback.backends.llvm.text import Builder, Val

EXACT = 2.0**53  # whole numbers below it are float64


def _widened(b: Builder, a: Val, c: Val) -> tuple[Floats, Val, Val]:
    a, c = b.unify(a, c)
    if a.kind == "float":
        a, c = (b.convert("fpext", v, "double") for v in (a, c))
    return Floats(b, a), a, c


def _rest(f: Floats, a: Val, c: Val, n: Val) -> Val:
    """``a - n c``; where n is 0, a, though c is infinite."""
    return f.select(f.is_("oeq", n, 0.0), a, f.exact(f.neg(n), c, a))


def _unlike(f: Floats, a: Val, c: Val) -> Val:
    """Whether a nonzero `a` has another sign than `c`."""
    other = f.b.compare("ne", f.is_("olt", a, 0.0), f.is_("olt", c, 0.0))
    return f.b.binary("and", f.is_("one", a, 0.0), other)


def floor_divide(b: Builder, a: Val, c: Val) -> Val:
    """The floor of the exact quotient, rounded once."""
    kind = a.kind
    if c.literal == 1.0:
        return b.intrinsic("floor", a)
    f, a, c = _widened(b, a, c)
    quotient = f.div(a, c)
    floor = b.intrinsic("floor", quotient)
    less = b.binary("and", _unlike(f, _rest(f, a, c, floor), c), _small(f, quotient))
    floored = f.select(less, f.sub(floor, 1.0), floor)
    return floored if kind == "double" else b.convert("fptrunc", floored, kind)


def _small(f: Floats, quotient: Val) -> Val:
    return f.is_("olt", f.abs(quotient), EXACT)


def modulo(b: Builder, a: Val, c: Val) -> Val:
    """The remainder of C's `fmod`, with c added where their signs differ; a zero has c's sign."""
    kind = a.kind
    f, wide, by = _widened(b, a, c)
    quotient = f.div(wide, by)
    n = b.intrinsic("trunc", quotient)
    rest = _rest(f, wide, by, n)
    far = f.is_("oge", f.abs(quotient), EXACT)
    rest = where_rare(b, far, rest, lambda: by_lane(b, "fmod", wide, by))
    if kind != "double":
        rest, by = (b.convert("fptrunc", v, kind) for v in (rest, by))
        f = Floats(b, rest)
    # unlike c are the rest of an `a` unlike c, and that of an n one too many
    remainder = f.select(_unlike(f, rest, by), f.add(rest, by), rest)
    return f.select(f.is_("oeq", rest, 0.0), f.copysign(rest, by), remainder)
