"""One peer, one example, one thread count, in a process of its own: prints one JSON line.

`python benchmarks/peers.py PEER EXAMPLE THREADS` with PEER pullback, eager, compile or jax and
EXAMPLE net (Linear 255, sigmoid, Linear 255, batch 2) or encoder (6 post-norm layers, d 64, 2x64).
All peers start from the same weights, made by NumPy, and report a checksum of the trained ones.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

STEPS = {"net": 1000, "encoder": 100}
RATE = 0.01
ROUNDS = 5
LAYERS = 6
WIDTH, HEADS, FF = 64, 4, 128


def weights(example: str) -> dict[str, np.ndarray]:
    """Parameters under PyTorch's names, float32."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 0.05).astype(np.float32)

    if example == "net":
        return {
            "0.weight": normal(255, 255), "0.bias": normal(255),
            "2.weight": normal(255, 255), "2.bias": normal(255),
        }  # fmt: skip
    found: dict[str, np.ndarray] = {}
    for layer in range(LAYERS):
        p = f"layers.{layer}."
        found[p + "self_attn.in_proj_weight"] = normal(3 * WIDTH, WIDTH)
        found[p + "self_attn.in_proj_bias"] = normal(3 * WIDTH)
        found[p + "self_attn.out_proj.weight"] = normal(WIDTH, WIDTH)
        found[p + "self_attn.out_proj.bias"] = normal(WIDTH)
        found[p + "linear1.weight"] = normal(FF, WIDTH)
        found[p + "linear1.bias"] = normal(FF)
        found[p + "linear2.weight"] = normal(WIDTH, FF)
        found[p + "linear2.bias"] = normal(WIDTH)
        for norm in ("norm1", "norm2"):
            found[p + norm + ".weight"] = 1 + normal(WIDTH)
            found[p + norm + ".bias"] = normal(WIDTH)
    return found


def example_input(example: str) -> np.ndarray:
    if example == "net":
        return np.full((2, 255), 0.2, np.float32)
    return np.random.default_rng(1).standard_normal((2, WIDTH)).astype(np.float32)


def report(cold: float, step: Callable[[], Any], checksum: Callable[[], float], n: int) -> None:
    """`cold`: seconds to the first finished step. `step` runs `n` steps; its median is reported."""
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        step()
        times.append((time.perf_counter() - start) / n)
    print(json.dumps({"cold": cold, "step": float(np.median(times)), "checksum": checksum()}))


def run_pullback(example: str) -> None:
    import pullback as pb
    from pullback import nn, optim

    start = time.perf_counter()
    if example == "net":
        model: Any = nn.Sequential(nn.Linear(255, 255), nn.Sigmoid(), nn.Linear(255, 255))
    else:
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, FF, dropout=0.0)
        model = nn.TransformerEncoder(layer, LAYERS)
    model.load_state_dict({k: pb.tensor(v) for k, v in weights(example).items()})
    opt = optim.SGD(model.parameters(), lr=RATE)
    x = pb.tensor(example_input(example))

    def step() -> None:
        opt.zero_grad()
        model(x).sum().backward()
        opt.step()

    @pb.jit
    def one() -> None:
        pb.loop(range(1), step)

    @pb.jit
    def train() -> None:
        pb.loop(range(STEPS[example]), step)

    one()
    cold = time.perf_counter() - start
    model.load_state_dict({k: pb.tensor(v) for k, v in weights(example).items()})
    train()
    first = checksum({k: np.asarray(v) for k, v in model.state_dict().items()})
    report(cold, train, lambda: first, STEPS[example])


def checksum(values: dict[str, np.ndarray]) -> float:
    return float(sum(np.abs(v.astype(np.float64)).sum() for v in values.values()))


def run_torch(example: str, compiled: bool, threads: int) -> None:
    import torch

    torch.set_num_threads(threads)
    start = time.perf_counter()
    if example == "net":
        model: Any = torch.nn.Sequential(
            torch.nn.Linear(255, 255), torch.nn.Sigmoid(), torch.nn.Linear(255, 255)
        )
    else:
        layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, FF, dropout=0.0)
        model = torch.nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
    state = {k: torch.from_numpy(v.copy()) for k, v in weights(example).items()}
    model.load_state_dict(state)
    x = torch.from_numpy(example_input(example))
    params = dict(model.named_parameters())

    def loss(p: dict[str, Any]) -> Any:
        return torch.func.functional_call(model, p, (x,)).sum()

    def functional(p: dict[str, Any]) -> dict[str, Any]:
        grads = torch.func.grad(loss)(p)
        return {k: v - RATE * grads[k] for k, v in p.items()}

    opt = torch.optim.SGD(model.parameters(), lr=RATE)
    # One graph for forward, backward and updates, no autograd at run time: the fastest form
    # of torch.compile found.
    fast = torch.compile(functional) if compiled else None
    box = {k: v.detach().clone() for k, v in params.items()}

    def one() -> None:
        nonlocal box
        if fast is not None:
            with torch.no_grad():
                box = fast(box)
            return
        opt.zero_grad()
        model(x).sum().backward()
        opt.step()

    def train() -> None:
        for _ in range(STEPS[example]):
            one()

    one()
    cold = time.perf_counter() - start
    model.load_state_dict(state)
    box = {k: v.clone() for k, v in state.items()}
    train()
    source = box if compiled else params
    first = checksum({k: v.detach().numpy() for k, v in source.items()})
    report(cold, train, lambda: first, STEPS[example])


def jax_loss(example: str) -> Callable[..., Any]:
    import jax
    import jax.numpy as jnp

    def net(p: dict[str, Any], x: Any) -> Any:
        hidden = jax.nn.sigmoid(x @ p["0.weight"].T + p["0.bias"])
        return (hidden @ p["2.weight"].T + p["2.bias"]).sum()

    def norm(p: dict[str, Any], name: str, x: Any) -> Any:
        mean = x.mean(-1, keepdims=True)
        var = ((x - mean) ** 2).mean(-1, keepdims=True)
        return (x - mean) / jnp.sqrt(var + 1e-5) * p[name + ".weight"] + p[name + ".bias"]

    def layer(p: dict[str, Any], at: str, x: Any) -> Any:
        qkv = x @ p[at + "self_attn.in_proj_weight"].T + p[at + "self_attn.in_proj_bias"]
        q, k, v = (s.reshape(-1, HEADS, WIDTH // HEADS) for s in jnp.split(qkv, 3, -1))
        scores = jnp.einsum("ihe,jhe->hij", q, k) / np.sqrt(WIDTH // HEADS)
        mixed = jnp.einsum("hij,jhe->ihe", jax.nn.softmax(scores), v).reshape(-1, WIDTH)
        y = mixed @ p[at + "self_attn.out_proj.weight"].T + p[at + "self_attn.out_proj.bias"]
        x = norm(p, at + "norm1", x + y)
        h = jax.nn.relu(x @ p[at + "linear1.weight"].T + p[at + "linear1.bias"])
        return norm(p, at + "norm2", x + h @ p[at + "linear2.weight"].T + p[at + "linear2.bias"])

    def encoder(p: dict[str, Any], x: Any) -> Any:
        for n in range(LAYERS):
            x = layer(p, f"layers.{n}.", x)
        return x.sum()

    return net if example == "net" else encoder


def run_jax(example: str) -> None:
    import jax

    start = time.perf_counter()
    loss = jax_loss(example)
    x = example_input(example)

    def step(p: dict[str, Any]) -> dict[str, Any]:
        grads = jax.grad(loss)(p, x)
        return jax.tree.map(lambda v, g: v - RATE * g, p, grads)

    @jax.jit
    def whole(p: dict[str, Any], n: Any) -> dict[str, Any]:
        return jax.lax.fori_loop(0, n, lambda _, q: step(q), p)

    p = weights(example)
    jax.block_until_ready(whole(p, 1))
    cold = time.perf_counter() - start
    n = STEPS[example]
    first = checksum({k: np.asarray(v) for k, v in whole(p, n).items()})
    report(cold, lambda: jax.block_until_ready(whole(p, n)), lambda: first, n)


def main() -> None:
    peer, example, threads = sys.argv[1], sys.argv[2], int(sys.argv[3])
    os.environ["PULLBACK_THREADS"] = str(threads)
    os.environ["XLA_FLAGS"] = f"--xla_cpu_multi_thread_eigen={'true' if threads > 1 else 'false'}"
    os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:threads]))
    if peer == "pullback":
        run_pullback(example)
    elif peer == "jax":
        run_jax(example)
    else:
        run_torch(example, peer == "compile", threads)


if __name__ == "__main__":
    main()
