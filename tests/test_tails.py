"""Ends of loops: right for every extent from 1 to 70, and no guard where the extent divides."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import pullback as pb
from pullback.conformance.case import cells
from pullback.conformance.cases import SECTIONS
from pullback.conformance.run import conformance
from test_backends import needs_c
from test_conformance import NEEDS

TARGET = "x86-64-v3"  # 8 lanes of float32
# Masked vectors of LLVM; what is left over after whole vectors in C.
GUARDS = {"llvm": r"llvm\.masked", "c": r"l < \(int\)\("}
PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "map": lambda x: x * x[:1] + 1,
    "sums of rows": lambda x: pb.sum(x, axis=1),
    "softmax": lambda x: pb.softmax(x, axis=1),
    "product": lambda x: x @ pb.ones((x.shape[1], x.shape[1])),
}


SLOW = [pytest.param(n, marks=[m, pytest.mark.slow]) for n, m in NEEDS.items()]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["llvm", "kernels", *SLOW])
def test_every_extent_from_1_to_70(name: str) -> None:
    """Known when it is compiled, and at each call alone."""
    chosen = [c for kind in ("float32", "int32") for c in cells(SECTIONS, f" of 1 to 70, {kind}")]
    chosen += [c for n in ("map", "sum") for c in cells(SECTIONS, f"extents: {n}, float32")]
    assert len(chosen) == 6
    assert [v.why for v in conformance(name, chosen) if v.state != "pass"] == []


@pytest.mark.parametrize("name", PROGRAMS)
def test_no_guard_where_the_extent_divides(name: str) -> None:
    assert guards("llvm", name, 64) == 0
    assert guards("llvm", name, 70) > 0


@needs_c
@pytest.mark.parametrize("name", ["sums of rows"])
def test_no_guard_where_the_extent_divides_in_c(name: str) -> None:
    """Its compiler cuts plain loops; those that add up in lanes are cut here."""
    assert guards("c", name, 64) == 0
    assert guards("c", name, 70) == 1


def guards(backend: str, name: str, columns: int) -> int:
    """How often the text of a program's code looks after a tail."""
    options = pb.Options(backend=backend, target=TARGET, cache=None)
    program = pb.jit(PROGRAMS[name], options=options)
    program(pb.ones((8, columns)))
    text = program.program.source()
    uses = [line for line in text.splitlines() if not line.startswith("declare")]
    return sum(len(re.findall(GUARDS[backend], line)) for line in uses)
