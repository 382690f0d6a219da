"""Kernels drawn at random from the constructs of Triton: their derivatives, certified.

    python scripts/fuzz_triton.py [--kernels 100] [--seed 0] [--halves]

Each kernel is of float64; on the interpreter its derivative is held against central differences
along random directions, and must be linear in what comes from behind (`pb.triton.check`).
With `--halves` it is one that loads, computes and stores in float16 or bfloat16 too: in float64
throughout it is certified so, and its derivative in 16 bits is held against that in float64 of the
same numbers, rounded at the same places.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("TRITON_INTERPRET", "1")

import torch
import triton.language as tl

import pullback as pb
from pullback.config import module_of
from pullback.errors import PullbackError

HEAD = """import triton
import triton.language as tl


@triton.jit
def times(a, b):
    return a * b


@triton.jit
def linear(a, b, c, d):
    return a * c, c * b + d


@triton.jit
def kernel(X, W, OUT, n, BLOCK: tl.constexpr):
    part = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    mask = at < n
    x = tl.load(X + part * n + at, mask=mask, other=0.0)
    w = tl.load(W + at, mask=mask, other=0.0)
"""
# The same of 16 bits: `HALF` and `ROUND` are their type, `WIDE` and `MIDDLE` are float32. In the
# kernel that it is held against `ROUND` stays; all types are float64 where it is certified.
HALVES = (
    HEAD.replace(
        "n, BLOCK: tl.constexpr",
        "n, HALF: tl.constexpr, ROUND: tl.constexpr, MIDDLE: tl.constexpr, WIDE: tl.constexpr,\n"
        "           BLOCK: tl.constexpr",
    )
    + """    hx = x
    hw = w
    x = x.to(WIDE)
    w = w.to(WIDE)
"""
)
# Each rounds once.
ROUNDED = (
    "{a} * {b}", "{a} + {b}", "{a} - {b}", "-{a}", "{a} * 0.375", "tl.abs({a})",
    "tl.maximum({a}, {b})", "tl.minimum({a}, 0.25)", "tl.clamp({a}, -0.75, 0.5)",
    "tl.where({a} > {b}, {a}, 0.5)", "tl.where({a} < 0.1, {a}, {b})", "tl.fma({a}, {b}, {a})",
    "tl.where({a} == {b}, {b}, {a})", "tl.where({a} >= 0, {a}, {b})",
    "tl.reshape(tl.trans(tl.reshape({a}, (4, BLOCK // 4))), (BLOCK,))",
    "tl.gather({a}, (at * 3 + 1) % BLOCK, 0)",
)  # fmt: skip
# Smooth nearly everywhere and bounded, so that differences tell.
ELEMENTS = (
    "tl.sin({a}) + {b}", "{a} * tl.cos({b})", "{a} / (1 + {b} * {b})", "tl.exp(-{a} * {a}) * {b}",
    "tl.sqrt(1 + {a} * {a}) - {b}", "tl.rsqrt(1 + {a} * {a}) * {b}", "tl.erf({a}) + 0.5 * {b}",
    "tl.log(1 + {a} * {a}) * {b}", "tl.where(at % 3 == 0, {a}, {b})", "tl.sigmoid({a}) * {b}",
    "tl.fma({a}, {b}, {a})", "tl.where(mask, {a}, 0.0) * {b}", "tl.maximum({a}, 0.3) * {b}",
    "tl.minimum(tl.exp(0.2 * tl.sin({a})) - 1.1, 0.07) + {b}", "{a} / (1 + tl.abs({b}))",
    "tl.maximum(0.7 - {a}, -0.9) * {b} / 3", "{b} * {a} * {b} / (2 + tl.cos({b})) * 0.5",
    "{a} / (n * 0.1) * tl.minimum({b} * (n * -0.1), 0.0)", "0.5 * {a} * {a} - {a} * 0.3 + {b}",
)  # fmt: skip
BLOCKS = (
    "tl.exp(tl.sin({a})) / tl.sum(tl.exp(tl.sin({a})), 0) * {b}",
    "tl.cos({a}) * 2 / tl.sum(tl.where(mask, 1 + {b} * {b}, 0.0), 0) - {b}",
    "{a} * tl.sum(tl.where(mask, {b}, 0.0), 0) * 0.2",
    "{a} - tl.sum({b} * {b}, 0) / BLOCK",
    "tl.cumsum(tl.where(mask, {a}, 0.0), 0) * 0.2 + {b}",
    "tl.cumsum(tl.where(mask, {a}, 0.0), 0, reverse=True) * 0.2 * {b}",
    "tl.associative_scan(tl.where(mask, tl.cos({a}), 1.0), 0, times) + {b}",
    "tl.associative_scan(tl.cos({a}), 0, times, reverse=True) * {b}",
    "tl.reduce(tl.where(mask, tl.cos({a}), 1.0), 0, times) * {b}",
    "tl.gather({a}, (at * 3 + 1) % BLOCK, 0) * {b}",
    "tl.reshape(tl.trans(tl.reshape({a}, (4, BLOCK // 4))), (BLOCK,)) + {b}",
    "tl.sum(tl.reshape({a}, (BLOCK, 1)) * tl.reshape({b}, (1, BLOCK)), 1) * 0.2",
)


def grown(draw: random.Random, halves: bool = False) -> list[str]:
    """The lines of a kernel; `names` are the blocks that there are."""
    lines, names, short = [], ["x", "w"], ["hx", "hw"]
    for k in range(draw.randint(3, 7)):
        name = f"v{k}"
        if halves and draw.random() < 0.5:
            lines += ["    " + line for line in rounded(draw, name, names, short)]
        else:
            lines += ["    " + line for line in statement(draw, name, names)]
        names.append(name)
    total = " + ".join(["x * 0.1", *names[-3:]])
    return [*lines, f"    tl.store(OUT + part * n + at, {total}, mask=mask)", ""]


def rounded(draw: random.Random, name: str, names: list[str], short: list[str]) -> list[str]:
    """An operation in 16 bits; `short` are the blocks that have as many."""
    lines = []
    if draw.random() < 0.5:
        short.append(f"h{draw.choice(names)}_{name}")
        lines += [f"{short[-1]} = {short[-1][1:].split('_')[0]}.to(MIDDLE).to(ROUND).to(HALF)"]
    form = draw.choice(ROUNDED).format(a=draw.choice(short), b=draw.choice(short))
    short.append(f"h{name}")
    return [*lines, f"h{name} = ({form}).to(MIDDLE).to(ROUND).to(HALF)",
            f"{name} = h{name}.to(WIDE)"]  # fmt: skip


def expression(draw: random.Random, names: list[str]) -> str:
    form = draw.choice(ELEMENTS if draw.random() < 0.6 else BLOCKS)
    return form.format(a=draw.choice(names), b=draw.choice(names))


def statement(draw: random.Random, name: str, names: list[str]) -> list[str]:
    one, two = expression(draw, names), expression(draw, [*names, name])
    kind = draw.choice(("plain", "plain", "for", "if", "while", "pair", "tuple", "split"))
    if kind == "for":
        steps = draw.choice(("3", "part + 2", "n // 4"))
        return [f"{name} = {one}", f"for _ in range({steps}):", f"    {name} = 0.5 * tl.sin({two})"]
    if kind == "if":
        other = expression(draw, names)
        return [f"if part % 2 == {draw.randint(0, 1)}:", f"    {name} = {one}",
                "else:", f"    {name} = {other}"]  # fmt: skip
    if kind == "while":
        return [f"{name} = {one}", f"left_{name} = 3", f"while left_{name} > part:",
                f"    {name} = 0.5 * tl.cos({two})", f"    left_{name} -= 1"]  # fmt: skip
    if kind == "pair":
        a, b = draw.choice(names), draw.choice(names)
        return [f"{name} = tl.reshape(tl.join({a}, {b} * {a}), (2 * BLOCK,))",
                f"{name} = tl.sum(tl.reshape({name}, (BLOCK, 2)), 1)"]  # fmt: skip
    if kind == "tuple":
        a, b = draw.choice(names), draw.choice(names)
        return [f"_, {name} = tl.associative_scan((tl.sin({a}), {b}), 0, linear)"]
    if kind == "split":
        a = draw.choice(names)
        return [f"half_{name}, other_{name} = tl.split(tl.reshape({a}, (BLOCK // 2, 2)))",
                f"{name} = {one} * tl.sum(half_{name} * other_{name}, 0) * 0.2"]  # fmt: skip
    return [f"{name} = {one}"]


def tried(seed: int, folder: Path) -> str:
    """What is wrong with the derivative of a kernel, or nothing."""
    draw = random.Random(seed)
    path = folder / f"drawn_{seed}.py"
    path.write_text("\n".join([HEAD.rstrip(), *grown(draw)]))
    f = pb.triton.op(module_of(path).kernel, grid=(3,), outputs="OUT")
    torch.manual_seed(seed)
    x, w = torch.randn(3, 13, dtype=torch.float64), torch.randn(13, dtype=torch.float64)
    try:
        report = pb.triton.check(f, x, w, 13, BLOCK=16, tolerance=1e-2)
    except PullbackError as error:
        return f"{error}".splitlines()[0]
    return "" if report.linear < 1e-9 else f"not linear: {report.linear:.1e}"


def tried_in_halves(seed: int, folder: Path) -> str:
    """What is wrong with the derivative of a kernel that has 16 bits in places, or nothing."""
    draw = random.Random(seed)
    kind = draw.choice((torch.bfloat16, torch.float16))
    short = tl.bfloat16 if kind == torch.bfloat16 else tl.float16
    out = draw.choice((kind, torch.float32))
    path = folder / f"drawn_{seed}.py"
    path.write_text("\n".join([HALVES.rstrip(), *grown(draw, True)]))
    kernel = module_of(path).kernel
    torch.manual_seed(seed)
    given = [torch.randn(3, 13).to(kind), torch.randn(13).to(kind)]
    exact = [t.double() for t in given]
    one = pb.triton.op(kernel, grid=(3,), outputs={"OUT": lambda _: torch.zeros(3, 13).to(out)})
    two = pb.triton.op(kernel, grid=(3,), outputs="OUT")
    fine, middle = tl.float64, tl.float32
    try:
        pb.triton.check(two, *exact, 13, fine, fine, fine, fine, BLOCK=16, tolerance=1e-2)
        behind = torch.randn(3, 13).to(out)
        grown_ = gradients(one, given, behind, (short, short, middle, middle))
        known = gradients(two, exact, behind.double(), (fine, short, middle, fine))
    except PullbackError as error:
        return f"{error}".splitlines()[0]
    near = 2.0 ** (-6 if kind == torch.bfloat16 else -9)  # of what is stored two last places
    errors = [
        float((a.double() - b).norm() / (b.norm() + near))
        for a, b in zip(grown_, known, strict=True)
    ]
    return "" if max(errors) < near else f"off by {max(errors):.1e} in {kind}"


def gradients(f: Any, given: list[Any], behind: Any, types: tuple[Any, ...]) -> Any:
    own = [t.clone().requires_grad_() for t in given]
    return torch.autograd.grad(f(*own, 13, *types, BLOCK=16), own, behind)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--halves", action="store_true", help="with float16 and bfloat16")
    given = parser.parse_args()
    wrong, of = 0, tried_in_halves if given.halves else tried
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(given.seed, given.seed + given.kernels):
            if why := of(seed, Path(folder)):
                wrong += 1
                print(f"seed {seed}: {why}\n{(Path(folder) / f'drawn_{seed}.py').read_text()}")
    print(f"{given.kernels - wrong} of {given.kernels} derivatives are certified")
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
