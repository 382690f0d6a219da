"""GGUF: products with blocks beside the float32 product, tokens of a Llama beside transformers.

`python benchmarks/language.py [--rounds N] [--rows N --columns N] [--layers N]` prints two tables:
one thread, processor time, calls that take turns, the least of several. Weights are random.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = os.environ["PULLBACK_THREADS"] = "1"
ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

import numpy as np
import torch

import gguf_models
import pullback as pb
from gguf_support import BLOCKS, random_blocks
from pullback.gguf.kinds import named

TOKENS = 64  # behind a prompt of as many
Calls = dict[str, Callable[[], Any]]


def least(calls: Calls, rounds: int) -> dict[str, float]:
    """Milliseconds of processor time of the fastest call of each, which take turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 2):
        for name, call in calls.items():
            start = time.process_time()
            call()
            if turn >= 2:
                times[name].append(time.process_time() - start)
    return {name: 1e3 * min(t) for name, t in times.items()}


def products(folder: Path, rows: int, columns: int, rounds: int) -> None:
    """One row of x with each kind of weights."""
    rng = np.random.default_rng(0)
    plain = rng.normal(size=(rows, columns)).astype(np.float32)
    tensors: dict[str, Any] = {"f32": plain, "f16": plain.astype(np.float16)}
    for kind in BLOCKS:
        known = named(kind)
        assert known is not None
        tensors[kind] = random_blocks(kind, rows, columns // known.elements, 0, 0.01), kind
    pb.gguf.write(folder / "w.gguf", {}, tensors)
    file = pb.gguf.read(folder / "w.gguf")
    x = pb.tensor(rng.normal(size=columns).astype(np.float32))
    calls: Calls = {}
    sizes = {}
    for kind in tensors:
        w = pb.gguf.Weight(file[kind])
        sizes[kind] = w.nbytes / 2**20
        run = pb.jit(w.__call__)
        calls[kind] = lambda run=run: run(x)
    other, given = torch.from_numpy(plain), torch.from_numpy(np.asarray(x.numpy()))
    with torch.inference_mode():
        times = least(calls | {"PyTorch, f32": lambda: other @ given}, rounds)
    print(f"| {rows} x {columns} | MiB | ms | f32 / it |\n|---|---|---|---|")
    for name, ms in times.items():
        size = sizes.get(name, sizes["f32"])
        print(f"| {name} | {size:.1f} | {ms:.3f} | {times['f32'] / ms:.2f} |", flush=True)


def tokens(folder: Path, layers: int, rounds: int) -> None:
    """Greedy tokens of a Llama of 768 numbers a token and 32,000 words."""
    model = gguf_models.llama(
        vocab_size=32_000, hidden_size=768, intermediate_size=2048, num_hidden_layers=layers,
        num_attention_heads=12, num_key_value_heads=4, max_position_embeddings=512,
    )  # fmt: skip
    prompt = [int(n) for n in np.random.default_rng(0).integers(0, 32_000, TOKENS)]
    print(f"\n| Llama, {layers} layers | prompt of {TOKENS}, ms | tokens/s | beside PyTorch |")
    print("|---|---|---|---|")
    rows = {"PyTorch, f32": theirs(model, prompt, rounds)}
    for kind in ("F32", "F16", "Q8_0", "Q4_0"):
        path = folder / f"{kind}.gguf"
        gguf_models.write(model, path, kind)
        rows[kind.lower()] = ours(pb.gguf.model(path, 512), prompt, rounds)
    for name, (first, rest) in rows.items():
        rate = 1e3 * TOKENS / rest
        beside = rows["PyTorch, f32"][1] / rest
        print(f"| {name} | {first:.1f} | {rate:.1f} | {beside:.2f} |", flush=True)


def theirs(model: Any, prompt: list[int], rounds: int) -> tuple[float, float]:
    """Milliseconds of the prompt, and of the tokens behind it."""

    def run() -> tuple[float, float]:
        start = time.process_time()
        made = model(torch.tensor([prompt]), use_cache=True)
        middle = time.process_time()
        for _ in range(TOKENS):
            token = made.logits[:, -1].argmax(-1, keepdim=True)
            made = model(token, past_key_values=made.past_key_values, use_cache=True)
        return middle - start, time.process_time() - middle

    with torch.inference_mode():
        return best([run() for _ in range(rounds)])


def ours(decoder: pb.gguf.Decoder, prompt: list[int], rounds: int) -> tuple[float, float]:
    """The same."""

    def run() -> tuple[float, float]:
        decoder.reset()
        start = time.process_time()
        scores = decoder.next(prompt)
        middle = time.process_time()
        for _ in range(TOKENS):
            scores = decoder.next(int(scores.argmax()))
        return middle - start, time.process_time() - middle

    return best([run() for _ in range(rounds + 1)][1:])


def best(times: list[tuple[float, float]]) -> tuple[float, float]:
    first, rest = zip(*times, strict=True)
    return 1e3 * min(first), 1e3 * min(rest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--rows", type=int, default=14_336)
    parser.add_argument("--columns", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=4)
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        products(Path(folder), given.rows, given.columns, given.rounds)
        tokens(Path(folder), given.layers, max(2, given.rounds // 3))


if __name__ == "__main__":
    main()
