"""How ranks of several processes meet: rank 0 hears where the others are, and tells all.

all on one host of which they can share memory   `shared`
else, or where it is asked for                   `ring`, over TCP
"""

from __future__ import annotations

import hashlib
import os
import socket
import struct
import time
from contextlib import ExitStack
from dataclasses import dataclass

from pullback.distributed.ring import Ring
from pullback.distributed.shared import Shared
from pullback.distributed.transport import TIMEOUT, DistributedError, Transport, gone

HELLO = struct.Struct("<16sIIH16s6s")  # who speaks, size, rank, port; its host, its door
TABLE = struct.Struct("<?I")  # whether memory is shared; bytes that follow
RANK = struct.Struct("<16sI")
MAGIC = b"pullback-ring-2\0"
NOWHERE = bytes(16)  # the host of ranks that cannot share memory
TRIES = 0.05  # seconds between two tries to reach rank 0


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank listens: to the rank before it, and at a door to those of its host."""

    host: str
    port: int
    door: bytes


@dataclass(slots=True)
class Meeting:
    """What a rank listens with, until all have come together."""

    rank: int
    size: int
    deadline: float
    door: socket.socket | None
    stack: ExitStack

    @property
    def left(self) -> float:
        """Seconds."""
        return max(0.001, self.deadline - time.monotonic())

    def listen(self, host: str, port: int = 0) -> socket.socket:
        """A server, until the end of the meeting."""
        own = self.stack.enter_context(socket.create_server((host, port)))
        own.settimeout(self.left)
        return own

    def name(self) -> bytes:
        """Of the door; empty without one."""
        name: bytes = self.door.getsockname() if self.door else b""
        return name


def join(
    rank: int, size: int, host: str, port: int, asked: str | None = None, timeout: float = TIMEOUT
) -> Transport:
    """A rank of several processes, of which rank 0 listens at `host` and `port`.

    `asked`: ``"shared"``, ``"ring"``, or None for the first where all ranks can, else the second.

    Raises: DistributedError where they do not come together in `timeout` seconds, or cannot share.
    """
    with ExitStack() as stack:
        try:
            door = _door(stack)
            here = Meeting(rank, size, time.monotonic() + timeout, door, stack)
            if rank == 0:
                own, shared, places = _gathered(here, host, port, asked)
            else:
                own, shared, places = _introduced(here, host, port)
            if asked not in (None, "shared" if shared else "ring"):
                _not_as_asked(asked)
            if shared:
                return Shared(rank, _meshed(here, places), timeout)
            return Ring(rank, size, *_neighbours(here, own, places), timeout)
        except OSError as error:
            raise DistributedError(
                f"rank {rank} of {size} does not reach the others by {host}:{port}: {error}",
                help="MASTER_ADDR and MASTER_PORT are where rank 0 listens; is every rank running?",
                code="E610",
            ) from error


def _not_as_asked(asked: str | None) -> None:
    raise DistributedError(
        f"ranks do not all go by init({asked!r})",
        help="all ask for the same; memory is shared by processes of one host, under Linux",
        code="E610",
    )


# --- rank 0, and the others ----------------------------------------------------------------------


def _gathered(
    here: Meeting, host: str, port: int, asked: str | None
) -> tuple[socket.socket, bool, list[Place]]:
    """Rank 0: hear where every rank listens, choose how they speak, and tell all of them."""
    own = here.listen(host)
    places = [Place(host, own.getsockname()[1], here.name())] * here.size
    known: list[socket.socket] = []
    shared = here.door is not None and asked != "ring"
    door = here.listen(host, port)
    while len(known) < here.size - 1:
        door.settimeout(here.left)
        link, (there, *_) = door.accept()
        link.settimeout(here.left)
        magic, theirs, rank, listens, near, name = HELLO.unpack(_exact(link, HELLO.size))
        if magic != MAGIC or theirs != here.size or not 0 < rank < here.size:
            link.close()
            continue
        shared = shared and near == _host() and there == link.getsockname()[0]
        places[rank] = Place(there, listens, name)
        known.append(here.stack.enter_context(link))
    table = "\n".join(f"{p.host} {p.port} {p.door.hex() or '-'}" for p in places).encode()
    for link in known:
        link.sendall(TABLE.pack(shared, len(table)) + table)
    return own, shared, places


def _introduced(here: Meeting, host: str, port: int) -> tuple[socket.socket, bool, list[Place]]:
    """Another rank: tell rank 0 where it listens, and hear where the others do."""
    while True:
        try:
            link = socket.create_connection((host, port), here.left)
            if link.getsockname() != link.getpeername():  # a port that calls itself
                break
            link.close()
        except ConnectionRefusedError:
            if time.monotonic() > here.deadline:
                raise
        time.sleep(TRIES)
    here.stack.enter_context(link)
    own = here.listen(link.getsockname()[0])
    link.settimeout(here.left)
    place = _host() if here.door else NOWHERE
    said = here.size, here.rank, own.getsockname()[1], place, here.name()
    link.sendall(HELLO.pack(MAGIC, *said))
    shared, length = TABLE.unpack(_exact(link, TABLE.size))
    rows = [line.split() for line in _exact(link, length).decode().splitlines()]
    return own, shared, [Place(h, int(p), bytes.fromhex(d.strip("-"))) for h, p, d in rows]


def _exact(link: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        part = link.recv(count - len(data))
        if not part:
            gone("a rank ended before all had come together")
        data += part
    return data


# --- links ---------------------------------------------------------------------------------------


def _neighbours(
    here: Meeting, own: socket.socket, places: list[Place]
) -> tuple[socket.socket, socket.socket]:
    """To the next rank, and from the one before."""
    place = places[(here.rank + 1) % here.size]
    following = socket.create_connection((place.host, place.port), here.left)
    own.settimeout(here.left)
    before, _ = own.accept()
    for link in (following, before):
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return following, before


def _meshed(here: Meeting, places: list[Place]) -> dict[int, socket.socket]:
    """To each other rank: a rank knocks at the doors of those before it."""
    links: dict[int, socket.socket] = {}
    for rank in range(here.rank):
        link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        link.settimeout(here.left)
        link.connect(places[rank].door)
        link.send(RANK.pack(MAGIC, here.rank))
        links[rank] = link
    while here.door is not None and len(links) < here.size - 1:
        here.door.settimeout(here.left)
        link, _ = here.door.accept()
        link.settimeout(here.left)
        said = link.recv(RANK.size)
        magic, rank = RANK.unpack(said) if len(said) == RANK.size else (b"", 0)
        if magic == MAGIC and here.rank < rank < here.size and rank not in links:
            links[rank] = link
        else:
            link.close()
    return links


def _door(stack: ExitStack) -> socket.socket | None:
    """What ranks of this host knock at, by a name that ends with it; None where there is none."""
    if _host() == NOWHERE:
        return None
    door = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    door.bind("")  # Linux finds a name that is no file
    door.listen()
    return door


def _host() -> bytes:
    """What processes that can share memory have alike: a start of the system, a network, a user."""
    if not hasattr(os, "memfd_create"):
        return NOWHERE
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            said = f"{file.read()} {os.readlink('/proc/self/ns/net')} {os.getuid()}"
    except OSError:
        return NOWHERE
    return hashlib.blake2b(said.encode(), digest_size=16).digest()
