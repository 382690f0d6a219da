"""What attorch's four examples share here: a network by pullback's layers, and by PyTorch's own."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from pullback.torch import nn as fused

Array = np.ndarray[Any, Any]
Batch = tuple[Any, Any]
AFTER = {"relu": torch.nn.ReLU, "gelu": torch.nn.GELU, "tanh": torch.nn.Tanh}


def linear(nn: Any, rows: int, columns: int, act: str) -> Any:
    """``act(x w + b)``: one layer of pullback, two of PyTorch."""
    if nn is fused:
        return nn.Linear(rows, columns, act_func=act)
    return nn.Sequential(nn.Linear(rows, columns), AFTER[act]())


def batches(inputs: Any, labels: Any, size: int) -> Iterator[Batch]:
    """Shuffled by a seed, epoch after epoch."""
    draw = torch.Generator().manual_seed(0)
    while True:
        for rows in torch.randperm(len(inputs), generator=draw).split(size):
            if len(rows) == size:
                yield inputs[rows], labels[rows]


def train(
    nn: Any, network: Callable[[Any], Any], loss_of: Any, data: Iterator[Batch], steps: int
) -> tuple[Any, list[float]]:
    """A network from seed 0 after some steps of AdamW, and the loss of each."""
    torch.manual_seed(0)
    model = network(nn)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(steps):
        inputs, labels = next(data)
        loss = loss_of(model(inputs), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return model, losses


def report(run: Callable[[Any], tuple[Any, list[float]]]) -> float:
    """Both, with seconds; the last loss of pullback's."""
    last = 0.0
    for name, nn in (("PyTorch", torch.nn), ("pullback", fused)):
        began = time.perf_counter()
        losses = run(nn)[1]
        last = losses[-1]
        seconds = time.perf_counter() - began
        print(f"{name:9} loss {losses[0]:.4f} -> {last:.4f}, {seconds:.1f} s", file=sys.stderr)
    return last
