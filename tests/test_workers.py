"""Processes that choose schedules beside the one that compiles: the same choices, or none."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pullback as pb
from pullback.backends.host import workers
from pullback.backends.host.workers import Workers, machine_digest
from pullback.backends.nests.cheapest import cheapest
from pullback.backends.registry import compiler
from pullback.config import Options
from pullback.errors import OptionError
from pullback.ir.kernel import Kernel
from pullback.schedule.choices import Choices

ASKED = {"backend": "llvm", "target": "x86-64-v3", "machine": "zen3"}
TARGET = compiler("llvm").machine(Options(**ASKED))
PATIENCE = 60  # seconds
SLEEP = "exec sleep 600"
AGREES = f"echo '{json.dumps(machine_digest(TARGET))}'"


def drawn(rows: int, terms: int, columns: int) -> Kernel:
    options = Options(target=ASKED["target"], machine=ASKED["machine"], cache=None)
    program = pb.jit(lambda a, b: pb.tanh(a @ b), options=options)
    given = pb.ones((rows, terms)), pb.ones((terms, columns))
    program(*given)
    return pb.schedule(program, *given).kernel


@pytest.fixture(scope="module")
def kernels() -> list[Kernel]:
    """Some whose tile, panels or columns prices choose."""
    sizes = (36, 7, 5), (768, 394, 192), (100, 1000, 100), (12, 130, 64)
    return [drawn(*size) for size in sizes]


class Counted:
    """Chooses as the backend does, and counts."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, kernel: Kernel) -> Choices:
        self.asked += 1
        return cheapest(kernel, TARGET)


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes are started after the first kernel, one for each of the others."""
    monkeypatch.setattr(workers, "START", 1e-9)


def script(path: Path, *lines: str) -> str:
    """A program that answers what it likes."""
    path.write_text("\n".join(("#!/bin/sh", *lines)) + "\n")
    path.chmod(0o755)
    return str(path)


def ended(made: Workers) -> bool:
    return all(w._process.poll() is not None for w in made._workers)


def test_other_processes_choose_the_same(kernels: list[Kernel], at_once: None) -> None:
    own = Counted()
    with Workers(kernels, own, ASKED, TARGET, 3) as made:
        first = made.choices(kernels[0])
        until = time.monotonic() + PATIENCE
        while made.beside < len(kernels) - 1 and time.monotonic() < until:
            time.sleep(0.01)
        got = [first, *map(made.choices, kernels[1:])]
    assert own.asked == 1, "the others were chosen for beside it"
    assert got == [cheapest(kernel, TARGET) for kernel in kernels]
    assert any(got), "prices choose something, or nothing is compared"
    assert len(made._workers) == 2 and ended(made)


@pytest.mark.parametrize(
    ("ends", "lines"),
    [
        (True, ["exit 1"]),
        (True, ["echo nonsense", SLEEP]),
        (True, ["echo '[1, 2]'", SLEEP]),
        (True, [AGREES, 'echo \'["other", ["tile.0", 1]]\'', SLEEP]),
        (True, [AGREES, "echo 7", SLEEP]),
        (True, [AGREES, "exit 0"]),
        (False, [SLEEP]),
        (False, [AGREES, SLEEP]),
    ],
    ids=[
        "ends",
        "no JSON",
        "another machine",
        "another kernel",
        "no choices",
        "no answer",
        "says nothing",
        "answers nothing",
    ],
)
def test_a_process_that_fails_changes_nothing(
    kernels: list[Kernel],
    ends: bool,
    lines: list[str],
    at_once: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other = script(tmp_path / "other", *lines)
    monkeypatch.setattr(workers, "get_executable", lambda: other)
    began = time.monotonic()
    with Workers(kernels, Counted(), ASKED, TARGET, 2) as made:
        got = [made.choices(kernels[0])]
        made._threads[0].join(PATIENCE if ends else 0.5)
        assert made._threads[0].is_alive() != ends
        got += map(made.choices, kernels[1:])
    assert got == [cheapest(kernel, TARGET) for kernel in kernels]
    assert made.beside == 0 and len(made._threads) == 1 and ended(made)
    assert time.monotonic() - began < PATIENCE, "nobody waits for it"


def test_no_program_to_start(
    kernels: list[Kernel], at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "get_executable", lambda: "/no/such/python")
    with Workers(kernels, Counted(), ASKED, TARGET, 2) as made:
        assert [made.choices(k) for k in kernels] == [cheapest(k, TARGET) for k in kernels]


def test_an_error_ends_the_processes(kernels: list[Kernel], at_once: None) -> None:
    with pytest.raises(KeyError), Workers(kernels, Counted(), ASKED, TARGET, 3) as made:
        made.choices(kernels[0])
        raise KeyError
    assert ended(made)


def test_small_programs_start_none(kernels: list[Kernel], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does one whose program is no Python: it would start itself."""

    def refused() -> Any:
        raise AssertionError("no process is wanted")

    with Workers(kernels, Counted(), ASKED, TARGET, 4) as made:
        for kernel in kernels:
            made.choices(kernel)
    assert not made._threads
    monkeypatch.setattr(workers, "START", 1e-9)
    monkeypatch.setattr(workers, "_Worker", refused)
    for frozen, most in ((True, 4), (False, 1)):
        monkeypatch.setattr(sys, "frozen", frozen, raising=False)
        with Workers(kernels, Counted(), ASKED, TARGET, most) as made:
            for kernel in kernels:
                made.choices(kernel)
        assert not made._threads


def test_a_program_of_several_processes(
    at_once: None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """Its results are those of one: every kernel waits until another process chose for it."""
    patient = Workers.choices

    def choices(self: Workers, kernel: Kernel) -> Choices:
        until = time.monotonic() + PATIENCE
        while self._threads and kernel not in self._known and time.monotonic() < until:
            time.sleep(0.01)
        return patient(self, kernel)

    monkeypatch.setattr(Workers, "choices", choices)

    def function(x: pb.Tensor) -> pb.Tensor:
        for size in (48, 33, 20):
            x = pb.cumulative_sum(x[:, :size] @ x[:size, :size].mT, axis=0)
        return x

    x = np.random.default_rng(0).normal(size=(70, 50)).astype(np.float32)
    want, got = (
        pb.jit(function, options=Options(cache=None, workers=n, debug=1))(x).numpy() for n in (1, 2)
    )
    np.testing.assert_array_equal(got, want)
    assert "kernels by other processes" in capfd.readouterr().err


def test_how_many(monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong in (0, -1, 1.5, "2", True):
        with pytest.raises(OptionError, match="workers"):
            Options(workers=wrong)  # type: ignore[arg-type]
    monkeypatch.setenv("PULLBACK_WORKERS", "3")
    assert Options.from_environment().workers == 3
    monkeypatch.setenv("PULLBACK_WORKERS", "-3")
    with pytest.raises(OptionError, match="-3 workers"):
        Options.from_environment()
