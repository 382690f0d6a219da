"""The same training in PyTorch: same weights, same batches, losses and speed side by side."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from pullback.cli.settings import BETAS, WEIGHT_DECAY, Settings
from pullback.cli.text import batch
from pullback.errors import ExtraError

Array = np.ndarray[Any, Any]
Weights = dict[str, Any]
STEPS = 50
SKIP = 10  # steps before the clock starts


@dataclass(frozen=True, slots=True)
class Curve:
    """Losses of every step, and the median time of a step in milliseconds."""

    name: str
    losses: list[float]
    step_ms: float


def median_ms(times: list[float]) -> float:
    """The median time between steps, the first ones left out, milliseconds."""
    gaps = [b - a for a, b in itertools.pairwise(times)]
    return 1000.0 * statistics.median(gaps[SKIP:] or gaps)


def torch_curves(weights: dict[str, Array], tokens: Array, settings: Settings) -> list[Curve]:
    """PyTorch eager, then `torch.compile`, from `weights`.

    Raises: ExtraError where PyTorch is not installed.
    """
    torch = load_torch()
    torch.set_num_threads(max(1, min(torch.get_num_threads(), 2)))
    eager = _train("torch eager", _loss_function(torch, settings), weights, tokens, settings)
    compiled = torch.compile(_loss_function(torch, settings))
    return [eager, _train("torch.compile", compiled, weights, tokens, settings)]


def load_torch() -> Any:
    """PyTorch, imported lazily: it is optional and takes seconds.

    Raises: ExtraError where it is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise ExtraError(
            "--compare torch without PyTorch", help="pip install 'pullback[torch]'"
        ) from error
    return torch


def _loss_function(torch: Any, settings: Settings) -> Callable[[Weights, Any, Any], Any]:
    """The model of `nn.sequence.gpt` as a function of its weights."""
    functional = torch.nn.functional
    heads = settings.heads

    def norm(w: Weights, name: str, x: Any) -> Any:
        return functional.layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"])

    def line(w: Weights, name: str, x: Any) -> Any:
        return functional.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))

    def block(w: Weights, name: str, x: Any) -> Any:
        rows, length, dim = x.shape
        packed = line(w, f"{name}.attention.qkv", norm(w, f"{name}.norm1", x))
        q, k, v = packed.view(rows, length, 3, heads, dim // heads).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        flat = mixed.transpose(1, 2).reshape(rows, length, dim)
        x = x + line(w, f"{name}.attention.proj", flat)
        hidden = line(w, f"{name}.linear1", norm(w, f"{name}.norm2", x))
        return x + line(w, f"{name}.linear2", functional.gelu(hidden, approximate="tanh"))

    def loss(w: Weights, inputs: Any, targets: Any) -> Any:
        x = w["tokens.weight"][inputs] + w["positions.weight"][: inputs.shape[1]]
        for number in range(settings.layers):
            x = block(w, f"blocks.{number}", x)
        logits = line(w, "head", norm(w, "norm", x))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    return loss


def _train(
    name: str,
    function: Callable[[Weights, Any, Any], Any],
    weights: dict[str, Array],
    tokens: Array,
    settings: Settings,
) -> Curve:
    """`STEPS` steps of AdamW with the same schedule."""
    torch = load_torch()
    own = {n: torch.tensor(a, requires_grad=True) for n, a in weights.items()}
    groups = [
        {"params": [p for p in own.values() if p.dim() > 1]},
        {"params": [p for p in own.values() if p.dim() <= 1], "weight_decay": 0.0},
    ]
    opt = torch.optim.AdamW(groups, lr=settings.lr, betas=BETAS, weight_decay=WEIGHT_DECAY)
    schedule = settings.schedule()
    rate = torch.optim.lr_scheduler.LambdaLR(opt, schedule.at)
    losses: list[float] = []
    times: list[float] = []
    for step in range(STEPS):
        inputs, targets = batch(tokens, step, settings.seed, settings.batch, settings.context)
        opt.zero_grad()
        loss = function(own, torch.tensor(inputs).long(), torch.tensor(targets).long())
        loss.backward()
        opt.step()
        rate.step()
        losses.append(loss.item())
        times.append(time.perf_counter())
    return Curve(name, losses, median_ms(times))


def largest_difference(a: list[float], b: list[float]) -> float:
    """``max |a - b|`` over the steps that both have."""
    return max((abs(x - y) for x, y in zip(a, b, strict=False)), default=0.0)
