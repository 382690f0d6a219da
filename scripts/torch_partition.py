"""What is kept between forward and backward: time of a step and bytes, by ways to choose it.

`python scripts/torch_partition.py [SECONDS]`: processor time of one thread, in turn, best of all
within SECONDS (10) for each model. Ways: PyTorch's least cut, which `torch.compile` has here; all
that the backward reads (`default_partition`); activations computed again; half of the memory of the
least cut, by `torch._functorch.config.activation_memory_budget`.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch._functorch import config, partitioners
from torch.nn import functional as F
from torch.utils.checkpoint import CheckpointPolicy

import pullback as pb
import pullback.bridge.backend as compiler

aten = torch.ops.aten
AGAIN = (aten.gelu, aten.silu, aten.tanh, aten.sigmoid, aten.relu, aten.mul)
WAYS = ("least cut", "all", "again", "half")


class Block(nn.Module):
    def __init__(self, size: int, heads: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(size), nn.LayerNorm(size)
        self.mixed, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)
        self.grow, self.shrink = nn.Linear(size, 4 * size), nn.Linear(4 * size, size)
        self.heads = heads

    def forward(self, x: Any) -> Any:
        n, t, size = x.shape
        mixed = self.mixed(self.first(x)).view(n, t, 3, self.heads, size // self.heads)
        y = F.scaled_dot_product_attention(*mixed.permute(2, 0, 3, 1, 4), is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(n, t, size))
        return x + self.shrink(F.gelu(self.grow(self.second(x)), approximate="tanh"))


class Normed(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(size, size) for _ in range(4)])
        self.norms = nn.ModuleList([nn.LayerNorm(size) for _ in range(4)])

    def forward(self, x: Any) -> Any:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + torch.tanh(norm(F.silu(layer(x)))) * torch.sigmoid(x)
        return x


def dense() -> Any:
    return nn.Sequential(
        nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 512), nn.SiLU(), nn.Linear(512, 256),
        nn.Tanh(), nn.Linear(256, 64),
    )  # fmt: skip


def convolutional() -> Any:
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.SiLU(),
        nn.Conv2d(32, 32, 3, padding=1), nn.GroupNorm(4, 32), nn.GELU(), nn.Flatten(),
    )  # fmt: skip


MODELS: dict[str, tuple[Callable[[], Any], tuple[int, ...]]] = {
    "dense": (dense, (256, 256)),
    "transformer": (lambda: nn.Sequential(Block(128, 4), Block(128, 4)), (4, 64, 128)),
    "convolutional": (convolutional, (8, 3, 24, 24)),
    "normed": (lambda: Normed(192), (512, 192)),
}


def parting(way: str, kept: dict[str, int]) -> Callable[..., Any]:
    """A function that parts a joint graph, and notes the bytes that are neither argument nor
    parameter.
    """
    plain = compiler.partitioned

    def part(joint: Any, inputs: Sequence[Any], **how: Any) -> Any:
        if way == "again":
            for node in joint.graph.nodes:
                if getattr(node.target, "overloadpacket", None) in AGAIN:
                    node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
        one = partitioners.default_partition if way == "all" else plain
        forward, backward = one(joint, inputs, **how)
        outputs = list(forward.graph.nodes)[-1].args[0][how["num_fwd_outputs"] :]
        values = [n.meta["val"] for n in outputs if n.op != "placeholder"]
        kept[way] = sum(v.numel() * v.itemsize for v in values)
        return forward, backward

    return part


def stepping(way: str, name: str, kept: dict[str, int]) -> Callable[[], None]:
    """A compiled step of training."""
    make, shape = MODELS[name]
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = make(), torch.randn(shape)
    run = torch.compile(model, backend=pb.torch.backend, options={"threads": 1})

    def step() -> None:
        model.zero_grad()
        run(x).square().mean().backward()

    plain, compiler.partitioned = compiler.partitioned, parting(way, kept)
    try:
        with config.patch(activation_memory_budget=0.5 if way == "half" else 1.0):
            step()
    finally:
        compiler.partitioned = plain
    return step


def main() -> None:
    """The table."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    print(f"{'ms a step, KB kept':20}" + "".join(f"{way:>18}" for way in WAYS))
    for name in MODELS:
        kept: dict[str, int] = {}
        with config.patch(enable_autograd_cache=False):
            steps = {way: stepping(way, name, kept) for way in WAYS}
        best = dict.fromkeys(WAYS, float("inf"))
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for way, step in steps.items():
                start = time.process_time()
                step()
                best[way] = min(best[way], time.process_time() - start)
        cells = [f"{best[w] * 1e3:9.2f} {kept[w] // 1024:8}" for w in WAYS]
        print(f"{name:20}" + "".join(cells), flush=True)


if __name__ == "__main__":
    main()
