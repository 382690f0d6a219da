"""attorch's 41 layers of `pullback.torch.nn`, forward and backward, beside PyTorch on the CPU.

`python benchmarks/layers.py [--only LAYER ..] [--threads N] [--rounds N] [--peers eager inductor]`:
a table in Markdown; shapes are of attorch's own grid. Sides take turns in one process; a figure is
the median, in microseconds: processor time of one thread, the clock of more. Bytes are those of
inputs, parameters and results, read or written once (forward), with gradients (backward): products
have more work than bytes. `apart`: the largest difference of a result or gradient from eager's, by
its largest element; of what is drawn there is none. Bold: slower than eager.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

FEW = 5  # calls before a measurement
LONGEST = 1.5  # seconds for one side of a layer


def main() -> int:
    """Run; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--peers", nargs="*", default=["eager", "inductor"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=41)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    import torch

    from attorch_layers import LAYERS

    torch.set_num_threads(args.threads)
    os.environ["PULLBACK_THREADS"] = str(args.threads)
    sides = ["pullback", *args.peers]
    heads = [f"{who} {way}" for way in ("forward", "backward") for who in sides]
    print(f"| layer, inputs | {' | '.join(heads)} | GB/s forward, backward | apart |")
    print(f"|---|{'---:|' * (len(heads) + 2)}")
    slower = []
    for name in args.only or LAYERS:
        layer = LAYERS[name]
        times, moved, apart = measured(torch, layer, sides, args.rounds)
        cells = []
        for way in (0, 1):
            own, eager = times["pullback"][way], times.get("eager", times["pullback"])[way]
            text = f"{own * 1e6:.0f}"
            if own > eager:
                slower.append(f"{name} {('forward', 'backward')[way]} {own / eager:.2f}")
            cells += [f"**{text}**" if own > eager else text]
            cells += [f"{times[who][way] * 1e6:.0f}" for who in sides[1:]]
        speed = ", ".join(
            f"{b / t / 1e9:.1f}" for b, t in zip(moved, times["pullback"], strict=True)
        )
        told = "drawn" if apart is None else f"{apart:.0e}"
        shape = "x".join(map(str, layer.large[0]))
        print(f"| {layer.name} {shape} | {' | '.join(cells)} | {speed} | {told} |", flush=True)
    print(f"\nSlower than eager: {', '.join(slower) or 'none'}")
    return 0


def measured(
    torch: Any, layer: Any, sides: list[str], rounds: int
) -> tuple[dict[str, tuple[float, float]], tuple[int, int], float | None]:
    """Seconds of each side forward and backward, bytes moved, how far results are apart."""
    from attorch_layers import composed, step
    from pullback.torch import nn

    torch.manual_seed(0)
    own, plain = layer.made(nn, True), composed(torch, layer, True)
    plain.load_state_dict(own.state_dict())
    share = layer.how.get("drop_p", layer.args[0] if layer.name == "Dropout" else 0.0)
    whole = dropping(torch, plain, layer.how["drop_p"]) if "drop_p" in layer.how else plain
    inputs = layer.given(torch, True)
    made = {"pullback": own, "eager": whole}
    if "inductor" in sides:
        made["inductor"] = torch.compile(whole)
    results = {who: step(torch, made[who], inputs) for who in sides}
    apart = None
    if not share and "eager" in results:
        pairs = zip(results["pullback"], results["eager"], strict=True)
        apart = max(float((a - b).abs().max() / b.abs().max().clamp(min=1e-6)) for a, b in pairs)
    bytes_of = [t.numel() * t.element_size() for t in results["pullback"]]
    read = sum(t.numel() * t.element_size() for t in (*inputs, *own.parameters()))
    moved = read + bytes_of[0], read + sum(bytes_of)
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    calls = {who: both(torch, made[who], inputs, clock) for who in sides}
    times: dict[str, list[tuple[float, float]]] = {who: [] for who in sides}
    for call in calls.values():
        for _ in range(FEW):
            call()
    start = time.perf_counter()
    for _ in range(rounds):
        for who, call in calls.items():
            times[who].append(call())
        if time.perf_counter() - start > LONGEST * len(sides):
            break
    medians = {
        who: (statistics.median(t[0] for t in own), statistics.median(t[1] for t in own))
        for who, own in times.items()
    }
    return medians, moved, apart


def dropping(torch: Any, plain: Any, share: float) -> Any:
    """With a dropout after it."""
    return torch.nn.Sequential(plain, torch.nn.Dropout(share))


def both(
    torch: Any, layer: Any, inputs: list[Any], clock: Callable[[], float]
) -> Callable[[], tuple[float, float]]:
    """A call and its backward, and the seconds of each."""
    given = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
    wanted = [t for t in (*given, *layer.parameters()) if t.is_floating_point()]
    first = layer(*given)
    first = first[0] if isinstance(first, tuple) else first
    head = torch.randn(first.shape)

    def call() -> tuple[float, float]:
        began = clock()
        y = layer(*given)
        y = y[0] if isinstance(y, tuple) else y
        between = clock()
        torch.autograd.grad(y, wanted, head)
        return between - began, clock() - between

    return call


if __name__ == "__main__":
    sys.exit(main())
