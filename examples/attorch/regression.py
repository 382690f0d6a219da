"""attorch's example of regression: `python examples/attorch/regression.py`.

``y = 0.5 x1 - x2^2 + sin(3 x3) + noise``, of deviation 0.1: the loss falls to the noise's 0.01.
"""

from __future__ import annotations

from typing import Any

import torch
from beside import batches, linear, report, train

NOISE, WIDTH, STEPS = 0.1, 64, 600


def points() -> tuple[Any, Any]:
    draw = torch.Generator().manual_seed(1)
    x = torch.rand(2048, 3, generator=draw) * 2 - 1
    y = 0.5 * x[:, :1] - x[:, 1:2] ** 2 + torch.sin(3 * x[:, 2:])
    return x, y + NOISE * torch.randn(y.shape, generator=draw)


def network(nn: Any) -> Any:
    hidden = [linear(nn, 3, WIDTH, "tanh"), linear(nn, WIDTH, WIDTH, "tanh")]
    return nn.Sequential(*hidden, nn.Linear(WIDTH, 1))


def run(nn: Any, steps: int = STEPS) -> tuple[Any, list[float]]:
    return train(nn, network, nn.MSELoss(), batches(*points(), 256), steps)


def main() -> float:
    return report(run)


if __name__ == "__main__":
    main()
