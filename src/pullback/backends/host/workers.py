"""Other processes that choose schedules of a program's kernels while this one compiles.

``67 kernels  ->  38 chosen here, 29 by a process beside this one``

A kernel goes there as its text and its choices come back: what prices choose is a function of the
kernel and the machine, whoever asks. Where a process fails, this one does what it would have done.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.spawn import get_executable
from threading import Lock, Thread
from typing import IO, Any, Self

from pullback.backends.base import Compiler, Job
from pullback.config import processors
from pullback.errors import MALFORMED, BackendError
from pullback.ir.kernel import Kernel
from pullback.ir.signature import digest, kernel_digest
from pullback.ir.target import Target
from pullback.ir.text import show
from pullback.schedule.choices import Choices

# Seconds until a new process can choose: imports of the package, one Zen 3 core (0.7 to 0.8).
START = 0.8
# Processes that choose: to lower kernels and write their code takes a third as long as choosing
# does (ResNet-18's training), and one process does that.
MOST = 4
SERVE = "import sys; sys.path[:] = sys.argv[1:]; from pullback.cli.worker import main; main()"

log = logging.getLogger("pullback")

Unchosen = Callable[[Kernel], Choices]
"""What prices choose for a kernel where nobody else did."""

Asked = Mapping[str, str | None]
"""The backend, the target and the machine that choices are for, by name."""


def machine_digest(target: Target) -> str:
    """What two processes must agree on before one chooses for the other."""
    return digest(repr(target))


@contextmanager
def beside(kernels: Sequence[Kernel], backend: Compiler, job: Job) -> Iterator[Unchosen]:
    """What prices choose for each kernel of a program; other processes help where it takes long."""
    options, target = job.options, job.target
    asked = {"backend": backend.name, "target": options.target, "machine": options.machine}
    most = options.workers or min(processors(), MOST)
    choose = partial(backend.unchosen, target=target)
    with Workers(kernels, choose, asked, target, most) as workers:
        yield workers.choices
    if workers.beside:
        facts = f"{workers.beside} of {len(kernels)} kernels by other processes"
        job.report.stage("choose", facts)


class Workers:
    """Choices of `kernels`, each made once, by whoever comes to it first.

    No process is started before as much time has gone by in choosing as its start takes, and none
    whose share of what is left is less than that: small programs start none.
    """

    def __init__(
        self,
        kernels: Sequence[Kernel],
        choose: Unchosen,
        asked: Asked,
        target: Target,
        most: int,
    ) -> None:
        """`most`: processes at the most, this one included."""
        self._waiting = deque(kernels)
        self._known: dict[Kernel, Choices] = {}
        self._choose, self._asked, self._target = choose, asked, target
        self._most = most - 1 if get_executable() and not getattr(sys, "frozen", False) else 0
        self._lock = Lock()
        self._spent, self._own = 0.0, 0
        self._threads: list[Thread] = []
        self._workers: list[_Worker] = []
        self._ended = False
        self.beside = 0  # kernels that others chose for

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._ended = True
            self._waiting.clear()
            begun = list(self._workers)
        for worker in begun:
            worker.end()
        for thread in self._threads:
            thread.join()
        for worker in self._workers:
            worker.close()

    def choices(self, kernel: Kernel) -> Choices:
        """The choices of a kernel; while another process is at it, those of the last one first."""
        while kernel not in self._known:
            mine = self._next_here(kernel)
            began = time.perf_counter()
            self._known[mine] = self._choose(mine)
            self._spent += time.perf_counter() - began
            self._own += 1
            self._grow()
        return self._known[kernel]

    def _next_here(self, kernel: Kernel) -> Kernel:
        """What this process chooses for next: never does it wait for another one."""
        with self._lock:
            if kernel in self._waiting:
                self._waiting.remove(kernel)
                return kernel
            return self._waiting.pop() if self._waiting else kernel

    def _next_beside(self) -> Kernel | None:
        with self._lock:
            return self._waiting.popleft() if self._waiting else None

    def _grow(self) -> None:
        """Start processes, as many as have enough to do."""
        if self._threads or self._spent < START:
            return
        left = self._spent / self._own * len(self._waiting)
        for _ in range(min(self._most, int(left / START))):
            self._threads.append(Thread(target=self._serve, name="pullback-worker", daemon=True))
            self._threads[-1].start()

    def _serve(self) -> None:
        """Ask a process of its own for the choices of one kernel after the other."""
        try:
            worker = _Worker()
            with self._lock:
                self._workers.append(worker)
                if self._ended:
                    return
            worker.begin(self._asked, self._target)
            while (kernel := self._next_beside()) is not None:
                self._tell(kernel, worker.choices(kernel))
        except (OSError, BackendError, *MALFORMED) as error:
            if not self._ended:
                log.info("a process that chooses schedules ended: %s", error)

    def _tell(self, kernel: Kernel, choices: Choices) -> None:
        with self._lock:
            self.beside += kernel not in self._known
            self._known.setdefault(kernel, choices)


class _Worker:
    """A process that chooses: JSON, a line for a question and one for its answer.

    Raises: OSError, BackendError and MALFORMED where it ends or answers something else.
    """

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [get_executable(), "-P", "-c", SERVE, *sys.path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            encoding="utf-8",
            start_new_session=True,  # an interrupt of the keyboard is for this process
        )

    def begin(self, asked: Asked, target: Target) -> None:
        if self._answer(dict(asked)) != machine_digest(target):
            raise BackendError("it has another machine")

    def choices(self, kernel: Kernel) -> Choices:
        of, *pairs = self._answer(show(kernel))
        if of != kernel_digest(kernel):
            raise BackendError("it read another kernel")
        return tuple((str(name), int(value)) for name, value in pairs)

    def _answer(self, question: Any) -> Any:
        given, told = self._pipes()
        print(json.dumps(question), file=given, flush=True)
        return json.loads(told.readline())

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        assert self._process.stdin is not None and self._process.stdout is not None
        return self._process.stdin, self._process.stdout

    def end(self) -> None:
        """Whoever waits for an answer gets none."""
        self._process.kill()

    def close(self) -> None:
        """Nothing of it is left."""
        self.end()
        for pipe in self._pipes():
            with suppress(OSError):  # what it did not read
                pipe.close()
        self._process.wait()
