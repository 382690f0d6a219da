"""A regression that knows how sure it is: `python examples/regression.py`.

Ten measurements of 442 patients, and how far their diabetes went on in a year (scikit-learn has
the data).
A net gives a mean m and a variance v for each; the loss is what a normal distribution says of y:

    (log v + (y - m)^2 / v) / 2

Source: Nix and Weigend, Estimating the Mean and Variance of the Target Distribution, 1994.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.datasets import load_diabetes

import pullback as pb
from pullback import nn, optim

STEPS = 300
WIDTH = 32
SURE = 1.645  # standard deviations on either side of the mean of 90 % of a normal distribution
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Patients:
    """Measurements (n, 10) and the outcome (n, 1), each of mean 0 and deviation 1."""

    measured: Array
    outcome: Array


def split() -> tuple[Patients, Patients]:
    """Those that are trained on, and a fifth for the test."""
    x, y = load_diabetes(return_X_y=True)
    test = np.arange(len(y)) % 5 == 0
    x, y = ((a - a[~test].mean(0)) / a[~test].std(0) for a in (x, y[:, None]))
    x, y = x.astype(np.float32), y.astype(np.float32)
    return tuple(Patients(x[m], y[m]) for m in (~test, test))


class Net(nn.Module):
    """``m, v = w2 tanh(w1 x + b1) + b2``, v through softplus, which is positive"""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(10, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 2))

    def forward(self, x: pb.Tensor) -> tuple[pb.Tensor, pb.Tensor]:
        found = self.layers(x)
        return found[:, :1], nn.functional.softplus(found[:, 1:])


def loss_of(model: nn.Module, x: pb.Tensor, y: pb.Tensor) -> pb.Tensor:
    mean, variance = model(x)
    return nn.functional.gaussian_nll_loss(mean, y, variance)


def optimizer(model: nn.Module) -> optim.Optimizer:
    return optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1)


def train(model: nn.Module, opt: optim.Optimizer, patients: Patients, steps: int) -> list[float]:
    """All patients at every step: no batches are needed. The loss of each step."""
    x, y = pb.tensor(patients.measured), pb.tensor(patients.outcome)
    losses: list[float] = []

    def step() -> None:
        opt.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        opt.step()
        pb.Receiver(lambda value: losses.append(float(value)), [loss])

    pb.jit(lambda: pb.loop(range(steps), step))()
    return losses


def explained(model: nn.Module, patients: Patients) -> tuple[float, float]:
    """``1 - sum (y - m)^2 / sum y^2``, and the share of patients that lie where 90 % should."""
    mean, variance = (t.numpy() for t in pb.jit(model)(patients.measured))
    away = patients.outcome - mean
    share = np.abs(away) < SURE * np.sqrt(variance)
    return float(1.0 - (away**2).sum() / (patients.outcome**2).sum()), float(share.mean())


def main() -> float:
    """Train, test, and print what came of it. The explained share of the variance."""
    pb.random.manual_seed(0)
    known, unseen = split()
    model = Net()
    losses = train(model, optimizer(model), known, STEPS)
    print(f"{STEPS} steps: loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    found, share = explained(model, unseen)
    print(f"explains {found:.1%} of the variance of {len(unseen.outcome)} unseen patients;")
    print(f"{share:.1%} of them lie within the bounds of 90 %")
    return found


if __name__ == "__main__":
    main()
