"""What launches take on 1 to 64 threads by the model of prices: predicted, nothing is measured.

`python benchmarks/cores.py [--machine NAME]`: each operation is compiled for a machine whose large
launches are dealt for eight threads (`few`), and for one of as many cores as the column says. A
number is how many times as fast all kernels together are predicted to be as those of `few` on one
thread. Memory that cores share is counted as each having its own rate: rows bound by it end sooner.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from math import exp, log
from typing import Any

import numpy as np

import pullback as pb
from pullback.backends.host.processor import host_target
from pullback.backends.nests.cores import on_threads
from pullback.backends.nests.price import price
from pullback.backends.nests.samples import ROUGH
from pullback.backends.registry import named
from pullback.ir.target import Target
from pullback.machine.machine import chosen, with_numbers

CORES = (1, 2, 4, 8, 16, 32, 64)
F = pb.nn.functional


def main() -> None:
    """Print a table: a row an operation, two of them a number of threads."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--machine", help="its numbers, by name or file")
    args = parser.parse_args()
    target = host_target()
    if args.machine:
        target = target.on(chosen(args.machine))
    heads = " | ".join(f"{n}: few | many" for n in CORES[2:])
    print(f"predicted, machine {target.profile.name}\n\n| | {heads} |")
    print(f"|{'---|' * (len(CORES) - 1)}")
    ratios: dict[int, list[float]] = {n: [] for n in CORES}
    for name, (function, arguments) in operations().items():
        compiled = pb.jit(function, options=pb.Options(backend="llvm"))
        compiled(*arguments)
        kernels = compiled.program.distinct()
        alone = sum(predicted(kernel, target, 8, 1) for kernel in kernels)
        cells = []
        for cores in CORES[2:]:
            few, many = (sum(predicted(k, target, n, cores) for k in kernels) for n in (8, cores))
            ratios[cores].append(few / many)
            cells.append(f"{alone / few:.1f} | {alone / many:.1f}")
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    means = (f"{exp(sum(map(log, r)) / len(r)):.2f} with {n}" for n, r in ratios.items() if r)
    print(f"\nmany / few, geometric means: {', '.join(means)} cores")


def predicted(kernel: Any, target: Target, cores: int, threads: int) -> float:
    """Nanoseconds of a launch on so many threads, dealt for so many cores."""
    own = target.on(with_numbers(target.profile, "launch", processors=cores))
    compiler: Any = named("llvm")
    schedule = compiler.start(kernel, own)
    return on_threads(kernel, schedule, own, price(kernel, schedule, own, ROUGH).ns, threads)


def operations() -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Operations as the suite has them, some with their gradients."""
    draws = np.random.default_rng(0)

    def array(*shape: int) -> pb.Tensor:
        return pb.tensor(draws.standard_normal(shape).astype(np.float32))

    def squares(function: Callable[..., Any], count: int) -> Callable[..., Any]:
        return pb.grad(lambda *a: pb.sum(function(*a) ** 2), argnums=tuple(range(count)))

    def attend(q: pb.Tensor, k: pb.Tensor, v: pb.Tensor) -> pb.Tensor:
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def conv(x: pb.Tensor, w: pb.Tensor) -> pb.Tensor:
        return F.conv2d(x, w, padding=1)

    heads = [array(4, 8, 256, 64) for _ in range(3)]
    return {
        "chain 4096x1024": (lambda x: pb.tanh(x) * 2 + x, (array(4096, 1024),)),
        "softmax 512x512": (lambda x: pb.softmax(x, axis=-1), (array(512, 512),)),
        "layer norm 4096x1024": (lambda x: F.layer_norm(x, (1024,)), (array(4096, 1024),)),
        "sum of columns 4096x1024": (lambda x: pb.sum(x, axis=0), (array(4096, 1024),)),
        "product 512^3": (lambda a, b: a @ b, (array(512, 512), array(512, 512))),
        "product 1024^3": (lambda a, b: a @ b, (array(1024, 1024), array(1024, 1024))),
        "product 128x784x512": (lambda a, b: a @ b, (array(128, 784), array(784, 512))),
        "attention 4x8x256x64 causal": (attend, tuple(heads)),
        "attention, gradients": (squares(attend, 3), tuple(heads)),
        "conv 3x3 8x64x56x56": (conv, (array(8, 64, 56, 56), array(64, 64, 3, 3))),
        "conv, gradients": (squares(conv, 2), (array(8, 64, 56, 56), array(64, 64, 3, 3))),
    }


if __name__ == "__main__":
    main()
