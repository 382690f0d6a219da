"""Models of other libraries' folders: `config.json` and safetensors of Hugging Face's layout."""

from __future__ import annotations

from pullback.models.bert import Bert, load_bert
from pullback.models.gpt2 import GPT2, load_gpt2
from pullback.models.llama import Llama, load_llama
from pullback.tensor.face.dialect import shown as _shown

__all__ = ["GPT2", "Bert", "Llama", "load_bert", "load_gpt2", "load_llama"]
__dir__ = _shown(__all__)
