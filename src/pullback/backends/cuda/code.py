"""What a backend gives for a device: code, and how its kernels are launched."""

from __future__ import annotations

import json
from dataclasses import dataclass

from pullback.backends.cuda.driver import Launching
from pullback.config import entity

COUNT = "pb_count"
# ``place += step``, of the counter of a loop.
COUNTING = b""".version 6.3
.target sm_75
.address_size 64
.visible .entry pb_count(
  .param .u64 place,
  .param .u64 step
)
{
  .reg .b64 %place, %step, %value;
  ld.param.u64 %place, [place];
  ld.param.u64 %step, [step];
  cvta.to.global.u64 %place, %place;
  ld.global.u64 %value, [%place];
  add.s64 %value, %value, %step;
  st.global.u64 [%place], %value;
  ret;
}
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """A kernel of some code: its name, blocks, threads of a block, bytes of shared memory."""

    name: str
    blocks: int
    threads: int
    shared: int = 0

    @property
    def how(self) -> Launching:
        return Launching(self.blocks, self.threads, self.shared)


@entity
class CudaCode:
    """PTX or a cubin with the kernels of one routine, in the order of their launches.

    Each takes the addresses of arguments and shared arrays, run-time extents, the address of the
    words that a check writes, and that of scratch.
    """

    image: bytes
    entries: tuple[Entry, ...]


def entries_text(entries: tuple[Entry, ...]) -> str:
    """As `Stored.symbol` keeps them."""
    return json.dumps([[e.name, e.blocks, e.threads, e.shared] for e in entries])


def entries_of(text: str) -> tuple[Entry, ...]:
    """Raises: what malformed JSON does."""
    return tuple(Entry(*row) for row in json.loads(text))
