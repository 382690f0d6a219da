"""First and second starts of models through `torch.compile`, pullback's beside Inductor's.

`python scripts/starts.py [MODEL ..] [--backend pullback inductor]`: each start is a process of its
own, the caches are fresh folders, the second start finds what the first left. Told are seconds of
processor time, of the process and of the compilers that it calls, from `torch.compile` to the
gradients of the first step, one thread.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

BACKENDS = ("pullback", "inductor")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=list(MODELS))
    parser.add_argument("--backend", nargs="*", default=BACKENDS)
    parser.add_argument("--one", action="store_true", help="this process is a start")
    told = parser.parse_args()
    if told.one:
        print(started(told.models[0], told.backend[0]))
        return
    for name in told.models:
        for backend in told.backend:
            with tempfile.TemporaryDirectory() as folder:
                first, second = (apart(name, backend, Path(folder)) for _ in range(2))
            print(
                f"{name:10} {backend:10} first {first:6.2f} s, second {second:6.2f} s", flush=True
            )


def apart(name: str, backend: str, folder: Path) -> float:
    """Seconds of a start in another process, with caches in `folder`."""
    caches = {"TORCHINDUCTOR_CACHE_DIR": folder / "torch", "PULLBACK_CACHE": folder / "programs"}
    env = os.environ | {name: str(path) for name, path in caches.items()}
    command = [sys.executable, __file__, name, "--backend", backend, "--one"]
    done = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout.split()[-1])


def started(name: str, backend: str) -> float:
    """Seconds of this process until it has gradients."""
    import torch

    import pullback as pb

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, x = MODELS[name](torch)
    before = spent()
    how = pb.torch.backend if backend == "pullback" else backend
    torch.compile(model, backend=how)(x).square().mean().backward()
    return spent() - before


def spent() -> float:
    """Seconds of processor time, with those of ended children."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def mlp(torch: Any) -> Any:
    nn = torch.nn
    sizes = [nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 10)]
    return nn.Sequential(*sizes), torch.randn(32, 64)


def convnet(torch: Any) -> Any:
    nn = torch.nn
    parts = []
    for before, after in ((3, 16), (16, 32)):
        convolution = nn.Conv2d(before, after, 3, padding=1)
        parts += [convolution, nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(2048, 10)), torch.randn(8, 3, 32, 32)


def encoder(torch: Any) -> Any:
    layer = torch.nn.TransformerEncoderLayer(64, 4, 256, 0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, 2), torch.randn(4, 32, 64)


def mixer(torch: Any) -> Any:
    nn = torch.nn

    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList([nn.LayerNorm(64) for _ in range(4)])
            self.tokens = nn.ModuleList([nn.Linear(32, 32) for _ in range(2)])
            self.channels = nn.ModuleList([nn.Linear(64, 64) for _ in range(2)])

        def forward(self, x: Any) -> Any:
            for n in range(2):
                mixed = self.tokens[n](self.norms[2 * n](x).transpose(1, 2)).transpose(1, 2)
                x = x + mixed.relu()
                x = x + self.channels[n](self.norms[2 * n + 1](x)).relu()
            return x

    return Mixer(), torch.randn(8, 32, 64)


MODELS = {"mlp": mlp, "convnet": convnet, "encoder": encoder, "mixer": mixer}

if __name__ == "__main__":
    main()
