"""A reaction-diffusion stencil fitted by SciPy to what was seen of it.

    du/dt = D (u_xx + u_yy) + r u (1 - u)        Fisher; Kolmogorov, Petrovsky, Piskunov

300 steps of an explicit scheme on a torus are one compiled program, and so is the gradient by D, r
and the place of the first bump: its backward runs the steps in reverse. Float64 throughout, NumPy
in and NumPy out. `python examples/scipy_fisher_kpp.py` prints the fit (it needs SciPy).
"""

from __future__ import annotations

from typing import Any

import numpy as np

import pullback as pb

SIDE, STEPS = 48, 300
DT = 0.1  # time of a step; cells are 1 wide
NAMES = ("D", "r", "x", "y")
TRUTH = np.array([0.8, 0.35, 15.0, 20.0])  # cells^2 / time, 1 / time, cells, cells
START = np.array([0.5, 0.25, 18.0, 17.0])
BOUNDS = [(0.0, 2.0), (0.0, 1.0), (0.0, SIDE), (0.0, SIDE)]  # D above 1 / (4 DT) is unstable
NOISE = 0.01


def step(u: Any, p: Any) -> Any:
    """One step of the scheme: the stencil as it stands in a textbook."""

    def cell(i: Any, j: Any) -> Any:
        up, down = u[(i - 1) % SIDE, j], u[(i + 1) % SIDE, j]
        left, right = u[i, (j - 1) % SIDE], u[i, (j + 1) % SIDE]
        spread = up + down + left + right - 4.0 * u[i, j]
        return u[i, j] + DT * (p[0] * spread + p[1] * u[i, j] * (1.0 - u[i, j]))

    return pb.compute((SIDE, SIDE), cell)


def density(p: Any) -> Any:
    """``u[i, j]`` after all steps."""

    def bump(i: Any, j: Any) -> Any:
        return 0.5 * pb.exp(-((i - p[2]) ** 2 + (j - p[3]) ** 2) / 18.0)

    return pb.loop(STEPS, lambda _, u: step(u, p), pb.compute((SIDE, SIDE), bump))


def misfit(p: Any, seen: Any) -> Any:
    """Half the sum of squared residuals."""
    return 0.5 * pb.sum((density(p) - seen) ** 2)


def observed(seed: int = 0) -> np.ndarray[Any, Any]:
    """What is seen: the density under the true parameters, and noise."""
    clean = pb.jit(density)(TRUTH).numpy()
    return clean + np.random.default_rng(seed).normal(0.0, NOISE, clean.shape)


def main() -> Any:
    """Fit, and say how sure the fit is. The result of `scipy.optimize.minimize`."""
    from scipy.optimize import minimize

    seen = observed()
    fun = pb.jit(pb.value_and_grad(misfit))
    found = minimize(fun, START, args=(seen,), jac=True, method="L-BFGS-B", bounds=BOUNDS)
    print(f"{found.nfev} gradients, misfit {found.fun:.4f}, compiled {fun.traces} time")
    hessp = pb.jit(pb.hvp(misfit))
    hessian = np.stack([hessp(found.x, row, seen) for row in np.eye(4)])
    sigma = NOISE * np.sqrt(np.diag(np.linalg.inv(hessian)))
    for row in zip(NAMES, TRUTH, found.x, sigma, strict=True):
        print("{} = {:.4f}: found {:.4f} +- {:.4f}".format(*row))
    return found


if __name__ == "__main__":
    main()
