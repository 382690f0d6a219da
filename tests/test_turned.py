"""Results of register tiles whose rows lie along memory go there by squares."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import pullback as pb
from llvm_support import TARGETS
from pullback.backends.host.processor import named_target
from pullback.config import Options
from pullback.ir.kernel import Kernel
from pullback.ir.target import Target
from pullback.ir.text import routine_text
from pullback.lower import lower
from pullback.lower.whole import scheduled
from pullback.machine.machine import chosen
from pullback.schedule.contraction import products
from pullback.schedule.schedule import Schedule, TileLoops
from pullback.verify.nest import verify_routine
from random_schedules import natively

conv2d = pb.nn.functional.conv2d


def plain(x: Any, w: Any) -> Any:
    return conv2d(x, w, padding=1)


def followed(x: Any, w: Any) -> Any:
    """A bias, a residual and an activation in the same kernel, which has two results."""
    y = conv2d(x, w, padding=1) + w[:, :1, 1, :1]
    return pb.relu(y), pb.exp(-y)


def rounded(x: Any, w: Any) -> Any:
    """Results of two bytes go one by one."""
    return conv2d(x, w, padding=1).astype("float16")


def turned(x: Any, w: Any) -> Any:
    return pb.matrix_transpose(x[0, :, :, 0] @ w[:, :, 0, 0].mT)


CASES: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...]]] = {
    "channels": (plain, (2, 20, 18, 19), (37, 20, 3, 3)),
    "one channel more": (plain, (1, 40, 14, 14), (65, 40, 3, 3)),
    "maps that follow": (followed, (2, 20, 18, 19), (37, 20, 3, 3)),
    "two bytes": (rounded, (2, 20, 18, 19), (37, 20, 3, 3)),
    "a product": (turned, (1, 45, 70, 1), (33, 70, 1, 1)),
    "long sums": (plain, (1, 300, 9, 10), (40, 300, 3, 3)),
}


def with_squares(schedule: Schedule, squares: bool) -> Schedule:
    steps = [
        replace(s, loops=replace(s.loops, turned=squares)) if isinstance(s.loops, TileLoops) else s
        for s in schedule.steps
    ]
    return replace(schedule, steps=tuple(steps))


def by_channels(kernel: Kernel, target: Target) -> Schedule:
    """A schedule whose lanes are channels, or what they are in a product."""
    best = scheduled(kernel, target)
    product = next((s for s in best.steps if s.product is not None), None)
    columns = () if product is None else products(kernel.stages[product.lead])
    ways = (scheduled(kernel, target, ((f"column.{product.lead}", c),)) for c in columns)
    made = (
        w for w in ways if any(isinstance(s.loops, TileLoops) and s.loops.turned for s in w.steps)
    )
    return next(made, best)


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
@pytest.mark.parametrize("case", CASES)
def test_results_have_the_bits_of_elements_alone(case: str, target: Target) -> None:
    function, *shapes = CASES[case]
    program = pb.jit(function, options=Options(cache=None))
    program(*(pb.ones(shape) for shape in shapes))
    copies = 0
    for kernel in program.program.kernels:
        schedule = by_channels(kernel, target)
        squares, alone = (lower(kernel, with_squares(schedule, on)) for on in (True, False))
        verify_routine(squares, "lower")
        copies += routine_text(squares).count(" for r < ") - routine_text(alone).count(" for r < ")
        pairs = zip(natively(kernel, squares), natively(kernel, alone), strict=True)
        for number, (got, want) in enumerate(pairs):
            differ = np.argwhere(got != want)
            assert not len(differ), f"argument {number}: {len(differ)} differ, first {differ[0]}"
    assert (copies > 0) == (case != "two bytes"), f"{copies} copies"


def test_channels_are_turned_around() -> None:
    """A scatter of 16 lanes takes 6 ns on Zen 4, a square of 14 x 16 22 in all."""
    target = named_target("x86-64-v4").on(chosen("zen4"))
    program = pb.jit(plain, options=Options(cache=None))
    program(pb.ones((8, 64, 56, 56)), pb.ones((64, 64, 3, 3)))
    kernel = program.program.kernels[-1]
    loops = next(s.loops for s in scheduled(kernel, target).steps if s.product is not None)
    assert isinstance(loops, TileLoops) and loops.turned


def test_rows_of_a_product_stay() -> None:
    program = pb.jit(lambda a, b: a @ b, options=Options(cache=None))
    program(pb.ones((200, 64)), pb.ones((64, 130)))
    target = named_target("x86-64-v4").on(chosen("zen4"))
    loops = scheduled(program.program.kernels[0], target).steps[0].loops
    assert isinstance(loops, TileLoops) and not loops.turned
