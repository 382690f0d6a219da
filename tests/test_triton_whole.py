"""Triton on every small program: what the oracle computes, and code for a GPU that is not there."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from pullback.backends.triton import offline, plan
from pullback.backends.triton.backend import orders
from pullback.backends.triton.machine import named
from pullback.backends.triton.price import Work
from pullback.ir.dtype import DType, bfloat16, float32, float64
from small_programs import PROGRAMS
from test_backends import agree
from test_triton import SOME, needs_triton
from test_triton_schedules import product

pytestmark = [needs_triton, pytest.mark.slow]
GPUS = {"sm_80": "a100", "sm_90": "h100", "sm_100": "b200"}
WIDEST = {"a100": "mma.sync", "h100": "wgmma.mma_async", "b200": "tcgen05.mma"}


def script() -> Any:
    """`scripts/gpu_offline.py`."""
    path = Path(__file__).parent.parent / "scripts" / "gpu_offline.py"
    spec = importlib.util.spec_from_file_location("gpu_offline", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", [n for n in PROGRAMS if n not in SOME])
def test_small_programs(name: str) -> None:
    agree(name, "triton")


@pytest.mark.parametrize("target", GPUS)
def test_a_sample_compiles_for_every_gpu(target: str) -> None:
    """Products by tensor cores, shared memory that there is, no spills; the whole by the script."""
    offline_ = script()
    gpu = named(GPUS[target])
    made = offline_.rows(offline_.suite("float32", every=5), gpu)
    assert len(made) > 15 and any("tl.dot" in row.launch.source for row in made)
    for row in made:
        assert not list(row.faults(gpu)), row.binary


@pytest.mark.parametrize("name", WIDEST)
@pytest.mark.parametrize("kind", [bfloat16, float32, float64])
def test_large_products_are_what_their_price_says(name: str, kind: DType) -> None:
    """The widest instruction, no more shared memory than was counted, nothing spilled; parts of a
    sum are added by a second launch.
    """
    gpu = named(name)
    kernel = product(4096, 4096, 4096, kind, after=1)
    made = plan.scheduled(kernel, plan.chooser(gpu))
    (binary, *added) = offline.compiled(orders(plan.written("product", made)), gpu.capability)
    group, schedule = made[0]
    assert len(added) == (schedule.chunks > 1)
    assert all(one.stack == 0 for one in added)
    needs = Work.of(group, gpu).needs(schedule)
    assert (WIDEST[name] if kind is not float64 else "m8n8k4") in binary.texts["ptx"]
    assert binary.shared <= needs.shared + 64 and binary.shared > 0
    assert binary.stack == 0 and binary.registers <= 255
