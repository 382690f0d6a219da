"""Triton on every small program: what the oracle computes, and code for a GPU that is not there."""

from __future__ import annotations

import pytest

from pullback.backends.triton.backend import compiled
from small_programs import PROGRAMS
from test_backends import agree
from test_triton import SOME, kernels, needs_triton

pytestmark = [needs_triton, pytest.mark.slow]


@pytest.mark.parametrize("name", [n for n in PROGRAMS if n not in SOME])
def test_small_programs(name: str) -> None:
    agree(name, "triton")


@pytest.mark.parametrize("name", PROGRAMS)
def test_small_programs_compile_for_hopper(name: str) -> None:
    function, arguments = PROGRAMS[name]("float32")
    for kernel in kernels(function, *arguments):
        assert all(code.cubin for code in compiled(kernel))
