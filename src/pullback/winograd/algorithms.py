"""The matrices of minimal filtering: tiles of m outputs of three taps, in m + 2 products.

    y[i] = sum[p] a[i, p] (sum[k] g[p, k] w[k]) (sum[j] b[p, j] x[j])    i < m, k < 3; p, j < m + 2

They are those of polynomials through the points 0, 1, -1 (2, -2) and infinity. In two axes each
matrix is applied along both.

Source: Winograd, Arithmetic Complexity of Computations, 1980; Lavin, Gray, Fast Algorithms for
Convolutional Neural Networks, 2016.
"""

from __future__ import annotations

from fractions import Fraction

from pullback.config import frozen

TAPS = 3
Matrix = tuple[tuple[Fraction, ...], ...]


@frozen
class Algorithm:
    """One way: its name, how many outputs a tile has along an axis, its three matrices."""

    name: str
    tile: int
    outputs: Matrix  # a[i, p]
    weights: Matrix  # g[p, k]
    inputs: Matrix  # b[p, j]

    @property
    def points(self) -> int:
        """Products of a tile along an axis: ``m + 2``."""
        return self.tile + TAPS - 1


def _matrix(*rows: str) -> Matrix:
    return tuple(tuple(map(Fraction, row.split())) for row in rows)


WINOGRAD2 = Algorithm(
    "winograd2",
    2,
    _matrix("1 1 1 0", "0 1 -1 -1"),
    _matrix("1 0 0", "1/2 1/2 1/2", "1/2 -1/2 1/2", "0 0 1"),
    _matrix("1 0 -1 0", "0 1 1 0", "0 -1 1 0", "0 1 0 -1"),
)
WINOGRAD4 = Algorithm(
    "winograd4",
    4,
    _matrix("1 1 1 1 1 0", "0 1 -1 2 -2 0", "0 1 1 4 4 0", "0 1 -1 8 -8 1"),
    _matrix(
        "1/4 0 0",
        "-1/6 -1/6 -1/6",
        "-1/6 1/6 -1/6",
        "1/24 1/12 1/6",
        "1/24 -1/12 1/6",
        "0 0 1",
    ),
    _matrix(
        "4 0 -5 0 1 0",
        "0 -4 -4 1 1 0",
        "0 4 -4 -1 1 0",
        "0 -2 -1 2 1 0",
        "0 2 -1 -2 1 0",
        "0 4 0 -5 0 1",
    ),
)
ALGORITHMS = {a.name: a for a in (WINOGRAD2, WINOGRAD4)}
