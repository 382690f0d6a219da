"""Convolutions of 3 x 3 taps: direct, and by tiles of 2 x 2 and 4 x 4, with what was predicted.

`python benchmarks/winograd.py` prints microseconds of processor time on one thread, least of some
rounds in turn, the price beside each, which way the rule takes, and errors in float32.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import pullback as pb
from pullback.nn import functional as F

# Batch, channels in and out, height and width, groups.
CASES = [
    (1, 64, 64, 56, 1),
    (8, 64, 64, 56, 1),
    (4, 64, 64, 28, 1),
    (1, 128, 128, 28, 1),
    (8, 128, 128, 28, 1),
    (1, 256, 256, 14, 1),
    (8, 256, 256, 14, 1),
    (8, 512, 512, 7, 1),
    (8, 32, 32, 32, 1),
    (32, 16, 16, 32, 1),
    (8, 3, 64, 32, 1),
    (8, 128, 128, 28, 4),
    (8, 128, 128, 28, 128),
]
WAYS = ("direct", "winograd2", "winograd4")


def forward(groups: int) -> Callable[..., Any]:
    return lambda x, w, dy: F.conv2d(x, w, padding=1, groups=groups)


def by_input(groups: int) -> Callable[..., Any]:
    def adjoint(x: pb.Tensor, w: pb.Tensor, dy: pb.Tensor) -> pb.Tensor:
        y = F.conv2d(x, w, padding=1, groups=groups)
        (dx,) = pb.grad(pb.sum(y * dy), [x])
        return dx

    return adjoint


def by_weight(groups: int) -> Callable[..., Any]:
    def adjoint(x: pb.Tensor, w: pb.Tensor, dy: pb.Tensor) -> pb.Tensor:
        y = F.conv2d(x, w, padding=1, groups=groups)
        (dw,) = pb.grad(pb.sum(y * dy), [w])
        return dw

    return adjoint


def step(groups: int) -> Callable[..., Any]:
    def all_three(x: pb.Tensor, w: pb.Tensor, dy: pb.Tensor) -> tuple[pb.Tensor, ...]:
        y = F.conv2d(x, w, padding=1, groups=groups)
        return y, *pb.grad(pb.sum(y * dy), [x, w])

    return all_three


PARTS = {"y": forward, "dx": by_input, "dw": by_weight, "y, dx, dw": step}


def spent(run: Callable[..., Any], given: tuple[Any, ...]) -> float:
    start = time.process_time()
    made = run(*given)
    for t in made if isinstance(made, tuple) else (made,):
        t.numpy()
    return (time.process_time() - start) * 1e6


def measured(case: tuple[int, ...], part: str, rounds: int) -> str:
    n, c, o, size, groups = case
    rng = np.random.default_rng(0)
    shapes = (n, c, size, size), (o, c // groups, 3, 3), (n, o, size, size)
    given = tuple(pb.tensor(rng.standard_normal(s).astype(np.float32)) for s in shapes)
    options = pb.Options(threads=1)
    rules = {name: pb.winograd.rule(name) for name in (*WAYS, "cheapest")}
    runs = {n: pb.jit(PARTS[part](groups), options=options, rules=[r]) for n, r in rules.items()}
    best = dict.fromkeys(runs, float("inf"))
    for other in (
        *WAYS[1:],
        "cheapest",
    ):  # two in turn: a third would leave their working memory in no cache
        for _ in range(rounds):
            for name in ("direct", other):
                best[name] = min(best[name], spent(runs[name], given))
    told: dict[str, float] = dict.fromkeys(runs, 0.0)
    choices = rules["cheapest"].choices
    for choice in choices:
        for name, us in choice.prices:
            told[name] += us
    taken = ", ".join(dict.fromkeys(choice.algorithm for choice in choices))
    cells = [f"{best[name]:.0f} ({told[name]:.0f})" for name in WAYS]
    kind = f"{n} x {c} to {o}, {size} x {size}" + (f", {groups} groups" if groups > 1 else "")
    gain = best["direct"] / best["cheapest"]
    return (
        f"| {kind} | {part} | {' | '.join(cells)} | {taken} | {best['cheapest']:.0f}, {gain:.2f} |"
    )


def errors(rounds: int = 5) -> None:
    """Errors beside float64, of the largest result; and how much of the bound that is."""
    print("\n| channels | way | error by the largest element | largest part of the bound |")
    print("|---|---|---|---|")
    for channels in (4, 64, 256):
        worst: dict[str, tuple[float, float]] = {}
        for seed in range(rounds):
            rng = np.random.default_rng(seed)
            x = rng.standard_normal((2, channels, 16, 16)).astype(np.float32)
            w = rng.standard_normal((8, channels, 3, 3)).astype(np.float32)
            conv, none = forward(1), pb.zeros(())
            wide = (pb.tensor(t.astype(np.float64)) for t in (x, w))
            exact = conv(*wide, none).numpy()
            for name in WAYS:
                run = pb.jit(conv, rules=[pb.winograd.rule(name)])
                off = np.abs(run(pb.tensor(x), pb.tensor(w), none).numpy() - exact)
                part = off / pb.winograd.bound(name, x, w, padding=1)
                old = worst.get(name, (0.0, 0.0))
                found = float(off.max() / np.abs(exact).max()), float(part.max())
                worst[name] = max(old[0], found[0]), max(old[1], found[1])
        for name, (off, part) in worst.items():
            print(f"| {channels} | {name} | {off:.1e} | {part:.1e} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--part", action="append", choices=PARTS)
    parser.add_argument("--case", type=int, action="append")
    parser.add_argument("--errors", action="store_true", help="no times, errors alone")
    asked = parser.parse_args()
    if asked.errors:
        errors()
        return
    print(f"| | | {' | '.join(WAYS)} | by price | it takes |\n|---|---|---|---|---|---|---|")
    for n in asked.case or range(len(CASES)):
        for part in asked.part or PARTS:
            print(measured(CASES[n], part, asked.rounds), flush=True)


if __name__ == "__main__":
    main()
