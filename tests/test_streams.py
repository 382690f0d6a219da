"""Large results are written past the caches, whole vectors at a time, where they are aligned."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.backends.host.processor import host_target
from pullback.backends.host.system import address

LARGE = host_target().l3 // 2
X86 = host_target().name.startswith("x86")
ROWS = 1024


def numbers(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def past_caches(function: Any, *given: Any) -> bool:
    """Whether a program of `function` has such stores."""
    program = pb.jit(function)
    found = program(*given).numpy()
    wanted = function(*map(pb.tensor, given)).numpy()
    assert np.allclose(found, wanted, atol=1e-5)
    return "vmovntp" in program.program.assembly("x86-64-v4")


@pytest.mark.slow
@pytest.mark.skipif(not X86, reason="such stores are made for x86 only")
def test_only_large_results_that_are_not_read_again() -> None:
    wide = LARGE // ROWS // 4
    assert past_caches(lambda x: x * 2.0, numbers(ROWS, wide))
    assert not past_caches(lambda x: x * 2.0, numbers(ROWS, wide - 16))
    assert past_caches(lambda x: pb.nn.functional.softmax(x, -1), numbers(ROWS, wide))


@pytest.mark.parametrize("columns", [1, 3, 15, 17])
def test_rows_that_begin_anywhere(columns: int) -> None:
    """Rows of no whole number of lines: some are aligned, others are not."""
    wide = LARGE // ROWS // 4 + columns
    x, b = numbers(ROWS, wide), numbers(wide)
    run = pb.jit(lambda x, b: (x - pb.mean(x, axis=1, keepdims=True)) * b)
    found = run(x, b).numpy()
    assert np.allclose(found, (x - x.mean(1, keepdims=True)) * b, atol=1e-4)


def test_memory_that_is_not_aligned() -> None:
    run = pb.jit(lambda x: x * 2.0)
    x = numbers(LARGE // 4)
    run(x)
    source, target = run.program.program.state
    raw = np.zeros(LARGE + 64, np.uint8)
    start = -address(raw) % 64 + 4
    result = raw[start : start + LARGE].view(np.float32)
    run.program.run({source: x, target: result})
    assert np.array_equal(result, x * 2)
    assert not raw[:start].any()
    assert not raw[start + LARGE :].any()
