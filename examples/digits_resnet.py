"""A small ResNet reads handwritten digits: `python examples/digits_resnet.py`.

    x = relu(norm(conv(relu(norm(conv(x))))) + short(x))

Source: He et al., Deep Residual Learning for Image Recognition, 2015.
"""

from __future__ import annotations

from digits import KINDS, report

import pullback as pb
from pullback import nn, optim

STEPS = 200
WIDTHS = (16, 32, 64)


class Block(nn.Module):
    """Two convolutions, added to what they are made of; `stride` halves the image."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.long = nn.Sequential(
            nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.short = nn.Identity()
        if channels != width or stride > 1:
            self.short = nn.Sequential(
                nn.Conv2d(channels, width, 1, stride=stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: pb.Tensor) -> pb.Tensor:
        return nn.functional.relu(self.long(x) + self.short(x))


def net() -> nn.Module:
    first, second, third = WIDTHS
    return nn.Sequential(
        nn.Conv2d(1, first, 3, padding=1, bias=False),
        nn.BatchNorm2d(first),
        nn.ReLU(),
        Block(first, first, 1),
        Block(first, second, 2),
        Block(second, third, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(third, KINDS),
    )


def optimizer(model: nn.Module) -> optim.Optimizer:
    return optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)


def main() -> float:
    pb.random.manual_seed(0)
    model = net()
    return report(model, optimizer(model), STEPS)


if __name__ == "__main__":
    main()
