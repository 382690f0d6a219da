"""Told bounds of sizes; optimizers whose states have shapes of their own."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pullback as pb
from pullback.cli.programs import programs_of
from pullback.errors import ShapeError
from pullback.runtime.tuned import FILE, Key, Tuned, write
from pullback.tensor.run.tune import kernels_of

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
from torch import nn  # noqa: E402  # it needs PyTorch

from pullback.backends.host.processor import chosen_target  # noqa: E402
from pullback.bridge.record import RECORD  # noqa: E402

TARGET = chosen_target(None)

pytestmark = [
    pytest.mark.torch,
    pytest.mark.usefixtures("fresh_torch"),
    pytest.mark.filterwarnings("ignore"),  # of PyTorch's own compiler
]


def rows(count: int, *, most: int | None = None) -> Any:
    x = torch.randn(count, 4)
    if most is not None:
        torch._dynamo.mark_dynamic(x, 0, min=3, max=most)
    return x


def test_a_size_beyond_what_was_told_is_an_error() -> None:
    w = torch.randn(4, 5)
    fast = torch.compile(lambda x, w: (x @ w).relu(), backend=pb.torch.backend)

    def right(x: Any) -> None:
        torch.testing.assert_close(fast(x, w), (x @ w).relu())

    right(rows(8, most=16))
    right(rows(16))
    for count in (17, 2, 1):
        with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as raised:
            fast(rows(count), w)
        error = raised.value.inner_exception
        assert isinstance(error, ShapeError) and error.code == "E122"
        assert f"the size {count}, which was told to be 3..16" in error.what
    right(rows(3))
    right(rows(17, most=32))  # told anew
    right(rows(32))
    torch._dynamo.reset()
    right(rows(40))


def test_bounds_that_a_condition_found_are_not_told() -> None:
    def f(x: Any) -> Any:
        return x * 2.0 if x.shape[0] < 10 else x * 3.0

    fast = torch.compile(f, backend=pb.torch.backend, dynamic=True)
    for count in (4, 9, 30, 5):
        x = rows(count)
        torch.testing.assert_close(fast(x), f(x))


def deep(kind: Any = torch.float64) -> Any:
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3)).to(kind)
    model.scale = nn.Parameter(torch.tensor(1.0, dtype=kind))
    model.unused = nn.Parameter(torch.ones(2, 2, dtype=kind))
    return model


def whole(model: Any, x: Any, y: Any) -> Any:
    return nn.functional.cross_entropy(model(x) * model.scale, y)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weight_decay": 0.1, "maximize": True, "d": 1.5},
        {"eps": (1e-3, 0.1), "beta2_decay": -0.5, "lr": 0.9},
    ],
)
def test_adafactor(options: dict[str, Any]) -> None:
    ours = deep()
    theirs = copy.deepcopy(ours)
    given = {"lr": 0.05, **options}
    own, other = (torch.optim.Adafactor(m.parameters(), **given) for m in (ours, theirs))
    step = pb.torch.step(ours, whole, own, targets=None)
    for n in range(8):
        x, y = torch.randn(5, 2, 4, 4, dtype=torch.float64), torch.randint(3, (5,))
        if n == 4:  # in between, PyTorch's own
            for model, optimizer in ((ours, own), (theirs, other)):
                optimizer.zero_grad()
                whole(model, x, y).backward()
                optimizer.step()
            continue
        loss = step(x, y)
        other.zero_grad()
        wanted = whole(theirs, x, y)
        wanted.backward()
        other.step()
        torch.testing.assert_close(loss, wanted.detach(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=1e-8, atol=1e-9)
    mine, its = own.state_dict()["state"], other.state_dict()["state"]
    torch.testing.assert_close(mine, its, rtol=1e-8, atol=1e-10)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this PyTorch has no Muon")
@pytest.mark.parametrize(
    "options",
    [{}, {"nesterov": False, "ns_steps": 3}, {"adjust_lr_fn": "match_rms_adamw", "momentum": 0.5}],
)
def test_muon(options: dict[str, Any]) -> None:
    """Inside it is bfloat16: sums round in another order, to an error like eager's."""
    ours = nn.Sequential(nn.Linear(12, 20, bias=False), nn.Tanh(), nn.Linear(20, 6, bias=False))
    theirs, exact = copy.deepcopy(ours), copy.deepcopy(ours).double()
    own, other, wide = (
        torch.optim.Muon(m.parameters(), lr=0.02, **options) for m in (ours, theirs, exact)
    )
    step = pb.torch.step(ours, nn.functional.mse_loss, own)
    for _ in range(4):
        x, y = torch.randn(9, 12), torch.randn(9, 6)
        step(x, y)
        for model, optimizer, kind in ((theirs, other, x.dtype), (exact, wide, torch.float64)):
            optimizer.zero_grad()
            nn.functional.mse_loss(model(x.to(kind)), y.to(kind)).backward()
            with pytest.MonkeyPatch.context() as patch:
                if kind == torch.float64:
                    patch.setattr(torch.Tensor, "bfloat16", torch.Tensor.double)
                optimizer.step()
    for mine, its, right in zip(*(m.parameters() for m in (ours, theirs, exact)), strict=True):
        assert (mine - right).norm() < 3 * (its - right).norm()
    buffers = [s.state_dict()["state"][0]["momentum_buffer"] for s in (own, other)]
    torch.testing.assert_close(*buffers, rtol=0.05, atol=2e-3)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_parameters_without_axes_in_float64(accumulate: int) -> None:
    """PyTorch's tracer forgets what is written into a float64 tensor that has no axes."""
    ours = deep()
    theirs = copy.deepcopy(ours)
    own, other = (torch.optim.AdamW(m.parameters(), lr=0.05) for m in (ours, theirs))
    step = pb.torch.step(ours, whole, own, targets=None, accumulate=accumulate)
    for _ in range(3):
        other.zero_grad()
        for _ in range(accumulate):
            x, y = torch.randn(5, 2, 4, 4, dtype=torch.float64), torch.randint(3, (5,))
            step(x, y)
            (whole(theirs, x, y) / accumulate).backward()
        other.step()
    torch.testing.assert_close(ours.state_dict(), theirs.state_dict(), rtol=1e-8, atol=1e-9)
    mine, its = own.state_dict()["state"], other.state_dict()["state"]
    torch.testing.assert_close(mine, its, rtol=1e-8, atol=1e-10)


SCRIPT = """
import torch, pullback as pb
from pullback.bridge.record import RECORD
torch.set_num_threads(1)
fast = torch.compile(lambda x, w: torch.softmax(x @ w, 1), backend=pb.torch.backend)
fast(torch.ones(64, 96), torch.ones(96, 80))
twice = pb.torch.op(lambda x: pb.cumulative_sum(x * 2.0, axis=0), name="tuned_twice")
twice(torch.ones(700))
"""


def test_what_runs_for_pytorch_is_tuned_by_its_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PULLBACK_CACHE": str(tmp_path / "cache"), "PULLBACK_THREADS": "1"}
    command = [sys.executable, "-m", "pullback", "tune", str(script), "--budget", "1"]
    told = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    rows = [line.split("|")[1].strip() for line in told.stdout.splitlines() if line[:1] == "|"][2:]
    assert len(rows) == 2 and any("softmax" in row for row in rows), told.stdout


def test_what_ran_before_a_script_is_not_its_own(tmp_path: Path) -> None:
    fast = torch.compile(lambda x: x * 2.0, backend=pb.torch.backend)
    assert float(fast(torch.ones(1))) == 2.0 and RECORD.programs
    script = tmp_path / "own.py"
    script.write_text("import pullback as pb\nown = pb.jit(lambda x: x + 1.0)\nown(pb.ones(3))\n")
    (program,) = programs_of(script)
    assert program not in RECORD.programs.values()


def test_records_are_what_the_next_compilation_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PULLBACK_CACHE", str(tmp_path))
    x, w = torch.randn(64, 96), torch.randn(96, 80)

    def schedule() -> Any:
        torch._dynamo.reset()
        fast = torch.compile(lambda x, w: x @ w, backend=pb.torch.backend)
        torch.testing.assert_close(fast(x, w), x @ w)
        own = RECORD.programs[max(RECORD.programs)]
        (kernel,) = kernels_of([own])
        return own.chosen(kernel, TARGET), kernel

    before, kernel = schedule()
    write(tmp_path / FILE, {Key.of(kernel, TARGET, 1): Tuned("y", (("unroll.2", 1),), 10.0, 5.0)})
    after, _ = schedule()
    assert before != after
