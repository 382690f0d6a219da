"""Programs of a device beside the oracle."""

from __future__ import annotations

from typing import Any

import numpy as np

import pullback as pb
from pullback.config import Options


def both(options: Options, function: Any, *arguments: Any) -> tuple[list[Any], list[Any]]:
    """What a device and the oracle make of a function."""
    made = []
    for own in (options, Options(backend="reference", cache=None)):
        given = pb.jit(function, options=own)(*arguments)
        every = given if isinstance(given, list | tuple) else [given]
        made.append([value.numpy() for value in every])
    return made[0], made[1]


def same(options: Options, function: Any, *arguments: Any, error: float = 1e-5) -> None:
    for got, want in zip(*both(options, function, *arguments), strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=error, atol=error)
