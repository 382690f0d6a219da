"""Handwritten digits: the data, the training and the test that the nets in `digits_*.py` share.

The images are scikit-learn's: 1,797 digits of 8 x 8 pixels, every fifth of them kept for the test.
`pip install scikit-learn`. A training is one compiled program: the batches are fed to it, losses
come out of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

import pullback as pb
from pullback import nn, optim

BATCH = 64
KINDS = 10
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Images:
    """Images (n, 1, 8, 8) between -1 and 1, and the digits that they show."""

    pixels: Array
    digits: Array


def split() -> tuple[Images, Images]:
    """What is trained on, and what is tested on."""
    found = load_digits()
    pixels = (found.images[:, None] / 8.0 - 1.0).astype(np.float32)
    test = np.arange(len(pixels)) % 5 == 0
    return tuple(Images(pixels[m], found.target[m]) for m in (~test, test))


def batches(images: Images, seed: int = 0) -> Iterator[tuple[Array, Array]]:
    """Batches without end: the images in a new order each time round."""
    rng = np.random.default_rng(seed)
    while True:
        order = rng.permutation(len(images.digits))
        for first in range(0, len(order) - BATCH + 1, BATCH):
            rows = order[first : first + BATCH]
            yield images.pixels[rows], images.digits[rows]


def train(model: nn.Module, opt: optim.Optimizer, images: Images, steps: int) -> list[float]:
    """Train for `steps` batches; the loss of each."""
    waiting = batches(images)
    losses: list[float] = []

    def step() -> None:
        pixels, digits = pb.Feeder(
            lambda: next(waiting), shape=((BATCH, 1, 8, 8), (BATCH,)), dtype=("float32", "int64")
        )
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(pixels), digits)
        loss.backward()
        opt.step()
        pb.Receiver(lambda value: losses.append(float(value)), [loss])

    pb.jit(lambda: pb.loop(range(steps), step))()
    return losses


def accuracy(model: nn.Module, images: Images) -> float:
    """The share of images whose digit is found."""
    model.eval()
    scores = pb.jit(model)(images.pixels).numpy()
    model.train()
    return float((scores.argmax(1) == images.digits).mean())


def report(model: nn.Module, opt: optim.Optimizer, steps: int) -> float:
    """Train, test, and print what came of it. The accuracy."""
    known, unseen = split()
    losses = train(model, opt, known, steps)
    found = accuracy(model, unseen)
    weights = sum(p.size for p in model.parameters())
    print(f"{weights:,} weights, {steps} steps: loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    print(f"{found:.1%} of {len(unseen.digits)} unseen digits are read rightly")
    return found
