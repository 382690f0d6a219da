"""A Transformer encoder trained by SGD on the sum of its outputs, 1 to 6 layers deep.

`python examples/seed_example_2.py [LAYERS]` prints kernels and memory of one training step.
"""

from __future__ import annotations

import sys

import numpy as np

import pullback as pb
from pullback import nn, optim

STEPS = 100
FLOAT = 4  # bytes


def main(layers: int) -> None:
    """Train, then print what the step became."""
    pb.random.manual_seed(0)
    layer = nn.TransformerEncoderLayer(64, 4, dim_feedforward=128, dropout=0.0)
    model = nn.TransformerEncoder(layer, layers)
    opt = optim.SGD(model.parameters(), lr=0.01)
    x = pb.tensor(np.random.default_rng(0).normal(0.0, 1.0, (2, 64)).astype(np.float32))

    def step() -> None:
        opt.zero_grad()
        loss = model(x).sum()
        loss.backward()
        opt.step()

    @pb.jit
    def train() -> None:
        pb.loop(range(STEPS), step)

    train()
    program = train.program
    print(f"{layers} layers: {len(program.kernels)} kernels a step")
    print(f"arena {program.memory.arena_bytes // FLOAT} float32 elements")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 6)
