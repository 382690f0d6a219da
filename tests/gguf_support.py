"""GGUF files of tests: random blocks, damaged files."""

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


def flipped(source: random.Random, data: bytes) -> bytes:
    """A few bits, mostly in the header."""
    changed = bytearray(data)
    for _ in range(source.choice((1, 1, 2, 8))):
        place = source.randrange(source.choice((len(data), min(len(data), 900))))
        changed[place] ^= 1 << source.randrange(8)
    return bytes(changed)


def cut(source: random.Random, data: bytes) -> bytes:
    return data[: source.randrange(len(data))]


def replaced(source: random.Random, data: bytes) -> bytes:
    """A number of the header at the end of its range."""
    wide, form = source.choice(((4, "<I"), (8, "<Q")))
    place = source.randrange(min(len(data), 900) - wide)
    value = struct.pack(form, source.choice(ENDS) % 256**wide)
    return data[:place] + value + data[place + wide :]


def moved(source: random.Random, data: bytes) -> bytes:
    """A piece twice, or away."""
    first, last = sorted(source.randrange(min(len(data), 900)) for _ in range(2))
    return data[:last] + data[source.choice((first, last)) :] + data[last - first : 7]


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
