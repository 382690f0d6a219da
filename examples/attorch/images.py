"""attorch's example of images: `python examples/attorch/images.py`.

A small residual network tells which of eight parts of scikit-learn's two photographs a patch of
32 x 32 pixels is cut from, in place of Imagenette, which is a download. Pillow reads them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from beside import batches, fused, report, train
from sklearn.datasets import load_sample_images

SIDE, EACH, WIDTH, STEPS = 32, 40, 16, 60


def patches() -> tuple[Any, Any]:
    """Patches, normalized, and the parts that they are of."""
    rng = np.random.default_rng(0)
    cut, parts = [], []
    for photo, image in enumerate(load_sample_images().images):
        pixels = np.asarray(image, np.float32)[::2, ::2] / 255
        high, wide = pixels.shape[0] // 2, pixels.shape[1] // 2
        for part in range(4):
            own = pixels[part // 2 * high :, part % 2 * wide :][:high, :wide]
            for _ in range(EACH):
                i, j = rng.integers(high - SIDE), rng.integers(wide - SIDE)
                cut.append(own[i : i + SIDE, j : j + SIDE].transpose(2, 0, 1))
                parts.append(photo * 4 + part)
    made = np.stack(cut)
    return torch.tensor((made - made.mean()) / made.std()), torch.tensor(parts)


class Block(torch.nn.Module):
    """``relu(norm(conv(relu(norm(conv(x))))) + x)``"""

    def __init__(self, nn: Any, channels: int) -> None:
        super().__init__()
        self.fuses = nn is fused
        told = {"act_func": "relu"} if self.fuses else {}
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels, **told)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.last = nn.BatchNorm2d(channels, **told)

    def forward(self, x: Any) -> Any:
        if self.fuses:
            return self.last(self.second(self.norm(self.first(x))), x)
        y = torch.relu(self.norm(self.first(x)))
        return torch.relu(self.last(self.second(y)) + x)


def network(nn: Any) -> Any:
    pool = nn.AvgPool2d(2)
    stem = nn.Conv2d(3, WIDTH, 4, stride=4)
    blocks = [Block(nn, WIDTH), pool, Block(nn, WIDTH), nn.AvgPool2d(4), nn.Flatten()]
    return nn.Sequential(stem, *blocks, nn.Linear(WIDTH, 8))


def run(nn: Any, steps: int = STEPS) -> tuple[Any, list[float]]:
    return train(nn, network, nn.CrossEntropyLoss(), batches(*patches(), 64), steps)


def main() -> float:
    return report(run)


if __name__ == "__main__":
    main()
