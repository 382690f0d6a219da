"""The ranks that work together: who is there, and one thread that speaks to them."""

from __future__ import annotations

import hashlib
import os
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from pullback.backends.host.pool import get_num_threads, set_num_threads
from pullback.distributed import ring
from pullback.distributed.gloo import Gloo
from pullback.distributed.meet import join
from pullback.distributed.mpi import Mpi
from pullback.distributed.shared import Shared
from pullback.distributed.transport import (
    ALL_GATHER,
    ALL_REDUCE,
    TIMEOUT,
    Alone,
    Array,
    DistributedError,
    Transport,
)
from pullback.errors import Origin
from pullback.ir.program import Loop, Program, items
from pullback.ir.signature import signature

TRANSPORTS = ("shared", "ring", "gloo", "mpi")
NEAREST = "shared or ring"
LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE")
MPI_SIZES = ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "PMIX_SIZE", "MPI_LOCALNRANKS")


class Group:
    """A rank of several. Collectives of transports that somebody has to work at run one after the
    other on a thread of the group's own, so that programs run beside them.

    Example:
        >>> pb.distributed.Group().size
        1
    """

    def __init__(self, transport: Transport | None = None) -> None:
        self.transport: Transport = transport or Alone()
        self._work: queue.SimpleQueue[tuple[Future[None], Callable[[], None]] | None]
        self._work = queue.SimpleQueue()
        self._tickets = count(1)
        self._open: dict[int, Callable[[], None]] = {}  # what ends each
        self._after: dict[int, Callable[[], None]] = {}
        self._broken: BaseException | None = None
        self._thread: threading.Thread | None = None

    @property
    def rank(self) -> int:
        """Which of the ranks this is, from 0."""
        return self.transport.rank

    @property
    def size(self) -> int:
        """How many there are."""
        return self.transport.size

    def __repr__(self) -> str:
        return f"Group(rank {self.rank} of {self.size}, {self.transport.library})"

    def start(self, kind: str, source: Array, target: Array) -> int:
        """Begin ``target = kind(source)``; a ticket for `wait`. Both stay where they are till then.

        Raises: DistributedError where an earlier collective failed.
        """
        if self._broken is not None:
            raise self._broken
        ticket = next(self._tickets)
        self._open[ticket] = self._begun(kind, source.reshape(-1), target.reshape(-1))
        return ticket

    def _begun(self, kind: str, source: Array, target: Array) -> Callable[[], None]:
        """What ends it: here, where the transport needs nobody in between."""
        with self._parting():
            end = self.transport.begin(kind, source, target)
        if end is not None:
            return partial(self._ended, end)
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="pullback-group", daemon=True)
            self._thread.start()
        future = Future[None]()
        self._work.put((future, lambda: self.transport.run(kind, source, target)))
        return future.result

    def _ended(self, end: Callable[[], None]) -> None:
        if self._broken is not None:
            raise self._broken
        with self._parting():
            end()

    @contextmanager
    def _parting(self) -> Iterator[None]:
        """After an error no other collective begins."""
        try:
            yield
        except BaseException as error:
            if self._broken is None:
                self._broken = error
                self.transport.close()  # the others see that this rank cannot go on
            raise

    def wait(self, ticket: int) -> None:
        """End what `start` began. Raises: DistributedError."""
        self._open.pop(ticket)()
        self._after.pop(ticket, lambda: None)()

    def after(self, ticket: int, job: Callable[[], None]) -> None:
        """What `wait` does at the end."""
        self._after[ticket] = job

    def run(self, kind: str, source: Array, target: Array) -> None:
        """``target = kind(source)``. Raises: DistributedError."""
        self.wait(self.start(kind, source, target))

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            future, job = work
            try:
                self._ended(job)
                future.set_result(None)
            except BaseException as error:
                future.set_exception(error)

    def close(self) -> None:
        """Part from the others."""
        self._work.put(None)
        self.transport.close()

    # --- what all ranks must have alike -----------------------------------------------------------

    def agree(self, what: str, said: str, origin: Origin | None = None) -> None:
        """All ranks say the same. Raises: DistributedError naming those that do not."""
        if self.size == 1:
            return
        own = np.frombuffer(hashlib.blake2b(said.encode(), digest_size=16).digest(), np.uint8)
        every = np.empty((self.size, 16), np.uint8)
        self.run(ALL_GATHER, own, every)
        others = [r for r in range(self.size) if (every[r] != every[0]).any()]
        if others:
            ranks = "rank " + str(others[0]) if len(others) == 1 else f"ranks {others}"
            raise DistributedError(
                f"{what} of {ranks} differs from that of rank 0; here, on rank {self.rank}: {said}",
                origin=origin,
                help="all ranks trace the same code with the same shapes, types and settings",
                code="E613",
            )

    def look(self, program: Program) -> None:
        """Before a program is compiled: all ranks have the same. Raises: DistributedError."""
        steps = [item.count for item in items(program.body) if isinstance(item, Loop)]
        given = ", ".join(f"{v.name} {v.dtype}{list(v.shape)}" for v in program.state[:8])
        own = signature(program, names=False).digest
        self.agree("the program", f"{own[:16]}, loops of {steps} steps, of {given}")

    def broadcast(self, array: Array) -> Array:
        """The array of rank 0, bit for bit. Raises: DistributedError."""
        own = np.asarray(array, order="C")
        if self.size == 1:
            return own
        sent = own.reshape(-1).view(np.uint8) if own.size else np.empty(0, np.uint8)
        if self.rank:
            sent = np.zeros_like(sent)
        self.agree("an array that rank 0 sends", f"{own.dtype}{list(own.shape)}")
        got = np.empty_like(sent)
        self.run(ALL_REDUCE, sent, got)
        return got.view(own.dtype).reshape(own.shape)


class _Home:
    """The group of this process."""

    def __init__(self) -> None:
        self.group = Group()


_home = _Home()


def init(transport: str | None = None, *, timeout: float = TIMEOUT) -> Group:
    """Join the processes that `torchrun` or `mpiexec` started, or that say `RANK` and `WORLD_SIZE`.

    `transport`: ``"gloo"`` (under `torchrun`), ``"mpi"`` (under `mpiexec`), ``"shared"`` (else,
    where all processes can share memory: on one host, under Linux), ``"ring"`` (else, over TCP), or
    None for the one that the environment asks for; a process alone is rank 0 of 1. `timeout`:
    seconds that a rank waits for the others to move, before it raises E612. Unless
    PULLBACK_THREADS says how many threads there are, the ranks of a machine share its processors.

    Raises: DistributedError where the others are not reached; ExtraError where the engine of the
        transport is not installed.

    Example:
        >>> pb.distributed.init().size
        1
    """
    if transport not in (None, *TRANSPORTS):
        raise DistributedError(
            f"transport={transport!r}", help=f"one of {', '.join(TRANSPORTS)}", code="E610"
        )
    if not timeout > 0:
        raise DistributedError(f"timeout={timeout!r} seconds", help="more than 0", code="E610")
    before = _home.group
    if before.size > 1:
        return before
    chosen = transport or _asked()
    if chosen is not None:
        _home.group = Group(_made(chosen, timeout))
        _share_processors()
    return _home.group


def _share_processors() -> None:
    """As many threads as there are processors for each rank of this machine."""
    near = str(_home.group.size) if isinstance(_home.group.transport, Shared) else "1"
    told = next((os.environ[n] for n in LOCAL_SIZES if n in os.environ), near)
    if told.isdecimal() and int(told) > 1 and "PULLBACK_THREADS" not in os.environ:
        set_num_threads(max(1, get_num_threads() // int(told)))


def _asked() -> str | None:
    """Which transport the environment of this process speaks of; ``NEAREST`` for one of our own."""
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        return "gloo" if "TORCHELASTIC_RUN_ID" in os.environ else NEAREST
    return "mpi" if any(name in os.environ for name in MPI_SIZES) else None


def _made(transport: str, timeout: float) -> Transport:
    if transport == "mpi":
        return Mpi(timeout)
    if transport == "gloo":
        return Gloo(timeout)
    rank, size = _number("RANK"), _number("WORLD_SIZE")
    if not 0 <= rank < size:
        raise DistributedError(f"RANK={rank} of WORLD_SIZE={size}", help=_VARIABLES, code="E610")
    host, port = os.environ.get("MASTER_ADDR", "127.0.0.1"), _number("MASTER_PORT")
    return join(rank, size, host, port, None if transport == NEAREST else transport, timeout)


_VARIABLES = "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say who speaks, and where rank 0 is"


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    if not text.isdecimal():
        raise DistributedError(f"{name}={text!r} is no number", help=_VARIABLES, code="E610")
    return int(text)


def group_of(group: Any = None) -> Group:
    """The group that is given, or that of this process. Raises: DistributedError."""
    if group is None:
        return _home.group
    if not isinstance(group, Group):
        raise DistributedError(f"group={group!r}: a Group is wanted", code="E610")
    return group


def rank() -> int:
    """Which of the processes this is, from 0; 0 before `init`.

    Example:
        >>> pb.distributed.rank()
        0
    """
    return _home.group.rank


def size() -> int:
    """How many processes work together; 1 before `init`.

    Example:
        >>> pb.distributed.size()
        1
    """
    return _home.group.size


def loopback(ranks: int, *, timeout: float = TIMEOUT, delay: ring.Delay = ring.NONE) -> list[Group]:
    """Groups for `ranks` threads of this process, for tests: each gives one to its collectives.

    `delay`: a network that takes longer.

    Example:
        >>> [g.rank for g in pb.distributed.loopback(2)]
        [0, 1]
    """
    if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
        raise DistributedError(f"{ranks!r} ranks", help="1 or more", code="E610")
    return [Group(r) for r in ring.loopback(ranks, timeout, delay)]
