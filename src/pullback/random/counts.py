"""Distributions of counts: one by one where there are few, by rejection where there are many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pullback.ir import dtype as D
from pullback.random.draws import (
    LIFT,
    Draws,
    finished,
    first_turn,
    parameters,
)
from pullback.special.gamma import gammaln
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.library import maths as M
from pullback.tensor.library import ops as O
from pullback.tensor.library.scalars import repeated
from pullback.tensor.shaped import shaped

FEW = 10.0  # mean below which counts are found one by one


def _counted(u: Tensor, start: Tensor, ratio: Callable[[Tensor], Tensor]) -> Tensor:
    """The first count whose probabilities add up to `u`, one by one from ``p(0) = start``."""

    def step(carry: Any) -> Any:
        k, p, total = carry
        open_ = total < u
        p = p * ratio(k + 1.0)
        more = M.logical_and(open_, p > 0.0)
        return O.where(more, k + 1.0, k), p, O.where(open_, O.where(more, total + p, 2.0), total)

    zero = start * 0.0
    counts: Tensor = repeated(lambda carry: O.any(carry[2] < u), step, (zero, start, start))[0]
    return counts


def _rejected(
    draws: Draws, mean: Tensor, spread: Tensor, a: Tensor, b: Tensor, accepted: Any
) -> Tensor:
    """Counts by transformed rejection: ``floor((2 a / s + b) u + mean)``, ``s = 1 / 2 - |u|``.

    Source: Hörmann 1993, The generation of binomial random variates; The transformed rejection
    method for generating Poisson random variables.
    """

    def trial(carry: Any) -> Any:
        kept, done, turn = carry
        u, v = draws.uniform(turn * 2) - 0.5, draws.uniform(turn * 2 + 1)
        s = 0.5 - M.abs(u)
        inside = s > 0.0
        s = O.where(inside, s, 0.5)
        k = M.floor((a * 2.0 / s + b) * u + mean)
        good = M.logical_and(inside, accepted(k, s, v))
        new = M.logical_and(good, M.logical_not(done))
        return O.where(new, k, kept), M.logical_or(done, good), turn + 1

    start = (mean * 0.0, O.astype(spread <= 0.0, D.bool_), first_turn())
    counts: Tensor = repeated(lambda c: O.any(M.logical_not(c[1])), trial, start)[0]
    return counts


@shaped("rate[*shape?] -> [*shape]", where="rate >= 0")
def poisson(
    rate: Any,
    shape: Any = None,
    *,
    dtype: Any = "int64",
    key: Tensor | None = None,
    device: Any = None,
) -> Tensor:
    """How many events happen at a rate: ``p(k) = rate^k exp(-rate) / k!``


    Example:
        >>> pb.random.poisson(3.0, (4,)).shape
        (4,)
    """
    draws, kind, (mean,) = parameters(shape, key, dtype, device, rate)
    mean = O.stop_gradient(mean)
    few = mean < FEW
    low = O.where(few, mean, 1.0)
    start = M.exp(-low)
    small = _counted(draws.uniform(LIFT), start, lambda k: low / k)
    high = O.where(few, FEW, mean)
    b = M.sqrt(high) * 2.53 + 0.931
    a = b * 0.02483 - 0.059
    squeeze = 0.9277 - 3.6224 / (b - 2.0)
    log_alpha = M.log(1.1239 + 1.1328 / (b - 3.4))

    def accepted(k: Tensor, s: Tensor, v: Tensor) -> Tensor:
        quick = M.logical_and(s >= 0.07, v <= squeeze)
        known = O.where(k >= 0.0, k, 0.0)
        odds = known * M.log(high) - high - gammaln(known + 1.0)
        near = M.log(v) + log_alpha - M.log(a / (s * s) + b) <= odds
        slow = M.logical_and(k >= 0.0, near)
        good: Tensor = M.logical_or(M.logical_and(quick, k >= 0.0), slow)
        return good

    large = _rejected(draws, high + 0.43, O.where(few, 0.0, 1.0), a, b, accepted)
    return finished(O.where(few, small, large), kind)


@shaped("n[*shape?], p[*shape?] -> [*shape]", where="n >= 0, n % 1 == 0, 0 <= p <= 1")
def binomial(
    n: Any,
    p: Any,
    shape: Any = None,
    *,
    dtype: Any = "int64",
    key: Tensor | None = None,
    device: Any = None,
) -> Tensor:
    """How many of n trials succeed: ``p(k) = C(n, k) p^k (1 - p)^(n - k)``


    Example:
        >>> pb.random.binomial(10, 0.5, (4,)).shape
        (4,)
    """
    draws, kind, (count, chance) = parameters(shape, key, dtype, device, n, p)
    count, chance = O.stop_gradient(count), O.stop_gradient(chance)
    turned = chance > 0.5
    rare = O.where(turned, 1.0 - chance, chance)
    few = count * rare < FEW
    m = O.where(few, count, 1.0)
    low = O.where(few, rare, 0.1)
    odds = low / (1.0 - low)
    small = _counted(
        draws.uniform(LIFT), M.exp(m * M.log1p(-low)), lambda k: odds * (m - k + 1.0) / k
    )
    large = _many(draws, O.where(few, 40.0, count), O.where(few, 0.5, rare), few)
    successes = O.where(few, small, large)
    return finished(O.where(turned, count - successes, successes), kind)


def _many(draws: Draws, n: Tensor, p: Tensor, few: Tensor) -> Tensor:
    """Binomial numbers of a mean of 10 or more."""
    spread = M.sqrt(n * p * (1.0 - p))
    b = spread * 2.53 + 1.15
    a = b * 0.0248 - 0.0873 + p * 0.01
    squeeze = 0.92 - 4.2 / b
    alpha = (2.83 + 5.1 / b) * spread
    top = M.floor((n + 1.0) * p)
    here = gammaln(top + 1.0) + gammaln(n - top + 1.0)
    log_odds = M.log(p / (1.0 - p))

    def accepted(k: Tensor, s: Tensor, v: Tensor) -> Tensor:
        inside = M.logical_and(k >= 0.0, k <= n)
        quick = M.logical_and(s >= 0.07, v <= squeeze)
        known = O.where(inside, k, top)
        odds = here - gammaln(known + 1.0) - gammaln(n - known + 1.0) + (known - top) * log_odds
        near = M.log(v * alpha / (a / (s * s) + b)) <= odds
        good: Tensor = M.logical_and(inside, M.logical_or(quick, near))
        return good

    return _rejected(draws, n * p + 0.5, O.where(few, 0.0, 1.0), a, b, accepted)


@shaped("p[*shape?] -> [*shape]", where="0 <= p <= 1")
def geometric(
    p: Any,
    shape: Any = None,
    *,
    dtype: Any = "int64",
    key: Tensor | None = None,
    device: Any = None,
) -> Tensor:
    """How many trials until the first success, from 1 on: ``1 + floor(log u / log(1 - p))``.


    Example:
        >>> pb.random.geometric(0.5, (4,)).shape
        (4,)
    """
    draws, kind, (chance,) = parameters(shape, key, dtype, device, p)
    count = M.floor(M.log(draws.uniform()) / M.log1p(-chance)) + 1.0
    sure = O.where(chance >= 1.0, 1.0, count)
    return finished(O.stop_gradient(sure), kind)
