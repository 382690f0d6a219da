"""Triton's compiler, in processes of its own: ``source -> cubin and what it needs to run``.

No GPU need be there. Drivers take what `compiled` gives: load the code, ask for the function by
its name, launch it with as many warps and bytes as it says.
"""

from __future__ import annotations

import atexit
import base64
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pullback.backends.triton.device import INTERPRET, wanted
from pullback.config import processors
from pullback.errors import DeviceError

WORKER = Path(__file__).with_name("worker.py")
CAPABILITIES = (80, 90, 100)  # A100, H100 and H200, B200
# What Triton adds to the arguments of a function: memory of its own, that of its profiler.
HIDDEN = 2
MOST = 8  # processes
EACH = 4  # functions for a process more: its start takes 0.6 s, one of them 0.04 to 0.25 (Zen 4)


@dataclass(frozen=True, slots=True)
class Order:
    """A function of a file, to be compiled: types of its arguments (`*fp32`, `i64`), the numbers of
    those that are `aligned`, pointers to multiples of 16 bytes; `warps` of 32 threads, `stages` of
    loads in flight.
    """

    path: str
    name: str
    types: tuple[str, ...]
    aligned: tuple[int, ...] = ()
    warps: int = 4
    stages: int = 3


@dataclass(frozen=True, slots=True)
class Binary:
    """Code of one function for one architecture. `name`: its symbol. A block has `warps` of 32
    threads and `shared` bytes that a launch brings; each block wants `scratch` bytes of global
    memory, that of all begins at a multiple of `align` (behind the first of `HIDDEN` pointers after
    the arguments). A thread has `registers`, and `stack` bytes of memory for what did not fit them.
    `texts`: ttir, ttgir, ptx.
    """

    name: str
    texts: Mapping[str, str] = field(repr=False)
    cubin: bytes = field(repr=False)
    warps: int
    shared: int
    scratch: int
    align: int
    registers: int
    stack: int


def compiled(orders: Sequence[Order], capability: int, most: int | None = None) -> list[Binary]:
    """What Triton's compiler makes of functions, for compute capability 8.0 as 80, by `most`
    processes side by side, or as many as pay.

    Raises: DeviceError.
    """
    count = max(1, min(most or min(processors(), MOST), len(orders) // EACH))
    shares = [list(orders[n::count]) for n in range(count)]
    with ThreadPoolExecutor(count) as threads:
        parts = list(threads.map(lambda share: COMPILERS.binaries(share, capability), shares))
    return [parts[n % count][n // count] for n in range(len(orders))]


class Compilers:
    """Processes that have imported Triton, and wait for functions; each ends by itself when it has
    had none for a minute, or when this process ends.
    """

    def __init__(self) -> None:
        self._idle: list[_Compiler] = []
        self._lock = threading.Lock()

    def binaries(self, orders: Sequence[Order], capability: int) -> list[Binary]:
        """By one of them. Raises: DeviceError."""
        asked = {"capability": capability, "functions": [asdict(order) for order in orders]}
        compiler = self._taken()
        try:
            told = compiler.answer(json.dumps(asked))
        except BaseException:  # interrupted: its answer would be taken for that of the next order
            compiler.end(kill=True)
            raise
        with self._lock:
            self._idle.append(compiler)
        if "error" in told:
            raise _failed(told["error"])
        every = told["made"]
        return [Binary(**{**one, "cubin": base64.b64decode(one["cubin"])}) for one in every]

    def _taken(self) -> _Compiler:
        with self._lock:
            while self._idle:
                compiler = self._idle.pop()
                if compiler.waits:
                    return compiler
                compiler.end()
        return _Compiler()

    def end(self) -> None:
        """All that wait."""
        with self._lock:
            while self._idle:
                self._idle.pop().end()


class _Compiler:
    """One process."""

    def __init__(self) -> None:
        facts = {k: v for k, v in os.environ.items() if k != INTERPRET}
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # as long as it is there
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(WORKER)],
            text=True,
            env=facts,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )
        given, answers = self._process.stdin, self._process.stdout
        assert given is not None and answers is not None, "they are pipes"
        self._given, self._answers = given, answers
        self._owner = os.getpid()

    @property
    def waits(self) -> bool:
        """Whether it is there, and this process's own: a fork has the pipes of another's."""
        return self._owner == os.getpid() and self._process.poll() is None

    def answer(self, asked: str) -> Any:
        """What it makes of an order, or the error that it says, or ends with."""
        with suppress(BrokenPipeError):  # it ends without an answer
            self._given.write(asked + "\n")
            self._given.flush()
        said = self._answers.readline()
        return json.loads(said) if said.endswith("\n") else {"error": self._last()}

    def end(self, kill: bool = False) -> None:
        """It has no more input; of another process's, nothing but its pipes is closed here."""
        if kill and self.waits:
            self._process.kill()
        for pipe in (self._given, self._answers, self._errors):
            with suppress(BrokenPipeError):
                pipe.close()
        if self._owner == os.getpid():
            self._process.wait()

    def _last(self) -> str:
        """The last words of a process that has ended."""
        ended = self._process.wait()
        self._errors.seek(0)
        said = self._errors.read().strip().splitlines()
        return said[-1] if said else f"its process ended with {ended}"


def _failed(error: str) -> DeviceError:
    """What a compiler says. Raises: DeviceError, E410, where it lacks Triton."""
    if error.startswith("ModuleNotFoundError"):
        wanted(environment={INTERPRET: "1"})
    return DeviceError(f"Triton fails to compile: {error}", code="E415")


COMPILERS = Compilers()
atexit.register(COMPILERS.end)
