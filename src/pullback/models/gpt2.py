"""GPT-2 of a folder of Hugging Face's.

Source: Radford et al., Language Models are Unsupervised Multitask Learners, 2019.
"""

from __future__ import annotations

import os
import re

import pullback as pb
from pullback import nn
from pullback.models.files import Folder
from pullback.models.parts import ACTIVATIONS, Scope, attention, parted

BUILT = {
    "scale_attn_weights": (True,), "scale_attn_by_inverse_layer_idx": (False,),
    "reorder_and_upcast_attn": (False,), "add_cross_attention": (False,),
}  # fmt: skip
MASKS = re.compile(r"h\.\d+\.attn\.(masked_)?bias")  # constants that older files hold
TURNED = (".c_attn.weight", ".c_proj.weight", ".c_fc.weight")  # stored as inputs by outputs


class GPT2(nn.Module):
    """``x += attention(ln_1 x); x += mlp(ln_2 x)``; tokens ``[b, t]`` to ``[b, t, words]``

    Example:
        >>> try:
        ...     pb.models.load_gpt2("no folder")
        ... except RuntimeError as error:
        ...     print(error.code)
        E586
    """

    def __init__(self, folder: Folder) -> None:
        super().__init__()
        self.width, self.heads = folder.number("n_embd"), folder.number("n_head")
        self.words, self.places = folder.number("vocab_size"), folder.number("n_positions")
        self.wide = folder.number("n_inner", default=4 * self.width)
        self.count, self.eps = folder.number("n_layer"), folder.real("layer_norm_epsilon", 1e-5)
        self.activation = folder.one_of("activation_function", ACTIVATIONS, "gelu_new")
        self.tied = bool(folder.config.get("tie_word_embeddings", True))
        folder.only(BUILT)
        if self.width % self.heads:
            raise folder.wrong(f"{self.width} numbers in {self.heads} heads")

    def load(self, folder: Folder) -> GPT2:
        """Make the layers, with the folder's weights."""
        w, wide, tensors = self.width, self.wide, {}
        for name, value in folder.tensors.items():
            own = name.removeprefix("transformer.")
            if MASKS.fullmatch(own) is None and not (self.tied and own == "lm_head.weight"):
                tensors[own] = value.T if own.endswith(TURNED) and value.ndim == 2 else value
        shapes = {"wte.weight": (self.words, w), "wpe.weight": (self.places, w)}
        shapes |= {} if self.tied else {"lm_head.weight": (self.words, w)}
        ends: dict[str, tuple[int, ...]] = {"ln_f.weight": (w,), "ln_f.bias": (w,)}
        norms = {f"{n}.{part}": (w,) for n in ("ln_1", "ln_2") for part in ("weight", "bias")}
        linear = {
            "attn.c_attn": (3 * w, w), "attn.c_proj": (w, w),
            "mlp.c_fc": (wide, w), "mlp.c_proj": (w, wide),
        }  # fmt: skip
        each: dict[str, tuple[int, ...]] = dict(norms)
        for name, (rows, columns) in linear.items():
            each |= {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}
        ready = folder.fitting(tensors, {**shapes, **ends}, "h", self.count, each)
        self.wte, self.wpe = nn.Embedding(self.words, w), nn.Embedding(self.places, w)
        self.h = nn.ModuleList(self._layer() for _ in range(self.count))
        self.ln_f = nn.LayerNorm(w, eps=self.eps)
        if not self.tied:
            self.lm_head = nn.Linear(w, self.words, bias=False)
        self.load_state_dict(ready)
        return self

    def _layer(self) -> Scope:
        w = self.width
        return Scope(
            ln_1=nn.LayerNorm(w, eps=self.eps),
            attn=Scope(c_attn=nn.Linear(w, 3 * w), c_proj=nn.Linear(w, w)),
            ln_2=nn.LayerNorm(w, eps=self.eps),
            mlp=Scope(c_fc=nn.Linear(w, self.wide), c_proj=nn.Linear(self.wide, w)),
        )

    def forward(self, tokens: pb.Tensor) -> pb.Tensor:
        """Scores of what follows each token."""
        w = self.width
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for layer in self.h:
            made = layer.attn.c_attn(layer.ln_1(x))
            parts = (parted(made[:, :, n * w : (n + 1) * w], self.heads) for n in range(3))
            x = x + layer.attn.c_proj(attention(*parts, is_causal=True))
            x = x + layer.mlp.c_proj(self.activation(layer.mlp.c_fc(layer.ln_2(x))))
        x = self.ln_f(x)
        head = self.wte.weight if self.tied else self.lm_head.weight
        return x @ head.mT


def load_gpt2(path: str | os.PathLike[str]) -> GPT2:
    """GPT-2 of a folder with `config.json` and safetensors, ready to run, float32.

    Raises: StateError, UnsupportedError where the folder does not hold one (E586).

    Example:
        >>> try:
        ...     pb.models.load_gpt2("no folder")
        ... except RuntimeError as error:
        ...     print(error.code)
        E586
    """
    folder = Folder(path, "gpt2")
    return GPT2(folder).load(folder).eval()
