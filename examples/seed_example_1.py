"""A net of two linear layers, trained for 1000 steps as one program.

The step is traced once. Batches come from Python, losses go to Python, both asynchronously;
the parameters are handed out at the end.
"""

from __future__ import annotations

import numpy as np

import pullback as pb
from pullback import nn, optim

STEPS = 1000
WIDTH = 255

pb.random.manual_seed(0)
model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Sigmoid(), nn.Linear(WIDTH, WIDTH))
opt = optim.SGD(model.parameters(), lr=0.01)


def next_batch() -> np.ndarray:
    """The next input, from the host."""
    return np.full((2, WIDTH), 0.2, np.float32)


def on_loss(loss: np.ndarray) -> None:
    """Called with every hundredth loss."""
    print(f"loss {float(loss):.1f}")


def on_end(*parameters: np.ndarray) -> None:
    """Called once, with the trained parameters."""
    print("mean of the parameters:", *(f"{p.mean():.4f}" for p in parameters))


def step() -> None:
    """One step of training."""
    x = pb.Feeder(next_batch, shape=(2, WIDTH))
    opt.zero_grad()
    loss = model(x).sum()
    loss.backward()
    opt.step()
    pb.Receiver(on_loss, [loss], every=100)


@pb.jit
def train() -> None:
    """The whole training."""
    pb.loop(range(STEPS), step)
    pb.Receiver(on_end, model.parameters())


if __name__ == "__main__":
    train()
    print(train.program.explain())
