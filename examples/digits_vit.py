"""A vision transformer reads handwritten digits: `python examples/digits_vit.py`.

Sixteen patches of 2 x 2 pixels, each a vector with its place; layers of attention; their mean.

Source: Dosovitskiy et al., An Image is Worth 16x16 Words, 2020.
"""

from __future__ import annotations

from digits import KINDS, report

import pullback as pb
from pullback import nn, optim

STEPS = 400
PATCH, PATCHES = 2, 16
WIDTH, HEADS, LAYERS = 48, 4, 3


class ViT(nn.Module):
    """``y = w mean[t](encode(patch[t] + place[t])) + b``"""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Sequential(nn.Conv2d(1, WIDTH, PATCH, stride=PATCH), nn.Flatten(2))
        self.places = nn.Embedding(PATCHES, WIDTH)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 2 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, KINDS)

    def forward(self, x: pb.Tensor) -> pb.Tensor:
        patches = self.patches(x).mT
        encoded = self.encoder(patches + self.places.weight)
        return self.head(self.norm(encoded.mean(1)))


def net() -> nn.Module:
    return ViT()


def optimizer(model: nn.Module) -> optim.Optimizer:
    return optim.AdamW(model.parameters(), lr=2e-3)


def main() -> float:
    pb.random.manual_seed(0)
    model = net()
    return report(model, optimizer(model), STEPS)


if __name__ == "__main__":
    main()
