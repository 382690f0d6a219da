"""Sizes that are symbols as numbers among elements: ``2 / (s - 1)`` of a tensor that counts `s`."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import add, mul
from typing import Any

from torch.utils._sympy import functions as S

from pullback.errors import ShapeError
from pullback.tensor.library.maths import divide, floor_divide, maximum, minimum, sqrt
from pullback.tensor.library.maths import pow as power
from pullback.tensor.library.ops import astype

WIDE = "float64"
Known = Callable[[Any], Any]
"""What an expression is that is an extent; None for others."""


def valued(own: Any, known: Known) -> Any:
    """An expression of sizes as a number, or a tensor without axes.

    Raises: ShapeError for a function that is not named here.
    """
    if own.is_Integer:
        return int(own)
    if own.is_Number:
        return float(own)
    extent = known(own)
    if extent is not None:
        return extent
    way = _WAYS.get(type(own).__name__)
    if way is None:
        raise ShapeError(f"the size {own} as a number", code="E120")
    return way(*[valued(a, known) for a in own.args])


def _wide(x: Any) -> Any:
    return float(x) if isinstance(x, int | float) else astype(x, WIDE)


def _power(base: Any, exponent: Any) -> Any:
    if not isinstance(exponent, int) or exponent < 1:
        raise ShapeError(f"a power of a size by {exponent}", code="E120")
    return reduce(mul, [base] * exponent)


_ROOT = "OpaqueUnaryFn_sqrt"
_WAYS: dict[str, Callable[..., Any]] = {
    "Add": lambda *a: reduce(add, a),
    "Mul": lambda *a: reduce(mul, a),
    "Pow": _power,
    S.PowByNatural.__name__: _power,
    S.FloatPow.__name__: lambda a, b: power(_wide(a), _wide(b)),
    S.ToFloat.__name__: _wide,
    S.FloatTrueDiv.__name__: lambda a, b: divide(_wide(a), _wide(b)),
    S.IntTrueDiv.__name__: lambda a, b: divide(_wide(a), _wide(b)),
    S.FloorDiv.__name__: floor_divide,
    S.CleanDiv.__name__: floor_divide,
    S.Max.__name__: lambda *a: reduce(maximum, a),
    S.Min.__name__: lambda *a: reduce(minimum, a),
    _ROOT: lambda a: sqrt(_wide(a)),
}
