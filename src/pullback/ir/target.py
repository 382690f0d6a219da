"""What a backend can do: the few facts that fusion and scheduling depend on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
    """A processor. Sizes in bytes; `vectors` is the number of vector registers.

    `threads` decides nothing about results: chunks depend on shapes only.
    """

    name: str = "x86-64-v4"
    vector: int = 64
    vectors: int = 32
    l1: int = 32 * 1024
    l2: int = 1024 * 1024
    scratch: int = 64 * 1024
    threads: int = 2

    def lanes(self, itemsize: int) -> int:
        """Elements of `itemsize` bytes in one vector register."""
        return max(1, self.vector // itemsize)
