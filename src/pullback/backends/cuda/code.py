"""What a backend gives for a device: code, and how its kernels are launched."""

from __future__ import annotations

import ctypes
import json
from dataclasses import dataclass
from functools import cache
from typing import Any

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
    words that a check writes, and that of scratch. `error`: the place of the one before the last.
    """

    image: bytes
    entries: tuple[Entry, ...]
    error: int

    @classmethod
    def read(cls, image: bytes, text: str) -> CudaCode:
        """Of what `text` told. Raises: what malformed JSON does."""
        error, rows = json.loads(text)
        return cls(image, tuple(Entry(*row) for row in rows), error)

    @property
    def text(self) -> str:
        """All but the image, as `Stored.symbol` keeps it."""
        rows = [[e.name, e.blocks, e.threads, e.shared] for e in self.entries]
        return json.dumps([self.error, rows])

    @property
    def body(self) -> int:
        """The address of what the machine of this process would call: it tells that it cannot."""
        return ctypes.cast(_refusing(self.error), ctypes.c_void_p).value or 0


ROUTINE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p)
ELSEWHERE = "a kernel of a device on the host (single kernels are not timed)"
FAILED = -1  # the site of what is no check of an index


@cache
def _refusing(place: int) -> Any:
    """By the code ABI: the words at this place of the block say that nothing ran."""

    def body(block: int, task: int, scratch: int) -> None:
        words = ctypes.c_void_p.from_address(block + 8 * place).value or 0
        for number, word in enumerate((1, FAILED, 0)):
            ctypes.c_int64.from_address(words + 8 * number).value = word

    return ROUTINE(body)
