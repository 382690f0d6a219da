"""GGUF files of tests: random blocks, small models, damaged files."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import pullback as pb
from pullback.errors import PullbackError
from pullback.gguf.kinds import named

Array = np.ndarray[Any, Any]
BLOCKS = ("q4_0", "q8_0", "q4_K", "q6_K")
HEAD = 2000  # bytes: most changes are there
ENDS = (0, 1, 2, 31, 255, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1)


def random_blocks(kind: str, rows: int, blocks: int, seed: int = 0, scale: float = 0.0) -> Array:
    """Rows of blocks of random bytes; where `scale` is given, float16 scales are below it."""
    known = named(kind)
    assert known is not None
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, (rows, blocks * known.size), dtype=np.uint8)
    records = data.view(known.record)
    for field in ("d", "least") if scale else ():
        if field in (known.record.names or ()):
            records[field] = rng.uniform(-scale, scale, records.shape)
    return data


def example(path: Path) -> bytes:
    """A file with a fact of each type and a tensor of each kind."""
    facts = {
        "general.architecture": "llama", "general.alignment": 32, "a.truth": True, "a.float": 0.5,
        "a.large": 2**40, "a.negative": -3, "a.texts": ["x", "", "\u00e9"],
        "a.numbers": np.arange(5, dtype=np.int16),
    }  # fmt: skip
    rng = np.random.default_rng(0)
    floats: dict[str, Any] = {
        "f32": rng.normal(size=(2, 3, 4)).astype(np.float32),
        "f16": rng.normal(size=(3, 5)).astype(np.float16),
        "bf16": rng.normal(size=7).astype(pb.bfloat16.numpy),
    }
    pb.gguf.write(path, facts, floats | {k: (random_blocks(k, 3, 2), k) for k in BLOCKS})
    return path.read_bytes()


def small(path: Path, **changed: Any) -> Path:
    """A Llama of one layer; what is None is left out."""
    rng = np.random.default_rng(0)
    facts: dict[str, Any] = {
        "general.architecture": "llama", "llama.block_count": 1, "llama.context_length": 40,
        "llama.embedding_length": 8, "llama.feed_forward_length": 12,
        "llama.attention.head_count": 2, "llama.attention.head_count_kv": 1,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
    }  # fmt: skip
    shapes = {
        "token_embd": (20, 8), "output": (20, 8), "output_norm": (8,), "blk.0.attn_norm": (8,),
        "blk.0.ffn_norm": (8,), "blk.0.attn_q": (8, 8), "blk.0.attn_k": (4, 8),
        "blk.0.attn_v": (4, 8), "blk.0.attn_output": (8, 8), "blk.0.ffn_gate": (12, 8),
        "blk.0.ffn_up": (12, 8), "blk.0.ffn_down": (8, 12),
    }  # fmt: skip
    tensors: dict[str, Any] = {
        f"{name}.weight": rng.normal(size=shape).astype(np.float32)
        for name, shape in shapes.items()
    }
    for name, value in changed.items():
        plain = isinstance(value, np.ndarray) and value.dtype == np.float32
        home = tensors if plain or name in tensors else facts
        home.pop(name, None)
        if value is not None:
            home[name] = value
    pb.gguf.write(path, facts, tensors)
    return path


def model(path: Path) -> bytes:
    """A Llama with a vocabulary of a few bytes, and two that are merged."""
    words = ["<end>", "a", "b", "ab", "\u0120", "\u0120a", "c", "d", "e", "f"]
    types = np.array([3] + [1] * 18 + [4], np.int32)
    facts: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "llama-bpe",
        "tokenizer.ggml.tokens": words + [f"x{n}" for n in range(10)],
        "tokenizer.ggml.merges": ["a b", "\u0120 a"], "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": np.zeros(20, np.float32), "tokenizer.ggml.eos_token_id": 0,
    }  # fmt: skip
    return small(path, **facts).read_bytes()


def flipped(source: random.Random, data: bytes) -> bytes:
    """A few bits, mostly in the header."""
    changed = bytearray(data)
    for _ in range(source.choice((1, 1, 2, 8))):
        place = source.randrange(source.choice((len(data), min(len(data), HEAD))))
        changed[place] ^= 1 << source.randrange(8)
    return bytes(changed)


def cut(source: random.Random, data: bytes) -> bytes:
    return data[: source.randrange(len(data))]


def replaced(source: random.Random, data: bytes) -> bytes:
    """A number of the header at the end of its range."""
    wide, form = source.choice(((4, "<I"), (8, "<Q")))
    place = source.randrange(max(1, min(len(data), HEAD) - wide))
    value = struct.pack(form, source.choice(ENDS) % 256**wide)
    return data[:place] + value + data[place + wide :]


def moved(source: random.Random, data: bytes) -> bytes:
    """A piece twice, or away."""
    first, last = sorted(source.randrange(min(len(data), HEAD)) for _ in range(2))
    return data[:last] + data[source.choice((first, last)) :]


CHANGES: tuple[Callable[[random.Random, bytes], bytes], ...] = (flipped, cut, replaced, moved)


def damaged(seed: int, data: bytes) -> bytes:
    source = random.Random(seed)
    return source.choice(CHANGES)(source, data)


def outcome(path: Path, use: Callable[[pb.gguf.File], object]) -> str:
    """The code that a file is refused by, or `read`; anything else is raised."""
    try:
        use(pb.gguf.read(path))
    except PullbackError as error:
        assert error.code[1:].isdigit(), error
        return error.code
    return "read"
