"""Random tensors: keys and states, uniform and normal numbers, and other distributions.

The same key, or the same seed and number of draws, gives the same values on every machine.
"""

from pullback.random.choices import categorical, choice, multinomial
from pullback.random.counts import binomial, geometric, poisson
from pullback.random.gammas import beta, chisquare, dirichlet, gamma, student_t
from pullback.random.smooth import (
    cauchy,
    exponential,
    gumbel,
    laplace,
    log_normal,
    logistic,
    multivariate_normal,
    rademacher,
    truncated_normal,
    weibull,
)
from pullback.tensor.face.dialect import unknown as _unknown
from pullback.tensor.library.random import (
    bernoulli,
    fold_in,
    get_state,
    integers,
    key,
    manual_seed,
    normal,
    permutation,
    set_state,
    split,
    uniform,
)

__all__ = [
    "bernoulli", "beta", "binomial", "categorical", "cauchy", "chisquare", "choice", "dirichlet",
    "exponential", "fold_in", "gamma", "geometric", "get_state", "gumbel", "integers", "key",
    "laplace", "log_normal", "logistic", "manual_seed", "multinomial", "multivariate_normal",
    "normal", "permutation", "poisson", "rademacher", "set_state", "split", "student_t",
    "truncated_normal", "uniform", "weibull",
]  # fmt: skip


def __getattr__(name: str) -> object:
    raise _unknown("pullback.random", name, __all__)


def __dir__() -> list[str]:
    return __all__
