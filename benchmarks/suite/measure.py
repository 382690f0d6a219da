"""Workers, and rounds in which they take turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from suite.classes import packed
from suite.systems import SYSTEMS
from suite.workload import Training, Workload

ROOT = Path(__file__).parent.parent
PATIENCE = 900.0  # seconds that one answer may take
SOURCE = "PULLBACK_SOURCE"  # a folder that has another package `pullback`
PAUSE = 0.01  # seconds in which the threads of the one before come to rest
PEERS = {
    "eager": ("torch", ("eager",)),
    "compile": ("torch", ("compile", "compile max-autotune", "compile loss")),
    "jax": ("jax", ("", "step", "scan")),
    "numpy": ("numpy", ("",)),
}


@dataclass
class Run:
    """What one worker gave: seconds, bytes, and numbers that tell results apart."""

    system: str
    mode: str
    threads: int
    cold: float = 0.0
    times: list[float] = field(default_factory=list)
    sums: list[list[float]] = field(default_factory=list)
    moved: int = 0
    memory: int | None = None
    trouble: str = ""  # why there is nothing of this
    clock: str = "wall"


@dataclass(frozen=True)
class Setting:
    """How to measure. `pythons`: the interpreter of each system, where it is another one.
    `clock`: "wall", or "processor" for one thread on a machine that does other work.
    `cache`: a folder that keeps what is compiled for warm rows: the next run starts sooner.
    `own`: peers that are pullback itself, by name with what is set for them: another `SOURCE`,
    another backend.
    """

    rounds: int = 7
    quick: bool = False
    peers: tuple[str, ...] = tuple(PEERS)
    pythons: Mapping[str, str] = field(default_factory=dict)
    threads: tuple[int, ...] = (1, 2)
    clock: str = "wall"
    cache: str = ""
    own: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


class Worker:
    """A process that runs one workload in one system. `cache`: a folder for compiled code."""

    def __init__(self, w: Workload, run: Run, s: Setting, cache: str, shapes: Any) -> None:
        self.run = run
        own = s.own.get(run.system)
        system = run.system if own is None else "pullback"
        spec = {"workload": packed(w), "system": system, "mode": run.mode}
        spec |= {"threads": run.threads, "shapes": shapes, "clock": s.clock}
        python = s.pythons.get(run.system, sys.executable)
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by __exit__
        self.process = subprocess.Popen(
            [python, "-m", "suite.worker", json.dumps(spec)],
            env=_environment(run.threads, cache, own or {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
        )
        self.shapes: Any = {}
        self._begin()

    def _begin(self) -> None:
        found = self._answer()
        if "missing" in found:
            self.run.trouble = f"{found['missing']} is not installed"
        elif "cold" not in found:
            self.errors.seek(0)
            lines = [line for line in self.errors.read().splitlines() if line.strip()]
            self.run.trouble = "failed: " + (lines[-1].strip() if lines else "no answer")
        else:
            self.shapes = found["shapes"]
            self.run.cold, self.run.moved = found["cold"], found["moved"]
            self.run.sums = found["sums"]

    def _answer(self) -> dict[str, Any]:
        """The next line of JSON; others are what libraries print. Empty where the worker died."""
        watch = threading.Timer(PATIENCE, self.process.kill)
        watch.start()
        try:
            for line in self.process.stdout or ():
                if line.startswith("{"):
                    return dict(json.loads(line))
            return {}
        finally:
            watch.cancel()

    def ask(self, what: str) -> dict[str, Any]:
        if self.run.trouble or self.process.stdin is None:
            return {}
        try:
            print(what, file=self.process.stdin, flush=True)
        except BrokenPipeError:
            return {}
        return self._answer()

    def sample(self) -> None:
        """One more time."""
        found = self.ask("time")
        if "seconds" in found:
            self.run.times.append(found["seconds"])

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *why: object) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.errors.close()


def _environment(threads: int, cache: str, special: Mapping[str, str]) -> dict[str, str]:
    eigen = f"--xla_cpu_multi_thread_eigen={'true' if threads > 1 else 'false'}"
    names = ("PULLBACK_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    folders = [str(ROOT), special.get(SOURCE, ""), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(folder for folder in folders if folder)
    own = {
        "PYTHONPATH": path,
        "XDG_CACHE_HOME": cache,
        "TORCHINDUCTOR_CACHE_DIR": cache,
        "JAX_COMPILATION_CACHE_DIR": cache,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": eigen,
    }
    return {**os.environ, **own, **special, **dict.fromkeys(names, str(threads))}


def variants(w: Workload, s: Setting) -> list[Run]:
    """Every system in every mode on every number of threads; pullback first."""
    found = [Run("pullback", "", n) for n in s.threads]
    for peer in s.peers:
        if peer in s.own:
            found += [Run(peer, "", n) for n in s.threads]
            continue
        system, modes = PEERS[peer]
        kind = SYSTEMS[system]
        training = isinstance(w, Training)
        known = kind.training_modes if training else kind.modes
        if not training and getattr(w, system, None) is None:
            continue
        if system == "numpy" and (training or getattr(w, "part", "")):
            continue
        wanted = [m for m in modes if m in known and (not s.quick or m in kind.quick)]
        found += [Run(system, m, n) for m in wanted for n in s.threads]
    return [replace(run, clock=s.clock) for run in found]


def plainest(w: Workload, s: Setting) -> list[Run]:
    """One mode a peer, that of a single step."""
    found = variants(w, replace(s, quick=False))
    return [r for r in found if r.mode in ("", "eager", "compile", "step")]


def warm(w: Workload, s: Setting) -> list[Run]:
    """All variants, each in a process of its own, then rounds in which each is timed once."""
    runs = variants(w, s)
    with ExitStack() as stack:
        workers = _started(w, runs, s, stack)
        for _ in range(s.rounds):
            for worker in workers:
                time.sleep(PAUSE)
                worker.sample()
    return runs


def _started(w: Workload, runs: Iterable[Run], s: Setting, stack: ExitStack) -> list[Worker]:
    """One after the other, so that each has the machine to itself while it compiles."""
    workers: list[Worker] = []
    missing: dict[str, str] = {}
    for run in runs:
        if run.system in missing:
            run.trouble = missing[run.system]
            continue
        own = f"{run.system} {run.mode} {run.threads}"
        cache = str(Path(s.cache) / own) if s.cache else stack.enter_context(_folder())
        shapes = workers[0].shapes if workers else {}
        workers.append(stack.enter_context(Worker(w, run, s, cache, shapes)))
        if run.trouble.endswith("not installed"):
            missing[run.system] = run.trouble
    return workers


def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(ignore_cleanup_errors=True)


def cold(w: Workload, s: Setting) -> list[Run]:
    """Starts with an empty cache, and then with what the start before has left there.

    `times` are the seconds to the first result with an empty cache; `cold` is with a full one.
    """
    runs = plainest(w, s)
    shapes: Any = {}
    for n in range(s.rounds):
        for run in runs:
            if run.trouble:
                continue
            with _folder() as cache:
                with Worker(w, run, s, cache, shapes) as first:
                    shapes = shapes or first.shapes
                    run.times.append(run.cold)
                if n + 1 == s.rounds and not run.trouble:
                    with Worker(w, run, s, cache, shapes):
                        pass
    return runs


def memory(w: Workload, s: Setting) -> list[Run]:
    """The most bytes that a training step holds, by each system's own account."""
    runs = plainest(w, s)
    with ExitStack() as stack:
        for worker in _started(w, runs, s, stack):
            worker.sample()
            worker.run.memory = worker.ask("memory").get("memory")
    return runs
