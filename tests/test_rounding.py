"""Every operation is rounded by itself: fused equals NumPy's one array at a time, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb


def chain(x: Any, y: Any, z: Any) -> Any:
    """Products that feed sums, and one that stands on both sides of a maximum."""
    a = x * y + z
    b = a * a - x * z
    return (b / (y * y + 0.5) + a * 3.0) * z - b


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("count", [1, 7, 1003])
def test_fused_arithmetic_has_the_bits_of_numpy(dtype: type, count: int) -> None:
    rng = np.random.default_rng(count)
    x, y, z = (rng.standard_normal(count).astype(dtype) for _ in range(3))
    found = pb.jit(chain)(x, y, z).numpy()
    assert found.tobytes() == chain(x, y, z).astype(dtype).tobytes()


def test_a_winner_is_one_of_its_terms() -> None:
    """The maximum of computed terms, in a kernel of its own, compared with them in another."""
    rng = np.random.default_rng(3)
    x, y, z = (rng.standard_normal((65, 33)).astype(np.float32) for _ in range(3))

    def loss(x: Any, y: Any, z: Any) -> Any:
        return pb.sum(pb.max(x * y + z, axis=1))

    found = pb.jit(pb.grad(loss))(x, y, z)
    winner = (x * y + z).argmax(1)
    wanted = np.zeros_like(x)
    np.put_along_axis(wanted, winner[:, None], np.take_along_axis(y, winner[:, None], 1), 1)
    assert np.array_equal(found, wanted)
