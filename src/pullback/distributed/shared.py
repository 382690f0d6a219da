"""Ranks of one host: memory that all of them map, and a socket between each two for words.

    begin    block_r = x_r                a copy; every other rank hears which block it is
    end      y = (x_0 + x_1) + x_2 ..     read from the blocks of all ranks, in their order

Both run where the program runs: there is no other thread that needs a processor. An `all_reduce`
that is large for its number of ranks goes in two steps: each rank adds its slice of all blocks into
its own, then reads the slices of the others. Every element is summed in the order of the ranks, as
`ring` sums it, by either way.

Blocks are files without a name, whose descriptors go through the sockets: nothing of them stays
where a process is killed. A word says as well which collectives its rank has ended since the one
before; a block that all ranks have read is written to again.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import struct
import threading
import time
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from pullback.distributed.transport import (
    ALL_GATHER,
    ALL_REDUCE,
    KINDS,
    TIMEOUT,
    Array,
    DistributedError,
    Said,
    differ,
    gone,
    late,
)
from pullback.tensor.forms.hosted import Kind

HEAD = struct.Struct("<QB4sQQB")  # number, kind, type, elements; block, stage
ENDED = struct.Struct("<Q")  # behind it: numbers of collectives that the rank has read
MOST = 32  # of them in a word; each word begins a collective, so that few are ever left
PASSES = 1 << 18  # bytes of a sum of more than two blocks that stay in a cache
LONGEST = HEAD.size + MOST * ENDED.size
# Estimates, which matter from three ranks on: of two processes on two Zen 4 cores `all_reduce`
# takes 0.06 ms of 4 bytes, 4.8 of 16 MiB.
LATENCY = 5e-5  # seconds from a word to the rank that sleeps till it comes
BANDWIDTH = 8e9  # bytes of other ranks' blocks that one reads and adds in a second
SPIN = LATENCY  # seconds of asking again before a rank sleeps: no more than waking it costs
GIVEN, ADDED = 0, 1  # stages: a rank's block is whole; its slice of the sum is in it


@dataclass(slots=True)
class Block:
    """Memory that a rank writes, and ranks that have not read it since."""

    number: int
    data: Array
    readers: set[int] = field(default_factory=set)


class Shared:
    """A rank of one host, with a socket to each of the others."""

    library = "shared memory"

    def __init__(
        self, rank: int, links: Mapping[int, socket.socket], timeout: float = TIMEOUT
    ) -> None:
        self.rank, self.size = rank, len(links) + 1
        self._links = links
        self._timeout = timeout
        self._lock = threading.RLock()
        self._number = 0
        self._blocks: list[Block] = []
        self._held: dict[int, Block] = {}  # by collectives that some rank has not ended
        self._ended: deque[int] = deque()  # by this rank, and not told
        self._heard: dict[int, dict[tuple[int, int], tuple[Said, int]]] = {r: {} for r in links}
        self._theirs: dict[int, dict[int, Array]] = {r: {} for r in links}
        for link in links.values():
            link.setblocking(True)  # the kernel counts the time: one call for a word
            link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _seconds(timeout))
        self._part = weakref.finalize(self, _parted, list(links.values()))

    def natives(self, kind: str, x: Kind, y: Kind) -> None:
        """None: it is Python."""

    def close(self) -> None:
        """Who still waits sees the end of its connection."""
        self._part()

    def run(self, kind: str, source: Array, target: Array) -> None:
        """See `Transport.run`."""
        self.begin(kind, source, target)()

    def begin(self, kind: str, source: Array, target: Array) -> Callable[[], None]:
        """See `Transport.begin`."""
        with self._lock:
            self._number += 1
            said = KINDS.index(kind), source.dtype.str.encode()[:4], source.size
            block, new = self._block(source.nbytes)
            block.data[: source.nbytes].view(source.dtype)[...] = source
            block.readers.update(range(self.size))
            self._held[self._number] = block
            self._tell(self._number, said, block, GIVEN, new)
            return partial(self._end, self._number, said, block, target)

    def _end(self, number: int, said: Said, own: Block, target: Array) -> None:
        """Wait for the blocks of the others, and read them."""
        with self._lock:
            parts = self._parts(number, said, own, target.dtype, GIVEN)
            kind, low = KINDS[said[0]], self.rank * len(target)
            if kind == ALL_GATHER:
                np.concatenate(parts, out=target)
            elif kind != ALL_REDUCE:
                _add([p[low : low + len(target)] for p in parts], target)
            elif self._in_slices(target.nbytes):
                self._sliced(number, said, own, parts, target)
            else:
                _add(parts, target)
            self._ended.append(number)
            self._release(number, self.rank)

    # --- sums -------------------------------------------------------------------------------------

    def _in_slices(self, length: int) -> bool:
        """Whether one more word costs less than reading every block whole.

        whole ``(n - 1) s / b``; in slices ``2 (n - 1) s / n / b + l``
        """
        others = self.size - 1
        return others * (1 - 2 / self.size) * length / BANDWIDTH > LATENCY

    def _sliced(
        self, number: int, said: Said, own: Block, parts: Sequence[Array], target: Array
    ) -> None:
        """This rank's slice of the sum into its block, where no other rank reads till it is told;
        then all slices."""
        step = -(-len(target) // self.size)
        slices = [slice(r * step, (r + 1) * step) for r in range(self.size)]
        mine = slices[self.rank]
        _add([p[mine] for p in parts], target[mine])
        parts[self.rank][mine] = target[mine]
        self._tell(number, said, own, ADDED)
        for part, cut in zip(
            self._parts(number, said, own, target.dtype, ADDED), slices, strict=True
        ):
            if cut is not mine:
                target[cut] = part[cut]

    # --- blocks -----------------------------------------------------------------------------------

    def _block(self, length: int) -> tuple[Block, int | None]:
        """One that all others have read; a new one with its descriptor where there is none."""
        room = max(mmap.PAGESIZE, 1 << (length - 1).bit_length() if length else 0)
        for block in self._blocks:
            if len(block.data) == room and not block.readers:
                return block, None
        try:
            place = os.memfd_create("pullback")
            os.ftruncate(place, room)
            block = Block(len(self._blocks), _mapped(place))
        except OSError as error:
            raise DistributedError(
                f"rank {self.rank} gets no {room} bytes that ranks share: {error}",
                help='smaller buckets, or init("ring"), which goes by sockets',
                code="E610",
            ) from error
        self._blocks.append(block)
        return block, place

    def _release(self, number: int, rank: int) -> None:
        """A rank has read what this one gave to a collective."""
        readers = self._held[number].readers
        readers.discard(rank)
        if not readers:
            del self._held[number]

    def _parts(
        self, number: int, said: Said, own: Block, kind: np.dtype[np.generic], stage: int
    ) -> list[Array]:
        """What each rank gave, once all have come this far. Raises: DistributedError."""
        parts = []
        for rank in range(self.size):
            data = own.data
            if rank != self.rank:
                other, block = self._wait(rank, number, stage)
                if other != said:
                    differ(rank, (number, *other), self.rank, (number, *said))
                data = self._theirs[rank][block]
            parts.append(data[: said[2] * kind.itemsize].view(kind))
        return parts

    # --- words ------------------------------------------------------------------------------------

    def _tell(
        self, number: int, said: Said, block: Block, stage: int, new: int | None = None
    ) -> None:
        """Every other rank; with the descriptor of a new block. Raises: DistributedError."""
        head = HEAD.pack(number, *said, block.number, stage)
        ended = [self._ended.popleft() for _ in range(min(MOST, len(self._ended)))]
        head += b"".join(map(ENDED.pack, ended))
        places = [] if new is None else [new]
        try:
            for rank, link in self._links.items():
                while not self._told(rank, link, head, places):
                    self._make_room(link)
        finally:
            for place in places:
                os.close(place)

    def _told(self, rank: int, link: socket.socket, head: bytes, places: Sequence[int]) -> bool:
        try:
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", places))]
            # `socket.send_fds` leaves out its flags.
            link.sendmsg([head], rights if places else [], socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            gone(f"rank {rank} is gone: {error}")
        return True

    def _make_room(self, link: socket.socket) -> None:
        """Hear what others say until `link` takes a word: they may wait for room as well."""
        others = {other: rank for rank, other in self._links.items()}
        ready, writable, _ = select.select(list(others), [link], [], self._timeout)
        for other in ready:
            self._hear(others[other], time.monotonic())
        if not ready and not writable:
            late(f"rank {others[link]} took nothing of rank {self.rank}", self._timeout)

    def _wait(self, rank: int, number: int, stage: int) -> tuple[Said, int]:
        """What a rank says of its part of a collective, and in which block it is."""
        heard = self._heard[rank]
        awake = time.monotonic() + SPIN
        while (number, stage) not in heard:
            self._hear(rank, awake)
        return heard.pop((number, stage))

    def _hear(self, rank: int, awake: float) -> None:
        """The next word of a rank; asks till the clock shows `awake`, then sleeps till it comes.

        Raises: DistributedError.
        """
        link, flags = self._links[rank], int(socket.MSG_DONTWAIT)
        while True:
            try:
                head, places, _, _ = socket.recv_fds(link, LONGEST, 1, flags)
                break
            except BlockingIOError:
                if not flags:
                    late(f"rank {self.rank} heard nothing of rank {rank}", self._timeout)
                if time.monotonic() >= awake:
                    flags = 0
            except OSError as error:
                gone(f"rank {rank} is gone: {error}")
        if not head:
            gone(f"rank {rank} is gone, or lost a rank itself")
        number, kind, name, count, block, stage = HEAD.unpack_from(head)
        for place in places:
            self._theirs[rank][block] = _mapped(place)
            os.close(place)
        for (ended,) in ENDED.iter_unpack(head[HEAD.size :]):
            self._release(ended, rank)
        self._heard[rank][number, stage] = (kind, name.rstrip(b"\0"), count), block


def _add(parts: Sequence[Array], target: Array) -> None:
    """``((parts_0 + parts_1) + parts_2) + ..``"""
    step = len(target) if len(parts) < 3 else PASSES // target.itemsize
    with np.errstate(all="ignore"):  # NaN and infinities are added as kernels add them
        for low in range(0, len(target), step or 1):
            first, *others = (p[low : low + step] for p in parts)
            total = target[low : low + step]
            for part in others:
                first = np.add(first, part, out=total)
            if not others:
                total[...] = first


def _mapped(place: int) -> Array:
    return np.frombuffer(mmap.mmap(place, 0), np.uint8)


def _seconds(timeout: float) -> bytes:
    """As the kernel takes them."""
    return struct.pack("@ll", int(timeout), max(1, int(timeout % 1 * 1e6)))


def _parted(links: Sequence[socket.socket]) -> None:
    for link in links:
        with suppress(OSError):
            link.shutdown(socket.SHUT_RDWR)
        link.close()


def loopback(size: int, timeout: float = TIMEOUT) -> list[Shared]:
    """The ranks of this process, for threads."""
    links: list[dict[int, socket.socket]] = [{} for _ in range(size)]
    for high in range(size):
        for low in range(high):
            pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            links[high][low], links[low][high] = pair
    return [Shared(rank, own, timeout) for rank, own in enumerate(links)]
