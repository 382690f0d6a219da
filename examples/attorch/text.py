"""attorch's example of text: `python examples/attorch/text.py`.

A GPT of two blocks learns the letters of scikit-learn's description of its digits, in place of
WikiText-2, which is a download.
"""

from __future__ import annotations

from typing import Any

import torch
from beside import linear, report, train
from sklearn.datasets import load_digits

LENGTH, WIDTH, HEADS, BLOCKS, SIZE, STEPS = 32, 48, 4, 2, 16, 150


def letters() -> tuple[Any, int]:
    text = load_digits().DESCR
    known = sorted(set(text))
    return torch.tensor([known.index(c) for c in text]), len(known)


class Block(torch.nn.Module):
    """``x + attention(norm(x))``, then ``x + mlp(norm(x))``"""

    def __init__(self, nn: Any) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attend = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.mlp = nn.Sequential(linear(nn, WIDTH, 4 * WIDTH, "gelu"), nn.Linear(4 * WIDTH, WIDTH))
        mask = torch.nn.Transformer.generate_square_subsequent_mask(LENGTH)
        self.register_buffer("mask", mask)

    def forward(self, x: Any) -> Any:
        y = self.before(x)
        how = {"attn_mask": self.mask, "is_causal": True, "need_weights": False}
        x = x + self.attend(y, y, y, **how)[0]
        return x + self.mlp(self.after(x))


class GPT(torch.nn.Module):
    def __init__(self, nn: Any, kinds: int) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(kinds, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*[Block(nn) for _ in range(BLOCKS)])
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, kinds))
        self.register_buffer("order", torch.arange(LENGTH))

    def forward(self, text: Any) -> Any:
        x = self.letters(text) + self.places(self.order)
        return self.head(self.blocks(x)).flatten(0, 1)


def run(nn: Any, steps: int = STEPS) -> tuple[Any, list[float]]:
    text, kinds = letters()
    draw = torch.Generator().manual_seed(0)

    def data() -> Any:
        while True:
            starts = torch.randint(len(text) - LENGTH, (SIZE,), generator=draw)
            rows = starts[:, None] + torch.arange(LENGTH + 1)
            yield text[rows[:, :-1]], text[rows[:, 1:]].flatten()

    loss = nn.CrossEntropyLoss()
    return train(nn, lambda nn: GPT(nn, kinds), loss, data(), steps)


def main() -> float:
    return report(run)


if __name__ == "__main__":
    main()
