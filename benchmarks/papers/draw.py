"""Random numbers of an operation: the same ones every time."""

import numpy as np


def rng() -> np.random.Generator:
    return np.random.default_rng(0)
