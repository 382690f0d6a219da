"""Convolutions and pools read handwritten digits: `python examples/digits_convnet.py`."""

from __future__ import annotations

from digits import KINDS, report

import pullback as pb
from pullback import nn, optim

STEPS = 400


def net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * 2 * 32, KINDS),
    )


def optimizer(model: nn.Module) -> optim.Optimizer:
    return optim.Adam(model.parameters(), lr=2e-3)


def main() -> float:
    pb.random.manual_seed(0)
    model = net()
    return report(model, optimizer(model), STEPS)


if __name__ == "__main__":
    main()
