"""A ring of our own over TCP, or within a process: sums in the order of the ranks.

    partial sums    0 -> 1 -> .. -> n - 1        ((x0 + x1) + x2) + ..
    results         n - 1 -> 0 -> .. -> n - 2

Arrays go in frames, one behind the other, so that all links are busy at once: an `all_reduce` of s
bytes takes about ``(s + 2 (n - 1) frame) / bandwidth + 2 (n - 1) latency``. Every element is summed
in the order of the ranks, whatever the size of arrays and frames, so that results have the bits
that one process gets which adds in that order.
"""

from __future__ import annotations

import queue
import socket
import struct
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from pullback.distributed.transport import (
    ALL_GATHER,
    ALL_REDUCE,
    KINDS,
    TIMEOUT,
    Array,
    DistributedError,
    gone,
    late,
)
from pullback.tensor.forms.hosted import Kind

FRAME = 1 << 18  # bytes of an array that go at once
HEAD = struct.Struct("<IB4sQIB")  # number, kind, type, elements; frame, whether it is a result
HELLO = struct.Struct("<16sIIH")  # who speaks, size, rank, port
MAGIC = b"pullback-ring-1\0"
TRIES = 0.05  # seconds between two tries to reach rank 0


@dataclass(frozen=True, slots=True)
class Delay:
    """A network that is slower than this one: seconds for a frame, and for each byte of it.

    Example:
        >>> pb.distributed.Delay(frame=1e-3).byte
        0.0
    """

    frame: float = 0.0
    byte: float = 0.0


NONE = Delay()


class Sender:
    """Sends frames in order, on a thread of its own: whoever receives never waits for it."""

    def __init__(self, link: socket.socket, delay: Delay) -> None:
        self._link = link
        self._delay = delay
        self._frames: queue.Queue[tuple[bytes, Array] | None] = queue.Queue()
        self.error: OSError | None = None
        threading.Thread(target=self._run, name="pullback-ring", daemon=True).start()

    def send(self, head: bytes, part: Array) -> None:
        """Nobody writes to `part` before `flush`."""
        self._frames.put((head, part))

    def flush(self) -> None:
        """All that was sent is on its way."""
        self._frames.join()

    def end(self) -> None:
        """No more frames."""
        self._frames.put(None)

    def _run(self) -> None:
        while (frame := self._frames.get()) is not None:
            try:
                if self.error is None:
                    self._one(*frame)
            except OSError as error:
                self.error = error
            finally:
                self._frames.task_done()

    def _one(self, head: bytes, part: Array) -> None:
        pause = self._delay.frame + self._delay.byte * part.nbytes
        if pause:
            time.sleep(pause)
        self._link.sendall(head)
        self._link.sendall(part.view(np.uint8).data)


class Ring:
    """A rank between the one before, that it hears, and the next, that it speaks to."""

    library = "the ring"

    def __init__(
        self,
        rank: int,
        size: int,
        following: socket.socket,
        before: socket.socket,
        timeout: float = TIMEOUT,
        delay: Delay = NONE,
    ) -> None:
        self.rank, self.size = rank, size
        self._links = following, before
        self._timeout = timeout
        self._number = 0
        for link in self._links:
            link.settimeout(timeout)
        self._out = Sender(following, delay)
        self._part = weakref.finalize(self, _parted, self._out, self._links)

    def natives(self, kind: str, x: Kind, y: Kind) -> None:
        """None: it is Python."""

    def close(self) -> None:
        """Who still waits sees the end of its connection."""
        self._part()

    def run(self, kind: str, source: Array, target: Array) -> None:
        """See `Transport.run`."""
        self._number += 1
        said = KINDS.index(kind), source.dtype.str.encode()[:4], source.size
        if self.size == 1:
            target[...] = source
        elif kind == ALL_GATHER:
            self._gather(said, source, target)
        else:
            self._sum(said, source, target)
        self._out.flush()
        if self._out.error is not None:
            gone(f"rank {(self.rank + 1) % self.size} is gone: {self._out.error}")

    # --- both ways --------------------------------------------------------------------------------

    def _gather(self, said: Any, source: Array, target: Array) -> None:
        """Every block goes round, to the rank before its own."""
        count = len(source)
        frames = [(r, *f) for r in range(self.size) for f in _frames(count, source.itemsize)]
        blocks = target.reshape(self.size, count)
        blocks[self.rank] = source
        for number, (owner, low, high) in enumerate(frames):
            if owner == self.rank:
                self._send(said, number, False, blocks[owner, low:high])
        for _ in range(len(frames) - len(frames) // self.size):
            number, _ = self._heard(said)
            owner, low, high = frames[number]
            self._fill(blocks[owner, low:high])
            if owner != (self.rank + 1) % self.size:
                self._send(said, number, False, blocks[owner, low:high])

    def _sum(self, said: Any, source: Array, target: Array) -> None:
        """Partial sums from rank 0 to the last, results on to those who want them."""
        last, whole = self.size - 1, KINDS[said[0]] == ALL_REDUCE
        blocks = 1 if whole else self.size
        count = len(source) // blocks
        frames = [(b, *f) for b in range(blocks) for f in _frames(count, source.itemsize)]
        ends = [last - 1 if whole else (b if b < last else -1) for b, _, _ in frames]
        if self.rank == 0:
            for number, (block, low, high) in enumerate(frames):
                self._send(said, number, False, source[block * count + low : block * count + high])
        partial = len(frames) if self.rank else 0
        results = sum(self.rank <= end for end in ends)
        for _ in range(partial + results):
            number, done = self._heard(said)
            block, low, high = frames[number]
            part = np.empty(high - low, source.dtype)
            self._fill(part)
            if not done:
                with np.errstate(all="ignore"):  # NaN and infinities are added as kernels add them
                    np.add(part, source[block * count + low : block * count + high], out=part)
                done = self.rank == last
                onward = not done or ends[number] >= 0
            else:
                onward = self.rank < ends[number]
            if onward:
                self._send(said, number, done, part)
            if done and (whole or block == self.rank):
                target[low:high] = part

    def _send(self, said: Any, number: int, result: bool, part: Array) -> None:
        kind, name, count = said
        head = HEAD.pack(self._number, kind, name, count, number, result)
        self._out.send(head, part)

    def _heard(self, said: Any) -> tuple[int, bool]:
        """Which frame comes, and whether it is a result. Raises: DistributedError."""
        head = np.empty(HEAD.size, np.uint8)
        self._fill(head)
        number, kind, name, count, frame, result = HEAD.unpack(head.tobytes())
        own = self._number, *said
        other = number, kind, name.rstrip(b"\0"), count
        if own != other:
            before = (self.rank - 1) % self.size
            raise DistributedError(
                f"rank {before} is in {_told(*other)}, rank {self.rank} in {_told(*own)}",
                help="all ranks run the same collectives of the same shapes, in one order",
                code="E613",
            )
        return frame, bool(result)

    def _fill(self, part: Array) -> None:
        """Receive an array. Raises: DistributedError."""
        before = (self.rank - 1) % self.size
        view = part.view(np.uint8).data if part.size else memoryview(b"")
        while len(view):
            try:
                got = self._links[1].recv_into(view)
            except TimeoutError:
                late(f"rank {self.rank} heard nothing of rank {before}", self._timeout)
            except OSError as error:
                gone(f"rank {before} is gone: {error}")
            if not got:
                gone(f"rank {before} is gone, or lost a rank itself")
            view = view[got:]


def _parted(out: Sender, links: Sequence[socket.socket]) -> None:
    out.end()
    for link in links:
        with suppress(OSError):
            link.shutdown(socket.SHUT_RDWR)
        link.close()


def _frames(count: int, itemsize: int) -> Iterator[tuple[int, int]]:
    """Where frames of `count` elements begin and end."""
    step = FRAME // itemsize
    for low in range(0, count, step):
        yield low, min(low + step, count)


def _told(number: int, kind: int, name: bytes, count: int) -> str:
    word = KINDS[kind] if kind < len(KINDS) else "what is none"
    return f"its collective {number}, {word} of {count} elements of {name.decode(errors='replace')}"


# --- how ranks meet ------------------------------------------------------------------------------


def loopback(size: int, timeout: float = TIMEOUT, delay: Delay = NONE) -> list[Ring]:
    """The ranks of a ring within this process, for threads."""
    links = [socket.socketpair() for _ in range(size)]
    return [
        Ring(rank, size, links[rank][0], links[rank - 1][1], timeout, delay) for rank in range(size)
    ]


def join(
    rank: int, size: int, host: str, port: int, timeout: float = TIMEOUT, delay: Delay = NONE
) -> Ring:
    """A rank of several processes, of which rank 0 listens at `host` and `port`.

    Raises: DistributedError where they do not come together in `timeout` seconds.
    """
    deadline = time.monotonic() + timeout
    try:
        if rank == 0:
            own, places = _gathered(size, host, port, deadline)
        else:
            own, places = _introduced(rank, size, host, port, deadline)
        following = socket.create_connection(places[(rank + 1) % size], _left(deadline))
        own.settimeout(_left(deadline))
        before, _ = own.accept()
        own.close()
    except OSError as error:
        raise DistributedError(
            f"rank {rank} of {size} does not reach the others by {host}:{port}: {error}",
            help="MASTER_ADDR and MASTER_PORT are where rank 0 listens; is every rank running?",
            code="E610",
        ) from error
    for link in (following, before):
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return Ring(rank, size, following, before, timeout, delay)


def _left(deadline: float) -> float:
    return max(0.001, deadline - time.monotonic())


def _gathered(
    size: int, host: str, port: int, deadline: float
) -> tuple[socket.socket, Sequence[tuple[str, int]]]:
    """Rank 0: hear where every rank listens, and tell all of them."""
    own = socket.create_server((host, 0))
    places: list[tuple[str, int]] = [(host, own.getsockname()[1])] * size
    known: list[socket.socket] = []
    with socket.create_server((host, port)) as door:
        while len(known) < size - 1:
            door.settimeout(_left(deadline))
            link, (there, *_) = door.accept()
            link.settimeout(_left(deadline))
            magic, theirs, rank, listens = HELLO.unpack(_exact(link, HELLO.size))
            if magic != MAGIC or theirs != size or not 0 < rank < size:
                link.close()
                continue
            places[rank] = there, listens
            known.append(link)
    table = "\n".join(f"{h} {p}" for h, p in places).encode()
    for link in known:
        link.sendall(struct.pack("<I", len(table)) + table)
        link.close()
    return own, places


def _introduced(
    rank: int, size: int, host: str, port: int, deadline: float
) -> tuple[socket.socket, Sequence[tuple[str, int]]]:
    """Another rank: tell rank 0 where it listens, and hear where the others do."""
    while True:
        try:
            link = socket.create_connection((host, port), _left(deadline))
            if link.getsockname() != link.getpeername():  # a port that calls itself
                break
            link.close()
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
        time.sleep(TRIES)
    own = socket.create_server((link.getsockname()[0], 0))
    link.settimeout(_left(deadline))
    link.sendall(HELLO.pack(MAGIC, size, rank, own.getsockname()[1]))
    (length,) = struct.unpack("<I", _exact(link, 4))
    rows = [line.split() for line in _exact(link, length).decode().splitlines()]
    link.close()
    return own, [(h, int(p)) for h, p in rows]


def _exact(link: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = link.recv(count - len(data))
        if not part:
            gone("a rank ended before all had come together")
        data += part
    return data
