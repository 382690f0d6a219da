"""Orthogonal polynomials by their recurrences of three terms, in float64, rounded once.

``p[0] = 1``, ``p[k + 1] = a(k, x) p[k] - b(k) p[k - 1]``; of a negative order 0.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pullback.errors import ShapeError
from pullback.ir import dtype as D
from pullback.ir import functions as F
from pullback.ir.expr import Add, Expr, Mul
from pullback.special.parts import Special
from pullback.tensor.face.handles import ScalarHandle
from pullback.tensor.face.tensor import Tensor, operand
from pullback.tensor.library import maths as M
from pullback.tensor.library import ops as O
from pullback.tensor.library.scalars import repeated, value_tensor
from pullback.tensor.shaped import shaped
from pullback.tensor.values import elementwise as W
from pullback.tensor.values import views

LARGEST = 1 << 53
UNROLLED = 64  # order up to which a polynomial is one expression


@dataclass(frozen=True, slots=True)
class Family:
    """``p[1] = slope x + start``; ``terms(k)``: ``p[k + 1] = (c + d x) p[k] - e p[k - 1]``.

    `shifted`: of ``2 x - 1`` in place of x.
    """

    name: str
    slope: float
    start: float
    terms: Callable[[Any], tuple[Any, Any, Any]]
    shifted: bool = False

    def expression(self, n: int, x: Expr) -> Expr:
        """Of a known order."""
        if self.shifted:
            x = Add(Mul(x, F.like(2, x)), F.like(-1, x))
        before: Expr = F.like(0 if n < 0 else 1, x)
        last: Expr = before if n < 1 else Add(Mul(x, F.like(self.slope, x)), F.like(self.start, x))
        for k in range(1, n):
            c, d, e = self.terms(k)
            by = Add(Mul(x, F.like(d, x)), F.like(c, x))
            before, last = last, Add(Mul(by, last), Mul(before, F.like(-e, x)))
        return last

    def of_orders(self, x: Any, n: Any) -> Tensor:
        """Of orders that are data: every element goes on to its own."""
        kind = W.as_float(W.common_dtype([operand(x)]))
        points, orders = O.broadcast_arrays(value_tensor(x), value_tensor(n))
        t, count = O.astype(points, D.float64), M.trunc(O.astype(orders, D.float64))
        t = t * 2.0 - 1.0 if self.shifted else t

        def step(carry: Any) -> Any:
            before, last, k = carry
            c, d, e = self.terms(k)
            return last, O.where(k < count, (c + d * t) * last - e * before, last), k + 1.0

        first = t * self.slope + self.start
        end = repeated(lambda c: O.any(c[2] < count), step, (t * 0.0 + 1.0, first, t * 0.0 + 1.0))
        value = O.where(count < 0.0, 0.0, O.where(count < 1.0, 1.0, end[1]))
        result: Tensor = O.astype(value, kind)
        return result

    def __call__(self, x: Any, n: Any) -> Any:
        if isinstance(n, W.Scalar):
            n = views.whole(n, f"{self.name}: n", -LARGEST)
            if n <= UNROLLED:
                return _of_order(self, max(n, -1))(x)
        if isinstance(x, ScalarHandle):
            raise ShapeError(f"{self.name} of order {n} in a definition", code="E123")
        return self.of_orders(x, n)


@functools.cache
def _of_order(family: Family, n: int) -> Special:
    return Special(f"{family.name}_{n}", functools.partial(family.expression, n))


def _chebyshev(k: Any) -> tuple[Any, Any, Any]:
    return 0.0, 2.0, 1.0


T = Family("chebyshev_polynomial_t", 1.0, 0.0, _chebyshev)
U = Family("chebyshev_polynomial_u", 2.0, 0.0, _chebyshev)
V = Family("chebyshev_polynomial_v", 2.0, -1.0, _chebyshev)
W_ = Family("chebyshev_polynomial_w", 2.0, 1.0, _chebyshev)
SHIFTED = tuple(
    Family(f"shifted_{f.name}", f.slope, f.start, _chebyshev, shifted=True) for f in (T, U, V, W_)
)
HERMITE = Family("hermite_polynomial_h", 2.0, 0.0, lambda k: (0.0, 2.0, k * 2.0))
HERMITE_E = Family("hermite_polynomial_he", 1.0, 0.0, lambda k: (0.0, 1.0, k * 1.0))
LAGUERRE = Family(
    "laguerre_polynomial_l", -1.0, 1.0,
    lambda k: ((k * 2.0 + 1.0) / (k + 1.0), -1.0 / (k + 1.0), k / (k + 1.0)),
)  # fmt: skip
LEGENDRE = Family(
    "legendre_polynomial_p", 1.0, 0.0,
    lambda k: (0.0, (k * 2.0 + 1.0) / (k + 1.0), k / (k + 1.0)),
)  # fmt: skip


@shaped("x[*s], n[*s] -> [*s]")
def chebyshev_polynomial_t(x: Any, n: Any) -> Any:
    """Chebyshev's polynomial of the first kind, ``cos(n acos x)`` inside of -1..1.

    Example:
        >>> pb.special.chebyshev_polynomial_t(pb.tensor([0.5, 2.0]), 3)
        Tensor([-1., 26.], dtype=float32)
    """
    return T(x, n)


@shaped("x[*s], n[*s] -> [*s]")
def chebyshev_polynomial_u(x: Any, n: Any) -> Any:
    """Chebyshev's polynomial of the second kind, ``sin((n + 1) acos x) / sin(acos x)``.

    Example:
        >>> pb.special.chebyshev_polynomial_u(pb.tensor([0.5, 2.0]), 3)
        Tensor([-1., 56.], dtype=float32)
    """
    return U(x, n)


@shaped("x[*s], n[*s] -> [*s]")
def chebyshev_polynomial_v(x: Any, n: Any) -> Any:
    """Chebyshev's polynomial of the third kind, ``p[1] = 2 x - 1``.

    Example:
        >>> pb.special.chebyshev_polynomial_v(pb.tensor([0.5, 2.0]), 3)
        Tensor([-1., 41.], dtype=float32)
    """
    return V(x, n)


@shaped("x[*s], n[*s] -> [*s]")
def chebyshev_polynomial_w(x: Any, n: Any) -> Any:
    """Chebyshev's polynomial of the fourth kind, ``p[1] = 2 x + 1``.

    Example:
        >>> pb.special.chebyshev_polynomial_w(pb.tensor([0.5, 2.0]), 3)
        Tensor([-1., 71.], dtype=float32)
    """
    return W_(x, n)


@shaped("x[*s], n[*s] -> [*s]")
def shifted_chebyshev_polynomial_t(x: Any, n: Any) -> Any:
    """Chebyshev's polynomial of the first kind, of ``2 x - 1``.

    Example:
        >>> pb.special.shifted_chebyshev_polynomial_t(pb.tensor([0.5, 2.0]), 3)
        Tensor([-0., 99.], dtype=float32)
    """
    return SHIFTED[0](x, n)


@shaped("x[*s], n[*s] -> [*s]")
def shifted_chebyshev_polynomial_u(x: Any, n: Any) -> Any:
    """Chebyshev's polynomial of the second kind, of ``2 x - 1``.

    Example:
        >>> pb.special.shifted_chebyshev_polynomial_u(pb.tensor([0.5, 2.0]), 3)
        Tensor([ -0., 204.], dtype=float32)
    """
    return SHIFTED[1](x, n)


@shaped("x[*s], n[*s] -> [*s]")
def shifted_chebyshev_polynomial_v(x: Any, n: Any) -> Any:
    """Chebyshev's polynomial of the third kind, of ``2 x - 1``.

    Example:
        >>> pb.special.shifted_chebyshev_polynomial_v(pb.tensor([0.5, 2.0]), 3)
        Tensor([  1., 169.], dtype=float32)
    """
    return SHIFTED[2](x, n)


@shaped("x[*s], n[*s] -> [*s]")
def shifted_chebyshev_polynomial_w(x: Any, n: Any) -> Any:
    """Chebyshev's polynomial of the fourth kind, of ``2 x - 1``.

    Example:
        >>> pb.special.shifted_chebyshev_polynomial_w(pb.tensor([0.5, 2.0]), 3)
        Tensor([ -1., 239.], dtype=float32)
    """
    return SHIFTED[3](x, n)


@shaped("x[*s], n[*s] -> [*s]")
def hermite_polynomial_h(x: Any, n: Any) -> Any:
    """Hermite's polynomial: ``p[k + 1] = 2 x p[k] - 2 k p[k - 1]``.

    Example:
        >>> pb.special.hermite_polynomial_h(pb.tensor([0.5, 2.0]), 3)
        Tensor([-5., 40.], dtype=float32)
    """
    return HERMITE(x, n)


@shaped("x[*s], n[*s] -> [*s]")
def hermite_polynomial_he(x: Any, n: Any) -> Any:
    """Hermite's polynomial of probability: ``p[k + 1] = x p[k] - k p[k - 1]``.

    Example:
        >>> pb.special.hermite_polynomial_he(pb.tensor([0.5, 2.0]), 3)
        Tensor([-1.375,  2.   ], dtype=float32)
    """
    return HERMITE_E(x, n)


@shaped("x[*s], n[*s] -> [*s]")
def laguerre_polynomial_l(x: Any, n: Any) -> Any:
    """Laguerre's polynomial: ``(k + 1) p[k + 1] = (2 k + 1 - x) p[k] - k p[k - 1]``.

    Example:
        >>> pb.special.laguerre_polynomial_l(pb.tensor([0.5, 2.0]), 3)
        Tensor([-0.14583333, -0.33333334], dtype=float32)
    """
    return LAGUERRE(x, n)


@shaped("x[*s], n[*s] -> [*s]")
def legendre_polynomial_p(x: Any, n: Any) -> Any:
    """Legendre's polynomial: ``(k + 1) p[k + 1] = (2 k + 1) x p[k] - k p[k - 1]``.

    Example:
        >>> pb.special.legendre_polynomial_p(pb.tensor([0.5, 2.0]), 3)
        Tensor([-0.4375, 17.    ], dtype=float32)
    """
    return LEGENDRE(x, n)
