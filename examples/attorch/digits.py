"""attorch's example of digits: `python examples/attorch/digits.py`.

A perceptron reads the 1,797 digits of scikit-learn, 8 x 8 pixels each.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from beside import batches, linear, report, train
from sklearn.datasets import load_digits

HIDDEN, DEPTH, STEPS = 64, 3, 200


def network(nn: Any) -> Any:
    sizes = [64, *[HIDDEN] * DEPTH]
    hidden = [linear(nn, *pair, "relu") for pair in itertools.pairwise(sizes)]
    return nn.Sequential(*hidden, nn.Dropout(0.0), nn.Linear(HIDDEN, 10))


def run(nn: Any, steps: int = STEPS) -> tuple[Any, list[float]]:
    pixels, digits = load_digits(return_X_y=True)
    data = torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(digits)
    return train(nn, network, nn.CrossEntropyLoss(), batches(*data, 64), steps)


def main() -> float:
    return report(run)


if __name__ == "__main__":
    main()
