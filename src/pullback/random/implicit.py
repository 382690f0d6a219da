"""The derivative of a gamma number by its shape, where the probability below it stays the same.

``dg / da = -(dP(a, g) / da) / p(g)``, P the distribution function and p the density. It is unbiased
for the expectation of any smooth function of g, though g was drawn by rejection.

Source: Figurnov, Mohamed, Mnih 2018, Implicit reparameterization gradients.
"""

from __future__ import annotations

from collections.abc import Sequence

from pullback.errors import GradientError, Origin
from pullback.ir.graph import Definition, Rule, Value
from pullback.special.gamma import digamma
from pullback.special.incomplete import series
from pullback.tensor.face.tensor import Tensor
from pullback.tensor.library import maths as M
from pullback.tensor.library import ops as O
from pullback.tensor.record.held import computable
from pullback.tensor.record.trace import compiled, current, written_out
from pullback.tensor.run.program import jit
from pullback.tensor.values import elementwise as W

LARGE = 1000.0  # of the shape, from where Cornish and Fisher's expansion is exact to about 1e-9
STEPS = 3  # of Newton's method, from the normal number next to it


def _quantile(a: Tensor, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gamma number of a large shape that the normal one z stands for, its slopes by a and z.

    ``a + z sqrt(a) + (z^2 - 1) / 3 + (z^3 - 7 z) / (36 sqrt(a)) - (3 z^4 + 7 z^2 - 16) / (810 a)``

    Source: Cornish, Fisher 1938, Moments and cumulants in the specification of distributions.
    """
    root = M.sqrt(a)
    s = z * z
    cubic, quartic = z * (s - 7.0) / 36.0, ((s * 3.0 + 7.0) * s - 16.0) / 810.0
    quintic = z * ((s * 9.0 + 256.0) * s - 433.0) / 38880.0
    g = a + z * root + (s - 1.0) / 3.0 + cubic / root - quartic / a + quintic / (a * root)
    by_a = 1.0 + (z * 0.5 - (cubic * 0.5 - quartic / root + quintic * 1.5 / a) / a) / root
    by_z = (
        root + z * (2 / 3) + (s * 3.0 - 7.0) / (36.0 * root) - z * (s * 12.0 + 14.0) / (810.0 * a)
    )
    return g, by_a, by_z


def _large(a: Tensor, g: Tensor) -> Tensor:
    z = (g - a) / M.sqrt(a)
    for _ in range(STEPS):
        near, _, by_z = _quantile(a, z)
        z = z - (near - g) / by_z
    return _quantile(a, z)[1] / g


def _log_slope(a: Tensor, logs: Tensor) -> Tensor:
    """``d log g / da = -(dS / da + S (log g - digamma(a)))``, S the series of the lower tail."""
    far = a >= LARGE
    b, log = O.where(far, 1.0, a), O.where(far, 0.0, logs)
    total, by_a = series(b, M.exp(log))
    near = -(by_a + total / b + total * (log - digamma(b + 1.0)))
    large = O.where(far, a, LARGE)
    slope: Tensor = O.where(far, _large(large, O.where(far, M.exp(logs), LARGE)), near)
    return slope


_PROGRAM = jit(_log_slope)


def _once(slope: Tensor, args: Sequence[Value]) -> Tensor:
    """The slope, of which no derivative is asked: it would be 0 without a word."""
    known: Definition = W.copy(slope.value, "gamma_slope")
    origin = Origin.of_caller()

    def refuse(_: Sequence[Value]) -> Sequence[Value]:
        name = "the slope of a gamma number by its shape"
        raise GradientError(f"{name} has no derivative here", origin=origin, code="E355")

    known.rule = Rule("gamma_slope", (known,), tuple(args), refuse, refuse)
    return Tensor(known)


def reparameterised(logs: Tensor, a: Tensor) -> Tensor:
    """The logarithms of gamma numbers of shape `a`, with a derivative by it."""
    shape = a.value
    result = W.copy(logs.value, "log_gamma")

    def slope() -> Tensor:
        args = O.stop_gradient(a), O.stop_gradient(Tensor(result))
        known = current() is None and not written_out() and all(computable(t.value) for t in args)
        value: Tensor = compiled(_PROGRAM, *args) if known else _log_slope(*args)
        return _once(O.stop_gradient(value), (shape, result))

    def pull(heads: Sequence[Value]) -> Sequence[Value | None]:
        return (M.multiply(Tensor(heads[0]), slope()).value,)

    def push(tangents: Sequence[Value]) -> Sequence[Value]:
        return (M.multiply(slope(), Tensor(tangents[0])).value,)

    result.rule = Rule("log_gamma", (result,), (shape,), pull, push)
    return Tensor(result)
