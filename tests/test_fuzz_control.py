"""A share of `scripts/fuzz.py --control`: nested control forms against their unrolled steps."""

from __future__ import annotations

import numpy as np
import pytest

import dual_numbers as N
from random_control import SAMPLES, check_control, program

PROGRAMS = 8  # the gate runs more by the script


@pytest.mark.sampled(4)
@pytest.mark.parametrize("part", range(4))
def test_random_control_forms(part: int) -> None:
    compared = ["compared" in check_control(seed) for seed in range(part, PROGRAMS, 4)]
    assert any(compared)


def test_the_generator_makes_all_there_is() -> None:
    """Every kind of form, order of derivative, type, samples and symbolic extents."""
    found = [program(seed) for seed in range(300)]
    kinds = {line.kind for p in found for line in p.block.lines if hasattr(line, "kind")}
    assert kinds == {
        "loop", "sweep", "scan", "cond", "until", "checkpoint", "vmap", "grad",
    }  # fmt: skip
    assert len({p.order for p in found}) == 6
    assert len({p.kind for p in found}) == 4
    assert {p.samples for p in found} == {p.symbolic for p in found} == {True, False}


def test_dual_numbers_are_derivatives() -> None:
    """Against differences, in first and second order."""
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=SAMPLES), rng.normal(size=SAMPLES)

    def f(x: object) -> object:
        y = N.mul(N.sin(x), N.add(N.tanh(N.mul(x, w)), N.sigmoid(x)))
        picked = N.where(N.plain(x) < 0.1, y, N.mul(y, x))
        return N.linear(np.sum, N.add(picked, N.stack([N.linear(lambda a: a[0], y)] * SAMPLES)))

    def slope(x: object) -> object:
        return N.directional(f, [x], [w], 2)

    def difference(g: object, x: np.ndarray) -> float:
        return float((N.plain(g(x + 1e-6 * w)) - N.plain(g(x - 1e-6 * w))) / 2e-6)

    assert np.isclose(difference(f, x), slope(x), rtol=1e-6)
    assert np.isclose(difference(slope, x), N.directional(slope, [x], [w], 1), rtol=1e-6)
    assert np.isclose(np.dot(N.plain(N.gradients(f, [x], 1)[0]), w), slope(x))
