"""Random tensors: keys and states, uniform and normal numbers, and other distributions.

The same key, or the same seed and number of draws, gives the same values on every machine.
"""

from pullback.random.samplers import (
    beta,
    binomial,
    categorical,
    cauchy,
    chisquare,
    choice,
    dirichlet,
    exponential,
    gamma,
    geometric,
    gumbel,
    laplace,
    log_normal,
    logistic,
    multinomial,
    poisson,
    student_t,
    truncated_normal,
    weibull,
)
from pullback.tensor.random import (
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
    "laplace", "log_normal", "logistic", "manual_seed", "multinomial", "normal", "permutation",
    "poisson", "set_state", "split", "student_t", "truncated_normal", "uniform", "weibull",
]  # fmt: skip


def __dir__() -> list[str]:
    return __all__
