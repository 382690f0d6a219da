"""Derivatives of functions of one and two numbers by PyTorch and JAX, where formulas change.

`python scripts/peer_points.py`: the functions and points of `tests/test_slopes_at_points.py`, each
peer's own values and derivatives in float64. Truth: central differences at two steps; a point where
they disagree, or the function turns, is not compared.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from test_slopes_at_points import BINARY, ONE, STEPS, TWO, UNARY

Array = np.ndarray[Any, Any]
Function = Callable[..., Any]
JAX_NAMES = {
    "acos": "arccos", "acosh": "arccosh", "asin": "arcsin", "asinh": "arcsinh", "atan": "arctan",
    "atanh": "arctanh", "atan2": "arctan2", "hardsigmoid": "hard_sigmoid",
    "hardswish": "hard_swish", "logsigmoid": "log_sigmoid", "softsign": "soft_sign",
}  # fmt: skip


class Torch:
    """PyTorch, eager."""

    name = "torch"

    def __init__(self) -> None:
        self.torch: Any = import_module("torch")
        self.rooms = [self.torch, self.torch.special, self.torch.nn.functional]

    def function(self, name: str) -> Function | None:
        return next((getattr(r, name) for r in self.rooms if hasattr(r, name)), None)

    def value(self, function: Function, points: Sequence[Array]) -> Array:
        found: Array = function(*map(self.torch.tensor, points)).numpy()
        return found

    def slope(self, function: Function, points: Sequence[Array], which: int) -> Array | None:
        """None where PyTorch has no derivative by this argument."""
        given = [self.torch.tensor(p, requires_grad=n == which) for n, p in enumerate(points)]
        try:
            (found,) = self.torch.autograd.grad(function(*given).sum(), [given[which]])
        except (RuntimeError, NotImplementedError):
            return None
        return np.asarray(found)


class Jax:
    """JAX, eager, in float64."""

    name = "jax"

    def __init__(self) -> None:
        self.jax: Any = import_module("jax")
        self.jax.config.update("jax_enable_x64", True)
        special = import_module("jax.scipy.special")
        self.rooms = [self.jax.numpy, special, self.jax.nn, self.jax.lax]

    def function(self, name: str) -> Function | None:
        if name == "gelu":
            return lambda x: self.jax.nn.gelu(x, approximate=False)
        name = JAX_NAMES.get(name, name)
        return next((getattr(r, name) for r in self.rooms if hasattr(r, name)), None)

    def value(self, function: Function, points: Sequence[Array]) -> Array:
        return np.asarray(function(*map(self.jax.numpy.asarray, points)))

    def slope(self, function: Function, points: Sequence[Array], which: int) -> Array | None:
        total = self.jax.grad(lambda *x: function(*x).sum(), argnums=which)
        return np.asarray(total(*map(self.jax.numpy.asarray, points)))


def off(peer: Torch | Jax, function: Function, points: list[Array], which: int) -> list[str]:
    """Where a derivative is another than that of the differences."""

    def value(by: float) -> Array:
        return peer.value(function, [p + by * (n == which) for n, p in enumerate(points)])

    slope = peer.slope(function, points, which)
    if slope is None:
        return []
    one, two = ((value(s) - value(-s)) / (2 * s) for s in STEPS)
    turn = abs(value(STEPS[0]) - 2 * value(0.0) + value(-STEPS[0])) / STEPS[0]
    smooth = (abs(one - two) <= 1e-5 * (1 + abs(one) + abs(two))) & (turn <= 1e-2 * (1 + abs(one)))
    wrong = smooth & ~(abs(slope - one) <= 1e-4 * (1 + abs(one)))
    places = [", ".join(f"{p[i]:g}" for p in points) for i in np.flatnonzero(wrong)]
    pairs = zip(places, slope[wrong], one[wrong], strict=True)
    return [f"by {which} at {place}: {got:.6g}, not {want:.6g}" for place, got, want in pairs]


def main() -> None:
    warnings.simplefilter("ignore")
    np.seterr(all="ignore")
    two = [p.ravel() for p in np.meshgrid(TWO, TWO)]
    for peer in (Torch(), Jax()):
        ran, absent = 0, []
        for name in (*UNARY, *BINARY):
            function = peer.function(name)
            if function is None:
                absent.append(name)
                continue
            points = two if name in BINARY else [ONE[abs(ONE) <= 5] if name == "erfcx" else ONE]
            ran += 1
            for which in range(len(points)):
                for text in off(peer, function, points, which):
                    print(f"{peer.name}: {name} {text}", flush=True)
        print(f"{peer.name} {version(peer.name)}: {ran} functions; it has no {absent}", flush=True)


if __name__ == "__main__":
    main()
