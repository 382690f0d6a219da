"""Vectors of sums in flight, where each lane has a sum of its own: those of the lowest price."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.backends.host.processor import named_target
from pullback.backends.nests.flight import in_flight
from pullback.backends.nests.price import price
from pullback.ir.kernel import Kernel
from pullback.ir.target import Target
from pullback.lower.whole import scheduled
from pullback.machine.machine import chosen

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

from suite import model  # noqa: E402

NARROW = named_target("x86-64-v3").on(chosen("zen3"))
WIDE = named_target("x86-64-v4").on(chosen("zen5"))


def one(function: Any, *shapes: tuple[int, ...], target: Target = NARROW) -> Kernel:
    drawn = function, model.floats(*shapes)
    (kernel,) = model.kernels(Random(0), lambda _: drawn, target)
    return kernel


def ns(kernel: Kernel, given: tuple[tuple[str, int], ...], target: Target = NARROW) -> float:
    return price(kernel, scheduled(kernel, target, given), target).ns


def test_sums_by_columns_read_whole_lines() -> None:
    """Four vectors of 32 bytes are two lines of a row of x, eight are four: 296 us and 220."""
    kernel = one(lambda x: pb.sum(x, axis=0), (512, 4096))
    assert in_flight(kernel, NARROW, ()) == (("unroll.0", 8),)
    assert ns(kernel, (("unroll.0", 8),)) < 0.9 * ns(kernel, ())


def test_rows_of_nine_vectors_are_two_at_a_time() -> None:
    """Four leave one, which is masked: 45 us and 19."""
    kernel = one(lambda x: pb.sum(x, axis=0), (2000, 72))
    (given,) = in_flight(kernel, NARROW, ())
    assert given[0] == "unroll.0"
    assert ns(kernel, (given,)) < 0.9 * ns(kernel, ())


def test_two_sums_take_half_of_the_registers_together() -> None:
    def both(x: Any, y: Any) -> Any:
        return pb.sum(x * y, axis=0) / (1 + pb.sum(x * x, axis=0))

    for given in in_flight(one(both, (512, 4096), (512, 4096)), NARROW, ()):
        assert given[1] <= 4


@pytest.mark.parametrize("target", [NARROW, WIDE], ids=["narrow", "wide"])
def test_what_is_given_and_sums_along_lanes_stay(target: Target) -> None:
    """How many vectors of one sum there are is the order that it adds up in."""
    rows = one(lambda x: pb.sum(x, axis=1), (512, 4096), target=target)
    assert in_flight(rows, target, (("tasks", 2),)) == (("tasks", 2),)
    short = one(lambda x: pb.sum(x, axis=0), (512, 8), target=target)
    assert in_flight(short, target, ()) == ()


def test_results_have_the_bits_of_any_number() -> None:
    x = pb.tensor(np.random.default_rng(0).standard_normal((300, 1001)).astype(np.float32))

    def function(x: Any) -> Any:
        return pb.sum(x * x, axis=0)

    jitted = pb.jit(function)
    wanted = jitted(x).numpy()
    schedule = pb.schedule(jitted, x)
    for count in (1, 2, 4, 8):
        got = pb.jit(function, schedules=schedule.unroll(count))(x).numpy()
        assert np.array_equal(got, wanted), f"{count} vectors: got {got[:3]}, want {wanted[:3]}"
