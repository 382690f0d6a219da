"""A mixture of Gaussians fitted by SciPy: gradients and products with the Hessian.

    p(x) = sum[k] w[k] N(x; mean[k], (L[k]^T L[k])^-1),  L[k] = [[exp a, 0], [c, exp b]]

The parameters are one vector, as SciPy wants them; the mean of -log p(x) is one definition over it,
its gradient and its Hessian times a vector are compiled once. Float64, NumPy in and NumPy out.
`python examples/scipy_mixture.py` prints the fit (it needs SciPy).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import pullback as pb

PARTS = 3
MEANS = np.array([[-2.0, 0.0], [1.5, 2.0], [2.0, -2.0]])
WEIGHTS = np.array([0.5, 0.3, 0.2])
SPREAD = np.array([[[0.6, 0.2], [0.2, 1.0]], [[1.0, -0.3], [-0.3, 0.4]], [[0.5, 0.0], [0.0, 0.5]]])


def samples(count: int = 900, seed: int = 0) -> np.ndarray[Any, Any]:
    """Points drawn from the true mixture."""
    rng = np.random.default_rng(seed)
    parts = rng.choice(PARTS, count, p=WEIGHTS)
    return np.stack([rng.multivariate_normal(MEANS[k], SPREAD[k]) for k in parts])


def unpacked(theta: Any) -> tuple[Any, Any, Any]:
    """Logits of the weights (k), means (k, 2), and a, b, c of each factor (k, 3)."""
    means, factors = PARTS, 3 * PARTS
    return (
        theta[:means],
        theta[means:factors].reshape(PARTS, 2),
        theta[factors:].reshape(PARTS, 3),
    )


def loss(theta: Any, x: Any) -> Any:
    """``-mean[n] log sum[k] w[k] N(x[n]; k)``"""
    logits, means, factors = unpacked(theta)
    away = x[:, None, :] - means
    a, b, c = (factors[:, n] for n in range(3))
    first = pb.exp(a) * away[..., 0]
    second = c * away[..., 0] + pb.exp(b) * away[..., 1]
    log_p = a + b - 0.5 * (first**2 + second**2) - math.log(2 * math.pi)
    return -pb.mean(pb.logsumexp(pb.log_softmax(logits) + log_p, axis=1))


def start(x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Equal weights, round parts, means at points far from one another."""
    chosen = [x[0]]
    for _ in range(PARTS - 1):
        far = np.min([np.sum((x - c) ** 2, axis=1) for c in chosen], axis=0)
        chosen.append(x[np.argmax(far)])
    return np.concatenate([np.zeros(PARTS), np.ravel(chosen), np.zeros(3 * PARTS)])


def main() -> Any:
    """Fit by Newton's method with products. The result of `scipy.optimize.minimize`."""
    from scipy.optimize import minimize

    x = samples()
    fun, hessp = pb.jit(pb.value_and_grad(loss)), pb.jit(pb.hvp(loss))
    found = minimize(fun, start(x), args=(x,), jac=True, hessp=hessp, method="trust-ncg")
    print(f"{found.nit} steps of Newton, {found.nhev} products, -log p {found.fun:.5f}")
    logits, means, _ = unpacked(found.x)
    weights = np.exp(logits) / np.exp(logits).sum()
    for k in np.argsort(means[:, 0]):
        print(f"weight {weights[k]:.3f} at ({means[k, 0]:+.3f}, {means[k, 1]:+.3f})")
    return found


if __name__ == "__main__":
    main()
