"""The gradients of the two fits in `examples/`, beside autograd and JAX, in float64 on one thread.

`python benchmarks/fits.py [--jax PYTHON]` prints, for each fit, the largest difference of the
gradients and the processor time of a gradient once compiled; `python benchmarks/fits.py PEER`
measures one of pullback, autograd and jax and prints JSON. JAX may live in another environment.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SIDE, STEPS, DT, PARTS = 48, 300, 0.1, 3
POINT = np.array([0.5, 0.25, 18.0, 17.0])
CALLS = 20


def points() -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).normal(size=(900, 2))


def theta() -> np.ndarray[Any, Any]:
    return np.random.default_rng(1).normal(0.0, 0.3, 6 * PARTS)


def stencil(xp: Any, repeat: Callable[..., Any], p: Any) -> Any:
    """Half the sum of squares after all steps, from nothing seen; `xp` is NumPy's namespace."""
    cells = np.arange(SIDE, dtype=np.float64)
    u = 0.5 * xp.exp(-((cells[:, None] - p[2]) ** 2 + (cells[None, :] - p[3]) ** 2) / 18.0)

    def step(u: Any) -> Any:
        around = xp.roll(u, 1, 0) + xp.roll(u, -1, 0) + xp.roll(u, 1, 1) + xp.roll(u, -1, 1)
        return u + DT * (p[0] * (around - 4.0 * u) + p[1] * u * (1.0 - u))

    return 0.5 * xp.sum(repeat(step, u) ** 2)


def mixture(xp: Any, logsumexp: Callable[..., Any], theta: Any) -> Any:
    logits, means = theta[:PARTS], xp.reshape(theta[PARTS : 3 * PARTS], (PARTS, 2))
    factors = xp.reshape(theta[3 * PARTS :], (PARTS, 3))
    away = points()[:, None, :] - means
    a, b, c = (factors[:, n] for n in range(3))
    first = xp.exp(a) * away[..., 0]
    second = c * away[..., 0] + xp.exp(b) * away[..., 1]
    log_p = a + b - 0.5 * (first**2 + second**2) - np.log(2 * np.pi)
    return -xp.mean(logsumexp(logits - logsumexp(logits) + log_p, axis=-1))


def of_pullback() -> dict[str, Callable[[Any], Any]]:
    import importlib

    import pullback as pb

    sys.path.insert(0, str(Path(__file__).parent.parent / "examples"))
    kpp = importlib.import_module("scipy_fisher_kpp")
    mix = importlib.import_module("scipy_mixture")
    seen, x = pb.zeros((SIDE, SIDE), dtype="float64"), pb.tensor(points())
    pb.set_num_threads(1)
    return {
        "stencil": pb.jit(pb.value_and_grad(lambda p: kpp.misfit(p, seen))),
        "mixture": pb.jit(pb.value_and_grad(lambda t: mix.loss(t, x))),
    }


def of_autograd() -> dict[str, Callable[[Any], Any]]:
    import autograd.numpy as anp
    from autograd import value_and_grad
    from autograd.scipy.special import logsumexp

    def repeat(step: Any, u: Any) -> Any:
        for _ in range(STEPS):
            u = step(u)
        return u

    return {
        "stencil": value_and_grad(lambda p: stencil(anp, repeat, p)),
        "mixture": value_and_grad(lambda t: mixture(anp, logsumexp, t)),
    }


def of_jax() -> dict[str, Callable[[Any], Any]]:
    import jax

    jax.config.update("jax_enable_x64", True)
    jnp, logsumexp = jax.numpy, jax.nn.logsumexp

    def repeat(step: Any, u: Any) -> Any:
        return jax.lax.scan(lambda u, _: (step(u), None), u, None, length=STEPS)[0]

    def hosted(f: Any) -> Callable[[Any], Any]:
        found = jax.jit(jax.value_and_grad(f))
        return lambda x: tuple(np.asarray(part) for part in found(x))

    return {
        "stencil": hosted(lambda p: stencil(jnp, repeat, p)),
        "mixture": hosted(lambda t: mixture(jnp, logsumexp, t)),
    }


PEERS = {"pullback": of_pullback, "autograd": of_autograd, "jax": of_jax}


def measured(peer: str) -> dict[str, Any]:
    """Value, gradient and milliseconds of processor time a call, by fit."""
    found = {}
    for name, function in PEERS[peer]().items():
        at = POINT if name == "stencil" else theta()
        value, slope = function(at)
        times = []
        for _ in range(CALLS):
            start = time.process_time()
            function(at)
            times.append(time.process_time() - start)
        slopes = np.asarray(slope).tolist()
        found[name] = {"value": float(value), "slope": slopes, "ms": 1e3 * float(np.median(times))}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", nargs="?", choices=[*PEERS])
    parser.add_argument("--jax", default=sys.executable, help="the Python that has JAX")
    given = parser.parse_args()
    if given.peer:
        print(json.dumps(measured(given.peer)))
        return
    rows = {}
    for peer in PEERS:
        python = given.jax if peer == "jax" else sys.executable
        ran = subprocess.run([python, __file__, peer], capture_output=True, text=True)
        if ran.returncode:
            print(f"{peer}: not measured: {ran.stderr.strip().splitlines()[-1]}")
            continue
        rows[peer] = json.loads(ran.stdout)
    for peer, row in rows.items():
        for fit, found in row.items():
            own = np.array(rows["pullback"][fit]["slope"])
            apart = np.max(np.abs(own - found["slope"])) / np.max(np.abs(own))
            print(f"{fit:8} {peer:9} {found['ms']:9.3f} ms   apart {apart:.1e}")


if __name__ == "__main__":
    main()
