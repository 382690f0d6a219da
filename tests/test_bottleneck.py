"""The sentence of `pullback explain` about a kernel that takes more than twice its limit."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.backends.host.processor import named_target
from pullback.backends.nests.bottleneck import held_back, limit
from pullback.backends.nests.price import nest_price
from pullback.backends.nests.ranges import lowered
from pullback.lower.whole import scheduled
from pullback.machine.machine import chosen

TARGET = named_target("x86-64-v4").on(chosen("zen5"))
OPTIONS = pb.Options(threads=1)
RNG = np.random.default_rng(0)


def floats(*shape: int) -> Any:
    return RNG.random(shape, np.float32)


def places(below: int, *shape: int) -> Any:
    return RNG.integers(0, below, shape)


def sentences(function: Any, *args: Any) -> list[str]:
    """One for each kernel, "" where it is near its limit."""
    compiled = pb.jit(function, options=OPTIONS)
    compiled(*args)
    said = []
    for kernel in compiled.program.distinct():
        made = scheduled(kernel, TARGET)
        said.append(held_back(kernel, lowered(kernel, made, marks=True), TARGET))
    return said


def near_the_limit() -> list[tuple[Any, tuple[Any, ...]]]:
    return [
        (lambda a, b: a @ b, (floats(256, 256), floats(256, 256))),
        (lambda a, b: a + b, (floats(3000, 1000), floats(3000, 1000))),
    ]


@pytest.mark.parametrize("case", near_the_limit(), ids=["a product", "a sum of two"])
def test_what_is_near_its_limit_is_not_told_of(case: tuple[Any, tuple[Any, ...]]) -> None:
    assert sentences(case[0], *case[1]) == [""]


HELD = {
    "a function": (
        lambda x: pb.exp(x) + pb.log(x),
        (floats(100, 1000),),
        "whose exp, log are what it waits for",
    ),
    "a chain": (
        lambda x: pb.cumulative_sum(x, axis=1),
        (floats(7, 30000),),
        "whose turns wait for one another",
    ),
    "places that are data": (
        lambda x, i: x[i],
        (floats(4_000_000), places(4_000_000, 300_000)),
        "at places that are data",
    ),
    "rows that lie apart": (
        lambda x: pb.sum(x[:, ::64], axis=1),
        (floats(3, 1 << 20),),
        "element by element",
    ),
}


@pytest.mark.parametrize("name", HELD)
def test_the_reason_and_the_line(name: str) -> None:
    function, args, why = HELD[name]
    (said,) = [s for s in sentences(function, *args) if s]
    times, least, most = (float(n) for n in re.findall(r"\d+\.\d\d?(?= |$)", said)[:3])
    assert why in said and f"{__file__}:" in said
    assert times > 2 and least > 0 and most <= 1.01 * times * least


def test_a_launch_is_part_of_the_limit() -> None:
    compiled = pb.jit(lambda x: pb.exp(x) / 3, options=OPTIONS)
    compiled(floats(5))
    (kernel,) = compiled.program.distinct()
    assert limit(kernel, TARGET) >= TARGET.profile.rate("launch", "launch")
    assert sentences(lambda x: pb.exp(x) / 3, floats(5)) == [""]


def test_tasks_that_take_longer_than_their_work_are_the_reason() -> None:
    compiled = pb.jit(lambda x: x + 1, options=OPTIONS)
    compiled(floats(64, 8))
    (kernel,) = compiled.program.distinct()
    made = scheduled(kernel, TARGET, (("tasks", 16), ("tile.0", 4)))
    said = held_back(kernel, lowered(kernel, made, marks=True), TARGET)
    assert said.endswith("us begin its 16 tasks")


def test_marks_cost_nothing() -> None:
    compiled = pb.jit(lambda x: pb.softmax(x, axis=1), options=OPTIONS)
    compiled(floats(50, 70))
    for kernel in compiled.program.distinct():
        made = scheduled(kernel, TARGET)
        nests = (lowered(kernel, made, marks=marks) for marks in (False, True))
        plain, marked = (nest_price(nest, TARGET) for nest in nests)
        assert plain == marked


def test_explain_says_it() -> None:
    compiled = pb.jit(lambda x: pb.exp(x), options=OPTIONS)
    compiled(floats(100, 1000))
    assert "times its limit of" in compiled.program.explain()
