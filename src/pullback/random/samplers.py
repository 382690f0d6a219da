"""Distributions beyond the uniform and the normal one, from the same counters.

Everything is computed in float64 and rounded once. Where a draw is a smooth function of its
parameters, gradients reach them (reparameterisation); a rejection passes none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from pullback.errors import DTypeError, ShapeError
from pullback.ir import dtype as D
from pullback.ir import expr as E
from pullback.ir.dtype import float64, uint32
from pullback.ir.expr import Cast, Expr
from pullback.ir.graph import Keep, Value, read
from pullback.special.gamma import gammaln
from pullback.special.normal import ndtr, ndtri
from pullback.stats.places import searchsorted
from pullback.tensor import elementwise as W
from pullback.tensor import maths as M
from pullback.tensor import ops as O
from pullback.tensor import random as R
from pullback.tensor import views as V
from pullback.tensor.control import while_loop
from pullback.tensor.scalars import value_tensor
from pullback.tensor.sorting import topk
from pullback.tensor.tensor import Tensor, check_device, operand, shape_of
from pullback.tensor.threefry import threefry, word

FEW = 10.0  # mean below which counts are found one by one


class Draws:
    """A stream of uniform numbers for each element of a shape."""

    def __init__(self, shape: Sequence[Any], key: Tensor | None) -> None:
        source = R.Source(key)
        self.shape = tuple(shape)
        a, b = threefry(R._key_words(source.key), (source.draw, word(R.WORD - 2)))
        body = E.If(E.Equal(E.Axis(0, 2), E.index(0)), a, b)
        self.key: Value = W.make("key", (2,), body, stop=True, keep=Keep.ALWAYS)

    def uniform(self, number: Tensor | int = 0) -> Tensor:
        """Number `number` of the stream, in (0, 1]: 53 random bits."""
        place = V.linear(list(zip(W.axes_of(self.shape), self.shape, strict=True)))
        turn: Expr = word(number) if isinstance(number, int) else Cast(read(number.value), uint32)
        words = threefry(R._key_words(self.key), (Cast(place, uint32), turn))
        unit = R._unit(*words, float64)
        body = E.subtract(E.const(1.0, float64), unit)
        return Tensor(W.make("uniform", self.shape, body, stop=True))

    def normal(self, number: Tensor | int = 0) -> Tensor:
        """A normal number of two uniform ones: ``sqrt(-2 log u) cos(2 pi v)``."""
        first, second = self.uniform(number * 2), self.uniform(number * 2 + 1)
        size = M.sqrt(M.log(first) * -2.0)
        return O.stop_gradient(size * M.cos(second * (2 * math.pi)))


def _parameters(
    shape: Any, key: Tensor | None, dtype: Any, device: Any, *given: Any
) -> tuple[Draws, D.DType, list[Any]]:
    """The stream, the type of the result, and parameters in float64 of the shape of the draw.

    Raises: ShapeError where a parameter does not broadcast to `shape`, DTypeError for no float.
    """
    check_device(device)
    kind = D.dtype(dtype)
    if not kind.is_float and not kind.is_integer:
        raise DTypeError(f"random numbers of {kind}", code="E141")
    operands = [operand(x) for x in given]
    common = W.broadcast_shapes([W.operand_shape(o) for o in operands])
    extents = common if shape is None else shape_of(shape)
    if W.broadcast_shapes([common, extents]) != extents:
        raise ShapeError(
            f"parameters of shape {W.show(common)} do not broadcast to {W.show(extents)}",
            code="E110",
        )
    axes = W.axes_of(extents)
    spread = [
        Tensor(W.make("parameter", extents, W.lifted(o, float64, extents, axes))) for o in operands
    ]
    return Draws(extents, key), kind, spread


def _finished(x: Any, kind: D.DType) -> Tensor:
    found: Tensor = O.astype(x, kind)
    return found


def _positive(name: str, **limits: Any) -> None:
    """Raises: ShapeError for a Python number that is not positive."""
    for parameter, value in limits.items():
        if isinstance(value, W.Scalar) and not value > 0:
            raise ShapeError(f"{name}: {parameter} is {value}, not positive", code="E123")


def _chance(name: str, p: Any) -> None:
    if isinstance(p, W.Scalar) and not 0 <= p <= 1:
        raise ShapeError(f"{name}: p is {p}, not in 0..1", code="E123")


# --- smooth functions of one uniform number -------------------------------------------------------


def exponential(
    rate: Any = 1.0,
    shape: Any = None,
    *,
    dtype: Any = "float32",
    key: Tensor | None = None,
    device: Any = None,
) -> Tensor:
    """``-log(u) / rate``, of mean ``1 / rate``; a gradient reaches the rate.

    Raises: ShapeError for a rate that is not positive or does not broadcast.
    Example: ``pb.random.exponential(2.0, (3,))``
    """
    _positive("exponential", rate=rate)
    draws, kind, (scale,) = _parameters(shape, key, dtype, device, rate)
    return _finished(-M.log(draws.uniform()) / scale, kind)


def laplace(
    loc: Any = 0.0,
    scale: Any = 1.0,
    shape: Any = None,
    *,
    dtype: Any = "float32",
    key: Tensor | None = None,
    device: Any = None,
) -> Tensor:
    """``loc - scale sign(v) log(1 - 2 |v|)``, v even in -0.5..0.5; gradients reach both.

    Raises: ShapeError for a scale that is not positive, or shapes that do not broadcast.
    """
    _positive("laplace", scale=scale)
    draws, kind, (middle, wide) = _parameters(shape, key, dtype, device, loc, scale)
    size = -M.log(draws.uniform())
    sign = O.where(draws.uniform(1) > 0.5, 1.0, -1.0)
    return _finished(middle + wide * size * sign, kind)


def cauchy(
    loc: Any = 0.0,
    scale: Any = 1.0,
    shape: Any = None,
    *,
    dtype: Any = "float32",
    key: Tensor | None = None,
    device: Any = None,
) -> Tensor:
    """``loc + scale tan(pi (u - 1 / 2))``; gradients reach both.

    Raises: ShapeError for a scale that is not positive, or shapes that do not broadcast.
    """
    _positive("cauchy", scale=scale)
    draws, kind, (middle, wide) = _parameters(shape, key, dtype, device, loc, scale)
    turn = O.stop_gradient(M.tan((draws.uniform() - 0.5) * math.pi))
    return _finished(middle + wide * turn, kind)


def gumbel(
    loc: Any = 0.0,
    scale: Any = 1.0,
    shape: Any = None,
    *,
    dtype: Any = "float32",
    key: Tensor | None = None,
    device: Any = None,
) -> Tensor:
    """``loc - scale log(-log u)``; gradients reach both.

    Raises: ShapeError for a scale that is not positive, or shapes that do not broadcast.
    """
    _positive("gumbel", scale=scale)
    draws, kind, (middle, wide) = _parameters(shape, key, dtype, device, loc, scale)
    return _finished(middle - wide * M.log(_exponential(draws)), kind)


def _exponential(draws: Draws, number: int = 0) -> Tensor:
    """``-log u``, never 0."""
    found: Tensor = O.stop_gradient(M.maximum(-M.log(draws.uniform(number)), 2.0**-54))
    return found


def logistic(
    loc: Any = 0.0,
    scale: Any = 1.0,
    shape: Any = None,
    *,
    dtype: Any = "float32",
    key: Tensor | None = None,
    device: Any = None,
) -> Tensor:
    """``loc + scale log(u / (1 - u))``; gradients reach both.

    Raises: ShapeError for a scale that is not positive, or shapes that do not broadcast.
    """
    _positive("logistic", scale=scale)
    draws, kind, (middle, wide) = _parameters(shape, key, dtype, device, loc, scale)
    odds = M.log(_exponential(draws) / _exponential(draws, 1))
    return _finished(middle + wide * odds, kind)


def log_normal(
    mean: Any = 0.0,
    std: Any = 1.0,
    shape: Any = None,
    *,
    dtype: Any = "float32",
    key: Tensor | None = None,
    device: Any = None,
) -> Tensor:
    """``exp(mean + std z)``, z normal; gradients reach both.

    Raises: ShapeError for a deviation that is not positive, or shapes that do not broadcast.
    """
    _positive("log_normal", std=std)
    draws, kind, (middle, wide) = _parameters(shape, key, dtype, device, mean, std)
    return _finished(M.exp(middle + wide * draws.normal()), kind)


def weibull(
    scale: Any = 1.0,
    concentration: Any = 1.0,
    shape: Any = None,
    *,
    dtype: Any = "float32",
    key: Tensor | None = None,
    device: Any = None,
) -> Tensor:
    """``scale (-log u)^(1 / concentration)``; gradients reach both.

    Raises: ShapeError for parameters that are not positive or do not broadcast.
    """
    _positive("weibull", scale=scale, concentration=concentration)
    draws, kind, (wide, power) = _parameters(shape, key, dtype, device, scale, concentration)
    return _finished(wide * M.exp(M.log(_exponential(draws)) / power), kind)


def truncated_normal(
    mean: Any = 0.0,
    std: Any = 1.0,
    low: Any = -2.0,
    high: Any = 2.0,
    shape: Any = None,
    *,
    dtype: Any = "float32",
    key: Tensor | None = None,
    device: Any = None,
) -> Tensor:
    """A normal number within ``low .. high``, by inversion; gradients reach all four.

    ``mean + std ndtri(a + u (b - a))``, a and b the normal distribution at both ends.

    Raises: ShapeError for a deviation that is not positive, ends in the wrong order, or shapes.
    """
    _positive("truncated_normal", std=std)
    if isinstance(low, W.Scalar) and isinstance(high, W.Scalar) and not low < high:
        raise ShapeError(f"truncated_normal from {low} to {high}", code="E123")
    given = (mean, std, low, high)
    draws, kind, (middle, wide, below, above) = _parameters(shape, key, dtype, device, *given)
    left, right = ((edge - middle) / wide for edge in (below, above))
    turned = left > 0.0  # the upper tail is drawn as a lower one, where it has its digits
    a, b = ndtr(O.where(turned, -right, left)), ndtr(O.where(turned, -left, right))
    u = draws.uniform()
    unit = ndtri(a + u * (b - a))
    value = middle + wide * O.where(turned, -unit, unit)
    return _finished(O.clip(value, below, above), kind)


def geometric(
    p: Any,
    shape: Any = None,
    *,
    dtype: Any = "int64",
    key: Tensor | None = None,
    device: Any = None,
) -> Tensor:
    """How many trials until the first success, from 1 on: ``1 + floor(log u / log(1 - p))``.

    Raises: ShapeError for p outside of 0..1, or shapes that do not broadcast.
    """
    _chance("geometric", p)
    draws, kind, (chance,) = _parameters(shape, key, dtype, device, p)
    count = M.floor(M.log(draws.uniform()) / M.log1p(-chance)) + 1.0
    sure = O.where(chance >= 1.0, 1.0, count)
    return _finished(O.stop_gradient(sure), kind)


# --- gamma and what is made of it ----------------------------------------------------------------


def _log_gamma(draws: Draws, shape: Tensor, first: int = 0) -> Tensor:
    """The logarithm of a gamma number, by rejection; below 1 of one more, times ``u^(1 / a)``.

    Source: Marsaglia, Tsang 2000, A simple method for generating gamma variables.
    """
    shape = O.stop_gradient(shape)
    small = shape < 1.0
    d = O.where(small, shape + 1.0, shape) - 1 / 3
    c = 1.0 / M.sqrt(d * 9.0)

    def trial(carry: Any) -> Any:
        logs, done, turn = carry
        z = draws.normal(turn * 2 + first)
        u = draws.uniform(turn * 4 + first * 2 + 2)
        v = 1.0 + c * z
        good = v > 0.0
        log_v = M.log(O.where(good, v, 1.0)) * 3.0
        limit = z * z * 0.5 + d - d * M.exp(log_v) + d * log_v
        good = M.logical_and(good, M.log(u) < limit)
        new = M.logical_and(good, M.logical_not(done))
        found = O.where(new, M.log(d) + log_v, logs)
        return found, M.logical_or(done, good), turn + 1

    start = (M.log(d), O.astype(d < 0.0, D.bool_), _turn())
    logs = while_loop(lambda carry: O.any(M.logical_not(carry[1])), trial, start)[0]
    lift = M.log(draws.uniform(LIFT + first)) / shape
    found: Tensor = O.stop_gradient(O.where(small, logs + lift, logs))
    return found


LIFT = 1 << 30  # numbers of the stream beyond those of the trials


def _turn() -> Tensor:
    return Tensor(W.full((), 0, D.int64))


def gamma(
    concentration: Any,
    rate: Any = 1.0,
    shape: Any = None,
    *,
    dtype: Any = "float32",
    key: Tensor | None = None,
    device: Any = None,
) -> Tensor:
    """Gamma-distributed: density ``x^(a - 1) exp(-rate x)``; a gradient reaches the rate alone.

    Raises: ShapeError for parameters that are not positive or do not broadcast.
    """
    _positive("gamma", concentration=concentration, rate=rate)
    draws, kind, (a, scale) = _parameters(shape, key, dtype, device, concentration, rate)
    return _finished(M.exp(_log_gamma(draws, a)) / scale, kind)


def chisquare(
    df: Any,
    shape: Any = None,
    *,
    dtype: Any = "float32",
    key: Tensor | None = None,
    device: Any = None,
) -> Tensor:
    """The sum of `df` squared normal numbers: ``2 gamma(df / 2)``.

    Raises: ShapeError for a df that is not positive or does not broadcast.
    """
    _positive("chisquare", df=df)
    draws, kind, (count,) = _parameters(shape, key, dtype, device, df)
    return _finished(M.exp(_log_gamma(draws, count * 0.5)) * 2.0, kind)


def student_t(
    df: Any,
    shape: Any = None,
    *,
    dtype: Any = "float32",
    key: Tensor | None = None,
    device: Any = None,
) -> Tensor:
    """``z / sqrt(chisquare(df) / df)``, z normal.

    Raises: ShapeError for a df that is not positive or does not broadcast.
    """
    _positive("student_t", df=df)
    draws, kind, (count,) = _parameters(shape, key, dtype, device, df)
    half = O.stop_gradient(count * 0.5)
    size = M.exp((M.log(half) - _log_gamma(draws, half)) * 0.5)
    return _finished(draws.normal(LIFT + 7) * size, kind)


def beta(
    a: Any,
    b: Any,
    shape: Any = None,
    *,
    dtype: Any = "float32",
    key: Tensor | None = None,
    device: Any = None,
) -> Tensor:
    """``g(a) / (g(a) + g(b))`` of gamma numbers: density ``x^(a - 1) (1 - x)^(b - 1)``.

    Raises: ShapeError for parameters that are not positive or do not broadcast.
    """
    _positive("beta", a=a, b=b)
    given = [operand(x) for x in (a, b)]
    common = W.broadcast_shapes([W.operand_shape(o) for o in given])
    extents = common if shape is None else shape_of(shape)
    whole = [O.broadcast_to(O.astype(value_tensor(x), float64), extents) for x in (a, b)]
    draws, kind, (pair,) = _parameters(None, key, dtype, device, O.stack(whole))
    logs = _log_gamma(draws, pair)
    return _finished(M.sigmoid(logs[0] - logs[1]), kind)


def dirichlet(
    concentration: Any,
    shape: Any = (),
    *,
    dtype: Any = "float32",
    key: Tensor | None = None,
    device: Any = None,
) -> Tensor:
    """Gamma numbers divided by their sum along the last axis.

    Shapes: concentration[.., k] -> [*shape, .., k]
    Raises: ShapeError for a concentration without axes.
    """
    weights = value_tensor(concentration)
    if weights.ndim == 0:
        raise ShapeError("dirichlet of a number: a vector is wanted", code="E111")
    extents = (*shape_of(shape), *weights.shape)
    draws, kind, (a,) = _parameters(extents, key, dtype, device, weights)
    return _finished(O.softmax(_log_gamma(draws, a), axis=-1), kind)


# --- counts --------------------------------------------------------------------------------------


def _counted(u: Tensor, start: Tensor, ratio: Callable[[Tensor], Tensor]) -> Tensor:
    """The first count whose probabilities add up to `u`, one by one from ``p(0) = start``."""

    def step(carry: Any) -> Any:
        k, p, total = carry
        open_ = total < u
        p = p * ratio(k + 1.0)
        more = M.logical_and(open_, p > 0.0)
        return O.where(more, k + 1.0, k), p, O.where(open_, O.where(more, total + p, 2.0), total)

    zero = start * 0.0
    found: Tensor = while_loop(lambda carry: O.any(carry[2] < u), step, (zero, start, start))[0]
    return found


def _rejected(
    draws: Draws, mean: Tensor, spread: Tensor, a: Tensor, b: Tensor, accepted: Any
) -> Tensor:
    """Counts by transformed rejection: ``floor((2 a / s + b) u + mean)``, ``s = 1 / 2 - |u|``.

    Source: Hörmann 1993, The generation of binomial random variates; The transformed rejection
    method for generating Poisson random variables.
    """

    def trial(carry: Any) -> Any:
        found, done, turn = carry
        u, v = draws.uniform(turn * 2) - 0.5, draws.uniform(turn * 2 + 1)
        s = 0.5 - M.abs(u)
        inside = s > 0.0
        s = O.where(inside, s, 0.5)
        k = M.floor((a * 2.0 / s + b) * u + mean)
        good = M.logical_and(inside, accepted(k, s, v))
        new = M.logical_and(good, M.logical_not(done))
        return O.where(new, k, found), M.logical_or(done, good), turn + 1

    start = (mean * 0.0, O.astype(spread <= 0.0, D.bool_), _turn())
    found: Tensor = while_loop(lambda c: O.any(M.logical_not(c[1])), trial, start)[0]
    return found


def poisson(
    rate: Any,
    shape: Any = None,
    *,
    dtype: Any = "int64",
    key: Tensor | None = None,
    device: Any = None,
) -> Tensor:
    """How many events happen at a rate: ``p(k) = rate^k exp(-rate) / k!``

    Raises: ShapeError for a negative rate or shapes that do not broadcast.
    """
    if isinstance(rate, W.Scalar) and not rate >= 0:
        raise ShapeError(f"poisson: rate is {rate}, negative", code="E123")
    draws, kind, (mean,) = _parameters(shape, key, dtype, device, rate)
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
        found: Tensor = M.logical_or(M.logical_and(quick, k >= 0.0), slow)
        return found

    large = _rejected(draws, high + 0.43, O.where(few, 0.0, 1.0), a, b, accepted)
    return _finished(O.where(few, small, large), kind)


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

    Raises: ShapeError for p outside of 0..1, a negative n, or shapes that do not broadcast.
    """
    _chance("binomial", p)
    if isinstance(n, W.Scalar) and (n < 0 or n != int(n)):
        raise ShapeError(f"binomial: n is {n}, no count", code="E123")
    draws, kind, (count, chance) = _parameters(shape, key, dtype, device, n, p)
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
    return _finished(O.where(turned, count - successes, successes), kind)


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
        found: Tensor = M.logical_and(inside, M.logical_or(quick, near))
        return found

    return _rejected(draws, n * p + 0.5, O.where(few, 0.0, 1.0), a, b, accepted)


# --- choices -------------------------------------------------------------------------------------


def categorical(
    logits: Any,
    shape: Any = None,
    *,
    axis: int = -1,
    key: Tensor | None = None,
    device: Any = None,
) -> Tensor:
    """Places along an axis with probability ``softmax(logits)``: ``argmax(logits + gumbel)``.

    `shape` goes in front of that of the logits without the axis; int64.

    Raises: ShapeError for logits without axes.
    Example: ``pb.random.categorical(logits, (100,))``
    """
    check_device(device)
    given = value_tensor(logits)
    n = V.normal_axis(axis, given.ndim)
    extra = () if shape is None else shape_of(shape)
    noise = gumbel(shape=(*extra, *given.shape), dtype=float64, key=key)
    scores = noise + O.astype(O.stop_gradient(given), float64)
    found: Tensor = O.argmax(scores, axis=n + len(extra))
    return found


def multinomial(
    weights: Any,
    num_samples: int,
    replacement: bool = False,
    *,
    key: Tensor | None = None,
    device: Any = None,
) -> Tensor:
    """`num_samples` places of each row, with probability ``weights / sum(weights)``; int64.

    Without replacement the largest of ``log(weights) + gumbel``, in the order of drawing.

    Shapes: weights[.., n] -> [.., num_samples]
    Raises: ShapeError for more samples than places without replacement, or no axes.
    """
    check_device(device)
    given = O.astype(O.stop_gradient(value_tensor(weights)), float64)
    if given.ndim == 0:
        raise ShapeError("multinomial of a number: a vector is wanted", code="E111")
    count = V.whole(num_samples, "multinomial: num_samples", 1)
    size = given.shape[-1]
    if not replacement:
        if isinstance(size, int) and count > size:
            raise ShapeError(f"{count} of {size} places without replacement", code="E123")
        noise = gumbel(shape=given.shape, dtype=float64, key=key)
        return topk(M.log(given) + noise, count)[1]
    sums = O.cumulative_sum(given, axis=-1)
    u = Draws((*given.shape[:-1], count), key).uniform() * sums[..., -1:]
    places: Tensor = searchsorted(sums, u)
    return places


def choice(
    x: Any,
    shape: Any = (),
    *,
    replace: bool = True,
    p: Any = None,
    key: Tensor | None = None,
    device: Any = None,
) -> Tensor:
    """Elements of a vector, rows of a tensor, or numbers below x, drawn with probabilities `p`.

    Shapes: x[n, ..], p[n] -> [*shape, ..]
    Raises: ShapeError for more than there are without replacement.
    """
    extents = shape_of(shape)
    if any(not isinstance(e, int) for e in extents):
        raise ShapeError(f"choice of shape {W.show(extents)}: extents are numbers", code="E120")
    count = math.prod(e for e in extents if isinstance(e, int))
    number = isinstance(x, int)
    size = V.whole(x, "choice: x", 1) if number else value_tensor(x).shape[0]
    if not isinstance(size, int):
        raise ShapeError(f"choice of the symbolic axis {size}", code="E120")
    if p is not None:
        flat = multinomial(p, max(count, 1), replace, key=key, device=device)[:count]
    elif replace:
        flat = R.integers(0, size, (count,), key=key, device=device)
    else:
        if count > size:
            raise ShapeError(f"{count} of {size} without replacement", code="E123")
        flat = R.permutation(size, key=key, device=device)[:count]
    places = O.reshape(flat, extents)
    return places if number else O.take(value_tensor(x), places, axis=0)
