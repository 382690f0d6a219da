"""The other dialect's spelling gets a "did you mean"."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import wraps
from inspect import signature
from types import MappingProxyType
from typing import ParamSpec, TypeVar

from pullback.errors import DialectError

P = ParamSpec("P")
R = TypeVar("R")

NOWHERE: Mapping[str, str] = MappingProxyType({})
KEYWORDS = {"dim": "axis", "dims": "axis", "keepdim": "keepdims", "unbiased": "correction"}
KEYWORDS |= {"axis": "dim", "keepdims": "keepdim"}
NAMES = {
    "cat": "concat",
    "concatenate": "concat",
    "permute": "permute_dims",
    "view": "reshape",
    "unsqueeze": "expand_dims",
    "transpose": "permute_dims",
    "mul": "multiply",
    "sub": "subtract",
    "div": "divide",
    "true_divide": "divide",
    "neg": "negative",
    "mod": "remainder",
    "power": "pow",
    "absolute": "abs",
    "clamp": "clip",
    "eq": "equal",
    "ne": "not_equal",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "gather": "take_along_axis",
    "index_select": "take",
    "expand": "broadcast_to",
    "cumsum": "cumulative_sum",
    "cumprod": "cumulative_prod",
    "cummax": "cumulative_max",
    "cummin": "cumulative_min",
    "logcumsumexp": "cumulative_logsumexp",
    "mm": "matmul",
    "bmm": "matmul",
    "dot": "matmul",
    "to": "astype",
    "type": "astype",
    "float": "astype",
    "double": "astype",
    "long": "astype",
    "from_numpy": "asarray",
    "as_tensor": "asarray",
    "array": "tensor",
    "rand": "random.uniform",
    "randn": "random.normal",
    "randint": "random.integers",
    "randperm": "random.permutation",
    "manual_seed": "random.manual_seed",
    "cpu": "to_device",
    "clone": "copy",
    "repeat_interleave": "repeat",
    "masked_fill": "where",
    "no_grad": "stop_gradient",
    "invert": "bitwise_invert",
    "bitwise_not": "bitwise_invert",
    "negate": "negative",
    "movedim": "moveaxis",
    "lgamma": "special.gammaln",
    "digamma": "special.digamma",
    "polygamma": "special.polygamma",
    "erfc": "special.erfc",
    "erfinv": "special.erfinv",
    "xlogy": "special.xlogy",
    "logit": "special.logit",
    "sinc": "special.sinc",
    "i0": "special.i0",
    "igamma": "special.gammainc",
    "bernoulli": "random.bernoulli",
    "multinomial": "random.multinomial",
    "poisson": "random.poisson",
    "array_split": "tensor_split",
    "trapz": "trapezoid",
    "nonzero": "array_api.nonzero",
    "argwhere": "array_api.nonzero",
    "flatnonzero": "array_api.nonzero",
    "unique": "array_api.unique_values",
    "real": "array_api.real",
    "imag": "array_api.imag",
    "conj": "array_api.conj",
    "identity": "eye",
    "inverse": "linalg.inv",
    "logdet": "linalg.slogdet",
    "lognormal": "random.log_normal",
    "degrees": "rad2deg",
    "radians": "deg2rad",
    "rint": "round",
    "around": "round",
    "fix": "trunc",
    "fabs": "abs",
    "cbrt": "special.cbrt",
    "jacfwd": "jacobian",
    "jacrev": "jacobian",
    "remat": "checkpoint",
    "grad_and_value": "value_and_grad",
    "put_along_axis": "scatter",
    "left_shift": "bitwise_left_shift",
    "right_shift": "bitwise_right_shift",
    "indices": "meshgrid",
    "softmax_cross_entropy": "nn.functional.cross_entropy",
    "one_hot": "nn.functional.one_hot",
    **{f"arc{name}": f"a{name}" for name in ("cos", "cosh", "sin", "sinh", "tan", "tan2", "tanh")},
    "ndimension": "ndim",
}


def suggestion(name: str, known: Iterable[str]) -> str | None:
    """What `name` probably means."""
    known = list(known)
    if name in NAMES:
        return NAMES[name]
    close = difflib.get_close_matches(name, known, 1, 0.75)
    return close[0] if close else None


def shown(names: Iterable[str]) -> Callable[[], list[str]]:
    """A module's `__dir__`: its public names alone."""
    listed = sorted(names)
    return lambda: list(listed)


def public(kind: type, internal: Collection[str]) -> list[str]:
    """What `dir` shows of an object: Python's own names, and those that users are told about."""
    names = (n for n in dir(kind) if n[0] != "_" or n[:2] == "__")
    return sorted(n for n in names if n not in internal)


def unknown(
    owner: str, name: str, known: Iterable[str], elsewhere: Mapping[str, str] = NOWHERE
) -> AttributeError:
    """The error for an attribute that does not exist; `elsewhere`: where other rooms have it."""
    # names of protocols are asked for in vain by NumPy, for every array: no time is spent on them
    meant = None if name.startswith("__") else elsewhere.get(name) or suggestion(name, known)
    if meant is None:
        return AttributeError(f"{owner} has no attribute {name!r}")
    return DialectError(f"{owner} has no {name!r}: did you mean {meant!r}?", code="E109")


def spelled(function: Callable[P, R]) -> Callable[P, R]:
    """Refuse keywords of the other dialect. ``sum(x, dim=0) -> did you mean axis?``"""
    known = signature(function).parameters

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        refuse_keywords(function.__name__, kwargs, known)
        return function(*args, **kwargs)

    return call


def refuse_keywords(owner: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raises: DialectError for a keyword of the other dialect."""
    for name in given:
        meant = KEYWORDS.get(name)
        if meant in known and name not in known:
            raise DialectError(
                f"{owner} has no {name!r}: did you mean {meant!r}?",
                help="pb and Tensor spell as the array API, nn and nn.functional as PyTorch",
            )
