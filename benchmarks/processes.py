"""Steps a second of one process and of two, which have half of each batch: one thread each.

`python benchmarks/processes.py [--rounds 3] [--steps 60] [--model gpt|mlp]`: every way is a fresh
process, or two, in turn, `rounds` times. A step's time is the first decile of those of a run, steps
8 and on, since the processor may have other work; a row has the median over rounds, and that of
medians of runs behind it; then the processor time of all threads of a process, which other work
moves less. Losses of all ways are compared. PyTorch runs where it is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import time
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import numpy as np

import pullback as pb
from pullback import nn, optim
from pullback.cli.compare import _loss_function
from pullback.cli.settings import Settings
from pullback.distributed import DataParallel, Group, sharded

Array = np.ndarray[Any, Any]
GPT = Settings(layers=2, dim=128, heads=4, context=64, batch=16, lr=1e-3)
VOCABULARY, WIDTH, LAYERS, ROWS = 65, 512, 4, 512
Run = tuple[list[float], list[float], list[float]]  # losses; seconds of the clock, of the processor
SKIP = 8  # steps before the clock starts
WAYS = {  # processes, threads of each
    "pullback, 1 process of 1 thread": ("pullback", 1, 1),
    "pullback, 1 process of 2 threads": ("pullback", 1, 2),
    "pullback, 2 processes of 1 thread, shared memory": ("pullback", 2, 1),
    "pullback, 2 processes of 1 thread, shared memory, states in parts": ("shard", 2, 1),
    "pullback, 2 processes of 1 thread, ring over TCP": ("ring", 2, 1),
    "PyTorch, 1 process of 1 thread": ("torch", 1, 1),
    "PyTorch, 1 process of 2 threads": ("torch", 1, 2),
    "PyTorch, 2 processes of 1 thread, DDP with Gloo": ("torch", 2, 1),
}


# --- a rank --------------------------------------------------------------------------------------


def batches(model: str, steps: int, rank: int, size: int) -> list[tuple[Array, Array]]:
    """This rank's rows of each batch."""
    rng = np.random.default_rng(0)
    drawn = []
    for _ in range(steps):
        if model == "gpt":
            rows = rng.integers(0, VOCABULARY, (GPT.batch, GPT.context + 1)).astype(np.int32)
            pair = rows[:, :-1], rows[:, 1:]
        else:
            x = rng.normal(size=(ROWS, WIDTH)).astype(np.float32)
            pair = x, np.sin(x)
        count = len(pair[0]) // size
        own = slice(rank * count, (rank + 1) * count)
        drawn.append((np.ascontiguousarray(pair[0][own]), np.ascontiguousarray(pair[1][own])))
    return drawn


def made(model: str) -> nn.Module:
    pb.random.manual_seed(0)
    if model == "gpt":
        return nn.GPT(GPT.model(VOCABULARY))
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    return nn.Sequential(*layers[:-1])


def own_rank(model: str, steps: int, group: Group, shard: bool) -> Run:
    """Losses and times of one program."""
    module = made(model)
    parallel = DataParallel(module, bucket=1 << 20, group=group)
    opt: optim.Optimizer = optim.AdamW(module.parameters(), lr=1e-3)
    if shard:
        opt = sharded(opt, parallel)
    data = batches(model, steps, group.rank, group.size)
    waiting = iter(data)
    losses: list[float] = []
    times: list[float] = []
    spent: list[float] = []

    def seen(value: Array) -> None:
        losses.append(float(value))
        times.append(time.perf_counter())
        spent.append(time.process_time())

    def step() -> None:
        first = data[0]
        x, y = pb.Feeder(
            lambda: next(waiting),
            shape=(first[0].shape, first[1].shape),
            dtype=(str(first[0].dtype), str(first[1].dtype)),
        )
        opt.zero_grad()
        with parallel.sharing():
            loss = module.loss(x, y) if model == "gpt" else nn.functional.mse_loss(module(x), y)
        mean = pb.distributed.all_reduce(loss, "mean", group=group)
        loss.backward()
        opt.step()
        pb.Receiver(seen, [mean])

    pb.jit(lambda: pb.loop(steps, step))()
    return losses, times, spent


def torch_rank(model: str, steps: int, rank: int, size: int) -> Run:
    """The same maths by PyTorch, from the same weights."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(int(os.environ["PULLBACK_THREADS"]))
    torch.set_num_interop_threads(1)
    weights = {n: t.numpy() for n, t in made(model).state_dict().items()}
    function = _loss_function(torch, GPT)

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            own = {
                n.replace(".", "/"): torch.nn.Parameter(torch.tensor(a)) for n, a in weights.items()
            }
            self.own = torch.nn.ParameterDict(own)

        def forward(self, x: Any, y: Any) -> Any:
            own = {n.replace("/", "."): p for n, p in self.own.items()}
            if model == "gpt":
                return function(own, x, y)
            for number in range(LAYERS):
                x = torch.nn.functional.linear(
                    x, own[f"{2 * number}.weight"], own[f"{2 * number}.bias"]
                )
                x = torch.tanh(x) if number < LAYERS - 1 else x
            return torch.nn.functional.mse_loss(x, y)

    module: Any = Model()
    if size > 1:
        dist.init_process_group("gloo")
        module = torch.nn.parallel.DistributedDataParallel(module)
    opt = torch.optim.AdamW(module.parameters(), lr=1e-3, weight_decay=1e-2)
    losses: list[float] = []
    times: list[float] = []
    spent: list[float] = []
    for x, y in batches(model, steps, rank, size):
        kind = torch.long if model == "gpt" else torch.float32
        opt.zero_grad()
        loss = module(
            torch.tensor(x, dtype=kind if model == "gpt" else None), torch.tensor(y, dtype=kind)
        )
        loss.backward()
        opt.step()
        mean = loss.detach() / size
        if size > 1:
            dist.all_reduce(mean)
        losses.append(mean.item())
        times.append(time.perf_counter())
        spent.append(time.process_time())
    if size > 1:
        dist.destroy_process_group()
    return losses, times, spent


def rank_main(way: str, model: str, steps: int) -> None:
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if way == "torch":
        losses, times, spent = torch_rank(model, steps, rank, size)
    else:
        transport = "ring" if way == "ring" else None
        group = pb.distributed.init(transport) if size > 1 else Group()
        losses, times, spent = own_rank(model, steps, group, way == "shard")
    if rank == 0:
        gaps = [b - a for a, b in pairwise(times)][SKIP:]
        low = float(np.quantile(gaps, 0.1))
        used = (spent[-1] - spent[SKIP]) / (len(spent) - SKIP - 1)
        told = {"low": low, "median": statistics.median(gaps), "used": used, "losses": losses}
        print(json.dumps(told))


# --- all of them, in turn ------------------------------------------------------------------------


def measured(way: str, model: str, steps: int, size: int, threads: int) -> dict[str, Any]:
    with socket.create_server(("127.0.0.1", 0)) as door:
        port = door.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size)}
    many = {"PULLBACK_THREADS": str(threads), "OMP_NUM_THREADS": str(threads)}
    begun = [
        subprocess.Popen(
            [sys.executable, __file__, "--rank", way, "--model", model, "--steps", str(steps)],
            env={**os.environ, **place, **many, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(size)
    ]
    told = [process.communicate()[0] for process in begun]
    if any(process.returncode for process in begun):
        raise SystemExit(f"{way} of {model} failed")
    result: dict[str, Any] = json.loads(told[0].splitlines()[-1])
    return result


def table(model: str, rounds: int, steps: int) -> None:
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in WAYS}
    loads = []
    for _ in range(rounds):
        for name, (way, size, threads) in WAYS.items():
            loads.append(os.getloadavg()[0])
            runs[name].append(measured(way, model, steps, size, threads))
    first = next(iter(runs.values()))[0]["losses"]
    print(
        f"\n{model}: load {min(loads):.1f} to {max(loads):.1f}, {rounds} rounds of {steps} steps\n"
    )
    print("| | steps a second | of all steps | beside 1 process of 1 thread |", end="")
    print(" processor ms a step, each process | losses differ by |\n|---|---|---|---|---|---|")
    base: dict[str, float] = {}
    for name, own in runs.items():
        low, middle, used = (
            statistics.median(r[k] for r in own) for k in ("low", "median", "used")
        )
        engine = name.split(",")[0]
        base.setdefault(engine, low)
        apart = max(abs(a - b) for a, b in zip(own[0]["losses"], first, strict=True))
        cells = f"{1 / low:.1f} | {1 / middle:.1f} | {base[engine] / low:.2f}"
        cells += f" | {used * 1e3:.1f} | {apart:.0e}"
        print(f"| {name} | {cells} |", flush=True)


def main() -> None:
    """Print a table for each model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--model", choices=["gpt", "mlp"])
    parser.add_argument("--only", default="", help="ways whose names match it, and the first")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        rank_main(args.rank, args.model, args.steps)
        return
    if find_spec("torch") is None:
        for name in [n for n in WAYS if n.startswith("PyTorch")]:
            del WAYS[name]
    base = next(iter(WAYS))
    for name in [n for n in WAYS if n != base and not re.search(args.only, n)]:
        del WAYS[name]
    for model in [args.model] if args.model else ["mlp", "gpt"]:
        table(model, args.rounds, args.steps)


if __name__ == "__main__":
    main()
