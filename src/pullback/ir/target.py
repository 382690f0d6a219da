"""What a backend can do: the few facts that fusion and scheduling depend on."""

from __future__ import annotations

from dataclasses import replace

from pullback.config import frozen
from pullback.machine.machine import Machine, like

NATIVE = "native"

# Strides up to which backends load whole vectors and pick lanes: a gather costs about ten loads.
MOST_PICKED = 4

MASKED = 64  # bytes of a vector of processors that have registers for masks


Blocks = tuple[tuple[str, str, str], ...]


@frozen
class Target:
    """A processor. Sizes in bytes; `vectors` is the number of vector registers.

    `fused`: it multiplies and adds in one instruction; `halves`: it converts float16; `powers`:
    it has an instruction for ``p * 2**n`` in full vectors. `dots`: types of which one instruction
    adds the products of two 32-bit words to a 32-bit sum ("bfloat16"; "int8": signed by unsigned
    bytes). `cpu` is LLVM's name of the processor, or "native". How many threads there are is no
    part of it: results do not depend on that. `machine`: its numbers; None: those of any processor
    that runs `name`. `deterministic`: sums of floats have the same bits every time, where a backend
    has a faster way that does not promise it.
    that runs `name`. `blocks`: of a GPU, launches that were measured, by their signatures: the
    schedule as text, and what says so.
    """

    name: str = "x86-64-v4"
    vector: int = 64
    vectors: int = 32
    l1: int = 32 * 1024
    l2: int = 1024 * 1024
    l3: int = 32 * 1024 * 1024
    scratch: int = 64 * 1024
    fused: bool = True
    halves: bool = True
    powers: bool = True
    dots: tuple[str, ...] = ()
    cpu: str = NATIVE
    machine: Machine | None = None
    deterministic: bool = False
    blocks: Blocks = ()

    @property
    def profile(self) -> Machine:
        """The numbers of the processor."""
        return self.machine or like(self.cpu, self.name)

    @property
    def masks(self) -> bool:
        """Whether it has registers for masks; else a store under one takes long."""
        return self.vector >= MASKED

    def on(self, machine: Machine) -> Target:
        """The same code for a machine: its caches and its numbers."""
        sizes = [memory.bytes for memory in machine.memories if memory.bytes]
        _, l2, l3 = (*sizes, sizes[-1], sizes[-1])[:3]
        l1 = int(machine.rate("whole", "first_level"))
        return replace(self, l1=l1, l2=l2, l3=l3, machine=machine)

    def streams(self, size: int) -> bool:
        """Whether `size` bytes are best written past the caches: half of the last level, on x86.

        Twice a float32 array into another, before -> after, one thread: 8 MiB .26 -> .32 ms, 12 MiB
        .54 -> .47, 16 MiB 1.2 -> .64; and their sum after it, 12 MiB .68 -> .92, 16 MiB 1.3 -> 1.3.
        """
        return self.name.startswith("x86") and size >= self.l3 // 2

    def lanes(self, itemsize: int) -> int:
        """Elements of `itemsize` bytes in one vector register."""
        return max(1, self.vector // itemsize)
