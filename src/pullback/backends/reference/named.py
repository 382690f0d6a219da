"""Functions whose primitives lose digits, evaluated as what they are: powers, cosines, tangents.

``exp(y log x)`` magnifies the rounding of its logarithm, ``1 - 2 sin(x / 2)^2`` cancels at zeros.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from pullback.ir import expr as E
from pullback.ir import functions as F
from pullback.ir.expr import Expr
from pullback.ir.meaning import Array

Path = tuple[str, ...]
FORMS: dict[type[Expr], tuple[Callable[[Expr], Expr], Path, np.ufunc]] = {
    E.Add: (F.cos, ("right", "left", "right", "left", "value", "left"), np.cos),
    E.If: (F.tan, ("otherwise", "left", "value"), np.tan),
}


def named(node: Expr) -> tuple[Callable[..., Array], tuple[Expr, ...]] | None:
    """A function and its arguments, where `node` spells it out."""
    match node:
        case E.Exp(E.Mul(y, E.Log(x)) | E.Mul(E.Log(x), y)):
            return _power, (x, y)
    form = FORMS.get(type(node))
    if form is None or not node.dtype.is_float:
        return None
    function, path, ufunc = form
    place: object = node
    for step in path:
        place = getattr(place, step, None)
    if not isinstance(place, Expr) or place.dtype != node.dtype:
        return None
    if function(place) is not node:
        return None
    return lambda x: _rounded(ufunc, x), (place,)


def _power(x: Array, y: Array) -> Array:
    """``x ** y`` of a base above 0; else what the primitives give."""
    wide, by = x.astype(np.float64), y.astype(np.float64)
    with np.errstate(all="ignore"):
        plain = (wide > 0) & (wide < np.inf) & (np.abs(by) < np.inf)
        powers = np.where(plain, np.power(wide, by), np.exp(by * np.log(wide)))
        return np.asarray(powers, dtype=x.dtype)


def _rounded(ufunc: np.ufunc, x: Array) -> Array:
    """`ufunc` of x in float64, rounded to the type of x."""
    with np.errstate(all="ignore"):
        return np.asarray(ufunc(x.astype(np.float64)), dtype=x.dtype)
