"""GGUF files: read, dequantised, multiplied by as they are, and run as language models."""

from __future__ import annotations

from pullback.gguf.blocks import dequantised
from pullback.gguf.decoder import Decoder
from pullback.gguf.generate import generate, model
from pullback.gguf.kinds import KINDS, Kind
from pullback.gguf.reader import File, Stored, read
from pullback.gguf.tokens import Tokenizer
from pullback.gguf.weights import Weight
from pullback.gguf.writer import write

__all__ = [
    "KINDS", "Decoder", "File", "Kind", "Stored", "Tokenizer", "Weight", "dequantised", "generate",
    "model", "read", "write",
]  # fmt: skip
