"""A net of three linear layers reads handwritten digits: `python examples/digits_mlp.py`."""

from __future__ import annotations

from digits import KINDS, report

import pullback as pb
from pullback import nn, optim

STEPS = 600
PIXELS, WIDTH = 64, 128


def net() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(PIXELS, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, KINDS),
    )


def optimizer(model: nn.Module) -> optim.Optimizer:
    return optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def main() -> float:
    pb.random.manual_seed(0)
    model = net()
    return report(model, optimizer(model), STEPS)


if __name__ == "__main__":
    main()
