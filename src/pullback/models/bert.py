"""BERT of a folder of Hugging Face's: the encoder, without the heads of tasks.

Source: Devlin et al., BERT, 2018.
"""

from __future__ import annotations

import os

import pullback as pb
from pullback import nn
from pullback.models.files import Folder
from pullback.models.parts import ACTIVATIONS, Scope, attention, parted

HEADS = ("cls.", "classifier.", "qa_outputs.")  # of tasks: they are left out
LISTS = {
    "words": "embeddings.word_embeddings", "places": "embeddings.position_embeddings",
    "kinds": "embeddings.token_type_embeddings",
}  # fmt: skip


class Bert(nn.Module):
    """``x = norm(x + attention x); x = norm(x + out(act(wide x)))`` of tokens ``[b, t]``

    Example:
        >>> try:
        ...     pb.models.load_bert("no folder")
        ... except RuntimeError as error:
        ...     print(error.code)
        E586
    """

    def __init__(self, folder: Folder) -> None:
        super().__init__()
        self.width, self.heads = folder.number("hidden_size"), folder.number("num_attention_heads")
        self.wide, self.count = (
            folder.number(key) for key in ("intermediate_size", "num_hidden_layers")
        )
        self.eps = folder.real("layer_norm_eps", 1e-12)
        self.rows = {
            "words": folder.number("vocab_size"),
            "places": folder.number("max_position_embeddings"),
            "kinds": folder.number("type_vocab_size", default=2),
        }  # fmt: skip
        self.activation = folder.one_of("hidden_act", ACTIVATIONS, "gelu")
        folder.only({"position_embedding_type": ("absolute", None), "is_decoder": (False,)})
        if self.width % self.heads:
            raise folder.wrong(f"{self.width} numbers in {self.heads} heads")

    def load(self, folder: Folder) -> Bert:
        """Make the layers, with the folder's weights."""
        w = self.width
        tensors = {
            name.removeprefix("bert."): value
            for name, value in folder.tensors.items()
            if not name.startswith(HEADS) and not name.endswith("embeddings.position_ids")
        }
        self.pooled = "pooler.dense.weight" in tensors
        shapes: dict[str, tuple[int, ...]] = {
            f"{LISTS[name]}.weight": (rows, w) for name, rows in self.rows.items()
        }
        shapes |= _with_bias({"embeddings.LayerNorm": (w,)})
        shapes |= _with_bias({"pooler.dense": (w, w)} if self.pooled else {})
        each = {f"attention.self.{part}": (w, w) for part in ("query", "key", "value")}
        each |= {"attention.output.dense": (w, w), "intermediate.dense": (self.wide, w)}
        norms = {f"{name}.LayerNorm": (w,) for name in ("attention.output", "output")}
        rows = _with_bias({**each, "output.dense": (w, self.wide), **norms})
        ready = folder.fitting(tensors, shapes, "encoder.layer", self.count, rows)
        lists = {n: nn.Embedding(self.rows[k], w) for k, n in _last(LISTS).items()}
        self.embeddings = Scope(**lists, LayerNorm=nn.LayerNorm(w, eps=self.eps))
        self.encoder = Scope(layer=nn.ModuleList(self._layer() for _ in range(self.count)))
        if self.pooled:
            self.pooler = Scope(dense=nn.Linear(w, w))
        self.load_state_dict(ready)
        return self

    def _layer(self) -> Scope:
        w = self.width
        parts = {part: nn.Linear(w, w) for part in ("query", "key", "value")}
        mixed = Scope(dense=nn.Linear(w, w), LayerNorm=nn.LayerNorm(w, eps=self.eps))
        after = Scope(dense=nn.Linear(self.wide, w), LayerNorm=nn.LayerNorm(w, eps=self.eps))
        own = Scope(output=mixed)
        own.self = Scope(**parts)
        wide = Scope(dense=nn.Linear(w, self.wide))
        return Scope(attention=own, intermediate=wide, output=after)

    def forward(
        self, tokens: pb.Tensor, real: pb.Tensor | None = None, kinds: pb.Tensor | None = None
    ) -> tuple[pb.Tensor, pb.Tensor | None]:
        """Vectors ``[b, t, width]`` of the tokens, and of each text where the model has a pooler.

        `real` is false where a text is filled up; `kinds` are its parts, 0 where none are given.
        """
        lists = self.embeddings
        x = lists.word_embeddings(tokens) + lists.position_embeddings.weight[: tokens.shape[1]]
        of = lists.token_type_embeddings
        x = lists.LayerNorm(x + (of.weight[0] if kinds is None else of(kinds)))
        mask = None if real is None else pb.astype(real, "bool")[:, None, None, :]
        for layer in self.encoder.layer:
            own, mixed, after = layer.attention.self, layer.attention.output, layer.output
            parts = (parted(f(x), self.heads) for f in (own.query, own.key, own.value))
            x = mixed.LayerNorm(x + mixed.dense(attention(*parts, attn_mask=mask)))
            wide = self.activation(layer.intermediate.dense(x))
            x = after.LayerNorm(x + after.dense(wide))
        return x, pb.tanh(self.pooler.dense(x[:, 0])) if self.pooled else None


def _with_bias(shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Weights and biases of modules."""
    weights = {f"{name}.weight": shape for name, shape in shapes.items()}
    return weights | {f"{name}.bias": shape[:1] for name, shape in shapes.items()}


def _last(names: dict[str, str]) -> dict[str, str]:
    return {key: name.rpartition(".")[2] for key, name in names.items()}


def load_bert(path: str | os.PathLike[str]) -> Bert:
    """A BERT of a folder with `config.json` and safetensors, ready to run, float32.

    Raises: StateError, UnsupportedError where the folder does not hold one (E586).

    Example:
        >>> try:
        ...     pb.models.load_bert("no folder")
        ... except RuntimeError as error:
        ...     print(error.code)
        E586
    """
    folder = Folder(path, "bert")
    return Bert(folder).load(folder).eval()
