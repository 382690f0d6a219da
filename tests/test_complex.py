"""Complex tensors as pairs: values as NumPy's, gradients by differences in both directions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.errors import DTypeError

Array = np.ndarray[Any, Any]
Z = np.array([[1.5 - 0.5j, -0.25 + 2j, 0.5j], [0.75, -1 - 1j, 0.3 + 0.1j]])
W = np.array([[0.5 + 1j, -1j, 2.0], [1 - 2j, 0.25 + 0.5j, -0.5 + 0.1j]])
CASES: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda z, w: z + w * 2.0 - 1.5 + (1 + 2j),
    "reversed": lambda z, w: (2.0 - z) * (1j - w) + 3 * z + 1 / (w * w + 4.0),
    "product": lambda z, w: z * w * (2 - 1j),
    "quotient": lambda z, w: z / (w + (3 + 1j)) / 2.0,
    "conjugate": lambda z, w: z * w.conj() - (-z),
    "matmul": lambda z, w: z @ w.T,
    "parts": lambda z, w: (z[0] * w[1]).sum() + z.real[1, 2] * w.imag[0, 1],
}


def exponential(x: Any) -> Any:
    return x.exp() if isinstance(x, pb.Complex) else np.exp(x)


CASES["exp"] = lambda z, w: exponential(z * w)


@pytest.mark.parametrize("name", CASES)
def test_values(name: str) -> None:
    found = CASES[name](pb.Complex.of(Z), pb.Complex.of(W))
    np.testing.assert_allclose(found.numpy(), CASES[name](Z, W), rtol=1e-12)


def loss(name: str, z: Any, w: Any) -> Any:
    """A real number of complex ones, not holomorphic."""
    found = CASES[name](z, w)
    parts = abs(found) + found.real * 0.5
    return pb.sum(parts) if isinstance(found, pb.Complex) else np.sum(parts)


@pytest.mark.parametrize("name", CASES)
def test_gradients_point_uphill(name: str) -> None:
    """``df/dx + i df/dy``, in a compiled function of complex arguments."""
    derivative = pb.jit(pb.grad(lambda z, w: loss(name, z, w), argnums=(0, 1)))
    found = derivative(pb.Complex.of(Z), pb.Complex.of(W))
    step = 1e-6
    for n, gradient in enumerate(found):
        assert isinstance(gradient, pb.Complex)
        wanted = np.zeros(Z.shape, complex)
        for place in np.ndindex(*Z.shape):
            for unit in (1, 1j):
                ends = []
                for sign in (step, -step):
                    given = [Z.copy(), W.copy()]
                    given[n][place] += sign * unit
                    ends.append(loss(name, *given))
                wanted[place] += unit * (ends[0] - ends[1]) / (2 * step)
        np.testing.assert_allclose(gradient.numpy(), wanted, rtol=1e-6, atol=1e-7)


def test_gradient_by_a_complex_tensor() -> None:
    z = pb.Complex.of(Z.astype(np.complex64))
    gradient = pb.grad(pb.sum(abs(z) * abs(z)), z)
    assert gradient.numpy().dtype == np.complex64
    np.testing.assert_allclose(gradient.numpy(), 2 * Z, rtol=1e-6)


def test_absolute_value_at_zero() -> None:
    z = pb.Complex.of(np.array([0j, 3 - 4j]))
    np.testing.assert_allclose(pb.grad(pb.sum(abs(z)), z).numpy(), [0, 0.6 - 0.8j])
    np.testing.assert_allclose(abs(z).numpy(), [0, 5])


def test_real_tensors_meet_complex_ones() -> None:
    x = pb.tensor(Z.real.copy())
    z = pb.Complex.of(Z)
    for found, wanted in ((x * z, Z.real * Z), (z - x, Z - Z.real), (pb.Complex.of(x), Z.real)):
        np.testing.assert_allclose(found.numpy(), wanted)
    with pytest.raises(DTypeError, match="int32"):
        pb.Complex.of(pb.tensor(np.arange(3, dtype=np.int32)))


@pytest.mark.torch
@pytest.mark.parametrize("name", ["product", "quotient", "conjugate", "matmul"])
def test_gradients_are_torch_s(name: str) -> None:
    torch = pytest.importorskip("torch")
    z = torch.tensor(Z, requires_grad=True)
    found = CASES[name](z, torch.tensor(W))
    (found.abs() + found.real * 0.5).sum().backward()
    mine = pb.grad(lambda z, w: loss(name, z, w))(pb.Complex.of(Z), pb.Complex.of(W))
    np.testing.assert_allclose(mine.numpy(), z.grad.numpy(), rtol=1e-10)
