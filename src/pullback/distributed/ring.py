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
    differ,
    gone,
    late,
)
from pullback.tensor.forms.hosted import Kind

FRAME = 1 << 18  # bytes of an array that go at once
HEAD = struct.Struct("<IB4sQIB")  # number, kind, type, elements; frame, whether it is a result


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

    def begin(self, kind: str, source: Array, target: Array) -> None:
        """None: frames wait for one another."""

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
            differ((self.rank - 1) % self.size, other, self.rank, own)
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


def loopback(size: int, timeout: float = TIMEOUT, delay: Delay = NONE) -> list[Ring]:
    """The ranks of a ring within this process, for threads."""
    links = [socket.socketpair() for _ in range(size)]
    return [
        Ring(rank, size, links[rank][0], links[rank - 1][1], timeout, delay) for rank in range(size)
    ]
