"""A GPT of two layers learns to write Python from Python: `python examples/gpt.py`.

It sees 64 characters of the standard library's `argparse` and says which comes next. Attention
looks back only, so each place of a text is an exercise of its own. (`pullback train` is the larger
one, with checkpoints and a validation.)

Source: Radford et al., Improving Language Understanding by Generative Pre-Training, 2018.
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import pullback as pb
from pullback import nn, optim

STEPS, BATCH = 600, 16
CONTEXT, WIDTH, HEADS, LAYERS = 64, 64, 4, 2
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Text:
    """A text as the places of its characters in `known`."""

    known: str
    places: Array

    @classmethod
    def of(cls, text: str) -> Text:
        known = "".join(sorted(set(text)))
        return cls(known, np.array([known.index(c) for c in text]))

    def batches(self, seed: int = 0) -> Iterator[tuple[Array, Array]]:
        """Pieces of the text, and the same pieces one character on."""
        rng = np.random.default_rng(seed)
        span = np.arange(CONTEXT)
        while True:
            starts = rng.integers(0, len(self.places) - CONTEXT, BATCH)
            rows = starts[:, None] + span
            yield self.places[rows], self.places[rows + 1]


class Attention(nn.Module):
    """``y[i] = sum[j <= i] p[i, j] v[j]``, p the softmax of q[i] k[j], in each head"""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: pb.Tensor) -> pb.Tensor:
        batch, length, width = x.shape
        parts = self.heads(x).reshape(batch, length, 3, HEADS, width // HEADS)
        q, k, v = pb.permute_dims(parts, (2, 0, 3, 1, 4))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(pb.permute_dims(mixed, (0, 2, 1, 3)).reshape(batch, length, width))


class Block(nn.Module):
    """``x = x + attention(norm(x)); x = x + w2 gelu(w1 norm(x))``"""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Sequential(nn.LayerNorm(WIDTH), Attention())
        self.think = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: pb.Tensor) -> pb.Tensor:
        x = x + self.attention(x)
        return x + self.think(x)


class GPT(nn.Module):
    """Of characters (b, t) the scores (b, t, known) of those that follow."""

    def __init__(self, known: int) -> None:
        super().__init__()
        self.characters = nn.Embedding(known, WIDTH)
        self.places = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, known)

    def forward(self, characters: pb.Tensor) -> pb.Tensor:
        x = self.characters(characters) + self.places.weight[: characters.shape[1]]
        return self.head(self.norm(self.blocks(x)))


def loss_of(model: nn.Module, characters: pb.Tensor, following: pb.Tensor) -> pb.Tensor:
    scores = model(characters)
    return nn.functional.cross_entropy(scores.reshape(-1, scores.shape[-1]), following.reshape(-1))


def optimizer(model: nn.Module) -> optim.Optimizer:
    return optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98))


def train(model: nn.Module, opt: optim.Optimizer, text: Text, steps: int) -> list[float]:
    """Train for `steps` batches as one program; the loss of each, nats per character."""
    waiting = text.batches()
    losses: list[float] = []

    def step() -> None:
        shape = (BATCH, CONTEXT)
        characters, following = pb.Feeder(
            lambda: next(waiting), shape=(shape, shape), dtype=("int64", "int64")
        )
        opt.zero_grad()
        loss = loss_of(model, characters, following)
        loss.backward()
        opt.step()
        pb.Receiver(lambda value: losses.append(float(value)), [loss])

    pb.jit(lambda: pb.loop(range(steps), step))()
    return losses


def write(model: nn.Module, text: Text, start: str, count: int, seed: int = 0) -> str:
    """`start` and `count` characters more, drawn by their probabilities."""
    rng = np.random.default_rng(seed)
    scores = pb.jit(model)
    written = [text.known.index(c) for c in start]
    for _ in range(count):
        window = written[-CONTEXT:]
        padded = np.zeros((1, CONTEXT), np.int64)
        padded[0, : len(window)] = window
        last = scores(padded).numpy()[0, len(window) - 1] / 0.7
        p = np.exp(last - last.max())
        written.append(int(rng.choice(len(p), p=p / p.sum())))
    return "".join(text.known[n] for n in written)


def main() -> float:
    """Train, then write. The loss at the end."""
    pb.random.manual_seed(0)
    text = Text.of(inspect.getsource(argparse))
    model = GPT(len(text.known))
    losses = train(model, optimizer(model), text, STEPS)
    end = float(np.mean(losses[-20:]))
    print(f"{STEPS} steps: loss {losses[0]:.3f} -> {end:.3f} nats per character\n")
    print(write(model, text, "def ", 300))
    return end


if __name__ == "__main__":
    main()
