"""What a backend gives for a device: code, and how its kernels are launched."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from functools import cache
from math import prod
from typing import Any

from pullback.backends.cuda.driver import Launching
from pullback.config import Ints, entity
from pullback.machine.machine import LINE

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
ERROR_BYTES = 32  # whether, site, value; and a word that nobody uses
SITE_BYTES = 16  # whether, value: where each site has words of its own
NOTHING = -1  # the place of a word that is 0

# Extents that run together, numbers or names of sizes, and how many of them a block has.
Grid = tuple[tuple[tuple[int | str, ...], int], ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """A kernel of some code: its name, the product of what `grid` says as blocks, threads of each,
    bytes of shared memory, the number of its image.

    `given`: the places of its parameters among the words of a launch, in order; none: all of them.
    `sites`: so many sites of the code stand before its own.
    """

    name: str
    grid: Grid
    threads: int
    shared: int = 0
    image: int = 0
    given: Ints = ()
    sites: int = 0

    def how(self, sizes: Mapping[str, int]) -> Launching | None:
        """A launch with symbolic extents as given; None: it has no blocks."""
        blocks = 1
        for extents, block in self.grid:
            count = prod(sizes[e] if isinstance(e, str) else e for e in extents)
            blocks *= -(-count // block)
        return Launching(blocks, self.threads, self.shared) if blocks else None

    def words(self, every: Sequence[int], errors: int) -> list[int]:
        """Its parameters, of all words of a launch; that at the place `errors` is its own."""
        own = list(every)
        own[errors] += SITE_BYTES * self.sites
        return [0 if n == NOTHING else own[n] for n in self.given] if self.given else own

    @classmethod
    def read(cls, row: Sequence[Any]) -> Entry:
        """Of what JSON made of its fields."""
        name, grid, threads, shared, image, given, sites = row
        grid = tuple((tuple(extents), block) for extents, block in grid)
        return cls(name, grid, threads, shared, image, tuple(given), sites)


def blocks(count: int) -> Grid:
    """So many blocks, always."""
    return (((count,), 1),)


@entity
class CudaCode:
    """Images, PTX or cubins, with the kernels of one routine, in the order of their launches.

    The words of a launch are the addresses of arguments and shared arrays, run-time extents, the
    address of what checks write, at the place `error`, and that of scratch. `sites`: so many have
    words of their own there; 0: all share a record. `scratch`: bytes of a launch, of which those it
    is given begin at a multiple of `align`.
    """

    images: tuple[bytes, ...]
    entries: tuple[Entry, ...]
    error: int
    sites: int = 0
    scratch: int = 0
    align: int = LINE

    @classmethod
    def read(cls, data: bytes) -> CudaCode:
        """Of what `packed` made. Raises: what malformed JSON does."""
        head, _, rest = data.partition(b"\n")
        *numbers, sizes, rows = json.loads(head)
        images, at = [], 0
        for size in sizes:
            images.append(rest[at : at + size])
            at += size
        return cls(tuple(images), tuple(map(Entry.read, rows)), *numbers)

    @property
    def packed(self) -> bytes:
        """All of it: a line that says what there is, and the images."""
        sizes = [len(image) for image in self.images]
        numbers = self.error, self.sites, self.scratch, self.align
        head = json.dumps([*numbers, sizes, [astuple(e) for e in self.entries]])
        return head.encode() + b"\n" + b"".join(self.images)

    @property
    def error_bytes(self) -> int:
        """What checks write."""
        return max(ERROR_BYTES, SITE_BYTES * self.sites)

    def failed(self, words: Sequence[int]) -> tuple[int, int] | None:
        """The site and the value of a check that failed, by the words that it wrote."""
        if self.sites:
            wrong = (n for n in range(self.sites) if words[2 * n])
            return next(((n, words[2 * n + 1]) for n in wrong), None)
        state, site, value, _ = words
        return (site, value) if state else None

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
